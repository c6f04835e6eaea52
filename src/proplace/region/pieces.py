r"""Convex pieces of the plausible region, and spaces of all inputs that a person may become.

A piece belongs to one *profile*: one combination of values of the binary and one-hot columns. Its
points are

.. math::
    x' = V^\top \lambda, \qquad \lambda \ge 0,\ \textstyle\sum_l \lambda_l = 1, \qquad
    l \le x' \le u, \qquad A x' \in [a, b] ,

with V the robust neighbours of that profile (and the person, in its own profile). A piece without
vertices is the whole box.

The same profiles give the *spaces* of all inputs that the person may become, inside the data or
not: products of intervals and choices, used to prove fixed predictions. The spaces contain every
legal row that respects the person's bounds and rules, and sometimes more, because they are
simplified: linear rules only tighten the bounds of single columns, grids with many values become
intervals, and rules between categories are dropped if there are too many combinations.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

from proplace.certification import Choice, Space
from proplace.core.errors import OptionError
from proplace.schema.person import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.schema.person import Person

    Mask = npt.NDArray[np.bool_]

IN_HULL = 1e-9
"""Distance from the hull, relative to its size, that counts as rounding."""

MOST_PROFILES = 64
"""Largest number of category combinations with a space of their own, if rules restrict them."""
MOST_VALUES = 64
"""Largest number of grid values that are listed. A longer grid becomes an interval."""
_ROUNDING = 1e-4  # size of a hull, relative to its values, below which rounding decides
_MOST_BOXES = 20_000  # combinations of categories that a region of boxes may have
_SWEEPS = 2  # rounds in which bounds follow from linear rules


@dataclass(frozen=True, eq=False)
class ConvexPiece:
    """The points of one categorical profile.

    Attributes
    ----------
    vertices
        Corners of the hull, shape (m, columns), or None for the whole box.
    lower, upper
        Bounds of each column, equal for the columns that the profile fixes.
    A, row_lower, row_upper
        Linear rules ``row_lower <= A x' <= row_upper``.
    """

    vertices: Array | None
    lower: Array
    upper: Array
    A: Array
    row_lower: Array
    row_upper: Array

    def box(self) -> tuple[Array, Array]:
        """Smallest box around the piece."""
        if self.vertices is None:
            return self.lower, self.upper
        low, high = self.vertices.min(axis=0), self.vertices.max(axis=0)
        return np.maximum(low, self.lower), np.minimum(high, self.upper)

    def contains(self, rows: Array) -> Mask:
        """Test which rows lie in the piece, up to ``IN_HULL`` times its size.

        The weights of a row of the hull are found by non-negative least squares.
        """
        found = _within(rows, self.lower, self.upper)
        found &= _within(rows @ self.A.T, self.row_lower, self.row_upper)
        if self.vertices is None or not found.any():
            return found
        centre = self.vertices.mean(axis=0)
        spread = self.vertices - centre
        rounding = _ROUNDING * float(np.abs(self.vertices).max())  # of a hull far from the origin
        size = max(float(np.abs(spread).max()), rounding, TOLERANCE)
        # A row outside the affine span of the vertices needs no further test.
        _, values, axes = np.linalg.svd(spread / size, full_matrices=False)
        axes = axes[values > IN_HULL]
        away = (rows - centre) / size
        found &= np.abs(away - away @ axes.T @ axes).max(axis=1) <= IN_HULL
        system = np.vstack([spread.T / size, np.ones(len(spread))])
        for i in np.flatnonzero(found):
            try:
                found[i] = nnls(system, np.append(away[i], 1.0))[1] <= IN_HULL
            except RuntimeError:  # no weights within the iterations of the method
                found[i] = False
        return found


def _within(rows: Array, low: Array, high: Array) -> Mask:
    """Test which rows lie between two ends, up to rounding."""
    inside: Mask = np.all((rows >= low - TOLERANCE) & (rows <= high + TOLERANCE), axis=1)
    return inside


def hull_pieces(schema: Schema, person: Person, neighbours: Array) -> list[ConvexPiece]:
    """Build one hull per categorical profile of the neighbours. The person joins its own."""
    profile = schema.profile_columns
    groups: dict[bytes, dict[bytes, Array]] = {}
    for row in neighbours:
        plain = row + 0.0  # -0.0 is 0.0
        groups.setdefault(plain[profile].tobytes(), {}).setdefault(plain.tobytes(), row)
    own = (person.x[profile] + 0.0).tobytes()
    pieces = []
    for key, found in groups.items():
        rows = {(person.x + 0.0).tobytes(): person.x} | found if key == own else found
        vertices = np.array(list(rows.values()))
        pieces.append(_piece(schema, person, vertices[0], vertices))
    return pieces


def box_pieces(
    schema: Schema, person: Person, data_low: Array, data_high: Array
) -> Iterator[ConvexPiece]:
    """Build one box per categorical profile that the rules allow, from the feature ranges."""
    options = _profile_options(schema, person)
    total = math.prod(len(choices) for choices in options)
    if total > _MOST_BOXES:
        raise OptionError(
            f"region='box' would try {total} combinations of categories (at most {_MOST_BOXES}). "
            "Make features immutable, or use region='hull'.",
            name="region",
            value="box",
        )
    for row in _profiles(person, options):
        if person.profile_allowed(row):
            piece = _piece(schema, person, row, None)
            lower = np.where(np.isfinite(piece.lower), piece.lower, np.minimum(data_low, person.x))
            upper = np.where(np.isfinite(piece.upper), piece.upper, np.maximum(data_high, person.x))
            yield ConvexPiece(None, lower, upper, piece.A, piece.row_lower, piece.row_upper)


def _piece(schema: Schema, person: Person, row: Array, vertices: Array | None) -> ConvexPiece:
    lower, upper = person.lower.copy(), person.upper.copy()
    profile = schema.profile_columns
    lower[profile] = upper[profile] = row[profile]
    rules = person.linear(row)
    return ConvexPiece(vertices, lower, upper, rules.A, rules.lower, rules.upper)


Options = list[list[tuple["npt.NDArray[np.int64]", "Array"]]]
"""For each categorical feature, its columns with each combination of allowed values."""


def _profile_options(schema: Schema, person: Person) -> Options:
    """Return the allowed values of the columns of each categorical and binary feature.

    Each is a pair of the feature's columns and their values.
    """
    grouped = {int(j) for group in schema.groups for j in group}
    options: Options = []
    for group in schema.groups:
        feature = schema.features[schema.columns[int(group[0])].feature]
        units = [np.eye(len(group))[i] for i in range(len(group))]
        if getattr(feature, "encoding", "onehot") == "dropfirst":
            units.insert(0, np.zeros(len(group)))
        options.append([(group.astype(np.int64), unit) for unit in units])
    for j in schema.profile_columns:
        if int(j) not in grouped:
            column = np.array([int(j)], dtype=np.int64)
            options.append([(column, np.zeros(1)), (column, np.ones(1))])
    low, high = person.lower, person.upper
    return [
        [(j, unit) for j, unit in choices if ((unit >= low[j]) & (unit <= high[j])).all()]
        for choices in options
    ]


def _profiles(person: Person, options: Options) -> Iterator[Array]:
    """Iterate over all combinations of category values. Other columns keep the person's values."""
    for choice in itertools.product(*options):
        row = person.x.copy()
        for columns, values in choice:
            row[columns] = values
        yield row


def admissible(schema: Schema, x: Array) -> list[Space] | None:
    """Return spaces that cover every input the person may become, or None without a range.

    None if a feature has no range. The list is empty if the rules allow no input.
    """
    found = list(_spaces(schema.widened(x), schema.person(x)))
    finite = all(np.isfinite(each.low).all() and np.isfinite(each.high).all() for each in found)
    return found if finite else None


def _spaces(schema: Schema, person: Person) -> Iterator[Space]:
    """Return the spaces of a person."""
    low, high = (end.copy() for end in person.reach)
    options = _profile_options(schema, person)
    if not schema.rules or math.prod(map(len, options)) > MOST_PROFILES:
        if all(options):
            choices = [
                Choice(choice[0][0], np.array([values for _, values in choice]))
                for choice in options
            ]
            yield from _on_grids(schema, person, low, high, choices)
        return
    for row in _profiles(person, options):
        if not person.profile_allowed(row):
            continue
        profile = schema.profile_columns
        low[profile] = high[profile] = row[profile]
        ends = _within_rules(person, row, low, high)
        if ends is not None:
            yield from _on_grids(schema, person, *ends, [])


def _within_rules(
    person: Person, row: Array, low: Array, high: Array
) -> tuple[Array, Array] | None:
    """Tighten the bounds of single columns by linear rules, or return None if no value is left.

    From ``a . x <= b`` follows ``a_j x_j <= b - min of the others``, with an allowance for
    rounding.
    """
    rules = person.linear(row)
    low, high = low.copy(), high.copy()
    for _ in range(_SWEEPS):
        for a, least, most in zip(rules.A, rules.lower, rules.upper, strict=True):
            for c, bound in ((a, most), (-a, -least)):
                used = np.flatnonzero(c)
                ends = np.where(c > 0.0, c * low, c * high)[used]
                if not (np.isfinite(bound) and np.isfinite(ends).all()):
                    continue
                room = TOLERANCE * (1.0 + np.abs(ends).sum() + abs(bound))
                for j, own in zip(used.tolist(), ends, strict=True):
                    end = (bound - (ends.sum() - own) + room) / c[j]
                    if c[j] > 0.0:
                        high[j] = min(high[j], end)
                    else:
                        low[j] = max(low[j], end)
    return None if (low > high).any() else (low, high)


def _on_grids(
    schema: Schema, person: Person, low: Array, high: Array, choices: list[Choice]
) -> Iterator[Space]:
    """Replace intervals by the values of grids. Yield nothing if no value is left."""
    choices = list(choices)
    low, high = low.copy(), high.copy()
    for j, column in schema.grids(person.x).items():
        if low[j] == high[j] or column.grid is None:
            continue
        first, last = column.ceil(low[j]), column.floor(high[j])
        numbers = column.grid.near(np.array([first, last]))
        if numbers[1] - numbers[0] >= MOST_VALUES:
            continue
        values = column.grid.encoded(np.arange(numbers[0], numbers[1] + 1))
        values = values[(values >= low[j]) & (values <= high[j])]
        if not len(values):
            return
        choices.append(Choice(np.array([j]), values[:, None]))
    yield Space.of(low, high, choices)
