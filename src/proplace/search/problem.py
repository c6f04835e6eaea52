r"""What a search is asked: the nearest robust point of one convex piece of the plausible region.

A *piece* is one categorical profile. Its points are

.. math::
    x' = V^\top \lambda + g, \qquad \lambda \ge 0,\ \textstyle\sum_l \lambda_l = 1, \qquad
    l \le x' \le u, \qquad A x' \in [a, b], \qquad |g_i| \le \eta_i ,

with V the robust neighbours of that profile (and the person, in its own profile). Columns with a grid
take legal values only, and there :math:`\eta_i` is half of the grid's (largest) step: a legal point
counts as in the hull when it lies in the cell of a point of the hull. Elsewhere
:math:`\eta_i = 0`. A piece without vertices is the whole box.

Wanted is the point with the least distance from the person whose worst margin over Delta is at least
``margin``; searches ask for ``margin + slack`` inside (:math:`\sigma > t` of the paper's convergence
proof), so that an answer passes the test at ``margin`` in spite of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.distances import Distance
    from proplace.network import Array, Network
    from proplace.schema import Column
    from proplace.shifts import Shifts


SAME = 1e-9
"""Encoded difference up to which a value counts as unchanged."""


@dataclass(frozen=True, eq=False)
class Piece:
    """One convex piece of the plausible region.

    Attributes
    ----------
    vertices
        Corners of the hull, shape (m, columns); None for the whole box.
    lower, upper
        Bounds of each column; equal for the columns that the profile fixes.
    A, row_lower, row_upper
        Linear rules ``row_lower <= A x' <= row_upper``.
    """

    vertices: Array | None
    lower: Array
    upper: Array
    A: Array
    row_lower: Array
    row_upper: Array

    def box(self, slack: Array) -> tuple[Array, Array]:
        """Smallest box around the piece, given the room of the grid columns."""
        if self.vertices is None:
            return self.lower, self.upper
        low, high = self.vertices.min(axis=0) - slack, self.vertices.max(axis=0) + slack
        return np.maximum(low, self.lower), np.minimum(high, self.upper)


@dataclass(frozen=True, eq=False)
class Problem:
    """The person, the network, its shifts, and what counts as near and as robust.

    ``grids`` maps a column number to its column for those with legal values of their own.
    """

    net: Network
    shifts: Shifts
    target: int
    x: Array
    distance: Distance
    margin: float
    slack: float
    grids: Mapping[int, Column] = field(default_factory=dict)

    @property
    def search_margin(self) -> float:
        """The margin that searches ask for inside."""
        return self.margin + self.slack

    def room(self) -> Array:
        """Half of the largest step of each grid column, 0 elsewhere."""
        room = np.zeros_like(self.x)
        for i, column in self.grids.items():
            room[i] = column.room
        return room

    def snap(self, points: Array) -> Array:
        """Round the grid columns to legal values, and what is almost the person's to the person's."""
        points = np.where(np.abs(points - self.x) <= SAME, self.x, points)
        for i, column in self.grids.items():
            here = points[..., i]  # the person's own value is legal, also outside of the grid
            points[..., i] = np.where(here == self.x[i], here, column.nearest(here))
        return points


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search found.

    Attributes
    ----------
    point
        The best point, or None.
    distance
        Its distance from the person (inf without a point).
    lower
        Proved lower bound on the distance of any robust point of the piece (up to the solver's
        tolerance); inf when the piece holds none.
    status
        ``optimal``, ``feasible`` (stopped early), ``infeasible`` or ``unknown`` (stopped before
        any point was found).
    nodes, programs, rounds
        Nodes of the tree, linear (or mixed-integer) programs solved, shifts added.
    trouble
        What the solver gave no answer to, where the outcome is less than it could be for that.
    """

    point: Array | None
    distance: float
    lower: float
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    nodes: int = 0
    programs: int = 0
    rounds: int = 0
    trouble: str = ""
