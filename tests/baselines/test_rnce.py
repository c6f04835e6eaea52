"""RNCE: the nearest robust row by brute force, and a line search that comes nearer and stays robust."""

from __future__ import annotations

import numpy as np
import pytest

import proplace as pp
from oracles import milp_margin


@pytest.mark.parametrize("delta", [0.005, 0.02])
def test_nearest_robust_row(case, delta):
    truth = np.array([milp_margin(case.net, row, delta, 1) for row in case.train])
    robust = case.train[truth > 0.0]
    assert 5 < len(robust) < len(case.train) / 2
    for e in pp.baselines.Rnce(case.net, delta).fit(case.train).explain(case.refused):
        best = robust[np.abs(robust - e.encoded_original).sum(axis=1).argmin()]
        np.testing.assert_array_equal(e.encoded_counterfactual, best)
        assert e.status == "feasible"


def test_line_search(case):
    delta = 0.01
    rows = pp.baselines.Rnce(case.net, delta).fit(case.train).explain(case.refused)
    lines = pp.baselines.Rnce(case.net, delta, steps=40).fit(case.train).explain(case.refused)
    nearer = 0
    for row, line in zip(rows, lines, strict=True):
        points = [
            row.encoded_original + s * (row.encoded_counterfactual - row.encoded_original)
            for s in np.linspace(0.0, 1.0, 41)[1:]
        ]
        truth = [p for p in points if milp_margin(case.net, p, delta, 1) >= 1e-6]
        best = min(np.abs(p - row.encoded_original).mean() for p in truth)
        assert line.distance == pytest.approx(best, abs=1e-12)
        assert line.status == "feasible"
        nearer += line.distance < row.distance
    assert nearer >= 6


@pytest.mark.parametrize(("x", "share"), [(0.45, 0.2), (0.3, 0.4), (-0.7, 0.8)])
def test_all_points_of_line_are_tried(x, share):
    """The first fifth of the way is robust, or the second, or all but the last is not."""
    net = pp.Network([([[1.0]], [-0.5])])
    train = np.array([[0.0], [0.9]])
    (e,) = pp.baselines.Rnce(net, 0.0, steps=5).fit(train).explain([[x]])
    assert e.encoded_counterfactual[0] == pytest.approx(x + share * (0.9 - x))


def test_no_robust_row_is_reported(case):
    result = pp.baselines.Rnce(case.net, 5.0).fit(case.train).explain(case.refused[:2])
    assert [e.status for e in result] == ["no_robust_neighbour"] * 2
    assert "lower delta" in result[0].reason
