"""The problem of a search: the nearest robust point of a convex piece of the plausible region.

Wanted is the point with the least distance from the input x whose worst margin over Delta is at least
``margin``; searches ask for ``margin + slack`` inside (sigma > t of the paper's convergence proof), so
that an answer passes the test at ``margin`` in spite of rounding. Where there are several sets of
networks, that holds for the Delta and the margin of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from proplace.core.distances import L1
    from proplace.core.guarantee import Member
    from proplace.core.network import Array


SMALLEST_GAP = 1e-7
"""Relative gap between incumbent and bound that counts as none: solvers are not more exact."""

SAME = 1e-9
"""Encoded difference up to which a value counts as unchanged."""


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """The input x, the sets of networks, and what counts as near and as robust.

    ``sets`` has at least one. ``gap`` is the relative gap between incumbent and lower bound at which a
    search ends. Steps of features are ignored here: :mod:`proplace.search.writing` rounds the result.
    """

    sets: tuple[Member, ...]
    target: int
    x: Array
    distance: L1
    slack: float
    gap: float = SMALLEST_GAP

    @property
    def margin(self) -> float:
        """The margin of the first set, in which the others are measured.

        What is compared with it is the margin of a network less that of its own set, plus this.
        """
        return self.sets[0].margin

    @property
    def search_margin(self) -> float:
        """The margin that searches ask for inside."""
        return self.margin + self.slack

    def snap(self, points: Array) -> Array:
        """Replace what is almost a value of x by that value."""
        return np.where(np.abs(points - self.x) <= SAME, self.x, points)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a search.

    Attributes
    ----------
    point
        The best point, or None.
    distance
        Its distance from x (inf without a point).
    lower
        Proved lower bound on the distance of any robust point of the piece (up to the solver's
        tolerance); inf when the piece holds none.
    status
        ``optimal``, ``feasible`` (stopped early), ``infeasible`` or ``unknown`` (stopped before
        any point was found).
    nodes, programs, rounds
        Nodes of the tree, linear (or mixed-integer) programs solved, scenarios added.
    trouble
        What the solver gave no answer to, where the outcome is less than it could be for that.
    timed_out
        True if the deadline ended the search.
    """

    point: Array | None
    distance: float
    lower: float
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    nodes: int = 0
    programs: int = 0
    rounds: int = 0
    trouble: str = ""
    timed_out: bool = False
