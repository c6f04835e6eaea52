"""Keras models: the table goes in, Keras' own class comes out."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proplace import Continuous, Model, Schema
from proplace.core.errors import (
    InputError,
    MissingExtraError,
    ModelNotSupportedError,
    SchemaError,
)
from proplace.loaders.keras import from_keras
from proplace.loaders.verify import form_of
from proplace.schema import Binary, Categorical
from support.networks import NetworkOf
from support.tiers import examples

pytest.importorskip("torch")
keras = pytest.importorskip("keras")
L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")


def people(n=200, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(float),
            "income": rng.normal(50_000, 12_000, n).round(-1),
            "kids": rng.integers(0, 6, n),
            "job": rng.integers(0, 4, n),
            "town": rng.integers(1, 5, n),
        }
    )


def inputs(*names, **sizes):
    """One input for each name, of one column unless a size is given."""
    whole = {"kids", "job", "town"}
    made = {n: keras.Input((1,), name=n, dtype="int32" if n in whole else "float32") for n in names}
    return made | {n: keras.Input((size,), name=n) for n, size in sizes.items()}


def scaled(tensor, *columns):
    layer = L.Normalization()
    layer.adapt(people()[list(columns)].to_numpy("float32"))
    return layer(tensor)


def ending(x, outputs=1, activation=None):
    x = L.Dense(6, activation="relu")(x)
    x = L.Dense(4, activation="relu")(L.Dropout(0.2)(x))
    return L.Dense(outputs, activation=activation or ("sigmoid" if outputs == 1 else "softmax"))(x)


def numbers():
    i = inputs("age", "income")
    return keras.Model(i, ending(L.Concatenate()([scaled(v, n) for n, v in i.items()])))


def list_of_inputs():
    i = inputs("income", "age")
    x = L.Concatenate()([scaled(i["age"], "age"), L.Rescaling(1e-4, -5.0)(i["income"])])
    return keras.Model(list(i.values()), ending(x, activation="linear"))


def one_input():
    layer = L.Normalization()
    layer.adapt(people()[["age", "income"]].to_numpy("float32"))
    return keras.Sequential(
        [keras.Input((2,)), layer, L.Dense(5, activation="relu"), L.Dense(1, "sigmoid")]
    )


def several_columns():
    i = inputs("job", money=2)
    columns = [scaled(i["money"], "age", "income"), L.CategoryEncoding(4, "one_hot")(i["job"])]
    return keras.Model(i, ending(L.Concatenate()(columns)))


def encodings():
    i = inputs("age", "job", "town", "kids")
    columns = [
        scaled(i["age"], "age"),
        L.CategoryEncoding(4, "one_hot")(i["job"]),
        L.CategoryEncoding(6, "multi_hot")(i["town"]),
        L.CategoryEncoding(6, "count")(i["kids"]),
    ]
    return keras.Model(i, ending(L.Concatenate()(columns), 3))


def embeddings():
    i = inputs("age", "job", "town")
    columns = [
        L.Flatten()(L.Embedding(4, 2)(i["job"])),
        L.Reshape((3,))(L.Embedding(5, 3, mask_zero=True)(i["town"])),
        scaled(i["age"], "age"),
    ]
    return keras.Model(i, ending(L.Concatenate()(columns)))


def embedded_twice():
    i = inputs("job", "town")
    shared = L.Embedding(5, 2)
    columns = [L.Flatten()(shared(v)) for v in i.values()]
    return keras.Model(i, ending(L.Concatenate()(columns), 3))


def embedded_pair():
    x = keras.Input((2,), dtype="int64")
    return keras.Model(x, ending(L.Flatten()(L.Embedding(5, 2)(x)), 2))


def selections():
    x = keras.Input((3,))
    numbers = (x[:, :2] - np.float32([48, 5e4])) / np.float32([18, 1.2e4])
    job = L.Embedding(4, 2)(keras.ops.cast(x[:, 2], "int32"))
    swapped = keras.ops.take(numbers, np.array([1, 0]), axis=1)
    first = L.Add()([swapped[:, :1], 1.0 - numbers[:, :1]])
    return keras.Model(x, ending(L.Concatenate()([first, -numbers, job * 2.0])))


def batch_norm_in_front():
    i = inputs("age", "income", "job")
    one_hot = L.CategoryEncoding(4, "one_hot")(i["job"])
    x = L.Concatenate()([i["age"], i["income"], one_hot])
    return keras.Model(i, ending(L.BatchNormalization()(x)))


def batch_norm_behind():
    i = inputs("age", "income")
    x = L.Concatenate()([scaled(v, n) for n, v in i.items()])
    x = L.ReLU()(L.BatchNormalization(scale=False)(L.Dense(5, use_bias=False)(x)))
    x = L.Dense(4, activation="relu")(x)
    x = L.BatchNormalization()(x)
    return keras.Model(i, L.BatchNormalization(center=False)(L.Dense(3)(x)))


def nested():
    p, q = keras.Input((1,), name="p"), keras.Input((1,), name="q", dtype="int32")
    front = keras.Model(
        {"q": q, "p": p},
        L.Concatenate()([scaled(p, "income"), L.CategoryEncoding(4, "one_hot")(q)]),
    )
    back = keras.Sequential([L.Dense(5), L.ReLU(), L.Dense(3), L.Softmax()])
    i = inputs("job", "income")
    return keras.Model(i, {"class": back(front({"p": i["income"], "q": i["job"]}))})


def no_axis():
    age = keras.Input((), name="age")
    job = keras.Input((), name="job", dtype="int32")
    columns = [L.Reshape((1,))(age), L.CategoryEncoding(4, "one_hot")(job)]
    x = L.Concatenate()(columns)
    return keras.Model([age, job], ending(L.Rescaling([0.02, 1, 1, 1, 2], [-1, 0, 0, 0, 0])(x)))


def number_and_category():
    i = inputs("kids", "age")
    columns = [
        L.Rescaling(0.3)(i["kids"]),
        L.CategoryEncoding(6, "one_hot")(i["kids"]),
        scaled(i["age"], "age"),
    ]
    return keras.Model(i, ending(L.Concatenate()(columns)))


def whole_numbers():
    i = inputs("kids", "age")
    columns = [L.Rescaling(0.3, -1)(i["kids"]), scaled(i["age"], "age")]
    return keras.Model(i, ending(L.Concatenate()(columns)))


def a_column_of_no_use():
    i = inputs("kids", "age", "income")
    columns = [L.Rescaling(0.0, 1.0)(i["kids"]), *(scaled(i[n], n) for n in ("age", "income"))]
    return keras.Model(i, ending(L.Concatenate()(columns)))


def doubles():
    with_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        made = {n: keras.Input((1,), name=n, dtype="float64") for n in ("age", "income")}
        columns = [L.Rescaling(0.02, -1)(made["age"]), L.Rescaling(2e-5, -1)(made["income"])]
        return keras.Model(made, ending(L.Concatenate()(columns)))
    finally:
        keras.config.set_dtype_policy(with_policy)


BUILDERS = {
    build.__name__: build
    for build in (
        numbers,
        list_of_inputs,
        one_input,
        several_columns,
        encodings,
        embeddings,
        embedded_twice,
        embedded_pair,
        selections,
        batch_norm_in_front,
        batch_norm_behind,
        nested,
        no_axis,
        number_and_category,
        whole_numbers,
        a_column_of_no_use,
        doubles,
    )
}
# Columns of the table after those of the model, if it has other names for them or none.
COLUMNS = {
    "one_input": {"x0": "age", "x1": "income"},
    "several_columns": {"job": "job", "money_0": "age", "money_1": "income"},
    "embedded_pair": {"x0": "job", "x1": "town"},
    "selections": {"x0": "age", "x1": "income", "x2": "job"},
}


def trained(name):
    """A model with numbers of its own in every layer, and rows of every class."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(5)
    model = BUILDERS[name]()
    for layer in layers_of(model):
        if isinstance(layer, (L.Dense, L.Embedding)):
            layer.set_weights([rng.normal(0.0, 0.8, w.shape) for w in layer.get_weights()])
        if isinstance(layer, L.BatchNormalization):
            made = [rng.normal(0.0, 1.0, w.shape) for w in layer.get_weights()]
            made[-1] = np.abs(made[-1]) + 0.2
            if name == "batch_norm_in_front":
                made[-2] = np.array([48, 5e4, 0.3, 0.2, 0.3, 0.2])
                made[-1] = np.array([300, 1e8, 0.2, 0.2, 0.2, 0.2])
            layer.set_weights(made)
    centre(model, run(model, name, people()))
    return model


def layers_of(model):
    """All layers in their order, those of models inside the model in its place."""
    for layer in model.layers:
        yield from layers_of(layer) if isinstance(layer, keras.Model) else [layer]


def centre(model, outputs):
    """Move the boundaries between the classes into the middle of the rows."""
    last = [layer for layer in layers_of(model) if layer.weights][-1]
    if isinstance(last, L.BatchNormalization):
        gamma, mean, variance = last.get_weights()
        back = np.sqrt(variance + last.epsilon) / gamma
        last.set_weights([gamma, mean + outputs.mean(axis=0) * back, variance])
        return
    z = outputs
    if outputs.shape[1] > 1:
        middle = np.log(outputs).mean(axis=0)
    else:
        if last.activation is not keras.activations.linear:
            z = np.log(outputs / (1.0 - outputs))
        values = np.unique(z.round(4))  # many rows may have the same
        middle = values[len(values) // 2 - 1 :][:2].mean()
    W, b = last.get_weights()
    last.set_weights([W, b - middle])


def table_of(name, frame):
    """The table with the names that the model has for its columns."""
    if name not in COLUMNS:
        return frame
    return pd.DataFrame({new: frame[old] for new, old in COLUMNS[name].items()})


def run(model, name, frame):
    """Outputs of Keras itself, given its inputs."""
    tensors = model.inputs
    arrays = []
    for tensor in tensors:
        if name in ("one_input", "embedded_pair", "selections"):
            cells = frame[list(COLUMNS[name].values())].to_numpy()
        elif tensor.name == "money":
            cells = frame[["age", "income"]].to_numpy()
        else:
            cells = frame[tensor.name].to_numpy()
            cells = cells if len(tensor.shape) == 1 else cells[:, None]
        arrays.append(cells.astype(tensor.dtype))
    given = getattr(model, "input", None)
    if isinstance(given, dict):
        feeds = {tensor.name: array for tensor, array in zip(tensors, arrays, strict=True)}
    else:
        feeds = arrays if isinstance(given, list) else arrays[0]
    value = model(feeds, training=False)
    value = value["class"] if isinstance(value, dict) else value
    return np.asarray(keras.ops.convert_to_numpy(value), dtype=np.float64)


def classes(name, outputs):
    if outputs.shape[1] > 1:
        return outputs.argmax(axis=1)
    return (outputs[:, 0] >= (0.0 if name == "list_of_inputs" else 0.5)).astype(int)


def clear(network, rows):
    """Rows that rounding cannot decide."""
    z = np.sort(network.logits(rows), axis=1)
    return (np.abs(z[:, 0]) if z.shape[1] == 1 else z[:, -1] - z[:, -2]) > 1e-4


@pytest.mark.parametrize("name", BUILDERS)
def test_every_prediction_is_keras_own(name):
    source = trained(name)
    model = Model.of(source)
    assert model.has_preprocessing
    for seed in (0, 1):
        frame = people(seed=seed)
        outputs = run(source, name, frame)
        theirs = classes(name, outputs)
        assert len(set(theirs.tolist())) > 1
        table = table_of(name, frame).sample(frac=1.0, axis=1, random_state=seed)
        rows = model.encode(table)
        sure = clear(model.network, rows)
        assert sure.mean() > 0.95
        assert (model.predict(table) == theirs)[sure].all()
        assert (model.predict_original(table) == theirs).all()
        model.check_agreement(table)
        z = model.network.logits(rows)
        if outputs.shape[1] == 1 and name != "list_of_inputs":
            np.testing.assert_allclose(1.0 / (1.0 + np.exp(-z)), outputs, atol=2e-5)
        elif name in ("list_of_inputs", "batch_norm_behind"):
            np.testing.assert_allclose(z, outputs, atol=1e-4)
        else:
            P = np.exp(z - z.max(axis=1, keepdims=True))
            np.testing.assert_allclose(P / P.sum(axis=1, keepdims=True), outputs, atol=2e-5)


def test_columns_are_called_as_inputs():
    assert list(Model.of(trained("numbers")).schema.by_name) == ["age", "income"]
    several = Model.of(trained("several_columns"))
    assert list(several.schema.by_name) == ["money_0", "money_1", "job"]
    alone = Model.of(trained("one_input"))
    assert list(alone.schema.by_name) == ["x0", "x1"]
    named = alone.with_schema(Schema([Continuous("age", 0, 120), Continuous("income", 0, 2e5)]))
    frame = people()
    said = classes("one_input", run(trained("one_input"), "one_input", frame))
    assert (named.predict(frame) == said).mean() > 0.99
    assert (named.predict_original(frame) == said).all()


def test_schema_describes_table():
    schema = Model.of(trained("encodings")).schema
    assert schema.by_name["job"] == Categorical("job", [0, 1, 2, 3])
    assert schema.by_name["kids"].labels == tuple(range(6))
    age = schema.by_name["age"]
    assert (age.offset, age.scale) == pytest.approx((people().age.mean(), people().age.std(ddof=0)))
    i = inputs("job")
    small = keras.Model(i, ending(L.CategoryEncoding(2, "one_hot")(i["job"])))
    assert Model.of(small).schema.features == (Categorical("x0", [0, 1]),)


def test_number_0_of_masked_embedding_is_no_category():
    assert Model.of(trained("embeddings")).schema.by_name["town"].labels == (1, 2, 3, 4)


def dense_layers(model):
    return [layer for layer in layers_of(model) if isinstance(layer, L.Dense)]


@pytest.mark.parametrize("name", [n for n in BUILDERS if n != "batch_norm_behind"])
def test_trained_weights_are_never_changed(name):
    source = trained(name)
    layers = NetworkOf(source).layers
    for layer, dense in zip(layers, dense_layers(source), strict=True):
        W, b = dense.get_weights()
        np.testing.assert_array_equal(layer.W, W.T)
        np.testing.assert_array_equal(layer.b, b)


def test_scalers_and_one_hot_columns_need_no_matrix():
    """Delta then refers to the trained weights on exactly their inputs."""
    for name in ("numbers", "several_columns", "batch_norm_in_front", "no_axis"):
        assert NetworkOf(trained(name)).input_transform.matrix is None


def test_batch_normalization_is_folded_as_it_is_written():
    source = trained("batch_norm_behind")
    network = NetworkOf(source)
    norms = [layer for layer in source.layers if isinstance(layer, L.BatchNormalization)]
    first, second, _ = dense_layers(source)
    beta, mean, variance = norms[0].get_weights()
    g = 1.0 / np.sqrt(variance.astype(np.float64) + norms[0].epsilon)
    np.testing.assert_allclose(network.layers[0].W, g[:, None] * first.get_weights()[0].T)
    np.testing.assert_allclose(network.layers[0].b, beta - mean * g)
    np.testing.assert_array_equal(network.layers[1].W, second.get_weights()[0].T)
    assert network.widths == (5, 4)


def test_column_that_model_never_looks_at_may_be_left_out():
    source = trained("a_column_of_no_use")
    model = Model.of(source)
    frame = people()
    assert list(model.schema.by_name) == ["age", "income"]
    said = classes("", run(source, "a_column_of_no_use", frame))
    assert (model.predict_original(frame[["age", "income"]]) == said).all()


def test_model_that_was_changed_after_it_was_read_is_noticed():
    source = trained("numbers")
    model = Model.of(source)
    last = dense_layers(source)[-1]
    last.set_weights([-w for w in last.get_weights()])
    with pytest.raises(Exception, match="Read it again"):
        model.check_agreement(people())


# -- what cannot be taken ----------------------------------------------------------------------


class Own(L.Layer):
    def __init__(self, size, **options):
        super().__init__(**options)
        self.size = size

    def call(self, x):
        return 2.0 * x


def towers(i):
    return L.Concatenate(name="odd")([L.Dense(2, activation="relu")(v) for v in i.values()])


def skip(i):
    h = L.Dense(2, activation="relu")(L.Concatenate()(list(i.values())))
    return L.Add(name="odd")([h, L.Dense(2, activation="relu")(h)])


def late_columns(i):
    h = L.Dense(2, activation="relu")(i["age"])
    return L.Concatenate(name="odd")([h, i["income"]])


def both(layer):
    return lambda i: layer(L.Concatenate()(list(i.values())))


def one_hot(layer, n=1):
    return lambda i: L.Flatten()(layer(L.Reshape((n,))(L.Concatenate()(list(i.values())))))


REFUSED = {
    "towers": (towers, "joins two paths.*join columns before the first Dense layer"),
    "skip": (skip, r"'odd' \(Add\) joins two paths.*a skip connection"),
    "late columns": (
        late_columns,
        r"'odd' \(Concatenate\) joins two paths.*join columns before",
    ),
    "product": (
        lambda i: L.Multiply(name="odd")(list(i.values())),
        r"\(Multiply\) multiplies or divides columns by columns.*in the table",
    ),
    "sum of three": (
        lambda i: L.Add(name="odd")([*i.values(), i["age"]]),
        r"\(Add\) joins more than two tensors. Join two of them at a time",
    ),
    "layer norm": (
        both(L.LayerNormalization(name="odd")),
        "'odd'.*BatchNormalization in its place",
    ),
    "tanh": (both(L.Dense(2, "tanh", name="odd")), "'odd'.*activation 'tanh'.*Train the model"),
    "relu in front": (both(L.ReLU(name="odd")), "'odd'.*acts on the input"),
    "own layer": (both(Own(3, name="odd")), r"'odd' \(Own\) is a class of your own.*Keras' own"),
    "bins": (both(L.Discretization([0.0, 1.0], name="odd")), "'odd'.*Cut the column into bins"),
    "several": (one_hot(L.CategoryEncoding(3, "multi_hot", name="odd"), 2), "'odd'.*of its own"),
    "rows": (lambda i: L.Concatenate(0, name="odd")(list(i.values())), "'odd'.*mixes rows"),
    "changed": (
        lambda i: L.CategoryEncoding(3, "one_hot", name="odd")(L.Rescaling(2.0)(i["age"])),
        "'odd'.*column that was changed before. Apply it to the column",
    ),
    "other categories": (
        lambda i: L.Concatenate()([L.CategoryEncoding(k, "one_hot")(i["age"]) for k in (3, 4)]),
        "knows other categories of 'age'",
    ),
    "many categories": (
        lambda i: L.CategoryEncoding(1001, "one_hot", name="odd")(i["age"]),
        "'odd'.*1,001 categories.*Group the rare ones",
    ),
    "no flatten": (
        lambda i: L.Flatten()(L.Dense(2, name="odd")(L.Embedding(3, 2)(i["age"]))),
        r"'odd'.*shape \(1, 2\).*with a Flatten",
    ),
    "outputs": (None, "2 inputs and 2 outputs. It must have one output"),
    "early output": (False, "gives out values from before its last layer"),
}


def refused(name):
    i = inputs("age", "income")
    make = REFUSED[name][0]
    x = L.Dense(2, activation="relu")(L.Concatenate()(list(i.values())))
    if make is None:
        return keras.Model(i, [L.Dense(1)(x), L.Dense(1)(x)])
    if make is False:
        return keras.Model(i, L.Concatenate()(list(i.values())))
    return keras.Model(i, L.Dense(1)(make(i)))


@pytest.mark.parametrize("name", [n for n in REFUSED if n != "early output"])
def test_refusals_name_next_step(name):
    with pytest.raises(ModelNotSupportedError, match=REFUSED[name][1]):
        Model.of(refused(name))


def test_model_without_layers_is_refused():
    with pytest.raises(ModelNotSupportedError, match="no Dense layer"):
        Model.of(refused("early output"))


def test_two_columns_of_one_name_are_refused():
    i = {n: keras.Input((size,), name=n) for n, size in {"a": 2, "a_1": 1}.items()}
    source = keras.Model(i, L.Dense(1)(L.Concatenate()(list(i.values()))))
    with pytest.raises(
        ModelNotSupportedError, match=r"would be called 'a_1'\. Give its inputs other"
    ):
        Model.of(source)


def test_whole_numbers_stay_whole():
    model = Model.of(trained("whole_numbers"))
    frame = people().astype({"kids": float})
    frame.loc[2, "kids"] = 1.5
    with pytest.raises(InputError, match=r"row 2, column 'kids'.*whole numbers.*1\.5.*step=1"):
        model.predict_original(frame)


def test_missing_cells_are_named():
    model = Model.of(trained("numbers"))
    frame = people()
    frame.loc[4, "income"] = np.nan
    with pytest.raises(InputError, match=r"row 4, column 'income'.*no missing"):
        model.predict_original(frame)


def test_layer_that_was_changed_is_noticed():
    source = trained("numbers")
    dense = dense_layers(source)[0]
    call = dense.call
    dense.call = lambda x, **options: 1.5 * call(x, **options)
    with pytest.raises(ModelNotSupportedError, match="does not compute what"):
        Model.of(source)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["one_input", "embedded_pair"])
def test_onnx_export_is_read_or_sent_to_original_model(name, tmp_path):
    pytest.importorskip("onnx")
    source, path = trained(name), tmp_path / "m.onnx"
    source.export(path, format="onnx", verbose=False)
    table = table_of(name, people())
    if name == "embedded_pair":  # Keras writes categories with Less and Where
        with pytest.raises(ModelNotSupportedError, match="give the original model to Model"):
            Model.of(path)
        assert Model.of(source).has_original
    else:
        assert (Model.of(path).predict(table) == Model.of(source).predict(table)).mean() > 0.99


def test_labels_of_two_words_may_be_described_as_choice():
    i = inputs("age", "job")
    columns = [scaled(i["age"], "age"), L.CategoryEncoding(2, "one_hot")(i["job"])]
    model = Model.of(keras.Model(i, ending(L.Concatenate()(columns))))
    user = Schema([Continuous("age", 18, 90, step=1), Binary("job", [0, 1])])
    frame = people().assign(job=lambda f: f.job % 2)
    assert (model.with_schema(user).predict(frame) == model.predict(frame)).all()


# -- the network alone -----------------------------------------------------------------------------


def sequential(*layers, inputs=5, dtype=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((inputs,), dtype=dtype), *layers])


def outputs_of(model, X):
    out = model(X.astype(model.layers[0].dtype), training=False)
    return np.asarray(keras.ops.convert_to_numpy(out), dtype=np.float64)


def assert_close(mine, theirs):
    """Equal to 1e-6 of the largest value, which is what float32 allows."""
    atol = 1e-6 * max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=atol)


def test_network_of_everything_that_is_read(binary):
    normalization = L.Normalization()
    normalization.adapt(binary.X)
    model = sequential(
        *(L.Rescaling(1.0), normalization, L.Rescaling(0.5, [0.0, 0.1, 0.2, 0.3, 0.4])),
        *(L.Dense(8, activation="relu", kernel_regularizer="l2"), L.Dropout(0.3)),
        *(L.Dense(6, use_bias=False), L.ReLU(), L.GaussianNoise(0.1)),
        *(L.Dense(4), L.Activation("relu"), L.Flatten(), L.Dense(1, activation="sigmoid")),
    )
    network = NetworkOf(model)
    p = outputs_of(model, binary.fresh)[:, 0]
    assert_close(network.predict_proba(binary.fresh)[:, 1], p)
    sure = np.abs(p - 0.5) > 1e-5
    assert (network.predict(binary.fresh) == (p >= 0.5))[sure].all()
    assert (network.precision, network.widths) == ("float32", (8, 6, 4))
    assert network.layers[1].b is None
    # The scalers are not folded into the weights.
    front = keras.Sequential(model.layers[:3])
    seen = network.transform(network.model.encode(binary.fresh))
    assert_close(seen, outputs_of(front, binary.fresh))
    np.testing.assert_array_equal(network.layers[0].W.T, model.layers[3].get_weights()[0])


def functional():
    x = given = keras.Input((5,))
    x = keras.ops.relu(L.Dense(8)(x))
    x = keras.Sequential([L.Dense(6, activation=L.ReLU())])(x)
    return keras.Model(given, L.Dense(3)(x))


def normalised(**options):
    """A model with a column without variance, for which Keras divides by its epsilon."""
    layer = L.Normalization(**options)
    if "mean" not in options:
        Z = np.random.default_rng(1).normal(size=(99, 5))
        Z[:, 2] = 1.0
        layer.adapt(Z)
    scaling = L.Rescaling(np.float32(2.0), np.ones(5))
    return sequential(layer, scaling, L.Dense(2, "relu"), L.Dense(1))


def between(*layers):
    return sequential(L.Dense(3), *layers, L.Dense(1))


def rescaling():
    return L.Rescaling(2.0, [0.1, -0.2, 0.3])


def normalization():
    return L.Normalization(mean=1.0, variance=4.0)


CHAINS = {
    "functional": functional,
    "softmax in a layer": lambda: sequential(L.Dense(8, "relu"), L.Dense(3, "softmax")),
    "softmax layer": lambda: sequential(L.Dense(8, "relu"), L.Dense(3), L.Softmax()),
    "log_softmax": lambda: sequential(L.Dense(3), L.Activation("log_softmax")),
    "flattened table": lambda: keras.Sequential(
        [keras.Input((2, 3)), L.Flatten(), L.Dense(2, "relu"), L.Dense(1)]
    ),
    "one mean for all": lambda: normalised(axis=None),
    "inverted": lambda: normalised(invert=True),
    "adapted": normalised,
    "given mean": lambda: normalised(mean=[2.0] * 5, variance=[4.0] * 5),
    "rescaling after a layer": lambda: between(rescaling(), L.ReLU()),
    "rescaling after a ReLU": lambda: between(L.ReLU(), rescaling()),
    "normalization after a layer": lambda: between(normalization(), L.ReLU()),
    "normalization after a ReLU": lambda: between(L.ReLU(), normalization()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_outputs_of_chain_are_keras_own(name):
    model = CHAINS[name]()
    shape = model.input_shape[1:]
    X = np.random.default_rng(0).normal(size=(40, *shape))
    if name in ("adapted", "inverted"):
        X[:, 2] = 1.0
    outputs, network = outputs_of(model, X), NetworkOf(model)
    X = X.reshape(40, -1)
    ours = network.predict_proba(X) if "softmax" in name else network.logits(X)
    assert_close(ours, np.exp(outputs) if name == "log_softmax" else outputs)


def test_float64(binary):
    model = sequential(
        L.Dense(8, activation="relu", dtype="float64"), L.Dense(1, dtype="float64"), dtype="float64"
    )
    network = NetworkOf(model)
    X = binary.fresh_Z.astype("float32").astype("float64")
    error = np.abs(network.logits(X) - outputs_of(model, X)).max()
    assert error <= 1e-6
    # The arithmetic that keras really used decides.
    assert network.precision == ("float64" if error < 1e-12 else "float32")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16", "bfloat16"])
def test_half_precision_is_rejected_and_advice_works(policy):
    model = sequential(L.Dense(8, "relu", dtype=policy), L.Dense(1, dtype="float32"))
    with pytest.raises(ModelNotSupportedError, match=r"half precision \(b?float16.*set_weights"):
        Model.of(model)
    full = sequential(L.Dense(8, "relu"), L.Dense(1))
    full.set_weights(model.get_weights())
    network = NetworkOf(full)
    assert network.precision == "float32"
    for layer, own in zip(network.layers, (0, 2), strict=True):
        kernel = keras.ops.cast(model.weights[own].value, "float32")
        np.testing.assert_array_equal(layer.W, keras.ops.convert_to_numpy(kernel).T)


class Doubling(L.Dense):
    def call(self, inputs, training=None):
        return 2.0 * super().call(inputs)


class OwnModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([L.Dense(4, "tanh", name="odd"), L.Dense(1)], "'odd'.*activation 'tanh'"),
        ([L.Dense(4, "gelu", name="odd"), L.Dense(1)], "'odd'.*activation 'gelu'"),
        ([L.Dense(4, "relu6", name="odd"), L.Dense(1)], "'odd'.*activation 'relu6'"),
        (
            [L.Dense(4), L.LayerNormalization(name="odd"), L.Dense(1)],
            "'odd' .LayerNormalization.*Train the model with BatchNormalization",
        ),
        ([L.Dense(4), L.LeakyReLU(name="odd"), L.Dense(1)], "'odd' .LeakyReLU.*only Dense"),
        ([L.Dense(4), L.ReLU(6.0, name="odd"), L.Dense(1)], "'odd' .ReLU. has max_value=6"),
        ([L.Dense(4), L.ReLU(negative_slope=0.1, name="odd"), L.Dense(1)], "'odd'.*slope=0.1"),
        ([L.Dense(4), L.ReLU(threshold=1.0, name="odd"), L.Dense(1)], "'odd'.*threshold=1.0"),
        ([L.Dense(4, name="one"), L.Dense(1, name="two")], "'one'.*'two'.*Merge"),
        ([L.Dense(1, "sigmoid", name="odd"), L.Dense(1, name="two")], "'odd'.*followed by.*'two'"),
        ([L.Dense(2, "sigmoid", name="odd")], "'odd'.*sigmoid to 2 outputs"),
        ([L.Dense(1, "softmax", name="odd")], "'odd'.*always 1"),
        ([L.Dense(2, "relu", name="odd")], "ends in a ReLU after layer 'odd'"),
        ([Doubling(1, name="odd")], "'odd' .Doubling. is a class of your own"),
        ([L.Dropout(0.1)], "no Dense layer"),
        ([L.Dense(4), L.Reshape((2, 2)), L.Dense(1, name="odd")], r"'odd'.*rows of shape \(2, 2\)"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value[-1]).__name__,
)
def test_other_layers_are_refused_by_name(layers, message):
    with pytest.raises(ModelNotSupportedError, match=message):
        Model.of(sequential(*layers))


def test_branches_are_refused():
    x = keras.Input((5,))
    h = L.Dense(3, "relu")(x)
    with pytest.raises(ModelNotSupportedError, match=r"\(Multiply\) joins two paths"):
        Model.of(keras.Model(x, L.Dense(1)(h * h)))


def test_other_models_are_refused():
    model = OwnModel()
    model(np.zeros((1, 5), dtype="float32"))
    with pytest.raises(ModelNotSupportedError, match=r"OwnModel is a model with its own call\(\)"):
        Model.of(model)
    with pytest.raises(ModelNotSupportedError, match="has no weights yet"):
        Model.of(keras.Sequential([L.Dense(1)]))
    with pytest.raises(ModelNotSupportedError, match=r"rows of shape \(4, 5\)"):
        Model.of(keras.Sequential([keras.Input((4, 5)), L.Dense(1)]))
    with pytest.raises(ModelNotSupportedError, match="a int is not a model that is read"):
        Model.of(3)


def test_lambda_layers_are_refused():
    model = sequential(L.Lambda(lambda x: x, name="sly"), L.Dense(1))
    with pytest.raises(
        ModelNotSupportedError, match=r"'sly' \(Lambda\) holds Python code.*never read"
    ):
        Model.of(model)


def test_missing_keras(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtraError, match=r"proplace\[keras\]"):
        from_keras(object())


def test_missing_backend(monkeypatch):
    def no_backend(package, extra, purpose):
        error = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
        raise MissingExtraError.of(package, extra, purpose) from error

    monkeypatch.setattr("proplace.loaders.keras.require", no_backend)
    with pytest.raises(
        MissingExtraError, match=r"'tensorflow', which is not installed.*KERAS_BACKEND"
    ):
        from_keras(object())


# -- any model ---------------------------------------------------------------------------------------


def chained(*layers):
    """Layers one after the other, as one."""
    return lambda x: functools.reduce(lambda y, layer: layer(y), layers, x)


NUMBERS = [
    lambda: L.Rescaling(1e-2),
    lambda: L.Normalization(mean=[40.0], variance=[900.0]),
    lambda: chained(L.Rescaling(1e-2, offset=0.5), L.BatchNormalization()),
    lambda: chained(L.Rescaling(-0.02), L.Flatten()),
]
CATEGORIES = [
    lambda: L.CategoryEncoding(6, output_mode="one_hot"),
    lambda: L.CategoryEncoding(6, output_mode="multi_hot"),
    lambda: chained(L.Embedding(6, 2), L.Flatten()),
    lambda: chained(L.Embedding(6, 3), L.Reshape((3,))),
]
BETWEEN = [
    chained,
    L.BatchNormalization,
    L.Identity,
    lambda: L.Dropout(0.3),
    lambda: L.Reshape((-1,)),
]
RELU = [L.ReLU, lambda: L.Activation("relu"), lambda: keras.ops.relu]
LAST = {
    1: [chained, lambda: L.Activation("sigmoid"), lambda: keras.ops.sigmoid],
    3: [chained, L.Softmax, lambda: keras.ops.softmax],
}


def drawn_model(draw):
    """A model of some inputs, each part of a kind that is drawn, and the names of its inputs."""

    def one_of(kinds):
        return draw(st.sampled_from(kinds))()

    keras.utils.set_random_seed(0)
    fronts = {"age": one_of(NUMBERS)}
    fronts |= {name: one_of(CATEGORIES) for name in ("kids", "job") if draw(st.booleans())}
    i = inputs(*fronts)
    columns = [front(i[name]) for name, front in fronts.items()]
    x = L.Concatenate()(columns) if columns[1:] else columns[0]
    for width in draw(st.lists(st.integers(1, 4), max_size=2)):
        x = one_of(BETWEEN)(L.Dense(width, use_bias=draw(st.booleans()))(x))
        x = one_of(BETWEEN)(one_of(RELU)(x))
    outputs = draw(st.sampled_from(list(LAST)))
    model = keras.Model(i, one_of(LAST[outputs])(L.Dense(outputs)(x)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for layer in model.layers:  # nothing as it is in a new layer
        if isinstance(layer, L.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 2.0, w.shape) for w in layer.get_weights()])
        elif isinstance(layer, (L.Dense, L.Embedding)):
            layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    return model, list(fronts)


@given(st.data())
@examples(12)
def test_random_models(data):
    source, names = drawn_model(data.draw)
    model = Model.of(source)
    frame = people(60)[names]
    outputs = run(source, "random", frame)
    table = frame.set_axis(list(model.schema.by_name), axis=1)  # a single input has no name
    rows = model.encode(table)
    assert form_of(model.network, rows, outputs, "float32") is not None
    sure = clear(model.network, rows)
    assert (model.predict_original(table) == model.predict(table))[sure].all()


# -- lookups, which Keras builds with TensorFlow alone ---------------------------------------------


class IntegerLookup(L.Layer):
    """The computation of Keras' own layer, without TensorFlow."""

    invert, num_oov_indices, mask_token, pad_to_max_tokens = False, 1, None, False

    def __init__(self, vocabulary, output_mode):
        super().__init__()
        self.vocabulary, self.output_mode = vocabulary, output_mode

    def get_vocabulary(self):
        return [-1, *map(np.int64, self.vocabulary)]

    def call(self, x):
        found = keras.ops.cast(x == np.array(self.vocabulary), "float32")
        if self.output_mode == "one_hot":
            return keras.ops.concatenate([keras.ops.zeros_like(found[:, :1]), found], axis=-1)
        codes = keras.ops.convert_to_tensor(np.arange(1.0, 5.0, dtype="float32"))
        return keras.ops.cast(keras.ops.sum(found * codes, axis=-1, keepdims=True), "int32")


IntegerLookup.__module__ = "keras.src.layers.preprocessing.integer_lookup"


@pytest.mark.parametrize("output_mode", ["one_hot", "int"])
def test_vocabulary_of_lookup_is_labels(output_mode):
    i = inputs("age", "town")
    x = IntegerLookup([4, 1, 3, 2], output_mode)(i["town"])
    if output_mode == "int":
        x = L.Flatten()(L.Embedding(5, 2)(x))
    source = keras.Model(i, ending(L.Concatenate()([scaled(i["age"], "age"), x])))
    model = Model.of(source)
    assert model.schema.by_name["town"] == Categorical("town", [4, 1, 3, 2])
    frame = people()[["age", "town"]]
    z = model.network.logits(model.encode(frame))
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(-z)), run(source, "lookup", frame), atol=2e-5)
    with pytest.raises(SchemaError, match="5 is not a"):
        model.predict(frame.assign(town=5))
