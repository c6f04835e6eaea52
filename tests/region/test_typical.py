"""Plausibility against scikit-learn's measures, and the definition of a typical point."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from proplace.region import typical
from proplace.region.typical import LEAST, TYPICAL, Typical, is_typical


def rows_of(seed, count, columns=4):
    """Two clusters of different density, with categories and repeated values in some columns."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(0.0, 0.1, (count // 2, columns))
    sparse = rng.normal(2.0, 0.5, (count - count // 2, columns))
    rows = np.vstack([dense, sparse])
    rows[:, -1] = rng.integers(0, 2, count)
    rows[:, 0] = np.round(rows[:, 0], 2)
    return np.unique(rows, axis=0)


def measures(reference, points):
    """Return the three measures of points that are not rows, by scikit-learn."""
    columns = [
        -LocalOutlierFactor(n_neighbors=k, metric="manhattan", novelty=True)
        .fit(reference)
        .score_samples(points)
        for k in (10, 30)
    ]
    near = NearestNeighbors(n_neighbors=5, metric="manhattan").fit(reference)
    return np.column_stack([*columns, near.kneighbors(points)[0][:, -1]])


def own_measures(reference):
    """Return the three measures of the rows themselves, each scored without itself."""
    columns = [
        -LocalOutlierFactor(n_neighbors=k, metric="manhattan")
        .fit(reference)
        .negative_outlier_factor_
        for k in (10, 30)
    ]
    near = NearestNeighbors(n_neighbors=5, metric="manhattan").fit(reference)
    return np.column_stack([*columns, near.kneighbors()[0][:, -1]])


def expected(reference, scores):
    """Return the share of rows that are at least as unusual, by the strictest measure."""
    own = own_measures(reference)
    return np.array(
        [
            min(np.mean(own[:, j] >= row[j] - 1e-9) for j in range(3))
            for row in np.atleast_2d(scores)
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_plausibility_agrees_with_scikit_learn(seed):
    rows = rows_of(seed, 300)
    units = np.array([1.0, 0.5, 2.0, 0.25])
    rng = np.random.default_rng(seed)
    points = rows[rng.integers(0, len(rows), 200)] + rng.normal(0.0, 0.3, (200, 4))
    found = Typical(rows, units).plausibility(points)
    np.testing.assert_allclose(
        found, expected(rows * units, measures(rows * units, points * units)), atol=2.5 / len(rows)
    )
    assert (found < TYPICAL).any()
    assert (found >= TYPICAL).any()


@pytest.mark.parametrize("seed", range(3))
def test_plausibility_scores_training_row_without_itself(seed):
    rows = rows_of(seed, 200)
    found = Typical(rows, np.ones(4)).plausibility(rows)
    np.testing.assert_allclose(found, expected(rows, own_measures(rows)), atol=2.5 / len(rows))
    typical_rows = is_typical(found)
    own = own_measures(rows)
    quantiles = np.sort(own, axis=0)[int(np.ceil(0.9 * len(rows)))]
    assert (own[typical_rows] <= quantiles).all()
    assert 0.7 <= typical_rows.mean() <= 0.9


def test_typical_rejects_small_cluster_with_low_outlier_factor():
    """A search finds such clusters: LOF(10) alone calls them usual."""
    rng = np.random.default_rng(0)
    rows = np.vstack([rng.normal(0.0, 1.0, (400, 3)), rng.normal(9.0, 0.6, (18, 3))])
    point = np.array([[9.0, 9.0, 9.0]])
    alone = (
        -LocalOutlierFactor(n_neighbors=10, metric="manhattan", novelty=True)
        .fit(rows)
        .score_samples(point)
    )
    assert alone[0] < 1.1
    assert not Typical(rows, np.ones(3)).test(point)[0]


def test_typical_needs_thirty_other_rows():
    rows = rows_of(0, 100)
    assert Typical.of(rows[: LEAST - 1], np.ones(4)) is None
    few = Typical.of(rows[:LEAST], np.ones(4))
    assert few is not None
    assert few.plausibility(rows[:LEAST]).max() <= 1.0
    assert not is_typical(np.nan)


def test_typical_samples_many_rows_and_finds_nearest_of_all(monkeypatch):
    monkeypatch.setattr(typical, "SAMPLE", 100)
    rows = rows_of(1, 400)
    one, two = (Typical(rows, np.ones(4)) for _ in range(2))
    points = rows[::7] + 0.01
    np.testing.assert_array_equal(one.plausibility(points), two.plausibility(points))
    nearest = np.abs(points[:, None] - rows).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(one.nearest(points), nearest)
    monkeypatch.undo()
    assert not np.array_equal(
        Typical(rows, np.ones(4)).plausibility(points), one.plausibility(points)
    )


def test_typical_has_no_opinion_on_no_points():
    assert Typical(rows_of(0, 60), np.ones(4)).plausibility(np.zeros((0, 4))).shape == (0,)
