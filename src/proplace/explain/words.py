"""An explanation as a sentence and a small table, in original units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from proplace.core.errors import OptionError
from proplace.core.guarantee import CURRENT_MODEL
from proplace.core.text import clipped, did_you_mean, enumerated, listing, visible
from proplace.explain.claims import Claim, format_room, format_value, is_certified, own_value
from proplace.schema.values import as_json, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.explain.results import Explanation, Setting
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

_ANSWER = "{subject} would have been {outcome} with {changes}.{promise}"
_ANOTHER = "{subject} would also have been {outcome} with {changes}.{promise}"
_ALREADY = "{subject} would be {outcome} without any change.{promise}"
_NO_ANSWER = "No change was found after which {subject} would provably be {outcome}: {reason}."
_RULES = (
    "Within the limits of this person, no change was found after which {subject} would provably "
    "be {outcome}: {reason}."
)
_FIXED = "{subject} would not be {outcome} after any change within the declared ranges: {reason}."
_BAD = "This row could not be explained: {reason}."

_MANY = 5  # largest number of changes that a sentence lists
_NAMED = 3  # number of the largest changes that it names otherwise
_TOGETHER = "{count} changes together; the largest are {largest}"

_PROVED = "This is proved for {values}every model {within}."
_ALSO_NOW = " The current model lies outside this set and accepts it, too."
_NOT_NOW = " The current model lies outside this set and does not accept it."
_TODAY = "This is shown for {values}the current model only: a retrained model may decide otherwise."
_UNPROVED = "It is not proved that this lasts when the model is retrained."
_CUT = " “…” stands for further digits: the proof is about the value with all of them."

_ABOUT = 160  # largest number of characters of the description of a shift set
_DIGITS = 12  # number of digits of a digest that replaces a name

_UNKNOWN = " A nearer counterfactual may exist."
_NOT_NEAREST = (
    " A nearer counterfactual may exist, but in the searched region none is more than {share} "
    "nearer."
)
_FEWER = " Fewer changes may be possible."
_TYPICAL = " {these} typical of accepted people (plausibility {share})."
_UNUSUAL = " {these} unusual among accepted people (plausibility {share})."
_ALSO_RANGES = " The same is proved with {ranges}."


@dataclass(frozen=True)
class Wording:
    """The words for the subject, the classes and the people.

    Parameters
    ----------
    subject
        Subject of the decision, inside a sentence: ``"the loan"``.
    outcomes
        Words for the classes, by label: ``{"no": "refused", "yes": "approved"}``. A list in the order
        of the classes is accepted for the labels 0, 1, ... or False and True alone.
    person
        Word for a person: ``"applicant"``.
    """

    subject: str = "the outcome"
    outcomes: Sequence[str] | Mapping[Label, str] = ()
    person: str = "person"

    def outcome(self, target: int, classes: Sequence[Label] = ()) -> str:
        """Return the word for a class, given by its number. Default: its label."""
        words = self._by_label(classes)
        label = classes[target] if target < len(classes) else target
        word = next((word for known, word in words if _is_label(known, label)), None)
        if word is not None:
            return word
        return label if isinstance(label, str) and label.strip() else f"class {label}"

    def to_dict(self) -> dict[str, Any]:
        """Return the words as JSON holds them, the outcomes as pairs of a label and its word."""
        given = self.outcomes
        words = given.items() if isinstance(given, Mapping) else enumerate(given)
        outcomes = [[as_json(label), word] for label, word in words]
        return {"subject": self.subject, "outcomes": outcomes, "person": self.person}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any] | None) -> Wording:
        """Read the words of :meth:`to_dict`. None: the default words."""
        if facts is None:
            return cls()
        return cls(facts["subject"], dict(facts["outcomes"]), facts["person"])

    def _by_label(self, classes: Sequence[Label]) -> list[tuple[Label, str]]:
        """Return pairs of a label and its word. Raise if they do not fit the classes."""
        given = self.outcomes
        if isinstance(given, str):
            raise OptionError(
                f"outcomes must have one word per class, such as ['refused', 'approved'], "
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
                f"{listing(classes)}. Name them by label, such as {{{example}}}",
                name="outcomes",
                value=given,
            )
        return list(enumerate(given))


def _is_label(known: Label, label: Label) -> bool:
    """Test if two labels are equal. Text never equals a number."""
    return isinstance(known, str) == isinstance(label, str) and known == label


@dataclass(frozen=True)
class ReportTerms:
    """The words of a page or a picture.

    Attributes
    ----------
    person, outcome
        The word for a person, and the word for the target class.
    answer, answers
        The words for the counterfactuals: "robust" only if each of them is proved.
    other, others
        The words for the counterfactuals in comparison.
    """

    person: str
    outcome: str
    answer: str
    answers: str
    other: ClassVar[str] = "plain nearest answer"
    others: ClassVar[str] = "plain nearest answers"

    @classmethod
    def of(cls, result: Sequence[Explanation], wording: Wording) -> ReportTerms:
        """Choose words that are true for some explanations."""
        found = [e for e in result if e.found]
        robust = "robust " if found and all(map(is_proved_robust, found)) else ""
        return cls(
            wording.person, outcome_word(result[0], wording), f"{robust}answer", f"{robust}answers"
        )


@dataclass(frozen=True)
class Description:
    """Result of :meth:`Explanation.describe`. ``str`` gives the sentence and a list of many changes.

    Attributes
    ----------
    sentence
        The counterfactual, its guarantee and its optimality gap, or the reason why there is none.
    claims
        One claim per changed feature.
    person
        All features of the person: title and value.
    """

    sentence: str
    claims: tuple[Claim, ...]
    person: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        if len(self.claims) <= _MANY:
            return self.sentence
        listed = [f"- {c.title}: {c.goal} instead of {c.was}" for c in largest_first(self.claims)]
        return "\n".join([self.sentence, *listed])

    def table(self) -> pd.DataFrame:
        """Return the changes as a table with columns ``from``, ``to`` and ``change``."""
        return pd.DataFrame(
            [[c.was, c.goal, c.change] for c in self.claims],
            columns=["from", "to", "change"],
            index=pd.Index([c.title for c in self.claims], name="feature"),
        )


def largest_first(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return claims by decreasing size. Claims of equal size keep their order."""
    return tuple(sorted(claims, key=lambda c: -c.size))


def summary_line(claims: Sequence[Claim]) -> str:
    """Write claims on one line, with both values of each."""
    return "; ".join(f"{c.title} {c.was} → {c.goal}" for c in claims)


def describe(e: Explanation, wording: Wording) -> Description:
    """Describe an explanation in words."""
    features = {} if e.setting is None else e.setting.schema.by_name
    person: tuple[tuple[str, str], ...] = ()
    if e.original is not None:
        person = tuple(
            (
                visible(_title(features.get(name), name)),
                visible(own_value(features.get(name), value, missing=name in e.imputed)),
            )
            for name, value in zip(map(str, e.original.index), e.original, strict=True)
        )
    sentence = _sentence(e, wording) + _missing(e, features)
    return Description(visible(sentence), e.claims, person)


def _missing(e: Explanation, features: Mapping[str, AnyFeature]) -> str:
    """Describe missing cells and their imputed values."""
    if not e.imputed or e.original is None:
        return ""
    parts = [
        f"{_title(features.get(n), n)} by {format_value(features.get(n), e.original[n])}"
        for n in e.imputed
    ]
    return f" The model replaces missing values: {', '.join(parts)}."


def _sentence(e: Explanation, wording: Wording) -> str:
    template = {
        "already_valid": _ALREADY,
        "no_robust_neighbour": _NO_ANSWER,
        "not_found": _NO_ANSWER,
        "infeasible_rules": _RULES,
        "fixed_prediction": _FIXED,
        "bad_input": _BAD,
        "solver_error": _BAD,
        "worker_died": _BAD,
        "model_mismatch": _BAD,
    }.get(e.status, _ANOTHER if e.rank else _ANSWER)
    text = template.format(
        subject=wording.subject,
        outcome=outcome_word(e, wording),
        changes=_conditions(e),
        promise=f" {guarantee_sentence(e)}",
        reason=e.reason.rstrip("."),
    )
    return text[:1].upper() + text[1:] + gap_sentence(e) + plausibility_sentence(e)


def _conditions(e: Explanation) -> str:
    """Write the changes: all of them if they are few, or their number and the largest."""
    claims, count = e.claims, len(e.claims)
    if count > _MANY:
        named = enumerated(claim.phrase for claim in largest_first(claims)[:_NAMED])
        return _TOGETHER.format(count=count, largest=named)
    phrases = enumerated(claim.phrase for claim in claims)
    if not is_sparse(e):
        return phrases
    return f"one change: {phrases}" if count == 1 else f"{count} changes: {phrases}"


def _title(feature: AnyFeature | None, name: str) -> str:
    return name if feature is None else feature.title


def outcome_word(e: Explanation, wording: Wording) -> str:
    """Return the word for the target class."""
    return wording.outcome(e.target, () if e.setting is None else e.setting.model.classes)


def describe_networks(setting: Setting) -> str:
    """Describe the shift set, in words that follow "every model"."""
    radius = setting.current.radius
    what, folded = "weights and biases", "those with batch norm folded in"
    if setting.current.has_parameter_intervals:
        which = f"{what}, {folded}" if setting.current.network.folded else what
        return f"of the set {set_description(setting)} (an interval for each of the {which})"
    if radius is None:
        return f"whose {what} each differ from the current model by at most what is set for their layer"
    return f"whose {what} each differ from the current model by at most {number(radius)}"


def set_description(setting: Setting) -> str:
    """Return the description of a shift set, or its digest without one.

    The statement about the next retraining is omitted, because it is not part of the proof.
    """
    shifts = setting.current.shifts
    about = clipped(re.split(r": | \(", shifts.description.strip())[0], _ABOUT)
    return f"“{about}”" if about else f"with the SHA-256 {shifts.digest[:_DIGITS]}…"


def describe_others(setting: Setting) -> str:
    """Name the required models, each alone or with its shift set. Empty without any."""
    others = setting.guarantee.members[1:]
    return enumerated(
        each.name
        if each.shifts.is_single_network
        else f"every model {'of the set' if each.shifts.radii is None else 'within the delta'} of "
        f"{each.name.removeprefix('the shift set of ')}"
        for each in sorted(others, key=lambda each: not each.shifts.is_single_network)
        if each.name != CURRENT_MODEL
    )


def short_networks(setting: Setting) -> str:
    """Name the shift set in two words that follow "every model"."""
    return "of the set" if setting.current.has_parameter_intervals else "within delta"


def is_proved_robust(e: Explanation) -> bool:
    """Test if a point is proved for a shift set of more than one network."""
    return e.setting is not None and not e.setting.guarantee.is_single_model and is_certified(e)


def accepted_now(e: Explanation) -> bool:
    """Test if the current model accepts the counterfactual, or the person unchanged."""
    if e.setting is None or e.encoded_counterfactual is None:
        return False
    return bool(e.setting.current.network.predict(e.encoded_counterfactual)[0] == e.target)


def guarantee_sentence(e: Explanation) -> str:
    """Describe the guarantee of a counterfactual: only what is proved."""
    if e.setting is None or not is_certified(e):
        return _UNPROVED
    if not is_proved_robust(e):
        return _TODAY.format(values=_values(e))
    text = _PROVED.format(values=_values(e), within=describe_networks(e.setting))
    if not e.setting.current.contains_network:
        text += _ALSO_NOW if accepted_now(e) else _NOT_NOW
    others = describe_others(e.setting)
    text += f" The same is proved for {others}." if others else ""
    text += _unchanged(e, e.setting.schema)
    return text + (_CUT if any(each.is_cut for each in e.claims) else "")


def _values(e: Explanation) -> str:
    """Describe the values for which a counterfactual is proved, if there are intervals."""
    ranged = [claim for claim in e.claims if claim.low is not None]
    if not ranged:
        return ""
    what = "all such values" if len(e.claims) == 1 else "all these values together"
    ends = [claim for claim in ranged if claim.to_end]
    if not ends:
        return f"{what} and for "
    if len(ends) == 1:
        return f"{what} within the declared range ({ends[0].declared}) and for "
    names = "; ".join(f"{claim.title} {claim.declared}" for claim in ends)
    return f"{what} within the declared ranges ({names}) and for "


def _unchanged(e: Explanation, schema: Schema) -> str:
    """Describe the guaranteed ranges of unchanged numbers with a tolerance."""
    changed = {claim.name for claim in e.claims}
    rooms = {
        name: format_room(schema.by_name[name], e.original[name], ends)
        for name, ends in e.guaranteed_ranges.items()
        if name not in changed and e.original is not None
    }
    ranges = [
        f"{_title(schema.by_name[name], name)} {room}" for name, room in rooms.items() if room
    ]
    if len(ranges) > _MANY:
        ranges = [f"each of {len(ranges)} unchanged numbers within its tolerance"]
    return _ALSO_RANGES.format(ranges=enumerated(ranges)) if ranges else ""


def gap_sentence(e: Explanation) -> str:
    """Describe how much nearer another counterfactual may be, or that fewer changes may suffice."""
    if e.status not in ("feasible", "valid"):
        return ""
    if is_sparse(e):
        return _FEWER if len(e.claims) > 1 else ""
    if not e.in_region or not 0.0 < e.bound <= e.distance:
        return _UNKNOWN
    if e.status == "feasible" and e.bound == e.distance:  # the bound leaves no gap
        return ""
    share = max(1, math.ceil(100.0 * (1.0 - e.bound / e.distance) - 1e-6))
    return _NOT_NEAREST.format(share=f"{share}%")


def is_sparse(e: Explanation) -> bool:
    """Test if a counterfactual comes from the sparse search, which has no bound."""
    return e.status == "feasible" and math.isnan(e.bound)


def plausibility_sentence(e: Explanation) -> str:
    """Describe the plausibility of a counterfactual. Empty if it was not measured."""
    if not e.found or math.isnan(e.plausibility):
        return ""
    share = f"{math.floor(100.0 * e.plausibility + 1e-9)}%"
    return (_TYPICAL if e.typical else _UNUSUAL).format(these=_measured(e), share=share)


def _measured(e: Explanation) -> str:
    """Name the values whose plausibility was measured, which are not those of the ranges."""
    ranged = [claim for claim in e.claims if claim.low is not None]
    if not ranged:
        return "These values are"
    values = enumerated(f"{claim.title} {claim.value}" for claim in ranged)
    return f"With {values}, the person would be"
