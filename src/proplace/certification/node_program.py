r"""The linear program of a node: the relaxation of one row under the splits of its tree.

It is the relaxation of :mod:`proplace.certification.bounds` with all slopes optimised at once,

.. math::
    \min\ a \cdot h_H + \text{const} \quad \text{s.t.} \quad
    h_1 \in \text{box},\quad h_i \ge 0,\quad h_i \ge L_i(h_{i-1}),\quad
    h_i \le s_i U_i(h_{i-1}) + t_i ,

with ``U_i <= h_i <= 0`` or ``h_i <= U_i`` in place of the chord where the tree has split. The rows of
all three kinds are built once; a split only changes bounds, so that each program starts from the
basis of the last one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification.bounds import chords, start_slopes
from proplace.certification.dual_bounds import DualBounds
from proplace.solvers import WITH_DUALS, LinearProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Index, Mask, Splits, WorstCaseProblem
    from proplace.core.network import Array

_ORDINARY = 2.0**10  # numbers of a program beyond it, or below its inverse, get units
_VIOLATED = 1e-10  # by this much, in its unit, an activation must exceed max(0, U) to be split


class NodeBound(NamedTuple):
    """What the program of a node says.

    Attributes
    ----------
    value
        A proved bound; infinite if the node is proved to be empty.
    point
        Activations of the relaxed optimum; None when the solver gave none, and the bound comes from
        fixed slopes.
    duals
        What the bound follows from; the dual ray of an empty node; None without an answer.
    multiplier_size
        What the duals add to the sizes of which rounding takes its share. A node without points adds
        nothing to the errors of the others.
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
        """Pick the open neuron whose activation exceeds max(0, U) the most, or None if none does.

        Without a point: the open neuron whose chord can lie furthest above the ReLU.
        """
        formulation, best, pick = self.formulation, _VIOLATED, None
        for index, inner in enumerate(self.problem.abstraction.inner):
            if point is None:
                over = formulation.offsets[index].copy()  # the chord's height where U = 0
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
            # One upper side at a time: the chord while open; after a split h <= U, or h >= U.
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
        """Duals of all rows: 0 for those that the program has no need of."""
        result = np.zeros(self.formulation.rows[-1])
        result[self.formulation.used] = duals * self.units.rows * self.units.objective
        return result

    def _proof_of_emptiness(self, splits: tuple[Splits, ...]) -> Array | None:
        """The solver's dual ray, if it proves that the node is empty."""
        ray = self.program.dual_ray()
        if ray is None:
            return None
        return self.dual_bounds.proof_of_emptiness(self._spread(ray), splits)

    def _emptiness_without_costs(self, splits: tuple[Splits, ...]) -> Array | None:
        """The same where the solver stalls: solve again with a zero objective.

        Feasibility alone is easier to decide.
        """
        self.program.drop_costs()
        self.program.restart()
        infeasible = self.program.run(self.deadline) == "infeasible"
        ray = self._proof_of_emptiness(splits) if infeasible else None
        self.program.restore_costs()
        return ray

    def _bound_of_fixed_slopes(self, splits: tuple[Splits, ...]) -> float:
        """The bound of one backward pass, which needs no solver."""
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
        Of the columns: the activations of all hidden layers.
    columns
        Where the columns of each hidden layer begin, and the end.
    matrix
        The rows that are used.
    row_low, row_high
        Bounds of all rows, used or not.
    rows
        Where each block of rows begins, and the end: for each inner layer the blocks ``h >= L``,
        ``h <= s U + t``, and ``h <= U`` or ``h >= U``, one row per neuron.
    used
        Numbers of the rows that can bind at an optimum; the others are left out.
    open
        Per inner layer, the neurons that may be split.
    offsets
        Per inner layer, the heights of the chords where U = 0.
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
        """The columns of an inner layer."""
        return slice(int(self.columns[index + 1]), int(self.columns[index + 2]))

    @classmethod
    def of(cls, problem: WorstCaseProblem) -> _Formulation:
        """Write the problem of a single row as a linear program."""
        activations, a = problem.activations, problem.objective.a
        preactivations = activations.preactivations
        may_split = [ranges.open_upper[0] for ranges in preactivations]
        may_split[-1] = may_split[-1] & (a < 0.0)  # elsewhere nothing pushes it up
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
    """Neurons of an inner layer whose lower side, and whose upper side, can bind at an optimum.

    Behind the last layer there is only the objective, which pushes each neuron one way.
    """
    ranges, a = problem.activations.preactivations[index], problem.objective.a
    lower, upper = ranges.L_max[0] > 0.0, ranges.U_max[0] > 0.0
    if index == len(problem.abstraction.inner) - 1:
        lower, upper = lower & (a >= 0.0), upper & (a < 0.0)
    return lower, upper


def _rows(W: Array, which: Mask, can_be_active: Mask, columns: Index) -> Array:
    """Rows ``h' - W h`` of some neurons over all columns; ``columns``: where h and h' begin."""
    neurons = np.flatnonzero(which)
    rows = np.zeros((len(neurons), len(can_be_active)))
    before = slice(columns[0], columns[1])
    rows[:, before] = np.where(can_be_active[before], -W[neurons], 0.0)
    rows[np.arange(len(neurons)), columns[1] + neurons] = 1.0
    return rows


@dataclass(frozen=True, eq=False)
class _Units:
    """Units, powers of two, in which the numbers of a program lie near 1: no number is rounded.

    HiGHS refuses or drops what is very large or very small, and its tolerances are absolute. Programs
    of ordinary size are left as they are.
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
    """The power of two near each size; 1 for 0, and for what is near an overflow or underflow."""
    sizes = np.where((sizes > 2.0**-500) & (sizes < 2.0**500), sizes, 1.0)
    return np.ldexp(1.0, np.frexp(sizes)[1])


def _loaded(formulation: _Formulation, units: _Units) -> LinearProgram:
    """The program in the solver."""
    program, matrix, used = LinearProgram(WITH_DUALS), formulation.matrix, formulation.used
    # Some programs make the simplex method go round in circles; none needs as many steps.
    program.limit_iterations(5000 + 50 * sum(matrix.shape))
    program.load(
        formulation.cost * units.columns / units.objective,
        (formulation.low / units.columns, formulation.high / units.columns),
        matrix * units.rows[:, None] * units.columns,
        (formulation.row_low[used] * units.rows, formulation.row_high[used] * units.rows),
    )
    return program
