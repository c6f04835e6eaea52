"""Several writers at once, and writers that are killed: every promise once, no gap in the chain."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import time
import tracemalloc

import pytest
import sqlalchemy as sa

import proplace as pp
from proplace.core.errors import LedgerError
from proplace.ledger import tables
from proplace.ledger.chain import Verifier
from proplace.ledger.database import Database, Writer, _write_ahead
from support.lenders import LATER, answers, open_promises

fork = multiprocessing.get_context("fork")  # at once: everything is imported already
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def together(*jobs):
    """Run functions in parallel processes, and return their exit statuses."""
    gate = fork.Event()

    def run(job):
        gate.wait()
        job()

    processes = [fork.Process(target=run, args=(job,)) for job in jobs]
    for process in processes:
        process.start()
    gate.set()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def issue_one_by_one(place, result, people):
    with pp.Ledger(place) as ledger:
        for n, person in enumerate(people):
            ledger.issue(result[n % 3 : n % 3 + 1], [person], check=False)


def checked(place, promises):
    """Everything is as it was written, and every promise is there once."""
    with pp.Ledger(place, create=False) as ledger:
        found = ledger.verify()
        assert found.valid, str(found)
        people = ledger.promises()["person"].tolist()
        assert sorted(people) == sorted(promises)
        return list(ledger.entries())


def test_processes_that_issue_at_once(place, result):
    """They also make the ledger at once: it is made one time."""
    names = [[f"{who}{n}" for n in range(12)] for who in "abc"]
    jobs = [lambda own=own: issue_one_by_one(place, result, own) for own in names]
    assert together(*jobs) == [0, 0, 0]
    history = checked(place, [name for own in names for name in own])
    assert [entry.kind for entry in history].count("opened") == 1
    assert [entry.kind for entry in history].count("document") == 3
    assert [entry.seq for entry in history] == list(range(1, len(history) + 1))


def test_processes_that_issue_same_at_once(place, result):
    people = [f"p{n}" for n in range(10)]
    jobs = [lambda: issue_one_by_one(place, result, people)] * 3
    assert together(*jobs) == [0, 0, 0]
    checked(place, people)


def test_of_two_that_renew_at_once_later_one_holds(place, result):
    with pp.Ledger(place) as ledger:
        ledger.issue(result[:1], ["anna"])
    others = [answers(1, net=LATER, delta=delta) for delta in (0.01, 0.008)]

    def renew(other):
        with pp.Ledger(place) as ledger:
            ledger.issue(other, ["anna"], existing="renew")

    assert together(*[lambda other=other: renew(other) for other in others]) == [0, 0]
    with pp.Ledger(place) as ledger:
        states = ledger.promises()["state"].tolist()
        assert states == ["renewed", "renewed", "open"]
        assert ledger.verify().valid


def test_reader_sees_one_state_while_others_write(place, result):
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
        reader, database = open_promises(ledger), Database(place)
        with database.read() as connection:
            before = Verifier(connection, None).verify()
            ledger.issue(answers(1, 8), ["d"])
            again = Verifier(connection, None).verify()
            assert before.valid
            assert (again.valid, again.head) == (True, before.head)
        assert sum(len(group.ids) for group in reader) in (3, 4)
        assert ledger.verify().promises == 4
        database.close()


def _half(writer):
    """Write some, then something that the database refuses."""
    writer.append("issued", {}, writer.next)
    writer.flush()
    writer.add("entries", {"seq": 1, "time": "", "kind": "", "body": "", "hash": ""})


def test_writer_that_fails_leaves_nothing(place, result):
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
        head, database = ledger.head, Database(place)
        with pytest.raises(LedgerError), database.write() as writer:
            _half(writer)
        assert ledger.head == head
        assert ledger.verify(head).valid
        database.close()


# -- kill -9 -----------------------------------------------------------------------------------------


def dies_at(statement, job):
    """Run a job in a process that is killed before its n-th statement. True if it was."""

    def run():
        left = statement

        def count(*_):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        for event in ("before_cursor_execute", "commit"):
            sa.event.listen(sa.Engine, event, count)
        job()

    process = fork.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.slow
def test_killed_in_front_of_every_statement(place, result, boxed):
    """From the first statement that makes the ledger to the last commit, then once more."""

    def job():
        with pp.Ledger(place) as ledger:
            ledger.issue(result, ["anna", "bert", "carla"], check=False)
            ledger.issue(boxed, ["dora", "emil"], check=False)
            ledger.issue(later, ["frida"], check=False)

    later = answers(1, net=LATER)
    killed, statement = 0, 1
    while dies_at(statement, job):
        killed += 1
        statement += 1 + killed // 12  # what is done already takes few statements
        with contextlib.suppress(LedgerError), pp.Ledger(place, create=False) as ledger:
            found = ledger.verify()
            assert found.valid, str(found)
            assert found.promises in (0, 3, 5, 6)  # whole calls
    assert killed > 10
    job()
    checked(place, ["anna", "bert", "carla", "dora", "emil", "frida"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(place, result, seed):
    """While one process is killed again and again, and another goes on."""
    people = [f"p{n}" for n in range(60)]
    pp.Ledger(place).close()
    other = fork.Process(target=issue_one_by_one, args=(place, result, ["x", "y", "z"]))
    other.start()
    for n in range(4):
        process = fork.Process(target=issue_one_by_one, args=(place, result, people))
        process.start()
        time.sleep(0.02 + 0.013 * ((7 * n + 3 * seed) % 11))
        process.kill()
        process.join()
        with pp.Ledger(place, create=False) as ledger:
            assert ledger.verify().valid
    other.join()
    assert other.exitcode == 0
    issue_one_by_one(place, result, people)
    checked(place, [*people, "x", "y", "z"])


def issue_and_confirm(place, result, people, sender):
    with pp.Ledger(place) as ledger:
        for n, person in enumerate(people):
            issued = ledger.issue(result[n % 3 : n % 3 + 1], [person], check=False)
            sender.send((issued.ids[0], person))


@pytest.mark.slow
def test_confirmed_promises_survive_killed_writer(place, result):
    """Each promise whose issue returned is in the ledger, once, however soon the kill comes."""
    pp.Ledger(place).close()
    confirmed = {}
    for kill in range(6):
        receiver, sender = fork.Pipe(duplex=False)
        people = [f"p{kill}-{n}" for n in range(1000)]
        process = fork.Process(target=issue_and_confirm, args=(place, result, people, sender))
        process.start()
        sender.close()
        confirmed.update(receiver.recv() for _ in range(1 + 3 * kill))
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):  # all messages are read
            while True:
                confirmed.update([receiver.recv()])
        with pp.Ledger(place, create=False) as ledger:
            table = ledger.promises()
            assert ledger.verify().valid
        assert table.loc[list(confirmed), "person"].tolist() == list(confirmed.values())
        assert not table["person"].duplicated().any()
        assert len(table) <= len(confirmed) + 1 + kill  # a kill can fall between commit and message


def test_killed_while_audit_is_written(place, result):
    """A writer with more rows than one statement holds: all of its verdicts are there, or none."""
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
        head = ledger.head

    def job():
        database = Database(place)
        with database.write() as writer:
            number = writer.next
            writer.append("audited", {"verdicts": "0" * 64})
            for promise in range(1500):
                writer.add("verdicts", {"audit": number, "promise": promise, "verdict": "holds"})

    for statement in range(1, 8):
        if dies_at(statement, job):
            with pp.Ledger(place) as ledger:
                assert ledger.head == head
                assert ledger.verify(head).valid
    database = Database(place)
    with database.read() as connection:
        count = connection.execute(sa.select(sa.func.count()).select_from(tables.verdicts)).scalar()
    database.close()
    assert count % 1500 == 0


def test_rows_are_written_in_order_and_parts():
    """The writer holds few rows at a time, however many it is given."""

    class Connection:
        def __init__(self):
            self.sizes = []

        def execute(self, statement, rows=None):
            self.sizes.append(len(rows or ()))

    connection = Connection()
    writer = Writer(connection, pp.ledger.chain.Head(0, "0" * 64), None)
    for n in range(1201):
        writer.add("verdicts", {"audit": 1, "promise": n})
    writer.flush()
    assert connection.sizes == [500, 500, 201, 0]


def test_those_who_make_one_file_at_once_wait_for_each_other(monkeypatch):
    """SQLite refuses at once where two set the kind of the journal, whatever its own patience."""

    class Cursor:
        left = 3

        def execute(self, statement):
            assert statement == "PRAGMA journal_mode = WAL"
            self.left -= 1
            if self.left > 0:
                raise sqlite3.OperationalError("database is locked")

    cursor = Cursor()
    _write_ahead(cursor)
    assert cursor.left == 0
    cursor.left = 10**9
    monkeypatch.setattr(pp.ledger.database, "_WAIT", 50)
    with pytest.raises(sqlite3.OperationalError):
        _write_ahead(cursor)


def test_opening_and_reading_wait_for_no_writer(place, result):
    """During a long write, others open the ledger and read its previous state."""
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
    database = Database(place)
    with database.write() as writer:
        writer.append("audited", {})
        with pp.Ledger(place) as ledger:
            assert len(ledger.promises()) == 3
    database.close()


@pytest.mark.slow
def test_memory_does_not_grow_with_promises(tmp_path, result, monkeypatch):
    """Verifying three times as many takes no more memory."""
    monkeypatch.setattr(pp.ledger.chain, "_CHUNK", 100)
    monkeypatch.setattr(pp.ledger.chain, "_LARGE", 20)
    peaks = []
    for count in (300, 900):
        big = type(result)(list(result) * count, provenance=result.provenance)
        with pp.Ledger(tmp_path / f"{count}.db") as ledger:
            ledger.issue(big, [f"p{n}" for n in range(len(big))], check=False)
            ledger.verify()
            tracemalloc.start()
            assert ledger.verify().promises == 3 * count
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
