r"""Algorithm 1 of the paper to the letter: the readable statement, and the oracle of the tests.

Wanted is the point :math:`x'` of one piece that is nearest to the input :math:`x` and valid for
all shifted models in :math:`\Delta`. A finite set :math:`\Delta'` of models, at first the original
one alone (the one of :math:`\Delta` that is nearest to it, if it lies outside), stands for
:math:`\Delta`:

1. *outer minimisation*: the nearest :math:`x'` of the piece valid for each model in
   :math:`\Delta'`;
2. *inner maximisation*: the model in :math:`\Delta` that is worst for this :math:`x'`;
3. if :math:`x'` is valid for it too, :math:`x'` is the answer. Else this model joins :math:`\Delta'`.

Valid means :math:`c \cdot V_{h+1} \ge \sigma` in step 1 and :math:`\ge t` in step 3, for each row
:math:`c` of ``net.objectives(target)`` (one for each competing class). With :math:`\sigma > t`
(``search_margin`` and ``margin`` of the problem) two answers of step 1 are a fixed distance apart,
so that the loop ends (Proposition 2).

Several sets :math:`\Delta_s` are one :math:`\Delta`, their union: :math:`\Delta'` starts with one
model of each, and step 2 looks for the worst model of all, each measured by the margin of its set.

Step 1 is :mod:`proplace.search.bilevel.outer`, step 2 :mod:`proplace.search.bilevel.inner`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace import solvers
from proplace.core.errors import OptionError, SolverError
from proplace.search.bilevel.inner import ScenarioModel, worst_model
from proplace.search.bilevel.outer import Outer, distance_to
from proplace.search.problem import Outcome

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.region.pieces import ConvexPiece
    from proplace.search.problem import SearchProblem
    from proplace.solvers import Model, Solution, Solver


def solve(
    problem: SearchProblem,
    piece: ConvexPiece,
    *,
    solver: Solver = "highs",
    deadline: float = math.inf,
    max_rounds: int = 200,
) -> Outcome:
    """Find the nearest robust point of ``piece`` by Algorithm 1.

    Parameters
    ----------
    problem, piece
        What is asked, and where.
    solver
        ``highs`` or ``gurobi``.
    deadline
        When to stop, by ``time.monotonic``; the outcome is then ``unknown`` with a proved bound,
        since the first point that the algorithm knows to be robust is the answer.
    max_rounds
        Shifted models to add before the search is given up with a ``SolverError``.
    """
    run = Run(solver, deadline)
    if _is_empty(piece):
        return run.outcome(None, math.inf, math.inf, "infeasible")
    outer = Outer(problem, piece)
    members = problem.guarantee.members
    models = [ScenarioModel(s.shifts.project(s.network), s.margin) for s in members]  # Delta'
    for model in models:
        outer.add_model(model)
    lower = -math.inf
    for _ in range(max_rounds):
        nearest = outer.minimise(run)
        lower = max(lower, nearest.bound)
        if nearest.point is None:
            return run.outcome(None, math.inf, lower, "unknown" if nearest.over else "infeasible")
        point = legal_point(problem, piece, nearest.point)
        _check_progress(problem, models, point)
        worst = worst_model(problem, point, run)
        if worst is None:
            return run.outcome(None, math.inf, lower, "unknown")
        if worst.least >= 0.0:
            distance = distance_to(problem, point)
            return run.outcome(point, distance, min(lower, distance), "optimal")
        models.append(worst.model)
        outer.add_model(worst.model)
        run.rounds += 1
    raise SolverError(
        f"no robust point after {max_rounds} shifted models; each keeps the search away from its "
        f"last point by the margin ({problem.margin:g}) and slack ({problem.slack:g}) at least, so "
        "larger ones make it end sooner",
        name="max_rounds",
        value=max_rounds,
    )


def legal_point(problem: SearchProblem, piece: ConvexPiece, point: Array) -> Array:
    """Return the point without the solver's tolerance: in the bounds."""
    return problem.snap(np.clip(point, piece.lower, piece.upper))


def _is_empty(piece: ConvexPiece) -> bool:
    """Test if the bounds alone leave nothing; raise if they do not bound the piece."""
    low, high = piece.box()
    if (low > high).any():
        return True
    open_ = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if len(open_):
        i = int(open_[0])
        raise OptionError(
            f"column {i} ranges over [{low[i]}, {high[i]}]; a search without a hull needs finite "
            "bounds for each column",
            name=f"column {i}",
        )
    return False


def _check_progress(problem: SearchProblem, models: list[ScenarioModel], point: Array) -> None:
    """Refuse a point that a model in Delta' rejects: it would be found for ever."""
    found = [(model.excess(point, problem.target), model.margin) for model in models]
    excess, margin = min(found)
    if excess < 0.0:
        raise SolverError(
            f"the outer minimisation asks for a margin of {margin + problem.slack!r} on one of "
            f"{len(models)} models which gives {margin + excess!r} to its answer, so the search "
            "would go in circles; try another solver"
        )


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
        """Return the outcome with its counts."""
        return Outcome(
            point,
            distance,
            lower,
            status,  # type: ignore[arg-type]
            programs=self.programs,
            rounds=self.rounds,
        )
