"""Each term of the bounds on rounding errors, against rational numbers."""

from __future__ import annotations

import itertools
from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import proplace as pp
from oracles import random_case
from proplace.certification import batched_bnb, enclosure, roundoff
from proplace.certification import certificate as documents
from proplace.certification.bounds import Abstraction, chords, start_slopes
from proplace.certification.enclosure import Enclosure
from proplace.certification.roundoff import float32_margin

pytestmark = pytest.mark.usefixtures("any_margin")

# -- outward-rounded floats ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 10**6])
def test_error_of_sum_of_n_terms(n):
    u = Q(1, 2**53)
    assert Q(enclosure._gamma(n)) >= n * u / (1 - n * u)
    assert Q(roundoff._gamma(n, 2.0**-24)) >= n * Q(1, 2**24)


def test_offset_of_chord_is_never_too_small():
    rng = np.random.default_rng(0)
    slope = rng.choice([0.0, 1.0, 0.1, 0.3, *rng.uniform(size=5)], 4000)
    lo = rng.normal(size=4000) * 10.0 ** rng.integers(-8, 8, 4000)
    hi = lo + rng.exponential(size=4000) * 10.0 ** rng.integers(-8, 8, 4000)
    found = enclosure._offset(slope, lo, hi)
    for s, a, b, offset in zip(slope, lo, hi, found, strict=True):
        ends = [max(Q(v), Q(0)) - Q(s) * Q(v) for v in (a, b)]
        assert Q(offset) >= max(ends)
        assert Q(offset) <= max(ends) + Q(1, 2**45) * (abs(Q(a)) + abs(Q(b))) + Q(1, 2**900)


def test_range_over_box_is_rounded_outward():
    rng = np.random.default_rng(1)
    for _ in range(200):
        C, b = rng.normal(size=(3, 4)), rng.normal(size=3)
        low = rng.exponential(size=(1, 4))
        high = low + rng.exponential(size=(1, 4)) * rng.choice([0.0, 1e-9, 1.0])
        lo, hi = enclosure._interval(C, b, low, high, 0.0)
        for k in range(3):
            ends = [
                sum(
                    (
                        Q(c) * Q(p if (c > 0) == least else q)
                        for c, p, q in zip(C[k], low[0], high[0], strict=True)
                    ),
                    Q(b[k]),
                )
                for least in (True, False)
            ]
            assert Q(lo[0, k]) <= ends[0]
            assert ends[1] <= Q(hi[0, k])


@pytest.mark.parametrize("scaled", [False, True])
def test_first_layer_is_enclosed(scaled):
    """Also if the bias is most of the sum, and if a transform cancels."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        W, b = rng.normal(size=(3, 2)), rng.normal(size=3)
        x = np.round(rng.normal(size=2), 2) * rng.choice([1.0, 0.5, 1e-3])
        scale = np.round(rng.normal(size=2), 2) if scaled else None
        shift = -np.round(x * scale, 4) if scaled else None
        net = pp.Network([(W, b), (np.ones((1, 3)), [0.0])], scale=scale, shift=shift)
        enclosure = Enclosure.of(net, pp.Shifts.of(net, 0.0), x[None], [], [], tighten=False)
        (exact, _) = exactly._ends(
            exactly.intervals(net, [(0.0, 0.0)] * 2)[0], exactly.seen(net, x)
        )
        for k, value in enumerate(exact):
            for z, radius in enclosure.ends:
                assert abs(Q(z[0, k]) - value) <= Q(radius[0, k])
            assert Q(enclosure.low[0, k]) <= max(value, Q(0)) <= Q(enclosure.high[0, k])


def proves(net, delta, x, target, *, tighten=False, margin=None):
    """Test if exact arithmetic proves the value of the outward-rounded pass, or a margin."""
    shifts = pp.Shifts.of(net, delta)
    lower, upper, nodes = [], [], None
    if net.widths:
        root = Abstraction(net, shifts).interval_bounds(net.transform(x))
        lower, upper = start_slopes(root), [chords(level, None)[0] for level in root.preactivations]
        nodes = batched_bnb.root_nodes(root, np.arange(1))
    enclosure = Enclosure.of(net, shifts, x[None], lower, upper, tighten=tighten)
    value = float(min(enclosure.bounds(c, nodes)[0][0] for c in net.objectives(target)))
    if margin is not None and value < margin:
        return True  # no claim
    facts = documents.claim(
        documents.digest(net), shifts, x, target, value if margin is None else margin, "robust"
    )
    facts |= {"tighten": tighten, "trees": [[{}]] * max(1, net.outputs - 1)}
    facts |= {"lower": [v[0].tolist() for v in lower], "upper": [v[0].tolist() for v in upper]}
    return pp.Certificate.of(facts).check(net).accepted


@pytest.mark.parametrize("n", [1, 3, 20])
def test_error_of_output_layer_passes_through_shifting_layer(n):
    """W_target - W_rival cancels with 2 delta up to its last bits, and delta is all that is behind."""
    rng = np.random.default_rng([3, n])
    for _ in range(100):
        rival = rng.uniform(0.1, 1.0, n)
        rows = np.array([rival, rival + 0.6])
        dw = float((rows[1] - rows[0]).max()) / 2.0
        layers = [(np.eye(2), np.zeros(2)), (np.zeros((n, 2)), np.zeros(n)), (rows, np.zeros(2))]
        delta = [(0.0, 0.0), (0.25, 0.0), (dw, 0.0)]
        assert proves(pp.Network(layers), delta, np.array([1.0, 1e3]), 1)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_parameters_that_checker_cuts(depth):
    """Weights of 2^-110 beside 1: the checker cuts them and enlarges delta, so the bound is lower."""
    row, one = np.array([[1.0, 2.0**-110]]), np.ones((1, 1))
    for place in range(depth):
        weights = [np.eye(2)] * place + [row] + [one] * (depth - 1 - place)
        net = pp.Network([(W, np.zeros(len(W))) for W in weights])
        for x, target in itertools.product(([0.0, 2.0**40], [0.0, -(2.0**40)]), (0, 1)):
            for tighten in (False, True):
                assert proves(net, 0.0, np.array(x), target, tighten=tighten, margin=0.0)


@pytest.mark.parametrize("hidden", [0, 1, 2, 3])
def test_pass_never_states_more_than_checker(hidden):
    """Decimals, cancelling layers, one-sided sizes: the last bits decide."""
    rng = np.random.default_rng([4, hidden])
    for _ in range(60):
        case = random_case(rng, hidden, rows=1)
        pairs = [
            (np.round(layer.W, 1) * rng.choice([1.0, 1e8]), np.round(layer.bias, 1))
            for layer in case.net.layers
        ]
        net = pp.Network(pairs, scale=case.net.scale, shift=case.net.shift)
        assert proves(net, case.delta, case.X[0], case.target, tighten=bool(rng.integers(2)))


# -- float32 ---------------------------------------------------------------------------------------


def float32_error(x, W, b, scale=None, shift=None):
    """Error of the margin of class 1 of a float32 pass, for many rows of one column."""
    W32, b32, h = np.float32(W), np.float32(b), x.astype(np.float32)
    exact = [Q(float(v)) for v in x]
    if scale is not None:
        h = h * np.float32(scale) + np.float32(shift)
        exact = [v * Q(scale) + Q(shift) for v in exact]
    logits = h[:, None] * W32[None, :] + b32[None, :]
    found = logits[:, 0] if len(W) == 1 else logits[:, 1].astype(float) - logits[:, 0]
    true = [
        v * Q(float(W32[-1]))
        + Q(float(b32[-1]))
        - (v * Q(float(W32[0])) + Q(float(b32[0])) if len(W) > 1 else 0)
        for v in exact
    ]
    return [abs(Q(float(f)) - t) for f, t in zip(found, true, strict=True)]


def margins(x, W, b, scale=None, shift=None):
    net = pp.Network(
        [(np.float32(W)[:, None].astype(float), np.float32(b).astype(float))],
        scale=None if scale is None else [scale],
        shift=None if shift is None else [shift],
        precision="float32",
    )
    return float32_margin(net, pp.Shifts.of(net, 0.0), x[:, None])


def ratio(x, *net):
    errors, bounds = float32_error(x, *net), margins(x, *net)
    ratios = [float(e / Q(float(b))) for e, b in zip(errors, bounds, strict=True)]
    assert max(ratios) <= 1.0
    return max(ratios)


def test_float32_network_of_one_column_nearly_reaches_bound():
    """Input, product and sum are rounded: three of the four roundings that the bound counts."""
    rng = np.random.default_rng(5)
    x = 1.0 + rng.uniform(0.0, 1e-3, 3000)
    best = max(ratio(x, rng.uniform(1.0, 1.001, 1), rng.uniform(0.0, 1e-3, 1)) for _ in range(10))
    assert best > 0.6


def test_two_logits_err_in_opposite_directions():
    rng = np.random.default_rng(6)
    x = 1.0 + rng.uniform(0.0, 1e-3, 3000)
    best = 0.0
    for _ in range(10):
        w = rng.uniform(1.0, 1.001, 2) * [1.0, -1.0]
        best = max(best, ratio(x, w, rng.uniform(0.0, 1e-3, 2)))
    assert best > 0.5  # more than one logit alone can err


def test_transform_in_front_is_rounded_several_times():
    """Input, scale, product and sum, then the layer: six roundings that all count."""
    rng, best = np.random.default_rng(7), 0.0
    for _ in range(30):
        x = 1.0 + rng.uniform(0.0, 1e-3, 3000)
        w, scale = rng.uniform(1.0, 1.001, 1), float(rng.uniform(1.0, 1.001))
        best = max(
            best, ratio(x, w, rng.uniform(0.0, 1e-3, 1), scale, float(rng.uniform(0.0, 1e-3)))
        )
    assert best > 0.4


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-53])
def test_input_of_first_layer_is_enclosed(unit):
    """The centre is rounded in float64: the radius covers that, also where scale and shift cancel."""
    rng = np.random.default_rng(8)
    for _ in range(500):
        x = np.round(rng.normal(size=(1, 3)), 2)
        scale = np.round(rng.normal(size=3), 2)
        shift = -np.round(x[0] * scale, 4) * rng.choice([1.0, 0.0, -3.0])
        net = pp.Network([(np.ones((1, 3)), [0.0])], scale=scale, shift=shift)
        numbers = roundoff.Format(unit, 0.0, 1.0)
        centre, radius, size, error, _ = roundoff._seen(net, x, x, numbers)
        for k, value in enumerate(exactly.seen(net, x[0])):
            assert abs(Q(centre[0, k]) - value) <= Q(radius[0, k])
            assert abs(value) <= Q(size[0, k])
            assert Q(error[0, k]) >= 8 * Q(unit) * abs(value)


# -- the bound that is known beforehand ----------------------------------------------------------------


@pytest.mark.parametrize("hidden", [0, 1, 2, 3, 4])
def test_sizes_are_those_of_network_of_absolute_values(hidden):
    rng = np.random.default_rng([9, hidden])
    for _ in range(20):
        case = random_case(rng, hidden, rows=1)
        net, shifts = case.net, pp.Shifts.of(case.net, case.delta)
        roundoff = Abstraction(net, shifts).roundoff
        ones = np.ones(net.inputs)
        seen = np.abs(case.X[0] * (ones if net.scale is None else net.scale))
        h = seen + (0.0 if net.shift is None else np.abs(net.shift))
        sizes = []
        for layer, dw, db in ((x, *r) for x, r in zip(net.layers, shifts.radii, strict=True)):
            h = (np.abs(layer.W) + dw) @ h + np.abs(layer.bias) + db
            sizes.append(h)
        U, C = net.transform(case.X), net.objectives(case.target)
        for found, size in zip(roundoff.sizes(U), sizes[1:-1], strict=True):
            assert (found[0] >= size * (1 - 1e-9)).all()
        most = (np.abs(C) @ sizes[-1]).max()
        for pushed in (0.0, 7.0):
            error = roundoff.error(U, C, np.array([pushed]))[0]
            assert error >= roundoff.unit * (most + pushed) * (1 - 1e-9)
            assert (
                error
                <= roundoff.unit * (most * (1.0 if net.shift is None else 100.0) + pushed) * 1.1
            )
