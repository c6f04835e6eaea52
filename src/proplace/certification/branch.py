"""Batched decisions: is the worst margin at least a threshold? Bounds, attacks, then splits.

Every stage works on whole arrays of rows (or of tree nodes of many rows at once), so the cost of
Python is shared by thousands of rows:

1. one backward pass and one attack for all rows;
2. a few ascent steps on the slopes for rows that are still open;
3. breadth-first branch and bound on the open upper sides, all rows' nodes in one batch.

What is left (the gap lies in the slopes, or the tree of a row grows large) goes to
:mod:`proplace.certification.exact`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.certification.bounds import (
    Abstraction,
    Pass,
    Root,
    chords,
    free_slopes,
    start_slopes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Splits
    from proplace.network import Array

ROOT_STEPS = 2
NODE_STEPS = 3
SHALLOW = 5  # splits of one layer (of a batch's first node) below which nodes get a single pass
NODES_PER_ROW = 65536
NODES_PER_BATCH = 4096

Index = npt.NDArray[np.intp]


@dataclass
class Rest:
    """What is left of a row's tree: the splits of its open leaves, and a bound of all the others."""

    splits: list[tuple[Splits, ...]]
    closed: float


@dataclass
class Bounds:
    """Proved bounds on the least value of one objective, one number per row.

    ``hidden`` holds the activations of the concrete shift that reaches ``upper``. ``stuck`` holds, for
    rows without a verdict whose tree is closed elsewhere, what is left of it.
    """

    lower: Array
    upper: Array
    hidden: list[Array]
    stuck: dict[int, Rest] = field(default_factory=dict)

    def offer(self, rows: Index, values: Array, hidden: list[Array]) -> None:
        """Keep the shifts that are better than the best so far; a row may occur several times."""
        better = np.flatnonzero(values < self.upper[rows])
        better = better[np.argsort(-values[better], kind="stable")]  # the least is written last
        self.upper[rows[better]] = values[better]
        for kept, layer in zip(self.hidden, hidden, strict=True):
            kept[rows[better]] = layer[better]

    def undecided(self, threshold: Array | float) -> Index:
        """Rows whose bounds lie on both sides of the threshold."""
        return np.flatnonzero((self.lower < threshold) & (self.upper >= threshold))


@dataclass
class Nodes:
    """Nodes of the trees of many rows: their splits, slopes and split multipliers."""

    row: Index
    splits: list[Splits]
    alpha: list[Array]
    gamma: list[Array]

    def take(self, which: Index) -> Nodes:
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
    a: Array,
    const: float,
    threshold: Array | float,
    deadline: float = np.inf,
    leaves: list[Nodes] | None = None,
) -> Bounds:
    """Bounds of ``min a . h + const`` for each row, tight enough to decide against ``threshold``.

    ``threshold`` is one number, or one per row. Rows that stay undecided are those for which the
    bounds still lie on both sides. ``leaves`` receives the leaves whose multipliers prove the
    threshold; those of a row are a proof if its tree was closed, which ``lower`` tells.
    """
    threshold = np.broadcast_to(np.asarray(threshold, dtype=np.float64), len(root))
    bounds = glance(abstraction, root, a, const)
    rows = bounds.undecided(threshold)
    if root.levels and len(rows):
        nodes = root_nodes(root, rows)
        best, _ = _ascend(
            abstraction, root, a, const, nodes, bounds, threshold, ROOT_STEPS, at_root=True
        )
        if leaves is not None:
            leaves.append(nodes.take(np.flatnonzero(best >= threshold[rows])))
        _grow(abstraction, root, a, const, nodes, bounds, threshold, deadline, leaves)
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
    return Bounds(bound.value, *abstraction.attack(a, const, bound))


def _grow(
    abstraction: Abstraction,
    root: Root,
    a: Array,
    const: float,
    nodes: Nodes,
    bounds: Bounds,
    threshold: Array,
    deadline: float,
    leaves: list[Nodes] | None,
) -> None:
    """Branch and bound, breadth first; raises ``bounds.lower`` of rows whose tree closes."""
    closed = np.full(len(root), np.inf)  # least bound over the closed leaves of each row
    stuck: list[Nodes] = []  # leaves without a gap, whose multipliers are not good enough
    given_up = np.zeros(len(root), dtype=bool)
    count = np.zeros(len(root), dtype=np.int64)
    pending = [nodes]
    while pending and time.monotonic() < deadline:
        nodes = pending.pop()
        wanted = threshold[nodes.row]
        alive = ~given_up[nodes.row] & (bounds.upper[nodes.row] >= wanted)
        alive &= bounds.lower[nodes.row] < wanted
        nodes = nodes.take(np.flatnonzero(alive))
        if not len(nodes):
            continue
        depth = max(int(np.count_nonzero(layer[0])) for layer in nodes.splits)
        steps = 1 if depth < SHALLOW else NODE_STEPS
        value, pick = _ascend(
            abstraction, root, a, const, nodes, bounds, threshold, steps, at_root=False
        )
        done = value >= threshold[nodes.row]
        if leaves is not None:
            leaves.append(nodes.take(np.flatnonzero(done)))
        np.minimum.at(closed, nodes.row[done], value[done])
        np.add.at(count, nodes.row, 1)
        stuck.append(nodes.take(np.flatnonzero(~done & (pick < 0))))
        given_up[count > NODES_PER_ROW] = True
        grow = np.flatnonzero(~done & (pick >= 0) & ~given_up[nodes.row])
        if len(grow):
            children = _split(nodes.take(grow), pick[grow])
            pending.extend(
                children.take(np.arange(start, min(start + NODES_PER_BATCH, len(children))))
                for start in range(0, len(children), NODES_PER_BATCH)
            )
    for nodes in pending:  # the deadline came first
        given_up[nodes.row] = True
    open_rows = ~given_up & (bounds.upper >= threshold) & (bounds.lower < threshold)
    for nodes in stuck:
        for i in np.flatnonzero(open_rows[nodes.row]):
            row = int(nodes.row[i])
            rest = bounds.stuck.setdefault(row, Rest([], float(closed[row])))
            rest.splits.append(tuple(layer[i] for layer in nodes.splits))
            given_up[row] = True
    finished = np.isfinite(closed) & ~given_up & (bounds.upper >= threshold)
    bounds.lower[finished] = np.maximum(bounds.lower[finished], closed[finished])


def _ascend(
    abstraction: Abstraction,
    root: Root,
    a: Array,
    const: float,
    nodes: Nodes,
    bounds: Bounds,
    threshold: Array,
    steps: int,
    *,
    at_root: bool,
) -> tuple[Array, Index]:
    """Improve the slopes of each node by projected supergradient steps.

    Returns each node's best bound and the neuron to split next (flat over the inner layers, -1 when
    no open upper side has a gap). Keeps the best slopes in ``nodes`` and better attacks in
    ``bounds.upper``; at the root also the bounds themselves.
    """
    best = np.full(len(nodes), -np.inf)
    pick = np.full(len(nodes), -1, dtype=np.intp)
    live = np.arange(len(nodes))
    alpha, gamma, splits = nodes.alpha, nodes.gamma, nodes.splits
    here = root.take(nodes.row)
    uppers = [chords(level, split) for level, split in zip(here.levels, splits, strict=True)]
    for step in range(steps):
        bound = abstraction.backward(here, a, const, alpha, uppers, gamma)
        bounds.offer(nodes.row[live], *abstraction.attack(a, const, bound))
        lows, highs = abstraction.relaxed_forward(bound, alpha, uppers)
        better = bound.value > best[live]
        where = live[better]
        best[where] = bound.value[better]
        pick[where] = _widest_gap(here, bound, highs, splits)[better]
        for kept, now in zip(nodes.alpha + nodes.gamma, alpha + gamma, strict=True):
            kept[where] = now[better]
        if at_root:
            bounds.lower[nodes.row] = np.maximum(bounds.lower[nodes.row], best)
        wanted = threshold[nodes.row[live]]
        go = (best[live] < wanted) & (bounds.upper[nodes.row[live]] >= wanted)
        if step == steps - 1 or not go.any():
            break
        alpha, gamma = _step(here, bound, lows, highs, splits, alpha, gamma, step)
        if not go.all():
            keep = np.flatnonzero(go)
            live, here = live[keep], here.take(keep)
            splits, alpha = [layer[keep] for layer in splits], [layer[keep] for layer in alpha]
            gamma = [layer[keep] for layer in gamma]
            uppers = [(slope[keep], offset[keep]) for slope, offset in uppers]
    return best, pick


def _step(
    root: Root,
    bound: Pass,
    lows: Sequence[Array],
    highs: Sequence[Array],
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
    slope_gradients, split_gradients, units = [], [], []
    for level, side, low, high, split in zip(
        root.levels, bound.sides, lows, highs, splits, strict=True
    ):
        slope_gradients.append(np.where(free_slopes(level), np.maximum(side, 0.0) * low, 0.0))
        unit = np.abs(side).max(axis=1, keepdims=True)
        split_gradients.append(np.where(split != 0, -high * unit, 0.0))
        units.append(unit)
    steepest = np.max([np.abs(g).max(axis=1) for g in slope_gradients + split_gradients], axis=0)[
        :, None
    ]
    rate = np.divide(1.0 / (step + 1.0), steepest, out=np.zeros_like(steepest), where=steepest > 0)
    new_alpha = [
        np.clip(slopes + rate * gradient, 0.0, 1.0)
        for slopes, gradient in zip(alpha, slope_gradients, strict=True)
    ]
    new_gamma = []
    for multipliers, gradient, unit, split in zip(
        gamma, split_gradients, units, splits, strict=True
    ):
        moved = multipliers + rate * gradient * unit
        new_gamma.append(np.where(moved * split > 0.0, moved, 0.0))
    return new_alpha, new_gamma


def _widest_gap(root: Root, bound: Pass, highs: Sequence[Array], splits: Sequence[Splits]) -> Index:
    """Pick the unsplit open neuron that loses most between its chord and the ReLU, or -1."""
    scores = []
    for level, side, high, split in zip(root.levels, bound.sides, highs, splits, strict=True):
        open_sign = (level.U_min < 0.0) & (level.U_max > 0.0) & (split == 0)
        width = np.where(open_sign, level.U_max - level.U_min, 1.0)
        over = (high - level.U_min) * level.U_max / width - np.maximum(high, 0.0)
        scores.append(np.where(open_sign & (side < 0.0), -side * over, 0.0))
    score = np.concatenate(scores, axis=1)
    pick = score.argmax(axis=1)
    return np.where(score[np.arange(len(score)), pick] > 1e-12, pick, -1)


def _split(nodes: Nodes, pick: Index) -> Nodes:
    """Two children per node: the picked neuron's upper side becomes 0 or U."""
    children = []
    for sign in (-1, 1):
        splits = [s.copy() for s in nodes.splits]
        start = 0
        for layer in splits:
            here = np.flatnonzero((pick >= start) & (pick < start + layer.shape[1]))
            layer[here, pick[here] - start] = sign
            start += layer.shape[1]
        children.append(splits)
    return Nodes(
        np.concatenate([nodes.row, nodes.row]),
        [np.concatenate(pair) for pair in zip(*children, strict=True)],
        [np.concatenate([layer, layer]) for layer in nodes.alpha],
        [np.concatenate([layer, layer]) for layer in nodes.gamma],
    )
