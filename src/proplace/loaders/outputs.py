"""What the outputs of an ONNX graph say, in terms of the logits that were found in it.

Behind its logits a graph may compute probabilities, labels, names of classes. Read carelessly, ``1
- sigmoid(z)`` swaps the classes and ``sigmoid(z) > 0.7`` moves the threshold. So that part of the
graph is run on chosen logits, near the threshold and far from it, and each output must then be one
of the forms below.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders.verify import probabilities_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proplace.core.network import Array

_ROWS = 192
SCORES = (
    "export the model with its logits as the only output (skl2onnx: to_onnx(pipe, table[:1], "
    "options={id(classifier): {'raw_scores': True}})), or give the original model to Model.of"
)
_CLOSE = 1e-6  # what float32 constants in the graph may change a probability by

Form = Literal["logits", "sigmoid", "softmax", "log_softmax", "both probabilities", "both scores"]


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


def predicted(logits: Array) -> npt.NDArray[np.int64]:
    """Class of each row of logits, as :meth:`Network.predict` decides it."""
    if logits.shape[1] == 1:
        return (logits[:, 0] >= 0.0).astype(np.int64)
    return np.asarray(logits.argmax(axis=1), dtype=np.int64)


def _log_softmax(logits: Array) -> Array:
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def _sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))


_FORMS: dict[Form, Callable[[Array], Array]] = {
    "logits": lambda z: z,
    "sigmoid": _sigmoid,
    "both probabilities": lambda z: np.hstack([1.0 - _sigmoid(z), _sigmoid(z)]),
    "both scores": lambda z: np.hstack([-z, z]),
    "softmax": lambda z: np.exp(_log_softmax(z)),
    "log_softmax": _log_softmax,
}
_ONE: tuple[Form, ...] = ("logits", "sigmoid", "both probabilities", "both scores")
_SEVERAL: tuple[Form, ...] = ("logits", "softmax", "log_softmax")


@dataclass(frozen=True, eq=False)
class Output:
    """An output of the graph that was understood.

    Attributes
    ----------
    name
        Its name in the graph.
    kind
        A form of the logits, ``label``, or ``shares``: other numbers, one for each class, that add
        up to one and are the largest for the class of the logits.
    labels
        The names of the classes, where it says them.
    """

    name: str
    kind: Form | Literal["label", "shares"]
    labels: list[Any]

    @property
    def is_label(self) -> bool:
        """True if it says the class itself."""
        return self.kind == "label"

    @property
    def has_probabilities(self) -> bool:
        """True if it says the probabilities of the classes."""
        return self.kind not in ("label", "shares", "both scores")

    @property
    def _form(self) -> Callable[[Array], Array] | None:
        return next((form for name, form in _FORMS.items() if name == self.kind), None)

    def classes(self, value: Any, count: int) -> npt.NDArray[np.int64]:
        """Number of the class of each row, by numbers of this kind."""
        P = np.asarray(value, dtype=np.float64).reshape(count, -1)
        if P.shape[1] > 1:
            return np.asarray(P.argmax(axis=1), dtype=np.int64)
        return (P[:, 0] >= (0.5 if self.kind == "sigmoid" else 0.0)).astype(np.int64)

    def probabilities(self, value: Any, count: int) -> Array:
        """Probability of each class for ``count`` rows."""
        P = np.asarray(value, dtype=np.float64).reshape(count, -1)
        return P if self.kind == "both probabilities" else probabilities_of(P, self.kind)  # type: ignore[arg-type]

    def agrees(self, value: Any, logits: Array, error: Array) -> bool:
        """Return True if ``value`` is this output of rows with such logits, up to an error in them."""
        form = self._form
        if form is None:
            top = np.sort(logits, axis=1)
            gap = np.abs(top[:, 0]) if logits.shape[1] == 1 else top[:, -1] - top[:, -2]
            clear = gap > 4.0 * error[:, 0]
            ours = predicted(logits)
            if self.kind == "shares":
                return bool((self.classes(value, len(logits)) == ours)[clear].all())
            wanted = [self.labels[i] for i in ours]
            said = np.ravel(value).tolist()
            return all(a == b for a, b, c in zip(said, wanted, clear, strict=True) if c)
        expected = form(logits)
        array = np.asarray(value, dtype=np.float64)
        if array.size != expected.size:
            return False
        array = array.reshape(expected.shape)
        if self.kind == "log_softmax":
            # The logarithm of a rounded probability may be anything, even minus infinity.
            array, expected = np.exp(array), np.exp(expected)
        return bool((np.abs(array - expected) <= 2.0 * error + _CLOSE).all())


def understood(
    path: Path, name: str, value: npt.NDArray[Any], labels: list[Any] | None, logits: Array
) -> Output:
    """Say what an output is, given its ``value`` on ``logits``, or refuse the graph."""
    if labels is not None and (len(labels) != max(2, logits.shape[1]) or not _rising(labels)):
        raise _refused(path, name, f"names the classes {labels[:20]}, not in rising order")
    if value.dtype.kind == "f":
        for form in _ONE if logits.shape[1] == 1 else _SEVERAL:
            expected = _FORMS[form](logits)
            flat = expected.shape[1] == 1 and value.shape == expected.shape[:1]
            if (value.shape == expected.shape or flat) and np.all(
                np.abs(value.reshape(expected.shape) - expected)
                <= _CLOSE * (1.0 + np.abs(expected))
            ):
                return Output(name, form, labels or [])
        if _are_shares(value, logits):
            return Output(name, "shares", labels or [])
    if value.shape in ((len(logits),), (len(logits), 1)):
        found = _labels(np.ravel(value).tolist(), predicted(logits))
        if found is not None:
            return Output(name, "label", found)
    raise _refused(
        path, name, "is neither the logits nor their sigmoid or softmax nor the class they decide"
    )


def _are_shares(value: npt.NDArray[Any], logits: Array) -> bool:
    """Return True for numbers of each class that add up to 1 and decide as the logits do."""
    fits = value.shape == logits.shape and logits.shape[1] > 1
    return (
        fits
        and bool(np.all((value >= 0.0) & (np.abs(value.sum(axis=1, keepdims=True) - 1.0) < 1e-4)))
        and bool((value.argmax(axis=1) == predicted(logits))[_clear(logits)].all())
    )


def _clear(logits: Array) -> npt.NDArray[np.bool_]:
    """Rows that rounding to float32 cannot decide."""
    top = np.sort(logits, axis=1)
    return np.asarray(top[:, -1] - top[:, -2] > 1e-4)


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
