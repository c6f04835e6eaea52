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

A *promise* here is a counterfactual of the current model: "reach this, and you are accepted". A
retrained model *honours* it if it gives the target class. Only its predictions are needed, so it may
have been trained from scratch, with other scalers, or have another architecture.

*Choosing.* The loss of retraining j at size t (all networks within delta, or a shift set scaled by t) is
the share of the promises that it breaks, 0 if there are none. Risk control bounds the expected loss of
the next retraining at the smallest size whose bound is within the risk. The sizes are fixed before any
retrained model is read.

*Reporting.* The models that chose the size cannot test it. On other models, drawn independently, the
number that honour every promise and the number that honour one promise are binomial. Clopper and Pearson
bound their chances from below, exactly.

Neither is the theorem about the shift set. The theorem covers every network inside, this covers networks
drawn by a procedure.
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
    """Which model (row) honours which promise (column)."""


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
    """Return Clopper and Pearson's lower bound on the chance of a success, from k successes in n."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, n - successes + 1, 1.0 - confidence))


@dataclass(frozen=True)
class HeldOutResult:
    """Share of promises that held-out models honour; these models had no part in the choice.

    Attributes
    ----------
    models, promises
        How many of each.
    share
        Share of pairs of a model and a promise that are honoured: as measured.
    whole
        How many of the models honour every promise.
    least_each
        Each single promise is honoured by at least this share of future models, with the confidence:
        the bound of the promise that the fewest honour.
    least_whole
        At least this share of future models honour every promise, with the confidence.
    confidence
        As asked for.
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
        """Count; None without models or without promises."""
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
            least_chance(fewest, models, confidence),
            least_chance(whole, models, confidence),
            confidence,
        )

    def __str__(self) -> str:
        """One sentence."""
        return (
            f"Of {self.models} other retrained models, which had no part in the choice, {self.whole} "
            f"honour{'s' * (self.whole == 1)} all {self.promises} promises and {self.share:.1%} of the "
            f"promises are honoured on average: with {self.confidence:.0%} confidence any one promise "
            f"is honoured by at least {_down(self.least_each)} of future models, and all of them by at "
            f"least {_down(self.least_whole)}, if models are retrained independently and in the same "
            "way."
        )


def bounds(honours: Sequence[Honours]) -> Array:
    """Bound on the expected share of broken promises at each of some growing sizes."""
    losses = [1.0 - h.mean(axis=1) if h.size else np.zeros(len(h)) for h in honours]
    return risk_bound(never_growing(np.array(losses).T))


def check_enough(models: int, risk: float) -> None:
    """Refuse a risk that no choice by so few models keeps."""
    least = needed_for_risk(probability("risk", risk))
    if models < least:
        reach = math.ceil(1000 / (models + 1)) / 1000
        are = "models are" if models != 1 else "model is"
        raise InputError(
            f"{models} retrained {are} too few to choose by for a risk of {risk:g}, which needs at "
            f"least {least}; {models} allow risk={reach:g}",
            name="risk",
            value=risk,
        )


def _down(share: float) -> str:
    """A percentage, rounded down: a bound must not be said to be better than it is."""
    return f"{math.floor(1000.0 * share) / 10.0:.1f}%"
