"""Rules between features: linear inequalities, and consequences of a category.

Rules are in original units. :mod:`proplace.schema.person` turns them into inequalities over the
encoded columns.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from proplace.core.text import did_you_mean, listing, num, short
from proplace.schema import values
from proplace.schema.features import Binary, Categorical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from proplace.schema.features import Continuous, Ordinal
    from proplace.schema.values import Label

    AnyFeature = Continuous | Ordinal | Categorical | Binary
    Features = Mapping[str, AnyFeature]


@dataclass(frozen=True, repr=False)
class Then(values.Checked):
    """A consequence: a feature has one of some categories, a value in a range, or a change in a range.

    Parameters
    ----------
    feature
        Name of the feature.
    category
        A category, or a list of categories, for a feature that has them.
    at_least, at_most
        Ends of the new value of a number. One of them is optional.
    change
        True if the ends are those of the change: new value minus old value.

    Examples
    --------
    >>> print(Then("age", at_least=4, change=True).words({}))
    age rises by at least 4
    >>> print(Then("age", at_least=21).words({}), "|", Then("job", ["clerk", "cook"]).words({}))
    age is at least 21 | job is clerk or cook
    """

    _CONVERT: ClassVar[Mapping[str, values.Convert]] = {
        "feature": values.name,
        "category": values.one_or_more,
        "at_least": values.finite,
        "at_most": values.finite,
        "change": values.boolean,
    }

    feature: str
    category: Label | Sequence[Label] | None = None
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None
    change: bool = False

    @property
    def kind(self) -> Literal["is", "change", "value"]:
        """The word of schema files for it."""
        if self.category is not None:
            return "is"
        return "change" if self.change else "value"

    def _problems(self) -> Iterable[str]:
        bounded = self.at_least is not None or self.at_most is not None
        if self.category is None and not bounded:
            return ["give category, at_least or at_most"]
        if self.category is not None and (bounded or self.change):
            return ["category stands alone: leave at_least, at_most and change out"]
        return _bound_problems("at_least", self.at_least, "at_most", self.at_most)

    def words(self, features: Features) -> str:
        """Describe the consequence."""
        name = title(self.feature, features)
        if self.category is not None:
            return f"{name} is {_either(self.category)}"
        if not self.change:
            return f"{name} is {_between(self.at_least, self.at_most)}"
        parts = []
        if self.at_least is not None:
            parts.append(_change(self.at_least, "does not fall", "at least", "at most"))
        if self.at_most is not None:
            parts.append(_change(self.at_most, "does not rise", "at most", "at least"))
        return f"{name} {' and '.join(parts)}"

    def problems(self, features: Features) -> list[str]:
        """List the problems of the consequence in a schema with these features."""
        if self.category is not None:
            return label_problems(self.feature, self.category, features)
        return numeric_problems(self.feature, features)


@dataclass(frozen=True, repr=False)
class Linear(values.Checked):
    """``lower <= sum of coefficient * value <= upper``, in original units.

    Parameters
    ----------
    terms
        Coefficient of each numeric feature. An ordinal feature counts as its number, a binary one
        as 0 or 1.
    lower, upper
        Bounds of the sum. One of them is optional.
    name
        Name of the rule in reports, instead of the formula.

    Examples
    --------
    >>> Linear({"savings": 1, "debt": -0.5}, lower=0).words({})
    'savings - 0.5*debt is at least 0'
    """

    _CONVERT: ClassVar[Mapping[str, values.Convert]] = {
        "terms": values.by_name(values.finite),
        "lower": values.finite,
        "upper": values.finite,
        "name": values.text,
    }

    terms: Mapping[str, float]
    _: KW_ONLY
    lower: float | None = None
    upper: float | None = None
    name: str | None = None
    kind: ClassVar[Literal["linear"]] = "linear"

    def _problems(self) -> Iterable[str]:
        if not any(self.terms.values()):
            return ["terms need at least one coefficient that differs from 0"]
        if self.lower is None and self.upper is None:
            return ["give lower or upper, or both"]
        return _bound_problems("lower", self.lower, "upper", self.upper)

    def words(self, features: Features) -> str:
        """Describe the rule."""
        if self.name:
            return self.name
        text = ""
        for name, coefficient in self.terms.items():
            sign = ("-" if not text else " - ") if coefficient < 0 else ("" if not text else " + ")
            factor = "" if abs(coefficient) == 1 else f"{num(abs(coefficient))}*"
            text += f"{sign}{factor}{title(name, features)}"
        return f"{text} is {_between(self.lower, self.upper)}"

    def problems(self, features: Features) -> list[str]:
        """List the problems of the rule in a schema with these features."""
        return [text for name in self.terms for text in numeric_problems(name, features)]


@dataclass(frozen=True, repr=False)
class IfThen(values.Checked):
    """Consequences of a category.

    Parameters
    ----------
    when
        Category, or list of categories, of each categorical or binary feature in the condition. All
        must hold.
    then
        Consequences, all of which must hold.
    becomes
        True if the rule is only for people who did not meet the condition before, False if it holds
        whenever the new values meet it.
    name
        Name of the rule in reports, instead of the sentence.

    Examples
    --------
    >>> IfThen({"education": "Doctorate"}, [Then("age", at_least=4, change=True)]).words({})
    'if education becomes Doctorate then age rises by at least 4'
    """

    _CONVERT: ClassVar[Mapping[str, values.Convert]] = {
        "when": values.by_name(values.one_or_more),
        "then": values.parts(Then, word="consequence"),
        "becomes": values.boolean,
        "name": values.text,
    }

    when: Mapping[str, Label | Sequence[Label]]
    then: Sequence[Then]
    _: KW_ONLY
    becomes: bool = True
    name: str | None = None
    kind: ClassVar[Literal["if_then"]] = "if_then"

    def words(self, features: Features) -> str:
        """Describe the rule."""
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
        """List the problems of the rule in a schema with these features."""
        found = [
            text
            for name, labels in self.when.items()
            for text in label_problems(name, labels, features)
        ]
        return found + [text for part in self.then for text in part.problems(features)]


Rule = Linear | IfThen


def as_labels(labels: Label | Sequence[Label]) -> tuple[Label, ...]:
    """Return labels as a tuple, also a single one."""
    return labels if isinstance(labels, tuple) else (labels,)


def title(name: str, features: Features) -> str:
    """Return the name of a feature in words."""
    return features[name].title if name in features else name


def numeric_problems(name: str, features: Features) -> list[str]:
    """List the problems of using a feature as a number."""
    if name not in features:
        return [_unknown(name, features)]
    if isinstance(features[name], Categorical):
        return [f"{short(name)} is categorical and has no number"]
    return []


def label_problems(name: str, labels: Label | Sequence[Label], features: Features) -> list[str]:
    """List the problems of comparing a feature with these labels."""
    if name not in features:
        return [_unknown(name, features)]
    feature = features[name]
    if not isinstance(feature, (Categorical, Binary)):
        return [
            f"{short(name)} is {feature.kind}. Only categorical and binary features have categories"
        ]
    known = feature.labels
    return [
        f"{short(label)} is not a category of {short(name)}{did_you_mean(label, known)}. "
        f"Its categories are {listing(known)}"
        for label in as_labels(labels)
        if label not in known
    ] + ([] if as_labels(labels) else [f"the list of categories of {short(name)} is empty"])


def _unknown(name: str, features: Features) -> str:
    return f"{short(name)} is not a feature{did_you_mean(name, features)}; features: {listing(features)}"


def _bound_problems(low: str, lower: float | None, high: str, upper: float | None) -> list[str]:
    if lower is not None and upper is not None and lower > upper:
        return [f"{low} {num(lower)} is above {high} {num(upper)}"]
    return []


def _between(lower: float | None, upper: float | None) -> str:
    if lower is None or upper is None:
        return f"at least {num(lower)}" if lower is not None else f"at most {num(upper or 0.0)}"
    return f"exactly {num(lower)}" if lower == upper else f"from {num(lower)} to {num(upper)}"


def _change(end: float, none: str, rise: str, fall: str) -> str:
    if not end:
        return none
    return f"rises by {rise} {num(end)}" if end > 0.0 else f"falls by {fall} {num(-end)}"


def _either(labels: Label | Sequence[Label]) -> str:
    return " or ".join(str(label) for label in as_labels(labels))
