r"""The written counterfactual: legal values near the nearest robust point of the hull.

A step restricts how a value is written. The search ignores steps. Let :math:`p` be the nearest
robust point of the hull. Every column with a step may take the legal values next to :math:`p_j`,
one step more on either side, and the person's own value if it lies among these or barely differs
from :math:`p_j`. With the gradient :math:`g` of the worst scenario at :math:`p`, choosing values
:math:`v_j` trades distance for margin:

.. math::
    \min_v \ \sum_j w_j |v_j - x_j| - \mu \sum_j g_j (v_j - p_j) .

The columns are independent, so all choices that are optimal for some :math:`\mu \ge 0` are found by
sorting. They are screened by an attack in one batch, with all roundings of :math:`p` if these are
few and with the robust neighbours, and the nearest that looks robust gets the exact test. From a
robust choice, changes of one or two columns that come nearer are screened and tested in the same
way. The result is not proved to be the nearest legal point: the proved bound is that of the hull.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import Budget
from proplace.search.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from proplace.certification import Evidence
    from proplace.core.network import Array
    from proplace.schema import Column
    from proplace.search.oracle import Scenario
    from proplace.search.problem import SearchProblem

    Mask = npt.NDArray[np.bool_]

BUDGET = Budget(10_000, 100)  # of one exact test
TESTS = 24  # largest number of exact tests of one writing
MOVES = 256  # changes of one or two columns that are screened at once
IN_REGION_RATIO = 1.02  # a point of the hull wins if it is at most this much farther
IN_REGION_CANDIDATES = 32  # number of rows whose position in the hull is computed
SHARES = np.linspace(0.1, 1.0, 10)  # of the way to a neighbour, if no choice of values is robust
CORNERS = 16  # rows from which a corner of the bounds is sought, in a region without neighbours
BARELY = 0.02  # share of the distance up to which a changed column counts as barely changed


@dataclass(frozen=True, eq=False)
class Written:
    """A legal point that passed the exact test.

    ``in_region`` is False if it lies outside the hull. ``evidence`` holds the proofs of its test.
    """

    point: Array
    distance: float
    in_region: bool
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, eq=False)
class Legal:
    """The legal points of one person, and their preferred region.

    Attributes
    ----------
    grids
        Columns with steps, by number. The person's own values are legal.
    lower, upper
        Bounds of all columns, equal for the categories of the point.
    allowed
        Test of rows against bounds and rules.
    inside
        Test of rows against the hull.
    goals
        Robust rows with the categories of the point: a written point may move towards them.
    """

    grids: Mapping[int, Column]
    lower: Array
    upper: Array
    allowed: Callable[[Array], Mask]
    inside: Callable[[Array], Mask]
    goals: Array


def write(
    problem: SearchProblem, point: Array, legal: Legal, deadline: float = np.inf
) -> Written | None:
    """Find a legal robust point near a point of the region, or return None."""
    return _Writer(problem, point, legal, deadline).written()


class _Writer:
    """The pool of legal points of one writing, with upper bounds on their worst-case margins."""

    def __init__(self, problem: SearchProblem, point: Array, legal: Legal, deadline: float) -> None:
        self.problem, self.legal, self.deadline = problem, legal, deadline
        self.oracle, self.base, self.tests = Oracle(problem), point, 0
        self.columns, self.values = self._values()
        self.x: Array = problem.x[self.columns]
        self.weights: Array = problem.distance.weights[self.columns]
        self.scenarios: list[Scenario] = self.oracle.attack(point[None])
        self.rows: Array = np.zeros((0, len(point)))
        self.distances: Array = np.zeros(0)
        self.margins: Array = np.zeros(0)

    def _values(self) -> tuple[npt.NDArray[np.intp], Array]:
        """Return the columns to write, and the allowed values of each, padded with infinity."""
        x, lower, upper = self.problem.x, self.legal.lower, self.legal.upper
        parts = self.problem.distance.weights * np.abs(self.base - x)
        barely = parts <= BARELY * parts.sum()
        columns, found = [], []
        for j, column in self.legal.grids.items():
            if self.base[j] == x[j]:  # an unchanged value stays
                continue
            values = column.beside(float(self.base[j]))
            values = values[(values >= lower[j]) & (values <= upper[j])]
            if barely[j] or not len(values) or values[0] <= x[j] <= values[-1]:
                values = np.unique([*values, x[j]])
            columns.append(j)
            found.append(values)
        padded = np.full((len(found), max(map(len, found), default=0)), np.inf)
        for row, values in zip(padded, found, strict=True):
            row[: len(values)] = values
        return np.array(columns, dtype=np.intp), padded

    # -- the pool ----------------------------------------------------------------------------

    def _add(self, rows: Array) -> None:
        """Add rows that are new and allowed."""
        rows = np.unique(rows, axis=0)
        known = {row.tobytes() for row in self.rows}
        new = np.array([row.tobytes() not in known for row in rows], dtype=bool)
        rows = rows[new & self.legal.allowed(rows)]
        if not len(rows):
            return
        margins = [scenario.value(rows) for scenario in self.scenarios]
        margins.append(self.oracle.upper_bounds(rows))
        distances = self.problem.distance.between(self.problem.x, rows)
        self.rows = np.vstack([self.rows, rows])
        self.distances = np.concatenate([self.distances, distances])
        self.margins = np.concatenate([self.margins, np.min(margins, axis=0)])

    def _choices(self, scenario: Scenario) -> Array:
        """Return all choices of values that are optimal for some price of margin."""
        gradient, here = scenario.gradient(self.base)[self.columns], self.base[self.columns]
        finite = np.isfinite(self.values)
        values = np.where(finite, self.values, 0.0)
        gains = gradient[:, None] * (values - here[:, None])
        costs = np.where(finite, self._cost(values), np.inf)
        with np.errstate(invalid="ignore", divide="ignore"):
            prices = costs[:, :, None] - costs[:, None, :]
            prices /= gains[:, :, None] - gains[:, None, :]
        prices = np.unique(prices[np.isfinite(prices) & (prices > 0.0)])
        between = (prices[1:] + prices[:-1]) / 2.0
        ends = [prices[0] / 2.0, 2.0 * prices[-1]] if len(prices) else [0.0]
        mu = np.concatenate([between, ends])[:, None, None]
        chosen = np.unique((costs - mu * gains).argmin(axis=2), axis=0)
        return self._with(self.values[np.arange(len(self.columns)), chosen])

    def _roundings(self) -> Array:
        """Return all combinations of the values next to the point, if they are few."""
        here = self.base[self.columns]
        pairs = []
        for value, row in zip(here, self.values, strict=True):
            options = row[np.isfinite(row)]
            below, above = options[options <= value][-1:], options[options >= value][:1]
            pairs.append(np.unique([*below, *above]) if len(options) else options)
        if math.prod(map(len, pairs)) > MOVES:
            return self.base[None][:0]
        return self._with(np.array(list(itertools.product(*pairs))))

    def _cost(self, values: Array) -> Array:
        """Return the parts of the distance for some values, one row per column."""
        cost: Array = self.weights[:, None] * np.abs(values - self.x[:, None])
        return cost

    def _with(self, values: Array) -> Array:
        """Return rows with some values in the columns to write."""
        rows = np.repeat(self.base[None], len(values), axis=0)
        rows[:, self.columns] = values
        return rows

    def _moves(self, row: Array, margin: float, scenario: Scenario) -> Array:
        """Return nearer changes of one or two columns of a row that keep the linearised margin."""
        here, gradient = row[self.columns], scenario.gradient(row)[self.columns]
        column, option = np.nonzero(np.isfinite(self.values) & (self.values != here[:, None]))
        value = self.values[column, option]
        step = self.weights[column] * (
            np.abs(value - self.x[column]) - np.abs(here - self.x)[column]
        )
        gain = gradient[column] * (value - here[column])
        first, second = np.triu_indices(len(column))
        single = first == second
        steps = step[first] + np.where(single, 0.0, step[second])
        kept = margin + gain[first] + np.where(single, 0.0, gain[second])
        apart = single | (column[first] != column[second])
        good = np.flatnonzero(apart & (steps < 0.0) & (kept >= 0.0))
        good = good[np.argsort(steps[good], kind="stable")[:MOVES]]
        values = np.repeat(here[None], len(good), axis=0)
        for which in (first[good], second[good]):
            values[np.arange(len(good)), column[which]] = value[which]
        return self._with(values)

    # -- tests -------------------------------------------------------------------------------

    def written(self) -> Written | None:
        """Find the nearest robust choice, but prefer one in the hull that is hardly farther."""
        if not len(self.columns):
            self._add(self.base[None])
        else:
            self._add(self._choices(self.scenarios[0]))
            self._add(self._roundings())
        self._add(self.legal.goals)
        best = self._nearest(np.inf)
        if best is None:
            self._add(self._towards_goals())
            best = self._nearest(np.inf)
        while best is not None and len(self.columns):
            row = self.rows[best]
            worst = min(self.scenarios, key=lambda each: float(each.value(row)))
            self._add(self._moves(row, self.margins[best] - self.problem.margin, worst))
            nearer = self._nearest(self.distances[best])
            if nearer is None:
                break
            best = nearer
        return None if best is None else self._preferred(best)

    def _nearest(self, below: float) -> int | None:
        """Find the nearest row of the pool that is robust and nearer than ``below``."""
        while self.tests < TESTS and time.monotonic() < self.deadline:
            open_ = (self.distances < below) & (self.margins >= self.problem.margin)
            if not open_.any():
                return None
            number = int(np.where(open_, self.distances, np.inf).argmin())
            if self._passes(number):
                return number
        return None

    def _passes(self, number: int) -> bool:
        """Test a row of the pool exactly. A scenario that refutes it screens all other rows."""
        self.tests += 1
        tested = self.oracle.test(self.rows[number], self.deadline, BUDGET)
        if tested.scenario is not None:
            self.scenarios.append(tested.scenario)
            self.margins = np.minimum(self.margins, tested.scenario.value(self.rows))
        if not tested.robust:
            self.margins[number] = -np.inf
        return tested.robust

    def _towards_goals(self) -> Array:
        """Return rounded points on the way to the goals, and the goals themselves last."""
        starts, goals = self.base[None], self.legal.goals
        if not len(goals):
            starts, goals = self._corners()
        points = (starts + SHARES[:, None, None] * (goals - starts)).reshape(-1, len(self.base))
        for j, column in self.legal.grids.items():
            here = points[:, j]
            points[:, j] = np.where(here == self.problem.x[j], here, column.nearest(here))
        return points

    def _corners(self) -> tuple[Array, Array]:
        """Return rows near corners of the bounds with the largest linearised margins.

        They replace the goals of a region without rows. All columns of a row move to a corner, or
        only those without a step.
        """
        near = self.rows[np.argsort(self.distances, kind="stable")[:CORNERS]]
        near = np.vstack([self.base, near])
        pairs = zip(self.oracle.attack(near), near, strict=True)
        gradients = np.array([scenario.gradient(row) for scenario, row in pairs])
        ends = np.where(gradients > 0.0, self.legal.upper, self.legal.lower)
        corners = np.where(np.isfinite(ends) & (gradients != 0.0), ends, near)
        free = corners.copy()
        free[:, list(self.legal.grids)] = near[:, list(self.legal.grids)]
        return np.vstack([near, near]), np.vstack([corners, free])

    # -- the choice --------------------------------------------------------------------------

    def _preferred(self, best: int) -> Written:
        """Prefer a point of the hull that is hardly farther, and undo negligible changes."""
        inside = bool(self.legal.inside(self.rows[[best]])[0])
        for number in () if inside else self._candidates_in_region(self.distances[best]):
            if self._passes(number):
                tidy = self._without_small_changes(number)
                inside = tidy == number or bool(self.legal.inside(self.rows[[tidy]])[0])
                best = tidy if inside else best
                break
        row = self.rows[best]
        if not self.oracle.evidence(row):  # a later test replaced the evidence
            self.oracle.test(row, self.deadline)
        return Written(row, float(self.distances[best]), inside, self.oracle.evidence(row))

    def _candidates_in_region(self, distance: float) -> list[int]:
        """Return rows of the hull that look robust and are hardly farther, nearest first."""
        good = self.distances <= IN_REGION_RATIO * distance
        good &= self.margins >= self.problem.margin
        near = np.flatnonzero(good)
        near = near[np.argsort(self.distances[near], kind="stable")][:IN_REGION_CANDIDATES]
        left = max(0, TESTS - self.tests)
        return [int(i) for i in near[self.legal.inside(self.rows[near])][:left]]

    def _without_small_changes(self, number: int) -> int:
        """Restore the person's own values if the change is negligible and the row stays robust."""
        costs = self._cost(self.rows[number][self.columns, None])[:, 0]
        small = np.flatnonzero((costs > 0.0) & (costs <= BARELY * self.distances[number]))
        for column in small[np.argsort(costs[small], kind="stable")]:
            if self.tests >= TESTS:
                break
            row = self.rows[number].copy()
            row[self.columns[column]] = self.x[column]
            self._add(row[None])
            for other in np.flatnonzero((self.rows == row).all(axis=1)):  # none if not allowed
                if self.margins[other] >= self.problem.margin and self._passes(int(other)):
                    number = int(other)
        return number
