r"""Answers on many grids at once: the nearest robust point, rounded so that it stays robust.

Steps of a few features are decided exactly, value by value, in the tree. With many, every feature may
leave the hull by half a step, and what is nearest among so many combinations takes hours to prove
although it hardly matters. Then the problem is solved without the steps, as in the paper, and its answer
:math:`p` is rounded: each changed number takes one of the two legal values around :math:`p_j`, the
person's own among them. With :math:`g` the gradient of the worst margin at :math:`p`,

1. start from the rounding that the margin likes best, up where :math:`g_j > 0` and down elsewhere; if it
   fails the exact test, from one farther on the way to a robust neighbour;
2. give numbers their value nearer to the person's, in the order of distance gained per margin lost,
   wherever the point still passes the exact test.

The answer is robust by test, no number of it is farther than a step from :math:`p_j` (from the way to a
neighbour, where the first start fails), and no robust point of the region before rounding is nearer than
the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.search.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.core.network import Array
    from proplace.region.convex_piece import ConvexPiece
    from proplace.search.problem import SearchProblem

MOST_EXACT = 8
"""Features with steps up to which the nearest legal point is searched for exactly."""

_TOLERANCE = 1e-9  # of the rules
_WAYS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # shares of the way to a neighbour
_NEIGHBOURS = 4


def rounded(
    problem: SearchProblem, point: Array, pieces: Sequence[ConvexPiece], deadline: float
) -> Array | None:
    """A legal robust point near the answer of the problem without steps; None if none was found."""
    oracle = Oracle(problem)

    def passes(row: Array) -> bool:
        return _keeps_rules(pieces, row) and oracle.test(row, deadline)[0]

    for start in _starts(problem, point, pieces):
        gradient = oracle.attack(start[None])[0].gradient(start)
        low, high = _around(problem, start)
        best = np.where(gradient > 0.0, high, np.where(gradient < 0.0, low, start))
        best = np.where(low == high, low, best)
        best = np.where(gradient == 0.0, _nearer(problem, low, high), best)
        if passes(best):
            return _nearer_by_steps(problem, best, (low, high), gradient, passes)
    return None


def _starts(problem: SearchProblem, point: Array, pieces: Sequence[ConvexPiece]) -> list[Array]:
    """The point, then some on the ways from it to the nearest vertices of its own pieces."""
    own = [each for each in pieces if _inside(point, each.lower, each.upper)]
    rows = [each.vertices for each in own if each.vertices is not None]
    goals = np.vstack(rows) if rows else point[None][:0]
    goals = goals[(goals != problem.x).any(axis=1)]
    order = np.argsort(problem.distance.between(point, goals), kind="stable")[:_NEIGHBOURS]
    return [point, *(point + t * (goal - point) for t in _WAYS for goal in goals[order])]


def _around(problem: SearchProblem, point: Array) -> tuple[Array, Array]:
    """The legal values around each number; what has no steps, or is the person's own, stays."""
    low, high = point.copy(), point.copy()
    for j, column in problem.grids.items():
        if point[j] != problem.x[j]:
            low[j], high[j] = column.around(float(point[j]))
    return low, high


def _nearer(problem: SearchProblem, low: Array, high: Array) -> Array:
    """Of two values each, that nearer to the person's own."""
    return np.where(np.abs(low - problem.x) <= np.abs(high - problem.x), low, high)


def _nearer_by_steps(
    problem: SearchProblem,
    point: Array,
    ends: tuple[Array, Array],
    gradient: Array,
    passes: Callable[[Array], bool],
) -> Array:
    """Move numbers towards the person's own where the point stays robust."""
    goal = _nearer(problem, *ends)
    columns = np.flatnonzero(goal != point)
    here = float(problem.distance.between(problem.x, point))
    trials = np.where(np.eye(len(point), dtype=bool)[columns], goal, point)
    gains = here - np.array([float(problem.distance.between(problem.x, row)) for row in trials])
    lost = np.abs(gradient * (goal - point))[columns]
    order = np.argsort(-gains / np.maximum(lost, 1e-300), kind="stable")
    for j in columns[order]:
        trial = point.copy()
        trial[j] = goal[j]
        if passes(trial):
            point = trial
    return point


def _keeps_rules(pieces: Sequence[ConvexPiece], row: Array) -> bool:
    """Whether a point lies in the bounds and keeps the linear rules of one of the pieces."""
    return any(
        _inside(row, each.lower, each.upper)
        and _inside(each.A @ row, each.row_lower, each.row_upper)
        for each in pieces
    )


def _inside(values: Array, low: Array, high: Array) -> bool:
    return bool(((values >= low - _TOLERANCE) & (values <= high + _TOLERANCE)).all())
