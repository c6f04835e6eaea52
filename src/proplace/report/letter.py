"""The letter of a promise, from a template that the lender edits.

A letter states what the claims of an explanation state, and nothing else. It is addressed to the
person: the outcome first, then the changes that are enough, then what is certain. Numbers about
models are in its last lines only. The lender's own template extends ``letter.html.j2`` and fills its
blocks. ``docs/promises.md`` lists the blocks and the fields.
"""

from __future__ import annotations

import datetime
import os
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proplace.certification import CertificateBundle
from proplace.certification import digest as network_digest
from proplace.core.errors import LedgerError, OptionError, require
from proplace.core.files import atomic_write
from proplace.core.text import clipped, did_you_mean, visible
from proplace.explain.claims import format_room
from proplace.explain.statement import sentence, stated
from proplace.explain.words import (
    accepted_now,
    describe,
    describe_others,
    guarantee_sentence,
    is_proved_robust,
    largest_first,
    outcome_word,
)
from proplace.report.style import generator, literal
from proplace.schema.infer import grows_with_time
from proplace.schema.values import amount

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.explain.claims import Claim
    from proplace.explain.results import Explanation
    from proplace.ledger.promise import Promise
    from proplace.schema import Continuous, Ordinal

TEMPLATE = "letter.html.j2"
"""Name of the default template, which a template of one's own extends."""

_MAX_BYTES = 1_000_000  # of a template
_WORD, _LINE = 64, 160  # characters of values and of titles, which may have any length
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


class Change(NamedTuple):
    """A line of the table: a feature, its value today, and what is enough."""

    title: str
    today: str
    enough: str


class Fact(NamedTuple):
    """A feature that does not change, its value, and the values that are proved as well."""

    title: str
    value: str
    range: str


def letter_of_promise(
    promise: Promise, path: Path, *, template: Path | None = None, reasons: str = ""
) -> None:
    """Write the letter of an open promise, to print from a browser (extra ``report``).

    Parameters
    ----------
    promise
        Promise of a ledger. A letter states that the promise holds, so it must be open.
    path
        HTML file to write.
    template
        Jinja template of the lender, which replaces or extends the default one.
    reasons
        Reasons of the decision, in the lender's own words. If empty, the default template leaves a
        place to fill in the browser.

    Raises
    ------
    LedgerError
        The promise is not open.
    OptionError
        The template has an error. The message names the file, the line and what to change.
    """
    text = _rendered(letter_fields(promise, reasons), template)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())


def letter_fields(promise: Promise, reasons: str = "") -> dict[str, Any]:
    """Return the fields of a template, by name."""
    e = promise.explanation
    if promise.state != "open" or e is None or e.setting is None:
        raise LedgerError(
            f"Promise {promise.id} is {promise.state}, so it gets no letter: a letter states that "
            f"the promise holds. To see what was promised, use: proplace ledger show {promise.id}",
            name="promise",
            value=promise.id,
        )
    wording, claims = promise.wording, largest_first(e.claims)
    document, facts, grow = stated(e, wording), _unchanged(e, promise), growing(promise)
    return {
        "subject": clipped(wording.subject, _LINE),
        "outcome": clipped(outcome_word(e, wording), _LINE),
        "person_word": clipped(wording.person, _LINE),
        "person": clipped(str(promise.person), _LINE),
        "number": promise.id,
        "date": in_full(datetime.date.fromisoformat(promise.issued[:10])),
        "last_day": _day(promise.expires),
        "reasons": reasons.splitlines(),
        "changes": [_change(claim) for claim in claims],
        "better_is_enough": _better_is_enough(claims),
        "unchanged": [fact for name, fact in facts.items() if name not in grow],
        "growing": [facts[name] for name in grow],
        "accepted_today": e.setting.current.contains_network or accepted_now(e),
        "covers_updates": is_proved_robust(e),
        "covers_others": bool(describe_others(e.setting)),
        "certificate": "" if document is None else document.digest,
        "model": network_digest(e.setting.current.network),
        "proof": guarantee_sentence(e),
        "sentence": _sentence(document),
    }


def in_full(day: datetime.date) -> str:
    """Write a day as letters do, whatever the language of the machine.

    Examples
    --------
    >>> in_full(datetime.date(2026, 3, 9))
    '9 March 2026'
    """
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _day(text: str | None) -> str:
    return "" if text is None else in_full(datetime.date.fromisoformat(text))


def _change(claim: Claim) -> Change:
    # A goal with "…" lacks digits, and the proof is about the value with all of them.
    feature = cast("Continuous | Ordinal", claim.feature)
    enough = visible(amount(feature, claim.after, exact=True)) if claim.is_cut else claim.goal
    return Change(clipped(claim.title, _LINE), clipped(claim.was, _WORD), clipped(enough, _WORD))


def _better_is_enough(claims: tuple[Claim, ...]) -> bool:
    """Test if every number that changes may also go further, up to the end of its range."""
    numbers = [claim for claim in claims if claim.direction != "switch"]
    return bool(numbers) and all(claim.to_end for claim in numbers)


def growing(promise: Promise) -> list[str]:
    """Return the unchanged features that seem to grow with time while no larger value is covered."""
    e = promise.explanation
    assert e is not None and e.original is not None and e.setting is not None  # noqa: S101, PT018
    changed = {claim.name for claim in e.claims}
    return [
        name
        for name, feature in e.setting.schema.by_name.items()
        if name not in changed
        and grows_with_time(feature)
        and e.guaranteed_ranges.get(name, (0.0, e.original[name]))[1] <= e.original[name]
    ]


def _unchanged(e: Explanation, promise: Promise) -> dict[str, Fact]:
    """Return the facts that must stay as they are, in the order of the table."""
    assert e.original is not None and e.setting is not None  # noqa: S101, PT018  (it is open)
    changed, facts = {claim.name for claim in e.claims}, {}
    for name, (title, value) in zip(
        map(str, e.original.index), describe(e, promise.wording).person, strict=True
    ):
        if name in changed:
            continue
        ends = e.guaranteed_ranges.get(name)
        feature = e.setting.schema.by_name.get(name)
        room = "" if ends is None else format_room(feature, e.original[name], ends)
        facts[name] = Fact(clipped(title, _LINE), clipped(value, _WORD), visible(room))
    return facts


def _sentence(document: Any) -> str:
    """Return the sentence that both checkers print above their verdict, if any."""
    if not isinstance(document, CertificateBundle) or "statement" not in document.facts:
        return ""
    return sentence(document.facts["statement"], document.certificates[0])


# -- the template ----------------------------------------------------------------------------------


def _rendered(fields: dict[str, Any], template: Path | None) -> str:
    """Fill a template in a sandbox in which it can extend the default one alone."""
    jinja2 = require("jinja2", "report", "the letter")
    from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415  (an extra)

    sources = {TEMPLATE: jinja2.PackageLoader("proplace.report").get_source(None, TEMPLATE)[0]}
    name = TEMPLATE if template is None else os.path.join(".", template)  # never the default name
    if template is not None:
        sources[name] = _read(template)
    environment = SandboxedEnvironment(
        loader=jinja2.FunctionLoader(
            lambda each: (sources[each], each, None) if each in sources else None
        ),
        autoescape=True,  # names and labels come from the lender's tables
        finalize=literal,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        text = str(environment.get_template(name).render(**fields, generator=generator()))
        ignored = None if template is None else _ignored(environment, sources, name)
    except Exception as error:
        if template is None:
            raise
        place, problem = _place(error, name), str(error).rstrip(".")
        raise OptionError(
            f"{place}: {problem}. {_advice(error, fields)}", name="template", value=str(template)
        ) from None
    if ignored is not None:
        raise OptionError(f"{name}, {ignored}", name="template", value=str(template))
    return text


def _ignored(environment: Any, sources: dict[str, str], name: str) -> str | None:
    """Return the line of a part that the letter would not contain, and how to correct it."""
    from jinja2 import nodes  # noqa: PLC0415  (an extra)

    own = environment.parse(sources[name])
    if own.find(nodes.Extends) is None:
        return None if sources[name].strip() else "line 1: the template is empty. Write the letter."
    known = [block.name for block in environment.parse(sources[TEMPLATE]).find_all(nodes.Block)]
    for node in own.body:
        if isinstance(node, nodes.Block) and node.name not in known:
            return (
                f"line {node.lineno}: the default letter has no block {node.name!r}"
                f"{did_you_mean(node.name, known)}. Its blocks are {', '.join(known)}."
            )
        if isinstance(node, nodes.Output) and any(
            not isinstance(part, nodes.TemplateData) or part.data.strip() for part in node.nodes
        ):
            return (
                f"line {node.lineno}: text outside of the blocks does not appear in the letter. Move "
                f"it into one of them: {', '.join(known)}."
            )
    return None


def _read(template: Path) -> str:
    try:
        content = template.read_bytes()[: _MAX_BYTES + 1]
        if len(content) > _MAX_BYTES:
            raise OptionError(
                f"{template} has more than {_MAX_BYTES:,} bytes. Give the path of a Jinja template.",
                name="template",
                value=str(template),
            )
        return content.decode("utf-8-sig")
    except OSError as error:
        raise OptionError(
            f"{template} cannot be read ({error.strerror}). Give the path of a Jinja template.",
            name="template",
            value=str(template),
        ) from None
    except UnicodeDecodeError:
        raise OptionError(
            f"{template} is not text in UTF-8. Save it in this encoding.",
            name="template",
            value=str(template),
        ) from None


def _place(error: Exception, name: str) -> str:
    """Return the file and the line of an error in a template."""
    line = getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__):
        line = frame.lineno if frame.filename == name else line
    return name if line is None else f"{name}, line {line}"


def _advice(error: Exception, fields: dict[str, Any]) -> str:
    """Return what to change in a template."""
    jinja2 = require("jinja2", "report", "the letter")
    if isinstance(error, jinja2.TemplateNotFound):
        return f'A template can extend the default one alone: {{% extends "{TEMPLATE}" %}}.'
    if isinstance(error, jinja2.TemplateSyntaxError):
        return "Correct the tag in this line, or close the tag before it."
    if isinstance(error, jinja2.exceptions.SecurityError):
        return "Remove it: templates may not reach inside Python objects."
    if isinstance(error, jinja2.UndefinedError) and "has no attribute" in str(error):
        changes, unchanged = ", ".join(Change._fields), ", ".join(Fact._fields)
        return f"The parts are changes: {changes}; unchanged: {unchanged}."
    if isinstance(error, jinja2.UndefinedError):
        unknown = str(error).split("'")[1] if "'" in str(error) else ""
        return f"Use one of the fields{did_you_mean(unknown, fields)}: {', '.join(fields)}."
    return "Correct the expression in this line."
