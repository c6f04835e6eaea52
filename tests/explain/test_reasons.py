"""Reasons against an enumeration: every value of every feature, and of every pair of features."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.explain.responses import MOST_VALUES
from proplace.schema.rules import Change

DELTA = 0.02
JOBS = ["clerk", "cook", "guard"]
SCHEMA = pp.Schema(
    [
        pp.Continuous("age", 0, 8, step=1, direction="increasing", max_increase=4),
        pp.Continuous("debt", -4, 4, step=1, scaling="none"),
        pp.Binary("home"),
        pp.Categorical("job", JOBS),
        pp.Binary("sex", immutable=True),
    ],
    rules=[pp.IfThen({"job": "guard"}, [Change("age", at_least=1)])],
)
NAMES = ["age", "debt", "home", "job"]


def network(seed, inputs):
    rng = np.random.default_rng(seed)
    return pp.Network(
        [
            (rng.normal(0, 1, (5, inputs)), rng.normal(0, 0.3, 5)),
            (rng.normal(0, 1, (1, 5)), rng.normal(0, 0.3, 1) - 1.0),
        ]
    )


def worst(net, rows, delta=DELTA):
    """Least logit over all networks within delta, of a network with one hidden layer."""
    (W, b), (V, c) = ((np.array(layer.W), np.array(layer.b)) for layer in net.layers)
    reach = delta * (np.abs(rows).sum(axis=1) + 1.0)
    z = rows @ W.T + b
    low, high = (np.maximum(z + side * reach[:, None], 0.0) for side in (-1.0, 1.0))
    v = V[0] - delta
    return np.where(v >= 0.0, v * low, v * high).sum(axis=1) + c[0] - delta


def people(seed, count):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 9, count),
            "debt": rng.integers(-4, 5, count),
            "home": rng.integers(0, 2, count),
            "job": rng.choice(JOBS, count),
            "sex": rng.integers(0, 2, count),
        }
    )


def encoded(person):
    job = [float(person["job"] == name) for name in JOBS]
    return np.array([person["age"] / 8, person["debt"], person["home"], *job, person["sex"]])


def responses(net, person):
    """Least distance of a robust change of each set of one or two features; none: not there."""
    values = {"age": range(9), "debt": range(-4, 5), "home": (0, 1), "job": JOBS}
    x, found = encoded(person), {}
    for size in (1, 2):
        for names in itertools.combinations(NAMES, size):
            rows = []
            for new in itertools.product(*(values[name] for name in names)):
                other = {**person, **dict(zip(names, new, strict=True))}
                if not person["age"] <= other["age"] <= person["age"] + 4:
                    continue
                becomes = other["job"] == "guard" != person["job"]
                if becomes and other["age"] < person["age"] + 1:
                    continue
                rows.append(encoded(other))
            rows = np.array(rows)
            good = worst(net, rows) >= 1e-6
            if good.any():
                found[names] = np.abs(rows[good] - x).mean(axis=1).min()
    return {
        names: far
        for names, far in found.items()
        if len(names) == 1 or not any((name,) in found for name in names)
    }


@pytest.mark.parametrize("seed", range(6))
def test_all_responsive_features_and_minimal_pairs_are_found(seed):
    net, table = network(seed, 7), people(seed, 14)
    explainer = pp.Proplace(net, DELTA, schema=SCHEMA, k=5).fit(people(seed + 100, 60))
    kinds = set()
    for found, (index, row) in zip(explainer.reasons(table), table.iterrows(), strict=True):
        person = row.to_dict()
        assert found.index == index
        if net.predict(encoded(person))[0] == 1:
            assert found.status == "already_valid"
            assert found.all == ()
            continue
        expected = responses(net, person)
        got = {reason.features: reason.distance for reason in found.all}
        assert got == pytest.approx(expected, abs=1e-9)
        assert found.pairs_left == 0
        assert found.undecided == ()
        assert found.unchangeable == ("sex",)
        alone = [name for name in NAMES if (name,) in expected]
        assert sorted((*found.never, *alone)) == sorted(NAMES)
        for part in (found.alone, found.together):
            distances = [reason.distance for reason in part]
            assert distances == sorted(distances)
        for reason in found.all:
            e = reason.explanation
            assert tuple(e.changed) == reason.features
            assert e.status == "optimal"
            assert worst(net, e.point[None])[0] >= 1e-6
            assert e.certificate.check(net).accepted
        kinds |= {len(names) for names in expected}
        kinds.add(found.status)
    assert kinds


def test_the_cases_above_have_reasons_of_one_and_of_two_and_none():
    counts = {0: 0, 1: 0, 2: 0}
    for seed in range(6):
        net = network(seed, 7)
        for _, row in people(seed, 14).iterrows():
            if net.predict(encoded(row))[0] == 0:
                sizes = {len(names) for names in responses(net, row.to_dict())}
                for size in sizes or {0}:
                    counts[size] += 1
    assert min(counts.values()) >= 3


@pytest.mark.parametrize("seed", range(4))
def test_numbers_without_a_step_are_searched(seed):
    """Against a dense scan along each feature; the slack of the search is 1e-4 of margin."""
    net, rng = network(seed, 3), np.random.default_rng(seed)
    schema = pp.Schema.encoded(3, lower=-2.0, upper=2.0)
    table = rng.uniform(-2, 2, (60, 3))
    explainer = pp.Proplace(net, DELTA, schema=schema).fit(table)
    met = 0
    for x, found in zip(table[:12], explainer.reasons(table[:12], pairs=0), strict=True):
        if found.status == "already_valid":
            continue
        got = {reason.features: reason for reason in found.alone}
        for j in range(3):
            rows = np.repeat(x[None], 4001, axis=0)
            rows[:, j] = np.linspace(-2, 2, 4001)
            margins = worst(net, rows)
            if margins.max() >= 3e-4:
                far = np.abs(rows[margins >= 3e-4, j] - x[j]).min() / 3
                reason = got[f"x{j}",]
                assert reason.distance <= far + 1e-9
                nearer = margins[np.abs(rows[:, j] - x[j]) / 3 < reason.distance - 1e-6]
                assert not (nearer >= 2e-4).any()
                assert worst(net, reason.explanation.point[None])[0] >= 1e-6
                assert (reason.explanation.point != x).nonzero()[0].tolist() == [j]
                met += 1
            elif margins.max() < -1e-6:
                assert (f"x{j}",) not in got
                assert f"x{j}" in found.never or found.status == "fixed"
    assert met or seed


def test_a_long_grid_is_searched_and_gives_what_the_values_give():
    """The same feature with few and with many values: the least change is that of the finer grid."""
    net = pp.Network([([[1.0, 0.0]], [-0.5])])
    few, many = 10, 10 * (MOST_VALUES + 1)
    for count in (few, many):
        schema = pp.Schema(
            [pp.Continuous("a", 0, count, step=1), pp.Continuous("b", 0, 1, step=0.5)]
        )
        explainer = pp.Proplace(net, 0.02, schema=schema).fit({"a": [0, count], "b": [0, 1]})
        (found,) = explainer.reasons({"a": [0], "b": [0.5]})
        (reason,) = found.alone
        a = reason.explanation.counterfactual["a"] / count
        needed = (0.52 + 0.01) / 0.98  # a - .02 a - .5 - .02 - .02 b >= 0 at b = .5
        assert needed <= a <= needed + 1.0 / count + 2e-4
        assert found.never == ("b",)


def test_several_sets_must_all_accept():
    schema = pp.Schema([pp.Continuous(name, 0, 10, step=1) for name in ("a", "b")])
    first = pp.Network([([[1.0, 1.0]], [-0.75])])
    second = pp.Network([([[1.0, 0.0]], [-0.45])])  # looks at a alone
    train = {"a": [0, 10], "b": [0, 10]}
    person = {"a": [2], "b": [2]}
    (found,) = pp.Proplace(first, 0.01, schema=schema).fit(train).reasons(person)
    assert [reason.features for reason in found.all] == [("a",), ("b",)]
    explainer = pp.Proplace(first, 0.01, also=[(second, 0.01)], schema=schema).fit(train)
    (found,) = explainer.reasons(person)
    assert [reason.features for reason in found.all] == [("a",)]
    assert found.never == ("b",)
    verdict = found.alone[0].explanation.certificate.check(explainer.sets_)
    assert verdict.accepted


def test_a_fixed_prediction_is_said_with_its_certificate():
    schema = pp.Schema(
        [pp.Continuous("a", 0, 10, step=1), pp.Continuous("b", 0, 10, step=1, immutable=True)]
    )
    net = pp.Network([([[0.25, 1.0]], [-1.0])])
    explainer = pp.Proplace(net, 0.01, schema=schema).fit({"a": [0, 10], "b": [0, 10]})
    (found,) = explainer.reasons({"a": [2], "b": [5]})
    assert found.status == "fixed"
    assert found.all == ()
    assert found.certificate.check(net, explainer.shifts_).accepted
    assert "would not be class 1 whatever this person changed" in found.sentence()
    assert found.unchangeable == ("b",)


def test_how_many_pairs_are_searched_is_said():
    """With three features of which two must change, and one pair allowed, two pairs are left."""
    schema = pp.Schema([pp.Continuous(name, 0, 10, step=1) for name in "abc"])
    net = pp.Network([([[1.0, 1.0, 1.0]], [-1.5])])
    explainer = pp.Proplace(net, 0.01, schema=schema).fit([{"a": 0, "b": 0, "c": 0}])
    person = {"a": [0], "b": [0], "c": [0]}
    (found,) = explainer.reasons(person)
    assert [set(reason.features) for reason in found.together] == [{*"ab"}, {*"ac"}, {*"bc"}]
    assert found.never == ("a", "b", "c")
    (found,) = explainer.reasons(person, pairs=1)
    assert len(found.together) == 1
    assert found.pairs_left == 2
    assert "2 more pairs of features were not looked at to the end" in found.sentence()
    (found,) = explainer.reasons(person, pairs=0)
    assert found.together == ()
    with pytest.raises(pp.errors.OptionError, match="pairs must be a whole number >= 0"):
        explainer.reasons(person, pairs=-1)


def test_after_the_time_limit_nothing_is_claimed():
    net, table = network(3, 7), people(3, 6)
    explainer = pp.Proplace(net, DELTA, schema=SCHEMA, time_limit=1e-9).fit(people(4, 40))
    for found in explainer.reasons(table):
        if found.status == "refused":
            sets = responses(net, table.loc[found.index].to_dict())
            assert not {name for name in found.never if (name,) in sets}


def test_bad_rows_and_tables():
    table = people(0, 3)
    table.loc[1, "debt"] = 99
    result = pp.Proplace(network(0, 7), DELTA, schema=SCHEMA).fit(people(1, 40)).reasons(table)
    assert result[1].status == "bad_input"
    assert "99" in result[1].sentence()
    frame = result.to_frame()
    assert set(frame["person"]) == {0, 1, 2}
    assert list(result[0].table().columns) == ["features", "change", "distance", "status"]
    assert "<table>" in result._repr_html_()
    assert "<p>" in result[0]._repr_html_()
    assert len(result[:2]) == 2
