"""Linear and mixed-integer programs: the only package that imports a solver.

:class:`LinearProgram` is a linear program in HiGHS that stays warm while its bounds, costs
and rows change: the branch and bound trees of the certification and of the search solve thousands of
them a second. :func:`solve` hands a whole mixed-integer :class:`Model` to HiGHS or Gurobi. Both map
what a solver says to a few plain statuses, and both try again where a solver gives no answer.
"""

from __future__ import annotations

from proplace.solvers.linear import (
    INF,
    QUICKEST,
    WITH_DUALS,
    Columns,
    LinearProgram,
    Verdict,
)
from proplace.solvers.mixed_integer import Solver, check, solve
from proplace.solvers.model import Arrays, Integers, Model, Raw, Solution

__all__ = [
    "INF",
    "QUICKEST",
    "WITH_DUALS",
    "Arrays",
    "Columns",
    "Integers",
    "LinearProgram",
    "Model",
    "Raw",
    "Solution",
    "Solver",
    "Verdict",
    "check",
    "solve",
]
