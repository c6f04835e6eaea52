r"""A model as a chain: linear layers with a ReLU between them, then an activation.

:class:`~proplace.loaders.trace.Trace` reports each layer to a :class:`Chain`, which refuses
whatever would not be a ReLU network. A :class:`TrainedLayer` keeps where the parameters of a layer
come from.

A reader folds fixed numbers (batch norm) into the trained weights :math:`W` and biases :math:`b`.
With :math:`g, t` in front of the layer and factors :math:`r_1, r_2, \dots` and shifts :math:`s_1,
s_2, \dots` after it, one pair for each step,

.. math::
    W' = \dots r_2 (r_1 (W \operatorname{diag}(g))), \qquad
    b' = \dots r_2 (r_1 (b + W t) + s_1) + s_2 ,

in floats and in this order. :mod:`proplace.core.transforms` keeps sizes alone, which is all that a
delta needs. Code that writes to the trained parameters needs the numbers themselves. Each step is a
monotone map of each weight, also in floats, since rounding is monotone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from proplace.core.errors import ModelNotSupportedError
from proplace.core.network import Network
from proplace.core.transforms import Fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from proplace.core.network import Array, Precision

Activation = Literal["sigmoid", "softmax", "log_softmax"]


@dataclass(frozen=True, eq=False)
class TrainedLayer:
    """Names of the parameters behind one layer, and the fixed numbers that were folded into them.

    Attributes
    ----------
    weight, bias
        Names of the parameters in the original model. ``bias`` is None for a layer without one.
    columns, shift
        ``g`` and ``t``, one number for each input of the layer, or None.
    steps
        ``(r, s)`` behind the layer, one number of each for every neuron that is taken.
    taken
        Used outputs of the layer, or None for all.
    """

    weight: str
    bias: str | None
    columns: Array | None = None
    shift: Array | None = None
    steps: tuple[tuple[Array, Array], ...] = ()
    taken: npt.NDArray[np.intp] | None = None

    def renamed(self, name: Callable[[str], str]) -> TrainedLayer:
        """Return the layer with its parameters renamed by a function."""
        bias = None if self.bias is None else name(self.bias)
        return replace(self, weight=name(self.weight), bias=bias)

    @property
    def plain(self) -> bool:
        """True if the layer holds all trained parameters, unchanged."""
        return self.columns is None and not self.steps and self.taken is None

    @property
    def carries(self) -> bool:
        """True if the weights of a row move its folded bias."""
        return self.shift is not None and bool(self.shift.any())

    def behind(self, scale: Array, shift: Array) -> TrainedLayer:
        """Return the layer with ``scale * h + shift`` before it."""
        return replace(self, columns=scale, shift=shift)

    def then(self, scale: Array, shift: Array) -> TrainedLayer:
        """Return the layer with ``scale * z + shift`` after it."""
        return replace(self, steps=(*self.steps, (scale, shift)))

    def taking(self, places: Sequence[int]) -> TrainedLayer:
        """Return the layer with some of its outputs."""
        chosen = np.asarray(places, dtype=np.intp)
        steps = tuple((r[chosen], s[chosen]) for r, s in self.steps)
        taken = chosen if self.taken is None else self.taken[chosen]
        return replace(self, steps=steps, taken=taken)

    # -- what the reader makes of trained numbers --------------------------------------------

    def rows(self, values: Array) -> Array:
        """Those rows of trained weights or biases that are used."""
        return values if self.taken is None else values[self.taken]

    def weights(self, W: Array) -> Array:
        """Fold the used rows ``W`` of trained weights, element by element monotone."""
        if self.columns is not None:
            W = W * self.columns
        for scale, _ in self.steps:
            W = scale[:, None] * W
        return W

    def biases(self, v: Array) -> Array:
        """Fold biases ``v = b + W t``, element by element monotone."""
        for scale, shift in self.steps:
            v = scale * v + shift
        return v

    def carried(self, W: Array) -> Array:
        """``W t`` for the used rows, from all trained weights."""
        return self.rows(np.zeros(len(W)) if self.shift is None else W @ self.shift)

    @property
    def signs(self) -> tuple[Array | float, Array | float]:
        """Signs of the maps :meth:`weights` and :meth:`biases`."""
        rows: Array | float = 1.0
        for scale, _ in self.steps:
            rows = rows * np.sign(scale)
        both = rows if np.ndim(rows) == 0 else np.asarray(rows)[:, None]
        return both if self.columns is None else both * np.sign(self.columns), rows


@dataclass(frozen=True, eq=False)
class Affine:
    """``scale * h + shift``, one number of each for every neuron, put by ``where``."""

    where: str
    scale: Array
    shift: Array

    def then(self, later: Affine) -> Affine:
        """Return both, one after the other."""
        return Affine(later.where, self.scale * later.scale, self.shift * later.scale + later.shift)


class Chain:
    """The layers of a model in the order in which a row passes them.

    Parameters
    ----------
    linear
        Name of a linear layer in the framework, for messages.

    Every method takes ``where``, the layer's name for messages, such as ``layer 'fc1' (Linear)``.
    """

    def __init__(self, linear: str = "Linear") -> None:
        self.activation: Activation | None = None
        self._linear = linear
        self._layers: list[tuple[Array, Array | None]] = []
        self._folds: list[Fold] = []  # fixed numbers that were folded into them
        self._trained: list[TrainedLayer] = []  # what they are called in the model
        self._last = ""  # where the last linear layer is
        self._state: Literal["input", "linear", "relu", "done"] = "input"
        self._end = ""  # where the last activation is
        self._waiting: Affine | None = None  # behind a ReLU, until the next linear layer takes it

    @property
    def width(self) -> int | None:
        """Number of outputs of the last linear layer, None before the first."""
        return int(self._layers[-1][0].shape[0]) if self._layers else None

    @property
    def trained(self) -> tuple[TrainedLayer, ...]:
        """Names of the parameters of each layer."""
        return tuple(self._trained)

    @property
    def at_input(self) -> bool:
        """True before the first linear layer."""
        return self._state == "input"

    @property
    def at_linear(self) -> bool:
        """True if the last step is a linear layer."""
        return self._state == "linear"

    def linear(
        self, where: str, W: Array, b: Array | None, names: tuple[str, str | None] = ("", None)
    ) -> None:
        """Take a linear layer with ``W`` of shape (out, in) and the ``names`` of W and b."""
        self._not_done(where)
        if self._state == "linear":
            raise ModelNotSupportedError(
                f"{self._last} and {where} follow each other without a ReLU. Merge them into one "
                f"{self._linear} layer or put a ReLU between them"
            )
        if 0 in W.shape:
            raise ModelNotSupportedError(
                f"{where} has weights of shape {W.shape}; a layer needs an input and an output"
            )
        if self._layers and W.shape[1] != self.width:
            raise ModelNotSupportedError(
                f"{where} takes {W.shape[1]} inputs but {self._last} gives {self.width} outputs: "
                "the layers do not form one chain"
            )
        fold, trained = Fold.none(W, b), TrainedLayer(*names)
        if self._waiting is not None:  # W (g h + t) + b = (W g) h + (b + W t)
            scale, shift = self._waiting.scale, self._waiting.shift
            W, b = W * scale, W @ shift if b is None else b + W @ shift
            fold, trained = fold.behind(scale, shift), trained.behind(scale, shift)
            self._waiting = None
        self._layers.append((W, b))
        self._folds.append(fold)
        self._trained.append(trained)
        self._last = where
        self._state = "linear"

    def batch_norm(self, where: str, scale: Array, shift: Array) -> None:
        """Take ``scale * h + shift``, fixed numbers for each neuron, such as batch norm.

        After a linear layer it is folded into that layer (``W' = g W``, ``b' = g b + t``), after a
        ReLU into the next one (``W' = W diag(g)``, ``b' = b + W t``). The network holds by how much
        its parameters then move with the trained ones.
        """
        self._not_done(where)
        for part in (scale, shift):
            if part.shape not in ((), (self.width,)):
                raise ModelNotSupportedError(
                    f"{where} has {part.size} numbers for {self.width} outputs of {self._last}: "
                    "the layers do not form one chain"
                )
        step = Affine(where, *(np.broadcast_to(v, (self.width or 0,)) for v in (scale, shift)))
        if self._state == "relu":
            self._waiting = step if self._waiting is None else self._waiting.then(step)
            return
        if (step.scale == 1.0).all() and (step.shift == 0.0).all():
            return
        W, b = self._layers[-1]
        bias = step.shift if b is None else step.scale * b + step.shift
        self._layers[-1] = (step.scale[:, None] * W, np.array(bias))
        self._folds[-1] = self._folds[-1].scaled(step.scale)
        self._trained[-1] = self._trained[-1].then(step.scale, step.shift)

    def take(self, where: str, places: Sequence[int]) -> None:
        """Take some outputs of the last linear layer and leave out the others."""
        if self.activation in ("softmax", "log_softmax"):
            raise ModelNotSupportedError(
                f"{where} takes some of the probabilities after {self._end}. Return all of them"
            )
        W, b = self._layers[-1]
        chosen = list(places)
        self._layers[-1] = (W[chosen], None if b is None else b[chosen])
        self._folds[-1] = self._folds[-1].taking(chosen)
        self._trained[-1] = self._trained[-1].taking(chosen)
        if self._waiting is not None:
            fixed = self._waiting
            self._waiting = Affine(fixed.where, fixed.scale[chosen], fixed.shift[chosen])

    def add_bias(self, where: str, b: Array) -> None:
        """Add ``b``, which counts as trained, to the bias of the linear layer just taken."""
        self._not_done(where)
        W, old = self._layers[-1]
        full = np.broadcast_to(b, (W.shape[0],)).astype(np.float64)
        self._layers[-1] = (W, full if old is None else old + full)
        self._folds[-1] = self._folds[-1].with_bias()

    def relu(self, where: str) -> None:
        """Take a ReLU."""
        self._not_done(where)
        if self.at_input:
            raise ModelNotSupportedError(
                f"{where} acts on the input, before the first {self._linear} layer; "
                "a ReLU must follow one"
            )
        if self._waiting is not None:
            raise ModelNotSupportedError(
                f"{where} acts on {self._waiting.where}, which follows a ReLU itself. Put a "
                f"{self._linear} layer between them, or leave one of the two ReLUs out"
            )
        self._state = "relu"

    def finish(self, where: str, activation: Activation) -> None:
        """Take the activation of the outputs: it is recognised and left out."""
        self._not_done(where)
        if self._state != "linear":
            raise ModelNotSupportedError(
                f"{where} does not follow a {self._linear} layer; the last activation must act on "
                f"the outputs of the last {self._linear} layer"
            )
        self.activation = activation
        self._end = where
        self._state = "done"

    @property
    def is_opposite(self) -> bool:
        """True if the outputs of the last layer are ``(-z, z)``."""
        W, b = self._layers[-1]
        opposite = W.shape[0] == 2 and np.array_equal(W[0], -W[1])
        return opposite and (b is None or bool(b[0] == -b[1]))

    def one_logit(self) -> bool:
        """Turn outputs ``(-z, z)`` of the last layer into the one logit ``z``, if they are so."""
        if not self.is_opposite:
            return False
        W, b = self._layers[-1]
        self._layers[-1] = (W[1:], None if b is None else b[1:])
        self._folds[-1] = self._folds[-1].taking([1])
        return True

    def network(self, precision: Precision) -> Network:
        """Return the network of the layers taken."""
        if not self._layers:
            raise ModelNotSupportedError(f"the model has no {self._linear} layer")
        if self._state == "relu":
            raise ModelNotSupportedError(
                f"the model ends in a ReLU after {self._last}. Its outputs must be logits or "
                "probabilities. Remove the last ReLU"
            )
        if self.activation == "sigmoid" and self.width != 1:
            raise multi_label(self._end, self.width or 0)
        if self.activation in ("softmax", "log_softmax") and self.width == 1:
            raise ModelNotSupportedError(
                f"{self._end} has a single output, whose softmax is always 1. Use a sigmoid, or "
                f"give the last {self._linear} layer one output for each class"
            )
        return Network(self._layers, precision=precision, folds=self._folds)

    def _not_done(self, where: str) -> None:
        if self._state == "done":
            raise ModelNotSupportedError(
                f"{self._end} is followed by {where}; a sigmoid or softmax is read only at the "
                "end of the model. Hidden layers need ReLU"
            )


def multi_label(where: str, outputs: int) -> ModelNotSupportedError:
    """Return the refusal of a sigmoid over several outputs."""
    return ModelNotSupportedError(
        f"{where} applies a sigmoid to {outputs} outputs: a model of several labels, not of one "
        "class out of many. Use softmax for classes, or take one label's output alone"
    )


def per_column(values: Array) -> Array:
    """Drop the axes of length 1 in front, and turn a single number into a scalar."""
    array = np.asarray(values, dtype=np.float64)
    while array.ndim > 1 and array.shape[0] == 1:
        array = array[0]
    return array.reshape(()) if array.size == 1 else array
