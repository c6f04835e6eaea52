"""Numbers as people write them, with their units.

A unit is written in the plural ("years"); ``"child|children"`` gives both forms. Percentages and
currency signs stand at the number: ``"% of income"``, ``"$"``.
"""

from __future__ import annotations

from decimal import Decimal
from typing import cast

from proplace.schema.features import Continuous, Ordinal

_BEFORE = ("$", "€", "£", "¥")
_AT = ("%", "‰", "°")
_FINE = 8  # decimals beyond which a step is no longer written out


def amount(
    feature: Continuous | Ordinal, value: float, *, unit: bool = True, exact: bool = False
) -> str:
    """A number of this feature; without ``unit`` only the signs that stand at the number.

    Examples
    --------
    >>> debt = Continuous("debt", 0, 100, step=1, unit="% of income")
    >>> amount(debt, 31), amount(debt, 38, unit=False)
    ('31% of income', '38%')
    >>> amount(Continuous("age", 18, 90, step=1, unit="years"), 1)
    '1 year'
    >>> amount(Continuous("price", 0, 1e6, step=0.5, unit="$"), -12000)
    '-$12,000.0'
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
    """A number with separators from 10,000 on; "about" where six digits do not say it all.

    ``decimals`` are written where they say it all, which a person's own value need not have.
    ``exact`` writes all digits instead.

    Examples
    --------
    >>> number(1998.0), number(12000.0), number(0.5, 2), number(1 / 3), number(2.5e-7)
    ('1998', '12,000', '0.50', 'about 0.333333', '2.5e-07')
    >>> number(0.125, 2), number(1 / 3, 2, exact=True)
    ('0.125', '0.3333333333333333')
    """
    value = float(value) + 0.0  # no -0.0
    if decimals is not None and float(f"{value:.{decimals}f}") == value:
        text = f"{value:,.{decimals}f}"
    else:
        rounded = value if exact else float(f"{value:.6g}")
        if value == 0.0 or 1e-4 <= abs(value) < 1e15:
            text = f"{Decimal(repr(rounded)):,f}"
            text = text.rstrip("0").rstrip(".") if "." in text else text
        else:
            text = repr(rounded)
        text = text if rounded == value else f"about {text}"
    return text if abs(value) >= 10_000 else text.replace(",", "")


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
