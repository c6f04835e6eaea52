"""Values as people write them: numbers with their units, categories in quotes, yes and no."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from proplace.schema.amounts import amount, decimals, gap, number
from proplace.schema.features import Binary, Continuous, Ordinal

if TYPE_CHECKING:
    from proplace.schema.rules import AnyFeature


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
    # As one would work it out on paper: 0.3 - 0.1 is not 0.2 to the last digit in floats.
    size = float(abs(Decimal(repr(float(after))) - Decimal(repr(float(before)))))
    if decimals(feature) is None or float(f"{size:.{decimals(feature)}f}") != size:
        size = float(f"{size:.6g}")
    return f"{gap(feature, size, decimals(feature))} {'higher' if after > before else 'lower'}"


def numeric(feature: AnyFeature | None, value: Any) -> bool:
    """Whether a value of this feature is an amount rather than a name."""
    return isinstance(feature, (Continuous, Ordinal)) and _is_number(value)


def called(feature: AnyFeature) -> str:
    """The title of a feature; in quotes where it is what applies or not: “owns a home”."""
    if isinstance(feature, Binary) and yes_or_no(feature):
        return f"“{feature.title}”"
    return feature.title


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
