r"""RNCE: the nearest Delta-robust row of the data (Jiang, Lan, Leofante, Rago & Toni 2024).

.. math::
    \min\ \|x' - x\|_1 \quad \text{over the training rows } x' \text{ that are } \Delta\text{-robust} ,

and, if ``steps`` is above 1, the nearest robust point among ``steps`` points on the line from the person
to that row. A returned row is robust. A counterfactual exists whenever the person may become a robust
row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.baselines.base import MARGIN, Candidate, RobustBaseline
from proplace.certification import certify
from proplace.core.guarantee import Guarantee, Member
from proplace.core.options import integer
from proplace.region.neighbours import RobustRows
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.schema import Schema


class Rnce(RobustBaseline):
    """The nearest robust row of the training data.

    Parameters
    ----------
    model, delta, schema, seed, n_jobs
        As for every method that takes a delta. Nothing here is random.
    steps
        Number of points on the line from the person to the row, including the row. 1 returns the row.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import Rnce
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> train = np.array([[0.2, 0.1], [0.6, 0.5], [0.9, 0.8], [1.0, 0.6]])
    >>> Rnce(net, 0.05).fit(train).explain([[0.2, 0.3]]).encoded_counterfactuals
    array([[1. , 0.6]])
    """

    def __init__(
        self,
        model: object,
        delta: Delta,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
        steps: int = 1,
    ) -> None:
        super().__init__(model, delta, schema=schema, seed=seed, n_jobs=n_jobs)
        self.steps = steps

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        integer("steps", self.steps)

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Find the robust rows."""
        self._robust = RobustRows(
            Guarantee((Member(self.net_, self.shifts_, margin=MARGIN),)),
            target,
            0.0,
            distinct(self.rows_),
            self.distance_,
            self.model_.class_name(target),
        )

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Return one candidate for each row, from its nearest robust row."""
        bounds = self.bounds(X)
        return [self._one(x, target, (bounds[0][i], bounds[1][i])) for i, x in enumerate(X)]

    def _one(self, x: Array, target: int, bounds: tuple[Array, Array]) -> Candidate:
        near = (
            self._robust.nearest(x, 1)
            if self._free
            else self._robust.admissible(self.schema_.person(x), 1)
        )
        if near.status != "found":
            return Candidate(None, near.reason, near.status)
        row = near.rows[0]
        if self.steps == 1:
            return Candidate(row)
        share = np.linspace(0.0, 1.0, self.steps + 1)[1:-1, None]
        line = self.legal(x + share * (row - x), bounds)
        line = line[self.schema_.person(x).allowed(line)]
        robust = certify(self.net_, line, self.shifts_, target, margin=MARGIN).robust
        line = np.vstack([line[robust], row])
        return Candidate(line[self.distance_.between(x, line).argmin()])
