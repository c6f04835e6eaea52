r"""The chain of a ledger: each entry is bound to all before it.

.. math::
    h_n = \mathrm{SHA256}\bigl(h_{n-1} \,\Vert\, \text{entry}_n\bigr), \qquad h_0 = 0 \ldots 0 .

A changed, removed or inserted entry changes the hashes of all later ones, up to the head. A head that
was stored elsewhere proves that no earlier entry was changed, even if all hashes were computed again.

Personal data is stored outside the chain. An entry holds a commitment,
:math:`\mathrm{SHA256}(\text{salt} \,\Vert\, \text{data})` with 256 random bits of salt. Once data and
salt are erased, the commitment reveals nothing about the person, and the chain stays valid.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from proplace.certification import canonical
from proplace.core.errors import LedgerError
from proplace.ledger import tables
from proplace.ledger.tables import FORMAT, PARAMETERS, layout_problems, sa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


KINDS = (
    "opened",
    "document",
    "issued",
    "renewed",
    "redeemed",
    "attempted",
    "withdrawn",
    "erased",
    "audited",
    "approved",
    "rejected",
    "model_set",
)
"""Kinds of entries."""

START = "0" * 64
"""The hash before the first entry."""

_SALT = 32


class Entry(NamedTuple):
    """One event.

    Attributes
    ----------
    seq
        Its number, from 1 on.
    time
        Time in UTC.
    kind
        One of :data:`KINDS`.
    promise
        Number of its promise. None if it concerns no promise.
    body
        The facts, as canonical JSON.
    hash
        Hash of the other fields and of the previous hash.
    """

    seq: int
    time: str
    kind: str
    promise: int | None
    body: str
    hash: str

    @property
    def facts(self) -> dict[str, Any]:
        """The facts in the body."""
        facts: dict[str, Any] = json.loads(self.body)
        return facts

    @classmethod
    def after(
        cls, head: Head, time: str, kind: str, promise: int | None, body: dict[str, Any]
    ) -> Entry:
        """Return the entry after a head."""
        entry = cls(head.entries + 1, time, kind, promise, canonical(body), "")
        return entry._replace(hash=entry.expected(head.hash))

    def expected(self, previous: str) -> str:
        """Return the hash of this entry after a previous hash."""
        content = json.dumps([self.seq, self.time, self.kind, self.promise, self.body])
        return hashlib.sha256(f"{previous}\n{content}".encode()).hexdigest()


class Head(NamedTuple):
    """The end of a chain: the number of entries, and the last hash.

    A head that is stored outside of the ledger (on paper, in a mail, in another system) cannot be
    rewritten with it.
    """

    entries: int
    hash: str

    def __str__(self) -> str:
        """Return ``entries:hash``, as :meth:`parse` reads it."""
        return f"{self.entries}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read the text of a head."""
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip().lower())
        if found is None:
            raise LedgerError(
                f"{text[:80]!r} is no head of a ledger: the number of entries, a colon and 64 "
                "hexadecimal digits, as str(ledger.head) writes it",
                name="head",
                value=text,
            )
        return cls(int(found[1]), found[2])


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def new_salt() -> bytes:
    """Return random bytes that hide the data of a commitment."""
    return secrets.token_bytes(_SALT)


def commitment(salt: bytes, parts: Iterable[bytes | None]) -> str:
    """Bind the parts of some data, their lengths and contents, without revealing them.

    All salts have one length, so bytes cannot move between salt and data.
    """
    if len(salt) != _SALT:
        raise LedgerError(f"a salt has {_SALT} bytes, not {len(salt)}", name="salt")
    sha = hashlib.sha256(salt)
    for part in parts:
        sha.update(b"-" if part is None else f"{len(part)}:".encode() + part)
    return sha.hexdigest()


# -- verification ----------------------------------------------------------------------------------


_CHUNK = 2_000  # entries in memory at once
_LARGE = 200  # rows with certificates in memory at once
_TYPES: dict[Any, str] = {  # as SQLite names them
    sa.Integer: "integer",
    sa.BigInteger: "integer",
    sa.Double: "real",
    sa.Text: "text",
    sa.LargeBinary: "blob",
}
_MOST = 100  # problems that are listed


@dataclass
class Verification:
    """The result of a verification of the whole ledger.

    Attributes
    ----------
    head
        The end of the chain.
    entries, promises, erased
        Numbers of entries, of promises, and of promises with erased personal data.
    problems
        Descriptions of the first 100 problems.
    problem_count
        Number of all problems.
    """

    head: Head
    entries: int = 0
    promises: int = 0
    erased: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0

    @property
    def valid(self) -> bool:
        """True if no entry was changed."""
        return not self.problem_count

    def add(self, problem: str) -> None:
        """Add a problem."""
        self.problem_count += 1
        if self.problem_count <= _MOST:
            self.problems.append(problem)

    def __str__(self) -> str:
        """Return the result in a few lines."""
        counts = f"{self.entries:,} entries, {self.promises:,} promises"
        if self.erased:
            counts += f" ({self.erased:,} erased)"
        if self.valid:
            return f"the ledger is as it was written: {counts}; head {self.head}"
        more = self.problem_count - len(self.problems)
        lines = [f"the ledger is NOT as it was written: {counts}", *self.problems]
        return "\n".join([*lines, *([f"and {more:,} more"] if more else [])])


class Verifier:
    """Reads a ledger once, in chunks. Memory does not grow with the number of promises."""

    def __init__(self, connection: sa.Connection, expected: Head | None) -> None:
        self._connection, self._expected = connection, expected
        self._documents: dict[str, str] = {}  # kinds by digest
        self._gone: set[int] = set()  # entries without their personal data
        self._erased: set[int] = set()
        self._version: object = None  # of the first entry

    def verify(self, *, layout: bool = True) -> Verification:
        """Check everything, and the ``layout`` of the tables."""
        found, readable = Verification(Head(0, START)), True
        for problem, fatal in layout_problems(self._connection) if layout else ():
            found.add(problem)
            readable &= not fatal
        if readable and self._connection.dialect.name == "sqlite":
            before = found.problem_count
            self._file(found)
            readable = found.problem_count == before
        if readable:
            self._head(found)
            self._chain(found)
            self._meta(found)
            self._check_orphans(found)
            self._check_documents(found)
            self._check_erasures(found)
        return found

    def _file(self, found: Verification) -> None:
        """Check the file of SQLite, whose cells may hold values of any type."""
        for (line,) in self._connection.execute(sa.text("PRAGMA integrity_check(10)")):
            if line != "ok":
                found.add(f"the file is damaged: {line}")
        for table in tables.metadata.tables.values():
            wrong = [
                sa.func.typeof(column).not_in([_TYPES[type(column.type)], *_none(column)])
                for column in table.columns
            ]
            query = sa.select(sa.func.count()).select_from(table).where(sa.or_(*wrong))
            if count := self._connection.execute(query).scalar():
                found.add(f"{count} rows of {table.name} hold values of another type")

    # -- the chain -------------------------------------------------------------------------------

    def _head(self, found: Verification) -> None:
        rows = self._connection.execute(sa.select(tables.head)).all()
        if [row.id for row in rows] != [1]:
            found.add(f"the ledger must have one head, of number 1. It has {len(rows)}")
        if rows:
            found.head = Head(rows[0].entries, rows[0].hash)

    def _chain(self, found: Verification) -> None:
        previous, seq = START, 0
        met = self._expected is None or self._expected == (0, START)
        for chunk in _chunks(self._stream(sa.select(tables.entries).order_by("seq"), _CHUNK)):
            begin, entries = seq + 1, [Entry(*row) for row in chunk]
            for entry in entries:
                seq += 1
                if entry.seq != seq:
                    found.add(f"entry {seq} is missing; {entry.seq} follows")
                    seq = entry.seq
                if entry.hash != entry.expected(previous):
                    found.add(
                        f"entry {entry.seq} ({entry.kind}) was changed, or one before it is gone"
                    )
                previous = entry.hash
                met = met or self._expected == (entry.seq, entry.hash)
                found.entries += 1
                self._entry(found, entry)
            self._promises(found, entries, begin)
            self._personal(found, entries, begin)
        if (seq, previous) != found.head:
            found.add(
                f"the chain ends at entry {seq}, but the head is that of {found.head.entries}"
            )
        if not met:
            found.add(
                f"the head {self._expected} is not in the chain: entries up to it were written anew or "
                "removed"
            )

    def _entry(self, found: Verification, entry: Entry) -> None:
        """Collect the documents, erasures and audits that an entry names."""
        facts = _facts(entry)
        if entry.kind == "opened":
            if entry.seq != 1:
                found.add(f"entry {entry.seq} opens the ledger, and only the first entry may")
            self._version = facts.get("version")
        elif entry.kind == "document":
            self._documents[str(facts.get("digest"))] = str(facts.get("kind"))
        elif entry.kind == "erased":
            named = facts.get("entries", ())
            named = named if isinstance(named, list) else ()
            self._erased |= {n for n in named if isinstance(n, int)}
            found.erased += entry.promise is not None
        elif entry.kind == "audited":
            self._verdicts(found, entry, facts)

    def _meta(self, found: Verification) -> None:
        there = {row.name: row.value for row in self._connection.execute(sa.select(tables.meta))}
        if there != {"format": FORMAT, "version": str(self._version)}:
            found.add(f"the table meta is not what was written: {there}")

    # -- beside the chain -------------------------------------------------------------------------

    def _promises(self, found: Verification, entries: list[Entry], begin: int) -> None:
        """Compare promises with the entries that issued them."""
        table = tables.promises
        between = table.c.id.between(begin, entries[-1].seq)
        rows: dict[int, Any] = {}
        for row in self._connection.execute(sa.select(table).where(between)):
            if row.id in rows:
                found.add(f"promise {row.id} is there twice")
            rows[row.id] = row
        for entry in entries:
            if entry.kind == "issued":
                found.promises += 1
                facts, row = _facts(entry), rows.pop(entry.seq, None)
                fields = ("terms", "issued", "expires", "commitment")
                if row is None or any(getattr(row, name) != facts.get(name) for name in fields):
                    found.add(f"promise {entry.seq} is missing, or is not what was issued")
        for number in rows:
            found.add(f"promise {number} was never issued")

    def _personal(self, found: Verification, entries: list[Entry], begin: int) -> None:
        """Compare personal data with its commitments. It may have been erased since."""
        hidden = {
            entry.seq: facts["commitment"]
            for entry in entries
            if "commitment" in (facts := _facts(entry))
        }
        table = tables.personal
        between = table.c.entry.between(begin, entries[-1].seq)
        for row in self._stream(sa.select(table).where(between), _LARGE):
            committed = hidden.pop(row.entry, None)
            try:
                there = commitment(row.salt, personal_parts(row._mapping))
            except LedgerError:
                there = ""
            if committed is None or there != committed:
                found.add(f"the personal data of entry {row.entry} is not what was written")
        self._gone |= hidden.keys()

    def _verdicts(self, found: Verification, entry: Entry, facts: dict[str, Any]) -> None:
        table = tables.verdicts
        query = sa.select(table).where(table.c.audit == entry.seq).order_by(table.c.promise)
        if verdicts_digest(self._stream(query, _CHUNK)) != facts.get("verdicts"):
            found.add(f"the verdicts of the audit {entry.seq} are not those that were written")

    def _check_orphans(self, found: Verification) -> None:
        """Find rows without an entry in the chain."""
        e = tables.entries.c
        audits = sa.select(e.seq).where(e.kind == "audited")
        last = sa.select(sa.func.coalesce(sa.func.max(e.seq), 0)).scalar_subquery()
        p, own = tables.promises.c.id, tables.personal.c.entry
        for what, stray in (
            ("verdicts belong to no audit", tables.verdicts.c.audit.not_in(audits)),
            ("promises were never issued", sa.or_(p < 1, p > last)),
            ("rows of personal data belong to no entry", sa.or_(own < 1, own > last)),
        ):
            if count := self._connection.execute(sa.select(sa.func.count()).where(stray)).scalar():
                found.add(f"{count} {what}")

    def _check_documents(self, found: Verification) -> None:
        """Compare the documents with their digests."""
        missing = dict(self._documents)
        for row in self._stream(sa.select(tables.documents), 1):
            missing.pop(row.digest, None)
            if sha256(row.content) != row.digest or self._documents.get(row.digest) != row.kind:
                found.add(f"the {row.kind} {row.digest[:12]}... is not what was written")
        for digest, kind in missing.items():
            found.add(f"the {kind} {digest[:12]}... is missing")

    def _check_erasures(self, found: Verification) -> None:
        """Compare missing personal data with the erasures."""
        for entry in sorted(self._gone - self._erased):
            found.add(f"the personal data of entry {entry} is gone, and was never erased")
        erased = sorted(self._erased)
        own = tables.personal.c.entry
        for start in range(0, len(erased), PARAMETERS):
            part = erased[start : start + PARAMETERS]
            for (entry,) in self._connection.execute(sa.select(own).where(own.in_(part))):
                found.add(f"the personal data of entry {entry} is there, although it was erased")

    def _stream(self, query: Any, size: int) -> Iterator[Any]:
        return iter(self._connection.execute(query.execution_options(yield_per=size)))


def _facts(entry: Entry) -> dict[str, Any]:
    """Return the facts of an entry, or none if its body is not a JSON object."""
    try:
        facts = entry.facts
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _none(column: sa.Column[Any]) -> list[str]:
    return ["null"] if column.nullable else []


def verdicts_digest(rows: Iterable[Any]) -> str:
    """Return the digest of the verdicts of one audit, in the order of the promises.

    A database does not change it: SQLite stores -0.0 as 0.0 and NaN as NULL.
    """
    sha = hashlib.sha256()
    for row in rows:
        given = row.margin
        margin = None if given is None or math.isnan(given) else float(given) + 0.0
        sha.update(f"{json.dumps([int(row.promise), str(row.verdict), margin])}\n".encode())
    return sha.hexdigest()


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def personal_parts(row: Mapping[str, Any]) -> tuple[bytes | None, ...]:
    """Return the fields of a row of personal data that its commitment binds."""
    texts = [str(row[name]).encode() for name in ("person", "facts")]
    blobs = [row[name] for name in ("point", "low", "high", "certificate")]
    return (*texts, *(None if blob is None else bytes(blob) for blob in blobs))
