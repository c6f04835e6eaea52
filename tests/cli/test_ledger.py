"""`proplace ledger`, as a shell runs it."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3

import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.core.errors import (
    InputError,
    LedgerError,
    NotInLedgerError,
    OptionError,
    OutputError,
    ResultsError,
    TableError,
)
from support.errors import ANY, failed

pytest.importorskip("sqlalchemy")

DAY, LAST_DAY = "2999-12-31", "31 December 2999"


@pytest.fixture(scope="module")
def made(loans, tmp_path_factory):
    """A ledger of the answers of a few people, and a model that refuses everybody."""
    folder = tmp_path_factory.mktemp("ledger")
    people = loans.people.head(4).assign(customer=["ann", "bob", "cy", "dee"], branch="north")
    people["income"] = people["income"].astype(object)
    people.loc[2, "income"] = None
    people.to_csv(folder / "people.csv", index=False)
    last = loans.net.layers[-1]
    hard = [*((layer.W, layer.b) for layer in loans.net.layers[:-1]), (last.W, last.b - 50.0)]
    loans.net.with_layers(hard).save(folder / "hard.npz")
    words = loans.options(input=folder / "people.csv", out=folder / "out", id="customer")
    good("explain", *words, "--drop", "branch")
    good("ledger", "issue", folder / "promises.db", folder / "out", "--expires", DAY)
    return folder


@pytest.fixture
def book(made, tmp_path):
    """A copy of the ledger, and the numbers of its promises by person."""
    with sqlite3.connect(made / "promises.db") as there, sqlite3.connect(tmp_path / "p.db") as here:
        there.backup(here)
    place = tmp_path / "p.db"
    return place, {one["person"]: one["id"] for one in listed(place)}


def listed(place, *words):
    return good("ledger", "list", place, *words, "--json").json


def shown(place, number):
    return good("ledger", "show", place, number, "--json").json


def cells(place, number):
    """The answer of a promise as words of the command line."""
    return [f"{name}={value}" for name, value in shown(place, number)["answer"].items()]


# -- issuing ---------------------------------------------------------------------------------------


def test_promises_are_those_of_results(made):
    whole = {e.ids["customer"]: e for e in pp.read_results(made / "out") if e.found}
    with pp.Ledger(made / "promises.db", create=False) as ledger:
        frame = ledger.promises()
        assert set(frame["person"]) == set(whole) == {"ann", "bob", "dee"}
        assert set(frame["expires"]) == {DAY}
        for number, person in frame["person"].items():
            assert (
                ledger.promise(number).point.tolist()
                == whole[person].encoded_counterfactual.tolist()
            )
        assert ledger.verify().valid


def test_repeated_command_issues_nothing_twice(made, tmp_path):
    place = tmp_path / "p.db"
    words = ("ledger", "issue", place, made / "out", "--id", "customer", "--expires", DAY)
    assert good(*words, "--json").json["new"] == 3
    issued = listed(place)
    assert {one["person"] for one in issued} == {"ann", "bob", "dee"}
    done = good(*words, "--json")
    assert (done.json["new"], done.json["known"]) == (0, 3)
    assert listed(place) == issued
    failed(run("ledger", "issue", place, made / "out", "--id", "nobody"), LedgerError)


def test_one_person_is_promised_from_folder(loans, tmp_path, monkeypatch):
    words = [f"{name}={value}" for name, value in loans.people.iloc[0].items()]
    options = loans.options(input=None, id="customer", out=tmp_path / "out")
    done = good("explain", *options, *words, "customer=eve", "--json")
    assert done.json[0]["id"] == {"customer": "eve"}
    (tmp_path / "proplace.yaml").write_text("wording: {subject: the loan}")
    monkeypatch.chdir(tmp_path)
    good("ledger", "issue", "p.db", "out")
    with pp.Ledger(tmp_path / "p.db", create=False) as ledger:
        (number,) = ledger.promises().index
        promise = ledger.promise(number)
        assert (promise.person, promise.wording.subject) == ("eve", "the loan")
        assert [e.facts["by"] for e in ledger.entries(number)]  # the user of the system


@pytest.mark.parametrize(
    ("place", "words", "error", "name"),
    [
        ("new.db", ["--expires", "soon"], OptionError, "--expires"),
        ("new.db", ["--expires", "2001-01-01"], OptionError, "--expires"),
        ("text", [], LedgerError, ANY),
        ("mysql://x", [], LedgerError, ANY),
        ("lost/p.db", [], LedgerError, ANY),
    ],
)
def test_issue_rejects_wrong_options(made, tmp_path, monkeypatch, place, words, error, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no ledger at all, but a text of some length", encoding="utf-8")
    done = run("ledger", "issue", place, made / "out", *words)
    failed(done, error, name=name, notes="is a new ledger" in done.stderr)
    assert not (tmp_path / "new.db").exists()


# -- looking ---------------------------------------------------------------------------------------


def test_list_and_show(book):
    place, numbers = book
    (one,) = listed(place, "--person", "bob")
    assert (one["person"], one["state"], one["expires"]) == ("bob", "open", DAY)
    assert len(listed(place, "--state", "open")) == 3
    assert listed(place, "--state", "erased") == []
    assert [entry["kind"] for entry in shown(place, numbers["ann"])["history"]] == ["issued"]
    failed(run("ledger", "show", place, 1), NotInLedgerError)


@pytest.mark.parametrize("command", ["list", "verify"])
def test_no_ledger_is_made_by_looking(tmp_path, command):
    done = run("ledger", command, tmp_path / "p.db")
    failed(done, LedgerError)
    assert not (tmp_path / "p.db").exists()


def test_verify(book):
    place, _ = book
    head = good("ledger", "verify", place, "--json").json["head"]
    assert head in good("ledger", "verify", place, "--head", head).stdout
    failed(run("ledger", "verify", place, "--head", "nonsense"), LedgerError)
    other = head.replace(head[-1], "0f"[head[-1] == "0"])
    assert run("ledger", "verify", place, "--head", other).returncode == 1
    with sqlite3.connect(place) as raw:
        raw.execute("DROP TRIGGER promises_no_update")
        raw.execute("UPDATE promises SET expires = '3000-01-01'")
    done = run("ledger", "verify", place)
    assert (done.returncode, done.error) == (1, None)


# -- redeeming -------------------------------------------------------------------------------------


def test_redeem_and_its_exit_statuses(loans, made, book):
    place, numbers = book
    row = cells(place, numbers["ann"])
    redeem = lambda *words: run("ledger", "redeem", place, *words)  # noqa: E731
    done = redeem(numbers["ann"], *row, "--model", made / "hard.npz", "--json")
    assert (done.returncode, done.json["verdict"]) == (4, "broken")
    less = [word if not word.startswith("income=") else "income=0.5" for word in row]
    done = redeem(numbers["ann"], *less, "--model", made / "hard.npz", "--json")
    assert (done.returncode, done.json["verdict"]) == (3, "not_met")
    assert done.json["unmet"][0]["feature"] == "income"
    done = redeem(numbers["ann"], *row, "--dry-run", "--json")
    assert (done.returncode, done.json["verdict"]) == (0, "met_exactly")
    done = redeem(numbers["ann"], *row, "--model", loans.folder / "model.onnx")
    assert done.returncode == 0, done.stderr
    failed(redeem(numbers["ann"], *row), LedgerError)
    history = shown(place, numbers["ann"])["history"]
    assert [(e["kind"], e.get("verdict")) for e in history] == [
        ("issued", None),
        ("attempted", "broken"),
        ("attempted", "not_met"),
        ("redeemed", "met_exactly"),
    ]
    good("ledger", "verify", place)


def test_redeem_row_of_file(book, tmp_path):
    place, numbers = book
    answer = shown(place, numbers["bob"])["answer"]
    frame = pd.DataFrame([{**answer, "income": 0.0}, answer]).assign(customer="bob")
    frame.to_csv(tmp_path / "back.csv", index=False, sep=";")
    source = ["--input", tmp_path / "back.csv"]
    done = run("ledger", "redeem", place, numbers["bob"], *source, "--json")
    assert done.returncode == 3, done.stderr
    assert [miss["feature"] for miss in done.json["unmet"]] == ["income"]
    good("ledger", "redeem", place, numbers["bob"], *source, "--row", 1)
    failed(run("ledger", "redeem", place, numbers["dee"], *source, "--row", 2), TableError)


@pytest.mark.parametrize(
    ("words", "error", "word"),
    [
        ([], OptionError, "--input"),
        (["age=40"], InputError, "income"),
        (["age=40", "income=much", "job=cook", "member=no"], InputError, "income"),
        (["age=40", "income=3", "job=cooc", "member=no"], InputError, "cook"),
        (["age=40", "income=", "job=cook", "member=no"], InputError, "income"),
    ],
)
def test_redeem_rejects_other_rows(book, words, error, word):
    place, numbers = book
    done = run("ledger", "redeem", place, numbers["ann"], *words)
    failed(done, error)
    assert word in done.stderr
    assert len(shown(place, numbers["ann"])["history"]) == 1


def test_approved_model_decides(made, book):
    place, numbers = book
    row = cells(place, numbers["ann"])
    good("audit", made / "hard.npz", "--ledger", place, "--approve")
    assert run("ledger", "redeem", place, numbers["ann"], *row).returncode == 4
    good("ledger", "verify", place)


# -- ending ----------------------------------------------------------------------------------------


def test_withdraw_and_erase(book):
    place, numbers = book
    good("ledger", "withdraw", place, numbers["ann"], "--reason", "a mistake")
    failed(run("ledger", "withdraw", place, numbers["ann"], "--reason", "again"), LedgerError)
    good("ledger", "redeem", place, numbers["bob"], *cells(place, numbers["bob"]))
    good("ledger", "erase", place, "bob", "--yes")
    failed(run("ledger", "erase", place, "bob", "--yes"), LedgerError, value="bob")
    states = {one["id"]: (one["state"], one["person"]) for one in listed(place)}
    assert states == {
        numbers["ann"]: ("withdrawn", "ann"),
        numbers["bob"]: ("erased", None),
        numbers["dee"]: ("open", "dee"),
    }
    assert "bob" not in good("ledger", "show", place, numbers["bob"]).stdout
    assert b"bob" not in place.read_bytes()
    good("ledger", "verify", place)


def test_erase_needs_confirmation(book):
    place, _ = book
    done = run("ledger", "erase", place, "ann")  # nobody answers
    assert done.returncode == 1
    assert "ann" in [one["person"] for one in listed(place)]


def test_entries_are_exported(book, tmp_path):
    place, numbers = book
    chain = tmp_path / "chain.jsonl"
    shown = good("ledger", "verify", place, "--export", chain).stdout
    entries = [json.loads(line) for line in chain.read_text(encoding="utf-8").splitlines()]
    previous = "0" * 64
    for n, entry in enumerate(entries, start=1):  # as in the docs
        parts = [entry[name] for name in ("seq", "time", "kind", "promise", "body")]
        content = f"{previous}\n{json.dumps(parts)}"
        previous = hashlib.sha256(content.encode()).hexdigest()
        assert (entry["seq"], entry["hash"]) == (n, previous)
    assert f"{len(entries)}:{previous}" in shown
    assert not any(f'"{person}' in chain.read_text(encoding="utf-8") for person in numbers)
    done = run("ledger", "verify", place, "--export", chain)
    failed(done, OutputError, name=chain.name)
    assert not list(tmp_path.glob("*.part"))


# -- what a person is given ------------------------------------------------------------------------


def test_open_promise_gets_letter_from_template(book, tmp_path, monkeypatch):
    place, numbers = book
    number, out = numbers["ann"], tmp_path / "letter.html"
    monkeypatch.chdir(tmp_path)
    done = good("ledger", "show", place, number, "--letter", out)
    assert "and fill in 3 yellow places" in done.stderr
    assert LAST_DAY in out.read_text(encoding="utf-8")
    failed(run("ledger", "show", place, number, "--letter", out), OutputError, name=out.name)
    (tmp_path / "own.j2").write_text("Dear {{ person }}", encoding="utf-8")
    (tmp_path / "proplace.yaml").write_text("letter: own.j2", encoding="utf-8")
    done = good("ledger", "show", place, number, "--letter", "again.html")
    assert "again.html: open it in a browser\n" in done.stderr
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == "Dear ann"
    good("ledger", "withdraw", place, number, "--reason", "a test")
    failed(run("ledger", "show", place, number, "--letter", tmp_path / "late.html"), LedgerError)
    assert not (tmp_path / "late.html").exists()
    good("ledger", "list", place, "--letters", "letters")
    letters = sorted(path.read_text() for path in (tmp_path / "letters").iterdir())
    assert letters == ["Dear bob", "Dear dee"]


def test_proof_of_promise_is_all_that_check_needs(book, tmp_path):
    place, numbers = book
    out = tmp_path / "proof"
    done = good("ledger", "show", place, numbers["bob"], "--proof", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "certificate.json",
        "model.npz",
        "verify.html",
    ]
    good(*re.search(r"proplace (check .*)", done.stdout).group(1).split())
    show = ("ledger", "show", place, numbers["bob"], "--proof")
    failed(run(*show, out), OutputError, name=out.name)
    good("ledger", "erase", place, "bob", "--yes")
    failed(run(*show, tmp_path / "gone"), LedgerError)
    assert not (tmp_path / "gone").exists()


# -- statements ------------------------------------------------------------------------------------


def test_check_rejects_statement_with_another_encoding_than_model(made, loans, tmp_path):
    """No proof covers the encoding of a statement; a model that has one decides."""
    number = listed(made / "promises.db")[0]["id"]
    good("ledger", "show", made / "promises.db", number, "--proof", tmp_path / "proof")
    proof = tmp_path / "proof" / "certificate.json"
    own = ("model:", loans.folder / "model.onnx", "schema:", loans.folder / "schema.yaml")
    digest = hashlib.sha256(proof.read_bytes().rstrip(b"\n")).hexdigest()
    redone = "Its words and the values of today are the sender's. Compare this SHA-256 digest"
    shown = good("check", proof, *own).stdout.splitlines()
    assert redone in shown[-1]
    assert shown[-1].endswith(digest)
    network = ("check", "--model", tmp_path / "proof" / "model.npz")
    assert "Its words, its encoding and the values" in good(*network, proof).stdout
    (fact,) = good("check", proof, *own, "--json").json["certificates"]
    assert (fact["digest"], fact["encoding_of_model"]) == (digest, True)

    def changed(reason, **features):
        facts = json.loads(proof.read_text())
        by_name = {feature["name"]: feature for feature in facts["statement"]["features"]}
        for name, change in features.items():
            by_name[name].update(change(by_name[name]))
        place = tmp_path / "changed.json"
        place.write_text(json.dumps(facts))
        assert good(*network, place).stdout  # the proof itself covers the changed statement
        done = run("check", place, *own)
        assert (done.returncode, reason in done.stdout) == (1, True), done.stdout

    numbers = ("today", "value", "low", "high", "offset", "scale")
    changed("it encodes 'income' otherwise", income=lambda f: {k: 2 * f[k] for k in numbers})
    turn = {"clerk": "cook", "cook": "smith", "smith": "clerk"}
    changed(
        "it encodes 'job' otherwise",
        job=lambda f: {
            "labels": [turn[label] for label in f["labels"]],
            "today": turn[f["today"]],
            "value": turn[f["value"]],
        },
    )
    changed(
        "it calls feature 'age' of the model 'income'",
        age=lambda _: {"name": "income"},
        income=lambda _: {"name": "age"},
    )


# -- progress --------------------------------------------------------------------------------------


def test_long_commands_show_progress_in_log_unless_quiet(made, loans, tmp_path, monkeypatch):
    monkeypatch.setattr("proplace.core.progress._SECONDS", 0.0)
    model = ("--model", loans.folder / "model.onnx")
    commands = {
        "check": ("check", made / "out", *model),
        "certify": ("certify", *loans.options("certify")),
        "issue": ("ledger", "issue", tmp_path / "p.db", made / "out"),
        "letters": ("ledger", "list", made / "promises.db", "--letters", tmp_path / "letters"),
    }
    for label, words in commands.items():
        assert re.search(rf"^{label}: \d+ of \d+, 0 s left$", good(*words).stderr, re.M)
    monkeypatch.chdir(tmp_path)
    commands["letters"] = (*commands["letters"][:-1], "more")
    for label, words in commands.items():
        assert f"{label}: " not in good(*words, "--quiet").stderr


def test_wrong_folder_creates_no_ledger(tmp_path):
    failed(run("ledger", "issue", tmp_path / "p.db", tmp_path), ResultsError, name=ANY)
    assert not (tmp_path / "p.db").exists()
