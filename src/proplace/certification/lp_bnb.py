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

import numpy as np

from proplace.certification.batched_bnb import Nodes, OpenLeaves
from proplace.certification.bounds import chords, start_slopes
from proplace.solvers import WITH_DUALS, LinearProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Mask, Splits, WorstCaseProblem
    from proplace.network import Array

_ORDINARY = (
    2.0**10
)  # of the numbers of a program: beyond it, or below its inverse, units are chosen
_SHOWS = 1e-6  # a rounding error, relative to the value or to the last layer's parameters


class NodeDuals(NamedTuple):
    """What the bound of a node rests on: the solver's duals, or its dual ray if the node is empty."""

    splits: tuple[Splits, ...]
    duals: Array | None
    empty: bool


@dataclass(frozen=True, eq=False)
class Minimum:
    """Bounds on the least value of one objective and the activations that reach ``upper``.

    Attributes
    ----------
    lower, upper
        The bounds.
    hidden
        Activations of the concrete shift that reaches ``upper``.
    nodes
        How many nodes the tree has.
    multiplier_size
        What the solver's duals add to the sizes of which rounding takes its share (see
        :mod:`proplace.certification.roundoff`).
    leaves
        Where a trace was asked for and the threshold is proved: the leaves of the tree with the
        multipliers from which that follows.
    """

    lower: float
    upper: float
    hidden: tuple[Array, ...]
    nodes: int
    multiplier_size: float
    leaves: tuple[Nodes, ...] = ()


def minimise(
    problem: WorstCaseProblem,
    *,
    threshold: float | None = None,
    tolerance: float = 1e-9,
    deadline: float = np.inf,
    open_leaves: OpenLeaves | None = None,
    traced: bool = False,
) -> Minimum:
    """Least value of the objective over Delta, for a problem of a single row.

    Stops when the bounds meet to ``tolerance`` (relative to the size of the value), or as soon as
    they lie on one side of ``threshold``, or at the deadline. ``open_leaves`` is what another search
    has left of the tree: only these are searched, and the closed ones count with their bound. With
    ``traced`` the leaves of the tree are returned too.
    """
    incumbent = _Incumbent.of(problem)
    if (
        not problem.activations.preactivations
    ):  # one hidden layer: a corner of the box is the minimum
        return Minimum(incumbent.value, incumbent.value, incumbent.hidden, 0, 0.0)
    if open_leaves is None:
        widths = (ranges.L_min.shape[1] for ranges in problem.activations.preactivations)
        open_leaves = OpenLeaves((tuple(np.zeros(width, np.int8) for width in widths),), np.inf)
    tree = _Tree(problem, incumbent, open_leaves.closed, deadline)
    tree.grow(open_leaves.splits, threshold, tolerance)
    proved = threshold is not None and tree.lower() >= threshold
    return Minimum(
        min(tree.lower(), incumbent.value),
        incumbent.value,
        incumbent.hidden,
        tree.nodes,
        tree.program.multiplier_size,
        tree.leaves(threshold) if traced and threshold is not None and proved else (),
    )


class _Tree:
    """Best-first branch and bound on the node programs of one row."""

    def __init__(
        self, problem: WorstCaseProblem, incumbent: _Incumbent, closed: float, deadline: float
    ) -> None:
        self.unit, self.incumbent, self.deadline = problem.abstraction.unit, incumbent, deadline
        sizes = [size[0] for size in problem.abstraction.roundoff.sizes(problem.U)]
        self.program = _Program(problem, sizes, deadline)
        self.closed, self.nodes = closed, 0
        self.heap: list[tuple[float, int, list[Array] | None, NodeDuals]] = []
        self.shut: list[NodeDuals] = []
        self.ticket = itertools.count()  # equal bounds: first come, first served

    def grow(
        self, roots: Sequence[tuple[Splits, ...]], threshold: float | None, tolerance: float
    ) -> None:
        """Bound the given nodes and split them, until the bounds suffice or the time is over."""
        for splits in roots:
            self._visit(splits, -np.inf)
        while (
            self.heap
            and not self._suffice(threshold, tolerance)
            and time.monotonic() < self.deadline
        ):
            lower, _, point, node = heapq.heappop(self.heap)
            pick = self.program.branch(node.splits, point)
            if pick is None:  # solved: the bound is as good as the arithmetic allows
                self.closed = min(self.closed, lower)
                self.shut.append(node)
                continue
            for sign in (-1, 1):
                child = tuple(layer.copy() for layer in node.splits)
                child[pick[0]][pick[1]] = sign
                self._visit(child, lower)

    def lower(self) -> float:
        """The bound that the tree proves."""
        return min(self.closed, self.heap[0][0]) if self.heap else self.closed

    def leaves(self, threshold: float) -> tuple[Nodes, ...]:
        """All leaves with the multipliers behind their bounds."""
        nodes = [*self.shut, *(entry[-1] for entry in self.heap)]
        return tuple(self.program.leaf(node, threshold) for node in nodes)

    def _suffice(self, threshold: float | None, tolerance: float) -> bool:
        """Whether the bounds lie on one side of the threshold, or meet."""
        lower, upper = self.lower(), self.incumbent.value
        if threshold is not None and (lower >= threshold or upper < threshold):
            return True
        return upper - lower <= tolerance * max(self.unit, abs(upper))

    def _visit(self, splits: tuple[Splits, ...], known: float) -> None:
        """Bound a node, of whose parent ``known`` is a bound."""
        self.nodes += 1
        value, point = self.program.bound(splits)
        node = NodeDuals(splits, self.program.duals, value == np.inf)
        if node.empty:  # no shift lies in this branch
            self.shut.append(node)
            return
        self.incumbent.offer(point)
        heapq.heappush(self.heap, (max(value, known), next(self.ticket), point, node))


def refine_attack(problem: WorstCaseProblem, hidden: list[Array]) -> tuple[float, list[Array]]:
    """Improve a concrete shift, for a problem of a single row, to the worst one with its signs.

    With the signs of the neurons that hurt kept as they are, the objective is convex in the first
    activations, so that its least value is that of a linear program, and is often not at a corner.
    With two hidden layers, a corner that its own gradient asks for is that least value.
    """
    abstraction, activations, (a, const) = (
        problem.abstraction,
        problem.activations,
        problem.objective,
    )
    value = float(hidden[-1][0] @ a) + const
    if len(activations.preactivations) == 1:
        _, corner = abstraction.steepest(activations, a, hidden)
        if np.array_equal(corner, hidden[0]):
            return value, hidden
    incumbent = _Incumbent(problem, value, tuple(layer[0] for layer in hidden))
    if activations.preactivations:
        unused = [np.zeros(inner.width) for inner in abstraction.inner]  # no bound is asked for
        program = _Program(problem, unused)
        splits = []
        for index, inner in enumerate(abstraction.inner):
            signs = np.where(inner.high(incumbent.hidden[index]) > 0.0, 1, -1).astype(np.int8)
            decided = program.open[index]
            if index == len(abstraction.inner) - 1:
                decided = decided & (a < 0.0)
            splits.append(np.where(decided, signs, np.int8(0)))
        incumbent.offer(program.bound(tuple(splits))[1])
    return incumbent.value, [layer[None] for layer in incumbent.hidden]


class _Incumbent:
    """The best concrete shift of one row so far, as activations of each hidden layer."""

    def __init__(
        self, problem: WorstCaseProblem, value: float = np.inf, hidden: tuple[Array, ...] = ()
    ) -> None:
        self.problem, self.value, self.hidden = problem, value, hidden

    @classmethod
    def of(cls, problem: WorstCaseProblem) -> _Incumbent:
        """Start from the shift that one backward pass asks for."""
        activations, incumbent = problem.activations, cls(problem)
        bound = problem.abstraction.backward(
            activations, *problem.objective, start_slopes(activations)
        )
        incumbent.offer([bound.corner[0]], [side[0] for side in bound.sides])
        return incumbent

    def offer(self, point: list[Array] | None, sides: list[Array] | None = None) -> None:
        """Make a relaxed point concrete and keep it if it is better."""
        if point is None:
            return
        activations, (a, const) = self.problem.activations, self.problem.objective
        h = np.clip(point[0], activations.low[0], activations.high[0])
        hidden, inner_layers = [h], self.problem.abstraction.inner
        for index, inner in enumerate(inner_layers):
            low, high = (np.maximum(side, 0.0) for side in inner.both(h))
            if (
                index == len(inner_layers) - 1
            ):  # nothing behind it: each neuron takes the side that hurts
                h = np.where(a >= 0.0, low, high)
            elif sides is not None:
                h = np.where(sides[index] >= 0.0, low, high)
            else:
                h = np.clip(point[index + 1], low, high)
            hidden.append(h)
        value = float(a @ h + const)
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
    """The linear program of a node, kept warm: a split only changes bounds."""

    def __init__(
        self, problem: WorstCaseProblem, sizes: Sequence[Array], deadline: float = np.inf
    ) -> None:
        abstraction, activations, (a, const) = (
            problem.abstraction,
            problem.activations,
            problem.objective,
        )
        self.abstraction, self.activations, self.a, self.const = abstraction, activations, a, const
        self.sizes, self.multiplier_size = sizes, 0.0  # see Roundoff
        self.deadline = deadline
        self.duals: Array | None = None
        self.slopes = [chords(ranges, None) for ranges in activations.preactivations]
        self.open = [ranges.open_upper[0] for ranges in activations.preactivations]
        self.open[-1] = self.open[-1] & (a < 0.0)  # elsewhere nothing pushes it up
        low, high = [activations.low[0]], [activations.high[0]]
        for ranges in activations.preactivations:
            low.append(np.zeros(ranges.U_max.shape[1]))
            high.append(np.where(ranges.U_max[0] > 0.0, np.inf, 0.0))
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
        most = [
            activations.high[0],
            *(np.maximum(ranges.U_max[0], 0.0) for ranges in activations.preactivations),
        ]
        self.units = _Units.of(self.cost, matrix, most)
        self.program = LinearProgram(WITH_DUALS)
        # Some programs make the simplex method go round in circles; none needs as many steps.
        self.program.limit_iterations(5000 + 50 * sum(matrix.shape))
        self.program.load(
            self.units.cost(self.cost),
            (self.col_low / self.units.columns, self.col_high / self.units.columns),
            matrix * self.units.rows[:, None] * self.units.columns,
            (
                np.concatenate(row_low)[self.kept] * self.units.rows,
                self.row_high[self.kept] * self.units.rows,
            ),
        )

    def _sides(self, index: int) -> tuple[Mask, Mask]:
        """Neurons of an inner layer whose lower side, and whose upper side, can bind at an optimum.

        Behind the last layer there is only the objective, which pushes each neuron one way.
        """
        ranges = self.activations.preactivations[index]
        falls, rises = ranges.L_max[0] > 0.0, ranges.U_max[0] > 0.0
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
        verdict = self.program.solve(self.deadline)
        self.duals = None
        if verdict == "infeasible" and self._proves_empty(splits):
            return np.inf, None
        if verdict == "failed" and self._empty_at_no_cost(splits):
            return np.inf, None
        if verdict != "optimal":
            uppers = [
                chords(ranges, split[None])
                for ranges, split in zip(self.activations.preactivations, splits, strict=True)
            ]
            slopes = start_slopes(self.activations)
            bound = self.abstraction.backward(self.activations, self.a, self.const, slopes, uppers)
            return float(bound.value[0]), None
        x, duals = self.program.values_and_duals()
        x = x * self.units.columns
        point = [x[i:j] for i, j in itertools.pairwise(self.offsets)]
        self.duals = self._spread(duals)
        return self._from_duals(self.duals, splits, self.a, self.const), point

    def leaf(self, node: NodeDuals, threshold: float) -> Nodes:
        r"""Turn the multipliers behind a bound into slopes and split multipliers.

        With :math:`a^+ = \max(a, 0)` and the excess :math:`e = \max(p - a^+, 0)`, the part
        :math:`e\,(L - s U - t)` of a neuron's bound is at most :math:`e (1 - s)(U - \max U)`, since
        :math:`L \le U` wherever the activations before are :math:`\ge 0`. What is left has
        :math:`p \le a^+`, a slope :math:`p / a^+`, and all else on U is a multiplier of its range.
        """
        splits, duals, empty = node
        alpha = [slopes[0].copy() for slopes in start_slopes(self.activations)]
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
            self.program.force_columns(columns, low, high / units)
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
            self.program.force_rows(rows, low[kept] * units, high[kept] * units)

    def _spread(self, duals: Array) -> Array:
        """Multipliers of all rows: 0 for those that the program has no need of."""
        result = np.zeros(self.rows[-1])
        result[self.kept] = duals * self.units.rows * self.units.objective
        return result

    def _proves_empty(self, splits: tuple[Splits, ...]) -> bool:
        """Whether the solver's ray, kept as multipliers, shows that the node is empty.

        Any point gives the objective 0 the value 0, so multipliers that bound it from below by
        more than 0 leave no point.
        """
        found = self.program.dual_ray()
        if found is None:
            return False
        ray = self._spread(found)
        ray /= max(float(np.abs(ray).max()), 1e-300)
        zero = np.zeros_like(self.a)
        kept = (
            self.multiplier_size
        )  # a node without points adds nothing to the errors of the others
        better = max((ray, -ray), key=lambda r: self._from_duals(r, splits, zero, 0.0))
        self.multiplier_size = 0.0
        value = self._from_duals(better, splits, zero, 0.0)
        error, self.multiplier_size = self.abstraction.roundoff.unit * self.multiplier_size, kept
        if not value - error > 1e-9:
            return False
        self.duals = better
        return True

    def _empty_at_no_cost(self, splits: tuple[Splits, ...]) -> bool:
        """Whether a node on which the solver stalls is empty.

        If the program stalls, it is solved again with a zero objective: feasibility alone is easier
        to decide.
        """
        self.program.drop_costs()
        self.program.restart()
        empty = self.program.run(self.deadline) == "infeasible" and self._proves_empty(splits)
        self.program.restore_costs()
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
        value += float(a @ np.where(a >= 0.0, self.activations.low[0], self.activations.high[0]))
        self.multiplier_size = max(self.multiplier_size, pushed)
        error = self.abstraction.roundoff.unit * pushed
        shows = not error <= _SHOWS * max(self.abstraction.unit, abs(value))
        return value - error if shows else value

    def _multipliers(
        self, index: int, duals: Array, splits: tuple[Splits, ...], a: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Valid p, q, r of one inner layer with coefficients ``a``, and its upper sides."""
        slope, offset = (
            part[0] for part in chords(self.activations.preactivations[index], splits[index][None])
        )
        first, chord, side, end = self.rows[3 * index : 3 * index + 4]
        p = np.maximum(duals[first:chord], 0.0)
        q = np.where(splits[index] < 0, np.maximum(duals[side:end], 0.0), 0.0)
        r = np.where(splits[index] < 0, 0.0, -duals[chord:side] - duals[side:end])
        r = np.maximum(r, np.maximum(p + q - a, 0.0))
        return p, q, r, slope, offset
