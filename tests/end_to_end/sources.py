"""Models as people have them, each with its own framework as the oracle.

A source has the object that the library receives (a fitted pipeline, a module, a file). It predicts the
class of a row by its own framework, without the library. If that is easy, it can also predict with every
trained parameter moved by at most delta.
"""

from __future__ import annotations

import copy
import functools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

import proplace as pp
from support.models import export_sklearn, export_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd


@dataclass(frozen=True, eq=False)
class Source:
    """A trained model, a table for it, and the predictions of its framework.

    Attributes
    ----------
    given
        The argument of the library in Python, and ``file`` that of the command line.
    table
        The rows it was trained on.
    labels
        The class of each row of a table, by the framework itself.
    refused, wanted
        The two classes.
    schema
        Names and kinds of the columns, if the model has none.
    moved
        From a random generator and delta to ``labels`` of the same model with every trained
        parameter moved by up to delta. None if that is not easy.
    put
        From layers (W, b) to ``labels`` of the same model with these in the place of its own.
    """

    given: Any
    file: Path | None
    table: pd.DataFrame
    labels: Callable[[pd.DataFrame], np.ndarray]
    refused: Any
    wanted: Any
    schema: pp.Schema | None = None
    moved: Callable[[np.random.Generator, float], Callable[..., np.ndarray]] | None = None
    put: Callable[[list[tuple[np.ndarray, np.ndarray]]], Callable[..., np.ndarray]] | None = None

    @property
    def people(self):
        """Rows that the framework itself refuses."""
        return self.table[self.labels(self.table) == self.refused]


def mlp(*widths):
    return MLPClassifier(widths, solver="lbfgs", alpha=0.5, max_iter=60, random_state=0)


def corner(rng, values, delta):
    """Every value moved by delta, up or down, or by something between."""
    steps = rng.choice([-1.0, 1.0], values.shape) * rng.choice([1.0, 1.0, 0.5], values.shape)
    return values + delta * steps


# -- scikit-learn ------------------------------------------------------------------------------


def columns(*steps, rest="drop"):
    return ColumnTransformer(
        [(f"part{i}", *step) for i, step in enumerate(steps)], remainder=rest, sparse_threshold=0.0
    )


def scaled_numbers(t):
    """Numbers alone, a scaler, and a network of two layers."""
    return make_pipeline(StandardScaler(), mlp(8, 8)), t.numbers


def one_hot(t):
    """Numbers and words, each in its own way."""
    return make_pipeline(
        columns((StandardScaler(), t.numbers), (OneHotEncoder(), t.words)), mlp(8, 6)
    )


def dropped_and_infrequent(t):
    """One category without a column, and rare ones together in one."""
    steps = [
        (OneHotEncoder(drop="first"), [t.levels[0]]),
        (OneHotEncoder(min_frequency=0.15), t.words),
        (MinMaxScaler((-1, 1)), t.numbers),
    ]
    return make_pipeline(columns(*steps), mlp(6))


def levels_and_gaps(t):
    """Levels in their order, numbers with missing cells, scaled twice."""
    name, order = t.levels
    numbers = make_pipeline(SimpleImputer(strategy="median"), RobustScaler(), StandardScaler())
    return make_pipeline(
        columns((numbers, t.numbers), (OrdinalEncoder(categories=[order]), [name])), mlp(8)
    )


def projected(t):
    """The best columns, turned and scaled: a fixed linear map in front of the first layer."""
    front = columns((StandardScaler(), t.numbers), (OneHotEncoder(), t.words))
    return make_pipeline(front, SelectKBest(k=5), PCA(4, whiten=True), mlp(6, 5))


def nested_logistic(t):
    """A pipeline in a pipeline, columns that nothing touches, and no hidden layer."""
    kept = [*t.numbers[1:], *t.words]
    numbers = Pipeline([("a", MaxAbsScaler()), ("b", Pipeline([("c", StandardScaler())]))])
    front = columns((OneHotEncoder(), t.words), (numbers, t.numbers[2:]), rest="passthrough")
    return make_pipeline(front, LogisticRegression(max_iter=100)), kept


PIPELINES = {
    shape.__name__: shape
    for shape in (
        scaled_numbers,
        one_hot,
        dropped_and_infrequent,
        levels_and_gaps,
        projected,
        nested_logistic,
    )
}


@functools.cache
def fitted(shape, t):
    """A pipeline of a shape, fitted on a table, and that table."""
    made = PIPELINES[shape](t)
    pipe, kept = made if isinstance(made, tuple) else (made, list(t.frame.columns))
    table = (t.gappy if shape == "levels_and_gaps" else t.frame)[kept]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipe.fit(table, t.labels), table


def sklearn_source(shape, t, folder):
    """A pipeline. Its file is its ONNX export."""
    del folder
    pipe, table = fitted(shape, t)

    def labels_of(some):
        return lambda rows: some.predict(rows[table.columns])

    def put(layers):
        twin = copy.deepcopy(pipe)
        replace_layers(twin[-1], layers)
        return labels_of(twin)

    def moved(rng, delta):
        return put([tuple(corner(rng, v, delta) for v in layer) for layer in own_layers(pipe[-1])])

    return Source(pipe, None, table, labels_of(pipe), t.refused, t.wanted, moved=moved, put=put)


def own_layers(classifier):
    """The trained numbers as scikit-learn holds them: (W, b), W of shape (out, in)."""
    if isinstance(classifier, LogisticRegression):
        return [(classifier.coef_, classifier.intercept_)]
    return [(W.T, b) for W, b in zip(classifier.coefs_, classifier.intercepts_, strict=True)]


def replace_layers(classifier, layers):
    if isinstance(classifier, LogisticRegression):
        ((classifier.coef_, classifier.intercept_),) = layers
        return
    classifier.coefs_ = [W.T for W, _ in layers]
    classifier.intercepts_ = [b for _, b in layers]


# -- ONNX --------------------------------------------------------------------------------------


def onnx_source(shape, t, folder):
    """The same pipeline exported by skl2onnx, run by onnxruntime."""
    pipe, table = fitted(shape, t)
    path = folder / f"{t.name}-{shape}.onnx"
    if not path.exists():
        export_sklearn(path, pipe, table, zipmap=False)
    table = table.rename(columns=lambda name: name.replace("-", "_"))  # as skl2onnx writes them
    return Source(path, path, table, session_labels(path), t.refused, t.wanted)


def session_labels(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(string)": object}

    def labels(rows):
        feeds = {e.name: rows[[e.name]].to_numpy(kinds[e.type]) for e in session.get_inputs()}
        return session.run(None, feeds)[0]

    return labels


# -- torch -------------------------------------------------------------------------------------


def torch_module(t, *, embeds):
    """Numbers scaled by buffers and words looked up, batch norm before and behind the first layer."""
    import torch
    from torch import nn

    class Lender(nn.Module):
        def __init__(self):
            super().__init__()
            numbers = torch.tensor(t.frame[t.numbers].to_numpy(), dtype=torch.float32)
            self.register_buffer("mean", numbers.mean(0))
            self.register_buffer("std", numbers.std(0))
            sizes = [len(t.vocabulary(name)) for name in t.words] if embeds else []
            self.tables = nn.ModuleList([nn.Embedding(size, 2) for size in sizes])
            self.front = nn.BatchNorm1d(len(t.numbers) + 2 * len(sizes))
            self.first = nn.Linear(len(t.numbers) + 2 * len(sizes), 8)
            self.norm, self.last = nn.BatchNorm1d(8), nn.Linear(8, 1)

        def forward(self, x):
            n = self.mean.shape[0]
            parts = [(x[:, :n] - self.mean) / self.std]
            parts += [table(x[:, n + i].long()) for i, table in enumerate(self.tables)]
            h = self.front(torch.cat(parts, dim=1))
            return self.last(torch.relu(self.norm(self.first(h))))

    torch.manual_seed(0)
    return Lender()


def train_torch(module, X, y):
    import torch

    rows = torch.tensor(X, dtype=torch.float32)
    wanted = torch.tensor(y, dtype=torch.float32)[:, None]
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03, weight_decay=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(module(rows), wanted).backward()
        optimizer.step()
    with torch.no_grad():  # running statistics of the layers as they are now
        for _ in range(40):
            module(rows)
    return module.eval()


@functools.cache
def trained_module(t, embeds):
    table = t.coded if embeds else t.coded[t.numbers]
    module = torch_module(t, embeds=embeds)
    return train_torch(module, table.to_numpy(), t.labels == t.wanted), table


def torch_labels(module, names):
    import torch

    def labels(rows):
        cells = torch.tensor(rows[names].to_numpy(dtype=np.float64), dtype=torch.float32)
        with torch.no_grad():
            return (module(cells)[:, 0] >= 0).int().numpy()

    return labels


def torch_source(t, folder, *, embeds):
    """A module. Its file is torch's own ONNX export."""
    module, table = trained_module(t, embeds)
    names = list(table.columns)
    number = pp.Continuous
    schema = pp.Schema(
        [number(name, *limits(table[name])) for name in t.numbers]
        + [
            pp.Categorical(name, list(range(len(t.vocabulary(name)))))
            for name in (t.words if embeds else [])
        ]
    )

    def moved(rng, delta):
        twin = copy.deepcopy(module)
        g = (twin.norm.weight / (twin.norm.running_var + twin.norm.eps).sqrt()).abs()
        for layer, size in ((twin.first, g.detach().double().numpy()), (twin.last, np.ones(1))):
            for part, reach in ((layer.weight, delta / size[:, None]), (layer.bias, delta / size)):
                values = part.detach().double().numpy()
                part.data = part.data.new_tensor(corner(rng, values, reach))
        return torch_labels(twin, names)

    path = folder / f"{t.name}-{'embeddings' if embeds else 'norm'}.onnx"
    torch_export(module, table, path, dynamo=not embeds)  # each exporter in its turn
    return Source(module, path, table, torch_labels(module, names), 0, 1, schema, moved)


def limits(cells):
    return float(cells.min()), float(cells.max())


def torch_export(module, table, path, *, dynamo):
    import torch

    rows = torch.tensor(table.to_numpy()[:3], dtype=torch.float32)
    options = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    if dynamo:
        options = {"dynamic_shapes": ({0: torch.export.Dim("n")},), "verbose": False}
    if not path.exists():
        export_torch(module, path, rows, dynamo=dynamo, **options)


# -- Keras -------------------------------------------------------------------------------------


@functools.cache
def keras_model(t):
    """An input for each column: normalised numbers, one-hot words, and two trained layers.

    The weights are those that scikit-learn finds on the same columns: quicker than Keras' own training.
    """
    import keras

    L = keras.layers
    table = t.coded
    inputs, parts = {}, []
    for name in t.numbers:
        inputs[name] = keras.Input((1,), name=name)
        scaler = L.Normalization()
        scaler.adapt(table[[name]].to_numpy("float32"))
        parts.append(scaler(inputs[name]))
    for name in t.words:
        inputs[name] = keras.Input((1,), name=name, dtype="int32")
        encoder = L.CategoryEncoding(len(t.vocabulary(name)), "one_hot", name=f"{name}-encoded")
        parts.append(encoder(inputs[name]))
    front = L.Concatenate()(parts)
    end = L.Dense(1, activation="sigmoid")(L.Dense(8, activation="relu")(front))
    model = keras.Model(inputs, end)
    seen = keras_outputs(keras.Model(inputs, front), table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = mlp(8).fit(seen, t.labels == t.wanted)
    dense = [layer for layer in model.layers if isinstance(layer, L.Dense)]
    for layer, W, b in zip(dense, found.coefs_, found.intercepts_, strict=True):
        layer.set_weights([W, b])
    return model, table


def keras_outputs(model, rows):
    import keras

    feeds = {i.name: rows[[i.name]].to_numpy(dtype=i.dtype) for i in model.inputs}
    return np.asarray(keras.ops.convert_to_numpy(model(feeds, training=False)))


def keras_labels(model):
    return lambda rows: (keras_outputs(model, rows)[:, 0] >= 0.5).astype(int)


def keras_source(t, folder):
    """A model. Its file is the imported network."""
    import keras

    model, table = keras_model(t)
    path = folder / f"{t.name}-codes.npz"
    pp.Model.of(model).save(path)

    def moved(rng, delta):
        twin = keras.models.clone_model(model)
        twin.set_weights(model.get_weights())
        for layer in twin.layers:
            if isinstance(layer, keras.layers.Dense):
                layer.set_weights([corner(rng, w, delta) for w in layer.get_weights()])
        return keras_labels(twin)

    return Source(model, path, table, keras_labels(model), 0, 1, moved=moved)


SOURCES = {
    **{f"scikit-learn: {n}": functools.partial(sklearn_source, n) for n in PIPELINES},
    **{f"ONNX: {n}": functools.partial(onnx_source, n) for n in PIPELINES},
    "torch: batch norm": functools.partial(torch_source, embeds=False),
    "torch: embeddings": functools.partial(torch_source, embeds=True),
    "Keras: categories": keras_source,
}
