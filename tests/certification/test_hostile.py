"""Rows whose worst-case margin is the required one up to last bits: no verdict is false."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import exactly
import proplace as pp
from support.tiers import thorough

pytestmark = pytest.mark.usefixtures("any_margin")


def hostile(rng, kind):
    """A network, a row, radii, a target, and a margin that is the worst one or some ulps beside it."""
    hidden = {"linear": 0, "frozen": 3, "one box": 2, "tree": 2}.get(kind, 1)
    widths = [int(rng.integers(1, 5)) for _ in range(hidden)]
    if kind == "tree":  # a single first activation, so that the second layer can be solved exactly
        widths[0] = 1
    sizes = [int(rng.integers(1, 5)), *widths, int(rng.choice([1, 1, 2, 3]))]
    big = 10.0 ** rng.integers(-3, 9) if rng.random() < 0.3 else 1.0
    layers = []
    for n, m in itertools.pairwise(sizes):
        W, b = rng.normal(size=(m, n)), rng.normal(size=m)
        if rng.random() < 0.5:  # decimals, as people write them
            W, b = np.round(W, 1), np.round(b, 1)
        layers.append((W * big, None if rng.random() < 0.1 else b * big))
        big = 1.0 / big
    scaled = rng.random() < 0.3
    net = pp.Network(
        layers,
        scale=np.round(rng.normal(size=sizes[0]), 2) if scaled else None,
        shift=np.round(rng.normal(size=sizes[0]) * 10.0, 1) if scaled else None,
    )
    radius = 0.0 if kind == "frozen" else float(rng.choice([0.0, 0.1, 0.03, 1e-3]))
    delta = [(radius * float(np.abs(W).max()), radius * float(np.abs(W).max())) for W, _ in layers]
    if kind == "one box":
        delta[0] = (0.0, 0.0)
    x, target = np.round(rng.normal(size=sizes[0]), 1), int(rng.integers(net.classes))
    worst = exactly.worst(net, x, delta, target)
    margin = float(worst)
    for _ in range(int(rng.integers(0, 4))):
        margin = float(np.nextafter(margin, rng.choice([-np.inf, np.inf])))
    if rng.random() < 0.3:
        margin += (
            float(rng.choice([-1.0, 1.0])) * 10.0 ** rng.integers(-16, -9) * max(1.0, abs(margin))
        )
    return net, x, delta, target, margin, worst >= exactly.Q(margin)


@pytest.mark.parametrize("number", thorough(60, 300))
@pytest.mark.parametrize("kind", ["linear", "one layer", "frozen", "one box", "tree"])
def test_no_verdict_is_false(kind, number):
    """With and without certificates. Nearly all of these rows get one."""
    rng = np.random.default_rng(len(kind))
    counts = {"robust": 0, "not": 0, "undecided": 0}
    for _ in range(number):
        net, x, delta, target, margin, robust = hostile(rng, kind)
        for certificates in (False, True):
            report = pp.certify(net, x, delta, target, margin=margin, certificates=certificates)
            if report.undecided[0]:
                counts["undecided"] += 1
                assert report.lower[0] < margin <= report.upper[0]
                continue
            assert report.robust[0] == robust
            assert (report.lower[0] >= margin) == robust
            assert (report.upper[0] < margin) == (not robust)
            counts["robust" if robust else "not"] += 1
    assert min(counts["robust"], counts["not"]) >= number / 3
    assert counts["undecided"] <= number / 2
