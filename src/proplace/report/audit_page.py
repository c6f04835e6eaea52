"""The page of an audit: one HTML file that opens offline, for those who release a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.files import atomic_write
from proplace.ledger.verdicts import ALARMS, NOTES, VERDICTS
from proplace.report.style import generator, templates

if TYPE_CHECKING:
    import os

    from proplace.ledger.audit import Audit, AuditGroup
    from proplace.ledger.verdicts import Verdict

_MOST = 100  # promises of one list, the rest are counted
_CLOSEST = 20  # promises that hold with the smallest margins

_TITLES: dict[Verdict, str] = {
    "proved": "proved",
    "holds": "hold today",
    "broken": "broken",
    "undecided": "undecided",
}
_MEANINGS = (
    (
        "Proved",
        "The retrained network lies in the shift set for which the promise was proved. Its decision on "
        "each counterfactual was compared all the same.",
    ),
    (
        "Hold today",
        "The retrained model accepts all that was promised, but lies outside the shift set. The "
        "next retraining may break the promise.",
    ),
    (
        "Broken",
        "The retrained model refuses the counterfactual, or another value that was promised with it.",
    ),
    (
        "Undecided",
        "The model needs columns that promises do not hold, or rejects a label, or the counterfactual "
        "lies so near the boundary that rounding decides. Undecided never counts as holding.",
    ),
)


@dataclass(frozen=True)
class _Part:
    verdict: Verdict
    words: str
    count: int

    @property
    def shown(self) -> str:
        return f"{self.count:,}"


@dataclass(frozen=True)
class _Row:
    promise: int
    person: str
    sentence: str
    note: str
    number: str
    expires: str


@dataclass(frozen=True)
class _List:
    """Some promises under a heading."""

    anchor: str
    title: str
    lead: str
    number: str
    rows: tuple[_Row, ...]
    rest: str


def write_audit_page(
    path: str | os.PathLike[str], audit: Audit, *, title: str = "Audit of promises"
) -> Path:
    """Write the page of :meth:`proplace.Audit.report`."""
    environment = templates("the page of an audit")
    parts = _parts(audit.counts)
    text = environment.get_template("audit.html.j2").render(
        title=title,
        lead=f"{audit.sentence[:1].upper()}{audit.sentence[1:]}.",
        line=(
            ("Ledger", Path(audit.ledger.name).name),
            ("Retrained model", audit.model),
            ("Open on", audit.as_of),
            ("Audited", audit.time.replace("T", " ")),
        ),
        total=len(audit),
        parts=parts,
        figures=[part for part in parts if part.count or part.verdict != "undecided"],
        alarms=_alarms(audit),
        meanings=[
            pair
            for pair, part in zip(_MEANINGS, parts, strict=True)
            if part.count or part.verdict != "undecided"
        ],
        looks=[_look(look) for look in audit.groups],
        lists=[one for one in (_broken(audit), _unknown(audit), _closest(audit)) if one.rows],
        record=_record(audit),
        generator=generator(),
    )  # fmt: skip
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


def _parts(counts: dict[Verdict, int]) -> list[_Part]:
    return [_Part(verdict, words, counts[verdict]) for verdict, words in _TITLES.items()]


def _look(look: AuditGroup) -> dict[str, Any]:
    if look.inside:
        how = f"The new network lies in the promised set ({look.inside})."
    elif look.aligned:
        how = "The new network lies outside the promised set. Each promise was tested."
        how += f" {_sentence(look.reason)}" if look.reason else ""
    else:
        how = f"Point by point, by prediction: {look.reason}."
    name = f"{look.model} ({look.terms[:8]})"
    return {"name": name, "parts": _parts(look.counts), "how": how}


def _alarms(audit: Audit) -> dict[str, Any] | None:
    numbers = audit.alarms
    if not numbers:
        return None
    there = set(audit.verdicts.note.tolist())
    count = f"{len(numbers):,} case{'s' * (len(numbers) != 1)}"
    return {"count": count, "notes": [NOTES[note] for note in ALARMS if note in there]}


def _broken(audit: Audit) -> _List:
    lead = (
        "The retrained model does not keep these promises. Retrain within the promised set, repair "
        "the model, or give these people new answers."
    )
    return _list(audit, "broken", "Broken promises", lead)


def _unknown(audit: Audit) -> _List:
    return _list(
        audit, "undecided", "Undecided promises", "Undecided promises do not count as holding."
    )


def _list(audit: Audit, verdict: Verdict, title: str, lead: str) -> _List:
    chosen = np.flatnonzero(audit.verdicts.verdict == VERDICTS.index(verdict))
    numbers = [f"{value:.4g}" for value in audit.verdicts.margin[chosen[:_MOST]]]
    rest = len(chosen) - _MOST
    return _List(
        verdict,
        title,
        lead,
        "Margin",
        _rows(audit, chosen[:_MOST], numbers),
        f"And {rest:,} more: audit.to_frame({verdict!r}) lists all." if rest > 0 else "",
    )


def _closest(audit: Audit) -> _List:
    """Promises that hold with the smallest margins."""
    held = np.flatnonzero(audit.verdicts.verdict == VERDICTS.index("holds"))
    chosen = held[np.argsort(audit.verdicts.margin[held], kind="stable")[:_CLOSEST]]
    numbers = [f"{value:.3g}" for value in audit.verdicts.margin[chosen]]
    lead = "The next retraining is most likely to break these promises."
    return _List("holds", "Smallest margins", lead, "Margin",
                 _rows(audit, chosen, numbers), "")  # fmt: skip


def _rows(audit: Audit, chosen: Any, numbers: list[str]) -> tuple[_Row, ...]:
    ids = audit.ids[chosen].tolist()
    notes = [NOTES[note] for note in audit.verdicts.note[chosen]]
    columns = (audit.recipients(ids), notes, numbers)
    return tuple(
        _Row(
            one.promise,
            one.person or "erased",
            one.sentence.partition(" This is proved for ")[0],  # the table of terms has the rest
            note,
            value,
            one.expires or "none",
        )
        for one, note, value in zip(*columns, strict=True)
    )


def _record(audit: Audit) -> list[tuple[str, str]]:
    written = "not recorded" if audit.number is None else f"entry {audit.number}"
    return [
        ("Ledger", audit.ledger.name),
        ("Audit", written),
        ("Chain head of the ledger", str(audit.head)),
        ("Retrained model in the ledger, SHA-256", audit.model_digest),
    ]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
