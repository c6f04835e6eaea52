"""A ledger of promises: what was promised to whom, on which terms, and what became of it."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import LedgerError
from proplace.explain.provenance import now
from proplace.promises import tables
from proplace.promises.chain import Entry, Head, commitment, new_salt
from proplace.promises.database import Database
from proplace.promises.issuing import (
    Draft,
    Issued,
    Skipped,
    check_answers,
    draft,
    nothing_to_promise,
    people_of,
    person_id,
    setting_of,
)
from proplace.promises.promise import CLOSING, OpenPromises, Promise, State
from proplace.promises.tables import sa
from proplace.promises.terms import Archive, model_of, terms_documents
from proplace.promises.verifying import Verification, Verifier
from proplace.schema.validation import listing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from proplace.explain.results import Explanations
    from proplace.explain.words import Wording
    from proplace.promises.database import Writer
    from proplace.promises.issuing import Existing, Ids

Promised = tuple[str, bytes, bytes | None, bytes | None, str | None]
"""What is promised: terms, point, box and the last day. The same to the same person is one promise."""

_CHUNK = 20_000  # promises that are worked on at once
_PARAMETERS = 500  # of one statement


class Ledger:
    """A database of promises, whose history cannot be changed unnoticed (extra ``ledger``).

    Parameters
    ----------
    place
        The path of a SQLite file, made if it is not there, or ``postgresql://user@host/name``.
    actor
        Who writes: a person or a program; it is noted in every entry.
    create
        False: an error where there is no ledger yet.

    Examples
    --------
    >>> import tempfile, os
    >>> import pandas as pd
    >>> from proplace import Continuous, Ledger, Network, Proplace, Schema
    >>> schema = Schema([Continuous("income", 0, 100, step=1), Continuous("debt", 0, 50, step=1)])
    >>> people = pd.DataFrame({"income": [20, 60, 80, 90], "debt": [30, 10, 5, 20]})
    >>> net = Network([([[2.0, -1.0]], [-0.4])])
    >>> result = Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people[:1])
    >>> ledger = Ledger(os.path.join(tempfile.mkdtemp(), "promises.db"))
    >>> issued = ledger.issue(result, ids=["anna"], expires="2999-12-31")
    >>> print(issued)
    1 promise issued
    >>> ledger.promises()[["person", "state", "expires"]].values.tolist()
    [['anna', 'open', '2999-12-31']]
    >>> ledger.verify().good
    True
    """

    def __init__(
        self, place: str | os.PathLike[str], *, actor: str | None = None, create: bool = True
    ) -> None:
        self._database, self._actor = Database(place, create=create), actor

    # -- opening and closing ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Where it is; without a password."""
        return self._database.name

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.name!r})"

    # -- issuing ---------------------------------------------------------------------------------

    def issue(
        self,
        result: Explanations,
        ids: Ids = None,
        *,
        expires: datetime.date | str | None = None,
        existing: Existing = "refuse",
        wording: Wording | None = None,
        check: bool = True,
    ) -> Issued:
        """Promise the answers of a result to their people: all of them, or none if any is refused.

        Rows without an answer, and people who are accepted today, are passed over. An answer that is in
        the ledger already, for the same person, on the same terms and until the same day, is not issued
        twice, so that a call that was interrupted can be repeated.

        Parameters
        ----------
        result
            Answers with certificates.
        ids
            Who the people are: the name of an id column of the results, a mapping from the label of a
            row to the id, or one id for each answer. Left out: the one id column.
        expires
            The last day on which the promises hold, ``2027-03-31`` or a date; None: no end.
        existing
            What to do where a person has another open promise, or stands in several rows: ``refuse``
            (nothing at all is issued), ``add`` (all of them hold), or ``renew`` (the new ones take the
            place of those before).
        wording
            What to call things in the sentence that is kept.
        check
            Whether to check every certificate in exact arithmetic first.

        Raises
        ------
        LedgerError
            Somebody has no id, an answer has no certificate, or one that proves less than is said;
            a last day that is over; or a person has an open promise.
        """
        if existing not in ("refuse", "add", "renew"):
            raise LedgerError(f"existing must be 'refuse', 'add' or 'renew', not {existing!r}")
        if not len(result):
            return Issued((), ())
        people, skipped, drafts = people_of(result, ids), [], list[Draft]()
        setting = setting_of(result)
        documents = terms_documents(setting, result[0].target, result.provenance)
        terms = documents[-1].digest
        check_answers(result, model_of(setting, result.provenance))
        for e, person in zip(result, people, strict=True):
            if e.target != result[0].target:
                raise LedgerError("answers for several classes are issued one class at a time")
            if reason := nothing_to_promise(e):
                skipped.append(Skipped(e.index, reason))
            else:
                drafts.append(draft(e, person, terms, wording, check=check))
        if not drafts:
            return Issued((), (), tuple(skipped))
        with self._database.write(self._actor) as writer:
            last = _day(expires, writer.time)
            for document in documents:
                writer.document(document.digest, *document)
            known = self._known(writer.connection, drafts, writer.time)
            ids_, new = self._issue(writer, drafts, last, known, existing)
        return Issued(tuple(ids_), tuple(new), tuple(skipped))

    def _issue(
        self,
        writer: Writer,
        drafts: Sequence[Draft],
        expires: str | None,
        known: dict[str, dict[Promised, int]],
        existing: Existing,
    ) -> tuple[list[int], list[int]]:
        """Write what is not known yet; return the numbers of all promises, and of the new ones."""
        found, new = list[int](), dict[str, list[int]]()
        rows, given = dict[str, set[object]](), dict[str, set[int]]()
        for one in drafts:
            key = (*one.promised, expires)
            theirs = known.setdefault(one.person, {})
            if key not in theirs:
                theirs[key] = self._append(writer, one, expires)
                new.setdefault(one.person, []).append(theirs[key])
            found.append(theirs[key])
            rows.setdefault(one.person, set()).add(one.row)
            given.setdefault(one.person, set()).add(theirs[key])
        others = {person: sorted(set(known[person].values()) - given[person]) for person in new}
        several = [person for person in new if others[person] or len(rows[person]) > 1]
        if several and existing == "refuse":
            raise LedgerError(
                f"{len(several)} of the people have an open promise already, or stand in several rows "
                f"({listing(several)}); existing='add' lets all of them hold, existing='renew' puts the "
                "new ones in the place of those before"
            )
        for person, numbers in others.items() if existing == "renew" else ():
            for number in numbers:
                writer.append("renewed", {"into": new[person]}, number)
        return found, [number for numbers in new.values() for number in numbers]

    def _append(self, writer: Writer, one: Draft, expires: str | None) -> int:
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

    def _known(
        self, connection: sa.Connection, drafts: Sequence[Draft], time: str
    ) -> dict[str, dict[Promised, int]]:
        """Open promises of the people, by what is promised."""
        found: dict[str, dict[Promised, int]] = {}
        p, own = tables.promises.c, tables.personal.c
        people = sorted({one.person for one in drafts})
        for start in range(0, len(people), _PARAMETERS):
            query = (
                sa.select(own.person, p.id, p.terms, own.point, own.low, own.high, p.expires)
                .join_from(tables.personal, tables.promises, own.entry == p.id)
                .where(own.person.in_(people[start : start + _PARAMETERS]), _is_open(time[:10]))
            )
            for person, number, *key in connection.execute(query):
                found.setdefault(person, {})[tuple(key)] = number
        return found

    # -- reading ---------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The end of the chain: keep it elsewhere, and ``verify(head)`` can tell later."""
        with self._database.read() as connection:
            return Head(*connection.execute(_HEAD).one())

    def promises(
        self,
        person: object = None,
        state: State | None = None,
        *,
        as_of: datetime.date | str | None = None,
    ) -> pd.DataFrame:
        """Table of promises, one row each, with its number as index.

        Parameters
        ----------
        person, state
            Only those of a person, or in this state.
        as_of
            The day whose state is asked for; today if left out. It decides what is expired, nothing
            else.
        """
        day = _day(as_of, None)
        p, own = tables.promises.c, tables.personal.c
        query = (
            sa.select(p.id, own.person, p.issued, p.expires, p.terms, own.facts, _closing())
            .join_from(tables.promises, tables.personal, own.entry == p.id, isouter=True)
            .order_by(p.id)
        )
        if person is not None:
            query = query.where(own.person == person_id(person))
        if state == "open":
            query = query.where(_is_open(day))
        rows: list[list[Any]] = []
        with self._database.read() as connection:
            archive = Archive(connection)
            for number, who, issued, expires, terms, facts, closing in connection.execute(query):
                state_now = _state(closing, expires, day)
                if state is not None and state_now != state:
                    continue
                about = archive.terms(terms)
                told = None if facts is None else json.loads(facts)["sentence"]
                name = about.model.origin.name
                rows.append(
                    [number, who, state_now, issued, expires, about.label, told, name, terms]
                )
        columns = [
            "id",
            "person",
            "state",
            "issued",
            "expires",
            "target",
            "sentence",
            "model",
            "terms",
        ]
        return pd.DataFrame(rows, columns=columns).set_index("id")

    def promise(self, number: int, *, as_of: datetime.date | str | None = None) -> Promise:
        """One promise, by its number."""
        with self._database.read() as connection:
            return self._promise(connection, number, _day(as_of, None))

    def _promise(self, connection: sa.Connection, number: int, day: str | None) -> Promise:
        own = tables.personal.c
        query = (
            sa.select(tables.promises, tables.personal, _closing())
            .join_from(
                tables.promises, tables.personal, own.entry == tables.promises.c.id, isouter=True
            )
            .where(tables.promises.c.id == int(number))
        )
        row = connection.execute(query).first()
        if row is None:
            raise LedgerError(f"there is no promise {number} in the ledger; promises() lists all")
        terms = Archive(connection).terms(row.terms)
        state = _state(row.closing, row.expires, day)
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

    def history(self, promise: int | None = None) -> list[Entry]:
        """Everything that happened, or all of it to one promise, in order."""
        query = sa.select(tables.entries).order_by(tables.entries.c.seq)
        if promise is not None:
            query = query.where(tables.entries.c.promise == int(promise))
        with self._database.read() as connection:
            return [Entry(*row) for row in connection.execute(query)]

    def open_promises(self, as_of: datetime.date | str | None = None) -> Iterator[OpenPromises]:
        """All open promises, in groups of the same terms and of bounded size."""
        with self._database.read() as connection:
            yield from self._open(connection, Archive(connection), _day(as_of, None))

    def _open(
        self, connection: sa.Connection, archive: Archive, day: str | None
    ) -> Iterator[OpenPromises]:
        p, own = tables.promises.c, tables.personal.c
        query = (
            sa.select(p.terms, p.id, own.point, own.low, own.high)
            .join_from(tables.promises, tables.personal, own.entry == p.id)
            .where(_is_open(day))
            .order_by(p.terms, p.id)
            .execution_options(yield_per=_CHUNK)
        )
        for part in connection.execute(query).partitions(_CHUNK):
            start = 0
            for n in range(1, len(part) + 1):
                if n == len(part) or part[n].terms != part[start].terms:
                    yield _group(archive, part[start:n])
                    start = n

    # -- what becomes of promises ----------------------------------------------------------------

    def withdraw(self, promise: int, reason: str) -> None:
        """Take a promise back; the reason stays in the ledger for good (no personal data in it)."""
        with self._database.write(self._actor) as writer:
            found = self._promise(writer.connection, promise, writer.time[:10])
            self._check_open(found)
            if re.search(rf"(?<!\w){re.escape(found.person or '')}(?!\w)", reason):
                raise LedgerError(
                    "the reason names the person, and it stays when the person is erased; say it "
                    "without the id"
                )
            writer.append("withdrawn", {"reason": reason}, int(promise))

    def erase(self, person: object) -> tuple[int, ...]:
        """Erase all that is known about a person, for good: promises, answers, certificates, their id.

        What stays is that there were promises, when, and on which terms. The chain holds as before. The
        database writes its files anew, so that none of the bytes are left in them; its backups are
        yours to care for, and so is the archive of PostgreSQL's write-ahead log. A call that was
        interrupted, or that found the files in use, is to be repeated.

        Returns
        -------
            The numbers of the promises that were theirs; empty where the person is not known.
        """
        own, who = tables.personal.c, person_id(person)
        with self._database.write(self._actor) as writer:
            found = writer.connection.execute(
                sa.select(own.entry, tables.entries.c.promise)
                .join_from(tables.personal, tables.entries, own.entry == tables.entries.c.seq)
                .where(own.person == who)
                .order_by(own.entry)
            ).all()
            theirs: dict[int, list[int]] = {}
            for entry, number in found:
                theirs.setdefault(number, []).append(entry)
            for number, entries in theirs.items():
                writer.append("erased", {"entries": entries}, number)
            writer.connection.execute(tables.personal.delete().where(own.person == who))
        self._database.forget()
        return tuple(theirs)

    def verify(self, head: Head | str | None = None) -> Verification:
        """Look whether everything is as it was written.

        Parameters
        ----------
        head
            A head of the chain that was kept elsewhere: entries up to it must be the same today.
        """
        expected = Head.parse(head) if isinstance(head, str) else head
        with self._database.read() as connection:
            return Verifier(connection, expected).verify()

    def _check_open(self, promise: Promise) -> None:
        if promise.state != "open":
            raise LedgerError(f"promise {promise.id} is {promise.state}, no longer open")


# -- questions to the tables -----------------------------------------------------------------------

_HEAD = sa.select(tables.head.c.entries, tables.head.c.hash)


def _closing() -> Any:
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


def _is_open(day: str | None) -> Any:
    """Whether a promise is neither closed nor expired on a day."""
    e, expires = tables.entries.c, tables.promises.c.expires
    closed = sa.exists().where(e.promise == tables.promises.c.id, e.kind.in_(CLOSING))
    return sa.and_(~closed, sa.or_(expires.is_(None), expires >= day))


def _state(closing: str | None, expires: str | None, day: str | None) -> State:
    if closing is not None:
        return closing  # type: ignore[return-value]
    return "expired" if expires is not None and day is not None and expires < day else "open"


def _group(archive: Archive, rows: Sequence[Any]) -> OpenPromises:
    points, low, high = (
        np.frombuffer(
            b"".join(getattr(row, end) or row.point for row in rows), dtype="<f8"
        ).reshape(len(rows), -1)
        for end in ("point", "low", "high")
    )
    ids = np.array([row.id for row in rows], dtype=np.int64)
    return OpenPromises(archive.terms(rows[0].terms), ids, points, low, high)


def _day(given: datetime.date | str | None, issued: str | None) -> str | None:
    """Read a day. A last day must not be over when a promise is ``issued``; else None is today."""
    if given is None:
        return now()[:10] if issued is None else None
    try:
        date = given if isinstance(given, datetime.date) else datetime.date.fromisoformat(given)
        day = datetime.date(date.year, date.month, date.day).isoformat()  # there is none of pd.NaT
    except (TypeError, ValueError):
        raise LedgerError(f"{given!r} is no day; give one such as 2027-03-31") from None
    if issued is not None and day < issued[:10]:
        raise LedgerError(f"the last day {day} is over: today is {issued[:10]}; give a later one")
    return day
