"""Read models of every framework, preprocessing and type of column, and check the answers.

    python benchmarks/loaders.py [--people 3] [--networks 20] [--only TEXT]

Each cell is a model trained on a made-up table. Its counterfactuals are given to the original
model, and to copies of it whose trained parameters are moved by up to delta; all must accept them.
A cell that is refused prints its reason.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC

import proplace as pp
from proplace.core.errors import ProplaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DELTA = 0.002
ROWS = 300


# -- tables ----------------------------------------------------------------------------------------


def table(kind: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A table whose columns have one type, or all of them, and a score of each row."""
    rng = np.random.default_rng(0)
    income, age = rng.integers(20_000, 90_000, ROWS), rng.integers(18, 80, ROWS)
    owner, job = rng.random(ROWS) > 0.5, rng.choice(["cook", "clerk", "nurse"], ROWS)
    score = (
        income / 20_000 + age / 40 + owner + 0.5 * (job == "nurse") + 0.3 * rng.normal(size=ROWS)
    )
    numbers = {"income": income, "age": age}
    found = {
        "int64": numbers,
        "float64": {"income": income + 0.25, "age": age + 0.125},
        "float32": {name: cells.astype(np.float32) for name, cells in numbers.items()},
        "bool": numbers | {"owner": owner},
        "object": numbers | {"job": pd.Series(job, dtype=object)},
        "category": numbers | {"job": pd.Categorical(job)},
        "nullable": {
            "income": pd.array(income, "Int64"),
            "age": pd.array(age + 0.5, "Float64"),
            "owner": pd.array(owner, "boolean"),
        },
        "mixed": {"in-come": income, "my age": age + 0.5, "owner": owner, "job": job},
    }[kind]
    return pd.DataFrame(found), score


TABLES = ("int64", "float64", "float32", "bool", "object", "category", "nullable", "mixed")


def labels(score: np.ndarray, classes: int) -> np.ndarray:
    """Cut scores into classes."""
    cuts = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
    return np.array(["no", "perhaps", "yes"] if classes == 3 else ["no", "yes"])[
        np.digitize(score, cuts)
    ]


def kinds_of(frame: pd.DataFrame) -> tuple[list[str], list[str], list[str]]:
    """Names of the columns of numbers, of truth values and of words."""
    flags = [name for name in frame if pd.api.types.is_bool_dtype(frame[name])]
    numbers = [
        name for name in frame if name not in flags and pd.api.types.is_numeric_dtype(frame[name])
    ]
    return numbers, flags, [name for name in frame if name not in (*numbers, *flags)]


# -- scikit-learn and its exports --------------------------------------------------------------------


def encoder(scaler: Any, words: Any = None) -> Callable[[pd.DataFrame], Any]:
    """Make a transformer for the columns of each kind."""

    def make(frame: pd.DataFrame) -> Any:
        numbers, flags, texts = kinds_of(frame)
        parts = [(scaler, numbers), ("passthrough", flags), (words or OneHotEncoder(), texts)]
        steps = [(step, names) for step, names in parts if names]
        return make_column_transformer(*steps, sparse_threshold=0.0)

    return make


PREPROCESSING: dict[str, Callable[[pd.DataFrame], Any]] = {
    "scaler alone": lambda frame: StandardScaler(),
    "standard, one-hot": encoder(StandardScaler()),
    "min-max, drop first": encoder(MinMaxScaler(), OneHotEncoder(drop="first")),
    "ignored, ordinal": encoder(RobustScaler(), OrdinalEncoder()),
    "unknown ignored": encoder(StandardScaler(), OneHotEncoder(handle_unknown="ignore")),
    "imputer": encoder(make_pipeline(SimpleImputer(), StandardScaler())),
    "PCA": lambda frame: make_pipeline(encoder(StandardScaler())(frame), PCA(2)),
    "selection": lambda frame: make_pipeline(encoder(StandardScaler())(frame), SelectKBest(k=2)),
    "union": lambda frame: make_pipeline(
        encoder(StandardScaler())(frame), make_union(PCA(1), SelectKBest(k=2))
    ),
}
CLASSIFIERS = {
    "MLP": lambda: MLPClassifier((8,), solver="lbfgs", alpha=0.1, max_iter=200, random_state=0),
    "logistic": lambda: LogisticRegression(max_iter=200),
    "SVC": LinearSVC,
}


@dataclass(frozen=True)
class Cell:
    """A model to read, its table, and the labels that a moved copy gives."""

    name: str
    source: Any
    frame: pd.DataFrame
    original: Callable[[pd.DataFrame], np.ndarray]
    moved: Callable[[np.random.Generator], Callable[[pd.DataFrame], np.ndarray]]


def corner(rng: np.random.Generator, values: Any) -> Any:
    """Parameters that are moved by delta, or by half of it."""
    values = np.asarray(values)
    steps = rng.choice([-1.0, 1.0], values.shape) * rng.choice([1.0, 1.0, 0.5], values.shape)
    return (values + 0.999 * DELTA * steps).astype(values.dtype)


def moved_pipeline(pipe: Any) -> Callable[[np.random.Generator], Any]:
    """Make copies of a pipeline whose trained parameters are moved."""

    def move(rng: np.random.Generator) -> Any:
        twin = copy.deepcopy(pipe)
        last = twin[-1]
        if isinstance(last, MLPClassifier):
            last.coefs_ = [corner(rng, part) for part in last.coefs_]
            last.intercepts_ = [corner(rng, part) for part in last.intercepts_]
        else:
            last.coef_, last.intercept_ = corner(rng, last.coef_), corner(rng, last.intercept_)
        return twin.predict

    return move


def pipelines(folder: Path) -> Iterator[Cell | str]:
    """Yield scikit-learn pipelines and their ONNX exports."""
    from skl2onnx import to_onnx  # noqa: PLC0415

    for kind in TABLES:
        frame, score = table(kind)
        for front, make in PREPROCESSING.items():
            if front == "scaler alone" and kinds_of(frame)[2]:
                continue
            for classes in (2, 3):
                for title, classifier in CLASSIFIERS.items():
                    name = f"{front}, {kind}, {classes} classes, {title}"
                    pipe = make_pipeline(make(frame), classifier()).fit(
                        frame, labels(score, classes)
                    )
                    move = moved_pipeline(pipe)
                    yield Cell(f"scikit-learn: {name}", pipe, frame, pipe.predict, move)
                    try:
                        made = to_onnx(pipe, frame[:1])
                    except Exception as error:
                        reason = str(error).strip().partition("\n")[0]
                        yield f"ONNX: {name}: skl2onnx does not export it ({reason[:90]})"
                        continue
                    path = folder / "model.onnx"
                    path.write_bytes(made.SerializeToString())
                    yield Cell(f"ONNX: {name}", path, frame, pipe.predict, move)


# -- torch and Keras -----------------------------------------------------------------------------------


def numbers_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The table as torch and Keras take it: words as the numbers 0, 1, ..."""
    words = kinds_of(frame)[2]
    codes = {name: pd.Categorical(frame[name]).codes.astype(float) for name in words}
    return frame.assign(**codes).astype("float64")


def trained_layers(X: np.ndarray, y: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Train two layers on encoded rows."""
    found = CLASSIFIERS["MLP"]().fit(X, y)
    return found.coefs_, found.intercepts_


def torch_cells(folder: Path) -> Iterator[Cell | str]:
    """Yield torch modules and their ONNX exports."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    class Lender(nn.Module):
        def __init__(self, X: np.ndarray, codes: list[int], layers: Any, *, norm: bool) -> None:
            super().__init__()
            numbers = [j for j in range(X.shape[1]) if j not in codes]
            self.numbers, self.codes = numbers, codes
            self.register_buffer("mean", torch.tensor(X[:, numbers].mean(0)).float())
            self.register_buffer("std", torch.tensor(X[:, numbers].std(0)).float())
            widths = [layers[0][0].shape[0], *(b.size for b in layers[1])]
            self.first, self.last = nn.Linear(*widths[:2]), nn.Linear(*widths[1:])
            self.norm = nn.BatchNorm1d(widths[1]) if norm else nn.Identity()
            for layer, W, b in zip((self.first, self.last), *layers, strict=True):
                layer.weight.data = torch.tensor(W.T).float()
                layer.bias.data = torch.tensor(b).float()

        def front(self, x: Any) -> Any:
            parts = [(x[:, self.numbers] - self.mean) / self.std]
            parts += [nn.functional.one_hot(x[:, j].long(), 3).float() for j in self.codes]
            return torch.cat(parts, dim=1)

        def forward(self, x: Any) -> Any:
            return self.last(torch.relu(self.norm(self.first(self.front(x)))))

    def labels_of(module: Any) -> Any:
        def predict(rows: pd.DataFrame) -> np.ndarray:
            with torch.no_grad():
                out = module(torch.tensor(rows.to_numpy(float)).float()).numpy()
            return out.argmax(1) if out.shape[1] > 1 else (out[:, 0] >= 0).astype(int)

        return predict

    for kind in ("int64", "bool", "mixed"):
        frame, score = table(kind)
        X = numbers_of(frame).to_numpy()
        codes = [list(frame).index(name) for name in kinds_of(frame)[2]]
        for classes in (2, 3):
            y = labels(score, classes)
            numbers = np.delete(X, codes, 1)
            scaled = (numbers - numbers.mean(0)) / numbers.std(0)
            Z = np.hstack([scaled, *(np.eye(3)[X[:, j].astype(int)] for j in codes)])
            layers = trained_layers(Z, y)
            for norm in (False, True):
                module = Lender(X, codes, layers, norm=norm).eval()

                def move(rng: np.random.Generator, module: Any = module) -> Any:
                    twin = copy.deepcopy(module)
                    for layer in (twin.first, twin.last):
                        for part in (layer.weight, layer.bias):
                            part.data = torch.tensor(corner(rng, part.detach().numpy()))
                    return labels_of(twin)

                name = f"{'batch norm' if norm else 'buffers'}, {kind}, {classes} classes"
                rows = numbers_of(frame).set_axis([f"x{j}" for j in range(X.shape[1])], axis=1)
                yield Cell(f"torch: {name}", module, rows, labels_of(module), move)
                path = folder / "torch.onnx"
                torch.onnx.export(
                    module, (torch.zeros(4, X.shape[1]),), path, dynamo=False, input_names=["x"],
                    dynamic_axes={"x": {0: "n"}},
                )  # fmt: skip
                yield Cell(f"ONNX of torch: {name}", path, rows, labels_of(module), move)


def keras_cells(folder: Path) -> Iterator[Cell | str]:
    """Yield Keras models, and what is saved of them."""
    import keras  # noqa: PLC0415

    L = keras.layers
    for kind in ("int64", "bool", "mixed"):
        frame, score = table(kind)
        rows = numbers_of(frame).rename(columns=lambda name: name.replace(" ", "-"))
        words = [name.replace(" ", "-") for name in kinds_of(frame)[2]]
        for classes in (2, 3):
            y, parts, inputs, seen = labels(score, classes), [], {}, []
            for name, cells in rows.items():
                whole = name in words
                inputs[name] = keras.Input((1,), name=name, dtype="int32" if whole else "float32")
                layer = L.CategoryEncoding(3, "one_hot") if whole else L.Normalization(
                    mean=cells.mean(), variance=cells.var())  # fmt: skip
                parts.append(layer(inputs[name]))
                column = cells.to_numpy()
                scaled = (column[:, None] - column.mean()) / column.std(ddof=1)
                seen.append(np.eye(3)[column.astype(int)] if whole else scaled)
            coefs, intercepts = trained_layers(np.hstack(seen), y)
            hidden = L.Dense(8, "relu")(L.Concatenate()(parts))
            model = keras.Model(inputs, L.Dense(len(intercepts[-1]))(hidden))
            dense = [layer for layer in model.layers if isinstance(layer, L.Dense)]
            for layer, W, b in zip(dense, coefs, intercepts, strict=True):
                layer.set_weights([W, b])

            def labels_of(model: Any, inputs: Any = inputs) -> Any:
                def predict(table: pd.DataFrame) -> np.ndarray:
                    feeds = {n: table[[n]].to_numpy(t.dtype) for n, t in inputs.items()}
                    out = np.asarray(keras.ops.convert_to_numpy(model(feeds, training=False)))
                    return out.argmax(1) if out.shape[1] > 1 else (out[:, 0] >= 0).astype(int)

                return predict

            def move(
                rng: np.random.Generator, model: Any = model, labels_of: Any = labels_of
            ) -> Any:
                twin = keras.models.clone_model(model)
                twin.set_weights(model.get_weights())
                for layer in twin.layers:
                    if isinstance(layer, L.Dense):
                        layer.set_weights([corner(rng, part) for part in layer.get_weights()])
                return labels_of(twin)

            name = f"scaled and encoded, {kind}, {classes} classes"
            yield Cell(f"Keras: {name}", model, rows, labels_of(model), move)
            path = folder / "keras.npz"
            pp.Model.of(model).save(path)
            yield Cell(f"Keras, saved: {name}", path, rows, labels_of(model), move)


# -- the check -----------------------------------------------------------------------------------------


def check(cell: Cell, people: int, networks: int) -> tuple[int, int, int, float]:
    """Count answers, those the original accepts, and moved networks that refuse any; seconds to read."""
    started = time.perf_counter()
    model = pp.Model.of(cell.source)
    seconds = time.perf_counter() - started
    if not model.has_column_names:
        model = model.with_column_names(list(cell.frame))
    said = cell.original(cell.frame)
    target = sorted(set(said.tolist()))[-1]
    refused = cell.frame[said != target].head(people)
    explainer = pp.Proplace(model, DELTA, k=5).fit(cell.frame)
    explained = explainer.explain(refused, target)
    answers = [a for a in explained if a.found]
    if not answers:
        return 0, 0, 0, seconds
    found = refused.iloc[[i for i, a in enumerate(explained) if a.found]].copy()
    for name in answers[
        0
    ].counterfactual.index:  # columns the model never looks at stay as they are
        found[name] = pd.array([a.counterfactual[name] for a in answers], cell.frame[name].dtype)
    accepted = int((cell.original(found) == target).sum())
    rng = np.random.default_rng(0)
    broken = sum(not (cell.moved(rng)(found) == target).all() for _ in range(networks))
    return len(answers), accepted, broken, seconds


def main() -> int:
    """Print a line for each cell and the totals; return 1 if an answer failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--people", type=int, default=3, help="people in each cell (default: 3)")
    parser.add_argument("--networks", type=int, default=20, help="moved models (default: 20)")
    parser.add_argument("--only", default="", help="cells whose name contains this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    totals = {"read": 0, "answers": 0, "accepted": 0, "broken": 0, "networks": 0, "not read": 0}
    with tempfile.TemporaryDirectory() as folder:
        for make in (pipelines, torch_cells, keras_cells):
            for cell in make(Path(folder)):
                name = cell if isinstance(cell, str) else cell.name
                if options.only not in name:
                    continue
                if isinstance(cell, str):
                    print(f"{cell}")
                    totals["not read"] += 1
                    continue
                try:
                    answers, accepted, broken, seconds = check(
                        cell, options.people, options.networks
                    )
                except ProplaceError as error:
                    print(f"{name}: refused: {error}")
                    totals["not read"] += 1
                    continue
                print(
                    f"{name}: read in {seconds:.2f} s, {accepted} of {answers} accepted, "
                    f"{options.networks - broken} of {options.networks} moved models accept all"
                )
                totals["read"] += 1
                totals["answers"] += answers
                totals["accepted"] += accepted
                totals["broken"] += broken
                totals["networks"] += options.networks if answers else 0
    print(", ".join(f"{key} {value:,}" for key, value in totals.items()))
    return int(totals["accepted"] < totals["answers"] or totals["broken"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
