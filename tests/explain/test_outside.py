"""People whose numbers lie off the steps or outside of the ranges: their range includes their number.

Counterfactuals keep such a value or lie on the grid between it and the other end of the range. The
oracle enumerates the legal values. It computes the worst-case margin of a network with one hidden layer
in closed form.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.spatial import Delaunay

import proplace as pp
from commands import run
from proplace.baselines import METHODS, RobustBaseline
from proplace.core.errors import RowsSkippedWarning
from proplace.schema.grid import WithValue
from support.people import check_bound, random_network, worst_logit

DELTA = 0.02
MARGIN = 1e-6 + 1e-4  # the margin of the search


def legal_numbers(feature, own):
    """Every value that a feature with a step may take, for a person with a value of its own."""
    low, high = feature.lower, feature.upper
    low -= feature.step * max(0, np.ceil((low - own) / feature.step))
    high += feature.step * max(0, np.ceil((own - high) / feature.step))
    grid = np.arange(low, high + feature.step / 2, feature.step)
    values = np.unique([*grid.tolist(), own])
    if feature.immutable:
        values = np.array([own])
    if feature.direction == "increasing":
        values = values[values >= own]
    if feature.max_decrease is not None:
        values = values[values >= own - feature.max_decrease]
    return values


RULES = [
    ({}, {}),
    ({"direction": "increasing"}, {}),
    ({"immutable": True}, {}),
    ({"max_decrease": 1.0}, {}),
    ({"max_decrease": 3.0}, {"direction": "increasing"}),
]


def outside(seed):
    """Training rows on the grid, and people of whom some lie outside of it."""
    rng = np.random.default_rng(100 + seed)
    train = pd.DataFrame(rng.integers(0, 9, (40, 2)), columns=["a", "b"])
    train["c"] = 2 * rng.integers(0, 5, 40)
    return train, pd.DataFrame({"a": [10, 9, -1, 4], "b": [3, 10, 5, -2], "c": [2, 10, 4, -2]})


def anywhere(seed):
    """Rows and people between the steps. One value lies on the grid, one outside of the range."""
    rng = np.random.default_rng(100 + seed)
    train = pd.DataFrame(rng.uniform(0, 8, (40, 3)), columns=["a", "b", "c"])
    people = pd.DataFrame(rng.uniform(0, 8, (4, 3)), columns=["a", "b", "c"]).round(3)
    people.loc[0, "a"], people.loc[1, "b"] = 3.0, -0.3
    return train, people


@pytest.mark.parametrize("tables", [outside, anywhere])
@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("rules", RULES, ids=[str(r) for r in RULES])
def test_written_answer_in_box_is_legal_and_not_nearer_than_its_bound(rules, search, tables):
    """Every legal point is enumerated. The bound is below the nearest robust point."""
    first, second = rules
    schema = pp.Schema(
        [
            pp.Continuous("a", 0, 8, step=1, **first),
            pp.Continuous("b", 0, 8, step=1 if tables is outside else 0.5, **second),
            pp.Continuous("c", 0, 8, step=2),
        ]
    )
    met = 0
    for seed in range(4):
        net = random_network(seed, 3)
        train, people = tables(seed)
        explainer = pp.Proplace(net, DELTA, schema=schema, region="box", search=search).fit(train)
        for e, person in zip(
            explainer.explain(people, gap=0), people.itertuples(index=False), strict=True
        ):
            if e.status == "already_valid":
                assert net.predict(e.encoded_original)[0] == 1
                continue
            options = map(legal_numbers, schema.features, person)
            points = np.array(list(itertools.product(*options)))
            far = np.abs(points - np.array(person)).mean(axis=1) / 8.0
            robust = worst_logit(net, points / 8.0, DELTA) >= MARGIN
            if not robust.any():
                assert e.status in (
                    "infeasible_rules",
                    "no_robust_neighbour",
                    "fixed_prediction",
                ), e
                continue
            met += 1
            assert e.found, e.reason
            check_bound(e, 0.0)
            nearest = far[robust].min()
            assert e.bound <= nearest + 1e-6
            assert e.distance >= far[worst_logit(net, points / 8.0, DELTA) >= 1e-6].min() - 1e-9
            if e.status == "optimal":
                assert e.distance == pytest.approx(nearest, abs=1e-6)
            answer = e.counterfactual.to_numpy(dtype=float)
            assert (points == answer).all(axis=1).any()  # as it is read, it is a legal point
            again = schema.encode_people(pd.DataFrame([e.counterfactual]))[0]
            np.testing.assert_array_equal(again[0], e.encoded_counterfactual)  # bit for bit
            assert worst_logit(net, answer / 8.0, DELTA)[0] >= 1e-6
            assert e.certificate.check(net).accepted
    assert met >= 3


def hull_points(vertices, count=250):
    """Points of a triangle mesh over the hull of some points in the plane, or of a segment."""
    spread = np.ptp(vertices, axis=0)
    if spread[0] == 0.0 or len(vertices) < 3:
        t = np.linspace(0.0, 1.0, 4000)[:, None]
        low, high = vertices[vertices[:, 1].argmin()], vertices[vertices[:, 1].argmax()]
        return low + t * (high - low)
    mesh = Delaunay(vertices)
    axes = [
        np.linspace(*pair, count) for pair in zip(vertices.min(0), vertices.max(0), strict=True)
    ]
    points = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    return points[mesh.find_simplex(points) >= 0]


@pytest.mark.parametrize("search", ["tree", "bilevel"])
def test_nearest_legal_robust_point_of_hulls(search):
    schema = pp.Schema([pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)])
    k, met, between = 6, 0, 0
    for seed, (a, b) in itertools.product(
        [*range(10), 17], [(1.2, 0.3), (-0.1, 0.9), (1.05, 0.05)]
    ):
        net = random_network(seed, 2)
        rng = np.random.default_rng(seed)
        train = rng.random((50, 2)).round(3)
        person = np.array([a, b])
        explainer = pp.Proplace(net, DELTA, schema=schema, k=k, search=search)
        explainer.fit(pd.DataFrame(train, columns=["a", "b"]))
        (e,) = explainer.explain({"a": a, "b": b}, gap=0)
        if e.status == "already_valid":
            continue
        rows = np.unique(train[worst_logit(net, train, DELTA) >= MARGIN], axis=0)
        near = rows[np.argsort(np.abs(rows - person).sum(axis=1), kind="stable")[:k]]
        if not len(near):
            assert e.status in ("no_robust_neighbour", "fixed_prediction"), e
            continue
        points = np.vstack([hull_points(np.vstack([person, near])), near])
        points = points[worst_logit(net, points, DELTA) >= MARGIN]
        nearest = np.abs(points - person).mean(axis=1).min()
        met += 1
        assert e.status == "optimal", e.reason
        assert nearest - 0.006 <= e.distance <= nearest + 1e-6, (seed, e)
        answer = e.counterfactual["a"]
        assert min(a, 0.0) <= answer <= max(a, 1.0)
        between += not 0.0 <= answer <= 1.0
        assert worst_logit(net, e.encoded_counterfactual, DELTA)[0] >= 1e-6
        assert e.certificate.check(net).accepted
    assert met >= 3
    assert 0 < between < met  # both ways are the nearest for some people


STEPS = pp.Schema(
    [
        pp.Continuous("a", 0, 8, step=1),
        pp.Continuous("b", 0, 8, step=0.5),
        pp.Continuous("c", 0, 8, step=2),
    ]
)


@pytest.mark.parametrize("seed", range(4))
def test_no_training_row_and_no_person_is_lost(seed):
    net = random_network(seed, 3)
    train, people = anywhere(seed)
    answers = {}
    for search in ("tree", "bilevel"):
        explainer = pp.Proplace(net, DELTA, schema=STEPS, k=6, search=search).fit(train)
        rows = explainer.rows_
        assert STEPS.legal(rows).all()  # what spans the region
        answers[search] = explainer.explain(people, gap=0)
        for e, (_, person) in zip(answers[search], people.iterrows(), strict=True):
            assert e.status != "bad_input", e.reason
            if not e.found:
                continue
            for feature in STEPS.features:
                value = e.counterfactual[feature.name]
                steps = (value - feature.lower) / feature.step
                assert value == person[feature.name] or steps == round(steps)
            assert e.original.to_dict() == person.to_dict()
    for one, other in zip(*answers.values(), strict=True):
        assert one.found == other.found
        if one.found:
            assert one.bound == pytest.approx(other.bound, abs=1e-5)
        else:
            assert one.status == other.status


@pytest.mark.parametrize("count", [5, 4097 * 2])
def test_one_more_value_of_grid(count):
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


SCHEMA = pp.Schema(
    [
        pp.Continuous("age", 20, 60, step=1, immutable=True),
        pp.Continuous("income", 0, 1000, step=10),
        pp.Continuous("share", 0, 1),
        pp.Binary("member"),
    ]
)


def table(count, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 61, count),
            "income": 10 * rng.integers(0, 101, count),
            "share": rng.random(count).round(2),
            "member": rng.integers(0, 2, count),
        }
    )


NET = pp.Network([([[-0.5, 2.0, 1.5, 0.3], [1.0, 0.0, -1.0, 0.0]], [0, 0]), ([[1, -0.5]], [-1.5])])


@pytest.fixture(scope="module")
def explainer():
    return pp.Proplace(NET, 0.005, schema=SCHEMA).fit(table(200))


BASE = {"age": 40, "income": 100, "share": 0.1, "member": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"age": 61},
        {"age": 70},
        {"age": 10},
        {"income": -10},
        {"share": -0.003},
        {"share": -0.25},
        {"age": 65, "income": -250, "share": -0.1},
        {"income": -2007},
        {"age": 99, "income": -5000.5, "share": -0.2},
    ],
)
def test_person_outside_is_explained(explainer, change):
    frame = pd.DataFrame([BASE | change])
    e = explainer.explain(frame, gap=0)[0]
    assert e.found, e.reason
    check_bound(e, 0.0)
    assert e.original.to_dict() == BASE | change  # as it was, to the last digit
    new = e.counterfactual
    assert new["age"] == frame["age"][0]
    for name, low, high in (("income", 0, 1000), ("share", 0, 1)):
        assert min(low, frame[name][0]) <= new[name] <= max(high, frame[name][0])
    assert new["income"] % 10 == 0 or new["income"] == frame["income"][0]
    again = SCHEMA.encode_people(pd.DataFrame([new.to_dict()]))
    np.testing.assert_array_equal(
        again[0][0], e.encoded_counterfactual
    )  # what is read is what was proved
    array = explainer.explain(SCHEMA.encode_people(frame)[0], gap=0)[0]
    np.testing.assert_array_equal(array.encoded_counterfactual, e.encoded_counterfactual)
    assert array.original.to_dict() == pytest.approx(e.original.to_dict())
    assert pp.certify(NET, pd.DataFrame([new.to_dict()]), 0.005, schema=SCHEMA).robust.all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"share": np.nan}, "the cell is missing"),
        ({"share": np.inf}, "is not finite"),
        ({"share": "much"}, "'much' is not a number"),
    ],
)
def test_person_without_number_is_not_person(explainer, change, words):
    e, other = explainer.explain(pd.DataFrame([BASE | change, BASE]), gap=0)
    assert e.status == "bad_input"
    assert words in e.reason
    assert other.found


def test_range_with_one_end_is_widened():
    schema = pp.Schema([pp.Continuous("a", 0, None, scaling="none")])
    explainer = pp.Proplace(pp.Network([([[1.0]], [-0.5])]), 0.01, schema=schema)
    e, good = explainer.fit(pd.DataFrame({"a": [0.1, 0.9, 2.0]})).explain(
        [{"a": -0.01}, {"a": 0.2}], gap=0
    )
    assert (e.status, good.status) == ("optimal", "optimal")
    assert e.counterfactual["a"] == pytest.approx(good.counterfactual["a"], abs=1e-6)


@pytest.mark.parametrize(
    ("wishes", "person"),
    [
        ({"ranges": {"income": (300, 600)}}, {"income": 100}),
        ({"ranges": {"income": (300, 600)}}, {"income": 850}),
        ({"ranges": {"share": (None, 0.5)}}, {"share": 0.9}),
        ({"ranges": {"income": (300, 600)}, "increasing": ["income"]}, {"income": 850}),
        ({"ranges": {"income": (300, 600)}, "immutable": ["income"]}, {"income": 100}),
    ],
)
def test_request_is_wider_for_person_outside_of_its_ranges(explainer, wishes, person):
    e = explainer.explain(pd.DataFrame([BASE | person]), **wishes)[0]
    assert e.found, e.reason
    for name, (low, high) in wishes["ranges"].items():
        own = (BASE | person)[name]
        assert min(-np.inf if low is None else low, own) <= e.counterfactual[name] <= max(high, own)
        if "increasing" in wishes or "immutable" in wishes:
            assert e.counterfactual[name] == own


def test_steps_go_on_outside_of_range(explainer):
    wide = SCHEMA.widened(SCHEMA.encode_people(pd.DataFrame([BASE | {"income": -37}]))[0][0])
    income = wide.by_name["income"]
    assert (income.lower, income.upper, income.step) == (-40, 1000, 10)
    assert SCHEMA.widened(SCHEMA.encode(pd.DataFrame([BASE]))[0]) is SCHEMA
    far = SCHEMA.encode_people(pd.DataFrame([BASE | {"income": 1e300}]))[0][0]
    assert SCHEMA.widened(far).by_name["income"].step is None


def test_training_rows_stay_inside(explainer):
    rows = pd.DataFrame([BASE, BASE | {"age": 61}])
    with pytest.warns(RowsSkippedWarning, match="61"):
        fitted = pp.Proplace(NET, 0.005, schema=SCHEMA).fit(rows)
    np.testing.assert_array_equal(fitted.rows_, SCHEMA.encode(rows[:1]))
    assert not SCHEMA.legal(SCHEMA.encode_people(pd.DataFrame([BASE | {"age": 61}]))[0])[0]


def test_several_answers_stay_legal(explainer):
    answers = explainer.explain(
        pd.DataFrame([BASE | {"income": 500, "share": -0.1}]), count=4, gap=0
    )
    assert len(answers) >= 2
    assert any(e.counterfactual["share"] == -0.1 for e in answers)
    for e in answers:
        assert -0.1 <= e.counterfactual["share"] <= 1


@pytest.mark.parametrize("name", sorted(METHODS))
def test_other_methods_stay_legal(name):
    delta = (0.005,) if issubclass(METHODS[name], RobustBaseline) else ()
    method = METHODS[name](NET, *delta, schema=SCHEMA).fit(table(200))
    people = pd.DataFrame([BASE | {"age": 65}, BASE | {"income": -50}, BASE | {"share": -0.2}])
    for e, age in zip(method.explain(people), people["age"], strict=True):
        assert e.status != "bad_input", e.reason
        if e.found:
            new = e.counterfactual
            assert new["age"] == age
            assert -50 <= new["income"] <= 1000
            assert -0.2 <= new["share"] <= 1


def test_command_line_explains_same_people(explainer, tmp_path):
    NET.save(tmp_path / "net.npz")
    SCHEMA.write(tmp_path / "schema.yaml")
    table(200).to_csv(tmp_path / "train.csv", index=False)
    changes = [{}, {"age": 63}, {"share": -0.2}, {"age": 99}, {"income": 1250}]
    people = pd.DataFrame([BASE | change for change in changes])
    people.to_csv(tmp_path / "people.csv", index=False)
    common = ("--model", tmp_path / "net.npz", "--schema", tmp_path / "schema.yaml")
    done = run(
        *("explain", *common, "--train", tmp_path / "train.csv", "--delta", 0.005),
        *("--input", tmp_path / "people.csv", "--out", tmp_path / "out", "--gap", 0),
    )
    assert done.returncode == 0, done.stderr
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    ours = explainer.explain(people, gap=0).to_frame()
    assert results["status"].tolist() == ours["status"].tolist()
    assert results["status"].isin(["optimal", "feasible"]).sum() >= 3
    assert results["reason"].fillna("").tolist() == ours["reason"].tolist()
    found = results[results["status"].isin(["optimal", "feasible"])]
    pd.testing.assert_frame_equal(
        found[list(BASE)], ours.loc[found.index, list(BASE)], check_dtype=False
    )
    found[list(BASE)].to_csv(tmp_path / "answers.csv", index=False)
    common = ("--model", tmp_path / "net.npz", "schema:", tmp_path / "schema.yaml")
    done = run("certify", *common, "--input", tmp_path / "answers.csv", "--delta", 0.005)
    assert done.stdout.startswith(f"{len(found)} of {len(found)} rows get class 1"), done.stderr
