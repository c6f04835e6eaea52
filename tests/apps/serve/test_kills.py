"""The service is killed at work: no promise is lost, jobs go on, the chain holds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

import proplace as pp
import small_promises as small
from processes import left_behind
from proplace.client import ServiceError
from service_process import Running, write_config

KILLS = int(os.environ.get("PROPLACE_KILLS", "1"))
long = pytest.mark.skipif(
    "PROPLACE_KILLS" not in os.environ, reason="a minute and more: make kills runs it"
)
PEOPLE = 40


@pytest.fixture
def service(tmp_path):
    running = Running(write_config(tmp_path, workers=2))
    yield running
    running.stop(signal.SIGKILL)


def start_job(client, answers):
    """Ask for many people in a thread, which waits through everything that happens."""

    def ask():
        try:
            answers.extend(client.explain(small.refused(PEOPLE)))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def done(client):
    jobs = client.jobs()
    return jobs[0].done if jobs else 0


def check_answers(answers):
    """Every person has the answer that the library gives."""
    fitted = pp.Proplace(small.NET, 0.01, schema=small.SCHEMA, prefer="few", holds=True)
    expected = fitted.fit(small.TRAINING).explain(small.refused(PEOPLE))
    assert [getattr(a, "index", a) for a in answers] == list(range(PEOPLE))
    for answer, one in zip(answers, expected, strict=True):
        assert answer.certificate.digest == one.certificate.digest
        assert answer.changed == one.changed


@long
def test_a_server_that_is_killed_goes_on_with_its_jobs_and_has_lost_no_promise(service):
    """Promises are issued all the while: each that was confirmed is there, once, and the chain holds."""
    chance, answers, confirmed = random.Random(0), [], []
    client = service.client()
    seen = {f"person-{n}": client.explain(small.refused(1, n))[0] for n in range(30)}
    thread = start_job(client, answers)
    over = threading.Event()

    def promise():
        for person, answer in seen.items():
            if over.is_set():
                return
            confirmed.append((client.issue(answer, person).promise, person))

    promising = threading.Thread(target=promise)
    promising.start()
    killed = 0
    while killed < KILLS:
        before = done(client)
        goal, promised = before + chance.choice([1, 3, 6]), len(confirmed)
        until(
            lambda goal=goal, promised=promised: done(client) >= goal and len(confirmed) > promised
        )
        family = service.kill()
        killed += 1
        assert left_behind(service.process.pid, family) == []
        service.start()
    thread.join(120)
    over.set()
    promising.join(60)
    assert not thread.is_alive()
    assert not promising.is_alive()
    check_answers(answers)
    assert len(client.jobs()) == 1
    table = client.promises()
    assert len(confirmed) > KILLS
    for number, person in confirmed:
        assert table.loc[number, "person"] == person
        assert table.loc[number, "state"] == "open"
    assert not table["person"].duplicated().any()  # asked again, it was not issued again
    assert client.verify().good


@long
def test_workers_that_are_killed_cost_nothing_but_time(service):
    chance, answers = random.Random(1), []
    client = service.client()
    thread = start_job(client, answers)
    until(lambda: done(client) > 0)
    for _ in range(KILLS):
        until(lambda: service.health()["running"] > 0 and service.workers())
        chance.choice(service.workers()).kill()
        assert client.predict({"income": 90, "debt": 8})[0].accepted  # answered at once
        reached = done(client)
        until(lambda reached=reached: done(client) > reached or not thread.is_alive())
    thread.join(120)
    check_answers(answers)


def test_a_stop_in_good_order_ends_all_and_the_job_goes_on(service):
    answers, client = [], service.client()
    thread = start_job(client, answers)
    until(lambda: done(client) > 2)
    family = service.workers()
    assert service.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    assert left_behind(service.process.pid, family) == []
    assert "Traceback" not in service.log
    assert service.log.count("stopped; 1 job goes on at the next start\n") == 1
    service.start()
    thread.join(120)
    check_answers(answers)


def test_nobody_waits_for_a_service_that_does_not_come_back(service):
    client = service.client(patience=0.5)
    family = service.kill()
    with pytest.raises(ServiceError, match="no service answers"):
        client.models()
    assert left_behind(service.process.pid, family) == []
