"""A model that was followed by a :class:`~proplace.loaders.trace.Trace`, compared with the original.

Whatever a reader overlooked (a hook, a subclass, a custom ``forward``) shows in the outputs: the
original and what was read of it are run on made-up rows of very different sizes and must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.core.errors import InputError, ModelNotSupportedError, SchemaError
from proplace.core.transforms import InputTransform
from proplace.loaders.layers import multi_label
from proplace.schema import Continuous, Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from proplace.core.network import Array, Network, Precision
    from proplace.loaders.trace import Trace
    from proplace.schema.values import Label


Form = Literal["logits", "sigmoid", "softmax", "log_softmax"]

# Rounding error of one forward pass, relative to the sum of absolute values that it adds up.
_ROUNDING = {"float64": 1e-9, "float32": 1e-5}


@dataclass(frozen=True, eq=False)
class Whole:
    """A model from the table to the class.

    Attributes
    ----------
    network
        Takes the rows that ``schema`` encodes.
    schema
        The columns of the table that the model looks at, encoded as the model encodes them.
    classes
        Label of each class of the network, or None where the model does not say.
    predict
        The model's own labels (or class numbers) for a table, or None where it cannot be run.
    columns
        All columns of the table, those that the model never looks at among them.
    has_column_names
        Whether the model knows its columns by name.
    probabilities
        The model's own probability of each class for a table, one column each, or None where it
        cannot be run or has none.
    """

    network: Network
    schema: Schema
    classes: tuple[Label, ...] | None
    predict: Callable[[pd.DataFrame], Any] | None
    columns: tuple[str, ...]
    has_column_names: bool
    probabilities: Callable[[pd.DataFrame], Any] | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """A trace, and the original model that it must agree with.

    Attributes
    ----------
    trace
        What was read.
    run
        The original: from a table with the columns of the trace to its outputs, one row for each.
    precision
        The arithmetic of the original; float64 only if its outputs are that exact.
    advice
        What to do where both differ.
    has_column_names
        True if the model knows its columns by name.
    integers
        Columns that take whole numbers only.
    """

    trace: Trace
    run: Callable[[pd.DataFrame], Array]
    precision: Precision
    advice: str
    has_column_names: bool = False
    integers: frozenset[str] = frozenset()

    def whole(self) -> Whole:
        """Return the model from the table to the class."""
        trace = self.trace
        try:
            schema, input_transform = trace.flow.finish(trace.columns)
        except SchemaError as error:
            raise ModelNotSupportedError(
                f"the inputs of {trace.title} are no columns of a table: {error}"
            ) from None
        network = trace.chain.network(self.precision).with_input_transform(input_transform)
        table = self._probe(schema)
        raw, rows = unscaled(network, schema, table)
        network = network.with_input_transform(input_transform, self._compared(raw, rows, table))

        def run(frame: pd.DataFrame) -> Array:
            return self._outputs(frame).reshape(len(frame), network.outputs)

        def predict(frame: pd.DataFrame) -> Any:
            outputs = run(frame)
            if network.outputs > 1:
                return np.asarray(outputs.argmax(axis=1), dtype=np.int64)
            return (outputs[:, 0] >= (0.5 if self.form == "sigmoid" else 0.0)).astype(np.int64)

        return Whole(
            network,
            schema,
            None,
            predict,
            columns=tuple(trace.titles),
            has_column_names=self.has_column_names,
            probabilities=lambda frame: probabilities_of(run(frame), self.form),
        )

    @property
    def form(self) -> Form:
        """What the outputs are."""
        return self.trace.chain.activation or "logits"

    def _probe(self, schema: Schema) -> pd.DataFrame:
        """Make up a table of values that the model takes as they are."""
        most = max((len(getattr(f, "labels", ())) for f in schema.features), default=0)
        table = probe_table(schema, max(64, 2 * most), self.integers)
        for feature in schema.features:
            if isinstance(feature, Continuous):
                cells = table[feature.name].to_numpy()
                if feature.name in self.integers:
                    cells = cells.round().clip(-(2.0**15), 2.0**15)
                table[feature.name] = cells.astype(np.float32).astype(np.float64)
        return table

    def _outputs(self, frame: pd.DataFrame) -> Array:
        """Run the original; columns that it never looks at may be left out."""
        trace = self.trace
        used = trace.used()
        cells: dict[str, Any] = {
            title: frame[title]
            if title in frame or title in used
            else [trace.flow.anything(title)] * len(frame)
            for title in trace.titles
        }
        for title, column in cells.items():
            source = trace.flow.sources[title]
            if source.labels is None or not isinstance(source.labels[0], str):
                cells[title] = self._numbers(title, list(column))
            if source.labels is not None:
                _check_labels(title, list(column), source.labels)
        return self.run(pd.DataFrame(cells, index=frame.index))

    def _numbers(self, title: str, column: list[Any]) -> Array:
        try:
            values = np.array(column, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"column {title!r} must hold numbers for this model") from None
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise InputError(
                f"row {bad[0]}, column {title!r}: the model takes no missing or infinite values"
            )
        odd = np.flatnonzero((values != np.rint(values)) & (title in self.integers))
        if len(odd):
            raise InputError(
                f"row {odd[0]}, column {title!r}: the model takes whole numbers, not "
                f"{values[odd[0]]}; describe the column with step=1 and its range"
            )
        return values

    def _compared(self, network: Network, rows: Array, table: pd.DataFrame) -> Precision:
        """Say what the model computes in, having compared its outputs with the network's."""
        title = self.trace.title
        try:
            outputs = self._outputs(table)
        except (InputError, ModelNotSupportedError):
            raise
        except Exception as error:
            raise ModelNotSupportedError(
                f"{title} cannot be run on rows of {len(table.columns)} columns: {error}"
            ) from error
        if (
            self.precision == "float64"
            and form_of(network, rows, outputs, "float64", self.form) == self.form
        ):
            return "float64"
        found = form_of(network, rows, outputs, "float32", self.form)
        if found == self.form:
            return "float32"
        if found == "sigmoid" and network.outputs > 1:
            raise multi_label(title, network.outputs)
        raise ModelNotSupportedError(
            f"{title} does not compute what the chain of its layers says (a layer that was changed, a "
            f"hook, or a softmax along another axis?); {self.advice}"
        )


def _check_labels(title: str, column: list[Any], labels: tuple[Label, ...]) -> None:
    """Raise for other labels: on a GPU, an Embedding would make CUDA unusable for the process."""
    odd = np.flatnonzero(~pd.Series(column).isin(labels))
    if len(odd):
        raise InputError(
            f"row {odd[0]}, column {title!r}: {column[odd[0]]} is none of the {len(labels)} categories "
            "of the model"
        )


def unscaled(network: Network, schema: Schema, table: pd.DataFrame) -> tuple[Network, Array]:
    """Return the network that takes the numbers of the table as they are, and its rows.

    The original scales the table's numbers in its own precision, so its rounding is that of this
    network.
    """
    pairs = [
        (f.offset, f.scale) if isinstance(f, Continuous) else (0.0, 1.0)
        for f, span in zip(schema.features, schema.spans, strict=True)
        for _ in range(span.start, span.stop)
    ]
    offset, scale = np.array(pairs).T
    own = network.input_transform
    s = 1.0 if own.scale is None else own.scale
    t = 0.0 if own.shift is None else own.shift
    parts = {**own.parts, "scale": s / scale, "shift": t - s * offset / scale}
    raw = network.with_input_transform(InputTransform(**parts), "float64")
    return raw, offset + scale * schema.encode(table)


# -- made-up rows, and the forms of outputs ------------------------------------------------------------


def probe_table(schema: Schema, n: int = 64, integers: Collection[str] = ()) -> pd.DataFrame:
    """Make up rows of a table: numbers of very different sizes, and every label.

    Small numbers show the biases, large ones switch every ReLU on and off.

    Columns of ``integers`` hold whole numbers.
    """
    rng = np.random.default_rng(1)
    U = rows_of_all_sizes(n, len(schema.features))
    cells: dict[str, Any] = {}
    for feature, column in zip(schema.features, U.T, strict=True):
        if isinstance(feature, Continuous):
            cells[feature.name] = feature.offset + feature.scale * column
            if feature.name in integers:
                cells[feature.name] = np.round(cells[feature.name])
        else:
            known = feature.labels
            cells[feature.name] = [known[i % len(known)] for i in rng.permutation(n)]
    return pd.DataFrame(cells)


def boundary_table(network: Network, schema: Schema, table: pd.DataFrame) -> pd.DataFrame:
    """Move the numbers of each row towards those of another, to near the boundary of their classes.

    The rows lie on both sides of it, so that another threshold of the original shows.
    """
    numbers = [f.name for f in schema.features if isinstance(f, Continuous)]
    if not numbers:
        return table
    places = [schema.span(name).start for name in numbers]
    rows = schema.encode(table)
    step = np.zeros_like(rows)
    step[:, places] = rows[::-1, places] - rows[:, places]
    low, high = np.zeros(len(rows)), np.ones(len(rows))
    first = network.predict(rows)
    for _ in range(30):
        middle = (low + high) / 2.0
        same = network.predict(rows + middle[:, None] * step) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    cells = table[numbers].to_numpy(np.float64)
    sides = [cells + (t[:, None] * (cells[::-1] - cells)) for t in (low - 1e-4, high + 1e-4)]
    moved = [table.assign(**dict(zip(numbers, side.T, strict=True))) for side in sides]
    return pd.concat(moved, ignore_index=True)


def rows_of_all_sizes(n: int, columns: int) -> Array:
    """Random rows whose numbers are of one size in a row, from a hundredth to a thousand."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, columns)) * 10.0 ** rng.uniform(-2.0, 3.0, size=(n, 1))


def form_of(
    network: Network,
    X: Array,
    outputs: npt.ArrayLike,
    arithmetic: Precision = "float64",
    first: Form = "logits",
) -> Form | None:
    """Say what ``outputs`` of the original model on ``X`` are: logits or which function of them.

    None means that they are not what the network computes. Where several forms fit, as sigmoid and
    softmax do on rows with large logits alone, it is the ``first`` that was expected.
    """
    Y = np.asarray(outputs, dtype=np.float64)
    logits = network.logits(X)
    if Y.shape == (len(X),) and network.outputs == 1:
        Y = Y[:, None]
    if Y.shape != logits.shape:
        return None
    tolerance = allowance(network, X, arithmetic)
    # Functions of the logits round once more, and their values are near 1.
    slack = 2.0 * tolerance + _ROUNDING[arithmetic] * 0.1
    log_softmax = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-logits))
    candidates: list[tuple[Form, Array, Array]] = [
        ("logits", logits, tolerance),
        ("sigmoid", sigmoid, slack),
        ("softmax", np.exp(log_softmax), slack),
        ("log_softmax", log_softmax, slack),
    ]
    for form, expected, bound in sorted(candidates, key=lambda entry: entry[0] != first):
        if form.endswith("softmax") and network.outputs == 1:
            continue  # constant, so it would agree with a constant model
        if bool((np.abs(Y - expected) <= bound).all()):
            return form
    return None


def probabilities_of(outputs: Array, form: Form) -> Array:
    """Return the probability of each class from what a model gives: logits, or a function of them."""
    P = np.asarray(outputs, dtype=np.float64)
    if form == "log_softmax":
        return np.asarray(np.exp(P))
    if P.shape[1] == 1:
        with np.errstate(over="ignore"):
            one = P if form == "sigmoid" else 1.0 / (1.0 + np.exp(-P))
        return np.hstack([1.0 - one, one])
    if form == "logits":
        P = np.exp(P - P.max(axis=1, keepdims=True))
        P = P / P.sum(axis=1, keepdims=True)
    return P


def allowance(network: Network, X: Array, arithmetic: Precision) -> Array:
    """How far rounding may take each row's logits, shape (n, 1)."""
    return _ROUNDING[arithmetic] * _magnitude(network, X)


def _magnitude(network: Network, X: Array) -> Array:
    """Sum of the absolute values of all terms behind each row's logits, shape (n, 1)."""
    m = network.input_transform.size(X)
    for layer in network.layers:
        m = m @ np.abs(layer.W).T + np.abs(layer.bias)
    largest: Array = m.max(axis=1, keepdims=True)
    return largest
