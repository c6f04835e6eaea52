"""New answers for people whose promises an audited model breaks."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from proplace.core.errors import OptionError
from proplace.explain.proplace import Proplace
from proplace.promises.ledger import Ledger

if TYPE_CHECKING:
    from proplace.apps.serve.models import Engine

MOST = 200
"""Broken promises for which answers are searched at once."""


def check_renewable(engine: Engine) -> None:
    """New answers are proved for a delta around the new model; a set of networks is around the old."""
    if not isinstance(engine.delta, float):
        raise OptionError(
            f"{engine.name} is served with a set of networks of its own, which is not around the new "
            "model; search with proplace audit --renew and a set for it"
        )


def renewed(
    engine: Engine, place: str, asked: dict[str, Any], actor: str, seconds: float
) -> dict[str, Any]:
    """Search; with the digests of answers that were seen, issue them if they are found again."""
    with Ledger(place, actor=actor) as ledger:
        model = ledger.audited_model(asked["audit"])
        audit = ledger.audit(model, record=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            explainer = Proplace(model, engine.delta, time_limit=seconds).fit(engine.train)
        renewal = audit.renew(explainer, n=MOST)
        digests = sorted(
            e.certificate.digest
            for result in renewal.results
            for e in result
            if e.certificate is not None and e.found
        )
        facts = {"audit": asked["audit"], "digests": digests}
        if not asked["seen"]:
            rows = renewal.to_frame().astype(object)
            told = rows.to_json(orient="records", default_handler=str)
            return facts | {"rows": json.loads(told), "left": max(0, len(audit.broken) - MOST)}
        if digests != sorted(asked["seen"]):
            raise OptionError(
                "the new answers are not those that were seen; search them again and look at them"
            )
        issued = renewal.issue()
        return facts | {"issued": list(issued.new)}
