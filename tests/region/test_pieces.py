"""The plausible region: the right neighbours, grouped the right way."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.core.errors import OptionError
from proplace.core.guarantee import Guarantee, Member
from proplace.region.neighbours import RobustRows, unrestricted
from proplace.region.pieces import box_pieces, hull_pieces
from proplace.schema import Schema, Then
from support.errors import raises

MARGIN = 1e-4


def line_net(d):
    """Class 1 iff the columns sum to at least d / 2."""
    return pp.Network([(np.ones((1, d)), [-d / 2.0])])


def robust_rows(net, X, delta=0.01, distance=None, target=1):
    distance = distance or L1(np.full(net.inputs, 1.0 / net.inputs))
    models = Member(net, pp.Shifts.of(net, delta), margin=MARGIN)
    return RobustRows(Guarantee((models,)), target, 0.0, X, distance)


@pytest.mark.parametrize("k", [1, 3, 20, 10**4])
@pytest.mark.parametrize(
    "distance",
    [
        L1(np.array([0.5, 1.0, 2.0])),
        L1(np.array([0.0, 1.0, 2.0])),
    ],
)
def test_nearest_rows(k, distance):
    rng = np.random.default_rng(0)
    net, X = line_net(3), np.round(rng.uniform(0.0, 1.0, (300, 3)), 1)
    X = np.unique(X, axis=0)
    rows = robust_rows(net, X, distance=distance)
    truth = pp.certify(net, X, 0.01, margin=MARGIN).robust
    np.testing.assert_array_equal(rows.robust, X[truth])
    x = np.array([0.1, 0.2, 0.3])
    found = rows.nearest(x, k)
    assert found.status == "found"
    near = np.sort([float(distance.between(x, row)) for row in X[truth]])[:k]
    got = [float(distance.between(x, row)) for row in found.rows]
    np.testing.assert_allclose(got, near, atol=1e-12)
    assert got == sorted(got)
    assert len(np.unique(found.rows, axis=0)) == len(found.rows)
    assert pp.certify(net, found.rows, 0.01, margin=MARGIN).robust.all()


def test_rows_at_equal_distance_come_in_their_order():
    """Whatever a k-d tree returns of them."""
    net, x = line_net(2), np.array([0.0, 0.0])
    steps = np.arange(17) / 8.0
    for seed in range(5):
        X = np.column_stack([2.0 - steps, steps])  # all at distance 1
        X = X[np.random.default_rng(seed).permutation(17)]
        rows = robust_rows(net, X)
        assert len(rows.robust) == 17
        np.testing.assert_array_equal(rows.nearest(x, 9).rows, X[:9])


@pytest.mark.parametrize(
    "limit",
    [
        {"immutable": True},
        {"direction": "increasing"},
        {"direction": "decreasing"},
        {"max_increase": 0.3},
        {"max_decrease": 0.3},
        {"max_increase": 0.0},
        {"max_decrease": 0.0},
    ],
)
def test_every_limit_of_person_counts(limit):
    features = [pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)]
    assert unrestricted(Schema(features))
    assert not unrestricted(Schema([features[0], replace(features[1], **limit)]))
    rule = pp.schema.Linear({"a": 1.0}, upper=0.5)
    assert not unrestricted(Schema(features, rules=[rule]))


def test_nothing_is_robust():
    net, X = line_net(2), np.array([[0.1, 0.2], [0.6, 0.5]])
    rows = robust_rows(net, X, delta=1.0)
    for found in (
        rows.nearest(X[0], 3),
        rows.admissible(Schema.encoded(2).person(X[0]), 3),
    ):
        assert found.status == "no_robust_neighbour"
        assert len(found.rows) == 0
        assert "none of 2 training rows is robust for class 1" in found.reason
        assert "1 have the class" in found.reason


@pytest.mark.parametrize("seed", range(6))
def test_admissible_rows(seed):
    """Rows take the person's fixed values, are tested as they then are, and come nearest first."""
    rng = np.random.default_rng(seed)
    schema = Schema(
        [
            pp.Continuous("a", 0, 1, immutable=True),
            pp.Continuous("b", 0, 1, step=0.1, direction="increasing"),
            pp.Binary("c", immutable=bool(seed % 2)),
            pp.Continuous("d", 0, 1, max_increase=0.4),
        ],
        rules=[pp.schema.Linear({"b": 1.0, "d": 1.0}, upper=1.6)],
    )
    X = schema.canonical(rng.uniform(0.0, 1.0, (400, 4)))
    net = pp.Network([(np.ones((1, 4)), [-1.2])])
    rows = robust_rows(net, X)
    x = schema.canonical([0.3, 0.2, 0.0, 0.1])[0]
    person = schema.person(x)
    found = rows.admissible(person, 15)
    assert found.status == "found"
    assert len(found.rows) == 15
    assert person.allowed(found.rows).all()
    assert schema.legal(found.rows).all()
    assert (found.rows[:, 0] == 0.3).all()
    assert (found.rows[:, 1] >= x[1]).all()
    assert (found.rows[:, 3] <= 0.5 + 1e-12).all()
    assert (found.rows[:, 1] + found.rows[:, 3] <= 1.6 + 1e-9).all()
    assert pp.certify(net, found.rows, 0.01, margin=MARGIN).robust.all()
    assert len(np.unique(found.rows, axis=0)) == 15
    # By hand, over all rows.
    adapted = X.copy()
    adapted[:, 0] = 0.3
    adapted[:, 1] = np.maximum(adapted[:, 1], x[1])
    adapted[:, 3] = np.minimum(adapted[:, 3], 0.5)
    fits = adapted[:, 1] + adapted[:, 3] <= 1.6 + 1e-9
    if seed % 2:
        fits &= adapted[:, 2] == 0.0
    fits &= pp.certify(net, adapted, 0.01, margin=MARGIN).robust
    best = np.unique(adapted[fits], axis=0)
    if len(best) >= 15:
        expected = np.sort(np.abs(best - x).mean(axis=1))[:15]
        np.testing.assert_allclose(np.abs(found.rows - x).mean(axis=1), expected, atol=1e-12)


def test_broken_rules():
    schema = Schema(
        [pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)],
        rules=[pp.schema.Linear({"a": 1.0}, upper=0.2, name="a stays small")],
    )
    X = np.array([[0.9, 0.9], [0.8, 1.0], [0.1, 0.1]])
    found = robust_rows(line_net(2), X).admissible(schema.person(X[2]), 3)
    assert found.status == "infeasible_rules"
    assert "a stays small (2)" in found.reason
    assert "2 robust rows" in found.reason
    fixed = Schema([replace(f, immutable=True) for f in schema.features])
    found = robust_rows(line_net(2), X).admissible(fixed.person(X[2]), 3)
    assert found.status == "infeasible_rules"
    assert "a is immutable" in found.reason


# -- pieces ----------------------------------------------------------------------------------------


def mixed():
    return Schema(
        [
            pp.Continuous("a", 0, 10),
            pp.Categorical("job", ["clerk", "cook", "smith"]),
            pp.Categorical("town", ["north", "south", "west"], encoding="dropfirst"),
            pp.Binary("member"),
        ],
        rules=[
            pp.schema.IfThen({"job": "smith"}, [Then("a", at_least=5.0)], becomes=False),
            pp.schema.Linear({"a": 1.0, "member": 2.0}, upper=11.0),
        ],
    )


def test_hulls_hold_one_profile_each():
    schema = mixed()
    rng = np.random.default_rng(0)
    X = schema.canonical(rng.uniform(0.0, 1.0, (60, schema.width)))
    person = schema.person(X[0])
    neighbours = X[1:]
    pieces = hull_pieces(schema, person, neighbours)
    profile = schema.profile_columns
    assert len(pieces) == len(np.unique(neighbours[:, profile], axis=0))
    seen = 0
    for piece in pieces:
        first = piece.vertices[0, profile]
        assert (piece.vertices[:, profile] == first).all()
        np.testing.assert_array_equal(piece.lower[profile], first)
        np.testing.assert_array_equal(piece.upper[profile], first)
        joins = (piece.vertices == person.x).all(axis=1).any()
        assert joins == np.array_equal(first, person.x[profile])
        seen += len(piece.vertices) - bool(joins)
        smith = first[2] == 1.0
        assert len(piece.A) == 1 + smith  # the linear rule, and the one of smiths
        inside = (piece.vertices @ piece.A.T >= piece.row_lower - 1e-9) & (
            piece.vertices @ piece.A.T <= piece.row_upper + 1e-9
        )
        np.testing.assert_array_equal(inside.all(axis=1), person.allowed(piece.vertices))
    assert seen == len(np.unique(neighbours, axis=0))


def test_person_is_once_in_its_hull():
    schema = Schema.encoded(2)
    x = np.array([0.25, 0.5])
    (piece,) = hull_pieces(
        schema, schema.person(x), np.array([[0.5, 0.5], [0.25, 0.5], [0.5, 0.5]])
    )
    assert len(piece.vertices) == 2


def test_signed_zeros_are_one_profile():
    schema = Schema([pp.Continuous("a", 0, 1), pp.Binary("b")])
    person = schema.person(np.array([0.2, -0.0]))
    (piece,) = hull_pieces(schema, person, np.array([[0.9, 0.0], [0.8, -0.0]]))
    assert len(piece.vertices) == 3


def test_boxes_are_all_profiles_that_rules_allow():
    schema = mixed()
    x = schema.canonical([0.2, 1, 0, 0, 0, 0, 1])[0]
    person = schema.person(x)
    pieces = list(box_pieces(schema, person, np.zeros(7), np.ones(7)))
    profiles = {tuple(piece.lower[schema.profile_columns]) for piece in pieces}
    jobs = [tuple(row) for row in np.eye(3)]
    towns = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
    assert profiles == {
        (*job, *town, member) for job, town, member in itertools.product(jobs, towns, (0.0, 1.0))
    }
    for piece in pieces:
        assert piece.vertices is None
        assert piece.lower[0] == 0.0
        assert piece.upper[0] == 1.0
        corner = np.where(np.arange(7) == 0, 0.5, piece.lower)
        assert schema.legal(corner)[0]


def test_boxes_keep_person_s_limits():
    features = [
        pp.Continuous("a", 0, 10, direction="increasing"),
        pp.Categorical("job", ["clerk", "cook", "smith"], immutable=True),
        pp.Binary("member", direction="increasing"),
        pp.Binary("sex", immutable=True),
    ]
    schema = Schema(features)
    x = schema.canonical([0.3, 0, 1, 0, 0, 1])[0]
    pieces = list(box_pieces(schema, schema.person(x), np.zeros(6), np.ones(6)))
    assert len(pieces) == 2  # a member or not
    for piece in pieces:
        np.testing.assert_array_equal(piece.lower[[0, 1, 2, 3, 5]], x[[0, 1, 2, 3, 5]])
        assert piece.upper[0] == 1.0


def test_unbounded_columns_take_range_of_data():
    schema = Schema.encoded(2)
    x = np.array([-5.0, 0.5])
    low, high = np.array([-1.0, 0.0]), np.array([2.0, 1.0])
    (piece,) = box_pieces(schema, schema.person(x), low, high)
    np.testing.assert_array_equal(piece.lower, [-5.0, 0.0])
    np.testing.assert_array_equal(piece.upper, [2.0, 1.0])


@pytest.mark.parametrize("count", [15, 16, 64, 100])
def test_too_many_boxes(count):
    """Also if their number does not fit into 64 bits."""
    schema = Schema([pp.Binary(f"b{i}") for i in range(count)])
    person = schema.person(np.zeros(count))
    with raises(OptionError, name="region", value="box"):
        next(box_pieces(schema, person, np.zeros(count), np.ones(count)))
    fixed = Schema([pp.Binary(f"b{i}", immutable=i > 1) for i in range(count)])
    person = fixed.person(np.zeros(count))
    assert len(list(box_pieces(fixed, person, np.zeros(count), np.ones(count)))) == 4
