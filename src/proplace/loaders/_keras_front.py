"""What a Keras model does to a table, layer by layer: first to its columns, then to the network.

In front of the first Dense layer the values of a layer are columns on their way (see
:mod:`proplace.loaders._flow`), in the shape of one row; behind it they are what the
:class:`~proplace.loaders._chain.Chain` holds. The number of a category, which a lookup gives or which
an input takes as it is, is followed as :class:`Index` until it is written in 0/1 columns, embedded, or
taken for a number after all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.loaders._chain import Chain, per_column
from proplace.loaders._flow import Flow, Mixture, Single
from proplace.loaders._keras_file import LOOKUPS
from proplace.loaders._keras_inputs import Lookup, Port, check_labels
from proplace.loaders._keras_settings import (
    ACTIVATIONS,
    FLOATS,
    SKIPPED,
    Settings,
    activation_refusal,
    joins,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Array
    from proplace.loaders._chain import Activation
    from proplace.loaders._flow import Flowing
    from proplace.loaders._keras_file import FileLayer, FileModel

# Operations of keras.ops, by what they are called as activations.
_FUNCTIONS = {
    "Identity": "linear",
    "LogSoftmax": "log_softmax",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}
_FINAL: dict[str, Activation] = {
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
}


@dataclass(frozen=True)
class Index:
    """The number that stands for a category: ``codes[n]`` for its label ``n``."""

    feature: str
    codes: tuple[int, ...]


Cells = npt.NDArray[Any]  # of Flowing or Index, in the shape of one row


class _Trained:
    """The values of a layer behind the first Dense layer."""


class Reading:
    """What was read of a model.

    Attributes
    ----------
    flow, columns
        What happens to the table in front of the first Dense layer, and the columns that enter it.
    chain
        The layers from there on.
    ports, titles
        The inputs of the model, and the columns of the table that each of them takes.
    """

    def __init__(self, file: FileModel, epsilon: float) -> None:
        self.file = file
        self.epsilon = epsilon  # what Keras never divides by less than
        self.flow = Flow()
        self.chain = Chain("Dense")
        self.columns: list[Flowing] = []
        inputs = [node.layer for node in file.nodes if not node.sources]
        self.ports = [Port.of(layer) for layer in inputs]
        self.titles = _titles(self.ports)
        self._end = _Trained()
        self._read()

    @property
    def has_column_names(self) -> bool:
        """Whether the model has names for its columns."""
        return len(self.ports) > 1

    @property
    def all_titles(self) -> list[str]:
        """All columns of the table."""
        return [title for titles in self.titles for title in titles]

    def _read(self) -> None:
        if len(self.file.outputs) != 1:
            raise ModelNotSupportedError(
                f"model {self.file.name!r} has {len(self.ports)} inputs and "
                f"{len(self.file.outputs)} outputs; it must have one output"
            )
        values: list[Cells | _Trained] = []
        ports = iter(zip(self.ports, self.titles, strict=True))
        for node in self.file.nodes:
            if node.sources:
                value = self._value(node.layer, [values[i] for i in node.sources])
            else:
                port, titles = next(ports)
                value = _cells([self.flow.column(title) for title in titles], port.shape)
            values.append(value)
        if not self.columns:
            raise ModelNotSupportedError("the model has no Dense layer")
        if values[self.file.outputs[0]] is not self._end:
            raise ModelNotSupportedError(
                f"model {self.file.name!r} gives out values from before its last layer; its output "
                "must be that of the last layer"
            )
        self._check_columns()

    def _check_columns(self) -> None:
        """Refuse text that is no category."""
        sources, used = self.flow.sources, set(self.flow.used(self.columns))
        for port, titles in zip(self.ports, self.titles, strict=True):
            for source in (sources[title] for title in titles):
                text = source.labels is not None and isinstance(source.labels[0], str)
                if text != (port.dtype == "string") and source.name in used:
                    raise ModelNotSupportedError(
                        f"the model takes column {source.name!r} as {port.dtype} and uses it as "
                        f"{'text' if text else 'a number'}; give a column of text a StringLookup"
                    )

    def _value(self, layer: FileLayer, values: list[Cells | _Trained]) -> Cells | _Trained:
        front = [value for value in values if not isinstance(value, _Trained)]
        if len(front) == len(values) and _is(layer, "Concatenate"):
            return _concatenate(layer, front)
        if len(values) != 1:
            raise joins(layer.where, layer.kind, len(values))
        if front:
            handler = (_OPERATIONS_IN_FRONT if layer.operation else _FRONT).get(layer.kind)
            if handler is not None:
                return handler(self, layer, front[0])
            if not _is(layer, "Dense"):
                self._behind(layer)  # which says why it cannot stand here, unless it does nothing
                return front[0]
            self._start(layer, front[0])
        elif values[0] is not self._end:
            raise ModelNotSupportedError(
                f"{layer.where} takes values that another layer takes too; behind the first Dense "
                "layer each layer must feed exactly the next. Train the model without that branch"
            )
        self._behind(layer)
        self._end = _Trained()
        return self._end

    # -- in front ------------------------------------------------------------------------------

    def _start(self, layer: FileLayer, cells: Cells) -> None:
        """Take the columns that enter the first Dense layer."""
        if cells.ndim != 1:
            raise ModelNotSupportedError(
                f"{layer.where} acts on values of shape {(None, *cells.shape)}; put a Flatten layer "
                "in front of it"
            )
        if self.columns:
            raise ModelNotSupportedError(
                f"{layer.where} is a second Dense layer that takes columns of the table; all columns "
                "must enter the first one. Join them by Concatenate in front of it"
            )
        if layer.weights[0].shape[0] != len(cells):
            raise ModelFileError(
                f"{layer.where} takes {layer.weights[0].shape[0]} inputs but is given {len(cells)}; "
                "save the model again"
            )
        self.columns = [_number(cell) for cell in cells]

    def indices(self, layer: FileLayer, cells: Cells, count: int, first: int = 0) -> list[Index]:
        """Return cells as categories; a plain column has the labels ``first`` to ``count - 1``."""
        found = []
        for cell in cells.flat:
            if isinstance(cell, Index):
                if max(cell.codes) >= count:
                    raise ModelNotSupportedError(
                        f"{layer.where} knows the numbers below {count}, but column "
                        f"{cell.feature!r} has categories up to number {max(cell.codes)}; raise its "
                        "size and train the model again"
                    )
                found.append(cell)
                continue
            check_labels(layer.where, count)
            codes = tuple(range(first, count))
            found.append(Index(self.flow.labels(layer.where, cell, codes, ordered=False), codes))
        return found

    # -- behind --------------------------------------------------------------------------------

    def _behind(self, layer: FileLayer) -> None:
        handlers = _OPERATIONS_BEHIND if layer.operation else _BEHIND
        if layer.kind not in handlers:
            raise refusal(layer.where, layer.kind)
        handlers[layer.kind](self, layer)

    def activate(self, where: str, name: str) -> None:
        """Take an activation by its name."""
        if name == "relu":
            self.chain.relu(where)
        elif name in _FINAL:
            self.chain.finish(where, _FINAL[name])


def _titles(ports: list[Port]) -> list[list[str]]:
    """Names of the columns of each input."""
    if len(ports) == 1:
        return [[f"x{i}" for i in range(ports[0].width)]]
    found = [
        [port.name] if port.width == 1 else [f"{port.name}_{i}" for i in range(port.width)]
        for port in ports
    ]
    seen: set[str] = set()
    for title in (title for titles in found for title in titles):
        if title in seen:
            raise ModelNotSupportedError(
                f"two columns of the model would be called {title!r}; give its inputs other names"
            )
        seen.add(title)
    return found


def _is(layer: FileLayer, kind: str) -> bool:
    return layer.kind == kind and not layer.operation


def _cells(cells: list[Any], shape: tuple[int, ...]) -> Cells:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array.reshape(shape)


def _number(cell: Flowing | Index) -> Flowing:
    """Take the number of a category for what it is."""
    if not isinstance(cell, Index):
        return cell
    terms = ((float(code), Single(cell.feature, n)) for n, code in enumerate(cell.codes) if code)
    return Mixture(tuple(terms))


# -- layers in front of the first Dense layer --------------------------------------------------


def _concatenate(layer: FileLayer, values: list[Cells]) -> Cells:
    axis = Settings(layer.where, layer.settings).axis("axis", -1)
    if not isinstance(axis, int) or axis == 0:
        raise ModelNotSupportedError(f"{layer.where} joins rows (axis={axis}), not columns")
    try:
        return np.concatenate(values, axis=axis - 1 if axis > 0 else axis)
    except ValueError as error:
        raise ModelFileError(f"{layer.where} joins values that do not fit: {error}") from None


def _reshape(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    shape = Settings(layer.where, layer.settings).sizes("target_shape")
    try:
        return cells.reshape(shape)
    except ValueError as error:
        raise ModelFileError(f"{layer.where} does not fit its values: {error}") from None


def _flatten(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    return cells.reshape(-1)


def _moved(
    layer: FileLayer, cells: Cells, move: Callable[[Flowing, float, float], Flowing], *parts: Any
) -> Cells:
    """Move and scale each cell by its own pair of numbers, of which one may stand for all."""
    try:
        pairs = [np.broadcast_to(per_column(part), cells.shape).reshape(-1) for part in parts]
    except ValueError:
        raise ModelFileError(
            f"{layer.where} has {[np.shape(part) for part in parts]} numbers for values of shape "
            f"{cells.shape}"
        ) from None
    if not all(np.isfinite(pair).all() for pair in pairs) or (
        move is _scaled and not pairs[1].all()
    ):
        raise ModelNotSupportedError(
            f"{layer.where} divides by zero, or holds infinite or missing numbers; adapt or train it "
            "on a table without them"
        )
    moved = [
        move(_number(cell), float(a), float(b))
        for cell, a, b in zip(cells.flat, *pairs, strict=True)
    ]
    return _cells(moved, cells.shape)


def _scaled(column: Flowing, offset: float, scale: float) -> Flowing:
    """``(v - offset) / scale``."""
    return column.then(offset, scale)


def _times(column: Flowing, factor: float, shift: float) -> Flowing:
    """``factor * v + shift``."""
    if factor == 0.0:
        return Mixture((), shift)
    if (factor, shift) == (1.0, 0.0):
        return column
    return column.then(-shift / factor, 1.0 / factor)


def _rescaling(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    return _moved(layer, cells, _times, *_rescaling_of(layer))


def _rescaling_of(layer: FileLayer) -> tuple[Array, Array]:
    settings = Settings(layer.where, layer.settings)
    scale, offset = settings.numbers("scale"), settings.numbers("offset")
    if scale is None:
        raise ModelFileError(f"{layer.where} has no scale; save the model again")
    return scale, np.zeros(()) if offset is None else offset


def _normalization(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    mean, deviation, invert = _normalization_of(reading, layer)
    if invert:
        return _moved(layer, cells, _times, deviation, mean)
    return _moved(layer, cells, _scaled, mean, deviation)


def _normalization_of(reading: Reading, layer: FileLayer) -> tuple[Array, Array, bool]:
    settings = Settings(layer.where, layer.settings)
    axis = settings.axis("axis", -1)
    if axis not in (None, -1, 1, (), (-1,), (1,)):
        raise ModelNotSupportedError(f"{layer.where} has axis={axis}; only axis=-1 or None is read")
    mean, variance = settings.numbers("mean"), settings.numbers("variance")
    if mean is None and variance is None and len(layer.weights) == 3:
        mean, variance = layer.weights[:2]
    if mean is None or variance is None:
        raise ModelNotSupportedError(
            f"{layer.where} is not adapted; call adapt() with the training rows"
        )
    # Keras divides by the standard deviation, but never by less than its epsilon.
    spread = np.maximum(np.sqrt(per_column(variance)), reading.epsilon)
    return per_column(mean), spread, settings.flag("invert", False)


def _batch_norm(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    mean, deviation, factor, shift = _batch_norm_of(layer, cells.ndim)
    return _moved(layer, _moved(layer, cells, _scaled, mean, deviation), _times, factor, shift)


def _batch_norm_of(layer: FileLayer, dimensions: int = 1) -> tuple[Array, Array, Array, Array]:
    """Mean, deviation, factor and shift: ``(h - mean) / deviation * factor + shift``."""
    settings = Settings(layer.where, layer.settings)
    axis = settings.axis("axis", -1)
    if axis not in (-1, dimensions, (-1,), (dimensions,)):
        raise ModelNotSupportedError(f"{layer.where} has axis={axis}; only axis=-1 is read")
    scale, center = settings.flag("scale", True), settings.flag("center", True)
    if len(layer.weights) != 2 + scale + center:
        raise ModelNotSupportedError(f"{layer.where} has {len(layer.weights)} arrays of weights")
    weights = [np.asarray(array, dtype=np.float64) for array in layer.weights]
    factor = weights.pop(0) if scale else np.ones(())
    shift = weights.pop(0) if center else np.zeros(())
    mean, variance = weights
    return mean, np.sqrt(variance + (settings.number("epsilon") or 0.0)), factor, shift


def _lookup(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    lookup = Lookup.of(layer)
    names = [
        reading.flow.labels(layer.where, cell, lookup.labels, ordered=False) for cell in cells.flat
    ]
    found = _cells([Index(name, lookup.codes) for name in names], cells.shape)
    if lookup.mode == "int":
        return found
    return _hot(layer, found, lookup.depth, lookup.mode)


def _category_encoding(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    settings = Settings(layer.where, layer.settings)
    count = settings.whole("num_tokens")
    mode = settings.choice("output_mode", ("one_hot", "multi_hot", "count"), "multi_hot")
    indices = _cells(list(reading.indices(layer, cells, count)), cells.shape)
    return _hot(layer, indices, count, mode)


def _hot(layer: FileLayer, cells: Cells, depth: int, mode: str) -> Cells:
    """Write categories in 0/1 columns."""
    single = cells.ndim > 0 and cells.shape[-1] == 1
    if mode != "one_hot" and not single:
        raise ModelNotSupportedError(
            f"{layer.where} has output_mode={mode!r} for values of shape {(None, *cells.shape)}: it "
            "mixes several columns. Give each column an input of its own, of shape (None, 1)"
        )
    if depth > limits.TABLE_COLUMNS:
        raise ModelFileError(
            f"{layer.where} makes {depth:,} columns; at most {limits.TABLE_COLUMNS:,} are read"
        )
    nothing = Mixture(())
    columns: list[Any] = []
    for cell in cells.flat:
        known = {code: Single(cell.feature, n) for n, code in enumerate(cell.codes)}
        columns += [known.get(code, nothing) for code in range(depth)]
    return _cells(columns, ((*cells.shape[:-1], depth) if single else (*cells.shape, depth)))


def _embedding(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    """Write the vector of each category: a fixed linear map of its 0/1 columns."""
    settings = Settings(layer.where, layer.settings)
    if len(layer.weights) != 1 or layer.weights[0].ndim != 2:
        raise ModelNotSupportedError(f"{layer.where} is no plain table of vectors")
    E = np.asarray(layer.weights[0], dtype=np.float64)
    # Number 0 is then no category, but stands for a missing one.
    first = int(settings.flag("mask_zero", False))
    indices = reading.indices(layer, cells, len(E), first)
    columns = [
        Mixture(
            tuple(
                (float(E[code, j]), Single(index.feature, n)) for n, code in enumerate(index.codes)
            )
        )
        for index in indices
        for j in range(E.shape[1])
    ]
    return _cells(columns, (*cells.shape, E.shape[1]))


def _same(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    return cells


def _cast(reading: Reading, layer: FileLayer, cells: Cells) -> Cells:
    _check_cast(layer)
    return cells


def _check_cast(layer: FileLayer) -> None:
    """Raise where decimals would be cut off."""
    Settings(layer.where, layer.settings).choice("dtype", FLOATS, "float32")


# -- layers behind it --------------------------------------------------------------------------


def _dense(reading: Reading, layer: FileLayer) -> None:
    settings = Settings(layer.where, layer.settings)
    dtype = settings.dtype()  # quantized layers are refused by theirs
    bias = settings.flag("use_bias", True)
    if len(layer.weights) != 1 + bias or layer.weights[0].ndim != 2:
        raise ModelFileError(
            f"{layer.where} has weights of the shapes {[w.shape for w in layer.weights]} ({dtype}); "
            "save the model again"
        )
    W = np.asarray(layer.weights[0], dtype=np.float64).T
    b = np.asarray(layer.weights[1], dtype=np.float64) if bias else None
    activation = _activation_of(layer)
    path = "/".join(layer.path)
    reading.chain.linear(layer.where, W, b, (f"{path}/kernel", f"{path}/bias" if bias else None))
    reading.activate(layer.where, activation)


def _activation(reading: Reading, layer: FileLayer) -> None:
    reading.activate(layer.where, _activation_of(layer))


def _activation_of(layer: FileLayer) -> str:
    """Return the name of a layer's activation."""
    value = layer.settings.get("activation")
    match value:
        case None:
            return "linear"
        case str() if value in ACTIVATIONS:
            return value
        case {"class_name": "ReLU", "module": "keras.layers", "config": dict(inner)}:
            _check_relu(layer.where, Settings(layer.where, inner))
            return "relu"
        case {"class_name": "Softmax", "module": "keras.layers", "config": dict()}:
            return "softmax"
        case {"class_name": kind}:
            raise activation_refusal(layer.where, str(kind)[:200])
    raise activation_refusal(layer.where, str(value)[:200])


def _relu(reading: Reading, layer: FileLayer) -> None:
    _check_relu(layer.where, Settings(layer.where, layer.settings))
    reading.chain.relu(layer.where)


def _check_relu(where: str, settings: Settings) -> None:
    top = settings.number("max_value")
    slope, threshold = settings.number("negative_slope"), settings.number("threshold")
    if top is not None or slope or threshold:
        raise ModelNotSupportedError(
            f"{where} has max_value={top}, negative_slope={slope}, threshold={threshold}; only the "
            "plain ReLU() is read"
        )


def _softmax(reading: Reading, layer: FileLayer) -> None:
    reading.activate(layer.where, "softmax")


def _function(reading: Reading, layer: FileLayer) -> None:
    reading.activate(layer.where, _FUNCTIONS[layer.kind])


def _scale_behind(reading: Reading, layer: FileLayer) -> None:
    if layer.kind == "Rescaling":
        scale, shift = _rescaling_of(layer)
        reading.chain.scale(layer.where, per_column(scale), per_column(shift))
        return
    mean, deviation, invert = _normalization_of(reading, layer)
    pair = (deviation, mean) if invert else (1.0 / deviation, -mean / deviation)
    reading.chain.scale(layer.where, *pair)


def _batch_norm_behind(reading: Reading, layer: FileLayer) -> None:
    mean, deviation, factor, shift = _batch_norm_of(layer)
    scale = factor / deviation
    reading.chain.batch_norm(layer.where, scale, shift - mean * scale)


def _reshape_behind(reading: Reading, layer: FileLayer) -> None:
    shape = Settings(layer.where, layer.settings).sizes("target_shape")
    if len(shape) != 1:
        raise ModelNotSupportedError(
            f"{layer.where} gives rows the shape {shape}; behind the first Dense layer they must "
            "stay rows of numbers. Leave it out"
        )


def _nothing(reading: Reading, layer: FileLayer) -> None:
    pass


def _cast_behind(reading: Reading, layer: FileLayer) -> None:
    _check_cast(layer)


_FRONT: dict[str, Callable[[Reading, FileLayer, Cells], Cells]] = {
    "BatchNormalization": _batch_norm,
    "CategoryEncoding": _category_encoding,
    "Embedding": _embedding,
    "Flatten": _flatten,
    "Normalization": _normalization,
    "Rescaling": _rescaling,
    "Reshape": _reshape,
    **dict.fromkeys(LOOKUPS, _lookup),
    **dict.fromkeys(SKIPPED, _same),
}
_OPERATIONS_IN_FRONT = {"Cast": _cast, "Identity": _same}
_BEHIND: dict[str, Callable[[Reading, FileLayer], None]] = {
    "Activation": _activation,
    "BatchNormalization": _batch_norm_behind,
    "Dense": _dense,
    "Flatten": _nothing,
    "Normalization": _scale_behind,
    "ReLU": _relu,
    "Rescaling": _scale_behind,
    "Reshape": _reshape_behind,
    "Softmax": _softmax,
    **dict.fromkeys(SKIPPED, _nothing),
}
_OPERATIONS_BEHIND: dict[str, Callable[[Reading, FileLayer], None]] = {
    "Cast": _cast_behind,
    **dict.fromkeys(_FUNCTIONS, _function),
}
