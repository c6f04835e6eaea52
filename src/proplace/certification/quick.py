r"""Lower bounds on worst margins, by one backward pass for each row.

For very many rows at once, where a bound that is sound and quick is worth more than an exact one. Of a
box of inputs :math:`|x - c| \le r` the first layer sees :math:`|u - u_c| \le \rho`, and for parameters
within their intervals

.. math::
    W u + b \ge \min_{W, b} (W u_c + b) - \max |W|\, \rho ,

so that the activations of the first layer have a box, from which the pass goes on as for a point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.certification.bounds import Abstraction, ActivationBounds, start_slopes

if TYPE_CHECKING:
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts

_ROWS = 4_096  # at once
_OUTWARD = 2.0**-44  # relative: far more than the roundings on the way to a radius


def lower_margins(net: Network, shifts: Shifts, target: int, low: Array, high: Array) -> Array:
    """Bound the margin for the target from below, over Delta and over the inputs between two ends.

    What is returned is a lower bound in real numbers: all rounding is taken off it.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Shifts
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> row = np.array([[1.0, 0.0]])
    >>> lower_margins(net, Shifts.of(net, 0.05), 1, row, row).round(6)
    array([1.055])
    """
    abstraction, objectives = Abstraction(net, shifts), net.objectives(target)
    found = np.empty(len(low))
    for start in range(0, len(low), _ROWS):
        rows = slice(start, start + _ROWS)
        found[rows] = _bounds(abstraction, objectives, low[rows], high[rows])
    return found


def _bounds(abstraction: Abstraction, objectives: Array, low: Array, high: Array) -> Array:
    front = abstraction.net.input_map
    boxed = bool((low < high).any())
    centre = low + (high - low) / 2.0 if boxed else low
    U, size = front(centre), front.size(centre)
    radius = _radius(abstraction.net, low, high, size) if boxed else np.zeros_like(U)
    values = np.full(len(U), np.inf)
    with np.errstate(all="ignore"):
        if abstraction.net.widths:
            root = _activations(abstraction, U, radius)
            slopes = start_slopes(root)
            for c in objectives:
                found = abstraction.backward(root, *abstraction.objective(c), slopes)
                values = np.minimum(values, found.value)
        else:
            weights, _ = abstraction.shifts.layers[0].size
            for c in objectives:
                lost = (radius @ weights.T) @ np.abs(c)
                values = np.minimum(values, abstraction.linear_minimum(U, c) - lost)
        none = np.zeros(len(U))
        sums = None if front.matrix is None else size
        error = abstraction.roundoff.error(np.abs(U) + radius, objectives, none, sums)
        result: Array = values - (2.0 * error if boxed else error)
    return np.where(np.isfinite(result), result, -np.inf)


def _radius(net: Network, low: Array, high: Array, size: Array) -> Array:
    """How far what the first layer sees can be from the middle of each box; rounded up."""
    front = net.input_map
    reach = (high - low) / 2.0
    if front.scale is not None:
        reach = reach * np.abs(front.scale)
    moved = reach if front.matrix is None else reach @ np.abs(front.matrix).T
    result: Array = moved + net.inputs * _OUTWARD * (size + moved)
    return result


def _activations(abstraction: Abstraction, U: Array, radius: Array) -> ActivationBounds:
    """Bounds of all activations, from those of the first layer."""
    first = abstraction.shifts.layers[0]
    lost = radius @ first.size[0].T
    least, most = first.preactivations(U)
    low, high = np.maximum(least - lost, 0.0), np.maximum(most + lost, 0.0)
    start, ranges = (low, high), []
    for inner in abstraction.inner:
        found = inner.range(low, high)
        ranges.append(found)
        low, high = np.maximum(found.L_min, 0.0), np.maximum(found.U_max, 0.0)
    return ActivationBounds(*start, tuple(ranges))
