"""`proplace calibrate` through the command line."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import commands
import proplace as pp
from refits import SHAPES, fitted, people, retrained


def run(*words):
    return commands.run("calibrate", *words)


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


# -- whole models ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lender(tmp_path_factory):
    """Pipelines exported by skl2onnx, all of them with scalers and encoders of their own."""
    pytest.importorskip("skl2onnx")
    from skl2onnx import to_onnx

    folder = tmp_path_factory.mktemp("lender")
    table, decided = people(160, 0)
    steps = SHAPES["standard"]
    pipe = fitted(steps(), table, decided)
    pipes = {"now": pipe}
    for seed in (1, 2):
        sample, new = people(8, seed)
        rows, labels = pd.concat([table, sample], ignore_index=True), [*decided, *new]
        pipes[f"later-{seed}"] = retrained(pipe, steps(), rows, labels, epochs=1)
    for name, model in pipes.items():
        made = to_onnx(model, table.astype({"age": "float64"}).iloc[:1], options={"zipmap": False})
        (folder / f"{name}.onnx").write_bytes(made.SerializeToString())
    refused = table[pipe.predict(table) == "no"].head(5)
    table.assign(number=range(len(table)), decided=decided).to_csv(
        folder / "train.csv", index=False
    )
    refused.to_csv(folder / "people.csv", index=False)
    refused.to_parquet(folder / "people.parquet", index=False)
    return folder, pipes, table, refused


def asked(folder, *more, people="people.csv", model="now.onnx"):
    return run(
        *("--model", folder / model, folder / "later-1.onnx", folder / "later-2.onnx"),
        *("--train", folder / "train.csv", "--input", folder / people, "--target", "yes"),
        *("--id", "number", "--drop", "decided", "--k", 5, *more),
    )


@pytest.mark.parametrize("people", ["people.csv", "people.parquet"])
def test_exported_pipelines_whose_scalers_were_fitted_again(lender, people):
    """Measured on the command line as in Python, and validity as the pipelines themselves say."""
    folder, pipes, table, refused = lender
    done = asked(folder, "--delta", 0.001, "--delta", 0.003, "--json", people=people)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    later = [pipes["later-1"], pipes["later-2"]]
    found = pp.calibrate_delta(
        pipes["now"], later, table, refused, target="yes", deltas=[0.001, 0.003], k=5
    )
    assert facts["delta"] == found.delta
    assert facts["accepted"] == found.accepted
    assert [change["model"] for change in facts["changes"]] == [
        str(folder / f"later-{seed}.onnx") for seed in (1, 2)
    ]
    moved = [change["change"] for change in facts["changes"]]
    assert moved == pytest.approx(found.changes.tolist(), rel=1e-3)  # ONNX holds float32
    for theirs, (_, ours) in zip(facts["curve"], found.curve.iterrows(), strict=True):
        assert theirs["delta"] == ours["delta"]
        assert theirs["validity"] == ours["validity"]
        assert theirs["robust_rows"] == pytest.approx(ours["robust_rows"], abs=1)
        assert theirs["distance"] == pytest.approx(ours["distance"], rel=1e-2)
    assert not facts["scarce"]


def test_how_many_accepted_rows_stay_robust_is_shown(lender):
    folder, pipes, table, _ = lender
    done = asked(folder, "--delta", 0.001)
    assert done.returncode == 0, done.stderr
    accepted = int((pipes["now"].predict(table) == "yes").sum())
    title, line = done.stdout.splitlines()[:2]
    assert title.split() == ["delta", "validity", "robust", "rows", "answered", "distance"]
    assert line.split()[0] == "0.001"
    assert f"of {accepted} (" in line


def test_too_few_robust_rows_end_with_a_status_and_what_to_do(files):
    rows = [0.1, *[0.51 + 0.001 * i for i in range(31)], 1.0]
    pd.DataFrame({"x": rows}).to_csv(files / "train.csv", index=False)
    words = ["--model", files / "now.npz", files / "later.npz", "--train", files / "train.csv"]
    words += ["--input", files / "people.csv", "--delta", 0.001, "--delta", 0.07]
    done = run(*words)
    assert done.returncode == 1
    assert "0.07 100.0% 1 of 32 (3.1%)" in " ".join(done.stdout.split())
    assert "delta 0.001 (best; without enough robust rows)" in done.stdout
    assert "warning: delta 0.07, with a validity of 100.0%, leaves 1 of 32 accepted" in done.stderr
    assert "take such a delta knowingly (least_robust=0, --least-robust 0)" in done.stderr
    told = run(*words, "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["scarce"]
    taken = run(*words, "--least-robust", 0)
    assert taken.returncode == 0
    assert taken.stdout.splitlines()[-1] == "delta 0.07"


def test_nothing_is_overwritten(files):
    for option in ("--curve", "--picture"):
        (files / "mine").write_text("mine")
        done = run(
            *("--model", files / "now.npz", files / "later.npz", "--delta", 0.07),
            *("--train", files / "train.csv", "--input", files / "people.csv"),
            *(option, files / "mine"),
        )
        assert done.returncode == 1
        assert "is there already" in done.stderr
        assert (files / "mine").read_text() == "mine"
