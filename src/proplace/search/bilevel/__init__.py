r"""Algorithm 1 of the paper, exactly as stated: the readable reference, and a test oracle.

It finds the point :math:`x'` of one piece that is nearest to the input :math:`x` and valid for all
shifted models in :math:`\Delta`. A finite set :math:`\Delta'` of models represents :math:`\Delta`.
It starts with the original one alone (or, if that lies outside, the nearest one in :math:`\Delta`):

1. *outer minimisation*: the nearest :math:`x'` of the piece that is valid for each model in
   :math:`\Delta'`;
2. *inner maximisation*: the model in :math:`\Delta` that is worst for this :math:`x'`;
3. if :math:`x'` is valid for it too, :math:`x'` is the result. Otherwise this model joins
   :math:`\Delta'`.

Valid means :math:`c \cdot V_{h+1} \ge \sigma` in step 1 and :math:`\ge t` in step 3, for each row
:math:`c` of ``net.objectives(target)`` (one for each competing class). With :math:`\sigma > t`
(``search_margin`` and ``margin`` of the problem) two results of step 1 are at least a fixed
distance apart, so the loop ends (Proposition 2).

Several shift sets :math:`\Delta_s` form one :math:`\Delta`, their union: :math:`\Delta'` starts
with one model of each, and step 2 finds the worst model of all, each relative to the margin of its
set.

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
        The problem of the search, and the piece to search.
    solver
        ``highs`` or ``gurobi``.
    deadline
        Time limit, by ``time.monotonic``. The outcome is then ``unknown`` with a proved bound,
        because the first robust point that the algorithm finds is also the nearest.
    max_rounds
        Number of shifted models after which the search stops with a ``SolverError``.
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
        f"no robust point after {max_rounds} shifted models. Each keeps the search away from its "
        f"last point by at least the margin ({problem.margin:g}) and slack ({problem.slack:g}), so "
        "use larger ones to end sooner",
        name="max_rounds",
        value=max_rounds,
    )


def legal_point(problem: SearchProblem, piece: ConvexPiece, point: Array) -> Array:
    """Return the point clipped to its bounds, without the solver's tolerance."""
    return problem.snap(np.clip(point, piece.lower, piece.upper))


def _is_empty(piece: ConvexPiece) -> bool:
    """Test if the bounds alone exclude every point, or raise if they are infinite."""
    low, high = piece.box()
    if (low > high).any():
        return True
    open_ = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if len(open_):
        i = int(open_[0])
        raise OptionError(
            f"column {i} ranges over [{low[i]}, {high[i]}], but a search without a hull needs "
            "finite bounds for each column",
            name=f"column {i}",
        )
    return False


def _check_progress(problem: SearchProblem, models: list[ScenarioModel], point: Array) -> None:
    """Reject a point that a model in Delta' rejects, because it would return forever."""
    found = [(model.excess(point, problem.target), model.margin) for model in models]
    excess, margin = min(found)
    if excess < 0.0:
        raise SolverError(
            f"the outer minimisation requires a margin of {margin + problem.slack!r} on one of "
            f"{len(models)} models which has {margin + excess!r} at its solution, so the search "
            "would not end. Try another solver",
        )


@dataclass
class Run:
    """The solver, the deadline and the counts of one search."""

    solver: Solver
    deadline: float
    programs: int = 0
    rounds: int = 0

    def solve(self, model: Model) -> Solution:
        """Solve one program in the remaining time."""
        self.programs += 1
        left = None if math.isinf(self.deadline) else self.deadline - time.monotonic()
        solution = solvers.solve(model, self.solver, left)
        if solution.status == "unbounded":
            raise SolverError(f"{self.solver} reported that a bounded program is unbounded")
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
