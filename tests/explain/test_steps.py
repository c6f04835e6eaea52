"""Steps are for answers: data and people may lie anywhere, and an own value stays legal.

The oracle enumerates the grid and the person's own values, and knows the worst margin of a network
with one hidden layer in closed form.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from explain.test_outside import DELTA, MARGIN, RULES, legal_numbers, network, worst
from proplace.schema.grid import WithValue


def people_and_rows(seed):
    rng = np.random.default_rng(100 + seed)
    train = pd.DataFrame(rng.uniform(0, 8, (40, 3)), columns=["a", "b", "c"])
    people = pd.DataFrame(rng.uniform(0, 8, (4, 3)), columns=["a", "b", "c"]).round(3)
    people.loc[0, "a"], people.loc[1, "b"] = 3.0, -0.3  # on the grid; off it and outside
    return train, people


@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("rules", RULES, ids=[str(r) for r in RULES])
def test_the_nearest_legal_robust_point_of_a_box(rules, search):
    first, second = rules
    schema = pp.Schema(
        [
            pp.Continuous("a", 0, 8, step=1, **first),
            pp.Continuous("b", 0, 8, step=0.5, **second),
            pp.Continuous("c", 0, 8, step=2),
        ]
    )
    met = 0
    for seed in range(4):
        net = network(seed, 3)
        train, people = people_and_rows(seed)
        explainer = pp.Proplace(net, DELTA, schema=schema, region="box", search=search).fit(train)
        for e, person in zip(
            explainer.explain(people), people.itertuples(index=False), strict=True
        ):
            if e.status == "already_valid":
                continue
            options = [
                legal_numbers(feature, own)
                for feature, own in zip(schema.features, person, strict=True)
            ]
            points = np.array(list(itertools.product(*options)))
            away = np.abs(points - np.array(person)) / 8.0
            far = away.mean(axis=1)
            robust = worst(net, points / 8.0) >= MARGIN
            if not robust.any():
                assert e.status in ("infeasible_rules", "no_robust_neighbour", "fixed"), e
                continue
            met += 1
            assert e.status == "optimal", e.reason
            assert e.distance == pytest.approx(far[robust].min(), abs=1e-6)
            answer = e.counterfactual.to_numpy(dtype=float)
            assert (points == answer).all(axis=1).any()  # as it is read, it is a legal point
            again = schema.encode_people(pd.DataFrame([e.counterfactual]))[0]
            np.testing.assert_array_equal(again[0], e.point)  # bit for bit
            assert e.certificate.check(net).accepted
    assert met >= 3


SCHEMA = pp.Schema(
    [
        pp.Continuous("a", 0, 8, step=1),
        pp.Continuous("b", 0, 8, step=0.5),
        pp.Continuous("c", 0, 8, step=2),
    ]
)


@pytest.mark.parametrize("seed", range(4))
def test_no_training_row_and_no_person_is_lost(seed):
    net = network(seed, 3)
    train, people = people_and_rows(seed)
    answers = {}
    for search in ("tree", "bilevel"):
        explainer = pp.Proplace(net, DELTA, schema=SCHEMA, k=6, search=search).fit(train)
        rows = explainer.rows_
        assert SCHEMA.legal(rows).all()  # what spans the region
        answers[search] = explainer.explain(people)
        for e, (_, person) in zip(answers[search], people.iterrows(), strict=True):
            assert e.status != "bad_input", e.reason
            if not e.found:
                continue
            for feature in SCHEMA.features:
                value = e.counterfactual[feature.name]
                steps = (value - feature.lower) / feature.step
                assert value == person[feature.name] or steps == round(steps)
            assert e.original.to_dict() == person.to_dict()
    for one, other in zip(*answers.values(), strict=True):
        assert one.status == other.status
        if one.found:
            assert one.distance == pytest.approx(other.distance, abs=1e-6)


@pytest.mark.parametrize("count", [5, 4097 * 2])
def test_one_more_value_of_a_grid(count):
    """Numbers, cells and neighbours, against plain lists."""
    rng = np.random.default_rng(count)
    column = pp.Schema([pp.Continuous("v", 0, count - 1, step=1, scaling="none")]).columns[0]
    for own in [*rng.uniform(0, count - 1, 8), 0.25, count - 1.25]:
        more = column.with_value(float(own))
        assert isinstance(more.grid, WithValue)
        legal = np.sort(np.append(np.arange(float(count)), own))
        assert more.size == count + 1
        near = np.arange(max(0, int(own) - 3), min(count + 1, int(own) + 6))
        np.testing.assert_array_equal(more.grid.encoded(near), legal[near])
        probes = np.concatenate([own + rng.uniform(-2.5, 2.5, 60), [own, own - 0.5, own + 0.5]])
        probes = probes[(probes >= 0) & (probes <= count - 1)]
        found = more.nearest(probes)
        best = np.abs(legal[None] - probes[:, None]).min(axis=1)
        np.testing.assert_allclose(np.abs(found - probes), best, atol=1e-12)
        assert more.legal(np.array([own]))[0]
        assert not column.legal(np.array([own]))[0]
        for probe in probes.tolist():
            low, high = more.around(probe)
            assert low <= probe <= high
            assert not ((legal > low) & (legal < high)).any()
            assert more.floor(probe) <= probe + 1e-6
            assert more.ceil(probe) >= probe - 1e-6
    for own in (2.0, -0.5, count + 1.0, float(count - 1)):
        assert column.with_value(own) is column
