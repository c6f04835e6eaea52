"""Branch and bound for many rows at once: decides if worst-case margins reach a threshold.

Every stage works on whole arrays of rows (or of tree nodes of many rows at once), so thousands of
rows share the overhead of Python:

1. one backward pass and one attack for all rows (:func:`first_bounds`);
2. a few ascent steps on the slopes for undecided rows;
3. branch and bound on the upper relaxations of unstable neurons, the nodes of all rows in batches,
   the newest batch first.

Rows that stay undecided go to :mod:`proplace.certification.lp_bnb`: either their gap comes from the
slopes of the lower relaxations, which splitting does not change, or their tree has grown too large.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification.bounds import chords, start_slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import (
        ActivationBounds,
        BackwardPass,
        Index,
        Mask,
        RelaxedLayer,
        Splits,
        WorstCaseProblem,
    )
    from proplace.core.network import Array

ROOT_STEPS = 2  # ascent steps on the slopes of a root node
NODE_STEPS = 3  # ascent steps on the slopes and multipliers of a node deep in its tree
# A batch whose first node has fewer splits than this in every layer gets one pass without ascent.
SHALLOW = 5
NODES_PER_ROW = 65536  # nodes of one row, before it goes to the linear programs
NODES_PER_BATCH = 4096
# Numbers in one array. Even with wide networks, a batch must end soon enough for the deadline.
FLOATS_PER_BATCH = 1_000_000
_GAP = 1e-12  # loss between chord and ReLU below which a split gains nothing


@dataclass(frozen=True, eq=False)
class FirstBounds:
    """Bounds on the minimum of each row, by one backward pass and one attack.

    ``hidden`` holds the activations of the concrete shift that reaches ``upper``.
    """

    upper: Array
    hidden: list[Array]
    backward: BackwardPass

    @property
    def lower(self) -> Array:
        """The lower bounds."""
        return self.backward.value

    def take(self, rows: Index) -> FirstBounds:
        """Return the bounds of the given rows."""
        return FirstBounds(
            self.upper[rows], [h[rows] for h in self.hidden], self.backward.take(rows)
        )


@dataclass(frozen=True, eq=False)
class OpenLeaves:
    """The rest of a row's tree: the splits of its open leaves, and a bound on the closed ones."""

    splits: tuple[tuple[Splits, ...], ...]
    closed: float


@dataclass(frozen=True, eq=False)
class TreeBounds:
    r"""Bounds on the minimum of one objective, one number per row, from branch and bound.

    Attributes
    ----------
    lower, upper
        The bounds.
    hidden
        Activations of the concrete shift that reaches ``upper``.
    multiplier_size
        The term :math:`\sum_{ik} |m_{ik}| \bar h_{ik}` that the multipliers m of splits add to the
        bound on rounding errors (:mod:`proplace.certification.roundoff`).
    leaves
        With a trace, all leaves whose multipliers prove that they reach the threshold. They prove a
        row if they are all leaves of its tree, that is, if its ``lower`` is at least the threshold.
    open_leaves
        By row: the leaves that no split improves, if all others of the tree are closed.
    """

    lower: Array
    upper: Array
    hidden: list[Array]
    multiplier_size: Array
    leaves: tuple[Nodes, ...]
    open_leaves: dict[int, OpenLeaves]


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of the trees of many rows: their splits, slopes and split multipliers."""

    row: Index
    splits: list[Splits]
    alpha: list[Array]
    gamma: list[Array]

    def take(self, which: Index | slice) -> Nodes:
        """Return the given nodes."""
        return Nodes(
            self.row[which],
            [layer[which] for layer in self.splits],
            [layer[which] for layer in self.alpha],
            [layer[which] for layer in self.gamma],
        )

    def __len__(self) -> int:
        return len(self.row)


class Incumbents:
    """The best concrete shift of each row so far, with its value and its activations."""

    def __init__(self, upper: Array, hidden: Sequence[Array]) -> None:
        self.upper, self.hidden = upper, list(hidden)

    def offer(self, rows: Index, values: Array, hidden: Sequence[Array]) -> Index:
        """Store the shifts that are better than the best so far, and return their rows.

        A row may occur several times.
        """
        better = np.flatnonzero(values < self.upper[rows])
        if not len(better):
            return better
        better = better[np.argsort(-values[better], kind="stable")]  # the smallest is written last
        improved = rows[better]
        self.upper[improved] = values[better]
        for kept, layer in zip(self.hidden, hidden, strict=True):
            kept[improved] = layer[better]
        return improved


def first_bounds(problem: WorstCaseProblem) -> FirstBounds:
    """Return bounds from one backward pass and one attack."""
    activations, objective = problem.activations, problem.objective
    backward = problem.abstraction.backward(activations, *objective, start_slopes(activations))
    return FirstBounds(*problem.abstraction.attack(*objective, backward), backward)


def root_nodes(activations: ActivationBounds, rows: Index) -> Nodes:
    """Return trees of a single node, without splits, with the slopes of a first backward pass."""
    widths = [ranges.L_min.shape[1] for ranges in activations.preactivations]
    return Nodes(
        rows,
        [np.zeros((len(rows), width), np.int8) for width in widths],
        [slopes[rows] for slopes in start_slopes(activations)],
        [np.zeros((len(rows), width)) for width in widths],
    )


def decide(
    problem: WorstCaseProblem,
    threshold: Array | float,
    deadline: float = np.inf,
    *,
    first: FirstBounds | None = None,
    traced: bool = False,
    most: int | None = None,
) -> TreeBounds:
    """Bound each row's minimum tightly enough to decide against ``threshold``.

    ``threshold`` is one number, or one per row. A row is undecided if its bounds lie on both sides
    of it. ``first`` is the result of :func:`first_bounds` for this problem, if it is already known.
    With ``traced``, the leaves of the trees are returned. The search of a row stops after ``most``
    nodes (default ``NODES_PER_ROW``).
    """
    if first is None:
        first = first_bounds(problem)
    threshold = np.zeros(len(problem)) + threshold
    rows = np.flatnonzero((first.lower < threshold) & (first.upper >= threshold))
    if not problem.activations.preactivations or not len(rows):
        return TreeBounds(first.lower, first.upper, first.hidden, np.zeros(len(problem)), (), {})
    most = NODES_PER_ROW if most is None else most
    trees = _Trees(problem, threshold, first, traced=traced, most=most)
    trees.start(rows, first.backward)
    trees.grow(deadline)
    return trees.bounds()


class _Ascent(NamedTuple):
    """Result of the ascent for a batch of nodes.

    ``value`` is the best bound. ``pick`` is the neuron to split next (flat over the inner layers,
    -1 if no unstable upper side has a gap). ``nodes`` are the nodes with the multipliers of the
    best bound.
    """

    value: Array
    pick: Index
    nodes: Nodes


@dataclass(frozen=True, eq=False)
class _Batch:
    """Nodes during an ascent, with the bounds of their rows and their upper sides.

    ``live`` holds their numbers among the nodes at the start of the ascent.
    """

    live: Index
    nodes: Nodes
    activations: ActivationBounds
    uppers: list[tuple[Array, Array]]

    def take(self, which: Index) -> _Batch:
        """Return the given nodes."""
        return _Batch(
            self.live[which],
            self.nodes.take(which),
            self.activations.spread(which),
            [(slope[which], offset[which]) for slope, offset in self.uppers],
        )


class _Trees:
    """The trees of a batch of rows, and their state while they grow."""

    def __init__(
        self,
        problem: WorstCaseProblem,
        threshold: Array,
        first: FirstBounds,
        *,
        traced: bool,
        most: int,
    ) -> None:
        self.problem, self.threshold, self.traced, self.most = problem, threshold, traced, most
        count, preactivations = len(problem), problem.activations.preactivations
        widest = sum(ranges.L_min.shape[1] for ranges in preactivations)
        self.batch = max(1, min(NODES_PER_BATCH, FLOATS_PER_BATCH // widest))
        self.lower = first.lower.copy()
        self.incumbents = Incumbents(first.upper.copy(), [layer.copy() for layer in first.hidden])
        self.multiplier_size = np.zeros(count)
        self.closed = np.full(count, np.inf)  # smallest bound over the closed leaves of each row
        self.count = np.zeros(count, dtype=np.int64)
        self.abandoned = np.zeros(count, dtype=bool)
        self.pending: list[Nodes] = []
        self.leaves: list[Nodes] = []
        self.stuck: list[Nodes] = []  # nothing left to split, bound still below the threshold
        self.open_leaves: dict[int, OpenLeaves] = {}

    def start(self, rows: Index, backward: BackwardPass) -> None:
        """Start the trees of the given rows: improve the first pass, then split."""
        nodes = root_nodes(self.problem.activations, rows)
        first = backward if len(rows) == len(self.problem) else backward.take(rows)
        ascent = self._ascend(nodes, ROOT_STEPS, first)
        self.lower[rows] = np.maximum(self.lower[rows], ascent.value)
        self._close_or_split(ascent)

    def grow(self, deadline: float) -> None:
        """Branch and bound until every tree is closed or has reached a limit."""
        roundoff = self.problem.abstraction.roundoff
        sizes = roundoff.sizes(self.problem.U) if self.pending else []
        while self.pending and time.monotonic() < deadline:
            nodes = self.pending.pop()
            alive = ~self.abandoned[nodes.row] & self._undecided(nodes.row)
            if not alive.all():
                nodes = nodes.take(np.flatnonzero(alive))
            if not len(nodes):
                continue
            depth = max(int(np.count_nonzero(layer[0])) for layer in nodes.splits)
            ascent = self._ascend(nodes, 1 if depth < SHALLOW else NODE_STEPS)
            self._close_or_split(ascent)
            added = sum(
                np.einsum("nk,nk->n", np.abs(gamma), size[nodes.row])
                for gamma, size in zip(ascent.nodes.gamma, sizes, strict=True)
            )
            np.maximum.at(self.multiplier_size, nodes.row, added)
        for nodes in self.pending:  # the deadline came first
            self.abandoned[nodes.row] = True
        self._leave_stuck_rows()
        finished = np.isfinite(self.closed) & ~self.abandoned
        finished &= self.incumbents.upper >= self.threshold
        self.lower[finished] = np.maximum(self.lower[finished], self.closed[finished])

    def bounds(self) -> TreeBounds:
        """Return the bounds that the trees have proved."""
        return TreeBounds(
            self.lower,
            self.incumbents.upper,
            self.incumbents.hidden,
            self.multiplier_size,
            tuple(self.leaves),
            self.open_leaves,
        )

    def _leave_stuck_rows(self) -> None:
        """Collect the rows whose trees are closed except for leaves that no split improves."""
        open_rows = ~self.abandoned & self._undecided(slice(None))
        left: dict[int, list[tuple[Splits, ...]]] = {}
        for nodes in self.stuck:
            for i in np.flatnonzero(open_rows[nodes.row]):
                splits = tuple(layer[i] for layer in nodes.splits)
                left.setdefault(int(nodes.row[i]), []).append(splits)
        for row, splits_of_row in left.items():
            self.open_leaves[row] = OpenLeaves(tuple(splits_of_row), float(self.closed[row]))
            self.abandoned[row] = True

    def _undecided(self, rows: Index | slice) -> Mask:
        wanted = self.threshold[rows]
        return (self.incumbents.upper[rows] >= wanted) & (self.lower[rows] < wanted)

    def _close_or_split(self, ascent: _Ascent) -> None:
        """Close the nodes that reach the threshold and split the others."""
        value, pick, nodes = ascent
        done = value >= self.threshold[nodes.row]
        if done.any():
            if self.traced:
                self.leaves.append(nodes.take(np.flatnonzero(done)))
            np.minimum.at(self.closed, nodes.row[done], value[done])
        np.add.at(self.count, nodes.row, 1)
        self.abandoned[self.count > self.most] = True
        stuck = np.flatnonzero(~done & (pick < 0))
        if len(stuck):
            self.stuck.append(nodes.take(stuck))
        split = ~done & (pick >= 0) & ~self.abandoned[nodes.row] & self._undecided(nodes.row)
        if split.any():
            children = _split(nodes.take(np.flatnonzero(split)), pick[split])
            self.pending.extend(
                children.take(slice(start, start + self.batch))
                for start in range(0, len(children), self.batch)
            )

    def _ascend(self, nodes: Nodes, steps: int, first: BackwardPass | None = None) -> _Ascent:
        """Improve slopes and multipliers of each node by projected supergradient steps.

        Every backward pass is followed by an attack. ``first`` is the pass of the nodes without
        splits, if it was made before.
        """
        abstraction, objective = self.problem.abstraction, self.problem.objective
        batch = self._prepared(nodes, splits=first is None)
        best = nodes
        for step in range(steps):
            if step == 0 and first is not None:
                bound = first
            else:
                now = batch.nodes
                bound = abstraction.backward(
                    batch.activations, *objective, now.alpha, batch.uppers, now.gamma
                )
                self.incumbents.offer(now.row, *abstraction.attack(*objective, bound))
            layers = abstraction.relaxed_forward(bound, batch.nodes.alpha, batch.uppers)
            gap = _widest_gap(batch, bound, layers)
            if step == 0:
                value, pick = bound.value.copy(), gap
            else:
                better = bound.value > value[batch.live]
                where = batch.live[better]
                value[where], pick[where] = bound.value[better], gap[better]
                if len(where):
                    best = _replaced(best, where, batch.nodes, better)
            if step == steps - 1:
                break
            wanted = self.threshold[batch.nodes.row]
            go = (value[batch.live] < wanted) & (self.incumbents.upper[batch.nodes.row] >= wanted)
            if not go.any():
                break
            batch = _stepped(batch, bound, layers, step)
            if not go.all():
                batch = batch.take(np.flatnonzero(go))
        return _Ascent(value, pick, best)

    def _prepared(self, nodes: Nodes, *, splits: bool) -> _Batch:
        """Prepare nodes for an ascent. Without splits, all upper sides are those of the root."""
        here = self.problem.activations.spread(nodes.row)
        uppers = [
            chords(ranges, split if splits else None)
            for ranges, split in zip(here.preactivations, nodes.splits, strict=True)
        ]
        return _Batch(np.arange(len(nodes)), nodes, here, uppers)


def _replaced(nodes: Nodes, where: Index, other: Nodes, which: Mask) -> Nodes:
    """Return the nodes with the multipliers of others in the given places."""
    changed = []
    for before, after in ((nodes.alpha, other.alpha), (nodes.gamma, other.gamma)):
        layers = [layer.copy() for layer in before]
        for layer, now in zip(layers, after, strict=True):
            layer[where] = now[which]
        changed.append(layers)
    return Nodes(nodes.row, nodes.splits, *changed)


def _stepped(
    batch: _Batch, bound: BackwardPass, layers: Sequence[RelaxedLayer], step: int
) -> _Batch:
    """Make one projected supergradient step on slopes and split multipliers.

    The bound is concave in both. At the minimiser of the relaxation, its supergradient is ``max(a,
    0) L`` for a slope and ``-U`` for a split multiplier. Multipliers are measured in units of the
    largest coefficient of their layer. The steepest direction moves by 1/(step+1).
    """
    nodes, all_ranges = batch.nodes, batch.activations.preactivations
    slopes_up = [
        np.where(ranges.open_lower, np.maximum(side, 0.0) * layer.low, 0.0)
        for ranges, side, layer in zip(all_ranges, bound.sides, layers, strict=True)
    ]
    steepest = _largest(slopes_up)
    any_split = any(split.any() for split in nodes.splits)
    if any_split:
        units = [np.abs(side).max(axis=1, keepdims=True) for side in bound.sides]
        splits_up = [
            np.where(split != 0, -layer.high * unit, 0.0)
            for layer, split, unit in zip(layers, nodes.splits, units, strict=True)
        ]
        steepest = np.maximum(steepest, _largest(splits_up))
    rate = 1.0 / (step + 1.0) / np.maximum(steepest, np.finfo(np.float64).tiny)
    alpha = [
        np.minimum(np.maximum(slopes + rate * up, 0.0), 1.0)
        for slopes, up in zip(nodes.alpha, slopes_up, strict=True)
    ]
    gamma = nodes.gamma
    if any_split:
        gamma = []
        for multipliers, up, unit, split in zip(
            nodes.gamma, splits_up, units, nodes.splits, strict=True
        ):
            moved = multipliers + rate * up * unit
            gamma.append(np.where(moved * split > 0.0, moved, 0.0))
    moved_nodes = Nodes(nodes.row, nodes.splits, alpha, gamma)
    return _Batch(batch.live, moved_nodes, batch.activations, batch.uppers)


def _largest(parts: Sequence[Array]) -> Array:
    """Return the largest absolute value of each row, as a column."""
    largest: Array = np.abs(np.concatenate(parts, axis=1)).max(axis=1, keepdims=True)
    return largest


def _widest_gap(batch: _Batch, bound: BackwardPass, layers: Sequence[RelaxedLayer]) -> Index:
    """Pick the unsplit unstable neuron with the largest loss between its chord and the ReLU, or -1."""
    scores = []
    for ranges, side, layer, split in zip(
        batch.activations.preactivations, bound.sides, layers, batch.nodes.splits, strict=True
    ):
        may = ranges.open_upper & (split == 0)
        loss = np.minimum(side, 0.0) * (np.maximum(layer.high, 0.0) - layer.chord)
        scores.append(np.where(may, loss, 0.0))
    score = np.concatenate(scores, axis=1)
    return np.where(score.max(axis=1) > _GAP, score.argmax(axis=1), -1)


def _split(nodes: Nodes, pick: Index) -> Nodes:
    """Return two children per node: the picked neuron's upper side becomes 0 or U."""
    count, start = len(nodes), 0
    splits = [np.concatenate([layer, layer]) for layer in nodes.splits]
    for layer in splits:
        here = np.flatnonzero((pick >= start) & (pick < start + layer.shape[1]))
        layer[here, pick[here] - start] = -1
        layer[count + here, pick[here] - start] = 1
        start += layer.shape[1]
    return Nodes(
        np.concatenate([nodes.row, nodes.row]),
        splits,
        [np.concatenate([layer, layer]) for layer in nodes.alpha],
        [np.concatenate([layer, layer]) for layer in nodes.gamma],
    )
