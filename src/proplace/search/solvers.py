r"""The seam to the mixed-integer solvers: HiGHS, Gurobi and SCIP.

A model is

.. math::
    \min_x\ c \cdot x + o \quad \text{s.t.} \quad
    a \le A x \le b, \qquad l \le x \le u, \qquad x_i \in \mathbb{Z}\ (i \in I) ,

built in blocks of columns and rows and handed to a solver as arrays. Infinite bounds are written
``inf``. The solvers run on one thread with fixed seeds, without output, at the tightest tolerances
they offer, down to a gap of 0; what they return is checked against the model once more, here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import highspy
import numpy as np
import numpy.typing as npt
from scipy import sparse

from proplace.errors import OptionError, SolverError
from proplace.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.network import Array

Integers = npt.NDArray[np.intp]
Solver = Literal["highs", "gurobi", "scip"]
Status = Literal["optimal", "infeasible", "unbounded", "limit"]

TOLERANCE = 1e-9
"""Feasibility, integrality and absolute gap that every solver is asked for."""

_ACCEPTED = 1e-6  # violation beyond which an answer is not taken for one
_OPEN = "infeasible or unbounded"  # what presolve may say without telling which
_FAILED = "failed"


@dataclass(frozen=True, eq=False)
class Arrays:
    """A model as arrays, the rows sparse."""

    cost: Array
    offset: float
    lower: Array
    upper: Array
    integer: npt.NDArray[np.bool_]
    A: sparse.csr_array
    row_lower: Array
    row_upper: Array

    def violation(self, x: Array) -> float:
        """Largest violation of a bound, a row or integrality by ``x``."""
        rows = self.A @ x
        parts = (
            self.lower - x,
            x - self.upper,
            self.row_lower - rows,
            rows - self.row_upper,
            np.abs(x - np.rint(x))[self.integer],
        )
        return max(float(np.max(part, initial=0.0)) for part in parts)


class Model:
    """A mixed-integer linear program, built in blocks.

    Examples
    --------
    >>> model = Model()
    >>> x = model.columns([0.0, 0.0], 3.0, cost=-1.0, integer=True)
    >>> model.rows([(x, [[2.0, 3.0]])], -np.inf, 7.5)
    >>> solution = solve(model)
    >>> solution.status, solution.x, solution.objective
    ('optimal', array([3., 0.]), -3.0)
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._columns: list[tuple[Array, Array, Array, npt.NDArray[np.bool_]]] = []
        self._rows: list[tuple[Array, Array]] = []
        self._entries: list[tuple[Integers, Integers, Array]] = []
        self._width = self._height = 0

    def columns(
        self,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        *,
        cost: npt.ArrayLike = 0.0,
        integer: bool = False,
    ) -> Integers:
        """Add columns and return their numbers; scalars stand for all columns of the block."""
        low, high, c = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in (lower, upper, cost))
        )
        self._columns.append((low, high, c, np.full(len(low), integer)))
        first, self._width = self._width, self._width + len(low)
        return np.arange(first, self._width)

    def rows(
        self,
        terms: Sequence[tuple[Integers, npt.ArrayLike]],
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
    ) -> None:
        """Add rows ``lower <= sum of matrix @ x[columns] <= upper`` over ``(columns, matrix)``."""
        blocks = [(columns, np.asarray(matrix, dtype=np.float64)) for columns, matrix in terms]
        height = len(blocks[0][1])
        for columns, matrix in blocks:
            i, j = np.nonzero(matrix)
            self._entries.append((i + self._height, columns[j], matrix[i, j]))
        self._rows.append(
            (
                np.broadcast_to(np.asarray(lower, dtype=np.float64), height),
                np.broadcast_to(np.asarray(upper, dtype=np.float64), height),
            )
        )
        self._height += height

    def fixed(self, x: Array) -> Model:
        """Return the linear program that is left with the integers of ``x``."""
        model = Model()
        model.offset, model._width, model._height = self.offset, self._width, self._height
        model._rows, model._entries = self._rows.copy(), self._entries.copy()
        lower, upper, cost, integer = _joined(self._columns, 4)
        whole = integer.astype(np.bool_)
        low, high = np.where(whole, np.rint(x), lower), np.where(whole, np.rint(x), upper)
        model._columns = [(low, high, cost, np.zeros_like(whole))]
        return model

    def arrays(self) -> Arrays:
        """Return the whole model; entries of the same row and column are added up."""
        lower, upper, cost, integer = _joined(self._columns, 4)
        row_lower, row_upper = _joined(self._rows, 2)
        i, j, values = _joined(self._entries, 3)
        index = (i.astype(np.intp), j.astype(np.intp))
        A = sparse.csr_array((values, index), shape=(self._height, self._width))
        A.sum_duplicates()
        return Arrays(
            cost, self.offset, lower, upper, integer.astype(np.bool_), A, row_lower, row_upper
        )


def _joined(blocks: Sequence[tuple[Any, ...]], parts: int) -> list[Any]:
    return [np.concatenate([np.zeros(0), *(block[k] for block in blocks)]) for k in range(parts)]


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    Attributes
    ----------
    status
        ``optimal``, ``infeasible``, ``unbounded`` or ``limit`` (out of time).
    x
        The best point, or None.
    objective
        Its objective; inf without a point, -inf for an unbounded model.
    bound
        Proved lower bound on the objective of any point; inf when there is none.
    """

    status: Status
    x: Array | None
    objective: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Raw:
    """An answer in the words of one solver, mapped to a status but not yet checked."""

    status: Status | Literal["infeasible or unbounded", "failed"]
    x: Array | None
    bound: float
    words: str


def solve(model: Model, solver: Solver = "highs", time_limit: float | None = None) -> Solution:
    """Solve ``model`` with one of the solvers.

    Parameters
    ----------
    model
        What to solve.
    solver
        ``highs``, or ``gurobi`` or ``scip`` where the extra of that name is installed.
    time_limit
        Seconds; None for as long as it takes.
    """
    if solver not in _BACKENDS:
        raise OptionError(f"solver must be one of {', '.join(get_args(Solver))}; not {solver!r}")
    arrays = model.arrays()
    if (arrays.lower > arrays.upper).any() or (arrays.row_lower > arrays.row_upper).any():
        return Solution("infeasible", None, math.inf, math.inf)
    if time_limit is not None and time_limit <= 0.0:
        return Solution("limit", None, math.inf, -math.inf)
    raw = _BACKENDS[solver](arrays, time_limit)
    if raw.status == _OPEN:
        raw = _told_apart(arrays, solver, time_limit)
    if raw.status in (_FAILED, _OPEN):
        raise SolverError(
            f"{solver} stopped with status {raw.words} on a model of {arrays.A.shape}"
        )
    return _checked(arrays, solver, raw)


def _told_apart(arrays: Arrays, solver: Solver, time_limit: float | None) -> _Raw:
    """Say of a model that is infeasible or unbounded which it is: drop the objective."""
    free = replace(arrays, cost=np.zeros_like(arrays.cost), offset=0.0)
    raw = _BACKENDS[solver](free, time_limit)
    if raw.status == "optimal":
        return _Raw("unbounded", None, -math.inf, raw.words)
    return _Raw(raw.status, None, -math.inf, raw.words)


def _checked(arrays: Arrays, solver: Solver, raw: _Raw) -> Solution:
    status: Status = raw.status  # type: ignore[assignment]  # the others have raised
    if status == "infeasible":
        return Solution(status, None, math.inf, math.inf)
    if status == "unbounded":
        return Solution(status, None, -math.inf, -math.inf)
    if raw.x is None:
        if status == "optimal":
            raise SolverError(f"{solver} says {raw.words} but gives no point")
        return Solution(status, None, math.inf, raw.bound)
    violation = arrays.violation(raw.x)
    if not violation <= _ACCEPTED:
        raise SolverError(
            f"{solver} returned a point that violates its own model by {violation:.2g}; "
            "try another solver"
        )
    objective = float(arrays.cost @ raw.x + arrays.offset)
    # Without integers there is no tree, and what solvers report as its bound means nothing.
    bound = objective if status == "optimal" and not arrays.integer.any() else raw.bound
    return Solution(status, raw.x, objective, min(bound, objective))


# -- HiGHS -----------------------------------------------------------------------------------------

_HIGHS_OPTIONS: dict[str, float | int | bool] = {
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


def _highs(arrays: Arrays, time_limit: float | None) -> _Raw:
    solver = highspy.Highs()
    solver.silent()
    for name, value in _HIGHS_OPTIONS.items():
        solver.setOptionValue(name, value)
    if time_limit is not None:
        solver.setOptionValue("time_limit", float(time_limit))
    solver.passModel(_highs_model(arrays))
    solver.run()
    if _highs_status(solver) == _FAILED:  # tight tolerances and presolve sometimes disagree
        solver.clearSolver()
        solver.setOptionValue("presolve", "off")
        solver.run()
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(solver.getSolution().col_value) if found else None
    bound = info.mip_dual_bound if arrays.integer.any() else -math.inf
    return _Raw(_highs_status(solver), x, bound, str(solver.getModelStatus()))


def _highs_status(solver: Any) -> Any:
    status = highspy.HighsModelStatus
    return {
        status.kOptimal: "optimal",
        status.kModelEmpty: "optimal",
        status.kInfeasible: "infeasible",
        status.kUnbounded: "unbounded",
        status.kUnboundedOrInfeasible: _OPEN,
        status.kTimeLimit: "limit",
    }.get(solver.getModelStatus(), _FAILED)


def _highs_model(arrays: Arrays) -> Any:
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = arrays.A.shape
    lp.col_cost_, lp.offset_ = arrays.cost, arrays.offset
    lp.col_lower_, lp.col_upper_ = arrays.lower, arrays.upper
    lp.row_lower_, lp.row_upper_ = arrays.row_lower, arrays.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = arrays.A.indptr.astype(np.int32)
    lp.a_matrix_.index_ = arrays.A.indices.astype(np.int32)
    lp.a_matrix_.value_ = arrays.A.data
    if arrays.integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(flag)] for flag in arrays.integer]
    return lp


# -- Gurobi ----------------------------------------------------------------------------------------

_GUROBI_PARAMETERS: dict[str, float | int] = {
    "Threads": 1,
    "Seed": 0,
    "FeasibilityTol": TOLERANCE,
    "OptimalityTol": TOLERANCE,
    "IntFeasTol": TOLERANCE,
    "MIPGap": 0.0,
    "MIPGapAbs": TOLERANCE,
}


def _gurobi(arrays: Arrays, time_limit: float | None) -> _Raw:
    gp = require("gurobipy", "gurobi", "solver='gurobi'")
    try:
        with gp.Env(empty=True) as env:
            env.setParam("OutputFlag", 0)  # before start(), which prints the licence
            env.start()
            with gp.Model(env=env) as model:
                return _gurobi_answer(gp, model, arrays, time_limit)
    except gp.GurobiError as error:
        if error.errno == gp.GRB.Error.SIZE_LIMIT_EXCEEDED:
            rows, columns = arrays.A.shape
            raise SolverError(
                f"the model has {columns} columns and {rows} rows; the size-limited Gurobi "
                "licence allows 2000 of each. Install a full licence or use solver='highs'"
            ) from error
        raise SolverError(f"gurobi failed: {error}") from error


def _gurobi_answer(gp: Any, model: Any, arrays: Arrays, time_limit: float | None) -> _Raw:
    for name, value in _GUROBI_PARAMETERS.items():
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
    model.optimize()
    codes = gp.GRB.Status
    status: Any = {
        codes.OPTIMAL: "optimal",
        codes.INFEASIBLE: "infeasible",
        codes.UNBOUNDED: "unbounded",
        codes.INF_OR_UNBD: _OPEN,
        codes.TIME_LIMIT: "limit",
    }.get(model.Status, _FAILED)
    found = status in ("optimal", "limit") and model.SolCount > 0
    bound = model.ObjBound if model.IsMIP else -math.inf
    return _Raw(status, np.array(x.X) if found else None, _finite(bound), f"code {model.Status}")


def _finite(bound: float) -> float:
    """Return a bound with the solver's own infinity, such as 1e100, written as inf."""
    return bound if abs(bound) < 1e20 else math.copysign(math.inf, bound)


# -- SCIP ------------------------------------------------------------------------------------------

_SCIP_PARAMETERS: dict[str, float | int] = {
    "numerics/feastol": TOLERANCE,
    "numerics/dualfeastol": TOLERANCE,
    "limits/gap": 0.0,
    "limits/absgap": TOLERANCE,
    "parallel/maxnthreads": 1,
    "lp/threads": 1,
}


def _scip(arrays: Arrays, time_limit: float | None) -> _Raw:
    scip = require("pyscipopt", "scip", "solver='scip'")
    model = scip.Model()
    model.hideOutput()
    model.setParams(_SCIP_PARAMETERS)
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
        _scip_row(scip, model, columns, arrays, k)
    model.optimize()
    words = str(model.getStatus())
    status: Any = {
        "optimal": "optimal",
        "gaplimit": "optimal",
        "infeasible": "infeasible",
        "unbounded": "unbounded",
        "inforunbd": _OPEN,
        "timelimit": "limit",
    }.get(words, _FAILED)
    found = status in ("optimal", "limit") and model.getNSols() > 0
    x = np.array([model.getVal(column) for column in columns]) if found else None
    return _Raw(status, x, _finite(model.getDualbound()), words)


def _scip_row(scip: Any, model: Any, columns: list[Any], arrays: Arrays, k: int) -> None:
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


_BACKENDS: dict[str, Callable[[Arrays, float | None], _Raw]] = {
    "highs": _highs,
    "gurobi": _gurobi,
    "scip": _scip,
}
