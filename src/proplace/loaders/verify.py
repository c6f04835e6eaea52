"""Comparison of an imported network with its original model.

Everything that a reader overlooks (a hook, a subclass, a custom ``forward``) changes the outputs, so
both run on made-up rows of very different sizes and must agree.

An ONNX graph may compute probabilities, labels and names of classes from its logits. ``1 - sigmoid(z)``
swaps the classes, ``sigmoid(z) > 0.7`` moves the threshold. So that part of the graph runs on chosen
logits, near the threshold and far from it, and each output must have one of the forms below.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.core.errors import InputError, ModelNotSupportedError, SchemaError
from proplace.core.transforms import InputTransform
from proplace.loaders.model import Model
from proplace.schema import Continuous, Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from proplace.core.network import Array, Network, Precision
    from proplace.loaders.trace import Trace
    from proplace.schema.values import Label


Form = Literal["logits", "sigmoid", "softmax", "log_softmax", "both probabilities", "both scores"]

SCORES = (
    "export the model with its logits as the only output (skl2onnx: to_onnx(pipe, table[:1], "
    "options={id(classifier): {'raw_scores': True}})), or give the original model to Model.of"
)
_ROWS = 192
_CLOSE = 1e-6  # how far float32 constants in a graph may move a probability

# Rounding error of one forward pass, relative to the sum of absolute values that it adds up.
_ROUNDING = {"float64": 1e-9, "float32": 1e-5}


@dataclass(frozen=True, eq=False)
class Reading:
    """A trace, and its original model.

    Attributes
    ----------
    trace
        The imported layers and columns.
    run
        The original model: outputs, one row each, for a table with the columns of the trace.
    precision
        Arithmetic of the original model, float64 only if its outputs are that exact.
    advice
        Next step if both differ.
    has_column_names
        True if the columns of the model have names.
    integers
        Columns that take whole numbers only.
    """

    trace: Trace
    run: Callable[[pd.DataFrame], Array]
    precision: Precision
    advice: str
    has_column_names: bool = False
    integers: frozenset[str] = frozenset()

    def model(self) -> Model:
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

        output = Output(trace.title, self.form)
        return Model.imported(
            network,
            schema,
            None,
            lambda frame: output.classes(self._outputs(frame), len(frame)),
            columns=tuple(trace.titles),
            has_column_names=self.has_column_names,
            probabilities=lambda frame: output.probabilities(self._outputs(frame), len(frame)),
        )

    @property
    def form(self) -> Form:
        """Form of the outputs."""
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
        """Run the original model."""
        trace = self.trace
        cells: dict[str, Any] = dict(trace.table(frame))
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
                f"{values[odd[0]]}. Describe the column with step=1 and its range"
            )
        return values

    def _compared(self, network: Network, rows: Array, table: pd.DataFrame) -> Precision:
        """Compare the outputs of both, and return the arithmetic of the original model."""
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


# -- meaning of outputs ------------------------------------------------------------------------------


def predicted(logits: Array) -> npt.NDArray[np.int64]:
    """Return the class of each row of logits, as :meth:`Network.predict` decides it."""
    if logits.shape[1] == 1:
        return (logits[:, 0] >= 0.0).astype(np.int64)
    return np.asarray(logits.argmax(axis=1), dtype=np.int64)


def gap(logits: Array) -> Array:
    """Return how far the logits of each row are from another class."""
    if logits.shape[1] == 1:
        return np.abs(logits[:, 0])
    top = np.sort(logits, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def _log_softmax(logits: Array) -> Array:
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def _sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))


_FORMS: dict[Form, Callable[[Array], Array]] = {
    "logits": lambda z: z,
    "sigmoid": _sigmoid,
    "softmax": lambda z: np.exp(_log_softmax(z)),
    "log_softmax": _log_softmax,
    "both probabilities": lambda z: np.hstack([1.0 - _sigmoid(z), _sigmoid(z)]),
    "both scores": lambda z: np.hstack([-z, z]),
}
_ONE: tuple[Form, ...] = ("logits", "sigmoid", "both probabilities", "both scores")
_SEVERAL: tuple[Form, ...] = ("logits", "softmax", "log_softmax")


def form_of(
    network: Network,
    X: Array,
    outputs: npt.ArrayLike,
    arithmetic: Precision = "float64",
    first: Form = "logits",
) -> Form | None:
    """Find the function of the logits that ``outputs`` of the original model on ``X`` are.

    None means that the network does not compute them. If several forms fit, as sigmoid and softmax do
    on rows with large logits alone, ``first`` is preferred.
    """
    tolerance = allowance(network, X, arithmetic)
    # Functions of the logits round once more, and their values are near 1.
    slack = 2.0 * tolerance + _ROUNDING[arithmetic] * 0.1
    return _matching(
        np.asarray(outputs, dtype=np.float64),
        network.logits(X),
        lambda form, _: tolerance if form in ("logits", "both scores") else slack,
        first,
    )


def _matching(
    Y: Array, logits: Array, bound: Callable[[Form, Array], Array], first: Form = "logits"
) -> Form | None:
    """Find the form of the logits that ``Y`` is, up to a bound on the error of each number."""
    forms = _ONE if logits.shape[1] == 1 else _SEVERAL
    for form in sorted(forms, key=lambda form: form != first):
        expected = _FORMS[form](logits)
        flat = expected.shape[1] == 1 and Y.shape == expected.shape[:1]
        if Y.shape == expected.shape or flat:
            error = np.abs(Y.reshape(expected.shape) - expected)
            if bool((error <= bound(form, expected)).all()):
                return form
    return None


@dataclass(frozen=True, eq=False)
class Output:
    """An output of the original model.

    Attributes
    ----------
    name
        Its name in the model.
    kind
        A form of the logits, ``label``, or ``shares``: other numbers, one for each class, that add
        up to one and are the largest for the class of the logits.
    labels
        The names of the classes, if it names them.
    """

    name: str
    kind: Form | Literal["label", "shares"]
    labels: tuple[Any, ...] = ()

    @property
    def is_label(self) -> bool:
        """True if it is the class."""
        return self.kind == "label"

    @property
    def has_probabilities(self) -> bool:
        """True if the probabilities of the classes follow from it."""
        return self.kind not in ("label", "shares", "both scores")

    def classes(self, value: Any, count: int) -> npt.NDArray[np.int64]:
        """Return the number of the class of each row, for numbers of this kind."""
        P = np.asarray(value, dtype=np.float64).reshape(count, -1)
        if P.shape[1] > 1:
            return np.asarray(P.argmax(axis=1), dtype=np.int64)
        return (P[:, 0] >= (0.5 if self.kind == "sigmoid" else 0.0)).astype(np.int64)

    def probabilities(self, value: Any, count: int) -> Array:
        """Return the probability of each class for ``count`` rows."""
        P = np.asarray(value, dtype=np.float64).reshape(count, -1)
        if self.kind == "log_softmax":
            return np.asarray(np.exp(P))
        if P.shape[1] == 1:
            one = P if self.kind == "sigmoid" else _sigmoid(P)
            return np.hstack([1.0 - one, one])
        return _FORMS["softmax"](P) if self.kind == "logits" else P

    def agrees(self, value: Any, logits: Array, error: Array) -> bool:
        """Return True if ``value`` is this output of rows with such logits, up to an error in them."""
        if self.kind == "label" or self.kind == "shares":  # noqa: PLR1714  (for the type checker)
            clear, expected_classes = gap(logits) > 4.0 * error[:, 0], predicted(logits)
            if self.kind == "shares":
                found = self.classes(value, len(logits))
                return bool((found == expected_classes)[clear].all())
            expected_labels = [self.labels[i] for i in expected_classes]
            rows = zip(np.ravel(value).tolist(), expected_labels, clear, strict=True)
            return all(a == b for a, b, is_clear in rows if is_clear)
        expected = _FORMS[self.kind](logits)
        array = np.asarray(value, dtype=np.float64)
        if array.size != expected.size:
            return False
        array = array.reshape(expected.shape)
        if self.kind == "log_softmax":
            # The logarithm of a rounded probability may be anything, even minus infinity.
            array, expected = np.exp(array), np.exp(expected)
        return bool((np.abs(array - expected) <= 2.0 * error + _CLOSE).all())


def chosen_logits(outputs: int) -> Array:
    """Rows of logits of all sizes, some of them very near the point where the class changes."""
    rng = np.random.default_rng(0)
    gaps = 10.0 ** rng.uniform(-5.0, 1.0, size=_ROWS) * rng.choice([-1.0, 1.0], size=_ROWS)
    if outputs == 1:
        return np.asarray(gaps[:, None])
    Z = rng.standard_normal((_ROWS + 2 * outputs, outputs)) * rng.uniform(
        0.1, 3.0, size=(_ROWS + 2 * outputs, 1)
    )
    first = np.arange(len(Z)) % outputs  # each class wins somewhere, narrowly or clearly
    second = (first + 1 + rng.integers(outputs - 1, size=len(Z))) % outputs
    rows, top = np.arange(len(Z)), Z.max(axis=1)
    Z[rows, second] = top
    Z[rows, first] = top + np.abs(np.resize(gaps, len(Z)))
    return Z


def understood(
    path: Path, name: str, value: npt.NDArray[Any], labels: list[Any] | None, logits: Array
) -> Output:
    """Find the kind of an output from its ``value`` on ``logits``, or refuse the graph."""
    if labels is not None and (len(labels) != max(2, logits.shape[1]) or not _rising(labels)):
        raise _refused(path, name, f"names the classes {labels[:20]}, not in rising order")
    if value.dtype.kind == "f":
        form = _matching(value, logits, lambda _, expected: _CLOSE * (1.0 + np.abs(expected)))
        if form is not None:
            return Output(name, form, tuple(labels or ()))
        if _are_shares(value, logits):
            return Output(name, "shares", tuple(labels or ()))
    if value.shape in ((len(logits),), (len(logits), 1)):
        found = _labels(np.ravel(value).tolist(), predicted(logits))
        if found is not None:
            return Output(name, "label", tuple(found))
    raise _refused(
        path, name, "is neither the logits nor their sigmoid or softmax nor the class they decide"
    )


def _are_shares(value: npt.NDArray[Any], logits: Array) -> bool:
    """Return True for numbers of each class that add up to 1 and decide as the logits do."""
    fits = value.shape == logits.shape and logits.shape[1] > 1
    return (
        fits
        and bool(np.all((value >= 0.0) & (np.abs(value.sum(axis=1, keepdims=True) - 1.0) < 1e-4)))
        and bool((value.argmax(axis=1) == predicted(logits))[gap(logits) > 1e-4].all())
    )


def _labels(values: list[Any], classes: npt.NDArray[np.int64]) -> list[Any] | None:
    """Return the label of each class, if the values are labels in the order of the classes."""
    table: dict[int, Any] = {}
    for value, number in zip(values, classes.tolist(), strict=True):
        if table.setdefault(number, value) != value:
            return None
    labels = [table[number] for number in sorted(table)]
    return labels if _rising(labels) else None


def _rising(labels: list[Any]) -> bool:
    return all(a < b for a, b in itertools.pairwise(labels))


def _refused(path: Path, name: str, why: str) -> ModelNotSupportedError:
    return ModelNotSupportedError(
        f"{path.name}: output {name!r} {why} (another threshold, classes in another order, a "
        f"rescaled probability?); {SCORES}"
    )


def allowance(network: Network, X: Array, arithmetic: Precision) -> Array:
    """Return how far rounding may move the logits of each row, shape (n, 1)."""
    return _ROUNDING[arithmetic] * _magnitude(network, X)


def _magnitude(network: Network, X: Array) -> Array:
    """Sum of the absolute values of all terms behind each row's logits, shape (n, 1)."""
    m = network.input_transform.size(X)
    for layer in network.layers:
        m = m @ np.abs(layer.W).T + np.abs(layer.bias)
    largest: Array = m.max(axis=1, keepdims=True)
    return largest
