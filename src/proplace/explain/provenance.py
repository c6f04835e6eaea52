"""Where a result comes from: which model, which training rows, which question, and when.

A digest names exactly one content: whoever holds the model or the rows can make it again and compare.
The date is not part of any of them, and two runs that differ in nothing else are equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.certification import digest as network_digest
from proplace.core.errors import InputError, OptionError
from proplace.core.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proplace.core.guarantee import Guarantee
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.schema.cells import Label

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Training:
    """The training rows by their number and the digest of what the network sees of them."""

    rows: int
    digest: str

    @classmethod
    def of(cls, rows: Array) -> Training:
        """Take the digest of encoded rows: their shape, then float64, little end first."""
        sha = hashlib.sha256(f"{rows.shape[0]} {rows.shape[1]}\n".encode())
        step = max(1, 1_000_000 // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            part = rows[start : start + step] + 0.0  # -0.0 is 0.0
            sha.update(np.ascontiguousarray(part, dtype="<f8").tobytes())
        return cls(len(rows), sha.hexdigest())


@dataclass(frozen=True)
class Other:
    """Another set of networks that must accept: its name, file, network, delta, and original model."""

    name: str
    file_digest: str | None
    network_digest: str
    delta: float | tuple[tuple[float, float], ...] | str
    has_original: bool


@dataclass(frozen=True)
class Provenance:
    """What a result was made from.

    Attributes
    ----------
    date
        When the run began, in UTC: ``"2025-01-31T12:00:00Z"``. Where the environment variable
        ``SOURCE_DATE_EPOCH`` (seconds since 1970) is set, it is that date. Two provenances that
        differ in it alone are equal.
    version
        The version of proplace.
    method
        The class that found the answers.
    model
        Name of the model's file, or the type of the object that it was read from.
    file_digest
        SHA-256 of that file; None where there was none.
    network_digest
        The digest by which certificates name the network that was read.
    training_digest, training_rows
        SHA-256 of the encoded training rows, and how many there were.
    delta
        The largest change of any parameter, one (weight, bias) pair per layer, or the digest of a
        set with an interval for each parameter (:attr:`proplace.Shifts.digest`).
    delta_about
        Where such a set comes from, in its own words (:attr:`proplace.Shifts.description`); else empty.
    target
        Label of the wanted class.
    distance
        Name of the distance: ``"l1"``, ``"weighted l1"`` or ``"mad"``.
    k, region
        Number of robust neighbours, and how the region is made of them; None for methods that have
        neither.
    also
        Other members of the guarantee, the current model by itself among them if it does not
        lie in its box.
    request
        What was asked of the counterfactuals; its target is the number of the class.
    has_original
        True if the original model could be run. It was then compared on the training rows, and evaluated
        every answer.

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
    file_digest: str | None
    network_digest: str
    training_digest: str
    training_rows: int
    delta: float | tuple[tuple[float, float], ...] | str
    target: Label
    distance: str
    k: int | None = None
    region: str | None = None
    also: tuple[Other, ...] = ()
    delta_about: str = ""
    request: Request = field(default=Request(1), hash=False)
    has_original: bool = False

    @classmethod
    def of(
        cls,
        model: Model,
        training: Training,
        guarantee: Guarantee,
        request: Request,
        *,
        required: Mapping[str, Model],
        method: str,
        distance: str,
        k: int | None = None,
        region: str | None = None,
    ) -> Provenance:
        """Write down what is about to be asked, now."""
        from proplace import __version__  # noqa: PLC0415  (the package imports this module)

        label = model.classes[request.target]
        models = {id(other.network): other for other in required.values()}
        also = [
            Other(
                each.name,
                own.origin.digest,
                network_digest(each.network),
                _delta_of(each.shifts),
                own.has_original,
            )
            for each in guarantee.members[1:]
            for own in [models.get(id(each.network), model)]
        ]
        return cls(
            now(),
            __version__,
            method,
            model.origin.name,
            model.origin.digest,
            network_digest(model.network),
            training.digest,
            training.rows,
            _delta_of(guarantee.current.shifts),
            label.item() if isinstance(label, np.generic) else label,
            distance,
            k,
            region,
            tuple(also),
            guarantee.current.shifts.description,
            request,
            model.has_original,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as they can be written as JSON."""
        fields = dataclasses.asdict(self)
        for part in (fields, *fields["also"]):
            if isinstance(part["delta"], tuple):
                part["delta"] = [list(pair) for pair in part["delta"]]
        fields["also"] = list(fields["also"])
        fields["request"] = self.request.to_dict()
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Provenance:
        """Read what :meth:`to_dict` has made; anything else is refused."""
        read = _read(cls, fields)
        return cls(**read | {"also": tuple(Other(**_read(Other, one)) for one in read["also"])})


def now() -> str:
    """Return this moment in UTC; that of ``SOURCE_DATE_EPOCH`` where the environment has it."""
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


def _read(kind: type, fields: Any) -> dict[str, Any]:
    """Return the fields of a kind, or say which cannot be read."""
    names = [f.name for f in dataclasses.fields(kind)]
    if not hasattr(fields, "keys") or set(fields.keys()) != set(names):
        raise InputError(
            f"this is no provenance of a result: it must have the fields {', '.join(names)}"
        )
    read = {name: fields[name] for name in names} | {"delta": _delta(fields["delta"])}
    for name in names:
        if not _GOOD[name](read[name]):
            raise InputError(
                f"the provenance of the result has a {name} that cannot be read", name=name
            )
    if "request" in read:
        read["request"] = Request.from_dict(read["request"])
    return read


def _delta_of(shifts: Shifts) -> float | tuple[tuple[float, float], ...] | str:
    """One radius of what was trained, those of the layers, or the digest of a general box."""
    if shifts.trained_radius is not None:
        return shifts.trained_radius
    return shifts.digest if shifts.trained_radii is None else shifts.trained_radii


def _delta(value: object) -> object:
    if isinstance(value, list) and all(isinstance(pair, list) for pair in value):
        return tuple(tuple(pair) for pair in value)
    return float(value) if type(value) is int else value


def _is_radius(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0.0  # type: ignore[arg-type,operator]


def _is_delta(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(len(p) == 2 and all(map(_is_radius, p)) for p in value)
    return _is_radius(value) or _is_digest(value)


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
    "name": _is_text,
    "version": _is_text,
    "method": _is_text,
    "model": _is_text,
    "file_digest": lambda value: value is None or _is_digest(value),
    "network_digest": _is_digest,
    "training_digest": _is_digest,
    "training_rows": lambda value: type(value) is int and value > 0,
    "delta": _is_delta,
    "target": _is_label,
    "distance": _is_text,
    "k": lambda value: value is None or (type(value) is int and value > 0),
    "region": lambda value: value is None or _is_text(value),
    "also": lambda value: isinstance(value, list),
    "delta_about": _is_text,
    "request": lambda value: isinstance(value, dict),
    "has_original": lambda value: isinstance(value, bool),
}
