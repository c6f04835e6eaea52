"""The report: one HTML file that opens offline, for the people who read and sign.

It states what was proved, a sentence about the shift set, and what was counted on retrained models. A
count outside the shift set proves nothing about the next model, so the page names how far they moved.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.core.errors import NetworkError, OptionError
from proplace.core.files import atomic_write
from proplace.core.shifts import counts
from proplace.explain.results import CERTIFIABLE
from proplace.explain.words import (
    ReportTerms,
    Wording,
    accepted_now,
    describe,
    describe_networks,
    describe_others,
    is_proved_robust,
    is_sparse,
    largest_first,
    outcome_word,
    short_networks,
)
from proplace.report.geometry import no_region, plain_nearest
from proplace.report.plots import (
    Picture,
    cases,
    has_margins,
    held,
    margin_curves,
    margins_view,
    percent,
    region_view,
)
from proplace.report.proofs import Proof, results_proofs, saved_proofs, setting_of
from proplace.report.style import generator, label_of, templates
from proplace.schema.values import number

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Sequence

    from proplace.core.network import Array, Network
    from proplace.explain.claims import Claim
    from proplace.explain.record import Provenance
    from proplace.explain.results import Explanation, Explanations, Setting

MOST = 50
"""Largest number of answers in one report."""

_MOST_CHANGES = 5  # of one answer in the table of all answers, the rest are counted
_STATUS = {
    "optimal": "nearest within the gap, proved",
    "feasible": "proved robust, perhaps not nearest",
    "valid": "valid today, not proved",
    "already_valid": "no change needed",
    "no_robust_neighbour": "no answer",
    "infeasible_rules": "no answer within the limits",
    "fixed_prediction": "no answer, proved",
    "not_found": "no answer",
    "bad_input": "not readable",
    "solver_error": "the solver failed",
    "worker_died": "no answer yet",
    "model_mismatch": "withheld",
}
# Cells in which no line ends within the digits of a number.
_NUMBER = re.compile(r"(?:from |at least |at most )?-?[0-9]")


class Fact(NamedTuple):
    """A value with its name."""

    name: str
    value: str


@dataclass(frozen=True)
class Answer:
    """One answer as the page shows it."""

    anchor: str
    name: str
    heading: str
    status: str
    good: bool
    sentence: str
    summary: str
    note: str
    changes: tuple[Claim, ...]
    person: tuple[tuple[str, str], ...]
    pictures: tuple[Picture, ...] = ()
    missing: str = ""
    held: str = ""
    retrained: str = ""
    proof: Proof | None = None


def write_report(
    path: str | os.PathLike[str],
    result: Explanations,
    wording: Wording,
    *,
    title: str = "What would change the outcome",
    retrained: Sequence[Network] = (),
    proofs: str | os.PathLike[str] | None = None,
    certificates_folder: str | os.PathLike[str] | None = None,
    note: str = "",
    statement: str = "",
) -> Path:
    """Write the page of :meth:`proplace.Explanations.report`."""
    if not len(result):
        raise OptionError("There is nothing to report: no row was explained.", name="result")
    if len(result) > MOST:
        raise OptionError(
            f"A report shows at most {MOST} answers, not {len(result)}. Report a part: "
            f"result[:{MOST}].report(...)",
            name="result",
        )
    environment = templates("the report")
    environment.tests["number_first"] = lambda value: _NUMBER.match(value) is not None
    plain = [plain_nearest(e) if e.found else None for e in result]
    terms = ReportTerms.of(result, wording)
    target, setting = Path(path), setting_of(result)
    target.parent.mkdir(parents=True, exist_ok=True)
    saved = (
        saved_proofs(target, result, wording, None if proofs is None else Path(proofs))
        if certificates_folder is None
        else results_proofs(target, result, Path(certificates_folder))
    )
    answers = [
        _answer(e, plain[n], wording, terms, retrained, f"answer-{n + 1}", saved.get(n))
        for n, e in enumerate(result)
    ]
    text = environment.get_template("report.html.j2").render(
        title=title,
        note=note,
        made=result.provenance,
        lead=lead(result, wording),
        figures=figures(result, plain, terms, retrained),
        promises=promises(result, terms, plain, retrained, statement),
        overview=_overview(result, plain, terms) if len(result) > 1 else None,
        answers=answers,
        retrained=len(retrained),
        wording=wording,
        glossary=glossary(result, terms, compares=any(row is not None for row in plain)),
        record=record(result),
        has_set=setting is not None and setting.current.has_parameter_intervals,
        generator=generator(),
    )
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


# -- one answer ------------------------------------------------------------------------------------


def _answer(
    e: Explanation,
    plain: Array | None,
    wording: Wording,
    terms: ReportTerms,
    retrained: Sequence[Network],
    anchor: str,
    proof: Proof | None,
) -> Answer:
    words, status = describe(e, wording), _STATUS[e.status]
    if e.rank and e.status == "optimal":
        status = "proved"  # only the first of several answers is the nearest of all
    label = label_of(e.index) + (f" ({e.id_text})" if e.id_text else "")
    name = f"{wording.person[:1].upper()}{wording.person[1:]} {label}"
    changes = largest_first(words.claims)
    pictures: list[Picture] = []
    kept = counted = missing = ""
    if e.found and e.encoded_counterfactual is not None and e.setting is not None:
        missing = no_region(e)
        if not missing:
            pictures.append(region_view(e, plain, terms))
        if has_margins(e):
            pictures.append(margins_view(*margin_curves([e], [plain]), e, terms))
        if retrained:
            kept = _of_models(e.encoded_counterfactual, retrained, e.target)
            counted = f"This answer is {terms.outcome} by {kept} retrained models"
            if plain is not None:
                counted += f", the {terms.other} by {_of_models(plain, retrained, e.target)}"
    return Answer(
        anchor=anchor,
        name=label + (f" ({e.rank + 1})" if e.rank else ""),
        heading=name if not e.rank else f"{name}, another way",
        status=status,
        good=e.status in CERTIFIABLE,
        sentence=words.sentence,
        summary=_summary(changes) or status,
        note=f"{e.reason[:1].upper()}{e.reason[1:]}." if e.found and e.reason else "",
        changes=changes,
        person=words.person,
        pictures=tuple(pictures),
        missing=f"There is no map of the region: {missing}." if missing else "",
        held=kept,
        retrained=f"{counted}. This is counted, not proved." if counted else "",
        proof=proof,
    )


def _summary(changes: Sequence[Claim]) -> str:
    """Write the changes on one line, the largest of many, and count the rest."""
    parts = [f"{c.title} {c.was} → {c.goal}" for c in changes[:_MOST_CHANGES]]
    if rest := len(changes) - len(parts):
        parts.append(f"and {rest} smaller change{'s' if rest > 1 else ''}")
    return "; ".join(parts)


def _of_models(row: Array, retrained: Sequence[Network], target: int) -> str:
    kept = round(float(held(row[None], retrained, target)[0]) * len(retrained))
    return f"{kept} of {len(retrained)}"


def _overview(
    result: Explanations, plain: Sequence[Array | None], terms: ReportTerms
) -> list[Picture]:
    """Draw all answers in one picture."""
    answers = [e for e in result if e.found]
    if not answers or not has_margins(answers[0]):
        return []
    curves = margin_curves(answers, plain)
    return [margins_view(*curves, answers[0], terms, several=len(answers) > 1)]


def _points(answers: Sequence[Explanation], plain: Sequence[Array | None]) -> tuple[Array, Array]:
    """Return the encoded answers, and the plain nearest points."""
    points = np.array([e.encoded_counterfactual for e in answers])
    return points, np.array([row for row in plain if row is not None])


# -- all answers together --------------------------------------------------------------------------


def lead(result: Explanations, wording: Wording) -> str:
    """Return the subject of the page, and how many answers are proved to last."""
    outcome = outcome_word(result[0], wording)
    people = len({e.index for e in result})
    what = f"{people} {wording.person}{'' if people == 1 else 's'}"
    start = f"What would have to change for {wording.subject} to be {outcome}: {what}. "
    answers = _answers(result)
    sure = [e for e in answers if is_proved_robust(e)]
    if not answers:
        return f"{start}There is no answer for any of them."
    if not sure:
        return f"{start}The answers are shown for the current model only. A retrained model may differ."
    setting = sure[0].setting
    assert setting is not None  # noqa: S101  (nothing is proved without one)
    count = (
        f"{len(sure)} of {len(answers)} answers are"
        if len(sure) < len(answers)
        else "The answer is"
        if len(answers) == 1
        else f"All {len(answers)} answers are"
    )
    rest = " The others are shown for the current model only." if len(sure) < len(answers) else ""
    return f"{start}{count} proved: every model {describe_networks(setting)} decides “{outcome}”.{rest}"


def _answers(result: Explanations) -> list[Explanation]:
    return [e for e in result if e.found or e.status == "already_valid"]


def figures(
    result: Explanations,
    plain: Sequence[Array | None],
    terms: ReportTerms,
    retrained: Sequence[Network],
) -> list[Fact]:
    """Return the figures at the top of the page."""
    people, answers, setting = {e.index for e in result}, _answers(result), setting_of(result)
    served = {e.index for e in answers}
    facts = [Fact(f"{terms.person}s on this page with an answer", _count(served, people))]
    if setting is not None and not setting.guarantee.is_single_model and answers:
        sure = [e for e in answers if is_proved_robust(e)]
        every = f"answers proved for every model {short_networks(setting)}"
        facts.append(Fact(every, _count(sure, answers)))
        if setting.current.has_parameter_intervals:
            moving, of = counts(setting.current.shifts)
            facts.append(Fact("weights and biases that may change", f"{moving} of {of}"))
        elif setting.current.radius is not None:
            name = "delta: how much each weight and bias may change"
            facts.append(Fact(name, number(setting.current.radius)))
    models = f"{len(retrained)} retrained model{'' if len(retrained) == 1 else 's'}"
    found = [e for e in result if e.found]
    for rows, name in zip(_points(found, plain), (terms.answers, terms.others), strict=True):
        if retrained and len(rows):
            share = held(rows, retrained, result[0].target).mean()
            words = f"{terms.outcome}, of {len(rows)} {name} on {models} (counted)"
            facts.append(Fact(words, percent(share)))
    return facts


def _count(some: Collection[object], of: Collection[object]) -> str:
    return f"{len(some)} of {len(of)}"


# -- proved, counted, and neither ------------------------------------------------------------------


def promises(
    result: Explanations,
    terms: ReportTerms,
    plain: Sequence[Array | None],
    retrained: Sequence[Network],
    statement: str = "",
) -> list[Fact]:
    """Return what is proved, what past retrainings show, what was counted, and what is not proved."""
    sure, setting = [e for e in result if is_proved_robust(e)], setting_of(result)
    answers, shown = [e for e in result if e.found], _answers(result)
    facts = [Fact("Proved", _proved(sure, terms))]
    if statement.strip():
        facts.append(Fact("Estimated from past retrainings, not proved", statement.strip()))
    if shown:
        facts.append(Fact("Original model", _original(shown, terms)))
    if retrained and setting is not None and answers:
        facts.append(
            Fact("Counted, not proved", _counted(answers, terms, plain, retrained, setting))
        )
    beyond = "has changed in any way"
    if sure:
        beyond = "has changed by more, as a model that is trained from scratch usually has"
    if sure and setting is not None and setting.current.has_parameter_intervals:
        beyond = "lies outside this set, if only with one weight or bias"
    return [
        *facts,
        Fact(
            "Not proved",
            f"Anything about a model that {beyond}, has another architecture, or scales or encodes "
            f"its inputs in another way. Nor that the {terms.person} can make these changes, or that "
            "the changes do more than change the decision.",
        ),
    ]


def _proved(sure: Sequence[Explanation], terms: ReportTerms) -> str:
    if not sure:
        return f"The current model decides “{terms.outcome}” for each answer. Nothing beyond this model."
    setting = sure[0].setting
    assert setting is not None  # noqa: S101  (nothing is proved without one)
    same = "" if setting.current.has_parameter_intervals else "of the same architecture "
    text = (
        f"Every model {same}{describe_networks(setting)} decides “{terms.outcome}” for each answer "
        "that is called proved. This is a theorem, not an estimate."
    )
    if all(e.certificate is not None for e in sure):
        text += " Each answer has a certificate that anyone can check."
    text += " It covers exactly the values in the tables, with all their digits"
    if any(e.guaranteed_ranges for e in sure):
        text += ", and all values of the ranges together, up to their ends"
    text += "."
    if not setting.current.contains_network:
        kept = sum(map(accepted_now, sure))
        accepts = (
            "each of these answers as well"
            if kept == len(sure)
            else f"{kept} of the {len(sure)} answers that are called proved"
        )
        text += f" The current model lies outside this set and accepts {accepts}."
    others = describe_others(setting)
    return f"{text} The same is proved for {others}." if others else text


def _original(answers: Sequence[Explanation], terms: ReportTerms) -> str:
    """State how many answers the original model has accepted itself."""
    checked = sum(e.checked_with_original for e in answers)
    if checked == len(answers):
        return f"It was run on each answer and decides “{terms.outcome}”."
    which = "any answer" if not checked else f"{len(answers) - checked} of {len(answers)} answers"
    return (
        f"It could not be run on {which}. Statements about these are about the imported network; the "
        "original model may do more than this network."
    )


def _counted(
    answers: Sequence[Explanation],
    terms: ReportTerms,
    plain: Sequence[Array | None],
    retrained: Sequence[Network],
    setting: Setting,
) -> str:
    points, others = _points(answers, plain)
    target = answers[0].target
    text = (
        f"On {Moves.of(setting, retrained).words}. The {len(points)} {terms.answers} on this page are "
        f"{terms.outcome} in {cases(points, retrained, target)}"
    )
    if len(others):
        text += f", the {len(others)} {terms.others} in {cases(others, retrained, target)}"
    return f"{text}. A case is one answer on one model. The share may differ on other models."


@dataclass(frozen=True)
class Moves:
    """Distances of retrained networks from the current one.

    Attributes
    ----------
    count
        Number of retrained networks.
    place
        The shift set, after the verb "lie".
    inside
        Number of networks in the shift set, for which the proofs hold.
    apart
        Number of networks with another architecture or input scaling.
    largest
        Largest change of any weight or bias among the others. None if there are no others.
    """

    count: int
    place: str
    inside: int
    apart: int
    largest: float | None

    @classmethod
    def of(cls, setting: Setting, retrained: Sequence[Network]) -> Moves:
        """Compare networks with the current one."""
        largest: list[float] = []
        inside = 0
        for other in retrained:
            try:
                largest.append(setting.current.network.distance(other))
            except NetworkError:
                continue
            inside += setting.current.shifts.contains(other)
        place = "in the set" if setting.current.has_parameter_intervals else "within delta"
        apart = len(retrained) - len(largest)
        return cls(len(retrained), place, inside, apart, max(largest, default=None))

    @property
    def words(self) -> str:
        """Sentence about these distances, and the number of networks that a proof covers."""
        one = self.count == 1
        text = "1 retrained model" if one else f"{self.count} retrained models"
        if self.largest == math.inf:
            text += ", in which batch norm moved what no change of weights and biases does"
        elif self.largest is not None:
            moved = number(float(f"{self.largest:.3g}"))
            text += f", whose weights and biases moved by up to {moved}"
        if self.apart:
            some = f"{self.apart} of {self.count}" if self.apart < self.count else "all"
            text += f"; {'it is' if one else some} of another architecture or input scaling"
        if self.inside == self.count:
            return f"{text}; {'it lies' if one else 'all lie'} {self.place}"
        if self.inside:
            return f"{text}; {self.inside} of {self.count} lie {self.place}"
        return f"{text}; {'it does not lie' if one else 'none lies'} {self.place}"


# -- the record ------------------------------------------------------------------------------------


def record(result: Explanations) -> list[Fact]:
    """Return all that is recorded about the origin of the answers."""
    made = result.provenance
    if made is None:
        return []
    facts = [
        Fact("Made", f"{made.date} by {made.method} of proplace {made.version}"),
        Fact("Model", made.model),
        Fact("Model file, SHA-256", made.file_digest or ""),
        Fact("Network, SHA-256 (as in certificates)", made.network_digest),
        Fact("Training rows", f"{made.training_rows:,}"),
        Fact("Encoded training rows, SHA-256", made.training_digest),
        Fact("Original model", "evaluated" if made.has_original else "not available"),
        Fact("Target class", str(made.target)),
        *_networks(made, setting_of(result)),
        Fact("Distance", made.distance),
        Fact("Robust neighbours (k)", "" if made.k is None else str(made.k)),
        Fact("Region", made.region or ""),
        Fact("Changes", made.request.description),
    ]
    return [fact for fact in facts if fact.value]


def _networks(made: Provenance, setting: Setting | None) -> list[Fact]:
    """Return the shift set, and those of the required models."""
    current, *required = made.guarantee["members"]
    others = [
        Fact(
            f"Also accepted by {other['name']}",
            f"network {other['network']}, "
            + (
                f"set {other['delta']}"
                if isinstance(other["delta"], str)
                else f"delta {_radii(other['delta'])}"
            ),
        )
        for other in required
    ]
    if not isinstance(made.delta, str):
        return [Fact("Delta", _radii(made.delta)), *others]
    facts = [
        Fact("Shift set, SHA-256", made.delta),
        Fact("Origin of the shift set", current["about"]),
    ]
    if setting is not None:
        moving, of = counts(setting.current.shifts)
        place = "in the set" if setting.current.contains_network else "outside the set"
        facts += [
            Fact("Weights and biases that may change", f"{moving:,} of {of:,}"),
            Fact("Current model", place),
        ]
    return [*facts, *others]


def _radii(delta: float | list[list[float]]) -> str:
    if isinstance(delta, float):
        return number(delta)
    return "; ".join(
        f"layer {n}: weights {number(weight)}, biases {number(bias)}"
        for n, (weight, bias) in enumerate(delta, start=1)
    )


# -- glossary --------------------------------------------------------------------------------------

_GLOSSARY = {
    "model, network": (
        "A program with many numbers inside (weights and biases) that were set by training on past "
        "cases. Retraining changes these numbers."
    ),
    "delta": (
        "How much each of these numbers may change, up or down, before the proof ends. It has no unit; "
        "how far a retraining moves them can be measured."
    ),
    "the set": (
        "An interval for each of these numbers, such as the values that past retrainings gave them. A "
        "model with one number outside its interval lies outside the set, and the proof ends."
    ),
    "robust, proved": "Every model {within} decides “{outcome}”{besides}.",
    "margin": (
        "How clearly a model decides “{outcome}”: it does so from 0 on. The worst-case margin is the "
        "smallest one over all models {within}."
    ),
    "certificate": (
        "A small file with the proof of one answer. A short program checks it step by step in exact "
        "arithmetic, without trusting its maker."
    ),
    "nearest": (
        "No robust answer of the region is nearer by more than the gap that was requested. This relies "
        "on a solver’s arithmetic; that the answer is robust does not."
    ),
    "typical, plausibility": (
        "Measured, not proved: the share of accepted people in the training data whose values are at "
        "least as unusual. From 10% on, an answer is called typical."
    ),
    "robust neighbour": (
        "A row of the training data for which every model {within} decides “{outcome}”. It has the "
        "{person}’s own values of what may not change."
    ),
    "region": (
        "All mixtures of the {person} and the robust neighbours, within what the rules let this "
        "{person} change."
    ),
    "plain nearest answer": (
        "The nearest point for which the current model decides “{outcome}”, whatever other models "
        "decide."
    ),
    "SHA-256": "A fingerprint of a file: equal files have equal fingerprints.",
}


def glossary(result: Explanations, terms: ReportTerms, *, compares: bool) -> list[Fact]:
    """Explain the words that the page uses."""
    certificates = any(e.certificate is not None for e in result)
    spanned = [e for e in result if not is_sparse(e)]
    neighbours = any(e.neighbours is not None and len(e.neighbours) for e in spanned)
    setting = setting_of(result)
    has_set = setting is not None and setting.current.has_parameter_intervals
    used = {
        "delta": not has_set,
        "the set": has_set,
        "certificate": certificates,
        "nearest": any(e.status == "optimal" for e in result),
        "typical, plausibility": any(not math.isnan(e.plausibility) for e in result),
        "robust neighbour": neighbours,
        "region": neighbours,
        "plain nearest answer": compares and terms.other == "plain nearest answer",
        "SHA-256": certificates or result.provenance is not None,
    }
    inside = setting is None or setting.current.contains_network
    words = {
        "outcome": terms.outcome,
        "person": terms.person,
        "within": "within delta" if setting is None else short_networks(setting),
        "besides": ", not only the current one" if inside else "",
    }
    return [
        Fact(name, text.format_map(words))
        for name, text in _GLOSSARY.items()
        if used.get(name, True)
    ]
