"""The seam to HiGHS: silent solvers for many small programs, and what to do when one gives no answer."""

from __future__ import annotations

import time
from typing import Literal

import highspy
import numpy as np

LP_TOLERANCE = 1e-9

Verdict = Literal["optimal", "infeasible", "late", "failed"]
"""What a run came to; ``late``: the deadline came first, ``failed``: no answer in any way."""

# Pricing: Dantzig's is quickest for short, warm-started runs.
_DANTZIG, _DEVEX, _STEEPEST_EDGE = 0, 1, 2
_DUAL, _PRIMAL = 1, 4

_OTHER_WAYS: tuple[dict[str, str | int], ...] = (
    # with steepest edge, the primal simplex of HiGHS writes to the console
    {
        "simplex_dual_edge_weight_strategy": _STEEPEST_EDGE,
        "simplex_primal_edge_weight_strategy": _DEVEX,
    },
    {"simplex_strategy": _PRIMAL, "simplex_primal_edge_weight_strategy": _DEVEX},
    {
        "simplex_strategy": _DUAL,
        "simplex_dual_edge_weight_strategy": _STEEPEST_EDGE,
        "simplex_primal_edge_weight_strategy": _DEVEX,
        "simplex_scale_strategy": 2,
        "presolve": "on",
    },
    {"solver": "ipm", "simplex_scale_strategy": 2, "presolve": "on"},
)
"""Options for another try from scratch, each slower and steadier than the one before."""


def quiet_highs() -> highspy.Highs:
    """Return a silent, single-threaded HiGHS set for many small, warm-started programs.

    Presolve would throw the warm basis away and costs more than it gives at these sizes.
    """
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("solver", "simplex")
    solver.setOptionValue("simplex_scale_strategy", 0)
    solver.setOptionValue("primal_feasibility_tolerance", LP_TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", LP_TOLERANCE)
    return solver


def quickest_pricing(solver: highspy.Highs) -> None:
    """Set the pricing that is quickest for short, warm-started runs."""
    solver.setOptionValue("simplex_dual_edge_weight_strategy", _DANTZIG)
    solver.setOptionValue("simplex_primal_edge_weight_strategy", _DANTZIG)


def solve(solver: highspy.Highs, deadline: float = np.inf) -> Verdict:
    """Solve from the last basis; where that gives no answer, from scratch in other ways.

    Only ``optimal`` and ``infeasible`` are answers. Whatever else HiGHS may say of a program
    (unknown, not set, an error, a limit, unbounded, unbounded or infeasible) says nothing about it.
    """
    verdict = run(solver, deadline)
    for options in _OTHER_WAYS:
        if verdict != "failed":
            break
        before = {name: solver.getOptionValue(name)[1] for name in options}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.clearSolver()
        verdict = run(solver, deadline)
        for name, value in before.items():
            solver.setOptionValue(name, value)
    if verdict == "failed":
        solver.clearSolver()  # so that what went wrong is not where the next run starts
    return verdict


def run(solver: highspy.Highs, deadline: float = np.inf) -> Verdict:
    """Run the solver once, no longer than to the deadline."""
    if deadline < np.inf:
        left = deadline - time.monotonic()
        if left <= 0.0:
            return "late"
        solver.setOptionValue("time_limit", solver.getRunTime() + left)  # its clock runs on
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return "optimal"
    if status == highspy.HighsModelStatus.kInfeasible:
        return "infeasible"
    if status == highspy.HighsModelStatus.kTimeLimit and deadline < np.inf:
        return "late"
    return "failed"
