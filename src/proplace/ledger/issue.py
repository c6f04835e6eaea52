"""Promises from explanations: recipients, proofs, and the stored facts.

A promise needs a proof. Its certificates must name exactly this point, this class and every shift set,
and must cover the guaranteed ranges. Otherwise nothing is issued.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from proplace.certification import Certificate, CertificateBundle, canonical, thresholds
from proplace.certification import digest as network_digest
from proplace.core.errors import InputError, LedgerError, NetworkError
from proplace.core.text import did_you_mean, listing
from proplace.explain.prove import range_box
from proplace.explain.results import Explanations
from proplace.ledger import tables
from proplace.ledger.chain import commitment, new_salt, personal_parts
from proplace.ledger.promise import (
    current_model,
    is_open,
    person_id,
)
from proplace.ledger.tables import PARAMETERS, sa
from proplace.ledger.terms import Archive
from proplace.loaders.align import in_coordinates_of
from proplace.schema.infer import grows_with_time
from proplace.schema.values import as_json

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator

    from proplace.certification import Proof
    from proplace.core.guarantee import Guarantee, Member
    from proplace.core.network import Array
    from proplace.explain.results import Explanation, Setting
    from proplace.explain.words import Wording
    from proplace.ledger.database import Writer
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.values import Label


Ids = str | Mapping[Any, object] | Sequence[object] | None
"""Ids of the people: an id column, a mapping from the label of a row, or one per explanation."""

Existing = Literal["refuse", "add", "renew"]


class Draft(NamedTuple):
    """A promise that is about to be issued.

    Attributes
    ----------
    person
        Id of the person.
    facts
        Canonical JSON: person and counterfactual in original units, sentence and guaranteed ranges.
    point, low, high
        Encoded counterfactual and the ends of the proved box around it, as little-endian doubles. The
        ends are None if the point alone is proved.
    certificate
        Certificate, compressed.
    terms
        Digest of the terms.
    row
        Row of the person. Alternatives of one row belong to one person.
    """

    person: str
    facts: str
    point: bytes
    low: bytes | None
    high: bytes | None
    certificate: bytes
    terms: str
    row: object = None

    @property
    def parts(self) -> tuple[bytes | None, ...]:
        """The parts of the commitment, in order."""
        return personal_parts(self._asdict())

    @property
    def promised(self) -> tuple[str, bytes, bytes | None, bytes | None]:
        """The content of the promise: terms, point and box."""
        return self.terms, self.point, self.low, self.high


class Skipped(NamedTuple):
    """An explanation without a promise, and the reason."""

    index: Any
    reason: str


@dataclass(frozen=True)
class Issued:
    """The outcome of :meth:`proplace.Ledger.issue`.

    Attributes
    ----------
    ids
        Numbers of the promises, new and known, in the order of the explanations.
    new
        Numbers of the promises that were issued now.
    skipped
        Rows with nothing to promise, with the reason.
    growing
        Numeric features whose names suggest that they grow with time, such as an age, if the promises
        have an expiry date and no tolerance covers larger values.
    """

    ids: tuple[int, ...]
    new: tuple[int, ...]
    skipped: tuple[Skipped, ...] = ()
    growing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line."""
        return _summary(
            len(self.new), len(self.ids) - len(self.new), len(self.skipped), self.growing
        )


def _summary(new: int, known: int, skipped: int, growing: Sequence[str]) -> str:
    parts = [f"{new:,} promise{'s' * (new != 1)} issued"]
    if known:
        parts.append(f"{known:,} known already")
    if skipped:
        parts.append(f"{skipped:,} rows with nothing to promise")
    text = ", ".join(parts)
    if not growing:
        return text
    return (
        f"{text}; {', '.join(growing)} may grow until the expiry date, and no tolerance covers that: "
        f"explain with a tolerance, such as a year more of {growing[0]}"
    )


def people_of(result: Explanations, ids: Ids) -> list[str]:
    """Return the id of the person of each explanation, as text."""
    given = [_given(result, n, e, ids) for n, e in enumerate(result)]
    people = [person_id(one) for one in given]
    for e, person in zip(result, people, strict=True):
        if person is None:
            raise LedgerError(
                f"row {e.index!r} has no id of a person; every promise needs one",
                name="ids",
                value=None,
            )
    return [person for person in people if person is not None]


def _given(result: Explanations, n: int, e: Explanation, ids: Ids) -> object:
    if ids is None:
        if len(e.ids) == 1:
            return next(iter(e.ids.values()))
        columns = f"the results have the id columns {listing(list(e.ids))}" if e.ids else ""
        raise LedgerError(
            "every promise needs the id of a person. Give ids='name of an id column', "
            "ids={label of a row: id}, or one id per explanation"
            f"{'; ' if columns else ''}{columns}",
            name="ids",
            value=None,
        )
    if isinstance(ids, str):
        if ids not in e.ids:
            raise LedgerError(
                f"ids={ids!r} is no id column of the results{did_you_mean(ids, e.ids)}. They have "
                f"{listing(list(e.ids)) if e.ids else 'none'}. Give ids={{label of a row: id}} instead",
                name="ids",
                value=ids,
            )
        return e.ids[ids]
    if isinstance(ids, Mapping):
        if e.index not in ids:
            raise LedgerError(f"ids has no id for the row {e.index!r}", name="ids")
        return ids[e.index]
    given = list(ids)
    if len(given) != len(result):
        raise LedgerError(
            f"{len(given)} ids were given for {len(result)} explanations. Give one each", name="ids"
        )
    return given[n]


def skip_reason(e: Explanation) -> str:
    """Return why there is nothing to promise, or an empty text if there is a counterfactual."""
    if e.status == "already_valid":
        return "has the class today: nothing would have to change"
    return "" if e.found else f"no counterfactual ({e.status})"


def check_answers(result: Explanations, model: Model) -> None:
    """Raise unless the counterfactuals in original units encode to the proved points."""
    found = [
        e for e in result if e.counterfactual is not None and e.encoded_counterfactual is not None
    ]
    if not found:
        return
    frame = pd.DataFrame([e.counterfactual for e in found]).reset_index(drop=True)
    for e, row in zip(found, model.encode(frame), strict=True):
        if row.tolist() != e.encoded_counterfactual.tolist():  # type: ignore[union-attr]
            raise LedgerError(
                f"row {e.index!r}: its original units are not the proved point. Explain it again"
            )


def draft(
    e: Explanation,
    person: str,
    terms: str,
    wording: Wording | None,
    *,
    row: int = 0,
    check: bool,
) -> Draft:
    """Draft a promise from an explanation, or raise if something is not proved."""
    who = f"row {e.index!r}" + (f", alternative {e.rank}" if e.rank else "")
    if e.setting is None:
        raise LedgerError(f"{who}: the explanation has no setting. Explain it again")
    if e.counterfactual is None or any(
        n not in e.setting.schema.by_name for n in e.guaranteed_ranges
    ):
        raise LedgerError(f"{who}: the explanation is incomplete. Explain it again")
    if e.certificate is None or e.encoded_counterfactual is None:
        raise LedgerError(
            f"{who}: the counterfactual has no certificate, and a promise needs one; search with "
            "Proplace(...), which certifies, or with proplace explain --out"
        )
    box = _proved(who, e, e.certificate, e.setting.guarantee.members)
    if check:
        _check(who, e.certificate, e.setting.guarantee)
    low, high = (None, None) if box is None else map(_bytes, box)
    text = e.certificate.to_json()
    return Draft(
        person,
        canonical(_facts(e, wording)),
        _bytes(e.encoded_counterfactual),
        low,
        high,
        zlib.compress(text.encode(), 6),
        terms,
        row,
    )


def _facts(e: Explanation, wording: Wording | None) -> dict[str, Any]:
    return {
        "original": _values(e.original),
        "answer": _values(e.counterfactual),
        "sentence": e.describe(wording).sentence,
        **({} if wording is None else {"wording": wording.to_dict()}),
        "index": as_json(e.index),
        "rank": e.rank,
        "status": e.status,
        "reason": e.reason,
        "distance": as_json(e.distance),
        "bound": as_json(e.bound),
        "in_region": e.in_region,
        "timed_out": e.timed_out,
        "margin": as_json(e.margin),
        "plausibility": as_json(e.plausibility),
        "guaranteed_ranges": {n: list(ends) for n, ends in e.guaranteed_ranges.items()},
        "imputed": list(e.imputed),
        "checked_with_original": e.checked_with_original,
    }


def _values(row: pd.Series[Any] | None) -> dict[str, Any] | None:
    return None if row is None else {str(name): as_json(value) for name, value in row.items()}


def _bytes(row: Array) -> bytes:
    return np.ascontiguousarray(row, dtype="<f8").tobytes()


def _proved(
    who: str, e: Explanation, proof: Proof, members: Sequence[Member]
) -> tuple[Array, Array] | None:
    """Return the proved box around a point, or raise if guaranteed ranges exceed it."""
    parts = proof.certificates if isinstance(proof, CertificateBundle) else (proof,)
    facts = [part.facts for part in parts if isinstance(part, Certificate)]
    assert e.encoded_counterfactual is not None  # noqa: S101  (draft tests this)
    point = e.encoded_counterfactual.tolist()
    right = [
        one
        for one in facts
        if one["verdict"] == "robust" and one["target"] == e.target and one["input"] == point
    ]
    for one in right:
        _check_margin(who, e, one, [member for member in members if _covers(one, member)])
    for member in members:
        if not any(_covers(one, member) for one in right):
            raise LedgerError(
                f"{who}: its certificate does not prove this point for {member.name or 'the model'}. "
                "Explain it again"
            )
    boxes = [
        (np.array(one.get("low", point)), np.array(one.get("high", point)))
        for one in right
        if any(_covers(one, member) for member in members)
    ]
    low = np.max([box[0] for box in boxes], axis=0)
    high = np.min([box[1] for box in boxes], axis=0)
    promised = [
        box for member in members if (box := member.around(e.encoded_counterfactual)) is not None
    ]
    if e.guaranteed_ranges and e.setting is not None:
        promised.append(range_box(e.setting.schema, e.encoded_counterfactual, e.guaranteed_ranges))
    if any((down < low).any() or (up > high).any() for down, up in promised):
        raise LedgerError(
            f"{who}: the guaranteed ranges are wider than what its certificate proves. Explain it "
            "again"
        )
    return (low, high) if (low < high).any() else None


def _check_margin(
    who: str, e: Explanation, facts: Mapping[str, Any], members: Sequence[Member]
) -> None:
    """Raise unless the proved margin covers the rounding error of the model."""
    assert e.encoded_counterfactual is not None and e.setting is not None  # noqa: S101, PT018
    row = e.encoded_counterfactual[None]
    box = (np.array([facts["low"]]), np.array([facts["high"]])) if "low" in facts else None
    for member in members:
        if member.network is e.setting.current.network:
            needed = e.setting.model.margins(member.shifts, row, None, box)
        else:
            needed = thresholds(member.network, member.shifts, row, None, box)
        least = float(np.max(np.asarray(needed)))
        # the batch of a row changes the last bits of its bound, far below the slack of that bound
        if not facts["margin"] >= least * (1.0 - 1e-12):
            raise LedgerError(
                f"{who}: its certificate proves a margin of {facts['margin']:g}, but the model "
                f"({member.network.precision}) can lose {least:g} by rounding. Explain it again without "
                "margin="
            )


def _covers(facts: Mapping[str, Any], member: Member) -> bool:
    """Test if a certificate is about the shift set of a member."""
    if facts["network"] != network_digest(member.network):
        return False
    if member.shifts.radii is None:
        return facts.get("shifts") == member.shifts.digest
    return facts.get("delta") == [list(pair) for pair in member.shifts.radii]


def _check(who: str, proof: Proof, guarantee: Guarantee) -> None:
    """Check the proof in exact arithmetic."""
    if isinstance(proof, CertificateBundle):
        found = proof.check(guarantee)
    elif isinstance(proof, Certificate):
        found = proof.check(guarantee.current.network, guarantee.current.shifts)
    else:
        raise LedgerError(f"{who}: a proof of a fixed prediction cannot be promised")
    if not found.accepted:
        raise LedgerError(
            f"{who}: its certificate does not hold ({found.reason}). Explain it again"
        )


def setting_of(result: Explanations) -> Setting:
    """Return the setting that all explanations share."""
    settings = {id(e.setting): e.setting for e in result if e.setting is not None}
    if len(settings) != 1:
        raise LedgerError(
            "the explanations have no setting, or several. Issue the results of each run by themselves"
        )
    return next(iter(settings.values()))


# -- what time changes -----------------------------------------------------------------------------


def growing_features(result: Explanations, schema: Schema) -> tuple[str, ...]:
    """Return features that seem to grow with time while no tolerance covers larger values."""
    misses = {} if result.provenance is None else result.provenance.request.misses
    return tuple(
        name
        for name, feature in schema.by_name.items()
        if grows_with_time(feature) and misses.get(name, (0.0, 0.0))[1] == 0.0
    )


# -- into the ledger -------------------------------------------------------------------------------


Content = tuple[str, bytes, bytes | None, bytes | None, str | None]
"""Terms, point, box and expiry date. One person holds one promise of the same content."""


def _known_promises(
    connection: sa.Connection, drafts: Sequence[Draft], time: str
) -> dict[str, dict[Content, int]]:
    """Return the open promises of the people, by their content."""
    found: dict[str, dict[Content, int]] = {}
    p, own = tables.promises.c, tables.personal.c
    people = sorted({one.person for one in drafts})
    for start in range(0, len(people), PARAMETERS):
        query = (
            sa.select(own.person, p.id, p.terms, own.point, own.low, own.high, p.expires)
            .join_from(tables.personal, tables.promises, own.entry == p.id)
            .where(own.person.in_(people[start : start + PARAMETERS]), is_open(time[:10]))
        )
        for person, number, *key in connection.execute(query):
            found.setdefault(person, {})[tuple(key)] = number
    return found


def issue_drafts(
    writer: Writer,
    drafts: Sequence[Draft],
    expires: str | None,
    existing: Existing,
    *,
    label: Label,
    replaces: Collection[int] | None,
) -> tuple[list[int], list[int]]:
    """Write the new promises, and return the numbers of all promises and of the new ones.

    Only promises of the same class conflict with a new one, or are replaced by it.
    """
    archive = Archive(writer.connection)
    known = _known_promises(writer.connection, drafts, writer.time)
    found, new = list[int](), dict[str, list[int]]()
    rows, given = dict[str, set[object]](), dict[str, set[int]]()
    for one in drafts:
        key = (*one.promised, expires)
        theirs = known.setdefault(one.person, {})
        if key not in theirs:
            theirs[key] = append_promise(writer, one, expires)
            new.setdefault(one.person, []).append(theirs[key])
        found.append(theirs[key])
        rows.setdefault(one.person, set()).add(one.row)
        given.setdefault(one.person, set()).add(theirs[key])
    labels = {drafts[0].terms: label}
    for terms, *_ in {key for person in new for key in known[person]}:
        if terms not in labels:
            labels[terms] = archive.terms(terms).label
    others = {
        person: sorted(
            number
            for (terms, *_), number in known[person].items()
            if number not in given[person] and labels[terms] == label
        )
        for person in new
    }
    several = [person for person in new if others[person] or len(rows[person]) > 1]
    if several and existing == "refuse":
        raise LedgerError(
            f"{len(several)} of the people have an open promise already, or several rows "
            f"({listing(several)}); existing='add' (--existing add) keeps all promises, "
            "existing='renew' (--existing renew) replaces the old ones",
            name="existing",
            value=existing,
        )
    for person, numbers in others.items() if existing == "renew" else ():
        for number in numbers:
            if replaces is None or number in replaces:
                writer.append("renewed", {"into": new[person]}, number)
    return found, [number for numbers in new.values() for number in numbers]


def append_promise(writer: Writer, one: Draft, expires: str | None) -> int:
    """Write one promise."""
    number, salt = writer.next, new_salt()
    facts = {
        "terms": one.terms,
        "issued": writer.time,
        "expires": expires,
        "commitment": commitment(salt, one.parts),
    }
    writer.append("issued", facts, number)
    writer.add("promises", {"id": number, **facts})
    row = {name: value for name, value in one._asdict().items() if name not in ("terms", "row")}
    writer.add("personal", {"entry": number, "salt": salt, **row})
    return number


# -- folders of results ----------------------------------------------------------------------------


_PART = 500  # explanations in one transaction


class IssuedFolder(NamedTuple):
    """The outcome of :meth:`proplace.Ledger.issue_folder`.

    Attributes
    ----------
    new
        Number of promises that were issued now.
    known
        Number of promises that were in the ledger already.
    skipped
        Number of rows with nothing to promise.
    growing
        As in :class:`Issued`.
    """

    new: int = 0
    known: int = 0
    skipped: int = 0
    growing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line."""
        return _summary(*self)


def parts_of(folder: str | os.PathLike[str], ids: Ids) -> tuple[int, Iterator[Explanations]]:
    """Check the ids of a results folder, count its rows, and iterate over them, some people at once."""
    from proplace.batch.results import open_results

    opened = open_results(folder)
    if not opened.certificates:
        raise LedgerError(
            f"{folder}: has no certificates, and a promise needs one. Explain the same input into "
            "another folder with certificates=True (batch.certificates)",
            name="certificates",
        )
    if ids is not None and not isinstance(ids, (str, Mapping)):
        raise LedgerError(
            "ids of a folder are the name of an id column, or {number of a row: id}, not a list",
            name="ids",
        )
    _check_ids(opened, ids)
    return opened.table.rows, opened.parts(_PART)


def _check_ids(opened: Any, ids: Ids) -> None:
    """Raise if a row has no id, or two rows have the same one."""
    digests = array("Q", (_digest(person) for _, person in _people(opened, ids)))
    values, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    seen: dict[str, Any] = {}
    for index, person in _people(opened, ids) if suspects else ():
        if _digest(person) not in suspects:
            continue
        if person in seen:
            raise LedgerError(
                f"rows {seen[person]} and {index} have the same id {person!r}. Give unique ids (such as "
                "the number of an application), as another column or as {number of a row: id}",
                name="ids",
                value=person,
            )
        seen[person] = index


def _people(opened: Any, ids: Ids) -> Iterator[tuple[Any, str]]:
    """Iterate over the rows with a counterfactual, and the ids of their people."""
    last = None
    for line in opened.lines():
        e = line.explanation
        if e.index != last and not skip_reason(e):
            last = e.index
            yield e.index, people_of(Explanations([e]), ids)[0]


def _digest(person: str) -> int:
    return int.from_bytes(hashlib.blake2b(person.encode(), digest_size=8).digest(), "big")


def check_current(connection: sa.Connection, model: Model, digest: str) -> None:
    """Raise unless a model, with its digest as a document, is the current one or none was ever set.

    The transaction that writes a promise calls this, so that no other model can be set in between.
    """
    found = current_model(connection)
    if found is None or found[1] == digest:
        return
    entry, current = found[0], Archive(connection).model(found[1])
    if not _same_network(model, current):
        raise LedgerError(
            f"the answers were computed for another model than the current one ({current.origin.name}, "
            f"set by entry {entry}). Explain the people again with the current model",
            name="result",
        )


def _same_network(one: Model, other: Model) -> bool:
    """True if two models have the same classes and, on the rows of the first, the same network."""
    try:
        again = in_coordinates_of(one, other)
    except (InputError, NetworkError):
        return False
    return network_digest(again) == network_digest(one.network)
