"""Sparse counterfactuals: each checked by other means, their number of changes by brute force."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.search import sparse
from support.people import World, check_promise, random_network, rules, same, worst_logit

network = functools.partial(random_network, balanced=True)
DELTA = 0.02
MARGIN = 1e-6 + 1e-4  # of the search


def changed(e):
    """Return the numbers of the changed features, from the encoded rows alone."""
    columns = e.setting.schema.columns
    return frozenset(
        columns[j].feature for j in np.flatnonzero(e.encoded_original != e.encoded_counterfactual)
    )


def check_sparse(explainer, schema, e):
    """Check what a sparse counterfactual claims: robust and legal, but neither near nor fewest."""
    assert e.status == "feasible"
    assert np.isnan(e.bound)
    assert "search for few changes" in e.reason
    assert ("Fewer changes may be possible." in e.describe().sentence) == (
        len(e.changes_by_feature) > 1
    )
    assert np.isnan(e.gap)
    check_promise(explainer, schema, dataclasses.replace(e, bound=0.0))


CHOICES = pp.Schema(
    [
        *(pp.Categorical(name, ["p", "q", "r"]) for name in "abcd"),
        pp.Binary("e"),
        pp.Binary("f", immutable=True),
    ]
)


def choices(x):
    """Return every legal point of the schema above for a person, encoded."""
    values = [*[np.eye(3)] * 4, np.array([[0.0], [1.0]])]
    return np.array([np.concatenate([*part, x[-1:]]) for part in itertools.product(*values)])


def counts_of(points, x):
    """Return how many features each point changes: four of three columns, and one binary."""
    differs = points != x
    return sum(differs[:, i : i + 3].any(axis=1) for i in range(0, 12, 3)) + differs[:, 12]


@pytest.mark.parametrize("seed", range(8))
def test_sparse_search_finds_fewest_changes_among_few_values(seed):
    """Every value occurs, so that singles and pairs are searched completely."""
    net = network(seed, CHOICES.width)
    frame = CHOICES.decode(np.random.default_rng(seed).random((400, CHOICES.width)))
    rows = CHOICES.encode(frame)
    people = frame[net.predict(rows) == 0].iloc[:6]
    explainer = pp.Proplace(net, DELTA, schema=CHOICES).fit(frame)
    found = explainer.explain(people, prefer="sparse", typical=False)
    checked = 0
    for e, x in zip(found, CHOICES.encode(people), strict=True):
        points = choices(x)
        value = worst_logit(net, points, DELTA)
        if ((value > 0.0) & (value < 2 * MARGIN)).any() or not (value >= MARGIN).any():
            continue
        robust = value >= MARGIN
        counts = counts_of(points, x)[robust]
        check_sparse(explainer, CHOICES, e)
        assert (points[robust] == e.encoded_counterfactual).all(axis=1).any()
        fewest = counts.min()
        assert len(changed(e)) <= max(fewest, 2) if fewest <= 2 else len(changed(e)) >= fewest
        if fewest == 1:
            distances = np.abs(points[robust] - x).mean(axis=1)
            assert e.distance == pytest.approx(distances[counts == 1].min())
        checked += 1
    assert checked >= 2


def test_sparse_search_meets_rules_directions_ranges_and_categories():
    found = 0
    for seed in range(4):
        world = World(
            seed, rules=rules(), rows=400, age={"direction": "increasing"}, town={"immutable": True}
        )
        explainer = world.explainer(0.004)
        people = world.refused(6)
        near = explainer.explain(people)
        for e, plain in zip(explainer.explain(people, prefer="sparse"), near, strict=True):
            assert e.found == plain.found  # nobody loses a counterfactual
            if not e.found:
                assert e.status == plain.status
                continue
            check_sparse(explainer, world.schema, e)
            assert e.counterfactual["town"] == e.original["town"]
            assert e.counterfactual["age"] >= e.original["age"]
            found += 1
    assert found >= 12


def test_sparse_search_changes_fewer_features_than_nearest_point():
    world = World(0, rows=600, hidden=(6, 5))
    explainer = world.explainer(0.004)
    people = world.refused(12)
    counts = {
        name: np.array([len(changed(e)) for e in explainer.explain(people, **wishes)])
        for name, wishes in {"nearest": {}, "sparse": {"prefer": "sparse"}}.items()
    }
    assert counts["sparse"].mean() < counts["nearest"].mean() - 1.0
    assert (counts["sparse"] <= 2).mean() >= 0.5


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_changes_limits_changes_or_finds_nothing(most):
    world = World(2, rows=400, hidden=(6, 5))
    explainer = world.explainer(0.004)
    people = world.refused(8)
    found = explainer.explain(people, max_changes=most)
    sparse_ = explainer.explain(people, prefer="sparse", max_changes=most)
    for e, few in zip(found, sparse_, strict=True):
        assert e.found == few.found
        if e.found:
            assert len(changed(few)) <= len(changed(e)) <= most
            assert few.status == "feasible"
        else:
            assert e.status == "not_found"
            assert "raise max_changes" in e.reason
    assert any(e.found for e in found)
    # the advice works
    more = explainer.explain(people, max_changes=6)
    assert all(e.found for e in more)


def test_max_changes_above_fewest_changes_nothing_in_sparse_search():
    world = World(4, rows=400, hidden=(6, 5))
    explainer = world.explainer(0.01)
    people = world.refused(8)
    few = explainer.explain(people, prefer="sparse")
    limited = explainer.explain(people, prefer="sparse", max_changes=6)
    assert [len(changed(e)) for e in limited] == [len(changed(e)) for e in few]


def test_max_changes_keeps_nearest_point_if_it_changes_few_features():
    world = World(5, rows=400)
    explainer = world.explainer(0.004)
    people = world.refused(8)
    near = explainer.explain(people, typical=True)
    limited = explainer.explain(people, max_changes=6)
    for a, b in zip(near, limited, strict=True):
        assert (a.status, a.distance) == (b.status, b.distance)


@pytest.mark.parametrize(
    "options",
    [
        {"required_models": "two"},
        {"tolerance": {"income": 0.3, "age": 1}},
        {"weights": {"income": 0.0, "age": 3.0}},
        {"region": "box"},
    ],
)
def test_sparse_search_works_with_other_options(options):
    world = World(3, rows=400, hidden=(6, 5))
    if "required_models" in options:
        rng = np.random.default_rng(5)
        layers = [
            (layer.W + rng.normal(0, 0.02, layer.W.shape), layer.bias) for layer in world.net.layers
        ]
        options = {"required_models": [(pp.Network(layers), 0.003)]}
    wishes = {"prefer": "sparse", "tolerance": options.pop("tolerance", None)}
    explainer = world.explainer(0.004, **options)
    found = explainer.explain(world.refused(5), **wishes)
    assert sum(e.found for e in found) >= 4
    for e in found:
        if not e.found:
            continue
        assert e.status == "feasible"
        for each in e.setting.guarantee.members:
            box = each.around(e.encoded_counterfactual[None])
            assert pp.certify(each.network, e.encoded_counterfactual, each.shifts).robust.all()
            if box is not None:  # the corners of the tolerance
                for corner in itertools.product(
                    *[np.unique(pair) for pair in np.hstack(box).reshape(2, -1).T]
                ):
                    assert each.network.margin(np.array(corner), 1)[0] >= 0.0
        verdict = e.certificate.check(
            explainer.guarantee_ if len(explainer.guarantee_.members) > 1 else explainer.net_
        )
        assert verdict.accepted or wishes["tolerance"], verdict.reason


def test_sparse_search_keeps_immutable_features():
    world = World(3, rows=400, hidden=(6, 5))
    kept = {f.name for f in world.schema.features} - {"income", "age", "job"}
    found = world.explainer(0.004).explain(
        world.refused(5), prefer="sparse", immutable=sorted(kept)
    )
    assert sum(e.found for e in found) >= 4
    for e in found:
        if e.found:
            assert e.status == "feasible"
            assert kept.isdisjoint(world.schema.features[f].name for f in changed(e))


def test_sparse_alternatives_change_different_features():
    world = World(1, rows=500, hidden=(6, 5))
    explainer = world.explainer(0.004)
    found = explainer.explain(world.refused(4), prefer="sparse", count=3)
    people = {index: [e for e in found if e.index == index] for index in found.to_frame().index}
    assert max(map(len, people.values())) >= 2
    for several in people.values():
        sets = [changed(e) for e in several]
        assert len(set(sets)) == len(sets)
        counts = [len(each) for each in sets]
        assert counts == sorted(counts)
        assert [e.rank for e in several] == list(range(len(several)))


def test_sparse_search_is_deterministic_in_processes_and_order():
    world = World(4, rows=300)
    explainer = world.explainer(0.004)
    people = world.refused(5)
    one = explainer.explain(people, prefer="sparse")
    same(one[::-1], explainer.explain(people[::-1], prefer="sparse"))
    two = world.explainer(0.004, n_jobs=2).explain(people, prefer="sparse")
    same(one, two)
    assert [e.plausibility for e in one] == [e.plausibility for e in two]


def test_sparse_search_reports_region_without_robust_rows():
    world = World(0)
    explainer = world.explainer(5.0)
    for e in explainer.explain(world.refused(2), prefer="sparse"):
        assert e.status in ("no_robust_neighbour", "fixed_prediction")


def test_sparse_search_stops_at_time_limit_and_keeps_certified_point(monkeypatch):
    """A search whose clock has run out returns the robust row from which it starts, or no point."""
    world = World(6, rows=300)
    explainer = world.explainer(0.004)
    person = world.refused(1)
    monkeypatch.setattr(sparse.SparseSearch, "_over", property(lambda _: True))
    (e,) = explainer.explain(person, prefer="sparse")
    assert e.found
    assert explainer.robust_rows().tolist().count(e.encoded_counterfactual.tolist()) == 1


def test_sparse_values_are_those_of_accepted_rows():
    world = World(7, rows=500)
    explainer = world.explainer(0.004)
    accepted = explainer.rows_[world.net.predict(explainer.rows_) == 1]
    for e in explainer.explain(world.refused(6), prefer="sparse"):
        for f in changed(e):
            span = world.schema.spans[f]
            assert (accepted[:, span] == e.encoded_counterfactual[span]).all(axis=1).any()


def test_pipeline_accepts_its_sparse_counterfactuals():
    from support.people import debtors

    pipeline, table = debtors(400, age=True)
    people = table[pipeline.predict(table) == 0].head(6)
    explainer = pp.Proplace(pipeline, 0.004).fit(table)
    result = explainer.explain(people, prefer="sparse")
    assert all(e.found for e in result)
    rows = pd.DataFrame([e.counterfactual for e in result])
    assert (pipeline.predict(rows.astype(table.dtypes)) == 1).all()
    assert all(e.typical for e in result)
