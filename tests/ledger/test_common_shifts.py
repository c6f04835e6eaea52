"""Retraining within the set of a ledger, again and again: every promise stays proved."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import DeltaError, LedgerError
from support.errors import raises
from support.lenders import open_promises, repaying, repayments


@pytest.fixture(scope="module")
def model():
    return repaying()


def promise(ledger, model, delta, people, name):
    table, _ = repayments()
    refused = table[model.predict(table) == 0].iloc[people]
    result = pp.Proplace(model, delta).fit(table).explain(refused)
    ledger.issue(result, [f"{name}{i}" for i in refused.index], existing="add")


def test_every_year_within_same_set(ledger, model):
    """A delta around the model of last year leaves the promised set, but the set itself does not."""
    promise(ledger, model, 0.01, slice(0, 8), "a")
    inside, drifting = model, model
    for n in range(1, 4):
        inside = pp.retrain.refit_within(inside, *repayments(n, strict=30.0), ledger)
        drifting = pp.retrain.refit_within(drifting, *repayments(n, strict=30.0), 0.01)
        audit = ledger.audit(inside)
        assert audit.counts["proved"] == len(audit) > 0
        assert ledger.promised_set(inside).contains(pp.Model.of(inside).network)
    assert pp.Model.of(model).network.distance(pp.Model.of(inside).network) > 0.009
    assert ledger.audit(drifting).counts["proved"] == 0


def test_promises_of_two_models_have_set_in_common(ledger, model):
    first = model
    promise(ledger, first, 0.01, slice(0, 5), "a")
    second = pp.retrain.refit_within(first, *repayments(1, strict=30.0), 0.004)
    promise(ledger, second, 0.008, slice(5, 10), "b")
    both = ledger.promised_set(second)
    sets = [group.terms.guarantee.members[0].shifts for group in open_promises(ledger)]
    assert len(sets) == 2
    for end in (both.low, both.high):  # its corners lie in each of them, exactly
        assert all(shifts.contains(end) for shifts in sets)
    third = pp.retrain.refit_within(second, *repayments(2, strict=35.0), ledger)
    audit = ledger.audit(third)
    assert audit.counts["proved"] == len(audit) == 10
    assert pp.Model.of(second).network.distance(pp.Model.of(third).network) > 0.003


def test_module_within_set_of_ledger(ledger):
    torch.manual_seed(0)
    rows = np.random.default_rng(0).uniform(0, 1, (200, 3))
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    with torch.no_grad():
        module[2].bias[:] = 0.0
    net = pp.Model.of(module).network
    rows = rows[np.argsort(net.logits(rows)[:, 0])]
    with torch.no_grad():
        module[2].bias[:] = -float(net.logits(rows)[100, 0])
    refused = rows[:4]
    result = pp.Proplace(module, 0.005).fit(rows).explain(refused)
    ledger.issue(result, list("abcd"))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    with pp.retrain.stay_within(module, ledger, optimizer):
        for _ in range(30):
            optimizer.zero_grad()
            module(torch.tensor(rows, dtype=torch.float32)).sum().backward()
            optimizer.step()
    audit = ledger.audit(module)
    assert audit.counts["proved"] == len(audit) > 0


def test_error_without_common_set_names_way_out(ledger, model):
    with raises(LedgerError, match="open"):
        pp.retrain.refit_within(model, *repayments(1), ledger)
    promise(ledger, model, 0.01, slice(0, 3), "a")
    again = make_pipeline(StandardScaler(), MLPClassifier((6, 5), max_iter=5)).fit(*repayments(5))
    with raises(DeltaError, match="repair"):
        pp.retrain.refit_within(again, *repayments(1), ledger)


def test_pipeline_and_network_have_no_common_set(model):
    with raises(DeltaError, name="net", match="Model.of"):
        pp.Shifts.of(model, 0.01)


def rounded(model):
    """A pipeline as a float32 file holds it."""
    twin = copy.deepcopy(model)
    net = twin[-1]
    for arrays in (net.coefs_, net.intercepts_):
        arrays[:] = [array.astype(np.float32).astype(np.float64) for array in arrays]
    return twin


def test_audit_states_distance_of_rounded_model(ledger, model):
    """As in the docs: a slightly smaller set covers the rounding."""
    promise(ledger, model, 0.01, slice(0, 5), "a")
    edge = rounded(pp.retrain.refit_within(model, *repayments(1, strict=35.0), ledger, epochs=20))
    audit = ledger.audit(edge)
    assert audit.counts == {"proved": 0, "holds": len(audit), "broken": 0, "undecided": 0}
    assert "as rounding to float32 does" in str(audit)
    smaller = ledger.promised_set(model).scaled(0.999)
    inside = rounded(
        pp.retrain.refit_within(model, *repayments(1, strict=35.0), smaller, epochs=20)
    )
    assert ledger.audit(inside).counts["proved"] == len(audit)
    far = pp.retrain.refit_within(model, *repayments(1, strict=60.0), 1.0, epochs=20)
    said = str(ledger.audit(far))
    assert "lie outside of the promised set, by at most" in said
    assert "rounding" not in said
