"""Batches that are killed, interrupted, resumed, and run on clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pandas as pd
import pytest

import proplace as pp
from commands import good, run, run_process, with_project
from crowds import ROWS, first_rows, rows_done, start, start_and_stop, words
from proplace.core.errors import OptionError, OutputError
from support.errors import failed


@pytest.mark.slow
def test_undisturbed_run(crowd, whole):
    assert (whole.rows, whole.resumed) == (ROWS, 0)
    assert whole.statuses["bad_input"] == len(range(0, ROWS, 97))
    assert whole.statuses["optimal"] > 400
    assert sum(whole.statuses.values()) == ROWS
    found = pd.read_csv(whole.results)
    assert found["row"].tolist() == list(range(ROWS))
    answers = found.loc[found["status"] == "optimal", ["a", "b"]].to_numpy()
    net = pp.Network.load(crowd / "model.npz")
    assert pp.certify(net, answers, 0.01).robust.all()


@pytest.mark.slow
def test_killed_three_times_answers_are_same(crowd, whole, tmp_path):
    out = tmp_path / "out"
    arguments = words(crowd, out, "batch.seconds:", 1e-9, "--json")
    seen = []
    for at in (30, 1, 12):  # each time while a shard, or the first one, is written
        process = start(arguments, at=at)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (out / "results.csv").exists()
        seen.append(rows_done(out))
    assert 0 < seen[0] == seen[1] < seen[2] < ROWS
    done = good(*words(crowd, out, "--json"))
    assert done.json["resumed"] == seen[2]
    assert (out / "results.csv").read_bytes() == whole.results.read_bytes()
    assert {path.name for path in out.iterdir()} == {
        *("manifest.json", "network.npz", "results.csv", "certificates")
    }
    # A second command repeats no work.
    stamp = (out / "results.csv").stat().st_mtime_ns
    again = run(*words(crowd, out, "--json"))
    assert again.json["resumed"] == ROWS
    assert (out / "results.csv").stat().st_mtime_ns == stamp


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_cleanly_with_next_step(crowd, whole, tmp_path, number):
    out = tmp_path / "out"
    arguments = words(crowd, out, "batch.seconds:", 1e-9, "--jobs", 2, "--quiet")
    process = start(arguments, at=30, number=number, start_new_session=True)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    assert err.startswith("interrupted")
    assert "Traceback" not in err
    before = rows_done(out)
    assert 0 < before < ROWS
    # The number of processes is not part of the question.
    done = good(*words(crowd, out, "--json"))
    assert done.json["resumed"] == before
    assert (out / "results.csv").read_bytes() == whole.results.read_bytes()


@pytest.mark.slow
def test_ignored_signals_stay_ignored(crowd, whole, tmp_path):
    """As under nohup."""
    people, expected = first_rows(crowd, whole, 200)
    out = tmp_path / "out"
    arguments = words(crowd, out, "batch.seconds:", 1e-9, people=people)
    process = start(arguments, at=10, number=signal.SIGHUP, ignore=signal.SIGHUP)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert (out / "results.csv").read_text() == expected


def test_options_and_folders_that_make_no_sense(crowd, tmp_path):
    out = tmp_path / "out"
    (crowd / "one.csv").write_text("a,b\n0.1,0.2\n")
    for backend in ("loky", "dask", "ray"):
        arguments = words(crowd, out, "--jobs", 0, "--backend", backend, people="one.csv")
        failed(run(*arguments), OptionError, name="--jobs", value=0)
    assert not out.exists()
    good(*words(crowd, out, people="one.csv"))
    one = words(crowd, out, "--row", 0, people="one.csv")
    failed(run(*one), OutputError, name="row")
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["question"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    again = run(*words(crowd, out, people="one.csv"))
    failed(again, OutputError, name="manifest.json")


@pytest.mark.slow
def test_input_that_is_overwritten_during_run(crowd, whole, tmp_path):
    path, out = tmp_path / "people.csv", tmp_path / "out"
    content = (crowd / "people.csv").read_bytes()
    path.write_bytes(content)
    process = start_and_stop(
        words(crowd, out, "batch.seconds:", 1e-9, "--quiet", people=path), at=20
    )
    lines = content.splitlines(keepends=True)
    with path.open("r+b") as file:
        file.writelines([lines[0], *reversed(lines[1:])])
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate()
    assert (process.returncode, err.count("\n")) == (1, 1)
    assert str(path) in err
    assert not (out / "results.csv").exists()
    path.write_bytes(content)
    good(*words(crowd, out, people=path))
    assert (out / "results.csv").read_bytes() == whole.results.read_bytes()


def test_another_question_is_refused(crowd, tmp_path):
    few = crowd / "few.csv"
    few.write_text("a,b\n0.1,0.2\n0.2,0.1\n")
    out = tmp_path / "out"
    good(*words(crowd, out, people="few.csv"))
    before = (out / "results.csv").read_bytes()
    other = tmp_path / "other.csv"
    other.write_text("a,b\n0.5,0.5\n0.9,0.9\n")
    cases = {
        "delta": words(crowd, out, people="few.csv", delta=0.02),
        "target": words(crowd, out, "--target", 0, people="few.csv"),
        "input": words(crowd, out),
        "training rows": words(crowd, out, "--train", other, people="few.csv"),
        "count": words(crowd, out, "--count", 2, people="few.csv"),
    }
    for name, arguments in cases.items():
        failed(run(*arguments), OutputError, name=name)
    assert (out / "results.csv").read_bytes() == before


@pytest.mark.slow
def test_two_runs_do_not_share_folder(crowd, tmp_path):
    pytest.importorskip("fcntl")
    out = tmp_path / "out"
    process = start_and_stop(words(crowd, out), at=1)
    try:
        failed(run(*words(crowd, out)), OutputError, name=out.name)
    finally:
        process.kill()
        process.communicate()


def test_person_sees_progress_and_summary(crowd, tmp_path):
    pty = pytest.importorskip("pty")
    few = crowd / "some.csv"
    few.write_text("a,b\n" + "0.1,0.2\n" * 20)
    ours, theirs = pty.openpty()
    arguments = words(crowd, tmp_path / "out", people="some.csv")
    process = subprocess.Popen(
        [sys.executable, "-m", "proplace", *with_project(arguments)],
        stderr=theirs,
        stdout=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    process.wait()
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 10_000):
            shown += chunk
    except OSError:  # the other end is closed and all is read
        pass
    os.close(ours)
    assert b"20/20" in shown
    assert b"20 optimal" in shown


@pytest.mark.slow
def test_dask_cluster_gives_same_table(crowd, whole, tmp_path):
    distributed = pytest.importorskip("distributed")
    people, expected = first_rows(crowd, whole, 80)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        place = ["--backend", "dask", "batch.address:", cluster.scheduler_address]
        done = run_process(*words(crowd, tmp_path / "out", *place, people=people))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "results.csv").read_text() == expected


@pytest.mark.slow
def test_ray_gives_same_table(crowd, whole, tmp_path):
    pytest.importorskip("ray")
    people, expected = first_rows(crowd, whole, 80)
    arguments = words(crowd, tmp_path / "out", "--backend", "ray", "--jobs", 2, people=people)
    done = run_process(*arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "results.csv").read_text() == expected


@pytest.mark.slow
def test_cluster_that_is_not_there(crowd, tmp_path):
    pytest.importorskip("distributed")
    place = ["--backend", "dask", "batch.address:", "tcp://127.0.0.1:9"]
    done = run_process(
        *words(crowd, tmp_path / "out", *place), DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="1s"
    )
    assert done.returncode == 1
    assert "tcp://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
