"""Tiny networks, every corner of the box of parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proplace as pp
from oracles import corner_margins, margins_of, scale_of, seen, spread


def make(sizes, rng, *, last=None, transform=False):
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers.append((rng.normal(size=(n_out, n_in)), rng.normal(size=n_out) * 0.5))
    if last is not None:
        layers[-1] = (last * np.abs(layers[-1][0]), layers[-1][1])
    extra = {"scale": rng.normal(size=sizes[0]), "shift": rng.normal(size=sizes[0])}
    return pp.Network(layers, **(extra if transform else {}))


def worst(net, x, delta, target):
    report = pp.certify(net, x, delta, target, exact_margin=True)
    assert report.upper[0] - report.lower[0] <= 1e-9 * scale_of(report.upper[0])
    assert pp.worst_case(net, x, delta, target).margin == pytest.approx(report.upper[0], abs=1e-9)
    return report.upper[0]


# Up to one hidden layer, each neuron is monotone in its own row and the output is linear in its
# own, so some corner is the worst. With two hidden layers the same holds if the last one has a
# single neuron: its pre-activation is then extreme at a corner.
CORNERS_ARE_ENOUGH = [
    (2, 1),
    (3, 1),
    (2, 3),
    (2, 2, 1),
    (3, 1, 1),
    (1, 2, 2),
    (1, 1, 3),
    (2, 2, 1, 1),
]


@pytest.mark.parametrize("sizes", CORNERS_ARE_ENOUGH, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_worst_corner_is_worst(sizes, seed):
    rng = np.random.default_rng([seed, *sizes])
    net = make(sizes, rng, transform=seed % 3 == 0)
    x = rng.normal(size=sizes[0])
    for target in range(net.classes):
        for delta in (0.02, 0.2, 0.7):
            corners = corner_margins(net, x, delta, target).min()
            assert worst(net, x, delta, target) == pytest.approx(corners, abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_concave_output_is_worst_at_corner(seed):
    """Two hidden layers whose output weights stay negative: minus a maximum, worst at a corner."""
    rng = np.random.default_rng([20, seed])
    net = make((1, 2, 2, 1), rng, last=-1.0)
    x, delta = rng.normal(size=1), [(0.1, 0.2), (0.3, 0.1), (0.0, 0.1)]
    corners = corner_margins(net, x, delta, 1).min()
    assert worst(net, x, delta, 1) == pytest.approx(corners, abs=1e-9)


@pytest.mark.parametrize(
    "sizes", [(2, 1, 2, 1), (1, 1, 2, 1), (1, 1, 1, 1, 1), (1, 1, 1, 2)], ids=str
)
@pytest.mark.parametrize("seed", range(6))
def test_no_corner_is_worse_than_worst(sizes, seed):
    rng = np.random.default_rng([seed, *sizes])
    net = make(sizes, rng)
    x = rng.normal(size=sizes[0])
    for target in range(net.classes):
        corners = corner_margins(net, x, 0.3, target).min()
        least = worst(net, x, 0.3, target)
        assert least <= corners + 1e-9
        T = rng.uniform(-1, 1, (4000, sum(lay.W.size + lay.b.size for lay in net.layers)))
        inside = margins_of(spread(net, 0.3, T), seen(net, x), target).min()
        assert least <= inside + 1e-9


def test_worst_case_that_is_not_corner():
    """|h - 1| with h from 0.5 to 1.5: least inside the box, where only the first bias moves."""
    net = pp.Network([([[1.0]], [1.0]), ([[1.0], [-1.0]], [-1.0, 1.0]), ([[1.0, 1.0]], [-0.25])])
    delta = [(0.0, 0.5), (0.0, 0.0), (0.0, 0.0)]
    corners = corner_margins(net, [0.0], delta, 1).min()
    assert corners == 0.25
    assert worst(net, [0.0], delta, 1) == pytest.approx(-0.25, abs=1e-12)
    assert not pp.certify(net, [0.0], delta).robust[0]
    found = pp.worst_case(net, [0.0], delta).network
    assert found.layers[0].b[0] == pytest.approx(1.0, abs=1e-9)


# -- the certificate that two public implementations give wrongly ---------------------------------


def wrong_layer_1(W, b, u, delta):
    """(W - delta) x + b - delta: no lower bound where x < 0."""
    return (W - delta) @ u + b - delta


def test_no_false_certificate_for_linear_model_with_negative_input():
    W, b, x, delta = np.array([[-1.0]]), np.array([0.5]), np.array([-1.0]), 1.2
    assert wrong_layer_1(W, b, x, delta)[0] == pytest.approx(1.5)  # "robust"
    net = pp.Network([(W, b)])
    report = pp.certify(net, x, delta)
    assert not report.robust[0]
    assert report.upper[0] == pytest.approx(-0.9)  # w = 0.2, b = -0.7
    shifted = pp.worst_case(net, x, delta).network
    assert shifted.predict(x)[0] == 0
    assert net.distance(shifted) <= delta


def test_no_false_certificate_behind_hidden_layer():
    W, b, x, delta = np.array([[-1.0]]), np.array([0.0]), np.array([-2.0]), 0.5
    wrong = max(0.0, wrong_layer_1(W, b, x, delta)[0]) * (1.0 - delta) - 0.5 - delta
    assert wrong > 0.0  # "robust"
    net = pp.Network([(W, b), ([[1.0]], [-0.5])])
    assert net.margin(x)[0] > 0.0
    report = pp.certify(net, x, delta)
    assert not report.robust[0]
    assert report.upper[0] == pytest.approx(0.5 * 0.5 - 1.0)
    assert corner_margins(net, x, delta, 1).min() == pytest.approx(report.upper[0])
    assert pp.worst_case(net, x, delta).network.predict(x)[0] == 0


def test_several_classes_both_output_rows_move():
    """The gap of two logits moves twice as far as each of them."""
    net = pp.Network([(np.eye(2), [0.0, 0.0])])
    x, delta = [1.0, 0.4], [(0.1, 0.05)]
    # logit_0 >= 1 - 0.1 * 1.4 - 0.05, logit_1 <= 0.4 + 0.1 * 1.4 + 0.05
    assert worst(net, x, delta, 0) == pytest.approx(0.6 - 2 * 0.19)
    assert worst(net, x, delta, 1) == pytest.approx(-0.6 - 2 * 0.19)
    assert corner_margins(net, x, delta, 0).min() == pytest.approx(0.22)
