"""Fast lower bounds on worst-case margins against brute force."""

from __future__ import annotations

import itertools
from fractions import Fraction as Q

import numpy as np
import pytest

import proplace as pp
from oracles import corner_margins, margins_of, seen, size_of, spread
from proplace.certification import certify, lower_margins

SHAPES = ([2, 1], [2, 3], [2, 3, 1], [2, 3, 2, 3], [2, 2, 2, 2, 1])
FRONTS = {
    "none": {},
    "scaled": {"scale": [0.5, -2.0], "shift": [0.25, 1.0]},
    "matrix": {
        "scale": [0.5, -2.0],
        "matrix": [[1.0, 1e3], [-1.0, 0.5]],
        "offset": [0.0, -1e3],
    },
}


def network(sizes, seed, *, bias=True, **front):
    rng = np.random.default_rng(seed)
    pairs = [
        (rng.normal(size=(b, a)) * (rng.random((b, a)) > 0.2), rng.normal(size=b) if bias else None)
        for a, b in itertools.pairwise(sizes)
    ]
    return pp.Network(pairs, **front)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_no_network_and_no_input_is_below(sizes, front):
    rng = np.random.default_rng(1)
    for seed, delta in itertools.product(range(3), (0.0, 0.1)):
        net = network(sizes, seed, bias=seed != 1, **FRONTS[front])
        shifts = pp.Shifts.of(net, delta)
        rows = rng.normal(size=(6, 2))
        reach = rng.random((6, 2)) * rng.choice([0.0, 0.5], size=(6, 2))
        for target in range(net.classes):
            points = lower_margins(net, shifts, target, rows, rows)
            boxes = lower_margins(net, shifts, target, rows - reach, rows + reach)
            T = rng.choice([-1.0, 0.0, 1.0], size=(200, size_of(net)))
            nets = spread(net, delta, T)
            for n, x in enumerate(rows):
                ends = [x + reach[n] * sign for sign in itertools.product((-1, 0, 1), repeat=2)]
                assert points[n] <= margins_of(nets, seen(net, x), target).min() + 1e-12
                for end in ends:
                    assert boxes[n] <= margins_of(nets, seen(net, end), target).min() + 1e-12


def test_exact_at_point_where_one_layer_is_hidden():
    net = network([2, 1, 1], 3)
    rows = np.random.default_rng(0).normal(size=(10, 2))
    found = lower_margins(net, pp.Shifts.of(net, 0.05), 1, rows, rows)
    for x, least in zip(rows, found, strict=True):
        assert least == pytest.approx(corner_margins(net, x, 0.05, 1).min(), abs=1e-9)


@pytest.mark.parametrize("sizes", [[2, 3, 1], [2, 3, 2, 3]], ids=str)
def test_lower_margins_agree_with_exact_test(sizes):
    net = network(sizes, 5)
    rows = np.random.default_rng(2).normal(size=(200, 2)) * 2
    box = (rows - 0.05, rows + 0.05)
    quick = exact = 0
    for target in range(net.classes):
        proved = lower_margins(net, pp.Shifts.of(net, 0.02), target, *box) >= 0.0
        report = certify(net, rows, 0.02, target, box=box)
        assert not (proved & ~report.robust).any()
        quick, exact = quick + proved.sum(), exact + report.robust.sum()
    assert quick >= 0.8 * exact > 0


CANCELLING = {
    "layer": pp.Network([([[1e8, -1e8, 1.0]], [0.1])]),
    "matrix": pp.Network([([[1.0]], [0.1])], matrix=[[1e8, -1e8, 1.0]]),
    "hidden": pp.Network([([[1.0]], [0.1]), ([[1.0]], [-0.3])], matrix=[[1e8, -1e8, 1.0]]),
}


@pytest.mark.parametrize("reach", [0.0, 2.0**-30, 0.125])
@pytest.mark.parametrize("case", CANCELLING)
def test_lower_margins_subtract_rounding_in_exact_rationals(case, reach):
    """Sums cancel here, so that a bound without its error term would be too large for some rows."""
    net = CANCELLING[case]
    rows = np.random.default_rng(0).uniform(1, 2, size=(200, 3))
    rows[:, 1] = rows[:, 0] * (1.0 + 1e-9 * rows[:, 1])
    low, high = rows - reach, rows + reach
    found = lower_margins(net, pp.Shifts.of(net, 0.0), 1, low, high)
    assert np.isfinite(found).all()
    for one, p, q in zip(found.tolist(), low.tolist(), high.tolist(), strict=True):
        ends = zip((1e8, -1e8, 1.0), p, q, strict=True)
        least = sum(min(Q(w) * Q(v), Q(w) * Q(u)) for w, v, u in ends) + Q(0.1)
        assert Q(one) <= (max(least, Q(0)) - Q(0.3) if case == "hidden" else least)


def test_many_rows_come_in_parts():
    net = network([2, 3, 1], 0)
    rows = np.random.default_rng(0).normal(size=(9_000, 2))
    shifts = pp.Shifts.of(net, 0.01)
    found = lower_margins(net, shifts, 1, rows, rows)
    for n in (0, 4_095, 4_096, 8_999):
        one = lower_margins(net, shifts, 1, rows[n : n + 1], rows[n : n + 1])
        assert found[n] == pytest.approx(one[0], rel=1e-12)
    assert lower_margins(net, shifts, 1, rows[:0], rows[:0]).shape == (0,)


def test_overflow_gives_no_bound():
    net = pp.Network([([[1e300, 1.0]], [0.0]), ([[1e300]], [0.0])])
    rows = np.array([[1e300, 1.0]])
    assert lower_margins(net, pp.Shifts.of(net, 0.0), 1, rows, rows)[0] == -np.inf
