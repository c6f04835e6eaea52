"""Counterfactuals with a tolerance, in original units, from the explainer to the original model."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from oracles import joint_attack
from proplace.certification import prove
from proplace.core.errors import OptionError
from proplace.explain.words import summary_line
from support.errors import raises
from support.people import debtors

TOLERANCE = {"income": 2.0, "debt": 1.5}


@pytest.fixture(scope="module")
def pipeline():
    return debtors(400)


def explained(pipeline, tolerance=TOLERANCE, people=8, **options):
    model, table = pipeline
    refused = table[model.predict(table) == 0][:people]
    explainer = pp.Proplace(model, 0.01, **options).fit(table)
    return explainer, explainer.explain(refused, tolerance=tolerance, gap=0)


def test_original_model_accepts_every_miss(pipeline):
    """All corners of the box, and points inside, through the pipeline's own predict."""
    _, result = explained(pipeline)
    rng = np.random.default_rng(0)
    assert all(e.found for e in result)
    for e in result:
        shares = [*itertools.product([-1.0, 1.0], repeat=2), *rng.uniform(-1.0, 1.0, (40, 2))]
        missed = pd.DataFrame([e.counterfactual] * len(shares)).reset_index(drop=True)
        for name, share in zip(TOLERANCE, np.array(shares).T, strict=True):
            missed[name] = missed[name].astype(float) + share * TOLERANCE[name]
        assert (pipeline[0].predict(missed) == 1).all()


def test_every_network_accepts_every_miss(pipeline):
    _, result = explained(pipeline)
    rng = np.random.default_rng(1)
    (models,) = result[0].setting.guarantee.members
    assert models.tolerance is not None
    for e in result:
        less, more = models.tolerance
        low, high = e.encoded_counterfactual - less, e.encoded_counterfactual + more
        met = joint_attack(models.network, low, high, models.shifts, 1, rng, 100)
        assert met >= -1e-9


def test_miss_is_refused_without_tolerance(pipeline):
    """Else the tests above could not fail."""
    _, result = explained(pipeline, tolerance=None)
    missed = pd.DataFrame([e.counterfactual for e in result]).astype(float)
    missed["income"] -= TOLERANCE["income"]
    missed["debt"] += TOLERANCE["debt"]
    assert (pipeline[0].predict(missed) == 0).mean() > 0.5


def test_tree_agrees_with_algorithm_1(pipeline):
    numbers = [pp.Continuous("income", 0, 100), pp.Continuous("debt", 0, 80)]
    free = pp.Schema([*numbers, pp.Binary("home")])
    for schema in (None, free):  # with the steps of the table, and without
        _, tree = explained(pipeline, people=3, schema=schema)
        _, bilevel = explained(pipeline, people=3, schema=schema, search="bilevel")
        for one, two in zip(tree, bilevel, strict=True):
            assert one.found
            assert two.found
            assert one.bound == pytest.approx(two.bound, abs=1e-4)
            if schema is free:
                assert one.status == two.status == "optimal"
                assert one.distance == pytest.approx(two.distance, abs=1e-4)


def test_neighbours_bear_miss(pipeline):
    explainer, _ = explained(pipeline, people=1)
    wide = explainer.for_request(explainer.request(tolerance=TOLERANCE))
    assert 0 < len(wide.robust_rows()) < len(explainer.robust_rows())


def test_margins_and_robust_rows_are_kept_for_each_tolerance(pipeline):
    model, table = pipeline
    refused = table[model.predict(table) == 0][:2]
    explainer = pp.Proplace(model, 0.01).fit(table)
    wide = {"income": (2, 0)}
    first = [explainer.explain(refused, tolerance=t) for t in (None, wide)]
    assert len(explainer._robust) == len(explainer._guarantees) == 2
    rows, guarantees = dict(explainer._robust), dict(explainer._guarantees)
    again = [explainer.explain(refused, tolerance=t) for t in (None, wide)]
    assert {key: id(one) for key, one in explainer._robust.items()} == {
        key: id(one) for key, one in rows.items()
    }
    assert explainer._guarantees == guarantees
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.encoded_counterfactuals, two.encoded_counterfactuals)
    assert (first[0].encoded_counterfactuals != first[1].encoded_counterfactuals).any()


def test_pair_is_missed_on_its_own_side(pipeline):
    """Only income 2 less has to be accepted: all of it is used, and nothing of the other side."""
    model, table = pipeline
    refused = table[model.predict(table) == 0][:6]
    explainer = pp.Proplace(model, 0.01, region="box").fit(table)
    less, more, both = (
        explainer.explain(refused, tolerance={"income": t}, gap=0) for t in ((2, 0), (0, 2), 2)
    )
    for a, b, c in zip(less, more, both, strict=True):
        assert a.distance == pytest.approx(c.distance, abs=1e-6)
        assert b.distance < a.distance
        income = a.counterfactual["income"]
        assert a.guaranteed_ranges["income"][0] == pytest.approx(income - 2)


def test_immutable_feature_may_grow_meanwhile(pipeline):
    """Letters that demand the same age for half a year are broken by a birthday."""
    model, table = pipeline
    refused = table[model.predict(table) == 0][:6]
    explainer = pp.Proplace(model, 0.01).fit(table)
    result = explainer.explain(refused, immutable=["debt"], tolerance={"debt": (0, 3)})
    assert any(e.found for e in result)
    for e in result:
        if e.found:
            own = e.original["debt"]
            assert e.counterfactual["debt"] == own
            assert e.guaranteed_ranges["debt"] == (own, own + 3)
            later = e.counterfactual.to_frame().T.astype(float)
            for grown in (0, 1, 2, 3):
                assert model.predict(later.assign(debt=own + grown))[0] == 1


def test_workers_find_same(pipeline):
    model, table = pipeline
    refused = table[model.predict(table) == 0][:4]
    one, two = (
        pp.Proplace(model, 0.01, n_jobs=n).fit(table).explain(refused, tolerance=TOLERANCE)
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.encoded_counterfactuals, two.encoded_counterfactuals)


def test_proof_is_required_whole_box(pipeline):
    """A point that is robust only without a miss has no proof."""
    explainer, plain = explained(pipeline, tolerance=None, people=4)
    wide = explainer.for_request(explainer.request(tolerance=TOLERANCE))
    rows = plain.encoded_counterfactuals
    assert prove(explainer.guarantee_, rows, 1).robust.all()
    assert not prove(wide.guarantee_, rows, 1).robust.any()


@pytest.mark.parametrize(
    ("tolerance", "name"),
    [
        ({"incom": 1.0}, "did you mean 'income'"),
        ({"income": -1.0}, "'income'"),
        ({"income": (1.0, -1.0)}, "'income'"),
        ({"income": (1.0, 2.0, 3.0)}, "'income'"),
        ({"income": float("nan")}, "'income'"),
        ({"income": "much"}, "'income'"),
        ({"home": 1}, "'home' is not a number"),
        (3.0, "by feature name"),
    ],
)
def test_bad_tolerances_are_rejected(pipeline, tolerance, name):
    model, table = pipeline
    numbers = [pp.Continuous("income", 0, 100), pp.Continuous("debt", 0, 80)]
    schema = pp.Schema([*numbers, pp.Binary("home")])
    explainer = pp.Proplace(model, 0.01, schema=schema).fit(table)
    with raises(OptionError, name="tolerance", match=name):
        explainer.explain(table[:1], tolerance=tolerance)


def test_tables_and_sentences_name_same_numbers(pipeline):
    """ "At least 51.5" beside 53.5 in the table would be two different goals."""
    _, result = explained(pipeline)
    found = [e for e in result if e.found and e.guaranteed_ranges]
    assert any(c.interval for e in found for c in e.claims)
    for e in found:
        words = e.describe()
        for change in words.claims:
            if change.interval:
                assert change.change == ""
                assert change.goal != change.after
            assert change.goal in words.table().loc[change.title, "to"]
            assert f"{change.was} → {change.goal}" in summary_line(words.claims)
