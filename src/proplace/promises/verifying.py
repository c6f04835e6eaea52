"""Whether everything in a ledger is as it was written.

The chain is computed anew from its first entry; then every row of the other tables must be the one that
its entry speaks of, and none may be missing or be there without an entry. Personal data may be gone
where an entry says that it was erased, and nowhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proplace.promises import tables
from proplace.promises.chain import START, Entry, Head, commitment, sha256
from proplace.promises.issuing import personal_parts
from proplace.promises.tables import sa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CHUNK = 2_000
_MOST = 100  # problems that are kept; more are counted


@dataclass
class Verification:
    """What a look at the whole ledger found.

    Attributes
    ----------
    head
        The end of the chain.
    entries, promises, erased
        How many entries and promises there are, and of how many promises the personal data was erased.
    problems
        What is not as it was written, in words; no more than 100 of them.
    found
        How many problems there are in all.
    """

    head: Head
    entries: int = 0
    promises: int = 0
    erased: int = 0
    problems: list[str] = field(default_factory=list)
    found: int = 0

    @property
    def good(self) -> bool:
        """Whether everything is as it was written."""
        return not self.found

    def add(self, problem: str) -> None:
        """Note a problem."""
        self.found += 1
        if self.found <= _MOST:
            self.problems.append(problem)

    def __str__(self) -> str:
        """What was found, in a few lines."""
        said = f"{self.entries:,} entries, {self.promises:,} promises"
        if self.erased:
            said += f" ({self.erased:,} erased)"
        if self.good:
            return f"the ledger is as it was written: {said}; head {self.head}"
        more = self.found - len(self.problems)
        lines = [f"the ledger is NOT as it was written: {said}", *self.problems]
        return "\n".join([*lines, *([f"and {more:,} more"] if more else [])])


class Verifier:
    """Goes through a ledger once."""

    def __init__(self, connection: sa.Connection, expected: Head | None) -> None:
        self._connection, self._expected = connection, expected
        self._hidden: dict[int, str] = {}  # commitments of entries with personal data
        self._erased: set[int] = set()

    def verify(self) -> Verification:
        """Look at everything."""
        entries, hashed = self._row(tables.head.c.entries, tables.head.c.hash)
        found = Verification(Head(entries, hashed))
        documents = self._chain(found)
        self._documents(found, documents)
        self._personal(found)
        self._stray_verdicts(found)
        return found

    # -- the chain -------------------------------------------------------------------------------

    def _chain(self, found: Verification) -> dict[str, str]:
        previous, seq, documents, met = START, 0, dict[str, str](), False
        for chunk in _chunks(self._stream(sa.select(tables.entries).order_by("seq"))):
            rows = self._promises([row for row in chunk if row.kind == "issued"])
            for row in chunk:
                entry = Entry(*row)
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
                self._entry(found, entry, rows, documents)
        if (seq, previous) != found.head:
            found.add(
                f"the chain ends at entry {seq}, but the head is that of {found.head.entries}"
            )
        if self._expected is not None and not met:
            found.add(
                f"the head {self._expected} is not in the chain: entries up to "
                f"{self._expected.entries} were written anew or removed"
            )
        there = self._row(sa.func.count(tables.promises.c.id))[0]
        if there != found.promises:
            found.add(f"{there} promises are in the table, {found.promises} in the chain")
        return documents

    def _entry(
        self,
        found: Verification,
        entry: Entry,
        rows: dict[int, Any],
        documents: dict[str, str],
    ) -> None:
        """Compare an entry with what it speaks of."""
        try:
            facts = entry.facts
        except ValueError:
            facts = {}
        if entry.kind == "document":
            documents[str(facts.get("digest"))] = str(facts.get("kind"))
        elif entry.kind == "issued":
            found.promises += 1
            row = rows.get(entry.seq)
            said = [facts.get(name) for name in ("terms", "issued", "expires", "commitment")]
            if row is None or [row.terms, row.issued, row.expires, row.commitment] != said:
                found.add(f"promise {entry.seq} is missing, or is not what was issued")
        elif entry.kind == "erased":
            self._erased |= {int(number) for number in facts.get("entries", ())}
            if entry.promise is not None:
                found.erased += 1
        elif entry.kind == "audited":
            self._verdicts(found, entry, facts)
        if "commitment" in facts:
            self._hidden[entry.seq] = str(facts["commitment"])

    def _promises(self, chunk: list[Any]) -> dict[int, Any]:
        if not chunk:
            return {}
        table = tables.promises
        between = table.c.id.between(chunk[0].seq, chunk[-1].seq)
        return {row.id: row for row in self._connection.execute(sa.select(table).where(between))}

    # -- what it speaks of -----------------------------------------------------------------------

    def _documents(self, found: Verification, said: dict[str, str]) -> None:
        there = set()
        for row in self._stream(sa.select(tables.documents)):
            there.add(row.digest)
            if sha256(row.content) != row.digest or said.get(row.digest) != row.kind:
                found.add(f"the {row.kind} {row.digest[:12]}... is not what was written")
        for digest in said.keys() - there:
            found.add(f"the {said[digest]} {digest[:12]}... is missing")

    def _personal(self, found: Verification) -> None:
        there = set()
        for row in self._stream(sa.select(tables.personal)):
            there.add(row.entry)
            said = self._hidden.get(row.entry)
            if row.entry in self._erased:
                found.add(f"the personal data of entry {row.entry} is there, though it was erased")
            elif said is None or commitment(row.salt, personal_parts(row._mapping)) != said:
                found.add(f"the personal data of entry {row.entry} is not what was written")
        for entry in self._hidden.keys() - there - self._erased:
            found.add(f"the personal data of entry {entry} is gone, and was never erased")

    def _verdicts(self, found: Verification, entry: Entry, facts: dict[str, Any]) -> None:
        table = tables.verdicts
        rows = self._stream(
            sa.select(table).where(table.c.audit == entry.seq).order_by(table.c.promise)
        )
        if verdicts_digest(rows) != facts.get("verdicts"):
            found.add(f"the verdicts of the audit {entry.seq} are not those that were written")

    def _stray_verdicts(self, found: Verification) -> None:
        audits = sa.select(tables.entries.c.seq).where(tables.entries.c.kind == "audited")
        stray = sa.select(sa.func.count()).where(tables.verdicts.c.audit.not_in(audits))
        if count := self._connection.execute(stray).scalar():
            found.add(f"{count} verdicts belong to no audit")

    def _stream(self, query: Any) -> Iterator[Any]:
        return iter(self._connection.execute(query.execution_options(yield_per=_CHUNK)))

    def _row(self, *columns: Any) -> Any:
        return self._connection.execute(sa.select(*columns)).one()


def verdicts_digest(rows: Iterable[Any]) -> str:
    """Digest of the verdicts of one audit, in the order of the promises."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(f"{row.promise} {row.verdict} {row.margin!r} {row.delta!r}\n".encode())
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
