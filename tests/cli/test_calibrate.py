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
        *("--model", files / "now.npz", files / "later.npz"),
        *("--train", files / "train.csv", "--input", files / "people.csv"),
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
        *("--model", files / "now.npz", files / "later.npz"),
        *("--train", files / "nothing.csv", "--input", files / "people.csv"),
    )
    assert done.returncode == 1
    assert "nothing.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cell_that_is_no_number_is_named(files):
    """It was said that everybody is accepted already."""
    words = ["--model", files / "now.npz", files / "later.npz", "--train", files / "train.csv"]
    (files / "people.csv").write_text("x\n[/b]\n")
    done = run(*words, "--input", files / "people.csv", "--delta", 0.07)
    assert done.returncode == 1
    assert "no row can be used; the first: row 0, column 'x': '[/b]' is not a number" in done.stderr
    (files / "people.csv").write_text("x\n0.1\n1_000\n0.3\n")
    done = run(*words, "--input", files / "people.csv", "--delta", 0.07)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "delta 0.07"
    note = "1 of 3 rows are left out; the first: row 1, column 'x': '1_000' is not a number"
    assert note in done.stderr


def test_labels_are_read_as_the_schema_spells_them(files):
    schema = pp.Schema([pp.Continuous("x", 0, 1), pp.Binary("code", ["017", "None"])])
    schema.write(files / "schema.yaml")
    for name, t in (("now", 0.5), ("later", 0.6)):
        pp.Network([([[1.0, 0.0]], [-t])]).save(files / f"{name}.npz")
    rows = "".join(f"{x};{c};7\n" for x in (0.1, 0.2, 0.8, 0.9, 1.0) for c in ("017", "None"))
    (files / "train.csv").write_text("x;code;label\n" + rows)
    (files / "people.csv").write_text("code;x\nNone;0.1\n017;0.3\n")
    done = run(
        *("--model", files / "now.npz", files / "later.npz", "--schema", files / "schema.yaml"),
        *("--train", files / "train.csv", "--input", files / "people.csv"),
        *("--delta", 0.05, "--delta", 0.07, "--delimiter", ";", "--drop", "label"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "delta 0.07"
    assert "left out" not in done.stderr


def test_without_a_schema_a_column_can_be_dropped(files):
    (files / "train.csv").write_text("x,y\n0.1,0\n0.2,0\n0.8,1\n0.9,1\n1.0,1\n")
    words = ["--model", files / "now.npz", files / "later.npz", "--train", files / "train.csv"]
    words += ["--input", files / "people.csv", "--delta", 0.07]
    done = run(*words)
    assert done.returncode == 1
    assert "2 columns where the network takes 1" in done.stderr
    assert run(*words, "--drop", "y").stdout.splitlines()[-1] == "delta 0.07"
