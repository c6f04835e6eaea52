from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
import pytest

from proplace.errors import MissingExtra, ModelFileError, ModelNotSupported
from proplace.network import Network

pytest.importorskip("torch")
keras = pytest.importorskip("keras")
L = keras.layers


def fit(model, data, X=None):
    keras.utils.set_random_seed(0)
    outputs = model.output_shape[-1]
    loss = "mse" if outputs == 1 else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss=loss, jit_compile=False)
    X = data.Z if X is None else X
    model.fit(X, data.y, epochs=2, batch_size=64, verbose=0)
    return model


def run(model, X):
    out = model(X.astype(model.layers[0].dtype), training=False)
    return np.asarray(keras.ops.convert_to_numpy(out), dtype=np.float64)


def sequential(*layers, inputs=5, dtype=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((inputs,), dtype=dtype), *layers])


def assert_close(mine, theirs):
    """Equal to 1e-6 of the largest value, which is what float32 allows."""
    atol = 1e-6 * max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=atol)


@pytest.fixture(scope="module")
def trained(binary):
    """A model with everything in it that is read."""
    normalization = L.Normalization()
    normalization.adapt(binary.X)
    model = sequential(
        L.Rescaling(1.0),
        normalization,
        L.Rescaling(0.5, [0.0, 0.1, 0.2, 0.3, 0.4]),
        L.Dense(8, activation="relu", kernel_regularizer="l2"),
        L.Dropout(0.3),
        L.Dense(6, use_bias=False),
        L.ReLU(),
        L.GaussianNoise(0.1),
        L.Dense(4),
        L.Activation("relu"),
        L.Flatten(),
        L.Dense(1, activation="sigmoid"),
    )
    return fit(model, binary, binary.X)


def test_sigmoid(trained, binary):
    network = Network.from_keras(trained)
    p = run(trained, binary.fresh)[:, 0]
    assert_close(network.predict_proba(binary.fresh)[:, 1], p)
    clear = np.abs(p - 0.5) > 1e-5
    assert (network.predict(binary.fresh) == (p >= 0.5))[clear].all()
    assert network.precision == "float32"
    assert network.widths == (8, 6, 4)
    assert network.layers[1].b is None


def test_normalization_is_not_folded_into_the_weights(trained, binary):
    network = Network.from_keras(trained)
    front = keras.Sequential(trained.layers[:3])
    assert_close(network.transform(binary.fresh), run(front, binary.fresh))
    np.testing.assert_array_equal(network.layers[0].W.T, trained.layers[3].get_weights()[0])


def test_file(trained, binary, tmp_path):
    trained.save(tmp_path / "model.keras")
    assert Network.load(tmp_path / "model.keras") == Network.from_keras(trained)


def test_functional_model(multi, tmp_path):
    x = inputs = keras.Input((5,))
    x = L.Dense(8)(x)
    x = keras.ops.relu(x)
    x = keras.Sequential([L.Dense(6, activation=L.ReLU())])(x)
    model = fit(keras.Model(inputs, L.Dense(3)(x)), multi)
    network = Network.from_keras(model)
    assert_close(network.logits(multi.fresh_Z), run(model, multi.fresh_Z))
    model.save(tmp_path / "model.keras")
    assert Network.load(tmp_path / "model.keras") == network


@pytest.mark.parametrize(
    "last",
    [
        [L.Dense(3, activation="softmax")],
        [L.Dense(3), L.Softmax()],
        [L.Dense(3), L.Activation("log_softmax")],
    ],
    ids=["dense", "layer", "log_softmax"],
)
def test_softmax(multi, last):
    model = sequential(L.Dense(8, activation="relu"), *last)
    out = run(model, multi.fresh_Z)
    network = Network.from_keras(model)
    p = network.predict_proba(multi.fresh_Z)
    assert_close(p, np.exp(out) if isinstance(last[-1], L.Activation) else out)


def test_float64(binary):
    model = sequential(
        L.Dense(8, activation="relu", dtype="float64"), L.Dense(1, dtype="float64"), dtype="float64"
    )
    network = Network.from_keras(model)
    X = binary.fresh_Z.astype("float32").astype("float64")
    error = np.abs(network.logits(X) - run(model, X)).max()
    assert error <= 1e-6
    # What counts is the arithmetic that keras really used.
    assert network.precision == ("float64" if error < 1e-12 else "float32")


def test_half_precision_compute(binary):
    model = sequential(L.Dense(8, "relu", dtype="mixed_bfloat16"), L.Dense(1, dtype="float32"))
    assert Network.from_keras(model).precision == "float32"


def test_flatten_of_tables_in_front():
    model = keras.Sequential([keras.Input((2, 3)), L.Flatten(), L.Dense(2, "relu"), L.Dense(1)])
    network = Network.from_keras(model)
    X = np.random.default_rng(0).standard_normal((20, 6))
    assert_close(network.logits(X), run(model, X.reshape(20, 2, 3)))


@pytest.mark.parametrize("options", [{"axis": None}, {"invert": True}, {}])
def test_normalization_options(binary, options):
    layer = L.Normalization(**options)
    Z = binary.Z.copy()
    Z[:, 2] = 1.0  # no variance: keras divides by its epsilon
    layer.adapt(Z)
    model = sequential(layer, L.Dense(2, activation="relu"), L.Dense(1))
    X = binary.fresh_Z.copy()
    X[:, 2] = 1.0
    assert_close(Network.from_keras(model).logits(X), run(model, X))


def test_normalization_given_directly(binary):
    layer = L.Normalization(mean=[1.0, 2, 3, 4, 5], variance=[1.0, 4, 9, 16, 25])
    network = Network.from_keras(sequential(layer, L.Dense(1)))
    np.testing.assert_allclose(network.scale, 1.0 / np.arange(1.0, 6.0), rtol=1e-6)
    np.testing.assert_allclose(network.shift, -np.ones(5), rtol=1e-6)


class Doubling(L.Dense):
    def call(self, inputs, training=None):
        return 2.0 * super().call(inputs)


class Own(keras.Model):
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
        ([L.Dense(4), L.BatchNormalization(name="odd")], "'odd' .BatchNormalization.*fold it"),
        ([L.Dense(4), L.LeakyReLU(name="odd"), L.Dense(1)], "'odd' .LeakyReLU.*only Dense"),
        ([L.Dense(4), L.ReLU(6.0, name="odd"), L.Dense(1)], "'odd' .ReLU. has max_value=6"),
        ([L.Dense(4), L.ReLU(negative_slope=0.1, name="odd"), L.Dense(1)], "'odd'.*slope=0.1"),
        ([L.Dense(4), L.ReLU(threshold=1.0, name="odd"), L.Dense(1)], "'odd'.*threshold=1.0"),
        ([L.Dense(4, name="one"), L.Dense(1, name="two")], "'one'.*'two'.*merge"),
        ([L.Dense(1, "sigmoid", name="odd"), L.Dense(1, name="two")], "'odd'.*followed by.*'two'"),
        ([L.Dense(2, "sigmoid", name="odd")], "'odd'.*sigmoid to 2 outputs"),
        ([L.Dense(1, "softmax", name="odd")], "'odd'.*always 1"),
        ([L.Dense(2, "relu", name="odd")], "ends in a ReLU behind layer 'odd'"),
        ([L.Dense(2, "relu"), L.Rescaling(2.0, name="odd"), L.Dense(1)], "'odd'.*front"),
        ([L.Dense(2, "relu"), L.Normalization(name="odd"), L.Dense(1)], "'odd'.*front"),
        ([Doubling(1, name="odd")], "does not compute what"),
        ([L.Dropout(0.1)], "no Dense layer"),
        ([L.Reshape((5, 1), name="odd"), L.Flatten(), L.Dense(1)], "'odd' .Reshape"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value[-1]).__name__,
)
def test_other_layers_are_refused_by_name(layers, message):
    with pytest.raises(ModelNotSupported, match=message):
        Network.from_keras(sequential(*layers))


def test_branches_are_refused():
    x = keras.Input((5,))
    skip = keras.Model(x, L.Dense(1)(L.Add(name="join")([L.Dense(5, "relu")(x), x])))
    with pytest.raises(ModelNotSupported, match=r"'join' \(Add\) joins 2 branches"):
        Network.from_keras(skip)
    z = keras.Input((5,))
    both = keras.Model([x, z], L.Dense(1)(L.Concatenate()([x, z])))
    with pytest.raises(ModelNotSupported, match="has 2 inputs and 1 outputs"):
        Network.from_keras(both)
    h = L.Dense(3, "relu")(x)
    heads = keras.Model(x, [L.Dense(1)(h), L.Dense(1)(h)])
    with pytest.raises(ModelNotSupported, match="2 outputs"):
        Network.from_keras(heads)
    times = keras.Model(x, L.Dense(1)(L.Dense(3, "relu")(x) * 2.0))
    with pytest.raises(ModelNotSupported, match="Multiply"):
        Network.from_keras(times)


def test_other_models_are_refused():
    model = Own()
    model(np.zeros((1, 5), dtype="float32"))
    with pytest.raises(ModelNotSupported, match=r"Own is a model with its own call\(\)"):
        Network.from_keras(model)
    with pytest.raises(ModelNotSupported, match="has no weights yet"):
        Network.from_keras(keras.Sequential([L.Dense(1)]))
    with pytest.raises(ModelNotSupported, match=r"shape \(None, 4, 5\)"):
        Network.from_keras(keras.Sequential([keras.Input((4, 5)), L.Dense(1)]))
    with pytest.raises(ModelNotSupported, match="not int"):
        Network.from_keras(3)


def test_lambda_layers_are_refused(tmp_path):
    path = tmp_path / "model.keras"
    model = sequential(L.Lambda(lambda x: x, name="sly"), L.Dense(1))
    with pytest.raises(ModelNotSupported, match=r"'sly' \(Lambda\)"):
        Network.from_keras(model)
    model.save(path)
    with pytest.raises(ModelNotSupported, match=r"'sly' \(Lambda\) holds Python code.*never run"):
        Network.load(path)


def change_config(source, target, change):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config)
                content = json.dumps(config).encode()
            new.writestr(name, content)


@pytest.mark.parametrize(
    "entry",
    [
        {"module": "os", "class_name": "system", "config": "touch MARK", "registered_name": None},
        {
            "module": "keras.utils",
            "class_name": "function",
            "config": "get_file",
            "registered_name": "get_file",
        },
        {"module": "keras.initializers", "class_name": "function", "config": "get"},
        {"module": "builtins", "class_name": "exec", "config": {"name": "sly"}},
        {"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {"name": "sly"}},
    ],
)
def test_foreign_objects_in_a_file_are_refused(trained, tmp_path, entry):
    mark = tmp_path / "mark"
    trained.save(tmp_path / "good.keras")

    def change(config):
        text = json.dumps(entry).replace("MARK", str(mark))
        config["config"]["layers"][4]["config"]["kernel_initializer"] = json.loads(text)

    change_config(tmp_path / "good.keras", tmp_path / "bad.keras", change)
    with pytest.raises(ModelNotSupported, match=entry["class_name"]):
        Network.load(tmp_path / "bad.keras")
    assert not mark.exists()


def test_damaged_files(trained, tmp_path):
    path = tmp_path / "model.keras"
    trained.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"model\.keras: not a \.keras file, or a damaged one"):
        Network.load(path)
    path.write_bytes(b"garbage" * 100)
    with pytest.raises(ModelFileError, match=r"model\.keras"):
        Network.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(ModelFileError, match=r"model\.keras"):
        Network.load(path)


def test_missing_keras(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtra, match=r"proplace\[keras\]"):
        Network.from_keras(object())


def test_missing_backend(monkeypatch):
    def no_backend(package, extra, purpose):
        error = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
        raise MissingExtra(package, extra, purpose) from error

    monkeypatch.setattr("proplace.loaders.keras.require", no_backend)
    with pytest.raises(MissingExtra, match=r"'tensorflow', which is not installed.*KERAS_BACKEND"):
        Network.from_keras(object())
