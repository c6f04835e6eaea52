"""Which decision to branch on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable

    from proplace.core.network import Array
    from proplace.search.problem import SearchProblem
    from proplace.search.program import LpPoint
    from proplace.search.relaxation import Decision, Relaxation


VIOLATION_TOLERANCE = 1e-10  # violation of a ReLU that is rounding


class Gains:
    """Pseudo-costs: the rise of the bound per unit of violated ReLU that a decision has brought.

    A neuron that was never decided counts with the mean of the others.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, Hashable], tuple[float, int]] = {}
        self.total, self.count = 0.0, 0

    def note(self, decision: Decision, gain: float) -> None:
        """Learn what the last decision of a node has brought."""
        kind, key, violation = decision
        if not np.isfinite(gain):
            return
        rate = max(gain, 0.0) / violation
        before, count = self.sums.get((kind, key), (0.0, 0))
        self.sums[kind, key] = (before + rate, count + 1)
        self.total, self.count = self.total + rate, self.count + 1

    def order(self, relaxation: Relaxation, violation: Array) -> list[int]:
        """Numbers of the neurons that violate their ReLU, the most promising first."""
        numbers = np.flatnonzero(violation > VIOLATION_TOLERANCE)
        scores = [self._score(relaxation.neurons[i].key, float(violation[i])) for i in numbers]
        return [int(numbers[i]) for i in np.argsort(-np.array(scores), kind="stable")]

    def _score(self, key: Hashable, violation: float) -> float:
        mean = self.total / self.count if self.count else 1.0
        result = 1.0
        for kind in ("active", "inactive"):
            total, count = self.sums.get((kind, key), (mean, 1))
            result *= max(total / count * violation, 1e-12)
        return result


def choose(
    problem: SearchProblem,
    relaxation: Relaxation,
    gains: Gains,
    solution: LpPoint,
    decisions: tuple[Decision, ...],
) -> tuple[Decision, Decision] | None:
    """The two sides to branch on, first the one that the point leans to.

    None: the point satisfies every scenario.
    """
    margin = problem.search_margin - 1e-9
    if any(float(each.value(solution.point)) < margin for each in relaxation.scenarios):
        violation = relaxation.violations(solution)
        for _, which, _ in decisions:
            relaxation.clear_violation(which, violation)
        order = gains.order(relaxation, violation)
        if order:
            key, above = relaxation.neurons[order[0]].key, float(violation[order[0]])
            active, inactive = ("active", key, above), ("inactive", key, above)
            up = relaxation.leans_up(order[0], solution)
            return (active, inactive) if up else (inactive, active)
    return None
