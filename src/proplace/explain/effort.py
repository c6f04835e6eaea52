"""The efforts of features as a distance: what the schema and the user say, over encoded columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.effort import Curve, Efforts
from proplace.core.errors import OptionError
from proplace.core.options import not_negative
from proplace.core.text import did_you_mean, listing, short
from proplace.schema import Categorical, Continuous, Ordinal

if TYPE_CHECKING:
    from proplace.core.distances import Distance
    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature

Effort = float | Sequence[tuple[float, float]]
"""Effort of one encoded unit, or points (change, effort) of a curve in original units."""

_LEAST, _MOST = 1e-3, 1e9  # of the largest effort: a solver's tolerances are absolute

DEFAULT = 1.0
"""Effort of one encoded unit, or of another category, of a feature about which nothing is said."""


def check_effort(effort: Mapping[str, Effort] | None, max_effort: float | None) -> None:
    """Raise ``OptionError`` where these are no efforts."""
    if max_effort is not None:
        not_negative("max_effort", max_effort)
    if effort is None:
        return
    if not isinstance(effort, Mapping):
        raise OptionError(
            "effort must say the effort of features by name, such as {'income': 2}, not "
            f"{short(effort)}"
        )
    for name, value in effort.items():
        _curve(str(name), value)


def efforts_of(
    schema: Schema,
    effort: Mapping[str, Effort] | None,
    max_effort: float | None,
    units: Array | None,
) -> Efforts | None:
    """The efforts of all features, by what was given or else by the schema; None where none has one.

    ``units`` say how much of each column counts as one for an effort that is a number.
    """
    own = {f.name: f.effort for f in schema.features if f.effort is not None}
    if effort is None and not own:
        if max_effort is not None:
            raise OptionError(
                "max_effort needs efforts: say in the schema what changes cost, or as "
                "effort={'income': 2} (--effort income=2); effort={} counts each feature as 1 for its "
                "whole range"
            )
        return None
    for name in effort or {}:
        if name not in schema.by_name:
            raise OptionError(
                f"effort: {short(name)} is not a feature{did_you_mean(name, schema.by_name)}; "
                f"features: {listing(schema.by_name)}"
            )
    given = {**own, **(effort or {})}
    curves, categories = [], []
    for feature, span in zip(schema.features, schema.spans, strict=True):
        value = given.get(feature.name, DEFAULT)
        if isinstance(feature, Categorical):
            categories.append((span.start, span.stop, _number(feature.name, value)))
            curves += [_FLAT] * (span.stop - span.start)
        else:
            unit = 1.0 if units is None else float(units[span.start])
            curves.append(_encoded(feature, value, unit))
    found = Efforts(tuple(curves), tuple(categories))
    if found.steepest == 0.0:
        raise OptionError("effort: every feature has the effort 0; give one of them more")
    if not _LEAST <= found.steepest <= _MOST:
        raise OptionError(
            f"effort: the largest effort of a whole unit is {found.steepest:g}, where solvers count "
            f"from {_LEAST:g} to {_MOST:g}; give all efforts in other units, such as "
            f"{'1000 times as many' if found.steepest < _LEAST else 'a millionth as many'}"
        )
    return found


def convex(distance: Distance, schema: Schema, x: Array, rows: Array) -> Distance:
    """The distance that searches use for a person: of efforts that are not convex, the envelope.

    Answers lie within the ranges of the features, or among ``rows`` where there is no range.
    """
    if not isinstance(distance, Efforts):
        return distance
    rows = np.vstack([rows, x])
    low = np.where(np.isfinite(schema.lower), schema.lower, rows.min(axis=0))
    high = np.where(np.isfinite(schema.upper), schema.upper, rows.max(axis=0))
    return distance.distance(x, np.minimum(low, x), np.maximum(high, x))


_FLAT = Curve.of(0.0)


def _encoded(feature: AnyFeature, value: Effort, unit: float) -> Curve:
    curve = _curve(feature.name, value)
    if _is_curve(value):
        if not isinstance(feature, (Continuous, Ordinal)):
            raise OptionError(
                f"effort of {short(feature.name)} must be one number, that of any change: it is no "
                "number"
            )
        return curve.in_units(feature.scale)
    return curve.in_units(1.0 / unit) if curve != _FLAT else _FLAT  # all of a unit takes the number


def _curve(name: str, value: Effort) -> Curve:
    if not _is_curve(value):
        return Curve.of(_number(name, value))
    try:
        pairs = [(float(change), float(cost)) for change, cost in value]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise OptionError(
            f"effort of {short(name)} must be a number >= 0, or points (change, effort) such as "
            f"[(0, 0), (1000, 1), (5000, 8)], not {short(value)}"
        ) from None
    try:
        return Curve.of(pairs)
    except ValueError as error:
        raise OptionError(f"effort of {short(name)}: {error}") from None


def _number(name: str, value: Effort) -> float:
    if _is_curve(value):
        raise OptionError(
            f"effort of {short(name)} must be one number, that of any change: it has categories"
        )
    return not_negative(f"effort of {name!r}", value)  # type: ignore[arg-type]


def _is_curve(value: Effort) -> bool:
    """Whether an effort is given by points: a list of them, or an array."""
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
