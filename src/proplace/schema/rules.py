"""Rules between features: linear inequalities, and consequences of a category.

Rules speak of original units. :mod:`proplace.schema.person` turns them into inequalities over the
encoded columns.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from proplace.core.text import did_you_mean, listing, num, short
from proplace.schema import fields
from proplace.schema.features import Binary, Categorical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proplace.schema.features import Continuous, Ordinal
    from proplace.schema.values import Label

    AnyFeature = Continuous | Ordinal | Categorical | Binary
    Features = Mapping[str, AnyFeature]

_BOUNDED = {"feature": fields.name, "at_least": fields.number, "at_most": fields.number}


@dataclass(frozen=True, repr=False)
class Change(fields.Checked):
    """A consequence: the feature changes by at least and at most so much.

    The change is new value minus old value, so ``at_least=4`` is a rise by 4 or more.

    Examples
    --------
    >>> Change("age", at_least=4).words({})
    'age rises by at least 4'
    """

    _CONVERT: ClassVar[fields.Converters] = _BOUNDED

    feature: str
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None
    kind: ClassVar[Literal["change"]] = "change"

    def _check(self) -> None:
        _check_bounds("at_least", self.at_least, "at_most", self.at_most)

    def words(self, features: Features) -> str:
        """Say the consequence in words."""
        parts = []
        if self.at_least is not None:
            least = self.at_least
            parts.append(
                "does not fall"
                if least == 0
                else f"rises by at least {num(least)}"
                if least > 0
                else f"falls by at most {num(-least)}"
            )
        if self.at_most is not None:
            most = self.at_most
            parts.append(
                "does not rise"
                if most == 0
                else f"rises by at most {num(most)}"
                if most > 0
                else f"falls by at least {num(-most)}"
            )
        return f"{title(self.feature, features)} {' and '.join(parts)}"

    def problems(self, features: Features) -> list[str]:
        """Say what is wrong with the consequence in a schema with these features."""
        return numeric_problems(self.feature, features)


@dataclass(frozen=True, repr=False)
class Value(fields.Checked):
    """A consequence: the new value of the feature is at least and at most so much.

    Examples
    --------
    >>> Value("age", at_least=21).words({})
    'age is at least 21'
    """

    _CONVERT: ClassVar[fields.Converters] = _BOUNDED

    feature: str
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None
    kind: ClassVar[Literal["value"]] = "value"

    def _check(self) -> None:
        _check_bounds("at_least", self.at_least, "at_most", self.at_most)

    def words(self, features: Features) -> str:
        """Say the consequence in words."""
        return f"{title(self.feature, features)} is {_between(self.at_least, self.at_most)}"

    def problems(self, features: Features) -> list[str]:
        """Say what is wrong with the consequence in a schema with these features."""
        return numeric_problems(self.feature, features)


@dataclass(frozen=True, repr=False)
class Is(fields.Checked):
    """A consequence: the feature has this category, or one of these.

    Examples
    --------
    >>> Is("job", ["clerk", "cook"]).words({})
    'job is clerk or cook'
    """

    _CONVERT: ClassVar[fields.Converters] = {"feature": fields.name, "category": fields.one_or_more}

    feature: str
    category: Label | Sequence[Label]
    _: KW_ONLY
    kind: ClassVar[Literal["is"]] = "is"

    def words(self, features: Features) -> str:
        """Say the consequence in words."""
        return f"{title(self.feature, features)} is {_either(self.category)}"

    def problems(self, features: Features) -> list[str]:
        """Say what is wrong with the consequence in a schema with these features."""
        return label_problems(self.feature, self.category, features)


Consequence = Change | Value | Is


@dataclass(frozen=True, repr=False)
class Linear(fields.Checked):
    """``lower <= sum of coefficient * value <= upper``, in original units.

    Parameters
    ----------
    terms
        Coefficient of each numeric feature. An ordinal feature counts as its number, a binary one
        as 0 or 1.
    lower, upper
        Bounds of the sum; one of them may be left out.
    name
        What to call the rule in reports, instead of the formula.

    Examples
    --------
    >>> Linear({"savings": 1, "debt": -0.5}, lower=0).words({})
    'savings - 0.5*debt is at least 0'
    """

    _CONVERT: ClassVar[fields.Converters] = {
        "terms": fields.by_name(fields.number),
        "lower": fields.number,
        "upper": fields.number,
        "name": fields.text,
    }

    terms: Mapping[str, float]
    _: KW_ONLY
    lower: float | None = None
    upper: float | None = None
    name: str | None = None
    kind: ClassVar[Literal["linear"]] = "linear"

    def _check(self) -> None:
        if not any(self.terms.values()):
            raise ValueError("at least one coefficient must differ from 0")
        _check_bounds("lower", self.lower, "upper", self.upper)

    def words(self, features: Features) -> str:
        """Say the rule in words."""
        if self.name:
            return self.name
        text = ""
        for name, coefficient in self.terms.items():
            sign = ("-" if not text else " - ") if coefficient < 0 else ("" if not text else " + ")
            factor = "" if abs(coefficient) == 1 else f"{num(abs(coefficient))}*"
            text += f"{sign}{factor}{title(name, features)}"
        return f"{text} is {_between(self.lower, self.upper)}"

    def problems(self, features: Features) -> list[str]:
        """Say what is wrong with the rule in a schema with these features."""
        return [text for name in self.terms for text in numeric_problems(name, features)]


@dataclass(frozen=True, repr=False)
class IfThen(fields.Checked):
    """If a feature has a category, then something else holds.

    Parameters
    ----------
    when
        Category, or list of categories, of each feature in the condition; all must hold. Only
        categorical and binary features can stand here.
    then
        Consequences, all of which must hold: :class:`Change`, :class:`Value` or :class:`Is`.
    becomes
        True: only for a person who did not meet the condition before. False: whenever the new
        values meet it.
    name
        What to call the rule in reports, instead of the sentence.

    Examples
    --------
    >>> IfThen({"education": "Doctorate"}, [Change("age", at_least=4)]).words({})
    'if education becomes Doctorate then age rises by at least 4'
    """

    _CONVERT: ClassVar[fields.Converters] = {
        "when": fields.by_name(fields.one_or_more),
        "then": fields.parts(Change, Value, Is),
        "becomes": fields.boolean,
        "name": fields.text,
    }

    when: Mapping[str, Label | Sequence[Label]]
    then: Sequence[Consequence]
    _: KW_ONLY
    becomes: bool = True
    name: str | None = None
    kind: ClassVar[Literal["if_then"]] = "if_then"

    def words(self, features: Features) -> str:
        """Say the rule in words."""
        if self.name:
            return self.name
        verb = "becomes" if self.becomes else "is"
        condition = " and ".join(
            f"{title(name, features)} {verb} {_either(labels)}"
            for name, labels in self.when.items()
        )
        consequences = " and ".join(part.words(features) for part in self.then)
        return f"if {condition} then {consequences}"

    def problems(self, features: Features) -> list[str]:
        """Say what is wrong with the rule in a schema with these features."""
        found = [
            text
            for name, labels in self.when.items()
            for text in label_problems(name, labels, features)
        ]
        return found + [text for part in self.then for text in part.problems(features)]


Rule = Linear | IfThen


def as_labels(labels: Label | Sequence[Label]) -> tuple[Label, ...]:
    """One label is a list of one."""
    return labels if isinstance(labels, tuple) else (labels,)


def title(name: str, features: Features) -> str:
    """Return what to call a feature in words."""
    return features[name].title if name in features else name


def numeric_problems(name: str, features: Features) -> list[str]:
    """Say what is wrong with using a feature as a number."""
    if name not in features:
        return [_unknown(name, features)]
    if isinstance(features[name], Categorical):
        return [f"{short(name)} is categorical and has no number"]
    return []


def label_problems(name: str, labels: Label | Sequence[Label], features: Features) -> list[str]:
    """Say what is wrong with asking whether a feature has one of these labels."""
    if name not in features:
        return [_unknown(name, features)]
    feature = features[name]
    if not isinstance(feature, (Categorical, Binary)):
        return [
            f"{short(name)} is {feature.kind}; only categorical and binary features have categories"
        ]
    known = feature.labels
    return [
        f"{short(label)} is not a category of {short(name)}{did_you_mean(label, known)}; "
        f"its categories are {listing(known)}"
        for label in as_labels(labels)
        if label not in known
    ] + ([] if as_labels(labels) else [f"the list of categories of {short(name)} is empty"])


def _unknown(name: str, features: Features) -> str:
    return f"{short(name)} is not a feature{did_you_mean(name, features)}; features: {listing(features)}"


def _check_bounds(low: str, lower: float | None, high: str, upper: float | None) -> None:
    if lower is None and upper is None:
        raise ValueError(f"give {low} or {high}, or both")
    if lower is not None and upper is not None and lower > upper:
        raise ValueError(f"{low} {num(lower)} is above {high} {num(upper)}")


def _between(lower: float | None, upper: float | None) -> str:
    if lower is None or upper is None:
        return f"at least {num(lower)}" if lower is not None else f"at most {num(upper or 0.0)}"
    return f"exactly {num(lower)}" if lower == upper else f"from {num(lower)} to {num(upper)}"


def _either(labels: Label | Sequence[Label]) -> str:
    return " or ".join(str(label) for label in as_labels(labels))
