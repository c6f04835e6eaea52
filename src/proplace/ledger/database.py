"""The database of a ledger: connections, transactions that append to the chain, and versions.

SQLite by default. Writers take turns: a transaction that appends holds the one lock of the ledger from
its first statement (``BEGIN IMMEDIATE`` in SQLite, the row of the head in PostgreSQL), so two entries
never follow the same one. A transaction is stored as a whole or not at all, even if the process or the
machine stops in the middle of it.

The identity of a ledger is in its first entry. If its file is moved, replaced or deleted while it is
open, every operation raises an error. The file is never created again, and no other one is read.
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


_WAIT = 120_000  # milliseconds of waiting for other writers
_LOCK = 7_116_020_017  # held while tables are created in PostgreSQL
_ROWS = 500  # rows in one statement


class Database:
    """The open database of a ledger.

    Parameters
    ----------
    place
        Path of a SQLite file, or a URL such as ``postgresql://user@host/name``.
    create
        Create the ledger if it is missing.
    """

    def __init__(self, place: str | os.PathLike[str], *, create: bool = True) -> None:
        url = _url(place)
        self.name = url.render_as_string(hide_password=True)
        path = None if url.database is None else Path(url.database)
        if url.get_backend_name() == "sqlite" and path is not None:
            self.name = str(path)
            if not create and not path.is_file():
                raise LedgerError(
                    f"{path}: there is no ledger. Create one with proplace ledger issue, or with "
                    "Ledger(...)",
                    name=self.name,
                )
            if not path.parent.is_dir():
                raise LedgerError(
                    f"{path}: there is no folder {path.parent}. Create it first", name=self.name
                )
            if "uri" not in url.query:
                _make_private(path)
                url = _existing(path)
        self._path = path
        self.engine = sa.create_engine(url, **_options(url))
        sa.event.listen(self.engine, "connect", _set_up if self.is_sqlite else _set_up_postgresql)
        if self.is_sqlite:
            sa.event.listen(self.engine, "begin", _begin)
        try:
            self._prepare(create=create)
            self._file = self._file_now()
            self.identity = self._identity_now()
        except sa.exc.DBAPIError as error:
            self.engine.dispose()
            raise LedgerError(
                f"{self.name}: cannot be opened as a ledger ({_message(error)})", name=self.name
            ) from None
        except LedgerError:
            self.engine.dispose()
            raise

    identity: str
    """Identifier in the first entry, the same for every copy of the file."""

    @property
    def is_sqlite(self) -> bool:
        """True if it is a SQLite file."""
        return self.engine.dialect.name == "sqlite"

    def vacuum(self) -> None:
        """Rewrite the files of the database without the bytes of deleted rows.

        PostgreSQL keeps these bytes. SQLite sometimes does, despite ``secure_delete`` and in its
        write-ahead log.
        """
        with self._translated_errors():
            undone = self._rewrite_sqlite() if self.is_sqlite else self._rewrite_postgresql()
        if undone:
            raise LedgerError(
                f"{self.name}: erased from the ledger, but bytes of it are left in the files: {undone}",
                name=self.name,
            )

    def _rewrite_sqlite(self) -> str:
        with self.engine.connect() as connection:
            cursor = connection.connection.cursor()  # outside of a transaction
            try:
                cursor.execute("VACUUM")
                busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                cursor.close()
        advice = "another connection still reads an earlier state; erase again when it is closed"
        return advice if busy else ""

    def _rewrite_postgresql(self) -> str:
        with self.engine.connect() as opened:
            connection = opened.execution_options(isolation_level="AUTOCOMMIT")
            place = sa.text("SELECT pg_relation_filenode('personal')")
            before = connection.execute(place).scalar()
            connection.exec_driver_sql("VACUUM FULL personal")
            same = connection.execute(place).scalar() == before
        advice = "only the owner of the table may rewrite it. Let them run VACUUM FULL personal"
        return advice if same else ""

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    # -- transactions ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Read one state of the ledger while others may write."""
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._transaction(**options) as connection:
            self._check_identity(connection)
            yield connection

    @contextlib.contextmanager
    def write(self, actor: str | None = None) -> Iterator[Writer]:
        """Append entries with their rows: all of them, or none if an error occurs."""
        with self._transaction(proplace_writes=True) as connection:
            head = locked_head(connection)
            self._check_version(connection)  # it may have been replaced since it was opened
            self._check_identity(connection)
            writer = Writer(connection, head, actor)
            yield writer
            writer.flush()

    @contextlib.contextmanager
    def _transaction(self, **options: Any) -> Iterator[sa.Connection]:
        # A connection to another file would leave its write-ahead log beside the ledger.
        self._check_file()
        with self._translated_errors(), self.engine.connect() as opened:
            connection = opened.execution_options(**options)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise LedgerError(f"{self.name}: {_message(error)}", name=self.name) from error

    # -- identity --------------------------------------------------------------------------------

    def _check_file(self) -> None:
        """Raise if the file is not the one that was opened."""
        if self._file_now() != self._file:
            raise LedgerError(
                f"{self.name}: the file was moved or replaced while it was open. Put it back, or open "
                "the ledger at its new place",
                name=self.name,
            )

    def _check_identity(self, connection: sa.Connection) -> None:
        """Raise if the file, or the ledger in it, is not the one that was opened."""
        self._check_file()
        if _identity(connection) != self.identity:
            raise LedgerError(
                f"{self.name}: holds another ledger than the one that was opened. Put that one back, "
                "or open this one again",
                name=self.name,
            )

    def _file_now(self) -> tuple[int, int] | None:
        """Return device and number of the file. None if it is missing, and for PostgreSQL."""
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
        """Raise if the database holds tables of another program."""
        found = set(sa.inspect(connection).get_table_names())
        if found if self.is_sqlite else found & set(tables.metadata.tables):
            raise LedgerError(
                f"{self.name}: holds other tables ({', '.join(sorted(found)[:3])}), not a ledger. Give "
                "another file or database",
                name=self.name,
            )

    def _check_version(self, connection: sa.Connection) -> None:
        """Raise unless it is a ledger of this version."""
        try:
            found = {row.name: row.value for row in connection.execute(sa.select(tables.meta))}
        except sa.exc.DBAPIError:
            found = {}
        if found.get("format") != FORMAT:
            raise LedgerError(
                f"{self.name}: is not a ledger of promises. Give the file of one", name=self.name
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

    Rows are collected until :meth:`flush`, which the transaction calls at its end.
    """

    def __init__(self, connection: sa.Connection, head: Head, actor: str | None) -> None:
        self.connection, self.head, self._actor, self._time = connection, head, actor, now()
        self._rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def time(self) -> str:
        """Start of the transaction."""
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
        """Add a row that an entry names."""
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= _ROWS:
            self._insert(table)

    def store_documents(self, documents: Iterable[Document]) -> None:
        """Store documents that the ledger does not hold yet."""
        column = tables.documents.c.digest
        for one in documents:
            self._insert("documents")
            if self.connection.execute(sa.select(column).where(column == one.digest)).first():
                continue
            self.append("document", {"digest": one.digest, "kind": one.kind})
            self.add("documents", {"digest": one.digest, **one._asdict()})

    def flush(self) -> None:
        """Write all rows and the new head."""
        for table in list(self._rows):
            self._insert(table)
        self.connection.execute(tables.head.update().values(**self.head._asdict()))

    def _insert(self, table: str) -> None:
        rows = self._rows.pop(table, None)
        if rows:
            self.connection.execute(tables.metadata.tables[table].insert(), rows)


def locked_head(connection: sa.Connection) -> Head:
    """Return the end of the chain, locked until the transaction ends."""
    found = connection.execute(sa.select(tables.head).with_for_update()).all()
    if len(found) != 1:
        raise TamperedError(
            f"the ledger has {len(found)} heads instead of one, so it was changed by hand. Restore a "
            "backup"
        )
    return Head(found[0].entries, found[0].hash)


def _create(connection: sa.Connection) -> None:
    """Create an empty ledger."""
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
            f"a ledger is a SQLite file or a PostgreSQL database, not {scheme}://. Give a path such "
            "as promises.db, or postgresql://user@host/name",
            name="place",
            value=text,
        )
    if url.get_backend_name() == "postgresql":
        require("psycopg", "ledger", "a ledger in PostgreSQL")
        return url.set(drivername="postgresql+psycopg")
    if url.database in (None, "", ":memory:"):
        raise LedgerError(
            "a ledger cannot be in memory. Give a path such as promises.db",
            name="place",
            value=text,
        )
    return url


def _existing(path: Path) -> sa.URL:
    """Return the address of a file that SQLite opens and never creates."""
    return sa.URL.create(
        "sqlite", database=f"{path.absolute().as_uri()}?mode=rw", query={"uri": "true"}
    )


def _identity(connection: sa.Connection) -> str:
    """Read the identity of a ledger. It is empty if the first entry was removed or changed."""
    e = tables.entries.c
    body = connection.execute(sa.select(e.body).where(e.seq == 1)).scalar()
    try:
        return str(json.loads(str(body))["ledger"])
    except (ValueError, KeyError, TypeError):
        return ""


def _make_private(path: Path) -> None:
    """Create a missing file for its owner alone. Its write-ahead log gets the same rights."""
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
    """Set up SQLite: explicit transactions, safe against power cuts, deleted bytes overwritten."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout = {_WAIT}", "synchronous = FULL", "secure_delete = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _write_ahead(cursor)
    cursor.close()


def _set_up_postgresql(connection: Any, _: object) -> None:
    """Set up PostgreSQL: compilation of a query takes longer than a page of promises."""
    with connection.cursor() as cursor:
        cursor.execute("SET jit = off")
    connection.commit()


def _write_ahead(cursor: Any) -> None:
    """Let readers and a writer work at once. Only one connection at a time can set this mode."""
    end = time.monotonic() + _WAIT / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:  # SQLite does not wait here
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("proplace_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _message(error: sa.exc.DBAPIError) -> str:
    """Return the message of the database on one line."""
    return json.dumps(str(error.orig))[1:-1].split("\\n")[0]
