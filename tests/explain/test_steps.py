"""Counterfactuals of features with steps, from the table to the certificate."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.baselines import METHODS
from proplace.explain import answer as answer_module
from proplace.schema import Schema
from proplace.search.writing import IN_REGION_RATIO
from support.people import (
    LIMITS,
    World,
    check_bound,
    check_promise,
    check_table,
    debtors,
    outside_hull,
    random_network,
    rules,
    same,
    worst_logit,
)
from support.tiers import quick, seeds

DELTA = 0.02
MARGIN = 1e-6 + 1e-4  # the margin of the search


def coarse(rng):
    """Two or three features whose steps are large, up to the whole range."""
    kinds = [
        lambda name: pp.Continuous(name, 0, 8, step=float(rng.choice([0.5, 1.0, 2.0, 8.0]))),
        lambda name: pp.Ordinal(name, [0, 1, 5, 8]),
        lambda name: pp.Continuous(name, 0, 8),
    ]
    chosen = [0, *rng.integers(3, size=int(rng.integers(1, 3)))]
    return Schema([kinds[int(i)](f"c{n}") for n, i in enumerate(chosen)])


class Small:
    """A schema with coarse steps, a network with one hidden layer, and answers for refused people."""

    def __init__(self, seed, **options):
        for attempt in itertools.count():
            rng = np.random.default_rng([seed, attempt])
            self.schema = coarse(rng)
            width = self.schema.width
            self.net = random_network([seed, attempt], width, balanced=True)
            self.rows = self.schema.canonical(rng.random((80, width)))
            robust = worst_logit(self.net, self.rows, DELTA) >= MARGIN
            people = self.rows[self.net.predict(self.rows) == 0][:4]
            if robust.sum() >= 2 and len(people) >= 2:
                break
        options = {"k": 5, "schema": self.schema, **options}
        self.explainer = pp.Proplace(self.net, DELTA, **options).fit(self.rows)
        self.people = people

    def explain(self, gap=0.0):
        return self.explainer.explain(self.people, gap=gap)

    def legal_points(self, x, count=60):
        """Every legal point. Columns without a step have some values, and the person's."""
        values = [
            np.linspace(0.0, 1.0, count) if c.grid is None else c.grid.encoded(np.arange(c.size))
            for c in self.schema.columns
        ]
        return np.array(list(itertools.product(*map(np.append, values, x))))


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("seed", seeds(8, 60))
def test_written_answer_keeps_every_promise(seed, gap):
    small = Small(seed)
    result = small.explain(gap)
    for e in result:
        assert e.found, e.reason  # two rows are robust
        assert e.status in ("optimal", "feasible")
        assert not e.timed_out
        check_promise(small.explainer, small.schema, e, gap=gap)
        assert worst_logit(small.net, e.encoded_counterfactual, DELTA)[0] >= 1e-6
    check_table(small.schema, result)


@pytest.mark.parametrize("seed", seeds(8, 100))
def test_bound_is_that_of_hull(seed):
    """No legal robust point inside the hull is nearer, by enumeration and linear programs."""
    small = Small(seed)
    for e in small.explain():
        points = small.legal_points(e.encoded_original, 20)
        near = np.abs(points - e.encoded_original).mean(axis=1) < e.bound - 1e-6
        near &= worst_logit(small.net, points, DELTA) >= MARGIN + 1e-9
        assert all(
            outside_hull(row, e.neighbours, e.encoded_original) > 1e-9 for row in points[near]
        )
        far = outside_hull(e.encoded_counterfactual, e.neighbours, e.encoded_original)
        assert e.in_region == (far <= 1e-7)
        assert ("outside the region" in e.reason) == (not e.in_region)


@pytest.mark.parametrize("seed", seeds(8, 100))
def test_only_points_of_hull_within_gap_are_optimal(seed):
    small = Small(seed)
    for gap in (0.0, 0.05, 0.5):
        for e in small.explain(gap):
            proved = e.in_region and e.bound >= (1.0 - max(gap, 1e-7)) * e.distance * (1 - 1e-9)
            assert (e.status == "optimal") == proved


@pytest.mark.parametrize("seed", seeds(8, 100))
def test_answer_is_not_farther_than_robust_neighbour(seed):
    small = Small(seed)
    for e in small.explain():
        nearest = np.abs(e.neighbours - e.encoded_original).mean(axis=1).min()
        assert e.distance <= IN_REGION_RATIO * nearest


def test_whole_range_as_step_leaves_two_values():
    """Every column has two legal values, and the hull is robust between them."""
    schema = Schema([pp.Continuous(name, 0, 8, step=8) for name in "abc"])
    net = pp.Network([([[1.0, 1.0, 1.0]], [-1.2])])
    rows = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    result = pp.Proplace(net, 0.01, k=4, schema=schema).fit(rows).explain(rows[:1], gap=0)
    (e,) = result
    assert e.status == "feasible"
    assert e.encoded_counterfactual.sum() == 2.0
    assert 0.4 < e.bound < 0.5
    assert e.distance == pytest.approx(2 / 3)


WIDE = Schema(
    [
        pp.Continuous("income", 0, 90_000, step=1),
        pp.Continuous("debt", 0, 10, step=1),
    ]
)


@pytest.fixture(scope="module")
def wide():
    """Rows whose incomes differ from the person's by less than the distance shows."""
    net = pp.Network([([[-0.3, -1.0]], [0.33])])
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "income": 23_400 - rng.integers(1, 40, 60),
            "debt": rng.integers(0, 11, 60),
        }
    )
    return net, frame


def test_value_that_barely_changes_stays(wide):
    net, frame = wide
    explainer = pp.Proplace(net, 0.005, k=5, schema=WIDE).fit(frame)
    person = {"income": 23_400, "debt": 8}
    (e,) = explainer.explain(person)
    assert e.found
    assert e.counterfactual["income"] == 23_400
    assert "income" not in e.changes_by_feature
    assert "debt" in e.changes_by_feature


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_columns_without_step_are_not_rounded(seed, monkeypatch):
    """They keep the bits of the search's point, or of a neighbour, in hundreds of values."""
    seen = []

    def spy(problem, point, legal, deadline=np.inf):
        found = write(problem, point, legal, deadline)
        if found is not None:
            seen.append((point, found.point, legal))
        return found

    write = answer_module.write
    monkeypatch.setattr(answer_module, "write", spy)
    world = World(seed)
    world.explainer().explain(world.refused(5), gap=0)
    income = world.schema.span("income").start
    kept = 0
    for base, point, legal in seen:
        assert income not in legal.grids
        kept += point[income] == base[income]
    assert kept >= 3


def test_values_are_same_everywhere(tmp_path):
    """On the screen, in files and in the certificate, and the pipeline itself accepts them."""
    model, table = debtors(age=True)
    schema = Schema(
        [
            pp.Continuous("income", 0, 100, step=1),
            pp.Continuous("debt", 0, 80, step=0.5),
            pp.Continuous("age", 18, 80, step=1),
            pp.Binary("home"),
        ]
    )
    people = table[model.predict(table) == 0][:8]
    result = pp.Proplace(model, 0.005, schema=schema).fit(table).explain(people)
    names = [feature.name for feature in schema.features]
    result.to_frame().to_csv(tmp_path / "results.csv")
    read = pd.read_csv(tmp_path / "results.csv")
    shown = result.to_frame()
    own = people[names].reset_index(drop=True)
    for i, e in enumerate(result):
        assert e.found
        row = pd.DataFrame([e.counterfactual[names]]).astype(float)
        assert model.predict(row)[0] == 1
        for values in (shown[names].iloc[i], read[names].iloc[i]):
            assert [float(v) for v in values] == row.iloc[0].tolist()
        assert e.certificate.facts["input"] == e.encoded_counterfactual.tolist()
        for feature in schema.features[:3]:
            value = e.counterfactual[feature.name]
            steps = (value - feature.lower) / feature.step
            assert value == own[feature.name][i] or steps == round(steps)


@pytest.mark.parametrize("options", [{}, {"search": "bilevel"}, {"region": "box"}], ids=str)
@pytest.mark.parametrize("seed", quick(2, range(12)))
def test_every_search_writes_legal_values(seed, options):
    small = Small(seed, **options)
    found = 0
    for e in small.explain():
        if not e.found:
            assert "region" in options
            continue
        found += 1
        check_promise(small.explainer, small.schema, e)
        for j, column in enumerate(small.schema.columns):
            assert (
                e.encoded_counterfactual[j] == e.encoded_original[j]
                or column.legal(e.encoded_counterfactual[[j]])[0]
            )
    assert found


@pytest.mark.parametrize("seed", quick(2, range(12)))
def test_tree_and_algorithm_1_have_same_bound(seed):
    tree, paper = (Small(seed, search=name).explain() for name in ("tree", "bilevel"))
    for a, b in zip(tree, paper, strict=True):
        assert a.bound == pytest.approx(b.bound, abs=2e-4)  # the slack differs in its use


@pytest.mark.parametrize("seed", quick(2, range(8)))
def test_milp_r_writes_legal_values(seed):
    small = Small(seed)
    method = METHODS["MILP-R"](small.net, DELTA, schema=small.schema).fit(small.rows)
    found = [e for e in method.explain(small.people) if e.found]
    for e in found:
        assert small.schema.legal(e.encoded_counterfactual)[0]
        assert small.net.predict(e.encoded_counterfactual)[0] == 1
    assert found


@pytest.mark.parametrize("seed", quick(2, range(8)))
def test_rules_hold_for_written_values(seed):
    world = World(seed, rules=rules(), rows=400, **LIMITS)
    explainer = world.explainer(delta=0.004)
    for e in explainer.explain(world.refused(5)):
        if e.found:
            check_bound(e, 0.01)
            assert world.schema.person(e.encoded_original).allowed(e.encoded_counterfactual[None])[
                0
            ]


@pytest.mark.slow
def test_runs_and_processes_agree():
    world = World(1)
    frame = world.refused(6)
    once, twice, both = (world.explainer(n_jobs=n).explain(frame) for n in (None, None, 2))
    assert all(e.found for e in once)
    same(once, twice)
    same(once, both)
    assert [e.in_region for e in once] == [e.in_region for e in both]


def test_answer_that_cannot_be_written_in_time_is_not_called_point_of_hull(monkeypatch):
    """Without a written point, the point of the search is rounded, and its claims must be true."""
    monkeypatch.setattr(answer_module, "write", lambda *_: None)
    for seed in range(12):
        small = Small(seed)
        for e in small.explain():
            assert e.found
            far = outside_hull(e.encoded_counterfactual, e.neighbours, e.encoded_original)
            assert e.in_region == (far <= 1e-7)
            check_bound(e, 0.0)
