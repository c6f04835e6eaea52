"""From answers to promises: who they are for, what is proved, and what is written down.

A promise is made of an answer that is proved: its certificates speak of exactly this point, this class
and all of the sets of networks, and cover what is said to hold around it. Where anything of this is
missing there is no promise.
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
from proplace.loaders.coordinates import in_coordinates_of
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
"""Who the people are: the id column, ids by the label of the row, or one for each answer."""

Existing = Literal["refuse", "add", "renew"]


class Draft(NamedTuple):
    """A promise that is about to be issued.

    Attributes
    ----------
    person
        The user's own id of the person.
    facts
        Canonical JSON: the person and the answer in original units, the sentence and what is proved.
    point, low, high
        The answer as the network takes it, and the ends of the box around it that is proved, as
        little-endian doubles; no box where the point alone is proved.
    certificate
        The proof, compressed.
    terms
        Name of the terms.
    row
        Which row the answer is of; several answers of one row are of one person.
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
        """What a commitment is made of, in order."""
        return personal_parts(self._asdict())

    @property
    def promised(self) -> tuple[str, bytes, bytes | None, bytes | None]:
        """What is promised: the terms, the point and the box around it."""
        return self.terms, self.point, self.low, self.high


class Skipped(NamedTuple):
    """An answer that became no promise, and why."""

    index: Any
    reason: str


@dataclass(frozen=True)
class Issued:
    """What became of some answers.

    Attributes
    ----------
    ids
        Numbers of the promises, new and known, in the order of the answers.
    new
        Those of them that were issued now; the others were in the ledger already.
    skipped
        Rows that hold nothing to promise, with the reason.
    growing
        Numeric features whose names suggest that they grow with time, such as an age, if the promises
        have a last day and no tolerance covers larger values.
    """

    ids: tuple[int, ...]
    new: tuple[int, ...]
    skipped: tuple[Skipped, ...] = ()
    growing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line."""
        known = len(self.ids) - len(self.new)
        parts = [f"{len(self.new)} promise{'s' * (len(self.new) != 1)} issued"]
        if known:
            parts.append(f"{known} known already")
        if self.skipped:
            parts.append(f"{len(self.skipped)} rows with nothing to promise")
        return ", ".join(parts) + growth_note(self.growing)


def people_of(result: Explanations, ids: Ids) -> list[str]:
    """The id of the person of each answer, as text."""
    given = [_given(result, n, e, ids) for n, e in enumerate(result)]
    people = [person_id(one) for one in given]
    for e, person in zip(result, people, strict=True):
        if person is None:
            raise LedgerError(
                f"row {e.index!r} has no id of a person; a promise is made to somebody",
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
            "a promise is made to somebody: say who the people are, with ids='name of an id column', "
            "ids={label of a row: id}, or one id for each answer"
            f"{'; ' if columns else ''}{columns}",
            name="ids",
            value=None,
        )
    if isinstance(ids, str):
        if ids not in e.ids:
            raise LedgerError(
                f"ids={ids!r} is no id column of the results{did_you_mean(ids, e.ids)}; they have "
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
            f"{len(given)} ids were given for {len(result)} answers; give one for each", name="ids"
        )
    return given[n]


def nothing_to_promise(e: Explanation) -> str:
    """Why an explanation is no promise; empty if it is one.

    An answer without a proof is not passed over: see :func:`draft`.
    """
    if e.status == "already_valid":
        return "has the class today: nothing would have to change"
    return "" if e.found else f"no answer ({e.status})"


def check_answers(result: Explanations, model: Model) -> None:
    """The answers in original units must be the points that are proved, as the model encodes them."""
    told = [
        e for e in result if e.counterfactual is not None and e.encoded_counterfactual is not None
    ]
    if not told:
        return
    frame = pd.DataFrame([e.counterfactual for e in told]).reset_index(drop=True)
    for e, row in zip(told, model.encode(frame), strict=True):
        if row.tolist() != e.encoded_counterfactual.tolist():  # type: ignore[union-attr]
            raise LedgerError(
                f"row {e.index!r}: the answer in original units is not the one that is proved; explain "
                "it again"
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
    """Make a promise of an answer, in a wording, or say what is not proved."""
    who = f"row {e.index!r}" + (f", answer {e.rank}" if e.rank else "")
    if e.setting is None:
        raise LedgerError(f"{who}: nothing says what the answer is about; explain it again")
    if e.counterfactual is None or any(
        n not in e.setting.schema.by_name for n in e.guaranteed_ranges
    ):
        raise LedgerError(f"{who}: the answer is not whole; explain it again")
    if e.certificate is None or e.encoded_counterfactual is None:
        raise LedgerError(
            f"{who}: the answer has no certificate, and nothing is promised without a proof; search "
            "with Proplace(...) (its answers are certified), or with proplace explain --out"
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
        **({} if wording is None else {"wording": _wording(wording)}),
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


def _wording(wording: Wording) -> dict[str, Any]:
    """What the person was told in: pages and letters call things so later, too."""
    given = wording.outcomes
    words = given.items() if isinstance(given, Mapping) else enumerate(given)
    outcomes = [[as_json(label), word] for label, word in words]
    return {"subject": wording.subject, "outcomes": outcomes, "person": wording.person}


def _values(row: pd.Series[Any] | None) -> dict[str, Any] | None:
    return None if row is None else {str(name): as_json(value) for name, value in row.items()}


def _bytes(row: Array) -> bytes:
    return np.ascontiguousarray(row, dtype="<f8").tobytes()


def _proved(
    who: str, e: Explanation, proof: Proof, members: Sequence[Member]
) -> tuple[Array, Array] | None:
    """The box of inputs that is proved to be accepted; an error where less is proved than is said."""
    parts = proof.certificates if isinstance(proof, CertificateBundle) else (proof,)
    facts = [part.facts for part in parts if isinstance(part, Certificate)]
    assert e.encoded_counterfactual is not None  # noqa: S101  (as was asked before)
    point = e.encoded_counterfactual.tolist()
    right = [
        one
        for one in facts
        if one["verdict"] == "robust" and one["target"] == e.target and one["input"] == point
    ]
    for one in right:
        _check_margin(who, e, one, [member for member in members if _about(one, member)])
    for member in members:
        if not any(_about(one, member) for one in right):
            raise LedgerError(
                f"{who}: its certificate does not prove this answer for {member.name or 'the model'}; "
                "explain it again"
            )
    boxes = [
        (np.array(one.get("low", point)), np.array(one.get("high", point)))
        for one in right
        if any(_about(one, member) for member in members)
    ]
    low = np.max([box[0] for box in boxes], axis=0)
    high = np.min([box[1] for box in boxes], axis=0)
    said = [
        box for member in members if (box := member.around(e.encoded_counterfactual)) is not None
    ]
    if e.guaranteed_ranges and e.setting is not None:
        said.append(range_box(e.setting.schema, e.encoded_counterfactual, e.guaranteed_ranges))
    if any((down < low).any() or (up > high).any() for down, up in said):
        raise LedgerError(
            f"{who}: the guaranteed ranges are wider than what its certificate proves; explain it "
            "again"
        )
    return (low, high) if (low < high).any() else None


def _check_margin(
    who: str, e: Explanation, facts: Mapping[str, Any], members: Sequence[Member]
) -> None:
    """The margin that is proved must cover what the arithmetic of the model can lose."""
    assert e.encoded_counterfactual is not None and e.setting is not None  # noqa: S101, PT018
    row = e.encoded_counterfactual[None]
    box = (np.array([facts["low"]]), np.array([facts["high"]])) if "low" in facts else None
    for member in members:
        if member.network is e.setting.current.network:
            needed = e.setting.model.margins(member.shifts, row, None, box)
        else:
            needed = thresholds(member.network, member.shifts, row, None, box)
        least = float(np.max(np.asarray(needed)))
        if not facts["margin"] >= least:
            raise LedgerError(
                f"{who}: its certificate proves a margin of {facts['margin']:g}, and the arithmetic of "
                f"the model ({member.network.precision}) can lose {least:g}; explain it again without a "
                "margin of your own"
            )


def _about(facts: Mapping[str, Any], member: Member) -> bool:
    """Whether a certificate is about the networks of a set."""
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
        raise LedgerError(f"{who}: a proof that there can be no answer is no promise")
    if not found.accepted:
        raise LedgerError(
            f"{who}: its certificate does not hold ({found.reason}); explain it again"
        )


def setting_of(result: Explanations) -> Setting:
    """What all answers are about; they must be of one run."""
    settings = {id(e.setting): e.setting for e in result if e.setting is not None}
    if len(settings) != 1:
        raise LedgerError(
            "answers of one run are issued together; these have no setting, or several: issue the "
            "results of each run by themselves"
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


def growth_note(names: Sequence[str]) -> str:
    """Point out features that grow with time; empty if there are none."""
    if not names:
        return ""
    return (
        f"; {', '.join(names)} may grow until the last day, and no tolerance covers that: explain with "
        f"a tolerance, such as a year more of {names[0]}"
    )


# -- into the ledger -------------------------------------------------------------------------------


Said = tuple[str, bytes, bytes | None, bytes | None, str | None]
"""What is promised: terms, point, box and the last day. The same to the same person is one promise."""


def known_promises(
    connection: sa.Connection, drafts: Sequence[Draft], time: str
) -> dict[str, dict[Said, int]]:
    """Open promises of the people, by what is promised."""
    found: dict[str, dict[Said, int]] = {}
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
    known: dict[str, dict[Said, int]],
    existing: Existing,
    *,
    label: Label,
    replacing: Collection[int] | None,
) -> tuple[list[int], list[int]]:
    """Write what is not known yet; return the numbers of all promises, and of the new ones.

    Only promises of the same class stand in the way of another, or give way to it.
    """
    archive = Archive(writer.connection)
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
            f"{len(several)} of the people have an open promise already, or stand in several rows "
            f"({listing(several)}); existing='add' (--existing add) lets all of them hold, "
            "existing='renew' (--existing renew) puts the new ones in the place of those before",
            name="existing",
            value=existing,
        )
    for person, numbers in others.items() if existing == "renew" else ():
        for number in numbers:
            if replacing is None or number in replacing:
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


_PART = 500  # answers in one transaction


class IssuedFolder(NamedTuple):
    """What became of the answers of a folder.

    Attributes
    ----------
    new
        How many promises were issued now.
    known
        How many were in the ledger already.
    skipped
        How many rows hold nothing to promise.
    growing
        As for :class:`~proplace.ledger.issuing.Issued`.
    """

    new: int = 0
    known: int = 0
    skipped: int = 0
    growing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.new:,} promise{'s' * (self.new != 1)} issued"]
        if self.known:
            parts.append(f"{self.known:,} known already")
        if self.skipped:
            parts.append(f"{self.skipped:,} rows with nothing to promise")
        return ", ".join(parts) + growth_note(self.growing)


def parts_of(folder: str | os.PathLike[str], ids: Ids) -> Iterator[Explanations]:
    """The answers of a folder, some whole people at once, after a look at the ids of all of them."""
    from proplace.batch.results import open_results

    opened = open_results(folder)
    if not opened.certificates:
        raise LedgerError(
            f"{folder}: its certificates were not kept, and nothing is promised without a proof; "
            "explain the same input into another folder with certificates=True (batch.certificates)",
            name="certificates",
        )
    if ids is not None and not isinstance(ids, (str, Mapping)):
        raise LedgerError(
            "ids of a folder are the name of an id column, or {number of a row: id}, not a list",
            name="ids",
        )
    _check_ids(opened, ids)
    yield from opened.parts(_PART)


def _check_ids(opened: Any, ids: Ids) -> None:
    """Refuse a folder in which somebody has no id, or two rows have the same."""
    digests = array("Q", (_digest(person) for _, person in _people(opened, ids)))
    values, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    seen: dict[str, Any] = {}
    for index, person in _people(opened, ids) if suspects else ():
        if _digest(person) not in suspects:
            continue
        if person in seen:
            raise LedgerError(
                f"rows {seen[person]} and {index} have the same id {person!r}; give an id that tells "
                "all rows apart (such as the number of an application), as another column or as "
                "{number of a row: id}",
                name="ids",
                value=person,
            )
        seen[person] = index


def _people(opened: Any, ids: Ids) -> Iterator[tuple[Any, str]]:
    """Rows to which something is promised, and who they are."""
    last = None
    for line in opened.lines():
        e = line.explanation
        if e.index != last and not nothing_to_promise(e):
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
            f"set by entry {entry}); explain the people again with the current model",
            name="result",
        )


def _same_network(one: Model, other: Model) -> bool:
    """True if two models have the same classes and, on the rows of the first, the same network."""
    try:
        again = in_coordinates_of(one, other)
    except (InputError, NetworkError):
        return False
    return network_digest(again) == network_digest(one.network)
