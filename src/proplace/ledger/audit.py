"""Audits: the verdict on every open promise under a retrained model, and renewals of broken ones."""

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
from proplace.core.options import one_of
from proplace.ledger.chain import verdicts_digest
from proplace.ledger.issue import Issued
from proplace.ledger.promise import recipients, wording_of
from proplace.ledger.redeem import reading
from proplace.ledger.tables import now
from proplace.ledger.terms import model_documents
from proplace.ledger.verdicts import ALARMS, NOTES, VERDICTS, Comparison, Verdicts, evaluate
from proplace.loaders.align import one_cutoff, with_cutoff_of
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
"""Verdicts that stop a release: broken promises, or also those that are not proved."""

_WORDS: dict[Verdict, str] = {
    "proved": "proved",
    "holds": "hold",
    "broken": "broken",
    "undecided": "undecided",
}


@dataclass(frozen=True)
class AuditGroup:
    """The promises of an audit that share their terms.

    Attributes
    ----------
    terms, model
        Digest of the terms and name of the promised model.
    inside
        Name of the promised shift set in which the new network lies. Empty if it lies in none.
    aligned
        True if the new network takes encoded rows of the promised model. Otherwise each promise was
        evaluated in original units.
    reason
        Why the networks could not be compared, or how far the new one lies outside.
    counts
        Number of promises with each verdict.
    """

    terms: str
    model: str
    inside: str
    aligned: bool
    reason: str
    counts: dict[Verdict, int]

    def __str__(self) -> str:
        """Return one line."""
        counts = ", ".join(
            f"{self.counts[name]:,} {word}"
            for name, word in _WORDS.items()
            if self.counts[name] or name != "undecided"
        )
        total = _promises(sum(self.counts.values()))
        text = f"{total} of {self.model} (terms {self.terms[:8]}): {counts}"
        return f"{text}; {self.comparison}" if self.comparison else text

    @property
    def comparison(self) -> str:
        """The place of the new network relative to the promised shift sets."""
        if self.inside:
            return f"the new network lies in the promised shift set ({self.inside})"
        return self.reason


@dataclass(frozen=True, eq=False)
class Audit:
    """The verdict on every open promise of a ledger under a retrained model.

    Made by :meth:`proplace.Ledger.audit`.

    Attributes
    ----------
    ledger
        The ledger.
    model, model_digest
        Name of the retrained model and its digest in the ledger.
    as_of, time
        Day on which the promises had to be open, and time of the audit.
    head
        Chain head at that time.
    number
        Number of the entry that records the audit. None if it was not recorded.
    ids
        Numbers of the promises, in order.
    verdicts
        Verdicts, margins and notes, side by side.
    groups
        Facts that hold for all promises of the same terms.
    network
        Imported network of the retrained model.
    """

    ledger: Ledger
    model: str
    model_digest: str
    as_of: str
    time: str
    head: Head
    ids: npt.NDArray[np.int64]
    verdicts: Verdicts
    groups: tuple[AuditGroup, ...]
    network: Network
    number: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of promises with each verdict."""
        numbers = np.bincount(self.verdicts.verdict, minlength=len(VERDICTS)).tolist()
        return dict(zip(VERDICTS, numbers, strict=True))

    @property
    def broken(self) -> tuple[int, ...]:
        """Numbers of the promises that are broken."""
        return self.with_verdict("broken")

    @property
    def alarms(self) -> tuple[int, ...]:
        """Promises for which the original model contradicts its imported network, or a proof."""
        return tuple(self.ids[np.isin(self.verdicts.note, ALARMS)].tolist())

    def with_verdict(self, verdict: Verdict) -> tuple[int, ...]:
        """Return the numbers of the promises with a verdict."""
        return tuple(self.ids[self._rows_with(verdict)].tolist())

    def passes(self, fail_on: FailOn = "broken") -> bool:
        """Test if a release gate accepts the model. Undecided promises never pass.

        With ``broken`` no promise may be broken. With ``holds`` all must be proved.
        """
        one_of("fail_on", fail_on, get_args(FailOn))
        counts = self.counts
        bad = counts["broken"] + counts["undecided"] + len(self.alarms)
        return not (bad or (fail_on == "holds" and counts["holds"]))

    def verdict(self, promise: int) -> Verdict:
        """Return the verdict on one promise."""
        at = int(np.searchsorted(self.ids, promise))
        if at == len(self.ids) or self.ids[at] != promise:
            raise OptionError(
                f"promise {promise} was not open on {self.as_of}. It has no verdict",
                name="promise",
                value=promise,
            )
        return VERDICTS[int(self.verdicts.verdict[at])]

    def _rows_with(self, verdict: Verdict) -> npt.NDArray[np.intp]:
        number = VERDICTS.index(one_of("verdict", verdict, VERDICTS))
        return np.flatnonzero(self.verdicts.verdict == number)

    def recipients(self, numbers: Sequence[int]) -> list[Recipient]:
        """Return the recipients of some promises, in the order given."""
        with self.ledger._database.read() as connection:
            return recipients(connection, numbers)

    def to_frame(self, verdict: Verdict | None = None) -> pd.DataFrame:
        """Return one row per promise: person, verdict, margin, note, expiry date and sentence.

        Parameters
        ----------
        verdict
            Verdict of the promises to return. None for all.
        """
        chosen = np.arange(len(self))
        if verdict is not None:
            chosen = self._rows_with(verdict)
        numbers = self.ids[chosen].tolist()
        people = self.recipients(numbers)
        columns = {
            "person": [one.person for one in people],
            "verdict": [VERDICTS[n] for n in self.verdicts.verdict[chosen].tolist()],
            "margin": self.verdicts.margin[chosen],
            "note": [NOTES[n] for n in self.verdicts.note[chosen].tolist()],
            "expires": [one.expires for one in people],
            "sentence": [one.sentence for one in people],
        }
        return pd.DataFrame(columns, index=pd.Index(numbers, name="promise"))

    def to_dict(self) -> dict[str, Any]:
        """Return all facts for JSON. People appear by their ids alone."""
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
            "terms": [vars(group) for group in self.groups],
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

    def report(self, path: str | os.PathLike[str], *, title: str = "Audit of promises") -> Path:
        """Write an HTML page that opens offline (extra ``report``)."""
        from proplace.report.audit_page import write_audit_page

        return write_audit_page(path, self, title=title)

    def renew(self, explainer: Any, *, n: int | None = None, **wishes: Any) -> Renewal:
        """Search new counterfactuals for people with broken promises, under the new model.

        Each search uses the request of the promise that it replaces. :meth:`Renewal.issue` then issues
        the new promises.

        Parameters
        ----------
        explainer
            A fitted explainer of the new model, such as ``Proplace(new_model, 0.02).fit(table)``.
        n
            Largest number of broken promises, the first ones. None for all.
        wishes
            Keywords of :meth:`proplace.Proplace.explain`, such as ``prefer``, that replace those of the
            promise.
        """
        return _renewed(self, explainer, n, wishes)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
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
        """Return the result in a few lines."""
        lines = [self.sentence]
        if len(self.groups) > 1:
            lines += [f"  {group}" for group in self.groups]
        else:
            lines += [f"  {group.comparison}" for group in self.groups if group.comparison]
        if self.alarms:
            lines.append(
                f"  ALARM: the original model contradicts its imported network, or a proof, in "
                f"{_promises(len(self.alarms))}. See to_frame()['note']. Do not release it"
            )
        return "\n".join(lines)


class _Row(NamedTuple):
    """One row of the table of verdicts."""

    promise: int
    verdict: str
    margin: float | None


@dataclass(eq=False)
class Auditor:
    """Evaluates the open promises of a ledger, group by group, in bounded memory."""

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
        """Give the model the cut-off of promises, unless it states its own."""
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

    def evaluate(self, group: OpenPromises) -> None:
        """Evaluate some promises of the same terms."""
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
        """Return all verdicts, in the order of the promises."""
        ids = np.concatenate([*self._ids, np.empty(0, dtype=np.int64)])
        order = np.argsort(ids)
        fields: list[Array] = [
            np.concatenate([*(getattr(part, name) for part in self._parts), np.empty(0, kind)])[order]
            for name, kind in (("verdict", "i1"), ("margin", "f8"), ("note", "i1"))
        ]  # fmt: skip
        groups = tuple(
            AuditGroup(
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
        facts = (name, digest, day, now(), head, ids[order], found, groups, own)
        return Audit(ledger, *facts)

    def record(self, audit: Audit, writer: Writer) -> Audit:
        """Record an audit, with the model and all verdicts."""
        writer.store_documents(model_documents(self.named))
        body = {
            "model": audit.model_digest,
            "as_of": audit.as_of,
            "head": str(audit.head),
            "counts": audit.counts,
            "alarms": len(audit.alarms),
            "inside": {group.terms: group.inside for group in audit.groups if group.inside},
            "verdicts": verdicts_digest(_rows(audit)),
        }
        entry = writer.append("audited", body)
        for row in _rows(audit):
            writer.add("verdicts", {"audit": entry.seq, **row._asdict()})
        return replace(audit, number=entry.seq)


def _rows(audit: Audit) -> Iterator[_Row]:
    found = audit.verdicts
    columns = (audit.ids, found.verdict, found.margin)
    for number, verdict, margin in zip(*(c.tolist() for c in columns), strict=True):
        yield _Row(number, VERDICTS[verdict], _number(margin))


def _number(value: float) -> float | None:
    """Return a number, or None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def _promises(count: int) -> str:
    return f"{count:,} promise{'s' * (count != 1)}"


# -- renewals --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Batch:
    """New counterfactuals of one class, expiry date and wording, with the promises that they replace."""

    result: Explanations
    expires: str | None
    wording: Wording
    replaces: dict[str, list[int]]
    answers: tuple[dict[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Renewal:
    """New counterfactuals for broken promises.

    Made by :meth:`Audit.renew`. A person with several broken promises of one class gets one.

    Attributes
    ----------
    audit
        The audit that found the promises broken.
    """

    audit: Audit
    _batches: tuple[_Batch, ...]

    def __len__(self) -> int:
        return sum(len(batch.replaces) for batch in self._batches)

    @property
    def results(self) -> tuple[Explanations, ...]:
        """The new counterfactuals, one table per promised class, expiry date and wording."""
        return tuple(batch.result for batch in self._batches)

    def to_frame(self) -> pd.DataFrame:
        """Compare the new counterfactuals with the old ones: one row per person and feature.

        Columns: ``promise``, ``person``, ``status``, ``feature``, ``was`` (on the day of the promise),
        ``promised``, ``now`` (None without a new counterfactual). Only features with a difference are
        listed. A person without any has one row without a feature.
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
        """Issue the new counterfactuals in place of the broken promises.

        Parameters
        ----------
        expires
            Expiry date of all new promises. None keeps the latest date of the replaced ones.
        check
            Check every certificate in exact arithmetic first.
        """
        done = [
            self.audit.ledger.issue(
                batch.result,
                ids=list(batch.replaces),
                expires=expires or batch.expires,
                existing="renew",
                wording=batch.wording,
                replaces=[number for numbers in batch.replaces.values() for number in numbers],
                check=check,
            )
            for batch in self._batches
        ]
        return Issued(
            tuple(number for one in done for number in one.ids),
            tuple(number for one in done for number in one.new),
            tuple(row for one in done for row in one.skipped),
            tuple(dict.fromkeys(name for one in done for name in one.growing)),
        )

    def __str__(self) -> str:
        """Return one line."""
        found = sum(e.found for batch in self._batches for e in batch.result)
        return f"{found} new counterfactuals for {len(self)} people with broken promises"


def _renewed(audit: Audit, explainer: Any, n: int | None, wishes: dict[str, Any]) -> Renewal:
    """Search new counterfactuals for the broken promises of an audit."""
    _check_explains(explainer, audit.network)
    held: dict[tuple[str, Label], list[Recipient]] = {}
    for one in audit.recipients(audit.broken if n is None else audit.broken[:n]):
        if one.person is not None:  # not erased since the audit
            held.setdefault((one.person, one.target), []).append(one)
    groups: dict[tuple[Label, str | None, str, str], dict[str, list[Recipient]]] = {}
    for (person, label), several in held.items():
        first = several[0]
        words, request = (
            json.dumps(first.facts.get("wording")),
            json.dumps(_keywords(first.request)),
        )
        groups.setdefault((label, _latest(several), words, request), {})[person] = several
    batches = []
    for (label, expires, _, request), people in groups.items():
        facts = [several[0].facts for several in people.values()]
        table = pd.DataFrame([one["original"] for one in facts])
        result = explainer.explain(table, label, **json.loads(request) | wishes)
        if not result.complete:
            raise LedgerError("the search was interrupted. Renew again")
        replaces = {person: [one.promise for one in several] for person, several in people.items()}
        answers = tuple(one["answer"] for one in facts)
        batches.append(_Batch(result, expires, wording_of(facts[0]), replaces, answers))
    return Renewal(audit, tuple(batches))


def _latest(promises: Sequence[Recipient]) -> str | None:
    """Return the latest expiry date, or None if one of the promises has none."""
    dates = [one.expires for one in promises]
    return None if None in dates else max(date for date in dates if date is not None)


def _keywords(request: Request) -> dict[str, Any]:
    """Return the keywords of ``explain`` that a promise was searched with."""
    keywords = request.to_dict()
    del keywords["target"]  # a model may number its classes in another order
    return keywords


def _check_explains(explainer: Any, net: Network) -> None:
    if not _explains(explainer, net):
        raise LedgerError(
            "the explainer is not one of the audited model. Fit one with "
            "Proplace(new_model, delta).fit(table)",
            name="explainer",
        )


def _explains(explainer: Any, net: Network) -> bool:
    """Test if an explainer has the layers of a network. Its schema may add an input transform."""
    model = getattr(explainer, "model_", None)
    if model is None:
        return False
    mine, theirs = model.network.layers, net.layers
    return len(mine) == len(theirs) and all(
        np.array_equal(a.W, b.W) and np.array_equal(a.bias, b.bias)
        for a, b in zip(mine, theirs, strict=True)
    )


def _differences(e: Explanation, promised: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return features that differ among the person, the old counterfactual and the new one."""
    if e.original is None:
        return []
    lines = []
    new = {} if e.counterfactual is None else e.counterfactual.to_dict()
    for name, was in e.original.to_dict().items():
        values = (was, promised.get(str(name)), new.get(name))
        if any(value != was for value in values if value is not None):
            lines.append((name, *values))
    return lines
