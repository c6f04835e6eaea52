"""The distance: its convexity, its subgradient, and weights by spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from proplace.core.distances import L1, mad_weights, name_of

NUMBERS = st.floats(-100.0, 100.0, allow_nan=False, width=32)
WEIGHTS = st.floats(0.0, 10.0, allow_nan=False, width=32)


def vectors(elements=NUMBERS):
    return arrays(np.float64, 4, elements=elements)


@settings(max_examples=60, deadline=None)
@given(x=vectors(), p=vectors(), q=vectors(), weights=vectors(WEIGHTS))
def test_subgradients_support_distance(x, p, q, weights):
    distance = L1(weights)
    at_p, at_q = (float(distance.between(x, point)) for point in (p, q))
    slope = distance.subgradient(x, p)
    assert slope.shape == x.shape
    size = 1.0 + abs(at_p) + abs(at_q) + float(np.abs(slope) @ np.abs(q - p))
    assert at_q >= at_p + float(slope @ (q - p)) - 1e-9 * size
    middle = float(distance.between(x, (p + q) / 2.0))
    assert middle <= (at_p + at_q) / 2.0 + 1e-9 * size


@settings(max_examples=30, deadline=None)
@given(x=vectors(), rows=arrays(np.float64, (3, 4), elements=NUMBERS), weights=vectors(WEIGHTS))
def test_rows_and_single_points_agree(x, rows, weights):
    distance = L1(weights)
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


def test_median_absolute_deviations():
    X = np.array([[0.0, 1.0, 5.0, 0.0], [1.0, 3.0, 5.0, 0.0], [2.0, 11.0, 5.0, 3.0]])
    # Medians 1, 3, 5, 0. The deviations are 1, 2, 0 and mostly 0, where the mean is used.
    np.testing.assert_allclose(mad_weights(X), [0.25 / 1.0, 0.25 / 2.0, 0.25, 0.25 / 1.0])


@pytest.mark.parametrize(
    ("weights", "name"),
    [(None, "l1"), ({}, "l1"), ({"income": 2}, "weighted l1"), ("mad", "mad")],
)
def test_name_reports_weights(weights, name):
    assert name_of(weights) == name
