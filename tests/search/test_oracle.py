"""The shifts that the searches learn: in Delta, true at their point, as bad elsewhere as can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proplace as pp
from oracles import pairs_of, radii_of, seen
from proplace.certification import Evidence
from proplace.certification.batched_bnb import first_bounds
from proplace.certification.bounds import Abstraction, WorstCaseProblem
from proplace.core.shifts import shifted_layers
from proplace.search.oracle import Oracle, Scenario
from support.problems import problem_of
from support.tiers import quick, seeds

CASES = [(seed, 1 + seed % 3) for seed in range(60)]


def random_oracle(seed, depth):
    """An oracle, its radii, and points of both signs (and with zeros)."""
    rng = np.random.default_rng([seed, depth])
    sizes = [int(rng.integers(2, 5)), *rng.integers(3, 7, size=depth), int(rng.choice([1, 3]))]
    layers = []
    for n, m in itertools.pairwise(sizes):
        b = rng.normal(size=m) * 0.6
        b[rng.random(m) < 0.2] -= 3.0  # neurons that are seldom active
        layers.append((rng.normal(size=(m, n)), None if rng.random() < 0.2 else b))
    transform = {}
    if rng.random() < 0.4:
        transform = {"scale": rng.uniform(0.5, 2.0, sizes[0]), "shift": rng.normal(size=sizes[0])}
    net = pp.Network(layers, **transform)
    delta = float(rng.choice([0.02, 0.1]))
    if rng.random() < 0.4:
        delta = [tuple(rng.choice([0.0, 0.02, 0.1], 2).tolist()) for _ in layers]
    points = rng.normal(size=(12, sizes[0])) * rng.choice([0.0, 1.0, 1.0], (12, sizes[0]))
    target = int(rng.integers(net.classes))
    problem = problem_of(net, points[0], delta, target=target, margin=1e6)
    return Oracle(problem).parts[0], radii_of(net, delta), points


def target_of(oracle):
    positive = oracle.objectives[0] > 0.0
    return int(positive.argmax()) if oracle.net.outputs > 1 else int(positive[0])


def attacked(oracle, point):
    """Each attack at a point: objective, activations, the value found and the shifted layers."""
    u = oracle.net.transform(point)
    abstraction = Abstraction(oracle.net, oracle.shifts)
    root = abstraction.interval_bounds(u)
    for c in oracle.objectives:
        problem = WorstCaseProblem(abstraction, root, u, abstraction.objective(c))
        found = first_bounds(problem)
        hidden = [layer[0] for layer in found.hidden]
        yield c, hidden, float(found.upper[0]), oracle._layers(u[0], hidden, c)


@pytest.mark.parametrize(("seed", "depth"), quick(12, CASES))
def test_in_delta_and_not_better_than_attack(seed, depth):
    oracle, radii, points = random_oracle(seed, depth)
    for point in points:
        for c, _, value, pairs in attacked(oracle, point):
            for (W, b), (dw, db), (V, d) in zip(pairs_of(oracle.net), radii, pairs, strict=True):
                assert np.abs(V - W).max() <= dw + 1e-12
                assert np.abs(d - b).max() <= db + 1e-12
            shifted = Scenario.of(oracle.net, pairs, c)
            there = float(shifted.value(point))
            # the last hidden layer is moved anew, which can only hurt more
            assert there <= value + 1e-9
            if depth == 1:
                assert there == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(("seed", "depth"), quick(12, CASES))
def test_scenarios_lie_in_shift_set(seed, depth):
    """Its value at any point is not below the least over Delta."""
    oracle, radii, points = random_oracle(seed, depth)
    worst = pp.certify(oracle.net, points, radii, target_of(oracle), exact_margin=True)
    for i, point in enumerate(points):
        for shifted in (oracle.attack(point[None])[0], oracle.test(point)[1]):
            assert (shifted.value(points) >= worst.lower - 1e-9).all()
            if depth == 1:
                assert float(shifted.value(point)) == pytest.approx(worst.upper[i], abs=1e-9)


def least_behind(net, radii, c, W1, b1, points):
    """Least objective over all second layers and outputs of Delta, for a given first layer.

    Activations are not negative, so each weight of the second layer moves all the way against its
    neuron, and every neuron on its own: interval arithmetic is exact.
    """
    (_, _), (W2, b2), (W3, b3) = pairs_of(net)
    _, (dw2, db2), (dw3, db3) = radii
    values = []
    for point in points:
        h = np.maximum(W1 @ seen(net, point) + b1, 0.0)
        z, room = W2 @ h + b2, dw2 * h.sum() + db2
        low, high = np.maximum(z - room, 0.0), np.maximum(z + room, 0.0)
        total = 0.0
        a = c @ W3 - dw3 * np.abs(c).sum()
        for k in range(len(a)):
            total += min(a[k] * low[k], a[k] * high[k])
        values.append(total + c @ b3 - db3 * np.abs(c).sum())
    return np.array(values)


@pytest.mark.parametrize("seed", seeds(8, 40))
def test_with_two_hidden_layers_nothing_behind_first_is_left_to_hurt(seed):
    oracle, radii, points = random_oracle(seed, 2)
    far = np.random.default_rng(seed).normal(size=(40, oracle.net.inputs)) * 2.0
    for point in points:
        for c, hidden, _, pairs in attacked(oracle, point):
            shifted = Scenario.of(oracle.net, pairs, c)
            least = least_behind(oracle.net, radii, c, *pairs[0], far)
            np.testing.assert_allclose(shifted.value(far), least, atol=1e-9)
            u = oracle.net.transform(point)[0]
            plain = shifted_layers(oracle.shifts, u, hidden, c)
            plain = Scenario.of(oracle.net, [pairs[0], *plain[1:]], c)
            assert (shifted.value(far) <= plain.value(far) + 1e-9).all()


@pytest.mark.parametrize("seed", seeds(8, 40))
def test_scenario_of_one_hidden_layer_is_worst_for_inputs_of_equal_sign(seed):
    oracle, radii, points = random_oracle(seed, 1)
    point = np.where(points[0] == 0.0, 0.5, points[0])
    signs = np.sign(oracle.net.transform(point)[0])
    near = point + np.random.default_rng(seed).normal(size=(200, oracle.net.inputs))
    near = near[(np.sign(oracle.net.transform(near)) == signs).all(axis=1)]
    shifts = [Scenario.of(oracle.net, pairs, c) for c, _, _, pairs in attacked(oracle, point)]
    least = np.min([shifted.value(near) for shifted in shifts], axis=0)
    worst = pp.certify(oracle.net, near, radii, target_of(oracle), exact_margin=True)
    np.testing.assert_allclose(least, worst.upper, atol=1e-9)


def test_undecided_is_not_robust(monkeypatch):
    """Bounds on both sides of the margin: no verdict, no shift, and no evidence."""
    oracle, _, points = random_oracle(0, 2)
    oracle.margin = 0.0
    for lower, upper in ((-1.0, 1.0), (-1e-12, 0.0), (np.nan, np.inf)):
        tested = Evidence(points[0], lower, upper, trace=None)
        monkeypatch.setattr(oracle.robustness, "test", lambda *_, tested=tested: tested)
        assert oracle.test(points[0])[:2] == (False, None)
        assert oracle.evidence(points[0]) is None
