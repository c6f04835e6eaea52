"""Special behaviour of PostgreSQL. All other tests use both databases."""

from __future__ import annotations

import gc
import warnings

import pytest

import proplace as pp
from proplace.core.errors import LedgerError
from support.errors import raises


def test_database_of_something_else_is_left_alone(server):
    place = server.new()
    name = place.partition("?")[0].rpartition("/")[2]
    server.execute(name, "CREATE TABLE documents (id int)")
    with pytest.raises(LedgerError, match="documents"):
        pp.Ledger(place)
    server.execute(name, "DROP TABLE documents", "CREATE TABLE invoices (id int)")
    with pp.Ledger(place) as ledger:  # tables with other names are allowed beside ours
        assert ledger.verify().valid


def test_create_false_makes_no_ledger(server):
    place = server.new()
    with raises(LedgerError, match="not a ledger"):
        pp.Ledger(place, create=False)


def test_server_that_cannot_be_reached(tmp_path):
    with raises(LedgerError, match="opened") as error:
        pp.Ledger(f"postgresql://user:secret@/name?host={tmp_path}")
    assert "secret" not in str(error.value)


def test_password_is_not_shown(server):
    place = server.new().replace("tester@", "tester:secret@")
    with pp.Ledger(place) as ledger:
        assert "secret" not in repr(ledger)


def test_lost_connection_is_made_again(server, result):
    """The server ends all connections, as when it is restarted: the next call works."""
    place = server.new()
    name = place.partition("?")[0].rpartition("/")[2]
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
        server.execute(
            "postgres",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
        )
        assert ledger.verify().valid


def test_readers_need_no_more_than_right_to_read(server, result):
    place = server.new()
    name = place.partition("?")[0].rpartition("/")[2]
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
    server.execute(
        name,
        "CREATE ROLE auditor LOGIN",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO auditor",
    )
    try:
        with pp.Ledger(server.url(name, "auditor"), create=False) as ledger:
            assert ledger.verify().valid
            assert len(ledger.promises()) == 3
            with pytest.raises(LedgerError, match="permission denied"):
                ledger.withdraw(ledger.promises().index[0], "not theirs to say")
    finally:
        server.execute(name, "DROP OWNED BY auditor", "DROP ROLE auditor")


def test_those_who_issue_need_no_right_to_delete(server, result):
    place = server.new()
    name = place.partition("?")[0].rpartition("/")[2]
    pp.Ledger(place).close()
    server.execute(
        name,
        "CREATE ROLE issuer LOGIN",
        "GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO issuer",
        "GRANT UPDATE ON head TO issuer",
    )
    try:
        with pp.Ledger(server.url(name, "issuer")) as ledger:
            ledger.issue(result, ["a", "b", "c"])
            assert ledger.verify().valid
            with pytest.raises(LedgerError, match="permission denied"):
                ledger.erase("a")
            assert ledger.verify().erased == 0
    finally:
        server.execute(name, "DROP OWNED BY issuer", "DROP ROLE issuer")


def test_entries_close_their_cursor_if_caller_stops_early(server, result):
    with pp.Ledger(server.new()) as ledger:
        ledger.issue(result, ["a", "b", "c"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert next(ledger.entries()).kind == "opened"
            gc.collect()
        assert caught == []


SPY = (
    "CREATE TABLE spied (person text);"
    "CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO spied VALUES (NEW.person); RETURN NEW; END $$;"
)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            SPY + "CREATE TRIGGER spy AFTER INSERT ON personal FOR EACH ROW EXECUTE FUNCTION spy()",
            "trigger spy is not part",
        ),
        (
            "CREATE RULE spy AS ON INSERT TO personal DO ALSO NOTIFY people",
            "rule spy is not part",
        ),
        ("CREATE INDEX spy ON personal (upper(person))", "index spy is not part"),
        ("ALTER TABLE personal ADD CONSTRAINT spy CHECK (person <> '')", "check spy is not part"),
        ("ALTER TABLE personal ADD COLUMN note text", "table personal of the database was changed"),
        ("DROP INDEX entries_of_promise", "index entries_of_promise of the database is missing"),
        (
            "CREATE OR REPLACE FUNCTION entries_no_delete() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN OLD; END $$",
            "trigger entries_no_delete of the database was changed",
        ),
        (
            "ALTER TABLE entries DISABLE TRIGGER entries_no_delete",
            "trigger entries_no_delete of the database was changed",
        ),
    ],
)
def test_verify_reports_another_layout(server, result, statement, problem):
    place = server.new()
    with pp.Ledger(place) as ledger:
        ledger.issue(result[:1], ["anna"])
        assert ledger.verify().valid
        server.execute(place.partition("?")[0].rpartition("/")[2], statement)
        (found,) = ledger.verify().problems
        assert problem in found
