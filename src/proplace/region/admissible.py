"""All inputs that a person may become, whatever the data hold: products of intervals and choices.

These are what fixed predictions and reasons speak of. The spaces hold every legal row that respects the
person's bounds and rules, and more where that makes them simpler: of linear rules only the bounds are
kept that follow for single columns, grids with many values are intervals, and with too many
combinations of categories rules about them are left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import Choice, Space
from proplace.region.neighbours import profile_options, profiles, variants
from proplace.schema.person import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.schema.person import Person

MOST_PROFILES = 64
"""Combinations of categories that get a space of their own where there are rules."""
MOST_VALUES = 64
"""Values of a grid that are told apart; a longer one is an interval."""
_SWEEPS = 2  # rounds in which bounds follow from linear rules


def admissible(schema: Schema, x: Array, kept: Collection[int] = ()) -> list[Space] | None:
    """Spaces that hold every input that a person may become; None where a feature has no range.

    ``kept`` are numbers of features that stay as they are. The list is empty where nothing is allowed.
    """
    columns = [j for j, column in enumerate(schema.columns) if column.feature in kept]
    found: list[Space] = []
    for person in variants(schema, x):
        for space in _spaces(schema, person, columns):
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                return None
            found.append(space)
    return found


def _spaces(schema: Schema, person: Person, kept: list[int]) -> Iterator[Space]:
    """The spaces of one variant of a person."""
    low, high = (end.copy() for end in person.reach)
    if ((person.x[kept] < low[kept]) | (person.x[kept] > high[kept])).any():
        return  # another variant keeps this value
    low[kept] = high[kept] = person.x[kept]
    options = [
        [
            (j, values)
            for j, values in choices
            if not np.isin(j, kept).any() or np.array_equal(values, person.x[j])
        ]
        for choices in profile_options(schema, person)
    ]
    if not schema.rules or math.prod(map(len, options)) > MOST_PROFILES:
        if all(options):
            choices = [
                Choice(choice[0][0], np.array([values for _, values in choice]))
                for choice in options
            ]
            yield from _on_grids(schema, person, low, high, choices)
        return
    for row in profiles(person, options):
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
    """The bounds of single columns that follow from linear rules; None where nothing is left.

    From ``a . x <= b`` follows ``a_j x_j <= b - min of the others``; with room for rounding.
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
    """The space with the values of grids in place of intervals; nothing where no value is left."""
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
