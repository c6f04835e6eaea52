r"""ROAR: recourse that is robust for a linear surrogate (Upadhyay, Joshi & Lakkaraju 2021).

Around each person, a linear function :math:`w^\top x' + b` replaces the probability of the target class.
It is fitted to samples of the training distribution, weighted by their nearness to the person, as in
LIME. The method solves

.. math::
    \min_{x'}\ \max_{\|\delta\|_\infty \le \delta_{\max}}
    \big[ 1 - (w + \delta_w)^\top x' - b - \delta_b \big]_+^2 + \lambda \|x' - x\|_1 .

The worst change of the surrogate has a closed form: it lowers the score by
:math:`\delta_{\max} (\|x'\|_1 + 1)`. Adam starts from :math:`x' = x` and stops when the loss settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.baselines.base import Baseline, Candidate
from proplace.baselines.gradients import Adam
from proplace.core.options import integer, not_negative, positive

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.schema import Schema


class Roar(Baseline):
    """Robust recourse against bounded changes of a local linear surrogate.

    The robustness is that of the surrogate, not of the network. If the network refuses the point, the
    status is ``not_found``.

    Parameters
    ----------
    model, schema, seed, n_jobs
        As for every method. The seed is that of the surrogate's samples.
    rate
        Learning rate of Adam.
    penalty
        Weight of the L1 distance.
    delta_max
        Largest change of a coefficient of the surrogate.
    samples
        Number of samples to which the surrogate is fitted.
    tolerance
        The search ends when the loss changes by less in a step.
    iterations
        Largest number of steps.
    standardised
        True to apply the coefficients of standardised columns to the encoded columns, as in the
        published run.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import Roar
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[4.0, 4.0]], [-4.0])])
    >>> train = np.random.default_rng(0).random((200, 2))
    >>> result = Roar(net).fit(train).explain([[0.2, 0.3]])
    >>> result[0].status, int(net.predict(result.encoded_counterfactuals)[0])
    ('valid', 1)
    """

    def __init__(
        self,
        model: object,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
        rate: float = 0.01,
        penalty: float = 0.01,
        delta_max: float = 0.01,
        samples: int = 5000,
        tolerance: float = 1e-3,
        iterations: int = 5000,
        standardised: bool = False,
    ) -> None:
        super().__init__(model, schema=schema, seed=seed, n_jobs=n_jobs)
        self.rate = rate
        self.penalty = penalty
        self.delta_max = delta_max
        self.samples = samples
        self.tolerance = tolerance
        self.iterations = iterations
        self.standardised = standardised

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        positive("rate", self.rate)
        not_negative("penalty", self.penalty)
        not_negative("delta_max", self.delta_max)
        integer("samples", self.samples)
        positive("tolerance", self.tolerance)
        integer("iterations", self.iterations)

    def surrogate(self, X: Array, target: int) -> tuple[Array, Array]:
        r"""Return coefficients (n, columns) and intercepts (n,) of the surrogate of each row.

        Weighted ridge regression in standardised columns, over samples of independent normals with
        the mean and deviation of the training rows. The weight of a sample at distance r is in
        proportion to :math:`\exp(-r^2 / (2 \cdot .75^2 d))`, and 1 on average.
        """
        centre, spread = self.rows_.mean(axis=0), self.rows_.std(axis=0)
        spread = np.where(spread > 0.0, spread, 1.0)
        width = X.shape[1]
        noise = np.random.default_rng(self.seed).standard_normal((self.samples, width))
        score = self.net_.predict_proba(noise * spread + centre)[:, target]
        coefficients, intercepts = np.empty_like(X), np.empty(len(X))
        for i, x in enumerate((X - centre) / spread):
            far = ((noise - x) ** 2).sum(axis=1) / (2.0 * 0.75**2 * width)
            weight = np.exp(far.min() - far)  # only ratios matter, also far from all samples
            weight *= self.samples / weight.sum()
            shift = weight @ noise / self.samples
            level = weight @ score / self.samples
            Z = noise - shift
            A = (Z * weight[:, None]).T @ Z + np.eye(width)
            w = np.linalg.solve(A, (Z * weight[:, None]).T @ (score - level))
            coefficients[i], intercepts[i] = w, level - w @ shift
            if not self.standardised:
                coefficients[i] /= spread
                intercepts[i] -= coefficients[i] @ centre
        return coefficients, intercepts

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Descend from all rows at once. Each stops when its own loss settles."""
        w, b = self.surrogate(X, target)
        low, high = self.bounds(X)
        free, points = X.copy(), X.copy()
        adam = Adam(X.shape, self.rate)
        before = np.zeros(len(X))
        todo = np.arange(len(X))
        for _ in range(self.iterations):
            here = points[todo] = self.legal(free[todo], (low[todo], high[todo]))
            worst = (w[todo] * here).sum(axis=1) + b[todo]
            worst -= self.delta_max * (np.abs(here).sum(axis=1) + 1.0)
            short = np.maximum(1.0 - worst, 0.0)
            loss = short**2 + self.penalty * np.abs(here - X[todo]).sum(axis=1)
            moving = np.abs(loss - before[todo]) > self.tolerance
            before[todo] = loss
            todo, here, short = todo[moving], here[moving], short[moving]
            if not len(todo):
                break
            slope = w[todo] - self.delta_max * np.sign(here)
            gradient = -2.0 * short[:, None] * slope
            gradient += self.penalty * np.sign(here - X[todo])
            free[todo] = np.clip(free[todo] + adam.step(gradient, todo), low[todo], high[todo])
        reason = "robust for the surrogate, but the network gives another class"
        return [
            Candidate(point, "" if margin >= 0.0 else reason)
            for point, margin in zip(points, self.net_.margin(points, target), strict=True)
        ]
