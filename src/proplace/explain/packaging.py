"""From findings to explanations: labels, original units, and a last look by the model itself."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.explain.findings import ANSWERED, FOUND, Finding
from proplace.explain.results import Explanation, Explanations

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from proplace.explain.record import Provenance
    from proplace.explain.results import Setting
    from proplace.loaders.model import Model

_FIELDS = [item.name for item in fields(Finding)]


def package(
    model: Model,
    setting: Setting,
    target: int,
    findings: list[list[Finding]],
    people: pd.DataFrame | None,
    *,
    provenance: Provenance,
    required: Mapping[str, Model],
    first: int = 0,
    complete: bool = True,
) -> Explanations:
    """Make complete explanations of what was found for rows ``first``, ``first + 1``, ... of a table.

    All points are decoded at once. If the original model can be run, it evaluates every answer; an
    answer that it does not accept is withheld. So is one that a required model does not accept.
    """
    located = [(row, finding) for row, found in enumerate(findings, first) for finding in found]
    decoded = _decoded(setting, located, people)
    wanted = model.classes[target]
    said = _labels_by_original(model, located, decoded, people, ANSWERED)
    checked = set(said)
    for name, labels in [("the model", said)] + [
        (name, _labels_by_original(other, located, decoded, people, FOUND))
        for name, other in required.items()
    ]:
        for n, label in labels.items():
            row, finding = located[n]
            if label != wanted and finding.status != "model_mismatch":
                located[n] = row, _withheld(finding, name, label, wanted)
                del decoded["encoded_counterfactual", n]
    imputed = (
        [] if people is None else _imputed(setting, people.iloc[first : first + len(findings)])
    )
    items = [
        Explanation(
            index=row if people is None else people.index[row],
            target=target,
            original=decoded.get(("encoded_original", n)),
            counterfactual=decoded.get(("encoded_counterfactual", n)),
            setting=setting,
            imputed=() if people is None else imputed[row - first],
            checked_with_original=n in checked,
            **{name: getattr(finding, name) for name in _FIELDS},
        )
        for n, (row, finding) in enumerate(located)
    ]
    names = (None,) if people is None else people.index.names
    return Explanations(items, complete=complete, index_names=names, provenance=provenance)


Located = list[tuple[int, Finding]]
"""Findings, each with the position of its person in the table."""
Decoded = dict[tuple[str, int], "pd.Series[Any]"]
"""Values in original units of the n-th finding, by the name of its encoded row."""


def _imputed(setting: Setting, people: pd.DataFrame) -> list[tuple[str, ...]]:
    """Features of each person whose cell is missing and counts as a value of the model's."""
    names = [n for n, f in setting.schema.by_name.items() if f.missing is not None and n in people]
    gaps = people[names].isna().to_numpy(dtype=bool)
    return [tuple(n for n, gap in zip(names, line, strict=True) if gap) for line in gaps]


def _decoded(setting: Setting, located: Located, people: pd.DataFrame | None) -> Decoded:
    points = [
        (what, n, row, point)
        for what in ("encoded_original", "encoded_counterfactual")
        for n, (row, finding) in enumerate(located)
        if (point := getattr(finding, what)) is not None
    ]
    if not points:
        return {}
    positions = [row for _, _, row, _ in points]
    originals = None if people is None else people.iloc[positions]
    frame = setting.schema.decode(
        np.array([point for *_, point in points]),
        like=originals,
        people=np.array([located[n][1].encoded_original for _, n, _, _ in points]),
    )
    if originals is None:
        frame.index = pd.Index(positions)
    return {(what, n): frame.iloc[i] for i, (what, n, *_) in enumerate(points)}


def _labels_by_original(
    model: Model,
    located: Located,
    decoded: Decoded,
    people: pd.DataFrame | None,
    kinds: Set[str],
) -> dict[int, object]:
    """Return the label that the original model gives each answer, by the number of its finding.

    ``kinds`` are the statuses to look at: to the current model, a person who has the class already is
    an answer, too. Empty if the original model cannot be run.
    """
    found = [n for n, (_, finding) in enumerate(located) if finding.status in kinds]
    if not (found and model.has_original):
        return {}
    cells = {
        name: [decoded["encoded_counterfactual", n][name] for n in found]
        for name in model.schema.by_name
    }
    if people is None:
        table = pd.DataFrame(cells)
    else:  # columns that the model does not read stay the person's own
        table = people.iloc[[located[n][0] for n in found]].assign(**cells)
    said = model.predict_original(table)
    return {} if said is None else dict(zip(found, said, strict=True))


def _withheld(finding: Finding, name: str, label: object, wanted: object) -> Finding:
    reason = (
        f"{name} itself gives the answer {label!r} and not {wanted!r}, so it is withheld; "
        "the model was changed after it was read, or does more than its parts say"
    )
    return replace(
        finding,
        status="model_mismatch",
        reason=reason,
        encoded_counterfactual=None,
        certificate=None,
        guaranteed_ranges={},
        distance=np.nan,
        margin=np.nan,
        plausibility=np.nan,
        nearest_row=None,
    )
