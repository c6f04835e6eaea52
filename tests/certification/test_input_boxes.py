"""Robustness over input boxes, against mixed-integer programs and attacks on shift and miss."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import proplace as pp
from oracles import joint_attack, milp_box_margin, milp_margin, random_box, random_case, scale_of
from proplace.certification import InputBoxes, certify
from support.tiers import seeds


def random_boxes(rng, X):
    """Boxes around rows: some columns exact, some one-sided, some across 0."""
    reach = rng.exponential(0.5, size=(2, *X.shape))
    reach[:, rng.random(X.shape) < 0.3] = 0.0
    reach[0][rng.random(X.shape) < 0.2] = 0.0
    return X - reach[0], X + reach[1]


def with_matrix(rng, net):
    """The same layers but the first, which sees its inputs through a matrix."""
    rank = int(rng.integers(1, 4))
    first, *rest = ((layer.W, layer.b) for layer in net.layers)
    return pp.Network(
        [(rng.normal(size=(len(first[0]), rank)), first[1]), *rest],
        **({} if rng.random() < 0.5 else {"scale": rng.normal(size=net.inputs)}),
        matrix=rng.normal(size=(rank, net.inputs)),
        offset=rng.normal(size=rank) if rng.random() < 0.5 else None,
    )


@pytest.mark.parametrize("hidden", range(5))
@pytest.mark.parametrize("seed", seeds(3, 12))
def test_exact_as_mixed_integer_program(seed, hidden):
    rng = np.random.default_rng([seed, hidden])
    case = random_case(rng, hidden, inputs=int(rng.integers(1, 4)), width=4 if hidden < 3 else 3)
    net = with_matrix(rng, case.net) if seed % 4 == 3 else case.net
    delta = random_box(rng, net) if seed % 3 == 2 else case.delta
    box = random_boxes(rng, case.X)
    report = certify(net, case.X, delta, case.target, box=box, exact_margin=True)
    for i, (low, high) in enumerate(zip(*box, strict=True)):
        worst = milp_box_margin(net, low, high, delta, case.target)
        close = 1e-6 * max(1.0, scale_of(worst))
        assert report.lower[i] == pytest.approx(worst, abs=close)
        assert report.upper[i] == pytest.approx(worst, abs=close)
        if abs(worst) > close:
            assert report.robust[i] == (worst >= 0.0)
        met = joint_attack(net, low, high, delta, case.target, rng, 100)
        assert met >= report.lower[i] - close


def test_boxes_across_zero_are_common_in_these_tests():
    """There a bound that forgets that u+ and u- exclude each other would be seen."""
    crossing = loose = 0
    for seed in range(30):
        rng = np.random.default_rng([seed, 2])
        case = random_case(rng, 2, inputs=2)
        (low,), (high,) = random_boxes(rng, case.X[:1])
        crossing += bool(((low < 0.0) & (high > 0.0)).any())
        exact = certify(
            case.net, case.X[:1], 0.2, 1, box=(low[None], high[None]), exact_margin=True
        )
        point = certify(case.net, case.X[:1], 0.2, 1, exact_margin=True)
        loose += bool(exact.lower[0] < point.lower[0] - 1e-3)
    assert crossing >= 8
    assert loose >= 15


@pytest.mark.parametrize("seed", range(8))
def test_box_of_one_point_is_point(seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng, seed % 4)
    asked = {"target": case.target, "exact_margin": True}
    one = certify(case.net, case.X, case.delta, **asked)
    box = certify(case.net, case.X, case.delta, box=(case.X, case.X), **asked)
    assert box.lower == pytest.approx(one.lower, abs=1e-7)
    assert (box.robust == one.robust).all()


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_worst_shift_of_larger_network_lies_in_shift_set(seed):
    """Its point lies in the box, its layers in Delta, and together they have the worst-case margin."""
    rng = np.random.default_rng([seed, 5])
    case = random_case(rng, seed % 4, inputs=2, outputs=1)
    (low,), (high,) = random_boxes(rng, case.X[:1])
    shifts = pp.Shifts.of(case.net, case.delta)
    boxes = InputBoxes(case.net, shifts)
    row = boxes.rows(low, high)
    worst = pp.worst_case(boxes.net, row, boxes.shifts, case.target)
    h, hidden = row, []
    for layer in worst.network.layers[:-1]:
        h = np.maximum(layer.W @ h + layer.bias, 0.0)
        hidden.append(h)
    pairs = boxes.of_network([(layer.W, layer.bias) for layer in worst.network.layers], hidden)
    point = boxes.point(hidden)
    assert (point >= low - 1e-12).all()
    assert (point <= high + 1e-12).all()
    for (W, b), box in zip(pairs, shifts.layers, strict=True):
        assert ((W >= box.low.W - 1e-12) & (W <= box.high.W + 1e-12)).all()
        assert ((b >= box.low.bias - 1e-12) & (b <= box.high.bias + 1e-12)).all()
    kept = zip(pairs, case.net.layers, strict=True)
    biased = [(W, None if layer.b is None else b) for (W, b), layer in kept]
    margin = case.net.with_layers(biased).margin(point, case.target)[0]
    wanted = milp_box_margin(case.net, low, high, case.delta, case.target)
    assert margin == pytest.approx(wanted, abs=1e-6 * max(1.0, scale_of(wanted)))


def test_rounding_of_deployed_model_counts_in_whole_box():
    net = pp.Network([([[1.0, -1.0]], [0.0])], precision="float32")
    x = np.array([[2.0, 1.0]])
    point = certify(net, x, 0.0)
    box = certify(net, x, 0.0, box=(x - 1000.0, x + 1000.0))
    assert box.threshold[0] > 100.0 * point.threshold[0]


def test_oracle_for_points_is_that_for_boxes_of_no_size():
    rng = np.random.default_rng(3)
    for hidden in range(3):
        case = random_case(rng, hidden, inputs=2)
        x = case.X[0]
        one = milp_margin(case.net, x, case.delta, case.target)
        assert milp_box_margin(case.net, x, x, case.delta, case.target) == pytest.approx(
            one, abs=1e-7
        )


def test_rows_of_boxes_leave_nothing_out():
    """Centre and radius are floats, and their box contains both ends as real numbers."""
    rng = np.random.default_rng(0)
    low = rng.normal(size=(200, 3)) * 10.0 ** rng.integers(-6, 6, (200, 3))
    high = low + rng.exponential(size=(200, 3)) * 10.0 ** rng.integers(-12, 6, (200, 3))
    high[:20] = low[:20]
    rows = InputBoxes.rows(low, high)
    for row, lo, hi in zip(rows, low, high, strict=True):
        centre, radius = ([Fraction(v) for v in part] for part in (row[:3], row[3:]))
        for c, r, a, b in zip(centre, radius, lo, hi, strict=True):
            assert c - r <= Fraction(a)
            assert Fraction(b) <= c + r
            assert (r == 0) == (a == b)
