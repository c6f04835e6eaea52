"""What the parts of one search share: the incumbent, the shifts met, and what is nearer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.search.local import LocalSearch
from proplace.search.polytope import Polytope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.network import Array
    from proplace.search.oracle import Oracle, Shifted
    from proplace.search.problem import Piece, Problem
    from proplace.search.program import LpPoint

GAP = 1e-7
"""Relative gap at which an answer counts as optimal."""

BROKEN = 1e-4  # below the margin, where a shift met before settles a test
WORTH_CUTTING = 1e-2  # gain of the incumbent that makes a new cut worth its work
WORTH_IMPROVING = 5e-3  # gap that makes a local search worth its work


class Hunt:
    """The incumbent, the polytope of what is nearer, and what had to be left open.

    ``lost`` is the least bound of a node on which the solver gave no answer, ``trouble`` says what
    was the matter: nothing may be concluded of the points of such a node.
    """

    def __init__(
        self, problem: Problem, piece: Piece, cutoff: float, deadline: float, oracle: Oracle
    ) -> None:
        self.problem, self.piece, self.deadline, self.oracle = problem, piece, deadline, oracle
        self.polytope = Polytope(problem, piece)
        self.local = LocalSearch(problem, self.polytope, oracle, deadline)
        self.point: Array | None = None
        self.best = cutoff
        self.lost, self.trouble = np.inf, ""
        self.nodes = self.programs = self.rounds = 0

    @property
    def enough(self) -> float:
        """Bound on the distance from which on nothing better is looked for."""
        return self.best - GAP * max(1e-3, self.best) if np.isfinite(self.best) else np.inf

    def take(self) -> None:
        """Take over the incumbent of the local search if it is nearer."""
        if self.local.point is not None and self.local.distance < self.best:
            self.point, self.best = self.local.point, self.local.distance

    def lose(self, bound: float, trouble: str) -> None:
        """Leave a node open for good."""
        self.lost, self.trouble = min(self.lost, bound), self.trouble or trouble

    def cut(self) -> None:
        """Look only at what is nearer than the incumbent (a little farther, against rounding)."""
        if not np.isfinite(self.best):
            return
        reach = self.best * (1.0 + 1e-9) + 1e-12
        points = [] if self.point is None else [self.point]
        if self.piece.vertices is not None:
            points.append(self.piece.vertices.mean(axis=0))
        self.polytope.look_within(reach, points)

    def first_shift(self) -> list[Shifted]:
        """The worst shift at the incumbent; without one, at the nearest point of the piece."""
        if self.point is None:
            start = self.local.nearest()
            return [] if start is None else self.oracle.worst_seen(start.point[None])
        return self.binding([*self.oracle.worst_seen(self.point[None]), *self.local.shifts], 1)

    def binding(self, shifts: Sequence[Shifted], count: int) -> list[Shifted]:
        """Those of the shifts that are worst at the incumbent."""
        if self.point is None:
            return list(shifts[:count])
        values = [float(shifted.value(self.point)) for shifted in shifts]
        return [shifts[i] for i in sorted(np.argsort(values, kind="stable")[:count])]

    def test(self, point: Array, copies: Sequence[Shifted]) -> tuple[bool, Shifted | None]:
        """The exact test, asked only where every shift met so far agrees."""
        known = [shifted for shifted in self.local.shifts if shifted not in copies]
        values = [float(shifted.value(point)) for shifted in known]
        if values and min(values) < self.problem.margin - BROKEN:
            return False, known[int(np.argmin(values))]
        robust, shifted = self.oracle.test(point, self.deadline)
        if shifted is not None:
            self.local.shifts.append(shifted)
        return robust, shifted

    def improve(self, solution: LpPoint) -> bool:
        """Let a relaxation point to a better incumbent; True if that was worth a new cut."""
        if self.point is None or solution.objective >= self.best * (1.0 - WORTH_IMPROVING):
            return False
        before = self.best
        self.local.improve(solution.centre)
        return self._cut_if_worth(before)

    def refine(self) -> bool:
        """Look for a better incumbent elsewhere; True if that was worth a new cut."""
        before = self.best
        while self.local.refine():
            if self._cut_if_worth(before):
                return True
        return False

    def _cut_if_worth(self, before: float) -> bool:
        self.take()
        if self.best >= before * (1.0 - WORTH_CUTTING):
            return False
        self.cut()
        return True
