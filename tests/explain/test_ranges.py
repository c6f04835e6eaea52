"""Guaranteed ranges: sampling and attacks never contradict what is proved around an answer."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from oracles import joint_attack, milp_box_margin
from proplace.explain import prove
from proplace.explain.prove import range_box
from support.people import debtors

TOLERANCE = {"income": 1.0}


@pytest.fixture(scope="module")
def lender():
    return debtors(age=True)


def schema(**changes):
    features = {
        "income": pp.Continuous("income", 0, 100, step=1),
        "debt": pp.Continuous("debt", 0, 80, step=0.5),
        "age": pp.Continuous("age", 18, 80, step=1),
        "home": pp.Binary("home"),
    }
    rules = changes.pop("rules", ())
    return pp.Schema(list((features | changes).values()), rules=rules)


def explained(lender, *, people=10, tolerance=None, **options):
    model, table = lender
    refused = table[model.predict(table) == 0][:people]
    options = {"schema": schema(), **options}
    explainer = pp.Proplace(model, 0.005, **options).fit(table)
    return explainer, explainer.explain(refused, tolerance=tolerance)


def within(e, rng, count):
    """Rows anywhere in the guaranteed ranges: corners, and points between."""
    shares = rng.random((count, len(e.guaranteed_ranges)))
    shares[: count // 2] = np.round(shares[: count // 2])
    rows = pd.DataFrame([e.counterfactual] * count).reset_index(drop=True)
    for (name, (low, high)), share in zip(e.guaranteed_ranges.items(), shares.T, strict=True):
        rows[name] = np.clip(low + share * (high - low), low, high)
    return rows


@pytest.mark.parametrize("tolerance", [None, TOLERANCE])
def test_guaranteed_ranges_are_accepted_everywhere(lender, tolerance):
    explainer, result = explained(lender, tolerance=tolerance, people=30)
    (models,) = explainer.guarantee_.members
    rng, wide, less = np.random.default_rng(1), 0, 0
    for e in result:
        assert e.found
        before, after = e.original, e.counterfactual
        assert (lender[0].predict(within(e, rng, 200)) == 1).all()
        low, high = range_box(explainer.schema_, e.encoded_counterfactual, e.guaranteed_ranges)
        assert joint_attack(models.network, low, high, models.shifts, 1, rng, 60) >= -1e-9
        statement = e.certificate.check(models.network, box=(low, high))
        assert statement.accepted, statement.reason
        for name, (least, most) in e.guaranteed_ranges.items():
            feature, t = explainer.schema_.by_name[name], (tolerance or {}).get(name, 0.0)
            assert least <= after[name] <= most
            if after[name] > before[name] and most > after[name] + t:
                wide += 1
                assert (least, most) == (after[name] - t, feature.upper)
            elif after[name] < before[name] and least < after[name] - t:
                less += 1
                assert (least, most) == (feature.lower, after[name] + t)
            else:
                assert (least, most) == (after[name] - t, after[name] + t)
        assert set(tolerance or ()) <= set(e.guaranteed_ranges)
    assert min(wide, less) >= 2


def test_values_beyond_claims_are_often_refused(lender):
    """Age is best in the middle: all that lies beyond it is refused somewhere, and never claimed."""
    explainer, result = explained(lender)
    (models,) = explainer.guarantee_.members
    kept = broken = 0
    for e in result:
        changed = [n for n in ("income", "debt", "age") if e.counterfactual[n] != e.original[n]]
        for name in changed:
            if name in e.guaranteed_ranges:
                kept += 1
                continue
            feature = explainer.schema_.by_name[name]
            rising = e.counterfactual[name] > e.original[name]
            ends = (
                (e.counterfactual[name], feature.upper)
                if rising
                else (feature.lower, e.counterfactual[name])
            )
            box = range_box(
                explainer.schema_, e.encoded_counterfactual, {**e.guaranteed_ranges, name: ends}
            )
            broken += milp_box_margin(models.network, *box, models.shifts, 1) < 0.0
    assert kept >= 5
    assert broken >= 1


def test_answers_are_same_with_and_without(lender, monkeypatch):
    _, wide = explained(lender)
    monkeypatch.setattr(prove, "MOST_CHANGES", 0)
    _, plain = explained(lender)
    for one, two in zip(plain, wide, strict=True):
        np.testing.assert_array_equal(one.encoded_counterfactual, two.encoded_counterfactual)
        assert (one.status, one.distance, one.bound) == (two.status, two.distance, two.bound)
        assert one.guaranteed_ranges == {}
        assert "low" not in one.certificate.facts


def test_ranges_of_many_changes_are_tolerance(lender, monkeypatch):
    monkeypatch.setattr(prove, "MOST_CHANGES", 1)
    _, result = explained(lender, tolerance={"income": 0.3, "debt": 0.1})
    several = [e for e in result if len(e.changes_by_feature) > 1]
    assert several
    for e in several:
        v = e.counterfactual
        assert e.guaranteed_ranges == {
            "income": (round(v["income"] - 0.3, 1), round(v["income"] + 0.3, 1)),
            "debt": (round(v["debt"] - 0.1, 1), round(v["debt"] + 0.1, 1)),
        }


def test_ranges_pass_limit_of_change_but_no_rule(lender):
    """An income of 60 more is the largest extension. A linear rule ties income to debt."""
    limited = schema(income=pp.Continuous("income", 0, 100, step=1, max_increase=60))
    _, result = explained(lender, schema=limited)
    rising = [e for e in result if e.found and "income" in e.guaranteed_ranges]
    assert rising
    for e in rising:
        most = e.guaranteed_ranges["income"][1]
        assert most in (100, np.floor(e.original["income"] + 60))
    assert any(e.guaranteed_ranges["income"][1] > e.original["income"] + 60 for e in rising)
    rule = pp.schema.Linear({"income": 1, "debt": -1}, upper=60)
    _, free = explained(lender)
    _, ruled = explained(lender, schema=schema(rules=[rule]))
    claimed = 0
    for e in ruled:
        if not e.found:
            continue
        claimed += bool(e.guaranteed_ranges)
        corners = [
            e.guaranteed_ranges.get(n, (e.counterfactual[n],) * 2) for n in ("income", "debt")
        ]
        assert max(i - d for i, d in itertools.product(*corners)) <= 60 + 1e-6
    assert any({"income", "debt"} & set(e.guaranteed_ranges) for e in free)


def test_no_claim_without_end():
    """Columns of a network without a schema have no ranges."""
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    rows = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    (e,) = pp.Proplace(net, 0.01, k=5).fit(rows).explain([[-0.5, 0.5]])
    assert e.found
    assert e.guaranteed_ranges == {}


def test_all_required_models_accept_ranges(lender):
    model, table = lender
    accepted = model.predict(table)
    net = MLPClassifier((5,), max_iter=900, random_state=1, learning_rate_init=0.02)
    other = make_pipeline(StandardScaler(), net).fit(table, accepted)
    refused = table[model.predict(table) == 0][:4]
    options = {"schema": schema(), "required_models": [(other, 0.002)]}
    explainer = pp.Proplace(model, 0.005, **options).fit(table)
    rng, wide = np.random.default_rng(2), 0
    for e in explainer.explain(refused):
        low, high = range_box(explainer.schema_, e.encoded_counterfactual, e.guaranteed_ranges)
        assert e.certificate.check(explainer.guarantee_, box=(low, high)).accepted
        for models in explainer.guarantee_.members:
            assert joint_attack(models.network, low, high, models.shifts, 1, rng, 40) >= -1e-9
        wide += bool(e.guaranteed_ranges)
    assert wide


def test_ranges_do_not_depend_on_other_people(lender):
    _, one = explained(lender, people=2)
    _, two = explained(lender, people=4)
    two = two[:2]
    assert [e.guaranteed_ranges for e in one] == [e.guaranteed_ranges for e in two]
    assert [e.certificate.text for e in one] == [e.certificate.text for e in two]
