from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from proplace.core.errors import MissingExtra, ModelFileError, ModelNotSupported
from proplace.core.network import Network
from proplace.loaders.model import Model

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


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16", "bfloat16"])
def test_half_precision_is_rejected_and_the_advice_works(policy, tmp_path):
    model = sequential(L.Dense(8, "relu", dtype=policy), L.Dense(1, dtype="float32"))
    model.save(tmp_path / "model.keras")
    file = tmp_path / "model.keras"
    for read, source in ((Network.from_keras, model), (Network.load, file), (Model.of, model)):
        with pytest.raises(ModelNotSupported, match=r"half precision \(b?float16.*set_weights"):
            read(source)
    full = sequential(L.Dense(8, "relu"), L.Dense(1))
    full.set_weights(model.get_weights())
    network = Network.from_keras(full)
    assert network.precision == "float32"
    for layer, own in zip(network.layers, (0, 2), strict=True):
        kernel = keras.ops.cast(model.weights[own].value, "float32")
        np.testing.assert_array_equal(layer.W, keras.ops.convert_to_numpy(kernel).T)


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
        (
            [L.Dense(4), L.LayerNormalization(name="odd"), L.Dense(1)],
            "'odd' .LayerNormalization.*train the model with BatchNormalization",
        ),
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
        ([Doubling(1, name="odd")], "'odd' .Doubling. is a class of your own"),
        ([L.Dropout(0.1)], "no Dense layer"),
        ([L.Dense(4), L.Reshape((2, 2), name="odd"), L.Dense(1)], "'odd' .Reshape"),
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


@pytest.fixture
def no_deserialisation(monkeypatch):
    """Keras must not be asked to make objects out of anything: every way to do it fails."""

    def forbidden(*arguments, **options):
        raise AssertionError("Keras was asked to deserialise something")

    library = sys.modules["keras.src.saving.serialization_lib"]
    for module in list(sys.modules.values()):
        for name in ("deserialize_keras_object", "deserialize", "load_model"):
            if module.__name__.startswith("keras") and hasattr(module, name):
                monkeypatch.setattr(module, name, forbidden)
    assert library.deserialize_keras_object is forbidden
    monkeypatch.setattr(L.Layer, "from_config", forbidden)
    monkeypatch.setattr(keras.Model, "from_config", forbidden)


def touching(mark, module="os"):
    """A functional model whose only layer runs a command when Keras rebuilds it."""
    layer = {
        "module": module,
        "class_name": "function",
        "config": "system",
        "registered_name": "system",
        "name": "sly",
        "inbound_nodes": [{"args": [f"touch {mark}"], "kwargs": {}}],
    }
    ends = {"input_layers": [["sly", 0, 0]], "output_layers": [["sly", 0, 0]]}
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "registered_name": "Functional",
        "config": {"name": "f", "trainable": True, "layers": [layer], **ends},
    }


@pytest.fixture
def nested(tmp_path):
    """A file with a Sequential inside a Sequential, and the network of it."""
    model = sequential(keras.Sequential([L.Dense(4, "relu")]), L.Dense(1))
    model.save(tmp_path / "good.keras")
    return tmp_path / "good.keras", Network.from_keras(model)


def inner_model(config):
    return next(e for e in config["config"]["layers"] if e["class_name"] == "Sequential")


IGNORED = {
    "compile_config": lambda config, evil: config.update(compile_config={"loss": evil}),
    "nested_compile_config": lambda config, evil: inner_model(config).update(
        compile_config={"loss": evil, "optimizer": "sgd"}
    ),
    "nested_build_config": lambda config, evil: inner_model(config).update(build_config=evil),
    "initializer": lambda config, evil: config["config"]["layers"][2]["config"].update(
        kernel_initializer=evil
    ),
    "regularizer": lambda config, evil: config["config"]["layers"][2]["config"].update(
        kernel_regularizer=evil
    ),
}


@pytest.mark.parametrize("place", IGNORED)
def test_what_only_training_needs_is_never_built(nested, place, tmp_path, no_deserialisation):
    good, network = nested
    mark = tmp_path / "mark"
    bad = tmp_path / "bad.keras"
    change_config(good, bad, lambda config: IGNORED[place](config, touching(mark)))
    assert Network.load(bad) == network
    assert not mark.exists()


def first_dense(config):
    return inner_model(config)["config"]["layers"][-1]["config"]


REFUSED = {
    "layer": lambda config, evil: config["config"]["layers"].append(evil),
    "function_as_layer": lambda config, evil: config["config"]["layers"].append(
        {**evil["config"]["layers"][0], "config": {"name": "sly"}}
    ),
    "activation": lambda config, evil: first_dense(config).update(activation=evil),
    "function": lambda config, evil: first_dense(config).update(
        activation={"module": "os", "class_name": "function", "config": "system"}
    ),
    "activation_layer": lambda config, evil: first_dense(config).update(
        activation={"module": "os", "class_name": "ReLU", "config": {"name": "sly"}}
    ),
    "dtype": lambda config, evil: first_dense(config).update(dtype=evil),
    "units": lambda config, evil: first_dense(config).update(units=evil),
    "shape": lambda config, evil: config["config"]["layers"][0]["config"].update(batch_shape=evil),
    "unknown_setting": lambda config, evil: first_dense(config).update(loader=evil),
    "registered_name": lambda config, evil: inner_model(config)["config"]["layers"][-1].update(
        registered_name="mine>Dense"
    ),
    "module": lambda config, evil: inner_model(config).update(module="kerasish.models"),
    "whole": lambda config, evil: (config.clear(), config.update(evil)),
}


@pytest.mark.parametrize("place", REFUSED)
def test_foreign_objects_in_a_file_are_refused(nested, place, tmp_path, no_deserialisation):
    mark = tmp_path / "mark"
    bad = tmp_path / "bad.keras"
    change_config(nested[0], bad, lambda config: REFUSED[place](config, touching(mark)))
    with pytest.raises((ModelNotSupported, ModelFileError), match=r"bad\.keras"):
        Network.load(bad)
    assert not mark.exists()


def test_files_are_read_without_asking_keras(nested, no_deserialisation):
    good, network = nested
    assert Network.load(good) == network


# -- files of other versions -------------------------------------------------------------------

FILES = sorted(Path(__file__).parent.joinpath("files").glob("*.keras"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_older_versions(path):
    facts = json.loads(path.with_suffix(".json").read_text())
    assert_close(Network.load(path).logits(facts["rows"]), np.array(facts["outputs"]))


def test_there_are_files_of_two_older_versions():
    assert {path.stem.partition("_")[2] for path in FILES} == {"3_3_0", "3_8_0"}


# -- what a file may say in many ways ----------------------------------------------------------


def saved(model, tmp_path, name="model.keras"):
    model.save(tmp_path / name)
    return Network.load(tmp_path / name)


def test_layers_and_models_that_are_used_twice(tmp_path):
    twice, once = L.Dense(5, "relu"), L.Dense(5, "relu")
    part = keras.Sequential([keras.Input((5,)), once])
    x = keras.Input((5,))
    model = keras.Model(x, L.Dense(1)(part(twice(part(twice(x))))))
    network = saved(model, tmp_path)
    assert network == Network.from_keras(model)
    assert network.widths == (5, 5, 5, 5)


def test_models_inside_models_may_call_their_layers_alike(tmp_path):
    parts = [keras.Sequential([L.Dense(4, "relu", name="same")], name=f"p{i}") for i in range(3)]
    model = sequential(*parts, L.Dense(2, name="same"))
    assert saved(model, tmp_path) == Network.from_keras(model)


def test_operations_and_casts_in_a_file(tmp_path):
    x = keras.Input((5,))
    h = keras.ops.relu(L.Dense(4, dtype="float32")(keras.ops.cast(x, "float32")))
    model = keras.Model(x, keras.ops.softmax(L.Dense(3, dtype="float32")(h), axis=-1))
    assert saved(model, tmp_path) == Network.from_keras(model)


def test_float64_files(tmp_path):
    model = sequential(
        L.Dense(4, "relu", dtype="float64"), L.Dense(1, dtype="float64"), dtype="float64"
    )
    network = saved(model, tmp_path)
    assert network == Network.from_keras(model)
    assert network.precision == Network.from_keras(model).precision


@pytest.mark.parametrize(
    "options", [{"axis": None}, {"invert": True}, {"mean": [2.0] * 5, "variance": [4.0] * 5}]
)
def test_normalization_in_a_file(binary, options, tmp_path):
    layer = L.Normalization(**options)
    if "mean" not in options:
        layer.adapt(binary.Z)
    model = sequential(layer, L.Rescaling(np.float32(2.0), np.ones(5)), L.Dense(1))
    assert saved(model, tmp_path) == Network.from_keras(model)


def test_a_model_that_was_built_by_calling_it(tmp_path):
    model = keras.Sequential([L.Dense(2, "relu"), L.Dense(1)])
    model(np.zeros((7, 5), dtype="float32"))
    assert saved(model, tmp_path) == Network.from_keras(model)


def test_softmax_layer_in_a_file(tmp_path):
    model = sequential(L.Dense(3), L.Softmax())
    assert saved(model, tmp_path) == Network.from_keras(model)
    with pytest.raises(ModelNotSupported, match="does not compute what"):
        saved(sequential(L.Dense(3), L.Softmax(axis=0)), tmp_path)


def test_branches_in_a_file_are_refused(tmp_path):
    x = keras.Input((5,))
    skip = keras.Model(x, L.Dense(1)(L.Add(name="join")([L.Dense(5, "relu")(x), x])))
    with pytest.raises(ModelNotSupported, match=r"'join' \(Add\)"):
        saved(skip, tmp_path)
    heads = keras.Model(x, [L.Dense(1)(x), L.Dense(1)(x)])
    with pytest.raises(ModelNotSupported, match="2 outputs"):
        saved(heads, tmp_path)
    noisy = keras.Model(x, L.Dense(1)(L.Dropout(0.5, name="noisy")(x, training=True)))
    with pytest.raises(ModelNotSupported, match=r"'noisy'.*options .'training'"):
        saved(noisy, tmp_path)
    own = keras.Model(x, Doubling(1, name="odd")(x))
    with pytest.raises(ModelNotSupported, match=r"'odd' \(Doubling\) is a class of your own"):
        saved(own, tmp_path)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (L.Dense(4, "tanh", name="odd"), "'odd'.*activation 'tanh'"),
        (L.Dense(4, L.LeakyReLU(), name="odd"), "'odd'.*activation 'LeakyReLU'"),
        (L.LayerNormalization(name="odd"), "'odd' .LayerNormalization.*BatchNormalization"),
        (L.ReLU(6.0, name="odd"), "'odd' .ReLU. has max_value=6"),
        (L.LeakyReLU(name="odd"), "'odd' .LeakyReLU.*only Dense"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_other_layers_in_a_file_are_refused_by_name(layer, message, tmp_path):
    with pytest.raises(ModelNotSupported, match=message):
        saved(sequential(L.Dense(4), layer, L.Dense(1)), tmp_path)


def change_weights(source, target, change):
    """Copy a file with its weights changed."""
    h5py = pytest.importorskip("h5py")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = io.BytesIO(old.read(name))
            if name == "model.weights.h5":
                with h5py.File(content, "r+") as file:
                    change(h5py, file)
            new.writestr(name, content.getvalue())
    return target


def put(make, path="layers/dense/vars/0"):
    def change(h5py, file):
        del file[path]
        make(h5py, file, path)

    return change


STORES = {
    "external_link": put(lambda h5, f, p: f.__setitem__(p, h5.ExternalLink("other.h5", "/x"))),
    "soft_link": put(
        lambda h5, f, p: f.update({"there": np.ones((4, 1), "f4"), p: h5.SoftLink("/there")})
    ),
    "external_dataset": put(
        lambda h5, f, p: f.create_dataset(p, (4, 1), "f4", external=[("other.bin", 0, 16)])
    ),
    "shape_without_numbers": put(lambda h5, f, p: f.create_dataset(p, (4, 1), "f4")),
    "chunks": put(lambda h5, f, p: f.create_dataset(p, data=np.ones((4, 1)), chunks=(1, 1))),
    "compressed": put(
        lambda h5, f, p: f.create_dataset(p, data=np.ones((4, 1)), compression="gzip")
    ),
    "complex": put(lambda h5, f, p: f.create_dataset(p, data=np.ones((4, 1)) * 1j)),
    "text": put(lambda h5, f, p: f.create_dataset(p, data="1.0")),
    "empty": put(lambda h5, f, p: f.create_dataset(p, data=h5.Empty("f4"))),
    "group": put(lambda h5, f, p: f.create_group(p)),
    "shape": put(lambda h5, f, p: f.create_dataset(p, data=np.ones((4, 2), "f4"))),
    "inputs": put(lambda h5, f, p: f.create_dataset(p, data=np.ones((5, 1), "f4"))),
    "missing": put(lambda h5, f, p: None),
    "no_group": lambda h5, f: f.__delitem__("layers/dense"),
    "other_layer": lambda h5, f: f["layers/dense/vars"].attrs.__setitem__("name", "other"),
    "more": lambda h5, f: f["layers/dense/vars"].__setitem__("2", np.ones(3)),
}


@pytest.mark.parametrize("name", STORES)
def test_weights_that_keras_does_not_write_are_refused(nested, name, tmp_path):
    bad = change_weights(nested[0], tmp_path / "bad.keras", STORES[name])
    with pytest.raises((ModelFileError, ModelNotSupported), match=r"bad\.keras"):
        Network.load(bad)


def test_weights_are_those_of_the_layer_by_name(tmp_path):
    """A description in another order would give each layer the numbers of the other."""
    x = keras.Input((5,))
    model = keras.Model(x, L.Dense(5, name="second")(L.Dense(5, "relu", name="first")(x)))
    model.save(tmp_path / "good.keras")

    def change(config):
        config["config"]["layers"][1:] = config["config"]["layers"][:0:-1]

    change_config(tmp_path / "good.keras", tmp_path / "bad.keras", change)
    for names in (True, False):
        path = tmp_path / f"bad_{names}.keras"
        change_weights(tmp_path / "bad.keras", path, lambda h5, f: None if names else nameless(f))  # noqa: B023
        with pytest.raises(ModelFileError, match=r"bad_.*\.keras"):
            Network.load(path)


def nameless(file):
    """Take away what Keras 3.3 did not write yet."""
    for group in ("dense", "dense_1"):
        file[f"layers/{group}/vars"].attrs.pop("name", None)


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


@pytest.mark.parametrize("value", [3, [3], "x"])
@pytest.mark.parametrize("place", ["args", "kwargs"])
def test_a_value_where_a_list_or_a_mapping_is_due(trained, tmp_path, place, value):
    x = keras.Input((3,))
    keras.Model(x, L.Dense(1)(x)).save(tmp_path / "good.keras")

    def change(config):
        config["config"]["layers"][1]["inbound_nodes"][0][place] = value

    path = tmp_path / "model.keras"
    change_config(tmp_path / "good.keras", path, change)
    with pytest.raises((ModelFileError, ModelNotSupported), match=r"model\.keras: "):
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
