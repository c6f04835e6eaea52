"""Proved intervals in words: read back, they never claim more than was proved."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from proplace.core.distances import L1
from proplace.explain.claims import Claim, format_room, proved_values
from support.lenders import setting_of
from support.tiers import examples

INCOME = pp.Continuous("income", 0, 200_000, step=500, unit="dollars")
DEBT = pp.Continuous("debt", 0, 100, step=1, unit="% of income")
PRICE = pp.Continuous("price", 0, 1e6, step=0.5, unit="$")
SHARE = pp.Continuous("share", 0, 1)
FREE = pp.Continuous("free", scaling="none", unit="units")
ROOMS = pp.Ordinal("rooms", [1, 2, 3, 4, 6])


def claim(feature, before, after, ends):
    direction = "up" if before < after else "down"
    low, high, to_end = proved_values(feature, before, after, ends)
    return Claim("f", "f", before, after, low, high, direction, to_end, 1.0, feature)


@pytest.mark.parametrize(
    ("feature", "before", "after", "ends", "goal"),
    [
        (INCOME, 48_000, 52_000, (52_000, 200_000), "at least 52,000 dollars"),
        (INCOME, 48_000, 52_000, (51_500, 200_000), "at least 51,500 dollars"),
        (INCOME, 58_000, 52_000, (0, 52_000), "at most 52,000 dollars"),
        (INCOME, 48_000, 52_000, (51_500, 52_500), "52,000 dollars, give or take 500"),
        (INCOME, 48_000, 52_000, (51_500, 55_000), "between 51,500 and 55,000 dollars"),
        (INCOME, 48_000, 52_000, (51_500.5, 52_499.5), "52,000 dollars, give or take 499"),
        (DEBT, 38, 31, (0, 31), "at most 31% of income"),
        (DEBT, 38, 31, (29, 33), "31% of income, give or take 2 percentage points"),
        (PRICE, 5, 10, (9.5, 10.5), "$10, give or take $0.5"),
        (SHARE, 0.1, 0.5, (0.25, 1.0), "at least 0.25"),
        (SHARE, 0.1, 0.5, (1 / 3, 1.0), "at least 0.333334"),  # not a digit too low
        (SHARE, 0.9, 0.5, (0.0, 2 / 3), "at most 0.666666"),
        (FREE, 3.0, 7.0, (7.0, math.inf), "at least 7 units"),
        (FREE, 9.0, 7.0, (-math.inf, 7.0), "at most 7 units"),
        (FREE, 3.0, 7.0, (6.9, 7.1), "7 units, give or take 0.1"),
        (ROOMS, 2, 4, (4, 6), "at least 4"),
        # The end of the range on the other side of the change makes no one-sided goal.
        (DEBT, -10, 2, (0, 4), "2% of income, give or take 2 percentage points"),
        (DEBT, 110, 98, (95, 100), "98% of income, give or take 2 percentage points"),
        # The whole range, or the person's own value, is proved: in the direction of the change.
        (INCOME, 48_000, 52_000, (0, 200_000), "at least 52,000 dollars"),
        (INCOME, 58_000, 52_000, (0, 200_000), "at most 52,000 dollars"),
        (INCOME, 51_800, 52_000, (51_500, 200_000), "at least 52,000 dollars"),
    ],
)
def test_words(feature, before, after, ends, goal):
    assert claim(feature, before, after, ends).goal == goal


@pytest.mark.parametrize(
    ("feature", "before", "after", "ends"),
    [
        (INCOME, 48_000, 52_000, None),
        (INCOME, 48_000, 52_000, (52_000, 52_000)),
        (INCOME, 48_000, 52_000, (51_999.9, 52_000.1)),  # less than a digit
        (INCOME, 48_000, 52_000, (60_000, 70_000)),  # of another answer
        (INCOME, 48_000, 52_000, (math.nan, 70_000)),
        (INCOME, 51_800, 52_000, (51_500, 52_500)),  # no range beyond the person's own value
        (INCOME, 52_300, 52_000, (51_500, 200_000)),
        (INCOME, 48_000, 200_000, (200_000, 200_000)),
        (pp.Binary("home"), 0, 1, (0, 1)),
        (pp.Ordinal("grade", ["C", "B", "A"]), "C", "B", (1, 2)),
        (None, 1, 2, (1, 3)),
    ],
)
def test_nothing_to_state(feature, before, after, ends):
    assert proved_values(feature, before, after, ends) == (None, None, False)


def numbers(text):
    return [
        Fraction(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)
    ]


def said(words, feature):
    """The interval that words mean to a reader, by the words alone."""
    least = -math.inf if feature.lower is None else Fraction(feature.lower)
    most = math.inf if feature.upper is None else Fraction(feature.upper)
    if words.startswith("at least"):
        return numbers(words)[0], most
    if words.startswith("at most"):
        return least, numbers(words)[0]
    first, second = numbers(words)
    return (first, second) if words.startswith("between") else (first - second, first + second)


@examples(300)
@given(
    feature=st.sampled_from([INCOME, DEBT, PRICE, SHARE]),
    places=st.tuples(*[st.floats(0, 1)] * 3),
    reach=st.sampled_from([(False, False), (True, False), (False, True), (True, True)]),
)
def test_words_never_state_more_than_was_proved(feature, places, reach):
    low, value, high = sorted(
        float(feature.lower + p * (feature.upper - feature.lower)) for p in places
    )
    if feature.step is not None:
        value = float(feature.lower + feature.step * round((value - feature.lower) / feature.step))
    low = float(feature.lower) if reach[0] else min(low, value)
    high = float(feature.upper) if reach[1] else max(high, value)
    for before in (float(feature.lower), float(feature.upper)):
        found = claim(feature, before, value, (low, high))
        if before == value or not found.interval:
            continue
        for first, last in (said(found.goal, feature), tuple(numbers(found.interval))):
            # An end is the decimal that is written for it, which reads back as the same float.
            assert Fraction(repr(low)) <= first <= last <= Fraction(repr(high)), (found, low, high)
        assert found.to_end == found.goal.startswith(("at least", "at most"))


def test_guaranteed_range_of_unchanged_number():
    assert format_room(INCOME, 50_000, (49_000.2, 51_000.7)) == "49,001 to 51,000 dollars"
    assert format_room(FREE, 3.0, (2.0, math.inf)) == "at least 2 units"
    assert format_room(INCOME, 50_000, (50_000, 50_000)) == ""
    assert format_room(INCOME, 50_000, (51_000, 52_000)) == ""  # not at the person's own value
    assert format_room(pp.Binary("home"), 1, (0, 1)) == ""


SCHEMA = pp.Schema([INCOME, DEBT, pp.Binary("home", label="owns a home")])
NET = pp.Network([(np.zeros((1, 3)), [1.0])])
MODEL = pp.Model.of(NET).with_schema(SCHEMA)
LOAN = pp.Wording("the loan", ["refused", "approved"], "applicant")
HOLDS = {"income": (52_000, 200_000), "debt": (29, 33)}


def explanation(delta=0.02, **more):
    before = pd.Series({"income": 48_000, "debt": 38, "home": 0}, dtype=object)
    after = pd.Series({"income": 52_000, "debt": 31, "home": 0}, dtype=object)
    setting = setting_of(MODEL, pp.Shifts.of(NET, delta), distance=L1(np.ones(3)))
    e = pp.Explanation(
        "optimal",
        "",
        index=7,
        target=1,
        original=before,
        counterfactual=after,
        distance=0.2,
        bound=0.2,
        margin=0.01,
        setting=setting,
    )
    return replace(e, guaranteed_ranges=HOLDS, **more)


def test_sentence_with_proved_words_reads_aloud():
    assert explanation().describe(LOAN).sentence == (
        "The loan would have been approved with income of at least 52,000 dollars (today: 48,000) and "
        "debt of 31% of income, give or take 2 percentage points (today: 38%). This is proved for all "
        "these values together within the declared range (0 to 200,000 dollars) and for every model "
        "whose weights and biases each differ from the current model by at most 0.02."
    )
    closed = replace(explanation(), guaranteed_ranges={"debt": (29, 33)}).describe(LOAN)
    assert "This is proved for all these values together and for every model" in closed.sentence
    assert [c.goal for c in closed.claims] == [
        "52,000 dollars",
        "31% of income, give or take 2 percentage points",
    ]
    assert [c.after for c in closed.claims] == [52_000, 31]


@pytest.mark.parametrize(
    "change",
    [{"margin": np.nan}, {"margin": -0.1}, {"status": "valid"}, {"setting": None}],
)
def test_intervals_without_proof_are_not_reported(change):
    words = replace(explanation(), **change).describe(LOAN)
    assert "at least" not in words.sentence
    assert "give or take" not in words.sentence
    assert "together" not in words.sentence
    assert not any(c.interval for c in words.claims)


def test_intervals_for_current_model_alone_promise_nothing_of_others():
    words = explanation(delta=0.0).describe(LOAN)
    assert "at least 52,000 dollars" in words.sentence
    assert "within the declared range" in words.sentence
    assert "and for the current model only: a retrained model" in words.sentence
