"""Read models of every framework, preprocessing and type of column, and check the answers.

    python benchmarks/loaders.py [--people 3] [--networks 20] [--only TEXT]

Each cell is a model trained on a made-up table. Its counterfactuals are given to the original
model, and to copies of it whose trained parameters are moved by up to delta; all must accept them.
The Markdown tables have one row for each framework and preprocessing, with the median time to read a
model, and one row for each model that is not read, whose next step is carried out.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import joblib
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

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
    "robust, ordinal": encoder(RobustScaler(), OrdinalEncoder()),
    "max-abs, infrequent": encoder(
        MaxAbsScaler(), OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=2)
    ),
    "unknown ignored": encoder(StandardScaler(), OneHotEncoder(handle_unknown="ignore")),
    "imputer": encoder(make_pipeline(SimpleImputer(), StandardScaler())),
    "PCA": lambda frame: make_pipeline(encoder(StandardScaler())(frame), PCA(2)),
    "selection": lambda frame: make_pipeline(encoder(StandardScaler())(frame), SelectKBest(k=2)),
    "nested, passthrough": lambda frame: Pipeline(
        [("a", make_pipeline(encoder("passthrough")(frame))), ("b", StandardScaler())]
    ),
    "union": lambda frame: make_pipeline(
        encoder(StandardScaler())(frame), make_union(PCA(1), SelectKBest(k=2))
    ),
}
CLASSIFIERS = {
    "MLP": lambda: MLPClassifier((8,), solver="lbfgs", alpha=0.1, max_iter=200, random_state=0),
    "logistic": lambda: LogisticRegression(max_iter=200),
    "linear SVC": LinearSVC,
    "SGD": lambda: SGDClassifier(random_state=0),
    "ridge": RidgeClassifier,
    "perceptron": Perceptron,
}


@dataclass(frozen=True)
class Cell:
    """A model to read, its table, and the labels that a moved copy gives."""

    framework: str
    preprocessing: str
    kind: str  # type of the columns
    name: str
    source: Any
    frame: pd.DataFrame
    original: Callable[[pd.DataFrame], np.ndarray]
    moved: Callable[[np.random.Generator], Callable[[pd.DataFrame], np.ndarray]]

    @property
    def title(self) -> str:
        """The cell in words."""
        return f"{self.framework}: {self.preprocessing}, {self.kind}, {self.name}"


@dataclass(frozen=True)
class NotRead:
    """A model that is not read, the reason, and the next step of the reason, carried out."""

    name: str
    reason: str
    step: str


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


def pipelines(folder: Path) -> Iterator[Cell | NotRead]:
    """Yield scikit-learn pipelines, their saved models, and their ONNX exports."""
    for kind in TABLES:
        frame, score = table(kind)
        for front, make in PREPROCESSING.items():
            if front == "scaler alone" and kinds_of(frame)[2]:
                continue
            for classes in (2, 3):
                for title, classifier in CLASSIFIERS.items():
                    pipe = make_pipeline(make(frame), classifier())
                    pipe.fit(frame, labels(score, classes))
                    name, about = f"{classes} classes, {title}", (front, kind)
                    rest = (frame, pipe.predict, moved_pipeline(pipe))
                    yield Cell("scikit-learn", *about, name, pipe, *rest)
                    path = folder / "model.npz"
                    pp.Model.of(pipe).save(path)
                    yield Cell("scikit-learn, saved", *about, name, path, *rest)
                    for found in exports(pipe, frame, f"{front}, {kind}, {name}"):
                        if isinstance(found, NotRead):
                            yield found
                            continue
                        path = folder / "model.onnx"
                        path.write_bytes(found)
                        yield Cell("ONNX of scikit-learn", *about, name, path, *rest)


def exports(pipe: Any, frame: pd.DataFrame, name: str) -> Iterator[bytes | NotRead]:
    """Yield what skl2onnx exports: of the table as it is, else of its numbers as floats."""
    from skl2onnx import to_onnx  # noqa: PLC0415

    words = kinds_of(frame)[2]
    floats = {name: np.float32 for name in frame if name not in words}
    plain = {"zipmap": False} if hasattr(pipe[-1], "predict_proba") else {"raw_scores": True}
    attempts = [
        ("to_onnx(pipe, table[:1])", frame, None),
        ("options={id(classifier): {'raw_scores': True}}", frame, {id(pipe[-1]): plain}),
        ("table.astype(float)[:1]", frame.astype(floats), {id(pipe[-1]): plain}),
    ]
    reason = ""
    for step, rows, options in attempts:
        try:
            made = to_onnx(pipe, rows[:1], options=options)
        except Exception as error:
            reason = reason or " ".join(str(error).split())[:90]
            continue
        if reason:
            yield NotRead(f"ONNX of scikit-learn: {name}", f"skl2onnx: {reason}", step)
        yield made.SerializeToString()
        return
    yield NotRead(f"ONNX of scikit-learn: {name}", f"skl2onnx: {reason}", "Model.of(pipe).save")


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


def torch_cells(folder: Path) -> Iterator[Cell]:
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

                about = ("batch norm" if norm else "buffers", kind, f"{classes} classes")
                names = [f"x{j}" for j in range(X.shape[1])]
                rest = (numbers_of(frame).set_axis(names, axis=1), labels_of(module), move)
                yield Cell("torch", *about, module, *rest)
                path, rows = folder / "torch.onnx", torch.zeros(4, X.shape[1])
                torch.onnx.export(
                    module, (rows,), path, dynamo=False, input_names=["x"],
                    dynamic_axes={"x": {0: "n"}},
                )  # fmt: skip
                yield Cell("ONNX of torch, old exporter", *about, path, *rest)
                shapes = ({0: torch.export.Dim("n")},)
                torch.onnx.export(
                    module, (rows,), path, dynamo=True, dynamic_shapes=shapes, verbose=False
                )
                yield Cell("ONNX of torch, new exporter", *about, path, *rest)


def keras_cells(folder: Path) -> Iterator[Cell]:
    """Yield Keras models, functional, nested and sequential, and what is saved of them."""
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
            X = np.hstack(seen)
            coefs, intercepts = trained_layers(X, y)
            dense = [L.Dense(8, "relu"), L.Dense(len(intercepts[-1]))]
            joined = L.Concatenate()(parts)
            nested = keras.Sequential([keras.Input((X.shape[1],)), *dense])
            models = {
                "functional": keras.Model(inputs, dense[1](dense[0](joined))),
                "nested": keras.Model(inputs, nested(joined)),
            }
            for layer, W, b in zip(dense, coefs, intercepts, strict=True):
                layer.set_weights([W, b])
            if not words:
                norm = L.Normalization(mean=rows.mean().to_numpy(), variance=rows.var().to_numpy())
                models["sequential"] = keras.Sequential([keras.Input((X.shape[1],)), norm, *dense])

            for form, model in models.items():
                names = list(rows) if form != "sequential" else [f"x{j}" for j in range(X.shape[1])]
                rest = (
                    rows.set_axis(names, axis=1),
                    keras_labels(keras, model),
                    keras_moves(keras, model),
                )
                about = (form, kind, f"{classes} classes")
                yield Cell("Keras", *about, model, *rest)
                path = folder / "keras.npz"
                pp.Model.of(model).save(path)
                yield Cell("Keras, saved", *about, path, *rest)


def keras_labels(keras: Any, model: Any) -> Callable[[pd.DataFrame], np.ndarray]:
    """Make the function that predicts the classes of a table."""

    def predict(table: pd.DataFrame) -> np.ndarray:
        feeds: Any = table.to_numpy("float32")
        if len(model.inputs) > 1:
            feeds = {
                tensor.name: table[[tensor.name]].to_numpy(tensor.dtype) for tensor in model.inputs
            }
        out = np.asarray(keras.ops.convert_to_numpy(model(feeds, training=False)))
        return out.argmax(1) if out.shape[1] > 1 else (out[:, 0] >= 0).astype(int)

    return predict


def keras_moves(keras: Any, model: Any) -> Callable[[np.random.Generator], Any]:
    """Make copies of a model whose trained parameters are moved."""

    def dense_layers(part: Any) -> Iterator[Any]:
        for layer in part.layers:
            if hasattr(layer, "layers"):
                yield from dense_layers(layer)
            elif isinstance(layer, keras.layers.Dense):
                yield layer

    def move(rng: np.random.Generator) -> Any:
        twin = keras.models.clone_model(model)
        twin.set_weights(model.get_weights())
        for layer in dense_layers(twin):
            layer.set_weights([corner(rng, part) for part in layer.get_weights()])
        return keras_labels(keras, twin)

    return move


# -- models that are not read ------------------------------------------------------------------------


def refusals(folder: Path) -> Iterator[NotRead]:
    """Read models that are refused, then carry out the next step of each message."""
    import keras  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    frame, score = table("mixed")
    y, numbers = labels(score, 2), frame[["in-come", "my age"]]
    front = encoder(StandardScaler())

    def pipeline(*steps: Any, rows: pd.DataFrame = frame) -> Any:
        return make_pipeline(*steps).fit(rows, y)

    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: Any) -> Any:
            return self.last(x + torch.relu(self.first(x)))

    def chain(activation: Any) -> Any:
        return nn.Sequential(nn.Linear(2, 3), activation, nn.Linear(3, 1))

    def dense(last: int, activation: str) -> Any:
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(last, activation)]
        return keras.Sequential([keras.Input((2,)), *layers])

    logistic, binned = LogisticRegression(), KBinsDiscretizer(3)
    cases: list[tuple[str, Any, Any]] = [
        ("decision tree", lambda: pipeline(front(frame), DecisionTreeClassifier()),
         lambda: pipeline(front(frame), logistic)),
        ("MLP with tanh", lambda: pipeline(front(frame), MLPClassifier((3,), activation="tanh")),
         lambda: pipeline(front(frame), MLPClassifier((3,)))),
        ("bins in a pipeline", lambda: pipeline(binned, logistic, rows=numbers),
         lambda: pipeline(logistic, rows=pd.DataFrame(binned.transform(numbers).toarray()))),
        ("clipping scaler", lambda: pipeline(MinMaxScaler(clip=True), logistic, rows=numbers),
         lambda: pipeline(MinMaxScaler(), logistic, rows=numbers)),
        ("missing indicator",
         lambda: pipeline(SimpleImputer(add_indicator=True), logistic, rows=numbers),
         lambda: pipeline(SimpleImputer(), logistic, rows=numbers)),
        ("LeakyReLU", lambda: chain(nn.LeakyReLU()), lambda: chain(nn.ReLU())),
        ("ReLU6", lambda: chain(nn.ReLU6()), lambda: chain(nn.ReLU())),
        ("shortcut", Shortcut, lambda: chain(nn.ReLU())),
        ("half precision", lambda: chain(nn.ReLU()).half(), lambda: chain(nn.ReLU()).half().float()),
        ("two sigmoids", lambda: dense(2, "sigmoid"), lambda: dense(2, "softmax")),
    ]  # fmt: skip
    for name, wrong, right in cases:
        yield refused(name, wrong(), right)

    saved = {".pkl": folder / "a.pkl", ".pt": folder / "a.pt", ".keras": folder / "a.keras"}
    joblib.dump(pipeline(front(frame), logistic), saved[".pkl"])
    torch.save(chain(nn.ReLU()).state_dict(), saved[".pt"])
    dense(1, "sigmoid").save(saved[".keras"])
    for suffix, path in saved.items():
        yield refused(f"{suffix} file", path, lambda path=path: converted(path, chain(nn.ReLU())))


def refused(name: str, wrong: Any, right: Callable[[], Any]) -> NotRead:
    """Read a model that is not read, then what its message advises."""
    try:
        pp.Model.of(wrong)
    except ProplaceError as error:
        reason = " ".join(str(error).split())
    else:
        return NotRead(name, "", "it was read")
    pp.Model.of(right())
    return NotRead(name, reason, "read")


def converted(path: Path, module: Any) -> Path:
    """Run the lines of the message about a file, in its folder."""
    here = Path.cwd()
    try:
        pp.Model.of(path)
    except ProplaceError as error:
        lines = str(error).splitlines()[1:]
    os.chdir(path.parent)
    try:
        exec("\n".join(map(str.strip, lines)), {"module": module})
    finally:
        os.chdir(here)
    return path.with_suffix(".npz")


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


@dataclass
class Line:
    """Counts of one framework and preprocessing."""

    kinds: set[str]
    seconds: list[float]
    answers: int = 0
    accepted: int = 0
    networks: int = 0
    broken: int = 0


def share(part: int, whole: int) -> str:
    """A share in per cent, rounded down."""
    return f"{100 * part // whole} % of {whole:,}" if whole else "none"


def main() -> int:
    """Print the tables; return 1 if an answer failed or a next step did not work."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--people", type=int, default=3, help="people in each cell (default: 3)")
    parser.add_argument("--networks", type=int, default=20, help="moved models (default: 20)")
    parser.add_argument("--only", default="", help="cells whose title contains this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    lines: dict[tuple[str, str], Line] = {}
    left: dict[tuple[str, str], list[NotRead]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for make in (pipelines, torch_cells, keras_cells, refusals):
            for cell in make(Path(folder)):
                if options.only not in (cell.name if isinstance(cell, NotRead) else cell.title):
                    continue
                if isinstance(cell, NotRead):
                    left.setdefault((cell.reason, cell.step), []).append(cell)
                    continue
                try:
                    answers, accepted, broken, seconds = check(
                        cell, options.people, options.networks
                    )
                except ProplaceError as error:
                    found = NotRead(cell.title, str(error), "it is not read")
                    left.setdefault((found.reason, found.step), []).append(found)
                    continue
                line = lines.setdefault((cell.framework, cell.preprocessing), Line(set(), []))
                line.kinds.add(cell.kind)
                line.seconds.append(seconds)
                line.answers += answers
                line.accepted += accepted
                line.networks += options.networks if answers else 0
                line.broken += broken
    print("| framework | preprocessing | types | models | original accepts | moved accept | ms |")
    print("|---|---|---|---|---|---|---|")
    for (framework, front), line in lines.items():
        shares = (
            share(line.accepted, line.answers),
            share(line.networks - line.broken, line.networks),
        )
        cells = [framework, front, len(line.kinds), len(line.seconds), *shares]
        print(f"| {' | '.join(map(str, cells))} | {1000 * np.median(line.seconds):.0f} |")
    print("\n| not read | models | reason | next step |\n|---|---|---|---|")
    for (reason, step), found in left.items():
        text = reason.replace("|", "/").replace("\n", " ")[:120]
        print(f"| {found[0].name} | {len(found)} | {text} | {step} |")
    good = all(
        line.accepted == line.answers and line.broken == 0 for line in lines.values()
    ) and not any(step.startswith("it ") for _, step in left)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
