"""`proplace calibrate` through the command line."""

from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest

import proplace as pp


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "proplace", "calibrate", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def files(tmp_path):
    for name, t in (("now", 0.5), ("later", 0.6)):
        pp.Network([([[1.0]], [-t])]).save(tmp_path / f"{name}.npz")
    pd.DataFrame({"x": [0.1, 0.2, 0.8, 0.9, 1.0]}).to_csv(tmp_path / "train.csv", index=False)
    pd.DataFrame({"x": [0.1, 0.3]}).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


def test_command_prints_delta_and_writes_the_curve(files):
    done = run(
        *(files / "now.npz", files / "later.npz"),
        *("--train", files / "train.csv", "--people", files / "people.csv"),
        *("--delta", 0.05, "--delta", 0.07, "--delta", 0.4, "--curve", files / "curve.csv"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "delta 0.07"
    assert "at most 0.1" in done.stdout
    assert "warning: no training row is robust at delta 0.4" in done.stderr
    curve = pd.read_csv(files / "curve.csv")
    assert curve["delta"].tolist() == [0.05, 0.07, 0.4]
    assert curve["validity"].iloc[:2].tolist() == [0.0, 1.0]


def test_command_says_what_is_wrong(files):
    done = run(
        *(files / "now.npz", files / "later.npz"),
        *("--train", files / "nothing.csv", "--people", files / "people.csv"),
    )
    assert done.returncode == 1
    assert "nothing.csv" in done.stderr
    assert "Traceback" not in done.stderr
