"""Arrays behind the pictures: a plane through the answer, and curves.

All points of the plane have the categories of the answer. Two features span it, so both axes have
original units. An answer that changes more numbers has no plane. Other points are shown at their
orthogonal projections. The borders are those *on* the plane, so a point far from it may seem to lie on
the wrong side of a border.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial import ConvexHull, QhullError

from proplace.certification import certify
from proplace.core.errors import OptionError
from proplace.core.guarantee import Guarantee, Member
from proplace.core.shifts import Shifts
from proplace.explain.answer import Attempt
from proplace.explain.proplace import DEFAULT_MARGIN, SLACK
from proplace.explain.words import is_sparse
from proplace.region.pieces import box_pieces, hull_pieces
from proplace.search import search
from proplace.search.problem import SearchProblem

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.explain.results import Explanation, Setting
    from proplace.region.pieces import ConvexPiece
    from proplace.schema import Schema

_PAD = 0.14  # of the width of what is shown, on each side
_SECONDS = 20.0  # for the robust set of one picture, undecided points are shown as not robust


_NO_NUMBER = "it would need two numbers, and all features are categories"
_READ_BACK = "a folder of results does not hold the people around an answer"
_MANY_NUMBERS = "the answer changes more than two numbers"
_CATEGORIES_ALONE = "the answer changes categories alone, which have no place on a map"


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane through a row along two of its encoded columns."""

    origin: Array
    columns: tuple[int, int]

    def coordinates(self, rows: Array) -> Array:
        """Return the coordinates of the orthogonal projections of rows, shape (n, 2)."""
        columns = list(self.columns)
        return (np.atleast_2d(rows) - self.origin)[:, columns]

    def rows(self, coordinates: Array) -> Array:
        """Return the rows at some coordinates."""
        coordinates = np.atleast_2d(coordinates)
        rows = np.repeat(self.origin[None], len(coordinates), axis=0)
        rows[:, list(self.columns)] += coordinates
        return rows

    def holds(self, rows: Array) -> bool:
        """Test if all rows lie on the plane, up to rounding."""
        return bool(np.abs(self.rows(self.coordinates(rows)) - rows).max() <= 1e-9)


@dataclass(frozen=True, eq=False)
class RegionPicture:
    """The plausible region of one person on a plane.

    Attributes
    ----------
    plane
        The plane of the picture.
    a, b
        Coordinates of the grid, along the plane's two directions.
    margin
        The network's margin on the grid, shape (len(b), len(a)).
    worst
        The margin of the worst network found in the shift set, >= 0 only for robust points.
    person, answer, neighbours
        Coordinates of the person in the categories of the answer, of the answer, and of the
        neighbours with these categories.
    moved
        True if the person has other categories today.
    projected
        True if some neighbour lies off the plane and is shown at its projection.
    other
        Coordinates of one more point on the plane, if there is one.
    hull
        Corners of the projected hull, in order, or the two ends of a flat one.
    """

    plane: Plane
    a: Array
    b: Array
    margin: Array
    worst: Array
    person: Array
    answer: Array
    neighbours: Array
    moved: bool
    projected: bool
    other: Array | None
    hull: Array


def region_picture(e: Explanation, *, also: Array | None = None, size: int = 81) -> RegionPicture:
    """Evaluate the network and the robust test on a plane around an answer.

    Parameters
    ----------
    e
        An explanation with an answer.
    also
        One more row to show, if it lies on the plane.
    size
        Points of the grid in each direction.
    """
    setting = needed(e)
    assert e.encoded_original is not None and e.encoded_counterfactual is not None  # noqa: S101, PT018  (checked above)
    why_not = no_region(e)
    if why_not:
        raise OptionError(f"There is no picture of the region: {why_not}.")
    # a search for few changes only starts from rows: it does not stay between them
    near = None if is_sparse(e) else e.neighbours
    neighbours = e.encoded_counterfactual[None][:0] if near is None else near
    plane = plane_of(setting.schema, e.encoded_original, e.encoded_counterfactual, neighbours)
    profile = setting.schema.profile_columns
    neighbours = neighbours[
        (neighbours[:, profile] == e.encoded_counterfactual[profile]).all(axis=1)
    ]
    moved = bool((e.encoded_original[profile] != e.encoded_counterfactual[profile]).any())
    vertices = neighbours if moved else np.vstack([e.encoded_original, neighbours])
    person, answer = (
        plane.coordinates(e.encoded_original)[0],
        plane.coordinates(e.encoded_counterfactual)[0],
    )
    dots = plane.coordinates(neighbours) if len(neighbours) else np.empty((0, 2))
    hull = outline(plane.coordinates(vertices)) if len(vertices) else answer[None]
    seen, other = np.vstack([person, answer, hull, dots]), None
    if also is not None and plane.holds(also):
        other = plane.coordinates(also)[0]
        seen = np.vstack([seen, other])
    a, b = (np.linspace(*ends, size) for ends in _frame(setting, plane, seen))
    rows = plane.rows(np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2))
    current = setting.current
    report = certify(current.network, rows, current.shifts, e.target, time_limit=_SECONDS)
    worst = np.where(report.undecided, np.minimum(report.upper, -1e-12), report.upper)
    shape = (len(b), len(a))
    return RegionPicture(
        plane,
        a,
        b,
        setting.current.network.margin(rows, e.target).reshape(shape),
        worst.reshape(shape),
        person,
        answer,
        dots,
        moved,
        bool(len(dots)) and not plane.holds(neighbours),
        other,
        hull,
    )


def no_region(e: Explanation) -> str:
    """Return the reason why an answer has no map of its region, empty if it has one."""
    setting = needed(e)
    assert e.encoded_original is not None and e.encoded_counterfactual is not None  # noqa: S101, PT018  (checked above)
    if setting.distance is None:
        return _READ_BACK
    numbers = np.setdiff1d(np.arange(len(e.encoded_original)), setting.schema.profile_columns)
    if len(numbers) < 2:
        return "it would need two numbers, and there is only one" if len(numbers) else _NO_NUMBER
    changed = int((e.encoded_original[numbers] != e.encoded_counterfactual[numbers]).sum())
    if changed > 2:
        return _MANY_NUMBERS
    return "" if changed else _CATEGORIES_ALONE


def plane_of(schema: Schema, x: Array, point: Array, neighbours: Array) -> Plane:
    """Choose the plane: the numbers that change, and those in which the neighbours vary most."""
    profile = schema.profile_columns
    start = x.copy()
    start[profile] = point[profile]
    spread = np.ptp(np.vstack([start, point, neighbours]), axis=0)
    numbers = np.setdiff1d(np.arange(len(x)), profile)
    first, second = sorted(numbers, key=lambda j: (start[j] == point[j], -spread[j], j))[:2]
    return Plane(start, (int(first), int(second)))


def outline(points: Array) -> Array:
    """Return the corners of the convex hull of points in order, or the two ends of a flat hull."""
    try:
        return points[ConvexHull(points).vertices]
    except QhullError:
        centred = points - points.mean(axis=0)
        along = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
        return points[[int(along.argmin()), int(along.argmax())]]


def worst_margins(e: Explanation, rows: Array, factors: Array) -> Array:
    """Return the worst-case margins for the scaled shift set, shape (len(factors), len(rows)).

    The values are proved lower bounds, exact unless a network is so large that time runs out.
    """
    setting = needed(e)
    return np.array(
        [
            certify(
                setting.current.network,
                rows,
                setting.current.shifts.scaled(float(factor)),
                e.target,
                exact_margin=True,
                time_limit=_SECONDS,
            ).lower
            for factor in factors
        ]
    )


def plain_nearest(e: Explanation) -> Array | None:
    """Return the nearest point of the same region that the network accepts today, robust or not.

    For few changes, the region holds all values within ranges and rules, unless they have too many
    combinations of categories. None if the region is not known, as in results read from a folder.
    """
    setting = needed(e)
    if setting.distance is None:
        return None
    assert e.encoded_original is not None  # noqa: S101  (there is an answer)
    schema, near = setting.schema, e.neighbours
    schema, person = schema.widened(e.encoded_original), schema.person(e.encoded_original)
    pieces: list[ConvexPiece] | tuple[ConvexPiece, ...] = ()
    hulls: tuple[ConvexPiece, ...] = ()
    if near is None or not len(near) or is_sparse(e):
        try:
            pieces = list(box_pieces(schema, person, e.encoded_original, e.encoded_original))
        except OptionError:  # too many combinations of categories
            pieces = ()
    if not pieces and near is not None:
        hulls = tuple(hull_pieces(schema, person, near))
        pieces = hulls
    near = near if hulls and near is not None else e.encoded_original[None][:0]
    net = setting.current.network
    problem = SearchProblem(
        Guarantee((Member(net, Shifts.of(net, 0.0), margin=DEFAULT_MARGIN),)),
        e.target,
        e.encoded_original,
        setting.distance,
        SLACK,
    )
    found = search(problem, pieces, deadline=time.monotonic() + _SECONDS)
    if found.point is None:
        return None
    written = Attempt(
        problem, person, near, found, schema.grids(e.encoded_original), hulls
    ).written(schema)
    near_by = found.point if written is None else written.point
    point: Array = schema.canonical(near_by, person=e.encoded_original)[0]
    return point if setting.current.network.predict(point)[0] == e.target else None


def needed(e: Explanation) -> Setting:
    """Return the setting of an explanation with an answer. Raise if there is nothing to draw."""
    if e.setting is None:
        raise OptionError(
            "This explanation has no network. Draw explanations that an explainer returned.",
            name="network",
        )
    if e.encoded_original is None or e.encoded_counterfactual is None:
        raise OptionError(f"There is no answer to draw for {e.index!r}: {e.reason or e.status}.")
    return e.setting


def _frame(setting: Setting, plane: Plane, seen: Array) -> list[tuple[float, float]]:
    """Return the ends of the two axes: everything in sight, within the ranges of the features."""
    low, high = seen.min(axis=0), seen.max(axis=0)
    wide = np.maximum(high - low, 0.25 * max(float((high - low).max()), 1e-6))
    middle = (low + high) / 2.0
    low, high = (
        np.minimum(low, middle - wide / 2) - _PAD * wide,
        np.maximum(high, middle + wide / 2) + _PAD * wide,
    )
    columns = list(plane.columns)
    origin, room = plane.origin[columns], 0.03 * (high - low)
    low = np.maximum(low, setting.schema.lower[columns] - origin - room)
    high = np.minimum(high, setting.schema.upper[columns] - origin + room)
    return [(float(low[i]), float(high[i])) for i in (0, 1)]
