"""The project file on the command line: it is found, options replace its keys, and errors name them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from commands import good, run
from proplace.core.errors import OptionError, OutputError, TargetError
from proplace.core.progress import progress_bar
from proplace.project import Project
from support.errors import failed


@pytest.fixture
def folder(loans, tmp_path, monkeypatch):
    """A working folder with a project file of absolute paths."""
    monkeypatch.chdir(tmp_path)
    project = {
        "model": str(loans.folder / "model.onnx"),
        "schema": str(loans.folder / "schema.yaml"),
        "tables": {"train": str(loans.folder / "train.csv")},
        "delta": 0.01,
        "explainer": {"k": 5},
        "request": {"immutable": ["age"]},
    }
    (tmp_path / "proplace.yaml").write_text(yaml.safe_dump(project))
    return tmp_path


def test_file_of_working_folder_is_default(loans, folder):
    table = ("--input", loans.folder / "people.csv", "--row", 3, "--json")
    (own,) = good("explain", *table).json
    assert own["request"]["immutable"] == ["age"]
    whole = loans.options(row=3, immutable="age")
    assert good("explain", *whole, "--json").json == [own]
    (other,) = good("explain", *table, "--immutable", "income", "--delta", 0.005).json
    assert (other["request"]["immutable"], other["delta"]) == (["income"], 0.005)
    assert good("explain", *table, "--config", "proplace.yaml").json == [own]


def test_wording_of_project_reaches_results_and_report(loans, folder):
    project = yaml.safe_load((folder / "proplace.yaml").read_text())
    project["wording"] = {"subject": "the loan", "outcomes": {1: "granted"}, "person": "client"}
    (folder / "proplace.yaml").write_text(yaml.safe_dump(project))
    table = ("--input", loans.folder / "people.csv", "--row", 3)
    words = "The loan would have been granted with"
    assert good("explain", *table, "--json").json[0]["sentence"].startswith(words)
    assert words in good("explain", *table, "--out", "out").stdout
    assert pd.read_csv("out/results.csv").sentence[0].startswith(words)
    good("report", "out")
    page = Path("out/report.html").read_text()
    assert words in page
    assert "1 client." in page
    del project["wording"]  # the sentences of a folder have one wording
    (folder / "proplace.yaml").write_text(yaml.safe_dump(project))
    failed(run("explain", *table, "--out", "out"), OutputError)


def test_missing_key_is_named_with_its_option(loans, folder):
    (folder / "proplace.yaml").write_text("delta: 0.01")
    done = run("explain", "--input", loans.folder / "people.csv", "--row", 0)
    failed(done, OptionError, name="model")
    assert "model" in done.stderr
    assert "proplace.yaml" in done.stderr
    (folder / "proplace.yaml").unlink()
    done = run("explain", "--model", loans.folder / "model.onnx", "age=1")
    failed(done, OptionError, name="train")
    assert "tables.train, delta are missing" in done.stderr
    words = ("--train", loans.folder / "train.csv", "--delta", 0.01)
    given = loans.options(train=None, delta=None, row=0)
    assert good("explain", *given, *words).returncode == 0


def test_unknown_key_is_rejected_with_closest_one(folder):
    (folder / "proplace.yaml").write_text("request: {immutabel: [age]}")
    done = run("certify", "--input", "people.csv")
    failed(done, OptionError, name="proplace.yaml")
    assert "did you mean 'immutable'" in done.stderr
    assert run("certify", "--config", "none.yaml").returncode == 1


def test_schema_drafts_project_file_that_works(loans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loans.train.assign(approved=1).to_csv("train.csv", index=False)
    loans.net.save("model.npz")
    words = ("schema", "train.csv", "--drop", "approved", "--out", "schema.yaml")
    good(*words)
    assert not (tmp_path / "proplace.yaml").exists()
    (tmp_path / "schema.yaml").unlink()
    good(*words, "--model", "model.npz")
    assert yaml.safe_load((tmp_path / "proplace.yaml").read_text()) == {
        "model": "model.npz",
        "schema": "schema.yaml",
        "tables": {"train": "train.csv", "drop": ["approved"]},
    }
    person = [f"{name}={value}" for name, value in loans.people.iloc[0].items()]
    assert good("explain", "--delta", 0.001, *person, "--json").json[0]["delta"] == 0.001


def test_default_target_of_other_labels_names_option():
    model = pp.Model.of(pp.Network([([[1.0]], [0.0])])).with_classes(["declined", "approved"])
    with pytest.raises(TargetError, match=r"classes are 'declined', 'approved'.*as --target"):
        Project().label(model)


def test_schema_that_project_names_may_be_drafted(loans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("proplace.yaml").write_text("schema: schema.yaml")
    done = run("explain", "--delta", 0.01, "a=1")
    failed(done, OptionError, name="proplace.yaml")
    assert "there is no file schema.yaml. Leave the key out, or correct the path" in done.stderr
    good("schema", loans.folder / "train.csv", "--out", "schema.yaml")
    assert run("explain", "--delta", 0.01, "a=1").error.name == "model"


@pytest.mark.slow
def test_drafted_project_audits_and_calibrates_models_with_refitted_scalers(tmp_path, monkeypatch):
    """Each retrained pipeline has a scaler of its own, which the drafted schema must not exclude."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(50, 10, 200), "b": rng.normal(9, 2, 200)}).round(1)
    y = (table.a + 5 * table.b > 95).astype(int)
    for name, rows in (("now", slice(None)), ("later", slice(0, 150))):
        steps = StandardScaler(), MLPClassifier((4,), solver="lbfgs", max_iter=50, random_state=0)
        pipe = make_pipeline(*steps).fit(table[rows], y[rows])
        pp.Model.of(pipe).save(f"{name}.npz")
    table.assign(good=y).to_csv("train.csv", index=False)
    table[y == 0].head(3).assign(who=["p", "q", "r"]).to_csv("people.csv", index=False)
    good("schema", "train.csv", "--drop", "good", "--model", "now.npz", "--out", "schema.yaml")
    good("calibrate", "later.npz", "--input", "people.csv")  # the column of ids needs no name
    scaled = pp.Model.of("now.npz").with_schema(pp.Schema.read("schema.yaml")).schema
    scaled.write("scaled.yaml")
    project = yaml.safe_load(Path("proplace.yaml").read_text())
    project["tables"] |= {"id": "who", "people": "people.csv"}
    project |= {"delta": 0.001, "explainer": {"k": 3}, "ledger": "p.db"}
    project["calibration"] = {"deltas": [0.001]}
    required = [{"model": "later.npz", "delta": 0.0005}]
    project |= {"schema": "scaled.yaml", "required_models": required}
    Path("proplace.yaml").write_text(yaml.safe_dump(project))
    assert run("calibrate", "later.npz", "--json").json["accepted"] > 0
    good("explain", "--out", "out")
    good("ledger", "issue", "p.db", "out")
    assert sum(good("audit", "later.npz", "--json").json["counts"].values()) > 0


def test_quiet_command_prints_results_alone(loans, tmp_path):
    loud = good("report", *_results(loans, tmp_path / "a"))
    assert "open it in a browser" in loud.stderr
    assert good("report", "--quiet", *_results(loans, tmp_path / "b")).stderr == ""
    assert "open it in a browser" in good("report", *_results(loans, tmp_path / "c")).stderr


def _results(loans, out):
    good("explain", *loans.options(out=out), "--row", 0)
    return [out]


def test_log_gets_line_of_progress_every_ten_seconds(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 10.0, 12.0, 30.0])
    monkeypatch.setattr("proplace.core.progress.time.monotonic", lambda: next(clock))
    assert not sys.stderr.isatty()
    with progress_bar("explain", 4_000, show=True) as advance:
        for _ in range(4):
            advance(500)
    assert capsys.readouterr().err.splitlines() == [
        "explain: 1,000 of 4,000, 30 s left",
        "explain: 2,000 of 4,000, 30 s left",
    ]
