"""Whatever is changed in the database by hand is found: every cell of every row of every table."""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

import proplace as pp
from proplace.core.errors import LedgerError
from proplace.ledger import tables
from proplace.ledger.chain import START, Entry, Head, Verifier, verdicts_digest
from proplace.ledger.database import Database
from support.lenders import LATER, NET, answers

TABLES = sorted(tables.metadata.tables)


def audit(database, verdicts):
    """Write an audit as it is written: an entry with the digest of its verdicts, and their rows."""
    with database.write() as writer:
        number = writer.next
        rows = [{"audit": number, **row} for row in verdicts]
        digest = verdicts_digest(SimpleNamespace(**row) for row in rows)
        writer.append("audited", {"verdicts": digest})
        for row in rows:
            writer.add("verdicts", row)


def full(place, result, boxed):
    """A ledger with everything in it."""
    with pp.Ledger(place, actor="branch 7") as ledger:
        ids = ledger.issue(result, ["anna", "bert", "carla"], expires="2999-12-31").ids
        ledger.issue(boxed, ["dora", "emil"])
        ledger.issue(answers(1, 9, net=LATER), ["anna"], existing="renew")
        ledger.withdraw(ids[1], "the product is no longer sold")
        ledger.set_current_model(NET, "in use since spring")
        assert ledger.redeem(ids[2], result[2].original.to_dict()).verdict == "not_met"
        assert ledger.redeem(ids[2], result[2].counterfactual.to_dict()).verdict == "met_exactly"
        assert len(ledger.audit(LATER).to_frame()) == 3
        ledger.erase("emil")
    database = Database(place)
    for kinds in (("proved", "holds", "broken"), ("broken", "holds", "holds")):
        audit(
            database,
            [
                {"promise": promise, "verdict": kind, "margin": margin}
                for promise, kind, margin in zip(ids, kinds, (0.25, None, -1.5), strict=True)
            ],
        )
    return database


def unguarded(database):
    """Drop the triggers, as an attacker would."""
    with database.engine.connect() as opened:
        connection = opened.execution_options(proplace_writes=True)
        with connection.begin():
            for name in (*tables.APPEND_ONLY, "personal"):
                for action in ("update",) if name == "personal" else ("update", "delete"):
                    on = "" if database.is_sqlite else f" ON {name}"
                    connection.exec_driver_sql(f"DROP TRIGGER {name}_no_{action}{on}")
    return database


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def ledger(request, tmp_path_factory, result, boxed):
    if request.param == "sqlite":
        place = tmp_path_factory.mktemp("ledger") / "promises.db"
    else:
        place = request.getfixturevalue("server").new()
    database = unguarded(full(place, result, boxed))
    assert verified(database).valid
    yield database
    database.close()


def verified(database, *statements, expected=None):
    """Return the findings after some statements, which are then undone."""
    with database.engine.connect() as opened:
        connection = opened.execution_options(proplace_writes=True)
        with connection.begin() as transaction:
            for statement in statements:
                connection.execute(statement)
            found = Verifier(connection, expected).verify(layout=False)
            transaction.rollback()
    return found


def rows_of(database, table):
    with database.read() as connection:
        return [dict(row._mapping) for row in connection.execute(sa.select(table))]


def key_of(table, row):
    return sa.and_(*(column == row[column.name] for column in table.primary_key.columns))


def others(value, column):
    """Other values of the same kind for a cell, or nothing for an empty cell."""
    kind = column.type
    if isinstance(kind, sa.LargeBinary):
        given = bytes(value or b"")
        flipped = given[:-1] + bytes([given[-1] ^ 1]) if given else b"\0"
        found = [flipped, given + b"\0", given[:-1], b"", given[:8]]
    elif isinstance(kind, sa.Double):
        found = [math.nextafter(value or 0.0, math.inf), -1.0, 1e300, math.inf, 0.0]
    elif isinstance(kind, sa.Integer):
        found = [0, -1, 10**9, (value or 0) + 1, (value or 0) - 1, 2 * (value or 0)]
    else:
        given = value or ""
        found = [given + " ", given[:-1], given.swapcase(), "", "9" + given[1:], "{}", "[]", "null"]
    if column.nullable:
        found.append(None)
    return [other for other in found if other != value]


@pytest.mark.parametrize("name", TABLES)
def test_every_changed_cell_is_found(ledger, name):
    table = tables.metadata.tables[name]
    rows = rows_of(ledger, table)
    assert rows
    for n, row in enumerate(rows):
        for column in table.columns:
            values = others(row[column.name], column)
            first = n % len(values)  # of each row others, and of few rows all
            tried, enough = 0, 1 + 6 // len(rows)
            for other in [*values[first:], *values[:first]]:
                change = table.update().where(key_of(table, row)).values({column.name: other})
                try:
                    found = verified(ledger, change)
                except sa.exc.IntegrityError:
                    continue  # another row has that key
                assert not found.valid, (column.name, row[column.name], other)
                tried += 1
                if tried == enough:
                    break
            assert tried, column.name


@pytest.mark.parametrize("name", TABLES)
def test_every_deleted_row_is_found(ledger, name):
    table = tables.metadata.tables[name]
    for row in rows_of(ledger, table):
        assert not verified(ledger, table.delete().where(key_of(table, row))).valid
    assert not verified(ledger, table.delete()).valid


@pytest.mark.parametrize("name", TABLES)
def test_every_inserted_row_is_found(ledger, name):
    """A copy of each row under every other key that comes to mind."""
    table = tables.metadata.tables[name]
    last = max(row["seq"] for row in rows_of(ledger, tables.entries))
    for row in rows_of(ledger, table)[:4]:
        for column in table.primary_key.columns:
            is_text = isinstance(column.type, sa.Text)
            numbers = [-1, 0, 2, 3, 5, last - 1, last, last + 1, 10**9]
            for key in ["other", "0" * 64] if is_text else numbers:
                try:
                    found = verified(ledger, table.insert().values({**row, column.name: key}))
                except sa.exc.IntegrityError:
                    continue
                assert not found.valid, (row, key)


@pytest.mark.parametrize("name", TABLES)
def test_every_exchange_of_cells_is_found(ledger, name):
    """Swap two rows: each value was once written by the ledger."""
    table = tables.metadata.tables[name]
    rows, keys = rows_of(ledger, table), {column.name for column in table.primary_key.columns}
    for column in table.columns:
        for one, two in itertools.pairwise(rows):
            if one[column.name] == two[column.name] or column.name in keys:
                continue
            changes = [
                table.update().where(key_of(table, a)).values({column.name: b[column.name]})
                for a, b in ((one, two), (two, one))
            ]
            assert not verified(ledger, *changes).valid, column.name


def test_whole_rows_that_change_places_are_found(ledger):
    """The personal data of two people, or two promises, under each other's number."""
    for table in (tables.personal, tables.promises):
        one, two = rows_of(ledger, table)[:2]
        key = next(iter(table.primary_key.columns))
        changes = [
            table.update().where(key == one[key.name]).values({key.name: 10**9}),
            table.update().where(key == two[key.name]).values({key.name: one[key.name]}),
            table.update().where(key == 10**9).values({key.name: two[key.name]}),
        ]
        assert not verified(ledger, *changes).valid


def test_erased_data_that_comes_back_is_found(ledger):
    """Also with the right salt, from a copy."""
    gone = [row for row in rows_of(ledger, tables.entries) if row["kind"] == "erased"]
    (entry,) = Entry(**gone[0]).facts["entries"]
    row = rows_of(ledger, tables.personal)[0]
    found = verified(ledger, tables.personal.insert().values({**row, "entry": entry}))
    assert any("though it was erased" in problem for problem in found.problems)


def test_personal_data_that_is_gone_without_being_erased_is_found(ledger):
    row = rows_of(ledger, tables.personal)[0]
    found = verified(
        ledger, tables.personal.delete().where(tables.personal.c.entry == row["entry"])
    )
    assert any("never erased" in problem for problem in found.problems)


def test_bytes_cannot_be_moved_from_salt_to_person(ledger):
    """The end of the salt and the length of the id are beside each other in what is hashed."""
    for row in rows_of(ledger, tables.personal):
        salt, person = bytes(row["salt"]), row["person"]
        moved = {"salt": salt + f"{len(person)}:{person}".encode()[:1], "person": person[1:]}
        change = tables.personal.update().where(key_of(tables.personal, row)).values(moved)
        assert not verified(ledger, change).valid


def test_verdicts_cannot_swallow_each_other(ledger):
    """Two verdicts made one, by a text that looks like both."""
    v = tables.verdicts
    one, two = rows_of(ledger, v)[:2]
    text = f"{one['verdict']} {one['margin']!r}\n{two['promise']} {two['verdict']}"
    kept = {"verdict": text, "margin": two["margin"]}
    changes = [v.update().where(key_of(v, one)).values(kept), v.delete().where(key_of(v, two))]
    assert not verified(ledger, *changes).valid


def test_verdicts_read_back_as_they_were_written():
    """SQLite keeps neither -0.0 nor NaN."""
    for given, read in ((-0.0, 0.0), (math.nan, None)):
        rows, kept = (
            [SimpleNamespace(promise=1, verdict="holds", margin=margin)] for margin in (given, read)
        )
        assert verdicts_digest(rows) == verdicts_digest(kept)
    assert verdicts_digest([]) != verdicts_digest(kept)


# -- an attacker who writes all hashes again ---------------------------------------------------------


def rewritten(database, change):
    """Statements that write the chain anew after ``change`` of its entries: no hash is wrong then."""
    entries = [Entry(**row) for row in rows_of(database, tables.entries)]
    statements, previous, chain = [tables.entries.delete()], START, []
    for seq, entry in enumerate(change(sorted(entries)), 1):
        chain.append(entry._replace(seq=seq))
        chain[-1] = chain[-1]._replace(hash=chain[-1].expected(previous))
        previous = chain[-1].hash
        statements.append(tables.entries.insert().values(chain[-1]._asdict()))
    statements.append(tables.head.update().values(entries=len(chain), hash=previous))
    return statements


def kept_head(database):
    (row,) = rows_of(database, tables.head)
    return Head(row["entries"], row["hash"])


def test_chain_written_anew_is_found_by_head_that_was_kept(ledger):
    def tell_otherwise(entries):
        return [
            entry._replace(body=entry.body.replace("no longer sold", "sold to others"))
            for entry in entries
        ]

    statements = rewritten(ledger, tell_otherwise)
    assert verified(ledger, *statements).valid  # the ledger alone cannot detect this
    found = verified(ledger, *statements, expected=kept_head(ledger))
    assert any("written anew or removed" in problem for problem in found.problems)


def test_end_that_was_cut_off_is_found_by_head_that_was_kept(ledger):
    last = max(row["seq"] for row in rows_of(ledger, tables.entries))
    statements = [
        *rewritten(ledger, lambda entries: entries[:-1]),
        tables.verdicts.delete().where(tables.verdicts.c.audit == last),
    ]
    assert verified(ledger, *statements).valid
    assert not verified(ledger, *statements, expected=kept_head(ledger)).valid


def test_head_of_every_earlier_day_is_accepted(ledger):
    for row in rows_of(ledger, tables.entries):
        assert verified(ledger, expected=Head(row["seq"], row["hash"])).valid
        assert not verified(ledger, expected=Head(row["seq"], "0" * 64)).valid
        assert not verified(ledger, expected=Head(row["seq"] + 1, row["hash"])).valid


# -- the file itself -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory, result, boxed):
    path = tmp_path_factory.mktemp("file") / "promises.db"
    full(path, result, boxed).close()
    return path


def test_database_itself_refuses_changes(place, result, boxed):
    database = full(place, result, boxed)
    for name in (*tables.APPEND_ONLY, "personal"):
        table = tables.metadata.tables[name]
        column = list(table.columns)[-1]
        with pytest.raises(LedgerError, match="never changed"), database.write() as writer:
            writer.connection.execute(table.update().values({column.name: column}))
    for name in tables.APPEND_ONLY:
        with pytest.raises(LedgerError, match="never changed"), database.write() as writer:
            writer.connection.execute(tables.metadata.tables[name].delete())
    assert verified(database).valid
    database.close()


def test_cells_of_another_kind_are_found(file, tmp_path):
    """SQLite stores any type in any column: a text in place of bytes, bytes in place of a text."""
    changed = 0
    for table in tables.metadata.tables.values():
        for column in table.columns:
            path = tmp_path / f"{table.name}-{column.name}.db"
            path.write_bytes(file.read_bytes())
            with sqlite3.connect(path) as raw:
                for name in (*tables.APPEND_ONLY, "personal"):
                    raw.execute(f"DROP TRIGGER {name}_no_update")
                is_bytes = isinstance(column.type, sa.LargeBinary)
                other = "CAST({} AS TEXT)" if is_bytes else "CAST({} AS BLOB)"
                with contextlib.suppress(sqlite3.IntegrityError):  # an integer key stays one
                    raw.execute(
                        f"UPDATE {table.name} SET {column.name} = {other.format(column.name)} "
                        f"WHERE rowid = (SELECT max(rowid) FROM {table.name} "
                        f"WHERE {column.name} IS NOT NULL)"
                    )
                    changed += 1
            raw.close()
            if (table.name, column.name) == ("head", "id"):
                continue
            assert not intact(path), (table.name, column.name)
    assert changed > 25


def test_flipped_bytes_of_file_are_found(file, tmp_path):
    """Bit rot in any page: found, or without any effect on what can be read."""
    content, path = file.read_bytes(), tmp_path / "flipped.db"
    dump = dumped(file)
    hit = 0
    for place in range(100, len(content), 1999):
        damaged = bytearray(content)
        damaged[place] ^= 0x15
        for end in ("-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        path.write_bytes(damaged)
        if intact(path):
            assert dumped(path) == dump
        else:
            hit += 1
    assert hit > 8


def intact(path):
    """Test if a ledger opens and verifies. Otherwise, only a clear error is allowed."""
    try:
        with pp.Ledger(path, create=False) as ledger:
            return ledger.verify().valid
    except LedgerError:
        return False


def dumped(path):
    raw = sqlite3.connect(path)
    tables_ = [table.name for table in tables.metadata.tables.values()]
    rows = {name: raw.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in tables_}
    raw.close()
    return rows


@pytest.mark.parametrize("name", ["sqliteX", "sqlite0_copy", "SQLite-like"])
def test_verify_reports_objects_whose_names_only_resemble_those_of_sqlite(tmp_path, result, name):
    """The underscore of ``sqlite_`` is a letter here, not a placeholder."""
    place = tmp_path / "promises.db"
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["anna", "bert", "carla"])
        with sqlite3.connect(place) as connection:
            connection.execute(f'CREATE TABLE "{name}" (person TEXT)')
            connection.execute(
                f'CREATE TRIGGER "{name}_1" AFTER INSERT ON personal '
                f'BEGIN INSERT INTO "{name}" VALUES (NEW.person); END'
            )
        problems = " ".join(ledger.verify().problems)
        assert f"table {name}" in problems
        assert f"trigger {name}_1" in problems


def test_verify_reports_trigger_that_is_named_like_objects_of_sqlite(tmp_path, result):
    place = tmp_path / "promises.db"
    with pp.Ledger(place) as ledger:
        ledger.issue(result[:1], ["anna"])
        ledger.close()
        with contextlib.closing(sqlite3.connect(place)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "INSERT INTO sqlite_master VALUES ('trigger', 'sqlite_spy', 'personal', 0, 'CREATE "
                "TRIGGER sqlite_spy AFTER INSERT ON personal BEGIN SELECT 1; END')"
            )
            connection.commit()
        assert ledger.verify().problems == ["the trigger sqlite_spy is not part of a ledger"]
