"""Local search for a good robust starting point: line searches, then linearised steps.

The incumbent determines how much of the region the tree must search, so it is worth some work. All
of this is heuristic, but a returned point has passed the exact test.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import Budget
from proplace.core.errors import SolverError
from proplace.search.program import Program, check_deadline

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.search.oracle import Scenario
    from proplace.search.program import LpPoint
    from proplace.search.state import Incumbent, SearchState


# Lines from the nearest point of the region to robust points, compared for a first incumbent.
LINES = 8
LINE_POINTS = 8  # of a line, evaluated together
# Number of refinements of the interval between the last point that fails and the first that
# looks robust.
LINE_REFINEMENTS = 2
STARTS = 4  # largest number of lines whose first robust point starts a descent
WALKS = 4  # largest number from one start
STEPS = 12  # largest number of linearised steps of one walk
CUTS = 6  # linearised scenarios in use during a walk
TESTS = 8  # largest number of exact tests at the end of a walk, each of which may add a scenario
WORTH_A_STEP = 1e-3  # relative gain of a step or a walk that justifies another one
RESERVE = 0.05  # share of the margin lost in exact tests that later points keep in reserve
UNPROVED = 0.2  # share of the margin that a test could not prove, also kept in reserve
NODES = 10_000  # largest tree of an exact test: without a verdict, later points keep more margin
PROGRAMS = 100  # linear programs after that
MAX_WORK = 8e8  # nodes times weights of an exact test: about a minute of the checker


class LocalSearch:
    """Improve the incumbent of a search, or raise DeadlineReached at the deadline."""

    def __init__(self, state: SearchState) -> None:
        self.state = state
        self.problem, self.oracle, self.piece = state.problem, state.oracle, state.piece
        self._fractions = np.linspace(0.0, 1.0, LINE_POINTS + 1)[1:]
        self.goals: Array = np.zeros((0, len(self.problem.x)))
        self.walked = 0  # lines whose descent is done
        weights = max(
            sum(layer.W.size for layer in each.network.layers)
            for each in self.problem.guarantee.members
        )
        self.budget = Budget(min(NODES, int(MAX_WORK / weights)), PROGRAMS)
        self.reserve = 0.0  # extra margin of later points, because tests were worse than attacks
        self._stuck_at: Incumbent | None = None  # start of a walk without any gain

    def start(self) -> None:
        """Find a first incumbent on the lines from the nearest point of the region to its goals."""
        origin = self._nearest()
        if origin is None:
            return
        self.origin, self.goals = origin, self._goals(origin)
        for _ in range(TESTS if len(self.goals) else 0):
            points, _ = self._along(self.origin, self.goals[:LINES])
            known = len(self.state.scenarios)
            if self._adopt(points[0]) or len(self.state.scenarios) > known:
                break  # robust or refuted: without a verdict the next point keeps more margin
        if self.state.incumbent is None:  # fall back on the known robust rows
            for goal in self.goals:
                if self._adopt(goal):
                    break

    @cached_property
    def program(self) -> Program:
        """The program for the nearest point of the region under linear cuts."""
        return Program(self.state.polytope, deadline=self.state.deadline)

    def nearest(self) -> LpPoint | None:
        """Return the nearest point of the region under the current cuts, if there is one.

        A solver failure only skips a step.
        """
        try:
            return self.program.nearest()
        except SolverError:
            return None

    def _nearest(self) -> Array | None:
        """Return the nearest point of the region, which is x if x lies in it."""
        x, piece = self.problem.x, self.piece
        polytope = self.state.polytope
        here = np.array_equal(polytope.base, x) and bool(polytope.keeps_rules(x))
        if here and bool(((x >= piece.lower) & (x <= piece.upper)).all()):
            return x
        found = self.nearest()
        return None if found is None else found.point

    def refine(self) -> bool:
        """Walk down from the next of the best lines, or return False if none is left."""
        if self.walked >= min(STARTS, len(self.goals)):
            return False
        points, _ = self._along(self.origin, self.goals[:LINES])
        self._descend(points[self.walked])
        self.walked += 1
        return True

    def improve(self, point: Array) -> None:
        """Search for a nearer robust point between one that fails and the incumbent."""
        incumbent = self.state.incumbent
        if incumbent is None:
            return
        points, _ = self._along(point, incumbent.point[None])
        limit = incumbent.distance * (1.0 - WORTH_A_STEP)
        here = self._distance(points[0]) >= limit
        if here and self._stuck_at is incumbent:
            return
        self._descend(points[0])
        if here and self.state.incumbent is incumbent:
            self._stuck_at = incumbent

    def _descend(self, point: Array) -> None:
        """Walk down from a point that looks robust, and continue if a test disagrees."""
        for _ in range(WALKS):
            before, point = self._distance(point), self._follow(point)
            if self._distance(point) >= before * (1.0 - WORTH_A_STEP):
                break
        for _ in range(TESTS):
            if self._distance(point) >= self.state.distance * (1.0 - 0.1 * WORTH_A_STEP):
                break
            if self._adopt(point) or self.state.incumbent is None:
                break
            points, _ = self._along(point, self.state.incumbent.point[None])
            point = self._follow(points[0])

    def _follow(self, here: Array) -> Array:
        """Take linearised steps from a point that looks robust."""
        distance = self._distance(here)
        cuts: list[int] = []
        where = [here]
        for _ in range(STEPS):
            check_deadline(self.state.deadline)
            points = self.problem.snap(np.array(where))
            for point, worst in zip(points, self._worst(points), strict=True):
                g = worst.gradient(point)
                side = self._wanted() - float(worst.value(point)) + float(g @ point)
                cuts.append(self.program.add_cut(g, side))
            while len(cuts) > CUTS:
                self.program.relax_row(cuts.pop(0))
            step = self.nearest()
            if step is None or step.objective >= distance * (1.0 - WORTH_A_STEP):
                break
            (best,), (failing,) = self._along(step.point, here[None])
            where = [failing]
            reached = self._distance(best)
            if distance * (1.0 - WORTH_A_STEP) < reached < distance:
                here, distance = best, reached
                break
            if reached < distance:
                here, distance = best, reached
                where.append(here)
        for row in cuts:
            self.program.relax_row(row)
        return here

    def _wanted(self) -> float:
        return self.problem.search_margin + self.reserve

    def _distance(self, point: Array) -> float:
        return float(self.problem.distance.between(self.problem.x, self.problem.snap(point)))

    def _worst(self, points: Array) -> list[Scenario]:
        """Return the worst known scenario at each point, including the one of a new attack."""
        worst = []
        for point, attack in zip(points, self.oracle.attack(points), strict=True):
            scenarios = (attack, *self.state.scenarios)
            values = [float(scenario.value(point)) for scenario in scenarios]
            worst.append(scenarios[int(np.argmin(values))])
        return worst

    def _goals(self, start: Array) -> Array:
        """Return the goals of walks: vertices, which are robust rows, or a corner of a box."""
        vertices = self.piece.vertices
        if vertices is not None:
            others = vertices[(vertices != self.problem.x).any(axis=1)]
            others = others[self.state.polytope.keeps_rules(others)]
            order = np.argsort(self.problem.distance.between(self.problem.x, others))
            goals: Array = others[order]
            return goals
        piece = self.piece
        finite = np.isfinite(piece.lower) & np.isfinite(piece.upper)
        g = self.oracle.attack(start[None])[0].gradient(start)
        low = np.where(finite, piece.lower, start - 1.0)
        high = np.where(finite, piece.upper, start + 1.0)
        corner = self.problem.snap(np.where(g > 0.0, high, np.where(g < 0.0, low, start))[None])
        good = self.values(corner) >= self.problem.margin
        return corner[good & self.state.polytope.keeps_rules(corner)]

    def values(self, points: Array) -> Array:
        """Bound the worst-case margins from above, by an attack and all known scenarios."""
        seen = [scenario.value(points) for scenario in self.state.scenarios]
        result: Array = np.min([self.oracle.upper_bounds(points), *seen], axis=0)
        return result

    def _along(self, start: Array, goals: Array) -> tuple[Array, Array]:
        """Return the first point of each line that looks robust, and the last before it.

        Lines are sorted by distance.
        """
        low, high = np.zeros(len(goals)), np.ones(len(goals))
        for _ in range(LINE_REFINEMENTS):
            t = low[:, None] + (high - low)[:, None] * self._fractions
            points = self._lines(start, goals, t)
            legal = self.problem.snap(points.reshape(-1, points.shape[-1]))
            good = (self.values(legal) >= self._wanted()) & self.state.polytope.keeps_rules(legal)
            good = good.reshape(t.shape)
            good[:, -1] = True
            first = good.argmax(axis=1)
            rows = np.arange(len(goals))
            high = t[rows, first]
            low = np.where(first > 0, t[rows, np.maximum(first - 1, 0)], low)
        points = self._lines(start, goals, high[:, None])[:, 0]
        legal = self.problem.snap(points)
        order = np.argsort(self.problem.distance.between(self.problem.x, legal))
        return points[order], self._lines(start, goals, low[:, None])[order, 0]

    def _lines(self, start: Array, goals: Array, t: Array) -> Array:
        points: Array = start + t[:, :, None] * (goals - start)[:, None, :]
        return points

    def _adopt(self, point: Array) -> bool:
        """Make a point the incumbent if it is nearer and passes the exact test."""
        point = self.problem.snap(point)
        distance = self._distance(point)
        if distance >= self.state.distance:
            return False
        tested = self.oracle.test(point, self.state.deadline, self.budget)
        if tested.robust:
            self.state.offer(point, distance)
        elif tested.scenario is None:
            check_deadline(self.state.deadline)
            self.reserve += UNPROVED * tested.missing
        else:
            seemed = float(self.values(point[None])[0])
            self.state.scenarios.append(tested.scenario)
            self.reserve = max(
                self.reserve, RESERVE * (seemed - float(tested.scenario.value(point)))
            )
        return tested.robust
