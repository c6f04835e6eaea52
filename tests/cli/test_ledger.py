"""`proplace explain --ledger` and `proplace ledger`: as a shell runs them."""

from __future__ import annotations

import csv
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
    words = words_of(loans, folder)
    good("explain", *words)
    return folder


def words_of(loans, folder, **changes):
    given = {
        "input": folder / "people.csv",
        "out": folder / "out",
        "ledger": folder / "promises.db",
        "ids": "customer",
        "expires": DAY,
        **changes,
    }
    return [*loans.options(**given), "--drop", "branch"]


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


def test_promises_are_those_of_the_results(made):
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


def test_the_same_command_issues_nothing_twice(loans, made):
    before = listed(made / "promises.db")
    good("explain", *words_of(loans, made))
    assert listed(made / "promises.db") == before


def test_one_person(loans, tmp_path):
    person = dict(loans.people.iloc[0])
    words = [f"{name}={value}" for name, value in person.items()]
    options = loans.options(input=None, ledger=tmp_path / "p.db", ids="customer", expires=DAY)
    done = good("explain", *options, *words, "customer=eve", "--json")
    assert done.json[0]["id"] == {"customer": "eve"}
    with pp.Ledger(tmp_path / "p.db", create=False) as ledger:
        assert list(ledger.promises()["person"]) == ["eve"]


TO = ("--ledger", "{new}", "--ids", "customer")


@pytest.mark.parametrize(
    ("words", "error", "name"),
    [
        (["--ledger", "{new}"], OptionError, "--ids"),
        ([*TO, "--expires", "soon"], OptionError, "--expires"),
        ([*TO, "--expires", "2001-01-01"], OptionError, "--expires"),
        (["--ledger", "{text}", "--ids", "customer"], LedgerError, ANY),
        (["--ledger", "mysql://x", "--ids", "customer"], LedgerError, ANY),
        (["--ledger", "{lost}/p.db", "--ids", "customer"], OptionError, "--ledger"),
        (["--ids", "customer"], OptionError, "--ids"),
        (["--expires", DAY], OptionError, "--expires"),
        (["--subject", "the loan"], OptionError, "--subject"),
        (["--outcome", "approved"], OptionError, "--outcome"),
        (["--existing", "renew"], OptionError, "--existing"),
    ],
)
def test_wrong_options_are_rejected_before_any_work(loans, made, tmp_path, words, error, name):
    (tmp_path / "text").write_text("no ledger at all, but a text of some length", encoding="utf-8")
    places = {"new": tmp_path / "new.db", "text": tmp_path / "text", "lost": tmp_path / "lost"}
    options = words_of(loans, made, ledger=None, ids=None, expires=None, out=tmp_path / "out")
    done = run("explain", *options, *(word.format(**places) for word in words))
    failed(done, error, name=name)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "new.db").exists()


def test_issue_of_a_folder(made, tmp_path):
    place = tmp_path / "p.db"
    good("ledger", "issue", place, made / "out", "--ids", "customer", "--expires", DAY)
    issued = listed(place)
    assert {one["person"] for one in issued} == {"ann", "bob", "dee"}
    good("ledger", "issue", place, made / "out", "--expires", DAY, "--by", "night job")
    assert listed(place) == issued
    failed(run("ledger", "issue", place, made / "out", "--ids", "nobody"), LedgerError)


# -- looking ---------------------------------------------------------------------------------------


def test_list_and_show(book):
    place, numbers = book
    (one,) = listed(place, "--person", "bob")
    assert (one["person"], one["state"], one["expires"]) == ("bob", "open", DAY)
    assert len(listed(place, "--state", "expired", "--as-of", "3001-01-01")) == 3
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
    assert done.json["missing"][0]["feature"] == "income"
    done = redeem(numbers["ann"], *row, "--dry-run", "--json")
    assert (done.returncode, done.json["verdict"]) == (0, "met_exactly")
    done = redeem(numbers["ann"], *row, "--model", loans.folder / "model.onnx", "--by", "desk 3")
    assert done.returncode == 0, done.stderr
    failed(redeem(numbers["ann"], *row), LedgerError)
    history = shown(place, numbers["ann"])["history"]
    assert [(e["kind"], e.get("verdict")) for e in history] == [
        ("issued", None),
        ("presented", "broken"),
        ("presented", "not_met"),
        ("redeemed", "met_exactly"),
    ]
    assert history[-1]["by"] == "desk 3"
    good("ledger", "verify", place)


def test_redeem_a_row_of_a_file(book, tmp_path):
    place, numbers = book
    answer = shown(place, numbers["bob"])["answer"]
    frame = pd.DataFrame([{**answer, "income": 0.0}, answer]).assign(customer="bob")
    frame.to_csv(tmp_path / "back.csv", index=False, sep=";")
    source = ["--input", tmp_path / "back.csv"]
    done = run("ledger", "redeem", place, numbers["bob"], *source, "--json")
    assert done.returncode == 3, done.stderr
    assert [miss["feature"] for miss in done.json["missing"]] == ["income"]
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


def test_adopt(made, book):
    place, numbers = book
    row = cells(place, numbers["ann"])
    good("ledger", "adopt", place, "--model", made / "hard.npz", "--note", "spring")
    assert run("ledger", "redeem", place, numbers["ann"], *row).returncode == 4
    good("ledger", "verify", place)


# -- ending ----------------------------------------------------------------------------------------


def test_withdraw_and_erase(book):
    place, numbers = book
    good("ledger", "withdraw", place, numbers["ann"], "--reason", "a mistake", "--by", "me")
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


def test_erasing_asks_first(book):
    place, _ = book
    done = run("ledger", "erase", place, "ann")  # nobody answers
    assert done.returncode == 1
    assert "ann" in [one["person"] for one in listed(place)]


def test_export(book, tmp_path):
    place, numbers = book
    chain, table = tmp_path / "chain.jsonl", tmp_path / "promises.csv"
    good("ledger", "export", place, "--chain", chain, "--promises", table)
    entries = [json.loads(line) for line in chain.read_text(encoding="utf-8").splitlines()]
    previous = "0" * 64
    for n, entry in enumerate(entries, start=1):  # as the docs say how to
        parts = [entry[name] for name in ("seq", "time", "kind", "promise", "body")]
        content = f"{previous}\n{json.dumps(parts)}"
        previous = hashlib.sha256(content.encode()).hexdigest()
        assert (entry["seq"], entry["hash"]) == (n, previous)
    assert f"{len(entries)}:{previous}" in run("ledger", "verify", place).stdout
    assert not any(f'"{person}' in chain.read_text(encoding="utf-8") for person in numbers)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["person"]: int(row["id"]) for row in rows} == numbers
    assert {row["state"] for row in rows} == {"open"}
    failed(run("ledger", "export", place, "--chain", chain), OutputError, name=chain.name)
    failed(run("ledger", "export", place), OptionError, name="--promises")
    assert not list(tmp_path.glob("*.part"))


def test_an_empty_ledger_is_exported_with_its_columns(tmp_path):
    pp.Ledger(tmp_path / "p.db").close()
    good("ledger", "export", tmp_path / "p.db", "--promises", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text(encoding="utf-8").startswith("id,person,state")


# -- what a person is given ------------------------------------------------------------------------


def test_open_promise_gets_a_letter_from_a_template(book, tmp_path):
    place, numbers = book
    number, out = numbers["ann"], tmp_path / "letter.html"
    good("ledger", "letter", place, number, "--out", out)
    assert LAST_DAY in out.read_text(encoding="utf-8")
    failed(run("ledger", "letter", place, number, "--out", out), OutputError, name=out.name)
    template, again = tmp_path / "own.j2", tmp_path / "again.html"
    template.write_text("Dear {{ person }}", encoding="utf-8")
    good("ledger", "letter", place, number, "--out", again, "--template", template)
    assert again.read_text(encoding="utf-8") == "Dear ann"
    good("ledger", "withdraw", place, number, "--reason", "a test")
    failed(run("ledger", "letter", place, number, "--out", tmp_path / "late.html"), LedgerError)
    assert not (tmp_path / "late.html").exists()


def test_the_proof_of_a_promise_is_all_that_a_check_needs(book, tmp_path):
    place, numbers = book
    out = tmp_path / "proof"
    done = good("ledger", "proof", place, numbers["bob"], "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "certificate.json",
        "model.npz",
        "verify.html",
    ]
    good(*re.search(r"proplace (check .*)", done.stdout).group(1).split())
    failed(run("ledger", "proof", place, numbers["bob"], "--out", out), OutputError, name=out.name)
    good("ledger", "erase", place, "bob", "--yes")
    failed(run("ledger", "proof", place, numbers["bob"], "--out", tmp_path / "gone"), LedgerError)
    assert not (tmp_path / "gone").exists()
