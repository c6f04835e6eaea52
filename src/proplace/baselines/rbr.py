r"""RBR: Robust Bayesian Recourse (Nguyen, Bui, Nguyen, Yue & Nguyen 2022).

Let :math:`x_b` be the boundary point nearest to the person :math:`x` on the lines to accepted rows.
Samples :math:`x_i` are drawn in a ball around it and labelled by the network. Each sample is a kernel
:math:`N(x_i, \sigma^2 I)`, known only up to a Wasserstein ball of radius :math:`\varepsilon`. The method
minimises the worst posterior odds of the refused class,

.. math::
    F(x') = \log \sum_{i\ \text{refused}} \exp \ell_{op}(\|x' - x_i\|)
          - \log \sum_{j\ \text{accepted}} \exp \ell_{pe}(\|x' - x_j\|)

over :math:`\|x' - x\|_1 \le \|x_b - x\|_1 + \delta_+`, by projected gradient from :math:`x_b`. The
optimistic and pessimistic log-densities of :math:`p` columns at distance :math:`c` are

.. math::
    \ell_{op}(c) &= \max_{a, b}\ -\log(\sigma + b) - \frac{(c - a)^2}{2 (\sigma + b)^2}
        - (p-1) \log \sigma, \\
    \ell_{pe}(c) &= \min_{a, b}\ -\log(\sigma + b) - \frac{(c + a)^2}{2 (\sigma + b)^2}
        - (p-1) \log(\sigma + f)

over :math:`a, b \ge 0,\ a^2 + b^2 \le \varepsilon^2`, with
:math:`(p-1) f^2 = \varepsilon^2 - a^2 - b^2`: the mean moves by :math:`a`, the deviation grows by
:math:`b` towards the point and by :math:`f` in the other directions. Both densities are functions of one
number, so they are tabulated once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.baselines.base import MARGIN, Baseline, Candidate
from proplace.baselines.gradients import margin
from proplace.core.options import integer, not_negative, positive
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.schema import Schema

_STEP = 1e-3**0.5  # of the projected gradient, as published
_STALE = 10  # steps without progress after which a row ends
_GRID = 2001  # distances in a table
_LINE = 100  # points on the line to an accepted row
_POINTS = 2048  # points on the lines that are predicted together


class Density(NamedTuple):
    """A log-density as a function of the distance: values and slopes on a grid."""

    distance: Array
    value: Array
    slope: Array

    def at(self, c: Array) -> tuple[Array, Array]:
        """Return value and slope at distances ``c``."""
        return (
            np.interp(c, self.distance, self.value),
            np.interp(c, self.distance, self.slope),
        )


def optimistic(c: Array, columns: int, sigma: float, epsilon: float) -> Density:
    """Return the largest log-density at the distances ``c`` over the moved and widened kernels."""

    def loss(a: Array, b: Array) -> Array:
        wide = sigma + b
        value: Array = np.log(wide) + (c[:, None] - a) ** 2 / (2.0 * wide**2)
        return value

    least, a, b = _least_over_disc(loss, len(c), epsilon)
    return Density(c, -least - (columns - 1) * np.log(sigma), -(c - a) / (sigma + b) ** 2)


def pessimistic(c: Array, columns: int, sigma: float, epsilon: float) -> Density:
    """Return the smallest log-density at the distances ``c`` over the moved and widened kernels."""

    def loss(a: Array, b: Array) -> Array:
        wide = sigma + b
        value: Array = -np.log(wide) - (c[:, None] + a) ** 2 / (2.0 * wide**2)
        if columns > 1:
            across = np.sqrt(np.maximum(epsilon**2 - a**2 - b**2, 0.0) / (columns - 1))
            value -= (columns - 1) * np.log(sigma + across)
        return value

    least, a, b = _least_over_disc(loss, len(c), epsilon)
    return Density(c, least, -(c + a) / (sigma + b) ** 2)


class Rbr(Baseline):
    """Recourse with the smallest worst-case posterior odds of being refused.

    Each step gives a legal point. The legal point of the target class with the smallest objective is
    returned.

    Parameters
    ----------
    model, schema, seed, n_jobs
        As for every method. The seed is that of the samples around the boundary point.
    delta_plus
        Allowed extra distance beyond the boundary point (sum of absolute differences).
    sigma
        Width of the kernels.
    epsilon_op, epsilon_pe
        Radii of the Wasserstein balls of refused and of accepted samples.
    samples
        Number of samples around the boundary point.
    radius
        Radius of the ball of the samples.
    candidates
        Number of nearest accepted rows to which lines are drawn.
    iterations
        Largest number of steps.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network
    >>> from proplace.baselines import Rbr
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> train = np.random.default_rng(0).random((200, 2))
    >>> result = Rbr(net).fit(train).explain([[0.2, 0.3]])
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
        delta_plus: float = 1.0,
        sigma: float = 1.0,
        epsilon_op: float = 1.0,
        epsilon_pe: float = 1.0,
        samples: int = 200,
        radius: float = 0.2,
        candidates: int = 1000,
        iterations: int = 500,
    ) -> None:
        super().__init__(model, schema=schema, seed=seed, n_jobs=n_jobs)
        self.delta_plus = delta_plus
        self.sigma = sigma
        self.epsilon_op = epsilon_op
        self.epsilon_pe = epsilon_pe
        self.samples = samples
        self.radius = radius
        self.candidates = candidates
        self.iterations = iterations

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        super().check_parameters()
        not_negative("delta_plus", self.delta_plus)
        positive("sigma", self.sigma)
        not_negative("epsilon_op", self.epsilon_op)
        not_negative("epsilon_pe", self.epsilon_pe)
        integer("samples", self.samples)
        positive("radius", self.radius)
        integer("candidates", self.candidates)
        integer("iterations", self.iterations)

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Find the accepted rows, and tabulate both densities over the distances that can occur."""
        rows = distinct(self.rows_)
        self._accepted = rows[self.net_.predict(rows) == target]
        low, high = self._span
        c = np.linspace(0.0, 2.0 * (float(np.linalg.norm(high - low)) + self.radius), _GRID)
        width = self.net_.inputs
        self._refused_density = optimistic(c, width, self.sigma, self.epsilon_op)
        self._accepted_density = pessimistic(c, width, self.sigma, self.epsilon_pe)

    def boundary(self, x: Array, target: int) -> Array | None:
        """Return the nearest point of the target class among 100 points on each line."""
        rows = self._accepted
        if not self._free:
            rows = self.reachable(x)
            rows = rows[self.net_.predict(rows) == target]
        far = self.distance_.between(x, rows)
        near = np.argsort(far, kind="stable")[: self.candidates]
        share = np.linspace(0.0, 1.0, _LINE)
        order = np.argsort(np.outer(far[near], share), axis=None, kind="stable")
        for start in range(0, len(order), _POINTS):
            line, place = np.divmod(order[start : start + _POINTS], _LINE)
            points = x + share[place, None] * (rows[near[line]] - x)
            hit = np.flatnonzero(self.net_.margin(points, target) >= MARGIN)
            if len(hit):
                first: Array = points[hit[0]]
                return first
        return None

    def ball(self, x: Array, centre: Array) -> Array:
        """Draw samples uniformly in a ball around the boundary point of a person."""
        rng = self.generator(x)
        direction = rng.standard_normal((self.samples, len(x)))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        size = self.radius * rng.random((self.samples, 1)) ** (1.0 / len(x))
        result: Array = centre + size * direction
        return result

    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Descend from the boundary points of all rows at once."""
        starts = [self.boundary(x, target) for x in X]
        good = [i for i, start in enumerate(starts) if start is not None]
        lost = Candidate(
            None, f"no line to a row of {self.model_.class_name(target)} reaches the class"
        )
        found = [lost] * len(X)
        if good:
            centres = np.array([start for start in starts if start is not None])
            for i, point in zip(good, self._descend(X[good], centres, target), strict=True):
                found[i] = Candidate(None if np.isnan(point).any() else point)
        return found

    def objective(
        self, points: Array, samples: Array, accepted: npt.NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        """Return F and its gradient at one point per row, for samples of shape (n, samples, columns)."""
        away = points[:, None, :] - samples
        c = np.sqrt((away**2).sum(axis=2))
        away /= np.where(c > 0.0, c, 1.0)[:, :, None]
        value, gradient = np.zeros(len(points)), np.zeros_like(points)
        for density, chosen, sign in (
            (self._refused_density, ~accepted, 1.0),
            (self._accepted_density, accepted, -1.0),
        ):
            level, slope = density.at(c)
            level = np.where(chosen, level, -np.inf)
            top = level.max(axis=1)
            some = np.isfinite(top)  # without samples of a class, its part is constant
            weight = np.exp(level - np.where(some, top, 0.0)[:, None])
            total = np.where(some, weight.sum(axis=1), 1.0)
            value += sign * np.where(some, top + np.log(total), 0.0)
            share = weight / total[:, None] * slope
            gradient += sign * (share[:, :, None] * away).sum(axis=1)
        return value, gradient

    def _descend(self, X: Array, centres: Array, target: int) -> Array:
        """Follow the projected gradient to the best legal point of the target class. NaN without one."""
        samples = np.array([self.ball(x, centre) for x, centre in zip(X, centres, strict=True)])
        accepted = np.array([self.net_.predict(part) == target for part in samples])
        room = np.abs(centres - X).sum(axis=1) + self.delta_plus
        low, high = self.bounds(X)
        points = np.clip(centres, low, high)
        best, answer = np.full(len(X), np.inf), np.full_like(X, np.nan)
        least, stale = np.full(len(X), np.inf), np.zeros(len(X), dtype=np.int64)
        todo = np.arange(len(X))
        for _ in range(self.iterations):
            value, gradient = self.objective(points[todo], samples[todo], accepted[todo])
            legal = self.legal(points[todo], (low[todo], high[todo]))
            valid = margin(self.net_, legal, target) >= MARGIN
            better = valid & (value < best[todo])
            best[todo[better]], answer[todo[better]] = value[better], legal[better]
            stale[todo] = np.where(least[todo] - value <= 1e-10, stale[todo] + 1, 0)
            least[todo] = np.minimum(least[todo], value)
            moving = stale[todo] < _STALE
            todo, gradient = todo[moving], gradient[moving]
            if not len(todo):
                break
            step = points[todo] - _STEP * gradient - X[todo]
            points[todo] = np.clip(X[todo] + _project(step, room[todo]), low[todo], high[todo])
        return answer


def _least_over_disc(
    loss: Callable[[Array, Array], Array], count: int, radius: float
) -> tuple[Array, Array, Array]:
    """Minimise ``loss(a, b)`` over the quarter disc, for ``count`` losses at once.

    A polar grid is evaluated, then finer grids around the best point. Returns the smallest values and
    their ``a`` and ``b``.
    """
    r, t = np.full(count, radius / 2.0), np.full(count, np.pi / 4.0)
    wide_r, wide_t, points = radius / 2.0, np.pi / 4.0, 33
    least = np.empty(count)
    for _ in range(7):
        step = np.linspace(-1.0, 1.0, points)
        R = np.clip(r[:, None] + wide_r * step, 0.0, radius)[:, :, None]
        T = np.clip(t[:, None] + wide_t * step, 0.0, np.pi / 2.0)[:, None, :]
        A = (R * np.cos(T)).reshape(count, -1)
        B = (R * np.sin(T)).reshape(count, -1)
        values = loss(A, B)
        pick = values.argmin(axis=1)
        least = values[np.arange(count), pick]
        r = R[np.arange(count), pick // points, 0]
        t = T[np.arange(count), 0, pick % points]
        wide_r, wide_t, points = 2.0 * wide_r / (points - 1), 2.0 * wide_t / (points - 1), 9
    return least, r * np.cos(t), r * np.sin(t)


def _project(steps: Array, radii: Array) -> Array:
    """Project each row onto the L1 ball of its radius, in the Euclidean norm."""
    size = np.abs(steps)
    ordered = -np.sort(-size, axis=1)
    sums = np.cumsum(ordered, axis=1) - radii[:, None]
    count = np.arange(1, steps.shape[1] + 1)
    last = np.maximum((ordered * count > sums).sum(axis=1) - 1, 0)
    cut = sums[np.arange(len(steps)), last] / (last + 1.0)
    inside = size.sum(axis=1) <= radii
    shrunk = np.maximum(size - np.where(inside, 0.0, cut)[:, None], 0.0)
    result: Array = np.sign(steps) * shrunk
    return result
