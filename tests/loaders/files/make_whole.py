"""Writes the files of the folder ``whole``: models that look up words, which takes TensorFlow.

    KERAS_BACKEND=tensorflow python tests/loaders/files/make_whole.py

Each file comes with rows of the table and with the outputs that Keras itself computed for them.
"""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
from make import packed

L = keras.layers
FOLDER = Path(__file__).parent / "whole"
JOBS = ["cook", "clerk", "smith", "poet"]
TOWNS = ["Ulm", "Bern", "Åbo", "Wien"]
RNG = np.random.default_rng(0)
TABLE = {
    "age": RNG.integers(18, 80, 60).astype("float32"),
    "job": RNG.choice(JOBS, 60, p=[0.4, 0.3, 0.2, 0.1]),
    "town": RNG.choice(TOWNS, 60, p=[0.4, 0.3, 0.2, 0.1]),
    "grade": RNG.choice([3, 5, 9], 60).astype("int64"),
    "rooms": RNG.choice([1, 2, 4], 60).astype("int64"),
}


def numbers():
    age = keras.Input((1,), name="age")
    normalization = L.Normalization()
    normalization.adapt(TABLE["age"][:, None])
    return age, normalization(age)


def network(columns, outputs=1):
    x = L.Dense(6, activation="relu")(L.Concatenate()(columns))
    return L.Dense(outputs, activation="sigmoid" if outputs == 1 else "softmax")(x)


def given():
    """Vocabularies in the description: 0/1 columns of every kind."""
    age, scaled = numbers()
    job = keras.Input((1,), name="job", dtype="string")
    town = keras.Input((), name="town", dtype="string")
    grade = keras.Input((1,), name="grade", dtype="int64")
    rooms = keras.Input((1,), name="rooms", dtype="int64")
    columns = [
        scaled,
        L.StringLookup(vocabulary=JOBS, output_mode="one_hot")(job),
        L.StringLookup(
            vocabulary=["", "[UNK]", "[UNK]", *TOWNS],
            num_oov_indices=2,
            mask_token="",
            output_mode="int",
            name="numbers_of_towns",
        )(town),
        L.IntegerLookup(
            vocabulary=[9, 3, 5], output_mode="multi_hot", max_tokens=7, pad_to_max_tokens=True
        )(grade),
        L.IntegerLookup(vocabulary=[4, 2, 1], num_oov_indices=0, output_mode="count")(rooms),
    ]
    columns[2] = L.CategoryEncoding(8, output_mode="one_hot")(columns[2])
    return keras.Model([age, job, town, grade, rooms], network(columns))


def adapted():
    """Vocabularies that were learned, with special words in front: numbers that are embedded."""
    age, scaled = numbers()
    inputs, columns = {"age": age}, [scaled]
    for name in ("job", "town"):
        inputs[name] = keras.Input((1,), name=name, dtype="string")
        lookup = L.StringLookup(mask_token="none", num_oov_indices=2)
        lookup.adapt(TABLE[name])
        vectors = L.Embedding(8, 3, mask_zero=name == "town")(lookup(inputs[name]))
        columns.append(L.Flatten()(vectors) if name == "job" else L.Reshape((3,))(vectors))
    inputs["grade"] = keras.Input((1,), name="grade", dtype="int64")
    lookup = L.IntegerLookup(name="numbers_of_grades")
    lookup.adapt(TABLE["grade"])
    columns.append(L.Rescaling(0.5, -1.0)(lookup(inputs["grade"])))
    return keras.Model(inputs, network(columns, 3))


def alone():
    """One input of words."""
    lookup = L.StringLookup(output_mode="one_hot")
    lookup.adapt(TABLE["job"])
    return keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            lookup,
            L.Dense(4, activation="relu"),
            L.BatchNormalization(),
            L.Dense(1),
        ]
    )


def scatter(model):
    """Give every trained layer numbers of its own, as training would."""
    rng = np.random.default_rng(7)
    for layer in model.layers:
        if isinstance(layer, (L.Dense, L.Embedding, L.BatchNormalization)):
            drawn = [rng.normal(0.0, 0.8, w.shape) for w in layer.get_weights()]
            if isinstance(layer, L.BatchNormalization):
                drawn[-1] = 0.3 + np.abs(drawn[-1])
            layer.set_weights(drawn)


def balance(model, feeds):
    """Move the boundary of two classes into the middle of the rows."""
    last = model.layers[-1]
    z = np.asarray(model(feeds), dtype=np.float64)
    if z.shape[1] == 1:
        z = np.log(z / (1.0 - z)) if last.activation.__name__ == "sigmoid" else z
        W, b = last.get_weights()
        values = np.unique(z.round(4))  # many rows have the same
        last.set_weights([W, b - values[len(values) // 2 - 1 :][:2].mean()])


def main():
    FOLDER.mkdir(exist_ok=True)
    for build in (given, adapted, alone):
        model = build()
        scatter(model)
        names = ["job"] if build is alone else [tensor.name for tensor in model.inputs]
        rows = {name: TABLE[name] for name in names}
        feeds = {
            name: cells if build is given and name == "town" else cells[:, None]
            for name, cells in rows.items()
        }
        feeds = {given: list(feeds.values()), adapted: feeds, alone: feeds["job"]}[build]
        balance(model, feeds)
        packed(model, FOLDER / f"{build.__name__}.keras")
        facts = {
            "table": {name: cells.tolist() for name, cells in rows.items()},
            "outputs": np.asarray(model(feeds)).tolist(),
        }
        (FOLDER / f"{build.__name__}.json").write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
