"""An explanation on a page: its headline, its bars and its table. Geometry is in percent."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proplace.explain.claims import format_value
from proplace.schema.features import Continuous
from proplace.schema.values import amount, is_number
from proplace.serve.forms import choices_of, may_change, text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from proplace.explain.words import Wording
    from proplace.schema.rules import AnyFeature
    from proplace.schema.schema import Schema

_COUNTS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


@dataclass(frozen=True)
class Mark:
    """A value on a bar: its position in percent, and the value in words."""

    at: float
    text: str

    @property
    def anchor(self) -> str:
        """The side on which the words stand, so that they stay within the picture."""
        return "start" if self.at < 22 else "end" if self.at > 78 else "middle"


@dataclass(frozen=True)
class Bar:
    """One feature: its marks on the range of the training rows, and its control.

    Attributes
    ----------
    today, enough
        The value today, and the value of the counterfactual. None if the feature does not change.
    guaranteed
        Both ends of the guaranteed range. They are equal if the value alone is proved.
    goal
        The proved values in words.
    low, high, step, value
        Settings of the slider. Not used for a feature with ``choices``.
    """

    name: str
    title: str
    today: Mark
    enough: Mark | None = None
    guaranteed: tuple[float, float] | None = None
    goal: str = ""
    ends: tuple[str, str] = ("", "")
    low: float = 0.0
    high: float = 0.0
    step: float = 1.0
    value: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class Row:
    """A feature of a person in words."""

    name: str
    title: str
    text: str
    note: str


def date(text: str | None) -> str:
    """Write the day of a date or a time.

    Examples
    --------
    >>> date("2027-05-31"), date(None)
    ('31 May 2027', 'no end')
    """
    if not text:
        return "no end"
    day = datetime.date.fromisoformat(text[:10])
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


def headline(document: Mapping[str, Any], wording: Wording) -> str:
    """Describe a result in one sentence that states only what is proved."""
    subject, outcome = wording.subject, document["outcome"]
    if document["status"] == "already_valid":
        return f"{subject[:1].upper()}{subject[1:]} is {outcome} today. Nothing has to change."
    if not document["found"]:
        return f"No change was found that could be promised to get {subject} {outcome}."
    count = len(document["claims"])
    many = _COUNTS[count] if count < len(_COUNTS) else str(count)
    text = f"{many} change{'s' * (count != 1)} would get {subject} {outcome}"
    return (
        f"{text}, and keep it {outcome} after retraining."
        if document["guaranteed"]
        else f"{text} today."
    )


def rows(schema: Schema, values: Mapping[str, Any]) -> list[Row]:
    """Return the features of a person in words."""
    return [
        Row(each.name, each.title, _words(each, values.get(each.name)), may_change(each))
        for each in schema.features
    ]


def bars(
    schema: Schema,
    document: Mapping[str, Any],
    values: Mapping[str, Any],
    ranges: Mapping[str, tuple[float, float]],
) -> list[Bar]:
    """Return one bar for each change of an explanation."""
    found = []
    for claim in document["claims"]:
        feature = schema.by_name.get(claim["name"])
        if feature is None:
            continue
        before, after = claim["from"], claim["to"]
        if not isinstance(feature, Continuous):
            found.append(_switch(feature, before, after, claim["goal"]))
            continue
        low = after if claim["low"] is None else max(claim["low"], -1e300)
        high = after if claim["high"] is None else min(claim["high"], 1e300)
        found.append(
            _bar(feature, before, ranges.get(feature.name), after, (low, high), claim["goal"])
        )
    return found


def more(
    schema: Schema,
    values: Mapping[str, Any],
    ranges: Mapping[str, tuple[float, float]],
    names: Collection[str],
) -> list[Bar]:
    """Return a bar for each other feature that may change."""
    found = []
    for feature in schema.features:
        value = values.get(feature.name)
        if feature.immutable or feature.name in names or value is None:
            continue
        if isinstance(feature, Continuous):
            found.append(_bar(feature, float(value), ranges.get(feature.name)))
        else:
            found.append(_switch(feature, value, None, ""))
    return found


def _bar(
    feature: Continuous,
    before: float,
    people: tuple[float, float] | None,
    after: float | None = None,
    proved: tuple[float, float] | None = None,
    goal: str = "",
) -> Bar:
    """Return the bar of a number on the range of the training rows, widened to all shown values."""
    first, last = people or (before, before)
    known = [first, last, before, *([] if after is None else [after])]
    low, high = min(known), max(known)
    if low == high:
        low, high = low - 1.0, high + 1.0
    step = feature.step
    if step:
        start = feature.lower or 0.0
        low = start + step * ((low - start) // step)
        high = start + step * -((start - high) // step)

    def at(value: float) -> float:
        return round(100.0 * min(max((value - low) / (high - low), 0.0), 1.0), 2)

    def mark(value: float) -> Mark:
        return Mark(at(value), amount(feature, value, unit=False))

    return Bar(
        feature.name,
        feature.title,
        mark(before),
        None if after is None else mark(after),
        None if proved is None else (at(proved[0]), at(proved[1])),
        goal,
        (amount(feature, low, unit=False), amount(feature, high, unit=False)),
        low,
        high,
        step or (high - low) / 200.0,
        text_of(float(before if after is None else after)),
        unit=feature.unit or "",
    )


def _switch(feature: AnyFeature, before: Any, after: Any, goal: str) -> Bar:
    """Return the bar of a feature whose values are names."""
    return Bar(
        feature.name,
        feature.title,
        Mark(0.0, format_value(feature, before)),
        None if after is None else Mark(100.0, format_value(feature, after)),
        None,
        goal,
        value=text_of(before if after is None else after),
        choices=choices_of(feature),
    )


def specialists(document: Mapping[str, Any], model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures behind a result, each with its name."""
    found = [
        ("status", document["status"]),
        ("reason", document["reason"]),
        ("model", model["model"]),
        ("delta", str(model["delta"])),
        ("smallest margin over the guarantee", _figure(document["margin"])),
        ("distance", _figure(document["distance"])),
        ("proved lower bound of the distance", _figure(document["bound"])),
        ("plausibility", _figure(document["plausibility"])),
        ("within the plausible region", "yes" if document["in_region"] else "no"),
        ("timed out", "yes" if document["timed_out"] else "no"),
        ("certificate (SHA-256)", document["certificate"] or ""),
    ]
    return [(name, text) for name, text in found if text]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _words(feature: AnyFeature, value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(feature, Continuous) and is_number(value):
        return amount(feature, value, exact=True)
    return format_value(feature, value)
