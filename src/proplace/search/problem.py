"""The problem of a search: the nearest robust point of a convex piece of the plausible region.

The solution is the point with the smallest distance from the input x whose worst-case margin over
Delta is at least ``margin``. Searches require ``margin + slack`` (sigma > t of the paper's
convergence proof), so that the result passes the test at ``margin`` despite rounding. If the
guarantee has several members, this holds for the shift set and the margin of each.
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
"""Relative gap between incumbent and bound that counts as zero, because solvers are not more exact."""

SAME = 1e-9
"""Encoded difference up to which a value counts as unchanged."""


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """The input x, the guarantee, the distance and the accuracy of a search.

    ``gap`` is the relative gap between incumbent and lower bound at which a search ends. Steps of
    features are ignored here: :mod:`proplace.search.writing` rounds the result.
    """

    guarantee: Guarantee
    target: int
    x: Array
    distance: L1
    slack: float
    gap: float = SMALLEST_GAP

    @property
    def margin(self) -> float:
        """The margin of the first member, the common scale of all members.

        The margin of another member's network is compared after subtracting its required margin and
        adding this one.
        """
        return self.guarantee.current.margin

    @property
    def search_margin(self) -> float:
        """The margin that searches require."""
        return self.margin + self.slack

    def snap(self, points: Array) -> Array:
        """Replace values that are almost those of x by the values of x."""
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
        tolerance), or inf if there is none.
    status
        ``optimal``, ``feasible`` (stopped early), ``infeasible`` or ``unknown`` (stopped before any
        point was found).
    nodes, programs, rounds
        Nodes of the tree, linear (or mixed-integer) programs solved, scenarios added.
    solver_failure
        Description of a solver failure that made the outcome worse.
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
