"""Batches on two processes that are killed again and again, at random moments.

``make kills`` does it a hundred times each. Without ``PROPLACE_KILLS``, a few kills suffice.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from commands import run_process
from crowds import first_rows, rows_done, start, words
from processes import left_behind

psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("PROPLACE_KILLS", "3"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
ROWS = 600


@pytest.fixture
def batch(crowd, whole, tmp_path):
    """Start runs in fresh folders, and check the state when one has ended."""
    people, expected = first_rows(crowd, whole, ROWS)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    class Batch:
        number = finished = 0

        @property
        def out(self):
            return tmp_path / f"out{self.number}"

        def words(self):
            return words(crowd, self.out, "batch.seconds:", 0.02, "--jobs", 2, people=people)

        def start(self):
            environment = {**os.environ, "TMPDIR": str(temporary)}
            return start(self.words(), env=environment, start_new_session=True)

        def ended(self, process, family):
            """Only the folder remains of a run. If all rows are done, start another run."""
            out, err = process.communicate()
            assert left_behind(process.pid, family, temporary) == [], (out, err)
            if process.returncode == 0:
                self.check()
                self.number += 1
                self.finished += 1
            return err

        def finish(self):
            done = run_process(*self.words(), TMPDIR=str(temporary))
            assert done.returncode == 0, done.stderr
            self.check()

        def check(self):
            assert (self.out / "results.csv").read_text() == expected
            assert sorted(p.name for p in self.out.iterdir()) == [
                "certificates",
                "manifest.json",
                "network.npz",
                "results.csv",
            ]

    return Batch()


def family(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []


def workers(process):
    """Worker processes of a run, if there are any now."""
    found = []
    for child in family(process):
        try:
            if "popen_loky" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


@pytest.mark.parametrize("number", SIGNALS)
def test_parent_that_is_killed_at_any_moment(batch, number):
    """No process and no file stays, and what comes out at the end is what a quiet run gives."""
    chance = random.Random(int(number))
    ends = []
    for _ in range(max(1, KILLS // len(SIGNALS))):
        early, done = chance.random() < 0.25, rows_done(batch.out)
        process = batch.start()
        children, moment = [], time.monotonic() + chance.uniform(0.1, 4.0) if early else None
        while process.poll() is None and (moment is None or time.monotonic() < moment):
            if moment is None and rows_done(batch.out) > done:  # it is at work
                moment = time.monotonic() + chance.uniform(0.0, 2.0)
            children = family(process) or children
            time.sleep(0.01)
        children = family(process) or children
        process.send_signal(number)
        err = batch.ended(process, children)
        ends.append(process.returncode)
        orderly = {0, 128 + number, -number} - ({137} if number == signal.SIGKILL else set())
        assert process.returncode in orderly, err
        if number != signal.SIGKILL:
            assert "Traceback" not in err
    batch.finish()
    print(f"\n{number.name}: {len(ends)} kills, ends {sorted(ends)}, {batch.finished} finished")


def test_workers_that_are_killed_at_any_moment(batch):
    """Whatever a run makes of it, no answer is lost for good."""
    chance = random.Random(1)
    killed, ends = 0, []
    while killed < KILLS:
        process, children = batch.start(), []
        goal = rows_done(batch.out)
        while process.poll() is None:
            children = family(process) or children
            ready = killed < KILLS and rows_done(batch.out) >= goal
            if ready and (alive := workers(process)):
                chance.choice(alive).kill()
                killed += 1
                goal = rows_done(batch.out) + chance.choice([0, 1, 1, 20])  # or while they start
            time.sleep(chance.uniform(0.01, 0.2))
        err = batch.ended(process, children)
        ends.append(process.returncode)
        assert process.returncode in (0, 1), err
        if process.returncode:
            assert "Traceback" not in err
    batch.finish()
    print(f"\nworkers: {killed} kills, ends {sorted(ends)}, {batch.finished} finished")
