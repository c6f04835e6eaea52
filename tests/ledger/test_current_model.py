"""Promises are those of the current model: what another model answers is not issued."""

from __future__ import annotations

import contextlib
import multiprocessing

import pandas as pd

import proplace as pp
from proplace.batch import explain_file
from proplace.core.errors import LedgerError
from proplace.ledger import ledger as ledgers
from support.errors import raises
from support.lenders import (
    APPLICANTS,
    INCOME_DEBT,
    LATER,
    NET,
    STRICT,
    TRAINING,
    answers,
    applicants,
    deciding,
    tilted,
)

fork = multiprocessing.get_context("fork")
LAST = "2999-12-31"
REFUSED = "another model than the current one"


def test_issue_refuses_answers_of_another_model(place):
    with pp.Ledger(place) as ledger:
        ledger.issue(answers(1), ["anna"])
        ledger.set_current_model(LATER)
        head = ledger.head
        with raises(LedgerError, name="result", match=REFUSED):
            ledger.issue(answers(1, 1), ["bert"])
        assert ledger.head == head
        ledger.issue(answers(1, 1, net=LATER), ["bert"])
        ledger.set_current_model(NET)
        ledger.issue(answers(1, 2), ["carla"])
        with raises(LedgerError, name="result", match=REFUSED):
            ledger.issue(answers(1, 3, net=LATER), ["dora"])


def test_issue_refuses_answers_if_another_model_is_set_while_they_are_checked(
    place, result, monkeypatch
):
    draft = ledgers.draft

    def draft_while_another_sets(*args, **options):
        with pp.Ledger(place) as other:
            other.set_current_model(LATER)
        return draft(*args, **options)

    with pp.Ledger(place) as ledger:
        ledger.issue(answers(1, 8), ["zoe"])
        monkeypatch.setattr(ledgers, "draft", draft_while_another_sets)
        with raises(LedgerError, name="result", match=REFUSED):
            ledger.issue(result, ["a", "b", "c"])
        assert ledger.promises()["person"].tolist() == ["zoe"]


def test_issue_of_folder_refuses_answers_of_another_model(ledger, tmp_path):
    explainer = pp.Proplace(NET, 0.01, schema=INCOME_DEBT, k=3).fit(TRAINING)
    people = pd.DataFrame({"income": [3, 4], "debt": [20, 21], "who": ["a", "b"]})
    people.to_csv(tmp_path / "people.csv", index=False)
    request = explainer.request()
    explain_file(
        explainer,
        tmp_path / "people.csv",
        tmp_path / "out",
        request,
        ids=["who"],
        certificates=True,
    )
    ledger.issue(answers(1), ["anna"])
    ledger.set_current_model(LATER)
    with raises(LedgerError, match=REFUSED):
        ledger.issue_folder(tmp_path / "out")
    ledger.set_current_model(NET)
    assert ledger.issue_folder(tmp_path / "out").new == 2


def test_answers_of_current_model_are_issued_however_it_was_given(lender, ledger, tmp_path):
    """The pipeline itself, its file, with a schema or without."""
    ledger.set_current_model(lender.pipe)
    result = lender.result
    people = [f"p{n}" for n in range(len(result))]
    assert ledger.issue(result, people).new
    model = pp.Model.of(lender.pipe)
    model.save(tmp_path / "model.npz")
    for given in (
        model,
        model.with_schema(APPLICANTS),
        tmp_path / "model.npz",
        model.network,
        lender.pipe,
    ):
        ledger.set_current_model(given)
        assert not ledger.issue(result, people).new  # known, and not refused
    for other in (
        lender.accepting(0.01),
        deciding(lender.frame, 1),
        deciding(applicants(300, 9)),
    ):
        ledger.set_current_model(other)
        with raises(LedgerError, name="result", match=REFUSED):
            ledger.issue(result, people)


def test_scaler_that_was_fitted_again_makes_another_model(lender, ledger):
    ledger.set_current_model(lender.pipe)
    ledger.issue(lender.result, [f"p{n}" for n in range(len(lender.result))])
    other = tilted(lender.pipe, 0.0)
    other[0].named_transformers_["pipeline"][-1].mean_ += 1e-9
    ledger.set_current_model(other)
    with raises(LedgerError, name="result", match=REFUSED):
        ledger.issue(lender.result, [f"q{n}" for n in range(len(lender.result))])


def test_renewed_answers_are_issued_once_their_model_is_current_one(tmp_path):
    strict = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.9])])
    table = pd.DataFrame({"income": [20, 99, 98, 99], "debt": [30, 1, 0, 2]})
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        ledger.set_current_model(pp.Model.of(NET).with_schema(INCOME_DEBT))
        ledger.issue(answers(2), ["a", "b"])
        audit = ledger.audit(strict)
        explainer = pp.Proplace(strict, 0.005, schema=INCOME_DEBT, k=2).fit(table)
        renewal = audit.renew(explainer)
        with raises(LedgerError, match=REFUSED):
            renewal.issue()
        ledger.approve(audit.number)
        assert len(renewal.issue().new) == 2


def test_promise_is_of_model_before_it_while_two_processes_race(place):
    """One process issues answers of two models, the other sets each model in turn."""
    results = {name: answers(40, net=net) for name, net in (("old", NET), ("new", LATER))}
    with pp.Ledger(place) as ledger:
        ledger.issue(results["old"][:1], ["first"])
        ledger.set_current_model(NET)
    gate = fork.Event()

    def issue():
        gate.wait()
        with pp.Ledger(place) as ledger:
            for n in range(40):
                for name, result in results.items():
                    with contextlib.suppress(LedgerError):
                        ledger.issue(result[n : n + 1], [f"{name}{n}"], check=False)

    def set_model():
        gate.wait()
        with pp.Ledger(place) as ledger:
            for net in (LATER, NET) * 20:
                ledger.set_current_model(net)

    processes = [fork.Process(target=job) for job in (issue, set_model)]
    for process in processes:
        process.start()
    gate.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    with pp.Ledger(place) as ledger:
        check_each_promise_is_of_the_model_before_it(ledger)
        issued = ledger.promises()["person"].tolist()
        assert 1 < len(issued) < 81


def check_each_promise_is_of_the_model_before_it(ledger):
    current = None
    for entry in ledger.entries(kinds=["model_set", "issued"]):
        if entry.kind == "model_set":
            current = entry.facts["model"]
        elif current is not None:
            assert ledger.promise(entry.promise).terms.model_digest == current


def test_redeem_uses_model_that_is_current_in_its_transaction(place, monkeypatch):
    compare = ledgers.compare

    def compare_while_another_sets(*args):
        found = compare(*args)
        monkeypatch.setattr(ledgers, "compare", compare)
        with pp.Ledger(place) as other:
            other.set_current_model(STRICT)
        return found

    with pp.Ledger(place) as ledger:
        (number,) = ledger.issue(answers(1), ["anna"]).ids
        monkeypatch.setattr(ledgers, "compare", compare_while_another_sets)
        found = ledger.redeem(number, ledger.promise(number).answer)
        assert found.verdict == "broken"
        assert ledger.promise(number).state == "open"
