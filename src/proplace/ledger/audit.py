"""An audit: what a retrained model makes of every open promise."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from proplace.core.errors import LedgerError, OptionError, ProplaceError
from proplace.core.guarantee import CURRENT_MODEL
from proplace.ledger.chain import verdicts_digest
from proplace.ledger.issue import Issued
from proplace.ledger.promise import recipients, wording_of
from proplace.ledger.redeem import reading
from proplace.ledger.tables import now
from proplace.ledger.terms import model_documents
from proplace.ledger.verdicts import ALARMS, NOTES, VERDICTS, Comparison, Verdicts, evaluate
from proplace.loaders.coordinates import one_cutoff, with_cutoff_of
from proplace.loaders.model import Model

if TYPE_CHECKING:
    import datetime
    import os
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from proplace.core.network import Array, Network
    from proplace.core.request import Request
    from proplace.explain.results import Explanation, Explanations
    from proplace.explain.words import Wording
    from proplace.ledger.chain import Head
    from proplace.ledger.database import Writer
    from proplace.ledger.ledger import Ledger
    from proplace.ledger.promise import OpenPromises, Recipient
    from proplace.ledger.terms import Terms
    from proplace.ledger.verdicts import Verdict
    from proplace.schema.values import Label


FailOn = Literal["broken", "holds"]
"""What a release gate does not let pass: a broken promise, or any that is not proved."""

_WORDS: dict[Verdict, str] = {
    "proved": "proved",
    "holds": "hold",
    "broken": "broken",
    "undecided": "undecided",
}


@dataclass(frozen=True)
class Look:
    """What was found for all promises of the same terms.

    Attributes
    ----------
    terms, model
        Name of the terms in the ledger, and of the promised model.
    inside
        Name of the promised set in which the new network lies; empty if in none.
    on_rows
        Whether the new network could be put on the rows of the promised model; else promises were
        judged point by point.
    why
        Why it could not be compared, where it could not.
    counts
        How many promises have which verdict.
    """

    terms: str
    model: str
    inside: str
    on_rows: bool
    why: str
    counts: dict[Verdict, int]

    def __str__(self) -> str:
        """One line."""
        total = sum(self.counts.values())
        said = f"{_promises(total)} of {self.model} (terms {self.terms[:8]}): {_told(self.counts)}"
        if self.inside:
            return f"{said}; the new network lies in the promised set ({self.inside})"
        return f"{said}; {self.why}" if self.why else said


@dataclass(frozen=True, eq=False)
class Audit:
    """What a retrained model makes of every open promise of a ledger.

    Made by :meth:`proplace.Ledger.audit`.

    Attributes
    ----------
    ledger
        The ledger.
    model, model_digest
        What the retrained model is called, and its name in the ledger.
    as_of, time
        The day on which promises had to be open, and when they were looked at.
    head
        The end of the chain then.
    number
        The entry of the ledger that records it; None where it was not recorded.
    ids
        Numbers of the promises, in order.
    found
        The verdicts, margins and notes, side by side.
    looks
        What all promises of the same terms have in common.
    network
        The network that was read of the retrained model.
    """

    ledger: Ledger
    model: str
    model_digest: str
    as_of: str
    time: str
    head: Head
    ids: npt.NDArray[np.int64]
    found: Verdicts
    looks: tuple[Look, ...]
    network: Network
    number: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many promises have which verdict."""
        numbers = np.bincount(self.found.verdict, minlength=len(VERDICTS)).tolist()
        return dict(zip(VERDICTS, numbers, strict=True))

    @property
    def broken(self) -> tuple[int, ...]:
        """Numbers of the promises that are broken."""
        return self.having("broken")

    @property
    def alarms(self) -> tuple[int, ...]:
        """Promises where the model contradicts what was read or proved: never to be passed over."""
        return tuple(self.ids[np.isin(self.found.note, ALARMS)].tolist())

    def having(self, verdict: Verdict) -> tuple[int, ...]:
        """Numbers of the promises with a verdict."""
        chosen = self.found.verdict == VERDICTS.index(verdict)
        return tuple(self.ids[chosen].tolist())

    def passes(self, fail_on: FailOn = "broken") -> bool:
        """Whether a release gate lets the model pass; undecided promises never pass.

        ``broken``: no promise may be broken. ``holds``: all must be proved.
        """
        if fail_on not in get_args(FailOn):
            raise OptionError(
                f"fail_on must be 'broken' or 'holds', not {fail_on!r}",
                name="fail_on",
                value=fail_on,
            )
        counts = self.counts
        bad = counts["broken"] + counts["undecided"] + len(self.alarms)
        return not (bad or (fail_on == "holds" and counts["holds"]))

    def verdict(self, promise: int) -> Verdict:
        """The verdict on one promise."""
        at = int(np.searchsorted(self.ids, promise))
        if at == len(self.ids) or self.ids[at] != promise:
            raise OptionError(
                f"promise {promise} was not open on {self.as_of}; it has no verdict",
                name="promise",
                value=promise,
            )
        return VERDICTS[int(self.found.verdict[at])]

    def recipients(self, numbers: Sequence[int]) -> list[Recipient]:
        """Return the recipients of some promises, in the order given."""
        with self.ledger._database.read() as connection:
            return recipients(connection, numbers)

    def to_frame(self, verdict: Verdict | None = None) -> pd.DataFrame:
        """One row for each promise: person, verdict, margin, note, last day and sentence.

        Parameters
        ----------
        verdict
            Only promises with this verdict.
        """
        chosen = np.arange(len(self))
        if verdict is not None:
            chosen = np.flatnonzero(self.found.verdict == VERDICTS.index(verdict))
        numbers = self.ids[chosen].tolist()
        people = self.recipients(numbers)
        columns = {
            "person": [one.person for one in people],
            "verdict": [VERDICTS[n] for n in self.found.verdict[chosen].tolist()],
            "margin": self.found.margin[chosen],
            "note": [NOTES[n] for n in self.found.note[chosen].tolist()],
            "expires": [one.expires for one in people],
            "sentence": [one.sentence for one in people],
        }
        return pd.DataFrame(columns, index=pd.Index(numbers, name="promise"))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it; people by their ids, nothing else of them."""
        frame = self.to_frame()
        columns = (frame.index, *(frame[name] for name in ("person", "verdict", "note", "margin")))
        return {
            "ledger": self.ledger.name,
            "audit": self.number,
            "model": self.model,
            "digest": self.model_digest,
            "as_of": self.as_of,
            "time": self.time,
            "head": str(self.head),
            "counts": self.counts,
            "alarms": list(self.alarms),
            "terms": [vars(look) for look in self.looks],
            "promises": [
                {
                    "promise": int(number),
                    "person": person,
                    "verdict": verdict,
                    "margin": _number(margin),
                    "note": note,
                }
                for number, person, verdict, note, margin in zip(*columns, strict=True)
            ],
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict())

    def report(self, path: str | os.PathLike[str], *, title: str = "Audit of promises") -> Path:
        """Write an HTML page to read, which opens offline (extra ``report``)."""
        from proplace.report.audit_page import write_audit_page

        return write_audit_page(path, self, title=title)

    def renew(self, explainer: Any, *, n: int | None = None, **wishes: Any) -> Renewal:
        """Search new answers, against the new model, for the people whose promises are broken.

        Each is searched for with the request of the promise it replaces. Nothing is issued: see
        :meth:`Renewal.issue`.

        Parameters
        ----------
        explainer
            A fitted explainer of the new model, such as ``Proplace(new_model, 0.02).fit(table)``.
        n
            For the first so many broken promises only.
        wishes
            Keywords of :meth:`proplace.Proplace.explain`, such as ``prefer``, which take the place of
            the promise's.
        """
        from proplace.ledger.audit import renewed

        return renewed(self, explainer, n, wishes)

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if not len(self):
            return f"no promise is open on {self.as_of}: {self.model} breaks none"
        counts = self.counts
        rest = f"; {counts['undecided']:,} undecided" if counts["undecided"] else ""
        return (
            f"of {len(self):,} open promise{'s' * (len(self) != 1)}, {self.model} proves "
            f"{counts['proved']:,}, keeps {counts['holds']:,} without a proof and breaks "
            f"{counts['broken']:,}{rest}"
        )

    def __str__(self) -> str:
        """What was found, in a few lines."""
        lines = [self.sentence, *(f"  {look}" for look in self.looks if len(self.looks) > 1)]
        if len(self.looks) == 1:
            (look,) = self.looks
            if look.inside:
                lines.append(f"  the new network lies in the promised set ({look.inside})")
            elif look.why:
                lines.append(f"  {look.why}")
        if self.alarms:
            lines.append(
                f"  ALARM: in {_promises(len(self.alarms))} the model contradicts what was read or "
                "proved of it; to_frame()['note'] says how. Do not release it"
            )
        return "\n".join(lines)


class _Row(NamedTuple):
    """A row of the table of verdicts."""

    promise: int
    verdict: str
    margin: float | None


@dataclass(eq=False)
class Auditor:
    """Goes through the open promises of a ledger, group by group, in bounded memory."""

    source: object
    compared: dict[str, Comparison] = field(default_factory=dict)
    _counts: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    _terms: dict[str, Terms] = field(default_factory=dict)
    _ids: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _parts: list[Verdicts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.named = Model.of(self.source)
        self._stated = self.model.threshold is not None

    def adopt_cutoff(self, base: Model | None) -> None:
        """Read the model with the cut-off of promises, unless it states its own."""
        if base is None or self._stated:
            return
        one_cutoff([base, *(terms.model for terms in self._terms.values())])
        self.model = with_cutoff_of(base, self.model)

    def describe(self, latest: Model | None) -> None:
        """Name the columns of the model as the latest promise does, if that can be done.

        The named model is recorded, so that the ledger can redeem promises with it later.
        """
        if latest is None:
            return
        if not self.compared:
            self.adopt_cutoff(latest)
        with contextlib.suppress(ProplaceError):
            self.named = reading(self.source, latest)

    def judge(self, group: OpenPromises) -> None:
        """Judge some promises of the same terms."""
        name = group.terms.digest
        if name not in self.compared:
            self.adopt_cutoff(group.terms.model)
            self.compared[name] = Comparison.of(self.source, self.model, group.terms)
            self._terms[name] = group.terms
            self._counts[name] = np.zeros(len(VERDICTS), dtype=np.int64)
        found = evaluate(self.compared[name], group)
        self._counts[name] += np.bincount(found.verdict, minlength=len(VERDICTS))
        self._ids.append(group.ids)
        self._parts.append(found)

    def audit(self, ledger: Ledger, day: str, head: Head) -> Audit:
        """All verdicts, in the order of the promises."""
        ids = np.concatenate([*self._ids, np.empty(0, dtype=np.int64)])
        order = np.argsort(ids)
        fields: list[Array] = [
            np.concatenate([*(getattr(part, name) for part in self._parts), np.empty(0, kind)])[order]
            for name, kind in (("verdict", "i1"), ("margin", "f8"), ("note", "i1"))
        ]  # fmt: skip
        looks = tuple(
            Look(
                name,
                self._terms[name].model.origin.name,
                "" if one.inside is None else one.inside.name or CURRENT_MODEL,
                one.aligned is not None,
                one.reason,
                dict(zip(VERDICTS, self._counts[name].tolist(), strict=True)),
            )
            for name, one in self.compared.items()
        )
        digest = model_documents(self.named)[-1].digest
        found = Verdicts(*fields)  # type: ignore[arg-type]
        name = self.model.origin.name
        own = self.model.network
        facts = (name, digest, day, now(), head, ids[order], found, looks, own)
        return Audit(ledger, *facts)

    def recorded(self, audit: Audit, writer: Writer) -> Audit:
        """Write an audit down, with the model and all verdicts."""
        writer.keep(model_documents(self.named))
        body = {
            "model": audit.model_digest,
            "as_of": audit.as_of,
            "head": str(audit.head),
            "counts": audit.counts,
            "alarms": len(audit.alarms),
            "inside": {look.terms: look.inside for look in audit.looks if look.inside},
            "verdicts": verdicts_digest(_rows(audit)),
        }
        entry = writer.append("audited", body)
        for row in _rows(audit):
            writer.add("verdicts", {"audit": entry.seq, **row._asdict()})
        return replace(audit, number=entry.seq)


def _rows(audit: Audit) -> Iterator[_Row]:
    found = audit.found
    columns = (audit.ids, found.verdict, found.margin)
    for number, verdict, margin in zip(*(c.tolist() for c in columns), strict=True):
        yield _Row(number, VERDICTS[verdict], _number(margin))


def _number(value: float) -> float | None:
    """A number as tables and JSON hold it."""
    return float(value) if math.isfinite(value) else None


def _promises(count: int) -> str:
    return f"{count:,} promise{'s' * (count != 1)}"


def _told(counts: dict[Verdict, int]) -> str:
    return ", ".join(
        f"{counts[name]:,} {words}"
        for name, words in _WORDS.items()
        if counts[name] or name != "undecided"
    )


# -- renewals --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Batch:
    """New answers of one class, last day and wording: for each person, with the promises to replace."""

    result: Explanations
    expires: str | None
    wording: Wording
    replaces: dict[str, list[int]]
    answers: tuple[dict[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Renewal:
    """New answers for broken promises, beside the old ones.

    Made by :meth:`Audit.renew`. A person with several broken promises of one class gets one new answer.

    Attributes
    ----------
    audit
        The audit that found them broken.
    """

    audit: Audit
    _batches: tuple[_Batch, ...]

    def __len__(self) -> int:
        return sum(len(batch.replaces) for batch in self._batches)

    @property
    def results(self) -> tuple[Explanations, ...]:
        """The new answers, one table of results for each promised class, last day and wording."""
        return tuple(batch.result for batch in self._batches)

    def to_frame(self) -> pd.DataFrame:
        """What the new answers ask for beside the old ones: one row for each person and feature.

        Columns: ``promise``, ``person``, ``status``, ``feature``, ``was`` (when the promise was made),
        ``promised``, ``now`` (None where there is no new answer); only features where two of them
        differ. A person without a new answer, or who is accepted as they were, has one row without a
        feature.
        """
        rows: list[tuple[Any, ...]] = []
        for batch in self._batches:
            columns = (batch.result, batch.replaces.items(), batch.answers)
            for e, (person, replaces), promised in zip(*columns, strict=True):
                head = (replaces[0], person, e.status)
                lines = [(*head, *line) for line in _differences(e, promised)]
                rows += lines or [(*head, None, None, None, None)]
        names = ["promise", "person", "status", "feature", "was", "promised", "now"]
        return pd.DataFrame(rows, columns=names, dtype=object)

    def issue(self, *, expires: datetime.date | str | None = None, check: bool = True) -> Issued:
        """Issue the new answers, each in the place of the promises that were broken.

        Parameters
        ----------
        expires
            The last day of all of them; left out, each keeps that of the promise it replaces, the latest
            where there were several.
        check
            Whether to check every certificate in exact arithmetic first.
        """
        done = [
            self.audit.ledger.issue(
                batch.result,
                ids=list(batch.replaces),
                expires=expires or batch.expires,
                existing="renew",
                wording=batch.wording,
                replacing=[number for numbers in batch.replaces.values() for number in numbers],
                check=check,
            )
            for batch in self._batches
        ]
        return Issued(
            tuple(number for one in done for number in one.ids),
            tuple(number for one in done for number in one.new),
            tuple(row for one in done for row in one.skipped),
        )

    def __str__(self) -> str:
        """One line."""
        found = sum(e.found for batch in self._batches for e in batch.result)
        return f"{found} new answers for {len(self)} people with broken promises"


def renewed(audit: Audit, explainer: Any, n: int | None, wishes: dict[str, Any]) -> Renewal:
    """Search new answers for the broken promises of an audit."""
    _check_explains(explainer, audit.network)
    broken = audit.recipients(audit.broken if n is None else audit.broken[:n])
    groups: dict[tuple[Label, str | None, str, str], dict[str, list[Recipient]]] = {}
    words: dict[tuple[str, Label], tuple[str, str]] = {}
    last: dict[tuple[str, Label], str | None] = {}
    for one in broken:
        if one.person is not None:  # not erased meanwhile
            known = last.get((one.person, one.target), "")
            ends = None in (known, one.expires)  # without end is later than any day
            last[one.person, one.target] = None if ends else max(known or "", one.expires or "")
            said = json.dumps(one.facts.get("wording")), json.dumps(_keywords(one.request))
            words.setdefault((one.person, one.target), said)
    for one in broken:
        if one.person is not None:
            who = (one.person, one.target)
            people = groups.setdefault((one.target, last[who], *words[who]), {})
            people.setdefault(one.person, []).append(one)
    batches = []
    for (label, expires, _, asked), people in groups.items():
        facts = [several[0].facts for several in people.values()]
        table = pd.DataFrame([one["original"] for one in facts])
        result = explainer.explain(table, label, **json.loads(asked) | wishes)
        if not result.complete:
            raise LedgerError("the search was interrupted; renew again")
        replaces = {person: [one.promise for one in all_] for person, all_ in people.items()}
        answers = tuple(one["answer"] for one in facts)
        batches.append(_Batch(result, expires, wording_of(facts[0]), replaces, answers))
    return Renewal(audit, tuple(batches))


def _keywords(request: Request) -> dict[str, Any]:
    """Return the keywords of ``explain`` that a promise was searched with."""
    keywords = request.to_dict()
    del keywords["target"]  # a model may number its classes in another order
    return keywords


def _check_explains(explainer: Any, net: Network) -> None:
    if not _explains(explainer, net):
        raise LedgerError(
            "the explainer is not one of the model that was audited, so that its answers would be "
            "promises of another model; fit one: Proplace(new_model, delta).fit(table)",
            name="explainer",
        )


def _explains(explainer: Any, net: Network) -> bool:
    """Test if an explainer is about a network, with whatever input transform of a schema."""
    model = getattr(explainer, "model_", None)
    if model is None:
        return False
    mine, theirs = model.network.layers, net.layers
    return len(mine) == len(theirs) and all(
        np.array_equal(a.W, b.W) and np.array_equal(a.bias, b.bias)
        for a, b in zip(mine, theirs, strict=True)
    )


def _differences(e: Explanation, promised: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Features in which the person, the old answer and the new one are not all the same."""
    if e.original is None:
        return []
    lines = []
    new = {} if e.counterfactual is None else e.counterfactual.to_dict()
    for name, was in e.original.to_dict().items():
        values = (was, promised.get(str(name)), new.get(name))
        if any(value != was for value in values if value is not None):
            lines.append((name, *values))
    return lines
