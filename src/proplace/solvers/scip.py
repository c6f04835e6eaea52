"""Models on SCIP, where the extra ``scip`` is installed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.optional import require
from proplace.solvers.answers import FAILED, OPEN, TOLERANCE, Raw, finite

if TYPE_CHECKING:
    from proplace.solvers.model import Arrays

_PARAMETERS: dict[str, float | int] = {
    "numerics/feastol": TOLERANCE,
    "numerics/dualfeastol": TOLERANCE,
    "limits/gap": 0.0,
    "limits/absgap": TOLERANCE,
    "parallel/maxnthreads": 1,
    "lp/threads": 1,
}


def package() -> Any:
    """Return the package ``pyscipopt``, or say how it is installed."""
    return require("pyscipopt", "scip", "solver='scip'")


def solve(arrays: Arrays, time_limit: float | None) -> Raw:
    """Solve a model with SCIP."""
    scip = package()
    model = scip.Model()
    model.hideOutput()
    model.setParams(_PARAMETERS)
    if time_limit is not None:
        model.setParam("limits/time", float(time_limit))
    columns = [
        model.addVar(lb=_or_none(low), ub=_or_none(high), obj=cost, vtype="I" if whole else "C")
        for low, high, cost, whole in zip(
            arrays.lower.tolist(),
            arrays.upper.tolist(),
            arrays.cost.tolist(),
            arrays.integer,
            strict=True,
        )
    ]
    model.addObjoffset(arrays.offset)
    for k in range(arrays.A.shape[0]):
        _row(scip, model, columns, arrays, k)
    model.optimize()
    words = str(model.getStatus())
    status: Any = {
        "optimal": "optimal",
        "gaplimit": "optimal",
        "infeasible": "infeasible",
        "unbounded": "unbounded",
        "inforunbd": OPEN,
        "timelimit": "limit",
    }.get(words, FAILED)
    found = status in ("optimal", "limit") and model.getNSols() > 0
    x = np.array([model.getVal(column) for column in columns]) if found else None
    return Raw(status, x, finite(model.getDualbound()), words)


def _row(scip: Any, model: Any, columns: list[Any], arrays: Arrays, k: int) -> None:
    low, high = float(arrays.row_lower[k]), float(arrays.row_upper[k])
    entries = slice(arrays.A.indptr[k], arrays.A.indptr[k + 1])
    index, values = arrays.A.indices[entries], arrays.A.data[entries].tolist()
    row = scip.quicksum(a * columns[j] for a, j in zip(values, index, strict=True))
    if not values:
        row = 0.0 * columns[0]  # an empty row still has to hold
    if math.isinf(low) and math.isinf(high):
        return
    if math.isinf(low):
        model.addCons(row <= high)
    elif math.isinf(high):
        model.addCons(row >= low)
    elif low == high:
        model.addCons(row == low)
    else:
        model.addCons(low <= (row <= high))


def _or_none(bound: float) -> float | None:
    return None if math.isinf(bound) else bound
