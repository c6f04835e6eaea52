"""A person as a form: one field for each feature of the schema, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from proplace.schema import Binary, Continuous, Ordinal
from proplace.schema.amounts import amount
from proplace.schema.cells import is_number
from proplace.tables.files import numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.datastructures import FormData

    from proplace.apps.serve.catalogue import Catalogue
    from proplace.schema.rules import AnyFeature
    from proplace.schema.validation import Label

PREFIX = "is:"
"""In front of the name of a feature, which may be any text, in a form."""


@dataclass(frozen=True)
class Choice:
    """One of the values of a feature: as a form sends it, as JSON has it, as people read it."""

    text: str
    value: Label
    shown: str


@dataclass(frozen=True)
class Field:
    """One feature.

    Attributes
    ----------
    number, name, title
        Its place in the schema, its name, and what to call it.
    unit, hint
        The unit of a number, and what is legal, in words.
    choices
        The values of what is no number.
    lower, upper, step
        The range of a number, and by how much a slider moves it; None where there is no range.
    immutable
        Whether it cannot change.
    number_like
        Whether it is a number, for which there can be a tolerance.
    optional
        Whether it may be left out.
    value, text, shown
        What it is now: as it is, as a form holds it, and as people read it.
    """

    number: int
    name: str
    title: str
    unit: str
    hint: str
    choices: tuple[Choice, ...]
    lower: float | None
    upper: float | None
    step: float | None
    immutable: bool
    number_like: bool
    optional: bool
    value: Any
    text: str
    shown: str

    @property
    def key(self) -> str:
        """Its name in a form."""
        return PREFIX + self.name

    @property
    def slides(self) -> bool:
        """Whether a slider can show it."""
        return self.number_like and self.lower is not None and self.upper is not None


def fields_of(
    features: Iterable[AnyFeature], person: Mapping[str, Any], t: Catalogue
) -> list[Field]:
    """The form of a person; ``person`` may lack values, or hold texts that are none."""
    return [_field(n, one, person.get(one.name), t) for n, one in enumerate(features)]


def _field(number: int, feature: AnyFeature, value: Any, t: Catalogue) -> Field:
    numeric = isinstance(feature, Continuous)
    choices = () if isinstance(feature, Continuous) else choices_of(feature, t)
    lower, upper = (
        (feature.lower, feature.upper) if isinstance(feature, Continuous) else (None,) * 2
    )
    return Field(
        number=number,
        name=feature.name,
        title=feature.title,
        unit=getattr(feature, "unit", None) or "",
        hint=_hint(feature, t),
        choices=choices,
        lower=lower,
        upper=upper,
        step=_step(feature) if isinstance(feature, Continuous) else None,
        immutable=feature.immutable,
        number_like=numeric,
        optional=feature.missing is not None,
        value=value,
        text=plain_text(value),
        shown=shown_value(feature, value, t),
    )


def shown_value(feature: AnyFeature | None, value: Any, t: Catalogue) -> str:
    """A value as people read it; as it is where it is no value of the feature."""
    if isinstance(feature, Continuous) and is_number(value):
        return amount(feature, value, exact=True)
    text = plain_text(value)
    choices = () if feature is None else choices_of(feature, t)
    return next((choice.shown for choice in choices if choice.text == text), text)


def choices_of(feature: AnyFeature, t: Catalogue) -> tuple[Choice, ...]:
    """The values of a feature that is no number."""
    labels: tuple[Label, ...] = () if isinstance(feature, Continuous) else tuple(feature.labels)
    said = (t("field.no"), t("field.yes")) if labels == (0, 1) else tuple(map(str, labels))
    return tuple(
        Choice(plain_text(label), label, word) for label, word in zip(labels, said, strict=True)
    )


def person_from(form: FormData, features: Iterable[AnyFeature]) -> dict[str, Any]:
    """What a form says of a person; a text that is no value stays, and is refused by its name later."""
    person = {}
    for feature in features:
        given = form.get(PREFIX + feature.name)
        value = _value(given, feature) if isinstance(given, str) else ""
        if value != "":
            person[feature.name] = value
    return person


def _value(given: str, feature: AnyFeature) -> Any:
    text = given.strip()
    if not isinstance(feature, Continuous):
        # As it was sent first: levels may differ in outer spaces alone.
        levels = {plain_text(label): label for label in feature.labels}
        return levels.get(given, levels.get(text, text))
    (number,) = numbers_of(pd.Series([text], dtype=object))  # as the interface and files are read
    return float(number) if is_number(number) and math.isfinite(number) else text


def plain_text(value: Any) -> str:
    """A value as a form holds it: with all its digits, and whole numbers without a point."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def named_in(text: str, fields: Iterable[Field]) -> list[Field]:
    """The fields that an error speaks of, by the names of their columns in quotes."""
    return [field for field in fields if repr(field.name) in text]


def _step(feature: Continuous) -> float | None:
    if feature.lower is None or feature.upper is None:
        return None
    return feature.step or (feature.upper - feature.lower) / 200.0


def _range(feature: Continuous, t: Catalogue) -> list[str]:
    """Between which numbers it lies, with the unit; nothing where there is nothing to say."""
    low, high = feature.lower, feature.upper
    if low is not None and high is not None:
        ends = amount(feature, low, unit=False, exact=True), amount(feature, high, exact=True)
        return [t("field.range", low=ends[0], high=ends[1])]
    if low is not None:
        return [t("field.from", low=amount(feature, low, exact=True))]
    if high is not None:
        return [t("field.to", high=amount(feature, high, exact=True))]
    return [feature.unit] if feature.unit else []


def _hint(feature: AnyFeature, t: Catalogue) -> str:
    """What is legal."""
    parts = []
    if isinstance(feature, Continuous):
        parts += _range(feature, t)
    if feature.immutable:
        parts.append(t("field.immutable"))
    elif isinstance(feature, Binary) and feature.direction:
        last = choices_of(feature, t)[feature.direction == "increasing"]
        parts.append(t("field.becomes", value=last.shown))
    elif isinstance(feature, (Continuous, Ordinal)) and feature.direction:
        parts.append(t(f"field.{feature.direction}"))
    if feature.missing is not None:
        parts.append(t("field.optional"))
    return "; ".join(parts)
