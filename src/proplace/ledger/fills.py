"""Cells that a person left missing: a retrained model may count them as something else.

A promise to somebody whose age is missing speaks of the number that the model fills in. When its imputer
is fitted again, the same person has another number, and the promise must hold for that one, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.ledger.promise import OpenPromises
    from proplace.loaders.model import Model


class Refilled(NamedTuple):
    """Promises with missing cells that another model fills in another way.

    Attributes
    ----------
    rows
        Which promises.
    unreadable
        Which promises the model cannot read at all, since it fills nothing in.
    points, low, high
        Of ``rows``, as the model of the promises encodes them, with what the other one fills in.
    table
        The answers of ``rows`` in original units, with the cells missing.
    """

    rows: npt.NDArray[np.intp]
    unreadable: npt.NDArray[np.intp]
    points: Array
    low: Array
    high: Array
    table: pd.DataFrame


def refilled(group: OpenPromises, model: Model) -> Refilled | None:
    """Promises with cells that a model fills in another way; None where there are none."""
    base, own = group.terms.model.schema, model.schema.by_name
    other = {
        name
        for name, feature in base.by_name.items()
        if feature.missing is not None and name in own and own[name].missing != feature.missing
    }
    facts = [json.loads(text) for text in group.facts] if other else []
    gaps = [other.intersection(_still_missing(one)) for one in facts]
    silent = {name for name in other if own[name].missing is None}
    unreadable = [n for n, names in enumerate(gaps) if names & silent]
    rows = [n for n, names in enumerate(gaps) if names and not names & silent]
    if not rows and not unreadable:
        return None
    filled, missing = [], []
    for n in rows:
        answer = facts[n]["answer"]
        filled.append(answer | {name: own[name].missing for name in gaps[n]})
        missing.append(answer | dict.fromkeys(gaps[n], np.nan))
    points, low, high = (part[rows].copy() for part in (group.points, group.low, group.high))
    if rows:
        codes, problems = base.encode_people(pd.DataFrame(filled).infer_objects())
        unreadable += [rows[n] for n in problems]
        good = [n for n in range(len(rows)) if n not in problems]
        for n in good:
            for name in gaps[rows[n]]:
                span = base.span(name)
                for part in (points, low, high):
                    part[n, span] = codes[n, span]
        rows = [rows[n] for n in good]
        points, low, high = points[good], low[good], high[good]
        missing = [missing[n] for n in good]
    where = np.array(rows, dtype=np.intp)
    table = pd.DataFrame(missing).infer_objects()
    return Refilled(where, np.array(unreadable, dtype=np.intp), points, low, high, table)


def _still_missing(facts: dict[str, Any]) -> list[str]:
    """Features whose cell the person left missing and the answer does not fill."""
    before, after = facts["original"], facts["answer"]
    return [name for name in facts["imputed"] if before[name] == after[name]]
