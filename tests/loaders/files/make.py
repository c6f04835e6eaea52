"""Writes the ``.keras`` files of this folder: run it once with each old version of Keras.

    PYTHONPATH=<folder with that Keras> KERAS_BACKEND=torch python tests/loaders/files/make.py

Each file comes with the rows and outputs that this version of Keras itself computed.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import keras
import numpy as np

L = keras.layers
FOLDER = Path(__file__).parent
X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def sequential():
    normalization = L.Normalization()
    normalization.adapt(X)
    return keras.Sequential(
        [
            keras.Input((3,)),
            normalization,
            L.Dense(4, activation="relu"),
            keras.Sequential([L.Dense(4, use_bias=False), L.ReLU()]),
            L.Dropout(0.2),
            L.Dense(1),
        ]
    )


def functional():
    x = keras.Input((3,))
    y = L.Rescaling(0.5, [0.0, 0.1, 0.2])(x)
    y = keras.ops.relu(L.Dense(4, name="late")(y))
    y = keras.Sequential([L.Dense(5, activation=L.ReLU(), name="inner")])(y)
    return keras.Model(x, L.Dense(3, name="early")(y))


def packed(model, path):
    """Save a model; the members of the archive as Keras writes them, but compressed."""
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def main():
    version = keras.__version__.replace(".", "_")
    for build in (sequential, functional):
        keras.utils.set_random_seed(1)
        model = build()
        stem = f"{build.__name__}_{version}"
        packed(model, FOLDER / f"{stem}.keras")
        outputs = keras.ops.convert_to_numpy(model(X))
        text = json.dumps({"rows": X.tolist(), "outputs": outputs.tolist()})
        (FOLDER / f"{stem}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
