"""Optimisation-based bound tightening (OBBT): ranges of the neurons over the relaxation itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from proplace.search.relaxation import Relaxation


# The end of a range stays as it is if a solution comes within this share of the range, since little can
# be gained there.
RANGE_REACHED = 0.15


def tighten(relaxation: Relaxation, cutoff: float, first: int = 0) -> bool:
    """Tighten the neurons of a relaxation, from number ``first`` on.

    This is optimisation-based bound tightening (OBBT): each pre-activation is minimised and
    maximised over all points of the relaxation that keep the margin and are nearer than ``cutoff``.
    A new bound is put into force at once, so that each neuron profits from those before it. The next
    bound to improve is always the one that is nearest to the last solution, which takes few
    iterations. Bounds that a solution has (almost) reached are left as they are, and at the deadline
    all others, too. False: there are no such points.
    """
    with relaxation.without_objective(cutoff):
        return _tighten_in_turn(relaxation, first)


def _tighten_in_turn(relaxation: Relaxation, first: int) -> bool:
    neurons = relaxation.neurons
    ends = np.array([relaxation.limits[neuron.key] for neuron in neurons]).reshape(-1, 2).T.copy()
    todo = np.tile((ends[0] < 0.0) & (ends[1] > 0.0), (2, 1))
    todo[:, :first] = False
    away, scale = np.ones_like(ends), 1.0 / np.maximum(ends[1] - ends[0], 1e-12)
    while todo.any() and time.monotonic() < relaxation.deadline:
        side, number = divmod(int(np.where(todo, away, np.inf).argmin()), len(neurons))
        todo[side, number] = False
        neuron, sign = neurons[number], 1.0 - 2.0 * side
        value = relaxation.least(neuron, sign)
        if value is None:
            return False
        if np.isinf(value):
            continue
        z = relaxation.pre_activations()
        if value > sign * ends[side, number]:
            ends[side, number] = sign * value
            low, high = float(ends[0, number]), float(ends[1, number])
            relaxation.limit(neuron, low, high)
            todo[:, number] &= low < 0.0 < high
            scale[number] = 1.0 / max(high - low, 1e-12)
        # how far the solution is from the ends, in widths of the ranges
        np.subtract(z, ends[0], out=away[0])
        np.subtract(ends[1], z, out=away[1])
        away *= scale
        todo &= away > RANGE_REACHED
    return True
