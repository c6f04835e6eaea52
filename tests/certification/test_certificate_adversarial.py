"""Networks made to break floating point: no accepted certificate is false."""

from __future__ import annotations

from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import proplace as pp


def cancelling(rng, size):
    """Two paths of size ``size`` that cancel up to a small rest of either sign."""
    rest = float(rng.normal())
    W1 = np.array([[size, 1.0], [size, 1.0 + rest / size]])
    return pp.Network([(W1, [0.0, 0.0]), ([[1.0, -1.0]], [0.0])])


def scaled(rng, sizes, factors):
    """A random network whose layers are scaled by the given factors."""
    layers = [
        (rng.normal(size=(m, n)) * f, rng.normal(size=m) * f)
        for n, m, f in zip(sizes, sizes[1:], factors, strict=False)
    ]
    return pp.Network(layers)


def huge_big_m(rng):
    """An indicator-like neuron: a bias of 1e9 that a solver's tolerance of 1e-6 can fool."""
    W1 = np.array([[1e9, 0.0], [1e9, 0.0], [0.0, 1.0]])
    W2 = np.array([[1.0, -1.0, float(rng.normal()) * 1e-3], [0.0, 0.0, 1.0]])
    return pp.Network([(W1, [1.0, 1.0 + 1e-7, 0.0]), (W2, [0.0, 0.0]), ([[1e4, -1.0]], [1e-5])])


KINDS = {
    "cancelling paths": lambda rng: cancelling(rng, float(10.0 ** rng.integers(3, 17))),
    "layers of 1e6": lambda rng: scaled(rng, (2, 3, 3, 1), (1e6, 1e6, 1e6)),
    "layers of 1e6 and 1e-6": lambda rng: scaled(rng, (2, 3, 3, 1), (1e6, 1e-6, 1.0)),
    "tiny weights": lambda rng: scaled(rng, (2, 3, 2), (1e-9, 1e-9)),
    "denormals": lambda rng: scaled(rng, (2, 3, 3, 1), (1e-310, 1.0, 1.0)),
    "all denormal": lambda rng: scaled(rng, (2, 2, 1), (1e-310, 1e-310)),
    "overflow": lambda rng: scaled(rng, (2, 3, 3, 1), (1e200, 1e200, 1e-200)),
    "huge M": huge_big_m,
    "mixed": lambda rng: scaled(rng, (2, 3, 3, 3), 10.0 ** rng.integers(-12, 12, 3)),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", KINDS)
def test_no_accepted_certificate_is_false(kind):
    rng = np.random.default_rng(len(kind))
    accepted = 0
    for _ in range(25):
        net = KINDS[kind](rng)
        X = rng.normal(size=(2, 2)) * rng.choice([1.0, 1e-3, 1e3])
        largest = max(float(np.abs(layer.W).max()) for layer in net.layers)
        delta = [
            (float(np.abs(layer.W).max()) * factor, float(np.abs(layer.bias).max()) * factor)
            for layer, factor in zip(net.layers, rng.choice([0.0, 1e-3, 1e-9], 3), strict=False)
        ]
        target = int(rng.integers(net.classes))
        for margin in (0.0, 1e-6, 1e-9 * min(largest, 1.0)):
            with np.errstate(all="ignore"):
                report = pp.certify(net, X, delta, target, margin=margin, certificates=True)
            for i, certificate in enumerate(report.certificates):
                if certificate is None:
                    assert not report.robust[i]
                    continue
                verdict = certificate.check(net)
                assert verdict.accepted, verdict.reason
                accepted += 1
                facts = certificate.facts
                assert (facts["verdict"] == "robust") == report.robust[i]
                assert exactly.is_true(net, facts, rng), (kind, facts)
    assert accepted > 10


@pytest.mark.parametrize("rest", [-1e-9, 0.0, 1e-9])
def test_verdict_that_hangs_on_one_part_in_1e17(rest):
    """Plain floats lose the remainder beside 1e8, so the exact value decides."""
    net = pp.Network([(np.array([[1e8], [1e8]]), [rest, 0.0]), ([[1.0, -1.0]], [0.0])])
    report = pp.certify(net, [[1.0]], 0.0, margin=0.0, certificates=True)
    true = Q(1e8) + Q(rest) - Q(1e8) >= 0
    certificate = report.certificates[0]
    if certificate is None:
        assert not report.robust[0]
    else:
        assert certificate.check(net).accepted
        assert (certificate.verdict == "robust") == true
