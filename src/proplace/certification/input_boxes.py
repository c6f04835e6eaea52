r"""Robustness over input boxes: one more interval layer before the network.

With a tolerance, every network of Delta must accept every point of a box :math:`[c - r, c + r]`
around a counterfactual. This is the robustness of *one* point for a larger network. With the row
:math:`(c, r)` as its input, its first layers are

.. math::
    p = \max(0,\ c + v \odot r), \quad q = \max(0,\ -c + w \odot r), \qquad v, w \in [-1, 1]^n ,

    u^+ = \max(0,\ M (p - q) + t), \quad u^- = \max(0,\ -M (p - q) - t) ,

with the fixed input transform :math:`x \mapsto M x + t`, and then the layers of the network itself, the
first of them on :math:`u = u^+ - u^-`: weights in :math:`[\underline W, \overline W]` on
:math:`u^+` and in
:math:`[-\overline W, -\underline W]` on :math:`u^-`.

This is exact. For all shares v and w, :math:`p - q` lies in the box, and every point of the box is
reached. p and q act only through :math:`p - q`, because all weights on them are fixed. One of
:math:`u^+_j` and :math:`u^-_j` is 0, so a weight and its counterpart need not agree: only one of
them counts. The two sets of outputs are therefore equal, all of :mod:`proplace.certification`
applies, and branching on the sign of :math:`u_j` is the split that a box across 0 needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from proplace.core.errors import InputError
from proplace.core.layer_box import LayerBox
from proplace.core.network import Layer, Network
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from proplace.core.network import Array

InputBox: TypeAlias = "tuple[Array, Array]"
"""Lower and upper ends of a box around each of some rows."""


def checked_box(rows: Array, box: tuple[npt.ArrayLike, npt.ArrayLike]) -> InputBox:
    """Return the ends of a box around each row as arrays, or raise an InputError."""
    low, high = (np.array(end, dtype=np.float64, ndmin=2) for end in box)
    for name, end in (("lower", low), ("upper", high)):
        if end.shape != rows.shape:
            raise InputError(
                f"the {name} ends of the boxes have shape {end.shape}, but the rows have "
                f"{rows.shape}. Give an end for every number of every row",
                name="box",
            )
    with np.errstate(over="ignore", invalid="ignore"):
        outside = ~((low <= rows) & (rows <= high) & np.isfinite(high - low)).all(axis=1)
    if outside.any():
        raise InputError(
            f"row {int(np.flatnonzero(outside)[0])} does not lie in its box, or the box is not "
            "finite. Give ends with low <= row <= high",
            name="box",
            row=int(np.flatnonzero(outside)[0]),
        )
    return low, high


@dataclass(frozen=True, eq=False)
class InputBoxes:
    """A network and its shift set, as a larger network that takes input boxes.

    Attributes
    ----------
    original, delta
        The network that takes points, and its shift set.
    """

    original: Network
    delta: Shifts

    @cached_property
    def net(self) -> Network:
        """The larger network, with parameters at the centres of their intervals."""
        return Network([(box.middle.W, box.middle.b) for box in self._boxes])

    @cached_property
    def shifts(self) -> Shifts:
        """The shift set of the larger network."""
        low, high = (
            Network([(layer.W, layer.b) for layer in layers])
            for layers in ([box.low for box in self._boxes], [box.high for box in self._boxes])
        )
        return Shifts(low, high)

    @staticmethod
    def rows(low: Array, high: Array) -> Array:
        """Return the rows :math:`(c, r)` of some boxes, with r rounded up to cover the whole box."""
        centre = low + (high - low) / 2.0
        radius = np.maximum(np.nextafter(high - centre, np.inf), np.nextafter(centre - low, np.inf))
        radius = np.where(low == high, 0.0, radius)
        return np.concatenate([np.where(low == high, low, centre), radius], axis=-1)

    def point(self, hidden: Sequence[Array]) -> Array:
        """Return the point of the box that belongs to activations of the larger network."""
        n = self.original.inputs
        result: Array = hidden[0][..., :n] - hidden[0][..., n:]
        return result

    def behind(self, hidden: Sequence[Array]) -> list[Array]:
        """Select the activations of the original network among those of the larger one."""
        return list(hidden[self._front :])

    def of_network(
        self, pairs: Sequence[tuple[Array, Array]], hidden: Sequence[Array]
    ) -> list[tuple[Array, Array]]:
        """Select the layers of the original network in a shift of the larger one."""
        first, bias = pairs[self._front]
        seen = hidden[self._front - 1]
        m = first.shape[1] // 2
        W = np.where(seen[:m] >= seen[m:], first[:, :m], -first[:, m:])
        return [(W, bias), *pairs[self._front + 1 :]]

    # -- internals ---------------------------------------------------------------------------

    @cached_property
    def _front(self) -> int:
        """Number of layers before those of the original network."""
        return len(self._boxes) - len(self.original.layers)

    @cached_property
    def _boxes(self) -> tuple[LayerBox, ...]:
        n = self.original.inputs
        one, zero = np.eye(n), np.zeros(2 * n)
        front = [
            LayerBox(
                Layer(np.block([[one, -one], [-one, -one]]), zero),
                Layer(np.block([[one, one], [-one, one]]), zero),
            )
        ]
        front += [LayerBox(layer, layer) for layer in _signed(self.original)]
        first, *rest = (box.outward() for box in self.delta.layers)
        low, high = first.low, first.high
        both = LayerBox(
            Layer(np.hstack([low.W, -high.W]), low.b), Layer(np.hstack([high.W, -low.W]), high.b)
        )
        return (*front, both, *rest)


def _signed(net: Network) -> list[Layer]:
    """Return the input transform as layers of the positive and the negative parts.

    A factor per column and a matrix become two layers, because their product would be rounded.
    """
    front, n = net.input_transform, net.inputs
    maps: list[tuple[Array, Array | None]] = []
    if front.scale is not None or front.shift is not None or front.matrix is None:
        scale = np.ones(n) if front.scale is None else front.scale
        maps.append((np.diag(scale), front.shift))
    if front.matrix is not None:
        maps.append((front.matrix, front.offset))
    layers = []
    for M, t in maps:
        shift = np.zeros(len(M)) if t is None else t
        layers.append(Layer(np.block([[M, -M], [-M, M]]), np.concatenate([shift, -shift])))
    return layers
