r"""The linear relaxation of the outer program: region, distance, and one copy per shift.

For a shifted network with pre-activations :math:`z = W v + b` and activations :math:`v`, a neuron
whose sign is open over the region, :math:`l \le z \le u` with :math:`l < 0 < u`, is relaxed to the
triangle

.. math::
    z = v - s, \qquad v, s \ge 0, \qquad (1 - \alpha) v + \alpha s \le -\alpha l,
    \quad \alpha = u / (u - l) ,

with its two parts v and s as variables. The tree fixes it to ``s = 0`` (active) or ``v = 0`` (inactive),
and tightening moves l and u, both by changing bounds and the coefficients of one row of a program that
stays warm. Neurons with a known sign take no variable. Only ``objective >= margin`` is asked of a copy,
so a neuron that only ever pushes it down needs no decision: ``v >= z``, ``v >= 0``, and at an optimum
:math:`v = \max(0, z)` can be had for free.

Activations also lie below affine functions that interpolate upper bounds at the vertices of a simplex
(:mod:`proplace.search.ranges`, which gives the first l and u too).
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.search.program import LpPoint, Program
from proplace.search.ranges import borrowed, key_of, needs_of, ranges_of, weights_of
from proplace.solvers import INF

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proplace.network import Array
    from proplace.search.oracle import Shifted
    from proplace.search.polytope import Polytope
    from proplace.search.ranges import Limits, Ranges
    from proplace.solvers import Columns

Decision = tuple[str, Hashable, float]
"""("active" | "inactive", neuron's key, its violation) or ("below" | "above", grid column, value)."""

REACHED = 0.15
"""Share of a neuron's range within which a point at its end leaves nothing worth a program."""

_MINUTE = 2.0**-10  # largest coefficient of a row below which it is counted in another unit
_LEAST_UNIT = 2.0**-60  # what is smaller still is nothing


@dataclass(frozen=True, eq=False)
class Neuron:
    """An open neuron that the tree may decide.

    ``v`` and ``s`` are the columns of its two parts, counted in ``unit``; ``chord`` is the row of the
    third side; ``weight`` bounds what a unit can do to the objective.
    """

    key: Hashable
    v: int
    s: int
    chord: int
    weight: float
    unit: float


class Relaxation(Program):
    """The relaxation, kept warm while the tree changes bounds."""

    def __init__(
        self,
        polytope: Polytope,
        margin: float,
        limits: Limits | None = None,
        copies: Sequence[Shifted] = (),
        *,
        deadline: float = np.inf,
    ) -> None:
        super().__init__(polytope, deadline)
        self.margin = margin
        self.limits: Limits = dict(limits or {})
        self.copies: list[Shifted] = []
        self.neurons: list[Neuron] = []
        self._known: dict[Hashable, tuple[int, float]] = {}  # column and unit of an activation
        self._number: dict[Hashable, int] = {}
        self._kept: set[Hashable] = set()
        self._cutoff = -1
        self._index()
        for shifted in copies:
            self.add_copy(shifted)

    # -- building ----------------------------------------------------------------------------

    def add_copy(self, shifted: Shifted) -> None:
        """Add a shifted network whose objective must keep the margin.

        First-layer neurons that are the same as in an earlier copy share its variables.
        """
        for other in self.copies:
            for key, limit in borrowed(self.polytope, shifted, other, self.limits).items():
                if key not in self._number:  # those in the program move with it alone
                    known = self.limits.get(key, limit)
                    self.limits[key] = (max(known[0], limit[0]), min(known[1], limit[1]))
        ranges = ranges_of(self.polytope, shifted, self.limits)
        bounds, tops = ranges.bounds, ranges.tops
        needs, weights = needs_of(shifted, ranges), weights_of(shifted, bounds)
        E = self.polytope.functional(np.eye(len(self.polytope.base)))
        e = self.polytope.base
        columns = self.region
        for layer, (W, b) in enumerate(shifted.layers):
            Z, z = W @ E, W @ e + b
            units = _units(W, b, E, e, Z)
            low, high = bounds[layer]
            upper_side, lower_side = needs[layer]
            open_ = np.flatnonzero((low < 0.0) & (high > 0.0) & (upper_side | lower_side))
            keys = [key_of(shifted, layer, int(k)) for k in open_]
            # An earlier copy may have had no need of the upper side: then it is a new variable.
            new = [
                i
                for i, key in enumerate(keys)
                if key not in self._known or (upper_side[open_[i]] and key not in self._number)
            ]
            two_sided = [i for i in new if upper_side[open_[i]]]
            one_sided = [i for i in new if not upper_side[open_[i]]]
            if two_sided:
                rows = open_[two_sided]
                self._add_neurons(
                    [keys[i] for i in two_sided],
                    Z[rows],
                    z[rows],
                    low[rows],
                    high[rows],
                    weights[layer][rows],
                    units[rows],
                    columns,
                    tops[layer][:, rows],
                )
            if one_sided:
                rows = open_[one_sided]
                self._add_one_sided(
                    [keys[i] for i in one_sided], Z[rows], z[rows], units[rows], columns
                )
            self._keep_sides(shifted, layer, ranges, Z, z, units, columns)
            ids = np.array([self._known[key][0] for key in keys], np.int32)
            active = low >= 0.0
            E = np.hstack([np.where(active[:, None], Z, 0.0), np.zeros((len(W), len(open_)))])
            E[open_, len(columns) + np.arange(len(open_))] = [self._known[key][1] for key in keys]
            e = np.where(active, z, 0.0)
            columns = np.concatenate([columns, ids])
        side = self.margin - shifted.const - float(shifted.a @ e)
        self.lp.add_rows(np.array([side]), np.array([INF]), (shifted.a @ E)[None], columns)
        self.copies.append(shifted)
        self._index()

    def _keep_sides(
        self,
        shifted: Shifted,
        layer: int,
        ranges: Ranges,
        Z: Array,
        z: Array,
        units: Array,
        columns: Columns,
    ) -> None:
        """Ask for the signs that are known for points of interest only.

        Without the rows, others (such as the person) would slip through the linear pieces with a
        wrong sign and no decision left.
        """
        found = []
        for k in np.flatnonzero(ranges.kept[layer]):
            key = key_of(shifted, layer, int(k))
            if key not in self._kept and key not in self._number:
                self._kept.add(key)
                found.append(k)
        if found:
            active, unit = ranges.bounds[layer][0][found] >= 0.0, units[found]
            side = -z[found] / unit
            low, high = np.where(active, side, -INF), np.where(active, INF, side)
            self.lp.add_rows(low, high, Z[found] / unit[:, None], columns)

    def _add_neurons(
        self,
        keys: list[Hashable],
        Z: Array,
        z: Array,
        low: Array,
        high: Array,
        weights: Array,
        unit: Array,
        columns: Columns,
        tops: Array,
    ) -> None:
        """Add the variables and the sides of new open neurons."""
        count, zero = len(keys), np.zeros(len(keys))
        first = self.lp.add_columns(
            np.concatenate([zero, zero]),
            np.concatenate([high / unit, -low / unit]),
            np.zeros(2 * count),
        )
        own = np.arange(first, first + 2 * count, dtype=np.int32)
        one, side = np.eye(count), z / unit
        A = np.hstack([-Z / unit[:, None], one, -one])
        self.lp.add_rows(side, side, A, np.concatenate([columns, own]))
        slope = high / (high - low)
        chord = self.lp.add_rows(
            np.full(count, -INF),
            -slope * low / unit,
            np.hstack([np.diag(1.0 - slope), np.diag(slope)]),
            own,
        )
        if len(self.polytope.D):
            self._add_envelopes(tops / unit, own[:count])
        for i, key in enumerate(keys):
            self._known[key] = first + i, float(unit[i])
            self._number[key] = len(self.neurons)
            self.limits[key] = (float(low[i]), float(high[i]))
            weight = float(weights[i] * unit[i])
            self.neurons.append(
                Neuron(key, first + i, first + count + i, chord + i, weight, float(unit[i]))
            )

    def _add_one_sided(
        self, keys: list[Hashable], Z: Array, z: Array, unit: Array, columns: Columns
    ) -> None:
        """Add activations that are only ever asked to be small: ``v >= z``, ``v >= 0``."""
        count = len(keys)
        first = self.lp.add_columns(np.zeros(count), np.full(count, INF), np.zeros(count))
        own = np.arange(first, first + count, dtype=np.int32)
        A = np.hstack([-Z / unit[:, None], np.eye(count)])
        self.lp.add_rows(z / unit, np.full(count, INF), A, np.concatenate([columns, own]))
        for i, key in enumerate(keys):
            self._known[key] = first + i, float(unit[i])

    def _add_envelopes(self, tops: Array, own: Columns) -> None:
        """Bound activations by the interpolation of what they are at most at the vertices."""
        m = len(self.polytope.D)
        rise = (tops[1:] - tops[0]).T / self.polytope.scales
        A = np.hstack([-rise, np.eye(len(rise))])
        columns = np.concatenate([self.region[:m], own])
        self.lp.add_rows(np.full(len(rise), -INF), tops[0], A, columns)

    def _index(self) -> None:
        """Gather the neurons' columns and weights for :meth:`violations`."""
        self._v = np.array([neuron.v for neuron in self.neurons], np.intp)
        self._s = np.array([neuron.s for neuron in self.neurons], np.intp)
        self._weight = np.array([neuron.weight for neuron in self.neurons])
        self._unit = np.array([neuron.unit for neuron in self.neurons])

    # -- tightening --------------------------------------------------------------------------

    def tighten(self, cutoff: float, first: int = 0) -> bool:
        """Tighten neurons, from number ``first`` on, over the relaxation itself.

        Minimises and maximises each pre-activation over all points of the relaxation that keep the
        margin and are nearer than ``cutoff``, and puts what it finds into force at once, so that
        each neuron profits from those before it. The next one is always that whose end is nearest to
        the last solution, which needs few iterations, and ends that a solution has (almost) reached
        are left as they are, and so is the rest at the deadline. False: there are no such points.
        """
        self._apply(())
        self._set_cutoff(cutoff)
        self.lp.drop_costs()
        self.lp.primal_simplex()  # only costs change
        ends = (
            np.array([self.limits[neuron.key] for neuron in self.neurons]).reshape(-1, 2).T.copy()
        )
        todo = np.tile((ends[0] < 0.0) & (ends[1] > 0.0), (2, 1))
        todo[:, :first] = False
        away, scale = np.ones_like(ends), 1.0 / np.maximum(ends[1] - ends[0], 1e-12)
        empty = False
        while todo.any() and time.monotonic() < self.deadline:
            side, number = divmod(int(np.where(todo, away, np.inf).argmin()), len(self.neurons))
            todo[side, number] = False
            neuron, sign = self.neurons[number], 1.0 - 2.0 * side
            self._set_cost(neuron, sign)
            value = self._extreme()
            self._set_cost(neuron, 0.0)
            if value is None:
                empty = True
                break
            if np.isinf(value):
                continue
            point = self.lp.values
            z = (point[self._v] - point[self._s]) * self._unit
            value *= neuron.unit
            if value > sign * ends[side, number]:
                ends[side, number] = sign * value
                low, high = float(ends[0, number]), float(ends[1, number])
                self._limit(neuron, low, high)
                todo[:, number] &= low < 0.0 < high
                scale[number] = 1.0 / max(high - low, 1e-12)
            # how far the point is from the ends, in widths
            np.subtract(z, ends[0], out=away[0])
            np.subtract(ends[1], z, out=away[1])
            away *= scale
            todo &= away > REACHED
        self.lp.dual_simplex()
        self.lp.restore_costs()
        self._set_cutoff(INF)
        return not empty

    def _set_cost(self, neuron: Neuron, sign: float) -> None:
        self.lp.set_cost_for_now(neuron.v, sign)
        self.lp.set_cost_for_now(neuron.s, -sign)

    def _set_cutoff(self, cutoff: float) -> None:
        """Keep to points nearer than the cutoff."""
        if self._cutoff < 0:
            columns = np.arange(len(self.lp.costs), dtype=np.int32)
            costs = np.array(self.lp.costs)[None]
            self._cutoff = self.lp.add_rows(np.array([-INF]), np.array([INF]), costs, columns)
        self.lp.bound_row(self._cutoff, -INF, cutoff - self.offset)

    def _extreme(self) -> float | None:
        """Least value of the objective in force, safe of rounding; None if no point is left.

        Where the solver gives no answer that is -inf: a range that stays wider is not worth more.
        """
        verdict = self.lp.run(self.deadline)
        self.solves += 1
        self.work += self.lp.iterations
        if verdict == "infeasible":
            return None
        if verdict != "optimal":
            return -np.inf
        value = self.lp.objective
        return value - 1e-9 * (1.0 + abs(value))

    def _limit(self, neuron: Neuron, low: float, high: float) -> None:
        """Put new limits of a pre-activation into force."""
        if low > high:  # by rounding
            low = high = (low + high) / 2.0
        self.limits[neuron.key] = (low, high)
        low, high = low / neuron.unit, high / neuron.unit
        self.lp.bound_column(neuron.v, max(low, 0.0), max(high, 0.0))
        self.lp.bound_column(neuron.s, max(-high, 0.0), max(-low, 0.0))
        if low < 0.0 < high:
            slope = high / (high - low)
            self.lp.change_coefficient(neuron.chord, neuron.v, 1.0 - slope)
            self.lp.change_coefficient(neuron.chord, neuron.s, slope)
            self.lp.bound_row(neuron.chord, -INF, -slope * low)
        else:
            self.lp.bound_row(neuron.chord, -INF, INF)

    def rebuilt(self) -> Relaxation:
        """Build the same relaxation with the bounds known by now."""
        new = Relaxation(
            self.polytope, self.margin, self.limits, self.copies, deadline=self.deadline
        )
        new.solves, new.work = self.solves, self.work
        return new

    @property
    def undecided(self) -> int:
        """Number of neurons whose sign is open by what is known."""
        limits = (self.limits[neuron.key] for neuron in self.neurons)
        return sum(low < 0.0 < high for low, high in limits)

    # -- solving -----------------------------------------------------------------------------

    def solve(self, decisions: Iterable[Decision]) -> LpPoint | None:
        """Solve under the decisions of a node; None if nothing is left."""
        return self.nearest() if self._apply(decisions) else None

    def _apply(self, decisions: Iterable[Decision]) -> bool:
        """Put the decisions of a node into force; False if one contradicts what is known."""
        found = self._bounds_of(decisions)
        if found is None:
            return False
        self.lp.override(*found)
        return True

    def _bounds_of(
        self, decisions: Iterable[Decision]
    ) -> tuple[dict[int, tuple[float, float]], dict[int, tuple[float, float]]] | None:
        """Bounds of columns and rows that decisions change; None if they contradict the limits."""
        cols: dict[int, tuple[float, float]] = {}
        rows: dict[int, tuple[float, float]] = {}
        for kind, which, value in decisions:
            if kind in ("below", "above"):
                row = self.grid_rows[which]  # type: ignore[index]
                low, high = rows.get(row, self.lp.row_bounds[row])
                side = value - float(self.polytope.base[which])  # type: ignore[call-overload]
                rows[row] = (max(low, side), high) if kind == "above" else (low, min(high, side))
                continue
            low, high = self.limits[which]
            if (kind == "active" and high < 0.0) or (kind == "inactive" and low > 0.0):
                return None
            number = self._number.get(which)
            if number is None:  # its sign is known by now
                continue
            neuron = self.neurons[number]
            zero = neuron.s if kind == "active" else neuron.v
            cols[zero] = (0.0, 0.0)
        return cols, rows

    def settle(self, key: Hashable, violation: Array) -> None:
        """Take a decided neuron out of the violations: what is left there is rounding."""
        number = self._number.get(key)
        if number is not None:
            violation[number] = 0.0

    def leans_up(self, number: int, solution: LpPoint) -> bool:
        """Whether a neuron's pre-activation is positive at a solution."""
        return bool(solution.variables[self._v[number]] > solution.variables[self._s[number]])

    def violations(self, solution: LpPoint) -> Array:
        """How far each decidable neuron lies above the ReLU, weighted by what it can do."""
        parts = np.minimum(solution.variables[self._v], solution.variables[self._s])
        result: Array = parts * self._weight
        return result


def _units(W: Array, b: Array, E: Array, e: Array, Z: Array) -> Array:
    """Powers of 2 in which to count the neurons ``W (E v + e) + b``, Z being ``W E``.

    Weights of a neuron that training has given up shrink without end, and a pivot on one of them
    leaves nothing of the accuracy of the others: such a neuron is counted in a unit of its size.
    One that is small because its terms cancel is not, since what is left of them is rounding.
    """
    units = np.ones(len(W))
    small = np.flatnonzero(np.abs(Z).max(axis=1, initial=0.0) < _MINUTE)
    if len(small):
        W, terms = np.abs(W[small]), np.abs(np.column_stack([E, e]))
        sizes = np.maximum((W @ terms).max(axis=1), np.abs(b[small]))
        sizes = np.maximum(sizes, _LEAST_UNIT)
        units[small] = np.where(sizes < _MINUTE, np.exp2(np.floor(np.log2(sizes))), 1.0)
    return units
