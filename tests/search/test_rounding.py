"""Steps of many features: the answer without steps, rounded; the oracle is enumeration on one layer."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.search import rounding
from proplace.search.rounding import MOST_EXACT

DELTA, MARGIN = 0.01, 1e-6
COUNT = MOST_EXACT + 2


def worst(net, rows):
    """Worst margin of a network without a hidden layer, in closed form."""
    W, b = net.layers[0].W, net.layers[0].bias
    return rows @ W[0] + b[0] - DELTA * (np.abs(rows).sum(axis=1) + 1.0)


def setting(seed, **options):
    rng = np.random.default_rng(seed)
    net = pp.Network([(rng.normal(size=(1, COUNT)), [-0.4])])
    names = [f"f{j}" for j in range(COUNT)]
    steps = rng.choice([1.0, 2.0, 0.5], COUNT)
    schema = pp.Schema(
        [
            pp.Continuous(name, 0, 8, step=step, **options.get(name, {}))
            for name, step in zip(names, steps, strict=True)
        ]
    )
    train = pd.DataFrame(rng.uniform(0, 8, (60, COUNT)), columns=names)
    people = pd.DataFrame(rng.uniform(0, 8, (30, COUNT)), columns=names).round(2)
    people = people[net.predict(people.to_numpy() / 8.0) == 0][:4]
    return net, schema, train, people


@pytest.mark.parametrize("region", ["hull", "box"])
@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_legal_robust_and_near(seed, search, region):
    options = {"f0": {"immutable": True}, "f1": {"direction": "increasing"}}
    net, schema, train, people = setting(seed, **options)
    explainer = pp.Proplace(net, DELTA, schema=schema, k=5, search=search, region=region)
    found = 0
    for e, (_, person) in zip(explainer.fit(train).explain(people), people.iterrows(), strict=True):
        assert e.found, e.reason
        assert e.status == "feasible"  # what is nearest on so many grids is not searched for
        assert e.reason.startswith("rounded to the steps of its numbers; nothing nearer than")
        assert e.certificate.check(net).accepted
        assert worst(net, e.point[None])[0] >= MARGIN
        assert 0.0 < e.bound <= e.distance
        for feature in schema.features:
            before, after = person[feature.name], e.counterfactual[feature.name]
            steps = after / feature.step
            assert after == before or steps == round(steps)
        assert e.counterfactual["f0"] == person["f0"]
        assert e.counterfactual["f1"] >= person["f1"]
        again, _ = schema.encode_people(pd.DataFrame([e.counterfactual]))
        np.testing.assert_array_equal(again[0], e.point)
        found += 1
    assert found == len(people) >= 2


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_that_of_the_region_without_steps(seed):
    net, schema, train, people = setting(seed)
    free = pp.Schema([pp.Continuous(f.name, f.lower, f.upper) for f in schema.features])
    rounded = pp.Proplace(net, DELTA, schema=schema, region="box").fit(train).explain(people)
    plain = pp.Proplace(net, DELTA, schema=free, region="box").fit(train).explain(people)
    for e, without in zip(rounded, plain, strict=True):
        assert without.status == "optimal"
        assert e.bound == pytest.approx(min(without.distance, e.distance), rel=1e-6)
        assert e.distance >= without.distance * (1.0 - 1e-6)  # legal points lie in the box


@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_as_near_as_enumeration_allows(monkeypatch, seed):
    """Every rounding of the same point, one by one: none that is robust is much nearer."""
    net, schema, train, people = setting(seed)
    met = []

    def spy(problem, point, pieces, deadline):
        answer = rounding.rounded(problem, point, pieces, deadline)
        met.append((problem, point, answer))
        return answer

    monkeypatch.setattr("proplace.search.pieces.rounded", spy)
    pp.Proplace(net, DELTA, schema=schema, k=6).fit(train).explain(people)
    assert len(met) >= 2
    for problem, point, answer in met:
        options = []
        for j, column in problem.grids.items():
            own = point[j] == problem.x[j]
            options.append({float(point[j])} if own else set(column.around(float(point[j]))))
        every = np.array(list(itertools.product(*map(sorted, options))))
        assert (every == answer).all(axis=1).any()
        robust = worst(net, every) >= MARGIN
        far = problem.distance.between(problem.x, every)
        assert worst(net, answer[None])[0] >= MARGIN
        mine = float(problem.distance.between(problem.x, answer))
        assert mine <= 1.05 * far[robust].min()


def test_few_steps_are_searched_exactly():
    net, schema, train, people = setting(0)
    features = [
        f if n < MOST_EXACT else pp.Continuous(f.name, f.lower, f.upper)
        for n, f in enumerate(schema.features)
    ]
    explainer = pp.Proplace(net, DELTA, schema=pp.Schema(features), k=5).fit(train)
    assert {e.status for e in explainer.explain(people[:1])} == {"optimal"}
