"""ROAR: the surrogate is the ridge regression it should be, and the robust loss goes down."""

from __future__ import annotations

import itertools

import numpy as np
from sklearn.linear_model import Ridge

import proplace as pp


def worst_loss(point, x, w, b, method):
    """The objective by its definition: the worst of all corners of the box of changes."""
    corners = itertools.product((-1.0, 1.0), repeat=len(point) + 1)
    scores = [
        (w + method.delta_max * np.array(c[:-1])) @ point + b + method.delta_max * c[-1]
        for c in corners
    ]
    worst = max(max(1.0 - score, 0.0) ** 2 for score in scores)
    return worst + method.penalty * np.abs(point - x).sum()


def test_robust_loss_goes_down_and_settles(case):
    options = {"rate": 0.005, "tolerance": 1e-8, "iterations": 3000}
    method = pp.baselines.Roar(case.net, delta_max=0.1, penalty=0.05, **options).fit(case.train)
    W, b = method.surrogate(case.refused, 1)
    candidates = method.propose(case.refused, 1)
    rng = np.random.default_rng(0)
    low, high = case.train.min(axis=0), case.train.max(axis=0)
    for x, w, c, found in zip(case.refused, W, b, candidates, strict=True):
        end = worst_loss(found.point, x, w, c, method)
        assert end < worst_loss(x, x, w, c, method) - 0.01
        # the loss is convex, so a settled point has nothing better around it, near or far
        size = rng.choice([0.01, 0.05, 0.3], (100, 1))
        around = np.clip(found.point + size * rng.normal(size=(100, 4)), low, high)
        assert end < min(worst_loss(p, x, w, c, method) for p in around) + 3e-3


def test_larger_change_requires_higher_score(case):
    scores = []
    for delta_max in (0.0, 0.1):
        method = pp.baselines.Roar(case.net, delta_max=delta_max, penalty=0.001).fit(case.train)
        W, b = method.surrogate(case.refused, 1)
        points = np.array([c.point for c in method.propose(case.refused, 1)])
        scores.append((W * points).sum(axis=1) + b)
    assert (scores[1] > scores[0] - 1e-9).all()
    assert (scores[1] > scores[0] + 0.02).any()


def test_surrogate_is_weighted_ridge_regression(case):
    method = pp.baselines.Roar(case.net, samples=400, seed=3).fit(case.train)
    W, b = method.surrogate(case.refused[:3], 1)
    mean, std = case.train.mean(axis=0), case.train.std(axis=0)
    noise = np.random.default_rng(3).standard_normal((400, 4))
    samples = noise * std + mean
    score = 1.0 / (1.0 + np.exp(-case.net.logits(samples)[:, 0]))
    for x, w, c in zip(case.refused[:3], W, b, strict=True):
        weight = np.exp(-((noise - (x - mean) / std) ** 2).sum(axis=1) / (2 * 0.75**2 * 4))
        ridge = Ridge(alpha=1.0).fit(noise, score, sample_weight=weight * 400 / weight.sum())
        probe = np.random.default_rng(1).random((5, 4))
        np.testing.assert_allclose(probe @ w + c, ridge.predict((probe - mean) / std), atol=1e-8)


def test_surrogate_that_misleads_is_reported():
    # The class lies in a corner that the linear surrogate does not see.
    net = pp.Network([([[1.0, 1.0]], [-1.95]), ([[200.0]], [-9.0])])
    train = np.random.default_rng(0).random((300, 2))
    result = pp.baselines.Roar(net).fit(train).explain([[0.1, 0.2]])
    assert result[0].status == "not_found"
    assert "surrogate" in result[0].reason
