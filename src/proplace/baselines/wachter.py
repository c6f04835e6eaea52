r"""WCE: the first counterfactual explanations (Wachter, Mittelstadt & Russell 2017).

.. math::
    \min_{x'}\ (m(x') - 1)^2 + \lambda \|x' - x\|_1

with :math:`m` the margin of the target class (the logit, for one output). Adam starts from
:math:`x' = x` and stops when the network gives the target class. After every ``iterations`` steps
without success, :math:`\lambda` is halved. If the schema has categories or grids, loss and gradient are
those of the nearest legal point, and the step moves the unrounded point (a "straight-through" estimate).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.baselines.base import MARGIN, Baseline, Candidate
from proplace.baselines.gradients import Adam, margin_gradient
from proplace.core.options import integer, not_negative, positive

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.schema import Schema


class Wachter(Baseline):
    """Gradient search for a near point of the target class. Nothing is proved about it.

    Parameters
    ----------
    model, schema, seed, n_jobs
        As for every method. Nothing here is random.
    rate
        Learning rate of Adam.
    penalty
        First weight of the L1 distance.
    iterations
        Steps before the weight is halved.
    rounds
        Number of times that the weight is halved before a row ends without a counterfactual.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import Wachter
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> method = Wachter(net).fit(np.array([[0.0, 0.0], [1.0, 1.0]]))
    >>> result = method.explain([[0.2, 0.3]])
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
        iterations: int = 100,
        rounds: int = 10,
    ) -> None:
        super().__init__(model, schema=schema, seed=seed, n_jobs=n_jobs)
        self.rate = rate
        self.penalty = penalty
        self.iterations = iterations
        self.rounds = rounds

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        positive("rate", self.rate)
        not_negative("penalty", self.penalty)
        integer("iterations", self.iterations)
        integer("rounds", self.rounds)

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Descend from all rows at once. Each stops at its first point of the target class."""
        low, high = self.bounds(X)
        free, points = X.copy(), X.copy()
        adam = Adam(X.shape, self.rate)
        todo = np.arange(len(X))
        for step in range(self.iterations * self.rounds):
            penalty = self.penalty * 0.5 ** (step // self.iterations)
            points[todo] = self.legal(free[todo], (low[todo], high[todo]))
            margin, slope = margin_gradient(self.net_, points[todo], target)
            late = margin < MARGIN
            todo, margin, slope = todo[late], margin[late], slope[late]
            if not len(todo):
                break
            gradient = 2.0 * (margin - 1.0)[:, None] * slope
            gradient += penalty * np.sign(points[todo] - X[todo])
            free[todo] = np.clip(free[todo] + adam.step(gradient, todo), low[todo], high[todo])
        label, steps = self.model_.class_name(target), self.iterations * self.rounds
        spent = f"no point of {label} after {steps} steps"
        lost = set(todo.tolist())
        return [
            Candidate(None, spent) if i in lost else Candidate(points[i]) for i in range(len(X))
        ]
