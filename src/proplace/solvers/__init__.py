"""Linear and mixed-integer programs: the only package that imports a solver.

:class:`LinearProgram` is a linear program in HiGHS that stays warm while its bounds, costs and rows
change: the branch and bound trees of the certification and of the search solve thousands of them a
second. :func:`solve` passes a whole mixed-integer :class:`Model` to HiGHS or Gurobi. Both map the
status of a solver to a few plain words, and both try again if a solver fails.
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
