"""Folders of results on the command line: report, check, and answers as JSON."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.batch.manifest import _sha256
from proplace.certification import checker
from proplace.certification.certificate import parameters
from proplace.core.errors import (
    CertificateError,
    OutputError,
    ResultsError,
    TableError,
)
from support.errors import failed


@pytest.fixture(scope="module")
def done(loans, tmp_path_factory):
    """A folder of results with certificates, ids and two answers for some people."""
    folder = tmp_path_factory.mktemp("done")
    people = loans.people.assign(customer=[f"C-{i}" for i in range(len(loans.people))])
    people.to_csv(folder / "people.csv", index=False)
    words = loans.options(input=folder / "people.csv", out=folder / "results", id="customer")
    good("explain", *words, "--count", 2)
    return folder


@pytest.fixture
def results(done, tmp_path):
    return shutil.copytree(done / "results", tmp_path / "results")


def check(loans, folder, *more):
    return run("check", folder, "--model", loans.folder / "model.onnx", *more)


# -- check -----------------------------------------------------------------------------------------


def rejected(found):
    """Return the certificates that a check rejects, each with a reason."""
    assert found.returncode == 1, found.stderr
    assert not found.json["accepted"]
    entries = [entry for entry in found.json["certificates"] if not entry["accepted"]]
    assert all(entry["reason"] for entry in entries)
    return entries


def test_folder_of_results_is_checked(loans, results):
    found = check(loans, results)
    number = len(list((results / "certificates").iterdir()))
    assert (found.returncode, found.stderr) == (0, "")
    assert f"{number} of {number}" in found.stdout
    facts = check(loans, results, "--json", "--delta", 0.01, "--target", 1).json
    assert facts["accepted"]
    assert len(facts["certificates"]) == number
    table = pd.read_csv(results / "results.csv")
    encoded = loans.schema.encode(table[["age", "income", "job", "member"]])
    assert [entry["proved"]["input"] for entry in facts["certificates"]] == encoded.tolist()
    assert facts["certificates"][0]["answer"] == "row 0 (customer C-0)"


@pytest.mark.parametrize("words", [["--delta", 0.011], ["--target", 0]])
def test_demand_applies_to_every_row(loans, results, words):
    number = len(list((results / "certificates").iterdir()))
    assert len(rejected(check(loans, results, *words, "--json"))) == number
    assert f"0 of {number}" in check(loans, results, *words).stdout


def test_certificate_that_is_missing_or_another_names_its_answer(loans, results):
    proofs = sorted((results / "certificates").iterdir())
    first, second, third = proofs[0], proofs[3], proofs[5]
    first.unlink()
    shutil.copy(proofs[1], second)
    extra = results / "certificates" / "row-000000000999-0.json"
    extra.write_bytes(third.read_bytes())
    entries = rejected(check(loans, results, "--json"))
    assert [entry["file"] for entry in entries] == [str(first), str(second), str(extra)]
    table = pd.read_csv(results / "results.csv")
    assert entries[0]["answer"] == "row 0 (customer C-0)"
    assert entries[1]["answer"].startswith(
        f"row {table['row'][3]} (customer {table['customer'][3]}"
    )
    assert f"{len(proofs) - 2} of {len(proofs) + 1}" in check(loans, results).stdout


def reseal(folder, change):
    """Change the results and compute their digests again, but leave the certificates."""
    path = folder / "results.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(table, manifest)
    table.to_csv(path, index=False, lineterminator="\n")
    del manifest["seal"]
    import hashlib

    manifest["results"] = [hashlib.sha256(path.read_bytes()).hexdigest()]
    sealed = {**manifest, "seal": _sha256(manifest)}
    (folder / "manifest.json").write_text(json.dumps(sealed, indent=2) + "\n")


def another_person(table, manifest):
    table.loc[0, "age"] = str(int(table.loc[0, "age"]) + 1)


def another_delta(table, manifest):
    manifest["about"]["provenance"]["guarantee"]["members"][0]["delta"] = 0.02


def another_class(table, manifest):
    manifest["question"]["request"]["target"] = 0


def swapped(table, manifest):
    table.loc[[0, 1], "certificate"] = table.loc[[1, 0], "certificate"].to_numpy()


@pytest.mark.parametrize(
    ("change", "number"),
    [(another_person, 1), (another_delta, None), (another_class, None), (swapped, 2)],
)
def test_promise_that_its_certificate_does_not_prove(loans, results, change, number):
    """A true certificate of another claim proves nothing here, whatever the digests are."""
    reseal(results, change)
    entries = rejected(check(loans, results, "--json"))
    assert len(entries) == (number or len(list((results / "certificates").iterdir())))


def test_another_model_proves_nothing(loans, results, tmp_path):
    first, last = loans.net.layers
    pp.Network([(first.W, first.b), (last.W, last.b + 1e-3)]).save(tmp_path / "net.npz")
    entries = rejected(run("check", results, "--model", tmp_path / "net.npz", "--json"))
    assert len(entries) == len(list((results / "certificates").iterdir()))


def test_folders_that_cannot_be_checked(loans, results, tmp_path):
    good("explain", *loans.options(out=tmp_path / "bare"), "batch.certificates:", False)
    failed(check(loans, tmp_path / "bare"), CertificateError, name="batch.certificates")
    (results / "results.csv").write_text("a\n1\n")
    failed(check(loans, results), ResultsError, name="results.csv")


# -- one person as JSON ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answer(loans, done):
    words = loans.options(input=done / "people.csv", id="customer")
    return good("explain", *words, "--row", 3, "--json").json


def test_json_is_complete(loans, answer):
    (facts,) = answer
    explainer = pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema).fit(loans.train)
    (e,) = explainer.explain(loans.people.iloc[[3]])
    assert (facts["row"], facts["id"]) == (3, {"customer": "C-3"})
    assert (facts["delta"], facts["target"], facts["rank"]) == (0.01, 1, 0)
    assert facts["sentence"] == e.describe().sentence
    assert facts["model"]["network_digest"] == checker.digest(parameters(loans.net))
    assert facts["model"]["name"] == "model.onnx"
    assert facts["certificate"] == e.certificate.facts
    assert set(facts["changes"]) == set(e.changes.index)
    for name, change in facts["changes"].items():
        assert change["from"] == e.original[name]
        assert change["to"] == e.counterfactual[name]
        assert change["unit"] == getattr(loans.schema.by_name[name], "unit", None)


def test_ids_of_person_in_words(loans):
    words = [f"{name}={value}" for name, value in loans.people.iloc[3].items()]
    options = loans.options(input=None, id="customer")
    made = good("explain", *options, *words, "customer=C-3", "--json")
    assert made.json[0]["id"] == {"customer": "C-3"}
    lost = run("explain", *loans.options(), "--id", "customer", "--row", 3)
    failed(lost, TableError, name="--id", value="customer")


def test_certificate_in_json_is_checked_as_file(loans, answer, tmp_path):
    proof = tmp_path / "proof.json"
    proof.write_text(json.dumps(answer[0]["certificate"]))
    (entry,) = check(loans, proof, "--json").json["certificates"]
    assert entry["accepted"]
    assert (entry["proved"]["verdict"], entry["proved"]["delta"][0][0]) == ("robust", 0.01)
    assert len(rejected(check(loans, proof, "--delta", 0.02, "--json"))) == 1


# -- people who have the class today, but not robustly -----------------------------------------------


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """A person who is accepted, but not robustly, one who is so robustly, and one who is refused."""
    folder = tmp_path_factory.mktemp("fragile")
    pp.Network([([[1.0]], [-0.5])]).save(folder / "net.npz")
    (folder / "train.csv").write_text("x\n0.1\n0.8\n0.9\n1.0\n")
    (folder / "people.csv").write_text("x\n0.52\n0.9\n0.2\n")
    words = ["explain", "--model", folder / "net.npz", "--train", folder / "train.csv"]
    words += ["--input", folder / "people.csv", "--delta", 0.05, "explainer.k:", 2]
    good(*words, "--out", folder / "results")
    first = pp.read_results(folder / "results")[0]
    assert (first.status, first.certificate.facts["verdict"]) == ("already_valid", "not robust")
    return folder


def checked(fragile, what, *words):
    return run("check", fragile / what, "--model", fragile / "net.npz", *words, "--json")


@pytest.mark.parametrize("demand", [(), ("--delta", 0.05), ("--delta", 0.04, "--target", 1)])
def test_certificate_of_fragile_row_is_accepted(fragile, demand):
    done = checked(fragile, "results", *demand)
    assert done.returncode == 0
    verdicts = [entry["proved"]["verdict"] for entry in done.json["certificates"]]
    assert verdicts == ["not robust", "robust", "robust"]


@pytest.mark.parametrize("demand", [("--delta", 0.06), ("--target", 0)])
def test_certificate_of_fragile_row_meets_no_demand(fragile, demand):
    first = rejected(checked(fragile, "results", *demand))[0]
    assert Path(first["file"]).name == "row-000000000000-0.json"
    assert first["answer"] == "row 0"


@pytest.mark.parametrize(("column", "value"), [("status", "optimal"), ("margin", "0.1")])
def test_certificate_of_fragile_row_proves_no_promise(fragile, tmp_path, column, value):
    """A proof that a row is not robust proves no answer, and no margin."""
    changed = shutil.copytree(fragile / "results", tmp_path / "results")

    def change(table, manifest):
        table.loc[0, column] = value

    reseal(changed, change)
    (entry,) = rejected(run("check", changed, "--model", fragile / "net.npz", "--json"))
    assert entry["answer"] == "row 0"


def test_accepted_person_needs_certificate(fragile, tmp_path):
    changed = shutil.copytree(fragile / "results", tmp_path / "results")

    def change(table, manifest):
        table.loc[2, ["status", "certificate", "margin"]] = ["already_valid", "", "5"]
        table.loc[2, "x"] = table.loc[2, "original_x"]

    reseal(changed, change)
    next((changed / "certificates").glob("row-000000000002*")).unlink()
    (entry,) = rejected(run("check", changed, "--model", fragile / "net.npz", "--json"))
    assert (entry["answer"], entry["proved"]) == ("row 2", None)


def test_bare_proof_that_row_is_not_robust_meets_no_demand(fragile):
    proof = next((fragile / "results" / "certificates").glob("row-000000000000*"))
    assert checked(fragile, proof).returncode == 0
    assert len(rejected(checked(fragile, proof, "--delta", 0.05))) == 1


# -- the report ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_whole_input_gets_page(loans, done, tmp_path):
    good("report", done / "results", "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = pp.read_results(done / "results")
    for e in found:
        assert e.certificate.digest in text
    assert "C-0" in text
    commands = re.findall(r"proplace check (\S+) --model (\S+?)</code>", text)
    assert len(commands) == len(found)
    file, model = commands[-1]  # as seen from the folder of the page
    good("check", tmp_path / file, "--model", loans.folder / model)


def test_page_of_many_people_states_its_limit(done, loans, tmp_path, monkeypatch):
    from proplace.report import page

    monkeypatch.setattr(page, "MOST", 5)
    good("report", done / "results", "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    table = pd.read_csv(done / "results" / "results.csv")
    people = table["row"].nunique()
    shown = table["row"][:6].unique()
    whole = [row for row in shown if (table["row"][:5] == row).sum() == (table["row"] == row).sum()]
    assert f"first {len(whole)} of {people}" in text
    assert "results.csv" in text
    for row in range(people):
        assert (f"customer C-{row})" in text) == (row in whole)


@pytest.mark.slow
def test_page_is_written_in_place_of_no_other_file(loans, results):
    good("report", results)
    page = results / "report.html"
    before = page.read_bytes()
    failed(run("report", results), OutputError, name=page.name)
    assert page.read_bytes() == before
    other = results / "page.pdf"
    failed(run("report", results, "--out", other), OutputError, name=other.name)
    assert check(loans, results).returncode == 0  # the page is no part of the results


def test_one_person_gets_page(loans, tmp_path):
    good("explain", *loans.options(out=tmp_path / "one"), "--row", 3)
    good("report", tmp_path / "one")
    explainer = pp.Proplace(loans.net, 0.01, k=5, schema=loans.schema).fit(loans.train)
    (e,) = explainer.explain(loans.people.iloc[[3]])
    text = (tmp_path / "one" / "report.html").read_text()
    for change in e.claims:
        assert change.goal in text
    assert e.certificate.digest in text


def test_damaged_folder_gets_no_page(loans, results):
    (results / "results.csv").write_text("row\n")
    failed(run("report", results), ResultsError, name="results.csv")
    assert not (results / "report.html").exists()
