r"""The default search: one tree over ReLU signs and grid values, in tightened parts.

Algorithm 1 of the paper alternates a mixed-integer program over a growing set of shifts with the
search for the worst shift. Here both happen in one tree:

1. a local search gives an incumbent, and the polytope is cut to what is nearer than it;
2. the relaxation starts with the worst shift at the incumbent alone (any subset of Delta is a
   relaxation, the original network is not needed); where many neurons are open, their ranges are
   tightened over the relaxation itself, round by round;
3. the node with the least distance is solved; a point that satisfies all copies is put to the exact
   test. If it is robust, it is the nearest of its node; if not, the shift that breaks it joins the
   same linear program as new rows, and the node is solved again;
4. otherwise the node is split at the neuron that promises the greatest rise of the bound, or at a grid
   value;
5. when the tree of a part has cost a share of what its tightening did, the part is split in two at one
   neuron, and both halves are tightened anew: with one sign known, many others follow.

The distance of a node only grows along the tree, so the least open node is a lower bound on the
distance of any robust point.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

import numpy as np

from proplace.search.hunt import Hunt
from proplace.search.oracle import Oracle
from proplace.search.part import Part
from proplace.search.problem import Outcome
from proplace.search.program import Late

if TYPE_CHECKING:
    from proplace.search.oracle import Shifted
    from proplace.search.part import Half
    from proplace.search.problem import Piece, Problem

PART_SHIFTS = 6
"""Shifts of a part that its halves start with, at most."""


def solve(
    problem: Problem,
    piece: Piece,
    *,
    cutoff: float = np.inf,
    deadline: float = np.inf,
    oracle: Oracle | None = None,
) -> Outcome:
    """Find the nearest robust point of a piece that is nearer than ``cutoff``.

    Status ``infeasible`` then means: none that is nearer.
    """
    hunt = Hunt(problem, piece, cutoff, deadline, oracle or Oracle(problem))
    try:
        hunt.local.start()
        part = _whole(hunt)
        if part is not None and part.hard and hunt.local.refine():
            part = _whole(hunt)
    except Late:
        return _outcome(hunt, 0.0)
    return _outcome(hunt, np.inf if part is None else _explore(hunt, part))


def _whole(hunt: Hunt) -> Part | None:
    """The whole piece, as far as it is nearer than the incumbent."""
    hunt.take()
    hunt.cut()
    if hunt.polytope.empty:
        return None
    return Part(hunt, 0.0, {}, hunt.first_shift())


def _explore(hunt: Hunt, part: Part) -> float:
    """Explore part by part, the nearest first; returns the proved lower bound."""
    ticket = itertools.count()
    waiting: list[tuple[float, int, Half, list[Shifted]]] = []
    hunt.rounds += len(part.relaxation.copies)
    while True:
        try:
            halves = part.explore()
        except Late:
            hunt.programs += part.relaxation.solves
            return min(part.bound, waiting[0][0]) if waiting else part.bound
        hunt.programs += part.relaxation.solves
        shifts = hunt.binding(part.relaxation.copies, PART_SHIFTS)
        for half in halves:
            if half.bound < hunt.enough:
                heapq.heappush(waiting, (half.bound, next(ticket), half, shifts))
        if not waiting or waiting[0][0] >= hunt.enough or hunt.polytope.empty:
            return waiting[0][0] if waiting else np.inf
        _, _, half, shifts = heapq.heappop(waiting)
        part = Part(hunt, half.bound, half.limits, shifts)


def _outcome(hunt: Hunt, lower: float) -> Outcome:
    hunt.take()
    lower = min(lower, hunt.lost)
    counts = hunt.nodes, hunt.programs, hunt.rounds
    if hunt.point is None:
        closed = lower >= hunt.best
        trouble = "" if closed else hunt.trouble
        return Outcome(None, np.inf, lower, "infeasible" if closed else "unknown", *counts, trouble)
    proved = lower >= hunt.enough
    return Outcome(
        hunt.point,
        hunt.best,
        min(lower, hunt.best),
        "optimal" if proved else "feasible",
        *counts,
        "" if proved else hunt.trouble,
    )
