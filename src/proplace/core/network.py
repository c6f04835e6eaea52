r"""Immutable ReLU networks.

A network is a list of layers :math:`(W_i, b_i)` with a ReLU between them and a linear last layer,

.. math::
    h_0 = s \odot x + t, \qquad
    h_i = \max(0,\; W_i h_{i-1} + b_i), \qquad
    \text{logits}(x) = W_{n} h_{n-1} + b_n ,

with an optional fixed input transform :math:`s, t` (a scaler before the trained layers). A fixed
matrix may follow it (see :mod:`proplace.core.transforms`). The transform is not a trained
parameter: shifts of the parameters never touch it.

One logit means two classes: class 1 iff the logit is :math:`\ge 0`. With several logits, the
largest wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from proplace.core.errors import InputError, ModelFileError, NetworkError, TargetError
from proplace.core.files import atomic_write
from proplace.core.transforms import Fold, InputTransform

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

Array = npt.NDArray[np.float64]
Precision = Literal["float32", "float64"]

NPZ_FORMAT = "proplace-network-1"  #: format of :meth:`Network.save`


@dataclass(frozen=True, eq=False)
class Layer:
    """One affine map ``W h + b``. ``b`` is None for a layer trained without bias."""

    W: Array
    b: Array | None

    @property
    def bias(self) -> Array:
        """The bias as an array, with zeros if the layer has none."""
        return np.zeros(self.W.shape[0]) if self.b is None else self.b


class Network:
    """A trained ReLU network, immutable.

    Parameters
    ----------
    layers
        Pairs ``(W, b)`` from input to output. ``W`` has shape (out, in), ``b`` shape (out,) or None
        for a layer without bias. One pair is a linear model (logistic regression).
    scale, shift
        Fixed input transform ``scale * x + shift``, applied before the first layer.
    matrix, offset
        Fixed linear map ``matrix u + offset`` after it, such as PCA. ``matrix`` has shape (inputs
        of the first layer, columns of x).
    precision
        Floating-point format of the deployed model. Computations here are always float64.
    folds
        Factors of the batch norm that was multiplied into each layer, or None. A delta refers to the
        weights before this multiplication. ``folds`` converts their changes.

    Examples
    --------
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> net
    Network(2-2-1)
    >>> net.logits([[1.0, 0.0], [0.0, 1.0]])
    array([[ 1.25],
           [-1.75]])
    >>> net.predict([[1.0, 0.0], [0.0, 1.0]])
    array([1, 0])
    >>> net.margin([[1.0, 0.0]], target=0)
    array([-1.25])
    """

    __slots__ = ("_folds", "_input_transform", "_layers", "_precision")

    def __init__(
        self,
        layers: Iterable[tuple[npt.ArrayLike, npt.ArrayLike | None]],
        *,
        scale: npt.ArrayLike | None = None,
        shift: npt.ArrayLike | None = None,
        matrix: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        precision: Precision = "float64",
        folds: Sequence[Fold | None] | None = None,
    ) -> None:
        self._layers = tuple(_layer(i, *pair) for i, pair in enumerate(_pairs(layers), start=1))
        if not self._layers:
            raise NetworkError(
                "a network needs at least one layer (W, b), but none was given", name="layers"
            )
        for i, (first, second) in enumerate(
            zip(self._layers, self._layers[1:], strict=False), start=1
        ):
            if first.W.shape[0] != second.W.shape[1]:
                raise NetworkError(
                    f"layer {i} has {first.W.shape[0]} outputs but layer {i + 1} takes "
                    f"{second.W.shape[1]} inputs. W must have shape (out, in)",
                    name="layers",
                )
        self._input_transform = self._checked_map(scale, shift, matrix, offset)
        if precision not in get_args(Precision):
            known = ", ".join(map(repr, get_args(Precision)))
            raise NetworkError(
                f"precision must be one of {known}, not {precision!r}",
                name="precision",
                value=precision,
            )
        self._precision: Precision = precision
        self._folds = self._checked_folds([None] * len(self._layers) if folds is None else folds)

    # -- structure ---------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers from input to output."""
        return self._layers

    @property
    def input_transform(self) -> InputTransform:
        """The fixed map before the first layer."""
        return self._input_transform

    @property
    def scale(self) -> Array | None:
        """Factor of the fixed input transform, one number per input, or None."""
        return self._input_transform.scale

    @property
    def shift(self) -> Array | None:
        """Shift of the fixed input transform, one number per input, or None."""
        return self._input_transform.shift

    @property
    def precision(self) -> Precision:
        """Floating-point format of the deployed model."""
        return self._precision

    @property
    def folds(self) -> tuple[Fold | None, ...]:
        """The batch norm folded into each layer, or None for a layer without."""
        return self._folds

    @property
    def folded(self) -> bool:
        """True if a batch norm was multiplied into the parameters of a layer."""
        return any(fold is not None for fold in self._folds)

    @property
    def inputs(self) -> int:
        """Number of input columns."""
        matrix = self._input_transform.matrix
        return int(self._layers[0].W.shape[1] if matrix is None else matrix.shape[1])

    @property
    def outputs(self) -> int:
        """Number of logits."""
        return int(self._layers[-1].W.shape[0])

    @property
    def classes(self) -> int:
        """Number of classes: 2 for one logit, otherwise the number of logits."""
        return max(2, self.outputs)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of neurons of each hidden layer."""
        return tuple(int(layer.W.shape[0]) for layer in self._layers[:-1])

    def __repr__(self) -> str:
        sizes = "-".join(str(n) for n in (self.inputs, *self.widths, self.outputs))
        scaled = ", scaled input" if self._input_transform else ""
        return f"Network({sizes}{scaled})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        mine, theirs = self._all_arrays(), other._all_arrays()
        return mine.keys() == theirs.keys() and all(
            np.array_equal(mine[key], theirs[key]) for key in mine
        )

    def __hash__(self) -> int:
        # -0.0 equals 0.0, so both need the same hash: adding 0.0 leaves only 0.0.
        arrays = self._all_arrays().items()
        return hash(tuple((key, (value + 0.0).tobytes()) for key, value in arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        pairs = [(layer.W, layer.b) for layer in self._layers]
        return _rebuild, (pairs, self._input_transform.parts, self._precision, self._folds)

    # -- computations ------------------------------------------------------------------------

    def rows(self, X: npt.ArrayLike, *, finite: bool = True) -> Array:
        """Return ``X`` as an (n, inputs) float array, or raise an error about its first problem.

        A single row of shape (inputs,) is a table of one row. ``finite=False`` allows NaN and
        infinity.
        """
        try:
            array = np.asarray(_real(X), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"rows must be real numbers: {error}", name="X") from None
        if array.ndim == 1 and array.shape[0] == self.inputs:
            array = array[None, :]
        if array.ndim != 2 or array.shape[1] != self.inputs:
            raise InputError(
                f"rows must have shape (n, {self.inputs}) for this network, not {array.shape}",
                name="X",
            )
        if finite and not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise InputError(
                f"row {row}, column {column} is {array[row, column]}. Every value must be finite",
                name="X",
                value=array[row, column],
                row=int(row),
            )
        return array

    def transform(self, X: npt.ArrayLike) -> Array:
        """Apply the fixed input transform: return the inputs of the first trained layer."""
        return self._input_transform(self.rows(X))

    def logits(self, X: npt.ArrayLike) -> Array:
        """Return the outputs before sigmoid or softmax, shape (n, outputs)."""
        h = self.transform(X)
        for layer in self._layers[:-1]:
            h = np.maximum(h @ layer.W.T + layer.bias, 0.0)
        last = self._layers[-1]
        return h @ last.W.T + last.bias

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the class of each row."""
        logits = self.logits(X)
        if self.outputs == 1:
            return (logits[:, 0] >= 0.0).astype(np.int64)
        return np.asarray(logits.argmax(axis=1), dtype=np.int64)

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return class probabilities, (n, classes): sigmoid of one logit, softmax of several."""
        logits = self.logits(X)
        if self.outputs == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return cast("Array", shifted / shifted.sum(axis=1, keepdims=True))

    def margin(self, X: npt.ArrayLike, target: int = 1) -> Array:
        """Compute the margin of each row for class ``target``. The class is reached if it is >= 0.

        At a margin of 0, both classes count as reached, while ``predict`` gives one of them. For one
        logit, the margin is the logit itself for target 1 and its negative for target 0. For several
        logits, it is the target's logit minus the largest other logit.
        """
        target = self.check_target(target)
        logits = self.logits(X)
        if self.outputs == 1:
            return logits[:, 0] if target == 1 else -logits[:, 0]
        return cast("Array", logits[:, target] - np.delete(logits, target, axis=1).max(axis=1))

    def gradient(self, X: npt.ArrayLike, target: int = 1) -> Array:
        """Return the gradient of ``margin(X, target)`` with respect to ``X``, shape (n, inputs).

        At a kink (a pre-activation of exactly 0, or tied rival classes) one of the one-sided
        gradients is returned.
        """
        target = self.check_target(target)
        h = self.transform(X)
        active = []
        for layer in self._layers[:-1]:
            z = h @ layer.W.T + layer.bias
            active.append(z > 0.0)
            h = np.maximum(z, 0.0)
        last = self._layers[-1]
        if self.outputs == 1:
            sign = 1.0 if target == 1 else -1.0
            g = np.repeat(sign * last.W, len(h), axis=0)
        else:
            logits = h @ last.W.T + last.bias
            logits[:, target] = -np.inf
            g = last.W[target] - last.W[logits.argmax(axis=1)]
        for layer, mask in zip(reversed(self._layers[:-1]), reversed(active), strict=True):
            g = (g * mask) @ layer.W
        return self._input_transform.pull_back(g)

    def objectives(self, target: int) -> Array:
        """Return one row ``c`` for each competing class: the margin is the smallest ``c . logits``."""
        target = self.check_target(target)
        if self.outputs == 1:
            return np.array([[1.0 if target == 1 else -1.0]])
        C = -np.eye(self.outputs)
        C[:, target] += 1.0
        return np.delete(C, target, axis=0)

    def check_target(self, target: int) -> int:
        """Return ``target`` as an int, or raise an error that lists the classes."""
        if isinstance(target, (bool, np.bool_)) or not isinstance(target, (int, np.integer)):
            raise TargetError(
                f"target must be a class number, not {target!r}", name="target", value=target
            )
        if not 0 <= target < self.classes:
            raise TargetError(
                f"target {target} does not exist. Classes are 0..{self.classes - 1}",
                name="target",
                value=target,
            )
        return int(target)

    # -- distance to another network ---------------------------------------------------------

    def distance(self, other: Network, p: float = np.inf) -> float:
        """Return the distance of the trained parameters, ``||theta - theta'||_p``.

        p must be 0, 1, 2 or inf. p = 0 counts the parameters that differ. Both networks must have
        the same architecture (shapes, layers with a bias, input transform).

        If a batch norm is folded into this network, differences are measured in the trained
        parameters before *this* batch norm (see :mod:`proplace.core.transforms`). With p = inf the
        distance is the smallest delta whose shift set contains the other network. It is infinite if
        no such delta exists, because this batch norm fixes a parameter (by a factor of 0, or by a
        shift of a layer without bias) that has another value in the other network.
        """
        if p not in (0, 1, 2, np.inf):
            raise NetworkError(f"p must be 0, 1, 2 or inf, not {p!r}", name="p", value=p)
        mine, theirs = self._arrays(), other._arrays()
        shapes = {key: value.shape for key, value in mine.items()}
        if shapes != {key: value.shape for key, value in theirs.items()}:
            raise NetworkError(
                f"{self!r} and {other!r} differ in architecture, not only in values", name="other"
            )
        for key in self._input_transform.parts:
            if not np.array_equal(mine[key], theirs[key]):
                raise NetworkError(
                    f"the networks have different input transforms ({key}), so their parameters "
                    "do not act on the same inputs",
                    name=key,
                )
        parts = []
        for a, b, fold in zip(self._layers, other._layers, self._folds, strict=True):
            weight, bias = (1.0, 1.0) if fold is None else fold.radii(1.0, 1.0)
            parts.append(_in_units(np.abs(a.W - b.W), weight).ravel())
            parts.append(_in_units(np.abs(a.bias - b.bias), bias))
        difference = np.concatenate(parts)
        if p == 0:
            return float(np.count_nonzero(difference))
        return float(np.linalg.norm(difference, ord=p))

    def with_layers(self, layers: Iterable[tuple[npt.ArrayLike, npt.ArrayLike | None]]) -> Network:
        """Return a network with other layers and the same input transform."""
        return Network(
            layers, **self._input_transform.parts, precision=self._precision, folds=self._folds
        )

    def with_input_transform(
        self, input_transform: InputTransform, precision: Precision | None = None
    ) -> Network:
        """Return the same layers with another input transform, and optionally another precision."""
        pairs = [(layer.W, layer.b) for layer in self._layers]
        precision = self._precision if precision is None else precision
        return Network(pairs, **input_transform.parts, precision=precision, folds=self._folds)

    # -- files and other frameworks ----------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file without pickle, atomically."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ModelFileError(f"{path.name}: the name must end in .npz", name=path.name)
        with atomic_write(path) as file:
            self.write(file)

    def write(self, file: IO[bytes], model: str = "") -> None:
        """Write the content of an ``.npz`` file to an open file, as :meth:`save` does.

        ``model`` is the preprocessing and the schema of the model: see :meth:`proplace.Model.save`.
        """
        words = {"format": np.array(NPZ_FORMAT), "precision": np.array(self._precision)}
        if model:
            words["model"] = np.array(model)
        arrays: dict[str, Any] = {**words, **self._all_arrays()}
        np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Network:
        """Read a network from an ``.npz`` file that :meth:`save` wrote, without unpickling.

        ``Model.of(model).network`` imports a network from another framework.
        """
        from proplace.loaders.files import read_network

        return read_network(Path(path))

    # -- internals ---------------------------------------------------------------------------

    def _checked_map(
        self,
        scale: npt.ArrayLike | None,
        shift: npt.ArrayLike | None,
        matrix: npt.ArrayLike | None,
        offset: npt.ArrayLike | None,
    ) -> InputTransform:
        taken = int(self._layers[0].W.shape[1])  # by the first layer
        M = None if matrix is None else _frozen("input matrix", matrix)
        if M is not None and (M.ndim != 2 or len(M) != taken or 0 in M.shape):
            raise NetworkError(
                f"input matrix must have shape ({taken}, columns), a row for each input of layer 1, "
                f"not {M.shape}",
                name="input matrix",
            )
        if M is None and offset is not None:
            raise NetworkError(
                "an input offset needs an input matrix. Without a matrix, give a shift",
                name="input offset",
            )
        columns = taken if M is None else int(M.shape[1])
        return InputTransform(
            None if scale is None else _per_input("scale", scale, columns),
            None if shift is None else _per_input("shift", shift, columns),
            M,
            None if offset is None else _per_input("offset", offset, taken),
        )

    def _arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for i, layer in enumerate(self._layers):
            arrays[f"W{i}"] = layer.W
            if layer.b is not None:
                arrays[f"b{i}"] = layer.b
        return arrays | self._input_transform.parts

    def _all_arrays(self) -> dict[str, Array]:
        """Return all arrays, including those of the folds."""
        folds = enumerate(self._folds)
        return self._arrays() | {
            f"fold_{name}{i}": array
            for i, fold in folds
            if fold is not None
            for name, array in fold.arrays.items()
        }

    def _checked_folds(self, folds: Sequence[Fold | None]) -> tuple[Fold | None, ...]:
        if len(folds) != len(self._layers):
            raise NetworkError(
                f"{len(folds)} folds were given for {len(self._layers)} layers. Give one for each, "
                "or None for a layer without batch norm",
                name="folds",
            )
        layers = enumerate(zip(folds, self._layers, strict=True), start=1)
        checked = [None if fold is None else _fold(i, fold, layer) for i, (fold, layer) in layers]
        first = checked[0]
        if first is not None and ((first.columns != 1.0).any() or first.shift.any()):
            raise NetworkError(
                "the fold of layer 1 scales or shifts its inputs. Fixed numbers before the "
                "first layer belong to the input transform (scale, shift)",
                name="fold of layer 1",
            )
        return tuple(checked)


def _rebuild(
    pairs: Sequence[tuple[Array, Array | None]],
    parts: dict[str, Array],
    precision: Precision,
    folds: tuple[Fold | None, ...],
) -> Network:
    return Network(pairs, **parts, precision=precision, folds=folds)


def _fold(i: int, fold: Fold, layer: Layer) -> Fold | None:
    """Check a fold, and return None if it leaves the parameters unchanged."""
    arrays = {n: _frozen(f"fold of layer {i}: {n}", a) for n, a in fold.arrays.items()}
    out, taken = layer.W.shape
    for name, array in arrays.items():
        count = out if name in ("rows", "bias") else taken
        if array.shape != (count,) or (array < 0.0).any():
            raise NetworkError(
                f"fold of layer {i}: {name} must have {count} numbers >= 0, not shape {array.shape}"
                f"{' with negative ones' if array.shape == (count,) else ''}",
                name=f"fold of layer {i}: {name}",
            )
    checked = Fold(**arrays)
    if layer.b is None and (checked.shift.any() or checked.bias.any()):
        raise NetworkError(
            f"fold of layer {i}: it moves a bias, but the layer was trained without bias",
            name=f"fold of layer {i}",
        )
    return checked if checked.changes(biased=layer.b is not None) else None


def _in_units(change: Array, unit: Array | float) -> Array:
    """Return changes divided by units. A change of a value with unit 0 is infinite."""
    unit = np.broadcast_to(unit, change.shape)
    result = np.where(change > 0.0, np.inf, 0.0)
    return np.divide(change, unit, out=result, where=unit > 0.0)


def _per_input(name: str, values: npt.ArrayLike, count: int) -> Array:
    """Return one number for each input. A scalar applies to all inputs."""
    array = _frozen(f"input {name}", np.full(count, values) if np.ndim(values) == 0 else values)
    if array.shape != (count,):
        raise NetworkError(
            f"input {name} must have one number for each of {count} inputs, not shape {array.shape}",
            name=f"input {name}",
        )
    return array


def _pairs(layers: object) -> list[tuple[npt.ArrayLike, npt.ArrayLike | None]]:
    try:
        return [(W, b) for W, b in layers]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise NetworkError(
            "layers must be pairs (W, b), with b = None for a layer without bias", name="layers"
        ) from None


def _numbers(name: str, values: npt.ArrayLike) -> Array:
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise NetworkError(f"{name} must be an array of numbers: {error}", name=name) from None
    if given.dtype.kind not in "fiub":  # complex numbers, text, dates, objects
        raise NetworkError(
            f"{name} must be an array of real numbers, not of {given.dtype}", name=name
        )
    array = np.array(given, dtype=np.float64, order="C")
    exact = array == given if given.dtype.kind == "f" else (given <= 2**53) & (given >= -(2**53))
    if not (exact | np.isnan(array)).all():
        raise NetworkError(f"{name} has numbers that float64 cannot represent exactly", name=name)
    return array


def _real(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return an array, or raise for complex numbers, because numpy would drop imaginary parts."""
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise TypeError("the array is complex")
    return array


def _frozen(name: str, values: npt.ArrayLike) -> Array:
    array = _numbers(name, values)
    if not np.isfinite(array).all():
        raise NetworkError(f"{name} has NaN or infinite values", name=name)
    array.setflags(write=False)
    return array


def _layer(i: int, W: npt.ArrayLike, b: npt.ArrayLike | None) -> Layer:
    weights = _frozen(f"W of layer {i}", W)
    if weights.ndim != 2 or 0 in weights.shape:
        raise NetworkError(
            f"W of layer {i} must have shape (out, in), not {weights.shape}", name=f"W of layer {i}"
        )
    if b is None:
        return Layer(weights, None)
    bias = _frozen(f"b of layer {i}", b)
    if bias.shape != (weights.shape[0],):
        raise NetworkError(
            f"b of layer {i} must have shape ({weights.shape[0]},) to match W, not {bias.shape}",
            name=f"b of layer {i}",
        )
    return Layer(weights, bias)
