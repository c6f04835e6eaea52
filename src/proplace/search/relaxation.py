r"""The linear relaxation of the outer program: region, distance, and one copy per shift.

For a shifted network with pre-activations :math:`z = W v + b` and activations :math:`v`, a neuron
whose sign is open over the region, :math:`l < 0 < u`, is relaxed to the triangle

.. math::
    v \ge 0, \qquad v \ge z, \qquad v \le u (z - l) / (u - l) ,

and the tree fixes it to ``v = z`` (active) or ``v = 0, z <= 0`` by changing bounds alone. Neurons
with a known sign take no variable. Only ``objective >= margin`` is asked of a copy, so a neuron that
only ever pushes it down needs the two lower sides and no decision: at an optimum
:math:`v = \max(0, z)` can be had for free.

First-layer activations are convex functions on a simplex and so lie below the interpolation of
their values at its vertices, which is added. The bounds l, u come from one backward pass per layer
over the polytope (whose linear functions have
exact extremes), cut at the incumbent.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import highspy
import numpy as np
import numpy.typing as npt

from proplace.distances import L1, LInf
from proplace.errors import SolverError
from proplace.lp import quiet_highs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.network import Array
    from proplace.search.oracle import Shifted
    from proplace.search.polytope import Polytope

INF = highspy.kHighsInf
Decision = tuple[str, Hashable, float]
"""("active" | "inactive", neuron's key, 0) or ("below" | "above", grid column, value)."""

Bounds = list[tuple["Array", "Array"]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Neuron:
    """An open neuron that the tree may decide.

    ``column`` is its activation v; ``row`` holds ``v - z >= ...`` and ``chord`` the upper side; its
    pre-activation is ``z . columns + z_const``; ``weight`` bounds what it can do to the objective.
    """

    layer: int
    key: Hashable
    column: int
    row: int
    chord: int
    weight: float
    z: Array
    z_const: float
    columns: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class LpPoint:
    """Solution of the relaxation at a node."""

    objective: float
    variables: Array
    point: Array
    centre: Array


class Relaxation:
    """The relaxation in HiGHS, kept warm while the tree changes bounds."""

    def __init__(
        self,
        polytope: Polytope,
        margin: float,
        limits: dict[Hashable, tuple[float, float]] | None = None,
    ) -> None:
        self.polytope, self.margin = polytope, margin
        self.limits = dict(limits or {})
        self.problem = polytope.problem
        self.copies: list[Shifted] = []
        self._known: dict[Hashable, int] = {}
        self.neurons: list[Neuron] = []
        self._number: dict[Hashable, int] = {}
        self._kept: set[Hashable] = set()
        self.solver = quiet_highs()
        self.solves = 0
        self._col_bounds: list[tuple[float, float]] = []
        self._row_bounds: list[tuple[float, float]] = []
        self._changed_cols: dict[int, tuple[float, float]] = {}
        self._changed_rows: dict[int, tuple[float, float]] = {}
        self._add_region()
        self._add_distance()

    # -- building ----------------------------------------------------------------------------

    def _add_columns(self, low: Array, high: Array, cost: Array) -> int:
        first = len(self._col_bounds)
        empty = np.zeros(0, np.int32)
        self.solver.addCols(
            len(low), cost, low, high, 0, np.zeros(len(low), np.int32), empty, np.zeros(0)
        )
        self._col_bounds.extend(zip(low.tolist(), high.tolist(), strict=True))
        return first

    def _add_rows(self, low: Array, high: Array, A: Array, columns: npt.NDArray[np.int32]) -> int:
        """Add rows that are dense over the given columns."""
        first = len(self._row_bounds)
        mask = A != 0.0
        counts = mask.sum(axis=1)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
        index = np.broadcast_to(columns, A.shape)[mask]
        self.solver.addRows(len(low), low, high, int(counts.sum()), starts, index, A[mask])
        self._row_bounds.extend(zip(low.tolist(), high.tolist(), strict=True))
        return first

    def _add_region(self) -> None:
        polytope, piece = self.polytope, self.polytope.piece
        m, g = len(polytope.D), polytope.g_columns
        low = np.concatenate([np.zeros(m), polytope.g_low[g]])
        high = np.concatenate([np.ones(m), polytope.g_high[g]])
        self._add_columns(low, high, np.zeros(len(low)))
        if not len(low):  # a single point; HiGHS does not answer about a model without columns
            self._add_columns(np.zeros(1), np.zeros(1), np.zeros(1))
        self.region = np.arange(polytope.size, dtype=np.int32)
        if m:
            ones = np.concatenate([np.ones(m), np.zeros(len(g))])[None]
            self._add_rows(np.array([-INF]), np.array([1.0]), ones, self.region)
        self.grid_rows: dict[int, int] = {}
        grid = [i for i in self.problem.grids if i in set(g.tolist())]
        if grid:
            C = np.eye(len(polytope.base))[grid]
            base = polytope.base[grid]
            first = self._add_rows(
                piece.lower[grid] - base,
                piece.upper[grid] - base,
                polytope.functional(C),
                self.region,
            )
            self.grid_rows = {i: first + n for n, i in enumerate(grid)}
        if len(piece.A):
            start = piece.A @ polytope.base
            self._add_rows(
                piece.row_lower - start,
                piece.row_upper - start,
                polytope.functional(piece.A),
                self.region,
            )

        for cut in polytope.tangents:  # the bounds of neurons hold on this side only
            side = np.array([cut.side - float(cut.slope @ polytope.base)])
            self._add_rows(
                np.array([-INF]), side, polytope.functional(cut.slope[None]), self.region
            )

    def _add_distance(self) -> None:
        """Add the objective: linear where the sign of a difference is known, else by parts."""
        polytope, x = self.polytope, self.problem.x
        measure = self.problem.distance
        self.tangent_column = -1
        self.offset = 0.0
        if not isinstance(measure, (L1, LInf)):
            self.tangent_column = self._add_columns(np.zeros(1), np.full(1, INF), np.ones(1))
            self.add_tangent(polytope.base)
            return
        C = np.eye(len(x))
        low, high = polytope.range(C)
        low, high, start = low - x, high - x, polytope.base - x
        w = measure.weights
        if isinstance(measure, LInf):
            column = self._add_columns(np.zeros(1), np.full(1, INF), np.ones(1))
            columns = np.append(self.region, np.int32(column))
            for side in (1.0, -1.0):
                rows = polytope.functional(-side * w[:, None] * C)
                A = np.hstack([rows, np.ones((len(w), 1))])
                self._add_rows(side * w * start, np.full(len(w), INF), A, columns)
            return
        sign = np.where(low >= 0.0, 1.0, np.where(high <= 0.0, -1.0, 0.0))
        known = sign != 0.0
        cost = (sign * w)[None] @ C
        self.offset = float((sign * w) @ start)
        self.solver.changeColsCost(len(self.region), self.region, polytope.functional(cost)[0])
        mixed = np.flatnonzero(~known & (w > 0.0))
        if len(mixed):
            n = len(mixed)
            first = self._add_columns(
                np.zeros(2 * n), np.full(2 * n, INF), np.concatenate([w[mixed], w[mixed]])
            )
            columns = np.concatenate([self.region, np.arange(first, first + 2 * n, dtype=np.int32)])
            A = np.hstack([polytope.functional(C[mixed]), -np.eye(n), np.eye(n)])
            self._add_rows(-start[mixed], -start[mixed], A, columns)

    def add_tangent(self, point: Array) -> None:
        """Add the tangent of a convex distance at a point."""
        measure, x = self.problem.distance, self.problem.x
        slope = measure.subgradient(x, point)
        value = float(measure.between(x, point))
        A = np.append(self.polytope.functional(-slope[None])[0], 1.0)[None]
        side = value + float(slope @ (self.polytope.base - point))
        columns = np.append(self.region, np.int32(self.tangent_column))
        self._add_rows(np.array([side]), np.array([INF]), A, columns)

    def add_cut(self, gradient: Array, side: float) -> int:
        """Add ``gradient . x' >= side``."""
        A = self.polytope.functional(gradient[None])
        low = side - float(gradient @ self.polytope.base)
        return self._add_rows(np.array([low]), np.array([INF]), A, self.region)

    def relax_row(self, row: int) -> None:
        """Take a row out of force for good."""
        self._row_bounds[row] = (-INF, INF)
        self.solver.changeRowBounds(row, -INF, INF)

    def add_copy(self, shifted: Shifted) -> None:
        """Add a shifted network whose objective must keep the margin.

        First-layer neurons that are the same as in an earlier copy share its variables.
        """
        copy = len(self.copies)
        bounds = layer_bounds(self.polytope, shifted, self.limits, copy)
        needs, weights = _needs(shifted, bounds), _weights(shifted, bounds)
        E = self.polytope.functional(np.eye(len(self.polytope.base)))
        e = self.polytope.base
        columns = self.region
        for layer, (W, b) in enumerate(shifted.layers):
            Z, z = W @ E, W @ e + b
            low, high = bounds[layer]
            upper_side, lower_side = needs[layer]
            open_ = np.flatnonzero((low < 0.0) & (high > 0.0) & (upper_side | lower_side))
            keys = [_key(shifted, copy, layer, int(k)) for k in open_]
            # An earlier copy may have had no need of the upper side: then it is a new variable.
            wants = upper_side[open_]
            new = np.array(
                [
                    i
                    for i, key in enumerate(keys)
                    if key not in self._known or (wants[i] and key not in self._number)
                ],
                np.intp,
            )
            if len(new):
                self._add_neurons(
                    layer,
                    open_[new],
                    [keys[i] for i in new],
                    Z,
                    z,
                    bounds[layer],
                    upper_side,
                    weights[layer],
                    columns,
                )
            self._keep_sides(shifted, layer, Z, z, bounds[layer], columns)
            ids = np.array([self._known[key] for key in keys], np.int32)
            active = low >= 0.0
            E = np.hstack([np.where(active[:, None], Z, 0.0), np.zeros((len(W), len(open_)))])
            E[open_, len(columns) + np.arange(len(open_))] = 1.0
            e = np.where(active, z, 0.0)
            columns = np.concatenate([columns, ids])
        side = self.margin - shifted.const - float(shifted.a @ e)
        self._add_rows(np.array([side]), np.array([INF]), (shifted.a @ E)[None], columns)
        self.copies.append(shifted)

    def _keep_sides(
        self,
        shifted: Shifted,
        layer: int,
        Z: Array,
        z: Array,
        bounds: tuple[Array, Array],
        columns: npt.NDArray[np.int32],
    ) -> None:
        """Keep neurons on the side that tightening left them.

        Their sign is known for points that are of interest only; without the row, others (such as
        the person) would slip through the linear pieces with a wrong sign and no decision left.
        """
        copy, found = len(self.copies), []
        for k in np.flatnonzero((bounds[0] >= 0.0) | (bounds[1] <= 0.0)):
            key = _key(shifted, copy, layer, int(k))
            if key in self.limits and key not in self._kept:
                self._kept.add(key)
                found.append(k)
        if found:
            active = bounds[0][found] >= 0.0
            low, high = np.where(active, -z[found], -INF), np.where(active, INF, -z[found])
            self._add_rows(low, high, Z[found], columns)

    def _add_neurons(
        self,
        layer: int,
        open_: npt.NDArray[np.intp],
        keys: list[Hashable],
        Z: Array,
        z: Array,
        bounds: tuple[Array, Array],
        upper_side: npt.NDArray[np.bool_],
        weights: Array,
        columns: npt.NDArray[np.int32],
    ) -> None:
        """Add the variable and the sides of new open neurons."""
        low, high, wants = bounds[0][open_], bounds[1][open_], upper_side[open_]
        count = len(open_)
        first = self._add_columns(np.zeros(count), np.where(wants, high, INF), np.zeros(count))
        own = np.arange(first, first + count, dtype=np.int32)
        self._known.update(zip(keys, own.tolist(), strict=True))
        where = np.concatenate([columns, own])
        unit = np.eye(count)
        row = self._add_rows(z[open_], np.full(count, INF), np.hstack([-Z[open_], unit]), where)
        slope = high / (high - low)
        chord = self._add_rows(
            np.full(int(wants.sum()), -INF),
            (slope * (z[open_] - low))[wants],
            np.hstack([-slope[:, None] * Z[open_], unit])[wants],
            where,
        )
        if layer == 0 and len(self.polytope.D):
            self._add_envelopes(Z[open_[wants]], z[open_[wants]], own[wants])
        for order, i in enumerate(np.flatnonzero(wants)):
            k = int(open_[i])
            self.neurons.append(
                Neuron(
                    layer,
                    keys[i],
                    int(own[i]),
                    row + int(i),
                    chord + order,
                    float(weights[k]),
                    Z[k],
                    float(z[k]),
                    columns,
                )
            )
            self._number[keys[i]] = len(self.neurons) - 1
            self.limits[keys[i]] = (float(low[i]), float(high[i]))

    def _add_envelopes(self, Z: Array, z: Array, own: npt.NDArray[np.int32]) -> None:
        """Bound first-layer activations by their concave envelope over a simplex around the piece.

        A convex function lies below the interpolation of its values at the vertices,
        ``max(0, z) <= max(0, z_0) + sum_l mu_l (max(0, z_l) - max(0, z_0))``: often far tighter
        than the chord. What a grid column can add is at most the positive part of its share.
        """
        m = len(self.polytope.D)
        scale = self.polytope.scales()
        at_base = np.maximum(z, 0.0)
        rise = (np.maximum(z[:, None] + scale * Z[:, :m], 0.0) - at_base[:, None]) / scale
        g, W = self.polytope.g_columns, Z[:, m:]
        room = np.maximum(W * self.polytope.g_low[g], W * self.polytope.g_high[g]).sum(axis=1)
        A = np.hstack([-rise, np.eye(len(Z))])
        columns = np.concatenate([self.region[:m], own])
        self._add_rows(np.full(len(Z), -INF), at_base + room, A, columns)

    # -- tightening --------------------------------------------------------------------------

    def tighten(self, cutoff: float, *, first: int = 0, deadline: float = np.inf) -> bool:
        """Tighten ``limits`` of neurons from number ``first`` on over the relaxation itself.

        Minimises and maximises each pre-activation over all points of the relaxation that keep the
        margin and are nearer than ``cutoff``. False: there are no such points. The program itself
        keeps its old bounds: see :meth:`rebuilt`.
        """
        self._apply(())
        count = len(self._col_bounds)
        columns = np.arange(count, dtype=np.int32)
        cost = np.array(self.solver.getLp().col_cost_)
        row = self._add_rows(
            np.array([-INF]), np.array([cutoff - self.offset]), cost[None], columns
        )
        self.solver.setOptionValue("simplex_strategy", 4)  # primal: only costs change
        empty = False
        for neuron in self.neurons[first:]:
            if time.monotonic() >= deadline:
                break
            low, high = self.limits[neuron.key]
            for sign in (1.0, -1.0):
                if low >= 0.0 or high <= 0.0:
                    break
                value = self._extreme(neuron, sign, count, columns)
                if value is None:
                    empty = True
                    break
                low, high = (max(low, value), high) if sign > 0.0 else (low, min(high, value))
            if empty:
                break
            self.limits[neuron.key] = (low, high)
        self.solver.setOptionValue("simplex_strategy", 1)
        self.solver.changeColsCost(count, columns, cost)
        self.relax_row(row)
        return not empty

    def rebuilt(self) -> Relaxation:
        """Build the same relaxation with the bounds known by now."""
        new = Relaxation(self.polytope, self.margin, self.limits)
        new.solves = self.solves
        for shifted in self.copies:
            new.add_copy(shifted)
        return new

    def _extreme(
        self, neuron: Neuron, sign: float, count: int, columns: npt.NDArray[np.int32]
    ) -> float | None:
        """Least (sign 1) or greatest (sign -1) pre-activation; None if no point is left."""
        aim = np.zeros(count)
        aim[neuron.columns] = sign * neuron.z
        self.solver.changeColsCost(count, columns, aim)
        self.solver.run()
        self.solves += 1
        status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            return -sign * np.inf
        value = float(self.solver.getInfo().objective_function_value)
        return sign * (value - 1e-9 * (1.0 + abs(value))) + neuron.z_const

    @property
    def undecided(self) -> int:
        """Number of neurons whose sign is open by what is known."""
        limits = (self.limits[neuron.key] for neuron in self.neurons)
        return sum(low < 0.0 < high for low, high in limits)

    # -- solving -----------------------------------------------------------------------------

    def solve(self, decisions: Iterable[Decision]) -> LpPoint | None:
        """Solve under the decisions of a node; None if nothing is left."""
        if not self._apply(decisions):
            return None
        self.solves += 1
        self.solver.run()
        status = self.solver.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible):
            self.solver.clearSolver()
            self.solver.run()
            status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"a linear program of the search ended with {status}")
        values = np.array(self.solver.getSolution().col_value)
        objective = self.solver.getInfo().objective_function_value + self.offset
        region = values[: self.polytope.size]
        return LpPoint(objective, values, self.polytope.point(region), self.polytope.centre(region))

    def _apply(self, decisions: Iterable[Decision]) -> bool:
        """Put the decisions of a node into force; False if one contradicts what is known."""
        found = self._bounds_of(decisions)
        if found is None:
            return False
        cols, rows = found
        for column in self._changed_cols.keys() - cols.keys():
            self.solver.changeColBounds(column, *self._col_bounds[column])
        for row in self._changed_rows.keys() - rows.keys():
            self.solver.changeRowBounds(row, *self._row_bounds[row])
        for column, bound in cols.items():
            if self._changed_cols.get(column) != bound:
                self.solver.changeColBounds(column, *bound)
        for row, bound in rows.items():
            if self._changed_rows.get(row) != bound:
                self.solver.changeRowBounds(row, *bound)
        self._changed_cols, self._changed_rows = cols, rows
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
                low, high = rows.get(row, self._row_bounds[row])
                side = value - float(self.polytope.base[which])  # type: ignore[call-overload]
                rows[row] = (max(low, side), high) if kind == "above" else (low, min(high, side))
                continue
            number = self._number.get(which)
            if number is None:  # its sign is known by now
                low, high = self.limits[which]
                if (kind == "active" and high < 0.0) or (kind == "inactive" and low > 0.0):
                    return None
            elif kind == "active":
                row = self.neurons[number].row
                rows[row] = (self._row_bounds[row][0],) * 2
            else:
                cols[self.neurons[number].column] = (0.0, 0.0)
        return cols, rows

    def pre_activation(self, number: int, solution: LpPoint) -> float:
        """Pre-activation of a neuron at a solution of the relaxation."""
        neuron = self.neurons[number]
        return float(neuron.z @ solution.variables[neuron.columns]) + neuron.z_const

    def settle(self, key: Hashable, violation: Array) -> None:
        """Take a decided neuron out of the violations: what is left there is rounding."""
        number = self._number.get(key)
        if number is not None:
            violation[number] = 0.0

    def violations(self, solution: LpPoint) -> Array:
        """How far each decidable neuron lies above the ReLU, weighted by what it can do."""
        if not self.neurons:
            return np.zeros(0)
        values = solution.variables
        rows = np.array(self.solver.getSolution().row_value)
        v = values[[neuron.column for neuron in self.neurons]]
        row = [neuron.row for neuron in self.neurons]
        z = v - rows[row] + np.array([self._row_bounds[r][0] for r in row])
        weight = np.array([neuron.weight for neuron in self.neurons])
        result: Array = (v - np.maximum(z, 0.0)) * weight
        return result


def _key(shifted: Shifted, copy: int, layer: int, k: int) -> Hashable:
    """Name a neuron; equal neurons of the first layer have one name in all copies."""
    if layer > 0:
        return (copy, layer, k)
    W, b = shifted.layers[0]
    return (W[k].tobytes(), float(b[k]))


def layer_bounds(
    polytope: Polytope,
    shifted: Shifted,
    limits: dict[Hashable, tuple[float, float]],
    copy: int,
) -> Bounds:
    """Bounds of every hidden pre-activation over the polytope, and not wider than ``limits``."""
    bounds: Bounds = []
    for layer, (W, b) in enumerate(shifted.layers):
        both = np.vstack([W, -W])
        C, const = _to_input(shifted, bounds, both, np.concatenate([b, -b]))
        least = polytope.least(C) + const
        low, high = least[: len(W)], -least[len(W) :]
        if limits:
            for k in np.flatnonzero((low < 0.0) & (high > 0.0)):
                known = limits.get(_key(shifted, copy, layer, int(k)))
                if known is not None:
                    low[k], high[k] = max(low[k], known[0]), min(high[k], known[1])
        bounds.append((low, high))
    return bounds


def _to_input(shifted: Shifted, bounds: Bounds, A: Array, const: Array) -> tuple[Array, Array]:
    """Linear lower bounds ``C x' + const`` of ``A v + const``, v the layer behind ``bounds``."""
    for (W, b), (low, high) in zip(
        reversed(shifted.layers[: len(bounds)]), reversed(bounds), strict=True
    ):
        open_ = (low < 0.0) & (high > 0.0)
        chord = np.where(open_, high / np.where(open_, high - low, 1.0), low >= 0.0)
        lower = np.where(open_, high >= -low, low >= 0.0)
        negative = np.minimum(A, 0.0)
        const = const + (negative * np.where(open_, -chord * low, 0.0)).sum(axis=1)
        A = negative * chord + (A - negative) * lower
        const = const + A @ b
        A = A @ W
    return A, const


def _needs(shifted: Shifted, bounds: Bounds) -> list[tuple[Mask, Mask]]:
    """For each layer: which neurons must be bounded from above, and which from below."""
    needs: list[tuple[Mask, Mask]] = [(shifted.a > 0.0, shifted.a < 0.0)]
    for layer in range(len(shifted.layers) - 1, 0, -1):
        W, alive = shifted.layers[layer][0], bounds[layer][1] > 0.0
        upper, lower = needs[0][0] & alive, needs[0][1] & alive
        positive, negative = W > 0.0, W < 0.0
        above = (positive & upper[:, None]) | (negative & lower[:, None])
        below = (negative & upper[:, None]) | (positive & lower[:, None])
        needs.insert(0, (cast("Mask", above.any(axis=0)), cast("Mask", below.any(axis=0))))
    return needs[: len(shifted.layers)]


def _weights(shifted: Shifted, bounds: Bounds) -> list[Array]:
    """How much the objective can move with each activation, at most."""
    weights = [np.abs(shifted.a)]
    for layer in range(len(shifted.layers) - 1, 0, -1):
        W, alive = shifted.layers[layer][0], bounds[layer][1] > 0.0
        weights.insert(0, (weights[0] * alive) @ np.abs(W))
    return weights[: len(shifted.layers)]
