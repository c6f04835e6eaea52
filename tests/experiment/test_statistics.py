"""Means, intervals and paired differences on values with known answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from proplace.experiment.statistics import difference, interval, matrix


def people(values, method="A"):
    rows = [
        {"method": method, "seed": seed, "person": person, "l1": value}
        for seed, row in values.items()
        for person, value in enumerate(row)
    ]
    return pd.DataFrame(rows)


def test_matrix_holds_each_person_of_each_seed():
    table = pd.concat([people({3: [0.1, 0.2], 5: [0.3]}), people({3: [9.0]}, "B")])
    found = matrix(table.sample(frac=1.0, random_state=0), "A", "l1")
    np.testing.assert_array_equal(found, [[0.1, 0.2], [0.3, np.nan]])
    np.testing.assert_array_equal(matrix(table, "B", "l1"), [[9.0, np.nan], [np.nan, np.nan]])


@pytest.mark.slow
def test_interval_covers_mean_as_often_as_promised():
    rng = np.random.default_rng(1)
    hits, trials = 0, 200
    for _ in range(trials):
        values = rng.normal(size=(10, 1)) + rng.normal(size=(10, 20))
        found = interval(values)
        assert found.low <= found.mean <= found.high
        hits += found.low <= 0.0 <= found.high
    assert 0.85 <= hits / trials <= 0.99


def test_interval_is_wider_if_people_of_seed_are_alike():
    rng = np.random.default_rng(2)
    alone = rng.normal(size=(10, 30))
    together = np.repeat(rng.normal(size=(10, 1)), 30, axis=1)
    widths = [found.high - found.low for found in map(interval, (alone, together))]
    assert widths[1] > 3.0 * widths[0]


def test_difference_is_paired_by_person():
    rng = np.random.default_rng(3)
    first = rng.normal(scale=10.0, size=(10, 30))
    found = difference(first, first + 1.0)
    assert (found.wins, found.ties, found.losses) == (300, 0, 0)
    assert (found.change.mean, found.change.low, found.change.high) == (-1.0, -1.0, -1.0)
    found = difference(np.array([[1.0, 2.0, 3.0, np.nan]]), np.array([[1.0 + 1e-7, 1.0, 4.0, 0.0]]))
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)


def test_statistics_do_not_change_with_last_digits():
    rng = np.random.default_rng(4)
    values = rng.random((10, 50))
    assert interval(values) == interval(values * (1.0 + 2e-16))
    assert interval(np.full((2, 2), np.nan)).mean != pytest.approx(0.0)


def test_people_without_value_change_no_interval():
    values = np.random.default_rng(5).random((10, 8))
    padded = np.hstack([values, np.full((10, 40), np.nan)])
    assert interval(padded) == interval(values)
