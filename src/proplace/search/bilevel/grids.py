"""Legal values of grid columns, and pieces without any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import OptionError
from proplace.schema.grid import SNAP, WithValue

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.region.convex_piece import ConvexPiece
    from proplace.schema import Column
    from proplace.search.problem import SearchProblem
    from proplace.solvers import Integers

_UNIFORM = 1e-9  # of a step: what counts as equally spaced


def is_empty(problem: SearchProblem, piece: ConvexPiece) -> bool:
    """Whether the bounds alone leave nothing; raises where they do not bound the piece."""
    low, high = piece.box(problem.half_steps())
    if (low > high).any():
        return True
    if not (np.isfinite(low) & np.isfinite(high)).all():
        i = int(np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))[0])
        raise OptionError(
            f"column {i} ranges over [{low[i]}, {high[i]}]; a search without a hull needs finite "
            "bounds for each column",
            name=f"column {i}",
        )
    for i, column in problem.grids.items():
        if piece.lower[i] == piece.upper[i]:
            continue  # a legal value, or that of x
        first, last = legal_numbers(column, piece.lower[i], piece.upper[i])
        if first > last:
            return True
    return False


def legal_numbers(column: Column, low: float, high: float) -> tuple[int, int]:
    """First and last number of the legal values in [low, high] (first > last if none is)."""
    assert column.grid is not None  # noqa: S101  (problem.grids holds columns with a grid)
    slack = SNAP * 2.0 * column.half_step
    first = int(column.grid.near(np.asarray(max(low, column.lower))))
    last = int(column.grid.near(np.asarray(min(high, column.upper))))
    first += bool(encoded(column, first) < low - slack)
    last -= bool(encoded(column, last) > high + slack)
    return first, last


def encoded(column: Column, n: int | Integers) -> Array:
    """Legal values by their numbers, as the network sees them."""
    assert column.grid is not None  # noqa: S101  (problem.grids holds columns with a grid)
    return column.grid.encoded(np.asarray(n))


def uniform_step(column: Column) -> float | None:
    """Step of an equally spaced grid; None for any other."""
    if isinstance(column.grid, WithValue):
        return None
    count = column.size or 1
    if count == 1:
        return 0.0
    ends = encoded(column, np.array([0, count - 1]))
    step = float(ends[1] - ends[0]) / (count - 1)
    if count > 4096:  # a lattice: computed from a step
        return step
    n = np.arange(count)
    off = np.abs(encoded(column, n) - (ends[0] + n * step)).max()
    return step if off <= _UNIFORM * step else None
