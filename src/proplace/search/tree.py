r"""Best-first branch and bound over ReLU signs, in tightened subproblems (the default search).

Algorithm 1 of the paper alternates between a mixed-integer program over a growing set of scenarios
and a search for the worst-case shift. This module does both in one tree.

1. A local search finds an incumbent. The polytope is cut to points nearer than the incumbent.
2. The relaxation starts with one scenario, the worst-case shift at the incumbent. Any subset of
   Delta gives a valid relaxation, so the original network is not needed. If many neurons are
   unstable, their ranges are tightened over the relaxation in several rounds.
3. The node with the smallest lower bound is solved. A solution that satisfies all scenarios
   undergoes the exact robustness test. If it is robust, it is the nearest point of its node. If
   not, the shift that violates the margin becomes a new scenario of the same linear program, and
   the node is solved again.
4. Otherwise the node is split at the neuron with the largest expected increase of the bound.
5. When the tree of a subproblem has used a given share of the simplex iterations that its
   tightening took, the subproblem is split at one neuron and both children are tightened again.
   Fixing one sign often fixes many others.

The lower bound of a child is at least that of its parent. The smallest bound over all open nodes is
therefore a lower bound on the distance of every robust point.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Literal

import numpy as np

from proplace.search.local import LocalSearch
from proplace.search.oracle import Oracle
from proplace.search.problem import Outcome
from proplace.search.program import DeadlineReached
from proplace.search.state import SearchState
from proplace.search.subproblem import Child, Subproblem

if TYPE_CHECKING:
    from proplace.region.pieces import ConvexPiece
    from proplace.search.oracle import Scenario
    from proplace.search.problem import SearchProblem


INHERITED_SCENARIOS = 6  # largest number of scenarios that the children of a subproblem start with


def solve(
    problem: SearchProblem,
    piece: ConvexPiece,
    *,
    cutoff: float = np.inf,
    deadline: float = np.inf,
    oracle: Oracle | None = None,
) -> Outcome:
    """Find the nearest robust point of a piece that is nearer than ``cutoff``.

    Status ``infeasible`` then means that no such point is nearer.
    """
    oracle = oracle or Oracle(problem)
    return _solved(SearchState(problem, piece, oracle, cutoff=cutoff, deadline=deadline))


def _solved(state: SearchState) -> Outcome:
    """Run the search of a state to its end."""
    local = LocalSearch(state)
    try:
        local.start()
        root = _root(state, local)
        if root is not None and root.many_open and local.refine():
            root = _root(state, local)
    except DeadlineReached:
        return _outcome(state, 0.0, timed_out=True)
    if root is None:
        return _outcome(state, np.inf)
    lower, timed_out = _explore(state, local, root)
    return _outcome(state, lower, timed_out=timed_out)


def _root(state: SearchState, local: LocalSearch) -> Subproblem | None:
    """Build the subproblem of the whole piece, cut to points nearer than the incumbent."""
    state.cut()
    if state.polytope.empty:
        return None
    return Subproblem(state, local, Child(0.0, {}), _first_scenario(state, local))


def _first_scenario(state: SearchState, local: LocalSearch) -> list[Scenario]:
    """Return the worst shift at the incumbent, or at the nearest point of the piece without one."""
    if state.point is None:
        start = local.nearest()
        return [] if start is None else state.oracle.attack(start.point[None])
    return state.worst_at_incumbent([*state.oracle.attack(state.point[None]), *state.scenarios], 1)


def _explore(state: SearchState, local: LocalSearch, current: Subproblem) -> tuple[float, bool]:
    """Explore subproblems, nearest first. Returns the proved lower bound, and True after a timeout."""
    ticket = itertools.count()
    waiting: list[tuple[float, int, Child, list[Scenario]]] = []
    state.rounds += len(current.relaxation.scenarios)
    while True:
        try:
            children = current.explore()
        except DeadlineReached:
            return min(current.bound, waiting[0][0]) if waiting else current.bound, True
        scenarios = state.worst_at_incumbent(current.relaxation.scenarios, INHERITED_SCENARIOS)
        for child in children:
            if child.bound < state.prune_at:
                heapq.heappush(waiting, (child.bound, next(ticket), child, scenarios))
        if not waiting or waiting[0][0] >= state.prune_at or state.polytope.empty:
            return waiting[0][0] if waiting else np.inf, False
        _, _, child, scenarios = heapq.heappop(waiting)
        current = Subproblem(state, local, child, scenarios)


def _outcome(state: SearchState, lower: float, *, timed_out: bool = False) -> Outcome:
    """Return the outcome for a lower bound on the rest of the tree."""
    # Pruned nodes reach ``prune_at``. No more is proved about them.
    lower = min(lower, state.unresolved_bound, state.prune_at)
    counts = state.nodes, state.counts.programs, state.rounds
    if state.point is None:
        closed = lower >= state.prune_at
        solver_failure = "" if closed else state.solver_failure
        status: Literal["infeasible", "unknown"] = "infeasible" if closed else "unknown"
        return Outcome(
            None, np.inf, lower, status, *counts, solver_failure, timed_out and not closed
        )
    proved = lower >= state.prune_at
    return Outcome(
        state.point,
        state.upper,
        min(lower, state.upper),
        "optimal" if proved else "feasible",
        *counts,
        "" if proved else state.solver_failure,
        timed_out and not proved,
    )
