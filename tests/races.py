"""Interleave two processes that work on one ledger, kill some of them, and check the ledger.

``python tests/races.py [--count 5000] [--database sqlite] [--seed 0]``

Each process stops in front of every statement, every commit and every return of a connection. A seeded
scheduler lets one of them go on at a time, or kills it with SIGKILL. A process that waits for a lock of
the other one stays where it is. After every interleaving a checker reads the tables with the plain
driver of the database and compares them with the results that the processes reported. It shares no code
with the library.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import random
import sqlite3
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import sqlalchemy as sa

import postgresql
import proplace as pp
from proplace.core.errors import LedgerError
from support.lenders import LATER, NET, STRICT, answers

fork = multiprocessing.get_context("fork")

PEOPLE = 6
DEADLOCK = 90.0  # seconds without any progress
BLOCKED = 0.006  # seconds after which a process seems to wait for the other one
ROUNDS = 20  # interleavings on one ledger
NETWORKS = {"old": NET, "new": LATER, "strict": STRICT}


# -- operations of one process ---------------------------------------------------------------------


def issue(ledger, answered, model, people, existing):
    result = answered[model]
    part = type(result)([result[n] for n in people], provenance=result.provenance)
    names = [f"person-{n}" for n in people]
    return ledger.issue(part, names, existing=existing, check=False).ids


def set_model(ledger, answered, model):
    return ledger.set_current_model(NETWORKS[model]).seq


def approve(ledger, answered, model):
    return ledger.approve(ledger.audit(NETWORKS[model]).number).seq


def redeem(ledger, answered, number, poor):
    row = ledger.promise(number).answer
    if row is None:
        raise LedgerError("erased")
    return ledger.redeem(number, dict(row) | ({"income": 0} if poor else {})).entry


def erase(ledger, answered, person):
    return ledger.erase(f"person-{person}")


def withdraw(ledger, answered, number):
    ledger.withdraw(number, "a mistake")
    return number


def look(ledger, answered):
    found = ledger.verify()
    assert found.valid, str(found)
    return len(ledger.page())


def operation(rng, numbers):
    """Choose an operation and its arguments."""
    number, person = rng.choice(numbers), rng.randrange(PEOPLE)
    kinds = {
        issue: (
            rng.choice(["old", "new"]),
            sorted({person, rng.randrange(PEOPLE)}),
            rng.choice(["refuse", "add", "renew"]),
        ),
        set_model: (rng.choice(["old", "new", "new", "strict"]),),
        approve: (rng.choice(["old", "new"]),),
        redeem: (number, rng.random() < 0.3),
        erase: (person,),
        withdraw: (number,),
        look: (),
    }
    chosen = rng.choices(list(kinds), weights=[8, 5, 2, 5, 3, 2, 1])[0]
    return chosen, kinds[chosen]


# -- a process that stops at every statement -------------------------------------------------------


def work(pipe, place, answered):
    """Run operations that arrive through a pipe, one statement at a time."""

    def stop(*_):
        pipe.send(("at", None))
        pipe.recv()

    with pp.Ledger(place, create=False) as ledger:
        for name in ("before_cursor_execute", "commit"):
            sa.event.listen(sa.Engine, name, stop)
        sa.event.listen(sa.pool.Pool, "checkin", stop)
        while True:
            act, given = pipe.recv()
            try:
                pipe.send(("done", act(ledger, answered, *given)))
            except LedgerError as error:
                pipe.send(("refused", str(error)))
            except Exception:
                pipe.send(("failed", traceback.format_exc()))


class Worker:
    """One of the processes, as the scheduler sees it."""

    def __init__(self, place, answered):
        self.pipe, other = fork.Pipe()
        self.process = fork.Process(target=work, args=(other, place, answered), daemon=True)
        self.process.start()
        other.close()
        self.running = self.finished = self.killed = False
        self.kind, self.value = "", None

    def start(self, act, given):
        self.task, self.finished, self.killed = (act, given), False, False
        self.send((act, given))

    def send(self, message):
        self.pipe.send(message)
        self.running = True

    def receive(self, patience):
        """Note what the process reports, if it does so in time."""
        if self.running and self.pipe.poll(patience):
            self.kind, self.value = self.pipe.recv()
            self.running, self.finished = False, self.kind != "at"

    def kill(self):
        self.process.kill()
        self.process.join()
        self.killed = self.finished = True
        self.running = False

    def finish(self, act, given):
        """Run an operation to its end without stopping it."""
        self.start(act, given)
        end = time.monotonic() + DEADLOCK
        while not self.finished:
            self.receive(1.0)
            assert time.monotonic() < end, (act, given)
            if not self.running and not self.finished:
                self.send(None)


def interleave(workers, rng, deadly):
    """Let processes go on one at a time until all have finished; return the order of the steps."""
    steps, fatal = [], rng.randrange(1, 40) if deadly else 0
    chosen = rng.randrange(len(workers))
    while not all(worker.finished for worker in workers):
        for worker in workers:
            worker.receive(0.0)
        ready = [n for n, worker in enumerate(workers) if not (worker.finished or worker.running)]
        if not ready:
            waiting = [worker.pipe for worker in workers if worker.running]
            if waiting and not multiprocessing.connection.wait(waiting, DEADLOCK):
                raise AssertionError(f"deadlock: {[worker.task for worker in workers]}")
            continue
        if chosen not in ready or rng.random() < 0.35:
            chosen = rng.choice(ready)
        steps.append(chosen)
        if len(steps) == fatal:
            workers[chosen].kill()
        else:
            workers[chosen].send(None)
            workers[chosen].receive(BLOCKED)
    return tuple(steps)


# -- the checker -----------------------------------------------------------------------------------


TABLES = ("entries", "promises", "personal", "documents", "head", "verdicts")


def rows_of(place):
    """Read all tables with the plain driver."""
    if "://" in place:
        import psycopg

        with psycopg.connect(place) as connection:
            return {name: _rows(connection.execute(f"SELECT * FROM {name}")) for name in TABLES}
    with contextlib.closing(sqlite3.connect(place)) as connection:
        return {name: _rows(connection.execute(f"SELECT * FROM {name}")) for name in TABLES}


def _rows(cursor):
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def check(place, confirmed):
    """Raise AssertionError if a ledger breaks an invariant.

    ``confirmed`` holds the number and the person of every promise whose issue was reported.
    """
    found = rows_of(place)
    entries = sorted(found["entries"], key=lambda row: row["seq"])
    promises = {row["id"]: row for row in found["promises"]}
    personal = {row["entry"]: row for row in found["personal"]}
    documents = {row["digest"]: bytes(row["content"]) for row in found["documents"]}
    _check_chain(entries, found["head"])
    for digest, content in documents.items():
        assert hashlib.sha256(content).hexdigest() == digest
    state = _replay(entries, promises, documents)
    assert set(promises) == set(state.issued)
    assert all(row["audit"] in state.audits for row in found["verdicts"])
    _check_people(entries, promises, personal, state)
    for number, person in confirmed.items():
        assert number in promises, f"promise {number} was lost"
        assert number in state.erased or personal[number]["person"] == person


def _check_chain(entries, head):
    last = "0" * 64
    for number, row in enumerate(entries, 1):
        assert row["seq"] == number
        content = json.dumps([row[name] for name in ("seq", "time", "kind", "promise", "body")])
        last = hashlib.sha256(f"{last}\n{content}".encode()).hexdigest()
        assert last == row["hash"]
    (end,) = head
    assert (end["entries"], end["hash"]) == (len(entries), last)


class State:
    """Everything that the entries of a chain have led to."""

    def __init__(self):
        self.current = None
        self.issued, self.closed, self.erased, self.gone, self.audits = {}, {}, set(), set(), {}


def _replay(entries, promises, documents):
    """Follow the chain: only promises of the current model, none closed twice, none after erasure."""
    state = State()
    for row in entries:
        kind, number, facts = row["kind"], row["promise"], json.loads(row["body"])
        if kind == "model_set":
            assert facts["model"] in documents
            state.current = facts["model"]
        elif kind == "audited":
            state.audits[row["seq"]] = facts
        elif kind == "approved":
            seen, _ = state.audits[facts["audit"]]["head"].split(":")
            gone = state.closed.keys() | state.erased
            later = [n for n in state.issued if n > int(seen) and n not in gone]
            assert not later, f"audit {facts['audit']} was approved without a verdict on {later}"
        elif kind == "issued":
            model = json.loads(documents[facts["terms"]])["model"]
            assert state.current in (None, model), f"promise {number} is of another model"
            assert promises[number]["commitment"] == facts["commitment"]
            state.issued[number] = facts
        elif kind == "erased":
            assert set(facts["entries"]) & set(entries_of(entries, number))
            state.erased.add(number)
            state.gone |= set(facts["entries"])
        elif kind in ("redeemed", "attempted", "renewed", "withdrawn"):
            assert number in state.issued
            assert number not in state.closed, f"promise {number} was closed before {kind}"
            assert number not in state.erased, f"promise {number} was erased before {kind}"
            if kind in ("redeemed", "attempted"):
                terms = state.issued[number]["terms"]
                decides = state.current or json.loads(documents[terms])["model"]
                assert facts["model"] == decides, f"entry {row['seq']}: another model decided"
            if kind != "attempted":
                state.closed[number] = kind
    return state


def entries_of(entries, number):
    return [row["seq"] for row in entries if row["promise"] == number]


def _check_people(entries, promises, personal, state):
    """Personal data is there with its commitment, or was erased; nobody has the same promise twice."""
    hidden = {
        row["seq"]: json.loads(row["body"])["commitment"]
        for row in entries
        if row["kind"] in ("issued", "redeemed", "attempted")
    }
    assert set(personal) == set(hidden) - state.gone
    same = collections.Counter()
    for entry, row in personal.items():
        sha = hashlib.sha256(bytes(row["salt"]))
        parts = [row["person"].encode(), row["facts"].encode()]
        parts += [row[name] for name in ("point", "low", "high", "certificate")]
        for part in parts:
            sha.update(b"-" if part is None else f"{len(part)}:".encode() + bytes(part))
        assert sha.hexdigest() == hidden[entry]
        if entry in promises and entry not in state.closed:
            same[row["person"], promises[entry]["terms"], bytes(row["point"])] += 1
    assert max(same.values(), default=0) <= 1, same.most_common(1)


def check_bytes(path, erased):
    """The ids of erased people are in none of the files."""
    for file in path.parent.glob(f"{path.name}*"):
        content = file.read_bytes()
        for person in erased:
            assert person.encode() not in content, f"{person} is in {file.name}"


# -- many interleavings ----------------------------------------------------------------------------


def race(place, count, seed, answered=None):
    """Run interleavings on one new ledger; return the orders of their steps and some counts."""
    rng = random.Random(seed)
    answered = answered or {name: answers(PEOPLE, net=NETWORKS[name]) for name in ("old", "new")}
    with pp.Ledger(place) as ledger:
        first = issue(ledger, answered, "old", [0, 1, 2], "refuse")
        if rng.random() < 0.8:
            ledger.set_current_model(NET)
    confirmed = {number: f"person-{n}" for n, number in enumerate(first)}
    workers = [Worker(place, answered) for _ in range(2)]
    orders, counts = set(), collections.Counter()
    try:
        for _ in range(count):
            numbers = sorted(confirmed)[-6:]
            for worker in workers:
                worker.start(*operation(rng, numbers))
            orders.add(interleave(workers, rng, deadly=rng.random() < 0.3))
            counts.update(_outcome(worker) for worker in workers)
            workers = [_repeated(worker, place, answered) for worker in workers]
            for worker in workers:
                assert worker.kind != "failed", worker.value
                assert "locked" not in str(worker.value), worker.value
                if worker.kind == "done" and worker.task[0] is issue:
                    names = [f"person-{n}" for n in worker.task[1][1]]
                    confirmed.update(zip(worker.value, names, strict=True))
            check(place, confirmed)
    finally:
        for worker in workers:
            worker.kill()
    with pp.Ledger(place, create=False) as ledger:
        assert ledger.verify().valid
        gone = [f"person-{n}" for n in range(PEOPLE)]
        ledger.erase(*gone)
        assert ledger.verify().valid
    if "://" not in place:
        check_bytes(Path(place), gone)
    return orders, counts


def _repeated(worker, place, answered):
    """A new process in the place of a killed one, after a second call of its operation."""
    if not worker.killed:
        return worker
    new = Worker(place, answered)
    new.finish(*worker.task)
    return new


def _outcome(worker):
    return worker.task[0].__name__, "killed" if worker.killed else worker.kind


def main():
    """Read the options and run all interleavings."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    answered = {name: answers(PEOPLE, net=NETWORKS[name]) for name in ("old", "new")}
    orders, counts, start = set(), collections.Counter(), time.perf_counter()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = None
        if options.database == "postgresql":
            server = stack.enter_context(postgresql.running())
        for n in itertools.count(options.seed):
            done = (n - options.seed) * ROUNDS
            if done >= options.count:
                break
            place = str(folder / f"{n}.db") if server is None else server.new()
            own, more = race(place, min(ROUNDS, options.count - done), n, answered)
            orders |= own
            counts += more
            if n % 25 == 24:
                print(f"{done + ROUNDS:,} interleavings", flush=True)
    for (name, outcome), number in sorted(counts.items()):
        print(f"{name:10s} {outcome:8s} {number:6,}")
    print(
        f"{options.database}: {options.count:,} interleavings, {len(orders):,} different orders of "
        f"{np.mean([len(one) for one in orders]):.0f} steps in the mean, "
        f"0 violations, {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
