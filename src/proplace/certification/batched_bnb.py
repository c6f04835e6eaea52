"""Batched decisions: is the worst margin at least a threshold? Bounds, attacks, then splits.

Every stage works on whole arrays of rows (or of tree nodes of many rows at once), so the cost of
Python is shared by thousands of rows:

1. one backward pass and one attack for all rows;
2. a few ascent steps on the slopes for rows that are still open;
3. breadth-first branch and bound on the open upper sides, all rows' nodes in one batch.

What is left (the gap lies in the slopes, or the tree of a row grows large) goes to
:mod:`proplace.certification.lp_bnb`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification.bounds import chords, start_slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import (
        Abstraction,
        Index,
        Mask,
        Pass,
        Relaxed,
        Root,
        Splits,
    )
    from proplace.network import Array

ROOT_STEPS = 2
NODE_STEPS = 3
SHALLOW = 5  # splits of one layer (of a batch's first node) below which nodes get a single pass
NODES_PER_ROW = 65536
NODES_PER_BATCH = 4096
FLOATS_PER_BATCH = 1_000_000  # of one array: a batch of a wide network must not outlast a deadline


@dataclass
class Rest:
    """What is left of a row's tree: the splits of its open leaves, and a bound of all the others."""

    splits: list[tuple[Splits, ...]]
    closed: float


@dataclass
class Bounds:
    """Proved bounds on the least value of one objective, one number per row.

    ``hidden`` holds the activations of the concrete shift that reaches ``upper``, ``first`` the backward
    pass of a glance. ``pushed`` is what the multipliers of splits add to the sizes of which rounding
    takes its share (see :mod:`proplace.certification.roundoff`). ``stuck`` holds, for rows without a
    verdict whose tree is closed elsewhere, what is left of it.
    """

    lower: Array
    upper: Array
    hidden: list[Array]
    pushed: Array = field(init=False)
    first: Pass | None = None
    stuck: dict[int, Rest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pushed = np.zeros(len(self.lower))

    def offer(self, rows: Index, values: Array, hidden: list[Array]) -> None:
        """Keep the shifts that are better than the best so far; a row may occur several times."""
        better = np.flatnonzero(values < self.upper[rows])
        if not len(better):
            return
        better = better[np.argsort(-values[better], kind="stable")]  # the least is written last
        self.upper[rows[better]] = values[better]
        for kept, layer in zip(self.hidden, hidden, strict=True):
            kept[rows[better]] = layer[better]

    def undecided(self, threshold: Array | float) -> Index:
        """Rows whose bounds lie on both sides of the threshold."""
        return np.flatnonzero((self.lower < threshold) & (self.upper >= threshold))

    def take(self, rows: Index) -> Bounds:
        """Return what a glance gave for the given rows."""
        first = None if self.first is None else self.first.take(rows)
        return Bounds(self.lower[rows], self.upper[rows], [h[rows] for h in self.hidden], first)


@dataclass
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


def decide(
    abstraction: Abstraction,
    root: Root,
    U: Array,
    a: Array,
    const: float,
    threshold: Array | float,
    deadline: float = np.inf,
    leaves: list[Nodes] | None = None,
    glanced: Bounds | None = None,
) -> Bounds:
    """Bounds of ``min a . h + const`` for each row, tight enough to decide against ``threshold``.

    ``U`` holds the rows of ``root`` as the first layer sees them.
    ``threshold`` is one number, or one per row. Rows that stay undecided are those for which the
    bounds still lie on both sides. ``leaves`` receives the leaves whose multipliers prove the
    threshold; those of a row are a proof if its tree was closed, which ``lower`` tells. ``glanced`` is
    what a glance at this root gave, if there was one; it is improved.
    """
    threshold = np.zeros(len(root)) + threshold
    bounds = glance(abstraction, root, a, const) if glanced is None else glanced
    rows = bounds.undecided(threshold)
    if root.levels and len(rows):
        trees = _Trees(abstraction, root, U, a, const, bounds, threshold, leaves)
        trees.plant(rows)
        trees.grow(deadline)
    return bounds


def root_nodes(root: Root, rows: Index) -> Nodes:
    """Trees of a single node, without splits, with the slopes of a first glance."""
    return Nodes(
        rows,
        [np.zeros((len(rows), level.L_min.shape[1]), np.int8) for level in root.levels],
        [slopes[rows] for slopes in start_slopes(root)],
        [np.zeros((len(rows), level.L_min.shape[1])) for level in root.levels],
    )


def glance(abstraction: Abstraction, root: Root, a: Array, const: float) -> Bounds:
    """Bounds from one backward pass and one attack."""
    bound = abstraction.backward(root, a, const, start_slopes(root))
    value, (corner, *behind) = abstraction.attack(a, const, bound)
    # Bounds are improved in place, the pass is not.
    return Bounds(bound.value.copy(), value, [corner.copy(), *behind], bound)


class _Trees:
    """The trees of a batch of rows, grown breadth first; what they prove goes to ``bounds``."""

    def __init__(
        self,
        abstraction: Abstraction,
        root: Root,
        U: Array,
        a: Array,
        const: float,
        bounds: Bounds,
        threshold: Array,
        leaves: list[Nodes] | None,
    ) -> None:
        self.problem = (abstraction, root, a, const)
        self.roundoff, self.U = abstraction.roundoff, U
        widest = sum(level.L_min.shape[1] for level in root.levels)
        self.batch = max(1, min(NODES_PER_BATCH, FLOATS_PER_BATCH // widest))
        self.root, self.bounds, self.threshold, self.leaves = root, bounds, threshold, leaves
        self.closed = np.full(len(root), np.inf)  # least bound over the closed leaves of each row
        self.stuck: list[Nodes] = []  # leaves without a gap, whose multipliers are not good enough
        self.given_up = np.zeros(len(root), dtype=bool)
        self.count = np.zeros(len(root), dtype=np.int64)
        self.pending: list[Nodes] = []

    def plant(self, rows: Index) -> None:
        """Start the trees of the given rows: improve the glance, then split."""
        bounds, nodes = self.bounds, root_nodes(self.root, rows)
        assert bounds.first is not None  # noqa: S101  (a glance came first)
        first = bounds.first if len(rows) == len(self.root) else bounds.first.take(rows)
        found = _ascend(*self.problem, nodes, bounds, self.threshold, ROOT_STEPS, first)
        bounds.lower[rows] = np.maximum(bounds.lower[rows], found[0])
        self._settle(nodes, *found)

    def grow(self, deadline: float) -> None:
        """Branch and bound; raises ``bounds.lower`` of rows whose tree closes."""
        bounds, threshold, given_up = self.bounds, self.threshold, self.given_up
        sizes = self.roundoff.sizes(self.U) if self.pending else []
        while self.pending and time.monotonic() < deadline:
            nodes = self.pending.pop()
            alive = ~given_up[nodes.row] & self._undecided(nodes.row)
            if not alive.all():
                nodes = nodes.take(np.flatnonzero(alive))
            if not len(nodes):
                continue
            depth = max(int(np.count_nonzero(layer[0])) for layer in nodes.splits)
            steps = 1 if depth < SHALLOW else NODE_STEPS
            self._settle(nodes, *_ascend(*self.problem, nodes, bounds, threshold, steps))
            pushed = sum(
                np.einsum("nk,nk->n", np.abs(gamma), size[nodes.row])
                for gamma, size in zip(nodes.gamma, sizes, strict=True)
            )
            np.maximum.at(bounds.pushed, nodes.row, pushed)
        for nodes in self.pending:  # the deadline came first
            given_up[nodes.row] = True
        open_rows = ~given_up & self._undecided(slice(None))
        for nodes in self.stuck:
            for i in np.flatnonzero(open_rows[nodes.row]):
                row = int(nodes.row[i])
                rest = bounds.stuck.setdefault(row, Rest([], float(self.closed[row])))
                rest.splits.append(tuple(layer[i] for layer in nodes.splits))
                given_up[row] = True
        finished = np.isfinite(self.closed) & ~given_up & (bounds.upper >= threshold)
        bounds.lower[finished] = np.maximum(bounds.lower[finished], self.closed[finished])

    def _undecided(self, rows: Index | slice) -> Mask:
        wanted = self.threshold[rows]
        return (self.bounds.upper[rows] >= wanted) & (self.bounds.lower[rows] < wanted)

    def _settle(self, nodes: Nodes, value: Array, pick: Index) -> None:
        """Close the nodes that reach the threshold and split the others."""
        done = value >= self.threshold[nodes.row]
        if done.any():
            if self.leaves is not None:
                self.leaves.append(nodes.take(np.flatnonzero(done)))
            np.minimum.at(self.closed, nodes.row[done], value[done])
        np.add.at(self.count, nodes.row, 1)
        self.given_up[self.count > NODES_PER_ROW] = True
        stuck = np.flatnonzero(~done & (pick < 0))
        if len(stuck):
            self.stuck.append(nodes.take(stuck))
        grow = ~done & (pick >= 0) & ~self.given_up[nodes.row] & self._undecided(nodes.row)
        if grow.any():
            children = _split(nodes.take(np.flatnonzero(grow)), pick[grow])
            self.pending.extend(
                children.take(slice(start, start + self.batch))
                for start in range(0, len(children), self.batch)
            )


def _ascend(
    abstraction: Abstraction,
    root: Root,
    a: Array,
    const: float,
    nodes: Nodes,
    bounds: Bounds,
    threshold: Array,
    steps: int,
    first: Pass | None = None,
) -> tuple[Array, Index]:
    """Improve the slopes of each node by projected supergradient steps.

    Returns each node's best bound and the neuron to split next (flat over the inner layers, -1 when
    no open upper side has a gap). Keeps the best slopes in ``nodes`` and better attacks in
    ``bounds.upper``. ``first`` is the pass with the slopes as they are, if it was made before.
    """
    live = np.arange(len(nodes))
    rows, alpha, gamma, splits = nodes.row, nodes.alpha, nodes.gamma, nodes.splits
    here = root.spread(rows)
    uppers = [
        chords(level, split if first is None else None)  # a first pass has no splits
        for level, split in zip(here.levels, splits, strict=True)
    ]
    for step in range(steps):
        if step == 0 and first is not None:
            bound = first
        else:
            bound = abstraction.backward(here, a, const, alpha, uppers, gamma)
            bounds.offer(rows, *abstraction.attack(a, const, bound))
        layers = abstraction.relaxed_forward(bound, alpha, uppers)
        gap = _widest_gap(here, bound, layers, splits)
        if step == 0:
            best, pick = bound.value.copy(), gap
        else:
            better = bound.value > best[live]
            where = live[better]
            best[where], pick[where] = bound.value[better], gap[better]
            for kept, now in zip(nodes.alpha + nodes.gamma, alpha + gamma, strict=True):
                kept[where] = now[better]
        if step == steps - 1:
            break
        wanted = threshold[rows]
        go = (best[live] < wanted) & (bounds.upper[rows] >= wanted)
        if not go.any():
            break
        alpha, gamma = _step(here, bound, layers, splits, alpha, gamma, step)
        if not go.all():
            keep = np.flatnonzero(go)
            live, rows, here = live[keep], rows[keep], here.spread(keep)
            splits, alpha = [layer[keep] for layer in splits], [layer[keep] for layer in alpha]
            gamma = [layer[keep] for layer in gamma]
            uppers = [(slope[keep], offset[keep]) for slope, offset in uppers]
    return best, pick


def _step(
    root: Root,
    bound: Pass,
    layers: Sequence[Relaxed],
    splits: Sequence[Splits],
    alpha: Sequence[Array],
    gamma: Sequence[Array],
    step: int,
) -> tuple[list[Array], list[Array]]:
    """One projected supergradient step on slopes and split multipliers.

    The bound is concave in both; its supergradient is ``max(a, 0) L`` for a slope and ``-U`` for a
    split multiplier, at the minimiser of the relaxation. Multipliers are measured in units of the
    largest coefficient of their layer; the steepest direction moves by 1/(step+1).
    """
    slopes_up = [
        np.where(level.open_lower, np.maximum(side, 0.0) * layer.low, 0.0)
        for level, side, layer in zip(root.levels, bound.sides, layers, strict=True)
    ]
    steepest = _largest(slopes_up)
    any_split = any(split.any() for split in splits)
    if any_split:
        units = [np.abs(side).max(axis=1, keepdims=True) for side in bound.sides]
        splits_up = [
            np.where(split != 0, -layer.high * unit, 0.0)
            for layer, split, unit in zip(layers, splits, units, strict=True)
        ]
        steepest = np.maximum(steepest, _largest(splits_up))
    rate = 1.0 / (step + 1.0) / np.maximum(steepest, np.finfo(np.float64).tiny)
    new_alpha = [
        np.minimum(np.maximum(slopes + rate * up, 0.0), 1.0)
        for slopes, up in zip(alpha, slopes_up, strict=True)
    ]
    if not any_split:
        return new_alpha, list(gamma)
    new_gamma = []
    for multipliers, up, unit, split in zip(gamma, splits_up, units, splits, strict=True):
        moved = multipliers + rate * up * unit
        new_gamma.append(np.where(moved * split > 0.0, moved, 0.0))
    return new_alpha, new_gamma


def _largest(parts: Sequence[Array]) -> Array:
    """The largest absolute value of each row, as a column."""
    largest: Array = np.abs(np.concatenate(parts, axis=1)).max(axis=1, keepdims=True)
    return largest


def _widest_gap(
    root: Root, bound: Pass, layers: Sequence[Relaxed], splits: Sequence[Splits]
) -> Index:
    """Pick the unsplit open neuron that loses most between its chord and the ReLU, or -1."""
    scores = []
    for level, side, layer, split in zip(root.levels, bound.sides, layers, splits, strict=True):
        may = level.open_upper & (split == 0)
        loss = np.minimum(side, 0.0) * (np.maximum(layer.high, 0.0) - layer.chord)
        scores.append(np.where(may, loss, 0.0))
    score = np.concatenate(scores, axis=1)
    return np.where(score.max(axis=1) > 1e-12, score.argmax(axis=1), -1)


def _split(nodes: Nodes, pick: Index) -> Nodes:
    """Two children per node: the picked neuron's upper side becomes 0 or U."""
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
