"""The explainer as a user meets it: tables in, promises out, and words when there is none."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.spatial import KDTree
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp
from oracles import attack, sampled_margins, size_of
from proplace.certification import thresholds
from proplace.core.errors import (
    DeltaError,
    InputError,
    OptionError,
    ProplaceError,
    SchemaError,
    SolverError,
    TargetError,
)
from proplace.explain import base, proving
from proplace.explain import proplace as explainer_module
from proplace.region.neighbours import RobustRows
from proplace.schema import Change, Is, Schema, Value
from proplace.search.oracle import Oracle
from proplace.search.pieces import SearchResult
from real_data import folder
from search_problems import Clock, ill_solver, problem_of
from support.tiers import only, seeds

# -- a small world -----------------------------------------------------------------------------


def features(**changes):
    """One feature of each kind; ``changes`` are options by name of the feature."""
    kinds = [
        pp.Continuous("age", 20, 70, step=1, unit="years"),
        pp.Continuous("income", 0.0, 9.5),
        pp.Ordinal("grade", ["E", "D", "C", "B"], values=[0, 1, 2.5, 3]),
        pp.Categorical("job", ["clerk", "cook", "smith"]),
        pp.Categorical("town", ["north", "south", "west"], encoding="dropfirst"),
        pp.Binary("member", ["no", "yes"]),
    ]
    return [replace(kind, **changes.get(kind.name, {})) for kind in kinds]


def schema_of(rules=(), **changes):
    return Schema(features(**changes), rules=rules)


def people(rng, n):
    return pd.DataFrame(
        {
            "age": rng.integers(20, 71, n),
            "income": rng.uniform(0.0, 9.5, n),
            "grade": rng.choice(["E", "D", "C", "B"], n),
            "job": rng.choice(["clerk", "cook", "smith"], n),
            "town": rng.choice(["north", "south", "west"], n),
            "member": rng.choice(["no", "yes"], n),
        }
    )


def net_for(rng, width, hidden=(6,), outputs=1, inputs=None):
    """A network whose classes are about balanced on the rows ``inputs``."""
    sizes = [width, *hidden]
    layers = [
        (rng.normal(size=(m, n)) * 1.5 / np.sqrt(n), rng.normal(size=m) * 0.3)
        for n, m in itertools.pairwise(sizes)
    ]
    W = rng.normal(size=(outputs, sizes[-1])) * 1.5 / np.sqrt(sizes[-1])
    net = pp.Network([*layers, (W, np.zeros(outputs))])
    return pp.Network([*layers, (W, -np.median(net.logits(inputs), axis=0))])


class World:
    """A network, a table and people who are refused."""

    def __init__(self, seed, *, hidden=(6,), outputs=1, rows=250, rules=(), **changes):
        rng = np.random.default_rng(seed)
        self.schema = schema_of(rules, **changes)
        self.frame = people(rng, rows)
        self.X = self.schema.encode(self.frame)
        self.net = net_for(rng, self.schema.width, hidden, outputs, self.X)

    def refused(self, n, target=1):
        frame = self.frame[self.net.predict(self.X) != target].iloc[:n]
        return frame.set_index(pd.Index([f"p{i}" for i in range(len(frame))]))

    def explainer(self, delta=0.01, **options):
        options = {"k": 12, "schema": self.schema, **options}
        return pp.Proplace(self.net, delta, **options).fit(self.frame)


def outside_hull(schema, point, neighbours, x):
    """How far a point is from the hull of the neighbours and the person, half a step in grids."""
    room = np.zeros(len(point))
    for j, column in enumerate(schema.columns):
        if column.kind == "grid":
            codes = column.grid.encoded(np.arange(column.size))
            room[j] = np.diff(codes).max() / 2.0
    V = np.vstack([x, neighbours]).T
    off = -np.ones((len(point), 1))
    result = linprog(
        np.append(np.zeros(V.shape[1]), 1.0),
        A_ub=np.block([[V, off], [-V, off]]),
        b_ub=np.concatenate([point + room, room - point]),
        A_eq=np.append(np.ones(V.shape[1]), 0.0)[None],
        b_eq=[1.0],
        bounds=(0.0, None),
    )
    assert result.status == 0
    return float(result.fun)


def check_promise(explainer, schema, answer, *, attacks=True):
    """Everything that a found answer promises, by other means."""
    assert answer.found
    point, x = answer.point, answer.x
    assert schema.legal(point)[0]
    assert schema.person(x).allowed(point)[0]
    if explainer.region == "hull":
        assert outside_hull(schema, point, answer.neighbours, x) <= 2e-6
    args = explainer.net_, point, explainer.shifts_, answer.target
    report = pp.certify(*args, margin=explainer.prover_.judges[0].margin)
    assert report.robust[0]
    exact = pp.certify(*args, exact_margin=True)
    assert explainer.prover_.judges[0].margin <= answer.margin <= exact.upper[0] + 1e-9
    between = float(explainer.distance_.between(x, point))
    assert answer.distance == pytest.approx(between, abs=1e-12)
    assert 0.0 <= answer.bound <= answer.distance
    if attacks:
        delta = explainer.shifts_
        rng = np.random.default_rng(0)
        least = sampled_margins(explainer.net_, point, delta, answer.target, rng, 100).min()
        T = rng.uniform(-1.0, 1.0, (8, size_of(explainer.net_)))
        least = min(least, attack(explainer.net_, point, delta, answer.target, T, steps=8))
        assert least >= explainer.prover_.judges[0].margin - 1e-9


def check_table(schema, result):
    """The table that a user reads encodes to the certified bits."""
    names = [feature.name for feature in schema.features]
    for answer, (_, row) in zip(result, result.to_frame().iterrows(), strict=True):
        if answer.found:
            table = pd.DataFrame([row[names]])
            assert schema.encode(table).tobytes() == answer.point[None].tobytes()
            series = pd.DataFrame([answer.counterfactual])
            assert schema.encode(series).tobytes() == answer.point[None].tobytes()


# -- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(2, 6))
@pytest.mark.parametrize("region", ["hull", "box"])
def test_promises(seed, region):
    world = World(seed, hidden=[(6,), (5, 4), ()][seed % 3])
    explainer = world.explainer(region=region)
    frame = world.refused(5)
    result = explainer.explain(frame)
    assert result.complete
    assert [e.index for e in result] == list(frame.index)
    for answer in result:
        assert answer.status == "optimal"
        check_promise(explainer, world.schema, answer)
    check_table(world.schema, result)


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_same_as_algorithm_1(seed):
    world = World(seed, hidden=[(6,), (5, 4)][seed % 2])
    frame = world.refused(3)
    a = world.explainer().explain(frame)
    b = world.explainer(search="bilevel").explain(frame)
    assert [e.status for e in a] == [e.status for e in b] == ["optimal"] * 3
    np.testing.assert_allclose([e.distance for e in a], [e.distance for e in b], atol=1e-6)


def rules():
    return [
        pp.Linear({"age": 1.0, "income": -10.0}, lower=-60.0, name="not too rich for the age"),
        pp.IfThen({"job": "smith"}, [Change("age", at_least=2)]),
        pp.IfThen({"town": "west"}, [Value("income", at_most=6.0)], becomes=False),
        pp.IfThen({"member": "yes"}, [Is("job", ["cook", "smith"])]),
    ]


LIMITS = {
    "age": {"direction": "increasing", "max_increase": 15},
    "income": {"max_increase": 4.0, "max_decrease": 2.0},
    "grade": {"direction": "increasing"},
    "town": {"immutable": True},
}


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_rules_hold_in_original_units(seed):
    world = World(seed, rules=rules(), rows=400, **LIMITS)
    explainer = world.explainer(delta=0.004)
    frame = world.refused(6)
    result = explainer.explain(frame)
    order = ["E", "D", "C", "B"]
    found = 0
    for answer, (_, old) in zip(result, frame.iterrows(), strict=True):
        if not answer.found:
            assert answer.status in ("infeasible_rules", "no_robust_neighbour", "fixed")
            assert answer.reason
            continue
        found += 1
        new = answer.counterfactual
        check_promise(explainer, world.schema, answer)
        assert new["town"] == old["town"]
        assert old["age"] <= new["age"] <= old["age"] + 15
        assert old["income"] - 2.0 - 1e-7 <= new["income"] <= old["income"] + 4.0 + 1e-7
        assert order.index(new["grade"]) >= order.index(old["grade"])
        assert new["age"] - 10.0 * new["income"] >= -60.0 - 1e-6
        if new["job"] == "smith" and old["job"] != "smith":
            assert new["age"] >= old["age"] + 2
        if new["town"] == "west":
            assert new["income"] <= 6.0 + 1e-7
        if new["member"] == "yes" and old["member"] != "yes":
            assert new["job"] in ("cook", "smith")
    check_table(world.schema, result)
    assert found or seed != 0


@pytest.mark.parametrize("name", ["age", "income", "grade", "job", "town", "member"])
def test_immutable_features_never_change(name):
    world = World(3, **{name: {"immutable": True}})
    frame = world.refused(6)
    for region in ("hull", "box"):
        result = world.explainer(region=region).explain(frame)
        for answer, (_, old) in zip(result, frame.iterrows(), strict=True):
            if answer.found:
                assert answer.counterfactual[name] == old[name]
        assert any(answer.found for answer in result)


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_several_classes(seed):
    world = World(seed, outputs=3)
    explainer = world.explainer(delta=0.005)
    for target in range(3):
        frame = world.refused(2, target)
        result = explainer.explain(frame, target=target)
        for answer in result:
            assert answer.target == target
            if answer.found:
                check_promise(explainer, world.schema, answer)
                assert world.net.predict(answer.point)[0] == target


def test_both_targets_of_one_logit():
    world = World(1)
    explainer = world.explainer()
    for target in (0, 1):
        for answer in explainer.explain(world.refused(3, target), target=target):
            check_promise(explainer, world.schema, answer)
            assert world.net.predict(answer.point)[0] == target


def test_weights_by_spread():
    world = World(2)
    explainer = world.explainer(weights="mad")
    for answer in explainer.explain(world.refused(3)):
        assert answer.status == "optimal"
        check_promise(explainer, world.schema, answer)


def test_the_box_is_not_farther_than_the_hull():
    for seed in range(3):
        world = World(seed)
        frame = world.refused(4)
        hull = world.explainer().explain(frame)
        box = world.explainer(region="box").explain(frame)
        for near, far in zip(box, hull, strict=True):
            assert near.distance <= far.distance + 1e-6


def test_more_neighbours_are_not_farther():
    world = World(5)
    frame = world.refused(4)
    previous = np.full(len(frame), np.inf)
    for k in (1, 3, 10, 40, 10**6):
        answers = world.explainer(k=k).explain(frame)
        now = np.array([e.distance for e in answers])
        assert (now <= previous + 1e-6).all()
        previous = now
    explainer = world.explainer(k=10**6)
    assert len(answers[0].neighbours) == len(explainer.robust_rows())  # what exists


@pytest.mark.usefixtures("small_slack")
def test_no_shifts_is_the_plain_plausible_counterfactual():
    world = World(4)
    explainer = world.explainer(delta=0.0)
    paper = world.explainer(delta=0.0, search="bilevel").explain(world.refused(4))
    for answer, other in zip(explainer.explain(world.refused(4)), paper, strict=True):
        check_promise(explainer, world.schema, answer)
        assert answer.margin == pytest.approx(world.net.margin(answer.point)[0], abs=1e-9)
        assert answer.distance == pytest.approx(other.distance, abs=1e-6)
        assert other.rounds == 0  # no shift but none


# -- the decomposition into profiles -------------------------------------------------------------


def whole_hull(net, schema, x, neighbours, weights, asked):
    """Nearest point of the one hull whose binary columns are whole, by a mixed-integer program.

    Only the network itself, one hidden layer, no grids. Columns: x', lambda, d, v, gamma.
    """
    V = np.vstack([x, neighbours])
    d, m = len(x), len(V)
    (W, b), (a, c) = [(layer.W, layer.bias) for layer in net.layers]
    h = len(b)
    big = np.abs(W).sum(axis=1) * max(1.0, np.abs(V).max()) + np.abs(b)
    n = 2 * d + m + 2 * h
    xs, ls = slice(0, d), slice(d, d + m)
    ds, vs, gs = slice(d + m, 2 * d + m), slice(2 * d + m, 2 * d + m + h), slice(n - h, n)
    rows, low, high = [], [], []

    def add(lo, hi, **parts):
        count = len(np.atleast_1d(lo))
        A = np.zeros((count, n))
        for name, block in parts.items():
            A[:, {"x": xs, "l": ls, "d": ds, "v": vs, "g": gs}[name]] = block
        rows.append(A)
        low.append(np.broadcast_to(lo, count))
        high.append(np.broadcast_to(hi, count))

    inf = np.inf
    add(np.zeros(d), np.zeros(d), x=np.eye(d), l=-V.T)
    add(np.ones(1), np.ones(1), l=np.ones((1, m)))
    add(-x, np.full(d, inf), d=np.eye(d), x=-np.eye(d))
    add(x, np.full(d, inf), d=np.eye(d), x=np.eye(d))
    add(b, np.full(h, inf), v=np.eye(h), x=-W)
    add(np.full(h, -inf), b + big, v=np.eye(h), x=-W, g=np.diag(big))
    add(np.full(h, -inf), np.zeros(h), v=np.eye(h), g=-np.diag(big))
    add(np.array([asked - c[0]]), np.array([inf]), v=a)
    cost = np.zeros(n)
    cost[ds] = weights
    whole = np.zeros(n)
    whole[gs] = 1
    whole[schema.profile_columns] = 1
    lower, upper = np.full(n, -inf), np.full(n, inf)
    lower[d:], upper[ls], upper[gs] = 0.0, 1.0, 1.0
    result = milp(
        cost,
        constraints=LinearConstraint(np.vstack(rows), np.concatenate(low), np.concatenate(high)),
        integrality=whole,
        bounds=Bounds(lower, upper),
        options={"mip_rel_gap": 0.0},
    )
    assert result.status == 0, result.message
    return float(result.fun)


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize("seed", seeds(3, 10))
def test_the_nearest_profile_is_the_nearest_of_the_whole_hull(seed):
    rng = np.random.default_rng(seed)
    schema = Schema(
        [
            pp.Continuous("a", 0, 1),
            pp.Continuous("b", 0, 1),
            pp.Categorical("job", ["clerk", "cook", "smith"]),
            pp.Categorical("town", ["north", "south"], encoding="dropfirst"),
            pp.Binary("member"),
        ]
    )
    X = schema.canonical(rng.uniform(0.0, 1.0, (150, schema.width)))
    net = net_for(rng, schema.width, (5,), 1, X)
    factors = {feature.name: rng.uniform(0.3, 3.0) for feature in schema.features}
    explainer = pp.Proplace(net, 0.0, k=25, schema=schema, weights=factors).fit(X)
    weights = explainer.distance_.weights
    for answer in explainer.explain(X[net.predict(X) == 0][:3]):
        assert answer.status == "optimal"
        truth = whole_hull(net, schema, answer.x, answer.neighbours, weights, 1e-6 + 1e-7)
        assert answer.distance == pytest.approx(truth, abs=2e-6)


# -- every status --------------------------------------------------------------------------------


def two_columns():
    """Class 1 iff a + b >= 1; four training rows, three of them robust."""
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    return net, train


def test_already_valid():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    result = explainer.explain([[0.9, 0.9], [0.51, 0.5]])
    assert [e.status for e in result] == ["already_valid"] * 2
    assert "every network within delta" in result[0].reason
    assert "but not robustly" in result[1].reason
    assert result[1].margin < 0.0 < result[0].margin
    for answer in result:
        assert not answer.found
        assert answer.distance == answer.bound == 0.0
        np.testing.assert_array_equal(answer.point, answer.x)


def test_no_robust_neighbour():
    net, train = two_columns()
    for region in ("hull", "box"):
        answer = pp.Proplace(net, 5.0, k=3, region=region).fit(train).explain([[0.2, 0.3]])[0]
        assert answer.status == "no_robust_neighbour"
        assert answer.counterfactual is None
        assert np.isnan(answer.distance)
        assert "robust" in answer.reason
    assert "none of 4 training rows" in (
        pp.Proplace(net, 5.0, k=3).fit(train).explain([[0.2, 0.3]])[0].reason
    )


def test_infeasible_rules_names_the_rule():
    net, train = two_columns()
    columns = [pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)]
    rule = pp.Linear({"a": 1.0, "b": 1.0}, upper=0.5, name="a small household")
    schema = Schema(columns, rules=[rule])
    answer = pp.Proplace(net, 0.05, k=3, schema=schema).fit(train).explain([[0.2, 0.1]])[0]
    assert answer.status == "infeasible_rules"
    assert "a small household" in answer.reason
    frozen = Schema([replace(c, immutable=True, label=c.name.upper()) for c in columns])
    answer = pp.Proplace(net, 0.05, k=3, schema=frozen).fit(train).explain([[0.2, 0.1]])[0]
    assert answer.status == "fixed"
    assert "and nothing may change" in answer.reason


def test_bad_input_never_loses_other_rows():
    world = World(0)
    frame = world.refused(5).astype({"age": float})
    good = world.explainer().explain(frame)
    bad = frame.copy()
    bad.iloc[0, 0] = np.nan
    bad.iloc[1, 3] = "clrek"
    bad.iloc[3, 0] = 500.0
    result = world.explainer().explain(bad)
    assert [e.status for e in result] == [
        *["bad_input"] * 2,
        "optimal",
        "bad_input",
        "optimal",
    ]
    assert "missing" in result[0].reason
    assert "did you mean 'clerk'" in result[1].reason
    assert "above the upper bound" in result[3].reason
    assert result[3].index == "p3"
    for i in (2, 4):
        assert result[i].distance == good[i].distance
        np.testing.assert_array_equal(result[i].point, good[i].point)
    table = result.to_frame()
    assert list(table.index) == list(frame.index)
    assert table.loc["p0", "status"] == "bad_input"
    check_table(world.schema, result)


def test_bad_rows_of_an_array():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    result = explainer.explain([[0.2, np.nan], [0.2, 0.3], [np.inf, 0.1]])
    assert [e.status for e in result] == ["bad_input", "optimal", "bad_input"]
    assert result[0].reason == "column 'x1': nan is not finite"
    assert result.points.shape == (3, 2)
    assert np.isnan(result.points[[0, 2]]).all()
    world = World(0)
    X = world.schema.encode(world.refused(2))
    X[0, world.schema.span("job")] = 0.5
    result = world.explainer().explain(X)
    assert [e.status for e in result] == ["bad_input", "optimal"]
    assert "no legal row of the schema" in result[0].reason


LOOKS = 12  # at the clock, between the end of the time and that of the call, at most


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize("search", ["tree", "bilevel"])
def test_time_limit(search, monkeypatch):
    """The best so far, certified, and a bound that the optimum does not beat; on a ticking clock."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (400, 8))
    net = net_for(rng, 8, (16, 16), 1, X)
    refused = X[net.predict(X) == 0][:2]
    best = pp.Proplace(net, 0.003, k=20).fit(X).explain(refused)
    assert all(e.status == "optimal" for e in best)
    statuses = set()
    for limit in (0.5, 5.0, 15.0, 50.0, 150.0, 1e6) if search == "tree" else (0.5, 5.0):
        options = {"k": 20, "time_limit": limit, "search": search}
        explainer = pp.Proplace(net, 0.003, **options).fit(X)
        explainer.robust_rows()
        for x, truth in zip(refused, best, strict=True):
            with monkeypatch.context() as patch:
                clock = Clock(patch)
                start = clock.now
                (answer,) = explainer.explain(x[None])
                assert clock.now - start <= limit + LOOKS or answer.status == "optimal"
            statuses.add(answer.status)
            check_promise(explainer, Schema.encoded(8), answer, attacks=False)
            assert answer.certificate.check(net).accepted
            assert answer.bound <= truth.distance + 1e-6
            assert truth.distance - 1e-6 <= answer.distance
            if answer.status == "feasible":
                assert "stopped at the time limit" in answer.reason
            else:
                assert answer.distance == pytest.approx(truth.distance, abs=1e-6)
    assert statuses == {"feasible", "optimal"} if search == "tree" else {"feasible"}


@functools.cache
def hard_to_decide():
    """A network, and a row that it accepts, robustly, though not so that a glance could tell."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (300, 6))
    net = net_for(rng, 6, (16, 16, 16), 1, X)
    x = X[net.margin(X).argmax()]
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2.0
        robust = pp.certify(net, x, middle, margin=1e-6).robust[0]
        low, high = (middle, high) if robust else (low, middle)
    delta = 0.99 * low
    assert Oracle(problem_of(net, x, delta, margin=1e-6)).test(x, -np.inf) == (False, None)
    return net, X, x, delta


def test_the_time_limit_holds_for_people_who_are_accepted():
    net, X, x, delta = hard_to_decide()
    explainer = pp.Proplace(net, delta).fit(X)
    (answer,) = explainer.explain(x[None])
    assert answer.status == "already_valid"
    assert "every network" in answer.reason
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        explainer.time_limit = 0.5
        (answer,) = explainer.explain(x[None])
        assert clock.looks <= LOOKS
    assert answer.status == "already_valid"
    assert "whether robustly is not decided in the time limit" in answer.reason
    assert answer.certificate is None
    assert answer.margin < 1e-6


def test_no_time_for_a_proof_is_no_answer(monkeypatch):
    """Without a point that is proved at once there is none, and it is not called bad or impossible."""
    net, X, x, delta = hard_to_decide()
    explainer = pp.Proplace(net, delta, k=3, time_limit=0.5).fit(X)
    robust = explainer._robust_rows(1)
    robust.robust = robust.rows = x[None]  # the only neighbour is the one that takes long
    robust._tree = KDTree(x[None] * robust.distance.weights)
    refused = X[net.predict(X) == 0][:1]
    Clock(monkeypatch)
    (answer,) = explainer.explain(refused)
    assert (answer.status, answer.point) == ("not_found", None)
    assert "time limit" in answer.reason


def test_the_fallback_is_the_nearest_neighbour_that_is_proved_in_time(monkeypatch):
    world = World(1)
    explainer = world.explainer(time_limit=0.5)
    nearest = explainer.explain(world.refused(1))[0].neighbours[0]
    plain_certify = proving.certify

    def slow(net, rows, *args, **options):  # the nearest one is not proved in time
        report = plain_certify(net, rows, *args, **options)
        return replace(report, robust=report.robust & (rows != nearest).any(axis=1))

    monkeypatch.setattr(proving, "certify", slow)
    Clock(monkeypatch)
    (answer,) = explainer.explain(world.refused(1))
    assert answer.status == "feasible"
    assert "stopped at the time limit" in answer.reason
    np.testing.assert_array_equal(answer.point, answer.neighbours[1])
    assert answer.certificate.check(world.net).accepted


def test_neighbours_under_rules_respect_the_limit(monkeypatch):
    """Rows that could not be looked at in time: nothing is claimed of the region without them."""
    world = World(0, rules=rules(), rows=700, **LIMITS)
    explainer = world.explainer(delta=0.004, time_limit=0.5)
    explainer.robust_rows()
    frame = world.refused(3)
    Clock(monkeypatch)
    for answer in explainer.explain(frame):
        assert answer.status in ("feasible", "not_found")
        assert "time limit" in answer.reason
        assert "exist" not in answer.reason
        if answer.found:
            assert answer.bound == 0.0
            check_promise(explainer, world.schema, answer, attacks=False)


def test_no_neighbour_in_time_is_not_the_fault_of_the_rules(monkeypatch):
    world = World(0, rules=rules(), **LIMITS)
    explainer = world.explainer(delta=0.004, time_limit=0.5)
    explainer.robust_rows()
    monkeypatch.setattr(RobustRows, "test", lambda self, rows, deadline: np.zeros(len(rows), bool))
    Clock(monkeypatch)
    for answer in explainer.explain(world.refused(3)):
        assert answer.status == "not_found"
        assert "time limit" in answer.reason


def test_more_answers_do_not_take_more_than_the_limit(monkeypatch):
    world = World(0)
    explainer = world.explainer(time_limit=0.5)
    explainer.robust_rows()
    clock = Clock(monkeypatch)
    result = explainer.explain(world.refused(1), count=4)
    assert clock.looks <= 2 * LOOKS
    assert [answer.status for answer in result] == ["feasible"]


@pytest.mark.parametrize("status", ["kUnknown", "kSolveError", "kUnboundedOrInfeasible"])
def test_a_solver_in_trouble_still_gives_an_answer(status, monkeypatch):
    world = World(1, hidden=(6, 6))
    frame = world.refused(3)
    truth = world.explainer().explain(frame)
    explainer = world.explainer()
    explainer.robust_rows()
    ill_solver(monkeypatch, status, lambda n: True)
    for answer, best in zip(explainer.explain(frame), truth, strict=True):
        check_promise(explainer, world.schema, answer)
        if answer.status == "optimal":  # found without a linear program
            assert answer.distance == pytest.approx(best.distance, abs=1e-6)
            continue
        assert answer.status == "feasible"
        assert "the solver failed (HiGHS gave no answer" in answer.reason
        assert answer.bound <= best.distance + 1e-6


def in_trouble(problem, pieces, **options):
    return SearchResult(None, np.inf, 0.0, "unknown", trouble="out of luck")


def test_a_search_without_a_point_gives_a_neighbour(monkeypatch):
    world = World(1)
    monkeypatch.setattr(explainer_module, "search", in_trouble)
    explainer = world.explainer()
    for answer in explainer.explain(world.refused(2)):
        assert answer.status == "feasible"
        assert "out of luck" in answer.reason
        assert answer.bound == 0.0
        check_promise(explainer, world.schema, answer)
        np.testing.assert_array_equal(answer.point, answer.neighbours[0])
    for answer in world.explainer(region="box").explain(world.refused(1)):
        assert answer.status == "solver_error"  # no neighbour to fall back on
        assert "out of luck" in answer.reason
        assert "no fault of the row" in answer.reason
        assert answer.point is None


def test_the_bound_of_a_search_without_a_point_is_kept(monkeypatch):
    """What is proved of the region stays true when a neighbour is all that is known in it."""
    world = World(1)

    def stopped(problem, pieces, **options):
        return SearchResult(None, np.inf, 1e-3, "unknown")

    monkeypatch.setattr(explainer_module, "search", stopped)
    (answer,) = world.explainer().explain(world.refused(1))
    assert (answer.status, answer.bound) == ("feasible", 1e-3)

    def wrong(problem, pieces, **options):
        return SearchResult(None, np.inf, np.inf, "infeasible")

    monkeypatch.setattr(explainer_module, "search", wrong)  # though there is a neighbour
    (answer,) = world.explainer().explain(world.refused(1))
    assert (answer.status, answer.bound) == ("feasible", 0.0)
    assert "no point in a region that holds one" in answer.reason


def test_errors_of_a_row_say_whose_they_are(monkeypatch):
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    for error, status in (
        (SolverError("no luck"), "solver_error"),
        (ArithmeticError(), "bad_input"),
    ):

        def fails(*args, error=error, **options):
            raise error

        monkeypatch.setattr(explainer_module, "search", fails)
        result = explainer.explain([[0.2, 0.3], [0.9, 0.9]])
        assert [e.status for e in result] == [status, "already_valid"]
        assert type(error).__name__ in result[0].reason


def test_a_point_that_breaks_a_rule_is_not_returned(monkeypatch):
    """The last guard: robust, but not allowed for this person."""
    net, train = two_columns()
    columns = [pp.Continuous("a", 0, 1, max_increase=0.6), pp.Continuous("b", 0, 1)]
    schema = Schema(columns)

    def wrong(problem, pieces, **options):
        point = np.array([1.0, 1.0])
        return SearchResult(point, 0.75, 0.75, "optimal")

    monkeypatch.setattr(explainer_module, "search", wrong)
    explainer = pp.Proplace(net, 0.05, k=3, schema=schema).fit(train)
    (answer,) = explainer.explain([[0.2, 0.3]])
    assert answer.status == "feasible"
    assert answer.point[0] <= 0.8 + 1e-9
    check_promise(explainer, schema, answer)


@pytest.mark.parametrize("forged", [False, True])
def test_what_fails_the_last_test_is_not_returned(forged, monkeypatch):
    """An answer of the search that is not robust after all must not be passed on.

    Nor with evidence that is another point's: what it proves is tested on the answer itself.
    """
    net, train = two_columns()

    def wrong(problem, pieces, **options):
        point, evidence = problem.x + 0.01, ()
        if forged:
            oracle = Oracle(problem)
            good = train[pp.certify(net, train, 0.05, margin=0.1).robust][0]
            assert oracle.test(good)[0]
            evidence = tuple(replace(each, point=point) for each in oracle.evidence(good))
        return SearchResult(point, 0.01, 0.01, "optimal", evidence=evidence)

    monkeypatch.setattr(explainer_module, "search", wrong)
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    answer = explainer.explain([[0.2, 0.3]])[0]
    assert answer.status == "feasible"
    check_promise(explainer, Schema.encoded(2), answer)
    answer = pp.Proplace(net, 0.05, k=3, region="box").fit(train).explain([[0.2, 0.3]])[0]
    assert not answer.found
    assert answer.point is None
    assert answer.reason


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_complete(seed):
    """An answer iff some training row, made to fit the person, is robust at the search's margin."""
    world = World(seed, rules=rules(), rows=60, **LIMITS)
    asked = 1e-6 + 1e-4
    for delta in (0.01, 0.05, 0.12):
        explainer = world.explainer(delta=delta, k=5)
        frame = world.refused(5)
        for answer, x in zip(explainer.explain(frame), world.schema.encode(frame), strict=True):
            person = world.schema.person(x)
            fits = np.vstack(
                [person.adapt(world.X), person.adapt(world.X, overwrite_categories=True)]
            )
            fits = fits[person.allowed(fits)]
            report = pp.certify(world.net, fits, delta, margin=asked) if len(fits) else None
            expected = report is not None and bool(report.robust.any())
            assert answer.found == expected
            if expected:
                assert answer.status == "optimal"
                nearest = explainer.distance_.between(x, fits[report.robust]).min()
                if len(answer.neighbours) >= report.robust.sum():
                    assert answer.distance <= nearest + 1e-9
            else:
                assert answer.status in ("infeasible_rules", "no_robust_neighbour", "fixed")
                assert answer.reason


# -- how it behaves --------------------------------------------------------------------------------


def same(a, b):
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        assert (p.index, p.status, p.reason, p.rank) == (q.index, q.status, q.reason, q.rank)
        np.testing.assert_array_equal([p.distance, p.bound], [q.distance, q.bound])
        if p.point is not None:
            assert p.point.tobytes() == q.point.tobytes()


def test_processes_and_runs_agree():
    world = World(2)
    frame = world.refused(6)
    one = world.explainer().explain(frame)
    same(one, world.explainer().explain(frame))
    same(one, world.explainer(n_jobs=2).explain(frame))
    explainer = world.explainer()
    same(one, explainer.explain(frame))
    same(one, explainer.explain(frame))  # nothing is carried over
    same(one[2:3], explainer.explain(frame.iloc[2:3]))  # nor from other rows


def test_a_second_fit_forgets_the_first():
    world, other = World(2), World(2, rows=90)
    frame = world.refused(4)
    explainer = world.explainer()
    first = explainer.explain(frame)
    fresh = pp.Proplace(world.net, 0.01, k=12, schema=world.schema).fit(other.frame)
    second = explainer.fit(other.frame).explain(frame)
    same(second, fresh.explain(frame))
    assert [e.distance for e in second] != [e.distance for e in first]
    assert len(explainer.robust_rows()) < 90


def test_one_margin_for_all_rows():
    """A float32 model: the largest margin that any training row asks for, and the slack for rows."""
    world = World(2)
    explainer = world.explainer(margin="float32")
    margins = thresholds(world.net, explainer.shifts_, world.X, "float32")
    assert margins.min() < margins.max() == explainer.sets_[0].margin
    assert explainer._robust_rows(1).slack == explainer_module.SLACK


def test_rows_must_keep_the_slack():
    """A row whose worst margin is the margin but not more may not span the region."""
    net = pp.Network([([[1.0]], [-0.5])])
    train = np.array([[0.5 + 2e-6], [0.5 + 0.5e-4], [0.5 + 2e-4], [0.9]])
    explainer = pp.Proplace(net, 0.0, k=3).fit(train)
    np.testing.assert_array_equal(explainer.robust_rows(), train[2:])


def test_tables_and_arrays_agree():
    world = World(2)
    frame = world.refused(4)
    table = world.explainer().explain(frame)
    array = world.explainer().explain(world.schema.encode(frame))
    assert [e.index for e in array] == [0, 1, 2, 3]
    fitted = pp.Proplace(world.net, 0.01, k=12, schema=world.schema).fit(world.X)
    for a, b, c in zip(table, array, fitted.explain(frame), strict=True):
        assert a.distance == b.distance == c.distance
        assert a.point.tobytes() == b.point.tobytes() == c.point.tobytes()
        assert a.counterfactual.astype(object).equals(b.counterfactual.astype(object))


def test_unchanged_cells_keep_every_digit():
    world = World(7)
    frame = world.refused(8)
    for answer, (_, old) in zip(world.explainer().explain(frame), frame.iterrows(), strict=True):
        changed = set(answer.changes.index)
        for name in frame.columns:
            assert (answer.counterfactual[name] != old[name]) == (name in changed)
            assert answer.original[name] == old[name]
        # What looks unchanged to a reader is unchanged.
        if "income" in changed:
            assert abs(answer.counterfactual["income"] - old["income"]) > 1e-8


@pytest.mark.parametrize("index", [[7, 7, 3], ["b", "a", "b"]])
def test_repeated_labels(index):
    world = World(0)
    frame = world.refused(3).set_index(pd.Index(index))
    result = world.explainer().explain(frame)
    assert [e.index for e in result] == index
    assert list(result.to_frame().index) == index


def test_tables_without_a_schema():
    net, train = two_columns()
    for columns in (["a", "b"], [0, 1]):
        table = pd.DataFrame(train, columns=columns)
        explainer = pp.Proplace(net, 0.05, k=3).fit(table)
        person = pd.DataFrame([[0.2, 0.3]], columns=columns, index=["me"])
        result = explainer.explain(person)
        assert result[0].status == "optimal"
        assert result[0].index == "me"
        assert list(result.to_frame().columns[:2]) == [str(name) for name in columns]


def test_interrupt_returns_what_is_done(monkeypatch):
    world = World(0)
    frame = world.refused(5)
    explainer = world.explainer()
    whole = explainer.explain(frame)
    calls = itertools.count()
    original = base._explain_block

    def stops(*args):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(base, "_explain_block", stops)
    result = explainer.explain(frame)
    assert not result.complete
    assert "interrupted" in repr(result)
    same(result, whole[:3])
    assert not result[:2].complete


def test_progress_bar(capsys):
    world = World(0)
    shown = world.explainer().explain(world.refused(2), progress=True)
    same(shown, world.explainer().explain(world.refused(2)))
    assert capsys.readouterr().out == ""


def test_signed_zero_is_zero():
    """-0.0 in a binary column is legal: the person still joins the hull of its own profile."""
    world = World(6)
    X = world.schema.encode(world.refused(4))
    minus = X.copy()
    minus[:, world.schema.profile_columns] = np.where(
        X[:, world.schema.profile_columns] == 0.0, -0.0, 1.0
    )
    explainer = world.explainer()
    for a, b in zip(explainer.explain(X), explainer.explain(minus), strict=True):
        assert a.status == b.status
        assert a.distance == pytest.approx(b.distance, abs=1e-7)


# -- several answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("region", ["hull", "box"])
def test_several_answers_differ_in_what_they_change(seed, region):
    world = World(seed)
    explainer = world.explainer(region=region)
    frame = world.refused(3)
    result = explainer.explain(frame, count=4)
    single = explainer.explain(frame)
    several = 0
    for label, first in zip(frame.index, single, strict=True):
        mine = [e for e in result if e.index == label]
        assert 1 <= len(mine) <= 4
        several += len(mine) > 1
        assert [e.rank for e in mine] == list(range(len(mine)))
        assert len({tuple(e.changes.index) for e in mine}) == len(mine)
        for answer in mine:
            check_promise(explainer, world.schema, answer, attacks=False)
        distances = [e.distance for e in mine]
        assert distances == sorted(distances)
        assert mine[0].distance <= first.distance + 1e-9
    assert several
    check_table(world.schema, result)


def test_count_of_people_without_an_answer():
    net, train = two_columns()
    result = pp.Proplace(net, 5.0).fit(train).explain([[0.2, 0.3], [0.9, 0.9]], count=3)
    assert [e.status for e in result] == ["no_robust_neighbour", "already_valid"]


# -- tables of results -----------------------------------------------------------------------------


def test_explanations_as_a_sequence():
    world = World(0)
    result = world.explainer().explain(world.refused(4))
    assert len(result) == 4
    assert [e.index for e in result[1:3]] == ["p1", "p2"]
    assert isinstance(result[1:3], pp.Explanations)
    assert result[-1].index == "p3"
    with pytest.raises(IndexError):
        result[4]
    assert repr(result) == "Explanations(4 optimal)"
    assert result.points.shape == (4, world.schema.width)
    text = repr(result[0])
    assert text.startswith("Explanation('p0', optimal, distance")
    assert "->" in text
    table = result.to_frame()
    assert list(table.columns) == [
        *world.frame.columns,
        *("status", "distance", "bound", "margin", "rank", "reason"),
        *("target", "delta", "changes", "sentence", "certificate", "missing", "holds"),
        *(f"original_{name}" for name in world.frame.columns),
    ]


def test_column_names_that_collide():
    net, train = two_columns()
    schema = Schema([pp.Continuous("status", 0, 1), pp.Continuous("margin", 0, 1)])
    explainer = pp.Proplace(net, 0.05, k=3, schema=schema).fit(train)
    for rows in ([[0.2, 0.3], [0.9, 0.9]], [[0.9, 0.9]], [[0.9, 0.9], [0.2, 0.3]]):
        table = explainer.explain(rows).to_frame()
        assert list(table.columns[:2]) == ["status", "margin"]
        assert {"ce_status", "ce_margin", "distance"} <= set(table.columns)
        valid = table[table["ce_status"] == "already_valid"]
        np.testing.assert_array_equal(
            valid[["status", "margin"]].to_numpy(float), [[0.9, 0.9]] * len(valid)
        )


def test_tables_without_answers():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    table = explainer.explain([[np.nan, 0.3], [0.9, 0.9]]).to_frame()
    assert list(table["status"]) == ["bad_input", "already_valid"]
    np.testing.assert_array_equal(table.loc[1, ["x0", "x1"]].to_numpy(float), [0.9, 0.9])
    table = explainer.explain([[np.nan, 0.3]]).to_frame()
    assert list(table["status"]) == ["bad_input"]


def test_empty_tables():
    world = World(0)
    explainer = world.explainer()
    for empty in (world.frame.iloc[:0], np.zeros((0, world.schema.width))):
        result = explainer.explain(empty)
        assert len(result) == 0
        assert result.complete
        assert repr(result) == "Explanations(none)"
        assert len(result.to_frame()) == 0
        assert len(result.points) == 0


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"k": 0}, OptionError, "k must be a whole number >= 1"),
        ({"k": 2.5}, OptionError, "k must be"),
        ({"k": True}, OptionError, "k must be"),
        ({"margin": float("nan")}, OptionError, "margin must be"),
        ({"margin": -1.0}, OptionError, "margin must be"),
        ({"margin": "float16"}, OptionError, "margin must be a number or 'float32'"),
        ({"region": "ball"}, OptionError, "region must be one of 'hull', 'box'"),
        ({"search": "magic"}, OptionError, "search must be one of 'tree', 'bilevel'"),
        ({"weights": "l7"}, OptionError, "weights must be numbers by feature name"),
        ({"weights": [1.0]}, OptionError, "weights must be numbers by feature name"),
        ({"time_limit": 0}, OptionError, "time_limit must be a positive"),
        ({"time_limit": -3.0}, OptionError, "time_limit"),
        ({"time_limit": float("nan")}, OptionError, "time_limit"),
        ({"delta": -0.1}, DeltaError, "not negative"),
        ({"delta": [(0.1, 0.1)]}, DeltaError, "2 layers"),
        ({"schema": Schema.encoded(3)}, SchemaError, "3 columns but the network takes 2"),
    ],
)
def test_options(options, error, says):
    net, train = two_columns()
    options = {"delta": 0.05, **options}
    with pytest.raises(error, match=re.escape(says)) as caught:
        pp.Proplace(net, **options).fit(train)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ProplaceError)


def test_errors_of_the_calls():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05)
    for call in (lambda: explainer.explain(train), explainer.robust_rows):
        with pytest.raises(OptionError, match=r"call fit\(X_train\)"):
            call()
    with pytest.raises(InputError, match="at least one training row"):
        explainer.fit(np.zeros((0, 2)))
    with pytest.raises(InputError):
        explainer.fit([[0.1, np.nan]])
    with pytest.raises(InputError):
        explainer.fit([[0.1, 0.2, 0.3]])
    explainer.fit(train)
    with pytest.raises(InputError, match=r"shape \(n, 2\)"):
        explainer.explain([[0.1, 0.2, 0.3]])
    with pytest.raises(InputError, match="numbers"):
        explainer.explain([["a", "b"]])
    with pytest.raises(OptionError, match="count must be"):
        explainer.explain(train, count=0)
    with pytest.raises(TargetError):
        explainer.explain(train, target=2)
    world = World(0)
    with pytest.raises(SchemaError, match="missing in the table: 'job'"):
        world.explainer().explain(world.frame.drop(columns="job"))
    with pytest.raises(SchemaError, match="row 0"):
        pp.Proplace(world.net, 0.01, schema=world.schema).fit(world.X + 0.3)
    with pytest.raises(SchemaError):
        pp.Proplace(world.net, 0.01, schema=world.schema).fit(world.frame.assign(age=-5))


def test_too_many_profiles_for_a_box():
    schema = Schema([pp.Binary(f"b{i}") for i in range(16)])
    net = pp.Network([(np.ones((1, 16)), [-8.5])])
    train = np.ones((2, 16))
    with pytest.raises(OptionError, match="65536 combinations"):
        pp.Proplace(net, 0.01, schema=schema, region="box").fit(train).explain(np.zeros((1, 16)))
    frozen = Schema([pp.Binary(f"b{i}", immutable=i < 6) for i in range(16)])
    box = pp.Proplace(net, 0.001, schema=frozen, region="box").fit(train)
    answer = box.explain(np.ones((1, 16)) * (np.arange(16) < 6))[0]
    assert answer.status == "optimal"
    assert answer.point.sum() == 9.0


# -- real data -------------------------------------------------------------------------------------


def read(name, target, rows):
    frame = (
        pd.read_csv(folder() / f"{name}.csv.gz").sample(rows, random_state=0).reset_index(drop=True)
    )
    return frame, frame.pop(target).astype(int).to_numpy()


def trained(X, y, hidden):
    model = MLPClassifier(hidden, max_iter=25, learning_rate_init=0.01, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pp.Network.from_sklearn(model.fit(X, y))


REAL = {
    "heloc": ("RiskPerformance", (6,), 0.01, {}),
    "compas": ("score", (8,), 0.01, {"immutable": ["age", "sex", "race"]}),
    "adult": (
        "income",
        (5, 4),
        0.005,
        {"immutable": ["sex"], "increasing": ["age", "education-num"]},
    ),
}


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize(
    "name",
    only(["compas"], REAL),
)
def test_real_data(name):
    """The tree and Algorithm 1 on people of the data sets of the paper; every promise checked."""
    target, hidden, delta, limits = REAL[name]
    frame, y = read(name, target, 1200)
    schema = Schema.infer(frame, **limits)
    X = schema.encode(frame)
    net = trained(X, y, hidden)
    refused = frame[net.predict(X) == 0].iloc[:8]
    options = {"k": 10, "schema": schema}
    explainer = pp.Proplace(net, delta, **options).fit(frame)
    found = explainer.explain(refused)
    paper = pp.Proplace(net, delta, search="bilevel", **options).fit(frame).explain(refused)
    assert any(e.found for e in found)
    for a, b in zip(found, paper, strict=True):
        rough = a.status == "feasible" and "so many steps" in a.reason
        assert a.status == b.status or (rough and b.status == "optimal")
        if a.found:
            check_promise(explainer, schema, a)
            if rough:  # with 21 columns of steps the tree stops early; its bound holds all the same
                assert a.bound - 1e-6 <= b.distance <= a.distance + 1e-6
                assert a.distance <= 1.3 * b.distance
            else:
                assert a.distance == pytest.approx(b.distance, abs=1e-6)
            for fixed in limits.get("immutable", []):
                assert a.counterfactual[fixed] == a.original[fixed]
            for rising in limits.get("increasing", []):
                assert a.counterfactual[rising] >= a.original[rising]
    check_table(schema, found)


# -- proofs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("region", ["hull", "box"])
def test_every_answer_comes_with_a_proof(region):
    world = World(3, hidden=(6, 6))
    explainer = world.explainer(region=region)
    result = explainer.explain(world.refused(4), count=2)
    found = [answer for answer in result if answer.found]
    assert found
    for answer in found:
        facts = answer.certificate.facts
        assert facts["verdict"] == "robust"
        assert facts["input"] == answer.point.tolist()
        assert facts["margin"] == explainer.prover_.judges[0].margin
        assert facts["delta"] == [[0.01, 0.01]] * 3
        assert answer.certificate.check(world.net).accepted


def test_an_answer_that_fails_by_a_hair_is_moved_into_the_hull(monkeypatch):
    """The solver's point misses the margin by 1e-7: a step towards a neighbour makes up for it."""
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    right = explainer.explain([[0.2, 0.3]])[0]
    search, cut = explainer_module.search, []

    def short(problem, pieces, **options):
        outcome = search(problem, pieces, **options)
        goal = outcome.point - problem.x
        worst = pp.worst_case(net, outcome.point, 0.05).margin
        low, high = 0.0, 1.0
        for _ in range(60):  # back towards the person until the margin is missed by a hair
            middle = (low + high) / 2
            margin = pp.worst_case(net, outcome.point - middle * goal, 0.05).margin
            low, high = (middle, high) if margin > problem.margin - 1e-7 else (low, middle)
        assert worst > problem.margin
        point = outcome.point - high * goal
        cut.append(float(problem.distance.between(problem.x, point)))
        return replace(outcome, point=point)

    monkeypatch.setattr(explainer_module, "search", short)
    moved = explainer.explain([[0.2, 0.3]])[0]
    assert moved.status == "feasible"
    assert "by a hair" in moved.reason
    assert moved.certificate.check(net).accepted
    # a millionth of the way to a neighbour is enough
    assert moved.distance == pytest.approx(cut[0], abs=2e-6)
    assert moved.distance < right.distance
    assert outside_hull(explainer.schema_, moved.point, moved.neighbours, moved.x) < 1e-9
