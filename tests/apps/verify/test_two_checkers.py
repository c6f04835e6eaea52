"""The checker of verify.html gives the verdicts of checker.py, and the same words for what is proved."""

from __future__ import annotations

import itertools

import pytest

from two_checkers import NO_NODE, NODE, all_cases, differences

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)


@pytest.mark.parametrize("seed", range(2))
def test_both_checkers_agree(seed, tmp_path):
    cases = [*itertools.islice(all_cases(seed, 25), 2000)]
    bad, count = differences(cases, tmp_path)
    assert not bad, bad[0]
    assert count[True] > 100
    assert count[False] > 500
