r"""A piece of the region in the variables of a linear program.

With a base point :math:`v_0` (the input x where it is a vertex, else the first vertex),

.. math::
    x' = v_0 + D^\top \lambda + g, \qquad \lambda \ge 0,\ \textstyle\sum \lambda \le 1, \qquad
    g^- \le g \le g^+ ,

where the rows of D are the other vertices minus :math:`v_0`, and g is 0 for a hull; a box has no D, and
g lives on all free columns. A linear function of :math:`x'` then has its extremes at
vertices. Points farther than an incumbent are of no interest, and by convexity
:math:`\mathrm{dist}(x') \ge \mathrm{dist}(p) + s_p (x' - p)` for any p, so they can be cut off by a
half-space: the extremes move to vertices inside of it and to the points where edges cross it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from proplace.schema.person import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array
    from proplace.region.convex_piece import ConvexPiece
    from proplace.search.problem import SearchProblem


@dataclass(frozen=True, eq=False)
class Halfspace:
    """The half-space ``slope . x' <= side``; over the vertices, ``reach . mu <= limit``."""

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
        """The whole piece."""
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
        """Coefficients over the variables of the functions ``C x'`` (rows of C)."""
        return np.hstack([C @ self.D.T, C[:, self.g_columns]])

    def point(self, variables: Array) -> Array:
        """The point of given variables."""
        point = self.base + variables[: len(self.D)] @ self.D
        point[self.g_columns] += variables[len(self.D) :]
        return np.clip(point, self.piece.lower, self.piece.upper)

    def keeps_rules(self, points: Array) -> npt.NDArray[np.bool_]:
        """Which points respect the linear rules."""
        rows = points @ self.piece.A.T
        low, high = self.piece.row_lower - TOLERANCE, self.piece.row_upper + TOLERANCE
        return cast("npt.NDArray[np.bool_]", ((rows >= low) & (rows <= high)).all(axis=-1))

    def within(self, distance: float, points: Sequence[Array]) -> Polytope:
        """What is nearer than ``distance``, as far as supporting cuts of the distance at points tell.

        Bounds of :meth:`least` then hold on the half-spaces ``slope . x' <= side`` only.
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
        """Whether a cut leaves nothing."""
        return any((cut.reach > cut.limit).all() for cut in self.halfspaces)

    def box_contribution(self, C: Array) -> Array:
        """Compute the most that the free columns of a box can add to the functions ``C x'``."""
        g = np.where(C > 0.0, self.g_high, np.where(C < 0.0, self.g_low, 0.0))
        result: Array = (C * g).sum(axis=1)
        return result

    def least(self, C: Array) -> Array:
        """Lower bounds of the functions ``C x'``."""
        at_base = C @ self.base
        scores = np.hstack([np.zeros((len(C), 1)), C @ self.D.T])
        best = scores.min(axis=1)
        for cut in self.halfspaces:
            best = np.maximum(best, _least_in_halfspace(scores, cut.reach, cut.limit))
        result: Array = at_base + best - self.box_contribution(-C)
        return result

    def range(self, C: Array) -> tuple[Array, Array]:
        """Bounds of the functions ``C x'``."""
        both = self.least(np.vstack([C, -C]))
        return both[: len(C)], -both[len(C) :]


def _simplex(base: Array, D: Array, halfspaces: Sequence[Halfspace]) -> tuple[Array, Array]:
    """Factors s and corners: the piece lies in the simplex of base and base + s_l D_l.

    Where the base lies inside a cut with positive reach to all other vertices, the cut itself
    is such a simplex; otherwise the vertices themselves are used (s = 1).
    """
    scales = np.ones(len(D))
    for cut in halfspaces:
        if cut.limit > 0.0 and (cut.reach[1:] > 1e-3 * cut.limit).all():
            scales = cut.limit / cut.reach[1:]
            break
    return scales, np.vstack([base, base + scales[:, None] * D])


def _least_in_halfspace(scores: Array, reach: Array, limit: float) -> Array:
    """Least of ``scores . mu`` over the simplex cut by ``reach . mu <= limit``.

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
