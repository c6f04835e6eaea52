"""Ledgers of earlier versions are opened, brought to this one, verified and used.

``data/version-1.sql`` is the dump of a ledger that the first version wrote: promises to anna, bert
(renewed), carla (withdrawn), dora (with a tolerance) and emil (erased).
"""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

import proplace as pp
from proplace.core.errors import LedgerError
from proplace.promises import tables
from proplace.promises.database import _STEPS, VERSION, Database
from small_promises import LATER, answers

DATA = Path(__file__).parent / "data"
HEAD = "17:fcd72a462e96f2cbb97ab4f3fbc40513c395117fa8ae0f3f9d6f877049c4fce3"
"""The head that was kept when the dump was made."""


def restored(path):
    raw = sqlite3.connect(path)
    raw.executescript((DATA / "version-1.sql").read_text(encoding="utf-8"))
    raw.close()
    return path


def moved(path, place):
    """The same ledger in PostgreSQL, with the tables of version 1."""
    raw = sqlite3.connect(restored(path))
    raw.row_factory = sqlite3.Row
    engine = sa.create_engine(place.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        connection.exec_driver_sql("DROP INDEX promises_by_expiry")
        for statement in tables.NO_STATISTICS:
            connection.exec_driver_sql(statement.replace("STATISTICS 0", "STATISTICS -1"))
        for table in tables.metadata.tables.values():
            rows = [dict(row) for row in raw.execute(f"SELECT * FROM {table.name}")]
            if rows:
                connection.execute(table.insert(), rows)
    engine.dispose()
    raw.close()
    return place


@pytest.fixture
def old(place, tmp_path):
    """A ledger of version 1, in each of the databases."""
    if place.startswith("postgresql"):
        return moved(tmp_path / "old.db", place)
    return restored(place)


def test_the_dump_is_one_of_the_first_version(tmp_path):
    raw = sqlite3.connect(restored(tmp_path / "old.db"))
    assert raw.execute("SELECT value FROM meta WHERE name = 'version'").fetchone() == ("1",)
    names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
    raw.close()
    assert "promises_by_expiry" not in names
    assert "entries_no_update" in names


def test_it_is_opened_verified_and_used(old, boxed):
    with pp.Ledger(old, create=False) as ledger:
        assert ledger.verify(HEAD).good
        assert ledger.history()[-1].kind == "migrated"
        assert ledger.history()[-1].facts == {"from": 1, "to": VERSION}
        people = ledger.promises(as_of="2026-12-01")[["person", "state"]].to_numpy().tolist()
        assert [state for _, state in people] == [
            "open",
            "renewed",
            "withdrawn",
            "open",
            "erased",
            "open",
        ]
        assert [who for who, _ in people[:4]] == ["anna", "bert", "carla", "dora"]
        (number,) = ledger.promises(person="dora").index
        promise = ledger.promise(number)
        (models,) = promise.terms.sets
        box = (promise.low, promise.high)
        assert promise.certificate.check(models.net, models.shifts, box=box).accepted
        # The same answer, found again today, is the one that was promised then.
        again = ledger.issue(boxed[:1], ["dora"])
        assert again.new in ((), (ledger.head.entries,))
        ledger.issue(answers(1, net=LATER, delta=0.002), ["anna"], existing="renew")
        assert ledger.erase("bert")
        assert ledger.verify(HEAD).good


def test_it_is_migrated_once(old):
    with pp.Ledger(old) as ledger:
        head = ledger.head
    with pp.Ledger(old) as ledger:
        assert ledger.head == head
        assert [entry.kind for entry in ledger.history()].count("migrated") == 1


def test_several_open_it_at_once(old):
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=pp.Ledger, args=(old,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with pp.Ledger(old) as ledger:
        assert [entry.kind for entry in ledger.history()].count("migrated") == 1
        assert ledger.verify(HEAD).good


def shape(place):
    """Tables, columns, indexes and triggers of a ledger."""
    database = Database(place)
    with database.engine.connect() as connection:
        look = sa.inspect(connection)
        found = {
            name: (
                [(c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(name)],
                sorted((i["name"], tuple(i["column_names"])) for i in look.get_indexes(name)),
            )
            for name in sorted(look.get_table_names())
        }
        if database.is_sqlite:
            query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        else:
            query = (
                "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal UNION ALL "
                "SELECT attname || attstattarget FROM pg_attribute "
                "WHERE attrelid = 'personal'::regclass AND attnum > 0"
            )
        found["triggers"] = sorted(name for (name,) in connection.exec_driver_sql(query))
    database.close()
    return found


def test_migrated_tables_are_those_of_a_new_ledger(old, tmp_path, request):
    fresh = tmp_path / "new.db"
    if old.startswith("postgresql"):
        fresh = request.getfixturevalue("server").new()
    assert shape(old) == shape(fresh)


def test_there_is_a_step_from_every_version():
    assert len(_STEPS) == VERSION - 1
    assert all(set(step) == {"sqlite", "postgresql"} for step in _STEPS)


def test_a_migration_that_fails_leaves_the_old_ledger(old, monkeypatch):
    wrong = {"sqlite": ("CREATE INDEX x ON promises (expires)", "SELECT none FROM nowhere")}
    wrong["postgresql"] = wrong["sqlite"]
    with monkeypatch.context() as patch:
        patch.setattr(pp.promises.database, "_STEPS", (wrong,))
        with pytest.raises(LedgerError, match="cannot be opened"):
            pp.Ledger(old)
    with pp.Ledger(old) as ledger:  # a good one comes
        assert ledger.verify(HEAD).good


@pytest.mark.parametrize(
    ("version", "said"), [(VERSION + 1, "later version"), (99, "later version")]
)
def test_a_ledger_of_a_later_version_is_refused(place, version, said):
    database = Database(place)
    with database.write() as writer:
        writer.connection.execute(
            tables.meta.update().where(tables.meta.c.name == "version").values(value=str(version))
        )
    with pytest.raises(LedgerError, match=said):
        Database(place)
    # One who had it open before does not write what the later version would not understand.
    with pytest.raises(LedgerError, match=said), database.write():
        pass
    database.close()


@pytest.mark.parametrize("version", ["", "0", "two", "-1", "1.5"])
def test_a_version_that_is_none_is_refused(tmp_path, version):
    database = Database(tmp_path / "promises.db")
    with database.write() as writer:
        writer.connection.execute(
            tables.meta.update().where(tables.meta.c.name == "version").values(value=version)
        )
    database.close()
    with pytest.raises(LedgerError, match="not one that was written"):
        Database(tmp_path / "promises.db")


def test_a_version_that_was_put_back_is_found(place):
    """The tables would be migrated twice: the database refuses it, or the chain tells."""
    database = Database(place)
    with database.write() as writer:
        writer.connection.execute(
            tables.meta.update().where(tables.meta.c.name == "version").values(value="1")
        )
    database.close()
    with pytest.raises(LedgerError, match="already exists"):
        pp.Ledger(place)
