"""Forms that accept numbers as people write them and report all errors beside their fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proplace.core.errors import InputError
from proplace.core.text import did_you_mean
from proplace.explain.claims import format_value
from proplace.schema.features import Binary, Continuous, Ordinal
from proplace.schema.values import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proplace.schema.rules import AnyFeature
    from proplace.schema.schema import Schema

_PLAIN = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_GROUPS = re.compile(r"[-+]?[0-9]{1,3}(?:[,' \u00a0\u202f][0-9]{3})+(?:\.[0-9]+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]{1,2}")
_SIGNS = re.compile(r"[$€£¥%\s]+")
_KNOWN = "€£¥\u00a0\u202f"
_LONGEST = 40


class FieldErrors(InputError):
    """All errors of a form, by field. The empty name stands for the form itself."""

    def __init__(self, errors: Mapping[str, str] | None = None) -> None:
        self.errors = dict(errors or {})
        super().__init__()

    def __str__(self) -> str:
        return "; ".join(f"{name}: {text}" if name else text for name, text in self.errors.items())

    def add(self, name: str, text: str) -> None:
        """Add an error about a field, unless it has one already."""
        self.errors.setdefault(name, text)

    def unknown(self, name: object, known: Iterable[str]) -> None:
        """Add an error about a name that is not a feature."""
        self.add(str(name)[:_LONGEST], f"is not a feature{did_you_mean(name, known)}")

    def raise_any(self) -> None:
        """Raise if there are errors."""
        if self.errors:
            raise self


@dataclass(frozen=True)
class Field:
    """One feature in a form.

    Attributes
    ----------
    name, title, hint
        The name of the column, its title, and its legal values.
    text
        The content of the field.
    choices
        Values and their words. Empty for a number.
    error
        The error about the field. Empty without one.
    """

    name: str
    title: str
    hint: str
    text: str
    choices: tuple[tuple[str, str], ...] = ()
    error: str = ""


def fields_of(
    schema: Schema, values: Mapping[str, Any], errors: Mapping[str, str] | None = None
) -> list[Field]:
    """Return the form of a person. Values may be missing or not valid."""
    return [
        Field(
            each.name,
            each.title,
            hint_of(each),
            text_of(values.get(each.name)),
            choices_of(each),
            (errors or {}).get(each.name, ""),
        )
        for each in schema.features
    ]


def choices_of(feature: AnyFeature) -> tuple[tuple[str, str], ...]:
    """Return the values of a feature that is not a number, each with its word."""
    if isinstance(feature, Continuous):
        return ()
    return tuple((text_of(label), format_value(feature, label)) for label in feature.labels)


def text_of(value: Any) -> str:
    """Write a value for a form: all digits, and whole numbers without a point."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def read_value(feature: AnyFeature, given: Any) -> Any:
    """Read a value as people write it. Text that cannot be read is returned unchanged.

    Examples
    --------
    >>> income = Continuous("income", 0, 500_000, unit="dollars")
    >>> [read_value(income, text) for text in ("50,000", "34.5", "$1 200", "34,5", "1e3", "x")]
    [50000.0, 34.5, 1200.0, 34.5, 1000.0, 'x']
    >>> read_value(Continuous("share", 0, 1), "95%"), read_value(Continuous("loan", 0, 150), "95 %")
    (0.95, 95.0)
    """
    if not isinstance(given, str):
        return given
    if isinstance(feature, Continuous):
        number = _number(given, feature.unit or "")
        if number is None:
            return given.strip()[:_LONGEST]
        is_share = feature.upper is not None and feature.upper <= 1.0
        return number / 100.0 if "%" in given and is_share else number
    labels = {text_of(label): label for label in feature.labels}
    words = {word.casefold(): text for text, word in choices_of(feature)}
    text = given if given in labels else words.get(given.strip().casefold(), given.strip())
    return labels.get(text, text[:_LONGEST])


def _number(text: str, unit: str) -> float | None:
    """Read a number with a currency sign, a unit or groups of digits. None if it is not a number."""
    text = text.strip()
    if len(text) > _LONGEST or not all(sign.isascii() or sign in _KNOWN for sign in text):
        return None
    if unit and text.casefold().endswith(unit.casefold()):
        text = text[: -len(unit)]
    text = _SIGNS.sub("", text.strip("$€£¥% ")) if not _GROUPS.fullmatch(text) else text
    if _GROUPS.fullmatch(text):
        text = re.sub(r"[,' \u00a0\u202f]", "", text)
    elif _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    return float(text) if _PLAIN.fullmatch(text) else None


def hint_of(feature: AnyFeature) -> str:
    """Describe the legal values."""
    if not isinstance(feature, Continuous):
        return "one of " + ", ".join(word for _, word in choices_of(feature))
    parts = []
    if feature.lower is not None and feature.upper is not None:
        low = amount(feature, feature.lower, unit=False, exact=True)
        parts.append(f"{low} to {amount(feature, feature.upper, exact=True)}")
    elif feature.unit:
        parts.append(f"a number, in {feature.unit}")
    else:
        parts.append("a number")
    if feature.step is not None and feature.step != 1.0:
        parts.append(f"in steps of {amount(feature, feature.step, unit=False, exact=True)}")
    elif feature.step == 1.0:
        parts.append("a whole number")
    return ", ".join(parts)


def may_change(feature: AnyFeature) -> str:
    """Describe the directions in which a feature may change. Empty for any."""
    if feature.immutable:
        return "stays as it is"
    if isinstance(feature, (Continuous, Ordinal, Binary)) and feature.direction:
        return "may only rise" if feature.direction == "increasing" else "may only fall"
    return ""
