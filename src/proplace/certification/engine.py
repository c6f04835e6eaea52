"""The least objective of each row over Delta: a glance, then a tree, then a linear program."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification.batched_bnb import decide, glance
from proplace.certification.lp_bnb import minimise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.batched_bnb import Nodes
    from proplace.certification.bounds import Abstraction, Index, Mask
    from proplace.certification.certificates import Notes
    from proplace.network import Array

TOLERANCE = 1e-9
"""Gap, relative to the value or to the last layer's parameters, at which two bounds count as equal."""


class Least(NamedTuple):
    """Bounds on the least objective of each row, and how far rounding can have taken them."""

    lower: Array
    upper: Array
    error: Array


def least(
    abstraction: Abstraction,
    U: Array,
    objectives: Array,
    threshold: Array,
    deadline: float,
    notes: Notes | None = None,
) -> tuple[Array, Array]:
    """Lower and upper bounds on the least objective of each row, valid up to rounding.

    With a finite threshold they are tight enough to decide against it; with ``-inf`` they meet, unless
    the deadline or the solver's precision came first.
    """
    lower, upper, _ = _least(abstraction, U, objectives, threshold, deadline, notes)
    return lower, upper


def least_with_error(
    abstraction: Abstraction, X: Array, objectives: Array, threshold: Array, deadline: float
) -> Least:
    """Return the same bounds for rows of the network, with a proved bound of their rounding errors."""
    front = abstraction.net.input_map
    U, size = front(X), None if front.matrix is None else front.size(X)
    lower, upper, pushed = _least(abstraction, U, objectives, threshold, deadline, None)
    return Least(lower, upper, abstraction.roundoff.error(U, objectives, pushed, size))


def _least(
    abstraction: Abstraction,
    U: Array,
    objectives: Array,
    threshold: Array,
    deadline: float,
    notes: Notes | None,
) -> tuple[Array, Array, Array]:
    root = abstraction.root(U) if abstraction.net.widths else None
    if notes is not None:
        notes.begin(root, len(U))
    if root is None:
        values = np.array([abstraction.linear_minimum(U, c) for c in objectives])
        exact = values.min(axis=0)
        if notes is not None:
            notes.worst = values.argmin(axis=0)
        return exact, exact.copy(), np.zeros(len(U))
    lower, upper = np.full(len(U), np.inf), np.full(len(U), np.inf)
    pushed = np.zeros(len(U))
    for index, c in enumerate(objectives):
        a, const = abstraction.objective(c)
        bounds = glance(abstraction, root, a, const)
        best = _Best(upper, notes, index)
        best.offer(np.arange(len(U)), bounds.upper, bounds.hidden)
        leaves: list[Nodes] = []
        unit = abstraction.unit
        rows = np.flatnonzero(_open(bounds.lower, upper, threshold, unit))
        if len(rows) and time.monotonic() < deadline:
            here = root if len(rows) == len(root) else root.take(rows)
            tight = abstraction.tighten(here)
            glanced = bounds.take(rows) if tight is here else None
            kept: list[Nodes] | None = None if notes is None else []
            part = decide(
                abstraction, tight, U[rows], a, const, threshold[rows], deadline, kept, glanced
            )
            bounds.lower[rows] = np.maximum(bounds.lower[rows], part.lower)
            best.offer(rows, part.upper, part.hidden)
            pushed[rows] = np.maximum(pushed[rows], part.pushed)
            if notes is not None:
                notes.tightened(rows, tight)
                closed = part.lower >= threshold[rows]
                closed[list(part.stuck)] = True
                leaves += [_of_rows(nodes, closed, rows) for nodes in kept or []]
            for i in np.flatnonzero(_open(bounds.lower[rows], upper[rows], threshold[rows], unit)):
                if time.monotonic() >= deadline:
                    break
                row, wanted = rows[i : i + 1], float(threshold[rows[i]])
                kept = None if notes is None else []
                minimum = minimise(
                    abstraction,
                    tight.take(np.array([i])),
                    U[row],
                    c,
                    threshold=wanted if math.isfinite(wanted) else None,
                    tolerance=TOLERANCE,
                    deadline=deadline,
                    leaves=kept,
                    rest=part.stuck.get(int(i)),
                )
                bounds.lower[row] = np.maximum(bounds.lower[row], minimum.lower)
                best.offer(row, np.array([minimum.upper]), [h[None] for h in minimum.hidden])
                pushed[row] = np.maximum(pushed[row], minimum.pushed)
                leaves += [_of_rows(nodes, np.array([True]), row) for nodes in kept or []]
        if notes is not None:
            notes.leaves.append(leaves)
        lower = np.minimum(lower, bounds.lower)
    return np.minimum(lower, upper), upper, pushed


@dataclass
class _Best:
    """The least value of a concrete shift for each row, noted with its activations."""

    upper: Array
    notes: Notes | None
    objective: int

    def offer(self, rows: Index, values: Array, hidden: Sequence[Array]) -> None:
        better = np.flatnonzero(values < self.upper[rows])
        self.upper[rows[better]] = values[better]
        if self.notes is not None:
            layers = [layer[better] for layer in hidden]
            self.notes.attack(rows[better], layers, self.objective)


def _of_rows(nodes: Nodes, keep: Mask, rows: Index) -> Nodes:
    """Nodes of the rows to keep, under the numbers that these rows have in the table."""
    kept = keep[nodes.row]
    if not kept.all():
        nodes = nodes.take(np.flatnonzero(kept))
    return replace(nodes, row=rows[nodes.row])


def _open(lower: Array, upper: Array, threshold: Array, unit: float) -> Mask:
    """Rows that still need work: no verdict yet, or no exact value where one is asked for."""
    between = (lower < threshold) & (upper >= threshold) & np.isfinite(upper)
    asked = threshold > -np.inf
    if asked.all():
        return between
    wide = lower < upper - TOLERANCE * np.maximum(unit, np.abs(upper))
    return np.where(asked, between, wide)
