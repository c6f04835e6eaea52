r"""Answers on many grids at once: the nearest robust point, rounded so that it stays robust.

Steps of a few features are decided exactly, value by value, in the tree. With many, every feature may
leave the hull by half a step, and what is nearest among so many combinations takes hours to prove
although it hardly matters. Then the problem is solved without the steps, as in the paper, and its answer
:math:`p` is rounded: each changed number takes one of the two legal values around :math:`p_j`, the
person's own among them. With :math:`g` the gradient of the worst margin at :math:`p`,

1. start from the rounding that the margin likes best, up where :math:`g_j > 0` and down elsewhere; if it
   fails the exact test, from one farther on the way to a robust neighbour;
2. of all ways to give the numbers that gain most their value nearer to the person's, take the nearest
   that passes the exact test (concrete shifts, many points at once, refute most of the others before);
3. then the same for the other numbers, one by one, those first that gain most distance for the margin
   they lose.

The answer is robust by test, no number of it is farther than a step from :math:`p_j` (from the way to a
neighbour, where the first start fails), and no robust point of the region before rounding is nearer than
the bound.
"""

from __future__ import annotations

import itertools
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
_AT_ONCE = 10  # numbers all of whose roundings are compared
_TESTS = 24  # exact tests of these, the nearest first


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
            goal = _nearer(problem, low, high)
            found = _nearest_rounding(problem, oracle, best, goal, passes)
            return _nearer_by_steps(problem, found, goal, gradient, passes)
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


def _gains(problem: SearchProblem, point: Array, goal: Array) -> Array:
    """How much nearer a point is with each one of its numbers at the goal; 0 where it is there."""
    trials = np.where(np.eye(len(point), dtype=bool), goal, point)
    gains: Array = problem.distance.between(problem.x, point) - problem.distance.between(
        problem.x, trials
    )
    return gains


def _nearest_rounding(
    problem: SearchProblem,
    oracle: Oracle,
    point: Array,
    goal: Array,
    passes: Callable[[Array], bool],
) -> Array:
    """The nearest robust one of all ways to set the numbers that gain most to their goals."""
    gains = _gains(problem, point, goal)
    columns = np.argsort(-gains, kind="stable")[:_AT_ONCE]
    columns = columns[goal[columns] != point[columns]]
    ways = np.array(list(itertools.product((False, True), repeat=len(columns))), dtype=bool)
    points = np.repeat(point[None], len(ways), axis=0)
    points[:, columns] = np.where(ways, goal[columns], point[columns])
    points = points[oracle.upper_bounds(points) >= problem.margin]
    order = np.argsort(problem.distance.between(problem.x, points), kind="stable")
    return next((points[i] for i in order[:_TESTS] if passes(points[i])), point)


def _nearer_by_steps(
    problem: SearchProblem,
    point: Array,
    goal: Array,
    gradient: Array,
    passes: Callable[[Array], bool],
) -> Array:
    """Set numbers to their goals, one by one, where the point stays robust."""
    columns = np.flatnonzero(goal != point)
    lost = np.abs(gradient * (goal - point))[columns]
    gains = _gains(problem, point, goal)[columns]
    for j in columns[np.argsort(-gains / np.maximum(lost, 1e-300), kind="stable")]:
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
