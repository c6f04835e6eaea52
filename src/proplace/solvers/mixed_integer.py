"""Mixed-integer programs on HiGHS or Gurobi.

A model (:mod:`proplace.solvers.model`) is passed to a solver as arrays. The solvers run on one
thread with fixed seeds, without output, at the tightest tolerances they offer, and to a gap of 0.
Their results are checked against the model here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import highspy
import numpy as np

from proplace.core.errors import SolverError
from proplace.core.options import one_of
from proplace.solvers import gurobi
from proplace.solvers.linear import quiet, rowwise_model
from proplace.solvers.model import FAILED, OPEN, TOLERANCE, Raw, Solution

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.solvers.model import Arrays, Model, Status

Solver = Literal["highs", "gurobi"]

_ACCEPTED = 1e-6  # largest violation of an accepted point
_HIGHS: dict[str, float | int | bool] = {
    "threads": 1,
    "random_seed": 0,
    "primal_feasibility_tolerance": TOLERANCE,
    "dual_feasibility_tolerance": TOLERANCE,
    "mip_feasibility_tolerance": TOLERANCE,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": TOLERANCE,
    "mip_allow_restart": False,  # costs more than it saves at these sizes
    "small_matrix_value": 1e-12,
}


def check(solver: Solver) -> Solver:
    """Return the name of an available solver, or raise an error that lists the allowed ones."""
    solver = one_of("solver", solver, get_args(Solver))
    if solver == "gurobi":
        gurobi.package()
    return solver


def solve(model: Model, solver: Solver = "highs", time_limit: float | None = None) -> Solution:
    """Solve ``model`` with one of the solvers.

    Parameters
    ----------
    model
        The model to solve.
    solver
        ``highs``, or ``gurobi`` if the extra of that name is installed.
    time_limit
        Seconds, or None for no limit.
    """
    check(solver)
    arrays = model.arrays()
    if (arrays.lower > arrays.upper).any() or (arrays.row_lower > arrays.row_upper).any():
        return Solution("infeasible", None, math.inf, math.inf)
    if time_limit is not None and time_limit <= 0.0:
        return Solution("limit", None, math.inf, -math.inf)
    raw = _BACKENDS[solver](arrays, time_limit)
    if raw.status == OPEN:
        raw = _told_apart(arrays, solver, time_limit)
    if raw.status in (FAILED, OPEN):
        raise SolverError(
            f"{solver} stopped with status {raw.words} on a model of {arrays.A.shape}",
            name="solver",
            value=solver,
        )
    return _checked(arrays, solver, raw)


def _told_apart(arrays: Arrays, solver: Solver, time_limit: float | None) -> Raw:
    """Drop the objective to decide if a model is infeasible or unbounded."""
    free = replace(arrays, cost=np.zeros_like(arrays.cost), offset=0.0)
    raw = _BACKENDS[solver](free, time_limit)
    if raw.status == "optimal":
        return Raw("unbounded", None, -math.inf, raw.words)
    return Raw(raw.status, None, -math.inf, raw.words)


def _checked(arrays: Arrays, solver: Solver, raw: Raw) -> Solution:
    status: Status = raw.status  # type: ignore[assignment]  # the others have raised
    if status == "infeasible":
        return Solution(status, None, math.inf, math.inf)
    if status == "unbounded":
        return Solution(status, None, -math.inf, -math.inf)
    if raw.x is None:
        if status == "optimal":
            raise SolverError(
                f"{solver} returned {raw.words} without a point", name="solver", value=solver
            )
        return Solution(status, None, math.inf, raw.bound)
    violation = arrays.violation(raw.x)
    if not violation <= _ACCEPTED:
        raise SolverError(
            f"{solver} returned a point that violates its own model by {violation:.2g}. "
            "Try another solver.",
            name="solver",
            value=solver,
        )
    objective = float(arrays.cost @ raw.x + arrays.offset)
    # Without integers there is no tree, and the solvers' bound is meaningless.
    bound = objective if status == "optimal" and not arrays.integer.any() else raw.bound
    return Solution(status, raw.x, objective, min(bound, objective))


def _solve_on_highs(arrays: Arrays, time_limit: float | None) -> Raw:
    """Solve a model with HiGHS."""
    solver = quiet()
    for name, value in _HIGHS.items():
        solver.setOptionValue(name, value)
    if time_limit is not None:
        solver.setOptionValue("time_limit", float(time_limit))
    solver.passModel(_highs_model(arrays))
    limited = time_limit is not None
    solver.run()
    if _highs_status(solver, limited) == FAILED:  # tight tolerances and presolve sometimes disagree
        solver.clearSolver()
        solver.setOptionValue("presolve", "off")
        solver.run()
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(solver.getSolution().col_value) if found else None
    bound = info.mip_dual_bound if arrays.integer.any() else -math.inf
    return Raw(_highs_status(solver, limited), x, bound, str(solver.getModelStatus()))


def _highs_status(solver: Any, limited: bool) -> Any:
    status = highspy.HighsModelStatus
    return {
        status.kOptimal: "optimal",
        status.kModelEmpty: "optimal",
        status.kInfeasible: "infeasible",
        status.kUnbounded: "unbounded",
        status.kUnboundedOrInfeasible: OPEN,
        status.kTimeLimit: "limit" if limited else FAILED,
    }.get(solver.getModelStatus(), FAILED)


def _highs_model(arrays: Arrays) -> Any:
    A = arrays.A
    lp = rowwise_model(
        arrays.cost,
        arrays.offset,
        (arrays.lower, arrays.upper),
        (A.indptr, A.indices, A.data),
        (arrays.row_lower, arrays.row_upper),
    )
    if arrays.integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(flag)] for flag in arrays.integer]
    return lp


_BACKENDS: dict[Solver, Callable[[Arrays, float | None], Raw]] = {
    "highs": _solve_on_highs,
    "gurobi": gurobi.solve,
}
