"""One call limits the changes, for every kind of model and table, without a schema."""

import keras
import numpy as np
import pandas as pd
import polars
import pytest
import skl2onnx
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import proplace as pp

RNG = np.random.default_rng(0)
COUNT = 300
NUMBERS = ["income", "debt", "age"]
TABLE = pd.DataFrame(
    {
        "income": RNG.uniform(10, 90, COUNT).round(1),
        "debt": RNG.integers(0, 60, COUNT),
        "age": RNG.integers(18, 80, COUNT),
        "job": RNG.choice(["cook", "driver", "nurse"], COUNT),
        "home": RNG.random(COUNT) < 0.5,
    }
)
ACCEPTED = (TABLE.income - TABLE.debt + 8 * TABLE.home + 0.1 * TABLE.age > 30).astype(int)
GAPS = TABLE.assign(age=TABLE.age.where(TABLE.age > 25))
SHARES = (TABLE[NUMBERS] - TABLE[NUMBERS].min()) / np.ptp(TABLE[NUMBERS], axis=0)
WEIGHTS = np.array([[4.0, -4.0, 1.0]])
BIAS = np.array([-0.5])
NETWORK = pp.Network([(WEIGHTS, BIAS)])


def mixed(table, words=("job",), rest=("home",), numbers=StandardScaler):
    """Return a pipeline with a scaler and an encoder, fitted on a table."""
    steps = [(numbers(), NUMBERS), (OneHotEncoder(), list(words))]
    steps += [("passthrough", list(rest))] if rest else []
    return make_pipeline(make_column_transformer(*steps), LogisticRegression()).fit(table, ACCEPTED)


def plain(rows, scaler=StandardScaler):
    return make_pipeline(scaler(), LogisticRegression()).fit(rows, ACCEPTED)


def torch_model():
    module = torch.nn.Linear(3, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.as_tensor(WEIGHTS))
        module.bias.copy_(torch.as_tensor(BIAS))
    return torch.nn.Sequential(module)


def keras_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.layers[0].set_weights([WEIGHTS.T, BIAS])
    return model


def onnx_file(folder):
    rows = TABLE[NUMBERS].astype(np.float32)
    file = skl2onnx.to_onnx(plain(TABLE[NUMBERS]), rows[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(file.SerializeToString())
    return folder / "model.onnx"


def npz_file(folder):
    NETWORK.save(folder / "net.npz")
    return folder / "net.npz"


def imputing():
    return make_pipeline(SimpleImputer(), StandardScaler())


WORDS = TABLE.assign(home=np.where(TABLE.home, "yes", "no"))
CASES = {
    "float64, int64, text and bool": lambda _: (mixed(TABLE), TABLE),
    "whole numbers for bool": lambda _: (mixed(TABLE), TABLE.astype({"home": int})),
    "objects": lambda _: (mixed(TABLE), TABLE.astype(object)),
    "categories": lambda _: (mixed(TABLE), TABLE.astype({"job": "category"})),
    "nullable": lambda _: (mixed(TABLE), TABLE.astype({"debt": "Int64", "job": "string"})),
    "float32 and int32": lambda _: (
        mixed(TABLE),
        TABLE.astype({"income": "float32", "debt": "int32"}),
    ),
    "text alone": lambda _: (mixed(WORDS, ("job", "home"), ()), WORDS),
    "missing cells": lambda _: (mixed(GAPS, numbers=imputing), GAPS),
    "min-max pipeline": lambda _: (plain(TABLE[NUMBERS], MinMaxScaler), TABLE[NUMBERS]),
    "polars": lambda _: (plain(TABLE[NUMBERS]), polars.from_pandas(TABLE[NUMBERS])),
    "dictionary": lambda _: (plain(TABLE[NUMBERS]), TABLE[NUMBERS].to_dict("list")),
    "pipeline, array": lambda _: (plain(TABLE[NUMBERS].to_numpy()), TABLE[NUMBERS].to_numpy()),
    "onnx, table": lambda folder: (onnx_file(folder), TABLE[NUMBERS]),
    "onnx, array": lambda folder: (onnx_file(folder), TABLE[NUMBERS].to_numpy()),
    "torch, table": lambda _: (torch_model(), SHARES),
    "torch, array": lambda _: (torch_model(), SHARES.to_numpy()),
    "torch, tensor": lambda _: (torch_model(), torch.as_tensor(SHARES.to_numpy())),
    "keras, table": lambda _: (keras_model(), SHARES),
    "keras, array": lambda _: (keras_model(), SHARES.to_numpy()),
    "network, table": lambda _: (NETWORK, SHARES),
    "network, array": lambda _: (NETWORK, SHARES.to_numpy()),
    "npz, table": lambda folder: (npz_file(folder), SHARES),
}


def rows_of(table, positions):
    if isinstance(table, dict):
        return {name: [cells[i] for i in positions] for name, cells in table.items()}
    if isinstance(table, pd.DataFrame):
        return table.iloc[positions]
    return table[positions]


@pytest.mark.parametrize("kind", CASES)
def test_call_restricts_every_kind_of_model_and_table(kind, tmp_path):
    model, table = CASES[kind](tmp_path)
    explainer = pp.Proplace(model, 0.002, k=5).fit(table)
    statuses = [e.status for e in explainer.explain(rows_of(table, range(12)))]
    positions = [i for i, status in enumerate(statuses) if status != "already_valid"][:3]
    people = rows_of(table, positions)
    named = "income" in explainer.schema_.by_name
    first, second, third = NUMBERS if named else ("x0", "x1", "x2")
    high = 95.0 if explainer.model_.has_preprocessing else 0.95
    plain_answers = explainer.explain(people)
    answers = explainer.explain(
        people,
        immutable=[third],
        increasing=[first],
        decreasing=[second],
        ranges={first: (0, high)},
        tolerance={first: (high / 1000, 0), third: (0, high / 100)},
    )
    assert any(e.found for e in plain_answers)
    assert any(e.found for e in answers)
    for e in answers:
        if e.found:
            before, after = e.original, e.counterfactual
            assert after[third] == before[third] or pd.isna(before[third])
            assert after[first] >= before[first]
            assert after[second] <= before[second]
            assert after[first] <= max(high, before[first])
            low, up = e.guaranteed_ranges[third]
            if not pd.isna(before[third]):
                assert (low, up) == (before[third], pytest.approx(before[third] + high / 100))
            for name, (low, up) in e.guaranteed_ranges.items():
                if not pd.isna(after[name]):
                    assert low <= after[name] <= up
