"""Search for the nearest robust point of the plausible region: a tree search, and Algorithm 1.

:func:`search` solves the convex pieces of a region in the order of a bound on their distance.

From the bottom: ``problem`` (the input of a search), ``oracle`` (scenarios and the robustness
test), ``program``, ``ranges`` and ``relaxation`` (the linear programs), ``state`` (the only owner
of mutable state), ``local``, ``subproblem`` and ``tree`` (the order of the steps). ``bilevel``
shares only ``problem`` with these. ``sparse`` and ``writing`` serve sparse requests and features
with steps.

Each module defines the constants of the tree that it uses. For all values of them, a returned point
has passed the exact test, a bound is proved, and ``optimal`` means the gap of ``state``. The
constants only affect the running time. They were measured on networks of 2x10 to 2x200 neurons, and
similar values work as well.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from proplace.core.errors import SolverError
from proplace.search import bilevel, tree
from proplace.search.oracle import Oracle
from proplace.search.problem import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.certification import Evidence
    from proplace.region.pieces import ConvexPiece
    from proplace.search.problem import SearchProblem
    from proplace.solvers import Solver


SearchName = Literal["tree", "bilevel"]


@dataclass(frozen=True, eq=False)
class SearchResult(Outcome):
    """The best outcome of all pieces, with the evidence of the exact tests about its point.

    ``evidence`` holds one entry for each member of the guarantee, or none.
    """

    evidence: tuple[Evidence, ...] = ()


def search(
    problem: SearchProblem,
    pieces: Iterable[ConvexPiece],
    *,
    method: SearchName = "tree",
    solver: Solver = "highs",
    deadline: float = np.inf,
) -> SearchResult:
    """Solve the pieces in the order of a bound on their distance, and stop at the best point.

    ``solver`` solves the mixed-integer programs of ``bilevel``. The tree always uses HiGHS.
    ``solver_failure`` describes a solver failure, from which nothing is concluded.
    """
    oracle = Oracle(problem)
    ranked = _ranked(problem, pieces, deadline)
    if ranked is None:
        return SearchResult(None, np.inf, 0.0, "unknown", timed_out=True)
    best = Outcome(None, np.inf, np.inf, "infeasible")
    lower, nodes, programs, rounds, open_, solver_failure = np.inf, 0, 0, 0, False, ""
    timed_out = False
    for bound, piece in ranked:
        if bound >= best.distance:
            break
        if time.monotonic() >= deadline:
            lower, open_, timed_out = min(lower, bound), True, True
            break
        found = (
            tree.solve(problem, piece, cutoff=best.distance, deadline=deadline, oracle=oracle)
            if method == "tree"
            else _bilevel(problem, piece, bound, solver, deadline)
        )
        nodes, programs, rounds = (
            nodes + found.nodes,
            programs + found.programs,
            rounds + found.rounds,
        )
        lower = min(lower, found.lower)
        open_ |= found.status in ("feasible", "unknown")
        solver_failure = solver_failure or found.solver_failure
        timed_out |= found.timed_out
        if found.distance < best.distance:
            best = found
    counts = nodes, programs, rounds
    if best.point is None:
        status: Literal["unknown", "infeasible"] = "unknown" if open_ else "infeasible"
        return SearchResult(
            None, np.inf, lower, status, *counts, solver_failure, timed_out and open_
        )
    proved = not open_ or lower >= best.distance * (1.0 - problem.gap)
    return SearchResult(
        best.point,
        best.distance,
        min(lower, best.distance),
        "optimal" if proved else "feasible",
        *counts,
        "" if proved else solver_failure,
        timed_out and not proved,
        oracle.evidence(best.point),
    )


def _ranked(
    problem: SearchProblem, pieces: Iterable[ConvexPiece], deadline: float
) -> list[tuple[float, ConvexPiece]] | None:
    """Sort the pieces by a bound on their distance, or return None if the deadline came first."""
    found = []
    for piece in pieces:
        if time.monotonic() >= deadline:
            return None
        found.append((least_distance(problem, piece), piece))
    return sorted(found, key=lambda item: item[0])


def _bilevel(
    problem: SearchProblem, piece: ConvexPiece, bound: float, solver: Solver, deadline: float
) -> Outcome:
    """Run Algorithm 1 on one piece. After a solver failure, only ``bound`` is known."""
    try:
        found = bilevel.solve(problem, piece, solver=solver, deadline=deadline)
    except SolverError as error:
        return Outcome(None, np.inf, bound, "unknown", solver_failure=str(error))
    return replace(found, timed_out=found.status == "unknown")


def least_distance(problem: SearchProblem, piece: ConvexPiece) -> float:
    """Bound the distance of a piece from below by the distance to the box around it."""
    low, high = piece.box()
    return float(problem.distance.between(problem.x, np.clip(problem.x, low, high)))
