"""Promises, and the queries that read them."""

from __future__ import annotations

import json
import math
import unicodedata
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from proplace.certification import read_proof
from proplace.certification.checker import MAX_BYTES
from proplace.core.errors import (
    LedgerError,
    NotInLedgerError,
    TamperedError,
)
from proplace.core.options import integer, one_of
from proplace.core.text import short
from proplace.explain.results import Explanation, Setting
from proplace.explain.words import Wording
from proplace.ledger import tables
from proplace.ledger.tables import PARAMETERS, sa
from proplace.ledger.terms import Archive
from proplace.schema.values import to_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from proplace.certification import Proof
    from proplace.core.network import Array
    from proplace.core.request import Request
    from proplace.ledger.terms import Terms
    from proplace.loaders.model import Model
    from proplace.schema.values import Label


State = Literal["open", "expired", "redeemed", "renewed", "withdrawn", "erased"]

CLOSING = ("redeemed", "renewed", "withdrawn", "erased")
"""Kinds of entries that close a promise."""


@dataclass(frozen=True, eq=False)
class Promise:
    """A promise to one person: reach this, and you are accepted.

    Attributes
    ----------
    id
        Its number in the ledger.
    person
        Id of the person. None once the person is erased, with all other personal data.
    state
        ``open``, ``expired``, ``redeemed``, ``renewed`` (replaced by another), ``withdrawn`` or
        ``erased``.
    issued
        Time of issue, in UTC.
    expires
        Expiry date, ``2027-03-31``. None if the promise does not expire.
    terms
        Model, guarantee and request.
    facts
        Person and counterfactual in original units, sentence, and guaranteed ranges.
    point, low, high
        Encoded counterfactual, and the proved box around it.
    """

    id: int
    person: str | None
    state: State
    issued: str
    expires: str | None
    terms: Terms
    facts: Mapping[str, Any]
    point: Array | None = None
    low: Array | None = None
    high: Array | None = None
    _certificate: bytes | None = None

    @property
    def target(self) -> Label:
        """Label of the promised class."""
        return self.terms.label

    @property
    def sentence(self) -> str:
        """The sentence for the person."""
        return str(self.facts.get("sentence", ""))

    @property
    def wording(self) -> Wording:
        """The words of the sentence."""
        return wording_of(self.facts)

    @property
    def guaranteed_ranges(self) -> dict[str, tuple[float, float]]:
        """Intervals of numeric features in which the guarantee is proved, in original units."""
        ranges = self.facts.get("guaranteed_ranges", {})
        return {name: (low, high) for name, (low, high) in ranges.items()}

    @property
    def original(self) -> pd.Series[Any] | None:
        """The person on the day of the promise."""
        return self._row("original")

    @property
    def answer(self) -> pd.Series[Any] | None:
        """The counterfactual."""
        return self._row("answer")

    @cached_property
    def certificate(self) -> Proof | None:
        """The certificate."""
        return None if self._certificate is None else read_proof(unpacked(self._certificate))

    @cached_property
    def explanation(self) -> Explanation | None:
        """The explanation of the promise, for words, letters and plots. None once it is erased."""
        if self.point is None:
            return None
        terms, facts, original = self.terms, self.facts, self.original
        setting = Setting(terms.guarantee, terms.model)
        return Explanation(
            facts["status"],
            facts["reason"],
            index=facts["index"],
            target=terms.request.target,
            original=original,
            counterfactual=self.answer,
            rank=facts["rank"],
            encoded_original=None
            if original is None
            else terms.model.encode(original.to_frame().T)[0],
            encoded_counterfactual=self.point,
            guaranteed_ranges=self.guaranteed_ranges,
            certificate=self.certificate,
            setting=setting,
            ids={"person": self.person},
            imputed=tuple(facts["imputed"]),
            distance=_number(facts["distance"]),
            bound=_number(facts["bound"]),
            in_region=facts["in_region"],
            timed_out=facts["timed_out"],
            margin=_number(facts["margin"]),
            plausibility=_number(facts["plausibility"]),
            checked_with_original=facts["checked_with_original"],
        )

    def _row(self, name: str) -> pd.Series[Any] | None:
        values = self.facts.get(name)
        if values is None:
            return None
        ordered = {feature: values[feature] for feature in self.terms.model.schema.by_name}
        return pd.Series(ordered, dtype=object, name=self.id)

    def __repr__(self) -> str:
        who = "erased" if self.person is None else f"to {self.person!r}"
        return f"Promise({self.id} {who}, {self.state})"


def wording_of(facts: Mapping[str, Any]) -> Wording:
    """Return the words of a promise with these facts."""
    return Wording.from_dict(facts.get("wording"))


class Recipient(NamedTuple):
    """The recipient of a promise, for lists of many.

    Attributes
    ----------
    promise
        Number of the promise.
    person
        Id of the person. None once the person is erased.
    expires
        Expiry date.
    target
        Label of the promised class.
    request
        Request of the counterfactual.
    facts
        Person and counterfactual in original units, and the sentence. Empty once they are erased.
    """

    promise: int
    person: str | None
    expires: str | None
    target: Label
    request: Request
    facts: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """The sentence for the person."""
        return str(self.facts.get("sentence", ""))


class OpenPromises(NamedTuple):
    """Some open promises of the same terms.

    Attributes
    ----------
    terms
        Their terms.
    ids
        Their numbers.
    points
        Counterfactuals, encoded by the model of the terms.
    low, high
        Ends of the proved boxes.
    facts, people
        JSON of person and counterfactual in original units, and the ids of the people. Empty unless
        they were read.
    """

    terms: Terms
    ids: npt.NDArray[np.int64]
    points: Array
    low: Array
    high: Array
    facts: tuple[str, ...] = ()
    people: tuple[str, ...] = ()

    @property
    def boxed(self) -> npt.NDArray[np.bool_]:
        """True for promises that are proved for more than the point."""
        return np.asarray((self.low < self.high).any(axis=1))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def unpacked(content: bytes) -> bytes:
    """Decompress a certificate, or raise if it is damaged or too large."""
    try:
        text = zlib.decompressobj().decompress(content, MAX_BYTES + 1)
    except zlib.error:
        text = b""
    if not text or len(text) > MAX_BYTES:
        raise TamperedError(
            "the certificate of a promise was changed; ledger.verify() lists all changes"
        )
    return text


# -- queries ---------------------------------------------------------------------------------------


CHUNK = 20_000
"""Largest number of promises in memory at once."""

HEAD = sa.select(tables.head.c.entries, tables.head.c.hash)
"""Query of the end of the chain."""


# -- states ----------------------------------------------------------------------------------------


def closing_kind() -> Any:
    """Return the query of the last entry that closed a promise."""
    e = tables.entries.c
    return (
        sa.select(e.kind)
        .where(e.promise == tables.promises.c.id, e.kind.in_(CLOSING))
        .order_by(e.seq.desc())
        .limit(1)
        .scalar_subquery()
        .label("closing")
    )


def is_open(day: str) -> Any:
    """Return the condition that a promise is neither closed nor expired on a day."""
    e, expires = tables.entries.c, tables.promises.c.expires
    closed = sa.exists().where(e.promise == tables.promises.c.id, e.kind.in_(CLOSING))
    return sa.and_(~closed, sa.or_(expires.is_(None), expires >= day))


def state_of(closing: str | None, expires: str | None, day: str) -> State:
    """Return the state of a promise on a day, by the last entry that closed it."""
    if closing is not None:
        return closing  # type: ignore[return-value]
    return "expired" if expires is not None and expires < day else "open"


# -- promises --------------------------------------------------------------------------------------


def entry_number(name: str, value: Any) -> int:
    """Return the number of an entry, or raise."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if whole and abs(value) < 2**63:
        return int(value)
    raise LedgerError(
        f"{name} must be the number of an entry, not {short(value)}. promises() (ledger list) lists "
        "promises, and entries() all entries",
        name=name,
        value=value,
    )


def promise_of(connection: sa.Connection, number: int, day: str) -> Promise:
    """Return one promise by its number."""
    own, number = tables.personal.c, entry_number("promise", number)
    query = (
        sa.select(tables.promises, tables.personal, closing_kind())
        .join_from(
            tables.promises, tables.personal, own.entry == tables.promises.c.id, isouter=True
        )
        .where(tables.promises.c.id == number)
    )
    row = connection.execute(query).first()
    if row is None:
        raise NotInLedgerError(
            f"there is no promise {number} in the ledger; promises() (ledger list) lists all",
            name="promise",
            value=number,
        )
    terms = Archive(connection).terms(row.terms)
    state = state_of(row.closing, row.expires, day)
    dates = (state, row.issued, row.expires, terms)
    if row.person is None:
        return Promise(row.id, None, *dates, {})
    point, low, high = (
        None if blob is None else np.frombuffer(blob, dtype="<f8").astype(np.float64)
        for blob in (row.point, row.low, row.high)
    )
    certificate = bytes(row.certificate)
    facts = json.loads(row.facts)
    return Promise(row.id, row.person, *dates, facts, point, low, high, certificate)


def promise_rows(
    connection: sa.Connection, day: str, person: object, state: State | None
) -> Iterator[list[Any]]:
    """Iterate over rows of the table of promises."""
    query = _table(state, day).order_by(tables.promises.c.id)
    if person is not None:
        query = query.where(tables.personal.c.person == person_id(person))
    return _rows(connection, query.execution_options(yield_per=PARAMETERS), day)


def page_rows(
    connection: sa.Connection,
    day: str,
    person: str,
    state: State | None,
    size: int,
    before: int | None,
) -> Iterator[list[Any]]:
    """Iterate over rows of one page, the latest first. The database reads only these."""
    number = tables.promises.c.id
    query = _table(state, day).order_by(number.desc()).limit(integer("size", size))
    if before is not None:
        query = query.where(number < entry_number("before", before))
    if part := person_id(person):
        own = tables.personal.alias().c
        like = own.person.icontains(part, autoescape=True)
        query = query.where(number.in_(sa.select(own.entry).where(like)))
    return _rows(connection, query, day)


def _table(state: State | None, day: str) -> sa.Select[Any]:
    """Return the query of promises in one state, or in any."""
    p, own, closing = tables.promises.c, tables.personal.c, closing_kind()
    query = sa.select(p.id, own.person, p.issued, p.expires, p.terms, own.facts, closing).join_from(
        tables.promises, tables.personal, own.entry == p.id, isouter=True
    )
    if state is None:
        return query
    one_of("state", state, get_args(State))
    if state == "open":
        return query.where(is_open(day))
    # An index finds the few that may have the state, however many promises there are.
    if state == "expired":
        over = sa.select(tables.promises.c.id).where(tables.promises.c.expires < day)
        return query.where(p.id.in_(over), closing.is_(None))
    closed = sa.select(tables.entries.c.promise).where(tables.entries.c.kind == state)
    return query.where(p.id.in_(closed), closing == state)


def _rows(connection: sa.Connection, query: sa.Select[Any], day: str) -> Iterator[list[Any]]:
    archive = Archive(connection)
    for number, who, issued, expires, terms, facts, closing in connection.execute(query):
        about, state = archive.terms(terms), state_of(closing, expires, day)
        sentence = None if facts is None else json.loads(facts)["sentence"]
        name = about.model.origin.name
        yield [number, who, state, issued, expires, about.label, sentence, name, terms]


def open_groups(
    connection: sa.Connection, day: str, *, facts: bool = False
) -> Iterator[OpenPromises]:
    """Iterate over open promises in groups of the same terms and of bounded size.

    With ``facts`` the groups hold the facts and the people.
    """
    p, own = tables.promises.c, tables.personal.c
    more = (own.facts, own.person) if facts else ()
    query = (
        sa.select(p.terms, p.id, own.point, own.low, own.high, *more)
        .join_from(tables.promises, tables.personal, own.entry == p.id)
        .where(is_open(day))
        .order_by(p.terms, p.id)
        .execution_options(yield_per=CHUNK)
    )
    archive = Archive(connection)
    for part in connection.execute(query).partitions(CHUNK):
        start = 0
        for n in range(1, len(part) + 1):
            if n == len(part) or part[n].terms != part[start].terms:
                yield _group(archive, part[start:n])
                start = n


def _group(archive: Archive, rows: Sequence[Any]) -> OpenPromises:
    points, low, high = (
        np.frombuffer(
            b"".join(getattr(row, end) or row.point for row in rows), dtype="<f8"
        ).reshape(len(rows), -1)
        for end in ("point", "low", "high")
    )
    ids = np.array([row.id for row in rows], dtype=np.int64)
    more = [*zip(*(row[5:] for row in rows), strict=True)]
    return OpenPromises(archive.terms(rows[0].terms), ids, points, low, high, *more)


def recipients(connection: sa.Connection, numbers: Sequence[int]) -> list[Recipient]:
    """Return the recipients of some promises, in the order given."""
    p, own = tables.promises.c, tables.personal.c
    found: dict[int, Recipient] = {}
    archive = Archive(connection)
    for start in range(0, len(numbers), PARAMETERS):
        part = [int(number) for number in numbers[start : start + PARAMETERS]]
        query = (
            sa.select(p.id, own.person, p.expires, p.terms, own.facts)
            .join_from(tables.promises, tables.personal, own.entry == p.id, isouter=True)
            .where(p.id.in_(part))
        )
        for number, person, expires, terms, facts in connection.execute(query):
            known = {} if facts is None else json.loads(facts)
            about = archive.terms(terms)
            found[number] = Recipient(number, person, expires, about.label, about.request, known)
    return [found[int(number)] for number in numbers]


def renewed_into(connection: sa.Connection, promise: int) -> list[int]:
    """Return the numbers of the promises that replaced one."""
    e = tables.entries.c
    query = sa.select(e.body).where(e.promise == promise, e.kind == "renewed")
    return sorted({n for (body,) in connection.execute(query) for n in json.loads(body)["into"]})


def current_model(connection: sa.Connection) -> tuple[int, str] | None:
    """Return the entry that set the current model and the digest of the model, or None."""
    e = tables.entries.c
    chosen = sa.select(e.seq, e.body).where(e.promise.is_(None), e.kind == "model_set")
    row = connection.execute(chosen.order_by(e.seq.desc()).limit(1)).first()
    return None if row is None else (row.seq, json.loads(row.body)["model"])


def latest_model(connection: sa.Connection) -> Model | None:
    """Return the model of the latest promise. None before the first promise."""
    query = sa.select(tables.promises.c.terms).order_by(tables.promises.c.id.desc()).limit(1)
    terms = connection.execute(query).scalar()
    return None if terms is None else Archive(connection).terms(terms).model


def without_verdict(connection: sa.Connection, audit: int, day: str) -> int:
    """Return the number of promises that are open on a day and have no verdict in an audit."""
    v, p = tables.verdicts.c, tables.promises.c
    judged = sa.exists().where(v.audit == int(audit), v.promise == p.id)
    query = sa.select(sa.func.count()).select_from(tables.promises).where(is_open(day), ~judged)
    count: int = connection.execute(query).scalar_one()
    return count


def audited(connection: sa.Connection, audit: int) -> dict[str, Any]:
    """Return the recorded facts of an audit."""
    e = tables.entries.c
    query = sa.select(e.body).where(e.seq == entry_number("audit", audit), e.kind == "audited")
    body = connection.execute(query).scalar()
    if body is None:
        raise NotInLedgerError(
            f"there is no audit {audit} in the ledger; entries(kinds=['audited']) lists all",
            name="audit",
            value=audit,
        )
    facts: dict[str, Any] = json.loads(body)
    return facts


def person_id(value: object) -> str | None:
    """Return an id as text, or None for a missing one.

    A whole number has no decimal point, since tables turn 7 into 7.0 if another id is missing. Letters
    are composed (NFC), so an accent that is written in two ways gives one person.
    """
    value = to_python(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    if isinstance(value, (list, set, dict, np.ndarray, pd.Series, pd.Index)):
        raise LedgerError(
            f"an id is one value, not a {type(value).__name__}. Give them one by one",
            name="ids",
            value=value,
        )
    text = "" if value is None or value is pd.NA or value is pd.NaT else str(value)
    if not text.isprintable():
        raise LedgerError(
            f"the id {text!r} has characters that cannot be printed. Give ids of plain text",
            name="ids",
            value=text,
        )
    return unicodedata.normalize("NFC", text) if text.strip() else None
