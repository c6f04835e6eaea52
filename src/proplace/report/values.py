"""Values as people write them: numbers with their units, categories in quotes, yes and no.

A unit is written in the plural ("years"); ``"child|children"`` gives both forms. Percentages and
currency signs stand at the number: ``"% of income"``, ``"$"``.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from proplace.schema.features import Binary, Continuous, Ordinal

if TYPE_CHECKING:
    from proplace.schema.rules import AnyFeature

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
    text = number(value, _decimals(feature), exact=exact)
    word = _unit(feature.unit or "", value)
    if word in _BEFORE:
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        return f"{sign}{word}{digits}"
    if word.startswith(_AT):
        return f"{text}{word if unit else word[0]}"
    return f"{text} {word}" if word and unit else text


def number(value: float, decimals: int | None = None, *, exact: bool = False) -> str:
    """A number with separators from 10,000 on; "about" where six digits do not say it all.

    ``exact`` writes all digits instead.

    Examples
    --------
    >>> number(1998.0), number(12000.0), number(0.5, 2), number(1 / 3), number(2.5e-7)
    ('1998', '12,000', '0.50', 'about 0.333333', '2.5e-07')
    """
    value = float(value) + 0.0  # no -0.0
    if decimals is not None:
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


def pair(feature: AnyFeature | None, before: Any, after: Any) -> tuple[str, str]:
    """Write two values of one feature: the first with its whole unit, the second in short.

    Examples
    --------
    >>> from proplace.schema import Categorical
    >>> pair(Continuous("debt", 0, 100, step=1, unit="years"), 38, 31)
    ('31 years', '38')
    >>> pair(Categorical("job", ["cook", "clerk"]), "cook", "clerk")
    ('“clerk”', '“cook”')
    """
    if numeric(feature, before):
        feature = cast("Continuous | Ordinal", feature)
        texts = amount(feature, after), amount(feature, before, unit=False)
        if amount(feature, after, unit=False) != texts[1]:
            return texts
        # too near each other for six digits
        return amount(feature, after, exact=True), amount(feature, before, unit=False, exact=True)
    return shown(feature, after, quotes=True), shown(feature, before, quotes=True)


def shown(feature: AnyFeature | None, value: Any, *, quotes: bool = False) -> str:
    """One value as a person would write it, with all its digits.

    Examples
    --------
    >>> shown(Binary("cosigner"), 1), shown(None, 0.25), shown(None, "cook", quotes=True)
    ('yes', '0.25', '“cook”')
    """
    if numeric(feature, value):
        return amount(cast("Continuous | Ordinal", feature), value, exact=True)
    if isinstance(feature, Binary) and yes_or_no(feature):
        return "yes" if value == feature.values[1] else "no"
    if isinstance(value, str) or not _is_number(value):
        return f"“{value}”" if quotes else str(value)
    return number(value, exact=not quotes)


def difference(feature: AnyFeature | None, before: Any, after: Any) -> str:
    """By how much a number rises or falls; empty for categories.

    Examples
    --------
    >>> difference(Continuous("debt", 0, 100, step=1, unit="% of income"), 38, 31)
    '7 percentage points lower'
    >>> difference(Continuous("down payment", 0, 1e6, step=100, unit="dollars"), 0, 12000)
    '12,000 dollars higher'
    """
    if not numeric(feature, before):
        return ""
    feature = cast("Continuous | Ordinal", feature)
    gap = abs(float(after) - float(before))
    if _decimals(feature) is None:
        gap = float(f"{gap:.6g}")  # 0.3 - 0.1 is not 0.2 to the last digit
    if (feature.unit or "").startswith("%"):
        points = "point" if gap == 1.0 else "points"
        size = f"{number(gap, _decimals(feature))} percentage {points}"
    else:
        size = amount(feature, gap)
    return f"{size} {'higher' if after > before else 'lower'}"


def numeric(feature: AnyFeature | None, value: Any) -> bool:
    """Whether a value of this feature is an amount rather than a name."""
    return isinstance(feature, (Continuous, Ordinal)) and _is_number(value)


def yes_or_no(feature: Binary) -> bool:
    """Whether the two values only say that the feature's title does or does not apply."""
    values = tuple(feature.values)
    return values == (0, 1) or [str(v).casefold() for v in values] in (
        ["no", "yes"],
        ["false", "true"],
    )


def _is_number(value: Any) -> bool:
    # numpy's numbers, too; a bool is a name
    return hasattr(value, "__float__") and not isinstance(value, str) and str(value) not in _BOOLS


_BOOLS = ("True", "False")


def _decimals(feature: Continuous | Ordinal) -> int | None:
    """Decimals that every legal value can be written with; None where there is no step."""
    if not isinstance(feature, Continuous) or feature.step is None or feature.lower is None:
        return None
    exponents = [
        -cast("int", Decimal(repr(float(v))).normalize().as_tuple().exponent)
        for v in (feature.step, feature.lower)
    ]
    decimals = max(0, *exponents)
    return decimals if decimals <= _FINE else None


def _unit(unit: str, value: float) -> str:
    """The form of a unit that goes with a value."""
    one, bar, many = unit.partition("|")
    if bar:
        return one if abs(value) == 1.0 else many
    # One English word in the plural; "thousand dollars", "Celsius" and "gas" stay as they are.
    regular = unit.isalpha() and unit.endswith("s") and not unit.endswith(("ss", "us", "as", "is"))
    return unit[:-1] if regular and abs(value) == 1.0 else unit
