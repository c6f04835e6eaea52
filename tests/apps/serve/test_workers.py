"""Workers: an answer each, a limit that holds, and a death that costs one question."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import psutil
import pytest

from processes import left_behind
from proplace.apps.serve import workers as workers_module
from proplace.apps.serve.access import Refused
from proplace.apps.serve.workers import Busy, Cancelled, Died, Failed, Late, Workers
from proplace.core.errors import InputError, MissingExtra, ProplaceError


def functions():
    def raising(error):
        raise error

    def ending(status):
        os._exit(status)

    return {
        "double": lambda n: 2 * n,
        "pid": os.getpid,
        "niceness": lambda: os.nice(0),
        "sleep": time.sleep,
        "raise": raising,
        "extra": lambda: raising(MissingExtra("matplotlib", "plot", "a picture")),
        "end": ending,
        "lock": threading.Lock,
        "hold": hold,
    }


def hold(size, seconds):
    """Hold so many bytes for a while."""
    held = b"x" * size
    time.sleep(seconds)
    return len(held)


def broken():
    raise InputError("there is no such model")


@pytest.fixture(scope="module")
def shared():
    """Two processes for questions that do them no harm, or that they survive."""
    workers = Workers(functions, 2, 64, niceness=2)
    yield workers
    workers.stop()


def ask(workers, name, *arguments, seconds=30.0):
    return workers.ask(name, *arguments, seconds=seconds).future.result(60)


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_question_gets_its_own_answer(shared):
    tasks = [shared.ask("double", n, seconds=30.0) for n in range(60)]
    assert [task.future.result(60) for task in tasks] == [2 * n for n in range(60)]
    assert shared.waiting == 0
    until(lambda: shared.running == 0)


def test_searches_stand_back(shared):
    assert ask(shared, "niceness") == min(os.nice(0) + 2, 19)


@pytest.mark.parametrize(
    "error",
    [InputError("debt: too much"), Refused(409, "seen before", after=3), LookupError("debt")],
)
def test_errors_come_back_as_they_were(shared, error):
    expected = type(error) if isinstance(error, ProplaceError) else Failed
    with pytest.raises(expected, match=str(error).strip("'")) as caught:
        ask(shared, "raise", error)
    assert type(caught.value) is expected
    if isinstance(error, Refused):
        assert (caught.value.status, caught.value.after) == (409, 3)


def test_an_error_that_cannot_be_sent_is_told_all_the_same(shared):
    with pytest.raises(ProplaceError, match=r"proplace\[plot\]"):
        ask(shared, "extra")


def test_an_answer_that_cannot_be_sent(shared):
    with pytest.raises(Failed, match="TypeError"):
        ask(shared, "lock")
    assert ask(shared, "double", 4) == 8


def test_a_death_costs_one_question(shared):
    before = shared.restarts
    with pytest.raises(Died):
        ask(shared, "end", 3)
    assert [ask(shared, "double", n) for n in range(4)] == [0, 2, 4, 6]
    until(lambda: shared.restarts == before + 1)


def test_a_kill_costs_one_question(shared):
    pid = ask(shared, "pid")
    slow = [shared.ask("sleep", 30, seconds=60.0) for _ in range(2)]
    until(lambda: shared.running == 2)
    psutil.Process(pid).kill()
    until(lambda: any(task.future.done() for task in slow))
    (dead,) = [task for task in slow if task.future.done()]
    with pytest.raises(Died, match="ask again"):
        dead.future.result()
    assert ask(shared, "double", 21) == 42  # the other one is still asleep
    for task in slow:
        task.cancel()
    until(lambda: shared.running == 0)


def test_a_worker_that_dies_with_nothing_to_do_is_replaced():
    workers = Workers(functions, 1, 4)
    try:
        pid = ask(workers, "pid")
        psutil.Process(pid).kill()
        until(lambda: workers.restarts == 1)
        assert ask(workers, "pid") != pid
    finally:
        workers.stop()


def test_a_search_that_takes_too_long_is_ended(shared, monkeypatch):
    monkeypatch.setattr("proplace.apps.serve.workers._GRACE", 0.0)
    pids = {ask(shared, "pid") for _ in range(20)}
    task = shared.ask("sleep", 60, seconds=0.3)
    with pytest.raises(Late, match=r"longer than 0\.3 s"):
        task.future.result(60)
    until(lambda: sum(psutil.pid_exists(pid) for pid in pids) < len(pids))
    assert ask(shared, "double", 1) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_search_that_takes_too_much_memory_is_ended():
    workers = Workers(functions, 1, 4, memory=2**28)
    try:
        first = ask(workers, "pid")
        assert ask(workers, "hold", 2**20, 0.5) == 2**20
        with pytest.raises(Failed, match="more memory than it may"):
            ask(workers, "hold", 2**29, 60.0)
        assert not psutil.pid_exists(first)
        assert ask(workers, "double", 4) == 8
        assert workers.restarts == 1
    finally:
        workers.stop()


def test_a_search_that_is_given_up_is_ended(shared):
    task = shared.ask("sleep", 60, seconds=90.0)
    until(task.future.running)
    task.cancel()
    with pytest.raises(Cancelled):
        task.future.result(60)


def test_a_full_queue_refuses_and_what_waits_can_be_given_up():
    workers = Workers(functions, 1, 2)
    try:
        first = workers.ask("sleep", 60, seconds=90.0)
        until(first.future.running)
        waiting = [workers.ask("double", n, seconds=30.0) for n in range(2)]
        with pytest.raises(Busy):
            workers.ask("double", 3, seconds=30.0)
        waiting[0].cancel()
        first.cancel()
        assert waiting[1].future.result(60) == 2
        with pytest.raises(CancelledError):
            waiting[0].future.result(0)
    finally:
        workers.stop()


def test_stopping_ends_all_processes_and_tells_those_who_wait():
    workers = Workers(functions, 1, 4)
    pid = ask(workers, "pid")
    running = workers.ask("sleep", 60, seconds=90.0)
    until(running.future.running)
    waiting = workers.ask("double", 1, seconds=30.0)
    workers.stop()
    for task in (running, waiting):
        with pytest.raises((Cancelled, Died)):
            task.future.result(0)
    assert not psutil.pid_exists(pid)
    with pytest.raises(Busy, match="stopping"):
        workers.ask("double", 1, seconds=30.0)


def test_a_process_that_cannot_start_says_why():
    workers = Workers(broken, 1, 4)
    try:
        for _ in range(2):
            with pytest.raises(InputError, match="no such model"):
                ask(workers, "double", 1)
    finally:
        workers.stop()


def test_a_process_that_cannot_be_made_costs_one_question(monkeypatch):
    """As where there is no memory for another one; the next question has one again."""
    make, fails = workers_module._Worker, [True, True]

    def starting(*given):
        if fails and fails.pop():
            raise OSError("no memory")
        return make(*given)

    monkeypatch.setattr(workers_module, "_Worker", starting)
    workers = Workers(functions, 1, 4)
    try:
        with pytest.raises(Died, match="ask again"):
            ask(workers, "double", 1)
        assert ask(workers, "double", 2) == 4
    finally:
        workers.stop()


SERVER = """
import os, time
from proplace.apps.serve.workers import Workers

def functions():
    return {"pid": os.getpid, "sleep": time.sleep}

if __name__ == "__main__":
    workers = Workers(functions, 1, 4)
    print(workers.ask("pid", seconds=30.0).future.result(), flush=True)
    workers.ask("sleep", 600, seconds=600.0).future.result()
"""


def test_a_search_ends_when_the_process_that_serves_is_killed(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as server:
        worker = psutil.Process(int(server.stdout.readline()))
        time.sleep(0.5)  # it sleeps in a search
        server.kill()
        server.wait()
        assert left_behind(server.pid, [worker]) == []
