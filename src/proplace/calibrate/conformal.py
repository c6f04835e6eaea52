r"""What a history of retrainings says about the next one, whatever their distribution.

All that is assumed is that the retrainings are *exchangeable*: every order of them, the next one
included, is equally likely. Independent retrainings of the same procedure on data of the same kind are.

*Split conformal prediction* (Vovk, Gammerman and Shafer 2005). Give each of n retrainings a score
:math:`s_1, \dots, s_n` that does not depend on the others, and let :math:`t` be the one of rank
:math:`\lceil (n + 1) c \rceil` from below. The score of the next retraining is as likely to take any
place among all n + 1, so

.. math::
    P(s_{n+1} \le t) \ge \frac{\lceil (n + 1) c \rceil}{n + 1} \ge c ,

ties or not. The rank exists if :math:`n \ge c / (1 - c)`: 19 retrainings for 95%.

*Conformal risk control* (Angelopoulos, Bates, Fisch, Lei and Schuster 2024). Let
:math:`L_j(t) \in [0, 1]` be the loss of retraining j at size t, which never grows with t. For the
smallest t with

.. math::
    \frac{N}{N + 1} \cdot \frac1N \sum_{j=1}^{N} L_j(t) + \frac{1}{N + 1} \le \alpha

the expected loss of the next retraining is at most :math:`\alpha`. Losses that do grow here and there
are replaced with their largest value from t on, which never grows.

*Clopper and Pearson* (1934). If k of n independent retrainings succeed, the chance of a success is at
least the p that solves :math:`P(\mathrm{Bin}(n, p) \ge k) = 1 - \gamma`, with confidence
:math:`\gamma`: the p are wrong in at most a share :math:`1 - \gamma` of such experiments.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import OptionError

if TYPE_CHECKING:
    from proplace.core.network import Array


def probability(name: str, value: float) -> Fraction:
    """Return a number between 0 and 1 as it is written, 0.95 as 95/100; or say what it must be."""
    try:
        written = Fraction(repr(float(value)))
    except (TypeError, ValueError):
        written = Fraction(0)
    if isinstance(value, bool) or not 0 < written < 1:
        raise OptionError(
            f"{name} must lie between 0 and 1, such as 0.95, not {value!r}", name=name, value=value
        )
    return written


def rank(n: int, coverage: Fraction) -> int:
    """Which of n scores, from below, bounds the next one with this probability; n + 1 if none does."""
    return math.ceil((n + 1) * coverage)


def needed(coverage: Fraction) -> int:
    """How many scores it takes at least for a coverage."""
    return math.ceil(coverage / (1 - coverage))


def calibration_size(n: int, coverage: Fraction, shape: int) -> int:
    """How many of n retrainings should give the size, where at least ``shape`` give the shape.

    About half of them: the largest number up to there that gives away least, since n scores cover a
    multiple of 1 / (n + 1). 0 if n are too few.
    """
    least, most = needed(coverage), n - shape
    if most < least:
        return 0
    numbers = range(least, max(least, min(most, n // 2)) + 1)
    return min(numbers, key=lambda m: (Fraction(rank(m, coverage), m + 1), -m))


def never_growing(losses: Array) -> Array:
    """Largest loss from each size on; the rows are retrainings, the columns sizes in growing order."""
    largest: Array = np.maximum.accumulate(losses[:, ::-1], axis=1)[:, ::-1]
    return largest


def risk_bound(losses: Array) -> Array:
    """Bound on the expected loss of the next retraining at each size (rows: retrainings)."""
    n = len(losses)
    bound: Array = (losses.sum(axis=0) + 1.0) / (n + 1)
    return bound


def needed_for_risk(risk: Fraction) -> int:
    """How many retrainings it takes at least for a risk: without any loss the bound is 1 / (N + 1)."""
    return math.ceil(1 / risk) - 1


def least_chance(successes: int, n: int, confidence: float) -> float:
    """Clopper and Pearson's lower bound on the chance of a success, from k successes in n."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    low, high = 0.0, 1.0
    if successes == 0:
        return low
    while low < (middle := (low + high) / 2.0) < high:
        if _at_least(successes, n, middle) <= 1.0 - confidence:
            low = middle
        else:
            high = middle
    return low


def _at_least(successes: int, n: int, p: float) -> float:
    """P(Bin(n, p) >= successes) for 0 < p < 1."""
    log_p, log_q, all_ways = math.log(p), math.log1p(-p), math.lgamma(n + 1)
    return math.fsum(
        math.exp(
            all_ways - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q
        )
        for i in range(successes, n + 1)
    )
