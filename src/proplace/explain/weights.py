"""Weights of the encoded columns in the distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.distances import mad_weights
from proplace.core.errors import OptionError
from proplace.core.options import not_negative
from proplace.core.text import short
from proplace.schema.asked import check_names

if TYPE_CHECKING:
    from proplace.core.distances import Weights
    from proplace.core.network import Array
    from proplace.schema import Schema


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
    check_names(schema, "weights", weights)
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
