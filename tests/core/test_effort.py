"""Curves of effort: what they cost, where they are convex, and the convex curve below them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proplace.core.distances import L1, Distance
from proplace.core.effort import Curve, Efforts

CONCAVE = [(0, 0), (1, 4), (3, 5), (10, 5)]


def cost(points, change):
    """Effort by the definition: straight lines between points, the last one going on."""
    side = sorted((abs(t), c) for t, c in points if t * change > 0 or t == 0)
    if len(side) < 2:
        side = sorted((abs(t), c) for t, c in points if t * change <= 0)
    size = abs(change)
    for (a, c), (b, d) in itertools.pairwise(side):
        if size <= b or (b, d) == side[-1]:
            return c + (d - c) * (size - a) / (b - a)
    raise AssertionError


@st.composite
def sides(draw, sign=1.0, convex=False):
    """Points of one side, by steps of at least 1/8 and slopes of eighths."""
    n = draw(st.integers(1, 4))
    steps = draw(st.lists(st.integers(1, 16), min_size=n, max_size=n))
    slopes = draw(st.lists(st.integers(0, 16), min_size=n, max_size=n))
    slopes = sorted(slopes) if convex else slopes
    t = np.cumsum([0, *steps]) / 8.0
    c = np.cumsum([0, *(s * w / 8.0 for s, w in zip(slopes, steps, strict=True))]) / 8.0
    return [(sign * a, b) for a, b in zip(t, c, strict=True)]


@st.composite
def curves(draw, convex=False):
    more = draw(sides(convex=convex))
    return [*more, *draw(sides(-1.0, convex=convex))[1:]] if draw(st.booleans()) else more


CHANGES = st.floats(-12.0, 12.0, allow_nan=False, width=32)


@settings(max_examples=100, deadline=None)
@given(points=curves(), change=CHANGES)
def test_values_follow_the_points(points, change):
    curve = Curve.of(points)
    assert curve.at(change) == pytest.approx(cost(points, change), abs=1e-9)
    efforts = Efforts((curve, Curve.of(0.5)))
    x, rows = np.array([1.0, 2.0]), np.array([[1.0 + change, 2.0], [1.0 + change, 0.0]])
    expected = cost(points, float(rows[0, 0] - 1.0))
    np.testing.assert_allclose(efforts.between(x, rows), [expected, expected + 1.0], atol=1e-9)
    assert float(efforts.between(x, rows[1])) == pytest.approx(expected + 1.0, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(points=curves(convex=True), p=CHANGES, q=CHANGES)
def test_convex_curves_are_distances(points, p, q):
    curve = Curve.of(points)
    assert curve.convex
    efforts, x = Efforts((curve,)), np.zeros(1)
    assert isinstance(efforts, Distance)
    here, there = np.array([p]), np.array([q])
    slope = efforts.subgradient(x, here)
    at = float(efforts.between(x, here)) + float(slope @ (there - here))
    assert float(efforts.between(x, there)) >= at - 1e-6
    assert efforts.distance(x, np.array([-9.0]), np.array([9.0])) is efforts


@settings(max_examples=100, deadline=None)
@given(points=curves(), less=st.integers(0, 80), more=st.integers(0, 80), change=CHANGES)
def test_the_envelope_is_convex_and_nowhere_above(points, less, more, change):
    reach = less / 8.0, more / 8.0
    curve = Curve.of(points)
    below = curve.envelope(*reach)
    assert below.convex
    change = float(np.clip(change, -reach[0], reach[1]))
    assert below.at(change) <= curve.at(change) + 1e-9
    if (
        reach[1] > 0.0 and change > 0.0
    ):  # the largest: a mixture of two points of the curve meets it
        t = np.linspace(0.0, reach[1], 8 * more + 1)
        c = np.array([curve.at(value) for value in t])
        left, right = t <= change, t >= change
        a, b = np.meshgrid(t[left], t[right])
        ca, cb = np.meshgrid(c[left], c[right])
        share = np.divide(change - a, b - a, out=np.zeros_like(a), where=b > a)
        best = float((ca + share * (cb - ca))[(b > a) | (a == change)].min())
        assert below.at(change) == pytest.approx(best, abs=1e-9)


def test_a_number_is_a_weight():
    rng = np.random.default_rng(0)
    weights, x, rows = rng.uniform(0, 3, 4), rng.normal(size=4), rng.normal(size=(9, 4))
    efforts = Efforts(tuple(Curve.of(float(w)) for w in weights))
    np.testing.assert_allclose(efforts.between(x, rows), L1(weights).between(x, rows))
    np.testing.assert_allclose(efforts.subgradient(x, rows[0]), L1(weights).subgradient(x, rows[0]))
    assert not efforts.subgradient(x, x).any()


def test_a_category_costs_once():
    efforts = Efforts((Curve.of(1.0), *[Curve.of(0.0)] * 3), ((1, 4, 2.5),))
    x = np.array([0.0, 1.0, 0.0, 0.0])
    rows = np.array([[0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0.5, 0, 0, 0]])
    np.testing.assert_allclose(efforts.between(x, rows), [0.5, 2.5, 2.5, 3.0])
    slope = efforts.subgradient(x, rows[1])
    values = efforts.between(x, rows)
    assert (values >= values[1] + (rows - rows[1]) @ slope - 1e-12).all()


def test_more_and_less():
    curve = Curve.of([(10, 1), (-10, 3), (20, 4)])
    assert [curve.at(t) for t in (-20.0, -5.0, 0.0, 5.0, 15.0, 30.0)] == [6.0, 1.5, 0, 0.5, 2.5, 7]
    mirrored = Curve.of([(-10, 3)])
    assert mirrored.at(5.0) == mirrored.at(-5.0) == 1.5
    breaks, slopes = curve.kinks
    np.testing.assert_allclose(breaks, [0.0, 10.0])
    np.testing.assert_allclose(slopes, [-0.3, 0.1, 0.3])
    assert Curve.of([(10, 1), (20, 4)]).in_units(5.0).at(4.0) == 4.0
    assert not Curve.of(CONCAVE).convex
    assert not Curve.of([(5, 1), (-1, 1), (-2, 1.5)]).convex


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([(0, 0)], "needs a point"),
        ([(0, 1), (1, 2)], r"starts at \(0, 0\)"),
        ([(0, 0), (1, 2), (3, 1)], "3 takes 1 and 1 takes 2"),
        ([(0, 0), (-1, 2), (-3, 1)], "3 takes 1 and 1 takes 2"),
        ([(1, -1)], "takes -1"),
        ([(1, 1), (1, 2)], "two points have the change 1"),
        ([(1, np.inf)], "finite"),
        ([(np.nan, 1)], "finite"),
    ],
)
def test_what_is_no_curve(points, says):
    with pytest.raises(ValueError, match=says):
        Curve.of(points)


def test_there_and_back_as_json():
    efforts = Efforts((Curve.of(CONCAVE), Curve.of(0.1), Curve.of(0.0)), ((2, 3, 0.7),))
    again = Efforts.from_dict(json.loads(json.dumps(efforts.to_dict())))
    assert again.curves == efforts.curves
    assert again.categories == efforts.categories
    assert not again.convex
