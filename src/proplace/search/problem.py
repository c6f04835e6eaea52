"""The problem of a search: the nearest robust point of a convex piece of the plausible region.

Wanted is the point with the least distance from the input x whose worst margin over Delta is at least
``margin``; searches ask for ``margin + slack`` inside (sigma > t of the paper's convergence proof), so
that an answer passes the test at ``margin`` in spite of rounding. If the guarantee has several members,
that holds for the shift set and the margin of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from proplace.core.distances import L1
    from proplace.core.guarantee import Guarantee
    from proplace.core.network import Array


SMALLEST_GAP = 1e-7
"""Relative gap between incumbent and bound that counts as none: solvers are not more exact."""

SAME = 1e-9
"""Encoded difference up to which a value counts as unchanged."""


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """The input x, the guarantee, and what counts as near.

    ``gap`` is the relative gap between incumbent and lower bound at which a
    search ends. Steps of features are ignored here: :mod:`proplace.search.writing` rounds the result.
    """

    guarantee: Guarantee
    target: int
    x: Array
    distance: L1
    slack: float
    gap: float = SMALLEST_GAP

    @property
    def margin(self) -> float:
        """The margin of the first member, in which the others are measured.

        It is compared with the margin of a network, less that of its own member, plus this.
        """
        return self.guarantee.current.margin

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
    solver_failure
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
    solver_failure: str = ""
    timed_out: bool = False
