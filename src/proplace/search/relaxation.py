r"""The linear relaxation: the region, the distance, and one network per scenario.

For a shifted network with pre-activations :math:`z = W v + b` and activations :math:`v`, a neuron
that is unstable over the region, :math:`l \le z \le u` with :math:`l < 0 < u`, is relaxed to the
triangle

.. math::
    z = v - s, \qquad v, s \ge 0, \qquad (1 - \alpha) v + \alpha s \le -\alpha l,
    \quad \alpha = u / (u - l) ,

with its two parts v and s as variables. The tree fixes it to ``s = 0`` (active) or ``v = 0``
(inactive), and tightening moves l and u. Both change bounds, and the coefficients of one row, of a
program that stays in the solver, so each run starts from the last basis. Neurons with a fixed sign
need no variable. Scenarios only require ``objective >= margin``, so a neuron that can only lower
the objective needs no decision: with ``v >= z`` and ``v >= 0``, an optimum may have :math:`v =
\max(0, z)` at no cost.

Activations also lie below affine functions that interpolate upper bounds at the vertices of a
simplex (:mod:`proplace.search.ranges`, which also gives the first l and u).

Optimisation-based bound tightening (OBBT) finds ranges of the neurons over the relaxation itself.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.search.program import LpPoint, Program
from proplace.search.ranges import key_of, needs_of, ranges_of, weights_of
from proplace.solvers import INF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.search.oracle import Scenario
    from proplace.search.program import LpCounts, Polytope
    from proplace.search.ranges import Limits, Ranges
    from proplace.solvers import Columns


# A neuron with a largest coefficient below this gets a smaller unit, but at least LEAST_UNIT:
# anything smaller counts as 0.
MINUTE_NEURON = 2.0**-10
LEAST_UNIT = 2.0**-60

Decision = tuple[str, Hashable, float]
"""("active" | "inactive", neuron's key, its violation)."""


@dataclass(frozen=True, eq=False)
class Neuron:
    """An unstable neuron that the tree may decide.

    ``v`` and ``s`` are the columns of its two parts, in ``unit``. ``chord`` is the row of the third
    side. ``weight`` bounds the effect of a unit on the objective.
    """

    key: Hashable
    v: int
    s: int
    chord: int
    weight: float
    unit: float


@dataclass(frozen=True, eq=False)
class _Layer:
    """Pre-activations ``Z v + z`` of a layer over some columns v, each in its unit."""

    Z: Array
    z: Array
    unit: Array
    columns: Columns

    def of(self, neurons: npt.NDArray[np.intp]) -> _Layer:
        """Select some neurons of the layer."""
        return _Layer(self.Z[neurons], self.z[neurons], self.unit[neurons], self.columns)

    @property
    def rows(self) -> Array:
        """The coefficients in units."""
        rows: Array = self.Z / self.unit[:, None]
        return rows

    @property
    def sides(self) -> Array:
        """The constants in units."""
        sides: Array = self.z / self.unit
        return sides


class Relaxation(Program):
    """The relaxation, kept warm while the tree changes bounds.

    ``limits`` are bounds of pre-activations that hold for the points of interest: robust, nearer
    than the incumbent, and in this branch of the tree.
    """

    def __init__(
        self,
        polytope: Polytope,
        margin: float,
        limits: Limits | None = None,
        scenarios: Sequence[Scenario] = (),
        *,
        deadline: float = np.inf,
        counts: LpCounts | None = None,
    ) -> None:
        super().__init__(polytope, deadline=deadline, counts=counts)
        self.margin = margin
        self.limits: Limits = dict(limits or {})
        self.scenarios: list[Scenario] = []
        self.neurons: list[Neuron] = []
        self._known: dict[Hashable, tuple[int, float]] = {}  # column and unit of an activation
        self._number: dict[Hashable, int] = {}
        self._enforced: set[Hashable] = set()
        self._cutoff = -1
        self._index()
        for scenario in scenarios:
            self.add_scenario(scenario)

    # -- building ----------------------------------------------------------------------------

    def add_scenario(self, scenario: Scenario, within: Polytope | None = None) -> None:
        """Add a shifted network whose objective must reach the margin.

        First-layer neurons that equal those of an earlier scenario share their variables. The
        ranges of its neurons hold on ``within``, a later cut of the polytope of the program.
        """
        within = self.polytope if within is None else within
        ranges = ranges_of(within, scenario, self.limits)
        needs, weights = needs_of(scenario, ranges), weights_of(scenario, ranges.bounds)
        E = self.polytope.functional(np.eye(len(self.polytope.base)))
        e = self.polytope.base
        columns = self.region
        for number, (W, b) in enumerate(scenario.layers):
            Z, z = W @ E, W @ e + b
            layer = _Layer(Z, z, self._units(W, b, E, e, Z), columns)
            low, high = ranges.bounds[number]
            upper_side, lower_side = needs[number]
            open_ = np.flatnonzero((low < 0.0) & (high > 0.0) & (upper_side | lower_side))
            keys = [key_of(scenario, number, int(k)) for k in open_]
            # If no earlier scenario needed the upper side, it is a new variable.
            new = [
                i
                for i, key in enumerate(keys)
                if key not in self._known or (upper_side[open_[i]] and key not in self._number)
            ]
            two_sided = [i for i in new if upper_side[open_[i]]]
            one_sided = [i for i in new if not upper_side[open_[i]]]
            if two_sided:
                rows = open_[two_sided]
                first = self._add_neurons(
                    [keys[i] for i in two_sided],
                    layer.of(rows),
                    (low[rows], high[rows]),
                    weights[number][rows],
                )
                if len(within.D):
                    tops = ranges.tops[number][:, rows] / layer.unit[rows]
                    self._add_envelopes(tops, first, within)
            if one_sided:
                self._add_one_sided([keys[i] for i in one_sided], layer.of(open_[one_sided]))
            self._enforce_signs(scenario, number, ranges, layer)
            ids = np.array([self._known[key][0] for key in keys], np.int32)
            active = low >= 0.0
            E = np.hstack([np.where(active[:, None], Z, 0.0), np.zeros((len(W), len(open_)))])
            E[open_, len(columns) + np.arange(len(open_))] = [self._known[key][1] for key in keys]
            e = np.where(active, z, 0.0)
            columns = np.concatenate([columns, ids])
        side = self.margin - scenario.const - float(scenario.a @ e)
        self.lp.add_rows(np.array([side]), np.array([INF]), (scenario.a @ E)[None], columns)
        self.scenarios.append(scenario)
        self._index()

    def _enforce_signs(
        self, scenario: Scenario, number: int, ranges: Ranges, layer: _Layer
    ) -> None:
        """Add rows for the signs of a layer that hold for points of interest only.

        Without the rows, other points (such as x) would satisfy the program with a wrong sign that
        no later decision corrects.
        """
        found = []
        for k in np.flatnonzero(ranges.conditional[number]):
            key = key_of(scenario, number, int(k))
            if key not in self._enforced and key not in self._number:
                self._enforced.add(key)
                found.append(k)
        if found:
            active, layer = ranges.bounds[number][0][found] >= 0.0, layer.of(np.array(found))
            low, high = np.where(active, -layer.sides, -INF), np.where(active, INF, -layer.sides)
            self.lp.add_rows(low, high, layer.rows, layer.columns)

    def _add_neurons(
        self, keys: list[Hashable], layer: _Layer, bounds: tuple[Array, Array], weights: Array
    ) -> int:
        """Add the variables and the sides of new unstable neurons, and return the first variable."""
        (low, high), unit = bounds, layer.unit
        count, zero = len(keys), np.zeros(len(keys))
        first = self.lp.add_columns(
            np.concatenate([zero, zero]),
            np.concatenate([high / unit, -low / unit]),
            np.zeros(2 * count),
        )
        own = np.arange(first, first + 2 * count, dtype=np.int32)
        one = np.eye(count)
        A = np.hstack([-layer.rows, one, -one])
        self.lp.add_rows(layer.sides, layer.sides, A, np.concatenate([layer.columns, own]))
        slope = high / (high - low)
        chord = self.lp.add_rows(
            np.full(count, -INF),
            -slope * low / unit,
            np.hstack([np.diag(1.0 - slope), np.diag(slope)]),
            own,
        )
        for i, key in enumerate(keys):
            self._known[key] = first + i, float(unit[i])
            self._number[key] = len(self.neurons)
            self.limits[key] = (float(low[i]), float(high[i]))
            weight = float(weights[i] * unit[i])
            self.neurons.append(
                Neuron(key, first + i, first + count + i, chord + i, weight, float(unit[i]))
            )
        return first

    def _add_one_sided(self, keys: list[Hashable], layer: _Layer) -> None:
        """Add activations that are only minimised: ``v >= z``, ``v >= 0``."""
        count = len(keys)
        first = self.lp.add_columns(np.zeros(count), np.full(count, INF), np.zeros(count))
        own = np.arange(first, first + count, dtype=np.int32)
        A = np.hstack([-layer.rows, np.eye(count)])
        columns = np.concatenate([layer.columns, own])
        self.lp.add_rows(layer.sides, np.full(count, INF), A, columns)
        for i, key in enumerate(keys):
            self._known[key] = first + i, float(layer.unit[i])

    def _add_envelopes(self, tops: Array, first: int, within: Polytope) -> None:
        """Bound activations by the interpolation of their upper bounds at the vertices."""
        rise = (tops[1:] - tops[0]).T / within.scales
        own = np.arange(first, first + len(rise), dtype=np.int32)
        A = np.hstack([-rise, np.eye(len(rise))])
        columns = np.concatenate([self.region[: len(within.D)], own])
        self.lp.add_rows(np.full(len(rise), -INF), tops[0], A, columns)

    def _units(self, W: Array, b: Array, E: Array, e: Array, Z: Array) -> Array:
        """Return powers of 2 as units of the neurons ``W (E v + e) + b``, with Z = ``W E``.

        Weights of neurons without effect shrink in training without end, and a pivot on one of them
        destroys the accuracy of the others: such a neuron gets a unit of its size. A neuron that is
        small because its terms cancel does not, because the remainder is rounding.
        """
        units = np.ones(len(W))
        small = np.flatnonzero(np.abs(Z).max(axis=1, initial=0.0) < MINUTE_NEURON)
        if len(small):
            W, terms = np.abs(W[small]), np.abs(np.column_stack([E, e]))
            sizes = np.maximum((W @ terms).max(axis=1), np.abs(b[small]))
            sizes = np.maximum(sizes, LEAST_UNIT)
            units[small] = np.where(sizes < MINUTE_NEURON, np.exp2(np.floor(np.log2(sizes))), 1.0)
        return units

    def _index(self) -> None:
        """Gather the neurons' columns and weights for :meth:`violations`."""
        self._v = np.array([neuron.v for neuron in self.neurons], np.intp)
        self._s = np.array([neuron.s for neuron in self.neurons], np.intp)
        self._weight = np.array([neuron.weight for neuron in self.neurons])
        self._unit = np.array([neuron.unit for neuron in self.neurons])

    # -- ranges of neurons -------------------------------------------------------------------

    @contextmanager
    def without_objective(self, cutoff: float) -> Iterator[None]:
        """Restrict to points nearer than ``cutoff`` with a zero objective, to minimise neurons."""
        self._apply(())
        self._set_cutoff(cutoff)
        self.lp.drop_costs()
        self.lp.primal_simplex()  # only costs change
        yield
        self.lp.dual_simplex()
        self.lp.restore_costs()
        self._set_cutoff(INF)

    def _set_cutoff(self, cutoff: float) -> None:
        if self._cutoff < 0:
            columns = np.arange(len(self.lp.costs), dtype=np.int32)
            costs = np.array(self.lp.costs)[None]
            self._cutoff = self.lp.add_rows(np.array([-INF]), np.array([INF]), costs, columns)
        self.lp.set_row_bounds(self._cutoff, -INF, cutoff - self.offset)

    def least(self, neuron: Neuron, sign: float) -> float | None:
        """Minimise ``sign`` times a pre-activation, rounded down. None if no point is left.

        After a solver failure the result is -inf, because a wider range is always valid.
        """
        self.lp.set_cost_for_now(neuron.v, sign)
        self.lp.set_cost_for_now(neuron.s, -sign)
        verdict, value = self.lp.run(self.deadline), self.lp.objective
        self.counts.programs += 1
        self.counts.iterations += self.lp.iterations
        self.lp.set_cost_for_now(neuron.v, 0.0)
        self.lp.set_cost_for_now(neuron.s, -0.0)
        if verdict == "infeasible":
            return None
        if verdict != "optimal":
            return -np.inf
        return (value - 1e-9 * (1.0 + abs(value))) * neuron.unit

    def pre_activations(self) -> Array:
        """Return the pre-activations of all unstable neurons at the solution of the last program."""
        point = self.lp.values
        result: Array = (point[self._v] - point[self._s]) * self._unit
        return result

    def limit(self, neuron: Neuron, low: float, high: float) -> None:
        """Apply new limits of a pre-activation."""
        if low > high:  # by rounding
            low = high = (low + high) / 2.0
        self.limits[neuron.key] = (low, high)
        low, high = low / neuron.unit, high / neuron.unit
        self.lp.set_column_bounds(neuron.v, max(low, 0.0), max(high, 0.0))
        self.lp.set_column_bounds(neuron.s, max(-high, 0.0), max(-low, 0.0))
        if low < 0.0 < high:
            slope = high / (high - low)
            self.lp.change_coefficient(neuron.chord, neuron.v, 1.0 - slope)
            self.lp.change_coefficient(neuron.chord, neuron.s, slope)
            self.lp.set_row_bounds(neuron.chord, -INF, -slope * low)
        else:
            self.lp.set_row_bounds(neuron.chord, -INF, INF)

    @property
    def undecided(self) -> int:
        """Number of neurons whose sign is not fixed by the known bounds."""
        limits = (self.limits[neuron.key] for neuron in self.neurons)
        return sum(low < 0.0 < high for low, high in limits)

    # -- solving -----------------------------------------------------------------------------

    def solve(self, decisions: Iterable[Decision]) -> LpPoint | None:
        """Solve under the decisions of a node, or return None if it is infeasible."""
        return self.nearest() if self._apply(decisions) else None

    def _apply(self, decisions: Iterable[Decision]) -> bool:
        """Apply the decisions of a node, or return False if one contradicts the limits."""
        columns: dict[int, tuple[float, float]] = {}
        for kind, which, _ in decisions:
            low, high = self.limits[which]
            if (kind == "active" and high < 0.0) or (kind == "inactive" and low > 0.0):
                return False
            number = self._number.get(which)
            if number is None:  # its sign has become fixed
                continue
            neuron = self.neurons[number]
            zero = neuron.s if kind == "active" else neuron.v
            columns[zero] = (0.0, 0.0)
        self.lp.set_temporary_bounds(columns)
        return True

    def clear_violation(self, key: Hashable, violation: Array) -> None:
        """Remove a decided neuron from the violations: the remainder is rounding."""
        number = self._number.get(key)
        if number is not None:
            violation[number] = 0.0

    def leans_up(self, number: int, solution: LpPoint) -> bool:
        """Test if a neuron's pre-activation is positive at a solution."""
        return bool(solution.variables[self._v[number]] > solution.variables[self._s[number]])

    def violations(self, solution: LpPoint) -> Array:
        """Compute how far each undecided neuron lies above the ReLU, weighted by its effect."""
        parts = np.minimum(solution.variables[self._v], solution.variables[self._s])
        result: Array = parts * self._weight
        return result


# An end of a range stays unchanged if a solution comes within this share of the range, because
# the possible gain is small.
RANGE_REACHED = 0.15


def tighten(relaxation: Relaxation, cutoff: float, first: int = 0) -> bool:
    """Tighten the neurons of a relaxation, from number ``first`` on.

    This is optimisation-based bound tightening (OBBT): each pre-activation is minimised and
    maximised over all points of the relaxation that reach the margin and are nearer than
    ``cutoff``. A new bound is applied at once, so later neurons benefit from it. The next bound to
    improve is always the one nearest to the last solution, which takes few iterations. Bounds that
    a solution has (almost) reached stay unchanged, and at the deadline all others too. Returns
    False if there are no such points.
    """
    with relaxation.without_objective(cutoff):
        return _tighten_in_turn(relaxation, first)


def _tighten_in_turn(relaxation: Relaxation, first: int) -> bool:
    neurons = relaxation.neurons
    ends = np.array([relaxation.limits[neuron.key] for neuron in neurons]).reshape(-1, 2).T.copy()
    todo = np.tile((ends[0] < 0.0) & (ends[1] > 0.0), (2, 1))
    todo[:, :first] = False
    away, scale = np.ones_like(ends), 1.0 / np.maximum(ends[1] - ends[0], 1e-12)
    while todo.any() and time.monotonic() < relaxation.deadline:
        side, number = divmod(int(np.where(todo, away, np.inf).argmin()), len(neurons))
        todo[side, number] = False
        neuron, sign = neurons[number], 1.0 - 2.0 * side
        value = relaxation.least(neuron, sign)
        if value is None:
            return False
        if np.isinf(value):
            continue
        z = relaxation.pre_activations()
        if value > sign * ends[side, number]:
            ends[side, number] = sign * value
            low, high = float(ends[0, number]), float(ends[1, number])
            relaxation.limit(neuron, low, high)
            todo[:, number] &= low < 0.0 < high
            scale[number] = 1.0 / max(high - low, 1e-12)
        # distance of the solution from the ends, in widths of the ranges
        np.subtract(z, ends[0], out=away[0])
        np.subtract(ends[1], z, out=away[1])
        away *= scale
        todo &= away > RANGE_REACHED
    return True
