"""Verdicts over general boxes of parameters, against corners, programs, attacks and rationals."""

from __future__ import annotations

from fractions import Fraction as Q

import numpy as np
import pytest

import proplace as pp
from oracles import (
    attack,
    corner_margins,
    milp_margin,
    random_box,
    random_case,
    sampled_margins,
    scale_of,
    size_of,
)
from proplace.certification.enclosure import Enclosure


def exact_least(net, shifts, x, target):
    found = pp.certify(net, x[None], shifts, target, exact_margin=True)
    assert found.lower[0] == pytest.approx(found.upper[0], abs=1e-6 * scale_of(found.upper[0]))
    return float(found.upper[0])


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_smallest_margin_is_that_of_all_corners(hidden):
    """If few parameters move, every corner of the box can be tried."""
    rng = np.random.default_rng([1, hidden])
    tried = 0
    while tried < 12:
        case = random_case(rng, hidden, rows=1, width=2, inputs=2)
        box = random_box(rng, case.net)
        if sum(np.count_nonzero(part) for layer in box.layers for part in layer.radius) > 13:
            continue
        tried += 1
        x = case.X[0]
        corners = corner_margins(case.net, x, box, case.target).min()
        assert exact_least(case.net, box, x, case.target) <= corners + 1e-9
        if hidden <= 1:  # behind one hidden layer the worst network is a corner
            assert exact_least(case.net, box, x, case.target) == pytest.approx(corners, abs=1e-7)


@pytest.mark.parametrize("hidden", [0, 1, 2, 3, 4])
def test_smallest_margin_is_that_of_mixed_integer_program(hidden):
    rng = np.random.default_rng([2, hidden])
    for _ in range(10):
        case = random_case(rng, hidden, rows=1, width=4)
        box = random_box(rng, case.net)
        x, expected = case.X[0], milp_margin(case.net, case.X[0], box, case.target)
        size = scale_of(expected)
        assert exact_least(case.net, box, x, case.target) == pytest.approx(
            expected, abs=1e-6 * size
        )
        for margin in (expected - 1e-4 * size, expected + 1e-4 * size):
            report = pp.certify(case.net, x[None], box, case.target, margin=margin)
            assert not report.undecided[0]
            assert report.robust[0] == (margin < expected)


@pytest.mark.parametrize("hidden", [0, 1, 2, 3, 4])
def test_worst_network_lies_in_box_exactly(hidden):
    rng = np.random.default_rng([3, hidden])
    for _ in range(15):
        case = random_case(rng, hidden, rows=1)
        box = random_box(rng, case.net)
        worst = pp.worst_case(case.net, case.X[0], box, case.target)
        for low, layer, high in zip(
            box.low.layers, worst.network.layers, box.high.layers, strict=True
        ):
            assert ((low.W <= layer.W) & (layer.W <= high.W)).all()
            assert ((low.bias <= layer.bias) & (layer.bias <= high.bias)).all()
        assert box.contains(worst.network)
        size = scale_of(worst.margin)
        assert worst.margin == pytest.approx(worst.lower, abs=1e-6 * size)
        T = rng.uniform(-1.0, 1.0, (10, size_of(case.net)))
        found = sampled_margins(case.net, case.X[0], box, case.target, rng, 200).min()
        found = min(found, attack(case.net, case.X[0], box, case.target, T, steps=15))
        assert worst.lower <= found + 1e-9 * size


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_logit_range_contains_outputs_of_all_networks(hidden):
    rng = np.random.default_rng([4, hidden])
    for _ in range(10):
        case = random_case(rng, hidden)
        box = random_box(rng, case.net)
        low, high = pp.output_range(case.net, case.X, box)
        for net in (box.low, box.high, box.project(case.net)):
            logits = net.logits(case.X)
            assert (low <= logits + 1e-9).all()
            assert (logits <= high + 1e-9).all()


def test_current_network_need_not_lie_in_box():
    """Only its shape and input transform matter, not its parameters."""
    net = pp.Network([([[1.0]], [0.0])])
    far = pp.Shifts(pp.Network([([[-2.0]], [1.0])]), pp.Network([([[-1.0]], [1.5])]))
    report = pp.certify(net, [[1.0], [-1.0]], far, exact_margin=True)
    np.testing.assert_allclose(report.lower, [-1.0, 2.0], atol=1e-9)
    assert list(net.predict([[1.0], [-1.0]])) == [1, 0]


@pytest.mark.parametrize("hidden", [0, 1, 2, 3])
def test_short_forms_and_their_ends_have_one_answer(hidden):
    rng = np.random.default_rng([5, hidden])
    for _ in range(8):
        case = random_case(rng, hidden)
        short = pp.Shifts.of(case.net, case.delta)
        general = pp.Shifts(short.low, short.high)
        one, other = (
            pp.certify(case.net, case.X, box, case.target, exact_margin=True)
            for box in (short, general)
        )
        np.testing.assert_allclose(one.lower, other.lower, atol=1e-7, rtol=1e-7)
        clear = np.abs(one.lower) > 1e-9  # the ends are rounded outwards
        assert (one.robust == other.robust)[clear].all()


@pytest.mark.parametrize("hidden", [0, 1])
def test_first_layer_is_enclosed(hidden):
    """Ends of the pre-activations in rational arithmetic, for inputs of both signs."""
    rng = np.random.default_rng([6, hidden])
    for _ in range(60):
        case = random_case(rng, hidden, rows=1)
        net, box, x = case.net, random_box(rng, case.net), case.X[0]
        enclosure = Enclosure.of(net, box, x[None], [], [], tighten=False)
        scale = np.ones(net.inputs) if net.scale is None else net.scale
        shift = np.zeros(net.inputs) if net.shift is None else net.shift
        u = [Q(s) * Q(v) + Q(t) for s, v, t in zip(scale, x, shift, strict=True)]
        first = box.layers[0]
        for k in range(len(first.low.W)):
            intervals = list(zip(first.low.W[k], first.high.W[k], strict=True))
            ends = [
                sum(
                    (choose(Q(p) * v, Q(q) * v) for (p, q), v in zip(intervals, u, strict=True)),
                    Q(b),
                )
                for choose, b in ((min, first.low.bias[k]), (max, first.high.bias[k]))
            ]
            for exact, (z, radius) in zip(ends, enclosure.ends, strict=True):
                assert abs(Q(z[0, k]) - exact) <= Q(radius[0, k])
            assert Q(enclosure.low[0, k]) <= max(ends[0], Q(0))
            assert max(ends[1], Q(0)) <= Q(enclosure.high[0, k])
