r"""MILP-R: minimum-distance counterfactuals, made robust by a margin (Jiang et al. 2023).

.. math::
    x(m) = \operatorname{argmin}_{x'}\ \|x' - x\|_1 \quad \text{s.t. } \text{margin}(x') \ge m

over the features' ranges, categories and rules: the exact minimum-distance counterfactual of the ReLU
network (Mohammadi et al. 2021, a mixed-integer program). The margin starts at ``start`` and is raised
by ``step`` until :math:`x(m)` passes the Delta-test. The program is solved by the tree search of this
package with a Delta of 0, which gives the same optimum; the region is the whole box of the features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.methods.base import Candidate, RobustMethod, positive, whole
from proplace.region import box_pieces
from proplace.search.pieces import search
from proplace.search.problem import Problem
from proplace.shifts import Shifts

if TYPE_CHECKING:
    from proplace.network import Array, Network
    from proplace.schema import Schema
    from proplace.shifts import Delta

_SLACK = 1e-5  # extra margin asked for inside the search, against rounding


class MilpR(RobustMethod):
    """The exact nearest point of a margin, the margin raised until the point is robust.

    Parameters
    ----------
    net, delta, schema, seed, n_jobs
        As for every method that takes a delta. Nothing here is random.
    start
        First margin.
    step
        By how much the margin is raised.
    raises
        How often it is raised before the last point is returned as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import MilpR, Network
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> method = MilpR(net, 0.01).fit(np.array([[0.0, 0.0], [1.0, 1.0]]))
    >>> result = method.explain([[0.2, 0.3]])
    >>> result[0].status, round(result[0].distance, 3), result[0].reason
    ('feasible', 0.36, 'nearest point of margin 0.22; certified robust, not proved nearest')
    """

    def __init__(
        self,
        net: Network,
        delta: Delta,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int = 1,
        start: float = 0.02,
        step: float = 0.2,
        raises: int = 500,
    ) -> None:
        super().__init__(net, delta, schema=schema, seed=seed, n_jobs=n_jobs)
        self.start = positive("start", start)
        self.step = positive("step", step)
        self.raises = whole("raises", raises, least=0)

    def find(self, X: Array, target: int) -> list[Candidate]:
        """Take the rows one by one: each is a program of its own."""
        return [self._one(x, target) for x in X]

    def nearest(self, x: Array, margin: float, target: int = 1) -> Array | None:
        """Return the nearest point with at least this margin, or None where there is none."""
        low, high = self._span
        person = self._schema.person(x)
        grids = {i: c for i, c in enumerate(self._schema.columns) if c.kind == "grid"}
        problem = Problem(
            self.net, Shifts.of(self.net, 0.0), target, x, self.distance, margin, _SLACK, grids
        )
        outcome = search(problem, box_pieces(self._schema, person, low, high))
        return None if outcome.point is None else self._schema.canonical(outcome.point)[0]

    def _one(self, x: Array, target: int) -> Candidate:
        best: Array | None = None
        reason = f"no point within the features' ranges and rules has a margin of {self.start}"
        reached = float("-inf")
        for count in range(self.raises + 1):
            margin = self.start + count * self.step
            if reached >= margin + _SLACK:
                continue  # a point with margin to spare is the nearest for the margins up to there
            point = self.nearest(x, margin, target)
            if point is None:
                break
            best, reason = point, f"nearest point of margin {margin:.4g}"
            if self.judge(point, target)[0]:
                break
            reached = float(self.net.margin(point, target)[0])
        return Candidate(best, reason)
