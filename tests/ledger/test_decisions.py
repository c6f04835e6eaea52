"""Decisions on audited models: verdicts are read again, and an approved model decides."""

from __future__ import annotations

import pandas as pd
import pytest

import proplace as pp
from proplace.core.errors import LedgerError, NotInLedgerError
from support import lenders as small
from support.errors import raises


@pytest.fixture
def ledger(tmp_path):
    with pp.Ledger(tmp_path / "promises.db", actor="anna") as opened:
        opened.issue(small.answers(3), ids=["a", "b", "c"], expires="2999-12-31")
        yield opened


@pytest.fixture
def later(tmp_path):
    """A retrained model as a file, which does not name its columns."""
    small.LATER.save(tmp_path / "later.npz")
    return tmp_path / "later.npz"


def test_verdicts_are_those_of_audit(ledger):
    refusing = pp.Network([([[0.0, 0.0]], [-1.0])])
    for model in (small.LATER, refusing):
        audit = ledger.audit(model)
        found = ledger.verdicts(audit.number)
        columns = ["person", "verdict", "margin", "expires", "sentence"]
        pd.testing.assert_frame_equal(
            found[columns], audit.to_frame()[columns], check_dtype=False, check_index_type=False
        )
    ledger.erase("b")
    found = ledger.verdicts(audit.number)
    assert found["person"].tolist() == ["a", None, "c"]
    assert found["verdict"].tolist() == ["broken"] * 3


def test_renewed_promises_keep_their_words(tmp_path):
    words = pp.Wording("the credit line", ["closed", "opened"], "firm")
    strict = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.9])])
    table = pd.DataFrame({"income": [20, 99, 98, 99], "debt": [30, 1, 0, 2]})
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        ledger.issue(small.answers(2), ids=["acme", "7"], wording=words)
        explainer = pp.Proplace(strict, 0.005, schema=small.INCOME_DEBT, k=2).fit(table)
        new = ledger.audit(strict).renew(explainer).issue().new
        assert len(new) == 2
        for promise in map(ledger.promise, new):
            assert promise.wording == pp.Wording(
                "the credit line", {0: "closed", 1: "opened"}, "firm"
            )
            assert promise.sentence.startswith("The credit line would have been opened")


def test_renewal_lists_features_that_only_old_promise_changes(tmp_path):
    """Less debt was promised. The new counterfactual takes a higher income and leaves the debt."""
    table = pd.DataFrame({"income": [60, 60, 95, 99], "debt": [5, 8, 40, 40]})
    person = pd.DataFrame({"income": [60], "debt": [40]})
    rich = pp.Network([([[1.0, 0.0]], [-0.9])])
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        old = pp.Proplace(small.NET, 0.005, schema=small.INCOME_DEBT, k=2)
        ledger.issue(old.fit(table).explain(person, immutable=["income"]), ["acme"])
        new = pp.Proplace(rich, 0.005, schema=small.INCOME_DEBT, k=2).fit(table)
        frame = ledger.audit(rich).renew(new, immutable=["debt"]).to_frame().set_index("feature")
    assert (
        frame.loc["debt", "was"] == frame.loc["debt", "now"] == 40 > frame.loc["debt", "promised"]
    )
    assert (
        frame.loc["income", "was"] == frame.loc["income", "promised"] < frame.loc["income", "now"]
    )


def test_there_must_be_audit(ledger):
    issued = next(ledger.entries(kinds=("issued",))).seq
    for number in (issued, 0, 10**6):
        with raises(NotInLedgerError, name="audit"):
            ledger.verdicts(number)
        with raises(NotInLedgerError, name="audit"):
            ledger.approve(number)


def test_entries_of_some_kinds(ledger):
    ledger.audit(small.LATER)
    everything = list(ledger.entries())
    kinds = {"issued", "audited"}
    assert list(ledger.entries(kinds=kinds)) == [e for e in everything if e.kind in kinds]
    assert list(ledger.entries(kinds=())) == []


def test_approved_model_decides_on_returning_people(ledger, later):
    audit = ledger.audit(later)
    entry = ledger.approve(audit.number, note="in the set")
    assert (entry.kind, entry.facts["by"]) == ("approved", "anna")
    number = next(ledger.entries(kinds=("issued",))).promise
    answer = ledger.promise(number).answer.to_dict()
    assert ledger.redeem(number, answer, record=False).verdict == "met_exactly"
    adopted = list(ledger.entries(kinds=("model_set",)))[-1]
    assert adopted.facts["model"] == audit.model_digest
    assert ledger.verify().valid


def test_model_of_other_columns_is_not_approved(ledger, tmp_path):
    pp.Network([([[1.0, 1.0, 1.0]], [0.0])]).save(tmp_path / "wide.npz")
    audit = ledger.audit(tmp_path / "wide.npz")
    head = ledger.head
    with raises(LedgerError, name="audit", match="with_schema"):
        ledger.approve(audit.number)
    assert ledger.head == head
    ledger.reject(audit.number)
    assert [e.facts["audit"] for e in ledger.entries(kinds=("rejected",))] == [audit.number]
    assert list(ledger.entries(kinds=("model_set",))) == []


def test_approve_rejects_audit_without_verdict_on_open_promise(ledger):
    future = ledger.audit(small.LATER, as_of="3000-01-01")  # all promises are expired by then
    audit = ledger.audit(small.LATER)
    ledger.issue(small.answers(1, 5), ["dora"])
    head = ledger.head
    for number, missed in ((future.number, 4), (audit.number, 1)):
        with raises(LedgerError, name="audit", match=f" {missed} of the .*Audit the model again"):
            ledger.approve(number)
    assert ledger.head == head
    ledger.approve(ledger.audit(small.LATER).number)
    with raises(LedgerError, match="another model than the current one"):
        ledger.issue(small.answers(1, 6), ["emil"])


def test_model_of_other_columns_is_not_set(ledger):
    other = pp.Schema([pp.Continuous("height", 0, 1), pp.Continuous("weight", 0, 1)])
    with raises(LedgerError, name="model", match="names of the promises"):
        ledger.set_current_model(pp.Model.of(small.LATER).with_schema(other))
