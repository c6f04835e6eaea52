"""Ranges and affine tops of neurons contain what neurons do at points of the polytope."""

from __future__ import annotations

import numpy as np
import pytest

from proplace.search.ranges import ranges_of
from search_states import points_of, pre_activations, random_state

CASES = [(seed, depth, cut) for seed in range(25) for depth in (1, 2, 3) for cut in (False, True)]


def tops_at(polytope, tops, variables):
    """The interpolation of values at the corners, at points given by their variables."""
    shares = variables[:, : len(polytope.D)] / polytope.scales
    return tops[0] + shares @ (tops[1:] - tops[0])


def check(polytope, copy, limits, variables, points):
    ranges = ranges_of(polytope, copy, limits)
    for layer, z in enumerate(pre_activations(copy, points)):
        low, high = ranges.bounds[layer]
        assert (z >= low - 1e-9).all()
        assert (z <= high + 1e-9).all()
        top = tops_at(polytope, ranges.tops[layer], variables)
        assert (np.maximum(z, 0.0) <= top + 1e-9).all()
    return ranges


@pytest.mark.parametrize(("seed", "depth", "cut"), CASES)
def test_points_of_the_polytope_lie_within(seed, depth, cut):
    state = random_state(seed, ("l1", "linf", "l2")[seed % 3], depth=depth, cut=cut)
    problem, polytope = state.problem, state.polytope
    variables, points = points_of(polytope, state.rng, 400)
    if cut:
        near = problem.distance.between(problem.x, points) <= state.distance
        variables, points = variables[near], points[near]
    for copy in state.copies:
        ranges = check(polytope, copy, {}, variables, points)
        assert not any(kept.any() for kept in ranges.kept)


@pytest.mark.parametrize(("seed", "depth", "cut"), CASES)
def test_the_point_that_limits_were_learnt_from_lies_within(seed, depth, cut):
    state = random_state(seed, depth=depth, cut=cut)
    for share in (0.2, 0.5, 0.9):
        limits = state.signs(share)
        for copy in state.copies:
            plain = ranges_of(state.polytope, copy, {})
            ranges = check(state.polytope, copy, limits, state.variables[None], state.point[None])
            for layer, kept in enumerate(ranges.kept):
                low, high = ranges.bounds[layer]
                was_open = (plain.bounds[layer][0] < 0.0) & (plain.bounds[layer][1] > 0.0)
                known = (low >= 0.0) | (high <= 0.0)
                assert known[kept].all()
                if layer == 0:  # a sign that is known by the limits alone has to be asked for
                    assert (kept == (known & was_open)).all()


def test_copies_of_all_kinds_are_met():
    """Shifts that follow x' have a layer more."""
    states = [random_state(seed, depth=2) for seed in range(25)]
    following = [copy for state in states for copy in state.copies if len(copy.layers) == 3]
    assert len(following) >= 10
    assert sum(len(state.polytope.D) == 0 for state in states) >= 3
    assert sum(bool(state.problem.grids) for state in states) >= 10
    assert sum((state.polytope.scales != 1.0).any() for state in states) >= 2
    assert any((state.polytope.corners < 0.0).any() for state in states)


def test_the_simplex_contains_what_is_nearer():
    """Shares of the corners are barycentric coordinates: not negative, sum at most 1."""
    cut = 0
    for seed in range(60):
        state = random_state(seed, depth=1)
        problem, polytope = state.problem, state.polytope
        variables, points = points_of(polytope, state.rng, 300)
        near = problem.distance.between(problem.x, points) <= state.distance
        shares = variables[near][:, : len(polytope.D)] / polytope.scales
        assert (shares.sum(axis=1) <= 1.0 + 1e-9).all()
        cut += bool((polytope.scales != 1.0).any())
    assert cut >= 5
