"""The checker of verify.html gives the verdicts of checker.py, and the same words for what is proved."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from two_checkers import (
    NO_NODE,
    NODE,
    all_cases,
    demand_cases,
    differences,
    stated_case,
    stated_changes,
)

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)


@pytest.mark.parametrize("seed", range(2))
def test_both_checkers_agree(seed, tmp_path):
    cases = [*itertools.islice(all_cases(seed, 25), 2000)]
    bad, count = differences(cases, tmp_path)
    assert not bad, bad[0]
    assert count[True] > 100
    assert count[False] > 500


def test_both_checkers_demand_the_same(tmp_path):
    """Of true certificates what is proved, the next double above and below it, and other things."""
    cases = [*demand_cases(np.random.default_rng(5))]
    bad, count = differences(cases, tmp_path)
    assert not bad, bad[0]
    assert min(count[True], count[False]) > 150


def test_both_checkers_redo_the_same_encodings(tmp_path):
    """Statements in original units with their values, words or encodings changed."""
    rng, cases = np.random.default_rng(7), []
    for _ in range(60):
        case = stated_case(rng)
        cases += [case, *stated_changes(case, rng, 60)]
    bad, count = differences(cases, tmp_path)
    assert not bad, bad[0]
    assert min(count[True], count[False]) > 1000
