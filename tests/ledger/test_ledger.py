"""Issuing and looking up: who gets a promise, what is refused, and that nothing is half written."""

from __future__ import annotations

import datetime
import json
import os

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import LedgerError, NotInLedgerError, OptionError
from proplace.explain import record
from proplace.ledger import tables
from proplace.ledger.database import Database
from proplace.ledger.promise import person_id
from proplace.ledger.tables import VERSION
from support.errors import raises
from support.lenders import (
    INCOME_DEBT,
    LATER,
    LOAN,
    NET,
    TRAINING,
    answers,
    changed,
    open_promises,
    refused,
)

PEOPLE = ["anna", "bert", "carla"]


@pytest.fixture
def ledger(place):
    with pp.Ledger(place) as found:
        yield found


@pytest.fixture
def book(tmp_path):
    """A ledger in a file: for rules that are none of the database's."""
    with pp.Ledger(tmp_path / "promises.db") as found:
        yield found


def refuses(ledger, name, *given, word=None, **options):
    """Issuing is refused, and nothing at all was written."""
    before = ledger.head
    with raises(LedgerError, name=name, match=word):
        ledger.issue(*given, **options)
    assert ledger.head == before
    assert ledger.verify(before).valid


# -- what is kept ----------------------------------------------------------------------------------


def test_promise_is_kept_as_it_was_made(ledger, result):
    issued = ledger.issue(result, PEOPLE, expires="2999-12-31")
    assert len(issued.new) == len(set(issued.ids)) == 3
    for number, e, person in zip(issued.ids, result, PEOPLE, strict=True):
        promise = ledger.promise(number)
        assert (promise.person, promise.state, promise.expires) == (person, "open", "2999-12-31")
        assert promise.point.tolist() == e.encoded_counterfactual.tolist()
        assert promise.answer.to_dict() == e.counterfactual.to_dict()
        assert promise.original.to_dict() == e.original.to_dict()
        assert promise.sentence == e.describe().sentence
        assert promise.certificate.to_json() == e.certificate.to_json()
        (terms,) = promise.terms.guarantee.members
        assert promise.certificate.check(terms.network, terms.shifts).accepted
        assert terms.network.predict(promise.point[None]) == [promise.terms.request.target]
    assert ledger.verify().valid
    assert ledger.verify().promises == 3


def test_tolerance_is_kept_with_its_box(ledger, boxed):
    for number in ledger.issue(boxed, ["dora", "emil"]).ids:
        promise = ledger.promise(number)
        reach = np.array([2 / 100, 1 / 50])
        assert (promise.low <= promise.point - reach).all()
        assert (promise.high >= promise.point + reach).all()
        box = (promise.low, promise.high)
        (terms,) = promise.terms.guarantee.members
        assert promise.certificate.check(terms.network, terms.shifts, box=box).accepted
    (group,) = open_promises(ledger)
    assert group.boxed.all()


def test_features_of_every_kind_come_back(book, every_kind):
    ids = [f"p{e.index}" for e in every_kind.result]
    issued = book.issue(every_kind.result, ids, wording=LOAN, existing="add")
    found = [e for e in every_kind.result if e.found]
    assert len(issued.new) == len(found) > 4
    for number, e in zip(issued.ids, found, strict=True):
        again = book.promise(number).explanation
        assert again.counterfactual.to_dict() == e.counterfactual.to_dict()
        assert again.encoded_original.tolist() == e.encoded_original.tolist()
        assert (again.rank, again.status, again.distance) == (e.rank, e.status, e.distance)
        assert "loan" in book.promise(number).sentence


def test_answers_of_pipeline(ledger):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 70, 200), "rate": rng.uniform(0, 1.5, 200)})
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    pipe.fit(table, np.where(table.age > 40 + 10 * table.rate, "yes", "no"))
    explainer = pp.Proplace(pipe, 0.01, k=5).fit(table)
    people = table[pipe.predict(table) == "no"][:3]
    result = explainer.explain(people, target="yes")
    issued = ledger.issue(result, {label: f"p{label}" for label in people.index})
    assert [ledger.promise(number).target for number in issued.ids] == ["yes"] * 3
    assert ledger.verify().valid


def test_answers_of_several_networks(ledger):
    shifts = pp.Shifts.bounding([NET, LATER])
    both = answers(1, net=NET, delta=shifts, required_models=[(LATER, 0.005)])
    (number,) = ledger.issue(both, ["berta"]).ids
    terms = ledger.promise(number).terms
    assert len(terms.guarantee.members) == len(both[0].setting.guarantee.members) > 1
    assert ledger.promise(number).certificate.check(terms.guarantee).accepted
    assert (
        terms.guarantee.members[0].shifts.digest
        == both[0].setting.guarantee.members[0].shifts.digest
    )
    assert ledger.verify().valid


def test_states_and_history(ledger, result):
    anna, bert, carla = ledger.issue(result, PEOPLE, expires="2999-12-31").ids
    ledger.withdraw(anna, "the product is no longer sold")
    (new,) = ledger.issue(answers(1, 3, net=LATER), ["bert"], existing="renew").ids
    ledger.erase("carla")
    states = ledger.promises()["state"].to_dict()
    assert states == {anna: "withdrawn", bert: "renewed", carla: "erased", new: "open"}
    assert [e.kind for e in list(ledger.entries(bert))] == ["issued", "renewed"]
    assert list(ledger.entries(bert))[1].facts == {"into": [new]}
    assert list(ledger.entries(anna))[1].facts == {"reason": "the product is no longer sold"}
    assert list(ledger.promises(state="open").index) == [new]
    assert list(ledger.promises(person="bert").index) == [bert, new]
    for number in (anna, bert, carla):
        with raises(LedgerError, name="promise"):
            ledger.withdraw(number, "again")
    with raises(NotInLedgerError, name="promise", value=999):
        ledger.withdraw(999, "unknown")
    assert ledger.verify().valid


def test_withdraw_rejects_reason_with_id(book, result):
    number = book.issue(result, PEOPLE).ids[0]
    with raises(LedgerError, name="reason"):
        book.withdraw(number, "asked by anna.")
    book.withdraw(number, "asked by annabel")


def test_who_writes_is_noted(place, result):
    with pp.Ledger(place, actor="branch 7") as ledger:
        ledger.issue(result, PEOPLE)
        kinds = {e.kind for e in list(ledger.entries()) if e.facts.get("by") == "branch 7"}
    assert kinds == {"document", "issued"}


def test_bodies_of_entries_hold_nothing_of_person(ledger, result):
    """Neither ids nor values, sentences, points or certificates: they could never be erased."""
    ledger.issue(result, ["Anna-Person-1", "Bert-Person-2", "Carla-Person-3"])
    allowed = {"terms", "issued", "expires", "commitment", "digest", "kind"}
    for entry in list(ledger.entries())[1:]:
        assert set(entry.facts) <= allowed
        assert "Person" not in str(tuple(entry))


# -- the same person, days -------------------------------------------------------------------------


def test_same_call_again_changes_nothing(ledger, result):
    first = ledger.issue(result, PEOPLE, expires="2999-12-31")
    head = ledger.head
    again = ledger.issue(result, PEOPLE, expires="2999-12-31")
    assert (again.ids, again.new) == (first.ids, ())
    assert str(again) == "0 promises issued, 3 known already"
    assert ledger.head == head


def test_another_open_promise_is_refused_added_or_renewed(ledger, result):
    (old, *_) = ledger.issue(result, PEOPLE).ids
    other = answers(1, 3, net=LATER)
    refuses(ledger, "existing", other, ["anna"], word="'anna'")
    (second,) = ledger.issue(other, ["anna"], existing="add").new
    assert ledger.promises(person="anna")["state"].to_dict() == {old: "open", second: "open"}
    (third,) = ledger.issue(answers(1, 3, net=LATER, delta=0.005), ["anna"], existing="renew").new
    states = ledger.promises(person="anna")["state"].to_dict()
    assert states == {old: "renewed", second: "renewed", third: "open"}
    with raises(OptionError, name="existing"):
        ledger.issue(other, ["anna"], existing="replace")


def test_another_last_day_is_another_promise(ledger, result):
    (old, *_) = ledger.issue(result[:1], ["anna"], expires="2999-01-01").ids
    refuses(ledger, "existing", result[:1], ["anna"], expires="2999-12-31")
    (new,) = ledger.issue(result[:1], ["anna"], expires="2999-12-31", existing="renew").new
    assert ledger.promises()["expires"].to_dict() == {old: "2999-01-01", new: "2999-12-31"}
    assert ledger.promise(old).state == "renewed"


def test_one_person_in_several_rows(book, result):
    refuses(book, "existing", result, ["anna", "bert", "anna"], word="'anna'")
    same_point = [e.encoded_counterfactual.tolist() for e in result]
    issued = book.issue(result, ["anna", "bert", "anna"], existing="add")
    assert same_point[0] == same_point[2]
    assert issued.ids[0] == issued.ids[2]  # what is promised twice is promised once
    assert len(issued.new) == 2
    assert book.issue(result, ["anna", "bert", "anna"]).new == ()


def test_several_answers_of_one_row_are_promised_together(book, every_kind):
    result = every_kind.result[:2]
    assert len(result) == 2 == len({tuple(e.encoded_counterfactual) for e in result})
    issued = book.issue(result, ["anna"] * 2)
    assert len(issued.new) == 2
    assert len(book.promises(person="anna", state="open")) == 2


def test_promise_ends_with_its_last_day(ledger, result):
    today = datetime.date.fromisoformat(record.now()[:10])
    last = today + datetime.timedelta(days=5)
    (number,) = ledger.issue(result[:1], ["anna"], expires=last).ids
    after = last + datetime.timedelta(days=1)
    for as_of, state in (
        (None, "open"),
        (last, "open"),
        (after, "expired"),
        (f"{after}", "expired"),
    ):
        assert ledger.promise(number, as_of=as_of).state == state
        assert list(ledger.promises(as_of=as_of)["state"]) == [state]
        assert len(ledger.promises(state=state, as_of=as_of)) == 1
        assert len(list(open_promises(ledger, as_of))) == (state == "open")


def test_expired_promise_does_not_stand_in_way(book, result, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr("proplace.ledger.database.now", lambda: "2023-11-14T22:13:20Z")
        (old,) = book.issue(result[:1], ["anna"], expires="2023-12-24").ids
    assert book.promise(old).state == "expired"
    (new,) = book.issue(result[:1], ["anna"]).new
    assert book.promise(new).state == "open"
    with raises(LedgerError, name="promise", match="expired"):
        book.withdraw(old, "too late")


def test_days_that_are_none_or_over(book, result):
    refuses(book, "expires", result, PEOPLE, expires="2001-01-01")
    for wrong in ("soon", "31.12.2999", 5, pd.NaT):
        refuses(book, "day", result, PEOPLE, expires=wrong)
    today = record.now()[:10]
    assert len(book.issue(result, PEOPLE, expires=today).new) == 3
    (number, *_) = book.issue(
        result, PEOPLE, expires=datetime.datetime(2999, 1, 2, 3), existing="add"
    ).new
    assert book.promise(number).expires == "2999-01-02"


# -- ids -------------------------------------------------------------------------------------------


def test_id_is_one_text_however_it_is_given(book, result):
    """A table turns 7 into 7.0 if another cell is empty. It is the same person."""
    book.issue(result, [7, np.int64(8), "carla"])
    assert [person_id(x) for x in (7.0, np.float64(7), "7", 7)] == ["7"] * 4
    refuses(book, "existing", answers(1, 3, net=LATER), [7.0])
    assert len(book.promises(person=7.0)) == 1
    assert len(book.erase(8.0)) == 1


def test_issue_needs_ids(book, result):
    refuses(book, "ids", result)
    refuses(book, "ids", result, "customer", word="no id column")
    refuses(book, "ids", result, ["a", "b"], word="2 ids")
    refuses(book, "ids", result, {0: "a", 1: "b"}, word="row 2")
    for nobody in (None, float("nan"), "", "  ", pd.NA, pd.NaT, np.nan):
        refuses(book, "ids", result, ["a", nobody, "c"], word="row 1")
    for strange in ("a\0b", "a\nb", "\ud800"):
        refuses(book, "ids", result, ["a", strange, "c"], word="printed")


def test_ids_of_column(book, result):
    for n, customer in enumerate(PEOPLE):
        result = changed(result, n, ids={"customer": customer, "branch": 7})
    refuses(book, "ids", result, word="id columns")
    refuses(book, "ids", result, "custmer", word="'customer'")
    book.issue(result, "customer")
    assert list(book.promises()["person"]) == PEOPLE


# -- what is not proved is not promised ------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
def test_certificate_of_another_class_is_rejected(book, result, check):
    """The answers are proved to be accepted (class 1), and would be promised as class 0."""
    refuses(
        book,
        None,
        changed(result[:1], target=0),
        ["anna"],
        word="does not prove",
        check=check,
    )


def test_answer_without_certificate_is_refused(book, result):
    refuses(book, None, changed(result, 1, certificate=None), PEOPLE, word="no certificate")
    refuses(
        book, None, changed(result, 1, certificate=None), PEOPLE, word="no certificate", check=False
    )


def test_rows_without_counterfactual_are_skipped(book):
    explainer = pp.Proplace(NET, 0.01, schema=INCOME_DEBT, k=3).fit(TRAINING)
    rows = pd.concat([refused(1), TRAINING[3:4]], ignore_index=True)
    issued = book.issue(explainer.explain(rows), ["anna", "bert"])
    assert len(issued.new) == 1
    assert issued.skipped[0].reason.startswith("has the class today")
    only = book.issue(explainer.explain(TRAINING[3:4]), ["bert"])
    assert (only.ids, len(only.skipped)) == ((), 1)


@pytest.mark.parametrize("check", [True, False])
def test_certificate_of_something_else_is_refused(book, result, check, every_kind):
    """Of another answer, another model, a smaller delta, another class."""
    foreign = {
        "another answer": every_kind.result[0],
        "another model": answers(1, net=LATER)[0],
        "a smaller delta": answers(1, delta=0.005)[0],
        "a larger delta": answers(1, delta=0.012)[0],
    }
    for what, e in foreign.items():
        wrong = changed(result, 1, certificate=e.certificate)
        with raises(LedgerError, match="does not prove"):
            pytest.fail(f"{what}: {book.issue(wrong, PEOPLE, check=check)}")
    point = result[1].encoded_counterfactual + np.array([0.01, 0.0])
    moved = INCOME_DEBT.decode(point[None]).iloc[0]
    wrong = changed(result, 1, encoded_counterfactual=point, counterfactual=moved)
    refuses(book, None, wrong, PEOPLE, word="does not prove", check=check)


def test_answer_that_is_not_proved_one_is_refused(book, result):
    """The person would receive another claim than the proved one."""
    told = result[1].counterfactual.copy()
    told["income"] -= 1
    refuses(book, None, changed(result, 1, counterfactual=told), PEOPLE, word="original units")


def test_proof_that_does_not_hold_is_refused(book, result):
    facts = json.loads(result[0].certificate.to_json())
    for verdict, delta in (("robust", 0.4), ("not robust", 0.01)):
        facts["verdict"] = verdict
        facts["delta"] = [[delta, delta]] * 2
        e = pp.Certificate(json.dumps(facts))
        refuses(book, None, changed(result, 0, certificate=e), PEOPLE, word="does not")


def test_forged_proof_is_found_by_check(book):
    """Everything fits, but the claim is false, as only arithmetic shows."""
    good = answers(1)
    bad = np.array([0.3, 0.4])  # refused by the model
    facts = json.loads(good[0].certificate.to_json())
    facts["input"] = facts["low"] = facts["high"] = bad.tolist()
    told = INCOME_DEBT.decode(bad[None]).iloc[0]
    forged = changed(
        good,
        0,
        encoded_counterfactual=bad,
        counterfactual=told,
        certificate=pp.Certificate(json.dumps(facts)),
        guaranteed_ranges={},
    )
    refuses(book, None, forged, ["anna"], word="does not hold")


def test_more_than_is_proved_around_answer_is_refused(book, result, boxed):
    wide = changed(result, 0, guaranteed_ranges={"income": (40.0, 70.0)})
    refuses(book, None, wide, PEOPLE, word="wider")
    wide = changed(boxed, 0, guaranteed_ranges={"income": (0.0, 100.0)})
    refuses(book, None, wide, ["dora", "emil"], word="wider")
    point_only = answers(1, 5)[0]
    wrong = changed(
        boxed,
        0,
        certificate=point_only.certificate,
        encoded_counterfactual=point_only.encoded_counterfactual,
        counterfactual=point_only.counterfactual,
    )
    refuses(book, None, wrong, ["dora", "emil"], word="wider")


def test_results_of_several_runs_are_issued_one_by_one(book, result, boxed):
    both = type(result)([*result, *boxed], provenance=result.provenance)
    refuses(book, None, both, [*PEOPLE, "dora", "emil"], word="each run")


def test_refusal_in_middle_writes_nothing(ledger, result):
    ledger.issue(result[1:2], ["bert"])
    other = answers(3, 30, net=LATER)
    refuses(ledger, "existing", other, PEOPLE, word="'bert'")
    assert len(ledger.promises()) == 1


def test_answers_about_another_table_are_rejected(ledger, result):
    """A model decides about all promises of a ledger. A model of another table cannot."""
    ledger.issue(result[:1], ["anna"])
    head = ledger.head
    schema = pp.Schema([pp.Continuous("turnover", 0, 100), pp.Continuous("staff", 0, 50)])
    table = TRAINING.set_axis(["turnover", "staff"], axis=1)
    explainer = pp.Proplace(NET, 0.01, schema=schema, k=3).fit(table)
    firms = explainer.explain(refused(1).set_axis(["turnover", "staff"], axis=1))
    refuses(ledger, "result", firms, ["acme"], word="'income', 'debt'")
    assert ledger.head == head
    wider = pp.Schema(
        [*INCOME_DEBT.features, pp.Continuous("age", 18, 90)]
    )  # one more column is fine
    net = pp.Network([([[2.0, -1.0, 0.0]], [-0.45])])
    more = TRAINING.assign(age=40.0)
    explainer = pp.Proplace(net, 0.01, schema=wider, k=3).fit(more)
    ledger.issue(explainer.explain(refused(1, 5).assign(age=40.0)), ["bert"])


# -- places ----------------------------------------------------------------------------------------


def test_places_that_are_none(tmp_path):
    for place, name in {
        tmp_path / "none" / "promises.db": str(tmp_path / "none" / "promises.db"),
        "mysql://host/name": "place",
        ":memory:": "place",
        "sqlite://": "place",
        "sqlite:///:memory:": "place",
    }.items():
        with raises(LedgerError, name=name):
            pp.Ledger(place)
    with raises(LedgerError, name=str(tmp_path / "promises.db")):
        pp.Ledger(tmp_path / "promises.db", create=False)
    assert not (tmp_path / "promises.db").exists()


def test_files_that_are_something_else(tmp_path):
    import sqlite3

    text = tmp_path / "text.db"
    text.write_text("income,debt\n" * 500)
    other = tmp_path / "other.db"
    for statement in ("CREATE TABLE customers (id)", "CREATE TABLE meta (name, value)"):
        with raises(LedgerError, name=str(text)):
            pp.Ledger(text)
        raw = sqlite3.connect(other)
        raw.execute(statement)
        raw.commit()
        raw.close()
        with raises(LedgerError, name=str(other)):
            pp.Ledger(other)
    assert text.read_text() == "income,debt\n" * 500


@pytest.mark.parametrize("version", ["1", str(VERSION + 1), "two", ""])
def test_ledger_of_another_version_is_rejected(place, version):
    database = Database(place)
    with database.write() as writer:
        writer.connection.execute(
            tables.meta.update().where(tables.meta.c.name == "version").values(value=version)
        )
    with raises(LedgerError, match="version"):
        Database(place)
    # A writer that opened it before does not write what the other version would not understand.
    with raises(LedgerError, match="version"), database.write():
        pass
    database.close()


def test_verify_detects_second_opening(ledger, result):
    """Its version would count in place of that of the first."""
    ledger.issue(result[:1], ["anna"])
    with ledger._database.write() as writer:
        writer.append("opened", {"version": VERSION})
    assert "opens the ledger" in str(ledger.verify())


def test_empty_result_and_empty_ledger(ledger, result):
    assert ledger.issue(result[:0], []).ids == ()
    assert ledger.promises().empty
    assert list(open_promises(ledger)) == []
    assert ledger.verify().valid
    assert ledger.erase("nobody") == ()
    assert [e.kind for e in list(ledger.entries())] == ["opened"]


# -- many ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousands_of_promises_in_groups_and_by_person(ledger, result):
    """Issued in parts as at once. Each group has one kind of terms, and every promise occurs once."""
    big = type(result)(list(result) * 900, provenance=result.provenance)
    issued = ledger.issue(big, [f"p{n}" for n in range(len(big))], check=False)
    other = ledger.issue(answers(5, net=LATER), [f"q{n}" for n in range(5)])
    assert len(set(issued.new)) == 2700
    ledger.withdraw(issued.new[17], "a test")
    groups = list(open_promises(ledger))
    found = [number for group in groups for number in group.ids.tolist()]
    assert sorted(found) == sorted({*issued.new, *other.new} - {issued.new[17]})
    assert len({group.terms.digest for group in groups}) == 2
    for group in groups:
        number = int(group.ids[0])
        assert ledger.promise(number).point.tolist() == group.points[0].tolist()
    assert list(ledger.promises(person="p2000").index) == [issued.ids[2000]]
    found = ledger.verify()
    assert found.valid
    assert found.promises == 2705


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_new_file_is_of_its_owner_alone(tmp_path):
    before, path = os.umask(0), tmp_path / "promises.db"
    try:
        with pp.Ledger(path):
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) >= {"promises.db", "promises.db-wal"}
    assert set(modes.values()) == {0o600}
    path.chmod(0o640)  # as its owner wants it
    pp.Ledger(path).close()
    assert path.stat().st_mode & 0o777 == 0o640


def test_person_is_one_however_letters_of_id_are_composed(ledger, result):
    composed, decomposed = (
        "Ren\N{LATIN SMALL LETTER E WITH ACUTE}",
        "Rene\N{COMBINING ACUTE ACCENT}",
    )
    (number,) = ledger.issue(result[:1], [decomposed]).ids
    assert ledger.promise(number).person == composed
    assert not ledger.issue(result[:1], [composed]).new
    for text in (composed, decomposed):
        assert ledger.promises(text).index.tolist() == [number]
        assert ledger.page(person=text[:-1] + text[-1]).index.tolist() == [number]
        with raises(LedgerError, name="reason"):
            ledger.withdraw(number, f"{text} has moved")
    assert ledger.erase(decomposed) == (number,)
    assert len(ledger.promises(composed)) == 0


LONE = "\ud800"


def test_lone_surrogates_are_refused_or_written_and_read_back(tmp_path, result):
    """Half a character, as a terminal or a JSON text may hold it, is none that a database keeps."""
    place = tmp_path / "promises.db"
    with pp.Ledger(place, actor=f"anna{LONE}") as ledger:
        (number,) = ledger.issue(result[:1], ["anna"]).ids
        for ask in (
            lambda: ledger.issue(result[:1], [LONE]),
            lambda: ledger.promises(LONE),
            lambda: ledger.page(person=LONE),
            lambda: ledger.erase(LONE),
        ):
            with raises(LedgerError, match="printed"):
                ask()
        ledger.set_current_model(NET, note=LONE)
        assert list(ledger.entries())[-1].facts["note"] == LONE
        ledger.withdraw(number, LONE)
        words = pp.Wording(f"the loan{LONE}", ["refused", "approved"])
        (number,) = ledger.issue(result[1:2], ["bert"], wording=words).ids
        assert ledger.promise(number).wording.subject == words.subject
        assert ledger.verify().valid


def test_unknown_states_kinds_and_numbers_are_rejected(tmp_path):
    """None of them is a question whose answer is empty."""
    reads = [
        ("state", lambda ledger: ledger.promises(state="opened")),
        ("state", lambda ledger: ledger.page(state="opened")),
        ("size", lambda ledger: ledger.page(-1)),
        ("before", lambda ledger: ledger.page(before="last")),
        ("promise", lambda ledger: ledger.promise(2**63)),
        ("promise", lambda ledger: ledger.promise(True)),
        ("promise", lambda ledger: ledger.attempts("anna")),
        ("promise", lambda ledger: list(ledger.entries("anna"))),
        ("kinds", lambda ledger: list(ledger.entries(kinds=["audit"]))),
        ("audit", lambda ledger: ledger.verdicts("last")),
        ("only", lambda ledger: ledger.verdicts(1, ["refused"])),
        ("audit", lambda ledger: ledger.approve("last")),
        ("verdict", lambda ledger: ledger.audit(NET, record=False).to_frame("refused")),
        ("verdict", lambda ledger: ledger.audit(NET, record=False).with_verdict("refused")),
    ]
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        for name, read in reads:
            with pytest.raises((LedgerError, OptionError)) as error:
                read(ledger)
            assert error.value.name == name
