"""Efforts of features: the least over all legal points, what is said of it, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import OptionError, SchemaError
from proplace.schema import Schema

DELTA, MARGIN = 0.02, 1e-6
LEVELS = ["low", "middle", "high"]
CONVEX = [(0, 0), (2, 1), (6, 9), (-1, 2)]
CONCAVE = [(0, 0), (1, 2), (10, 3)]


def world(seed, encoding="dropfirst"):
    """A linear network over steps, a category and a flag; its worst margin is known by a formula."""
    rng = np.random.default_rng(seed)
    schema = Schema(
        [
            pp.Continuous("income", 0, 10, step=1),
            pp.Categorical("job", ["cook", "clerk", "boss"], encoding=encoding),
            pp.Binary("home"),
            pp.Ordinal("grade", LEVELS),
        ]
    )
    W = rng.normal(size=(1, schema.width))
    rows = [
        dict(zip(schema.by_name, cells, strict=True))
        for cells in itertools.product(range(11), ["cook", "clerk", "boss"], [0, 1], LEVELS)
    ]
    table = pd.DataFrame(rows)
    X = schema.encode(table)
    net = pp.Network([(W, [-float(np.quantile(X @ W[0], 0.6))])])
    worst = X @ W[0] + net.layers[0].bias[0] - DELTA * (np.abs(X).sum(axis=1) + 1.0)
    return schema, net, table, worst


def costs(person, table, income, job, home, grade):
    """Efforts by the definition, row by row."""
    total = np.array([income(v) for v in table["income"] - person["income"]])
    total = total + job * (table["job"] != person["job"]) + home * (table["home"] != person["home"])
    far = table["grade"].map(LEVELS.index) - LEVELS.index(person["grade"])
    return (total + grade * far.abs() / 2.0).to_numpy()


def curve(points):
    t, c = np.array(sorted(points), dtype=float).T
    if t[0] == 0.0:
        t, c = np.append(-t[:0:-1], t), np.append(c[:0:-1], c)

    def at(change):
        if change < t[0]:
            return c[0] + (c[0] - c[1]) / (t[1] - t[0]) * (t[0] - change)
        if change > t[-1]:
            return c[-1] + (c[-1] - c[-2]) / (t[-1] - t[-2]) * (change - t[-1])
        return float(np.interp(change, t, c))

    return at


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize("encoding", ["onehot", "dropfirst"])
@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_no_legal_point_takes_less_effort(seed, search, encoding):
    schema, net, table, worst = world(seed, encoding)
    effort = {"income": CONVEX, "job": 3.0, "grade": 0.5}
    explainer = pp.Proplace(
        net, DELTA, schema=schema, effort=effort, region="box", search=search
    ).fit(table)
    people = table[net.predict(schema.encode(table)) == 0].iloc[::17][:6]
    result = explainer.explain(people)
    for e, (_, person) in zip(result, people.iterrows(), strict=True):
        efforts = costs(person, table, curve(CONVEX), 3.0, 1.0, 0.5)
        assert e.status == "optimal"
        assert e.effort == e.distance == pytest.approx(efforts[worst >= MARGIN].min(), abs=1e-6)
        assert sum(e.efforts.values()) == pytest.approx(e.effort)
        assert list(e.efforts) == list(e.changed)
        here = int(np.flatnonzero((table == e.counterfactual).all(axis=1))[0])
        assert efforts[here] == pytest.approx(e.effort)


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("seed", range(4))
def test_a_curve_that_is_not_convex_is_optimal_only_where_it_is_proved(seed, search):
    schema, net, table, worst = world(seed)
    effort = {"income": CONCAVE, "job": 3.0, "grade": 2.5}
    explainer = pp.Proplace(
        net, DELTA, schema=schema, effort=effort, region="box", search=search
    ).fit(table)
    people = table[net.predict(schema.encode(table)) == 0].iloc[::11][:8]
    for e, (_, person) in zip(explainer.explain(people), people.iterrows(), strict=True):
        efforts = costs(person, table, curve(CONCAVE), 3.0, 1.0, 2.5)
        least = efforts[worst >= MARGIN].min()
        here = int(np.flatnonzero((table == e.counterfactual).all(axis=1))[0])
        assert e.effort == e.distance == pytest.approx(efforts[here])
        assert e.bound <= least + 1e-6
        if e.status == "optimal":
            assert e.effort == pytest.approx(least, abs=1e-5)
        else:
            assert e.status == "feasible"
            assert "not convex" in e.reason


def test_not_convex_is_said_and_met():
    """Where the flat part of a curve is far, its envelope is below; at its end it is not."""
    schema = Schema([pp.Continuous("income", 0, 10, step=1)])
    net = pp.Network([([[1.0]], [-0.45])])
    train = pd.DataFrame({"income": range(11)})
    statuses = {}
    for level in (0.45, 0.95):
        net = pp.Network([([[1.0]], [-level])])
        explainer = pp.Proplace(net, 0.0, schema=schema, effort={"income": CONCAVE}).fit(train)
        (e,) = explainer.explain(train[:1])
        statuses[level] = e.status, e.effort
        assert e.bound == pytest.approx(0.3 * e.counterfactual["income"])
    assert statuses == {
        0.45: ("feasible", pytest.approx(2.0 + 4.0 / 9.0)),
        0.95: ("optimal", pytest.approx(3.0)),
    }


def two(**options):
    schema = Schema([pp.Continuous("a", 0, 100, step=1), pp.Continuous("b", 0, 100, step=1)])
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    train = pd.DataFrame({"a": [20, 100, 40, 100], "b": [20, 40, 100, 100]})
    return pp.Proplace(net, 0.01, schema=schema, region="box", **options).fit(train), train


def test_what_costs_more_is_left():
    for dear, cheap in (("a", "b"), ("b", "a")):
        explainer, train = two(effort={dear: 5})
        (e,) = explainer.explain(train[:1])
        assert list(e.changed) == [cheap]
        assert e.effort == pytest.approx(abs(e.changed[cheap][1] - 20) / 100)
    explainer, train = two(effort={"a": 5, "b": [(0, 0), (20, 0.1), (80, 30)]})
    (e,) = explainer.explain(train[:1])
    assert e.changed["b"] == (20, 40)  # to the kink, and the rest by what is cheaper then
    assert e.changed["a"][1] > 50


def test_the_schema_says_it_too_and_the_call_wins():
    schema = Schema(
        [pp.Continuous("a", 0, 100, step=1, effort=5), pp.Continuous("b", 0, 100, step=1)]
    )
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    train = pd.DataFrame({"a": [20, 100, 40, 100], "b": [20, 40, 100, 100]})
    explainer = pp.Proplace(net, 0.01, schema=schema, region="box")
    assert list(explainer.fit(train).explain(train[:1])[0].changed) == ["b"]
    explainer = pp.Proplace(net, 0.01, schema=schema, region="box", effort={"a": 0.2})
    assert list(explainer.fit(train).explain(train[:1])[0].changed) == ["a"]


def test_without_efforts_nothing_is_said():
    explainer, train = two()
    (e,) = explainer.explain(train[:1])
    assert np.isnan(e.effort)
    assert e.efforts == {}
    assert not e.out_of_reach
    assert explainer.efforts_ is None
    assert explainer.provenance(1).distance == "l1"


def test_out_of_reach():
    explainer, train = two(effort={"a": 2}, max_effort=0.5)
    (e,) = explainer.explain(train[:1])
    assert e.status == "optimal"
    assert e.out_of_reach
    assert "beyond what was set as reachable (0.5)" in e.words().sentence
    line = explainer.explain(train[:1]).to_frame().iloc[0]
    assert bool(line["out_of_reach"]) is True
    assert line["effort"] == e.effort == e.distance
    explainer.max_effort = e.effort  # needs no fit
    (same,) = explainer.explain(train[:1])
    assert not same.out_of_reach
    assert "reachable" not in same.words().sentence
    assert bool(explainer.explain(train[:1]).to_frame().iloc[0]["out_of_reach"]) is False
    assert explainer.provenance(1).distance == "effort"


def test_someone_who_is_there_needs_no_effort():
    explainer, train = two(effort={}, max_effort=0.0)
    (e,) = explainer.explain(train[1:2])
    assert e.status == "already_valid"
    assert e.effort == 0.0
    assert not e.out_of_reach


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effort": {"c": 1}}, "'c' is not a feature"),
        ({"effort": {"a": -1}}, "effort of 'a' must be a number >= 0"),
        ({"effort": {"a": "much"}}, "must be a number >= 0"),
        ({"effort": {"a": True}}, "must be a number >= 0"),
        ({"effort": {"a": [1, 2]}}, r"points \(change, effort\)"),
        ({"effort": {"a": [(0, 0), (5, 3), (9, 1)]}}, "takes no less effort"),
        ({"effort": {"a": 0, "b": 0}}, "every feature has the effort 0"),
        ({"effort": {"a": 1e-9, "b": 0}}, "in other units, such as 1000 times"),
        ({"effort": {"a": 1e12}}, "in other units, such as a millionth"),
        ({"effort": [1, 2]}, "by name"),
        ({"max_effort": 3}, r"effort=\{\}"),
        ({"effort": {}, "max_effort": -1}, "max_effort must be a number >= 0"),
        ({"effort": {}, "max_effort": np.nan}, "max_effort must be a number >= 0"),
        ({"effort": {}, "distance": "l2"}, "leave distance and weights out"),
        ({"effort": {}, "weights": [1, 1]}, "leave distance and weights out"),
    ],
)
def test_what_is_no_effort(options, says):
    with pytest.raises(OptionError, match=says):
        two(**options)


def test_a_category_has_no_curve():
    schema, net, table, _ = world(0)
    for name in ("job", "home"):
        with pytest.raises(OptionError, match="one number, that of any change"):
            pp.Proplace(net, DELTA, schema=schema, effort={name: CONVEX}).fit(table)
    with pytest.raises(SchemaError, match="the effort of any change"):
        pp.Categorical("job", ["cook", "clerk"], effort=CONVEX)
    with pytest.raises(SchemaError, match="takes no less effort"):
        pp.Continuous("age", 0, 9, effort=[(1, 2), (2, 1)])
    with pytest.raises(SchemaError, match="a number >= 0, or a list"):
        pp.Continuous("age", 0, 9, effort="much")


def test_schema_files_keep_efforts(tmp_path):
    schema = Schema(
        [
            pp.Continuous("income", 0, 10, effort=CONVEX),
            pp.Ordinal("grade", LEVELS, effort=0.25),
            pp.Categorical("job", ["cook", "clerk"], effort=3),
            pp.Binary("home", effort=0),
        ]
    )
    for name in ("schema.yaml", "schema.json"):
        schema.write(tmp_path / name)
        again = Schema.read(tmp_path / name)
        assert again == schema
    assert [f.effort for f in again.features] == [tuple(CONVEX), 0.25, 3, 0]


def test_kept_features_are_kept():
    """Neighbours are made to fit what a path keeps: both change both numbers here."""
    schema = Schema([pp.Continuous("a", 0, 100, step=1), pp.Continuous("b", 0, 100, step=1)])
    net = pp.Network([([[1.0, 1.0]], [-0.9])])
    train = pd.DataFrame({"a": [20, 90, 95], "b": [20, 95, 90]})
    result = (
        pp.Proplace(net, 0.01, schema=schema, effort={"a": 2})
        .fit(train)
        .explain(train[:1], count=3)
    )
    assert {tuple(e.changed) for e in result} >= {("b",), ("a", "b")}
    (kept,) = (e for e in result if list(e.changed) == ["b"])
    assert (kept.neighbours[:, 0] == 0.2).all()
    assert (kept.neighbours[:, 1] > 0.8).all()


def test_a_number_is_the_effort_of_the_whole_range_where_the_model_scales_itself():
    """Of a standard scaler, one encoded unit is a standard deviation: that is nothing to count in."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(20, 70, 300), "rate": rng.uniform(0, 1.5, 300)})
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    pipe.fit(table, (table["age"] / 50 + table["rate"] > 1.7).astype(int))
    person = pd.DataFrame({"age": [30], "rate": [0.9]})
    explainer = pp.Proplace(pipe, 0.01, effort={"age": 2.0}, changeable=["age"]).fit(table)
    (answer,) = explainer.explain(person)
    change = answer.counterfactual["age"] - 30
    assert change > 0
    spread = table["age"].max() - table["age"].min()
    assert answer.effort == pytest.approx(2.0 * change / spread, rel=1e-6)
