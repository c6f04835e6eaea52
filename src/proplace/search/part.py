"""One part of the space: a tightened relaxation, and a tree over it as long as that is quick."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.distances import L1, LInf
from proplace.errors import SolverError
from proplace.search.branching import Gains, choose
from proplace.search.program import check_time
from proplace.search.relaxation import Relaxation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.network import Array
    from proplace.search.hunt import Hunt
    from proplace.search.oracle import Shifted
    from proplace.search.program import LpPoint
    from proplace.search.ranges import Limits
    from proplace.search.relaxation import Decision

# How much work goes where; measured on networks of 2x10 to 2x200, and not sharp.
FEW = 16  # open neurons below which the tree is quicker than anything that would shrink it
ROUNDS = 12  # of tightening, at most
STALLED = 0.85  # share of the gap and of the open neurons left by a round that brought little
SHRUNK = 0.8  # share of open neurons left at which the program is built anew, without the others
TIGHT_SHIFTS = 3  # shifts up to which a new one is tightened at once
LEAST_WORK = 300  # iterations of a tree before its part is split, at least,
WORK = 0.1  # and as a share of those that tightening has taken
PROBES = 4  # neurons that are tried before a part is split
MOST_TANGENTS = 5_000  # of one program
MOST_BLIND = 64  # nodes of a part that are split though the solver gave no answer, at most


class Closed(Exception):
    """Nothing nearer than the incumbent is left in the part."""


@dataclass(frozen=True, eq=False)
class Half:
    """A half of a part that was too much work: bounds of its neurons, and of its distance."""

    bound: float
    limits: Limits


class Part:
    """The points whose pre-activations lie within ``limits``, at a distance of ``bound`` or more."""

    def __init__(self, hunt: Hunt, bound: float, limits: Limits, copies: Sequence[Shifted]) -> None:
        self.hunt, self.bound = hunt, bound
        self.relaxation = Relaxation(
            hunt.polytope, hunt.problem.search_margin, limits, copies, deadline=hunt.deadline
        )
        self.gains = Gains()
        self.blind = 0  # nodes that were split without a solution
        self.stop_at = float(LEAST_WORK)
        self.failed: Array | None = None  # the last point that a test has refused

    @property
    def hard(self) -> bool:
        """Whether work that shrinks the tree is worth it."""
        return self.relaxation.undecided >= FEW

    def explore(self) -> list[Half]:
        """Look for the nearest robust point; returns halves where that is too much work at once.

        On the way ``bound`` rises to the least distance of what is left; Late when the deadline comes.
        """
        try:
            if self.hard:
                self._tighten(0)
            return self._grow()
        except Closed:
            self.bound = np.inf
            return []

    # -- tightening --------------------------------------------------------------------------

    def _tighten(self, first: int) -> None:
        """Tighten, from neuron number ``first`` on; the tree may then work a share of that."""
        before = self.relaxation.work
        self._rounds(first)
        now = self.relaxation.work
        self.stop_at = now + max(LEAST_WORK, WORK * (now - before))

    def _rounds(self, first: int) -> None:
        """Tighten round by round.

        Each round makes the next one stronger, and so does a better incumbent.
        """
        hunt, gap = self.hunt, np.inf
        for _ in range(ROUNDS):
            before = self.relaxation.undecided
            if before < FEW or not np.isfinite(hunt.best):
                return
            if not self.relaxation.tighten(hunt.best, first):
                raise Closed
            if self.relaxation.undecided < SHRUNK * before:
                self.relaxation = self.relaxation.rebuilt()
            try:
                solution = self.relaxation.solve(())
            except SolverError:  # the tree can do without more of this
                return
            if solution is None or solution.objective >= hunt.enough:
                raise Closed
            better = hunt.improve(solution)
            left, last = self.relaxation.undecided, gap
            gap = 1.0 - solution.objective / max(hunt.best, 1e-12)
            stalled = gap > STALLED * last and left > STALLED * before and not better
            if stalled and not (self.hard and hunt.refine()):
                return
            if hunt.polytope.empty:
                raise Closed
            first = 0

    # -- the tree ----------------------------------------------------------------------------

    def _grow(self) -> list[Half]:
        """Grow a tree over the signs of neurons and grid values.

        From the node with the least bound it goes straight down, always to the side that the
        relaxation leans to, so that each linear program starts from a near-by basis. A node that the
        solver gives no answer to is not closed: it is split all the same, or left open for good.
        """
        hunt, ticket = self.hunt, itertools.count(1)
        heap: list[tuple[float, int, tuple[Decision, ...]]] = [(self.bound, 0, ())]
        while heap:
            bound, _, decisions = heapq.heappop(heap)
            while bound < hunt.enough:
                self.bound = min(bound, heap[0][0]) if heap else bound
                check_time(hunt.deadline)
                if self.relaxation.work >= self.stop_at:
                    halves = self._halves()
                    if halves:
                        return halves
                    self.stop_at = np.inf
                hunt.nodes += 1
                try:
                    solution = self._solve(decisions, bound)
                    if solution is None:
                        break
                    bound = max(bound, solution.objective)
                    chosen = choose(hunt.problem, self.relaxation, self.gains, solution, decisions)
                    if chosen is None:
                        if self._settled(solution):
                            break
                        continue  # with another shift
                except SolverError as error:
                    chosen = self._choose_blindly(decisions)
                    if chosen is None:
                        hunt.lose(bound, str(error))
                        break
                heapq.heappush(heap, (bound, next(ticket), (*decisions, chosen[1])))
                decisions = (*decisions, chosen[0])
            if heap and heap[0][0] >= hunt.enough:
                break
        raise Closed

    def _solve(self, decisions: tuple[Decision, ...], bound: float) -> LpPoint | None:
        """Solve a node, adding tangents as needed; None: nothing nearer is left in it."""
        solution = self.relaxation.solve(decisions)
        if decisions:
            value = np.inf if solution is None else solution.objective
            self.gains.note(decisions[-1], min(value, self.hunt.enough) - bound)
        while solution is not None and solution.objective < self.hunt.enough:
            if not self._add_tangent(solution):
                return solution
            check_time(self.hunt.deadline)
            solution = self.relaxation.solve(decisions)
        return None

    def _choose_blindly(self, decisions: tuple[Decision, ...]) -> tuple[Decision, Decision] | None:
        """Two sides to branch on without a solution: those of the open neuron that can do most."""
        decided, limits = {which for _, which, _ in decisions}, self.relaxation.limits
        neurons = [
            neuron
            for neuron in self.relaxation.neurons
            if neuron.key not in decided and limits[neuron.key][0] < 0.0 < limits[neuron.key][1]
        ]
        if not neurons or self.blind >= MOST_BLIND:
            return None
        self.blind += 1
        key = max(neurons, key=lambda neuron: neuron.weight).key
        return ("active", key, 1.0), ("inactive", key, 1.0)

    def _add_tangent(self, solution: LpPoint) -> bool:
        """Add the tangent of the distance where the program underrates it."""
        measure = self.hunt.problem.distance
        if isinstance(measure, (L1, LInf)):
            return False
        true = float(measure.between(self.hunt.problem.x, solution.point))
        if true <= solution.objective + 1e-8 * max(1.0, true):
            return False
        if self.relaxation.tangents >= MOST_TANGENTS:
            raise SolverError("the distance takes more tangents than the search allows for")
        self.relaxation.add_tangent(solution.point)
        return True

    def _settled(self, solution: LpPoint) -> bool:
        """Put a point that satisfies all copies to the exact test; if it fails, its shift joins."""
        hunt, relaxation = self.hunt, self.relaxation
        if self.failed is not None and np.array_equal(self.failed, solution.point):
            raise SolverError("a shift that excludes a point did not move the relaxation")
        point = hunt.problem.snap(solution.point)
        robust, shifted = hunt.test(point, relaxation.copies)
        if robust:
            distance = float(hunt.problem.distance.between(hunt.problem.x, point))
            hunt.local.keep(point, solution.centre, distance)
            hunt.take()
            return True
        if shifted is None:
            check_time(hunt.deadline)
            raise SolverError("the exact test of a point ended without a verdict")
        self.failed, first = solution.point, len(relaxation.neurons)
        relaxation.add_copy(shifted)
        hunt.rounds += 1
        if self.hard and hunt.improve(solution):
            first = 0
        few = len(relaxation.copies) <= TIGHT_SHIFTS
        if few and len(relaxation.neurons) - first >= FEW:
            self._tighten(first)
        return False

    def _halves(self) -> list[Half]:
        """Split at the neuron whose decision raises the bound most, of a few that promise it."""
        relaxation, enough = self.relaxation, self.hunt.enough
        try:
            solution = relaxation.solve(())
        except SolverError:
            return []
        if solution is None:
            raise Closed
        best, halves = -1.0, []
        for i in self.gains.order(relaxation, relaxation.violations(solution))[:PROBES]:
            key = relaxation.neurons[i].key
            low, high = relaxation.limits[key]
            tried, product = [], 1.0
            for kind, side in (("active", (0.0, high)), ("inactive", (low, 0.0))):
                value = self._bound_under((kind, key, 1.0))
                tried.append(Half(value, {**relaxation.limits, key: side}))
                product *= max(min(value, enough) - solution.objective, 1e-9)
            if product > best:
                best, halves = product, tried
        return halves

    def _bound_under(self, decision: Decision) -> float:
        """Bound of the half of the part in which a decision holds."""
        try:
            there = self.relaxation.solve((decision,))
        except SolverError:
            return self.bound
        return np.inf if there is None else max(self.bound, there.objective)
