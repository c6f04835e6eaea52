"""A good point where many columns have steps: round a point of the hull that has margin to spare.

A tree over the values of many grids takes long to reach its first good leaf. Near the nearest robust
point the scenarios are almost linear, so that a linear program gives the nearest point of the hull that
keeps their margins with something to spare. Rounded to the grids it is legal; if the rounding took more
of the margin than was spared, more is spared the next time. All of it is heuristic: what is offered has
passed the exact test.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import SolverError
from proplace.search.program import Program, check_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.core.network import Array
    from proplace.search.program import LpPoint
    from proplace.search.scenario import ShiftedObjective
    from proplace.search.state import SearchState


ROUNDINGS = 12  # points that are rounded for a first incumbent, at most


class Rounding:
    """Rounds points of the hull near a given one; Late when the deadline comes on the way."""

    def __init__(self, state: SearchState) -> None:
        self.state, self.problem = state, state.problem
        polytope, none = state.polytope, np.zeros(len(state.problem.x))
        hull = replace(
            polytope, g_low=none, g_high=none, g_columns=np.zeros(0, np.intp), halfspaces=()
        )
        self.program = Program(hull, deadline=state.deadline)
        self.cuts: list[tuple[int, Array, float]] = []
        self.spare = 0.0

    def near(self, point: Array, scenarios: Iterable[ShiftedObjective]) -> None:
        """Offer a legal point that is robust, if one is found."""
        state, last, factor = self.state, point, 1.0
        known = [*state.oracle.attack(point[None]), *scenarios]
        for each in known:
            self._cut(each, point)
        for _ in range(ROUNDINGS):
            found = self._solved()
            if found is None:
                return
            legal = self.problem.snap(found.hull_point)
            missing = self.problem.search_margin - min(float(s.value(legal)) for s in known)
            factor = 2.0 * factor if np.array_equal(legal, last) else 1.0
            last = legal
            if missing <= 0.0:
                if not state.polytope.keeps_rules(legal):
                    return
                distance = float(self.problem.distance.between(self.problem.x, legal))
                if distance >= state.distance:
                    return
                robust, scenario = state.test(legal, ())
                if robust:
                    state.offer(legal, found.hull_point, distance)
                    return
                if scenario is None:
                    return
                known.append(scenario)
                self._cut(scenario, legal)
                missing = max(0.0, state.problem.margin - float(scenario.value(legal)))
            self._spare(factor * missing)

    def _cut(self, scenario: ShiftedObjective, point: Array) -> None:
        """Ask for the margin of a scenario as it is near a point, linearised."""
        slope = scenario.gradient(point)
        side = self.problem.search_margin - float(scenario.value(point)) + float(slope @ point)
        self.cuts.append((self.program.add_cut(slope, side + self.spare), slope, side))

    def _spare(self, more: float) -> None:
        """Ask for more margin than is needed."""
        self.spare += more
        for row, slope, side in self.cuts:
            base = float(slope @ self.program.polytope.base)
            self.program.lp.set_row_bounds(row, side + self.spare - base, np.inf)

    def _solved(self) -> LpPoint | None:
        check_time(self.state.deadline)
        try:
            return self.program.nearest()
        except SolverError:
            return None
