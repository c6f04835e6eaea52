"""The features of a model as one request restricts them.

A request makes features immutable, gives them a direction, or gives the ends of a range. What results
is a schema with the same encoded columns, so everything that was fitted stays valid for it.

A range that a request gives is declared: it takes the place of one that was drafted from a table. A
range of the user's own schema can only become narrower.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from proplace.core.errors import OptionError
from proplace.core.text import did_you_mean, listing, num
from proplace.schema.features import Categorical, Continuous

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.core.request import Range, Request
    from proplace.schema.features import Direction
    from proplace.schema.rules import AnyFeature
    from proplace.schema.schema import Schema


def restricted(schema: Schema, request: Request) -> Schema:
    """Return a schema with the immutable features, directions and ranges of a request.

    Raises OptionError if a name is not a feature, or if the request asks for more than the schema
    allows.
    """
    if not request.restricts:
        return schema
    for option in ("immutable", "increasing", "decreasing", "ranges"):
        check_names(schema, option, getattr(request, option))
    return schema.with_features([_restricted(feature, request) for feature in schema.features])


def check_names(schema: Schema, option: str, names: Iterable[str]) -> None:
    """Raise OptionError if a name is not one of a feature."""
    known = [feature.name for feature in schema.features]
    for name in names:
        if name not in known:
            raise OptionError(
                f"{option}: {name!r} is not a feature{did_you_mean(str(name), known)}; the features "
                f"are {listing(known)}",
                name=option,
                value=name,
            )


def _restricted(feature: AnyFeature, request: Request) -> AnyFeature:
    """Return one feature as a request restricts it."""
    if feature.name in request.ranges:
        feature = _ranged(feature, request.ranges[feature.name])
    directions: tuple[Direction, Direction] = ("increasing", "decreasing")
    for direction in directions:
        if feature.name in getattr(request, direction):
            feature = _directed(feature, direction)
    if feature.name in request.immutable:
        return replace(feature, immutable=True)
    return feature


def _directed(feature: AnyFeature, direction: Direction) -> AnyFeature:
    """Return a feature that may change in one direction alone."""
    if isinstance(feature, Categorical):
        raise OptionError(
            f"{direction}: {feature.name!r} is a category, and its values have no order; name it in "
            "immutable, or leave it out",
            name=direction,
            value=feature.name,
        )
    if feature.direction not in (None, direction):
        raise OptionError(
            f"{direction}: the schema says that {feature.name!r} is {feature.direction}; name it in "
            "immutable if it may not change, or leave it out",
            name=direction,
            value=feature.name,
        )
    return replace(feature, direction=direction)


def _ranged(feature: AnyFeature, ends: Range) -> Continuous:
    """Return a number with the range of a request."""
    if not isinstance(feature, Continuous):
        raise OptionError(
            f"ranges: {feature.name!r} has the values {listing(feature.labels)} and no range; leave it "
            "out",
            name="ranges",
            value=feature.name,
        )
    low, high = _inherited(feature, ends)
    if low is not None and high is not None and not low < high:
        raise OptionError(
            f"the range of {feature.name!r} would be {num(low)} to {num(high)}, with one end from the "
            "training table; give both ends",
            name="ranges",
            value=ends,
        )
    beyond = not feature.drafted and (
        (feature.lower is not None and (low is None or low < feature.lower))
        or (feature.upper is not None and (high is None or high > feature.upper))
    )
    if beyond:
        raise OptionError(
            f"the range of {feature.name!r}, {_words(low, high)}, goes beyond that of the schema, "
            f"{_words(feature.lower, feature.upper)}; a request can only narrow it",
            name="ranges",
            value=ends,
        )
    found = _between(feature, low, high)
    return replace(found, drafted=feature.drafted and None in ends)


def _inherited(feature: Continuous, ends: Range) -> Range:
    """Return the ends of a range; those that a request leaves out are the feature's own."""
    low, high = ends
    return feature.lower if low is None else low, feature.upper if high is None else high


def _between(feature: Continuous, low: float | None, high: float | None) -> Continuous:
    """Return a number with other ends, encoded as before; its steps go on as they were."""
    if low is not None and high is not None:
        low, high = feature.on_steps(low, high)
        if not low < high:
            raise OptionError(
                f"the range of {feature.name!r} holds no two values in steps of "
                f"{num(feature.step or 0.0)}; make it wider, or name the feature in immutable",
                name="ranges",
                value=(low, high),
            )
    return feature.with_ends(low, high)


def _words(low: float | None, high: float | None) -> str:
    """Describe two ends."""
    if low is not None and high is not None:
        return f"{num(low)} to {num(high)}"
    if low is None and high is None:
        return "without ends"
    return f"from {num(low)}" if low is not None else f"up to {num(high or 0.0)}"
