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
from proplace.schema.features import Binary, Categorical, Ordinal

if TYPE_CHECKING:
    from proplace.core.distances import Weights
    from proplace.core.network import Array
    from proplace.loaders.model import Model
    from proplace.schema import Schema


def column_units(model: Model, rows: Array, *, table: bool) -> Array:
    """Return how much of each encoded column counts as one in a distance.

    The unit of a number is its declared range. Without one, it is its range in the training rows if
    they came as a table or the model scales the column, and one encoded unit otherwise. So a distance
    does not depend on how the model came in.
    """
    schema, scale = model.schema, model.network.input_transform.scale
    scaled = np.zeros(schema.width, dtype=np.bool_) if scale is None else scale != 1.0
    spread = np.where(table | scaled, np.ptp(rows, axis=0), 1.0)
    units = np.where(spread > 0.0, spread, 1.0)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if isinstance(feature, (Categorical, Binary)):
            units[span] = 1.0
        elif isinstance(feature, Ordinal):
            units[span] = (feature.numbers[-1] - feature.numbers[0]) / feature.scale
        elif feature.lower is not None and feature.upper is not None and not feature.drafted:
            units[span] = (feature.upper - feature.lower) / feature.scale
    return units


def column_weights(schema: Schema, weights: Weights | None, rows: Array, units: Array) -> Array:
    """Return the weight of every encoded column in the distance.

    ``units`` are those of :func:`column_units`; ``"mad"`` takes the spreads of ``rows`` instead.
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
    return found / (schema.width * units)
