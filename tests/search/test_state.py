"""One owner of what changes in a search: the incumbent, the cut polytope, the counts."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from proplace.search import tree
from proplace.search.oracle import Oracle
from proplace.search.problem import SMALLEST_GAP as GAP
from proplace.search.program import Polytope
from proplace.search.state import SearchState
from support.problems import SAME, random_problem

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_answer_is_nearer_than_cutoff(seed):
    """A cutoff below the optimum leaves none, one above it changes nothing."""
    problem, piece = random_problem(seed)
    truth = tree.solve(problem, piece)
    if truth.point is None or truth.distance <= SAME:
        return
    for share, status in ((0.5, "infeasible"), (1.0 - 1e-5, "infeasible"), (1.01, "optimal")):
        found = tree.solve(problem, piece, cutoff=share * truth.distance)
        assert found.status == status, share
        assert (found.point is None) == (status == "infeasible")
        if found.point is not None:
            assert found.distance == pytest.approx(truth.distance, abs=SAME)


def test_incumbent_beyond_cutoff_is_kept_but_is_not_answer():
    problem, piece = random_problem(1)
    state = SearchState(problem, piece, Oracle(problem), cutoff=0.5)
    points = [np.full(len(problem.x), float(i)) for i in range(4)]
    for point, distance, is_answer in zip(
        points, (0.9, 0.5, 0.4, 0.7), (False, False, True, True), strict=True
    ):
        state.offer(point, distance)
        assert (state.point is not None) == is_answer
    assert state.incumbent is not None
    assert state.incumbent.distance == state.distance == state.upper == 0.4
    assert state.point is points[2]
    assert 0.0 < state.upper - state.prune_at <= 2.0 * GAP * 0.4


@pytest.mark.parametrize("seed", SEEDS)
def test_cut_gives_another_polytope(seed):
    """The one before it is as it was, and another cut starts from the whole piece again."""
    problem, piece = random_problem(seed)
    whole = Polytope.of(problem, piece)
    C = np.random.default_rng(seed).normal(size=(20, len(problem.x)))
    before = whole.least(C)
    reach = 0.3 * float(problem.distance.between(problem.x, whole.corners).max())
    near = whole.within(reach, [whole.corners.mean(axis=0)])
    assert (near.least(C) >= before - 1e-12).all()
    np.testing.assert_array_equal(whole.least(C), before)
    assert whole.halfspaces == ()
    far = near.within(10.0 * reach + 10.0, [whole.corners.mean(axis=0)])
    np.testing.assert_allclose(far.least(C), before)
    with pytest.raises(FrozenInstanceError):
        near.halfspaces = ()
