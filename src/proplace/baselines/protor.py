r"""PROTO-R: counterfactuals near prototypes, with a growing confidence (Jiang et al. 2023).

The base method (Van Looveren & Klaise 2021) minimises

.. math::
    c\, \big[ \max_{o \ne t} p_o(x') - p_t(x') + \kappa \big]_+
    + \beta \|x' - x\|_1 + \|x' - x\|_2^2 + \theta \|x' - q\|_2^2

with :math:`p` the class probabilities, :math:`t` the target class, :math:`\kappa` the required gap of
the probabilities, and :math:`q` the prototype: the k-th nearest row of the target class. The method is
FISTA. It shrinks changes by :math:`\beta` in each step, whatever the step size, as published. The
weight :math:`c` grows tenfold until a point satisfies :math:`p_t - \max p_o > \kappa`. Bisection then
searches the smallest such weight. Of the points that satisfy the condition, the one with the smallest
:math:`\beta \|x' - x\|_1 + \|x' - x\|_2^2` is chosen.
:math:`\kappa` is raised until the chosen point is robust. If none is robust, the point with the
largest worst-case margin is returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial import KDTree

from proplace.baselines.base import Candidate, RobustBaseline
from proplace.baselines.gradients import gap, gap_gradient
from proplace.certification import certify
from proplace.core.errors import OptionError
from proplace.core.options import integer, not_negative, positive
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.schema import Schema

_CLIP = 1000.0  # largest entry of a gradient, as published
_NO_BOUND = 1e9  # stands for an infinite weight


class ProtoR(RobustBaseline):
    """Counterfactuals near a prototype of the target class, tested for Delta-robustness.

    Parameters
    ----------
    model, delta, schema, seed, n_jobs
        As for every method that takes a delta. Nothing here is random.
    kappas
        Required gaps of the probabilities, between 0 and 1. They are tried in turn until a point is
        robust. A point must exceed the gap, so the last published value, 1, never succeeds.
    theta
        Weight of the squared distance to the prototype.
    beta
        Weight of the L1 distance.
    k
        The prototype is the k-th nearest row of the target class.
    rate
        First step size of FISTA. It falls to 0 with the square root of the remaining steps.
    iterations
        Number of steps of FISTA for one weight c.
    c_start
        First weight c.
    c_steps
        Number of weights c that are tried.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import ProtoR
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[4.0, 4.0]], [-4.0])])
    >>> train = np.random.default_rng(0).random((200, 2))
    >>> result = ProtoR(net, 0.02).fit(train).explain([[0.2, 0.3]])
    >>> result[0].status, result[0].margin >= 0.0
    ('feasible', True)
    """

    def __init__(
        self,
        model: object,
        delta: Delta,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
        kappas: Sequence[float] = (0.1, 0.8, 1.0),
        theta: float = 10.0,
        beta: float = 0.1,
        k: int = 20,
        rate: float = 0.01,
        iterations: int = 1000,
        c_start: float = 10.0,
        c_steps: int = 10,
    ) -> None:
        super().__init__(model, delta, schema=schema, seed=seed, n_jobs=n_jobs)
        self.kappas = kappas
        self.theta = theta
        self.beta = beta
        self.k = k
        self.rate = rate
        self.iterations = iterations
        self.c_start = c_start
        self.c_steps = c_steps

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        if not self.kappas or not all(0.0 <= kappa <= 1.0 for kappa in self.kappas):
            raise OptionError(
                f"kappas must be one or more numbers from 0 to 1, not {self.kappas!r}",
                name="kappas",
                value=self.kappas,
            )
        not_negative("theta", self.theta)
        not_negative("beta", self.beta)
        integer("k", self.k)
        positive("rate", self.rate)
        integer("iterations", self.iterations)
        positive("c_start", self.c_start)
        integer("c_steps", self.c_steps)

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Build the k-d tree of the rows of the target class."""
        rows = distinct(self.rows_)
        self._accepted = rows[self.net_.predict(rows) == target]
        self._tree = KDTree(self._accepted) if len(self._accepted) else None

    def prototype(self, x: Array, target: int) -> Array | None:
        """Return the k-th nearest row of the target class that the person may become."""
        rows, tree = self._accepted, self._tree
        if not self._free:
            rows = self.reachable(x)
            rows = rows[self.net_.predict(rows) == target]
            tree = KDTree(rows) if len(rows) else None
        if tree is None:
            return None
        last = min(self.k, len(rows))
        _, place = tree.query(x[None], k=[last])
        row: Array = rows[int(np.ravel(place)[0])]
        return row

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Run the base method for all rows, then with the next kappa for rows without a robust point."""
        prototypes = [self.prototype(x, target) for x in X]
        lost = Candidate(
            None, f"no row that this person may become has {self.model_.class_name(target)}"
        )
        found = [lost if q is None else Candidate(None) for q in prototypes]
        worst = np.full(len(X), -np.inf)
        todo = [i for i, q in enumerate(prototypes) if q is not None]
        for kappa in self.kappas:
            if not todo:
                break
            Q = np.array([prototypes[i] for i in todo])
            later = []
            for i, point in zip(todo, self._base(X[todo], Q, kappa, target), strict=True):
                robust = False
                if not np.isnan(point).any():
                    report = certify(self.net_, point, self.shifts_, target)
                    robust, margin = bool(report.robust[0]), float(report.lower[0])
                    if margin > worst[i]:
                        worst[i], found[i] = margin, Candidate(point, f"kappa {kappa:g}")
                if not robust:
                    later.append(i)
            todo = later
        return found

    def _base(self, X: Array, Q: Array, kappa: float, target: int) -> Array:
        """Return the nearest point of each row over the weights c. NaN if there is none."""
        bounds = self.bounds(X)
        best, answer = np.full(len(X), np.inf), np.full_like(X, np.nan)
        c = np.full(len(X), self.c_start)
        below, above = np.zeros(len(X)), np.full(len(X), np.inf)
        for _ in range(self.c_steps):
            distance, points = self._fista(X, Q, c, kappa, target, bounds)
            nearer = distance < best
            best[nearer], answer[nearer] = distance[nearer], points[nearer]
            hit = np.isfinite(distance)
            above = np.where(hit, np.minimum(above, c), above)
            below = np.where(hit, below, np.maximum(below, c))
            c = np.where(above < _NO_BOUND, (below + np.minimum(above, _NO_BOUND)) / 2.0, 10.0 * c)
        return answer

    def _fista(
        self,
        X: Array,
        Q: Array,
        c: Array,
        kappa: float,
        target: int,
        bounds: tuple[Array, Array],
    ) -> tuple[Array, Array]:
        """Run FISTA for fixed weights. Return the smallest distance (inf if it fails) and its point."""
        best, answer = np.full(len(X), np.inf), X.copy()
        point, ahead = X.copy(), X.copy()
        for i in range(self.iterations):
            reached, slope = gap_gradient(self.net_, self.legal(ahead, bounds), target)
            attack = np.where(reached < kappa, c, 0.0)[:, None]
            gradient = np.clip(-attack * slope, -_CLIP, _CLIP)
            gradient += 2.0 * (ahead - X) + 2.0 * self.theta * (ahead - Q)
            rate = self.rate * np.sqrt(1.0 - i / self.iterations)
            step = ahead - rate * gradient - X
            shrunk = np.sign(step) * np.maximum(np.abs(step) - self.beta, 0.0)
            before, point = point, np.clip(X + shrunk, *bounds)
            ahead = np.clip(point + (i + 1) / (i + 4) * (point - before), *bounds)
            legal = self.legal(point, bounds)
            change = legal - X
            distance = (change**2).sum(axis=1) + self.beta * np.abs(change).sum(axis=1)
            nearer = np.flatnonzero(distance < best)
            if not len(nearer):
                continue
            good = nearer[gap(self.net_, legal[nearer], target) > kappa]
            best[good], answer[good] = distance[good], legal[good]
        return best, answer
