"""The database of a ledger: connections, transactions that append to the chain, and versions.

SQLite by default. Writers take turns: a transaction that appends holds the one lock of the ledger from
its first statement (``BEGIN IMMEDIATE`` in SQLite, the row of the head in PostgreSQL), so that no two
entries follow the same one. What is in a transaction is there as a whole or not at all, also after the
process or the machine was stopped in the middle of it.

A ledger is known by the identity that its first entry holds. A file that is moved, replaced or missing
while it is open is an error: it is never made anew, and nothing is read of another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proplace.core.errors import LedgerError, TamperedError, require
from proplace.ledger import tables
from proplace.ledger.chain import START, Entry, Head
from proplace.ledger.tables import FORMAT, VERSION, now, sa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proplace.ledger.terms import Document


_WAIT = 120_000  # milliseconds that a writer waits for the others
_LOCK = 7_116_020_017  # of those who create the tables of one PostgreSQL database at once
_ROWS = 500  # in one statement


class Database:
    """A ledger's database, opened.

    Parameters
    ----------
    place
        The path of a SQLite file, or a URL such as ``postgresql://user@host/name``.
    create
        Whether to make a new ledger where there is none.
    """

    def __init__(self, place: str | os.PathLike[str], *, create: bool = True) -> None:
        url = _url(place)
        self.name = url.render_as_string(hide_password=True)
        path = None if url.database is None else Path(url.database)
        if url.get_backend_name() == "sqlite" and path is not None:
            self.name = str(path)
            if not create and not path.is_file():
                raise LedgerError(
                    f"{path}: there is no ledger; proplace ledger issue, or "
                    "Ledger(...).issue(result) makes one",
                    name=self.name,
                )
            if not path.parent.is_dir():
                raise LedgerError(
                    f"{path}: there is no folder {path.parent}; make it first", name=self.name
                )
            if "uri" not in url.query:
                _make_private(path)
                url = _existing(path)
        self._path = path
        self.engine = sa.create_engine(url, **_options(url))
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _set_up)
            sa.event.listen(self.engine, "begin", _begin)
        try:
            self._prepare(create=create)
            self._file = self._file_now()
            self.identity = self._identity_now()
        except sa.exc.DBAPIError as error:
            self.engine.dispose()
            raise LedgerError(
                f"{self.name}: cannot be opened as a ledger ({_said(error)})", name=self.name
            ) from None
        except LedgerError:
            self.engine.dispose()
            raise

    identity: str
    """Name of the ledger in its first entry, wherever its file lies."""

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file."""
        return self.engine.dialect.name == "sqlite"

    def forget(self) -> None:
        """Have the database write its files anew, without the bytes of what was deleted.

        Databases leave them where rows stood that were moved or deleted: SQLite now and then in spite
        of ``secure_delete``, and in its write-ahead log, PostgreSQL always.
        """
        with self._failing():
            undone = self._rewrite_sqlite() if self.is_sqlite else self._rewrite_postgresql()
        if undone:
            raise LedgerError(
                f"{self.name}: erased from the ledger, but bytes of it are left in the files: {undone}",
                name=self.name,
            )

    def _rewrite_sqlite(self) -> str:
        with self.engine.connect() as connection:
            cursor = connection.connection.cursor()  # no transaction is begun for it
            try:
                cursor.execute("VACUUM")
                busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                cursor.close()
        told = "somebody still reads an earlier state; erase again when they are done"
        return told if busy else ""

    def _rewrite_postgresql(self) -> str:
        with self.engine.connect() as opened:
            connection = opened.execution_options(isolation_level="AUTOCOMMIT")
            place = sa.text("SELECT pg_relation_filenode('personal')")
            before = connection.execute(place).scalar()
            connection.exec_driver_sql("VACUUM FULL personal")
            same = connection.execute(place).scalar() == before
        told = "the owner of the table alone may rewrite it; have them run VACUUM FULL personal"
        return told if same else ""

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    # -- transactions ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One state of the ledger, whatever others write meanwhile."""
        with self._failing(), self.engine.connect() as opened:
            options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
            connection = opened.execution_options(**options)
            with connection.begin():
                self._check_identity(connection)
                yield connection

    @contextlib.contextmanager
    def write(self, actor: str | None = None) -> Iterator[Writer]:
        """Append entries, with what they speak of: all of them, or none where anything fails."""
        with self._failing(), self.engine.connect() as opened:
            connection = opened.execution_options(proplace_writes=True)
            with connection.begin():
                head = locked_head(connection)
                self._check_version(connection)  # others may have replaced it since it was opened
                self._check_identity(connection)
                writer = Writer(connection, head, actor)
                yield writer
                writer.flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise LedgerError(f"{self.name}: {_said(error)}", name=self.name) from error

    # -- identity --------------------------------------------------------------------------------

    def _check_identity(self, connection: sa.Connection) -> None:
        """Raise if the file, or the ledger in it, is not the one that was opened."""
        if self._file_now() != self._file:
            raise LedgerError(
                f"{self.name}: the file was moved or replaced while it was open; put it back, or open "
                "the ledger at its new place",
                name=self.name,
            )
        if _identity(connection) != self.identity:
            raise LedgerError(
                f"{self.name}: holds another ledger than the one that was opened; put that one back, "
                "or open this one anew",
                name=self.name,
            )

    def _file_now(self) -> tuple[int, int] | None:
        """Device and number of the file; None if it is missing, or in PostgreSQL."""
        if not self.is_sqlite or self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _identity_now(self) -> str:
        with self.engine.connect() as connection:
            return _identity(connection)

    # -- versions --------------------------------------------------------------------------------

    def _prepare(self, *, create: bool) -> None:
        with self.engine.connect() as connection:
            if not create or sa.inspect(connection).has_table("meta"):
                self._check_version(connection)
                return
        with self.engine.connect() as opened:
            connection = opened.execution_options(proplace_writes=True)
            with connection.begin():
                if not self.is_sqlite:
                    connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
                if sa.inspect(connection).has_table("meta"):  # another process was faster
                    self._check_version(connection)
                else:
                    self._check_empty(connection)
                    _create(connection)

    def _check_empty(self, connection: sa.Connection) -> None:
        """Refuse to put a ledger among the tables of something else."""
        found = set(sa.inspect(connection).get_table_names())
        if found if self.is_sqlite else found & set(tables.metadata.tables):
            raise LedgerError(
                f"{self.name}: holds other tables ({', '.join(sorted(found)[:3])}), and no ledger; give "
                "a file or a database of its own",
                name=self.name,
            )

    def _check_version(self, connection: sa.Connection) -> None:
        """Raise unless it is a ledger whose tables are of this version."""
        try:
            found = {row.name: row.value for row in connection.execute(sa.select(tables.meta))}
        except sa.exc.DBAPIError:
            found = {}
        if found.get("format") != FORMAT:
            raise LedgerError(
                f"{self.name}: is no ledger of promises; give the file of one", name=self.name
            )
        if found.get("version") != str(VERSION):
            raise LedgerError(
                f"{self.name}: was written by another version of proplace (tables of version "
                f"{found.get('version')}, this one reads {VERSION}). Use that version for it, or "
                "start a new ledger",
                name=self.name,
            )


class Writer:
    """A transaction that appends to the chain.

    Rows are kept until :meth:`flush`, which the transaction calls at its end.
    """

    def __init__(self, connection: sa.Connection, head: Head, actor: str | None) -> None:
        self.connection, self.head, self._actor, self._time = connection, head, actor, now()
        self._rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def time(self) -> str:
        """When the transaction began."""
        return self._time

    @property
    def next(self) -> int:
        """Number of the next entry."""
        return self.head.entries + 1

    def append(self, kind: str, body: dict[str, Any], promise: int | None = None) -> Entry:
        """Add an entry."""
        if self._actor is not None:
            body = {**body, "by": self._actor}
        entry = Entry.after(self.head, self._time, kind, promise, body)
        self.head = Head(entry.seq, entry.hash)
        self.add("entries", entry._asdict())
        return entry

    def add(self, table: str, row: dict[str, Any]) -> None:
        """Add a row that an entry speaks of."""
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= _ROWS:
            self._insert(table)

    def keep(self, documents: Iterable[Document]) -> None:
        """Keep documents, those that are not kept yet."""
        for one in documents:
            self._keep(one.digest, *one)

    def _keep(self, digest: str, kind: str, content: bytes) -> None:
        self._insert("documents")
        known = sa.select(tables.documents.c.digest).where(tables.documents.c.digest == digest)
        if self.connection.execute(known).first() is None:
            self.append("document", {"digest": digest, "kind": kind})
            self.add("documents", {"digest": digest, "kind": kind, "content": content})

    def flush(self) -> None:
        """Write all rows, and the new head."""
        for table in list(self._rows):
            self._insert(table)
        self.connection.execute(tables.head.update().values(**self.head._asdict()))

    def _insert(self, table: str) -> None:
        rows = self._rows.pop(table, None)
        if rows:
            self.connection.execute(tables.metadata.tables[table].insert(), rows)


def locked_head(connection: sa.Connection) -> Head:
    """The end of the chain; others wait until this transaction has appended to it."""
    found = connection.execute(sa.select(tables.head).with_for_update()).all()
    if len(found) != 1:
        raise TamperedError(
            f"the ledger has {len(found)} heads and not one: it was changed by hand; put back a copy "
            "from before"
        )
    return Head(found[0].entries, found[0].hash)


def _create(connection: sa.Connection) -> None:
    """Make an empty ledger."""
    tables.metadata.create_all(connection)
    rows = [{"name": "format", "value": FORMAT}, {"name": "version", "value": str(VERSION)}]
    connection.execute(tables.meta.insert(), rows)
    connection.execute(tables.head.insert(), {"id": 1, "entries": 0, "hash": START})
    writer = Writer(connection, Head(0, START), None)
    writer.append("opened", {"format": FORMAT, "version": VERSION, "ledger": uuid.uuid4().hex})
    writer.flush()


# -- places and connections ------------------------------------------------------------------------


def _url(place: str | os.PathLike[str]) -> sa.URL:
    """Read a path or a URL."""
    text = os.fspath(place)
    try:
        url = sa.make_url(text) if "://" in text else sa.URL.create("sqlite", database=text)
    except sa.exc.ArgumentError:
        url = None
    if url is None or url.get_backend_name() not in ("sqlite", "postgresql"):
        scheme = text.partition("://")[0]
        raise LedgerError(
            f"a ledger is a SQLite file or a PostgreSQL database, not {scheme}://...; give a path such "
            "as promises.db, or postgresql://user@host/name",
            name="place",
            value=text,
        )
    if url.get_backend_name() == "postgresql":
        require("psycopg", "ledger", "a ledger in PostgreSQL")
        return url.set(drivername="postgresql+psycopg")
    if url.database in (None, "", ":memory:"):
        raise LedgerError(
            "a ledger is kept, not held in memory; give a path such as promises.db",
            name="place",
            value=text,
        )
    return url


def _existing(path: Path) -> sa.URL:
    """Return the address of a file that SQLite opens and never makes."""
    return sa.URL.create(
        "sqlite", database=f"{path.absolute().as_uri()}?mode=rw", query={"uri": "true"}
    )


def _identity(connection: sa.Connection) -> str:
    """Read the identity of a ledger; empty if its first entry was removed or changed."""
    e = tables.entries.c
    body = connection.execute(sa.select(e.body).where(e.seq == 1)).scalar()
    try:
        return str(json.loads(str(body))["ledger"])
    except (ValueError, KeyError, TypeError):
        return ""


def _make_private(path: Path) -> None:
    """Make a file that is not there yet for its owner alone; its log of writes becomes the same."""
    if path.exists():
        return
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be opened as a ledger ({error.strerror})", name=str(path)
        ) from None


def _options(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": _WAIT / 1000}, "poolclass": sa.pool.QueuePool}
    return {"pool_pre_ping": True}


def _set_up(connection: Any, _: object) -> None:
    """Have SQLite leave transactions to us, survive a power cut, and overwrite what is erased."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout = {_WAIT}", "synchronous = FULL", "secure_delete = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _write_ahead(cursor)
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Have readers and a writer work side by side; of those who set this at once, one is let in."""
    end = time.monotonic() + _WAIT / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:  # here SQLite itself does not wait
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("proplace_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _said(error: sa.exc.DBAPIError) -> str:
    """What the database says, on one line."""
    return json.dumps(str(error.orig))[1:-1].split("\\n")[0]
