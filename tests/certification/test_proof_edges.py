"""Certificates of rows whose worst margin is the asked one to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

import proplace as pp
from proplace.certification import proof

WORST = 0.75  # of the network below at x = 1: 1 - 0.25


def certificate(margin, verdict):
    """A claim about a linear network with its bias moved down by all of delta."""
    net = pp.Network([([[1.0]], [0.0])])
    shifts = pp.Shifts.of(net, [(0.0, 0.25)])
    facts = proof.claim(proof.digest(net), shifts, np.ones(1), 1, margin, verdict)
    if verdict == "robust":
        facts |= {"tighten": False, "lower": [], "upper": [], "trees": [[{}]]}
    else:
        facts |= {"shifted": proof.shifted_fields(pp.Network([([[1.0]], [-0.25])]))}
    return proof.Certificate.of(facts).check(net)


@pytest.mark.parametrize("verdict", ["robust", "not robust"])
def test_a_margin_that_is_just_kept_is_kept(verdict):
    robust = verdict == "robust"
    assert certificate(WORST, verdict).accepted == robust
    assert certificate(math.nextafter(WORST, 0.0), verdict).accepted == robust
    assert certificate(math.nextafter(WORST, 1.0), verdict).accepted == (not robust)
