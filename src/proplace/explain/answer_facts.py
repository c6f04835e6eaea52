"""Everything about an answer that JSON can hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from proplace.core.shifts import Shifts
    from proplace.explain.provenance import Provenance
    from proplace.explain.results import Explanation


def answer_facts(answer: Explanation, made: Provenance) -> dict[str, Any]:
    """Everything about an answer that JSON can hold."""
    from proplace.schema.cells import as_json  # noqa: PLC0415  (help imports no numbers)

    before, after = _values(answer, answer.original), _values(answer, answer.counterfactual)
    numbers = {
        name: getattr(answer, name)
        for name in ("distance", "bound", "gap", "margin", "plausibility")
    }
    proof = answer.certificate
    return {
        "id": {name: as_json(value) for name, value in answer.ids.items()},
        "status": answer.status,
        "reason": answer.reason,
        "target": answer.label,
        "delta": made.to_dict()["delta"],
        "shifts": _shifts(answer),
        "request": made.request.to_dict(),
        "model": {
            "name": made.model,
            "file_digest": made.file_digest,
            "network_digest": made.network_digest,
        },
        "rank": answer.rank,
        **{name: None if math.isnan(value) else value for name, value in numbers.items()},
        "in_region": answer.in_region,
        "timed_out": answer.timed_out,
        "checked_with_original": answer.checked_with_original,
        "original": before,
        "imputed": list(answer.imputed),
        "counterfactual": after,
        "changes": {claim.name: claim.to_dict() for claim in answer.claims},
        "guaranteed_ranges": {n: list(ends) for n, ends in answer.guaranteed_ranges.items()},
        "sentence": answer.describe().sentence,
        "certificate": None if proof is None else proof.facts,
    }


def _shifts(answer: Explanation) -> dict[str, Any] | None:
    """The set of networks, where it is one with an interval for each parameter."""
    setting = answer.setting
    if setting is None or not setting.current.has_parameter_intervals:
        return None
    return {
        **shifts_facts(setting.current.shifts),
        "contains_model": setting.current.contains_network,
    }


def _values(answer: Explanation, series: pd.Series[Any] | None) -> dict[str, Any] | None:
    if series is None or answer.setting is None:
        return None
    features = answer.setting.schema.by_name
    from proplace.tables.files import plain  # noqa: PLC0415  (quick help)

    return {name: plain(series[name], feature) for name, feature in features.items()}


def shifts_facts(shifts: Shifts) -> dict[str, Any]:
    """A set of networks by name, as JSON."""
    return {"digest": shifts.digest, "about": shifts.description}
