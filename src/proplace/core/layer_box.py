r"""The intervals of the parameters of one layer.

Every weight and every bias has its own interval, so for activations :math:`h \ge 0` the
pre-activations of a neuron fill exactly

.. math::
    [\underline W h + \underline b,\ \overline W h + \overline b] ,

and for inputs :math:`u` of any sign, with :math:`u^+ = \max(u, 0)` and :math:`u^- = \min(u, 0)`,

.. math::
    [\underline W u^+ + \overline W u^- + \underline b,\
     \overline W u^+ + \underline W u^- + \overline b] .

A box may be given by a centre and two radii, one for all weights and one for all biases. Such a box
is defined by centre and radii as real numbers. ``low`` and ``high`` are then its ends, each rounded
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.core.network import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LayerBox:
    """Intervals of the weights and biases of one layer.

    Attributes
    ----------
    low, high
        Ends of the intervals. They have no biases if the layer has none.
    centre, radii
        Centre of a box that is given by radii, and the radius of its weights and of its biases (0
        for a layer without bias). Otherwise None.
    """

    low: Layer
    high: Layer
    centre: Layer | None = None
    radii: tuple[float, float] | None = None

    @classmethod
    def around(cls, centre: Layer, weight: float, bias: float) -> LayerBox:
        """Return the box of all parameters within a radius of a layer's own."""
        b = centre.b
        bias = 0.0 if b is None else bias
        low = Layer(centre.W - weight, None if b is None else b - bias)
        high = Layer(centre.W + weight, None if b is None else b + bias)
        return cls(low, high, centre, (weight, bias))

    @classmethod
    def reaching(cls, centre: Layer, weight: Array | float, bias: Array | float) -> LayerBox:
        """Return the box within radii of each parameter, by its ends, rounded outwards."""
        W, b = centre.W, centre.b
        return cls(
            Layer(sum_down(W, -weight), None if b is None else sum_down(b, -bias)),
            Layer(sum_up(W, weight), None if b is None else sum_up(b, bias)),
        )

    def outward(self) -> LayerBox:
        """Return the same box by its ends alone, rounded outwards if it has radii."""
        if self.centre is None or self.radii is None:
            return self
        return LayerBox.reaching(self.centre, *self.radii)

    # -- in floats ---------------------------------------------------------------------------

    @cached_property
    def middle(self) -> Layer:
        """The parameters at the centre, up to rounding."""
        if self.centre is not None:
            return self.centre
        W = self.low.W + (self.high.W - self.low.W) / 2.0
        if self.low.b is None:
            return Layer(W, None)
        return Layer(W, self.low.bias + (self.high.bias - self.low.bias) / 2.0)

    @cached_property
    def radius(self) -> tuple[Array | float, Array | float]:
        """Largest distance of weights and of biases from the centre, up to rounding."""
        if self.radii is not None:
            return self.radii
        return (self.high.W - self.low.W) / 2.0, (self.high.bias - self.low.bias) / 2.0

    @cached_property
    def size(self) -> tuple[Array, Array]:
        """Largest absolute value of each weight and of each bias."""
        return (
            np.maximum(np.abs(self.low.W), np.abs(self.high.W)),
            np.maximum(np.abs(self.low.bias), np.abs(self.high.bias)),
        )

    def preactivations(self, U: Array) -> tuple[Array, Array]:
        """Return the smallest and largest pre-activation of each neuron, for inputs of any sign."""
        if self.centre is not None and self.radii is not None:
            weight, bias = self.radii
            z = U @ self.centre.W.T + self.centre.bias
            r = (weight * np.abs(U).sum(axis=1) + bias)[:, None]
            return z - r, z + r
        up, down = np.maximum(U, 0.0), np.minimum(U, 0.0)
        low, high = self.low, self.high
        return (
            up @ low.W.T + down @ high.W.T + low.bias,
            up @ high.W.T + down @ low.W.T + high.bias,
        )

    def least(self, c: Array) -> tuple[Array, float]:
        """Return the minimum of ``c . (W h + b)`` for h >= 0 as ``a . h + const``."""
        if self.centre is not None and self.radii is not None:
            size, (weight, bias) = np.abs(c).sum(), self.radii
            return (
                c @ self.centre.W - size * weight,
                float(c @ self.centre.bias - size * bias),
            )
        up, down = np.maximum(c, 0.0), np.minimum(c, 0.0)
        return (
            up @ self.low.W + down @ self.high.W,
            float(up @ self.low.bias + down @ self.high.bias),
        )

    def at(self, t: Array, signs: Array) -> tuple[Array, Array]:
        """Return parameters that move each neuron to a share of its range, for inputs of these signs.

        The share ``t`` runs from -1, the smallest pre-activation, to 1, the largest. A weight on an
        input of sign 0 stays at the centre.
        """
        weight, bias = self.radius
        W = self.middle.W + t[:, None] * (weight * signs)
        return W, self.middle.bias + t * bias

    def share(self, wanted: Array, h: Array) -> Array:
        """Return the share ``t`` of :meth:`at` that reaches these pre-activations, up to rounding."""
        weight, bias = self.radius
        z = self.middle.W @ h + self.middle.bias
        reach = np.abs(h).sum() * weight if np.ndim(weight) == 0 else weight @ np.abs(h)
        reach = np.broadcast_to(reach + bias, z.shape)
        move = np.minimum(np.maximum(wanted - z, -reach), reach)
        return np.divide(move, reach, out=np.zeros_like(z), where=reach > 0.0)

    # -- exactly -----------------------------------------------------------------------------

    def clip(self, W: Array, b: Array | None) -> Layer:
        """Return the nearest parameters that lie in the intervals exactly."""
        if (b is None) != (self.low.b is None):
            raise ValueError("the biases of the layer and of the box do not match")
        low, high = self.low, self.high
        W = np.minimum(np.maximum(W, low.W), high.W)
        b = None if b is None else np.minimum(np.maximum(b, low.bias), high.bias)
        if self.centre is None or self.radii is None:
            return Layer(W, b)
        weight, bias = self.radii
        W = _within(self.centre.W, W, weight)
        return Layer(W, None if b is None else _within(self.centre.bias, b, bias))

    def contains(self, layer: Layer) -> bool:
        """Test exactly if every parameter of a layer of this shape lies in its interval."""
        if self.centre is None or self.radii is None:
            return bool(
                ((self.low.W <= layer.W) & (layer.W <= self.high.W)).all()
                and ((self.low.bias <= layer.bias) & (layer.bias <= self.high.bias)).all()
            )
        weight, bias = self.radii
        far = _beyond(self.centre.W, layer.W, weight).any()
        return not (far or _beyond(self.centre.bias, layer.bias, bias).any())


def _sum(a: Array, r: Array | float) -> tuple[Array, Array]:
    """Return ``a + r`` as a rounded sum and its error, which add up to the exact sum (Knuth)."""
    s = a + r
    part = s - a
    return s, (a - (s - part)) + (r - part)


def sum_down(a: Array, r: Array | float) -> Array:
    """Return the largest float that is not above ``a + r``."""
    s, error = _sum(a, r)
    return np.where(error < 0.0, np.nextafter(s, -np.inf), s)


def sum_up(a: Array, r: Array | float) -> Array:
    """Return the smallest float that is not below ``a + r``."""
    s, error = _sum(a, r)
    return np.where(error > 0.0, np.nextafter(s, np.inf), s)


def _beyond(values: Array, moved: Array, radius: float) -> Mask:
    """Test exactly if each of ``moved`` is farther than ``radius`` from ``values``.

    The exact difference of two floats is ``d + e``, with d the rounded difference and e its error,
    so the comparison is exact.
    """
    d = moved - values
    part = moved - d
    e = (moved - (d + part)) + (part - values)
    beyond: Mask = (np.abs(d) > radius) | ((np.abs(d) == radius) & (e * np.sign(d) > 0.0))
    return beyond


def _within(values: Array, moved: Array, radius: float) -> Array:
    """Return ``moved``, stepped back by single floats if rounding left the radius."""
    while (outside := _beyond(values, moved, radius)).any():
        moved = np.where(outside, np.nextafter(moved, values), moved)
    return moved


def hull_of(layers: Sequence[Layer]) -> LayerBox:
    """Return the smallest box that contains some layers of the same shape."""
    W, b = np.array([layer.W for layer in layers]), [layer.b for layer in layers]
    bias = None if b[0] is None else np.array(b)
    return LayerBox(
        Layer(W.min(axis=0), None if bias is None else bias.min(axis=0)),
        Layer(W.max(axis=0), None if bias is None else bias.max(axis=0)),
    )
