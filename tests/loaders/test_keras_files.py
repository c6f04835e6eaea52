"""Files of Keras: read as data, by this library alone."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import InputError, ModelFileError, ModelNotSupportedError, SchemaError
from proplace.core.network import Network
from proplace.loaders.model import Model
from proplace.schema import Categorical

pytest.importorskip("torch")
keras = pytest.importorskip("keras")
L = keras.layers


def sequential(*layers):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((5,)), *layers])


class Doubling(L.Dense):
    def call(self, inputs, training=None):
        return 2.0 * super().call(inputs)


def change_config(source, target, change):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config)
                content = json.dumps(config).encode()
            new.writestr(name, content)


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
    with pytest.raises((ModelNotSupportedError, ModelFileError), match=r"bad\.keras"):
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
    logits = Network.load(path).logits(facts["rows"])
    np.testing.assert_allclose(logits, facts["outputs"], rtol=1e-6, atol=1e-6)


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


def test_a_model_that_was_built_by_calling_it(tmp_path):
    model = keras.Sequential([L.Dense(2, "relu"), L.Dense(1)])
    model(np.zeros((7, 5), dtype="float32"))
    assert saved(model, tmp_path) == Network.from_keras(model)


def test_softmax_layer_in_a_file(tmp_path):
    model = sequential(L.Dense(3), L.Softmax())
    assert saved(model, tmp_path) == Network.from_keras(model)
    with pytest.raises(ModelNotSupportedError, match="does not compute what"):
        saved(sequential(L.Dense(3), L.Softmax(axis=0)), tmp_path)


def test_options_of_calls_and_classes_of_the_user_are_refused(tmp_path):
    x = keras.Input((5,))
    noisy = keras.Model(x, L.Dense(1)(L.Dropout(0.5, name="noisy")(x, training=True)))
    with pytest.raises(ModelNotSupportedError, match=r"'noisy'.*options .'training'"):
        saved(noisy, tmp_path)
    own = keras.Model(x, Doubling(1, name="odd")(x))
    with pytest.raises(ModelNotSupportedError, match=r"'odd' \(Doubling\) is a class of your own"):
        saved(own, tmp_path)


# -- weights -----------------------------------------------------------------------------------


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
    with pytest.raises((ModelFileError, ModelNotSupportedError), match=r"bad\.keras"):
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


@pytest.mark.parametrize("value", [3, [3], "x"])
@pytest.mark.parametrize("place", ["args", "kwargs"])
def test_a_value_where_a_list_or_a_mapping_is_due(tmp_path, place, value):
    x = keras.Input((3,))
    keras.Model(x, L.Dense(1)(x)).save(tmp_path / "good.keras")

    def change(config):
        config["config"]["layers"][1]["inbound_nodes"][0][place] = value

    path = tmp_path / "model.keras"
    change_config(tmp_path / "good.keras", path, change)
    with pytest.raises((ModelFileError, ModelNotSupportedError), match=r"model\.keras: "):
        Network.load(path)


# -- words -------------------------------------------------------------------------------------

WORDS = Path(__file__).parent / "files" / "whole"


def facts(name):
    """A table, the classes that Keras gave its rows, and its outputs."""
    kept = json.loads((WORDS / f"{name}.json").read_text())
    table, outputs = pd.DataFrame(kept["table"]), np.array(kept["outputs"])
    if name == "alone":
        return table.rename(columns={"job": "x0"}), (outputs[:, 0] >= 0).astype(int), outputs
    single = outputs.shape[1] == 1
    return table, (outputs[:, 0] >= 0.5) * 1 if single else outputs.argmax(axis=1), outputs


def assert_said(model, name):
    table, said, outputs = facts(name)
    assert len(set(said.tolist())) > 1
    assert (model.predict(table) == said).all()
    assert (model.predict_original(table) == said).all()
    z = model.network.logits(model.encode(table))
    if name == "alone":
        np.testing.assert_allclose(z, outputs, atol=1e-5)
    elif name == "given":
        np.testing.assert_allclose(1.0 / (1.0 + np.exp(-z)), outputs, atol=1e-5)


@pytest.mark.parametrize("name", ["given", "adapted", "alone"])
def test_files_that_look_up_words(name, no_deserialisation):
    """What Keras said with TensorFlow, which alone can look up words, comes out without it."""
    assert_said(Model.of(WORDS / f"{name}.keras"), name)


@pytest.mark.parametrize("name", ["given", "adapted", "alone"])
def test_models_in_memory_that_look_up_words(name):
    pytest.importorskip("tensorflow")
    assert_said(Model.of(keras.saving.load_model(WORDS / f"{name}.keras")), name)


def test_labels_are_the_vocabulary():
    given, adapted = (Model.of(WORDS / f"{name}.keras").schema for name in ("given", "adapted"))
    assert given.by_name["job"] == Categorical("job", ["cook", "clerk", "smith", "poet"])
    assert given.by_name["town"].labels == ("Ulm", "Bern", "Åbo", "Wien")
    assert given.by_name["grade"].labels == (9, 3, 5)
    assert set(adapted.by_name["town"].labels) == {"Ulm", "Bern", "Åbo", "Wien"}


def test_an_unknown_word_is_no_legal_value():
    model = Model.of(WORDS / "given.keras")
    table = facts("given")[0]
    table.loc[3, "job"] = "[UNK]"
    with pytest.raises(SchemaError, match=r"row 3, column 'job'.*UNK"):
        model.predict(table)
    with pytest.raises(InputError, match=r"row 3, column 'job': '\[UNK\]' is not in the vocab"):
        model.predict_original(table)


def setting(layer, **values):
    def change(config):
        found = next(e for e in config["config"]["layers"] if e["config"]["name"] == layer)
        assert set(values) <= set(found["config"])
        found["config"].update(values)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("numbers_of_towns", invert=True), "invert=True.*leave it out"),
        (setting("numbers_of_towns", output_mode="tf_idf"), "output_mode=tf_idf, which is not"),
        (setting("numbers_of_towns", vocabulary=["a", "a"]), "does not fit its settings"),
        (setting("numbers_of_towns", vocabulary=["a", 1]), "no vocabulary of words"),
        (setting("numbers_of_towns", vocabulary=[["a"]]), "no vocabulary of words"),
        (setting("numbers_of_towns", vocabulary=None), "no vocabulary in the file; call adapt"),
        (setting("numbers_of_towns", vocabulary="/etc/passwd"), "damaged"),
        (setting("numbers_of_towns", vocabulary=[str(i) for i in range(1001)]), "at most 1,000"),
        (setting("numbers_of_towns", num_oov_indices=10**9), "at most 1,000"),
        (setting("numbers_of_towns", sparse=[1]), "sparse"),
        (setting("numbers_of_towns", idf_weights=[1.0]), "idf_weights.*not known"),
        (setting("category_encoding", num_tokens=6), "numbers below 6.*up to number 6"),
        (setting("category_encoding", num_tokens=10**9), "at most 100,000 are read"),
        (setting("numbers_of_towns", num_oov_indices=-(2**63)), "at most 1,000"),
        (setting("normalization", mean=[float("nan")], variance=[1.0]), "infinite or missing"),
        (setting("normalization", mean=[[1.0], 2.0]), "not a readable .keras file"),
        (setting("job", dtype="float32"), "'job' as float32 and uses it as text"),
        (setting("age", dtype="string"), "'age' as string and uses it as a number.*StringLookup"),
        (setting("age", dtype="bool"), "truth values; declare it with dtype='float32'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lookups_that_are_not_read(change, message, tmp_path):
    change_config(WORDS / "given.keras", tmp_path / "bad.keras", change)
    with pytest.raises((ModelNotSupportedError, ModelFileError), match=message):
        Model.of(tmp_path / "bad.keras")


def test_calls_with_options_of_no_names_are_refused(tmp_path):
    def change(config):
        config["config"]["layers"][-1]["inbound_nodes"][0]["kwargs"] = [1]

    change_config(WORDS / "given.keras", tmp_path / "bad.keras", change)
    with pytest.raises(ModelFileError, match="a value where a mapping must be"):
        Model.of(tmp_path / "bad.keras")


def test_a_lookup_gives_another_answer_for_another_vocabulary(tmp_path):
    """The numbers of the words are those of the file, not of any order of our own."""
    names = ["Bern", "Ulm", "Åbo", "Wien"]
    change = setting("numbers_of_towns", vocabulary=names)
    change_config(WORDS / "given.keras", tmp_path / "m.keras", change)
    table, _, outputs = facts("given")
    swapped = table.replace({"town": {"Bern": "Ulm", "Ulm": "Bern"}})
    model = Model.of(tmp_path / "m.keras")
    z = model.network.logits(model.encode(swapped))
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(-z)), outputs, atol=1e-5)
