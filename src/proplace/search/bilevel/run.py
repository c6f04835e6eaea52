"""The solver, the clock and the counts of one search."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proplace import solvers
from proplace.core.errors import SolverError
from proplace.search.problem import Outcome

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.solvers import Model, Solution, Solver


@dataclass
class Run:
    """The solver, the clock and the counts of one search."""

    solver: Solver
    deadline: float
    programs: int = 0
    rounds: int = 0

    def solve(self, model: Model) -> Solution:
        """Solve one program in the time that is left."""
        self.programs += 1
        left = None if math.isinf(self.deadline) else self.deadline - time.monotonic()
        solution = solvers.solve(model, self.solver, left)
        if solution.status == "unbounded":
            raise SolverError(f"{self.solver} calls a bounded program unbounded")
        return solution

    def outcome(self, point: Array | None, distance: float, lower: float, status: str) -> Outcome:
        """What was found, with the counts."""
        return Outcome(
            point,
            distance,
            lower,
            status,  # type: ignore[arg-type]
            programs=self.programs,
            rounds=self.rounds,
        )
