"""An explanation as a sentence and a small table, in original units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from proplace.core.errors import OptionError
from proplace.core.text import clipped, did_you_mean, enumerated, listing, visible
from proplace.explain.findings import CERTIFIABLE
from proplace.explain.interval_words import Held, held
from proplace.explain.several import IN_USE
from proplace.explain.values import difference, pair, shown, yes_or_no
from proplace.schema.amounts import number
from proplace.schema.features import Binary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.explain.results import Explanation, Setting
    from proplace.schema.cells import Label
    from proplace.schema.rules import AnyFeature

_ANSWER = "{subject} would have been {outcome} {changes}{promise}."
_ANOTHER = "{subject} would also have been {outcome} {changes}{promise}."
_ALREADY = "{subject} would be {outcome} without any change{promise}."
_NO_ANSWER = "No change can be promised after which {subject} would be {outcome}: {reason}."
_RULES = (
    "Within what may change for this person, no change can be promised after which {subject} "
    "would be {outcome}: {reason}."
)
_FIXED = "{subject} would not be {outcome} whatever this person changed: {reason}."
_BAD = "This row could not be explained: {reason}."

_CHANGE = "{title} were {to} instead of {before}"
_NEXT_CHANGE = "{title} {to} instead of {before}"  # the verb is that of the first
_MANY = 5  # changes that a sentence can name; of more it names the largest, and the list has all
_NAMED = 3
_TOGETHER = "with {count} changes together; the largest are {largest}"
_LARGE = "{title} {to} instead of {before}"

_EVERY = "; this is proved for every network {within}"
_AT_ONCE = ", and for all of these values at once"
_RANGED = " up to the ends of their ranges"
_ALSO_NOW = "; the model in use lies outside of this set, and accepts it as well"
_NOT_NOW = "; the model in use lies outside of this set, and does not accept it"
_TODAY = "; this is shown for the model in use only, a retrained one may answer otherwise"
_UNPROVED = "; it is not shown that this lasts when the model is retrained"

_ABOUT = 160  # characters that a sentence repeats of where a set comes from
_DIGITS = 12  # of a digest that stands in the place of a name

_NOT_NEAREST = (
    " A nearer answer may exist, but none in the searched region is more than {share} nearer."
)
_UNKNOWN = " A nearer answer may exist."
_FEWER = " Fewer changes may be possible."
_TYPICAL = " These values are typical of accepted people (plausibility {share})."
_UNUSUAL = " These values are unusual among accepted people (plausibility {share})."


@dataclass(frozen=True)
class Wording:
    """What to call things.

    Parameters
    ----------
    subject
        What is decided on, inside a sentence: ``"the loan"``.
    outcomes
        Words for the classes, by label: ``{"no": "refused", "yes": "approved"}``. A list in the order
        of the classes is accepted for the labels 0, 1, ... or False and True alone.
    person
        What to call a row: ``"applicant"``.
    """

    subject: str = "the outcome"
    outcomes: Sequence[str] | Mapping[Label, str] = ()
    person: str = "person"

    def outcome(self, target: int, classes: Sequence[Label] = ()) -> str:
        """Return the word for a class, given by its number; without one, its label."""
        words = self._by_label(classes)
        label = classes[target] if target < len(classes) else target
        word = next((word for known, word in words if _is_label(known, label)), None)
        if word is not None:
            return word
        return label if isinstance(label, str) and label.strip() else f"class {label}"

    def _by_label(self, classes: Sequence[Label]) -> list[tuple[Label, str]]:
        """Return pairs of a label and its word; raise if they do not fit the classes."""
        given = self.outcomes
        if isinstance(given, str):
            raise OptionError(
                f"outcomes must hold one word per class, such as ['refused', 'approved'], "
                f"not the text {given!r}",
                name="outcomes",
                value=given,
            )
        if isinstance(given, Mapping):
            pairs = list(given.items())
            for label, _ in pairs:
                if classes and not any(_is_label(label, known) for known in classes):
                    raise OptionError(
                        f"outcomes has a word for {label!r}, which is not a class"
                        f"{did_you_mean(label, classes)}; the classes are {listing(classes)}",
                        name="outcomes",
                        value=label,
                    )
            return pairs
        numbered = all(label == number for number, label in enumerate(classes))
        same = [str(label) for label in classes] == list(given)
        if given and classes and not (len(given) == len(classes) and (numbered or same)):
            example = ", ".join(f"{label!r}: ..." for label in classes[:2])
            raise OptionError(
                f"outcomes lists {len(given)} words by position, but the classes are "
                f"{listing(classes)}; name them by label, such as {{{example}}}",
                name="outcomes",
                value=given,
            )
        return list(enumerate(given))


def _is_label(known: Label, label: Label) -> bool:
    """Test if two labels are the same; text is never a number."""
    return isinstance(known, str) == isinstance(label, str) and known == label


@dataclass(frozen=True)
class Terms:
    """What a page or a picture calls things.

    Attributes
    ----------
    person, outcome
        What to call a row, and what the subject is in the wanted class.
    answer, answers
        The answers themselves: "robust" only if each of them is proved.
    other, others
        The answers that they are compared with.
    """

    person: str
    outcome: str
    answer: str
    answers: str
    other: ClassVar[str] = "plain nearest answer"
    others: ClassVar[str] = "plain nearest answers"

    @classmethod
    def of(cls, result: Sequence[Explanation], wording: Wording) -> Terms:
        """Choose words that are true of some answers."""
        found = [e for e in result if e.found]
        robust = "robust " if found and all(map(proved, found)) else ""
        return cls(
            wording.person, outcome_of(result[0], wording), f"{robust}answer", f"{robust}answers"
        )


@dataclass(frozen=True)
class ChangeInWords:
    """One changed feature.

    Attributes
    ----------
    title
        What it is called.
    before, after
        Its two values, with units and all their digits.
    difference
        By how much a number rises or falls; empty where more than one value is proved to do.
    name
        Name of the feature.
    held
        The interval of a number in which the answer is proved (``Explanation.holds``).
    size
        The largest change of its encoded columns.
    """

    title: str
    before: str
    after: str
    difference: str
    name: str = ""
    held: Held | None = None
    size: float = 0.0

    @property
    def goal(self) -> str:
        """What it must become: the value, or what is proved to do as well ("at least ...")."""
        return self.after if self.held is None else self.held.goal


@dataclass(frozen=True)
class Words:
    """What :meth:`Explanation.words` returns; ``str`` of it is the sentence, and a list of many changes.

    Attributes
    ----------
    sentence
        The answer, how far it holds, and how near it is to the best; or why there is none.
    changes
        What changes, one entry per feature.
    person
        All features of the person: title and value.
    """

    sentence: str
    changes: tuple[ChangeInWords, ...]
    person: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        if len(self.changes) <= _MANY:
            return self.sentence
        listed = [f"- {c.title}: {c.goal} instead of {c.before}" for c in self.largest_first]
        return "\n".join([self.sentence, *listed])

    @property
    def largest_first(self) -> tuple[ChangeInWords, ...]:
        """The changes by their size, those of one size in the order of the table."""
        return tuple(sorted(self.changes, key=lambda c: -c.size))

    @property
    def summary(self) -> str:
        """The changes on one line, each with both of its values."""
        return "; ".join(f"{c.title} {c.before} → {c.goal}" for c in self.changes)

    def table(self) -> pd.DataFrame:
        """The changes as a table with columns ``from``, ``to`` and ``change``."""
        return pd.DataFrame(
            [[c.before, c.goal, c.difference] for c in self.changes],
            columns=["from", "to", "change"],
            index=pd.Index([c.title for c in self.changes], name="feature"),
        )


def in_words(e: Explanation, wording: Wording) -> Words:
    """Write an explanation in words."""
    features = {} if e.setting is None else e.setting.schema.by_name
    changed = [
        _Change(features.get(str(name)), str(name), before, after, _held(e, str(name)))
        for name, (before, after) in e.changed.items()
    ]
    changes = tuple(
        ChangeInWords(
            visible(_title(c.feature, c.name)),
            visible(_own(e, c.feature, c.name, c.before)),
            visible(shown(c.feature, c.after)),
            "" if c.held else visible(difference(c.feature, c.before, c.after)),
            c.name,
            c.held,
            _size(e, c.name),
        )
        for c in changed
    )
    person: tuple[tuple[str, str], ...] = ()
    if e.original is not None:
        person = tuple(
            (visible(_title(feature, str(name))), visible(_own(e, feature, str(name), value)))
            for name, value in e.original.items()
            for feature in (features.get(str(name)),)
        )
    order = sorted(range(len(changes)), key=lambda n: -changes[n].size)
    largest = [changed[n] for n in order[:_NAMED]]
    sentence = _sentence(e, wording, changed, largest) + _missing(e, features)
    return Words(visible(sentence), changes, person)


@dataclass(frozen=True)
class _Change:
    """One changed feature, before it is put in words."""

    feature: AnyFeature | None
    name: str
    before: Any
    after: Any
    held: Held | None

    def clause(self, template: str) -> str:
        """The change as a part of a sentence."""
        title = _title(self.feature, self.name)
        if isinstance(self.feature, Binary) and yes_or_no(self.feature):
            title = f"“{title}”"  # such titles are often no nouns: "has a cosigner"
        new, old = pair(self.feature, self.before, self.after)
        goal = new if self.held is None else self.held.goal
        return template.format(title=title, to=goal, before=old)


def _held(e: Explanation, name: str) -> Held | None:
    """In which interval a changed number is proved to do, where the answer itself is proved."""
    if e.setting is None or not certain(e) or name not in e.holds:
        return None
    before, after = e.changed[name]
    return held(e.setting.schema.by_name.get(name), before, after, e.holds[name])


def _size(e: Explanation, name: str) -> float:
    """The largest change of the encoded columns of a feature: 1 is another category."""
    if e.setting is None or e.x is None or e.point is None:
        return 0.0
    span = e.setting.schema.span(name)
    return float(np.abs(e.point[span] - e.x[span]).max())


def _own(e: Explanation, feature: AnyFeature | None, name: str, value: Any) -> str:
    """A value of the person's; of a missing cell, what the model counts in its place."""
    text = shown(feature, value)
    return f"missing, counted as {text}" if name in e.filled else text


def _missing(e: Explanation, features: Mapping[str, AnyFeature]) -> str:
    """Say which cells were missing, and as what the model counts them."""
    if not e.filled or e.original is None:
        return ""
    parts = [
        f"{_title(features.get(name), name)} as {shown(features.get(name), e.original[name])}"
        for name in e.filled
    ]
    return f" Missing, and counted as the model does: {', '.join(parts)}."


def _sentence(
    e: Explanation, wording: Wording, changed: Sequence[_Change], largest: Sequence[_Change]
) -> str:
    template = {
        "already_valid": _ALREADY,
        "no_robust_neighbour": _NO_ANSWER,
        "not_found": _NO_ANSWER,
        "infeasible_rules": _RULES,
        "fixed": _FIXED,
        "bad_input": _BAD,
        "solver_error": _BAD,
        "worker_died": _BAD,
        "source_disagrees": _BAD,
    }.get(e.status, _ANOTHER if e.rank else _ANSWER)
    text = template.format(
        subject=wording.subject,
        outcome=outcome_of(e, wording),
        changes=_conditions(changed, largest),
        promise=promise(e),
        reason=e.reason.rstrip("."),
    )
    return text[:1].upper() + text[1:] + how_near(e) + how_usual(e)


def _conditions(changed: Sequence[_Change], largest: Sequence[_Change]) -> str:
    """Under which changes: all of them where they can be read aloud, else how many and the largest."""
    if len(changed) > _MANY:
        named = enumerated(change.clause(_LARGE) for change in largest)
        return _TOGETHER.format(count=len(changed), largest=named)
    clauses = (c.clause(_NEXT_CHANGE if n else _CHANGE) for n, c in enumerate(changed))
    return f"if {enumerated(clauses)}"


def _title(feature: AnyFeature | None, name: str) -> str:
    return name if feature is None else feature.title


def outcome_of(e: Explanation, wording: Wording) -> str:
    """What the subject is in the wanted class."""
    return wording.outcome(e.target, () if e.setting is None else e.setting.classes)


def within(setting: Setting) -> str:
    """The networks of Delta, in words that follow "every network"."""
    radius = setting.radius
    what, folded = "weights and biases", "those with batch norm folded in"
    if setting.general:
        which = f"{what}, {folded}" if setting.net.folded else what
        return f"of the set {named(setting)} (an interval for each of the {which})"
    if radius is None:
        return (
            f"whose {what} each differ from the model in use by at most what is set for their layer"
        )
    return f"whose {what} each differ by at most {number(radius)} from the model in use"


def named(setting: Setting) -> str:
    """What a general set of networks is called: where it comes from, else by its digest.

    What is said of the next retraining is no part of what is proved, and is left out.
    """
    shifts = setting.shifts
    about = clipped(re.split(r": | \(", shifts.about.strip())[0], _ABOUT)
    return f"“{about}”" if about else f"with the SHA-256 {shifts.digest[:_DIGITS]}…"


def other_sets(setting: Setting) -> str:
    """Other models that have a say, each by itself or with the networks of its set; empty if none."""
    return enumerated(
        each.name
        if each.shifts.frozen
        else f"every network {'of the set' if each.shifts.radii is None else 'within the delta'} of "
        f"{each.name.removeprefix('the box of ')}"
        for each in sorted(setting.sets[1:], key=lambda each: not each.shifts.frozen)
        if each.name != IN_USE
    )


def in_delta(setting: Setting) -> str:
    """The networks of Delta in two words, after "every network": for texts that explained it before."""
    return "of the set" if setting.general else "within delta"


def proved(e: Explanation) -> bool:
    """Whether an answer, or the person as is, is proved for every network of a Delta that has more."""
    return e.setting is not None and not e.setting.alone and certain(e)


def accepted_now(e: Explanation) -> bool:
    """Whether the model in use gives an answer, or the person as is, the wanted class."""
    if e.setting is None or e.point is None:
        return False
    return bool(e.setting.net.predict(e.point)[0] == e.target)


def certain(e: Explanation) -> bool:
    """Whether every network of Delta, were it only the one in use, gives the wanted class."""
    if e.certificate is not None and e.certificate.verdict != "robust":
        return False
    return e.status in CERTIFIABLE and e.margin >= 0.0


def promise(e: Explanation) -> str:
    """How far an answer holds, as the end of a sentence: only what is proved."""
    if e.setting is None or not certain(e):
        return _UNPROVED
    if not proved(e):
        return _TODAY
    text = _EVERY.format(within=within(e.setting)) + _values(e)
    if not e.setting.inside:
        text += _ALSO_NOW if accepted_now(e) else _NOT_NOW
    others = other_sets(e.setting)
    return f"{text}; the same is proved for {others}" if others else text


def _values(e: Explanation) -> str:
    """That it is proved for intervals of numbers, where the sentence speaks of such."""
    found = [part for name in e.changed if (part := _held(e, str(name))) is not None]
    if not found:
        return ""
    return _AT_ONCE + (_RANGED if any(part.ranged for part in found) else "")


def how_near(e: Explanation) -> str:
    """Return how much nearer another answer may be, or that fewer changes may be possible."""
    if e.status not in ("feasible", "valid"):
        return ""
    if math.isnan(e.bound):  # a sparse search has no bound
        return _FEWER
    if not e.in_region or not 0.0 < e.bound <= e.distance:
        return _UNKNOWN
    if e.status == "feasible" and e.bound == e.distance:  # what is open is something else
        return ""
    share = max(1, math.ceil(100.0 * (1.0 - e.bound / e.distance) - 1e-6))
    return _NOT_NEAREST.format(share=f"{share}%")


def how_usual(e: Explanation) -> str:
    """Return how usual an answer is among accepted people; empty if that was not measured."""
    if not e.found or math.isnan(e.plausibility):
        return ""
    share = f"{math.floor(100.0 * e.plausibility + 1e-9)}%"
    return (_TYPICAL if e.typical else _UNUSUAL).format(share=share)
