r"""RobX on nearest neighbours (Dutta, Long, Mishra, Tilli & Magazzeni 2022, RobXNN in the paper).

The *counterfactual stability* of a point is

.. math::
    S(x') = \operatorname{mean}_e\ p_t(x' + e) - \operatorname{std}_e\ p_t(x' + e),
    \qquad e \sim N(0, \sigma^2 I),

with :math:`p_t` the probability of the target class. The method takes the nearest row of the target
class, and the nearest row of the target class with :math:`S \ge \tau`. The counterfactual is the first
stable point on the line from the former to the latter.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from proplace.baselines.base import Baseline, Candidate
from proplace.core.errors import OptionError
from proplace.core.options import integer, positive
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.schema import Schema


class RobX(Baseline):
    """The first stable point between the nearest accepted row and the nearest stable row.

    Parameters
    ----------
    model, schema, seed, n_jobs
        As for every method. The seed is that of the Gaussian neighbours, the same for all points.
    tau
        Required stability.
    sigma
        Standard deviation of the Gaussian neighbours, in encoded units.
    samples
        Number of Gaussian neighbours.
    steps
        Number of points on the line.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import RobX
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[9.0, 9.0]], [-9.0])])
    >>> train = np.random.default_rng(0).random((200, 2))
    >>> method = RobX(net, tau=0.6).fit(train)
    >>> result = method.explain([[0.2, 0.3]])
    >>> result[0].status, bool(method.stability(result.encoded_counterfactuals)[0] >= 0.6)
    ('valid', True)
    """

    def __init__(
        self,
        model: object,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
        tau: float = 0.5,
        sigma: float = 0.1,
        samples: int = 1000,
        steps: int = 20,
    ) -> None:
        super().__init__(model, schema=schema, seed=seed, n_jobs=n_jobs)
        self.tau = tau
        self.sigma = sigma
        self.samples = samples
        self.steps = steps

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        if not 0.0 <= self.tau < 1.0:
            raise OptionError(
                f"tau must be a number in [0, 1), not {self.tau!r}", name="tau", value=self.tau
            )
        positive("sigma", self.sigma)
        integer("samples", self.samples, least=2)
        integer("steps", self.steps)

    def stability(self, X: Array, target: int = 1) -> Array:
        """Return the counterfactual stability of each row."""
        result = np.empty(len(X))
        for i, x in enumerate(X):
            score = self.net_.predict_proba(x + self._noise)[:, target]
            result[i] = score.mean() - score.std()
        return result

    @cached_property
    def _noise(self) -> Array:
        rng = np.random.default_rng(self.seed)
        return rng.normal(0.0, self.sigma, (self.samples, self.net_.inputs))

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Find the rows of the target class."""
        rows = distinct(self.rows_)
        self._accepted = rows[self.net_.predict(rows) == target]

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Return one candidate for each row, from its own neighbours."""
        known: dict[bytes, bool] = {}  # verdicts by row, because people share neighbours
        low, high = self.bounds(X)
        return [self._one(x, target, (low[i], high[i]), known) for i, x in enumerate(X)]

    def _one(
        self, x: Array, target: int, bounds: tuple[Array, Array], known: dict[bytes, bool]
    ) -> Candidate:
        rows = self._neighbours(x, target)
        if not len(rows):
            return Candidate(
                None, f"no row that this person may become has {self.model_.class_name(target)}"
            )
        stable = next((row for row in rows if self._stable(row, target, known)), None)
        if stable is None:
            label = self.model_.class_name(target)
            reason = f"none of {len(rows)} rows of {label} has a stability of {self.tau}"
            return Candidate(None, reason)
        share = np.linspace(0.0, 1.0, self.steps + 1)[:, None]
        line = self.legal((1.0 - share) * rows[0] + share * stable, bounds)
        line[-1] = stable
        line = line[self.net_.predict(line) == target]
        point = next((row for row in line if self._stable(row, target, known)), None)
        return Candidate(point)

    def _neighbours(self, x: Array, target: int) -> Array:
        """Return the rows of the target class that the person may become, nearest first."""
        rows: Array = self._accepted
        if not self._free:
            rows = self.reachable(x)
            rows = rows[self.net_.predict(rows) == target]
        return rows[np.argsort(self.distance_.between(x, rows), kind="stable")]

    def _stable(self, row: Array, target: int, known: dict[bytes, bool]) -> bool:
        key = row.tobytes()
        if key not in known:
            known[key] = bool(self.stability(row[None], target)[0] >= self.tau)
        return known[key]
