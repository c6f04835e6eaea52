"""Files as users have them, made by the frameworks themselves, for the tests of each command."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp
from commands import named
from crowds import explain_crowd, make_crowd

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Loans:
    """A folder with a model, a schema and tables."""

    folder: Path
    schema: pp.Schema
    net: pp.Network
    train: pd.DataFrame
    people: pd.DataFrame

    def options(self, command="explain", **changes):
        """Options of a command and keys of the project that work. None leaves one out."""
        options = {
            "model": self.folder / "model.onnx",
            "train": self.folder / "train.csv",
            "schema": self.folder / "schema.yaml",
            "input": self.folder / "people.csv",
            "delta": 0.01,
            "k": 5,
            **changes,
        }
        return named(command, **options)


@pytest.fixture(scope="session")
def crowd(tmp_path_factory):
    """A folder with a tiny model and many people."""
    return make_crowd(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="session")
def whole(crowd):
    """The answers of an undisturbed run about the crowd, for slow tests."""
    return explain_crowd(crowd)


@pytest.fixture(scope="session")
def loans(tmp_path_factory):
    pytest.importorskip("skl2onnx")
    from skl2onnx import to_onnx

    folder = tmp_path_factory.mktemp("loans")
    rng = np.random.default_rng(0)
    n = 300
    train = pd.DataFrame(
        {
            "age": rng.integers(20, 70, n),
            "income": rng.uniform(0.0, 9.0, n).round(3),
            "job": rng.choice(["clerk", "cook", "smith"], n),
            "member": rng.choice(["no", "yes"], n),
        }
    )
    good = train["income"] / 9 + 0.3 * (train["job"] == "cook") + train["age"] / 100 > 0.9
    schema = pp.Schema(
        [
            pp.Continuous("age", 18, 90, step=1, direction="increasing"),
            pp.Continuous("income", 0, 10, unit="thousand"),
            pp.Categorical("job", ["clerk", "cook", "smith"]),
            pp.Binary("member", ["no", "yes"], immutable=True),
        ]
    )
    X = schema.encode(train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mlp = MLPClassifier((6,), max_iter=400, learning_rate_init=0.01, random_state=0).fit(
            X, good
        )
    model = to_onnx(mlp, X[:1].astype(np.float32), options={"zipmap": False})
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    people = train[mlp.predict(X) == 0].head(12).reset_index(drop=True)
    schema.write(folder / "schema.yaml")
    train.to_csv(folder / "train.csv", index=False)
    people.to_csv(folder / "people.csv", index=False)
    return Loans(folder, schema, pp.Model.of(folder / "model.onnx").network, train, people)
