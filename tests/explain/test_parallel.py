"""The same answers on processes, on Dask and on Ray, whether or not a worker dies."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager

import joblib
import numpy as np
import pytest

import proplace as pp
from processes import left_behind
from proplace.core.errors import OptionError, WorkerError
from proplace.explain.parallel import Workers
from support.clocks import PATIENCE
from support.errors import raises
from support.tiers import only

BACKENDS = only(["loky"], ["loky", "dask", "ray"])


def loky():
    return {"backend": "loky", "n_jobs": 2}


@pytest.fixture(scope="module")
def dask_cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        yield {"backend": "dask"}


@pytest.fixture(scope="module")
def ray_cluster():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_ray()
    yield {"backend": "ray", "n_jobs": 2}
    ray.shutdown()


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Arguments of joblib.parallel_config for two worker processes."""
    if request.param == "loky":
        return loky()
    return request.getfixturevalue(f"{request.param}_cluster")


@contextmanager
def workers_of(shared, backend):
    with (
        joblib.parallel_config(**backend),
        Workers(operator.call, shared, lost=lambda item: f"lost {item}") as workers,
    ):
        yield workers


# Functions that travel by value: workers do not import the tests.


def loud(log):
    """Squares. Opening the parcel adds a line to the log."""

    class Loud:
        def __setstate__(self, state):
            self.__dict__.update(state)
            with open(log, "a") as file:
                file.write(f"{os.getpid()}\n")

        def __call__(self, item):
            time.sleep(0.005)
            return item * item, os.getpid()

    shared = Loud()
    shared.weight = np.ones(1000)
    return shared


def deadly(flag, killer, *, always):
    """Squares. One item ends its process, the first time or always."""

    def shared(item):
        time.sleep(0.01)
        if item == killer and (always or not os.path.exists(flag)):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item

    return shared


def test_parcel_is_opened_once_in_each_process(backend, tmp_path):
    log = tmp_path / "log"
    with workers_of(loud(log), backend) as workers:
        first = list(workers.map(range(40)))
        second = list(workers.map(range(40, 120)))
    assert [value for value, _ in first + second] == [n * n for n in range(120)]
    used = {pid for _, pid in first + second}
    assert os.getpid() not in used
    opened = Counter(int(line) for line in log.read_text().split())
    assert used <= set(opened)
    assert set(opened.values()) == {1}


@pytest.mark.slow
def test_item_that_always_kills_is_reported_and_others_are_done(tmp_path):
    with workers_of(deadly(tmp_path / "died", 3, always=True), loky()) as workers:
        found = list(workers.map(range(8)))
    assert found == ["lost 3" if n == 3 else n * n for n in range(8)]


@pytest.mark.slow
def test_workers_that_all_fail_end_run(monkeypatch):
    monkeypatch.setattr("proplace.explain.parallel._ATTEMPTS", 1)
    monkeypatch.setattr("proplace.explain.parallel._LOST", 1)

    def shared(item):
        os.kill(os.getpid(), signal.SIGKILL)

    with workers_of(shared, loky()) as workers:
        results = workers.map(range(100))
        assert next(results) == "lost 0"
        with raises(WorkerError):
            next(results)


def test_errors_of_caller_are_not_tried_again(tmp_path):
    log = tmp_path / "log"

    def shared(item):
        with open(log, "a") as file:
            file.write(f"{item}\n")
        raise OptionError("no")

    with workers_of(shared, loky()) as workers, pytest.raises(OptionError, match="no"):
        list(workers.map([1]))
    assert log.read_text() == "1\n"


def test_no_jobs_at_all_are_refused():
    net = pp.Network([([[1.0]], [0.0])])
    with raises(OptionError, name="n_jobs", value=0):
        pp.Proplace(net, 0.1, n_jobs=0).fit([[1.0]])


def test_one_job_starts_no_process_and_pickles_nothing():
    lock = threading.Lock()  # cannot be pickled
    with Workers(lambda shared, item: (shared, item), lock, lost=str) as workers:
        assert list(workers.map([1, 2])) == [(lock, 1), (lock, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_parcel_file_is_gone_afterwards(tmp_path, monkeypatch, named):
    """The file has a name only if the system does not show the open files of a process."""
    if named:
        monkeypatch.setattr("proplace.explain.parallel._PROC", tmp_path / "nowhere")
    elif not os.path.exists("/proc/self/fd"):
        pytest.skip("this system has no /proc")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workers_of(deadly(tmp_path / "died", 2, always=False), loky()) as workers:
        assert list(workers.map(range(5))) == [n * n for n in range(5)]
        assert len(list(tmp_path.glob("*.parcel"))) == named
    assert [path.name for path in tmp_path.iterdir()] == ["died"]


@pytest.mark.slow
def test_answer_takes_all_failures_back(tmp_path, monkeypatch):
    """Failures count only while no item succeeds. Otherwise, healthy items would be lost."""
    monkeypatch.setattr("proplace.explain.parallel._ATTEMPTS", 1)
    folder = str(tmp_path)

    def shared(item):
        flag = os.path.join(folder, str(item))
        if item in (2, 5) and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        return item

    with workers_of(shared, loky()) as workers:
        assert list(workers.map(range(7))) == list(range(7))
    assert sorted(os.listdir(tmp_path)) == ["2", "5"]


@pytest.mark.slow
def test_items_that_are_lost_far_apart_do_not_end_run(monkeypatch):
    monkeypatch.setattr("proplace.explain.parallel._ATTEMPTS", 0)
    monkeypatch.setattr("proplace.explain.parallel._LOST", 1)

    def shared(item):
        if item in (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with workers_of(shared, loky()) as workers:
        assert list(workers.map(range(5))) == [0, "lost 1", 2, "lost 3", 4]


def test_result_of_another_item_is_not_taken(monkeypatch):
    """A broken pool may return results of an earlier call. It is replaced, and the call is repeated."""
    asked = []

    class Crew:
        streams, size, token, parcel = True, 2, "token", None

        def __init__(self, *_):
            self.stale = not asked

        def parallel(self, calls):
            for _, (_, _, _, (number, item)), _ in calls:
                asked.append(item)
                yield number + self.stale, item

    monkeypatch.setattr("proplace.explain.parallel._Pool", Crew)
    with workers_of(None, loky()) as workers:
        assert list(workers.map("abc")) == ["a", "b", "c"]
    assert asked == ["a", "a", "b", "c"]


# -- the parent dies -----------------------------------------------------------------------------

PARENT = """
import operator, pathlib, signal, sys, time
import joblib
from proplace.explain import parallel

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests under nohup ignores it

parallel._PROC = pathlib.Path(sys.argv[1])
shared = lambda item: time.sleep(0.02) or item
with joblib.parallel_config("loky", n_jobs=2):
    with parallel.Workers(operator.call, shared, lost=str) as workers:
        for item in workers.map(range(100_000)):
            print(item, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("proc", ["/proc", "/nowhere"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_workers_die_with_their_parent(tmp_path, number, proc):
    """Nothing stays: no process, nobody who holds an end of a pipe, no file with training rows."""
    psutil = pytest.importorskip("psutil")
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, proc],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert [process.stdout.readline() for _ in range(5)] == [b"%d\n" % n for n in range(5)]
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    assert bool(list(tmp_path.glob("*.parcel"))) == (proc == "/nowhere")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)  # ends when the last holder of the pipes has ended
    assert process.returncode == -number
    assert left_behind(process.pid, family, tmp_path) == []


def test_workers_that_start_after_their_parent_has_died_end_at_once():
    """The parent may die before a worker has looked at it for the first time."""
    imports = "import os, time; from proplace.explain.parallel import _exit_with_parent"
    code = f"{imports}; _exit_with_parent(os.getppid() + 1)"
    words = [sys.executable, "-c", f"{code}; time.sleep(3600)"]
    done = subprocess.run(words, check=False, timeout=PATIENCE)
    assert done.returncode == 1


# -- the explainer on top ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(3)
    X = rng.random((300, 4))
    net = pp.Network([(rng.normal(size=(8, 4)), np.zeros(8)), (rng.normal(size=(1, 8)), [0.0])])
    net = pp.Network(
        [(layer.W, layer.b) for layer in net.layers[:1]]
        + [(net.layers[1].W, -np.median(net.logits(X), axis=0))]
    )
    people = X[net.predict(X) == 0][:40].copy()
    people[5, 1] = np.nan
    explainer = pp.Proplace(net, 0.01, k=8).fit(X)
    return explainer, people, explainer.explain(people, count=2).to_frame()


@pytest.mark.slow
def test_explanations_are_those_of_one_process(backend, world):
    explainer, people, table = world
    with joblib.parallel_config(**backend):
        found = explainer.explain(people, count=2).to_frame()
    assert found.equals(table)
    assert (table["status"] == "bad_input").sum() == 1
    assert (table["status"] == "optimal").sum() > 40


def test_bad_row_stays_one_if_its_worker_dies(monkeypatch, world):
    """The reason needs no worker, and the row cannot be shown in original units."""
    explainer, people, _ = world
    monkeypatch.setattr(Workers, "map", lambda self, items: map(self._lost, items))
    found = explainer.explain(people[4:7])
    assert [e.status for e in found] == ["worker_died", "bad_input", "worker_died"]
    assert found[1].reason == "column 'x1': nan is not finite"
    assert found[0].original.tolist() == people[4].tolist()


def _pids(backend):
    """Worker processes of a backend, counted from outside."""
    psutil = pytest.importorskip("psutil")
    if backend["backend"] == "dask":
        from distributed import get_client

        return list(get_client().run(os.getpid).values())
    word = {"loky": "loky", "ray": "PoolActor"}[backend["backend"]]
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:  # it has ended meanwhile
            continue
        if word in line and "tracker" not in line:
            found.append(process.pid)
    return found


@pytest.mark.slow
def test_worker_killed_from_outside_changes_no_answer(backend, world):
    explainer, people, table = world
    killed = []

    def kill_one(_):
        if not killed and (alive := _pids(backend)):
            killed.append(alive[0])
            os.kill(killed[0], signal.SIGKILL)

    with joblib.parallel_config(**backend):
        parts = list(
            explainer.stream(
                [people[:25], people[25:]],
                explainer.request(count=2),
                every=0.0,
                advance=kill_one,
            )
        )
    assert killed
    rows = [explanation for part in parts for explanation in part]
    assert [r.status for r in rows] == table["status"].tolist()
    assert [r.distance for r in rows if r.found] == table["distance"].dropna().tolist()
    assert all(part.complete for part in parts)
