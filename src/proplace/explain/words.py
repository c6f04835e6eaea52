"""An explanation as a sentence and a small table, in original units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from proplace.core.errors import OptionError
from proplace.core.guarantee import CURRENT_MODEL
from proplace.core.text import clipped, did_you_mean, enumerated, listing, visible
from proplace.explain.claims import Claim, format_room, format_value, is_certified, own_value
from proplace.schema.values import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.explain.results import Explanation, Setting
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

_ANSWER = "{subject} would have been {outcome} with {changes}.{promise}"
_ANOTHER = "{subject} would also have been {outcome} with {changes}.{promise}"
_ALREADY = "{subject} would be {outcome} without any change.{promise}"
_NO_ANSWER = "No change can be promised after which {subject} would be {outcome}: {reason}."
_RULES = (
    "Within what may change for this person, no change can be promised after which {subject} "
    "would be {outcome}: {reason}."
)
_FIXED = "{subject} would not be {outcome} after any change within the declared ranges: {reason}."
_BAD = "This row could not be explained: {reason}."

_MANY = 5  # changes that a sentence can name; of more it names the largest, and the list has all
_NAMED = 3
_TOGETHER = "{count} changes together; the largest are {largest}"

_PROVED = "This is proved for {values}every model {within}."
_ALSO_NOW = " The current model lies outside this set and accepts it, too."
_NOT_NOW = " The current model lies outside this set and does not accept it."
_TODAY = "This is shown for {values}the current model only: a retrained model may decide otherwise."
_UNPROVED = "It is not proved that this lasts when the model is retrained."
_CUT = " “…” stands for further digits: the proof is about the value with all of them."

_ABOUT = 160  # characters that a sentence repeats of where a set comes from
_DIGITS = 12  # of a digest that stands in the place of a name

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
class Description:
    """Result of :meth:`Explanation.describe`; ``str`` gives the sentence, with a list of many changes.

    Attributes
    ----------
    sentence
        The counterfactual, how far it is proved, and how near it is to the best; or why there is none.
    claims
        What changes, one claim per feature.
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
    """Return claims by their size, those of one size in the order of the table."""
    return tuple(sorted(claims, key=lambda c: -c.size))


def summary_line(claims: Sequence[Claim]) -> str:
    """Write claims on one line, each with both of its values."""
    return "; ".join(f"{c.title} {c.was} → {c.goal}" for c in claims)


def describe(e: Explanation, wording: Wording) -> Description:
    """Write an explanation in words."""
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
    """Say which cells were missing, and as what the model counts them."""
    if not e.imputed or e.original is None:
        return ""
    parts = [
        f"{_title(features.get(n), n)} as {format_value(features.get(n), e.original[n])}"
        for n in e.imputed
    ]
    return f" Missing, and counted as the model does: {', '.join(parts)}."


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
        outcome=outcome_of(e, wording),
        changes=_conditions(e),
        promise=f" {promise(e)}",
        reason=e.reason.rstrip("."),
    )
    return text[:1].upper() + text[1:] + how_near(e) + how_usual(e)


def _conditions(e: Explanation) -> str:
    """Return the changes: all of them if they can be read aloud, else how many and the largest."""
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


def outcome_of(e: Explanation, wording: Wording) -> str:
    """What the subject is in the wanted class."""
    return wording.outcome(e.target, () if e.setting is None else e.setting.model.classes)


def within(setting: Setting) -> str:
    """The networks of Delta, in words that follow "every model"."""
    radius = setting.current.radius
    what, folded = "weights and biases", "those with batch norm folded in"
    if setting.current.has_parameter_intervals:
        which = f"{what}, {folded}" if setting.current.network.folded else what
        return f"of the set {named(setting)} (an interval for each of the {which})"
    if radius is None:
        return f"whose {what} each differ from the current model by at most what is set for their layer"
    return f"whose {what} each differ from the current model by at most {number(radius)}"


def named(setting: Setting) -> str:
    """What a general set of networks is called: where it comes from, else by its digest.

    What is said of the next retraining is no part of what is proved, and is left out.
    """
    shifts = setting.current.shifts
    about = clipped(re.split(r": | \(", shifts.description.strip())[0], _ABOUT)
    return f"“{about}”" if about else f"with the SHA-256 {shifts.digest[:_DIGITS]}…"


def other_sets(setting: Setting) -> str:
    """Name the required models, each alone or with the networks of its shift set; empty if none."""
    others = setting.guarantee.members[1:]
    return enumerated(
        each.name
        if each.shifts.is_single_network
        else f"every model {'of the set' if each.shifts.radii is None else 'within the delta'} of "
        f"{each.name.removeprefix('the box of ')}"
        for each in sorted(others, key=lambda each: not each.shifts.is_single_network)
        if each.name != CURRENT_MODEL
    )


def in_delta(setting: Setting) -> str:
    """The networks of Delta in two words, after "every model": for texts that explained it before."""
    return "of the set" if setting.current.has_parameter_intervals else "within delta"


def proved(e: Explanation) -> bool:
    """Whether an answer, or the person as is, is proved for every network of a Delta that has more."""
    return e.setting is not None and not e.setting.guarantee.is_single_model and is_certified(e)


def accepted_now(e: Explanation) -> bool:
    """Whether the current model gives an answer, or the person as is, the wanted class."""
    if e.setting is None or e.encoded_counterfactual is None:
        return False
    return bool(e.setting.current.network.predict(e.encoded_counterfactual)[0] == e.target)


def promise(e: Explanation) -> str:
    """Return how far a counterfactual holds, in sentences: only what is proved."""
    if e.setting is None or not is_certified(e):
        return _UNPROVED
    if not proved(e):
        return _TODAY.format(values=_values(e))
    text = _PROVED.format(values=_values(e), within=within(e.setting))
    if not e.setting.current.contains_network:
        text += _ALSO_NOW if accepted_now(e) else _NOT_NOW
    others = other_sets(e.setting)
    text += f" The same is proved for {others}." if others else ""
    text += _unchanged(e, e.setting.schema)
    return text + (_CUT if any(each.is_cut for each in e.claims) else "")


def _values(e: Explanation) -> str:
    """Return that it is proved for intervals of numbers, if the sentence speaks of such."""
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
    """Return the guaranteed ranges of unchanged numbers, which have a tolerance."""
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


def how_near(e: Explanation) -> str:
    """Return how much nearer another answer may be, or that fewer changes may be possible."""
    if e.status not in ("feasible", "valid"):
        return ""
    if is_sparse(e):
        return _FEWER if len(e.claims) > 1 else ""
    if not e.in_region or not 0.0 < e.bound <= e.distance:
        return _UNKNOWN
    if e.status == "feasible" and e.bound == e.distance:  # what is open is something else
        return ""
    share = max(1, math.ceil(100.0 * (1.0 - e.bound / e.distance) - 1e-6))
    return _NOT_NEAREST.format(share=f"{share}%")


def is_sparse(e: Explanation) -> bool:
    """Test if an answer was found by the search for few changes, which has no region and no bound."""
    return e.status == "feasible" and math.isnan(e.bound)


def how_usual(e: Explanation) -> str:
    """Return how usual an answer is among accepted people; empty if that was not measured."""
    if not e.found or math.isnan(e.plausibility):
        return ""
    share = f"{math.floor(100.0 * e.plausibility + 1e-9)}%"
    return (_TYPICAL if e.typical else _UNUSUAL).format(these=_measured(e), share=share)


def _measured(e: Explanation) -> str:
    """Name the values whose plausibility was measured: those of the counterfactual, not of ranges."""
    ranged = [claim for claim in e.claims if claim.low is not None]
    if not ranged:
        return "These values are"
    values = enumerated(f"{claim.title} {claim.value}" for claim in ranged)
    return f"With {values}, the person would be"
