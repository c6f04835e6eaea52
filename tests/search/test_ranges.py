"""Ranges and affine tops of neurons contain what neurons do at points of the polytope."""

from __future__ import annotations

import numpy as np
import pytest

from proplace.search.oracle import Scenario
from proplace.search.ranges import Ranges, needs_of, ranges_of
from support.problems import points_of, pre_activations, random_state
from support.tiers import quick

CASES = [(seed, depth, cut) for seed in range(25) for depth in (1, 2, 3) for cut in (False, True)]


def tops_at(polytope, tops, variables):
    """The interpolation of values at the corners, at points given by their variables."""
    shares = variables[:, : len(polytope.D)] / polytope.scales
    return tops[0] + shares @ (tops[1:] - tops[0])


def check(polytope, scenario, limits, variables, points):
    ranges = ranges_of(polytope, scenario, limits)
    for layer, z in enumerate(pre_activations(scenario, points)):
        low, high = ranges.bounds[layer]
        assert (z >= low - 1e-9).all()
        assert (z <= high + 1e-9).all()
        top = tops_at(polytope, ranges.tops[layer], variables)
        assert (np.maximum(z, 0.0) <= top + 1e-9).all()
    return ranges


@pytest.mark.parametrize(("seed", "depth", "cut"), quick(30, CASES))
def test_points_of_polytope_lie_within(seed, depth, cut):
    state = random_state(seed, depth=depth, cut=cut)
    problem, polytope = state.problem, state.polytope
    variables, points = points_of(polytope, state.rng, 400)
    if cut:
        near = problem.distance.between(problem.x, points) <= state.distance
        variables, points = variables[near], points[near]
    for scenario in state.scenarios:
        ranges = check(polytope, scenario, {}, variables, points)
        assert not any(conditional.any() for conditional in ranges.conditional)


@pytest.mark.parametrize(("seed", "depth", "cut"), quick(30, CASES))
def test_point_that_limits_were_learnt_from_lies_within(seed, depth, cut):
    state = random_state(seed, depth=depth, cut=cut)
    for share in (0.2, 0.5, 0.9):
        limits = state.signs(share)
        for scenario in state.scenarios:
            plain = ranges_of(state.polytope, scenario, {})
            ranges = check(
                state.polytope, scenario, limits, state.variables[None], state.point[None]
            )
            for layer, conditional in enumerate(ranges.conditional):
                low, high = ranges.bounds[layer]
                was_open = (plain.bounds[layer][0] < 0.0) & (plain.bounds[layer][1] > 0.0)
                known = (low >= 0.0) | (high <= 0.0)
                assert known[conditional].all()
                if layer == 0:  # a sign that follows from the limits alone needs a row
                    assert (conditional == (known & was_open)).all()


def test_scenarios_of_all_kinds_are_met():
    """Shifts that follow x' have a layer more."""
    states = [random_state(seed, depth=2) for seed in range(40)]
    following = [
        scenario for state in states for scenario in state.scenarios if len(scenario.layers) == 3
    ]
    assert len(following) >= 10
    assert sum(len(state.polytope.D) == 0 for state in states) >= 3
    assert sum((state.polytope.scales != 1.0).any() for state in states) >= 2
    assert any((state.polytope.corners < 0.0).any() for state in states)


def test_simplex_contains_nearer_points():
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


@pytest.mark.parametrize("dead", [False, True])
def test_conditional_sign_needs_bounded_inputs(dead):
    """A neuron that the objective does not need, but whose sign a row requires.

    ``z <= 0`` needs lower bounds of the neurons that raise z and upper bounds of those that lower it,
    and ``z >= 0`` the opposite.
    """
    W = np.array([[1.0, -1.0]])
    shifted = Scenario(((np.eye(2), np.zeros(2)), (W, np.zeros(1))), np.zeros(1), 0.0)
    low, high = (-1.0, 0.0) if dead else (0.0, 1.0)
    bounds = [(-np.ones(2), np.ones(2)), (np.array([low]), np.array([high]))]
    for conditional in (False, True):
        masks = [np.zeros(2, bool), np.array([conditional])]
        (above, below), _ = needs_of(shifted, Ranges(bounds, [], masks))
        raises, lowers = [conditional, False], [False, conditional]
        assert above.tolist() == (lowers if dead else raises)
        assert below.tolist() == (raises if dead else lowers)
