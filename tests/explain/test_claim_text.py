"""Numbers in the text of a claim, read back: none lies outside of the proved interval."""

from __future__ import annotations

import re

import numpy as np
import pytest

import proplace as pp
from proplace.explain.claims import Claim, format_range, format_room, proved_values

FEATURES = {
    "free": pp.Continuous("amount", -1000, 1000, unit="units"),
    "years": pp.Continuous("age", 0, 100, step=1, unit="years"),
    "dollars": pp.Continuous("income", 0, 200_000, step=500, unit="dollars"),
    "cents": pp.Continuous("price", 0, 50, step=0.01, unit="dollars"),
    "percent": pp.Continuous("debt", 0, 100, step=0.1, unit="%"),
}
NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
KINDS = {
    rf"at least {NUMBER}": lambda f, a: (a, f.upper),
    rf"at most {NUMBER}": lambda f, a: (f.lower, a),
    rf"(?:between )?{NUMBER} (?:and|to) {NUMBER}": lambda f, a, b: (a, b),
    rf"{NUMBER}, give or take {NUMBER}": lambda f, m, r: (m - r, m + r),
}


def read(feature, text):
    """Return the kind of a text and the interval that it states."""
    plain = re.sub(r" (units|years|dollars|percentage points)|%", "", text.replace("\u2212", "-"))
    for kind, interval in KINDS.items():
        if found := re.fullmatch(kind, plain):
            return kind, interval(feature, *(float(n.replace(",", "")) for n in found.groups()))
    pytest.fail(f"cannot read {text!r}")


def cases(feature, count=400):
    """Return today's value, the new one and proved ends, askew and even, on the grid and beside it."""
    rng = np.random.default_rng(0)
    step = feature.step or (feature.upper - feature.lower) / 1e4
    for _ in range(count):
        before, after = feature.lower + step * rng.choice(np.arange(10, 90), 2, replace=False)
        room = step * rng.uniform(0.0, 9.0, 2)
        if rng.random() < 0.5:
            room[1] = room[0] * rng.uniform(1.0, 1.1)
        ends = [round(after, 6) - room[0], round(after, 6) + room[1]]
        if rng.random() < 0.2:
            ends[int(after > before)] = feature.upper if after > before else feature.lower
        yield round(before, 6), round(after, 6), tuple(map(float, ends))


@pytest.mark.parametrize("name", FEATURES)
def test_claims_state_no_value_outside_proved_interval(name):
    feature, seen = FEATURES[name], set()
    for before, after, ends in cases(feature):
        low, high, to_end = proved_values(feature, before, after, ends)
        if low is None:
            continue
        direction = "up" if after > before else "down"
        claim = Claim("x", "x", before, after, low, high, direction, to_end, feature=feature)
        kind, stated = read(feature, claim.goal)
        seen.add(kind)
        assert ends[0] - 1e-9 <= stated[0] <= stated[1] <= ends[1] + 1e-9, (claim.goal, ends)
        assert claim.to_dict() == {
            "from": before,
            "to": after,
            "unit": feature.unit,
            "low": low,
            "high": high,
            "direction": direction,
            "to_end": to_end,
        }
    assert len(seen) == len(KINDS)


@pytest.mark.parametrize("name", FEATURES)
def test_ranges_are_rounded_inwards(name):
    feature = FEATURES[name]
    for _, value, ends in cases(feature, 200):
        if text := format_room(feature, value, ends):
            _, stated = read(feature, text)
            assert ends[0] - 1e-9 <= stated[0] <= stated[1] <= ends[1] + 1e-9, (text, ends)
            assert format_range(feature, *ends) == text
            assert stated[1] - stated[0] >= 0.5 * (ends[1] - ends[0]) - 2.0 * (feature.step or 0.0)
