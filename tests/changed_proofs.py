"""Certificates with one field changed, in all ways that somebody may try."""

from __future__ import annotations

import copy

import numpy as np


def paths(value, path=()):
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from paths(item, (*path, key))


def changes(value):  # noqa: PLR0911
    """Other values for one field."""
    if isinstance(value, bool):
        return [not value, 1, None]
    if isinstance(value, int):
        return [value + 1, value - 1, -value, 10**6, 0.5, True, "1"]
    if isinstance(value, float):
        return [
            value + 1.0,
            -value,
            value * 0.9,
            np.nextafter(value, 9.0),
            1e300,
            5e-324,
            "1",
            [value],
        ]
    if isinstance(value, str):
        return [value[:-1] + ("0" if value[-1:] != "0" else "1"), "robust", "not robust", 1]
    if isinstance(value, list):
        return [value[:-1], [*value, copy.deepcopy(value[-1]) if value else 0], value[::-1], {}]
    if value is None:
        return [[0.0], 0]
    return [{}, {**value, "more": 1}, [], {"gamma": [[1, 0, 0.5]]}]


def mutants(facts):
    for path in paths(facts):
        if not path:
            continue
        here = facts
        for key in path:
            here = here[key]
        for new in changes(here):
            if new == here and type(new) is type(here):
                continue
            mutant = copy.deepcopy(facts)
            where = mutant
            for key in path[:-1]:
                where = where[key]
            where[path[-1]] = new
            yield path, mutant
