"""The letter to one person, in plain words, that can be printed on A4 and sent.

A letter is read as a promise. It takes what is proved from :mod:`proplace.explain.words` and nothing
else: an answer without a proof is said to hold today, a person without an answer gets the reason,
and a row that could not be explained gets no letter.
"""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from proplace.certification import digest as network_digest
from proplace.core.errors import LedgerError, OptionError
from proplace.core.files import atomic_write
from proplace.core.text import clipped, short, visible
from proplace.explain.claims import format_room, is_certified
from proplace.explain.record import now
from proplace.explain.results import Explanations
from proplace.explain.words import (
    accepted_now,
    describe,
    how_near,
    how_usual,
    largest_first,
    outcome_of,
    promise,
    proved,
)
from proplace.report.page import Fact
from proplace.report.proofs import MODEL, command
from proplace.report.style import generator, label_of, templates

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from proplace.explain.claims import Claim
    from proplace.explain.results import Explanation
    from proplace.explain.words import Description, Wording
    from proplace.ledger.promise import Promise

UNSENT = frozenset({"bad_input", "solver_error", "worker_died", "model_mismatch"})
"""Statuses of rows to whose people there is nothing to say yet."""

MOST_WAYS = 4
"""Ways that a letter shows beside each other."""

_DIGITS = 12  # of a digest that is the reference of a promise
_CELL, _TITLE, _LINE, _REASON = 64, 90, 160, 700  # characters of what may be of any length
_WIDE = 66  # characters that fit into a line of the table; longer words are broken
_UNCHANGED = 1400  # characters of the list of what stays, beyond which it is counted
_ORDER = ("First way", "Second way", "Third way", "Fourth way")

_NETWORK = (
    "A model is the program that decides; its weights and biases are the numbers inside it, and "
    "retraining changes them."
)
_THEOREM = "This is a mathematical proof, not an estimate."
_NOT_EVER = (
    "This does not say that it can never be {outcome}: only that no change was found whose success "
    "could be promised."
)
_NOTHING = "Nothing is promised by this letter."
_WHY = {
    "no_robust_neighbour": "No example was found to which all the models that a promise must cover "
    "say “{outcome}”.",
    "infeasible_rules": "With what cannot change here, no example was found to which all the models "
    "that a promise must cover say “{outcome}”.",
    "not_found": "The search ended before a change was found that could be promised.",
}


@dataclass(frozen=True)
class Row:
    """A line of the table: a feature, what it is today, and what each way asks for."""

    title: str
    today: str
    goals: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Letter:
    """What a letter says, before it is set."""

    heading: str
    person: str
    facts: tuple[Fact, ...]
    lead: str
    detail: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    references: tuple[str, ...]
    promises: tuple[str, ...]
    conditions: tuple[str, ...]
    limits: tuple[str, ...]
    digests: tuple[Fact, ...]
    command: str
    unchecked: str

    @property
    def widest(self) -> int:
        """Characters of the longest word that a cell of the table holds in one piece."""
        return _WIDE // (2 + max(len(self.columns), 2))


def letter_of(
    result: Explanations,
    index: Hashable,
    path: str | os.PathLike[str] | None,
    wording: Wording,
    *,
    date: datetime.date | str | None = None,
    valid_until: datetime.date | str | None = None,
    reference: str | None = None,
) -> str | Path:
    """Write the letter to one person; see :meth:`proplace.Explanations.letter`."""
    environment = templates("the letter")
    environment.tests["long"] = lambda text, most: max(map(len, text.split()), default=0) > most
    answers = _answers(result, index)
    day = _today() if date is None else day_of("date", date)
    last = None if valid_until is None else day_of("valid_until", valid_until)
    if last is not None and last < day:
        raise OptionError(
            f"valid_until {last} lies before the date of the letter, {day}",
            name="valid_until",
            value=last,
        )
    letter = _letter(answers, wording, (day, last), reference)
    text = environment.get_template("letter.html.j2").render(letter=letter, generator=generator())
    if path is None:
        return str(text)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


def _answers(result: Explanations, index: Hashable) -> list[Explanation]:
    """All answers of one person, or why there is no letter to them."""
    found = [e for e in result if e.index == index]
    if not found:
        known = ", ".join(short(e.index) for e in result[:3])
        more = ", ..." if len(result) > 3 else ""
        raise OptionError(
            f"nobody is labelled {short(index)} in these results; their rows are labelled {known}{more}",
            name="index",
            value=index,
        )
    if len({e.rank for e in found}) < len(found):
        raise OptionError(
            f"several people are labelled {short(index)}, and a letter is for one; give each row of "
            "the table a label of its own, such as frame.reset_index(drop=True)",
            name="index",
            value=index,
        )
    first = found[0]
    if first.status in UNSENT:
        raise OptionError(
            f"there is no letter to {short(index)}: {first.reason or first.status}; see to that and "
            "explain the row again",
            name="index",
            value=index,
        )
    return sorted(found, key=lambda e: e.rank)


def _today() -> datetime.date:
    """The day on which the letter is written; that of ``SOURCE_DATE_EPOCH`` where it is set."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return datetime.date.fromisoformat(now()[:10])
    return datetime.date.today()


def day_of(name: str, value: datetime.date | str) -> datetime.date:
    """Return a day that was given as such, or as text; ``name`` is what a complaint calls it."""
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise OptionError(
            f"{name} must be a day such as 2026-03-31, not {short(value)}", name=name, value=value
        ) from None


def in_full(day: datetime.date) -> str:
    """A day as letters have it, whatever the language of the machine.

    Examples
    --------
    >>> in_full(datetime.date(2026, 3, 9))
    '9 March 2026'
    """
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


# -- what it says ----------------------------------------------------------------------------------


def _letter(
    answers: Sequence[Explanation],
    wording: Wording,
    days: tuple[datetime.date, datetime.date | None],
    reference: str | None,
) -> Letter:
    first = answers[0]
    ways = [e for e in answers if e.found][:MOST_WAYS]
    words = [describe(e, wording) for e in ways]
    shown = ways or [first]
    own = describe(first, wording)
    sure = [e for e in shown if proved(e)]
    # Where few changes count, the first need not be the nearest.
    nearest = all(first.distance <= e.distance for e in ways)
    head, lead = _opening(first, sum(e.found for e in answers), words, wording, nearest=nearest)
    return Letter(
        heading=head,
        person=clipped(_capital(f"{wording.person} {label_of(first.index)}{_who(first)}"), _LINE),
        facts=_facts(first, days, reference),
        lead=lead,
        detail=_detail(first),
        columns=_ORDER[: len(ways)] if len(ways) > 1 else (),
        rows=_rows(words),
        references=tuple(_reference(e) for e in ways) if len(ways) > 1 else (),
        promises=_promises(shown, wording),
        conditions=_conditions(sure, words, own, days[1]) if sure else (),
        limits=_limits(first, wording, own, sure=bool(sure)),
        digests=_digests(shown),
        command=command("certificate.json", MODEL, first.setting, Path()),
        unchecked=_unchecked(sure),
    )


def _opening(
    first: Explanation, found: int, words: Sequence[Description], wording: Wording, *, nearest: bool
) -> tuple[str, str]:
    """The heading, and the first sentence."""
    subject, outcome = clipped(wording.subject, _LINE), clipped(outcome_of(first, wording), _LINE)
    by = ""
    if first.setting is not None and proved(first) and not _now(first):
        by = " by the models that are described below, though not by the current model,"
    if first.status == "already_valid":
        return "Nothing has to change", _capital(f"{subject} would be {outcome}{by} as things are.")
    if first.status == "fixed_prediction":
        lead = f"{subject} would not be {outcome} after any change within the declared ranges."
        return "No change within these ranges would help", _capital(lead)
    if not first.found:
        none = f"No change can be promised after which {subject} would be {outcome}."
        why = _WHY.get(first.status, "").format(outcome=outcome)
        return "No change can be promised", f"{none} {why}".strip()
    count = len(words[0].claims)
    whole = "both" if count == 2 else "all of them"
    changes = "this one change" if count == 1 else f"these {count} changes, {whole} together"
    if len(words) == 1:
        lead = f"{subject} would have been {outcome}{by} with {changes}."
        return "What would have to change", _capital(lead) + how_near(first)
    many = f"{_COUNTS[len(words)]} ways were found"
    if found > len(words):
        many = f"{found} ways were found, and the first {len(words)} are shown"
    lead = (
        f"{subject} would have been {outcome}{by} in each of these ways. {many}; each is complete by "
        f"itself{_NEAREST if nearest else ''}."
    )
    return "What would have to change", _capital(lead)


_NEAREST = ", and the first is the nearest to how things are today"
_COUNTS = ("No", "One", "Two", "Three", "Four")


def _detail(first: Explanation) -> str:
    """The reason as the search gives it, without what it advises those who asked to do."""
    if first.found or first.status == "already_valid":
        return ""
    return clipped(re.sub(r"; [^()]*$", "", first.reason), _REASON).rstrip(".")


def _now(e: Explanation) -> bool:
    """Whether the current model says so, too."""
    return e.setting is not None and (e.setting.current.contains_network or accepted_now(e))


def _facts(
    first: Explanation,
    days: tuple[datetime.date, datetime.date | None],
    reference: str | None,
) -> tuple[Fact, ...]:
    facts = [Fact("Date", in_full(days[0]))]
    if days[1] is not None:
        facts.append(Fact("Valid until", in_full(days[1])))
    own = reference if reference is not None else _reference(first)
    if own.strip():
        facts.append(Fact("Reference", clipped(own.strip(), _CELL)))
    return tuple(facts)


def _reference(e: Explanation) -> str:
    """The first digits of the certificate's digest; empty where nothing is proved by one."""
    return e.certificate.digest[:_DIGITS] if e.certificate is not None and _backed(e) else ""


def _backed(e: Explanation) -> bool:
    """Whether a certificate proves what the letter says: an answer, or that no change would help."""
    proof = e.certificate
    return proved(e) or (
        e.status == "fixed_prediction" and proof is not None and proof.verdict == "fixed"
    )


def _rows(words: Sequence[Description]) -> tuple[Row, ...]:
    """What changes in any of the ways: in the order of the first, its largest change on top."""
    found: dict[str, list[Claim | None]] = {}
    for n, way in enumerate(words):
        for change in largest_first(way.claims):
            found.setdefault(change.name, [None] * len(words))[n] = change
    rows = []
    for goals in found.values():
        change = next(c for c in goals if c is not None)
        rows.append(
            Row(
                clipped(change.title, _TITLE),
                clipped(change.was, _CELL),
                tuple("" if c is None else clipped(c.goal, _CELL) for c in goals),
                change.change if len(words) == 1 else "",
            )
        )
    return tuple(rows)


def _promises(shown: Sequence[Explanation], wording: Wording) -> tuple[str, ...]:
    """How far each answer holds: what is proved, in words, and nothing else."""
    first = shown[0]
    if not (first.found or first.status == "already_valid"):
        outcome = clipped(outcome_of(first, wording), _LINE)
        if first.status == "fixed_prediction" and _backed(first):
            what = "That no change within the declared ranges would help is proved"
            return (f"{_NOTHING} {what}: {_THEOREM.lower()}",)
        known = first.status in ("no_robust_neighbour", "infeasible_rules", "not_found")
        return (_NOTHING, _NOT_EVER.format(outcome=outcome)) if known else (_NOTHING,)
    said = [promise(e) + (f" {_THEOREM}" if proved(e) else "") for e in shown]
    texts = said[:1]
    if len(set(said)) > 1:
        texts = [f"{name}: {text}" for name, text in zip(_ORDER, said, strict=False)]
    if not any(map(proved, shown)):
        return (f"{_NOTHING} {texts[0]}", *texts[1:])
    whose = "model’s answer" if all(map(_now, shown)) else "answer of the models described here"
    after = "after these changes" if first.found else "as things are"
    outcome = clipped(outcome_of(first, wording), _LINE)
    return (f"The {whose} {after} is “{outcome}”. {texts[0]}", *texts[1:], _NETWORK)


def _conditions(
    sure: Sequence[Explanation],
    words: Sequence[Description],
    own: Description,
    last: datetime.date | None,
) -> tuple[str, ...]:
    """What must be so for the promise to hold."""
    first, facts = sure[0], []
    if words:
        whole = "All changes of one way are" if len(words) > 1 else "All the changes above are"
        values = "values"
        if len(words) == 1 and len(words[0].claims) == 1:
            whole, values = "The change above is", "value"
        facts.append(f"{whole} made, to exactly the {values} in the table{_within(words)}.")
    facts.append(_rest(first, words, own))
    facts.append(
        "The model that decides then is one of the models above, and takes its inputs in the same "
        "way. A model outside of them is not covered."
    )
    if last is not None:
        facts.append(
            f"It is decided by {in_full(last)}. This day is the sender’s own; the proof knows no days."
        )
    return tuple(facts)


def _within(words: Sequence[Description]) -> str:
    """The intervals that "at least" and the like stand for, all at once."""
    parts = [
        (f"{_ORDER[n].lower()}: " if len(words) > 1 else "")
        + f"{clipped(c.title, _TITLE)} {c.interval}"
        for n, way in enumerate(words)
        for c in largest_first(way.claims)
        if c.interval
    ]
    return f"; where it names more than one, to any within {'; '.join(parts)}" if parts else ""


def _rest(e: Explanation, words: Sequence[Description], own: Description) -> str:
    """What stays as it is; a number may move where that is proved, too."""
    changed = {change.name for way in words for change in way.claims}
    names = [] if e.original is None else [str(name) for name in e.original.index]
    stays = [
        (name, title, value)
        for name, (title, value) in zip(names, own.person, strict=True)
        if name not in changed
    ]
    parts = [
        f"{clipped(title, _TITLE)} {clipped(value, _CELL)}{_room(e, name, words)}"
        for name, title, value in stays
    ]
    if not parts:
        return "Nothing else changes."
    what = "Everything else stays as it is" if changed else "Everything stays as it is"
    if len(words) > 1:
        what = "Everything else, and what a way leaves as today, stays as it is"
    text = "; ".join(parts)
    if len(text) > _UNCHANGED:
        return f"{what}: the {len(parts)} other facts that the model looks at."
    return f"{what}: {text}."


def _room(e: Explanation, name: str, words: Sequence[Description]) -> str:
    """How far a number that stays may move: of one way, since each has its own proof."""
    if len(words) > 1 or not is_certified(e) or e.setting is None or e.original is None:
        return ""
    ends = e.guaranteed_ranges.get(name)
    free = ends and format_room(e.setting.schema.by_name.get(name), e.original[name], ends)
    return f" (or anything from {visible(free)})" if free else ""


def _limits(
    first: Explanation, wording: Wording, own: Description, *, sure: bool
) -> tuple[str, ...]:
    """What is not promised; where nothing is, what the letter is based on."""
    based = "; ".join(f"{clipped(t, _TITLE)} {clipped(v, _CELL)}" for t, v in own.person)
    basis = f"What this is based on: {based}." if based and len(based) <= _UNCHANGED else ""
    if not (first.found or first.status == "already_valid"):
        return (basis,) if basis else ()
    beyond = "" if sure else "that a retrained model says the same; "
    person = clipped(wording.person, _LINE)
    what = "anything that is decided by others than the model"
    if first.found:
        what = (
            f"that the {person} can make these changes, that making them does more than change the "
            f"answer of the model, or {what}"
        )
    limits = [f"Not promised: {beyond}{what}.", how_usual(first).strip()]
    if not sure:
        limits.append(basis)
    return tuple(text for text in limits if text)


def _digests(shown: Sequence[Explanation]) -> tuple[Fact, ...]:
    """The names of the certificates, and of the model that they speak of."""
    proofs = [(n, e.certificate) for n, e in enumerate(shown) if _backed(e) and e.certificate]
    several = len(shown) > 1
    facts = [
        Fact(f"Certificate of the {_ORDER[n].lower()}" if several else "Certificate", proof.digest)
        for n, proof in proofs
    ]
    setting = shown[0].setting
    if facts and setting is not None:
        facts.append(Fact("Network of the current model", network_digest(setting.current.network)))
    return tuple(facts)


def _unchecked(sure: Sequence[Explanation]) -> str:
    """What to say where a proof was not kept."""
    if all(e.certificate is not None for e in sure):
        return ""
    return (
        "A certificate was not kept with every answer; what has none cannot be checked by others."
    )


def _who(e: Explanation) -> str:
    return f" ({e.id_text})" if e.id_text else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def letter_of_promise(promise: Promise, path: Path, wording: Wording | None = None) -> None:
    """Write the letter of an open promise, with the day of its issue.

    The default wording is the wording of the promise. A letter states that the promise holds, so a
    promise that is no longer open gets none.
    """
    if promise.state != "open" or promise.explanation is None:
        raise LedgerError(
            f"promise {promise.id} is {promise.state}, and a letter would say that it holds; what "
            f"was promised is shown by: proplace ledger show LEDGER {promise.id}",
            name="promise",
            value=promise.id,
        )
    answer = replace(promise.explanation, index=promise.person, ids={})
    letter_of(
        Explanations([answer]),
        promise.person,
        path,
        promise.wording if wording is None else wording,
        date=promise.issued[:10],
        valid_until=promise.expires,
        reference=f"promise {promise.id}",
    )
