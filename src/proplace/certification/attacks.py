"""Attacks on points by cheap concrete shifts, and the exact test of one point.

The search for robust points uses both. An attack gives an upper bound on the worst-case margin in
microseconds, by a concrete network of Delta that need not be the worst one. A test is exact and
records its proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification.batched_bnb import first_bounds
from proplace.certification.bounds import Abstraction, WorstCaseProblem
from proplace.certification.engine import FULL, Rows, traced_least_values
from proplace.certification.input_boxes import InputBoxes
from proplace.certification.lp_bnb import refine_attack
from proplace.certification.proofs import Evidence
from proplace.core.guarantee import around

if TYPE_CHECKING:
    from proplace.certification.bounds import ActivationBounds
    from proplace.certification.engine import Budget
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts

_STEPS = 3  # gradient steps that improve an attack


@dataclass(frozen=True, eq=False)
class Attack:
    """A shift that lowers the margin of one point, described by its activations.

    Attributes
    ----------
    u
        The point in the inputs of the first layer. With a tolerance, the row of the larger network.
    objective
        Index of the objective that it lowers.
    hidden
        Activations of each hidden layer. They determine the shift.
    low, high
        The exact box of the first hidden activations over Delta, or None without hidden layers.
    """

    u: Array
    objective: int
    hidden: tuple[Array, ...]
    low: Array | None = None
    high: Array | None = None


class PointRobustness:
    """Attacks and tests of points, for one network, its shift set and a target class.

    ``tolerance`` holds the allowed miss of each column below and above. With it, a shift includes a
    miss: it is a shift of the larger network of :class:`InputBoxes`, and activations are those of
    the larger network.
    """

    def __init__(
        self, net: Network, shifts: Shifts, target: int, tolerance: Array | None = None
    ) -> None:
        self.boxes = None if tolerance is None else InputBoxes(net, shifts)
        self.tolerance = tolerance
        if self.boxes is not None:
            net, shifts = self.boxes.net, self.boxes.shifts
        self.net, self.shifts = net, shifts
        self.objectives = net.objectives(target)
        self._abstraction = Abstraction(net, shifts)
        self._linear = [self._abstraction.objective(c) for c in self.objectives]

    def upper_bounds(self, points: Array) -> Array:
        """Bound the worst-case margin of each point from above, by concrete shifts."""
        U = self._seen(points)
        if self.net.widths:
            found = self._attacked(U, self._abstraction.interval_bounds(U), steps=1)
            values = [value for value, _ in found]
        else:
            values = [self._abstraction.linear_minimum(U, c) for c in self.objectives]
        lowest: Array = np.min(values, axis=0)
        return lowest

    def attack(self, points: Array) -> list[Attack]:
        """Find a shift that hurts each point, not necessarily the worst."""
        U = self._seen(points)
        if not self.net.widths:
            values = [self._abstraction.linear_minimum(U, c) for c in self.objectives]
            worst = np.argmin(values, axis=0)
            return [Attack(u, int(index), ()) for u, index in zip(U, worst, strict=True)]
        activations = self._abstraction.interval_bounds(U)
        found = self._attacked(U, activations, steps=_STEPS)
        attacks = []
        for i, index in enumerate(np.argmin([value for value, _ in found], axis=0)):
            hidden = tuple(layer[i] for layer in found[index][1])
            low, high = activations.low[i], activations.high[i]
            attacks.append(Attack(U[i], int(index), hidden, low, high))
        return attacks

    def test(
        self,
        point: Array,
        threshold: float,
        deadline: float = np.inf,
        budget: Budget = FULL,
    ) -> Evidence:
        """Bound the worst-case margin of a point, tightly enough to decide against a threshold.

        Bounds on both sides of the threshold mean that a limit was reached before a verdict.
        """
        rows = Rows(self._seen(point), np.array([threshold]), deadline, budget)
        found, trace = traced_least_values(self._abstraction, rows, self.objectives)
        box = None if self.tolerance is None else around(point, self.tolerance)
        return Evidence(point, float(found.lower[0]), float(found.upper[0]), trace, box)

    def worst_attack(self, tested: Evidence, *, refine: bool = False) -> Attack:
        """Return the worst shift of a test, made worse by gradient steps.

        With ``refine``, a linear program finds the worst shift with the same signs.
        """
        U, trace = self._seen(tested.point), tested.trace
        index, hidden, activations = int(trace.worst[0]), list(trace.hidden), trace.activations
        if activations is None:
            return Attack(U[0], index, ())
        objective = self._linear[index]
        value = hidden[-1] @ objective.a + objective.const
        _, hidden = self._abstraction.sharpen(activations, *objective, value, hidden, _STEPS)
        if refine:
            problem = WorstCaseProblem(self._abstraction, activations, U, objective)
            _, hidden = refine_attack(problem, hidden)
        layers = tuple(layer[0] for layer in hidden)
        return Attack(U[0], index, layers, activations.low[0], activations.high[0])

    def _seen(self, points: Array) -> Array:
        """Map points to the inputs of the first layer."""
        if self.tolerance is not None:
            points = InputBoxes.rows(*around(np.atleast_2d(points), self.tolerance))
        return self.net.transform(points)

    def _attacked(
        self, U: Array, activations: ActivationBounds, steps: int
    ) -> list[tuple[Array, list[Array]]]:
        """Return value and activations of one attack per objective, improved by gradient steps."""
        found = []
        for objective in self._linear:
            first = first_bounds(WorstCaseProblem(self._abstraction, activations, U, objective))
            found.append(
                self._abstraction.sharpen(activations, *objective, first.upper, first.hidden, steps)
            )
        return found
