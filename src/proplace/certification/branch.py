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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.certification.bounds import Abstraction, Pass, Root, free_slopes, start_slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.bounds import Splits
    from proplace.network import Array

ROOT_STEPS = 6
NODE_STEPS = 3
NODES_PER_ROW = 256
NODES_PER_BATCH = 8192

Index = npt.NDArray[np.intp]


@dataclass
class Bounds:
    """Proved bounds on the least value of one objective, one number per row."""

    lower: Array
    upper: Array

    def undecided(self, threshold: float) -> Index:
        """Rows whose bounds lie on both sides of the threshold."""
        return np.flatnonzero((self.lower < threshold) & (self.upper >= threshold))


@dataclass
class _Nodes:
    """Open nodes of the trees of many rows."""

    row: Index
    splits: list[Splits]
    alpha: list[Array]

    def take(self, which: Index) -> _Nodes:
        return _Nodes(
            self.row[which], [s[which] for s in self.splits], [a[which] for a in self.alpha]
        )

    def __len__(self) -> int:
        return len(self.row)


def decide(
    abstraction: Abstraction,
    root: Root,
    a: Array,
    const: float,
    threshold: float,
    upper: Array,
    deadline: float = np.inf,
) -> Bounds:
    """Bounds of ``min a . h + const`` for each row, tight enough to decide against ``threshold``.

    ``upper`` holds what other objectives of the same rows have reached already. Rows that stay
    undecided are those for which the bounds still lie on both sides.
    """
    alpha = start_slopes(root)
    bound = abstraction.backward(root, a, const, alpha)
    bounds = Bounds(bound.value, np.minimum(upper, abstraction.attack(a, const, bound)))
    if not root.levels:
        return bounds
    rows = bounds.undecided(threshold)
    if len(rows):
        nodes = _Nodes(
            rows,
            [np.zeros((len(rows), level.L_min.shape[1]), np.int8) for level in root.levels],
            [slopes[rows] for slopes in alpha],
        )
        _ascend(abstraction, root, a, const, nodes, bounds, threshold, ROOT_STEPS, at_root=True)
        _grow(abstraction, root, a, const, nodes, bounds, threshold, deadline)
    return bounds


def _grow(
    abstraction: Abstraction,
    root: Root,
    a: Array,
    const: float,
    nodes: _Nodes,
    bounds: Bounds,
    threshold: float,
    deadline: float,
) -> None:
    """Branch and bound, breadth first; raises ``bounds.lower`` of rows whose tree closes."""
    closed = np.full(len(root), np.inf)  # least bound over the closed leaves of each row
    given_up = np.zeros(len(root), dtype=bool)
    count = np.zeros(len(root), dtype=np.int64)
    pending = [nodes]
    while pending and time.monotonic() < deadline:
        nodes = pending.pop()
        alive = ~given_up[nodes.row] & (bounds.upper[nodes.row] >= threshold)
        alive &= bounds.lower[nodes.row] < threshold
        nodes = nodes.take(np.flatnonzero(alive))
        if not len(nodes):
            continue
        value, pick = _ascend(
            abstraction, root, a, const, nodes, bounds, threshold, NODE_STEPS, at_root=False
        )
        done = value >= threshold
        np.minimum.at(closed, nodes.row[done], value[done])
        np.add.at(count, nodes.row, 1)
        given_up[nodes.row[~done & (pick < 0)]] = True
        given_up[count > NODES_PER_ROW] = True
        grow = np.flatnonzero(~done & ~given_up[nodes.row])
        if len(grow):
            children = _split(nodes.take(grow), pick[grow])
            pending.extend(
                children.take(np.arange(start, min(start + NODES_PER_BATCH, len(children))))
                for start in range(0, len(children), NODES_PER_BATCH)
            )
    for nodes in pending:  # the deadline came first
        given_up[nodes.row] = True
    finished = np.isfinite(closed) & ~given_up & (bounds.upper >= threshold)
    bounds.lower[finished] = np.maximum(bounds.lower[finished], closed[finished])


def _ascend(
    abstraction: Abstraction,
    root: Root,
    a: Array,
    const: float,
    nodes: _Nodes,
    bounds: Bounds,
    threshold: float,
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
    alpha = nodes.alpha
    for step in range(steps):
        here = root.take(nodes.row[live])
        splits = [s[live] for s in nodes.splits]
        bound = abstraction.backward(here, a, const, alpha, splits)
        np.minimum.at(bounds.upper, nodes.row[live], abstraction.attack(a, const, bound))
        lows, highs = abstraction.relaxed_forward(here, bound, alpha, splits)
        better = bound.value > best[live]
        where = live[better]
        best[where] = bound.value[better]
        pick[where] = _widest_gap(here, bound, highs, splits)[better]
        for kept, now in zip(nodes.alpha, alpha, strict=True):
            kept[where] = now[better]
        if at_root:
            bounds.lower[nodes.row] = np.maximum(bounds.lower[nodes.row], best)
        go = (best[live] < threshold) & (bounds.upper[nodes.row[live]] >= threshold)
        if step == steps - 1 or not go.any():
            break
        alpha = [
            _step(slopes[go], np.maximum(side[go], 0.0) * low[go], free_slopes(level)[go], step)
            for slopes, side, low, level in zip(alpha, bound.sides, lows, here.levels, strict=True)
        ]
        live = live[go]
    return best, pick


def _step(alpha: Array, gradient: Array, free: npt.NDArray[np.bool_], step: int) -> Array:
    """One projected supergradient step, scaled so that the steepest slope moves by 1/(step+1)."""
    gradient = np.where(free, gradient, 0.0)
    size = np.abs(gradient).max(axis=1, keepdims=True)
    rate = np.divide(1.0 / (step + 1.0), size, out=np.zeros_like(size), where=size > 0.0)
    return np.clip(alpha + rate * gradient, 0.0, 1.0)


def _widest_gap(
    root: Root, bound: Pass, highs: Sequence[Array], splits: Sequence[Splits]
) -> Index:
    """The unsplit open neuron that loses most between its chord and the ReLU, or -1."""
    scores = []
    for level, side, high, split in zip(root.levels, bound.sides, highs, splits, strict=True):
        open_sign = (level.U_min < 0.0) & (level.U_max > 0.0) & (split == 0)
        width = np.where(open_sign, level.U_max - level.U_min, 1.0)
        over = (high - level.U_min) * level.U_max / width - np.maximum(high, 0.0)
        scores.append(np.where(open_sign & (side < 0.0), -side * over, 0.0))
    score = np.concatenate(scores, axis=1)
    pick = score.argmax(axis=1)
    return np.where(score[np.arange(len(score)), pick] > 1e-12, pick, -1)


def _split(nodes: _Nodes, pick: Index) -> _Nodes:
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
    return _Nodes(
        np.concatenate([nodes.row, nodes.row]),
        [np.concatenate(pair) for pair in zip(*children, strict=True)],
        [np.concatenate([slopes, slopes]) for slopes in nodes.alpha],
    )
