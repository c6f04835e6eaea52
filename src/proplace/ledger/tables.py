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
VERSION = 6
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
    sa.Index("entries_of_kind", "kind", "promise"),
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
    sa.Index("promises_by_expiry", "expires", "id"),
)
personal = sa.Table(
    "personal",
    metadata,
    sa.Column("entry", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("person", sa.Text, nullable=False),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("point", sa.LargeBinary),
    sa.Column("low", sa.LargeBinary),
    sa.Column("high", sa.LargeBinary),
    sa.Column("certificate", sa.LargeBinary),
    sa.Index("personal_by_person", "person", "entry"),
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


def _triggers() -> Iterator[tuple[str, str, str, str]]:
    """Iterate over the triggers that reject changes: name, table, action and message."""
    for table in (*APPEND_ONLY, "personal"):
        for action in ("UPDATE",) if table == "personal" else ("UPDATE", "DELETE"):
            text = f"rows of {table} are never changed: the ledger is append-only"
            yield f"{table}_no_{action.lower()}", table, action, text


def _plpgsql(text: str) -> str:
    """Return the body of a function that rejects a change."""
    return f" BEGIN RAISE EXCEPTION '{text}'; END "


def _guards() -> None:
    """Add triggers that reject changes. If they are removed, the chain still detects changes."""
    for trigger, name, action, text in _triggers():
        sqlite = (
            f"CREATE TRIGGER {trigger} BEFORE {action} ON {name} "
            f"BEGIN SELECT RAISE(ABORT, '{text}'); END"
        )
        postgresql = (
            f"CREATE OR REPLACE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$${_plpgsql(text)}$$; "
            f"CREATE TRIGGER {trigger} BEFORE {action} ON {name} "
            f"FOR EACH ROW EXECUTE FUNCTION {trigger}()"
        )
        for dialect, statement in (("sqlite", sqlite), ("postgresql", postgresql)):
            ddl = sa.DDL(statement).execute_if(dialect=dialect)  # type: ignore[no-untyped-call]
            sa.event.listen(metadata.tables[name], "after_create", ddl)
    for statement in _NO_STATISTICS:
        ddl = sa.DDL(statement).execute_if(dialect="postgresql")  # type: ignore[no-untyped-call]
        sa.event.listen(personal, "after_create", ddl)


_guards()


# -- layout ----------------------------------------------------------------------------------------


Layout = dict[tuple[str, str], str]
"""Definitions by kind and name."""

# All but the indexes and the tables that SQLite adds by itself. A trigger may have any name.
_MASTER = r"""
    SELECT type, name, sql FROM sqlite_master
    WHERE sql IS NOT NULL AND NOT (type = 'table' AND name LIKE 'sqlite\_%' ESCAPE '\')
"""

_TRIGGERS = """
    SELECT tgname, relname, tgtype, tgenabled, tgattr, tgqual, lanname, prosrc
    FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
    JOIN pg_proc p ON p.oid = tgfoid JOIN pg_language l ON l.oid = prolang
    WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace
    AND relname = ANY(:tables)
"""
_ACTIONS = {"UPDATE": 1 + 2 + 16, "DELETE": 1 + 2 + 8}  # tgtype: for each row, before, action

_RULES = """
    SELECT rulename, tablename FROM pg_rules
    WHERE schemaname = current_schema() AND tablename = ANY(:tables)
"""


def layout_problems(connection: sa.Connection) -> Iterator[tuple[str, bool]]:
    """Iterate over differences from the layout of a ledger, and whether they make rows unreadable."""
    if connection.dialect.name == "sqlite":
        there, wanted = _sqlite(connection), _fresh()
    else:
        there, wanted = _postgresql(connection), _expected()
    for kind, name in sorted(wanted.keys() - there.keys()):
        yield f"the {kind} {name} of the database is missing", kind == "table"
    for kind, name in sorted(there.keys() - wanted.keys()):
        yield f"the {kind} {name} is not part of a ledger", False
    for kind, name in sorted(there.keys() & wanted.keys()):
        if there[kind, name] != wanted[kind, name]:
            yield f"the {kind} {name} of the database was changed", kind == "table"


def _sqlite(connection: sa.Connection) -> Layout:
    rows = connection.execute(sa.text(_MASTER))
    return {(row.type, row.name): _normal(row.sql) for row in rows}


@functools.cache
def _fresh() -> Layout:
    """Return the layout of a new ledger in SQLite."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        found = _sqlite(connection)
    engine.dispose()
    return found


def _normal(sql: str) -> str:
    return re.sub(r"[\s\"]+", " ", sql).strip()


def _postgresql(connection: sa.Connection) -> Layout:
    """Return everything of a ledger in PostgreSQL that guards its rows, or that could copy them."""
    inspector, found = sa.inspect(connection), Layout()
    names = sorted(set(inspector.get_table_names()) & set(metadata.tables))
    for name in names:
        columns = [(column["name"], column["default"]) for column in inspector.get_columns(name)]
        key = inspector.get_pk_constraint(name)["constrained_columns"]
        found["table", name] = f"{sorted(columns)}, key {sorted(key)}"
        for index in inspector.get_indexes(name):
            found["index", str(index["name"])] = f"{name} {index['column_names']}"
        for check in inspector.get_check_constraints(name):
            found["check", str(check["name"])] = name
    for row in connection.execute(sa.text(_TRIGGERS), {"tables": names}):
        at = "trigger", row.tgname
        found[at] = found.get(at, "") + str(tuple(row)[1:])  # another table may have the same name
    for row in connection.execute(sa.text(_RULES), {"tables": names}):
        found["rule", row.rulename] = row.tablename
    return found


def _expected() -> Layout:
    """Return the layout of a new ledger in PostgreSQL."""
    found = Layout()
    for name, table in metadata.tables.items():
        columns = [(column.name, None) for column in table.columns]
        key = [column.name for column in table.primary_key.columns]
        found["table", name] = f"{sorted(columns)}, key {sorted(key)}"
        for index in table.indexes:
            found["index", str(index.name)] = f"{name} {[column.name for column in index.columns]}"
    for trigger, name, action, text in _triggers():
        row = (name, _ACTIONS[action], "O", "", None, "plpgsql", _plpgsql(text))
        found["trigger", trigger] = str(row)
    return found


# -- clock -----------------------------------------------------------------------------------------


def now() -> str:
    """Return this moment in UTC.

    ``SOURCE_DATE_EPOCH`` does not change it: a ledger records real times.
    """
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
