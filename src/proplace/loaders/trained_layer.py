r"""Where the parameters of a layer come from in the model that was read.

A reader folds fixed numbers (batch norm) into the trained weights :math:`W` and biases :math:`b`. With
:math:`g, t` in front of the layer and factors :math:`r_1, r_2, \dots` and shifts :math:`s_1, s_2, \dots`
behind it, one pair for each step,

.. math::
    W' = \dots r_2 (r_1 (W \operatorname{diag}(g))), \qquad
    b' = \dots r_2 (r_1 (b + W t) + s_1) + s_2 ,

in floats and in this order. :mod:`proplace.core.transforms` keeps sizes alone, which is all that a delta
needs; whoever writes to the trained parameters needs the numbers themselves. Each step is a monotone map
of each weight, also in floats, since rounding is monotone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from proplace.core.network import Array


@dataclass(frozen=True, eq=False)
class TrainedLayer:
    """Names of the parameters behind one layer, and the fixed numbers that were folded into them.

    Attributes
    ----------
    weight, bias
        What the source calls the parameters; ``bias`` is None for a layer that was trained without.
    columns, shift
        ``g`` and ``t``, one number for each input of the layer; None where nothing stands in front.
    steps
        ``(r, s)`` behind the layer, one number of each for every neuron that is taken.
    taken
        Which of the layer's outputs are used; None for all.
    """

    weight: str
    bias: str | None
    columns: Array | None = None
    shift: Array | None = None
    steps: tuple[tuple[Array, Array], ...] = ()
    taken: npt.NDArray[np.intp] | None = None

    def renamed(self, name: Callable[[str], str]) -> TrainedLayer:
        """The same layer, its parameters called as a function says."""
        bias = None if self.bias is None else name(self.bias)
        return replace(self, weight=name(self.weight), bias=bias)

    @property
    def plain(self) -> bool:
        """Whether the layer's parameters are the trained ones, all of them."""
        return self.columns is None and not self.steps and self.taken is None

    @property
    def carries(self) -> bool:
        """Whether the weights of a row move its folded bias."""
        return self.shift is not None and bool(self.shift.any())

    def behind(self, scale: Array, shift: Array) -> TrainedLayer:
        """With ``scale * h + shift`` in front."""
        return replace(self, columns=scale, shift=shift)

    def then(self, scale: Array, shift: Array) -> TrainedLayer:
        """With ``scale * z + shift`` behind."""
        return replace(self, steps=(*self.steps, (scale, shift)))

    def taking(self, places: Sequence[int]) -> TrainedLayer:
        """With some of the outputs."""
        chosen = np.asarray(places, dtype=np.intp)
        steps = tuple((r[chosen], s[chosen]) for r, s in self.steps)
        taken = chosen if self.taken is None else self.taken[chosen]
        return replace(self, steps=steps, taken=taken)

    # -- what the reader makes of trained numbers --------------------------------------------

    def rows(self, values: Array) -> Array:
        """Those rows of trained weights or biases that are used."""
        return values if self.taken is None else values[self.taken]

    def weights(self, W: Array) -> Array:
        """Folded weights of the used rows ``W`` of trained ones; element by element monotone."""
        if self.columns is not None:
            W = W * self.columns
        for scale, _ in self.steps:
            W = scale[:, None] * W
        return W

    def biases(self, v: Array) -> Array:
        """Folded biases of ``v = b + W t``; element by element monotone."""
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
