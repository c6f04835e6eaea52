"""Numbers as people write them, with their units.

A unit is written in the plural ("years"); ``"child|children"`` gives both forms. Percentages and
currency signs stand at the number: ``"% of income"``, ``"$"``.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, Decimal
from typing import cast

from proplace.schema.features import Continuous, Ordinal

_BEFORE = ("$", "€", "£", "¥")
_AT = ("%", "‰", "°")
_DIGITS = 6  # that are written of a number at least
_SMALL, _LARGE = 1e-4, 1e15  # numbers between these are written without an exponent
_FINE = 8  # decimals beyond which a step is no longer written out


def amount(
    feature: Continuous | Ordinal, value: float, *, unit: bool = True, exact: bool = False
) -> str:
    """Write a number of a feature; without ``unit`` only with the signs that stand at the number.

    Examples
    --------
    >>> debt = Continuous("debt", 0, 100, step=1, unit="% of income")
    >>> amount(debt, 31), amount(debt, 38, unit=False)
    ('31% of income', '38%')
    >>> amount(Continuous("age", 18, 90, step=1, unit="years"), 1)
    '1 year'
    >>> amount(Continuous("price", 0, 1e6, step=0.5, unit="$"), -12000)
    '-$12,000'
    """
    return _with_unit(feature, number(value, decimals(feature), exact=exact), value, unit=unit)


def _with_unit(feature: Continuous | Ordinal, text: str, value: float, *, unit: bool) -> str:
    word = _unit(feature.unit or "", value)
    if word in _BEFORE:
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        return f"{sign}{word}{digits}"
    if word.startswith(_AT):
        return f"{text}{word if unit else word[0]}"
    return f"{text} {word}" if word and unit else text


def number(value: float, decimals: int | None = None, *, exact: bool = False) -> str:
    """Write a number as a person does, with separators from 10,000 on.

    ``decimals`` are written if no other digits follow. Else at least six digits are written, and "…"
    if more follow: nothing is rounded, so that what is written of a value is true of it. ``exact``
    writes all digits.

    Examples
    --------
    >>> number(1998.0), number(12000.0), number(0.5, 2), number(1 / 3), number(2.5e-7)
    ('1998', '12,000', '0.50', '0.333333…', '2.5e-07')
    >>> number(12000.0, 2), number(0.125, 2), number(48_211.734_82), number(2 / 3, exact=True)
    ('12,000', '0.125', '48,211.734…', '0.6666666666666666')
    """
    value = float(value) + 0.0  # no -0.0
    if not math.isfinite(value):
        return str(value)
    whole = value.is_integer() and abs(value) < _LARGE
    if whole or (decimals is not None and float(f"{value:.{decimals}f}") == value):
        text = f"{Decimal(repr(value)):,.{0 if whole else decimals}f}"
    else:
        digits = shown = Decimal(repr(value))
        if not exact and abs(value) < _LARGE:
            shown = digits.quantize(_last_place(digits), ROUND_DOWN)
        more = "" if shown == digits else "…"
        written = shown if more else digits
        plain = _SMALL <= abs(value) < _LARGE
        text = f"{written:,f}{more}" if plain else f"{float(written)!r}{more}"
    return text if abs(value) >= 10_000 else text.replace(",", "")


def _last_place(value: Decimal) -> Decimal:
    """Return the place of the last digit that is written: the sixth digit, but at least thousandths."""
    return Decimal(1).scaleb(min(value.adjusted() - _DIGITS + 1, -3))


def gap(feature: Continuous | Ordinal, size: float, decimals: int | None = None) -> str:
    """How much a number of this feature rises or falls.

    Examples
    --------
    >>> gap(Continuous("debt", 0, 100, step=1, unit="% of income"), 7)
    '7 percentage points'
    >>> gap(Continuous("price", 0, 1e6, step=1, unit="$"), 2.5)
    '$2.5'
    """
    text = number(size, decimals, exact=True)
    if (feature.unit or "").startswith("%"):
        return f"{text} percentage {'point' if size == 1.0 else 'points'}"
    return _with_unit(feature, text, size, unit=True)


def decimals(feature: Continuous | Ordinal) -> int | None:
    """Decimals that every legal value can be written with; None where there is no step."""
    if not isinstance(feature, Continuous) or feature.step is None or feature.lower is None:
        return None
    exponents = [
        -cast("int", Decimal(repr(float(v))).normalize().as_tuple().exponent)
        for v in (feature.step, feature.lower)
    ]
    most = max(0, *exponents)
    return most if most <= _FINE else None


def _unit(unit: str, value: float) -> str:
    """The form of a unit that goes with a value."""
    one, bar, many = unit.partition("|")
    if bar:
        return one if abs(value) == 1.0 else many
    # One English word in the plural; "thousand dollars", "Celsius" and "gas" stay as they are.
    regular = unit.isalpha() and unit.endswith("s") and not unit.endswith(("ss", "us", "as", "is"))
    return unit[:-1] if regular and abs(value) == 1.0 else unit
