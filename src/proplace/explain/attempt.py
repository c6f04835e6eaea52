"""What to make of a search: points to certify, best first, and what to say where none is proved."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.search.writing import Legal, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.core.network import Array
    from proplace.explain.prove import Clock
    from proplace.explain.results import Status
    from proplace.region.neighbours import Mask
    from proplace.region.pieces import ConvexPiece
    from proplace.schema import Column, Schema
    from proplace.schema.person import Person
    from proplace.search import SearchResult
    from proplace.search.problem import SearchProblem
    from proplace.search.writing import Written

NO_TIME = "the time limit came before a point was proved robust; allow more time"
_NO_LEGAL_VALUES = (
    "a robust point exists, but none was found whose values are legal steps; allow smaller steps"
)
_ASK_AGAIN = "this is no fault of the row: try another search"
_TIDY = 1e-6  # encoded changes up to this are reverted where what is left is robust
# Shares of the way to a neighbour, tried in turn when a proof fails after rounding.
_REPAIRS = (1e-6, 1e-4, 1e-2, 0.1, 0.5)


@dataclass(frozen=True, eq=False)
class Attempt:
    """A search with what it found, and the rows that are answers of last resort."""

    problem: SearchProblem
    person: Person
    fallback: Array
    outcome: SearchResult
    grids: Mapping[int, Column]  # columns with steps
    pieces: tuple[ConvexPiece, ...] = ()  # of a hull
    ruled: bool = False  # features are kept that the schema lets change

    def written(self, schema: Schema, deadline: float = math.inf) -> Written | None:
        """The point of the search in the steps of its features; None without steps or a point."""
        point = self.outcome.point
        if point is None or not self.grids:
            return None
        x, profile = self.problem.x, schema.profile_columns
        base = schema.canonical(point, person=x)[0]
        steps = list(self.grids)
        base[steps] = np.where(np.abs(point - x)[steps] <= _TIDY, x[steps], point[steps])
        near = (self.fallback[:, profile] == base[profile]).all(axis=1)
        lower, upper = self.person.lower.copy(), self.person.upper.copy()
        lower[profile] = upper[profile] = base[profile]
        legal = Legal(
            self.grids,
            lower,
            upper,
            self.person.allowed,
            self.in_region,
            self.fallback[near],
        )
        return write(self.problem, base, legal, deadline)

    def in_region(self, rows: Array) -> Mask:
        """Test which rows lie in the hull; of a box, all do that are allowed."""
        if not self.pieces:
            return np.ones(len(rows), dtype=bool)
        found: Mask = np.any([piece.contains(rows) for piece in self.pieces], axis=0)
        return found

    def candidates(self) -> tuple[list[Array], list[Array]]:
        """Points to certify, best first: the search's own, then some that are near it.

        The search's point comes without changes that nobody would see, then as it is; the others lie
        on the way from it to the nearest robust neighbours.
        """
        point = self.outcome.point
        if point is None:
            return [], []
        tidy = np.where(np.abs(point - self.problem.x) <= _TIDY, self.problem.x, point)
        own = [tidy, point] if (tidy != point).any() else [point]
        goals = self.fallback[:3]
        return own, [point + step * (goal - point) for step in _REPAIRS for goal in goals]

    def solver_failure(self, clock: Clock) -> str:
        """What is wrong where only a neighbour was proved."""
        outcome = self.outcome
        if outcome.solver_failure:
            return outcome.solver_failure
        if outcome.status == "infeasible":
            return "it found no point in a region that holds one"
        if outcome.point is not None and time.monotonic() < clock.proof:
            return "its answer failed the last test"
        return ""

    def why_none(self, clock: Clock, *, ruled: bool) -> tuple[Status, str]:
        """Status and reason where no point is proved."""
        outcome = self.outcome
        if outcome.solver_failure:
            return "solver_error", f"the solver failed ({outcome.solver_failure}); {_ASK_AGAIN}"
        if outcome.status == "infeasible" and not len(self.fallback):
            members = self.problem.guarantee.members
            names = ", ".join(member.name for member in members)
            who = members[0].description if len(members) == 1 else f"for each of {names}"
            none = f"no point within the features' ranges and rules is robust {who}"
            return "infeasible_rules" if ruled else "no_robust_neighbour", none
        if clock.over:
            return "not_found", NO_TIME
        if self.grids and outcome.point is not None:
            return "not_found", _NO_LEGAL_VALUES
        return "solver_error", f"the solver failed (its answer failed the last test); {_ASK_AGAIN}"
