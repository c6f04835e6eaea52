"""The state of one search: the only owner of mutable values while the tree grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.search.oracle import Verdict
from proplace.search.program import LpCounts, Polytope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array
    from proplace.region.pieces import ConvexPiece
    from proplace.search.oracle import Oracle, Scenario
    from proplace.search.problem import SearchProblem


# A known scenario refutes a point without an exact test if it lies this far below the margin.
REFUTED_BELOW = 1e-4


@dataclass(frozen=True, eq=False)
class Incumbent:
    """A point that has passed the exact test."""

    point: Array
    distance: float


class SearchState:
    """The incumbent, the rest of the region, the known scenarios, and the counts of one search.

    Attributes
    ----------
    incumbent
        The nearest robust point so far, even if it is not nearer than the cutoff: then it is no
        solution, but a local search can still start from it.
    upper
        Exclusive upper limit on the distance of a solution: that of the incumbent, or the cutoff.
    prune_at
        Nodes with a bound at or above this are pruned, because they improve by less than the gap.
    polytope
        The piece, cut to points nearer than ``prune_at`` (with an allowance for rounding).
    scenarios
        Every scenario by which an exact test has refuted a point.
    unresolved_bound, solver_failure
        The smallest bound of a node after a solver failure, and a description of the failure.
        Nothing is concluded about the points of such a node.
    nodes, rounds, counts
        Nodes of the tree, scenarios added to relaxations, and the linear programs of the tree.
    """

    def __init__(
        self,
        problem: SearchProblem,
        piece: ConvexPiece,
        oracle: Oracle,
        *,
        cutoff: float = np.inf,
        deadline: float = np.inf,
    ) -> None:
        self.problem, self.piece, self.oracle = problem, piece, oracle
        self.cutoff, self.deadline = cutoff, deadline
        self.polytope = Polytope.of(problem, piece)
        self.incumbent: Incumbent | None = None
        self._set_upper(cutoff)
        self.scenarios: list[Scenario] = []
        self.unresolved_bound, self.solver_failure = np.inf, ""
        self.nodes = self.rounds = 0
        self.counts = LpCounts()

    # -- the incumbent -----------------------------------------------------------------------

    @property
    def point(self) -> Array | None:
        """The incumbent's point, if it is nearer than the cutoff."""
        found = self.incumbent
        return found.point if found is not None and found.distance < self.cutoff else None

    @property
    def distance(self) -> float:
        """Distance of the incumbent, or inf without one."""
        return np.inf if self.incumbent is None else self.incumbent.distance

    def offer(self, point: Array, distance: float) -> None:
        """Make a point that passed the exact test the incumbent if it is nearer."""
        if distance < self.distance:
            self.incumbent = Incumbent(point, distance)
            self._set_upper(min(self.cutoff, distance))

    def _set_upper(self, upper: float) -> None:
        self.upper = upper
        self.prune_at = upper * (1.0 - self.problem.gap) if np.isfinite(upper) else upper

    # -- the rest of the region --------------------------------------------------------------

    def cut(self) -> None:
        """Cut the polytope to points nearer than ``prune_at``: all other nodes are pruned anyway."""
        if not np.isfinite(self.upper):
            return
        points = [] if self.point is None else [self.point]
        if self.piece.vertices is not None:
            points.append(self.piece.vertices.mean(axis=0))
        self.polytope = self.polytope.within(self.prune_at * (1.0 + 1e-9) + 1e-12, points)

    # -- scenarios ---------------------------------------------------------------------------

    def worst_at_incumbent(self, scenarios: Sequence[Scenario], count: int) -> list[Scenario]:
        """Return the scenarios with the smallest margins at the incumbent, or the first ones."""
        point = self.point
        if point is None:
            return list(scenarios[:count])
        values = [float(scenario.value(point)) for scenario in scenarios]
        return [scenarios[i] for i in sorted(np.argsort(values, kind="stable")[:count])]

    def test(self, point: Array, scenarios: Sequence[Scenario]) -> Verdict:
        """Test a point that satisfies some scenarios exactly, unless a known scenario refutes it."""
        known = [scenario for scenario in self.scenarios if scenario not in scenarios]
        values = [float(scenario.value(point)) for scenario in known]
        if values and min(values) < self.problem.margin - REFUTED_BELOW:
            return Verdict(False, known[int(np.argmin(values))])
        tested = self.oracle.test(point, self.deadline)
        if tested.scenario is not None:
            self.scenarios.append(tested.scenario)
        return tested

    # -- nodes without a verdict -------------------------------------------------------------

    def leave_open(self, bound: float, solver_failure: str) -> None:
        """Leave a node open permanently."""
        self.unresolved_bound = min(self.unresolved_bound, bound)
        self.solver_failure = self.solver_failure or solver_failure
