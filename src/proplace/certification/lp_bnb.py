r"""The least margin of one row, exactly: branch and bound on a linear program.

The program is the one of :mod:`proplace.certification.bounds` with all slopes optimised at once,

.. math::
    \min\ a \cdot h_H + \text{const} \quad \text{s.t.} \quad
    h_1 \in \text{box},\quad h_i \ge 0,\quad h_i \ge L_i(h_{i-1}),\quad
    h_i \le s_i U_i(h_{i-1}) + t_i ,

with ``U_i <= h_i <= 0`` or ``h_i <= U_i`` in place of the chord where the tree has split. When an
optimal point satisfies ``h <= max(0, U)`` everywhere it is a point of the original problem and the
node is solved; otherwise the neuron with the largest violation is split. The tree is finite.

The solver is not trusted: its dual values :math:`p, q, r \ge 0` of the rows ``h >= L``, ``h >= U``
(after a split to -1) and ``h <= s U + t`` enter

.. math::
    a_k h_k \ \ge\ p_k L_k + q_k U_k - r_k (s_k U_k + t_k) ,

which holds for *any* :math:`p, q, r \ge 0` with :math:`r \ge p + q - a` (the rest falls on
``h >= 0``), so each node's bound is recomputed from them layer by layer.
Its primal point is turned into a concrete shifted network and evaluated by a forward pass.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import highspy
import numpy as np

from proplace.certification.batched_bnb import Nodes, Rest
from proplace.certification.bounds import Abstraction, Root, chords, start_slopes
from proplace.lp import quiet_highs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Mask, Splits
    from proplace.network import Array

_ORDINARY = (
    2.0**10
)  # of the numbers of a program: beyond it, or below its inverse, units are chosen
_SHOWS = 1e-6  # a rounding error, relative to the value or to the last layer's parameters
_FINAL = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
_RETRIES: tuple[dict[str, float], ...] = (
    {"simplex_dual_edge_weight_strategy": 1},  # devex pricing ends where steepest edge stalls
    {"simplex_dual_edge_weight_strategy": 0},
    {"primal_feasibility_tolerance": 1e-7, "dual_feasibility_tolerance": 1e-7},
)


class Basis(NamedTuple):
    """What the bound of a node rests on: the solver's multipliers, or its ray if the node is empty."""

    splits: tuple[Splits, ...]
    duals: Array | None
    empty: bool


@dataclass(frozen=True)
class Minimum:
    """Bounds on the least value of one objective and the activations that reach ``upper``.

    ``pushed`` is what the solver's multipliers add to the sizes of which rounding takes its share (see
    :mod:`proplace.certification.roundoff`).
    """

    lower: float
    upper: float
    hidden: tuple[Array, ...]
    nodes: int
    pushed: float


def minimise(
    abstraction: Abstraction,
    root: Root,
    U: Array,
    c: Array,
    *,
    threshold: float | None = None,
    tolerance: float = 1e-9,
    deadline: float = np.inf,
    leaves: list[Nodes] | None = None,
    rest: Rest | None = None,
) -> Minimum:
    """Least value of ``c . logits`` over Delta for the single row in ``root``.

    ``U`` is this row as the first layer sees it.
    Stops when the bounds meet to ``tolerance`` (relative to the size of the value), or as soon as
    they lie on one side of ``threshold``, or at the deadline. If they prove the threshold, ``leaves``
    receives the leaves of the tree with the multipliers from which that follows. ``rest`` is what
    another search has left of the tree: only that is looked at, and the rest of it counts with its
    bound.
    """
    a, const = abstraction.objective(c)
    best = _Best(abstraction, root, a, const)
    if not root.levels:  # one hidden layer: the corner of the box is the minimum
        return Minimum(best.value, best.value, best.hidden, 0, 0.0)
    sizes = [size[0] for size in abstraction.roundoff.sizes(U)]
    program = _Program(abstraction, root, a, const, sizes, deadline)
    if rest is None:
        rest = Rest(
            [tuple(np.zeros(level.L_min.shape[1], np.int8) for level in root.levels)], np.inf
        )
    ticket = itertools.count()
    heap: list[tuple[float, int, list[Array] | None, Basis]] = []
    shut: list[Basis] = []
    closed, nodes = rest.closed, len(rest.splits)

    def visit(splits: tuple[Splits, ...], known: float) -> None:
        value, point = program.bound(splits)
        basis = Basis(splits, program.duals, value == np.inf)
        if basis.empty:  # no shift lies in this branch
            shut.append(basis)
            return
        best.offer(point)
        heapq.heappush(heap, (max(value, known), next(ticket), point, basis))

    for splits in rest.splits:
        visit(splits, -np.inf)

    def reached(value: float) -> bool:
        if threshold is not None and (value >= threshold or best.value < threshold):
            return True
        return best.value - value <= tolerance * max(abstraction.unit, abs(best.value))

    while heap and not reached(min(closed, heap[0][0])) and time.monotonic() < deadline:
        lower, _, point, basis = heapq.heappop(heap)
        pick = program.branch(basis.splits, point)
        if pick is None:  # solved: the bound is as good as the arithmetic allows
            closed = min(closed, lower)
            shut.append(basis)
            continue
        for sign in (-1, 1):
            child = tuple(layer.copy() for layer in basis.splits)
            child[pick[0]][pick[1]] = sign
            nodes += 1
            visit(child, lower)
    lower = min(closed, heap[0][0]) if heap else closed
    if leaves is not None and threshold is not None and lower >= threshold:
        leaves.extend(program.leaf(basis, threshold) for basis in shut)
        leaves.extend(program.leaf(node[-1], threshold) for node in heap)
    return Minimum(min(lower, best.value), best.value, best.hidden, nodes, program.pushed)


def deepest(
    abstraction: Abstraction, root: Root, c: Array, hidden: list[Array]
) -> tuple[float, list[Array]]:
    """Improve a concrete shift of the single row in ``root`` to the worst one with its signs.

    With the signs of the neurons that hurt kept as they are, the objective is convex in the first
    activations, so that its least value is that of a linear program, and is often not at a corner.
    With two hidden layers, a corner that its own gradient asks for is that least value.
    """
    a, const = abstraction.objective(c)
    if len(root.levels) == 1:
        _, corner = abstraction.steepest(root, a, hidden)
        if np.array_equal(corner, hidden[0]):
            return float(hidden[-1][0] @ a) + const, hidden
    best = _Best(abstraction, root, a, const)
    best.value, best.hidden = float(hidden[-1][0] @ a) + const, tuple(layer[0] for layer in hidden)
    if root.levels:
        unused = [np.zeros(inner.width) for inner in abstraction.inner]  # no bound is asked for
        program = _Program(abstraction, root, a, const, unused)
        splits = []
        for index, inner in enumerate(abstraction.inner):
            signs = np.where(inner.high(best.hidden[index]) > 0.0, 1, -1).astype(np.int8)
            decided = program.open[index]
            if index == len(abstraction.inner) - 1:
                decided = decided & (a < 0.0)
            splits.append(np.where(decided, signs, np.int8(0)))
        best.offer(program.bound(tuple(splits))[1])
    return best.value, [layer[None] for layer in best.hidden]


class _Best:
    """The best concrete shift so far, as activations of each hidden layer."""

    def __init__(self, abstraction: Abstraction, root: Root, a: Array, const: float) -> None:
        self.abstraction, self.root, self.a, self.const = abstraction, root, a, const
        self.value = np.inf
        self.hidden: tuple[Array, ...] = ()
        bound = abstraction.backward(root, a, const, start_slopes(root))
        self.offer([bound.corner[0]], [side[0] for side in bound.sides])

    def offer(self, point: list[Array] | None, sides: list[Array] | None = None) -> None:
        """Make a relaxed point concrete and keep it if it is better."""
        if point is None:
            return
        h = np.clip(point[0], self.root.low[0], self.root.high[0])
        hidden = [h]
        last = len(self.abstraction.inner) - 1
        for index, inner in enumerate(self.abstraction.inner):
            low, high = (np.maximum(side, 0.0) for side in inner.both(h))
            if index == last:  # nothing behind it: each neuron takes the side that hurts
                h = np.where(self.a >= 0.0, low, high)
            elif sides is not None:
                h = np.where(sides[index] >= 0.0, low, high)
            else:
                h = np.clip(point[index + 1], low, high)
            hidden.append(h)
        value = float(self.a @ h + self.const)
        if value < self.value:
            self.value, self.hidden = value, tuple(hidden)


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
    def of(cls, cost: Array, matrix: Array, most: Sequence[Array]) -> _Units:
        """Choose the units of a program whose variables, layer by layer, are at most ``most``."""
        columns, rows, objective = np.ones(len(cost)), np.ones(len(matrix)), 1.0
        largest = [np.abs(part).max(initial=0.0) for part in (cost, matrix, *most)]
        if any(not 1.0 / _ORDINARY < size < _ORDINARY for size in largest if size > 0.0):
            columns = _power(np.concatenate(most))
            rows = 1.0 / _power(np.abs(matrix * columns).max(axis=1, initial=0.0))
            objective = float(_power(np.abs(cost * columns).max(initial=0.0)))
        return cls(columns, rows, objective)

    def cost(self, cost: Array) -> Array:
        """Return the coefficients of an objective in these units."""
        return cost * self.columns / self.objective


def _power(sizes: Array) -> Array:
    """The power of two near each size; 1 for 0, and for what is near an overflow or underflow."""
    sizes = np.where((sizes > 2.0**-500) & (sizes < 2.0**500), sizes, 1.0)
    return np.ldexp(1.0, np.frexp(sizes)[1])


class _Program:
    """The node program in HiGHS, kept warm: a split only changes bounds."""

    def __init__(
        self,
        abstraction: Abstraction,
        root: Root,
        a: Array,
        const: float,
        sizes: Sequence[Array],
        deadline: float = np.inf,
    ) -> None:
        self.abstraction, self.root, self.a, self.const = abstraction, root, a, const
        self.sizes, self.pushed = sizes, 0.0  # see Roundoff
        self.deadline = deadline
        self.duals: Array | None = None
        self.slopes = [chords(level, None) for level in root.levels]
        self.open = [level.open_upper[0] for level in root.levels]
        self.open[-1] = self.open[-1] & (a < 0.0)  # elsewhere nothing pushes it up
        low, high = [root.low[0]], [root.high[0]]
        for level in root.levels:
            low.append(np.zeros(level.U_max.shape[1]))
            high.append(np.where(level.U_max[0] > 0.0, np.inf, 0.0))
        self.offsets = np.cumsum([0, *(len(part) for part in low)])
        self.col_low, self.col_high = np.concatenate(low), np.concatenate(high)
        self.cost = np.zeros(self.offsets[-1])
        self.cost[self.offsets[-2] :] = a
        blocks, row_low, row_high, kept = [], [], [], []
        for index, inner in enumerate(abstraction.inner):
            slope, offset = (part[0] for part in self.slopes[index])
            free = np.full(len(slope), np.inf)
            falls, rises = self._sides(index)
            kept += [falls, rises, self.open[index]]
            blocks.append(self._block(index, inner.W_low, falls))
            blocks.append(self._block(index, slope[:, None] * inner.W_high, rises))
            blocks.append(self._block(index, inner.W_high, self.open[index]))
            row_low += [inner.b_low, -free, -free]
            row_high += [free, slope * inner.b_high + offset, free]
        self.row_high = np.concatenate(row_high)
        self.rows = np.cumsum([0, *(len(part) for part in row_high)])
        self.kept = np.flatnonzero(np.concatenate(kept))
        matrix = np.vstack(blocks)
        most = [root.high[0], *(np.maximum(level.U_max[0], 0.0) for level in root.levels)]
        self.units = _Units.of(self.cost, matrix, most)
        self.solver = quiet_highs()
        # Some programs make the simplex method go round in circles; none needs as many steps.
        self.solver.setOptionValue("simplex_iteration_limit", 5000 + 50 * sum(matrix.shape))
        self.solver.passModel(
            _dense_model(
                self.units.cost(self.cost),
                self.col_low / self.units.columns,
                self.col_high / self.units.columns,
                matrix * self.units.rows[:, None] * self.units.columns,
                np.concatenate(row_low)[self.kept] * self.units.rows,
                self.row_high[self.kept] * self.units.rows,
            )
        )

    def _sides(self, index: int) -> tuple[Mask, Mask]:
        """Neurons of an inner layer whose lower side, and whose upper side, can bind at an optimum.

        Behind the last layer there is only the objective, which pushes each neuron one way.
        """
        level = self.root.levels[index]
        falls, rises = level.L_max[0] > 0.0, level.U_max[0] > 0.0
        if index == len(self.abstraction.inner) - 1:
            falls, rises = falls & (self.a >= 0.0), rises & (self.a < 0.0)
        return falls, rises

    def _block(self, index: int, W: Array, kept: Mask) -> Array:
        """Rows ``h_index+1 - W h_index`` of some neurons over all columns."""
        neurons = np.flatnonzero(kept)
        rows = np.zeros((len(neurons), self.offsets[-1]))
        before = slice(self.offsets[index], self.offsets[index + 1])
        rows[:, before] = np.where(self.col_high[before] > 0.0, -W[neurons], 0.0)
        rows[np.arange(len(neurons)), self.offsets[index + 1] + neurons] = 1.0
        return rows

    def bound(self, splits: tuple[Splits, ...]) -> tuple[float, list[Array] | None]:
        """Return a proved bound of the node (inf: the node is empty) and its relaxed point.

        The point is None when the solver gave none; the bound then comes from fixed slopes.
        """
        self._apply(splits)
        status = self._run()
        self.duals = None
        if status == highspy.HighsModelStatus.kInfeasible and self._proves_empty(splits):
            return np.inf, None
        if status not in _FINAL and self._in_time() and self._empty_at_no_cost(splits):
            return np.inf, None
        if status != highspy.HighsModelStatus.kOptimal:
            uppers = [
                chords(level, split[None])
                for level, split in zip(self.root.levels, splits, strict=True)
            ]
            slopes = start_slopes(self.root)
            bound = self.abstraction.backward(self.root, self.a, self.const, slopes, uppers)
            return float(bound.value[0]), None
        solution = self.solver.getSolution()
        x = np.asarray(solution.col_value) * self.units.columns
        point = [x[i:j] for i, j in itertools.pairwise(self.offsets)]
        self.duals = self._spread(solution.row_dual)
        return self._from_duals(self.duals, splits, self.a, self.const), point

    def leaf(self, basis: Basis, threshold: float) -> Nodes:
        r"""Turn the multipliers behind a bound into slopes and split multipliers.

        With :math:`a^+ = \max(a, 0)` and the excess :math:`e = \max(p - a^+, 0)`, the part
        :math:`e\,(L - s U - t)` of a neuron's bound is at most :math:`e (1 - s)(U - \max U)`, since
        :math:`L \le U` wherever the activations before are :math:`\ge 0`. What is left has
        :math:`p \le a^+`, a slope :math:`p / a^+`, and all else on U is a multiplier of its range.
        """
        splits, duals, empty = basis
        alpha = [slopes[0].copy() for slopes in start_slopes(self.root)]
        gamma = [np.zeros(len(split)) for split in splits]
        if duals is not None and empty:  # any multiple of the ray is valid: take enough of it
            for _ in range(100):
                if self._from_duals(duals, splits, self.a, self.const) >= threshold:
                    break
                duals = duals * 2.0
        if duals is not None:
            a = self.a
            for index in reversed(range(len(splits))):
                p, q, r, slope, _ = self._multipliers(index, duals, splits, a)
                up, down = np.maximum(a, 0.0), np.minimum(a, 0.0)
                excess = np.maximum(p - up, 0.0)
                on_low = p - excess
                on_high = q - (r - excess) * slope + excess * (1.0 - slope)
                np.divide(on_low, up, out=alpha[index], where=up > 0.0)
                gamma[index] = down * slope - on_high
                inner = self.abstraction.inner[index]
                a = on_low @ inner.W_low + on_high @ inner.W_high
        return Nodes(
            np.zeros(1, dtype=np.intp),
            [split[None] for split in splits],
            [slopes[None] for slopes in alpha],
            [multipliers[None] for multipliers in gamma],
        )

    def _run(self) -> highspy.HighsModelStatus:
        """Solve from the last basis; if that stalls, from scratch in other ways."""
        if not self._in_time():
            return highspy.HighsModelStatus.kTimeLimit
        self.solver.run()
        for options in _RETRIES:
            if self._status() in _FINAL or not self._in_time():
                break
            self.solver.clearSolver()
            before = {name: self.solver.getOptionValue(name)[1] for name in options}
            for name, value in options.items():
                self.solver.setOptionValue(name, value)
            self.solver.run()
            for name, value in before.items():
                self.solver.setOptionValue(name, value)
        return self._status()

    def _in_time(self) -> bool:
        """Whether there is time left; the next run of the solver gets what is left."""
        if self.deadline == np.inf:
            return True
        left = self.deadline - time.monotonic()
        self.solver.setOptionValue("time_limit", self.solver.getRunTime() + max(left, 0.0))
        return left > 0.0

    def _status(self) -> highspy.HighsModelStatus:
        status: highspy.HighsModelStatus = self.solver.getModelStatus()
        return status

    def branch(
        self, splits: tuple[Splits, ...], point: list[Array] | None
    ) -> tuple[int, int] | None:
        """Pick the open neuron whose activation exceeds max(0, U) the most, or None if none does.

        Without a point: the open neuron whose chord can lie furthest above the ReLU.
        """
        best, pick = 1e-10, None
        for index, inner in enumerate(self.abstraction.inner):
            if point is None:
                over = self.slopes[index][1][0].copy()  # the chord's height where U = 0
            else:
                over = point[index + 1] - np.maximum(inner.high(point[index]), 0.0)
            over /= self.units.columns[self.offsets[index + 1] : self.offsets[index + 2]]
            over[~self.open[index] | (splits[index] != 0)] = 0.0
            neuron = int(over.argmax())
            if over[neuron] > best:
                best, pick = float(over[neuron]), (index, neuron)
        return pick

    def _apply(self, splits: tuple[Splits, ...]) -> None:
        for index, split in enumerate(splits):
            inner = self.abstraction.inner[index]
            columns = np.arange(self.offsets[index + 1], self.offsets[index + 2], dtype=np.int32)
            high = np.where(split < 0, 0.0, self.col_high[columns])
            units = self.units.columns[columns]
            low = self.col_low[columns] / units
            self.solver.changeColsBounds(len(columns), columns, low, high / units)
            # One upper side at a time: the chord while open; after a split h <= U, or h >= U.
            first, end = self.rows[3 * index + 1], self.rows[3 * index + 3]
            chord = self.row_high[first : self.rows[3 * index + 2]]
            low = np.concatenate(
                [np.full(len(split), -np.inf), np.where(split < 0, inner.b_high, -np.inf)]
            )
            high = np.concatenate(
                [np.where(split == 0, chord, np.inf), np.where(split > 0, inner.b_high, np.inf)]
            )
            start, stop = np.searchsorted(self.kept, (first, end))
            rows, kept = np.arange(start, stop, dtype=np.int32), self.kept[start:stop] - first
            units = self.units.rows[rows]
            self.solver.changeRowsBounds(len(rows), rows, low[kept] * units, high[kept] * units)

    def _spread(self, duals: Sequence[float]) -> Array:
        """Multipliers of all rows: 0 for those that the program has no need of."""
        result = np.zeros(self.rows[-1])
        result[self.kept] = np.asarray(duals) * self.units.rows * self.units.objective
        return result

    def _proves_empty(self, splits: tuple[Splits, ...]) -> bool:
        """Whether the solver's ray, kept as multipliers, shows that the node is empty.

        Any point gives the objective 0 the value 0, so multipliers that bound it from below by
        more than 0 leave no point.
        """
        _, found, ray = self.solver.getDualRay()
        if not found:
            return False
        ray = self._spread(ray)
        ray /= max(float(np.abs(ray).max()), 1e-300)
        zero = np.zeros_like(self.a)
        kept = self.pushed  # a node without points adds nothing to the errors of the others
        better = max((ray, -ray), key=lambda r: self._from_duals(r, splits, zero, 0.0))
        self.pushed = 0.0
        value = self._from_duals(better, splits, zero, 0.0)
        error, self.pushed = self.abstraction.roundoff.unit * self.pushed, kept
        if not value - error > 1e-9:
            return False
        self.duals = better
        return True

    def _empty_at_no_cost(self, splits: tuple[Splits, ...]) -> bool:
        """Whether a node on which the solver stalls is empty: without costs that is easier to see."""
        columns = np.arange(self.offsets[-1], dtype=np.int32)
        self.solver.changeColsCost(len(columns), columns, np.zeros(len(columns)))
        self.solver.clearSolver()
        self.solver.run()
        infeasible = self._status() == highspy.HighsModelStatus.kInfeasible
        empty = infeasible and self._proves_empty(splits)
        self.solver.changeColsCost(len(columns), columns, self.units.cost(self.cost))
        return empty

    def _from_duals(
        self, duals: Array, splits: tuple[Splits, ...], a: Array, const: float
    ) -> float:
        """The bound of ``a . h + const`` that follows from multipliers, whatever they are.

        Multipliers can be so large that rounding shows: then it is taken off.
        """
        value, pushed = const, 0.0
        for index in reversed(range(len(splits))):
            inner = self.abstraction.inner[index]
            p, q, r, slope, offset = self._multipliers(index, duals, splits, a)
            on_high = q - r * slope
            value += float(p @ inner.b_low + on_high @ inner.b_high - r @ offset)
            pushed += float((p + q + r) @ self.sizes[index])
            a = p @ inner.W_low + on_high @ inner.W_high
        value += float(a @ np.where(a >= 0.0, self.root.low[0], self.root.high[0]))
        self.pushed = max(self.pushed, pushed)
        error = self.abstraction.roundoff.unit * pushed
        shows = not error <= _SHOWS * max(self.abstraction.unit, abs(value))
        return value - error if shows else value

    def _multipliers(
        self, index: int, duals: Array, splits: tuple[Splits, ...], a: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Valid p, q, r of one inner layer with coefficients ``a``, and its upper sides."""
        slope, offset = (part[0] for part in chords(self.root.levels[index], splits[index][None]))
        first, chord, side, end = self.rows[3 * index : 3 * index + 4]
        p = np.maximum(duals[first:chord], 0.0)
        q = np.where(splits[index] < 0, np.maximum(duals[side:end], 0.0), 0.0)
        r = np.where(splits[index] < 0, 0.0, -duals[chord:side] - duals[side:end])
        r = np.maximum(r, np.maximum(p + q - a, 0.0))
        return p, q, r, slope, offset


def _dense_model(
    cost: Array, col_low: Array, col_high: Array, matrix: Array, row_low: Array, row_high: Array
) -> highspy.HighsLp:
    rows, columns = np.nonzero(matrix)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = matrix.shape[1], matrix.shape[0]
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, col_low, col_high
    lp.row_lower_, lp.row_upper_ = row_low, row_high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(rows, np.arange(matrix.shape[0] + 1)).astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = matrix[rows, columns]
    return lp
