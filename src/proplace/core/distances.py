r"""The distance between a person and a candidate, over encoded columns: a weighted L1 norm.

.. math::
    \sum_i w_i |x'_i - x_i|

By default :math:`w_i = 1/d`: the mean absolute difference, the paper's normalised L1. ``"mad"``
uses :math:`w_i = 1 / (d\, \mathrm{MAD}_i)` with the median absolute deviation of the training rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from proplace.core.network import Array

Weights = Mapping[str, float] | Literal["mad"]
"""Factors by feature name, or the reciprocal spreads of the columns."""


@dataclass(frozen=True, eq=False)
class L1:
    """Weighted L1 distance."""

    weights: Array

    def between(self, x: Array, X: Array) -> Array:
        """Return the distances from ``x`` to each row of ``X``."""
        result: Array = np.abs(X - x) @ self.weights
        return result

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient at ``point`` of the distance from ``x``."""
        result: Array = self.weights * np.sign(point - x)
        return result


def name_of(weights: Weights | None) -> str:
    """Name the distance that has these weights."""
    if weights == "mad":
        return "mad"
    return "weighted l1" if weights else "l1"


def mad_weights(X: Array) -> Array:
    """Return the weights of the columns by their median absolute deviations over training rows."""
    columns = X.shape[1]
    return np.full(columns, 1.0 / columns) / _mad(X)


def _mad(X: Array) -> Array:
    """Return the median absolute deviation per column. Zeros become the mean one, or else 1."""
    difference = np.abs(X - np.median(X, axis=0))
    median, mean = np.median(difference, axis=0), difference.mean(axis=0)
    return np.where(median > 0.0, median, np.where(mean > 0.0, mean, 1.0))
