"""`proplace experiment` through the command line, on COMPAS at a small size."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from commands import good, run, run_process
from crowds import start
from proplace.core.errors import ProplaceError
from proplace.experiment import archive, settings
from proplace.experiment import run as experiment
from real_data import folder

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
SMALL = ["--data", "COMPAS", "--seed", "0", "--people", "3"]
METHODS = ["--method", "WCE", "--method", "PROPLACE", "--method", "RNCE"]


def environment():
    return {
        **os.environ,
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "PROPLACE_DATA": str(folder()),
    }


@pytest.mark.slow
def test_killed_run_resumes_to_same_table(tmp_path):
    options = [*SMALL, *METHODS]
    data = str(folder())
    whole = good("experiment", *options, "--out", tmp_path / "whole", PROPLACE_DATA=data)
    assert "3/3" in whole.stdout + whole.stderr
    assert "| PROPLACE |" in whole.stdout
    out = tmp_path / "parts"
    arguments = ["experiment", *options, "--out", out]
    killed = start(arguments, at=3, env=environment())
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "results.csv").exists()
    (kept,) = out.glob("cache/*/WCE-*.npz")
    made = kept.stat().st_mtime_ns
    rest = run_process(*arguments, "--jobs", "2", **environment())
    assert rest.returncode == 0, rest.stderr
    assert kept.stat().st_mtime_ns == made  # not run again
    for path in out.glob("*.*"):
        if not path.name.startswith("seconds"):
            assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
    results = pd.read_csv(out / "seeds.csv")
    assert results["method"].tolist() == ["WCE", "PROPLACE", "RNCE"]
    assert results.loc[1, ["found", "valid", "vdelta"]].tolist() == [1.0, 1.0, 1.0]
    assert results["accuracy"].iloc[0] == pytest.approx(0.85, abs=0.02)


@pytest.mark.slow
def test_stored_results_are_computed_again(tmp_path):
    """Cells of ``docs/results``, from the networks of the archive."""
    options = ["--data", "compas", "--seed", "3", *METHODS, "--method", "RobX"]
    good("experiment", *options, "--out", tmp_path, PROPLACE_DATA=str(folder()))
    keys = ["data", "network", "seed", "method"]
    now = pd.read_csv(tmp_path / "seeds.csv").set_index(keys)
    stored = pd.read_csv(ROOT / "docs/results/seeds.csv").set_index(keys)
    columns = [column for column in stored if column != "error"]
    pd.testing.assert_frame_equal(now[columns], stored.loc[now.index, columns], atol=1e-7)


def test_default_is_every_data_set_and_method(tmp_path, monkeypatch):
    asked = []

    def stop(tasks, methods, *_, **__):
        asked.append(([(task.data, task.seed) for task in tasks], methods))
        raise ProplaceError("enough")

    monkeypatch.setattr(experiment, "run", stop)
    run("experiment", "--seed", "4", "--out", tmp_path)
    ((tasks, methods),) = asked
    assert tasks == [(n, 4) for n in ("adult", "compas", "gmc", "heloc", "heloc-repaired")]
    assert methods[:2] == ["PROPLACE", "PROPLACE-Algorithm-1"]
    assert len(methods) == 14


@pytest.mark.slow
def test_algorithm_1_runs_by_its_name(tmp_path):
    words = ["--method", "PROPLACE-Algorithm-1", "--out", tmp_path]
    done = good("experiment", *SMALL, *words, PROPLACE_DATA=str(folder()))
    assert "| PROPLACE-Algorithm-1 | " in done.stdout


def test_networks_are_trained_into_archive(tmp_path, monkeypatch):
    asked = []

    def stop(path, tasks, *_, **__):
        asked.extend(tasks)
        raise ProplaceError("enough")

    monkeypatch.setattr(archive, "build", stop)
    run("experiment", "--train", tmp_path / "archive.zip", "--out", tmp_path)
    assert asked == settings.all_tasks()


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--data", "iris"], "iris"),
        ([*SMALL, "--method", "DICE"], "DICE"),
        (["--data", "gmc", "--seed", "0"], "nowhere"),
    ],
)
def test_wrong_calls_are_rejected(words, word, tmp_path):
    done = run("experiment", *words, "--out", tmp_path, PROPLACE_DATA="nowhere")
    assert done.returncode == 1
    assert isinstance(done.error, ProplaceError)
    assert word in done.stderr
