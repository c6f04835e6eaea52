"""Options that say what an answer may change, by the names of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.distances import mad_weights
from proplace.core.errors import OptionError
from proplace.core.options import not_negative
from proplace.core.text import did_you_mean, listing, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proplace.core.distances import Weights
    from proplace.core.network import Array
    from proplace.schema import Schema


def check_changeable(changeable: Sequence[str] | None) -> None:
    """Raise ``OptionError`` unless ``changeable`` is None or a list of names."""
    if changeable is None:
        return
    if isinstance(changeable, (str, bytes)):
        raise OptionError(
            f"changeable must be a list of names, not one text; write [{changeable!r}]",
            name="changeable",
            value=changeable,
        )
    names = list(changeable)
    if not names:
        raise OptionError(
            "changeable is empty: name at least one feature, or leave it out",
            name="changeable",
            value=changeable,
        )
    if not all(isinstance(name, str) for name in names):
        raise OptionError(
            "changeable must be a list of names of features",
            name="changeable",
            value=changeable,
        )


def in_words(changeable: Sequence[str] | None) -> str:
    """Return the features that may change, in words; empty if all may."""
    return "" if changeable is None else f"of {', '.join(changeable)} only"


def fixed_features(schema: Schema, changeable: Sequence[str] | None) -> frozenset[int]:
    """Numbers of the features that answers must keep."""
    if changeable is None:
        return frozenset()
    _known(schema, "changeable", changeable)
    wanted = set(changeable)
    free = [f.name for f in schema.features if f.name in wanted and not f.immutable]
    if not free:
        raise OptionError(
            f"changeable names immutable features only ({listing(sorted(wanted))}); name one that "
            "can be changed",
            name="changeable",
            value=changeable,
        )
    return frozenset(i for i, f in enumerate(schema.features) if f.name not in wanted)


def column_weights(
    schema: Schema, weights: Weights | None, rows: Array, units: Array | None
) -> Array:
    """Return the weight of every encoded column in the distance.

    ``units`` say how much of each column counts as one; ``"mad"`` takes the spreads of ``rows``.
    """
    if isinstance(weights, str) and weights == "mad":
        return mad_weights(rows)
    if weights is None:
        weights = {}
    if not isinstance(weights, Mapping):
        raise OptionError(
            "weights must be numbers by feature name, such as {'income': 2}, or 'mad', not "
            f"{short(weights)}",
            name="weights",
            value=weights,
        )
    _known(schema, "weights", weights)
    found: Array = np.ones(schema.width)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        found[span] = not_negative(f"the weight of {feature.name}", weights.get(feature.name, 1.0))
    if not found.any():
        raise OptionError(
            "weights must not all be 0; give at least one feature more",
            name="weights",
            value=weights,
        )
    found = found / schema.width
    return found if units is None else found / units


def _known(schema: Schema, option: str, names: Iterable[str]) -> None:
    """Refuse names that are no features."""
    known = [feature.name for feature in schema.features]
    for name in names:
        if name not in known:
            raise OptionError(
                f"{option}: {name!r} is not a feature{did_you_mean(str(name), known)}; the features "
                f"are {listing(known)}",
                name=option,
                value=name,
            )
