"""The report: one HTML file that opens offline, for the people who read and sign.

It says only what was proved, and what was counted. Proved is a sentence about Delta. Counted is what
retrained networks do with the answers, and it is said with how far they moved: outside of Delta a count
is no promise about the next network.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import NetworkError, OptionError
from proplace.core.files import atomic_write
from proplace.core.shifts import counts
from proplace.explain.results import CERTIFIABLE
from proplace.explain.words import (
    Terms,
    Wording,
    accepted_now,
    describe,
    in_delta,
    is_sparse,
    largest_first,
    other_sets,
    outcome_of,
    proved,
    within,
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
    validity_view,
)
from proplace.report.proofs import Proof, kept_proofs, new_proofs, setting_of
from proplace.report.style import generator, label_of, templates
from proplace.schema.values import number

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from proplace.core.network import Array, Network
    from proplace.explain.claims import Claim
    from proplace.explain.record import Provenance
    from proplace.explain.results import Explanation, Explanations, Setting

_MOST_CHANGES = 5  # of one answer in the table of all answers; the rest are counted

MOST = 50
"""Answers of one report: more make a page that nobody reads and few browsers like."""

_STATUS = {
    "optimal": "nearest within the gap, proved",
    "feasible": "proved robust, perhaps not nearest",
    "valid": "valid today, not proved",
    "already_valid": "no change needed",
    "no_robust_neighbour": "no answer",
    "infeasible_rules": "no answer within the rules",
    "fixed_prediction": "no answer, proved",
    "not_found": "no answer",
    "bad_input": "not readable",
    "solver_error": "the solver failed",
    "worker_died": "no answer yet",
    "model_mismatch": "withheld",
}
_SHOWN = 12  # digits of a digest in the line on top; all of them are at the end of the page
# Cells in which no line ends within the digits of a number.
_NUMBER = re.compile(r"(?:from |at least |at most )?-?[0-9]")


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
    pictures: tuple[Picture, ...]
    missing: str
    held: str
    retrained: str
    proof: Proof | None


def write_report(
    path: str | os.PathLike[str],
    result: Explanations,
    wording: Wording,
    *,
    title: str = "What would change the outcome",
    retrained: Sequence[Network] = (),
    proofs: str | os.PathLike[str] | None = None,
    kept: str | os.PathLike[str] | None = None,
    again: tuple[str, str] | None = None,
    note: str = "",
    statement: str = "",
) -> Path:
    """Write the page; see :meth:`proplace.Explanations.report`.

    With ``again``, certificates are in the folder ``kept`` only after the same command with the first
    of these options in the place of the second.
    """
    if not len(result):
        raise OptionError("there is nothing to report: no row was explained", name="result")
    if len(result) > MOST:
        raise OptionError(
            f"a report shows at most {MOST} answers, not {len(result)}; report a part: "
            f"result[:{MOST}].report(...)",
            name="result",
        )
    environment = templates("the report")
    environment.tests["number_first"] = lambda value: _NUMBER.match(value) is not None
    plain = [plain_nearest(e) if e.found else None for e in result]
    terms = Terms.of(result, wording)
    target, setting = Path(path), setting_of(result)
    general = setting is not None and setting.current.has_parameter_intervals
    saved = (
        kept_proofs(target, result, Path(kept), again)
        if kept
        else new_proofs(target, result, proofs)
    )
    answers = [
        _answer(e, plain[n], wording, terms, retrained, f"answer-{n + 1}", saved.get(n))
        for n, e in enumerate(result)
    ]
    text = environment.get_template("report.html.j2").render(
        title=title,
        note=note,
        lead=lead(result, wording),
        line=line(result),
        figures=figures(result, plain, terms, retrained),
        promises=promises(result, terms, plain, retrained, statement),
        overview=_overview(result, plain, terms, retrained),
        answers=answers,
        retrained=len(retrained),
        wording=wording,
        glossary=glossary(result, terms, compares=any(row is not None for row in plain)),
        record=record(result),
        networks="the set" if general else "delta",
        generator=generator(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


# -- parts of the page ---------------------------------------------------------------------------


def _answer(
    e: Explanation,
    plain: Array | None,
    wording: Wording,
    terms: Terms,
    retrained: Sequence[Network],
    anchor: str,
    proof: Proof | None,
) -> Answer:
    words, status = describe(e, wording), _status(e)
    label = label_of(e.index) + (f" ({e.id_text})" if e.id_text else "")
    name = f"{wording.person[:1].upper()}{wording.person[1:]} {label}"
    pictures: list[Picture] = []
    kept = said = missing = ""
    if e.found and e.encoded_counterfactual is not None and e.setting is not None:
        missing = no_region(e)
        if not missing:
            pictures.append(region_view(e, plain, terms))
        if has_margins(e):
            pictures.append(margins_view(*margin_curves([e], [plain]), e, terms))
        if retrained:
            kept = _of_models(e.encoded_counterfactual, retrained, e.target)
            said = f"Counted on retrained models, this answer holds on {kept}"
            said += "." if plain is None else (
                f"; the {terms.other} on {_of_models(plain, retrained, e.target)}."
            )  # fmt: skip
    return Answer(
        anchor=anchor,
        name=label + (f" ({e.rank + 1})" if e.rank else ""),
        heading=name if not e.rank else f"{name}, another way",
        status=status,
        good=e.status in CERTIFIABLE,
        sentence=words.sentence,
        summary=_summary(largest_first(words.claims)) or status,
        note=_sentence(e.reason) if e.found else "",
        changes=largest_first(words.claims),
        person=words.person,
        pictures=tuple(pictures),
        missing=f"There is no map of the region: {missing}." if missing else "",
        held=kept,
        retrained=said,
        proof=proof,
    )


def _status(e: Explanation) -> str:
    """Return the status in words; of several answers only the first is the nearest of all."""
    if e.rank and e.status == "optimal":
        return "proved"
    return _STATUS[e.status]


def _summary(changes: Sequence[Claim]) -> str:
    """The changes on one line, the largest of many; the rest are counted."""
    parts = [f"{c.title} {c.was} → {c.goal}" for c in changes[:_MOST_CHANGES]]
    if rest := len(changes) - len(parts):
        parts.append(f"and {rest} smaller change{'s' if rest > 1 else ''}")
    return "; ".join(parts)


def _overview(
    result: Explanations,
    plain: Sequence[Array | None],
    terms: Terms,
    retrained: Sequence[Network],
) -> list[Picture] | None:
    """All answers in one picture; None where there is one answer only."""
    answers = [e for e in result if e.found]
    if len(result) < 2:
        return None
    if not answers:
        return []
    first = answers[0]
    others = np.array([row for row in plain if row is not None])
    pictures = []
    if has_margins(first):
        curves = margin_curves(answers, plain)
        pictures.append(margins_view(*curves, first, terms, several=len(answers) > 1))
    if retrained:
        points = np.array([e.encoded_counterfactual for e in answers])
        pictures.append(validity_view(points, others, retrained, first.target, terms))
    return pictures


def _of_models(row: Array, retrained: Sequence[Network], target: int) -> str:
    kept = round(float(held(row[None], retrained, target)[0]) * len(retrained))
    return f"{kept} of {len(retrained)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


# -- what the page says of all answers together ----------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """Something with a name."""

    name: str
    value: str


@dataclass(frozen=True)
class Moves:
    """How far retrained networks are from the one in use.

    Attributes
    ----------
    count
        How many there are.
    place
        What Delta is called after "lie".
    inside
        How many lie in Delta, so that what is proved holds for them.
    apart
        How many have another architecture or input scaling: nothing is proved of such.
    largest
        The largest change of any weight or bias among the others; None if there are no others.
    """

    count: int
    place: str
    inside: int
    apart: int
    largest: float | None

    @classmethod
    def of(cls, setting: Setting, retrained: Sequence[Network]) -> Moves:
        """Compare networks with the one in use."""
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
        """How far they moved, and whether a proof covers them."""
        models = "1 retrained model" if self.count == 1 else f"{self.count} retrained models"
        text = models
        if self.largest == math.inf:
            text += ", of which batch norm moved what no change of weights and biases does"
        elif self.largest is not None:
            moved = number(float(f"{self.largest:.3g}"))
            text += f", whose weights and biases moved by up to {moved}"
        if self.apart:
            text += f"; {_of(self.apart, self.count)} of another architecture or input scaling"
        if self.inside == self.count:
            return f"{text}; {'it lies' if self.count == 1 else 'all lie'} {self.place}"
        if self.inside:
            return f"{text}; {self.inside} of {self.count} lie {self.place}"
        return f"{text}; {'it does not lie' if self.count == 1 else 'none lies'} {self.place}"


def _of(part: int, count: int) -> str:
    return f"{part} of {count}" if part < count else ("it is" if count == 1 else "all")


# -- the head of the page --------------------------------------------------------------------------


def lead(result: Explanations, wording: Wording) -> str:
    """What the page is about, and for how many answers it is proved that they last."""
    outcome = outcome_of(result[0], wording)
    people = len({e.index for e in result})
    what = f"{people} {wording.person}{'' if people == 1 else 's'}"
    start = f"What would have to be different for {wording.subject} to be {outcome}: {what}. "
    return start + _proved(result, outcome)


def _proved(result: Explanations, outcome: str) -> str:
    answers = [e for e in result if e.found or e.status == "already_valid"]
    sure = [e for e in answers if proved(e)]
    if not answers:
        return "There is no answer for any of them."
    if not sure:
        return (
            "The answers are shown for the current model only: it is not proved that they last when it "
            "is changed."
        )
    setting = sure[0].setting
    assert setting is not None  # noqa: S101  (nothing is proved without one)
    every = f"every model {within(setting)} decides “{outcome}”."
    if len(answers) == 1:
        return f"For the answer it is proved: {every}"
    if len(sure) == len(answers):
        return f"For each of the {len(answers)} answers it is proved: {every}"
    return (
        f"For {len(sure)} of {len(answers)} answers it is proved: {every} Of the others this is known "
        "for the current model alone."
    )


def figures(
    result: Explanations, plain: Sequence[Array | None], terms: Terms, retrained: Sequence[Network]
) -> list[Fact]:
    """Figures on top of the page."""
    people = {e.index for e in result}
    answers = [e for e in result if e.found or e.status == "already_valid"]
    served = {e.index for e in answers}
    facts = [Fact(f"{terms.person}s on this page with an answer", _count(served, people))]
    setting = setting_of(result)
    if setting is not None and not setting.guarantee.is_single_model and answers:
        sure = [e for e in answers if proved(e)]
        every = f"answers proved for every model {in_delta(setting)}"
        facts.append(Fact(every, _count(sure, answers)))
        if setting.current.has_parameter_intervals:
            moving, of = counts(setting.current.shifts)
            facts.append(Fact("weights and biases that have room to change", f"{moving} of {of}"))
        elif setting.current.radius is not None:
            facts.append(
                Fact(
                    "delta: how much each weight and bias may change",
                    number(setting.current.radius),
                )
            )
    models = f"{len(retrained)} retrained model{'' if len(retrained) == 1 else 's'}"
    points = np.array([e.encoded_counterfactual for e in result if e.found])
    others = np.array([row for row in plain if row is not None])
    for rows, name in ((points, terms.answers), (others, terms.others)):
        if retrained and len(rows):
            share = held(rows, retrained, result[0].target).mean()
            words = f"{terms.outcome}, of {len(rows)} {name} on {models} (counted)"
            facts.append(Fact(words, percent(share)))
    return facts


def _count(some: Sequence[object] | set[object], of: Sequence[object] | set[object]) -> str:
    return f"{len(some)} of {len(of)}"


def line(result: Explanations) -> list[Fact]:
    """The facts on one line: what the answers were made from, and when."""
    made, setting = result.provenance, setting_of(result)
    if made is None:
        return [] if setting is None else [_delta(setting)]
    facts = [
        Fact("date", made.date.replace("T", " ").replace("Z", " UTC")),
        Fact("model", f"{made.model} ({_short(made.file_digest or made.network_digest)})"),
        Fact("training data", f"{made.training_rows:,} rows ({_short(made.training_digest)})"),
    ]
    if setting is not None:
        facts.append(_delta(setting))
    if made.k is not None and made.region == "hull":
        facts.append(Fact("k", str(made.k)))
    return [*facts, Fact("distance", made.distance)]


def record(result: Explanations) -> list[Fact]:
    """All that is known of where the answers come from, with whole digests."""
    made = result.provenance
    if made is None:
        return []
    facts = [
        Fact("Made", f"{made.date} by {made.method} of proplace {made.version}"),
        Fact("Model", made.model),
        Fact("Model file, SHA-256", made.file_digest or ""),
        Fact("Network, SHA-256 (the name that certificates use)", made.network_digest),
        Fact("Training rows", f"{made.training_rows:,}"),
        Fact("Training rows as the network takes them, SHA-256", made.training_digest),
        Fact("Original model", "evaluated" if made.has_original else "not at hand"),
        Fact("Wanted class", str(made.target)),
        *_networks(made, setting_of(result)),
        Fact("Distance", made.distance),
        Fact("Robust neighbours (k)", "" if made.k is None else str(made.k)),
        Fact("Region", made.region or ""),
        Fact("Changes", made.request.description),
    ]
    return [fact for fact in facts if fact.value]


def _short(digest: str) -> str:
    return f"SHA-256 {digest[:_SHOWN]}…"


def _delta(setting: Setting) -> Fact:
    if setting.current.has_parameter_intervals:
        about = setting.current.shifts.description.strip()
        digest = _short(setting.current.shifts.digest)
        return Fact("set of networks", f"{about} ({digest})" if about else digest)
    return Fact(
        "delta",
        "per layer" if setting.current.radius is None else number(setting.current.radius),
    )


def _networks(made: Provenance, setting: Setting | None) -> list[Fact]:
    """For which networks the answers hold."""
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
        for other in made.guarantee["members"][1:]
    ]
    if not isinstance(made.delta, str):
        return [Fact("Delta", _radii(made.delta)), *others]
    facts = [
        Fact("Set of networks (shifts), SHA-256", made.delta),
        Fact("Where the set comes from", made.guarantee["members"][0]["about"]),
    ]
    if setting is not None:
        where = "in" if setting.current.contains_network else "outside of"
        moving, of = counts(setting.current.shifts)
        facts += [
            Fact("Weights and biases that have room to change in it", f"{moving:,} of {of:,}"),
            Fact(
                "The current model",
                f"lies {where} the set",
            ),
        ]
    return [*facts, *others]


def _radii(delta: float | list[list[float]]) -> str:
    if isinstance(delta, float):
        return number(delta)
    return "; ".join(
        f"layer {n}: weights {number(weight)}, biases {number(bias)}"
        for n, (weight, bias) in enumerate(delta, start=1)
    )


# -- what is promised ------------------------------------------------------------------------------


def promises(
    result: Explanations,
    terms: Terms,
    plain: Sequence[Array | None],
    retrained: Sequence[Network],
    statement: str = "",
) -> list[Fact]:
    """What is promised, what past retrainings say, what was counted, and what is not promised."""
    sure = [e for e in result if proved(e)]
    facts = [Fact("Promised", _promised(sure, terms))]
    if statement.strip():
        name = "About the next retraining, from past ones, and not proved"
        facts.append(Fact(name, statement.strip()))
    if shown := [e for e in result if e.found or e.status == "already_valid"]:
        facts.append(Fact("Original model", _original(shown, terms)))
    setting = setting_of(result)
    answers = [e for e in result if e.found]
    if retrained and setting is not None and answers:
        facts.append(
            Fact("Counted, not promised", _counted(answers, terms, plain, retrained, setting))
        )
    beyond = "has changed in any way"
    if sure:
        beyond = "has changed by more than that, as one that is trained anew usually is"
    if sure and setting is not None and setting.current.has_parameter_intervals:
        beyond = "lies outside of this set, if only with one weight or bias"
    return [
        *facts,
        Fact(
            "Not promised",
            f"Anything about a model that {beyond}, has another architecture, or whose inputs are "
            "scaled or encoded in another way. Nor anything about the world itself: that the "
            f"{terms.person} can make these changes, or that making them does more than change the "
            "model’s answer.",
        ),
    ]


def _promised(sure: Sequence[Explanation], terms: Terms) -> str:
    if not sure:
        return f"The current model says {terms.outcome} to each answer; nothing beyond that model."
    setting = sure[0].setting
    assert setting is not None  # noqa: S101  (nothing is proved without one)
    proof = "This is a theorem, no estimate"
    if all(e.certificate is not None for e in sure):
        proof += ", and each has a certificate that anyone can check"
    same = "" if setting.current.has_parameter_intervals else "of the same architecture "
    values = "exactly the values in the tables, with all their digits"
    if any(e.guaranteed_ranges for e in sure):
        values += (
            ", and of all values at once where a table names more than one, up to the range’s end"
        )
    return (
        f"To an answer that is called proved, every model {same}{within(setting)} says "
        f"{terms.outcome}. {proof}. It speaks of {values}.{_in_use(sure, setting)}{_others(setting)}"
    )


def _original(answers: Sequence[Explanation], terms: Terms) -> str:
    """State how many answers the original model has accepted itself."""
    checked = sum(e.checked_with_original for e in answers)
    if checked == len(answers):
        return f"The original model itself was run on each answer and says {terms.outcome}."
    which = "any answer" if not checked else f"{len(answers) - checked} of {len(answers)} answers"
    return (
        f"The original model could not be run on {which}. What is said about them is about the network "
        "that was read from it; the original model may do more than this network."
    )


def _others(setting: Setting) -> str:
    others = other_sets(setting)
    return f" The same is proved for {others}." if others else ""


def _in_use(sure: Sequence[Explanation], setting: Setting) -> str:
    """What the current model says where it is not one of the networks that a proof is about."""
    if setting.current.contains_network:
        return ""
    kept = sum(map(accepted_now, sure))
    says = "it accepts each of these answers as well"
    if kept < len(sure):
        says = f"it accepts {kept} of the {len(sure)} answers that are called proved"
    return f" The current model lies outside of this set; {says}."


def _counted(
    answers: Sequence[Explanation],
    terms: Terms,
    plain: Sequence[Array | None],
    retrained: Sequence[Network],
    setting: Setting,
) -> str:
    target = answers[0].target
    points = np.array([e.encoded_counterfactual for e in answers])
    others = np.array([row for row in plain if row is not None])
    text = (
        f"On {Moves.of(setting, retrained).words}. The {len(points)} {terms.answers} on this page are "
        f"{terms.outcome} in {cases(points, retrained, target)}"
    )
    if len(others):
        text += f", the {len(others)} {terms.others} in {cases(others, retrained, target)}"
    return f"{text}. A case is one answer on one model; the share may differ on other ones."


# -- words for readers -----------------------------------------------------------------------------

_DISTANCES = {
    "l1": "the average change of the columns that the network takes; 0 is no change",
    "weighted l1": "the weighted average change of the columns that the network takes; 0 is no change",
    "mad": "the average change of the columns, each in units of its usual spread; 0 is no change",
}


_GLOSSARY = {
    "model, network": (
        "A program with many numbers inside (weights and biases) that were set by training on past "
        "cases. Retraining changes these numbers."
    ),
    "delta": (
        "How much each of these numbers may change, up or down, before the promise ends. It has no "
        "unit; how far a retraining moves them can be measured."
    ),
    "the set, the box": (
        "An interval for each of these numbers, such as the values that past retrainings gave them. A "
        "network is in the set if each of its numbers lies in its interval; beyond, the promise ends."
    ),
    "robust, proved": "Every model {within} says {outcome}{besides}.",
    "margin": (
        "How clearly a model says {outcome}: above 0 it does, below 0 it does not. The worst margin "
        "is the smallest one over all models {within}."
    ),
    "certificate": (
        "A small file with the proof of one answer. A short program checks it step by step in exact "
        "arithmetic, without trusting whoever made it."
    ),
    "distance": "How far an answer is from the {person}: {measure}.",
    "nearest": (
        "No answer of the region with a little more margin is nearer by more than the optimality gap "
        "that was asked for. This rests on a solver’s arithmetic; that the answer is robust does not."
    ),
    "few changes": (
        "The search prefers answers that change few features. Fewer changes may be possible, and "
        "another answer may be nearer."
    ),
    "typical, plausibility": (
        "Measured, not proved: the share of accepted people in the training data whose values are at "
        "least as unusual. From 10% on, an answer is called typical."
    ),
    "robust neighbour": (
        "A row of the training data, with the {person}’s own values where these may not change, to "
        "which every model {within} says {outcome}."
    ),
    "region": (
        "All mixtures of the {person} and the robust neighbours, within what the rules let this "
        "{person} change."
    ),
    "plain nearest answer": (
        "The nearest point of the region (for few changes: within ranges and rules) to which the "
        "current model says {outcome}, whatever other models say."
    ),
    "digest (SHA-256)": "A fingerprint of a file: whoever has the same file gets the same digits.",
}


def glossary(result: Explanations, terms: Terms, *, compares: bool) -> list[Fact]:
    """Explain the words of the page to readers who do not know them; of no other words."""
    made = result.provenance
    certificates = any(e.certificate is not None for e in result)
    spanned = [e for e in result if not is_sparse(e)]
    neighbours = any(e.neighbours is not None and len(e.neighbours) for e in spanned)
    setting = setting_of(result)
    general = setting is not None and setting.current.has_parameter_intervals
    inside = setting is None or setting.current.contains_network
    sparse = any(map(is_sparse, result))
    used = {
        "delta": not general,
        "the set, the box": general,
        "certificate": certificates,
        "nearest": any(e.status == "optimal" for e in result),
        "few changes": sparse,
        "typical, plausibility": any(not math.isnan(e.plausibility) for e in result),
        "robust neighbour": neighbours,
        "region": neighbours,
        "plain nearest answer": compares and terms.other == "plain nearest answer",
        "digest (SHA-256)": certificates or made is not None,
    }
    measure = _DISTANCES.get("" if made is None else made.distance, "how much it changes in all")
    said = {
        "outcome": terms.outcome,
        "person": terms.person,
        "measure": measure,
        "within": "within delta" if setting is None else in_delta(setting),
        "besides": ", not only the current one" if inside else "",
    }
    return [
        Fact(name, text.format_map(said))
        for name, text in _GLOSSARY.items()
        if used.get(name, True)
    ]
