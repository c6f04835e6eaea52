"""Operators of ONNX on numpy arrays: one small function each.

They evaluate what is constant in a graph, the shapes that it computes, and what it does behind its
logits. Rows are never run through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Values = npt.NDArray[Any]
Attributes = dict[str, Any]

_FLOATS = {1: np.float32, 11: np.float64}  # FLOAT, DOUBLE
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_BOOL = 9


class UnknownError(Exception):
    """The operator is not known, or not in this form."""


@dataclass(frozen=True)
class Call:
    """One node: its attributes and inputs (None where one is left out)."""

    attributes: Attributes
    inputs: list[Values | None]
    opset: int

    def __getitem__(self, i: int) -> Values:
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise UnknownError("an input is missing")
        return value

    def get(self, i: int) -> Values | None:
        """Input ``i``, or None where it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute."""
        return self.attributes.get(name, default)

    def axes(self, at: int = 1) -> tuple[int, ...] | None:
        """Axes: an attribute in old graphs, an input in new ones."""
        value = self.get(at)
        axes = self.attribute("axes", None) if value is None else value
        return None if axes is None else tuple(int(axis) for axis in np.ravel(axes))


def apply(op: str, domain: str, call: Call) -> list[Any]:
    """Return the outputs of an operator, or raise UnknownError."""
    table = _ML if domain == "ai.onnx.ml" else OPERATORS if domain in ("", "ai.onnx") else {}
    if op not in table:
        raise UnknownError(op)
    if op != "Identity" and any(isinstance(value, Named) for value in call.inputs):
        raise UnknownError("values by the names of their classes")
    result = table[op](call)
    return result if isinstance(result, list) else [result]


def _elementwise(function: Callable[..., Any]) -> Callable[[Call], Values]:
    def evaluate(call: Call) -> Values:
        values = [call[i] for i in range(len(call.inputs))]
        with np.errstate(all="ignore"):
            return np.asarray(function(*values))

    return evaluate


def _divided(a: Values, b: Values) -> Values:
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.asarray(np.trunc(np.divide(a, b))).astype(np.int64)
    return np.asarray(np.divide(a, b))


def _sigmoid(z: Values) -> Values:
    return np.asarray(1.0 / (1.0 + np.exp(-z)))


def _log_softmax(call: Call) -> Values:
    z = call[0]
    # Up to opset 12 all axes from this one on were taken together.
    axis = int(call.attribute("axis", -1 if call.opset >= 13 else 1))
    if call.opset < 13 and axis not in (-1, z.ndim - 1):
        raise UnknownError("softmax over several axes")
    return np.asarray(z - np.logaddexp.reduce(z, axis=axis, keepdims=True))


def _cast(call: Call) -> Values:
    to, value = int(call.attribute("to", 0)), call[0]
    if value.dtype.kind not in "fiub":
        raise UnknownError("cast of text")
    if to in _FLOATS:
        return np.asarray(value.astype(_FLOATS[to]))
    if to in _INTEGERS:
        return (
            np.trunc(value).astype(np.int64) if value.dtype.kind == "f" else value.astype(np.int64)
        )
    if to == _BOOL:
        return value.astype(np.bool_)
    raise UnknownError("cast to text or a rare type")


def _reshape(call: Call) -> Values:
    sizes = [int(size) for size in np.ravel(call[1])]
    if not call.attribute("allowzero", 0):  # a size of 0 keeps that of the input
        sizes = [call[0].shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return call[0].reshape(sizes)


def _flatten(call: Call) -> Values:
    axis = int(call.attribute("axis", 1))
    shape = call[0].shape
    axis += len(shape) if axis < 0 else 0
    return call[0].reshape(int(np.prod(shape[:axis], dtype=np.int64)), -1)


def _concat(call: Call) -> Values:
    values = [call[i] for i in range(len(call.inputs))]
    return np.concatenate(values, axis=int(call.attribute("axis", 0)))


def _gather(call: Call) -> Values:
    value, index, axis = call[0], call[1], int(call.attribute("axis", 0))
    return np.asarray(np.take(value, index.astype(np.int64), axis=axis))


def _feature(call: Call) -> Values:
    value, index = call[0], np.ravel(call[1]).astype(np.int64)
    picked = np.take(value, index, axis=-1)
    return np.asarray(picked[None, :] if picked.ndim == 1 else picked)


def _slice(call: Call) -> Values:
    def given(i: int, name: str) -> list[int] | None:
        value = call.get(i)
        value = call.attribute(name, None) if value is None else value
        return None if value is None else [int(n) for n in np.ravel(value)]

    starts, ends = given(1, "starts"), given(2, "ends")
    if starts is None or ends is None:
        raise UnknownError("slice without ends")
    axes = given(3, "axes") or list(range(len(starts)))
    steps = given(4, "steps") or [1] * len(starts)
    parts = [slice(None)] * call[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1:
            raise UnknownError("slice backwards")
        parts[axis] = slice(start, end, step)
    return call[0][tuple(parts)]


def _reduced(function: Callable[..., Any]) -> Callable[[Call], Values]:
    def evaluate(call: Call) -> Values:
        return np.asarray(
            function(call[0], axis=call.axes(), keepdims=bool(call.attribute("keepdims", 1)))
        )

    return evaluate


def _arg(function: Callable[..., Any]) -> Callable[[Call], Values]:
    def evaluate(call: Call) -> Values:
        if call.attribute("select_last_index", 0):
            raise UnknownError("the last of equal values")
        axis, keep = int(call.attribute("axis", 0)), bool(call.attribute("keepdims", 1))
        return np.asarray(function(call[0], axis=axis, keepdims=keep))

    return evaluate


def _top(call: Call) -> list[Values]:
    count, axis = int(np.ravel(call[1])[0]), int(call.attribute("axis", -1))
    sign = -1.0 if call.attribute("largest", 1) else 1.0
    order = np.argsort(sign * call[0], axis=axis, kind="stable")
    order = np.take(order, range(min(count, order.shape[axis])), axis=axis)
    return [np.take_along_axis(call[0], order, axis=axis), order]


def _clip(call: Call) -> Values:
    low = call.attribute("min", None) if call.get(1) is None else np.ravel(call[1])[0]
    high = call.attribute("max", None) if call.get(2) is None else np.ravel(call[2])[0]
    return np.asarray(
        np.clip(call[0], -np.inf if low is None else low, np.inf if high is None else high)
    )


def _unsqueeze(call: Call) -> Values:
    return np.expand_dims(call[0], call.axes() or ())


def _transpose(call: Call) -> Values:
    return np.transpose(call[0], call.attribute("perm", None))


def _normalizer(call: Call) -> Values:
    norm = call.attribute("norm", b"MAX")
    value = np.abs(call[0])
    size = {
        b"MAX": lambda: value.max(axis=-1, keepdims=True),
        b"L1": lambda: value.sum(axis=-1, keepdims=True),
        b"L2": lambda: np.sqrt((value**2).sum(axis=-1, keepdims=True)),
    }
    if norm not in size:
        raise UnknownError("an unknown norm")
    divisor = size[norm]()
    return np.asarray(call[0] / np.where(divisor == 0.0, 1.0, divisor))


def _label_encoder(call: Call) -> Values:
    def listed(part: str) -> list[Any] | None:
        for kind in ("int64s", "strings", "floats"):
            if (value := call.attribute(f"{part}_{kind}", None)) is not None:
                return [v.decode() if isinstance(v, bytes) else v for v in value]
        return None

    keys, values = listed("keys"), listed("values")
    if keys is None or values is None or len(keys) != len(values):
        raise UnknownError("labels that are not listed")
    table = dict(zip(keys, values, strict=True))
    try:
        found = [table[value] for value in np.ravel(call[0]).tolist()]
    except KeyError:
        raise UnknownError("a label without a name") from None
    return np.asarray(found).reshape(call[0].shape)


@dataclass(frozen=True)
class Named:
    """What a ZipMap makes: for each row the values of the columns by the name of their class."""

    labels: list[Any]
    values: Values


def _zip_map(call: Call) -> list[Any]:
    labels = call.attribute("classlabels_int64s", None) or call.attribute("classlabels_strings", [])
    return [Named([v.decode() if isinstance(v, bytes) else v for v in labels], call[0])]


OPERATORS: dict[str, Callable[[Call], Any]] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _elementwise(_divided),
    "Equal": _elementwise(np.equal),
    "Exp": _elementwise(np.exp),
    "Flatten": _flatten,
    "Gather": _gather,
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": lambda call: call[0],
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Log": _elementwise(np.log),
    "LogSoftmax": _log_softmax,
    "Max": _elementwise(lambda *values: np.maximum.reduce(np.broadcast_arrays(*values))),
    "Min": _elementwise(lambda *values: np.minimum.reduce(np.broadcast_arrays(*values))),
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "ReduceL1": _reduced(lambda value, **how: np.abs(value).sum(**how)),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceSum": _reduced(np.sum),
    "Reshape": _reshape,
    "Sigmoid": _elementwise(_sigmoid),
    "Slice": _slice,
    "Softmax": lambda call: np.exp(_log_softmax(call)),
    "Sqrt": _elementwise(np.sqrt),
    "Squeeze": lambda call: np.squeeze(call[0], call.axes()),
    "Sub": _elementwise(np.subtract),
    "TopK": _top,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(np.where),
}
_ML: dict[str, Callable[[Call], Any]] = {
    "ArrayFeatureExtractor": _feature,
    "LabelEncoder": _label_encoder,
    "Normalizer": _normalizer,
    "ZipMap": _zip_map,
}
#: What may come behind the logits, by name.
KNOWN = frozenset(OPERATORS) | frozenset(_ML)
