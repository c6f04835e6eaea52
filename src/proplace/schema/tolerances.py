"""By how much an answer may be missed, feature by feature, in original units and encoded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import OptionError
from proplace.core.text import listing
from proplace.schema.features import Continuous
from proplace.schema.grid import SNAP

if TYPE_CHECKING:
    from proplace.schema.grid import Array
    from proplace.schema.schema import Schema

_ROUNDING = 2.0**-48  # relative: far more than the rounding of a cell, a sum and a quotient


def check_tolerance(given: object) -> None:
    """Refuse what does not give numbers by feature name."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise OptionError(
            "tolerance must give numbers by feature name, in original units, such as "
            f"{{'income': 500}}, not {given!r}",
            name="tolerance",
            value=given,
        )
    for name, t in given.items():
        good = isinstance(t, (int, float, np.number)) and not isinstance(t, bool)
        if not good or not math.isfinite(t) or t < 0.0:
            raise OptionError(
                f"tolerance of {name!r} must be a number of its unit, 0 or more, not {t!r}",
                name=name,
                value=t,
            )


def tolerances(schema: Schema, given: Mapping[str, float] | None = None) -> dict[str, float]:
    """How far each feature may be missed, in original units; those of 0 are left out.

    ``given`` counts in the place of what the schema says of a feature.
    """
    check_tolerance(given)
    given = given or {}
    unknown = [name for name in given if name not in schema.by_name]
    if unknown:
        raise OptionError(
            f"tolerance names {unknown[0]!r}, which is no feature; "
            f"features: {listing(list(schema.by_name))}",
            name=unknown[0],
        )
    found = {}
    for name, feature in schema.by_name.items():
        t = given.get(name, getattr(feature, "tolerance", None))
        if not t:
            continue
        if not isinstance(feature, Continuous):
            raise OptionError(
                f"tolerance of {name!r}: only a number can be missed by a little", name=name
            )
        if feature.immutable:
            raise OptionError(
                f"tolerance of {name!r}: the feature is immutable, so it cannot be missed; leave it out",
                name=name,
            )
        found[name] = float(t)
    return found


def encoded_tolerance(schema: Schema, by_name: Mapping[str, float]) -> Array | None:
    r"""The same per encoded column, rounded up; None where nothing may be missed.

    A cell v is encoded as :math:`e = (v - o) / s`. Where another cell misses it by no more than t, as
    numbers are written, its code misses e by no more than :math:`t / s`, up to roundings: of the
    cells, by a share of :math:`|v| \le s |e| + |o|`, and of the code, by a share of :math:`|e|`. What
    is a share of e itself is added at each row (:func:`proplace.core.guarantee.around`), the rest
    here; so is what reading snaps to a step.
    """
    if not by_name:
        return None
    encoded = np.zeros(schema.width)
    for name, t in by_name.items():
        feature = schema.by_name[name]
        assert isinstance(feature, Continuous)  # noqa: S101  (tolerances() has seen to it)
        reach = t + SNAP * (feature.step or 0.0)
        reach += _ROUNDING * (abs(feature.offset) + reach)
        encoded[schema.span(name)] = reach / feature.scale * (1.0 + _ROUNDING)
    return encoded
