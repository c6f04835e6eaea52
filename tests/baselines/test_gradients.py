"""Input gradients against finite differences and against the network's own forward pass."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proplace as pp
from oracles import forward, margin_of
from proplace.baselines.gradients import gap, gap_gradient, margin, margin_gradient

SIZES = [(3, 5, 1), (4, 6, 5, 1), (3, 7, 4), (2, 1), (3, 4)]


def net_of(sizes, seed, *, scaled=False):
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(size=(m, n)), rng.normal(size=m) if m != 5 else None)
        for n, m in itertools.pairwise(sizes)
    ]
    extra = {"scale": rng.uniform(0.5, 2.0, sizes[0]), "shift": rng.normal(size=sizes[0])}
    return pp.Network(layers, **(extra if scaled else {}))


def gap_of(net, x, target):
    """Definition of the gap, in plain numbers."""
    logits = forward(net, x)
    if len(logits) == 1:
        p = 1.0 / (1.0 + np.exp(-logits[0]))
        return (2.0 * p - 1.0) * (1.0 if target == 1 else -1.0)
    p = np.exp(logits) / np.exp(logits).sum()
    return p[target] - max(np.delete(p, target))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(sizes, scaled):
    net = net_of(sizes, 1, scaled=scaled)
    X = np.random.default_rng(2).normal(size=(9, sizes[0]))
    step = 1e-6
    for target in range(net.classes):
        pairs = [
            (margin_gradient(net, X, target), lambda x, t=target: margin_of(forward(net, x), t)),
            (gap_gradient(net, X, target), lambda x, t=target: gap_of(net, x, t)),
        ]
        for (values, slopes), truth in pairs:
            np.testing.assert_allclose(values, [truth(x) for x in X], atol=1e-9)
            for x, slope in zip(X, slopes, strict=True):
                numeric = [
                    (truth(x + step * e) - truth(x - step * e)) / (2 * step) for e in np.eye(len(x))
                ]
                np.testing.assert_allclose(slope, numeric, atol=1e-5)
        np.testing.assert_array_equal(margin(net, X, target), pairs[0][0][0])
        np.testing.assert_array_equal(gap(net, X, target), pairs[1][0][0])


def test_row_does_not_depend_on_others():
    net = net_of((7, 20, 20, 1), 3)
    X = np.random.default_rng(4).normal(size=(61, 7))
    values, slopes = margin_gradient(net, X, 1)
    for part in (slice(0, 1), slice(5, 7), slice(3, 60)):
        some = margin_gradient(net, X[part], 1)
        np.testing.assert_array_equal(some[0], values[part])
        np.testing.assert_array_equal(some[1], slopes[part])
