r"""Proved intervals in words: "at least", "no more than", "give or take".

An answer may be proved not at one value of a number but in an interval :math:`[l, h]` around it, for all
such numbers at once (``Explanation.holds``). What is said is never more than that: both ends are rounded
towards the inside to what is written, in decimal arithmetic. An end of the interval that is the end of
the feature's range is left open in words ("at least 52,000 dollars"); whoever prints it says that
the range ends somewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, Any, cast

from proplace.explain.values import numeric
from proplace.schema.amounts import amount, decimals, gap
from proplace.schema.features import Continuous, Ordinal

if TYPE_CHECKING:
    from proplace.schema.rules import AnyFeature

_DIGITS = 6  # significant digits of an end where the feature has no step
_ALIKE = Decimal("1.5")  # how many times the room on one side may be that on the other


@dataclass(frozen=True)
class Held:
    """The interval of one number, in words.

    Attributes
    ----------
    goal
        What the number must be, with its unit: ``at least 52,000 dollars``.
    interval
        Both ends: ``52,000 to 200,000 dollars``; one of them where there is no other end.
    ranged
        Whether the words leave an end open that the feature's range closes.
    """

    goal: str
    interval: str
    ranged: bool


def held(
    feature: AnyFeature | None, before: Any, after: Any, ends: tuple[float, float] | None
) -> Held | None:
    """Say in which interval a number may lie; None where there is nothing to say beyond its value.

    Parameters
    ----------
    feature, before, after
        A feature, what it is today and in the answer.
    ends
        The proved interval, in original units.

    Examples
    --------
    >>> income = Continuous("income", 0, 200_000, step=500, unit="dollars")
    >>> held(income, 48_000, 52_000, (52_000, 200_000)).goal
    'at least 52,000 dollars'
    >>> held(income, 58_000, 52_000, (0, 52_000)).goal
    'no more than 52,000 dollars'
    >>> held(income, 48_000, 52_000, (51_500, 52_500)).goal
    '52,000 dollars (give or take 500)'
    """
    if ends is None or not numeric(feature, after) or not numeric(feature, before):
        return None
    number = cast("Continuous | Ordinal", feature)
    low, high = _inward(number, *ends)
    least, most = _range(number)
    value = Decimal(repr(float(after)))
    if math.isnan(low) or math.isnan(high) or not low <= value <= high or low == high:
        return None
    down, up, rises = ends[0] <= least, ends[1] >= most, before < after
    if low <= Decimal(repr(float(before))) <= high:
        # The person's own value would do by itself: nobody is told to go the other way.
        if not (up if rises else down):
            return None
        low, high = (value, high) if rises else (low, value)
    if up if rises else down:  # one-sided only in the direction of the change
        return _open(number, low, high, up=rises)
    return _closed(number, value, low, high)


def room(feature: AnyFeature | None, value: Any, ends: tuple[float, float]) -> str:
    """Both ends of the interval in which a number that stays may lie; empty where it may not move.

    Examples
    --------
    >>> room(Continuous("age", 18, 90, step=1, unit="years"), 38, (36.5, 40))
    '37 to 40 years'
    """
    if not numeric(feature, value):
        return ""
    number = cast("Continuous | Ordinal", feature)
    low, high = _inward(number, *ends)
    if math.isnan(low) or math.isnan(high) or not low <= Decimal(repr(float(value))) <= high:
        return ""
    return _interval(number, low, high) if low < high else ""


def _open(feature: Continuous | Ordinal, low: Decimal, high: Decimal, *, up: bool) -> Held | None:
    """An interval that reaches to an end of the range."""
    if low == high:
        return None
    words, end = ("at least", low) if up else ("no more than", high)
    return Held(f"{words} {_amount(feature, end)}", _interval(feature, low, high), ranged=True)


def _closed(
    feature: Continuous | Ordinal, value: Decimal, low: Decimal, high: Decimal
) -> Held | None:
    """An interval within the range: the value and its room, or both ends where it lies askew."""
    spread = _interval(feature, low, high)
    middle = _rounded(feature, value, ROUND_HALF_EVEN)
    below, above = middle - low, high - middle
    room = _rounded(feature, min(below, above), ROUND_FLOOR, digits=2)
    if room > 0 and max(below, above) <= _ALIKE * room:
        more = gap(feature, float(room), decimals(feature))
        bare = (feature.unit or "").startswith("%") or not more[:1].isdigit()
        miss = more if bare else more.partition(" ")[0]
        return Held(f"{_amount(feature, middle)} (give or take {miss})", spread, ranged=False)
    if low == high:
        return None
    return Held(f"from {spread}", spread, ranged=False)


def _inward(feature: Continuous | Ordinal, low: float, high: float) -> tuple[Decimal, Decimal]:
    """Both ends, rounded towards the inside to what is written of them."""
    return (
        _rounded(feature, Decimal(repr(float(low))), ROUND_CEILING),
        _rounded(feature, Decimal(repr(float(high))), ROUND_FLOOR),
    )


def _rounded(
    feature: Continuous | Ordinal, value: Decimal, how: str, digits: int = _DIGITS
) -> Decimal:
    """A number with the decimals of its feature, else with some digits."""
    if not value.is_finite() or not value:
        return value
    places = decimals(feature)
    if places is None:
        places = digits - 1 - value.adjusted()
    return value.quantize(Decimal(1).scaleb(-places), rounding=how)


def _range(feature: Continuous | Ordinal) -> tuple[float, float]:
    """The ends of the range of a feature."""
    if isinstance(feature, Ordinal):
        return feature.numbers[0], feature.numbers[-1]
    least = -math.inf if feature.lower is None else float(feature.lower)
    return least, math.inf if feature.upper is None else float(feature.upper)


def _interval(feature: Continuous | Ordinal, low: Decimal, high: Decimal) -> str:
    """Both ends, the second with the unit."""
    if not low.is_finite() or not high.is_finite():
        words, end = ("at least", low) if low.is_finite() else ("no more than", high)
        return f"{words} {_amount(feature, end)}"
    return f"{_amount(feature, low, unit=False)} to {_amount(feature, high)}"


def _amount(feature: Continuous | Ordinal, value: Decimal, *, unit: bool = True) -> str:
    return amount(feature, float(value), unit=unit)
