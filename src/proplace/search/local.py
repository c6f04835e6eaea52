"""A good robust point to start from: line searches, then a few linearised steps.

The incumbent decides how much of the region the tree must look at, so it is worth some work. All of
it is heuristic; what is returned has passed the exact test. Lines and steps run through *centres*,
points of the hull itself; what is judged is the legal point that a centre is rounded to.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from proplace.errors import SolverError
from proplace.search.program import Program, check_time

if TYPE_CHECKING:
    from proplace.network import Array
    from proplace.search.oracle import Oracle, Shifted
    from proplace.search.polytope import Polytope
    from proplace.search.problem import Problem
    from proplace.search.program import LpPoint

GOALS = 8  # lines that are compared
STARTS = 4  # of them that are walked down, at most
WALKS = 4  # from one start, at most
STEPS = 12  # of one walk, at most
CUTS = 6  # linearised shifts in force during a walk
TESTS = 4  # of the end of a walk, each teaching a shift, at most
TOLERANCE = 1e-3  # gain of a step or walk that is worth another
SAFETY = 0.05  # share of what a test took off the margin that later points keep in reserve
_FRACTIONS = np.linspace(0.0, 1.0, 9)[1:]
_REFINEMENTS = 2


class LocalSearch:
    """Improve an incumbent inside one polytope; Late when the deadline comes on the way."""

    def __init__(
        self, problem: Problem, polytope: Polytope, oracle: Oracle, deadline: float = np.inf
    ) -> None:
        self.problem, self.polytope, self.oracle = problem, polytope, oracle
        self.deadline = deadline
        self.shifts: list[Shifted] = []
        self.point: Array | None = None
        self.centre: Array | None = None
        self.distance = np.inf
        self.goals: Array = np.zeros((0, len(problem.x)))
        self.walked = 0  # lines that were walked down
        self.safety = 0.0  # how much worse than it looks a tested point has been
        self.settled = False  # whether a walk from the incumbent has led nowhere

    def start(self) -> None:
        """Find a first incumbent on the lines from the nearest point of the region to its goals."""
        origin = self._nearest()
        if origin is None:
            return
        self.origin, self.goals = origin, self._goals(origin)
        if len(self.goals):
            points, _ = self._along(self.origin, self.goals[:GOALS])
            self._adopt(points[0])
        if self.point is None:  # fall back on what is known to be robust
            for goal in self.goals:
                if self._adopt(goal):
                    break

    @cached_property
    def program(self) -> Program:
        """The nearest point of the region under linear cuts."""
        return Program(self.polytope, self.deadline)

    def nearest(self) -> LpPoint | None:
        """The nearest point of the region under the cuts in force, if there is one.

        A program that the solver gives no answer to is one step less, nothing more.
        """
        try:
            return self.program.nearest()
        except SolverError:
            return None

    def _nearest(self) -> Array | None:
        """The nearest point of the region: the person, where it lies there."""
        x, piece = self.problem.x, self.polytope.piece
        here = np.array_equal(self.polytope.base, x) and bool(self.polytope.keeps_rules(x))
        if here and bool(((x >= piece.lower) & (x <= piece.upper)).all()):
            return x
        found = self.nearest()
        return None if found is None else found.centre

    def refine(self) -> bool:
        """Walk down from the next of the best lines; False: there is none left."""
        if self.walked >= min(STARTS, len(self.goals)):
            return False
        points, _ = self._along(self.origin, self.goals[:GOALS])
        self._settle(points[self.walked])
        self.walked += 1
        return True

    def improve(self, centre: Array) -> None:
        """Look for a nearer robust point between one that fails and the incumbent."""
        if self.centre is None:
            return
        points, _ = self._along(centre, self.centre[None])
        here = self._distance(points[0]) >= self.distance * (1.0 - TOLERANCE)
        if here and self.settled:
            return
        before = self.distance
        self._settle(points[0])
        self.settled = self.settled or (here and self.distance == before)

    def _settle(self, centre: Array) -> None:
        """Walk down from a point that looks robust, and on from where a test disagrees."""
        for _ in range(WALKS):
            before, centre = self._distance(centre), self._follow(centre)
            if self._distance(centre) >= before * (1.0 - TOLERANCE):
                break
        for _ in range(TESTS):
            if self._distance(centre) >= self.distance * (1.0 - 0.1 * TOLERANCE):
                break
            if self._adopt(centre) or self.centre is None:
                break
            points, _ = self._along(centre, self.centre[None])
            centre = self._follow(points[0])

    def keep(self, point: Array, centre: Array, distance: float) -> None:
        """Take a point that passed the exact test as incumbent if it is nearer."""
        if distance < self.distance:
            self.point, self.centre, self.distance = point, centre, distance
            self.settled = False

    def _follow(self, here: Array) -> Array:
        """Take linearised steps from a point that looks robust."""
        distance = self._distance(here)
        cuts: list[int] = []
        where = [here]
        for _ in range(STEPS):
            check_time(self.deadline)
            points = self.problem.snap(np.array(where))
            for point, worst in zip(points, self._worst(points), strict=True):
                g = worst.gradient(point)
                side = self._wanted() - float(worst.value(point)) + float(g @ point)
                cuts.append(self.program.add_cut(g, side))
            while len(cuts) > CUTS:
                self.program.relax_row(cuts.pop(0))
            step = self.nearest()
            if step is None or step.objective >= distance * (1.0 - TOLERANCE):
                break
            (best,), (failing,) = self._along(step.centre, here[None])
            where = [failing]
            reached = self._distance(best)
            if distance * (1.0 - TOLERANCE) < reached < distance:
                here, distance = best, reached
                break
            if reached < distance:
                here, distance = best, reached
                where.append(here)
        for row in cuts:
            self.program.relax_row(row)
        return here

    def _wanted(self) -> float:
        return self.problem.search_margin + self.safety

    def _distance(self, centre: Array) -> float:
        return float(self.problem.distance.between(self.problem.x, self.problem.snap(centre)))

    def _worst(self, points: Array) -> list[Shifted]:
        """The worst shift at each point among those met and the one of a glance."""
        worst = []
        for point, seen in zip(points, self.oracle.worst_seen(points), strict=True):
            values = [float(shifted.value(point)) for shifted in (seen, *self.shifts)]
            worst.append((seen, *self.shifts)[int(np.argmin(values))])
        return worst

    def _goals(self, start: Array) -> Array:
        """Points to walk towards: vertices, which are robust rows, or a corner of a box."""
        vertices = self.polytope.piece.vertices
        if vertices is not None:
            others = vertices[(vertices != self.problem.x).any(axis=1)]
            others = others[self.polytope.keeps_rules(others)]
            order = np.argsort(self.problem.distance.between(self.problem.x, others))
            goals: Array = others[order]
            return goals
        piece = self.polytope.piece
        finite = np.isfinite(piece.lower) & np.isfinite(piece.upper)
        g = self.oracle.worst_seen(start[None])[0].gradient(start)
        low = np.where(finite, piece.lower, start - 1.0)
        high = np.where(finite, piece.upper, start + 1.0)
        corner = self.problem.snap(np.where(g > 0.0, high, np.where(g < 0.0, low, start))[None])
        good = self.values(corner) >= self.problem.margin
        return corner[good & self.polytope.keeps_rules(corner)]

    def values(self, points: Array) -> Array:
        """Upper bounds on the worst margins: the glance and every shift met so far."""
        seen = [shifted.value(points) for shifted in self.shifts]
        result: Array = np.min([self.oracle.glance(points), *seen], axis=0)
        return result

    def _along(self, start: Array, goals: Array) -> tuple[Array, Array]:
        """First point of each line from ``start`` that looks robust, and the last before it.

        Nearest lines first.
        """
        low, high = np.zeros(len(goals)), np.ones(len(goals))
        for _ in range(_REFINEMENTS):
            t = low[:, None] + (high - low)[:, None] * _FRACTIONS
            points = self._lines(start, goals, t)
            legal = self.problem.snap(points.reshape(-1, points.shape[-1]))
            good = (self.values(legal) >= self._wanted()) & self.polytope.keeps_rules(legal)
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

    def _adopt(self, centre: Array) -> bool:
        """Take a point as incumbent if it is nearer and passes the exact test."""
        point, distance = self.problem.snap(centre), self._distance(centre)
        if distance >= self.distance:
            return False
        robust, shifted = self.oracle.test(point, self.deadline)
        if robust:
            self.keep(point, centre, distance)
        elif shifted is None:
            check_time(self.deadline)
        else:
            seemed, value = float(self.values(point[None])[0]), float(shifted.value(point))
            self.shifts.append(shifted)
            self.safety = max(self.safety, SAFETY * (seemed - value))
        return robust
