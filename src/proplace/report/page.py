"""The report: one HTML file that opens offline, for the people who read and sign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import OptionError
from proplace.core.files import atomic_write
from proplace.explain.results import CERTIFIABLE
from proplace.explain.words import Terms, Wording, describe, largest_first
from proplace.report import claims
from proplace.report.geometry import no_region, plain_nearest
from proplace.report.pictures import (
    Picture,
    margins_view,
    region_view,
    validity_view,
)
from proplace.report.plots import has_margins, held, margin_curves
from proplace.report.proofs import Proof, kept_proofs, new_proofs
from proplace.report.style import generator, label_of, templates

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from proplace.core.network import Array, Network
    from proplace.explain.claims import Claim
    from proplace.explain.results import Explanation, Explanations

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
_NUMBER = re.compile(r"-?[0-9]")  # at the start of a cell: no line ends within its digits


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
    target = Path(path)
    saved = (
        kept_proofs(target, result, Path(kept), again)
        if kept
        else new_proofs(target, result, proofs)
    )
    answers = [
        _answer(e, plain[n], wording, terms, retrained, Place(n, saved.get(n)))
        for n, e in enumerate(result)
    ]
    text = environment.get_template("report.html.j2").render(
        title=title,
        note=note,
        lead=claims.lead(result, wording),
        line=claims.line(result),
        figures=claims.figures(result, plain, terms, retrained),
        promises=claims.promises(result, terms, plain, retrained, statement),
        overview=_overview(result, plain, terms, retrained),
        answers=answers,
        retrained=len(retrained),
        wording=wording,
        glossary=claims.glossary(result, terms, compares=any(row is not None for row in plain)),
        record=claims.record(result),
        networks="the set" if _is_general(result) else "delta",
        generator=generator(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


# -- parts of the page ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The number of an answer on the page, and its proof."""

    number: int
    proof: Proof | None


def _answer(
    e: Explanation,
    plain: Array | None,
    wording: Wording,
    terms: Terms,
    retrained: Sequence[Network],
    place: Place,
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
        anchor=f"answer-{place.number + 1}",
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
        proof=place.proof,
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


@dataclass(frozen=True)
class _Overview:
    pictures: tuple[Picture, ...]


def _overview(
    result: Explanations,
    plain: Sequence[Array | None],
    terms: Terms,
    retrained: Sequence[Network],
) -> _Overview | None:
    """All answers in one picture; None where there is one answer only."""
    answers = [e for e in result if e.found]
    if len(result) < 2:
        return None
    if not answers:
        return _Overview(())
    first = answers[0]
    others = np.array([row for row in plain if row is not None])
    pictures = []
    if has_margins(first):
        curves = margin_curves(answers, plain)
        pictures.append(margins_view(*curves, first, terms, several=len(answers) > 1))
    if retrained:
        points = np.array([e.encoded_counterfactual for e in answers])
        pictures.append(validity_view(points, others, retrained, first.target, terms))
    return _Overview(tuple(pictures))


def _of_models(row: Array, retrained: Sequence[Network], target: int) -> str:
    kept = round(float(held(row[None], retrained, target)[0]) * len(retrained))
    return f"{kept} of {len(retrained)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _is_general(result: Explanations) -> bool:
    """Whether the answers are about a set with an interval for each parameter."""
    setting = claims.setting_of(result)
    return setting is not None and setting.current.has_parameter_intervals
