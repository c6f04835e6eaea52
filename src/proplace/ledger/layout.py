"""Whether the tables of a ledger are those that it was made with: nothing more, less or other.

A table in the place of another, a view, one more row for a key that should be there once, a trigger that
was dropped: all of this shows in how the database is laid out, before any row is read.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from proplace.ledger import tables
from proplace.ledger.tables import sa

if TYPE_CHECKING:
    from collections.abc import Iterator

_MASTER = r"SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'"


def layout_problems(connection: sa.Connection) -> Iterator[tuple[str, bool]]:
    """What is laid out in another way than a ledger is, and whether rows cannot be read for that."""
    if connection.dialect.name == "sqlite":
        there, wanted = _sqlite(connection), _fresh()
        for kind, name in sorted(wanted.keys() - there.keys()):
            yield f"the {kind} {name} of the database is missing", kind == "table"
        for kind, name in sorted(there.keys() - wanted.keys()):
            yield f"the database has a {kind} {name}, which is no part of a ledger", False
        for kind, name in sorted(there.keys() & wanted.keys()):
            if there[kind, name] != wanted[kind, name]:
                yield (
                    f"the {kind} {name} of the database is not the one that was made",
                    kind == "table",
                )
        return
    yield from _postgresql(connection)


def _sqlite(connection: sa.Connection) -> dict[tuple[str, str], str]:
    rows = connection.execute(sa.text(_MASTER))
    return {(row.type, row.name): _normal(row.sql) for row in rows}


@functools.cache
def _fresh() -> dict[tuple[str, str], str]:
    """The layout of a ledger that was just made."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        found = _sqlite(connection)
    engine.dispose()
    return found


def _normal(sql: str | None) -> str:
    return re.sub(r"[\s\"]+", " ", sql or "").strip()


def _postgresql(connection: sa.Connection) -> Iterator[tuple[str, bool]]:
    """Tables with their columns and keys, and the triggers that keep rows as they are."""
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    for name, table in tables.metadata.tables.items():
        if name not in there:
            yield f"the table {name} of the database is missing", True
            continue
        columns = {column["name"] for column in inspector.get_columns(name)}
        if columns != {column.name for column in table.columns}:
            yield f"the table {name} of the database has other columns than were made", True
        key = set(inspector.get_pk_constraint(name)["constrained_columns"])
        if key != {column.name for column in table.primary_key.columns}:
            yield f"the table {name} of the database has lost its key", True
    wanted = {
        f"{name}_no_{action}"
        for name in (*tables.FOREVER, "personal")
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
