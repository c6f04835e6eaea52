"""`proplace explain` through its entry point, on files of real frameworks."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.core.errors import OptionError, OutputError
from proplace.core.request import Request
from support.errors import failed


@pytest.fixture(scope="module")
def explainer(loans):
    return pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema).fit(loans.train)


def test_table_becomes_table(loans, explainer, tmp_path):
    people = loans.people.assign(name=[f"p{i}" for i in range(len(loans.people))], label=0)
    people.to_csv(tmp_path / "people.csv", index=False)
    done = good(
        "explain",
        *loans.options(input=tmp_path / "people.csv", out=tmp_path / "new" / "results"),
        *("--id", "name", "--drop", "label", "--count", 2, "--json"),
    )
    assert done.stderr == ""  # the summary is on standard output
    expected = explainer.explain(loans.people, count=2)
    facts = done.json
    assert facts["rows"] == len(people)
    assert facts["resumed"] == 0
    assert facts["statuses"].keys() <= {"optimal", "feasible"}
    assert sum(facts["statuses"].values()) == len(people)
    found = pd.read_csv(facts["results"])
    assert found["row"].tolist() == [e.index for e in expected]
    assert found["name"].tolist() == [f"p{e.index}" for e in expected]
    assert found["rank"].tolist() == [e.rank for e in expected]
    assert found["distance"].tolist() == [e.distance for e in expected]
    answers = found[["age", "income", "job", "member"]]
    encoded = loans.schema.encode(answers)
    assert encoded.tobytes() == expected.encoded_counterfactuals.tobytes()
    assert pp.certify(loans.net, encoded, 0.01).robust.all()
    out = tmp_path / "new" / "results"
    assert {path.name for path in out.iterdir()} == {
        *("manifest.json", "network.npz", "results.csv", "certificates")
    }
    proofs = sorted((out / "certificates").iterdir())
    assert len(proofs) == len(found)
    checked = good("check", out / "certificates", "--model", loans.folder / "model.onnx", "--json")
    assert len(checked.json["certificates"]) == len(proofs)


def test_each_table_is_read_with_its_own_delimiter(loans, tmp_path):
    """One of the two was misread, whichever was named."""
    good("explain", *loans.options(out=tmp_path / "a"))
    loans.people.to_csv(tmp_path / "people.csv", index=False, sep=";")
    loans.train.to_csv(tmp_path / "train.csv", index=False, sep="\t")
    for n, changes in enumerate(({"input": "people"}, {"train": "train"})):
        files = {role: tmp_path / f"{name}.csv" for role, name in changes.items()}
        done = run("explain", *loans.options(out=tmp_path / str(n), **files))
        assert (done.returncode, done.stderr) == (0, "")
        same = [(tmp_path / name / "results.csv").read_bytes() for name in ("a", str(n))]
        assert same[0] == same[1]


def test_parquet_in_and_out_holds_same(loans, tmp_path):
    pytest.importorskip("pyarrow")
    train, people = tmp_path / "train.parquet", tmp_path / "people.parquet"
    loans.train.to_parquet(train)
    bad = loans.people.assign(id=range(len(loans.people)))
    bad.loc[2, "job"] = "pilot"
    bad.to_parquet(people, row_group_size=5)
    bad.to_csv(tmp_path / "people.csv", index=False)
    good("explain", *loans.options(train=train, input=people, id="id", out=tmp_path / "a"))
    good("explain", *loans.options(input=tmp_path / "people.csv", id="id", out=tmp_path / "b"))
    first = pd.read_parquet(tmp_path / "a" / "results.parquet")
    second = pd.read_csv(tmp_path / "b" / "results.csv")
    assert first["age"].dtype.kind == "i" or first["age"].isna().any()
    text = ["reason", "changes"]
    second[text] = second[text].fillna("")
    pd.testing.assert_frame_equal(first, second, check_dtype=False)


def test_one_person_from_table_or_from_words(loans, explainer):
    expected = explainer.explain(loans.people.iloc[[3]])[0]
    (answer,) = good("explain", *loans.options(), "--row", 3, "--json").json
    words = [f"{name}={value}" for name, value in loans.people.iloc[3].items()]
    pairs = good("explain", *loans.options(input=None), *words, "--json")
    assert pairs.json == [{**answer, "row": None}]
    assert answer["row"] == 3
    assert answer["distance"] == expected.distance
    assert answer["counterfactual"] == {
        name: pytest.approx(value, abs=0) for name, value in expected.counterfactual.items()
    }
    assert set(answer["changes"]) == set(expected.changes.index)


@pytest.mark.parametrize("given", ["row", "words"])
def test_proofs_for_one_person_are_written(loans, explainer, given, tmp_path):
    out = tmp_path / "new" / "out"
    someone = next(e.index for e in explainer.explain(loans.people, count=2) if e.rank == 1)
    if given == "row":
        words, row = [*loans.options(), "--row", someone], someone
    else:
        pairs = [f"{name}={value}" for name, value in loans.people.iloc[someone].items()]
        words, row = [*loans.options(input=None), *pairs], 0
    words = ["explain", *words, "--count", 2, "--json"]
    done = good(*words, "--out", out)
    expected = explainer.explain(loans.people.iloc[[someone]], count=2)
    assert [e["distance"] for e in done.json] == [e.distance for e in expected]
    proofs = sorted((out / "certificates").iterdir())
    assert [p.name for p in proofs] == [f"row-{row:012d}-{rank}.json" for rank in (0, 1)]
    assert [pp.Certificate.load(p) for p in proofs] == [e.certificate for e in expected]
    good("check", out / "certificates", "--model", loans.folder / "model.onnx")
    assert good(*words, "--out", out).json == done.json  # nothing is searched again
    assert good(*words).json == done.json
    failed(run(*words, "--immutable", "age", "--out", out), OutputError, name="immutable")


def test_one_person_is_shown_to_people(loans, explainer):
    done = good("explain", *loans.options(), "--row", 3)
    for claim in explainer.explain(loans.people.iloc[[3]])[0].claims:
        line = next(line for line in done.stdout.splitlines() if claim.name in line)
        assert claim.was in line
        assert claim.goal in line
    assert "\x1b" not in done.stdout  # no colours into a pipe


def _npz(folder, X):
    net = pp.Network([(np.eye(3), np.zeros(3)), ([[1.0, 2.0, -1.0]], [-1.0])])
    net.save(folder / "model.npz")
    return folder / "model.npz", net.predict(X)


def test_without_schema_table_holds_networks_columns(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((200, 3))
    y = (X @ [1.0, 2.0, -1.0] > 1.0).astype(int)
    model, classes = _npz(tmp_path, X)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame.assign(label=y).to_csv(tmp_path / "train.csv", index=False)
    people = frame[classes == 0].head(4)
    people[["c", "a", "b"]].to_csv(tmp_path / "people.csv", index=False)  # in any order
    words = ["--model", model, "--train", tmp_path / "train.csv", "--drop", "label"]
    words += ["--input", tmp_path / "people.csv", "--delta", 0.005, "--out", tmp_path / "out"]
    good("explain", *words)
    net = pp.Network.load(model)
    expected = pp.Proplace(net, 0.005).fit(X).explain(people.to_numpy())
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    assert found["status"].tolist() == [e.status for e in expected]
    assert "optimal" in set(found["status"])
    assert found[["a", "b", "c"]].to_numpy() == pytest.approx(
        expected.encoded_counterfactuals, abs=1e-15
    )


@pytest.mark.parametrize(
    ("option", "value", "python"),
    [
        ("region", "box", {"region": "box"}),
        ("target", 0, {}),
        ("time_limit", 1e-9, {"time_limit": 1e-9}),
        ("jobs", 2, {}),
        ("prefer", "sparse", {"prefer": "sparse"}),
        ("max_changes", 1, {"max_changes": 1}),
        ("immutable", "age", {"immutable": ["age"]}),
        ("increasing", "income", {"increasing": ["income"]}),
        ("decreasing", "income", {"decreasing": ["income"]}),
        ("range", "income=:4.5", {"ranges": {"income": (None, 4.5)}}),
        ("search", "bilevel", {"search": "bilevel"}),
    ],
)
def test_options_reach_explainer(loans, option, value, python, tmp_path):
    good("explain", *loans.options(**{option: value, "out": tmp_path / "out"}))
    ours = [field.name for field in dataclasses.fields(Request) if field.name in python]
    wishes = {name: python.pop(name) for name in ours}
    explainer = pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema, **python).fit(loans.train)
    expected = explainer.explain(loans.people, target=0 if option == "target" else 1, **wishes)
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    assert found["status"].tolist() == [e.status for e in expected]
    np.testing.assert_array_equal(found["distance"], [e.distance for e in expected])
    if option != "jobs":
        usual = pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema).fit(loans.train)
        usual = usual.explain(loans.people)
        assert [(e.status, e.distance) for e in usual] != [(e.status, e.distance) for e in expected]


@pytest.mark.parametrize(("option", "typical"), [("--typical", True), ("--no-typical", False)])
def test_filter_of_typical_points_reaches_search(loans, option, typical, tmp_path):
    good("explain", *loans.options(out=tmp_path / "out"), option)
    explainer = pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema).fit(loans.train)
    expected = explainer.explain(loans.people, typical=typical)
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    np.testing.assert_array_equal(found["plausibility"], [e.plausibility for e in expected])
    np.testing.assert_array_equal(found["distance"], [e.distance for e in expected])
    failed(
        run("explain", *loans.options(region="box", out=tmp_path / "b"), "--typical"), OptionError
    )


def test_batch_goes_on_only_with_same_preference(loans, tmp_path):
    options = loans.options(out=tmp_path / "out")
    good("explain", *options, "--prefer", "sparse")
    before = (tmp_path / "out" / "results.csv").read_bytes()
    good("explain", *options, "--prefer", "sparse")
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    failed(run("explain", *options), OutputError, name="prefer", value="nearest")
    failed(run("explain", *options, "--immutable", "jobb"), OptionError)
    for wrong in ("income", "income=1", "income=a:2", "income=1:2:3", "=1:2"):
        failed(run("explain", *options, "--range", wrong), OptionError, name="--range")
    failed(run("explain", *options, *["--range", "income=0:"] * 2), OptionError, name="--range")


def test_installed_script_is_same_command(loans):
    script = Path(sys.executable).with_name("proplace")
    if not script.exists():
        pytest.skip("the package is not installed beside this Python")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == pp.__version__


def test_help_has_example_for_each_command():
    top = good("--help")
    for command in ("explain", "certify", "schema"):
        assert command in top.stdout
        page = good(command, "--help")
        assert f"proplace {command} " in page.stdout


def test_shells_can_complete_it():
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    done = good("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_PROPLACE_COMPLETE" in done.stdout
    found = run(_PROPLACE_COMPLETE="complete_bash", COMP_WORDS="proplace expl", COMP_CWORD="1")
    assert found.stdout.split() == ["explain"]
