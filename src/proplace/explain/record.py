"""Records of explanations: their provenance, as JSON, and as lines of a table.

A digest identifies one content: anyone with the model or the rows can compute and compare it. The date
is not part of a digest, and two runs that differ in the date alone are equal.

A line of a table contains the counterfactual (each feature under its own name), its properties, and the
person's own values::

    age  job   status   distance ... target    delta  changes       sentence   original_age  original_job
    41   cook  optimal  0.02         approved  0.01   age 40 -> 41  The ...    40            cook
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.certification import digest as network_digest
from proplace.core import limits
from proplace.core.errors import InputError, OptionError
from proplace.core.request import Request
from proplace.core.text import clipped
from proplace.explain.words import summary_line
from proplace.schema.values import as_json, to_python
from proplace.tables.files import plain
from proplace.tables.writing import feature_type, free_names, labels_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from proplace.core.guarantee import Guarantee
    from proplace.core.network import Array
    from proplace.explain.results import Explanation, Setting
    from proplace.explain.words import Wording
    from proplace.loaders.model import Model
    from proplace.schema.values import Label

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Provenance:
    """The model, the data, the options and the date of a result.

    Attributes
    ----------
    date
        Start of the run in UTC: ``"2025-01-31T12:00:00Z"``, or the value of the environment variable
        ``SOURCE_DATE_EPOCH`` (seconds since 1970). Comparisons ignore it.
    version
        The version of proplace.
    method
        Name of the class of the explainer.
    model
        Name of the model's file, or the type of the given object.
    training_digest, training_rows
        SHA-256 of the encoded training rows, and their number.
    guarantee
        The guarantee as JSON (``Guarantee.to_dict``), with networks by the digests that certificates
        use. Each member also has ``file_digest``, the SHA-256 of the model's file (None without one),
        and ``has_original``.
    target
        Label of the target class.
    distance
        Name of the distance: ``"l1"``, ``"weighted l1"`` or ``"mad"``.
    k, region
        Number of robust neighbours, and kind of the region. None for methods without them.
    request
        The request. Its target is the number of the class.

    Examples
    --------
    >>> from proplace import Network, Proplace
    >>> net = Network([([[1.0, 1.0]], [-1.0])])
    >>> result = Proplace(net, 0.05, k=3).fit([[0.2, 0.1], [0.9, 0.8]]).explain([[0.1, 0.2]])
    >>> made = result.provenance
    >>> made.model, made.training_rows, made.delta, made.k, made.distance
    ('Network', 2, 0.05, 3, 'l1')
    >>> Provenance.from_dict(made.to_dict()) == made
    True
    """

    date: str = field(compare=False)
    version: str
    method: str
    model: str
    training_digest: str
    training_rows: int
    guarantee: dict[str, Any] = field(hash=False)
    target: Label
    distance: str
    k: int | None = None
    region: str | None = None
    request: Request = field(default=Request(1), hash=False)

    @classmethod
    def of(
        cls,
        model: Model,
        training: tuple[int, str],
        guarantee: Guarantee,
        request: Request,
        *,
        required: Mapping[str, Model],
        method: str,
        distance: str,
        k: int | None = None,
        region: str | None = None,
    ) -> Provenance:
        """Record a request, now. ``training`` is the number of rows and their digest."""
        from proplace import __version__  # noqa: PLC0415  (the package imports this module)

        label = model.classes[request.target]
        models = {id(other.network): other for other in required.values()}
        facts = guarantee.to_dict(network_digest)
        for member, written in zip(guarantee.members, facts["members"], strict=True):
            own = models.get(id(member.network), model)
            written |= {"file_digest": own.origin.digest, "has_original": own.has_original}
        return cls(
            now(),
            __version__,
            method,
            model.origin.name,
            training[1],
            training[0],
            facts,
            to_python(label),
            distance,
            k,
            region,
            request,
        )

    @property
    def file_digest(self) -> str | None:
        """SHA-256 of the model's file. None without one."""
        found: str | None = self.guarantee["members"][0]["file_digest"]
        return found

    @property
    def network_digest(self) -> str:
        """The digest of the network of the model, as in certificates."""
        return str(self.guarantee["members"][0]["network"])

    @property
    def delta(self) -> float | list[list[float]] | str:
        """Delta of the model: see :attr:`Member.delta`."""
        found: float | list[list[float]] | str = self.guarantee["members"][0]["delta"]
        return found

    @property
    def has_original(self) -> bool:
        """True if the original model could be run.

        It was then compared on the training rows, and evaluated every counterfactual.
        """
        return bool(self.guarantee["members"][0]["has_original"])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return dataclasses.asdict(self) | {"request": self.request.to_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Provenance:
        """Read the output of :meth:`to_dict`, and reject anything else."""
        _check(fields, _GOOD)
        for member in fields["guarantee"]["members"]:
            _check(member, _GOOD_MEMBER)
        return cls(**{**fields, "request": Request.from_dict(fields["request"])})


def rows_digest(rows: Array) -> str:
    """Return the digest of encoded rows: their shape, then little-endian float64."""
    sha = hashlib.sha256(f"{rows.shape[0]} {rows.shape[1]}\n".encode())
    step = max(1, 1_000_000 // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step] + 0.0  # -0.0 is 0.0
        sha.update(np.ascontiguousarray(part, dtype="<f8").tobytes())
    return sha.hexdigest()


def now() -> str:
    """Return the current time in UTC, or the value of ``SOURCE_DATE_EPOCH``."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        moment = datetime.now(UTC)
    else:
        try:
            moment = datetime.fromtimestamp(int(given), UTC)
        except (ValueError, OverflowError, OSError):
            raise OptionError(
                "the environment variable SOURCE_DATE_EPOCH must be a number of seconds since 1970, "
                f"not {given[:40]!r}",
                name="SOURCE_DATE_EPOCH",
                value=given,
            ) from None
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


# -- reading what was written ----------------------------------------------------------------------


def _check(fields: Any, good: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raise unless the fields have these names and their values can be read."""
    if not hasattr(fields, "keys") or set(fields.keys()) != set(good):
        raise InputError(
            f"This is not the provenance of a result. It must have the fields {', '.join(good)}."
        )
    for name, is_good in good.items():
        if not is_good(fields[name]):
            raise InputError(
                f"the provenance of the result has a {name} that cannot be read", name=name
            )


def _is_radius(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0.0  # type: ignore[arg-type,operator]


def _is_delta(value: object) -> bool:
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
        return 0 < len(pairs) == len(value) and all(map(_is_radius, [*chain(*pairs)]))
    return _is_radius(value) or _is_digest(value)


def _is_guarantee(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("members"), list)
        and bool(value["members"])
    )


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_date(value: object) -> bool:
    try:
        datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return False
    return isinstance(value, str) and value.endswith("Z")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_label(value: object) -> bool:
    return isinstance(value, (str, bool, int)) or (
        isinstance(value, float) and math.isfinite(value)
    )


_GOOD: dict[str, Callable[[Any], bool]] = {
    "date": _is_date,
    "version": _is_text,
    "method": _is_text,
    "model": _is_text,
    "training_digest": _is_digest,
    "training_rows": lambda value: type(value) is int and value > 0,
    "guarantee": _is_guarantee,
    "target": _is_label,
    "distance": _is_text,
    "k": lambda value: value is None or (type(value) is int and value > 0),
    "region": lambda value: value is None or _is_text(value),
    "request": lambda value: isinstance(value, dict),
}
_GOOD_MEMBER: dict[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "network": _is_digest,
    "delta": _is_delta,
    "about": _is_text,
    "file_digest": lambda value: value is None or _is_digest(value),
    "has_original": lambda value: isinstance(value, bool),
}


# -- as JSON ---------------------------------------------------------------------------------------


def explanation_json(
    answer: Explanation, made: Provenance, wording: Wording | None = None
) -> dict[str, Any]:
    """Return all properties of an explanation as plain values for JSON."""
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
        "delta": made.delta,
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
        "original": _own_values(answer) or None,
        "imputed": list(answer.imputed),
        "counterfactual": _values(answer, answer.counterfactual) or None,
        "changes": {claim.name: claim.to_dict() for claim in answer.claims},
        "guaranteed_ranges": {n: list(ends) for n, ends in answer.guaranteed_ranges.items()},
        "sentence": answer.describe(wording).sentence,
        "certificate": None if proof is None else proof.facts,
    }


def _shifts(answer: Explanation) -> dict[str, Any] | None:
    """Return the shift set as JSON, if it has an interval for each parameter."""
    if answer.setting is None or not answer.setting.current.has_parameter_intervals:
        return None
    current = answer.setting.current
    return {
        "digest": current.shifts.digest,
        "about": current.shifts.description,
        "contains_model": current.contains_network,
    }


def _own_values(e: Explanation) -> dict[str, Any]:
    """Return the values of the person, None for a missing cell."""
    values = _values(e, e.original)
    return {name: None if name in e.imputed else value for name, value in values.items()}


def _values(answer: Explanation, series: pd.Series[Any] | None) -> dict[str, Any]:
    """Return the values of a person or a counterfactual as Python objects. Empty without any."""
    if series is None:
        return {}
    features = {} if answer.setting is None else answer.setting.schema.by_name
    return {
        str(name): plain(value, features[str(name)]) if str(name) in features else value
        for name, value in series.items()
    }


# -- as lines of a table ----------------------------------------------------------------------------

FACTS = {
    "status": "`optimal`, `feasible`, `already_valid`, or the kind of reason why there is none",
    "distance": "Distance from the person to the counterfactual.",
    "bound": "Lower bound on the distance of robust points of the region; relies on the solver.",
    "gap": "Largest share of the distance that a nearer robust point could save.",
    "in_region": "False if the point, rounded to its steps, lies outside the region; `gap` is empty.",
    "timed_out": "True if the time limit ended the search.",
    "margin": "Proved worst-case margin, in logits.",
    "plausibility": "Share of accepted training rows that are at least as unusual; typical from 0.1.",
    "nearest_row": "Position of the nearest accepted training row; the first is 0.",
    "rank": "Position among the alternatives of the person; 0 is the best.",
    "reason": "Why there is no counterfactual, or why the search stopped; empty for `optimal`.",
    "target": "Label of the target class.",
    "delta": "Radius of the shift set, or `shifts` and the SHA-256 of the set.",
    "changes": "All changes on one line: `income 31000 → 36500; job cook → clerk`.",
    "sentence": "The counterfactual as a sentence.",
    "certificate": "SHA-256 of the certificate.",
    "imputed": "Features whose missing cell the model imputes, as a JSON list.",
    "guaranteed_ranges": "Proved intervals of numbers, in original units, as JSON; jointly for all.",
    "checked_with_original": "True if the original model was run on the counterfactual.",
}
"""Columns about a counterfactual, beside the features, with their meaning."""
_TYPES: dict[str, type] = {  # all other columns contain text
    **dict.fromkeys(("distance", "bound", "gap", "margin", "plausibility"), float),
    **dict.fromkeys(("in_region", "timed_out", "checked_with_original"), bool),
    **dict.fromkeys(("nearest_row", "rank"), int),
}


@dataclass(frozen=True)
class AnswerColumns:
    """The columns of a table of explanations.

    Attributes
    ----------
    ids
        Columns of the user, copied to the table.
    features
        Names of the features, with the values of the counterfactual.
    facts
        Names of the columns of ``FACTS``.
    originals
        Names of the columns with the person's own values, by feature.
    row
        Name of the column with the row number.
    """

    ids: tuple[str, ...]
    features: tuple[str, ...]
    facts: dict[str, str]
    originals: dict[str, str]
    row: str

    @classmethod
    def of(cls, features: Sequence[str], ids: Sequence[str] = ()) -> AnswerColumns:
        """Choose names for the added columns that differ from all ids and features."""
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
        """All columns in order, except the row number."""
        return [*self.ids, *self.features, *self.facts.values(), *self.originals.values()]

    def record(self, e: Explanation, wording: Wording | None = None) -> dict[str, Any]:
        """Return one explanation as a line, without unknown values."""
        words, proof = e.describe(wording), e.certificate
        ranges = dict(e.guaranteed_ranges)
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
            "delta": None if e.setting is None else _delta_cell(e.setting),
            "changes": clipped(summary_line(words.claims), limits.SPREADSHEET_CELL),
            "sentence": clipped(words.sentence, limits.SPREADSHEET_CELL),
            "certificate": None if proof is None else proof.digest,
            "imputed": json.dumps(e.imputed, ensure_ascii=False) if e.imputed else None,
            "guaranteed_ranges": json.dumps(ranges, ensure_ascii=False) if ranges else None,
            "checked_with_original": e.checked_with_original,
        }
        return {
            **e.ids,
            **_values(e, e.counterfactual),
            **{self.facts[name]: value for name, value in facts.items()},
            **{self.originals[n]: value for n, value in _own_values(e).items()},
        }

    def types(self, setting: Setting, ids: dict[str, Any]) -> dict[str, Any]:
        """Return the type of each column, the row number first. The types of the ids are given."""
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


def _delta_cell(setting: Setting) -> float | str:
    """Return delta: one number, the (weight, bias) pairs of the layers as JSON, or a digest."""
    delta = setting.current.delta
    if isinstance(delta, list):
        return json.dumps(delta)
    return f"shifts {delta}" if isinstance(delta, str) else delta


def proof_name(row: int, rank: int) -> str:
    """Return the file name of a certificate in the folder ``certificates``."""
    return f"row-{row:012d}-{rank}.json"
