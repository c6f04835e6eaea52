r"""A linear program in HiGHS, kept warm while it changes.

.. math::
    \min_x\ c \cdot x \quad \text{s.t.} \quad a \le A x \le b, \qquad l \le x \le u .

A branch and bound tree solves a sequence of such programs that differ in a few bounds, so the
program stays in the solver and each run starts from the last basis. Only the HiGHS statuses
``optimal`` and ``infeasible`` are conclusive. After any other status the program is solved from
scratch with other settings, and if all of them fail, the caller gets ``failed``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import highspy
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.core.network import Array

INF = highspy.kHighsInf

LP_TOLERANCE = 1e-9
"""Largest violation of a row, a bound or a reduced cost in a solution."""

Verdict = Literal["optimal", "infeasible", "late", "failed"]
"""Outcome of a run. ``late``: the deadline came first. ``failed``: no run was conclusive."""

Columns = npt.NDArray[np.int32]
Bounds = tuple[float, float]

# Pricing: Dantzig's is quickest for short, warm-started runs.
_DANTZIG, _DEVEX, _STEEPEST_EDGE = 0, 1, 2
_DUAL, _PRIMAL = 1, 4


@dataclass(frozen=True)
class Strategy:
    """Options of HiGHS for every run, and for further tries from scratch."""

    options: Mapping[str, str | float]
    retries: tuple[Mapping[str, str | float], ...]


# With steepest edge, the primal simplex of HiGHS writes to the console.
_STEADY: dict[str, str | float] = {
    "simplex_dual_edge_weight_strategy": _STEEPEST_EDGE,
    "simplex_primal_edge_weight_strategy": _DEVEX,
}

QUICKEST = Strategy(
    {
        "simplex_dual_edge_weight_strategy": _DANTZIG,
        "simplex_primal_edge_weight_strategy": _DANTZIG,
    },
    (
        _STEADY,
        {"simplex_strategy": _PRIMAL, "simplex_primal_edge_weight_strategy": _DEVEX},
        {"simplex_strategy": _DUAL, **_STEADY, "simplex_scale_strategy": 2, "presolve": "on"},
        {"solver": "ipm", "simplex_scale_strategy": 2, "presolve": "on"},
    ),
)
"""For short runs that need the primal solution. Each further try is slower and steadier."""

WITH_DUALS = Strategy(
    {},
    (
        # devex pricing ends where steepest edge stalls
        {"simplex_dual_edge_weight_strategy": _DEVEX},
        {"simplex_dual_edge_weight_strategy": _DANTZIG},
        {"primal_feasibility_tolerance": 1e-7, "dual_feasibility_tolerance": 1e-7},
    ),
)
"""For runs that need dual values or a dual ray: simplex methods only, without presolve."""

_OPTIONS: dict[str, str | float] = {
    "threads": 1,
    "presolve": "off",  # it would discard the warm basis, and costs more than it saves
    "solver": "simplex",
    "simplex_scale_strategy": 0,
    "primal_feasibility_tolerance": LP_TOLERANCE,
    "dual_feasibility_tolerance": LP_TOLERANCE,
}


class LinearProgram:
    """A linear program that grows and changes between runs.

    ``column_bounds``, ``row_bounds`` and ``costs`` are those of the program itself. Bounds change
    in three ways:

    - :meth:`set_column_bounds`, :meth:`set_row_bounds`: permanently;
    - :meth:`set_temporary_bounds`: in place of the program's own, until the next call;
    - :meth:`set_solver_column_bounds`, :meth:`set_solver_row_bounds`: in the solver alone, many at
      once and without a record, for a caller that sets all bounds it needs before each run.

    Examples
    --------
    >>> program = LinearProgram(QUICKEST)
    >>> x = program.add_columns(np.zeros(2), np.ones(2), np.ones(2))
    >>> row = program.add_rows(np.ones(1), np.full(1, INF), np.array([[1.0, 2.0]]), np.arange(2))
    >>> program.solve(), program.objective, program.values
    ('optimal', 0.5, array([0. , 0.5]))
    """

    def __init__(self, strategy: Strategy) -> None:
        self.solver, self.strategy = quiet(), strategy
        for name, value in (*_OPTIONS.items(), *strategy.options.items()):
            self.solver.setOptionValue(name, value)
        self.column_bounds: list[Bounds] = []
        self.row_bounds: list[Bounds] = []
        self.costs: list[float] = []
        self._columns: dict[int, Bounds] = {}  # temporary bounds in force
        self._info: Any = None  # of the last run, read on first use

    # -- building ----------------------------------------------------------------------------

    def load(
        self,
        cost: Array,
        columns: tuple[Array, Array],
        matrix: Array,
        rows: tuple[Array, Array],
    ) -> None:
        """Replace the program by a whole new one."""
        i, j = np.nonzero(matrix)
        starts = np.searchsorted(i, np.arange(len(matrix) + 1))
        entries = (starts, j, matrix[i, j])
        self.solver.passModel(rowwise_model(cost, 0.0, columns, entries, rows))
        self.costs = cost.tolist()
        self.column_bounds = list(zip(columns[0].tolist(), columns[1].tolist(), strict=True))
        self.row_bounds = list(zip(rows[0].tolist(), rows[1].tolist(), strict=True))

    def add_columns(self, low: Array, high: Array, cost: Array) -> int:
        """Add columns and return the number of the first."""
        first, none = len(self.column_bounds), np.zeros(0, np.int32)
        starts = np.zeros(len(low), np.int32)
        self.solver.addCols(len(low), cost, low, high, 0, starts, none, np.zeros(0))
        self.column_bounds.extend(zip(low.tolist(), high.tolist(), strict=True))
        self.costs.extend(cost.tolist())
        return first

    def add_rows(self, low: Array, high: Array, A: Array, columns: Columns) -> int:
        """Add rows that are dense over the given columns, and return the number of the first."""
        first = len(self.row_bounds)
        rows, places = np.nonzero(A)
        starts = np.searchsorted(rows, np.arange(len(A))).astype(np.int32)
        self.solver.addRows(
            len(low), low, high, len(rows), starts, columns[places], A[rows, places]
        )
        self.row_bounds.extend(zip(low.tolist(), high.tolist(), strict=True))
        return first

    # -- changing ----------------------------------------------------------------------------

    def set_column_bounds(self, column: int, low: float, high: float) -> None:
        """Change the program's own bounds of a column."""
        self.column_bounds[column] = (low, high)
        self.solver.changeColBounds(column, low, high)

    def set_row_bounds(self, row: int, low: float, high: float) -> None:
        """Change the program's own bounds of a row."""
        self.row_bounds[row] = (low, high)
        self.solver.changeRowBounds(row, low, high)

    def set_solver_column_bounds(self, columns: Columns, low: Array, high: Array) -> None:
        """Set bounds of columns in the solver only, without changing ``column_bounds``."""
        self.solver.changeColsBounds(len(columns), columns, low, high)

    def set_solver_row_bounds(self, rows: Columns, low: Array, high: Array) -> None:
        """Set bounds of rows in the solver only, without changing ``row_bounds``."""
        self.solver.changeRowsBounds(len(rows), rows, low, high)

    def set_temporary_bounds(self, columns: dict[int, Bounds]) -> None:
        """Replace the program's own column bounds by these, until the next call.

        Columns that only an earlier call named return to the program's own bounds.
        """
        for column in self._columns.keys() - columns.keys():
            self.solver.changeColBounds(column, *self.column_bounds[column])
        for column, bound in columns.items():
            if self._columns.get(column) != bound:
                self.solver.changeColBounds(column, *bound)
        self._columns = columns

    def change_coefficient(self, row: int, column: int, value: float) -> None:
        """Change one entry of the matrix."""
        self.solver.changeCoeff(row, column, value)

    def set_costs(self, columns: Columns, costs: Array) -> None:
        """Change the objective for good."""
        self.solver.changeColsCost(len(columns), columns, costs)
        for column, cost in zip(columns.tolist(), costs.tolist(), strict=True):
            self.costs[column] = cost

    def set_cost_for_now(self, column: int, cost: float) -> None:
        """Change one coefficient of the objective, until :meth:`restore_costs`."""
        self.solver.changeColCost(column, cost)

    def drop_costs(self) -> None:
        """Make the objective 0, until :meth:`restore_costs`."""
        self._change_costs(np.zeros(len(self.costs)))

    def restore_costs(self) -> None:
        """Restore the objective of the program."""
        self._change_costs(np.array(self.costs))

    def _change_costs(self, costs: Array) -> None:
        columns = np.arange(len(costs), dtype=np.int32)
        self.solver.changeColsCost(len(costs), columns, costs)

    # -- solving -----------------------------------------------------------------------------

    def primal_simplex(self) -> None:
        """Prefer the primal simplex, which is faster from the last basis if only costs change."""
        self.solver.setOptionValue("simplex_strategy", _PRIMAL)

    def dual_simplex(self) -> None:
        """Prefer the dual simplex (the default), which is faster if bounds and rows change."""
        self.solver.setOptionValue("simplex_strategy", _DUAL)

    def limit_iterations(self, count: int) -> None:
        """Limit the iterations of a run, because the simplex method cycles on some programs."""
        self.solver.setOptionValue("simplex_iteration_limit", count)

    def restart(self) -> None:
        """Discard the basis, so that the next run starts from scratch."""
        self.solver.clearSolver()

    def solve(self, deadline: float = np.inf) -> Verdict:
        """Solve from the last basis. If that fails, solve from scratch with other settings."""
        verdict = self.run(deadline)
        for options in self.strategy.retries:
            if verdict != "failed":
                break
            before = {name: self.solver.getOptionValue(name)[1] for name in options}
            for name, value in options.items():
                self.solver.setOptionValue(name, value)
            self.restart()
            verdict = self.run(deadline)
            for name, value in before.items():
                self.solver.setOptionValue(name, value)
        if verdict == "failed":
            self.restart()  # the failed run must not be the starting point of the next one
        return verdict

    def run(self, deadline: float = np.inf) -> Verdict:
        """Run the solver once, at most until the deadline.

        Any status of HiGHS except ``optimal`` and ``infeasible`` (unknown, not set, an error, a
        limit, unbounded, unbounded or infeasible) is inconclusive.
        """
        if deadline < np.inf:
            left = deadline - time.monotonic()
            if left <= 0.0:
                return "late"
            limit = self.solver.getRunTime() + left  # the solver's clock runs on
            self.solver.setOptionValue("time_limit", limit)
        self._info = None
        self.solver.run()
        status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            return "optimal"
        if status == highspy.HighsModelStatus.kInfeasible:
            return "infeasible"
        if status == highspy.HighsModelStatus.kTimeLimit and deadline < np.inf:
            return "late"
        return "failed"

    # -- the solution -------------------------------------------------------------------------

    @property
    def objective(self) -> float:
        """Objective of the last run."""
        return float(self._information.objective_function_value)

    @property
    def iterations(self) -> int:
        """Simplex iterations of the last run."""
        return int(self._information.simplex_iteration_count)

    @property
    def _information(self) -> Any:
        if self._info is None:  # HiGHS copies all of it, which is slow
            self._info = self.solver.getInfo()
        return self._info

    @property
    def values(self) -> Array:
        """The columns at the solution of the last run."""
        return np.array(self.solver.getSolution().col_value)

    def values_and_duals(self) -> tuple[Array, Array]:
        """Return the columns, and the dual values of the rows, at the solution of the last run."""
        solution: Any = self.solver.getSolution()
        return np.asarray(solution.col_value), np.asarray(solution.row_dual)

    def dual_ray(self) -> Array | None:
        """Return row multipliers that prove infeasibility, if the solver has them."""
        _, found, ray = self.solver.getDualRay()
        return np.asarray(cast("Any", ray)) if found else None


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

    ``columns`` and ``rows`` are lower and upper bounds. ``entries`` holds the start of each row
    (and the end of the last one), the column of each entry, and its value.
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
