r"""MILP-R: minimum-distance counterfactuals, made robust by a margin (Jiang et al. 2023).

.. math::
    x(m) = \operatorname{argmin}_{x'}\ \|x' - x\|_1 \quad \text{s.t. } \text{margin}(x') \ge m

over the features' ranges, categories and rules. This is the exact minimum-distance counterfactual of
the ReLU network (Mohammadi et al. 2021, a mixed-integer program). The margin starts at ``start`` and
grows by multiples of ``step`` until :math:`x(m)` passes the robustness test and the point of one step
less fails it.
The program is solved by the tree search of this package with a Delta of 0, which gives the same
optimum. The region is the whole box of the features.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from proplace.baselines.base import Candidate, RobustBaseline
from proplace.certification import certify
from proplace.core.errors import SolverError
from proplace.core.guarantee import Guarantee, Member
from proplace.core.options import integer, positive
from proplace.core.shifts import Shifts
from proplace.explain.answer import Attempt
from proplace.region.pieces import box_pieces
from proplace.search import search
from proplace.search.problem import SearchProblem
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.region.pieces import ConvexPiece
    from proplace.schema import Schema
    from proplace.schema.person import Person
    from proplace.search import SearchResult

_SLACK = 1e-5  # extra margin inside the search, against rounding
_LINES = 20  # rows to which lines are drawn
_HASTE = 0.9  # share of the missing margin that one raise adds


class MilpR(RobustBaseline):
    """The nearest point with a margin that is raised until the point is robust.

    Parameters
    ----------
    model, delta, schema, seed, n_jobs
        As for every method that takes a delta. Nothing here is random.
    start
        First margin.
    step
        Increase of the margin in one step.
    raises
        Largest number of steps. If no point is robust after them, the last point is returned.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import MilpR
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> method = MilpR(net, 0.01).fit(np.array([[0.0, 0.0], [1.0, 1.0]]))
    >>> result = method.explain([[0.2, 0.3]])
    >>> result[0].status, round(result[0].distance, 3), result[0].reason
    ('feasible', 0.36, 'nearest point of margin 0.22; certified robust, not proved nearest')
    """

    def __init__(
        self,
        model: object,
        delta: Delta,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
        start: float = 0.02,
        step: float = 0.2,
        raises: int = 500,
    ) -> None:
        super().__init__(model, delta, schema=schema, seed=seed, n_jobs=n_jobs)
        self.start = start
        self.step = step
        self.raises = raises

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        positive("start", self.start)
        positive("step", self.step)
        integer("raises", self.raises, least=0)

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Return one candidate for each row, each from its own programs."""
        return [self._one(x, target) for x in X]

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Store the rows of the target class. Lines to them bound the distance of a counterfactual."""
        rows = distinct(self.rows_)
        self._accepted = rows[self.net_.predict(rows) == target]

    def nearest(
        self, x: Array, margin: float, target: int = 1, *, towards: Array | None = None
    ) -> Array | None:
        """Return the nearest point with at least this margin, or None without one.

        ``towards`` are points in whose direction such a point is likely. A near point on a line to
        them makes the searched box smaller. They do not change the result. After a solver failure, the
        best point with the margin is returned. Without one, a ``SolverError`` is raised.
        """
        outcome = self._nearest(x, margin, target, towards)
        if outcome.status == "unknown":
            raise SolverError(outcome.solver_failure)
        if outcome.point is None:
            return None
        point: Array = self.schema_.widened(x).canonical(outcome.point, person=x)[0]
        return point

    def _nearest(self, x: Array, margin: float, target: int, towards: Array | None) -> SearchResult:
        low, high = self._span
        schema, person = self.schema_.widened(x), self.schema_.person(x)
        pieces = box_pieces(schema, person, low, high)
        reach = np.inf if towards is None else self._reach(person, towards, margin, target)
        alone = Member(self.net_, Shifts.of(self.net_, 0.0), margin=margin)
        problem = SearchProblem(Guarantee((alone,)), target, x, self.distance_, _SLACK)
        outcome = search(problem, _within(pieces, x, reach))
        attempt = Attempt(problem, person, self.rows_[:0], outcome, schema.grids(x))
        written = attempt.written(schema)
        if written is None:
            return outcome
        distance = written.distance
        return replace(outcome, point=written.point, distance=distance, status="feasible")

    def _reach(self, person: Person, towards: Array, margin: float, target: int) -> float:
        """Bound the change of a column of the nearest point by the distance of a known point."""
        share = np.linspace(0.0, 1.5, 301)[1:, None, None]
        low, high = self.bounds(person.x[None])
        line = (person.x + share * (towards - person.x)).reshape(-1, len(person.x))
        line = self.legal(line, (low[0], high[0]))
        good = (self.net_.margin(line, target) >= margin + _SLACK) & person.allowed(line)
        if not good.any():
            return np.inf
        return float(np.abs(line[good] - person.x).sum(axis=1).min()) * (1.0 + 1e-6)

    def _one(self, x: Array, target: int) -> Candidate:
        """Find a number of raises whose point is robust, while one raise less gives no robust point.

        If robustness grows with the margin, this is the smallest such number. The search skips numbers:
        the worst-case margin of a point estimates the missing margin. If the solver fails, the best
        point so far is returned.
        """
        order = np.argsort(self.distance_.between(x, self._accepted), kind="stable")
        towards = self._accepted[order[:_LINES]]
        reason = f"no point within the features' ranges and rules has a margin of {self.start}"
        best, robust = Candidate(None, reason), False
        below, above, guess = -1, self.raises + 1, 1  # not robust, robust or empty, the next step
        while above - below > 1:
            count = above - 1 if robust else below + min(guess, max(1, (above - below) // 2))
            margin = self.start + count * self.step
            outcome = self._nearest(x, margin, target, towards)
            failed = (
                f" (the solver failed: {outcome.solver_failure})" if outcome.solver_failure else ""
            )
            if outcome.status == "unknown":
                if best.point is None:
                    raise SolverError(outcome.solver_failure)
                return replace(best, reason=f"{best.reason}; none of margin {margin:.4g}{failed}")
            if outcome.point is None:
                above = count
                continue
            point = self.schema_.canonical(outcome.point, person=x)[0]
            which = "nearest" if outcome.status == "optimal" else "near"
            found = Candidate(point, f"{which} point of margin {margin:.4g}{failed}")
            report = certify(self.net_, point, self.shifts_, target, exact_margin=True)
            if report.robust[0]:
                best, robust, above = found, True, count
                continue
            best = best if robust else found
            # A point with a larger margin is also the nearest for all margins up to that one.
            spare = float(self.net_.margin(point, target)[0]) - _SLACK - margin
            below = min(count + max(0, math.floor(spare / self.step)), above - 1)
            guess = max(1, math.floor(_HASTE * -float(report.upper[0]) / self.step))
            towards = np.vstack([point, towards[:_LINES]])
        return best


def _within(pieces: Iterable[ConvexPiece], x: Array, reach: float) -> Iterator[ConvexPiece]:
    """Yield the parts of the pieces in which no column changes by more than ``reach``."""
    for piece in pieces:
        lower, upper = np.maximum(piece.lower, x - reach), np.minimum(piece.upper, x + reach)
        if (lower <= upper).all():
            yield replace(piece, lower=lower, upper=upper)
