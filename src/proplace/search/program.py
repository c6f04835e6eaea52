r"""One piece of the region, and the distance, as one linear program.

Each run starts from the last basis. With a base point :math:`v_0` (the input x if it is a vertex,
otherwise the first vertex),

.. math::
    x' = v_0 + D^\top \lambda + g, \qquad \lambda \ge 0,\ \textstyle\sum \lambda \le 1, \qquad
    g^- \le g \le g^+ ,

where the rows of D are the other vertices minus :math:`v_0`, and g is 0 for a hull. A box has no D,
and g covers all free columns. A linear function of :math:`x'` then has its extremes at vertices.
Points farther than an incumbent are not needed, and by convexity :math:`\mathrm{dist}(x') \ge
\mathrm{dist}(p) + s_p (x' - p)` for any p, so a half-space can cut them off: the extremes move to
vertices inside it and to its intersections with edges.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from proplace.core.errors import SolverError
from proplace.schema.person import TOLERANCE
from proplace.solvers import INF, QUICKEST, LinearProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array
    from proplace.region.pieces import ConvexPiece
    from proplace.search.problem import SearchProblem


@dataclass(frozen=True, eq=False)
class Halfspace:
    """The half-space ``slope . x' <= side``, or over the vertices ``reach . mu <= limit``."""

    slope: Array
    side: float
    reach: Array
    limit: float


@dataclass(frozen=True, eq=False)
class Polytope:
    """The piece as ``base + D' lambda + g``, cut to its ``halfspaces``.

    The piece lies in the simplex of ``corners``: the base, and ``base + scales_l D_l``.
    """

    problem: SearchProblem
    piece: ConvexPiece
    base: Array
    D: Array
    g_low: Array
    g_high: Array
    g_columns: npt.NDArray[np.intp]
    halfspaces: tuple[Halfspace, ...]
    scales: Array
    corners: Array

    @classmethod
    def of(cls, problem: SearchProblem, piece: ConvexPiece) -> Polytope:
        """Build the polytope of the whole piece."""
        x = problem.x
        if piece.vertices is None:
            base, D = np.clip(x, piece.lower, piece.upper), np.zeros((0, len(x)))
            low, high = piece.lower - base, piece.upper - base
        else:
            own = np.flatnonzero((piece.vertices == x).all(axis=1))
            first = int(own[0]) if len(own) else 0
            base = piece.vertices[first]
            D = np.delete(piece.vertices, first, axis=0) - base
            low = high = np.zeros(len(x))
        return cls(
            problem,
            piece,
            base,
            D,
            low,
            high,
            np.flatnonzero(low < high),
            (),
            *_simplex(base, D, ()),
        )

    @property
    def size(self) -> int:
        """Number of variables: lambda, then g."""
        return len(self.D) + len(self.g_columns)

    def functional(self, C: Array) -> Array:
        """Return the coefficients over the variables of the functions ``C x'`` (rows of C)."""
        return np.hstack([C @ self.D.T, C[:, self.g_columns]])

    def point(self, variables: Array) -> Array:
        """Return the point of given variables."""
        point = self.base + variables[: len(self.D)] @ self.D
        point[self.g_columns] += variables[len(self.D) :]
        return np.clip(point, self.piece.lower, self.piece.upper)

    def keeps_rules(self, points: Array) -> npt.NDArray[np.bool_]:
        """Test if each point satisfies the linear rules."""
        rows = points @ self.piece.A.T
        low, high = self.piece.row_lower - TOLERANCE, self.piece.row_upper + TOLERANCE
        return cast("npt.NDArray[np.bool_]", ((rows >= low) & (rows <= high)).all(axis=-1))

    def within(self, distance: float, points: Sequence[Array]) -> Polytope:
        """Return the part of the region nearer than ``distance``, by supporting cuts at points.

        Bounds of :meth:`least` then hold only on the half-spaces ``slope . x' <= side``.
        """
        halfspaces = tuple(self._halfspace(distance, point) for point in points)
        scales, corners = _simplex(self.base, self.D, halfspaces)
        return replace(self, halfspaces=halfspaces, scales=scales, corners=corners)

    def _halfspace(self, distance: float, point: Array) -> Halfspace:
        x, measure = self.problem.x, self.problem.distance
        slope = measure.subgradient(x, point)
        side = distance - float(measure.between(x, point)) + float(slope @ point)
        g = np.where(slope > 0.0, self.g_low, self.g_high)
        reach = np.concatenate([[0.0], self.D @ slope])
        limit = side - float(slope @ self.base) - float(slope[g != 0.0] @ g[g != 0.0])
        return Halfspace(slope, side, reach, limit)

    @property
    def empty(self) -> bool:
        """True if a cut leaves nothing."""
        return any((cut.reach > cut.limit).all() for cut in self.halfspaces)

    def box_contribution(self, C: Array) -> Array:
        """Compute the largest contribution of the free columns of a box to the functions ``C x'``."""
        g = np.where(C > 0.0, self.g_high, np.where(C < 0.0, self.g_low, 0.0))
        result: Array = (C * g).sum(axis=1)
        return result

    def least(self, C: Array) -> Array:
        """Bound the functions ``C x'`` from below."""
        at_base = C @ self.base
        scores = np.hstack([np.zeros((len(C), 1)), C @ self.D.T])
        best = scores.min(axis=1)
        for cut in self.halfspaces:
            best = np.maximum(best, _least_in_halfspace(scores, cut.reach, cut.limit))
        result: Array = at_base + best - self.box_contribution(-C)
        return result

    def range(self, C: Array) -> tuple[Array, Array]:
        """Bound the functions ``C x'`` on both sides."""
        both = self.least(np.vstack([C, -C]))
        return both[: len(C)], -both[len(C) :]


def _simplex(base: Array, D: Array, halfspaces: Sequence[Halfspace]) -> tuple[Array, Array]:
    """Return factors s and corners: the piece lies in the simplex of base and base + s_l D_l.

    If the base lies inside a cut with positive reach to all other vertices, the cut itself is such
    a simplex. Otherwise the vertices are used (s = 1).
    """
    scales = np.ones(len(D))
    for cut in halfspaces:
        if cut.limit > 0.0 and (cut.reach[1:] > 1e-3 * cut.limit).all():
            scales = cut.limit / cut.reach[1:]
            break
    return scales, np.vstack([base, base + scales[:, None] * D])


def _least_in_halfspace(scores: Array, reach: Array, limit: float) -> Array:
    """Minimise ``scores . mu`` over the simplex cut by ``reach . mu <= limit``.

    An optimum uses one vertex inside, or one inside and one outside, mixed to meet the limit.
    """
    inside = reach <= limit
    if inside.all():
        lowest: Array = scores.min(axis=1)
        return lowest
    if not inside.any():
        return np.full(len(scores), np.inf)
    near, far = scores[:, inside], scores[:, ~inside]
    share = (limit - reach[inside])[:, None] / (reach[~inside][None, :] - reach[inside][:, None])
    mixed = near[:, :, None] * (1.0 - share) + far[:, None, :] * share
    result: Array = np.minimum(near.min(axis=1), mixed.min(axis=(1, 2)))
    return result


class DeadlineReached(Exception):
    """The deadline has come."""


def check_deadline(deadline: float) -> None:
    """Raise DeadlineReached if the deadline has come."""
    if time.monotonic() >= deadline:
        raise DeadlineReached


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
    """A linear program for the nearest point of a polytope, under cuts that are added later.

    ``counts`` accumulates the solved programs.
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
        if not len(low):  # a single point: HiGHS rejects a model without columns
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
        """Add the objective: linear if the sign of a difference is fixed, otherwise in two parts."""
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
        """Deactivate a row permanently."""
        self.lp.set_row_bounds(row, -INF, INF)

    def nearest(self) -> LpPoint | None:
        """Solve, or return None if infeasible. Raises DeadlineReached or SolverError."""
        self.counts.programs += 1
        verdict = self.lp.solve(self.deadline)
        if verdict == "infeasible":
            return None
        if verdict == "late":
            raise DeadlineReached
        if verdict == "failed":
            raise SolverError("HiGHS did not solve a linear program with any of its settings")
        self.counts.iterations += self.lp.iterations
        values = self.lp.values
        objective = self.lp.objective + self.offset
        region = values[: self.polytope.size]
        return LpPoint(objective, values, self.polytope.point(region))
