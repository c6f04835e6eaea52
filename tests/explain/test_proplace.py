"""Answers: nearest, legal, plausible and proved, by other means."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp
from proplace.certification import thresholds
from proplace.core.errors import (
    OptionError,
)
from proplace.explain import proplace as explainer_module
from proplace.schema import Schema
from real_data import folder
from support.errors import raises
from support.people import (
    LIMITS,
    WITHOUT_STEPS,
    World,
    check_bound,
    check_promise,
    check_table,
    net_for,
    rules,
)
from support.tiers import only, seeds


@pytest.mark.parametrize("seed", seeds(2, 6))
@pytest.mark.parametrize("region", ["hull", "box"])
@pytest.mark.parametrize("changes", [{}, WITHOUT_STEPS], ids=["steps", "no steps"])
def test_promises(seed, region, changes):
    world = World(seed, hidden=[(6,), (5, 4), ()][seed % 3], **changes)
    explainer = world.explainer(region=region)
    frame = world.refused(5)
    result = explainer.explain(frame, typical=False, gap=0)
    assert result.complete
    assert [e.index for e in result] == list(frame.index)
    for answer in result:
        assert answer.status == "optimal" or (answer.status == "feasible" and not changes)
        check_promise(explainer, world.schema, answer)
    check_table(world.schema, result)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_rules_hold_in_original_units(seed):
    world = World(seed, rules=rules(), rows=400, **LIMITS)
    explainer = world.explainer(delta=0.004)
    frame = world.refused(6)
    result = explainer.explain(frame, gap=0)
    order = ["E", "D", "C", "B"]
    found = 0
    for answer, (_, old) in zip(result, frame.iterrows(), strict=True):
        if not answer.found:
            assert answer.status in ("infeasible_rules", "no_robust_neighbour", "fixed_prediction")
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
        result = world.explainer(region=region).explain(frame, gap=0)
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
        result = explainer.explain(frame, target=target, gap=0)
        for answer in result:
            assert answer.target == target
            if answer.found:
                check_promise(explainer, world.schema, answer)
                assert world.net.predict(answer.encoded_counterfactual)[0] == target


def test_both_targets_of_one_logit():
    world = World(1)
    explainer = world.explainer()
    for target in (0, 1):
        for answer in explainer.explain(world.refused(3, target), target=target, gap=0):
            check_promise(explainer, world.schema, answer)
            assert world.net.predict(answer.encoded_counterfactual)[0] == target


def test_weights_by_spread():
    for changes in ({}, WITHOUT_STEPS):
        world = World(2, **changes)
        explainer = world.explainer(weights="mad")
        for answer in explainer.explain(world.refused(3), gap=0):
            assert answer.status == "optimal" or (answer.status == "feasible" and not changes)
            check_promise(explainer, world.schema, answer)


def test_box_is_not_farther_than_hull():
    for seed in range(3):
        world = World(seed, **WITHOUT_STEPS)
        frame = world.refused(4)
        hull = world.explainer().explain(frame, gap=0)
        box = world.explainer(region="box").explain(frame, gap=0)
        for near, far in zip(box, hull, strict=True):
            assert near.distance <= far.distance + 1e-6


def test_more_neighbours_are_not_farther():
    world = World(5, **WITHOUT_STEPS)
    frame = world.refused(4)
    previous = np.full(len(frame), np.inf)
    for k in (1, 3, 10, 40, 10**6):
        answers = world.explainer(k=k).explain(frame, gap=0)
        now = np.array([e.distance for e in answers])
        assert (now <= previous + 1e-6).all()
        previous = now
    world = World(5)
    explainer = world.explainer(k=10**6)
    answers = explainer.explain(world.refused(1))
    assert len(answers[0].neighbours) == len(explainer.robust_rows())  # what exists


@pytest.mark.usefixtures("small_slack")
def test_no_shifts_is_plain_plausible_counterfactual():
    world = World(4, **WITHOUT_STEPS)
    explainer = world.explainer(delta=0.0)
    paper = world.explainer(delta=0.0, search="bilevel").explain(world.refused(4), gap=0)
    found = explainer.explain(world.refused(4), typical=False, gap=0)
    for answer, other in zip(found, paper, strict=True):
        check_promise(explainer, world.schema, answer)
        assert answer.margin == pytest.approx(
            world.net.margin(answer.encoded_counterfactual)[0], abs=1e-9
        )
        assert answer.distance == pytest.approx(other.distance, abs=1e-6)
        assert other.scenarios == 0  # no shift but none


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
def test_nearest_profile_is_nearest_of_whole_hull(seed):
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
    for answer in explainer.explain(X[net.predict(X) == 0][:3], gap=0):
        assert answer.status == "optimal"
        truth = whole_hull(
            net, schema, answer.encoded_original, answer.neighbours, weights, 1e-6 + 1e-7
        )
        assert answer.distance == pytest.approx(truth, abs=2e-6)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_complete(seed):
    """An answer iff some training row, made to fit the person, is robust at the search's margin."""
    world = World(seed, rules=rules(), rows=60, **LIMITS)
    asked = 1e-6 + 1e-4
    for delta in (0.01, 0.05, 0.12):
        explainer = world.explainer(delta=delta, k=5)
        frame = world.refused(5)
        for answer, x in zip(
            explainer.explain(frame, gap=0), world.schema.encode(frame), strict=True
        ):
            person = world.schema.person(x)
            fits = np.vstack(
                [person.adapt(world.X), person.adapt(world.X, overwrite_categories=True)]
            )
            fits = fits[person.allowed(fits)]
            report = pp.certify(world.net, fits, delta, margin=asked) if len(fits) else None
            expected = report is not None and bool(report.robust.any())
            assert answer.found == expected
            if expected:
                check_bound(answer, 0.0)
                nearest = explainer.distance_.between(x, fits[report.robust]).min()
                if len(answer.neighbours) >= report.robust.sum():
                    assert answer.distance <= nearest + 1e-9
            else:
                assert answer.status in (
                    "infeasible_rules",
                    "no_robust_neighbour",
                    "fixed_prediction",
                )
                assert answer.reason


def test_one_margin_for_all_rows():
    """A float32 model: the largest margin of any training row, and the slack for rows."""
    world = World(2)
    explainer = world.explainer(margin="float32")
    margins = thresholds(world.net, explainer.shifts_, world.X, "float32")
    assert margins.min() < margins.max() == explainer.guarantee_.members[0].margin
    assert explainer._robust_rows(1).slack == explainer_module.SLACK


def test_rows_must_keep_slack():
    """A row whose worst-case margin only equals the margin must not span the region."""
    net = pp.Network([([[1.0]], [-0.5])])
    train = np.array([[0.5 + 2e-6], [0.5 + 0.5e-4], [0.5 + 2e-4], [0.9]])
    explainer = pp.Proplace(net, 0.0, k=3).fit(train)
    np.testing.assert_array_equal(explainer.robust_rows(), train[2:])


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("region", ["hull", "box"])
def test_alternatives_change_different_features(seed, region):
    world = World(seed)
    explainer = world.explainer(region=region)
    frame = world.refused(3)
    result = explainer.explain(frame, count=4, gap=0)
    single = explainer.explain(frame, gap=0)
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


def test_too_many_profiles_for_box():
    schema = Schema([pp.Binary(f"b{i}") for i in range(16)])
    net = pp.Network([(np.ones((1, 16)), [-8.5])])
    train = np.ones((2, 16))
    with raises(OptionError, name="region", value="box", match="65536"):
        pp.Proplace(net, 0.01, schema=schema, region="box").fit(train).explain(
            np.zeros((1, 16)), gap=0
        )
    frozen = Schema([pp.Binary(f"b{i}", immutable=i < 6) for i in range(16)])
    box = pp.Proplace(net, 0.001, schema=frozen, region="box").fit(train)
    answer = box.explain(np.ones((1, 16)) * (np.arange(16) < 6), gap=0)[0]
    assert answer.status == "optimal"
    assert answer.encoded_counterfactual.sum() == 9.0


def read(name, target, rows):
    frame = (
        pd.read_csv(folder() / f"{name}.csv.gz").sample(rows, random_state=0).reset_index(drop=True)
    )
    return frame, frame.pop(target).astype(int).to_numpy()


def trained(X, y, hidden):
    model = MLPClassifier(hidden, max_iter=25, learning_rate_init=0.01, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pp.Model.of(model.fit(X, y)).network


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


@pytest.mark.filterwarnings("ignore::proplace.core.errors.DraftWarning")
@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize(
    "name",
    only(["compas"], REAL),
)
def test_real_data(name):
    """The tree and Algorithm 1 on people of the paper's data sets, with every guarantee checked."""
    target, hidden, delta, limits = REAL[name]
    frame, y = read(name, target, 1200)
    schema = Schema.infer(frame, **limits)
    X = schema.encode(frame)
    net = trained(X, y, hidden)
    refused = frame[net.predict(X) == 0].iloc[:8]
    options = {"k": 10, "schema": schema}
    explainer = pp.Proplace(net, delta, **options).fit(frame)
    found = explainer.explain(refused, typical=False, gap=0)
    paper = pp.Proplace(net, delta, search="bilevel", **options).fit(frame).explain(refused, gap=0)
    assert any(e.found for e in found)
    for a, b in zip(found, paper, strict=True):
        assert a.found == b.found
        if a.found:
            check_promise(explainer, schema, a)
            check_promise(explainer, schema, b, attacks=False)
            assert not a.timed_out
            assert a.bound == pytest.approx(b.bound, abs=1e-6)  # of the hull, without steps
            for fixed in limits.get("immutable", []):
                assert a.counterfactual[fixed] == a.original[fixed]
            for rising in limits.get("increasing", []):
                assert a.counterfactual[rising] >= a.original[rising]
        else:
            assert a.status == b.status
    check_table(schema, found)
