"""The filter of typical points: who is filtered, what a walk returns, and that nobody loses."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.baselines import METHODS
from proplace.core.errors import OptionError
from proplace.explain import answer as module
from proplace.explain.prove import Deadlines
from support.errors import raises
from support.people import WITHOUT_STEPS, World, check_promise, random_network, same
from support.tiers import thorough


def skewed(seed, rows=500, columns=4):
    """Rows on a curved band, so that mixtures of them may be unusual, and a network."""
    rng = np.random.default_rng(seed)
    t = rng.random(rows)
    X = np.column_stack([t, t**4, np.sqrt(t), 1.0 - t])[:, :columns]
    X = np.clip(X + rng.normal(0.0, 0.03, X.shape), 0.0, 1.2)
    net = random_network(seed, columns, (6, 5), balanced=True)
    bias = np.median(net.logits(X))
    layers = [(layer.W, layer.bias) for layer in net.layers]
    return pp.Network([*layers[:-1], (layers[-1][0], layers[-1][1] - bias)]), X


def fitted(seed, **options):
    """Return an explainer at a delta with some robust rows, and refused people."""
    net, X = skewed(seed)
    delta = 0.02
    while pp.certify(net, X, delta).robust.sum() < 80:
        delta /= 1.5
    return pp.Proplace(net, delta, **options).fit(X), X[net.predict(X) == 0][:12]


@pytest.mark.slow
@pytest.mark.usefixtures("small_slack")
def test_plain_nearest_point_is_neither_filtered_nor_moved():
    for seed in range(4):
        explainer, people = fitted(seed)
        plain, free = (
            explainer.explain(people, gap=0),
            explainer.explain(people, typical=False, gap=0),
        )
        same(plain, free)
        explainer.search = "bilevel"
        for a, b in zip(plain, explainer.explain(people, gap=0), strict=True):
            assert a.found == b.found
            if a.found:
                assert a.distance == pytest.approx(b.distance, abs=1e-6)


def test_walk_returns_robust_typical_points_beyond_bound():
    moved = 0
    for seed in range(6):
        explainer, people = fitted(seed)
        plain, usual = (
            explainer.explain(people, typical=typical, gap=0) for typical in (False, True)
        )
        for a, b in zip(plain, usual, strict=True):
            assert a.found == b.found
            if not a.found:
                continue
            if a.typical:
                assert a.encoded_counterfactual.tobytes() == b.encoded_counterfactual.tobytes()
                continue
            if b.typical:
                moved += 1
                assert b.status == "feasible"
                assert "atypical" in b.reason
                assert b.bound == pytest.approx(a.bound)
                assert b.distance >= a.distance - 1e-9 or not b.in_region
                check_promise(explainer, explainer.schema_, b, gap=0)
            else:
                assert "no typical point was found" in b.reason
                assert (b.status, b.encoded_counterfactual.tobytes()) == (
                    a.status,
                    a.encoded_counterfactual.tobytes(),
                )
    assert moved >= 5


def test_walk_follows_search_that_used_up_its_time(monkeypatch):
    """The same answers come with no time left for the search, but some for the proof."""
    explainer, people = fitted(0)
    usual, search = explainer.explain(people, typical=True), module.search
    assert sum("moved" in e.reason for e in usual) >= 2
    monkeypatch.setattr(
        module,
        "search",
        lambda *given, **options: search(*given, **options | {"deadline": math.inf}),
    )
    over = classmethod(lambda cls, _: cls(search=time.monotonic()))
    monkeypatch.setattr(Deadlines, "of", over)
    same(usual, explainer.explain(people, typical=True))


def test_walk_mixes_numbers_in_other_categories():
    """Accepted people without a home are rare, so the way leads to people with one."""
    rng = np.random.default_rng(0)
    numbers = rng.random((400, 4))
    home = np.arange(400) % 20 > 0
    X = np.column_stack([numbers, home])
    net = pp.Network([([[1.0, 1.0, 1.0, 1.0, 0.2]], [-2.0])])
    number = {"lower": 0, "upper": 1, "scaling": "none"}
    names = [pp.Continuous(f"x{i}", **number) for i in range(4)]
    explainer = pp.Proplace(net, 0.05, schema=pp.Schema([*names, pp.Binary("home")])).fit(X)
    usual = explainer.robust_rows(1)
    usual = usual[explainer.accepted_people(1).test(usual)]
    people = X[(net.predict(X) == 0) & ~home]
    moved = [
        e
        for e in explainer.explain(people, typical=True)
        if e.encoded_counterfactual[-1] != e.encoded_original[-1]
    ]
    ratios = [
        e.distance / explainer.distance_.between(e.encoded_original, usual).min() for e in moved
    ]
    assert max(ratios) <= 1.0 + 1e-9
    assert min(ratios) < 0.95
    for e in moved:
        assert e.typical
        assert e.certificate.check(net, explainer.shifts_).accepted


def test_walk_without_time_names_limit(monkeypatch):
    explainer, people = fitted(0)
    over = classmethod(lambda cls, _: cls(proof=time.monotonic()))
    monkeypatch.setattr(Deadlines, "of", over)
    result = explainer.explain(people, typical=True)
    assert any(e.found and not e.typical for e in result)
    for e in result:
        assert e.typical or ("in the time limit" in e.reason and e.timed_out)


def any_typical_row(explainer, x):
    """Test if some training row, with the person's immutable values, is robust and typical."""
    person = explainer.schema_.person(x)
    rows = person.adapt(explainer.rows_, overwrite_categories=True)
    rows = rows[person.allowed(rows)]
    models = explainer.guarantee_.members[0]
    rows = rows[pp.certify(models.network, rows, models.shifts, margin=models.margin + 1e-4).robust]
    return bool(explainer.accepted_people(1).test(rows).any())


def test_restricted_people_get_typical_points_or_marked_ones():
    typical = answered = 0
    for seed in range(5):
        world = World(seed, rows=500, hidden=(6, 5), town={"immutable": True}, **WITHOUT_STEPS)
        explainer = world.explainer(0.004)
        people = world.refused(8)
        free, usual = (explainer.explain(people, typical=each) for each in (False, None))
        same(usual, explainer.explain(people, typical=True))
        for a, b in zip(free, usual, strict=True):
            assert a.found == b.found
            if b.found:
                check_promise(explainer, world.schema, b, gap=0.01)
                answered += 1
                typical += b.typical
                if not b.typical:
                    assert "no typical point was found" in b.reason
                    assert not any_typical_row(explainer, b.encoded_original)
    assert answered >= 30
    assert typical >= 0.7 * answered


@pytest.mark.parametrize("seeds", thorough([2], range(4)))
@pytest.mark.parametrize("most", [1, 2])
def test_filter_takes_no_answer_of_max_changes_away(most, seeds):
    marked = 0
    for seed in seeds:
        explainer, people = fitted(seed)
        usual = explainer.explain(people, max_changes=most)
        free = explainer.explain(people, max_changes=most, typical=False)
        for a, b in zip(usual, free, strict=True):
            assert a.found or not b.found
            if a.found:
                assert len(a.changes_by_feature) <= most
                assert a.typical or "no typical point was found" in a.reason
                marked += not a.typical
    assert marked > 0


def test_atypical_robust_point_is_returned_if_there_is_not_typical_one():
    """The few robust rows lie far from all other accepted rows."""
    rng = np.random.default_rng(0)
    far = 6.0 + 3.0 * rng.random((12, 2))
    X = np.vstack([rng.random((200, 2)), far])
    net = pp.Network([([[1.0, 1.0]], [-0.6])])
    numbers = {"lower": 0, "upper": 10, "scaling": "none"}
    schema = pp.Schema(
        [
            pp.Continuous("a", **numbers),
            pp.Continuous("b", direction="increasing", **numbers),
        ]
    )
    robust = pp.certify(net, X, 0.5).robust
    assert robust[200:].any()
    assert not robust[:200].any()
    explainer = pp.Proplace(net, 0.5, schema=schema).fit(X)
    people = X[net.predict(X) == 0][:3]
    for wishes in ({}, {"prefer": "sparse"}, {"typical": True}):
        for e in explainer.explain(people, **wishes):
            assert e.found
            assert not e.typical
            assert "no typical point was found" in e.reason


@pytest.mark.parametrize("options", [{"region": "box"}, {"search": "bilevel"}])
def test_typical_points_need_hull_and_tree(options):
    world = World(0)
    explainer = world.explainer(**options)
    with raises(OptionError, name="typical"):
        explainer.explain(world.refused(1), typical=True)
    default = explainer.explain(world.refused(3))
    same(default, explainer.explain(world.refused(3), typical=False))


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", 2), ("prefer", "sparse"), ("max_changes", 2), ("typical", True), ("gap", 0)],
)
def test_baselines_take_target_alone(name, value):
    world = World(0)
    explainer = METHODS["WCE"](world.net, schema=world.schema).fit(world.frame)
    with raises(OptionError, name=name, value=value):
        explainer.explain(world.refused(1), **{name: value})
    assert explainer.explain(world.refused(1))[0].encoded_original is not None


def test_every_explanation_with_point_has_plausibility_and_nearest_row():
    world = World(1, rows=300)
    explainer = world.explainer(0.004)
    people = pd.concat([world.refused(4), world.frame.head(30)])
    for result in (
        explainer.explain(people),
        METHODS["RNCE"](world.net, 0.004, schema=world.schema).fit(world.frame).explain(people),
    ):
        frame = result.to_frame()
        accepted = np.flatnonzero(world.net.predict(world.X) == 1)
        assert frame["nearest_row"].dtype == "Int64"
        for e in result:
            if e.encoded_counterfactual is None:
                assert np.isnan(e.plausibility)
                assert e.nearest_row is None
                continue
            assert 0.0 <= e.plausibility <= 1.0
            near = np.abs(world.X[accepted] - e.encoded_counterfactual).sum(axis=1)
            here = np.abs(world.X[e.nearest_row] - e.encoded_counterfactual).sum()
            assert e.nearest_row in accepted
            assert here == pytest.approx(near.min())
        assert {e.status for e in result} >= {"already_valid"}


def test_nearest_row_counts_rows_of_table_that_were_skipped():
    world = World(1, rows=300)
    table = world.frame.astype(object)
    table.iloc[[0, 3, 5], 1] = None
    with pytest.warns(UserWarning, match="left out"):
        explainer = pp.Proplace(world.net, 0.004, schema=world.schema).fit(table)
    accepted = np.flatnonzero(world.net.predict(world.X) == 1)
    accepted = accepted[~np.isin(accepted, [0, 3, 5])]
    rows = world.frame.iloc[accepted[:5]]
    result = explainer.explain(rows)
    first = [int(np.flatnonzero((world.X[n] == world.X).all(axis=1))[0]) for n in accepted[:5]]
    assert [e.nearest_row for e in result] == first


def test_plausibility_is_missing_and_filter_off_with_few_accepted_rows():
    world = World(1, rows=300)
    accepted = world.net.predict(world.X) == 1
    few = np.concatenate([np.flatnonzero(accepted)[:30], np.flatnonzero(~accepted)])
    frame = world.frame.iloc[few]
    explainer = pp.Proplace(world.net, 0.004, schema=world.schema, k=5).fit(frame)
    plain, usual = (
        explainer.explain(world.refused(4), typical=typical) for typical in (False, True)
    )
    same(plain, usual)
    assert all(np.isnan(e.plausibility) and not e.typical for e in plain)


def test_weights_of_user_leave_plausibility_alone():
    """A feature without weight costs nothing, and an absurd value of it is still unusual."""
    world = World(1, rows=300)
    people = world.frame.head(20)
    plain = world.explainer(0.004).explain(people)
    weighted = world.explainer(0.004, weights={"income": 0.0, "age": 5.0}).explain(people)
    for a, b in zip(plain, weighted, strict=True):
        if a.status == b.status == "already_valid":
            assert a.plausibility == b.plausibility
