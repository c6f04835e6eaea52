"""``.keras`` files: a description in JSON and weights in HDF5; what is accepted is run with Keras."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd

from fuzz.mutate import change_tree, damaged, json_text, slots_of, some
from fuzz.reader import Reader
from fuzz.seeds import seeds_of
from fuzz.zips import Member, archive_of, bombs, change_archive, members_of
from proplace.core.network import Network
from proplace.loaders._verify import form_of
from proplace.loaders.model import Model
from proplace.schema import Continuous

WORDS = Path(__file__).resolve().parents[2] / "loaders" / "files" / "whole"

_MAGIC = 12345.678  # what a file holds that no model may read
_KINDS = (
    *(
        "Dense",
        "ReLU",
        "Activation",
        "Normalization",
        "Rescaling",
        "Softmax",
        "Dropout",
        "Flatten",
        "Identity",
    ),
    *(
        "Lambda",
        "function",
        "__lambda__",
        "BatchNormalization",
        "InputLayer",
        "Sequential",
        "Functional",
    ),
    *(
        "LeakyReLU",
        "Conv1D",
        "TorchModuleWrapper",
        "TFSMLayer",
        "Add",
        "GaussianNoise",
        "DTypePolicy",
    ),
    *(
        "CategoryEncoding",
        "Concatenate",
        "Discretization",
        "Embedding",
        "IntegerLookup",
        "LayerNormalization",
        "Reshape",
        "StringLookup",
    ),
    *("Cast", "LogSoftmax", "Relu", "Sigmoid"),  # operations
)
_MODULES = (
    *("keras.layers", "keras", "os", "builtins", "keras.src.models.functional", "subprocess"),
    *(None, "keras.ops"),
)
_ACTIVATIONS = (
    *("relu", "linear", "sigmoid", "softmax", "log_softmax", "tanh", "elu", "leaky_relu"),
    *("exponential", "eval"),
)
_OF_COLUMNS = (  # options of lookups, encodings, embeddings, batch norm and shapes
    *("output_mode", "num_tokens", "num_oov_indices", "mask_token", "vocabulary", "max_tokens"),
    *("input_dim", "output_dim", "mask_zero", "target_shape", "epsilon", "center", "mean"),
)
_VALUES = (True, False, 0, 1, 2, -1, 0.5, None, [1.0, 2.0], 10**9, 1e308, "relu")
# A functional model whose one layer is a function of the standard library, with its argument.
_HARMFUL = {
    "module": "keras.src.models.functional",
    "class_name": "Functional",
    "config": {
        "name": "f",
        "trainable": True,
        "layers": [
            {
                "module": "os",
                "class_name": "function",
                "config": "system",
                "registered_name": "function",
                "name": "x",
                "inbound_nodes": [{"args": ["true"], "kwargs": {}}],
            }
        ],
        "input_layers": [],
        "output_layers": [],
    },
}
_PARTS = (
    _HARMFUL,
    {"module": "os", "class_name": "function", "config": "system", "registered_name": "function"},
    {
        "module": "builtins",
        "class_name": "function",
        "config": "eval",
        "registered_name": "function",
    },
    {"class_name": "__lambda__", "config": {"value": "4wEAAAAAAAAAAAAAAAA="}},
    {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "l", "function": "eval"}},
    {
        "module": "keras.layers",
        "class_name": "ReLU",
        "config": {"name": "r", "negative_slope": 0.3},
    },
    {"module": "keras.layers", "class_name": "ReLU", "config": {"name": "r", "max_value": 6.0}},
    {"class_name": "__numpy__", "config": {"value": [1.0], "dtype": "float32"}},
    {"class_name": "__tensor__", "config": {"value": [1.0], "dtype": "float32"}},
)


class KerasFiles(Reader):
    """Saved Keras models."""

    name = "keras"
    suffix = ".keras"

    def prepare(self, folder):
        import h5py

        os.environ.setdefault("KERAS_BACKEND", "torch")
        self._files = [dict(members_of(seed)) for seed in self._sources()]
        self._seeds = [_archive(files) for files in self._files]
        self._configs = [json.loads(files["config.json"]) for files in self._files]
        secret = folder / "secret.bin"
        secret.write_bytes(np.full(1024, _MAGIC, "<f4").tobytes())
        self._weights = [
            [
                files["model.weights.h5"],
                *_other_weights(h5py, files["model.weights.h5"], secret, folder),
            ]
            for files in self._files
        ]
        self._judged = 0

    def _sources(self):
        return seeds_of("keras")

    def seeds(self):
        return self._seeds

    def kept(self):
        return [*super().kept(), *bombs(self._files[0].items())]

    def make(self, rng):
        i = rng.randrange(len(self._files))
        files, kind = dict(self._files[i]), rng.randrange(12)
        if kind == 0:
            return damaged(rng, self._seeds[i], self._seeds)
        if kind <= 7:
            config = json.loads(files["config.json"])
            for _ in range(some(rng)):
                if rng.random() < 0.5:
                    _change_layer(rng, config)
                else:
                    change_tree(rng, config, self._configs)
            files["config.json"] = json_text(rng, config)
        if kind in (7, 8, 9):
            files["model.weights.h5"] = rng.choice(
                rng.choice(self._weights) if rng.random() < 0.3 else self._weights[i]
            )
        if kind in (9, 10):
            files["model.weights.h5"] = damaged(rng, files["model.weights.h5"])
        if kind == 11 or rng.random() < 0.05:
            return change_archive(rng, list(files.items()))
        return _archive(files)

    def read(self, path, data):
        return Network.load(path)

    def judge(self, data, network):
        numbers = np.concatenate([array.ravel() for array in network._arrays().values()])
        if np.isclose(numbers, _MAGIC).any():
            return "numbers of another file than the model's"
        self._judged += 1
        if self._judged % 5 or np.abs(numbers).max() > 1e15:
            return None  # Keras takes long
        X = np.random.default_rng(0).normal(size=(16, network.inputs)).astype("f4")
        with contextlib.suppress(
            Exception
        ):  # what Keras itself does not load has no second opinion
            return _compared(network, X, self._outputs(data, X))
        return None

    def _outputs(self, data, X):
        import keras

        model = _loaded(keras, data)
        rows = X.reshape(len(X), *model.input_shape[1:])
        return np.asarray(keras.ops.convert_to_numpy(model(rows, training=False)), dtype=np.float64)


class WholeKerasFiles(KerasFiles):
    """Saved Keras models of several inputs: lookups, encodings, embeddings and scalers in front."""

    name = "keras-whole"

    def _sources(self):
        words = sorted(WORDS.glob("*.keras"))  # Keras itself runs these on TensorFlow only
        return [*seeds_of("keras-whole"), *(path.read_bytes() for path in words)]

    def read(self, path, data):
        return Model.of(path)

    def judge(self, data, model):
        numbers = np.concatenate([array.ravel() for array in model.network._arrays().values()])
        if np.isclose(numbers, _MAGIC).any() or np.isclose(np.array(model.scaling), _MAGIC).any():
            return "numbers of another file than the model's"
        self._judged += 1
        if self._judged % 5 or np.abs(numbers).max() > 1e15:
            return None  # Keras takes long
        table = _table(model)
        with contextlib.suppress(Exception):  # as above
            return _compared(model.network, model.encode(table), self._outputs(data, table))
        return None

    def _outputs(self, data, table):
        import keras

        model = _loaded(keras, data)
        feeds = {
            tensor.name: table[tensor.name].to_numpy().astype(tensor.dtype)[:, None]
            for tensor in model.inputs
        }
        return np.asarray(
            keras.ops.convert_to_numpy(model(feeds, training=False)), dtype=np.float64
        )


def _table(model):
    """Rows of the model: any label, and numbers about where it scales them."""
    rng = np.random.default_rng(0)
    columns = {}
    for feature in model.schema.features:
        if isinstance(feature, Continuous):
            cells = (feature.offset + feature.scale * rng.normal(size=16)).astype("f4")
            columns[feature.name] = cells.astype(np.float64)
        else:
            columns[feature.name] = [feature.labels[i % len(feature.labels)] for i in range(16)]
    return pd.DataFrame(columns)


def _loaded(keras, data):
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".keras") as file:
        file.write(data)
        file.flush()
        return keras.saving.load_model(file.name, compile=False, safe_mode=True)


def _compared(network, X, outputs):
    outputs = outputs.reshape(len(X), -1)  # some layers put an axis of length 1 in front
    if not np.isfinite(outputs).all() or form_of(network, X, outputs, "float32") is not None:
        return None
    return f"outputs of the model are not those of the network: {outputs.ravel()[:3]}"


def _archive(files):
    return archive_of([Member.of(name, data) for name, data in files.items()])


def _change_layer(rng, config):
    """Another class, module, activation or option, or something harmful at any place."""
    slots = slots_of(config)
    wanted = rng.choice(
        (
            "class_name",
            "module",
            "activation",
            "name",
            "units",
            "registered_name",
            "config",
            "",
            "layers",
        )
    )
    fits = [slot for slot in slots if slot[1] == wanted] or slots
    where, key = rng.choice(fits)
    if key == "class_name":
        where[key] = rng.choice(_KINDS)
    elif key == "module":
        where[key] = rng.choice(_MODULES)
    elif key == "activation":
        where[key] = rng.choice(_ACTIVATIONS)
    elif key == "layers" and isinstance(where[key], list) and where[key]:
        layers = where[key]
        layers.insert(
            rng.randrange(len(layers) + 1), json.loads(json.dumps(rng.choice((*layers, *_PARTS))))
        )
    elif rng.random() < 0.4 and isinstance(where, dict):
        extra = rng.choice(
            (
                "compile_config",
                "loss",
                "activation",
                "kernel_initializer",
                "build_config",
                "x",
                "dtype",
            )
        )
        where[extra] = json.loads(json.dumps(rng.choice(_PARTS)))
    elif rng.random() < 0.5 and isinstance(where, dict):
        option = rng.choice(
            (
                "use_bias",
                "negative_slope",
                "threshold",
                "max_value",
                "invert",
                "axis",
                "scale",
                "offset",
                "units",
                "trainable",
                "lora_rank",
                *_OF_COLUMNS,
            )
        )
        where[option] = rng.choice((*_VALUES, "one_hot", "int", "multi_hot", ["a", "b"], [-1]))
    else:
        change_tree(rng, config)


def _other_weights(h5py, data, secret, folder):
    """The weights with one of everything that HDF5 can do."""

    def changed(change):
        path = folder / "change.h5"
        path.write_bytes(data)
        with h5py.File(path, "r+") as file:
            change(file)
        return path.read_bytes()

    def first(file):
        found = []
        file["layers"].visititems(
            lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) else None
        )
        return found[0]

    def replaced(make):
        def change(file):
            old = first(file)
            group, name, shape = old.parent, old.name.rpartition("/")[2], old.shape
            del group[name]
            make(group, name, shape)

        return change

    layout = h5py.VirtualLayout(shape=(2, 3), dtype="f4")
    makers = [
        lambda group, name, shape: group.create_dataset(
            name, shape, "f4", external=[(str(secret), 0, 4096)]
        ),
        lambda group, name, shape: group.create_dataset(name, (2**40,), "f4", chunks=(1024,)),
        lambda group, name, shape: group.create_dataset(
            name, (2**20, 2**20), "f8", chunks=(64, 64)
        ),
        lambda group, name, shape: group.create_dataset(
            name, (300_000_000,), "f8", chunks=(2**20,), compression="gzip"
        ),
        lambda group, name, shape: group.create_dataset(name, shape, "i8"),
        lambda group, name, shape: group.create_dataset(
            name, shape, "f2", data=np.ones(shape, "f2")
        ),
        lambda group, name, shape: group.create_dataset(name, shape, "c16"),
        lambda group, name, shape: group.create_dataset(name, shape, "?"),
        lambda group, name, shape: group.create_dataset(name, shape, h5py.string_dtype()),
        lambda group, name, shape: group.create_dataset(name, shape, np.dtype([("a", "f4")])),
        lambda group, name, shape: group.create_dataset(
            name, shape, data=np.full(shape, np.nan, "f4")
        ),
        lambda group, name, shape: group.create_dataset(name, shape[::-1], "f4"),
        lambda group, name, shape: group.create_dataset(name, (1, *shape), "f4"),
        lambda group, name, shape: group.create_dataset(name, (), "f4"),
        lambda group, name, shape: group.create_dataset(name, (0,), "f4"),
        lambda group, name, shape: group.create_dataset(
            name, shape, "f4", chunks=shape, compression="gzip", shuffle=True
        ),
        lambda group, name, shape: group.create_virtual_dataset(name, layout),
        lambda group, name, shape: group.create_group(name),
        lambda group, name, shape: group.__setitem__(name, h5py.SoftLink("/layers")),
        lambda group, name, shape: group.__setitem__(name, h5py.SoftLink(f"{group.name}/{name}")),
        lambda group, name, shape: group.__setitem__(name, h5py.ExternalLink(str(secret), "/x")),
        lambda group, name, shape: None,
    ]
    found = [changed(replaced(make)) for make in makers]
    found.append(changed(lambda file: file.__delitem__("layers")))
    found.append(changed(lambda file: file.create_dataset("layers/extra/vars/0", data=np.ones(3))))
    found.append(
        changed(lambda file: file["layers"].__setitem__("again", file["layers"]))
    )  # a circle
    return found
