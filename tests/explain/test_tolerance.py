"""Answers that bear a miss, in original units, from the explainer to the model itself."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from oracles import joint_attack
from proplace.core.errors import OptionError, SchemaError
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
    explainer = pp.Proplace(model, 0.01, tolerance=tolerance, **options).fit(table)
    return explainer, explainer.explain(refused, gap=0)


def test_the_model_itself_accepts_every_miss(pipeline):
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
    explainer, result = explained(pipeline)
    rng = np.random.default_rng(1)
    (models,) = explainer.sets_
    assert models.tolerance is not None
    for e in result:
        low, high = e.point - models.tolerance, e.point + models.tolerance
        met = joint_attack(models.network, low, high, models.shifts, 1, rng, 100)
        assert met >= -1e-9


def test_without_it_a_miss_is_refused(pipeline):
    """Else the tests above could not fail."""
    _, result = explained(pipeline, tolerance=None)
    missed = pd.DataFrame([e.counterfactual for e in result]).astype(float)
    missed["income"] -= TOLERANCE["income"]
    missed["debt"] += TOLERANCE["debt"]
    assert (pipeline[0].predict(missed) == 0).mean() > 0.5


def test_the_tree_finds_what_algorithm_1_finds(pipeline):
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


def test_neighbours_bear_the_miss(pipeline):
    exact, _ = explained(pipeline, tolerance=None, people=1)
    explainer, _ = explained(pipeline, people=1)
    assert 0 < len(explainer.robust_rows()) < len(exact.robust_rows())


def test_the_proof_is_asked_for_the_whole_box(pipeline):
    """A point that is robust only where it is met exactly has no proof."""
    exact, plain = explained(pipeline, tolerance=None, people=4)
    explainer, _ = explained(pipeline, people=4)
    assert all(exact.prover_.judge(e.point, 1).robust for e in plain)
    assert not any(explainer.prover_.judge(e.point, 1).robust for e in plain)


def test_the_schema_may_say_it(pipeline):
    model, table = pipeline
    features = [
        pp.Continuous("income", 0, 100, tolerance=TOLERANCE["income"]),
        pp.Continuous("debt", 0, 80, tolerance=9.0),
        pp.Binary("home"),
    ]
    explainer = pp.Proplace(
        model, 0.01, schema=pp.Schema(features), tolerance={"debt": TOLERANCE["debt"]}
    ).fit(table)
    assert explainer.tolerance_ == TOLERANCE
    by_parameter, _ = explained(pipeline, people=1)
    assert explainer.sets_[0].tolerance == pytest.approx(by_parameter.sets_[0].tolerance)


@pytest.mark.parametrize(
    ("tolerance", "name"),
    [
        ({"salary": 1.0}, "salary"),
        ({"income": -1.0}, "income"),
        ({"income": float("nan")}, "income"),
        ({"income": "much"}, "income"),
        (3.0, "tolerance"),
    ],
)
def test_bad_tolerances_are_refused(pipeline, tolerance, name):
    model, table = pipeline
    with raises(OptionError, name=name):
        pp.Proplace(model, 0.01, tolerance=tolerance).fit(table)


def test_what_cannot_be_missed(pipeline):
    model, table = pipeline
    with raises(SchemaError, name="age"):
        pp.Continuous("age", 0, 99, immutable=True, tolerance=1)
    numbers = [pp.Continuous("income", 0, 100), pp.Continuous("debt", 0, 80)]
    schema = pp.Schema([*numbers, pp.Binary("home")])
    with raises(OptionError, name="home"):
        pp.Proplace(model, 0.01, schema=schema, tolerance={"home": 1}).fit(table)


def test_tables_and_sentences_name_the_same_numbers(pipeline):
    """ "At least 51.5" beside a table that says 53.5 would be two answers to one question."""
    _, result = explained(pipeline, holds=True)
    found = [e for e in result if e.found and e.holds]
    assert any(c.interval for e in found for c in e.claims)
    for e in found:
        words = e.describe()
        for change in words.claims:
            if change.interval:
                assert change.change == ""
                assert change.goal != change.after
            assert change.goal in words.table().loc[change.title, "to"]
            assert f"{change.was} → {change.goal}" in summary_line(words.claims)
