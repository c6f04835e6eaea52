"""New answers for people whose promises an audited model breaks.

A renewal that was stopped after it had issued some of its answers finds these in the ledger, searches
the rest, and ends as if it had not been stopped.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter, OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from proplace.apps.serve.models import set_around
from proplace.apps.serve.questions import Options
from proplace.core.errors import OptionError
from proplace.promises.ledger import Ledger

if TYPE_CHECKING:
    from proplace.apps.serve.models import Engine
    from proplace.explain.proplace import Proplace

MOST = 200
"""Broken promises for which answers are searched at once."""


def renewed(
    engine: Engine, place: str, asked: dict[str, Any], actor: str, seconds: float
) -> dict[str, Any]:
    """Search; with the digests of answers that were seen, issue them if they are found again."""
    with Ledger(place, actor=actor, purpose=engine.purpose) as ledger:
        before = _issued(ledger, asked, actor)
        wanted = Counter(asked["seen"]) - Counter(before.values())
        facts = {"audit": asked["audit"], "digests": sorted(asked["seen"])}
        if asked["seen"] and not wanted:
            return facts | {"issued": sorted(before)}
        model = ledger.audited_model(asked["audit"])
        audit = ledger.audit(model, record=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            delta = set_around(engine, model.network)
            new = replace(engine, model=model, delta=delta, _explainers=OrderedDict())

            def explainer_for(said: dict[str, Any] | None) -> Proplace:
                options = Options() if said is None else Options.model_validate(said)
                return new.explainer(options, tolerance=audit.tolerance, time_limit=seconds)

            renewal = audit.renew(explainer_for, n=MOST)
        digests = sorted(
            e.certificate.digest
            for result in renewal.results
            for e in result
            if e.certificate is not None and e.found
        )
        if not asked["seen"]:
            rows = renewal.to_frame().astype(object)
            told = json.loads(rows.to_json(orient="records", default_handler=str))
            left = max(0, len(audit.broken) - MOST)
            return facts | {"digests": digests, "rows": told, "left": left}
        if Counter(digests) != wanted:
            raise OptionError(
                "the new answers are not those that were seen; search them again and look at them"
            )
        return facts | {"issued": sorted([*before, *renewal.issue().new])}


def _issued(ledger: Ledger, asked: dict[str, Any], actor: str) -> dict[int, str]:
    """Promises that this renewal has issued already, and the digests of their certificates."""
    if not asked["seen"]:
        return {}
    new = {
        number
        for entry in ledger.entries(kinds=("renewed",), after=asked["after"])
        if entry.facts.get("by") == actor
        for number in entry.facts["into"]
    }
    proofs = {number: ledger.promise(number).certificate for number in sorted(new)}
    digests = {number: proof.digest for number, proof in proofs.items() if proof is not None}
    return {number: digest for number, digest in digests.items() if digest in asked["seen"]}
