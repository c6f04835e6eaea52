"""One subproblem: a tightened relaxation and a tree, split in two if the tree grows large.

The tree branches on the decision with the largest gain that its pseudo-costs expect.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import SolverError
from proplace.search.program import check_deadline
from proplace.search.relaxation import Relaxation, tighten

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from proplace.core.network import Array
    from proplace.search.local import LocalSearch
    from proplace.search.oracle import Scenario
    from proplace.search.problem import SearchProblem
    from proplace.search.program import LpPoint
    from proplace.search.ranges import Limits
    from proplace.search.relaxation import Decision
    from proplace.search.state import SearchState


VIOLATION_TOLERANCE = 1e-10  # violation of a ReLU that counts as rounding


class PseudoCosts:
    """Pseudo-costs: the increase of the bound per unit of violated ReLU after a decision.

    A neuron without decisions gets the mean of the others.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, Hashable], tuple[float, int]] = {}
        self.total, self.count = 0.0, 0

    def update(self, decision: Decision, gain: float) -> None:
        """Record the increase after the last decision of a node."""
        kind, key, violation = decision
        if not np.isfinite(gain):
            return
        rate = max(gain, 0.0) / violation
        before, count = self.sums.get((kind, key), (0.0, 0))
        self.sums[kind, key] = (before + rate, count + 1)
        self.total, self.count = self.total + rate, self.count + 1

    def order(self, relaxation: Relaxation, violation: Array) -> list[int]:
        """Sort the neurons that violate their ReLU, the most promising first."""
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
    pseudo_costs: PseudoCosts,
    solution: LpPoint,
    decisions: tuple[Decision, ...],
) -> tuple[Decision, Decision] | None:
    """Return the two sides to branch on, first the one nearer to the point.

    Returns None if the point satisfies every scenario.
    """
    margin = problem.search_margin - 1e-9
    if any(float(each.value(solution.point)) < margin for each in relaxation.scenarios):
        violation = relaxation.violations(solution)
        for _, which, _ in decisions:
            relaxation.clear_violation(which, violation)
        order = pseudo_costs.order(relaxation, violation)
        if order:
            key, above = relaxation.neurons[order[0]].key, float(violation[order[0]])
            active, inactive = ("active", key, above), ("inactive", key, above)
            up = relaxation.leans_up(order[0], solution)
            return (active, inactive) if up else (inactive, active)
    return None


# From this number of unstable neurons on, work that shrinks the tree pays off: tightening, a second
# local search, another cut. Below, the tree alone is faster.
FEW_OPEN = 10
TIGHTENING_ROUNDS = 12  # largest number for one subproblem
# The rounds end when one leaves more than this share of the gap and of the unstable neurons.
STALLED_SHARE = 0.85
# If a round leaves less than this share of the unstable neurons, the program is rebuilt without the
# others.
REBUILD_SHARE = 0.8
# Up to this number of scenarios the neurons of a new one are tightened at once.
TIGHTENED_SCENARIOS = 3
# Simplex iterations that the tree may take before its subproblem is split: a share of the iterations
# that the tightening took, but no fewer than the first number.
LEAST_ITERATIONS = 300
ITERATION_SHARE = 0.1
# Largest number of nodes of a subproblem that are split after a solver failure.
MOST_SPLITS_WITHOUT_SOLUTION = 64
WORTH_CUTTING = 1e-2  # relative gain of the incumbent that justifies a new cut of the polytope
# Relative gap between a relaxation and the incumbent that justifies a local search.
WORTH_IMPROVING = 5e-3


class Fathomed(Exception):
    """The subproblem contains nothing nearer than the incumbent."""


@dataclass(frozen=True, eq=False)
class Child:
    """One of the two sides of a split subproblem: a bound on its distance, and its limits."""

    bound: float
    limits: Limits


class Subproblem:
    """The points whose pre-activations lie within ``limits``, at a distance of ``bound`` or more."""

    def __init__(
        self,
        state: SearchState,
        local: LocalSearch,
        child: Child,
        scenarios: Sequence[Scenario],
    ) -> None:
        self.state, self.local = state, local
        self.bound = child.bound
        self.relaxation = self._relaxed(child.limits, scenarios)
        self.pseudo_costs = PseudoCosts()
        self.splits_without_solution = 0  # of nodes after a solver failure
        self.stop_at = float(state.counts.iterations + LEAST_ITERATIONS)
        self.failed: Array | None = None  # the last point that a test refuted

    def _relaxed(self, limits: Limits, scenarios: Sequence[Scenario]) -> Relaxation:
        """Build a relaxation with all current knowledge."""
        state = self.state
        return Relaxation(
            state.polytope,
            state.problem.search_margin,
            limits,
            scenarios,
            deadline=state.deadline,
            counts=state.counts,
        )

    @property
    def many_open(self) -> bool:
        """True if enough neurons are unstable to justify bound tightening."""
        return self.relaxation.undecided >= FEW_OPEN

    def explore(self) -> list[Child]:
        """Search for the nearest robust point, or return two children if the tree grows too large.

        ``bound`` rises to the smallest distance of the rest. Raises DeadlineReached.
        """
        try:
            if self.many_open:
                self._tighten(0)
            return self._grow()
        except Fathomed:
            self.bound = np.inf
            return []

    # -- tightening --------------------------------------------------------------------------

    def _tighten(self, first: int) -> None:
        """Tighten the ranges of the neurons, from number ``first`` on.

        The work limit of the tree before a split depends on the cost of the tightening.
        """
        counts = self.state.counts
        before = counts.iterations
        self._tighten_in_rounds(first)
        now = counts.iterations
        share = ITERATION_SHARE * (now - before)
        self.stop_at = now + max(LEAST_ITERATIONS, share)

    def _tighten_in_rounds(self, first: int) -> None:
        """Tighten round by round.

        Each round, and each better incumbent, makes the next round stronger.
        """
        state, gap = self.state, np.inf
        for _ in range(TIGHTENING_ROUNDS):
            before = self.relaxation.undecided
            if before < FEW_OPEN or not np.isfinite(state.upper):
                return
            if not tighten(self.relaxation, state.prune_at, first):
                raise Fathomed
            if self.relaxation.undecided < REBUILD_SHARE * before:
                self.relaxation = self._relaxed(self.relaxation.limits, self.relaxation.scenarios)
            try:
                solution = self.relaxation.solve(())
            except SolverError:  # further rounds only save time
                return
            if solution is None or solution.objective >= state.prune_at:
                raise Fathomed
            better = self._improve(solution)
            left, last = self.relaxation.undecided, gap
            gap = 1.0 - solution.objective / max(state.upper, 1e-12)
            stalled = gap > STALLED_SHARE * last and left > STALLED_SHARE * before and not better
            if stalled:
                return
            if state.polytope.empty:
                raise Fathomed
            first = 0

    # -- the incumbent -----------------------------------------------------------------------

    def _improve(self, solution: LpPoint) -> bool:
        """Use a relaxation for a better incumbent, and return True if it justified a new cut."""
        state = self.state
        worth = state.upper * (1.0 - WORTH_IMPROVING)
        if state.point is None or solution.objective >= worth:
            return False
        before = state.upper
        self.local.improve(solution.point)
        return self._cut_if_worth(before)

    def _cut_if_worth(self, before: float) -> bool:
        """Cut the polytope again if ``upper`` has fallen enough since it was ``before``."""
        if self.state.upper >= before * (1.0 - WORTH_CUTTING):
            return False
        self.state.cut()
        return True

    # -- the tree ----------------------------------------------------------------------------

    def _grow(self) -> list[Child]:
        """Grow a tree over the signs of neurons.

        From the node with the smallest bound it goes straight down, always to the side nearer to
        the relaxation's solution, so each linear program starts from a nearby basis. After a solver
        failure a node is not fathomed: it is split anyway, or left open permanently.
        """
        state, ticket = self.state, itertools.count(1)
        heap: list[tuple[float, int, tuple[Decision, ...]]] = [(self.bound, 0, ())]
        while heap:
            bound, _, decisions = heapq.heappop(heap)
            while bound < state.prune_at:
                self.bound = min(bound, heap[0][0]) if heap else bound
                check_deadline(state.deadline)
                if state.counts.iterations >= self.stop_at:
                    children = self._split()
                    if children:
                        return children
                    self.stop_at = np.inf
                state.nodes += 1
                try:
                    solution = self._solve(decisions, bound)
                    if solution is None:
                        break
                    bound = max(bound, solution.objective)
                    chosen = choose(
                        state.problem, self.relaxation, self.pseudo_costs, solution, decisions
                    )
                    if chosen is None:
                        if self._passes(solution):
                            break
                        continue  # with another scenario
                except SolverError as error:
                    chosen = self._choose_without_solution(decisions)
                    if chosen is None:
                        state.leave_open(bound, str(error))
                        break
                heapq.heappush(heap, (bound, next(ticket), (*decisions, chosen[1])))
                decisions = (*decisions, chosen[0])
            if heap and heap[0][0] >= state.prune_at:
                break
        raise Fathomed

    def _solve(self, decisions: tuple[Decision, ...], bound: float) -> LpPoint | None:
        """Solve a node, or return None if it contains nothing nearer."""
        solution = self.relaxation.solve(decisions)
        if decisions:
            value = np.inf if solution is None else solution.objective
            self.pseudo_costs.update(decisions[-1], min(value, self.state.prune_at) - bound)
        if solution is None or solution.objective >= self.state.prune_at:
            return None
        return solution

    def _choose_without_solution(
        self, decisions: tuple[Decision, ...]
    ) -> tuple[Decision, Decision] | None:
        """Return two sides without a solution: those of the neuron with the largest effect."""
        decided, limits = {which for _, which, _ in decisions}, self.relaxation.limits
        neurons = [
            neuron
            for neuron in self.relaxation.neurons
            if neuron.key not in decided and limits[neuron.key][0] < 0.0 < limits[neuron.key][1]
        ]
        if not neurons or self.splits_without_solution >= MOST_SPLITS_WITHOUT_SOLUTION:
            return None
        self.splits_without_solution += 1
        key = max(neurons, key=lambda neuron: neuron.weight).key
        return ("active", key, 1.0), ("inactive", key, 1.0)

    def _passes(self, solution: LpPoint) -> bool:
        """Test a point that satisfies all scenarios exactly, and add a scenario if it fails."""
        state, relaxation = self.state, self.relaxation
        if self.failed is not None and np.array_equal(self.failed, solution.point):
            raise SolverError("a scenario that excludes a point did not move the relaxation")
        point = state.problem.snap(solution.point)
        tested = state.test(point, relaxation.scenarios)
        if tested.robust:
            distance = float(state.problem.distance.between(state.problem.x, point))
            state.offer(point, distance)
            return True
        if tested.scenario is None:
            check_deadline(state.deadline)
            raise SolverError("the exact test of a point ended without a verdict")
        self.failed, first = solution.point, len(relaxation.neurons)
        relaxation.add_scenario(tested.scenario, state.polytope)
        state.rounds += 1
        if self.many_open and self._improve(solution):
            first = 0
        few = len(relaxation.scenarios) <= TIGHTENED_SCENARIOS
        if few and len(relaxation.neurons) - first >= FEW_OPEN:
            self._tighten(first)
        return False

    def _split(self) -> list[Child]:
        """Split at the neuron with the largest expected increase of the bound."""
        relaxation = self.relaxation
        try:
            solution = relaxation.solve(())
        except SolverError:
            return []
        if solution is None:
            raise Fathomed
        order = self.pseudo_costs.order(relaxation, relaxation.violations(solution))
        if not order:
            return []
        key = relaxation.neurons[order[0]].key
        low, high = relaxation.limits[key]
        return [
            Child(self._bound_under((kind, key, 1.0)), {**relaxation.limits, key: side})
            for kind, side in (("active", (0.0, high)), ("inactive", (low, 0.0)))
        ]

    def _bound_under(self, decision: Decision) -> float:
        """Bound the side of the subproblem in which a decision holds."""
        try:
            there = self.relaxation.solve((decision,))
        except SolverError:
            return self.bound
        return np.inf if there is None else max(self.bound, there.objective)
