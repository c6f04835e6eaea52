r"""Distances between a person and a candidate, over encoded columns.

.. math::
    \text{L1:}\ \sum_i w_i |x'_i - x_i|, \qquad
    \text{LInf:}\ \max_i w_i |x'_i - x_i|, \qquad
    \text{L2:}\ \sqrt{\textstyle\sum_i w_i (x'_i - x_i)^2} .

The default ``"l1"`` has :math:`w_i = 1/d`: the mean absolute difference, the paper's normalised L1.
``"mad"`` has :math:`w_i = 1 / (d\, \mathrm{MAD}_i)` with the median absolute deviation of the
training rows. Any other convex distance can be given as a value and a subgradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from proplace.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.network import Array

Name = Literal["l1", "l2", "linf", "mad"]


@runtime_checkable
class Distance(Protocol):
    """A convex distance from a person ``x``."""

    def between(self, x: Array, X: Array) -> Array:
        """Distances from ``x`` to each row of ``X``."""

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient in ``point`` of the distance from ``x``."""


@dataclass(frozen=True, eq=False)
class L1:
    """Weighted L1 distance."""

    weights: Array

    def between(self, x: Array, X: Array) -> Array:
        """Distances from ``x`` to each row of ``X``."""
        result: Array = np.abs(X - x) @ self.weights
        return result

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient in ``point`` of the distance from ``x``."""
        result: Array = self.weights * np.sign(point - x)
        return result


@dataclass(frozen=True, eq=False)
class LInf:
    """Weighted L-infinity distance."""

    weights: Array

    def between(self, x: Array, X: Array) -> Array:
        """Distances from ``x`` to each row of ``X``."""
        result: Array = (np.abs(X - x) * self.weights).max(axis=-1)
        return result

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient in ``point`` of the distance from ``x``."""
        difference = point - x
        column = int((np.abs(difference) * self.weights).argmax())
        result = np.zeros_like(point)
        result[column] = self.weights[column] * np.sign(difference[column])
        return result


@dataclass(frozen=True, eq=False)
class L2:
    """Weighted Euclidean distance."""

    weights: Array

    def between(self, x: Array, X: Array) -> Array:
        """Distances from ``x`` to each row of ``X``."""
        result: Array = np.sqrt((X - x) ** 2 @ self.weights)
        return result

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient in ``point`` of the distance from ``x``."""
        difference = self.weights * (point - x)
        size = float(np.sqrt(difference @ (point - x)))
        return difference / size if size > 0.0 else np.zeros_like(point)


@dataclass(frozen=True, eq=False)
class Convex:
    """Any convex distance, given as functions of ``(x, point)`` for one point each.

    ``value`` must be convex in ``point`` and ``slope`` one of its subgradients there.
    """

    value: Callable[[Array, Array], float]
    slope: Callable[[Array, Array], Array]

    def between(self, x: Array, X: Array) -> Array:
        """Distances from ``x`` to each row of ``X``."""
        if X.ndim == 1:
            return np.float64(self.value(x, X))  # type: ignore[return-value]
        return np.array([float(self.value(x, row)) for row in X])

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient in ``point`` of the distance from ``x``."""
        return np.asarray(self.slope(x, point), dtype=np.float64)


def name_of(distance: object) -> str:
    """Name a distance; one of the user's own by its class."""
    return distance if isinstance(distance, str) else type(distance).__qualname__


def resolve(
    distance: Name | Distance,
    columns: int,
    X: Array,
    weights: npt.ArrayLike | None = None,
    units: Array | None = None,
) -> Distance:
    """Return the distance meant by a name, for rows of ``columns`` columns and training rows ``X``.

    ``weights``, one number >= 0 per column, replace the 1/columns of the named distances. ``units``
    say how much of each column counts as one.
    """
    if not isinstance(distance, str):
        if not isinstance(distance, Distance):
            raise OptionError(
                "distance must be 'l1', 'l2', 'linf', 'mad' or an object with between() and "
                f"subgradient(), not {distance!r}"
            )
        if weights is not None:
            raise OptionError("weights go with a named distance; this distance has its own")
        return distance
    w = np.full(columns, 1.0 / columns) if weights is None else _weights(weights, columns)
    if distance == "mad":
        return L1(w / _mad(X))
    kinds: dict[str, type[L1 | L2 | LInf]] = {"l1": L1, "l2": L2, "linf": LInf}
    if distance not in kinds:
        raise OptionError(f"distance must be 'l1', 'l2', 'linf' or 'mad', not {distance!r}")
    if distance == "linf" and weights is None:
        w = np.ones(columns)
    if units is not None:
        w = w / (units**2 if distance == "l2" else units)
    return kinds[distance](w)


def _weights(weights: npt.ArrayLike, columns: int) -> Array:
    try:
        w = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"weights must be numbers: {error}") from None
    if w.shape != (columns,) or not np.isfinite(w).all() or (w < 0.0).any() or not w.any():
        raise OptionError(
            f"weights must be {columns} finite numbers >= 0, not all 0 (one per encoded column)"
        )
    return w


def _mad(X: Array) -> Array:
    """Median absolute deviation per column; the mean one where that is 0, then 1."""
    difference = np.abs(X - np.median(X, axis=0))
    median, mean = np.median(difference, axis=0), difference.mean(axis=0)
    return np.where(median > 0.0, median, np.where(mean > 0.0, mean, 1.0))
