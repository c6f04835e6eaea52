"""HiGHS: silent solvers, models as it takes them, and mixed-integer programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import highspy
import numpy as np
import numpy.typing as npt

from proplace.solvers.answers import FAILED, OPEN, TOLERANCE, Raw

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.solvers.model import Arrays

_OPTIONS: dict[str, float | int | bool] = {
    "threads": 1,
    "random_seed": 0,
    "primal_feasibility_tolerance": TOLERANCE,
    "dual_feasibility_tolerance": TOLERANCE,
    "mip_feasibility_tolerance": TOLERANCE,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": TOLERANCE,
    "mip_allow_restart": False,  # costs more than it gives at these sizes
    "small_matrix_value": 1e-12,
}


def solve(arrays: Arrays, time_limit: float | None) -> Raw:
    """Solve a model with HiGHS."""
    solver = quiet()
    for name, value in _OPTIONS.items():
        solver.setOptionValue(name, value)
    if time_limit is not None:
        solver.setOptionValue("time_limit", float(time_limit))
    solver.passModel(_model(arrays))
    limited = time_limit is not None
    solver.run()
    if _status(solver, limited) == FAILED:  # tight tolerances and presolve sometimes disagree
        solver.clearSolver()
        solver.setOptionValue("presolve", "off")
        solver.run()
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(solver.getSolution().col_value) if found else None
    bound = info.mip_dual_bound if arrays.integer.any() else -math.inf
    return Raw(_status(solver, limited), x, bound, str(solver.getModelStatus()))


def _status(solver: Any, limited: bool) -> Any:
    status = highspy.HighsModelStatus
    return {
        status.kOptimal: "optimal",
        status.kModelEmpty: "optimal",
        status.kInfeasible: "infeasible",
        status.kUnbounded: "unbounded",
        status.kUnboundedOrInfeasible: OPEN,
        status.kTimeLimit: "limit" if limited else FAILED,
    }.get(solver.getModelStatus(), FAILED)


def _model(arrays: Arrays) -> Any:
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


def quiet() -> Any:
    """Return a silent HiGHS."""
    solver = highspy.Highs()
    solver.silent()
    return solver


def rowwise_model(
    cost: Array,
    offset: float,
    columns: tuple[Array, Array],
    entries: tuple[npt.NDArray[np.integer], npt.NDArray[np.integer], Array],
    rows: tuple[Array, Array],
) -> Any:
    """Return a linear program as HiGHS takes it.

    ``columns`` and ``rows`` are lower and upper bounds; ``entries`` holds where each row starts
    (and where the last one ends), the column of each entry, and its value.
    """
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(rows[0])
    lp.col_cost_, lp.offset_ = cost, offset
    lp.col_lower_, lp.col_upper_ = columns
    lp.row_lower_, lp.row_upper_ = rows
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts, index, values = entries
    lp.a_matrix_.start_, lp.a_matrix_.index_ = starts.astype(np.int32), index.astype(np.int32)
    lp.a_matrix_.value_ = values
    return lp
