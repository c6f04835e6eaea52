"""The region and the distance as one linear program, each run of which starts from the last basis."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import SolverError
from proplace.solvers import INF, QUICKEST, LinearProgram

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.search.polytope import Polytope


class Late(Exception):
    """The deadline has come."""


def check_time(deadline: float) -> None:
    """Raise Late if the deadline has come."""
    if time.monotonic() >= deadline:
        raise Late


@dataclass(frozen=True, eq=False)
class LpPoint:
    """Solution of the program: its objective, all variables, and the point."""

    objective: float
    variables: Array
    point: Array


@dataclass
class LpCounts:
    """Linear programs solved, and the simplex iterations over all of them."""

    programs: int = 0
    iterations: int = 0


class Program:
    """The nearest point of a polytope, under cuts that are added as it goes.

    The programs that are solved are added to ``counts``.
    """

    def __init__(
        self,
        polytope: Polytope,
        *,
        deadline: float = np.inf,
        counts: LpCounts | None = None,
    ) -> None:
        self.polytope, self.problem, self.deadline = polytope, polytope.problem, deadline
        self.lp = LinearProgram(QUICKEST)
        self.counts = LpCounts() if counts is None else counts
        self._add_region()
        self._add_distance()

    def _add_region(self) -> None:
        polytope, piece = self.polytope, self.polytope.piece
        m, g = len(polytope.D), polytope.g_columns
        low = np.concatenate([np.zeros(m), polytope.g_low[g]])
        high = np.concatenate([np.ones(m), polytope.g_high[g]])
        self.lp.add_columns(low, high, np.zeros(len(low)))
        if not len(low):  # a single point; HiGHS does not answer about a model without columns
            self.lp.add_columns(np.zeros(1), np.zeros(1), np.zeros(1))
        self.region = np.arange(polytope.size, dtype=np.int32)
        if m:
            ones = np.concatenate([np.ones(m), np.zeros(len(g))])[None]
            self.lp.add_rows(np.array([-INF]), np.array([1.0]), ones, self.region)
        if len(piece.A):
            start = piece.A @ polytope.base
            self.lp.add_rows(
                piece.row_lower - start,
                piece.row_upper - start,
                polytope.functional(piece.A),
                self.region,
            )

        for cut in polytope.halfspaces:  # the bounds of neurons hold on this side only
            side = np.array([cut.side - float(cut.slope @ polytope.base)])
            self.lp.add_rows(
                np.array([-INF]), side, polytope.functional(cut.slope[None]), self.region
            )

    def _add_distance(self) -> None:
        """Add the objective: linear where the sign of a difference is known, else by parts."""
        polytope, x = self.polytope, self.problem.x
        C = np.eye(len(x))
        low, high = polytope.range(C)
        low, high, start = low - x, high - x, polytope.base - x
        w = self.problem.distance.weights
        sign = np.where(low >= 0.0, 1.0, np.where(high <= 0.0, -1.0, 0.0))
        known = sign != 0.0
        cost = (sign * w)[None] @ C
        self.offset = float((sign * w) @ start)
        slopes = polytope.functional(cost)[0]
        self.lp.set_costs(self.region, slopes)
        mixed = np.flatnonzero(~known & (w > 0.0))
        if len(mixed):
            n = len(mixed)
            first = self.lp.add_columns(
                np.zeros(2 * n), np.full(2 * n, INF), np.concatenate([w[mixed], w[mixed]])
            )
            columns = np.concatenate([self.region, np.arange(first, first + 2 * n, dtype=np.int32)])
            A = np.hstack([polytope.functional(C[mixed]), -np.eye(n), np.eye(n)])
            self.lp.add_rows(-start[mixed], -start[mixed], A, columns)

    def add_cut(self, gradient: Array, side: float) -> int:
        """Add ``gradient . x' >= side``."""
        A = self.polytope.functional(gradient[None])
        low = side - float(gradient @ self.polytope.base)
        return self.lp.add_rows(np.array([low]), np.array([INF]), A, self.region)

    def relax_row(self, row: int) -> None:
        """Take a row out of force for good."""
        self.lp.set_row_bounds(row, -INF, INF)

    def nearest(self) -> LpPoint | None:
        """Solve; None if nothing is left. Late at the deadline, SolverError without an answer."""
        self.counts.programs += 1
        verdict = self.lp.solve(self.deadline)
        if verdict == "infeasible":
            return None
        if verdict == "late":
            raise Late
        if verdict == "failed":
            raise SolverError(
                "HiGHS gave no answer to a linear program, whichever way it was asked"
            )
        self.counts.iterations += self.lp.iterations
        values = self.lp.values
        objective = self.lp.objective + self.offset
        region = values[: self.polytope.size]
        return LpPoint(objective, values, self.polytope.point(region))
