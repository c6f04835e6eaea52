"""What is read of a ledger: one promise, many of them, their states, and the model in use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.certification import digest as network_digest
from proplace.core.errors import InputError, LedgerError, NetworkError, NotInLedgerError
from proplace.ledger import tables
from proplace.ledger.in_use import reading
from proplace.ledger.issuing import person_id
from proplace.ledger.promise import CLOSING, OpenPromises, Promise, Recipient, State
from proplace.ledger.tables import sa
from proplace.ledger.terms import Archive
from proplace.loaders.coordinates import in_coordinates_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proplace.loaders.model import Model

CHUNK = 20_000
"""Promises that are worked on at once."""
PARAMETERS = 500
"""Values in one statement."""
HEAD = sa.select(tables.head.c.entries, tables.head.c.hash)
"""The end of the chain."""


# -- states ----------------------------------------------------------------------------------------


def closing_kind() -> Any:
    """The last entry that closed a promise."""
    e = tables.entries.c
    return (
        sa.select(e.kind)
        .where(e.promise == tables.promises.c.id, e.kind.in_(CLOSING))
        .order_by(e.seq.desc())
        .limit(1)
        .scalar_subquery()
        .label("closing")
    )


def is_open(day: str | None) -> Any:
    """Whether a promise is neither closed nor expired on a day."""
    e, expires = tables.entries.c, tables.promises.c.expires
    closed = sa.exists().where(e.promise == tables.promises.c.id, e.kind.in_(CLOSING))
    return sa.and_(~closed, sa.or_(expires.is_(None), expires >= day))


def state_of(closing: str | None, expires: str | None, day: str | None) -> State:
    """The state of a promise on a day, by the last entry that closed it."""
    if closing is not None:
        return closing  # type: ignore[return-value]
    return "expired" if expires is not None and day is not None and expires < day else "open"


# -- promises --------------------------------------------------------------------------------------


def promise_of(connection: sa.Connection, number: int, day: str | None) -> Promise:
    """One promise, by its number."""
    own = tables.personal.c
    try:
        number = int(number)
    except (TypeError, ValueError):
        raise LedgerError(
            f"a promise is named by its number, not {number!r}; those of a person: "
            "promises(person) (ledger list --person)",
            name="promise",
            value=number,
        ) from None
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
    connection: sa.Connection,
    person: object,
    state: State | None,
    day: str | None,
) -> Iterator[list[Any]]:
    """Rows of the table of promises, one after the other."""
    query = _table(state, day).order_by(tables.promises.c.id)
    if person is not None:
        query = query.where(tables.personal.c.person == person_id(person))
    return _rows(connection, query.execution_options(yield_per=PARAMETERS), day)


def page_rows(
    connection: sa.Connection,
    size: int,
    before: int | None,
    person: str,
    state: State | None,
    day: str | None,
) -> Iterator[list[Any]]:
    """Rows of one page of the table, the latest first; the database reads no more than these."""
    number = tables.promises.c.id
    query = _table(state, day).order_by(number.desc()).limit(size)
    if before is not None:
        query = query.where(number < int(before))  # also one of NumPy
    if part := person_id(person):
        query = query.where(tables.personal.c.person.icontains(part, autoescape=True))
    return _rows(connection, query, day)


def _table(state: State | None, day: str | None) -> sa.Select[Any]:
    """The table of promises in one state, or in any."""
    p, own, closing = tables.promises.c, tables.personal.c, closing_kind()
    query = sa.select(p.id, own.person, p.issued, p.expires, p.terms, own.facts, closing).join_from(
        tables.promises, tables.personal, own.entry == p.id, isouter=True
    )
    if state is None:
        return query
    if state == "open":
        return query.where(is_open(day))
    if state == "expired":
        return query.where(closing.is_(None), p.expires < day)
    return query.where(closing == state)


def _rows(connection: sa.Connection, query: sa.Select[Any], day: str | None) -> Iterator[list[Any]]:
    archive = Archive(connection)
    for number, who, issued, expires, terms, facts, closing in connection.execute(query):
        about, state = archive.terms(terms), state_of(closing, expires, day)
        told = None if facts is None else json.loads(facts)["sentence"]
        name = about.model.origin.name
        yield [number, who, state, issued, expires, about.label, told, name, terms]


def open_groups(
    connection: sa.Connection, day: str | None, *, facts: bool = False
) -> Iterator[OpenPromises]:
    """Open promises in groups of the same terms and of bounded size.

    With ``facts`` they hold these, and the people, too.
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
    """To whom some promises were made, in the order given."""
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
    """Numbers of the promises that took the place of one."""
    e = tables.entries.c
    query = sa.select(e.body).where(e.promise == promise, e.kind == "renewed")
    return sorted({n for (body,) in connection.execute(query) for n in json.loads(body)["into"]})


def current_model(connection: sa.Connection) -> tuple[int, str] | None:
    """Return the entry that set the current model and the digest of the model; None if none was set."""
    e = tables.entries.c
    chosen = sa.select(e.seq, e.body).where(e.promise.is_(None), e.kind == "adopted")
    row = connection.execute(chosen.order_by(e.seq.desc()).limit(1)).first()
    return None if row is None else (row.seq, json.loads(row.body)["model"])


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


def model_in_use(connection: sa.Connection, promise: Promise, model: object) -> Model:
    """The model that decides: the given one, the current one, that of the promise."""
    if model is not None:
        return reading(model, promise.terms.model)
    found = current_model(connection)
    return promise.terms.model if found is None else Archive(connection).model(found[1])


def latest_model(connection: sa.Connection) -> Model | None:
    """The model of the latest promise; None if nothing was promised yet."""
    query = sa.select(tables.promises.c.terms).order_by(tables.promises.c.id.desc()).limit(1)
    terms = connection.execute(query).scalar()
    return None if terms is None else Archive(connection).terms(terms).model


def audited(connection: sa.Connection, audit: int) -> dict[str, Any]:
    """What an audit says of itself."""
    e = tables.entries.c
    query = sa.select(e.body).where(e.seq == int(audit), e.kind == "audited")
    body = connection.execute(query).scalar()
    if body is None:
        raise NotInLedgerError(
            f"there is no audit {audit} in the ledger; history() lists all",
            name="audit",
            value=audit,
        )
    facts: dict[str, Any] = json.loads(body)
    return facts
