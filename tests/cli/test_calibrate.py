"""`proplace calibrate` through the command line."""

from __future__ import annotations

import pandas as pd
import pytest

import commands
import proplace as pp
from proplace.core.errors import OptionError, OutputError, SchemaError, TableError
from refits import SHAPES, fitted, people, retrained
from support.errors import failed


def run(*words):
    return commands.run("calibrate", *words)


def good(*words):
    return commands.good("calibrate", *words)


@pytest.fixture
def files(tmp_path):
    for name, t in (("now", 0.5), ("later", 0.6)):
        pp.Network([([[1.0]], [-t])]).save(tmp_path / f"{name}.npz")
    pd.DataFrame({"x": [0.1, 0.2, 0.8, 0.9, 1.0]}).to_csv(tmp_path / "train.csv", index=False)
    pd.DataFrame({"x": [0.1, 0.3]}).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


def given(files, *more, train="train.csv"):
    """Options of `calibrate` that work."""
    project = ("model:", files / "now.npz", "tables.train:", files / train)
    return (files / "later.npz", *project, "--input", files / "people.csv", *more)


def test_command_prints_delta_and_curve(files):
    deltas = ("calibration.deltas:", [0.05, 0.07, 0.4])
    done = good(*given(files, *deltas))
    assert done.stdout.splitlines()[-2].startswith("Delta 0.07: 1 retrained model accepts 100.0%")
    assert "0.4" in done.stderr  # no training row is robust there
    curve = good(*given(files, *deltas, "--json")).json["curve"]
    assert [(line["delta"], line["validity"]) for line in curve[:2]] == [(0.05, 0.0), (0.07, 1.0)]


def test_missing_table_is_named(files):
    done = run(*given(files, train="nothing.csv"))
    failed(done, OptionError)
    assert "nothing.csv" in done.stderr


def test_cell_that_is_no_number_is_named(files):
    """The error used to claim that everybody is accepted already."""
    (files / "people.csv").write_text("x\n[/b]\n")
    done = run(*given(files, "calibration.deltas:", [0.07]))
    failed(done, SchemaError)
    assert "[/b]" in done.stderr
    (files / "people.csv").write_text("x\n0.1\n1_000\n0.3\n")
    done = good(*given(files, "calibration.deltas:", [0.07]))
    assert done.stdout.splitlines()[-2].startswith("Delta 0.07: 1 retrained model accepts 100.0%")
    assert "1_000" in done.stderr


def test_labels_are_read_as_schema_spells_them(files):
    schema = pp.Schema([pp.Continuous("x", 0, 1), pp.Binary("code", ["017", "None"])])
    schema.write(files / "schema.yaml")
    for name, t in (("now", 0.5), ("later", 0.6)):
        pp.Network([([[1.0, 0.0]], [-t])]).save(files / f"{name}.npz")
    rows = "".join(f"{x};{c};7\n" for x in (0.1, 0.2, 0.8, 0.9, 1.0) for c in ("017", "None"))
    (files / "train.csv").write_text("x;code;label\n" + rows)
    (files / "people.csv").write_text("code;x\nNone;0.1\n017;0.3\n")
    options = ("calibration.deltas:", [0.05, 0.07], "tables.delimiter:", ";", "--json")
    names = ("tables.drop:", "label", "schema:", files / "schema.yaml")
    done = good(*given(files, *names, *options))
    assert (done.json["delta"], done.stderr) == (0.07, "")


def test_without_schema_column_can_be_dropped(files):
    (files / "train.csv").write_text("x,y\n0.1,0\n0.2,0\n0.8,1\n0.9,1\n1.0,1\n")
    words = given(files, "calibration.deltas:", [0.07])
    failed(run(*words), TableError, name="train.csv", value=["x", "y"])
    assert good(*words, "tables.drop:", "y", "--json").json["delta"] == 0.07


# -- pipelines -------------------------------------------------------------------------------------


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
    return good(
        *(folder / "later-1.onnx", folder / "later-2.onnx", "--input", folder / people),
        *("model:", folder / model, "tables.train:", folder / "train.csv", "target:", "yes"),
        *("tables.id:", "number", "tables.drop:", "decided", "explainer.k:", 5, *more),
    )


@pytest.mark.parametrize("people", ["people.csv", "people.parquet"])
def test_exported_pipelines_whose_scalers_were_fitted_again(lender, people):
    """Same results on the command line and in Python, and the validity by the pipelines themselves."""
    folder, pipes, table, refused = lender
    facts = asked(folder, "calibration.deltas:", [0.001, 0.003], "--json", people=people).json
    later = [pipes["later-1"], pipes["later-2"]]
    found = pp.calibrate_delta(
        pipes["now"],
        table,
        retrained=later,
        people=refused,
        target="yes",
        deltas=[0.001, 0.003],
        k=5,
    )
    assert facts["delta"] == found.delta
    assert facts["accepted"] == found.accepted
    assert [change["model"] for change in facts["change_per_model"]] == [
        str(folder / f"later-{seed}.onnx") for seed in (1, 2)
    ]
    moved = [change["change"] for change in facts["change_per_model"]]
    assert moved == pytest.approx(found.change_per_model.tolist(), rel=1e-3)  # ONNX holds float32
    for theirs, (_, ours) in zip(facts["curve"], found.curve.iterrows(), strict=True):
        assert theirs["delta"] == ours["delta"]
        assert theirs["validity"] == ours["validity"]
        assert theirs["robust_rows"] == pytest.approx(ours["robust_rows"], abs=1)
        assert theirs["distance"] == pytest.approx(ours["distance"], rel=1e-2)
    assert not facts["too_few_robust_rows"]


def test_how_many_accepted_rows_stay_robust_is_shown(lender):
    folder, pipes, table, _ = lender
    accepted = int((pipes["now"].predict(table) == "yes").sum())
    line = asked(folder, "calibration.deltas:", [0.001]).stdout.splitlines()[1]
    assert line.split()[0] == "0.001"
    assert f"of {accepted} " in line


def test_too_few_robust_rows_end_with_status_and_next_step(files):
    rows = [0.1, *[0.51 + 0.001 * i for i in range(31)], 1.0]
    pd.DataFrame({"x": rows}).to_csv(files / "train.csv", index=False)
    words = given(files, "calibration.deltas:", [0.001, 0.07])
    done = run(*words, "--json")
    assert done.returncode == 1
    assert done.json["too_few_robust_rows"]
    assert (done.json["delta"], done.json["accepted"]) == (0.001, 32)
    assert [(line["validity"], line["robust_rows"]) for line in done.json["curve"]][1] == (1.0, 1)
    assert "min_robust_share" in done.stderr
    assert good(*words, "calibration.min_robust_share:", 0, "--json").json["delta"] == 0.07


def test_shift_set_overwrites_nothing(files):
    (files / "mine.npz").write_text("mine")
    words = given(files, "calibration.deltas:", [0.07], "--out")
    failed(run(*words, files / "mine.npz"), OutputError, name="mine.npz")
    assert (files / "mine.npz").read_text() == "mine"
    failed(run(*words, files / "mine.json"), OutputError, name="mine.json")
