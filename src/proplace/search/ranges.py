r"""Ranges of the neurons of one shifted network over a polytope.

Two relaxations bound each neuron, and the better bound is used. For each layer, a pass *backward*
bounds its pre-activations by linear functions of :math:`x'`. One pass *forward* through all layers
works on the vertices of a simplex around the polytope: a convex function lies below the
interpolation of its values at the vertices, so with :math:`\underline v \le v \le \bar v` affine
and :math:`z = W v + b`,

.. math::
    \max(0, z) \le \max(0, W^+ \bar v + W^- \underline v + b), \qquad
    \max(0, z) \ge \alpha (W^+ \underline v + W^- \bar v + b), \quad \alpha \in \{0, 1\} ,

where the right sides, evaluated at the vertices and interpolated, are the next :math:`\bar v` and
:math:`\underline v`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Hashable

    from proplace.core.network import Array
    from proplace.search.oracle import Scenario
    from proplace.search.program import Polytope

Limits = dict["Hashable", tuple[float, float]]
Mask = npt.NDArray[np.bool_]
Bounds = list[tuple["Array", "Array"]]


@dataclass(frozen=True, eq=False)
class Ranges:
    r"""Bounds of the neurons of a shifted network, layer by layer.

    ``bounds`` are those of the pre-activations. ``tops`` are the values of :math:`\bar v` at the
    corners of the simplex. ``conditional`` marks signs that follow from the limits alone. These
    hold only for points of interest (robust, nearer than the incumbent, in this branch of the
    tree), so a linear program must enforce them as rows.
    """

    bounds: Bounds
    tops: list[Array]
    conditional: list[Mask]


def key_of(shifted: Scenario, layer: int, k: int) -> Hashable:
    """Name a neuron. Equal neurons of the first layer have one name in all scenarios."""
    if layer > 0:
        return (shifted, layer, k)
    W, b = shifted.layers[0]
    return (W[k].tobytes(), float(b[k]))


def ranges_of(polytope: Polytope, shifted: Scenario, limits: Limits) -> Ranges:
    """Bound the neurons over the polytope, within ``limits``."""
    bounds: Bounds = []
    tops: list[Array] = []
    conditional: list[Mask] = []
    top = bottom = polytope.corners
    for layer, (W, b) in enumerate(shifted.layers):
        C, const = _to_input(shifted, bounds, np.vstack([W, -W]), np.concatenate([b, -b]))
        least = polytope.least(C) + const
        low, high = least[: len(W)], -least[len(W) :]
        above, below = _through(W, b, top, bottom)
        if layer == 0:
            above, below = (
                above + polytope.box_contribution(W),
                below - polytope.box_contribution(-W),
            )
        else:
            low, high = np.maximum(low, below.min(axis=0)), np.minimum(high, above.max(axis=0))
            # sums of activations with weights >= 0
            low = np.where((W >= 0.0).all(axis=1), np.maximum(low, b), low)
        conditional.append(np.zeros(len(W), np.bool_))
        if limits:
            for k in np.flatnonzero((low < 0.0) & (high > 0.0)):
                known = limits.get(key_of(shifted, layer, int(k)))
                if known is not None:
                    low[k], high[k] = max(low[k], known[0]), min(high[k], known[1])
                    conditional[-1][k] = low[k] >= 0.0 or high[k] <= 0.0
        bounds.append((low, high))
        dead, active = high <= 0.0, low >= 0.0
        top = np.where(dead, 0.0, np.where(active, above, np.maximum(above, 0.0)))
        bottom = np.where(active | (~dead & (high >= -low)), below, 0.0)
        tops.append(top)
    return Ranges(bounds, tops, conditional)


def _through(W: Array, b: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
    """Bound ``W v + b`` from above and below."""
    positive = np.maximum(W, 0.0)
    negative = W - positive
    above: Array = top @ positive.T + bottom @ negative.T + b
    below: Array = bottom @ positive.T + top @ negative.T + b
    return above, below


def _to_input(shifted: Scenario, bounds: Bounds, A: Array, const: Array) -> tuple[Array, Array]:
    """Bound ``A v + const`` from below by ``C x' + const``, v the layer after ``bounds``."""
    for (W, b), (low, high) in zip(
        reversed(shifted.layers[: len(bounds)]), reversed(bounds), strict=True
    ):
        open_ = (low < 0.0) & (high > 0.0)
        chord = np.where(open_, high / np.where(open_, high - low, 1.0), low >= 0.0)
        lower = np.where(open_, high >= -low, low >= 0.0)
        negative = np.minimum(A, 0.0)
        const = const + (negative * np.where(open_, -chord * low, 0.0)).sum(axis=1)
        A = negative * chord + (A - negative) * lower
        const = const + A @ b
        A = A @ W
    return A, const


def needs_of(shifted: Scenario, ranges: Ranges) -> list[tuple[Mask, Mask]]:
    """For each layer, find the neurons to bound from above, and those to bound from below.

    Helpful neurons must be bounded from above, harmful ones from below, and so on through the
    active neurons. A conditional sign needs its pre-activation bounded on the other side.
    """
    needs: list[tuple[Mask, Mask]] = [(shifted.a > 0.0, shifted.a < 0.0)]
    for layer in range(len(shifted.layers) - 1, 0, -1):
        W, (low, high), conditional = (
            shifted.layers[layer][0],
            ranges.bounds[layer],
            ranges.conditional[layer],
        )
        upper = (needs[0][0] & (high > 0.0)) | (conditional & (low >= 0.0))
        lower = (needs[0][1] & (high > 0.0)) | (conditional & (low < 0.0))
        positive, negative = W > 0.0, W < 0.0
        above = (positive & upper[:, None]) | (negative & lower[:, None])
        below = (negative & upper[:, None]) | (positive & lower[:, None])
        needs.insert(0, (cast("Mask", above.any(axis=0)), cast("Mask", below.any(axis=0))))
    return needs[: len(shifted.layers)]


def weights_of(shifted: Scenario, bounds: Bounds) -> list[Array]:
    """Bound the effect of each activation on the objective."""
    weights = [np.abs(shifted.a)]
    for layer in range(len(shifted.layers) - 1, 0, -1):
        W, alive = shifted.layers[layer][0], bounds[layer][1] > 0.0
        weights.insert(0, (weights[0] * alive) @ np.abs(W))
    return weights[: len(shifted.layers)]
