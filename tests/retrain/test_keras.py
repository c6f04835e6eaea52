"""Keras models that are trained within a box, with torch behind Keras."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports keras

import proplace as pp
from proplace.core.errors import DeltaError, ModelNotSupportedError, OptionError
from support.errors import raises

keras = pytest.importorskip("keras")
layers = keras.layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(256, 3)).astype(np.float32)
Y = (X[:, 0] - X[:, 1] > 0.1).astype(np.int64)


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def build(hidden, outputs=1, *, bias=True, dtype="float32", front=()):
    last = "sigmoid" if outputs == 1 else "softmax"
    steps = [layers.Dense(n, activation="relu", use_bias=bias, dtype=dtype) for n in hidden]
    steps.append(layers.Dense(outputs, activation=last, use_bias=bias, dtype=dtype))
    return compiled(keras.Sequential([keras.Input((3,), dtype=dtype), *front, *steps]))


def compiled(model, rate=0.02):
    single = model.output_shape[-1] == 1
    loss = "binary_crossentropy" if single else "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(rate), loss)
    return model


def train(model, *callbacks, y=Y, epochs=4):
    model.fit(X, y, batch_size=64, epochs=epochs, verbose=0, callbacks=list(callbacks))


def network(model):
    return pp.Model.of(model).network


def moved(before, after):
    pairs = zip(before.layers, after.layers, strict=True)
    return max(max(np.abs(a.W - b.W).max(), np.abs(a.bias - b.bias).max()) for a, b in pairs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("hidden", [(), (5,), (4, 4, 3, 3)], ids=str)
def test_imported_network_of_trained_model_lies_in_shift_set(hidden, bias, dtype):
    model = build(hidden, outputs=1 + 2 * (len(hidden) % 2), bias=bias, dtype=dtype)
    start = network(model)
    shifts = pp.Shifts.of(start, 0.03)
    callback = pp.retrain.StayWithin(shifts)
    assert isinstance(callback, keras.callbacks.Callback)
    train(model, callback)
    assert shifts.contains(network(model))
    assert 0.02 < start.distance(network(model)) <= 0.03
    callback.check()
    train(model)
    assert not shifts.contains(network(model))
    with raises(DeltaError, match="left"):
        callback.check()


def test_boxes_of_other_kinds_and_number():
    model = build((4, 3))
    past = []
    for _ in range(3):
        train(model, epochs=1)
        past.append(network(model))
    frozen = [(0.0, 0.01), (np.full((3, 4), 0.02), 0.0), (0.05, 0.05)]
    for box in (pp.Shifts.bounding(past[:2]), pp.Shifts.of(past[0], frozen)):
        assert not box.contains(network(model))
        train(model, pp.retrain.StayWithin(box), y=1 - Y)
        assert box.contains(network(model))
    start = network(model)
    callback = pp.retrain.StayWithin(0.01)
    assert callback.shifts is None
    train(model, callback)
    assert callback.shifts == pp.Shifts.of(start, 0.01)
    assert 0.009 < start.distance(network(model)) <= 0.01


def test_each_batch_is_followed_by_projection():
    model = build((4,))
    shifts = pp.Shifts.of(network(model), 1e-3)
    inside = []

    class Spy(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            inside.append(shifts.contains(network(self.model)))

    train(model, pp.retrain.StayWithin(shifts), Spy(), epochs=2)
    assert inside == [True] * 8


def with_norms(*, bias):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Normalization(mean=[1.0, 0.0, 2.0], variance=[1.0, 4.0, 0.25]),
            layers.Dense(6, use_bias=bias),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.BatchNormalization(),
            layers.Dense(5, activation="relu", use_bias=bias),
            layers.BatchNormalization(),
            layers.Dense(2, activation="softmax", use_bias=bias),
        ]
    )
    for layer in norms(model):
        size = layer.weights[0].shape
        numbers = [RNG.normal(size=size), RNG.normal(size=size), RNG.normal(size=size)]
        layer.set_weights([*numbers, RNG.uniform(0.5, 2.0, size)])
    return model


def norms(model):
    return [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_batch_norm_must_be_frozen(bias):
    model = with_norms(bias=bias)
    shifts = pp.Shifts.of(network(model), 0.03)
    with raises(ModelNotSupportedError, match="layer.trainable = False"):
        train(compiled(model), pp.retrain.StayWithin(shifts))
    for layer in norms(model):
        layer.trainable = False
    fixed = [layer.get_weights() for layer in norms(model)]
    start = network(model)
    train(compiled(model), pp.retrain.StayWithin(shifts))
    assert shifts.contains(network(model))
    assert moved(start, network(model)) > 1e-3
    for layer, numbers in zip(norms(model), fixed, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(layer.get_weights(), numbers, strict=True))
    train(model)
    assert not shifts.contains(network(model))


def test_batch_norm_without_parameters_must_be_frozen_too():
    """Its statistics move in training all the same."""
    norm = layers.BatchNormalization(scale=False, center=False)
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4), norm, layers.ReLU(), layers.Dense(1, "sigmoid")]
    )
    assert not norm.trainable_variables
    shifts = pp.Shifts.of(network(model), 0.03)
    with raises(ModelNotSupportedError, match="BatchNormalization"):
        train(compiled(model), pp.retrain.StayWithin(shifts))
    norm.trainable = False
    train(compiled(model), pp.retrain.StayWithin(shifts))
    assert shifts.contains(network(model))


def test_models_inside_model_and_layer_that_is_used_twice():
    shared = layers.Dense(4, activation="relu", name="twice")
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, activation="relu", name="d"), shared]
    )
    x = keras.Input((3,))
    out = shared(inner(layers.Dense(4, activation="relu", name="e")(x)))
    model = compiled(keras.Model(x, layers.Dense(1, activation="sigmoid", name="f")(out)))
    start = network(model)
    shifts = pp.Shifts.of(
        start, [(0.02, 0.02), (0.03, 0.01), (0.02, 0.004), (0.005, 0.02), (0.01, 0.0)]
    )
    train(model, pp.retrain.StayWithin(shifts))
    assert shifts.contains(network(model))
    assert moved(start, network(model)) > 0.009


def test_box_of_models_with_categories():
    kind, number = keras.Input((1,), name="kind", dtype="int32"), keras.Input((1,), name="amount")
    embedded = layers.Flatten()(layers.Embedding(3, 2, name="kinds")(kind))
    joined = layers.Concatenate()([embedded, number])
    hidden = layers.Dense(4, activation="relu")(joined)
    model = compiled(keras.Model([kind, number], layers.Dense(1, activation="sigmoid")(hidden)))
    start = pp.Model.of(model).network
    shifts = pp.Shifts.of(start, 0.01)
    table = [RNG.integers(0, 3, (64, 1)), RNG.normal(size=(64, 1)).astype(np.float32)]
    y = (table[1][:, 0] > 0).astype(int)
    with raises(ModelNotSupportedError, name="kinds"):
        model.fit(table, y, verbose=0, callbacks=[pp.retrain.StayWithin(shifts)])
    model.get_layer("kinds").trainable = False
    compiled(model).fit(table, y, epochs=5, verbose=0, callbacks=[pp.retrain.StayWithin(shifts)])
    assert shifts.contains(pp.Model.of(model).network)
    assert moved(start, pp.Model.of(model).network) > 0.009


def test_box_that_does_not_fit_ends_training_before_first_step():
    model = build((4,))
    start = network(model)
    with raises(DeltaError, name=None, match="architecture"):
        train(model, pp.retrain.StayWithin(pp.Shifts.of(network(build((5,))), 0.1)))
    assert network(model) == start


def test_keras_model_is_not_torch_module_here():
    with raises(OptionError, name="module", match="StayWithin"):
        pp.retrain.stay_within(build((4,)), 0.1)


def test_answers_that_were_proved_are_accepted_by_trained_model():
    """Swapped labels break promises after free training, but not within the shift set."""
    model = build((8, 6))
    train(model, epochs=15)
    shifts = pp.Shifts.of(network(model), 0.01)
    rows = X.astype(float)
    explainer = pp.Proplace(model, shifts, k=10).fit(rows)
    refused = rows[network(model).predict(rows) == 0][:12]
    answers = [e for e in explainer.explain(refused, target=1) if e.found and e.certificate]
    assert len(answers) >= 10
    points = np.array([e.encoded_counterfactual for e in answers], dtype=np.float32)
    weights = model.get_weights()
    train(model, pp.retrain.StayWithin(shifts), y=1 - Y, epochs=10)
    assert (model.predict(points, verbose=0)[:, 0] >= 0.5).all()
    model.set_weights(weights)
    train(model, y=1 - Y, epochs=10)
    assert not (model.predict(points, verbose=0)[:, 0] >= 0.5).all()
