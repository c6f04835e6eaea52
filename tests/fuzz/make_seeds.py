"""Write the seeds that real frameworks make: ``python tests/fuzz/make_seeds.py``.

They are kept under ``seeds/``, so that a fuzzer starts without the frameworks that its reader does not
need. Run it again when a framework writes another format, and look at the difference.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np

SEEDS = Path(__file__).parent / "seeds"


def onnx_graphs(folder):
    import onnx
    import torch
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Sigmoid()).eval()
    torch.onnx.export(
        model, (torch.zeros(3, 2),), folder / "torch.onnx", dynamo=True, external_data=False
    )
    exported = onnx.load(folder / "torch.onnx")
    del exported.metadata_props[:]
    for node in exported.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(exported, folder / "torch.onnx")

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    for classes in (2, 3):
        y = (X[:, 0] * 1.5 + X[:, 1] > 0).astype(int) + (X[:, 0] > 0.8) * (classes == 3)
        for name, last in (
            ("mlp", MLPClassifier((3,), max_iter=20, random_state=0)),
            ("linear", LogisticRegression()),
        ):
            fitted = make_pipeline(StandardScaler(), last).fit(X, y)
            graph = to_onnx(fitted, X[:1], options={id(last): {"zipmap": classes == 2}})
            (folder / f"{name}{classes}.onnx").write_bytes(graph.SerializeToString())


def keras_models(folder):
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    scaled = layers.Normalization()
    scaled.adapt(np.random.default_rng(0).normal(size=(20, 2)))
    x = keras.Input((2,))
    y = layers.Dense(3, activation="relu")(layers.Rescaling(0.5, offset=0.1)(x))
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.ReLU()])
    models = {
        "plain": [layers.Dense(3, activation="relu"), layers.Dense(1)],
        "normalized": [
            scaled,
            layers.Dense(2),
            layers.ReLU(),
            layers.Dropout(0.1),
            layers.Dense(3),
            layers.Softmax(),
        ],
    }
    made = {name: keras.Sequential([keras.Input((2,)), *parts]) for name, parts in models.items()}
    made["functional"] = keras.Model(x, layers.Dense(1, activation="sigmoid")(inner(y)))
    made["plain"].compile(optimizer="adam", loss="mse")
    _save_keras(made, folder)


def whole_keras_models(folder):
    """Several inputs, each with what may stand in front of a network; words need TensorFlow."""
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    age = keras.Input((1,), name="age")
    grade, town, rooms = (
        keras.Input((1,), name=name, dtype="int32") for name in ("grade", "town", "rooms")
    )
    columns = [
        layers.Normalization(mean=[40.0], variance=[90.0])(age),
        layers.CategoryEncoding(3, output_mode="one_hot")(grade),
        layers.Reshape((2,))(layers.Embedding(4, 2)(town)),
        layers.Flatten()(layers.Embedding(3, 1)(rooms)),
    ]
    y = layers.BatchNormalization()(layers.Dense(3)(layers.Concatenate()(columns)))
    y = keras.ops.relu(y)
    two = keras.Model([age, grade, town, rooms], layers.Dense(2, activation="softmax")(y))
    one = keras.Model(
        [age, grade],
        layers.Dense(1)(layers.Dense(2, activation="relu")(layers.Concatenate()(columns[:2]))),
    )
    _save_keras({"embedded": two, "encoded": one}, folder)


def _save_keras(made, folder):
    for name, model in made.items():
        path = folder / f"{name}.keras"
        model.save(path)
        with zipfile.ZipFile(path) as archive:
            files = [(part, archive.read(part)) for part in archive.namelist()]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:  # HDF5 is mostly zeros
            for part, data in files:
                archive.writestr(part, data)


if __name__ == "__main__":
    for name, make in (
        ("onnx", onnx_graphs),
        ("keras", keras_models),
        ("keras-whole", whole_keras_models),
    ):
        if name in sys.argv[1:] or not sys.argv[1:]:
            place = SEEDS / name
            place.mkdir(parents=True, exist_ok=True)
            make(place)
