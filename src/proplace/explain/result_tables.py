"""Answers as the lines of a table: in memory and in the files of every command.

A line holds the answer (each feature under its own name), what is known about it, and the person's
own values::

    age  job   status   distance ... target    delta  changes       sentence   original_age  original_job
    41   cook  optimal  0.02         approved  0.01   age 40 -> 41  The ...    40            cook
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proplace.core import limits
from proplace.core.text import clipped
from proplace.explain.words import summary_line
from proplace.tables.files import plain
from proplace.tables.writing import feature_type, free_names, labels_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from proplace.explain.results import Explanation, Setting
    from proplace.schema.rules import AnyFeature

FACTS = (
    "status",
    "distance",
    "bound",
    "gap",
    "in_region",
    "timed_out",
    "margin",
    "plausibility",
    "nearest_row",
    "rank",
    "reason",
    "target",
    "delta",
    "changes",
    "sentence",
    "certificate",
    "imputed",
    "guaranteed_ranges",
    "checked_with_original",
)
_TYPES: dict[str, type] = {  # of the other columns: text
    **dict.fromkeys(("distance", "bound", "gap", "margin", "plausibility"), float),
    **dict.fromkeys(("in_region", "timed_out", "checked_with_original"), bool),
    **dict.fromkeys(("nearest_row", "rank"), int),
}


@dataclass(frozen=True)
class AnswerColumns:
    """The columns of a table of answers.

    Attributes
    ----------
    ids
        Columns of the user that are kept beside the answers.
    features
        Names of the features: the answer.
    facts
        What the columns of ``FACTS`` are called.
    originals
        What the columns with the person's own values are called, by feature.
    row
        What the number of the row is called.
    """

    ids: tuple[str, ...]
    features: tuple[str, ...]
    facts: dict[str, str]
    originals: dict[str, str]
    row: str

    @classmethod
    def of(cls, features: Sequence[str], ids: Sequence[str] = ()) -> AnswerColumns:
        """Name the columns: ours give way where an id or a feature has the same name."""
        before = {name: f"original_{name}" for name in features}
        names = free_names(["row", *FACTS, *before.values()], {*ids, *features})
        return cls(
            tuple(ids),
            tuple(features),
            {name: names[name] for name in FACTS},
            {name: names[before[name]] for name in features},
            names["row"],
        )

    @property
    def all(self) -> list[str]:
        """All columns but that of the row's number, in order."""
        return [*self.ids, *self.features, *self.facts.values(), *self.originals.values()]

    def record(self, e: Explanation) -> dict[str, Any]:
        """One answer as a line; what is not known is left out."""
        features = {} if e.setting is None else e.setting.schema.by_name
        words = e.describe()
        proof = e.certificate
        facts: dict[str, Any] = {
            "status": e.status,
            "distance": e.distance,
            "bound": e.bound,
            "gap": e.gap,
            "in_region": e.in_region,
            "timed_out": e.timed_out,
            "margin": e.margin,
            "plausibility": e.plausibility,
            "nearest_row": e.nearest_row,
            "rank": e.rank,
            "reason": e.reason,
            "target": e.label,
            "delta": None if e.setting is None else delta_cell(e.setting),
            "changes": clipped(summary_line(words.claims), limits.SPREADSHEET_CELL),
            "sentence": clipped(words.sentence, limits.SPREADSHEET_CELL),
            "certificate": None if proof is None else proof.digest,
            "imputed": json.dumps(e.imputed, ensure_ascii=False) if e.imputed else None,
            "guaranteed_ranges": _ranges_cell(e),
            "checked_with_original": e.checked_with_original,
        }
        return {
            **e.ids,
            **_values(e.counterfactual, {name: name for name in self.features}, features),
            **{self.facts[name]: value for name, value in facts.items()},
            **_values(e.original, self.originals, features),
        }

    def types(self, setting: Setting, ids: dict[str, Any]) -> dict[str, Any]:
        """Type of each column, that of the row's number first; those of the ids are given."""
        values = {name: feature_type(feature) for name, feature in setting.schema.by_name.items()}
        facts: dict[str, Any] = {name: _TYPES.get(name, str) for name in FACTS}
        facts["target"] = labels_type(setting.model.classes)
        facts["delta"] = str if setting.current.radius is None else float
        return {
            self.row: int,
            **{name: ids.get(name, str) for name in self.ids},
            **values,
            **{self.facts[name]: kind for name, kind in facts.items()},
            **{self.originals[name]: kind for name, kind in values.items()},
        }


def proof_name(row: int, rank: int) -> str:
    """Name of the file with the certificate of an answer, in the folder ``certificates``."""
    return f"row-{row:012d}-{rank}.json"


def delta_cell(setting: Setting) -> float | str:
    """Return delta: one number, or the (weight, bias) pairs of the layers as JSON."""
    shifts = setting.current.shifts
    if shifts.trained_radius is not None:
        return shifts.trained_radius
    radii = shifts.trained_radii
    return f"shifts {shifts.digest}" if radii is None else json.dumps(radii)


def _ranges_cell(e: Explanation) -> str | None:
    """Return the guaranteed ranges as JSON; None if there are none."""
    ranges = dict(e.guaranteed_ranges)
    return json.dumps(ranges, ensure_ascii=False) if ranges else None


def _values(
    series: pd.Series[Any] | None, names: dict[str, str], features: dict[str, AnyFeature]
) -> dict[str, Any]:
    """Values of a person or an answer, under the names of their columns."""
    if series is None:
        return {}
    return {
        names[str(name)]: plain(value, features[str(name)]) if str(name) in features else value
        for name, value in series.items()
    }
