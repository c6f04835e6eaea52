r"""Conformal bounds on the next retraining, for any distribution.

The only assumption is that the retrainings are *exchangeable*: every order of them, including the next
one, is equally likely. Independent retrainings by the same procedure on data of the same kind are.

*Split conformal prediction* (Vovk, Gammerman and Shafer 2005). Give each of n retrainings a score
:math:`s_1, \dots, s_n` that does not depend on the others. Let :math:`t` be the score with the quantile
index :math:`\lceil (n + 1) c \rceil` from below. The score of the next retraining is equally likely to
take each position among all n + 1, so

.. math::
    P(s_{n+1} \le t) \ge \frac{\lceil (n + 1) c \rceil}{n + 1} \ge c ,

with or without ties. The index exists if :math:`n \ge c / (1 - c)`: 19 retrainings for 95%.

*Conformal risk control* (Angelopoulos, Bates, Fisch, Lei and Schuster 2024). Let
:math:`L_j(t) \in [0, 1]` be the loss of retraining j at size t, which does not increase with t. For the
smallest t with

.. math::
    \frac{N}{N + 1} \cdot \frac1N \sum_{j=1}^{N} L_j(t) + \frac{1}{N + 1} \le \alpha

the expected loss of the next retraining is at most :math:`\alpha`. Losses that increase somewhere are
replaced with their largest value from t on, which does not increase.

*Clopper and Pearson* (1934). If k of n independent retrainings succeed, the chance of a success is at
least the p that solves :math:`P(\mathrm{Bin}(n, p) \ge k) = 1 - \gamma`, with confidence
:math:`\gamma`: the p are wrong in at most a share :math:`1 - \gamma` of such experiments.

A *promise* here is a counterfactual of the current model: "reach this, and you are accepted". A
retrained model *honours* it if it gives the target class. Only its predictions are needed. The model may
therefore be trained from scratch, with other scalers, or with another architecture.

*Choosing.* The loss of retraining j at size t (all networks within delta, or a shift set scaled by t) is
the share of the promises that it breaks, 0 if there are none. Risk control bounds the expected loss of
the next retraining at the smallest size whose bound is within the risk. The sizes are fixed before any
retrained model is read.

*Reporting.* The models that chose the size cannot test it. On other models, drawn independently, the
number that honour every promise and the number that honour one promise are binomial. Clopper and Pearson
bound their chances from below, exactly.

Both statements differ from the theorem about the shift set. The theorem covers every network of the set,
these statements cover networks that a procedure draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv

from proplace.core.errors import InputError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from proplace.core.network import Array

    Honours = npt.NDArray[np.bool_]
    """True if a model (row) honours a promise (column)."""


def probability(name: str, value: float) -> Fraction:
    """Return a number between 0 and 1 as a fraction of its digits, 0.95 as 95/100."""
    try:
        written = Fraction(repr(float(value)))
    except (TypeError, ValueError):
        written = Fraction(0)
    if isinstance(value, bool) or not 0 < written < 1:
        raise OptionError(
            f"{name} must lie between 0 and 1, such as 0.95, not {value!r}", name=name, value=value
        )
    return written


def quantile_index(n: int, coverage: Fraction) -> int:
    """Return the index, from below and from 1, of the score that bounds the next one; n + 1 if none."""
    return math.ceil((n + 1) * coverage)


def needed(coverage: Fraction) -> int:
    """Return the smallest number of scores for a coverage."""
    return math.ceil(coverage / (1 - coverage))


def calibration_size(n: int, coverage: Fraction, shape: int) -> int:
    """Return how many of n retrainings give the size; at least ``shape`` others give the shape.

    The result is at most about half of n. A number m of scores covers a multiple of 1 / (m + 1), so the
    m with the smallest excess coverage is taken, and the largest of these. 0 if n is too small.
    """
    least, most = needed(coverage), n - shape
    if most < least:
        return 0
    numbers = range(least, max(least, min(most, n // 2)) + 1)
    return min(numbers, key=lambda m: (Fraction(quantile_index(m, coverage), m + 1), -m))


def monotone(losses: Array) -> Array:
    """Return the largest loss from each size on (rows: retrainings, columns: increasing sizes)."""
    largest: Array = np.maximum.accumulate(losses[:, ::-1], axis=1)[:, ::-1]
    return largest


def risk_bound(losses: Array) -> Array:
    """Bound the expected loss of the next retraining at each size (rows: retrainings)."""
    n = len(losses)
    bound: Array = (losses.sum(axis=0) + 1.0) / (n + 1)
    return bound


def needed_for_risk(risk: Fraction) -> int:
    """Return the smallest number N of retrainings for a risk: without loss the bound is 1 / (N + 1)."""
    return math.ceil(1 / risk) - 1


def clopper_pearson_lower(successes: int, n: int, confidence: float) -> float:
    """Return Clopper and Pearson's lower bound on the chance of a success, from k successes in n."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, n - successes + 1, 1.0 - confidence))


@dataclass(frozen=True)
class HeldOutResult:
    """Share of promises that held-out models honour. These models did not choose delta.

    Attributes
    ----------
    models, promises
        Number of models and of promises.
    share
        Measured share of pairs of a model and a promise that are honoured.
    whole
        Number of models that honour every promise.
    least_each
        Lower bound, at the confidence, on the share of future models that honour any single promise:
        the bound for the promise that the fewest models honour.
    least_whole
        Lower bound, at the confidence, on the share of future models that honour every promise.
    confidence
        The confidence of both bounds.
    """

    models: int
    promises: int
    share: float
    whole: int
    least_each: float
    least_whole: float
    confidence: float

    @classmethod
    def of(cls, honours: Honours, confidence: float) -> HeldOutResult | None:
        """Count honoured promises. None without models or without promises."""
        models, promises = honours.shape
        if not honours.size:
            return None
        whole = int(honours.all(axis=1).sum())
        fewest = int(honours.sum(axis=0).min())
        return cls(
            models,
            promises,
            float(honours.mean()),
            whole,
            clopper_pearson_lower(fewest, models, confidence),
            clopper_pearson_lower(whole, models, confidence),
            confidence,
        )

    def __str__(self) -> str:
        """Describe the result in one sentence."""
        return (
            f"Of {self.models} other retrained models, which did not choose it, {self.whole} "
            f"honour{'s' * (self.whole == 1)} all {self.promises} promises and {self.share:.1%} of the "
            f"promises are honoured on average: with {self.confidence:.0%} confidence any one promise "
            f"is honoured by at least {_down(self.least_each)} of future models, and all of them by at "
            f"least {_down(self.least_whole)}, if models are retrained independently and in the same "
            "way."
        )


def bounds(honours: Sequence[Honours]) -> Array:
    """Bound the expected share of broken promises at each of some increasing sizes."""
    losses = [1.0 - h.mean(axis=1) if h.size else np.zeros(len(h)) for h in honours]
    return risk_bound(monotone(np.array(losses).T))


def check_enough(models: int, risk: float) -> None:
    """Raise if so few models cannot satisfy a risk."""
    least = needed_for_risk(probability("risk", risk))
    if models < least:
        reach = math.ceil(1000 / (models + 1)) / 1000
        are = "models are" if models != 1 else "model is"
        raise InputError(
            f"{models} retrained {are} too few for a risk of {risk:g}, which needs at least {least}. "
            f"Give more models, or use risk={reach:g}.",
            name="risk",
            value=risk,
        )


def _down(share: float) -> str:
    """Write a percentage rounded down, because a lower bound must not be overstated."""
    return f"{math.floor(1000.0 * share) / 10.0:.1f}%"
