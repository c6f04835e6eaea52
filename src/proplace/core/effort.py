r"""Effort: what changes cost a person, feature by feature.

With :math:`t_j = x'_j - x_j` the change of column :math:`j`,

.. math::
    \mathrm{effort}(x, x') = \sum_j c_j(t_j) + \sum_g e_g \max_{i \in g} |t_i| .

A curve :math:`c_j` is piecewise linear, 0 at :math:`t = 0`, and does not fall as :math:`|t|` grows;
more and less may cost different efforts. The columns :math:`g` of one category cost :math:`e_g` once,
whatever it changes to. Where the curves are convex, so is the sum, and it is a distance. Else its convex
envelope is one, which is nowhere larger: each side of a curve becomes the largest convex one below it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array

_FALLS = 1e-9  # relative: slopes that fall by so little are those of rounding


class Point(NamedTuple):
    """The size of a change, and its effort."""

    change: float
    effort: float


Side = tuple[Point, ...]
"""Points of a curve from no change on, one way: the first is (0, 0)."""

_ZERO = Point(0.0, 0.0)


@dataclass(frozen=True)
class Curve:
    """The effort of a change of one number; beyond its last points it goes on with their slopes.

    Attributes
    ----------
    less, more
        The points by the size of the change, where the number falls and where it rises.
    """

    less: Side
    more: Side

    @classmethod
    def of(cls, effort: float | Sequence[Sequence[float]]) -> Curve:
        """Make a curve of the effort of one unit, or of points (change, effort).

        Changes below 0 are for less, those above for more; a side without points is like the other.

        Examples
        --------
        >>> Curve.of([(0, 0), (10, 1), (20, 4), (-10, 3)]).more
        (Point(change=0.0, effort=0.0), Point(change=10.0, effort=1.0), Point(change=20.0, effort=4.0))

        Raises
        ------
        ValueError
            These are no points of a curve of effort; the text says why.
        """
        if isinstance(effort, (int, float)):
            effort = [(1.0, effort)]
        points = sorted(Point(float(change), float(cost)) for change, cost in effort)
        if not np.isfinite(points).all():
            raise ValueError("the points must be finite numbers")
        for one, other in itertools.pairwise(points):
            if one.change == other.change:
                raise ValueError(f"two points have the change {one.change:g}")
        if any(point.change == 0.0 and point.effort != 0.0 for point in points):
            raise ValueError("no change takes no effort: the curve starts at (0, 0)")
        less = _side(Point(-change, cost) for change, cost in points[::-1] if change < 0.0)
        more = _side(point for point in points if point.change > 0.0)
        if len(less) == len(more) == 1:
            raise ValueError("a curve needs a point beside (0, 0), such as (1000, 2)")
        return cls(less if len(less) > 1 else more, more if len(more) > 1 else less)

    def in_units(self, unit: float) -> Curve:
        """The same curve where changes are counted in units."""
        return Curve(
            *(tuple(Point(t / unit, c) for t, c in side) for side in (self.less, self.more))
        )

    @property
    def convex(self) -> bool:
        """Whether each further step takes at least as much effort as the one before."""
        return all(
            b >= a - _FALLS * max(abs(a), abs(b))
            for side in (self.less, self.more)
            for a, b in itertools.pairwise(_slopes(side))
        )

    def envelope(self, less: float, more: float) -> Curve:
        """The largest convex curve that is nowhere above this one for changes from -less to more."""
        return Curve(_envelope(self.less, less), _envelope(self.more, more))

    def at(self, change: float) -> float:
        """The effort of a change."""
        return _at(self.more, change) if change > 0.0 else _at(self.less, -change)

    @property
    def kinks(self) -> tuple[Array, Array]:
        """Changes at which the slope changes, and the slopes between them, from less to more."""
        breaks = [*(-p.change for p in self.less[-2:0:-1]), *(p.change for p in self.more[:-1])]
        slopes = [*(-s for s in _slopes(self.less)[::-1]), *_slopes(self.more)]
        return np.array(breaks), np.array(slopes)


def _side(points: Any) -> Side:
    side = (_ZERO, *points)
    for one, other in itertools.pairwise(side):
        if other.effort < one.effort:
            raise ValueError(
                f"a larger change takes no less effort, but {other.change:g} takes "
                f"{other.effort:g} and {one.change:g} takes {one.effort:g}"
            )
    return side


def _slopes(side: Side) -> list[float]:
    return [(b.effort - a.effort) / (b.change - a.change) for a, b in itertools.pairwise(side)]


def _at(side: Side, change: float) -> float:
    """Effort of a change, one way."""
    total = 0.0
    for n, (a, slope) in enumerate(zip(side, _slopes(side), strict=False)):
        end = side[n + 1].change if n + 2 < len(side) else np.inf
        total += slope * max(min(change, end) - a.change, 0.0)
    return total


def _envelope(side: Side, reach: float) -> Side:
    """The lower convex hull of the points up to ``reach``."""
    if reach <= 0.0:
        return (_ZERO, Point(1.0, 0.0))
    points = [p for p in side if p.change < reach] + [Point(reach, _at(side, reach))]
    hull: list[Point] = []
    for p in points:
        while len(hull) >= 2:
            (t, c), (u, d) = hull[-2:]
            if (d - c) * (p.change - t) < (p.effort - c) * (u - t):
                break
            hull.pop()
        hull.append(p)
    return tuple(hull)


@dataclass(frozen=True, eq=False)
class Efforts:
    """The effort between a person and others: a curve for each column, and one number for a category.

    Attributes
    ----------
    curves
        One for each encoded column, in encoded units; flat for the columns of categories.
    categories
        First column, end of the columns, and effort of each category.
    """

    curves: tuple[Curve, ...]
    categories: tuple[tuple[int, int, float], ...] = ()

    @cached_property
    def _segments(self) -> tuple[Array, Array, Array]:
        """Start, length and slope of the segments, shape (2, columns, segments): less, then more."""
        sides = [[curve.less for curve in self.curves], [curve.more for curve in self.curves]]
        most = max(len(side) - 1 for row in sides for side in row)
        start, length, slope = np.zeros((3, 2, len(self.curves), most))
        for i, row in enumerate(sides):
            for j, side in enumerate(row):
                n = len(side) - 1
                changes = np.array([p.change for p in side])
                start[i, j, :n], slope[i, j, :n] = changes[:-1], _slopes(side)
                length[i, j, :n] = np.append(np.diff(changes)[:-1], np.inf)
        return start, length, slope

    def between(self, x: Array, X: Array) -> Array:
        """Efforts from ``x`` to each row of ``X``."""
        start, length, slope = self._segments
        change = X - x
        total = np.zeros(X.shape[:-1])
        for i, size in enumerate((np.maximum(-change, 0.0), np.maximum(change, 0.0))):
            parts = np.clip(size[..., None] - start[i], 0.0, length[i])
            total = total + (parts * slope[i]).sum(axis=(-2, -1))
        result: Array = total + self.of_categories(x, X)
        return result

    def of_categories(self, x: Array, X: Array) -> Array:
        """The part that changed categories take."""
        result = np.zeros(X.shape[:-1])
        for first, end, effort in self.categories:
            result = result + effort * np.abs(X - x)[..., first:end].max(axis=-1)
        return result

    def subgradient(self, x: Array, point: Array) -> Array:
        """Return a subgradient in ``point`` of a convex effort from ``x``."""
        start, length, slope = self._segments
        change = point - x
        size = np.array([np.maximum(-change, 0.0), np.maximum(change, 0.0)])[..., None]
        here = (start < size) & (size <= start + length)
        less, more = (slope * here).sum(axis=-1)
        result: Array = more - less
        for first, end, effort in self.categories:
            part = change[first:end]
            column = int(np.abs(part).argmax())
            result[first + column] = effort * np.sign(part[column])
        return result

    @property
    def steepest(self) -> float:
        """The largest effort of an encoded unit, or of another category."""
        return max(float(self._segments[2].max()), *(e for *_, e in self.categories), 0.0)

    @cached_property
    def convex(self) -> bool:
        """Whether this is a distance as it is."""
        return all(curve.convex for curve in self.curves)

    def distance(self, x: Array, low: Array, high: Array) -> Efforts:
        """A convex distance from a person that is nowhere larger: for points between low and high.

        It is this effort itself where that is convex.
        """
        if self.convex:
            return self
        curves = tuple(
            curve if curve.convex else curve.envelope(float(x[j] - low[j]), float(high[j] - x[j]))
            for j, curve in enumerate(self.curves)
        )
        return Efforts(curves, self.categories)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        sides = [[curve.less, curve.more] for curve in self.curves]
        return {
            "curves": [[[list(p) for p in side] for side in both] for both in sides],
            "categories": [list(category) for category in self.categories],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Efforts:
        """Read what :meth:`to_dict` has made."""
        curves = tuple(
            Curve(*(_side(Point(float(t), float(c)) for t, c in side[1:]) for side in both))
            for both in fields["curves"]
        )
        categories = tuple((int(a), int(b), float(e)) for a, b, e in fields["categories"])
        return cls(curves, categories)
