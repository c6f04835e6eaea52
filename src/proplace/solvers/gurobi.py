"""Models on Gurobi, if the extra ``gurobi`` is installed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import SolverError, require
from proplace.solvers.model import FAILED, OPEN, TOLERANCE, Raw, finite

if TYPE_CHECKING:
    from proplace.solvers.model import Arrays

_PARAMETERS: dict[str, float | int] = {
    "Threads": 1,
    "Seed": 0,
    "FeasibilityTol": TOLERANCE,
    "OptimalityTol": TOLERANCE,
    "IntFeasTol": TOLERANCE,
    "MIPGap": 0.0,
    "MIPGapAbs": TOLERANCE,
}


def package() -> Any:
    """Import ``gurobipy``, or raise an error with the command that installs it."""
    return require("gurobipy", "gurobi", "solver='gurobi'")


def solve(arrays: Arrays, time_limit: float | None) -> Raw:
    """Solve a model with Gurobi."""
    gp = package()
    try:
        with gp.Env(empty=True) as env:
            env.setParam("OutputFlag", 0)  # before start(), which prints the licence
            env.start()
            with gp.Model(env=env) as model:
                return _answer(gp, model, arrays, time_limit)
    except gp.GurobiError as error:
        raise SolverError(f"gurobi failed: {error}", name="solver", value="gurobi") from error


def _answer(gp: Any, model: Any, arrays: Arrays, time_limit: float | None) -> Raw:
    for name, value in _PARAMETERS.items():
        model.setParam(name, value)
    if time_limit is not None:
        model.setParam("TimeLimit", float(time_limit))
    kinds = np.where(arrays.integer, gp.GRB.INTEGER, gp.GRB.CONTINUOUS)
    x = model.addMVar(len(arrays.cost), lb=arrays.lower, ub=arrays.upper, vtype=kinds)
    model.setObjective(arrays.cost @ x + arrays.offset)
    equal = arrays.row_lower == arrays.row_upper
    for rows, sense, side in (
        (equal, "=", arrays.row_lower),
        (~equal & np.isfinite(arrays.row_lower), ">", arrays.row_lower),
        (~equal & np.isfinite(arrays.row_upper), "<", arrays.row_upper),
    ):
        if rows.any():
            model.addMConstr(arrays.A[np.flatnonzero(rows)], x, sense, side[rows])
    _optimise(gp, model)
    codes = gp.GRB.Status
    if model.Status == codes.INTERRUPTED:
        raise KeyboardInterrupt  # Gurobi catches Ctrl-C itself
    status: Any = {
        codes.OPTIMAL: "optimal",
        codes.INFEASIBLE: "infeasible",
        codes.UNBOUNDED: "unbounded",
        codes.INF_OR_UNBD: OPEN,
        codes.TIME_LIMIT: "limit",
    }.get(model.Status, FAILED)
    found = status in ("optimal", "limit") and model.SolCount > 0
    bound = model.ObjBound if model.IsMIP else -math.inf
    return Raw(status, np.array(x.X) if found else None, finite(bound), f"code {model.Status}")


def _optimise(gp: Any, model: Any) -> None:
    try:
        model.optimize()
    except gp.GurobiError as error:
        if error.errno != gp.GRB.Error.SIZE_LIMIT_EXCEEDED:
            raise
        raise SolverError(
            f"The program has {model.NumVars} columns and {model.NumConstrs} rows, but the "
            "size-limited Gurobi licence that comes with the package allows 2000 of each. Install "
            "a full licence, or use solver='highs' or search='tree', which have no such limit.",
            name="solver",
            value="gurobi",
        ) from error
