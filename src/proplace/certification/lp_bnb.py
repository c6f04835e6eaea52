r"""The smallest objective of one row, exactly: branch and bound on linear programs.

Each node of the tree is the relaxation of :mod:`proplace.certification.node_program` under some
splits. If its optimal point satisfies ``h <= max(0, U)`` everywhere, it is a point of the original
problem and the node is solved. Otherwise the neuron with the largest violation is split. The tree
is finite.

The solver is not trusted: the bound of each node is recomputed from its dual values
(:mod:`proplace.certification.node_program`), and its optimal point is turned into a concrete
shifted network and evaluated by a forward pass.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification.batched_bnb import Nodes, OpenLeaves
from proplace.certification.bounds import EQUAL_BOUNDS, start_slopes
from proplace.certification.node_program import NodeDuals, NodeProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Splits, WorstCaseProblem
    from proplace.core.network import Array

_SECONDS_PER_CELL = 8e-8  # to build a node program, which is not started if it would end too late


@dataclass(frozen=True, eq=False)
class Minimum:
    """Bounds on the minimum of one objective, and the activations that reach ``upper``.

    Attributes
    ----------
    lower, upper
        The bounds.
    hidden
        Activations of the concrete shift that reaches ``upper``.
    nodes
        Number of nodes of the tree.
    multiplier_size
        Contribution of the solver's duals to the bound on rounding errors (see
        :mod:`proplace.certification.roundoff`).
    leaves
        With a trace, if the threshold is proved: the leaves of the tree with the multipliers that
        prove it.
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
    deadline: float = np.inf,
    most_nodes: float = np.inf,
    open_leaves: OpenLeaves | None = None,
    traced: bool = False,
) -> Minimum:
    """Minimise the objective over Delta, for a problem of a single row.

    The search stops when the bounds are equal or on one side of ``threshold``, at the deadline, or
    after ``most_nodes`` nodes. ``open_leaves`` is the rest of another search's tree: only these
    leaves are searched, and the closed ones contribute their bound. With ``traced``, the leaves of
    the tree are returned too.
    """
    incumbent, lower = _Incumbent.of(problem)
    if not problem.activations.preactivations:  # one hidden layer: the minimum is at a corner
        return Minimum(incumbent.value, incumbent.value, incumbent.hidden, 0, 0.0)
    if time.monotonic() + _SECONDS_PER_CELL * _cells(problem) >= deadline:
        return Minimum(min(lower, incumbent.value), incumbent.value, incumbent.hidden, 0, 0.0)
    if open_leaves is None:
        widths = (ranges.L_min.shape[1] for ranges in problem.activations.preactivations)
        open_leaves = OpenLeaves((tuple(np.zeros(width, np.int8) for width in widths),), np.inf)
    tree = _Tree(problem, incumbent, open_leaves.closed, deadline)
    tree.grow(open_leaves.splits, threshold, most_nodes)
    leaves: tuple[Nodes, ...] = ()
    if traced and threshold is not None and tree.lower() >= threshold:
        leaves = tree.leaves(threshold)
    return Minimum(
        min(tree.lower(), incumbent.value),
        incumbent.value,
        incumbent.hidden,
        tree.nodes,
        tree.multiplier_size,
        leaves,
    )


def _cells(problem: WorstCaseProblem) -> int:
    """Return the largest size of the matrix of a node program."""
    widths = problem.abstraction.net.widths
    return 3 * sum(widths[1:]) * sum(widths)


class _Tree:
    """Best-first branch and bound on the node programs of one row."""

    def __init__(
        self, problem: WorstCaseProblem, incumbent: _Incumbent, closed: float, deadline: float
    ) -> None:
        self.unit, self.incumbent, self.deadline = problem.abstraction.unit, incumbent, deadline
        sizes = [size[0] for size in problem.abstraction.roundoff.sizes(problem.U)]
        self.program = NodeProgram(problem, sizes, deadline)
        self.closed, self.nodes, self.multiplier_size = closed, 0, 0.0
        self.heap: list[tuple[float, int, list[Array] | None, NodeDuals]] = []
        self.shut: list[NodeDuals] = []
        self.ticket = itertools.count()  # equal bounds: first in, first out

    def grow(
        self, roots: Sequence[tuple[Splits, ...]], threshold: float | None, most_nodes: float
    ) -> None:
        """Bound the given nodes and split them, until the bounds suffice or a limit is reached."""
        for splits in roots:
            if self.nodes >= most_nodes or time.monotonic() >= self.deadline:
                self.closed = -np.inf  # the other nodes have no bound
                return
            self._visit(splits, -np.inf)
        while self.heap and not self._suffice(threshold):
            if self.nodes >= most_nodes or time.monotonic() >= self.deadline:
                break
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
        """Return all leaves with the multipliers of their bounds."""
        nodes = [*self.shut, *(entry[-1] for entry in self.heap)]
        return tuple(self.program.dual_bounds.leaf(node, threshold) for node in nodes)

    def _suffice(self, threshold: float | None) -> bool:
        """Test if the bounds lie on one side of the threshold, or are equal."""
        lower, upper = self.lower(), self.incumbent.value
        if threshold is not None and (lower >= threshold or upper < threshold):
            return True
        return upper - lower <= EQUAL_BOUNDS * max(self.unit, abs(upper))

    def _visit(self, splits: tuple[Splits, ...], known: float) -> None:
        """Bound a node whose parent has the bound ``known``."""
        self.nodes += 1
        bound = self.program.bound(splits)
        node = NodeDuals(splits, bound.duals, bound.value == np.inf)
        if node.empty:  # this branch contains no shift
            self.shut.append(node)
            return
        self.multiplier_size = max(self.multiplier_size, bound.multiplier_size)
        self.incumbent.offer(bound.point)
        entry = max(bound.value, known), next(self.ticket), bound.point, node
        heapq.heappush(self.heap, entry)


def refine_attack(problem: WorstCaseProblem, hidden: list[Array]) -> tuple[float, list[Array]]:
    """Improve a concrete shift, for a problem of a single row, to the worst one with the same signs.

    Once the signs of U are fixed for all neurons that lower the objective, the objective is convex
    in the first activations. Its minimum is therefore that of a linear program, often not at a
    corner. With two hidden layers, a corner in the direction of its own gradient is the minimum.
    """
    abstraction, activations = problem.abstraction, problem.activations
    a, const = problem.objective
    value = float(hidden[-1][0] @ a) + const
    if len(activations.preactivations) == 1:
        _, corner = abstraction.steepest(activations, a, hidden)
        if np.array_equal(corner, hidden[0]):
            return value, hidden
    incumbent = _Incumbent(problem, value, tuple(layer[0] for layer in hidden))
    if activations.preactivations:
        unused = [np.zeros(inner.width) for inner in abstraction.inner]  # no bound is needed
        program = NodeProgram(problem, unused)
        splits = []
        for index, inner in enumerate(abstraction.inner):
            signs = np.where(inner.high(incumbent.hidden[index]) > 0.0, 1, -1).astype(np.int8)
            splits.append(np.where(program.formulation.open[index], signs, np.int8(0)))
        incumbent.offer(program.bound(tuple(splits)).point)
    return incumbent.value, [layer[None] for layer in incumbent.hidden]


class _Incumbent:
    """The best concrete shift of one row so far, as activations of each hidden layer."""

    def __init__(
        self, problem: WorstCaseProblem, value: float = np.inf, hidden: tuple[Array, ...] = ()
    ) -> None:
        self.problem, self.value, self.hidden = problem, value, hidden

    @classmethod
    def of(cls, problem: WorstCaseProblem) -> tuple[_Incumbent, float]:
        """Start from the shift of one backward pass, and return the bound of the pass too."""
        activations, incumbent = problem.activations, cls(problem)
        bound = problem.abstraction.backward(
            activations, *problem.objective, start_slopes(activations)
        )
        incumbent.offer([bound.corner[0]], [side[0] for side in bound.sides])
        return incumbent, float(bound.value[0])

    def offer(self, point: list[Array] | None, sides: list[Array] | None = None) -> None:
        """Make a relaxed point concrete, and store it if it is better."""
        if point is None:
            return
        activations, (a, const) = self.problem.activations, self.problem.objective
        h = np.clip(point[0], activations.low[0], activations.high[0])
        hidden, inner_layers = [h], self.problem.abstraction.inner
        for index, inner in enumerate(inner_layers):
            low, high = (np.maximum(side, 0.0) for side in inner.both(h))
            if (
                index == len(inner_layers) - 1
            ):  # each neuron takes the side that lowers the objective
                h = np.where(a >= 0.0, low, high)
            elif sides is not None:
                h = np.where(sides[index] >= 0.0, low, high)
            else:
                h = np.clip(point[index + 1], low, high)
            hidden.append(h)
        value = float(a @ h + const)
        if value < self.value:
            self.value, self.hidden = value, tuple(hidden)
