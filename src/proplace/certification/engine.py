r"""The smallest objective of each row over Delta, with as little work as each row needs.

A target class has one objective :math:`c` over the logits for each class it competes with, and the
worst-case margin of a row is their minimum. For each objective, each row goes as far as needed:

1. one backward pass and one attack, for all rows (:mod:`proplace.certification.batched_bnb`);
2. for undecided rows, tighter ranges and the batched branch and bound;
3. for the few remaining rows, branch and bound on linear programs, row by row
   (:mod:`proplace.certification.lp_bnb`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification.batched_bnb import Incumbents, decide, first_bounds
from proplace.certification.bounds import EQUAL_BOUNDS, WorstCaseProblem
from proplace.certification.lp_bnb import minimise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.batched_bnb import FirstBounds, Nodes, TreeBounds
    from proplace.certification.bounds import Abstraction, ActivationBounds, Index, Mask
    from proplace.core.network import Array


@dataclass(frozen=True, eq=False)
class LeastValues:
    r"""Bounds on the smallest objective of each row, valid up to rounding.

    ``multiplier_size`` is the term :math:`\sum_{ik} |m_{ik}| \bar h_{ik}` that the multipliers m of
    their proofs add to the bound on rounding errors (:mod:`proplace.certification.roundoff`).
    """

    lower: Array
    upper: Array
    multiplier_size: Array


@dataclass(frozen=True, eq=False)
class ProofTrace:
    """The proof of the bounds of a batch of rows.

    Attributes
    ----------
    activations
        The bounds on activations that were used, or None for a network without hidden layers.
    tight
        Rows whose ranges were tightened by backward passes.
    leaves
        For each objective, the leaves of the trees that reach the threshold. Rows without leaves
        were decided by their root node.
    hidden
        Activations of the worst shift found for each row.
    worst
        The objective that this shift minimises.
    """

    activations: ActivationBounds | None
    tight: Mask
    leaves: tuple[tuple[Nodes, ...], ...]
    hidden: tuple[Array, ...]
    worst: Index


class Budget(NamedTuple):
    """Work limit per row and objective: nodes of the batched tree, then linear programs.

    0 nodes mean a single backward pass. None means no limit. A row that needs more work stays
    undecided.
    """

    nodes: int | None = None
    programs: float = np.inf


FULL = Budget()
"""No limit except the deadline."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to decide, as inputs of the first layer, each against its own threshold.

    With a finite threshold, the bounds of a row become tight enough to decide against it. With
    ``-inf``, they become equal, unless the deadline, the budget or the solver's precision stops
    them first.
    """

    U: Array
    threshold: Array
    deadline: float = np.inf
    budget: Budget = FULL


def least_values(abstraction: Abstraction, rows: Rows, objectives: Array) -> LeastValues:
    """Return lower and upper bounds on the smallest objective of each row."""
    engine = _Engine(abstraction, rows, traced=False)
    engine.run(objectives)
    return engine.values()


def traced_least_values(
    abstraction: Abstraction, rows: Rows, objectives: Array
) -> tuple[LeastValues, ProofTrace]:
    """Return the same bounds with their proof."""
    engine = _Engine(abstraction, rows, traced=True)
    engine.run(objectives)
    return engine.values(), engine.trace()


class _Engine:
    """The objectives of a batch of rows, one after the other, with the bounds so far.

    A row that one objective has refuted is skipped for the others.
    """

    def __init__(self, abstraction: Abstraction, rows: Rows, *, traced: bool) -> None:
        self.abstraction, self.rows, self.traced = abstraction, rows, traced
        count, widths = len(rows.U), abstraction.net.widths
        self.root = abstraction.interval_bounds(rows.U) if widths else None
        self.lower = np.full(count, np.inf)
        self.incumbents = Incumbents(
            np.full(count, np.inf), [np.zeros((count, width)) for width in widths]
        )
        self.worst = np.zeros(count, dtype=np.intp)
        self.multiplier_size = np.zeros(count)
        self.tightened: list[tuple[Index, ActivationBounds]] = []
        self.leaves: list[tuple[Nodes, ...]] = []

    def run(self, objectives: Array) -> None:
        """Bound all objectives."""
        if self.root is None:
            values = np.array([self.abstraction.linear_minimum(self.rows.U, c) for c in objectives])
            self.worst = values.argmin(axis=0)
            self.lower = values.min(axis=0)
            self.incumbents.upper = self.lower.copy()
            return
        for index, c in enumerate(objectives):
            self._bound(index, self.root, c)

    def values(self) -> LeastValues:
        """Return the bounds."""
        upper = self.incumbents.upper
        return LeastValues(np.minimum(self.lower, upper), upper, self.multiplier_size)

    def trace(self) -> ProofTrace:
        """Return the proof of the bounds."""
        activations, tight = self.root, np.zeros(len(self.rows.U), dtype=bool)
        for rows, ranges in self.tightened:
            tight[rows] = True
            activations = ranges if activations is None else activations.put(rows, ranges)
        hidden = tuple(self.incumbents.hidden)
        return ProofTrace(activations, tight, tuple(self.leaves), hidden, self.worst)

    def _bound(self, index: int, root: ActivationBounds, c: Array) -> None:
        """Bound one objective."""
        objective = self.abstraction.objective(c)
        problem = WorstCaseProblem(self.abstraction, root, self.rows.U, objective)
        first = first_bounds(problem)
        everything = np.arange(len(problem))
        self._offer(index, everything, first.upper, first.hidden)
        lower = first.lower
        leaves: list[Nodes] = []
        rows = np.flatnonzero(self._open(everything, lower))
        if len(rows) and self.rows.budget.nodes != 0 and time.monotonic() < self.rows.deadline:
            if len(rows) < len(problem):
                problem, first = problem.take(rows), first.take(rows)
            better, leaves = self._branch(index, problem, rows, first)
            lower = lower.copy()
            lower[rows] = better
        self.leaves.append(tuple(leaves))
        self.lower = np.minimum(self.lower, lower)

    def _branch(
        self, index: int, problem: WorstCaseProblem, rows: Index, first: FirstBounds
    ) -> tuple[Array, list[Nodes]]:
        """Return lower bounds, and leaves, of the rows that one backward pass leaves undecided."""
        wanted, deadline = self.rows.threshold[rows], self.rows.deadline
        activations = self.abstraction.tighten(problem.activations, deadline)
        reusable = first if activations is problem.activations else None
        problem = replace(problem, activations=activations)
        tree = decide(
            problem,
            wanted,
            deadline,
            first=reusable,
            traced=self.traced,
            most=self.rows.budget.nodes,
        )
        self._offer(index, rows, tree.upper, tree.hidden)
        self._raise_multiplier_size(rows, tree.multiplier_size)
        self.tightened.append((rows, activations))
        lower = np.maximum(first.lower, tree.lower)
        leaves = _leaves_of_closed_trees(tree, rows, wanted)
        for i in np.flatnonzero(self._open(rows, lower)):
            if not self.rows.budget.programs or time.monotonic() >= deadline:
                break
            row = rows[i : i + 1]
            minimum = minimise(
                problem.take(np.array([i])),
                threshold=float(wanted[i]) if math.isfinite(wanted[i]) else None,
                deadline=deadline,
                most_nodes=self.rows.budget.programs,
                open_leaves=tree.open_leaves.get(int(i)),
                traced=self.traced,
            )
            hidden = [layer[None] for layer in minimum.hidden]
            self._offer(index, row, np.array([minimum.upper]), hidden)
            self._raise_multiplier_size(row, minimum.multiplier_size)
            lower[i] = np.maximum(lower[i], minimum.lower)
            leaves += [replace(nodes, row=row[nodes.row]) for nodes in minimum.leaves]
        return lower, leaves

    def _offer(self, index: int, rows: Index, values: Array, hidden: Sequence[Array]) -> None:
        """Offer concrete shifts for one objective."""
        self.worst[self.incumbents.offer(rows, values, hidden)] = index

    def _raise_multiplier_size(self, rows: Index, size: Array | float) -> None:
        """Extend the bound on rounding errors of some rows to the multipliers of another proof."""
        self.multiplier_size[rows] = np.maximum(self.multiplier_size[rows], size)

    def _open(self, rows: Index, lower: Array) -> Mask:
        """Find the rows without a verdict, or without the exact value if requested."""
        threshold, upper = self.rows.threshold[rows], self.incumbents.upper[rows]
        between = (lower < threshold) & (upper >= threshold) & np.isfinite(upper)
        asked = threshold > -np.inf
        if asked.all():
            return between
        size = np.maximum(self.abstraction.unit, np.abs(upper))
        return np.where(asked, between, lower < upper - EQUAL_BOUNDS * size)


def _leaves_of_closed_trees(tree: TreeBounds, rows: Index, threshold: Array) -> list[Nodes]:
    """Return the leaves of the trees that are closed, except perhaps for their ``open_leaves``.

    ``rows`` are the numbers of the tree's rows in the whole batch, used to number the leaves.
    """
    closed = tree.lower >= threshold
    closed[list(tree.open_leaves)] = True
    found = []
    for nodes in tree.leaves:
        keep = closed[nodes.row]
        kept = nodes if keep.all() else nodes.take(np.flatnonzero(keep))
        found.append(replace(kept, row=rows[kept.row]))
    return found
