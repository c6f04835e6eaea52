r"""The linear program of a node: the relaxation of one row under the splits of its tree.

It is the relaxation of :mod:`proplace.certification.bounds` with all slopes optimised at once,

.. math::
    \min\ a \cdot h_H + \text{const} \quad \text{s.t.} \quad
    h_1 \in \text{box},\quad h_i \ge 0,\quad h_i \ge L_i(h_{i-1}),\quad
    h_i \le s_i U_i(h_{i-1}) + t_i ,

with ``U_i <= h_i <= 0`` or ``h_i <= U_i`` in place of the chord for split neurons. The rows of all
three kinds are built once. A split only changes bounds, so each program starts from the basis of
the last one.

The solver of these programs is not trusted. Only its dual values :math:`p, q, r \ge 0` of the rows
``h >= L``, ``h >= U`` (after a split to -1) and ``h <= s U + t`` are used. With the coefficients
:math:`a` of a layer's activations,

.. math::
    a_k h_k \ \ge\ p_k L_k + q_k U_k - r_k (s_k U_k + t_k)

holds for *any* :math:`p, q, r \ge 0` with :math:`r \ge p + q - a` (the rest falls on ``h >= 0``).
Layer by layer, from the last hidden one to the second, this leaves a linear function of
:math:`h_1`, whose minimum over the exact box is the bound. Duals that violate the conditions are
first projected onto them.

An objective of 0 has the value 0 at every point. Multipliers that bound it from below by more than
0 therefore prove that a node has no point.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification.batched_bnb import Nodes
from proplace.certification.bounds import Objective, chords, start_slopes
from proplace.solvers import WITH_DUALS, LinearProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Index, Mask, Splits, WorstCaseProblem
    from proplace.core.network import Array


_SHOWS = 1e-6  # a rounding error, relative to the value or to the last layer's parameters
_EMPTY = 1e-9  # a ray of largest entry 1 must bound 0 from below by this much
_DOUBLINGS = 100  # of a ray, until it proves a threshold


class NodeDuals(NamedTuple):
    """The proof of a node's bound: the solver's duals, or its dual ray if the node is empty.

    None means that the solver failed. The bound then rests on the initial slopes.
    """

    splits: tuple[Splits, ...]
    duals: Array | None
    empty: bool


class DualBound(NamedTuple):
    """A bound, and the contribution of its multipliers to the bound on rounding errors.

    See :mod:`proplace.certification.roundoff`.
    """

    value: float
    multiplier_size: float


class _LayerMultipliers(NamedTuple):
    """Valid multipliers of one inner layer, and its upper sides ``slope * U + offset``."""

    p: Array
    q: Array
    r: Array
    slope: Array
    offset: Array


@dataclass(frozen=True, eq=False)
class DualBounds:
    """Bounds from duals for the nodes of one row.

    Attributes
    ----------
    problem
        The problem of this row.
    sizes
        Largest sizes of the pre-activations of each inner layer.
    Start of each block of rows among all duals: for each inner layer the blocks ``h >= L``, ``h <=
    s U + t``, and ``h <= U`` or ``h >= U``.
    """

    problem: WorstCaseProblem
    sizes: Sequence[Array]
    rows: Index

    def bound(self, duals: Array, splits: tuple[Splits, ...]) -> DualBound:
        """Bound the problem's objective at a node."""
        return self._bound(duals, splits, self.problem.objective)

    def proof_of_emptiness(self, ray: Array, splits: tuple[Splits, ...]) -> Array | None:
        """Return the ray, or its negative, if it proves after rounding that a node is empty."""
        ray = ray / max(float(np.abs(ray).max()), 1e-300)
        zero = Objective(np.zeros_like(self.problem.objective.a), 0.0)
        better = max((ray, -ray), key=lambda r: self._bound(r, splits, zero).value)
        value, size = self._bound(better, splits, zero)
        error = self.problem.abstraction.roundoff.unit * size
        return better if value - error > _EMPTY else None

    def leaf(self, node: NodeDuals, threshold: float) -> Nodes:
        r"""Turn the multipliers of a bound into slopes and split multipliers.

        With :math:`a^+ = \max(a, 0)` and the excess :math:`e = \max(p - a^+, 0)`, the part
        :math:`e\,(L - s U - t)` of a neuron's bound is at most :math:`e (1 - s)(U - \max U)`,
        because :math:`L \le U` for activations :math:`\ge 0` of the layer before. The rest has
        :math:`p \le a^+`, a slope :math:`p / a^+`, and all other terms in U are multipliers of its
        range.
        """
        splits, duals, empty = node
        alpha = [slopes[0].copy() for slopes in start_slopes(self.problem.activations)]
        gamma = [np.zeros(len(split)) for split in splits]
        if duals is not None and empty:  # any multiple of the ray is valid: take a large one
            for _ in range(_DOUBLINGS):
                if self.bound(duals, splits).value >= threshold:
                    break
                duals = duals * 2.0
        if duals is not None:
            a = self.problem.objective.a
            for index in reversed(range(len(splits))):
                p, q, r, slope, _ = self._multipliers(index, duals, splits, a)
                up, down = np.maximum(a, 0.0), np.minimum(a, 0.0)
                excess = np.maximum(p - up, 0.0)
                on_low = p - excess
                on_high = q - (r - excess) * slope + excess * (1.0 - slope)
                np.divide(on_low, up, out=alpha[index], where=up > 0.0)
                gamma[index] = down * slope - on_high
                inner = self.problem.abstraction.inner[index]
                a = on_low @ inner.W_low + on_high @ inner.W_high
        return Nodes(
            np.zeros(1, dtype=np.intp),
            [split[None] for split in splits],
            [slopes[None] for slopes in alpha],
            [multipliers[None] for multipliers in gamma],
        )

    def _bound(self, duals: Array, splits: tuple[Splits, ...], objective: Objective) -> DualBound:
        """Bound any objective, minus the rounding error if multipliers are very large."""
        abstraction, activations = self.problem.abstraction, self.problem.activations
        a, value = objective
        size = 0.0
        for index in reversed(range(len(splits))):
            inner = abstraction.inner[index]
            p, q, r, slope, offset = self._multipliers(index, duals, splits, a)
            on_high = q - r * slope
            value += float(p @ inner.b_low + on_high @ inner.b_high - r @ offset)
            size += float((p + q + r) @ self.sizes[index])
            a = p @ inner.W_low + on_high @ inner.W_high
        value += float(a @ np.where(a >= 0.0, activations.low[0], activations.high[0]))
        error = abstraction.roundoff.unit * size
        shows = not error <= _SHOWS * max(abstraction.unit, abs(value))
        return DualBound(value - error if shows else value, size)

    def _multipliers(
        self, index: int, duals: Array, splits: tuple[Splits, ...], a: Array
    ) -> _LayerMultipliers:
        """Return valid multipliers of an inner layer with coefficients ``a`` of its activations."""
        ranges, split = self.problem.activations.preactivations[index], splits[index]
        slope, offset = (part[0] for part in chords(ranges, split[None]))
        first, chord, side, end = self.rows[3 * index : 3 * index + 4]
        p = np.maximum(duals[first:chord], 0.0)
        q = np.where(split < 0, np.maximum(duals[side:end], 0.0), 0.0)
        r = np.where(split < 0, 0.0, -duals[chord:side] - duals[side:end])
        r = np.maximum(r, np.maximum(p + q - a, 0.0))
        return _LayerMultipliers(p, q, r, slope, offset)


_ORDINARY = 2.0**10  # larger numbers of a program, or smaller than its inverse, get units
_VIOLATED = 1e-10  # smallest violation of max(0, U), in its unit, that leads to a split


class NodeBound(NamedTuple):
    """Result of the program of a node.

    Attributes
    ----------
    value
        A proved bound, infinite if the node is proved to be empty.
    point
        Activations of the relaxed optimum, or None if the solver gave none and the bound comes from
        fixed slopes.
    duals
        Origin of the bound, or the dual ray of an empty node. None after a solver failure.
    multiplier_size
        Contribution of the duals to the bound on rounding errors. An empty node contributes
        nothing.
    """

    value: float
    point: list[Array] | None
    duals: Array | None
    multiplier_size: float


class NodeProgram:
    """The linear program of the nodes of one row, kept warm."""

    def __init__(
        self, problem: WorstCaseProblem, sizes: Sequence[Array], deadline: float = np.inf
    ) -> None:
        self.problem, self.deadline = problem, deadline
        self.formulation = _Formulation.of(problem)
        self.dual_bounds = DualBounds(problem, sizes, self.formulation.rows)
        self.units = _Units.of(self.formulation)
        self.program = _loaded(self.formulation, self.units)

    def bound(self, splits: tuple[Splits, ...]) -> NodeBound:
        """Bound a node."""
        self._apply(splits)
        verdict = self.program.solve(self.deadline)
        ray = None
        if verdict == "infeasible":
            ray = self._proof_of_emptiness(splits)
        elif verdict == "failed":
            ray = self._emptiness_without_costs(splits)
        if ray is not None:
            return NodeBound(np.inf, None, ray, 0.0)
        if verdict != "optimal":
            return NodeBound(self._bound_of_fixed_slopes(splits), None, None, 0.0)
        x, row_duals = self.program.values_and_duals()
        x = x * self.units.columns
        point = [x[i:j] for i, j in itertools.pairwise(self.formulation.columns)]
        duals = self._spread(row_duals)
        value, size = self.dual_bounds.bound(duals, splits)
        return NodeBound(value, point, duals, size)

    def branch(
        self, splits: tuple[Splits, ...], point: list[Array] | None
    ) -> tuple[int, int] | None:
        """Pick the unstable neuron whose activation exceeds max(0, U) the most, or None if none does.

        Without a point, pick the unstable neuron with the largest gap between chord and ReLU.
        """
        formulation, best, pick = self.formulation, _VIOLATED, None
        for index, inner in enumerate(self.problem.abstraction.inner):
            if point is None:
                over = formulation.offsets[index].copy()  # height of the chord at U = 0
            else:
                over = point[index + 1] - np.maximum(inner.high(point[index]), 0.0)
            over /= self.units.columns[formulation.columns_of(index)]
            over[~formulation.open[index] | (splits[index] != 0)] = 0.0
            neuron = int(over.argmax())
            if over[neuron] > best:
                best, pick = float(over[neuron]), (index, neuron)
        return pick

    def _apply(self, splits: tuple[Splits, ...]) -> None:
        """Set the bounds of columns and rows to those of a node."""
        formulation = self.formulation
        for index, split in enumerate(splits):
            b_high = self.problem.abstraction.inner[index].b_high
            here = formulation.columns_of(index)
            columns, units = (
                np.arange(here.start, here.stop, dtype=np.int32),
                self.units.columns[here],
            )
            high = np.where(split < 0, 0.0, formulation.high[here])
            self.program.set_solver_column_bounds(
                columns, formulation.low[here] / units, high / units
            )
            # One upper side at a time: first the chord, after a split h <= U or h >= U.
            first, side, end = formulation.rows[3 * index + 1 : 3 * index + 4]
            chord, unbounded = formulation.row_high[first:side], np.full(len(split), -np.inf)
            low = np.concatenate([unbounded, np.where(split < 0, b_high, -np.inf)])
            high = np.concatenate(
                [np.where(split == 0, chord, np.inf), np.where(split > 0, b_high, np.inf)]
            )
            start, stop = np.searchsorted(formulation.used, (first, end))
            rows, used = (
                np.arange(start, stop, dtype=np.int32),
                formulation.used[start:stop] - first,
            )
            units = self.units.rows[rows]
            self.program.set_solver_row_bounds(rows, low[used] * units, high[used] * units)

    def _spread(self, duals: Array) -> Array:
        """Return the duals of all rows, with 0 for rows that the program leaves out."""
        result = np.zeros(self.formulation.rows[-1])
        result[self.formulation.used] = duals * self.units.rows * self.units.objective
        return result

    def _proof_of_emptiness(self, splits: tuple[Splits, ...]) -> Array | None:
        """Return the solver's dual ray, if it proves that the node is empty."""
        ray = self.program.dual_ray()
        if ray is None:
            return None
        return self.dual_bounds.proof_of_emptiness(self._spread(ray), splits)

    def _emptiness_without_costs(self, splits: tuple[Splits, ...]) -> Array | None:
        """Prove emptiness after the solver stalls: solve again with a zero objective.

        Feasibility alone is easier to decide.
        """
        self.program.drop_costs()
        self.program.restart()
        infeasible = self.program.run(self.deadline) == "infeasible"
        ray = self._proof_of_emptiness(splits) if infeasible else None
        self.program.restore_costs()
        return ray

    def _bound_of_fixed_slopes(self, splits: tuple[Splits, ...]) -> float:
        """Return the bound of one backward pass, which needs no solver."""
        activations = self.problem.activations
        uppers = [
            chords(ranges, split[None])
            for ranges, split in zip(activations.preactivations, splits, strict=True)
        ]
        bound = self.problem.abstraction.backward(
            activations, *self.problem.objective, start_slopes(activations), uppers
        )
        return float(bound.value[0])


@dataclass(frozen=True, eq=False)
class _Formulation:
    """Columns and rows of the program of a root node.

    Attributes
    ----------
    cost, low, high
        Costs and bounds of the columns: the activations of all hidden layers.
    columns
        Start of the columns of each hidden layer, and the end.
    matrix
        The rows in use.
    row_low, row_high
        Bounds of all rows, used or not.
    rows
        Start of each block of rows, and the end: for each inner layer the blocks ``h >= L``, ``h <=
        s U + t``, and ``h <= U`` or ``h >= U``, one row per neuron.
    used
        Numbers of the rows that can bind at an optimum. The others are left out.
    open
        Per inner layer, the neurons that may be split.
    offsets
        Per inner layer, the heights of the chords at U = 0.
    most
        Largest activations of each hidden layer.
    """

    cost: Array
    low: Array
    high: Array
    columns: Index
    matrix: Array
    row_low: Array
    row_high: Array
    rows: Index
    used: Index
    open: list[Mask]
    offsets: list[Array]
    most: list[Array]

    def columns_of(self, index: int) -> slice:
        """Return the columns of an inner layer."""
        return slice(int(self.columns[index + 1]), int(self.columns[index + 2]))

    @classmethod
    def of(cls, problem: WorstCaseProblem) -> _Formulation:
        """Write the problem of a single row as a linear program."""
        activations, a = problem.activations, problem.objective.a
        preactivations = activations.preactivations
        may_split = [ranges.open_upper[0] for ranges in preactivations]
        may_split[-1] = may_split[-1] & (a < 0.0)  # nothing pushes the others up
        most = [
            activations.high[0],
            *(np.maximum(ranges.U_max[0], 0.0) for ranges in preactivations),
        ]
        columns = np.cumsum([0, *(len(part) for part in most)])
        low, high = np.zeros(columns[-1]), np.empty(columns[-1])
        low[: columns[1]], high[: columns[1]] = activations.low[0], activations.high[0]
        high[columns[1] :] = np.where(np.concatenate(most[1:]) > 0.0, np.inf, 0.0)
        cost = np.zeros(columns[-1])
        cost[columns[-2] :] = a
        blocks, row_low, row_high, used = [], [], [], []
        for index, inner in enumerate(problem.abstraction.inner):
            slope, offset = (part[0] for part in preactivations[index].chord)
            unbounded = np.full(inner.width, np.inf)
            lower_binds, upper_binds = _binding_sides(problem, index)
            for W, neurons in (
                (inner.W_low, lower_binds),
                (slope[:, None] * inner.W_high, upper_binds),
                (inner.W_high, may_split[index]),
            ):
                blocks.append(_rows(W, neurons, high > 0.0, columns[index : index + 2]))
                used.append(neurons)
            row_low += [inner.b_low, -unbounded, -unbounded]
            row_high += [unbounded, slope * inner.b_high + offset, unbounded]
        return cls(
            cost,
            low,
            high,
            columns,
            np.vstack(blocks),
            np.concatenate(row_low),
            np.concatenate(row_high),
            np.cumsum([0, *(len(part) for part in row_high)]),
            np.flatnonzero(np.concatenate(used)),
            may_split,
            [ranges.chord[1][0] for ranges in preactivations],
            most,
        )


def _binding_sides(problem: WorstCaseProblem, index: int) -> tuple[Mask, Mask]:
    """Find the neurons of an inner layer whose lower or upper side can bind at an optimum.

    After the last layer there is only the objective, which pushes each neuron one way.
    """
    ranges, a = problem.activations.preactivations[index], problem.objective.a
    lower, upper = ranges.L_max[0] > 0.0, ranges.U_max[0] > 0.0
    if index == len(problem.abstraction.inner) - 1:
        lower, upper = lower & (a >= 0.0), upper & (a < 0.0)
    return lower, upper


def _rows(W: Array, which: Mask, can_be_active: Mask, columns: Index) -> Array:
    """Return rows ``h' - W h`` of some neurons over all columns, with ``columns`` their starts."""
    neurons = np.flatnonzero(which)
    rows = np.zeros((len(neurons), len(can_be_active)))
    before = slice(columns[0], columns[1])
    rows[:, before] = np.where(can_be_active[before], -W[neurons], 0.0)
    rows[np.arange(len(neurons)), columns[1] + neurons] = 1.0
    return rows


@dataclass(frozen=True, eq=False)
class _Units:
    """Units, powers of two, that bring the numbers of a program near 1 without rounding.

    HiGHS rejects or drops very large and very small numbers, and its tolerances are absolute.
    Programs of ordinary size stay unchanged.
    """

    columns: Array
    rows: Array
    objective: float

    @classmethod
    def of(cls, formulation: _Formulation) -> _Units:
        """Choose the units of a program."""
        cost, matrix, most = formulation.cost, formulation.matrix, formulation.most
        columns, rows, objective = np.ones(len(cost)), np.ones(len(matrix)), 1.0
        largest = [np.abs(part).max(initial=0.0) for part in (cost, matrix, *most)]
        if any(not 1.0 / _ORDINARY < size < _ORDINARY for size in largest if size > 0.0):
            columns = _power(np.concatenate(most))
            rows = 1.0 / _power(np.abs(matrix * columns).max(axis=1, initial=0.0))
            objective = float(_power(np.abs(cost * columns).max(initial=0.0)))
        return cls(columns, rows, objective)


def _power(sizes: Array) -> Array:
    """Return the power of two near each size, or 1 for 0 and near an overflow or underflow."""
    sizes = np.where((sizes > 2.0**-500) & (sizes < 2.0**500), sizes, 1.0)
    return np.ldexp(1.0, np.frexp(sizes)[1])


def _loaded(formulation: _Formulation, units: _Units) -> LinearProgram:
    """Load the program into the solver."""
    program, matrix, used = LinearProgram(WITH_DUALS), formulation.matrix, formulation.used
    # The simplex method cycles on some programs. None needs as many steps.
    program.limit_iterations(5000 + 50 * sum(matrix.shape))
    program.load(
        formulation.cost * units.columns / units.objective,
        (formulation.low / units.columns, formulation.high / units.columns),
        matrix * units.rows[:, None] * units.columns,
        (formulation.row_low[used] * units.rows, formulation.row_high[used] * units.rows),
    )
    return program
