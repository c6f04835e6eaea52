"""New answers for people whose promises a retrained model breaks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import LedgerError
from proplace.ledger.issuing import Issued
from proplace.ledger.promise import wording_of

if TYPE_CHECKING:
    import datetime

    from proplace.core.network import Network
    from proplace.core.request import Request
    from proplace.explain.results import Explanation, Explanations
    from proplace.explain.words import Wording
    from proplace.ledger.audit import Audit
    from proplace.ledger.promise import Recipient
    from proplace.schema.values import Label


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
    broken = audit.ledger.recipients(audit.broken if n is None else audit.broken[:n])
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
