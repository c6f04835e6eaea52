"""Classes of a retrained model: the same label means the same, and a number means nothing by itself."""

from __future__ import annotations

import json

import pytest
import torch

import proplace as pp
from commands import run
from proplace.core.errors import LedgerError, ProplaceError, TargetError
from support.errors import raises
from support.lenders import repaying, repayments


@pytest.fixture(scope="module")
def approving():
    """A model whose class "approved" is class 0, in the order of the alphabet, and its answers."""
    table, _ = repayments()
    model = repaying(["refused", "approved"])
    refused = table[model.predict(table) == "refused"][:6]
    return model, pp.Proplace(model, 0.005).fit(table).explain(refused, "approved")


@pytest.fixture
def book(ledger, approving):
    """Promises of the class "approved"."""
    model, result = approving
    ledger.issue(result, [f"p{e.index}" for e in result])
    return ledger, model, result


@pytest.mark.parametrize("labels", [[0, 1], [False, True], ["0", "1"], ["no", "yes"]], ids=str)
def test_other_labels_are_never_matched_by_their_place(book, labels):
    """Class 0 of the promises is "approved", class 0 of this model means refused."""
    ledger, _, result = book
    other = repaying(labels)
    audit = ledger.audit(other)
    assert audit.counts["undecided"] == len(audit)
    assert not audit.passes("broken")
    assert "approved" in str(audit)
    answer = ledger.promise(int(audit.ids[0])).answer
    with pytest.raises(ProplaceError):
        ledger.redeem(int(audit.ids[0]), answer, other)
    for promises in (ledger, result):
        with pytest.raises(ProplaceError):
            pp.retrain.repair(other, promises)
        with pytest.raises(ProplaceError):
            pp.retrain.Promised.of(pp.Model.of(other), promises)


def test_same_labels_in_another_order_are_same_classes(book):
    """The target class has another number in it, and the verdict is that of its own predict."""
    ledger, model, _ = book
    turned = repaying(["refused", "approved"], seed=3)
    audit = ledger.audit(turned)
    for number in audit.ids.tolist():
        row = ledger.promise(number).answer.to_frame().T.infer_objects()
        says = turned.predict(row)[0] == "approved"
        assert audit.verdict(number) == ("holds" if says else "broken")
    assert ledger.audit(model).counts["proved"] == len(audit)


def test_bare_network_counts_as_model_in_use(book):
    ledger, model, _ = book
    audit = ledger.audit(pp.Model.of(model).network)
    assert audit.counts["proved"] == len(audit)


def module(sign):
    net = torch.nn.Sequential(torch.nn.Linear(2, 1)).double()
    with torch.no_grad():
        net[0].weight[:] = sign * torch.tensor([[1.0, -1.0]])
        net[0].bias[:] = sign * -20.0
    return net


def test_module_without_labels_needs_classes(book):
    ledger, *_ = book
    for sign, labels in ((1.0, ["refused", "approved"]), (-1.0, ["approved", "refused"])):
        own = pp.Model.of(module(sign)).with_column_names(["income", "debt"])
        silent = ledger.audit(own)
        assert silent.counts["undecided"] == len(silent)
        assert "with_classes" in str(silent)
        audit = ledger.audit(own.with_classes(labels))
        assert audit.counts["undecided"] == 0
        for number in audit.ids.tolist():
            answer = ledger.promise(number).answer
            good = answer["income"] - answer["debt"] > 20
            assert audit.verdict(number) == ("holds" if good else "broken")
            redeemed = ledger.redeem(number, answer, own.with_classes(labels), record=False)
            assert redeemed.accepted == good


def test_labels_are_stated_once_and_for_as_many_classes(book):
    _, model, _ = book
    with raises(TargetError, name="classes", match="approved"):
        pp.Model.of(model).with_classes(["a", "b"])
    bare = pp.Model.of(module(1.0))
    for labels in (["a"], ["a", "a"], ["a", "b", "c"]):
        with raises(TargetError, name="classes", match="2 classes"):
            bare.with_classes(labels)
    assert bare.with_classes(["no", "yes"]).predict_original([[90.0, 1.0]]).tolist() == ["yes"]


def test_new_answers_are_those_of_audited_model(book):
    ledger, model, _ = book
    table, _ = repayments()
    other = repaying(["refused", "approved"], seed=5)
    audit = ledger.audit(other)
    with raises(LedgerError, name="explainer"):
        audit.renew(pp.Proplace(model, 0.005).fit(table))
    audit.renew(pp.Proplace(other, 0.005).fit(table))


def test_classes_are_stated_on_command_line(book, tmp_path):
    """A file of a module has neither names nor labels, so the project file gives them."""
    ledger, *_ = book
    rows = torch.zeros(2, 2, dtype=torch.float64)
    torch.onnx.export(module(-1.0).eval(), rows, tmp_path / "m.onnx", verbose=False)
    columns = [pp.Continuous(name, 0, 100, scaling="none") for name in ("income", "debt")]
    pp.Schema(columns).write(tmp_path / "s.yaml")
    model = ["schema:", tmp_path / "s.yaml"]
    words = ["audit", tmp_path / "m.onnx", "--ledger", ledger.name, *model, "--json"]
    silent = json.loads(run(*words, "--dry-run").stdout)
    assert silent["counts"]["undecided"] == 6
    assert "classes" in silent["terms"][0]["reason"]
    stated = ["classes:", ["approved", "refused"]]
    found = json.loads(run(*words, *stated).stdout)
    for one in found["promises"]:
        answer = ledger.promise(one["promise"]).answer
        good = answer["income"] - answer["debt"] > 20
        assert one["verdict"] == ("holds" if good else "broken")
    number = found["promises"][0]["promise"]
    cells = [f"{k}={v}" for k, v in ledger.promise(number).answer.items()]
    assert run(*words, *stated, "--approve").returncode == 0
    assert run("ledger", "redeem", ledger.name, number, *cells, "--dry-run").returncode in (0, 4)
