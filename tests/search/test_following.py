"""Shifts that follow x': networks of Delta at every point, and needed without end otherwise."""

import functools

import numpy as np
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.core.guarantee import Guarantee, Member
from proplace.core.shifts import Shifts
from proplace.search.oracle import Oracle
from proplace.search.problem import SearchProblem
from support.problems import dense
from support.tiers import quick


@functools.cache
def found(seed, *, signed=False, outputs=1):
    """Oracle of a random network, and the shifts that follow with the points they were made for."""
    rng = np.random.default_rng(seed)
    net = dense(rng, [3, 6, 7, outputs], bias=0.3)
    low = -1.0 if signed else 0.0
    X = rng.uniform(low, 1.0, size=(60, 3))
    x = X[0]
    models = Member(net, Shifts.of(net, 0.08), margin=1e9)
    problem = SearchProblem(Guarantee((models,)), 1, x, L1(np.full(3, 1 / 3)), 1e-4)
    oracle = Oracle(problem)  # a margin that nothing keeps: each test returns its worst shift
    shifts = []
    for point in X:
        robust, shifted, _ = oracle.test(point)
        assert not robust
        if len(shifted.layers) == 3:
            shifts.append((point, shifted))
    return net, X, shifts


CASES = [
    (seed, signed, outputs) for seed in range(12) for signed in (False, True) for outputs in (1, 3)
]


def test_some_shifts_follow():
    kinds = [len(found(s, signed=g, outputs=o)[2]) for s, g, o in CASES[:8]]
    assert sum(kinds) > 30


@pytest.mark.parametrize(("seed", "signed", "outputs"), quick(3, CASES))
def test_no_value_is_below_worst_network(seed, signed, outputs):
    """A value below it would cut off points that are robust."""
    net, X, shifts = found(seed, signed=signed, outputs=outputs)
    moves = np.random.default_rng(0).normal(scale=0.05, size=(20, 3))
    points = np.vstack([X, *(point + moves for point, _ in shifts)])
    worst = pp.certify(net, points, 0.08, exact_margin=True).upper
    for n, (_, shifted) in enumerate(shifts):
        at = [*range(len(X)), *range(len(X) + 20 * n, len(X) + 20 * (n + 1))]
        assert (shifted.value(points[at]) >= worst[at] - 1e-9).all()


def test_most_are_worst_at_their_own_point():
    """The signs of an attack are kept, so not all are."""
    gaps = []
    for seed in range(12):
        net, _, shifts = found(seed)
        for point, shifted in shifts:
            worst = float(pp.certify(net, point, 0.08, exact_margin=True).upper[0])
            gaps.append(float(shifted.value(point)) - worst)
    assert np.mean(np.array(gaps) <= 1e-6) > 0.5
