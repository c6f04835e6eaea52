"""Distances: convex, with the subgradients they say, and what their names mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from proplace.core.distances import L1, L2, Convex, Distance, LInf, resolve
from proplace.core.errors import OptionError

NUMBERS = st.floats(-100.0, 100.0, allow_nan=False, width=32)
WEIGHTS = st.floats(0.0, 10.0, allow_nan=False, width=32)


def vectors(elements=NUMBERS):
    return arrays(np.float64, 4, elements=elements)


def squared(weights):
    return Convex(
        lambda x, p: float((weights * (p - x) ** 2).sum()), lambda x, p: 2.0 * weights * (p - x)
    )


KINDS = {"l1": L1, "l2": L2, "linf": LInf, "convex": squared}


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=60, deadline=None)
@given(x=vectors(), p=vectors(), q=vectors(), weights=vectors(WEIGHTS))
def test_subgradients_support_the_distance(kind, x, p, q, weights):
    distance = KINDS[kind](weights)
    at_p, at_q = (float(distance.between(x, point)) for point in (p, q))
    slope = distance.subgradient(x, p)
    assert slope.shape == x.shape
    size = 1.0 + abs(at_p) + abs(at_q) + float(np.abs(slope) @ np.abs(q - p))
    assert at_q >= at_p + float(slope @ (q - p)) - 1e-9 * size
    middle = float(distance.between(x, (p + q) / 2.0))
    assert middle <= (at_p + at_q) / 2.0 + 1e-9 * size


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=30, deadline=None)
@given(x=vectors(), rows=arrays(np.float64, (3, 4), elements=NUMBERS), weights=vectors(WEIGHTS))
def test_rows_and_single_points_agree(kind, x, rows, weights):
    distance = KINDS[kind](weights)
    assert isinstance(distance, Distance)
    many = distance.between(x, rows)
    assert many.shape == (3,)
    for value, row in zip(many, rows, strict=True):
        assert float(distance.between(x, row)) == pytest.approx(value, rel=1e-12, abs=1e-12)
        assert value >= 0.0
    assert float(distance.between(x, x)) == 0.0
    assert (distance.subgradient(x, x) == 0.0).all()


@settings(max_examples=40, deadline=None)
@given(x=vectors(), p=vectors(), weights=vectors(WEIGHTS))
def test_values_number_by_number(x, p, weights):
    parts = [w * abs(b - a) for w, a, b in zip(weights, x, p, strict=True)]
    assert float(L1(weights).between(x, p)) == pytest.approx(sum(parts), rel=1e-9, abs=1e-9)
    assert float(LInf(weights).between(x, p)) == pytest.approx(max(parts), rel=1e-9, abs=1e-9)
    square = sum(w * (b - a) ** 2 for w, a, b in zip(weights, x, p, strict=True))
    assert float(L2(weights).between(x, p)) == pytest.approx(square**0.5, rel=1e-9, abs=1e-9)


def test_names():
    X = np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 11.0]])
    x, point = np.zeros(2), np.array([1.0, -3.0])
    assert float(resolve("l1", 2, X).between(x, point)) == 2.0  # the mean
    assert float(resolve("linf", 2, X).between(x, point)) == 3.0
    assert float(resolve("l2", 2, X).between(x, point)) == pytest.approx(5.0**0.5)
    assert float(resolve("l1", 2, X, [1.0, 0.0]).between(x, point)) == 1.0
    assert float(resolve("linf", 2, X, [4.0, 1.0]).between(x, point)) == 4.0
    own = squared(np.ones(2))
    assert resolve(own, 2, X) is own


def test_median_absolute_deviations():
    X = np.array([[0.0, 1.0, 5.0, 0.0], [1.0, 3.0, 5.0, 0.0], [2.0, 11.0, 5.0, 3.0]])
    distance = resolve("mad", 4, X)
    # Medians 1, 3, 5, 0; deviations 1, 2, none at all, and mostly none: there the mean counts.
    np.testing.assert_allclose(distance.weights, [0.25 / 1.0, 0.25 / 2.0, 0.25, 0.25 / 1.0])
    np.testing.assert_allclose(
        resolve("mad", 4, X, [1.0, 2.0, 0.0, 3.0]).weights, [1.0, 1.0, 0.0, 3.0]
    )


@pytest.mark.parametrize("name", ["l3", "L1", "", "euclid"])
def test_unknown_names(name):
    with pytest.raises(OptionError, match="'l1', 'l2', 'linf' or 'mad'"):
        resolve(name, 2, np.zeros((1, 2)))


@pytest.mark.parametrize("thing", [None, 1.0, object(), np.abs])
def test_not_a_distance(thing):
    with pytest.raises(OptionError, match="between"):
        resolve(thing, 2, np.zeros((1, 2)))


@pytest.mark.parametrize(
    "weights",
    [[1.0], [1.0, 2.0, 3.0], [[1.0, 1.0]], [1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0]],
)
def test_bad_weights(weights):
    with pytest.raises(OptionError, match="weights must be 2 finite numbers >= 0"):
        resolve("l1", 2, np.zeros((1, 2)), weights)


def test_words_for_weights():
    with pytest.raises(OptionError, match="weights must be numbers"):
        resolve("l1", 2, np.zeros((1, 2)), ["a", "b"])


def test_own_distances_have_their_own_weights():
    with pytest.raises(OptionError, match="named distance"):
        resolve(L1(np.ones(2)), 2, np.zeros((1, 2)), [1.0, 1.0])
