"""Means with intervals, paired differences and counts of wins over people and seeds.

Intervals are percentiles of a bootstrap that draws seeds and then people within each seed, since the
people of one seed share a network. Differences are paired: each person is compared with the same person
under another method.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from proplace.core.network import Array

DRAWS = 1000
CONFIDENCE = 0.95
TIE = 1e-6  # largest difference of a tie
_DIGITS = 9  # to which means are rounded: the digits after them depend on the processor


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval, NaN without any value."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A paired comparison of two methods.

    Attributes
    ----------
    change
        Mean difference, first method minus second.
    wins, ties, losses
        Number of people for whom the first method has the smaller, the same and the larger value.
    """

    change: Interval
    wins: int
    ties: int
    losses: int


def matrix(people: pd.DataFrame, method: str, measure: str) -> Array:
    """Return a measure as seeds by people, with NaN for a missing value.

    Parameters
    ----------
    people
        Rows of one data set and network (see :class:`proplace.experiment.run.Results`).
    method, measure
        A method and a column.
    """
    part = people[people["method"] == method]
    seeds = np.unique(people["seed"])
    table = np.full((len(seeds), int(people["person"].max()) + 1), np.nan)
    table[np.searchsorted(seeds, part["seed"]), part["person"]] = part[measure]
    return table


def interval(values: Array) -> Interval:
    """Return the mean of seeds by people with its interval. People without any value are left out.

    Examples
    --------
    >>> import numpy as np
    >>> interval(np.array([[1.0, 1.0], [3.0, np.nan]]))
    Interval(mean=1.666666667, low=1.0, high=3.0)
    """
    values = values[:, np.isfinite(values).any(axis=0)]
    if not values.size:
        return Interval(np.nan, np.nan, np.nan)
    drawn = values.ravel()[_draws(*values.shape)]
    known = np.isfinite(drawn)
    with np.errstate(invalid="ignore"):  # a draw may have no value
        means = np.where(known, drawn, 0.0).sum(axis=1) / known.sum(axis=1)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.nanpercentile(means, [tail, 100.0 - tail])
    return Interval(*(round(float(x), _DIGITS) for x in (_mean(values), low, high)))


@lru_cache(maxsize=4)
def _draws(seeds: int, people: int) -> npt.NDArray[np.int64]:
    """Draw seeds, and people within each: positions in the table, one row per draw."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(seeds, size=(DRAWS, seeds, 1))
    columns = rng.integers(people, size=(DRAWS, seeds, people))
    return (chosen * people + columns).reshape(DRAWS, -1)


def difference(first: Array, second: Array) -> Difference:
    """Compare two methods on the people who have a value from both.

    Examples
    --------
    >>> import numpy as np
    >>> found = difference(np.array([[1.0, 2.0, 5.0]]), np.array([[1.0, 3.0, np.nan]]))
    >>> found.change.mean, found.wins, found.ties, found.losses
    (-0.5, 1, 1, 0)
    """
    change = first - second
    known = change[np.isfinite(change)]
    return Difference(
        interval(change),
        wins=int((known < -TIE).sum()),
        ties=int((np.abs(known) <= TIE).sum()),
        losses=int((known > TIE).sum()),
    )


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
