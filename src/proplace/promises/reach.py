r"""The largest delta for which a retrained model would still prove a promise.

A new network :math:`\theta` honours a promise. How much may :math:`\theta` itself move before it need
not any more? The largest :math:`\delta` with

.. math::
    \min_{\|\theta' - \theta\|_\infty \le \delta} \; \min_{x \in B} \mathrm{margin}_{\theta'}(x) \ge m

is looked for on a ladder of deltas, by halving, for all promises at once: those that ask for the same
delta are tested together. Each step up is a proof, so that what is said is always a lower bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import certify, lower_margins
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.loaders.model import Model

    Proves = Callable[[float, npt.NDArray[np.intp]], npt.NDArray[np.bool_]]

LADDER = tuple(
    float(f"{digits}e{power}") for power in range(-5, 1) for digits in (1, 1.5, 2, 3, 5, 7)
)
"""Deltas that are tried."""

_FINE = 16  # steps between two of them, where it is to be exact


def largest_delta(
    model: Model, target: int, points: Array, low: Array, high: Array, *, exact: bool = False
) -> Array:
    """The largest delta of a ladder for which each box is proved; 0 where none is.

    Parameters
    ----------
    model, target
        The retrained model on these rows, and the class.
    points, low, high
        Encoded rows, and the ends of the boxes around them.
    exact
        By the exact test on a finer ladder (2.5% from rung to rung) instead of quick bounds.
    """
    net = model.network

    def quickly(delta: float, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        shifts = Shifts.of(net, delta)
        asked = model.margins(shifts, points[rows], None, (low[rows], high[rows]))
        return lower_margins(net, shifts, target, low[rows], high[rows]) >= asked

    def exactly(delta: float, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        shifts = Shifts.of(net, delta)
        box = (low[rows], high[rows]) if (low[rows] < high[rows]).any() else None
        asked = np.broadcast_to(model.margins(shifts, points[rows], None, box), len(rows)).copy()
        return certify(net, points[rows], shifts, target, margin=asked, box=box).robust

    ladder = np.array(LADDER)
    found = _climb(ladder, quickly, np.zeros(len(points), dtype=np.intp))
    if not exact:
        return np.concatenate([[0.0], ladder])[found]
    rungs = np.arange(len(ladder) - 1)[:, None] + np.arange(_FINE) / _FINE
    fine = np.exp(np.interp(rungs.ravel(), np.arange(len(ladder)), np.log(ladder)))
    fine = np.append(fine, ladder[-1])
    fine[::_FINE] = ladder
    start = np.where(found > 0, (found - 1) * _FINE + 1, 0)
    return np.concatenate([[0.0], fine])[_climb(fine, exactly, start)]


def _climb(ladder: Array, proves: Proves, start: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Number of the highest rung that each row is proved for, from 1; 0 where it is none.

    Halving: rung ``low`` is proved (or is 0), and ``high`` is not (or is beyond the ladder).
    """
    low, high = start.copy(), np.full(len(start), len(ladder) + 1)
    while (open_ := high - low > 1).any():
        middle = (low + high) // 2
        for rung in np.unique(middle[open_]):
            rows = np.flatnonzero(open_ & (middle == rung))
            good = proves(float(ladder[rung - 1]), rows)
            low[rows[good]], high[rows[~good]] = rung, rung
    return low
