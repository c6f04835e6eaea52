"""The tables of a ledger.

``entries`` is the hash chain, without personal data. Every row of another table is bound to an entry:
``documents`` (networks, shift sets, models, terms) by the digest of their content, ``promises`` field by
field, ``personal`` by a commitment (a salted digest, which reveals nothing once the salt is erased),
``verdicts`` by one digest per audit. ``head`` repeats the last entry.
"""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from proplace.core.errors import require

require("sqlalchemy", "ledger", "a ledger of promises")
import sqlalchemy as sa  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = "proplace-ledger"
VERSION = 5
PARAMETERS = 500
"""Largest number of values in one statement."""

__all__ = [
    "APPEND_ONLY",
    "FORMAT",
    "PARAMETERS",
    "VERSION",
    "documents",
    "entries",
    "head",
    "layout_problems",
    "meta",
    "metadata",
    "now",
    "personal",
    "promises",
    "sa",
    "verdicts",
]

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
head = sa.Table(
    "head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("entries", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("promise", sa.BigInteger),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Index("entries_of_promise", "promise", "kind"),
)
documents = sa.Table(
    "documents",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
promises = sa.Table(
    "promises",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("issued", sa.Text, nullable=False),
    sa.Column("expires", sa.Text),
    sa.Column("commitment", sa.Text, nullable=False),
    sa.Index("promises_by_terms", "terms", "id"),
    sa.Index("promises_by_expiry", "expires"),
)
personal = sa.Table(
    "personal",
    metadata,
    sa.Column("entry", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("person", sa.Text, nullable=False, index=True),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("point", sa.LargeBinary),
    sa.Column("low", sa.LargeBinary),
    sa.Column("high", sa.LargeBinary),
    sa.Column("certificate", sa.LargeBinary),
)
verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("audit", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("promise", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("margin", sa.Double),
)

APPEND_ONLY = ("entries", "documents", "promises", "verdicts")
"""Tables whose rows are never changed or deleted."""

_NO_STATISTICS = tuple(
    f"ALTER TABLE personal ALTER COLUMN {column.name} SET STATISTICS 0"
    for column in personal.columns
    if column.name != "entry"
)
"""Statements that keep personal values out of the statistics of PostgreSQL."""


def _guards() -> None:
    """Add triggers that reject changes. If they are removed, the chain still detects changes."""
    for name in (*APPEND_ONLY, "personal"):
        for action in ("UPDATE",) if name == "personal" else ("UPDATE", "DELETE"):
            trigger = f"{name}_no_{action.lower()}"
            text = f"rows of {name} are never changed: the ledger is append-only"
            sqlite = (
                f"CREATE TRIGGER {trigger} BEFORE {action} ON {name} "
                f"BEGIN SELECT RAISE(ABORT, '{text}'); END"
            )
            postgresql = (
                f"CREATE OR REPLACE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{text}'; END $$; "
                f"CREATE TRIGGER {trigger} BEFORE {action} ON {name} "
                f"FOR EACH ROW EXECUTE FUNCTION {trigger}()"
            )
            table = metadata.tables[name]
            for dialect, statement in (("sqlite", sqlite), ("postgresql", postgresql)):
                ddl = sa.DDL(statement).execute_if(dialect=dialect)  # type: ignore[no-untyped-call]
                sa.event.listen(table, "after_create", ddl)
    for statement in _NO_STATISTICS:
        ddl = sa.DDL(statement).execute_if(dialect="postgresql")  # type: ignore[no-untyped-call]
        sa.event.listen(personal, "after_create", ddl)


_guards()


# -- layout ----------------------------------------------------------------------------------------


_MASTER = r"SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'"


def layout_problems(connection: sa.Connection) -> Iterator[tuple[str, bool]]:
    """Iterate over differences from the layout of a ledger, and whether they make rows unreadable."""
    if connection.dialect.name == "sqlite":
        there, wanted = _sqlite(connection), _fresh()
        for kind, name in sorted(wanted.keys() - there.keys()):
            yield f"the {kind} {name} of the database is missing", kind == "table"
        for kind, name in sorted(there.keys() - wanted.keys()):
            yield f"the database has a {kind} {name}, which is not part of a ledger", False
        for kind, name in sorted(there.keys() & wanted.keys()):
            if there[kind, name] != wanted[kind, name]:
                yield (
                    f"the {kind} {name} of the database was changed",
                    kind == "table",
                )
        return
    yield from _postgresql(connection)


def _sqlite(connection: sa.Connection) -> dict[tuple[str, str], str]:
    rows = connection.execute(sa.text(_MASTER))
    return {(row.type, row.name): _normal(row.sql) for row in rows}


@functools.cache
def _fresh() -> dict[tuple[str, str], str]:
    """Return the layout of a new ledger."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        found = _sqlite(connection)
    engine.dispose()
    return found


def _normal(sql: str | None) -> str:
    return re.sub(r"[\s\"]+", " ", sql or "").strip()


def _postgresql(connection: sa.Connection) -> Iterator[tuple[str, bool]]:
    """Compare tables, columns, keys and triggers."""
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    for name, table in metadata.tables.items():
        if name not in there:
            yield f"the table {name} of the database is missing", True
            continue
        columns = {column["name"] for column in inspector.get_columns(name)}
        if columns != {column.name for column in table.columns}:
            yield f"the table {name} of the database has other columns", True
        key = set(inspector.get_pk_constraint(name)["constrained_columns"])
        if key != {column.name for column in table.primary_key.columns}:
            yield f"the table {name} of the database has lost its key", True
    wanted = {
        f"{name}_no_{action}"
        for name in (*APPEND_ONLY, "personal")
        for action in (("update",) if name == "personal" else ("update", "delete"))
    }
    rows = connection.execute(
        sa.text(
            "SELECT tgname FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid "
            "WHERE NOT tgisinternal AND tgenabled = 'O' "
            "AND relnamespace = current_schema()::regnamespace"
        )
    )
    for name in sorted(wanted - {row.tgname for row in rows}):
        yield f"the trigger {name} of the database is missing", False


# -- clock -----------------------------------------------------------------------------------------


def now() -> str:
    """Return this moment in UTC.

    ``SOURCE_DATE_EPOCH`` does not change it: a ledger records real times.
    """
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
