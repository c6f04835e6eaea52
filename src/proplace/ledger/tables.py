"""The tables of a ledger.

``entries`` is the chain: everything that ever happened, in order, each with a hash over itself and the
one before. It holds no personal data. The other tables hold what entries speak of, and every row of
theirs is bound to an entry by a digest: ``documents`` (networks, boxes, models, terms) by what they
contain, ``promises`` field by field, ``personal`` by a commitment (a salted digest, so that nothing can
be guessed from it once the salt is erased), ``verdicts`` by one digest for each audit. ``head`` is the
last entry once more.
"""

from __future__ import annotations

from proplace.core.errors import require

require("sqlalchemy", "ledger", "a ledger of promises")
import sqlalchemy as sa  # noqa: E402

__all__ = [
    "FOREVER",
    "documents",
    "entries",
    "head",
    "meta",
    "metadata",
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

FOREVER = ("entries", "documents", "promises", "verdicts")
"""Tables whose rows are never changed and never deleted."""

_NO_STATISTICS = tuple(
    f"ALTER TABLE personal ALTER COLUMN {column.name} SET STATISTICS 0"
    for column in personal.columns
    if column.name != "entry"
)
"""Keeps PostgreSQL from copying values of people into its statistics, where nobody erases them."""


def _guards() -> None:
    """Have the database itself refuse changes; whoever removes these triggers is found by the chain."""
    for name in (*FOREVER, "personal"):
        for action in ("UPDATE",) if name == "personal" else ("UPDATE", "DELETE"):
            trigger = f"{name}_no_{action.lower()}"
            said = f"rows of {name} are never changed: the ledger is append-only"
            sqlite = (
                f"CREATE TRIGGER {trigger} BEFORE {action} ON {name} "
                f"BEGIN SELECT RAISE(ABORT, '{said}'); END"
            )
            postgresql = (
                f"CREATE OR REPLACE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{said}'; END $$; "
                f"CREATE TRIGGER {trigger} BEFORE {action} ON {name} "
                f"FOR EACH ROW EXECUTE FUNCTION {trigger}()"
            )
            table = metadata.tables[name]
            for dialect, text in (("sqlite", sqlite), ("postgresql", postgresql)):
                ddl = sa.DDL(text).execute_if(dialect=dialect)  # type: ignore[no-untyped-call]
                sa.event.listen(table, "after_create", ddl)
    for statement in _NO_STATISTICS:
        ddl = sa.DDL(statement).execute_if(dialect="postgresql")  # type: ignore[no-untyped-call]
        sa.event.listen(personal, "after_create", ddl)


_guards()
