r"""The default search: one best-first tree over ReLU signs and grid values.

Algorithm 1 of the paper alternates a mixed-integer program over a growing set of shifts with the
search for the worst shift. Here both happen in one tree:

1. a local search gives an incumbent, and the polytope is cut to what is nearer than it;
2. the relaxation starts with the worst shift at the incumbent alone (any subset of Delta is a
   relaxation, the original network is not needed); where many neurons are open, their ranges are
   tightened over the relaxation itself, round by round, and again as the tree grows;
3. the node with the least distance is solved; a point that satisfies all copies is put to the exact
   test. If it is robust, it is the nearest of its node; if not, the shift that breaks it joins the
   same linear program as new rows, and the node is solved again;
4. otherwise the node is split at the neuron that violates its ReLU most, or at a grid value.

The distance of a node only grows along the tree, so the least open node is a lower bound on the
distance of any robust point.
"""

from __future__ import annotations

import heapq
import itertools
import time
from typing import TYPE_CHECKING

import numpy as np

from proplace.distances import L1, LInf
from proplace.errors import SolverError
from proplace.search.local import LocalSearch
from proplace.search.oracle import Oracle
from proplace.search.polytope import Polytope
from proplace.search.problem import Outcome
from proplace.search.relaxation import Relaxation

if TYPE_CHECKING:
    from collections.abc import Hashable

    from proplace.network import Array
    from proplace.search.oracle import Shifted
    from proplace.search.ranges import Limits
    from proplace.search.problem import Piece, Problem
    from proplace.search.program import LpPoint
    from proplace.search.relaxation import Decision

GAP = 1e-7
"""Relative gap at which an answer counts as optimal."""

# How much work goes where; measured on networks of 2x10 to 2x200, and not sharp.
ROUNDS = 12  # of tightening, at most
STALLED = 0.85
SHRUNK = 0.9
ROOT_SHIFTS = 3  # shifts up to which a new one is tightened at once
LEAST_WORK = 300
WORK = 0.1
PROBES = 4
PART_SHIFTS = 20
MANY = 16  # open neurons
FEW = 10  # open neurons below which the tree is quicker than anything that would shrink it
FIRST_SHIFTS = 1
BINDING = 1e-4  # difference of margins up to which two shifts count as tied
WORTH_TIGHTENING = 1e-2  # gain of the incumbent that makes a new cut worth its work
WORTH_IMPROVING = 5e-3  # gap that makes a local search worth its work
MOST_TANGENTS = 5_000
_GRID_TOLERANCE = 1e-7


def solve(
    problem: Problem,
    piece: Piece,
    *,
    cutoff: float = np.inf,
    deadline: float = np.inf,
    oracle: Oracle | None = None,
) -> Outcome:
    """Find the nearest robust point of a piece that is nearer than ``cutoff``.

    Status ``infeasible`` then means: none that is nearer.
    """
    return _Tree(problem, piece, cutoff, deadline, oracle or Oracle(problem)).run()


class _Gains:
    """What decisions have brought: the rise of the bound per unit of violated ReLU, per side.

    A neuron that was never decided counts with the mean of the others.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, Hashable], tuple[float, int]] = {}
        self.total, self.count = 0.0, 0

    def note(self, decision: Decision, gain: float) -> None:
        kind, key, violation = decision
        if kind not in ("active", "inactive") or not np.isfinite(gain):
            return
        rate = max(gain, 0.0) / violation
        before, count = self.sums.get((kind, key), (0.0, 0))
        self.sums[kind, key] = (before + rate, count + 1)
        self.total, self.count = self.total + rate, self.count + 1

    def score(self, key: Hashable, violation: float) -> float:
        mean = self.total / self.count if self.count else 1.0
        result = 1.0
        for kind in ("active", "inactive"):
            total, count = self.sums.get((kind, key), (mean, 1))
            result *= max(total / count * violation, 1e-12)
        return result


class _Tree:
    def __init__(
        self, problem: Problem, piece: Piece, cutoff: float, deadline: float, oracle: Oracle
    ) -> None:
        self.problem, self.piece, self.deadline, self.oracle = problem, piece, deadline, oracle
        self.polytope = Polytope(problem, piece)
        self.local = LocalSearch(problem, self.polytope, oracle)
        self.point: Array | None = None
        self.best = cutoff
        self.nodes = self.rounds = 0
        self.exhausted = False
        self.bound = 0.0  # least bound of the open nodes
        self.tangents = 0
        self.gains = _Gains()
        self.late = False
        self.stop_at=300
        self.explored = self.programs = 0

    def run(self) -> Outcome:
        self.local.start(self.deadline)
        self._begin()
        if self.polytope.empty:
            return self._outcome(np.inf)
        if self.relaxation.undecided >= FEW:  # a better incumbent is worth some work
            self.local.refine(self.deadline)
            self._begin()
        try:
            lower = self._parts()
        except SolverError:
            if self.point is None:
                raise
            lower = self.bound
        return self._outcome(lower)

    def _parts(self) -> float:
        """Explore part by part, the nearest first; returns the proved lower bound."""
        ticket = itertools.count(1)
        parts: list[tuple[float, int, Limits, list[Shifted]]] = []
        bound, relaxation = 0.0, self.relaxation
        while True:
            self.relaxation, self.bound, self.gains = relaxation, bound, _Gains()
            self.late = False
            self.stop_at = LEAST_WORK
            lower, split = self._explore()
            self.explored += 1
            self.programs += self.relaxation.solves
            if self.late:
                return min(lower, parts[0][0]) if parts else lower
            if lower < self._enough():
                copies = self._binding()
                for value, limits in split:
                    if value < self._enough():
                        item = (max(lower, value), next(ticket), limits, copies)
                        heapq.heappush(parts, item)
            if not parts:
                return np.inf
            bound, _, limits, copies = heapq.heappop(parts)
            if bound >= self._enough() or self.polytope.empty:
                return bound
            relaxation = Relaxation(self.polytope, self.problem.search_margin, limits, copies)

    def _binding(self) -> list[Shifted]:
        copies = self.relaxation.copies
        if self.point is None: return copies[:ROOT_SHIFTS]
        values = np.array([float(copy.value(self.point)) for copy in copies])
        order = np.argsort(values, kind="stable")[:PART_SHIFTS]
        return [copies[i] for i in sorted(order)]

    def _explore(self) -> tuple[float, list[tuple[float, Limits]]]:
        """Tighten, then grow a tree as long as that is quicker than to split the part."""
        if self.relaxation.undecided >= FEW and not self._tighten(0):
            return np.inf, []
        return self._grow()

    def _begin(self) -> None:
        """Set the relaxation up for what is nearer than the incumbent."""
        self._take(self.local)
        self._cut_polytope()
        copies = [] if self.polytope.empty else self._first_shifts()
        self.relaxation = Relaxation(self.polytope, self.problem.search_margin, copies=copies)
        self.rounds += len(copies)

    def _take(self, local: LocalSearch) -> None:
        if local.point is not None and local.distance < self.best:
            self.point, self.best = local.point, local.distance

    def _cut_polytope(self) -> None:
        """Look only at what is nearer than the incumbent (a little farther, against rounding)."""
        if not np.isfinite(self.best):
            return
        self.polytope.tangents.clear()
        reach = self.best * (1.0 + 1e-9) + 1e-12
        vertices = self.piece.vertices
        points = [] if self.point is None else [self.point]
        if vertices is not None:
            points.append(vertices.mean(axis=0))
        for point in points:
            self.polytope.closer_than(reach, point)

    def _first_shifts(self) -> list[Shifted]:
        """Start with the shifts that bind at the incumbent."""
        if self.point is None:
            start = self.local.program.nearest()
            return [] if start is None else [self.oracle.worst_seen(start.point)]
        candidates = [self.oracle.worst_seen(self.point), *self.local.shifts]
        values = np.array([float(shifted.value(self.point)) for shifted in candidates])
        order = np.argsort(values, kind="stable")
        return [
            candidates[i] for i in order[:FIRST_SHIFTS] if values[i] <= values[order[0]] + BINDING
        ]

    def _tighten(self, first: int) -> bool:
        before = self.relaxation.work
        result = self._rounds(first)
        now = self.relaxation.work
        self.stop_at = now + max(LEAST_WORK, WORK * (now - before))
        return result

    def _rounds(self, first: int) -> bool:
        """Rounds of tightening; False: nothing nearer exists.

        Each round makes the next one stronger, and so does a better incumbent. When a round brings
        little and much of the gap is left, another shift joins, which cuts the region further.
        """
        gap = np.inf
        for _ in range(ROUNDS):
            before = self.relaxation.undecided
            if before < FEW or not np.isfinite(self.best):
                break
            which = range(first, len(self.relaxation.neurons))
            if not self.relaxation.tighten(self.best, which, deadline=self.deadline):
                return False
            if self.relaxation.undecided < SHRUNK * before:
                self.relaxation = self.relaxation.rebuilt()
            solution = self.relaxation.solve(())
            if solution is None or solution.objective >= self._enough():
                return False
            better = self.point is not None and self._improve(solution)
            if self.polytope.empty:
                return False
            left, last = self.relaxation.undecided, gap
            gap = 1.0 - solution.objective / self.best
            stalled = gap > STALLED * last and left > STALLED * before and not better
            if stalled and not self._refine():
                break
            first = 0
        return True

    def _improve(self, solution: LpPoint) -> bool:
        """Let the relaxation point to a better incumbent; True if it is worth a closer cut."""
        before = self.best
        if solution.objective >= before * (1.0 - WORTH_IMPROVING):
            return False
        self.local.improve(solution.centre, self.deadline)
        self._take(self.local)
        if self.best >= before * (1.0 - WORTH_TIGHTENING):
            return False
        self._cut_polytope()
        return True

    def _refine(self) -> bool:
        """Look for a better incumbent elsewhere; True if one is worth a closer cut."""
        before = self.best
        while self.relaxation.undecided >= MANY and self.local.refine(self.deadline):
            self._take(self.local)
            if self.best < before * (1.0 - WORTH_TIGHTENING):
                self._cut_polytope()
                return True
        return False

    def _add(self, shifted: Shifted) -> None:
        self.relaxation.add_copy(shifted)
        self.rounds += 1

    def _grow(self) -> tuple[float, list[tuple[float, Limits]]]:
        """Run the tree; returns the proved lower bound, and how to split what was not finished.

        From the node with the least bound it goes straight down, always to the side that the
        relaxation leans to, so that each linear program starts from a near-by basis.
        """
        ticket = itertools.count(1)
        heap: list[tuple[float, int, tuple[Decision, ...]]] = [(self.bound, 0, ())]
        while heap:
            bound, _, decisions = heapq.heappop(heap)
            self.bound = bound
            while bound < self._enough():
                if time.monotonic() >= self.deadline:
                    self.late = True
                    return (min(bound, heap[0][0]) if heap else bound), []
                if self.relaxation.work >= self.stop_at:
                    split = self._halves()
                    if split:
                        return (min(bound, heap[0][0]) if heap else bound), split
                    self.stop_at = np.inf
                self.nodes += 1
                solution, split = self._solve_node(decisions, bound)
                if self.exhausted:
                    self.exhausted = False
                    return np.inf, []
                if solution is None:
                    break
                bound = max(bound, solution.objective)
                if split is None:  # the deadline came first
                    self.late = True
                    return (min(bound, heap[0][0]) if heap else bound), []
                heapq.heappush(heap, (bound, next(ticket), (*decisions, split[1])))
                decisions = (*decisions, split[0])
            if heap and heap[0][0] >= self._enough():
                return heap[0][0], []
        return np.inf, []

    def _halves(self) -> list[tuple[float, Limits]]:
        """Split the part at the neuron that promises most."""
        solution = self.relaxation.solve(())
        if solution is None:
            return []
        violation = self.relaxation.violations(solution)
        candidates = np.flatnonzero(violation > 1e-10)
        if not len(candidates):
            return []
        scores = [
            self.gains.score(self.relaxation.neurons[i].key, float(violation[i]))
            for i in candidates
        ]
        limits = self.relaxation.limits
        best, found = -1.0, []
        for i in candidates[np.argsort(scores)[::-1][:PROBES]]:
            key = self.relaxation.neurons[i].key
            low, high = limits[key]
            sides = []
            for kind, side in (("active", (0.0, high)), ("inactive", (low, 0.0))):
                there = self.relaxation.solve(((kind, key, 1.0),))
                value = np.inf if there is None else there.objective
                sides.append((value, {**limits, key: side}))
            gains = [max(min(v, self._enough()) - solution.objective, 1e-9) for v, _ in sides]
            if gains[0] * gains[1] > best:
                best, found = gains[0] * gains[1], sides
        return found

    def _enough(self) -> float:
        return self.best - GAP * max(1e-3, self.best) if np.isfinite(self.best) else np.inf

    def _solve_node(
        self, decisions: tuple[Decision, ...], bound: float
    ) -> tuple[LpPoint | None, tuple[Decision, ...] | None]:
        """Solve a node, adding shifts and tangents as needed; (None, None) when it is closed."""
        failed: Array | None = None
        solved = False
        while True:
            solution = self.relaxation.solve(decisions)
            if decisions and not solved:
                value = np.inf if solution is None else solution.objective
                self.gains.note(decisions[-1], min(value, self._enough()) - bound)
                solved = True
            if solution is None or solution.objective >= self._enough():
                return None, None
            if self._tangent(solution):
                if time.monotonic() >= self.deadline:
                    return solution, None
                continue
            split = self._split(solution, decisions)
            if split is not None:
                return solution, split
            if failed is not None and np.array_equal(failed, solution.point):
                raise SolverError("a shift that excludes a point did not move the relaxation")
            point = self.problem.snap(solution.point)
            robust, shifted = self._test(point)
            if robust:
                distance = float(self.problem.distance.between(self.problem.x, point))
                self.local.keep(point, solution.centre, distance)
                self._take(self.local)
                return None, None
            if shifted is None:
                return solution, None
            failed = solution.point
            first = len(self.relaxation.neurons)
            self._add(shifted)
            if shifted not in self.local.shifts:
                self.local.shifts.append(shifted)
            hard = self.point is not None and self.relaxation.undecided >= FEW
            if hard and self._improve(solution):
                first = 0
            few = len(self.relaxation.copies) <= ROOT_SHIFTS
            if few and len(self.relaxation.neurons) - first >= FEW and not self._tighten(first):
                self.exhausted = True
                return None, None

    def _test(self, point: Array) -> tuple[bool, Shifted | None]:
        """The exact test, asked only where every shift met so far agrees."""
        known = [shifted for shifted in self.local.shifts if shifted not in self.relaxation.copies]
        values = [float(shifted.value(point)) for shifted in known]
        if values and min(values) < self.problem.margin - BINDING:
            return False, known[int(np.argmin(values))]
        return self.oracle.test(point, self.deadline)

    def _tangent(self, solution: LpPoint) -> bool:
        measure = self.problem.distance
        if isinstance(measure, (L1, LInf)):
            return False
        true = float(measure.between(self.problem.x, solution.point))
        if true <= solution.objective + 1e-8 * max(1.0, true) or self.tangents >= MOST_TANGENTS:
            return False
        self.tangents += 1
        self.relaxation.add_tangent(solution.point)
        return True

    def _split(
        self, solution: LpPoint, decisions: tuple[Decision, ...]
    ) -> tuple[Decision, ...] | None:
        """The decision to branch on, or None if the point satisfies every copy and grid."""
        point = solution.point
        worst, column = _GRID_TOLERANCE, -1
        below: Decision | None = None
        above: Decision | None = None
        for i in self.relaxation.grid_rows:
            grid, value = self.problem.grids[i], float(point[i])
            away = abs(value - grid.nearest(value)) / max(grid.room * 2.0, 1e-12)
            if away <= worst:
                continue
            # Neighbours on the grid, so that each side moves on; a side that is in force already
            # leaves rounding, which is not worth a decision.
            low, high = grid.around(value)
            sides = ("below", i, low), ("above", i, high)
            if low < high and not any(side in decisions for side in sides):
                worst, column, (below, above) = away, i, sides
        margin = self.problem.search_margin - 1e-9
        satisfied = all(float(copy.value(point)) >= margin for copy in self.relaxation.copies)
        if satisfied and column < 0:
            return None
        if not satisfied:
            violation = self.relaxation.violations(solution)
            for kind, which, _ in decisions:
                if kind in ("active", "inactive"):
                    self.relaxation.settle(which, violation)
            pick = self._pick(violation)
            if pick >= 0:
                key, above_relu = self.relaxation.neurons[pick].key, float(violation[pick])
                active, inactive = ("active", key, above_relu), ("inactive", key, above_relu)
                leans_up = self.relaxation.leans_up(pick, solution)
                return (active, inactive) if leans_up else (inactive, active)
            if column < 0:
                return None
        assert below is not None and above is not None  # noqa: S101, PT018
        leans_up = self.problem.grids[column].nearest(float(point[column])) > point[column]
        return (above, below) if leans_up else (below, above)

    def _pick(self, violation: Array) -> int:
        """The neuron whose decision promises most; -1 if none violates its ReLU."""
        candidates = np.flatnonzero(violation > 1e-10)
        if not len(candidates):
            return -1
        scores = [
            self.gains.score(self.relaxation.neurons[i].key, float(violation[i]))
            for i in candidates
        ]
        return int(candidates[int(np.argmax(scores))])

    def _outcome(self, lower: float) -> Outcome:
        counts = {"nodes": self.nodes, "programs": self.programs, "rounds": self.rounds}
        if self.point is None:
            status = "infeasible" if lower >= self.best else "unknown"
            return Outcome(None, np.inf, lower, status, **counts)  # type: ignore[arg-type]
        done = lower >= self._enough()
        return Outcome(
            self.point,
            self.best,
            min(lower, self.best),
            "optimal" if done else "feasible",
            **counts,
        )
