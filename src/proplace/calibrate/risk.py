r"""What retrained models did to the promises made with a set of networks, and what follows.

A *promise* is an answer: "reach this, and you are accepted". The model in use makes one to each of some
people, at each size t of a nested family of sets: all networks within delta, or a box scaled by t. A
retrained model *honours* a promise if it gives the answer the wanted class; nothing but its predictions
is needed, so it may have been trained from scratch, with other scalers, or be of another architecture.

*Choosing.* The loss of retraining j at size t is the share of the promises that it breaks, 0 where there
are none. :mod:`proplace.calibrate.conformal` bounds the expected loss of the next retraining at the
smallest size whose bound is within the risk. The sizes are fixed before any retrained model is read.

*Reporting.* The models that chose the size are no witnesses for it. On others, drawn independently, the
number that honour every promise, and the number that honour each single one, are binomial, and
:func:`~proplace.calibrate.conformal.least_chance` bounds their chances from below, exactly.

Neither is the theorem about the set: that one speaks of every network inside, this of networks drawn by
a procedure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.calibrate.conformal import (
    least_chance,
    needed_for_risk,
    never_growing,
    probability,
    risk_bound,
)
from proplace.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from proplace.core.network import Array

    Honours = npt.NDArray[np.bool_]
    """Which model (row) honours which promise (column)."""


@dataclass(frozen=True)
class Unseen:
    """What models that had no part in the choice did to the promises.

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
    def of(cls, honours: Honours, confidence: float) -> Unseen | None:
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
