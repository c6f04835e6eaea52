"""Ends of what a monotone map in floats takes into an interval, against the neighbouring floats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from proplace.loaders.layers import TrainedLayer
from proplace.retrain.projection import preimage

PRECISIONS = [np.float32, np.float64]


def neighbours(values, count=3):
    """Each value with some floats on both sides of it."""
    found = [values]
    for way in (-np.inf, np.inf):
        moved = values
        for _ in range(count):
            moved = np.nextafter(moved, values.dtype.type(way))
            found.append(moved)
    return np.stack(found)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_ends_without_folding_are_floats_inside_by_exact_fractions(dtype):
    rng = np.random.default_rng(0)
    low = np.concatenate([rng.normal(size=50), [0.0, -0.1, 1e-300, 1.0, -1e-46]])
    high = low + rng.choice([0.0, 1e-12, 1e-3, 5.0], len(low))
    least, greatest = preimage(lambda w: w, 1.0, low, high, dtype)
    assert least.dtype == greatest.dtype == dtype
    for i in range(len(low)):
        inside = least[i] <= greatest[i]
        for w in neighbours(dtype(least[i] if inside else low[i])):
            exact = Fraction(float(w))
            really = Fraction(low[i]) <= exact <= Fraction(high[i])
            assert really == (inside and least[i] <= w <= greatest[i])
        for w in neighbours(dtype(greatest[i] if inside else high[i])):
            exact = Fraction(float(w))
            really = Fraction(low[i]) <= exact <= Fraction(high[i])
            assert really == (inside and least[i] <= w <= greatest[i])


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_ends_after_batch_norm_agree_with_computed_layers(dtype):
    """Signs of both kinds, factors of 0, cancellation, intervals of one float."""
    rng = np.random.default_rng(1)
    n = 200
    steps = tuple(
        (rng.normal(size=n) * 10.0 ** rng.integers(-4, 4, n), 100 * rng.normal(size=n))
        for _ in range(2)
    )
    steps[0][0][:7] = 0.0
    layer = TrainedLayer("w", "b", steps=steps)
    start = rng.normal(size=n).astype(dtype)
    low = layer.biases(start.astype(float))
    high = low + np.where(rng.random(n) < 0.3, 0.0, np.abs(low) * 1e-4)
    least, greatest = preimage(layer.biases, layer.signs[1], low, high, dtype)
    assert ((least <= start) & (start <= greatest)).all()
    for end, other in ((least, -np.inf), (greatest, np.inf)):
        assert (low <= layer.biases(end.astype(float))).all()
        assert (layer.biases(end.astype(float)) <= high).all()
        with np.errstate(over="ignore", invalid="ignore"):  # beyond the largest float
            beyond = layer.biases(np.nextafter(end, dtype(other)).astype(float))[7:]
        assert ((beyond < low[7:]) | (beyond > high[7:])).all()
    assert (greatest[:7] == np.finfo(dtype).max).all()


def test_interval_without_float_is_empty():
    least, greatest = preimage(
        lambda w: w, 1.0, np.array([0.1, 1.0]), np.array([0.1, 1.0]), np.float32
    )
    assert (least <= greatest).tolist() == [False, True]


def test_constant_that_lies_outside_has_no_float():
    least, greatest = preimage(
        lambda w: 0.0 * w + 2.0, 0.0, np.array([0.0, 2.0]), np.array([1.0, 3.0]), np.float64
    )
    assert (least <= greatest).tolist() == [False, True]
