"""How far a counterfactual may be missed, feature by feature: in original units and encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import OptionError
from proplace.core.request import tolerance_pairs
from proplace.schema.asked import check_names
from proplace.schema.features import Continuous
from proplace.schema.grid import SNAP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.core.request import Tolerance
    from proplace.schema.grid import Array
    from proplace.schema.schema import Schema

_ROUNDING = 2.0**-48  # relative: far more than the rounding of a cell, a sum and a quotient


def tolerances(
    schema: Schema, given: Mapping[str, Tolerance] | None = None
) -> dict[str, tuple[float, float]]:
    """Return how much less and how much more each feature may be, in original units.

    A given tolerance takes the place of the schema's. Features that must be met exactly are left out.
    """
    found = {
        feature.name: (feature.tolerance, feature.tolerance)
        for feature in schema.features
        if isinstance(feature, Continuous) and feature.tolerance
    }
    pairs = tolerance_pairs(given or {})
    check_names(schema, "tolerance", pairs)
    for name, (less, more) in pairs.items():
        if (less or more) and not isinstance(schema.by_name[name], Continuous):
            raise OptionError(
                f"tolerance: {name!r} is not a number, and only a number can be missed by a little; "
                "leave it out",
                name="tolerance",
                value=name,
            )
    found |= pairs
    return {name: found[name] for name in schema.by_name if any(found.get(name, ()))}


def encoded_tolerance(schema: Schema, by_name: Mapping[str, tuple[float, float]]) -> Array | None:
    r"""Return how much less and how much more each encoded column may be; None if all are met exactly.

    A cell v is encoded as :math:`e = (v - o) / s`. If another cell misses it by no more than t, as
    numbers are written, its code misses e by no more than :math:`t / s`, up to roundings: of the
    cells, by a share of :math:`|v| \le s |e| + |o|`, and of the code, by a share of :math:`|e|`. What
    is a share of e itself is added at each row (:func:`proplace.core.guarantee.around`), the rest
    here; so is what reading snaps to a step.
    """
    encoded = np.zeros((2, schema.width))
    for name, pair in by_name.items():
        feature = schema.by_name[name]
        assert isinstance(feature, Continuous)  # noqa: S101  (tolerances() has seen to it)
        for row, t in zip(encoded, pair, strict=True):
            if t:
                reach = t + SNAP * (feature.step or 0.0)
                reach += _ROUNDING * (abs(feature.offset) + reach)
                row[schema.span(name)] = reach / feature.scale * (1.0 + _ROUNDING)
    return encoded if encoded.any() else None
