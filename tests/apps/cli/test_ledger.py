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
from commands import call, run, run_quickly

pytest.importorskip("sqlalchemy")

DAY, LAST_DAY = "2999-12-31", "31 December 2999"


def said(done):
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.fixture(scope="module")
def made(loans, tmp_path_factory):
    """A ledger of the answers of a few people, with letters, and a model that refuses everybody."""
    folder = tmp_path_factory.mktemp("ledger")
    people = loans.people.head(4).assign(customer=["ann", "bob", "cy", "dee"], branch="north")
    people["income"] = people["income"].astype(object)
    people.loc[2, "income"] = None
    people.to_csv(folder / "people.csv", index=False)
    last = loans.net.layers[-1]
    hard = [*((layer.W, layer.b) for layer in loans.net.layers[:-1]), (last.W, last.b - 50.0)]
    loans.net.with_layers(hard).save(folder / "hard.npz")
    words = words_of(loans, folder, letters=folder / "letters")
    done = run("explain", *words)
    assert done.returncode == 0, done.stderr
    assert "3 promises issued, 1 rows with nothing to promise" in done.stderr
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
    done = call("ledger", "list", tmp_path / "p.db", "--json")
    return tmp_path / "p.db", {one["person"]: one["id"] for one in json.loads(done.stdout)}


def cells(place, number):
    """The answer of a promise as words of the command line."""
    answer = json.loads(call("ledger", "show", place, number, "--json").stdout)["answer"]
    return [f"{name}={value}" for name, value in answer.items()]


# -- issuing ---------------------------------------------------------------------------------------


def test_promises_are_those_of_the_results(made):
    whole = {e.ids["customer"]: e for e in pp.read_results(made / "out") if e.found}
    with pp.Ledger(made / "promises.db", create=False) as ledger:
        frame = ledger.promises()
        assert set(frame["person"]) == set(whole) == {"ann", "bob", "dee"}
        assert set(frame["expires"]) == {DAY}
        for number, person in frame["person"].items():
            assert ledger.promise(number).point.tolist() == whole[person].point.tolist()
        assert ledger.verify().good


def test_letters_carry_the_number_of_their_promise(made):
    with pp.Ledger(made / "promises.db", create=False) as ledger:
        numbers = {person: n for n, person in ledger.promises()["person"].items()}
    for row, person in ((0, "ann"), (1, "bob"), (3, "dee")):
        text = (made / "letters" / f"row-{row:012d}.html").read_text(encoding="utf-8")
        assert f"Reference</dt><dd>promise {numbers[person]}<" in text
        assert LAST_DAY in text  # what the ledger says


def test_the_same_command_issues_nothing_twice(loans, made):
    done = run_quickly("explain", *words_of(loans, made))
    assert done.returncode == 0, done.stderr
    assert "0 promises issued, 3 known already" in done.stderr


def test_one_person(loans, tmp_path):
    person = dict(loans.people.iloc[0])
    words = [f"{name}={value}" for name, value in person.items()]
    options = loans.options(input=None, ledger=tmp_path / "p.db", ids="customer", expires=DAY)
    done = run_quickly("explain", *options, *words, "customer=eve", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["id"] == {"customer": "eve"}
    assert "1 promise issued (" in done.stderr
    with pp.Ledger(tmp_path / "p.db", create=False) as ledger:
        assert list(ledger.promises()["person"]) == ["eve"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ledger", "{new}"], "--ledger needs --ids COLUMN"),
        (["--ledger", "{new}", "--ids", "customer", "--expires", "soon"], "is no day"),
        (["--ledger", "{new}", "--ids", "customer", "--expires", "2001-01-01"], "is over"),
        (["--ledger", "{text}", "--ids", "customer"], "cannot be opened as a ledger"),
        (["--ledger", "mysql://x", "--ids", "customer"], "a SQLite file or a PostgreSQL database"),
        (["--ledger", "{lost}/p.db", "--ids", "customer"], "there is no folder"),
        (["--ids", "customer"], "--ids is for promises: give --ledger, too"),
        (["--expires", DAY], "--expires is for promises"),
        (
            [
                "--ledger",
                "{new}",
                "--ids",
                "customer",
                "--expires",
                DAY,
                "--letters",
                "{new}-l",
                "--valid-until",
                "2999-12-30",
            ],
            "not the last day of the promises",
        ),
        (["--existing", "renew"], "--existing is for promises"),
    ],
)
def test_what_is_refused_before_any_work(loans, made, tmp_path, words, message):
    (tmp_path / "text").write_text("no ledger at all, but a text of some length", encoding="utf-8")
    places = {"new": tmp_path / "new.db", "text": tmp_path / "text", "lost": tmp_path / "lost"}
    options = words_of(loans, made, ledger=None, ids=None, expires=None, out=tmp_path / "out")
    done = run_quickly("explain", *options, *(word.format(**places) for word in words))
    assert done.returncode == 1, done.stderr
    assert message in said(done)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "new.db").exists()


def test_issue_of_a_folder(made, tmp_path):
    place = tmp_path / "p.db"
    done = call("ledger", "issue", place, made / "out", "--ids", "customer", "--expires", DAY)
    assert (done.returncode, done.stdout.strip()) == (
        0,
        "3 promises issued, 1 rows with nothing to promise",
    )
    done = call("ledger", "issue", place, made / "out", "--expires", DAY, "--by", "night job")
    assert "0 promises issued, 3 known already" in done.stdout
    done = call("ledger", "issue", place, made / "out", "--ids", "nobody")
    assert done.returncode == 1
    assert "is no id column" in done.stderr


# -- looking ---------------------------------------------------------------------------------------


def test_list_and_show(book):
    place, numbers = book
    done = call("ledger", "list", place)
    assert done.returncode == 0
    assert all(person in done.stdout for person in numbers)
    done = call("ledger", "list", place, "--person", "bob", "--json")
    (one,) = json.loads(done.stdout)
    assert (one["person"], one["state"], one["expires"]) == ("bob", "open", DAY)
    done = call("ledger", "list", place, "--state", "expired", "--as-of", "3001-01-01", "--json")
    assert len(json.loads(done.stdout)) == 3
    assert json.loads(call("ledger", "list", place, "--state", "erased", "--json").stdout) == []
    done = call("ledger", "show", place, numbers["ann"])
    assert done.returncode == 0
    assert f"promise   {numbers['ann']}" in done.stdout
    assert "would have been" in done.stdout
    assert "issued" in done.stdout
    done = call("ledger", "show", place, 1)
    assert done.returncode == 1
    assert "there is no promise 1" in done.stderr


@pytest.mark.parametrize("command", ["list", "verify"])
def test_no_ledger_is_made_by_looking(tmp_path, command):
    done = call("ledger", command, tmp_path / "p.db")
    assert done.returncode == 1
    assert "there is no ledger" in done.stderr
    assert not (tmp_path / "p.db").exists()


def test_verify(book):
    place, _ = book
    done = call("ledger", "verify", place)
    assert done.returncode == 0
    head = done.stdout.strip().rpartition("head ")[2]
    assert call("ledger", "verify", place, "--head", head).returncode == 0
    assert json.loads(call("ledger", "verify", place, "--json").stdout)["head"] == head
    done = call("ledger", "verify", place, "--head", "nonsense")
    assert done.returncode == 1
    assert "is no head of a ledger: the number of entries" in said(done)
    done = call("ledger", "verify", place, "--head", head.replace(head[-1], "0f"[head[-1] == "0"]))
    assert done.returncode == 1
    with sqlite3.connect(place) as raw:
        raw.execute("DROP TRIGGER promises_no_update")
        raw.execute("UPDATE promises SET expires = '3000-01-01'")
    done = call("ledger", "verify", place)
    assert done.returncode == 1
    assert "NOT as it was written" in done.stdout


# -- redeeming -------------------------------------------------------------------------------------


def test_redeem_and_its_exit_statuses(loans, made, book):
    place, numbers = book
    row = cells(place, numbers["ann"])
    redeem = lambda *words: call("ledger", "redeem", place, *words)  # noqa: E731
    done = redeem(numbers["ann"], *row, "--model", made / "hard.npz")
    assert done.returncode == 4
    assert "is BROKEN" in done.stdout
    less = [word if not word.startswith("income=") else "income=0.5" for word in row]
    done = redeem(numbers["ann"], *less, "--model", made / "hard.npz", "--json")
    assert done.returncode == 3
    facts = json.loads(done.stdout)
    assert (facts["verdict"], facts["missing"][0]["feature"]) == ("not met", "income")
    done = redeem(numbers["ann"], *row, "--dry-run")
    assert done.returncode == 0
    assert "is met exactly" in done.stdout
    done = redeem(numbers["ann"], *row, "--model", loans.folder / "model.onnx", "--by", "desk 3")
    assert done.returncode == 0, done.stderr
    done = redeem(numbers["ann"], *row)
    assert done.returncode == 1
    assert "was redeemed already" in done.stderr
    history = json.loads(call("ledger", "show", place, numbers["ann"], "--json").stdout)["history"]
    assert [(e["kind"], e.get("verdict")) for e in history] == [
        ("issued", None),
        ("presented", "broken"),
        ("presented", "not met"),
        ("redeemed", "exact"),
    ]
    assert history[-1]["by"] == "desk 3"
    assert call("ledger", "verify", place).returncode == 0


def test_redeem_a_row_of_a_file(book, tmp_path):
    place, numbers = book
    answer = json.loads(call("ledger", "show", place, numbers["bob"], "--json").stdout)["answer"]
    frame = pd.DataFrame([{**answer, "income": 0.0}, answer]).assign(customer="bob")
    frame.to_csv(tmp_path / "back.csv", index=False, sep=";")
    source = ["--input", tmp_path / "back.csv"]
    done = call("ledger", "redeem", place, numbers["bob"], *source)
    assert done.returncode == 3, said(done)
    assert "income is 0 thousand, promised is" in done.stdout
    done = call("ledger", "redeem", place, numbers["bob"], *source, "--row", 1)
    assert done.returncode == 0, said(done)
    done = call("ledger", "redeem", place, numbers["dee"], *source, "--row", 2)
    assert done.returncode == 1
    assert "there is no row 2" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name=value pairs, or as --input"),
        (["age=40"], "the row has no value for"),
        (["age=40", "income=much", "job=cook", "member=no"], "is not a number"),
        (["age=40", "income=3", "job=cooc", "member=no"], "did you mean 'cook'"),
        (["age=40", "income=", "job=cook", "member=no"], "the cell is missing"),
    ],
)
def test_redeem_refuses(book, words, message):
    place, numbers = book
    done = call("ledger", "redeem", place, numbers["ann"], *words)
    assert done.returncode == 1
    assert message in said(done)
    assert (
        len(json.loads(call("ledger", "show", place, numbers["ann"], "--json").stdout)["history"])
        == 1
    )


def test_adopt(made, book):
    place, numbers = book
    row = cells(place, numbers["ann"])
    done = call("ledger", "adopt", place, "--model", made / "hard.npz", "--note", "spring")
    assert done.returncode == 0, said(done)
    assert call("ledger", "redeem", place, numbers["ann"], *row).returncode == 4
    assert call("ledger", "verify", place).returncode == 0


# -- ending ----------------------------------------------------------------------------------------


def test_withdraw_and_erase(book):
    place, numbers = book
    done = call("ledger", "withdraw", place, numbers["ann"], "--reason", "a mistake", "--by", "me")
    assert done.returncode == 0
    done = call("ledger", "withdraw", place, numbers["ann"], "--reason", "again")
    assert (done.returncode, "no longer open" in done.stderr) == (1, True)
    assert (
        call("ledger", "redeem", place, numbers["bob"], *cells(place, numbers["bob"])).returncode
        == 0
    )
    done = call("ledger", "erase", place, "bob", "--yes")
    assert done.stdout.strip() == f"erased: promises {numbers['bob']}"
    done = call("ledger", "erase", place, "bob", "--yes")
    assert (done.returncode, "nothing is known about 'bob'" in done.stderr) == (1, True)
    states = {one["id"]: one for one in json.loads(call("ledger", "list", place, "--json").stdout)}
    assert states[numbers["ann"]]["state"] == "withdrawn"
    assert (states[numbers["bob"]]["state"], states[numbers["bob"]]["person"]) == ("erased", None)
    done = call("ledger", "show", place, numbers["bob"])
    assert done.returncode == 0, said(done)
    assert "bob" not in done.stdout
    assert b"bob" not in place.read_bytes()
    assert call("ledger", "verify", place).returncode == 0


def test_erasing_asks_first(book):
    place, _ = book
    done = run("ledger", "erase", place, "ann")  # nobody answers
    assert done.returncode == 1
    assert "ann" in [
        one["person"] for one in json.loads(call("ledger", "list", place, "--json").stdout)
    ]


def test_export(book, tmp_path):
    place, numbers = book
    chain, table = tmp_path / "chain.jsonl", tmp_path / "promises.csv"
    done = call("ledger", "export", place, "--chain", chain, "--promises", table)
    assert done.returncode == 0, said(done)
    entries = [json.loads(line) for line in chain.read_text(encoding="utf-8").splitlines()]
    previous = "0" * 64
    for n, entry in enumerate(entries, start=1):  # as the docs say how to
        parts = [entry[name] for name in ("seq", "time", "kind", "promise", "body")]
        content = f"{previous}\n{json.dumps(parts)}"
        previous = hashlib.sha256(content.encode()).hexdigest()
        assert (entry["seq"], entry["hash"]) == (n, previous)
    assert f"{len(entries)}:{previous}" in call("ledger", "verify", place).stdout
    assert not any(f'"{person}' in chain.read_text(encoding="utf-8") for person in numbers)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["person"]: int(row["id"]) for row in rows} == numbers
    assert {row["state"] for row in rows} == {"open"}
    done = call("ledger", "export", place, "--chain", chain)
    assert (done.returncode, "is there already" in done.stderr) == (1, True)
    assert call("ledger", "export", place).returncode == 1
    assert not list(tmp_path.glob("*.part"))


def test_an_empty_ledger_is_exported_with_its_columns(tmp_path):
    pp.Ledger(tmp_path / "p.db").close()
    done = call("ledger", "export", tmp_path / "p.db", "--promises", tmp_path / "p.csv")
    assert done.returncode == 0, said(done)
    assert (tmp_path / "p.csv").read_text(encoding="utf-8").startswith("id,person,state")


# -- what a person is given ------------------------------------------------------------------------


def test_the_letter_of_a_promise(made, book, tmp_path):
    """As it was written when the promise was issued, and only as long as it is open."""
    place, numbers = book
    number, out = numbers["ann"], tmp_path / "letter.html"
    done = call("ledger", "letter", place, number, "--out", out)
    assert done.returncode == 0, said(done)
    first = next((made / "letters").glob("row-*000.html")).read_text()
    assert f"promise {number}" in out.read_text()
    assert in_words(out) == in_words_of(first)
    done = call("ledger", "letter", place, number, "--out", out)
    assert (done.returncode, "is there already" in said(done)) == (1, True)
    again = tmp_path / "again.html"
    words = ("--subject", "the loan", "--outcome", "approved")
    assert call("ledger", "letter", place, number, "--out", again, *words).returncode == 0
    assert "the loan would have been approved" in again.read_text().lower()
    assert call("ledger", "withdraw", place, number, "--reason", "a test").returncode == 0
    done = call("ledger", "letter", place, number, "--out", tmp_path / "late.html")
    assert (done.returncode, "is withdrawn, and a letter would say" in said(done)) == (1, True)
    assert not (tmp_path / "late.html").exists()


def in_words(path):
    return in_words_of(path.read_text())


def in_words_of(page):
    """What a letter says; its person is called by the id alone."""
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text).replace("Person 0 (customer ann)", "Person ann")


def test_the_proof_of_a_promise_is_all_that_a_check_needs(book, tmp_path):
    place, numbers = book
    out = tmp_path / "proof"
    done = call("ledger", "proof", place, numbers["bob"], "--out", out)
    assert done.returncode == 0, said(done)
    assert sorted(path.name for path in out.iterdir()) == [
        "certificate.json",
        "model.npz",
        "verify.html",
    ]
    command = re.search(r"check it: proplace (check .*)", done.stdout).group(1).split()
    checked = call(*command)
    assert checked.returncode == 0, said(checked)
    assert call("ledger", "proof", place, numbers["bob"], "--out", out).returncode == 1
    assert call("ledger", "erase", place, "bob", "--yes").returncode == 0
    done = call("ledger", "proof", place, numbers["bob"], "--out", tmp_path / "gone")
    assert (done.returncode, "its certificate with it" in said(done)) == (1, True)
    assert not (tmp_path / "gone").exists()
