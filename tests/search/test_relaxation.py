"""A relaxation contains every point of interest for any bounds of its neurons, its leaves no other."""

from __future__ import annotations

import numpy as np
import pytest

import proplace as pp
from proplace.search.local import TESTS, LocalSearch
from proplace.search.oracle import Oracle, Verdict
from proplace.search.program import DeadlineReached
from proplace.search.ranges import key_of
from proplace.search.relaxation import Relaxation, tighten
from proplace.search.state import SearchState
from proplace.search.subproblem import PseudoCosts, choose
from support.problems import (
    plain,
    pre_activations,
    problem_of,
    random_problem,
    random_state,
    with_margin,
)
from support.tiers import quick

CASES = [(seed, 1 + seed % 3, seed % 2 == 0) for seed in range(90)]


def rebuilt(relaxation):
    """The same relaxation with the limits known by now."""
    known = relaxation.limits, relaxation.scenarios
    return Relaxation(relaxation.polytope, relaxation.margin, *known)


def holds(relaxation, state, decisions=()):
    """Test if the point of the state is a solution at its own distance or less."""
    least = relaxation.solve(decisions)
    if least is None or least.objective > state.distance * (1.0 + 1e-7) + 1e-7:
        return False
    low, high = np.array(relaxation.lp.column_bounds[: len(relaxation.region)]).reshape(-1, 2).T
    relaxation.lp.set_solver_column_bounds(relaxation.region, state.variables, state.variables)
    there = relaxation.nearest()
    relaxation.lp.set_solver_column_bounds(relaxation.region, low.copy(), high.copy())
    return there is not None and there.objective <= state.distance + 1e-7


@pytest.mark.parametrize(("seed", "depth", "cut"), quick(18, CASES))
def test_signs_of_point_do_not_exclude_it(seed, depth, cut):
    """Signs known in a layer rest on activations before it, whether the margin needs them or not."""
    state = random_state(seed, depth=depth, cut=cut)
    for share in (0.0, 0.3, 0.6, 1.0):
        relaxation = Relaxation(state.polytope, state.margin, state.signs(share), state.scenarios)
        assert holds(relaxation, state)
        assert holds(relaxation, state, state.decisions(relaxation, 0.5))


@pytest.mark.parametrize(("seed", "depth", "cut"), quick(18, CASES))
def test_tightening_does_not_exclude_point_within_cutoff(seed, depth, cut):
    state = random_state(seed, depth=depth, cut=cut)
    limits = state.signs(0.2)
    relaxation = Relaxation(state.polytope, state.margin, limits, state.scenarios[:2])
    cutoff = state.distance * (1.0 + 1e-6) + 1e-9
    assert tighten(relaxation, cutoff)
    assert holds(relaxation, state)
    relaxation.add_scenario(state.scenarios[2])
    assert tighten(relaxation, cutoff)
    assert holds(relaxation, state)
    assert holds(relaxation, state, state.decisions(relaxation, 0.5))
    again = rebuilt(relaxation)
    assert tighten(again, cutoff)
    assert holds(again, state)
    few = Relaxation(state.polytope, state.margin, again.limits, state.scenarios[1:])
    assert holds(few, state)
    for scenario in state.scenarios:
        for layer, z in enumerate(pre_activations(scenario, state.point)):
            for k, value in enumerate(z):
                low, high = again.limits.get(key_of(scenario, layer, k), (-np.inf, np.inf))
                assert low - 1e-7 <= value <= high + 1e-7


@pytest.mark.parametrize(("seed", "depth", "cut"), quick(18, CASES))
def test_leaves_keep_margin_of_every_scenario(seed, depth, cut):
    """If no decision is left, the margin in the program is the true margin."""
    state = random_state(seed, depth=depth, cut=cut)
    # The scenarios keep the margin at the point and little more: most leaves lie at its border.
    problem = with_margin(state.problem, state.margin, 0.0)
    whole = Relaxation(state.polytope, state.margin, {}, state.scenarios)
    assert tighten(whole, state.distance * (1.0 + 1e-6) + 1e-9)
    known = state.signs(0.5, narrow=0.0)
    signed = Relaxation(state.polytope, state.margin, known, state.scenarios)
    for relaxation in (whole, rebuilt(whole), signed):
        stack, leaves = [()], 0
        while stack and leaves < 20:
            decisions = stack.pop()
            solution = relaxation.solve(decisions)
            if solution is None:
                continue
            sides = choose(problem, relaxation, PseudoCosts(), solution, decisions)
            if sides is not None:
                stack += [(*decisions, side) for side in reversed(sides)]
                continue
            leaves += 1
            for scenario in state.scenarios:
                assert scenario.value(solution.point) >= state.margin - 1e-6
        assert leaves


@pytest.mark.parametrize(("seed", "depth", "cut"), quick(18, CASES[:45]))
def test_limits_of_neurons_are_those_of_program(seed, depth, cut):
    """Rows about other networks change neither result, or both."""
    state = random_state(seed, depth=depth, cut=cut)
    relaxation = Relaxation(state.polytope, state.margin, {}, state.scenarios[:2])
    tighten(relaxation, state.distance * (1.0 + 1e-6) + 1e-9)
    relaxation.add_scenario(state.scenarios[2])
    relaxation.add_scenario(state.scenarios[0])  # known by now: as narrow as it is in the program
    for neuron in relaxation.neurons:
        low, high = relaxation.limits[neuron.key]
        _, v = relaxation.lp.column_bounds[neuron.v]
        _, s = relaxation.lp.column_bounds[neuron.s]
        assert v * neuron.unit == pytest.approx(max(high, 0.0), abs=1e-12)
        assert s * neuron.unit == pytest.approx(max(-low, 0.0), abs=1e-12)


def test_tightened_ranges_include_rounding():
    met = 0
    for seed, depth, cut in CASES[:12]:
        state = random_state(seed, depth=depth, cut=cut)
        relaxation = Relaxation(state.polytope, state.margin, {}, state.scenarios)
        for neuron in relaxation.neurons[:3]:
            relaxation.lp.set_cost_for_now(neuron.v, 1.0)
            relaxation.lp.set_cost_for_now(neuron.s, -1.0)
            assert relaxation.lp.run() == "optimal"
            exact = relaxation.lp.objective * neuron.unit
            value = relaxation.least(neuron, 1.0)
            assert value <= exact - 0.9e-9 * (1.0 + abs(exact))
            assert value >= exact - 1e-8 * (1.0 + abs(exact))
            met += 1
    assert met >= 10


def test_search_for_incumbent_tests_no_longer_than_to_deadline():
    seen = []

    class Watched(Oracle):
        def test(self, point, deadline=np.inf, nodes=None):
            seen.append(deadline)
            return super().test(point, deadline, nodes)

    problem, piece = random_problem(1)
    local = LocalSearch(SearchState(problem, piece, Watched(problem), deadline=1e9))
    local.start()
    local.refine()
    assert seen
    assert set(seen) == {1e9}


def test_after_deadline_no_other_goal_is_tested():
    tested = []

    class Undecided(Oracle):
        def test(self, point, deadline=np.inf, nodes=None):
            tested.append(point)
            return Verdict(False)

    net = pp.Network([([[1.0, 1.0]], [0.0])])
    problem = problem_of(net, [-1.0, -1.0], 0.01)
    corners = np.random.default_rng(0).uniform(1.0, 2.0, (30, 2))
    piece = plain(problem.x, np.vstack([problem.x, corners]))
    with pytest.raises(DeadlineReached):
        LocalSearch(SearchState(problem, piece, Undecided(problem), deadline=-np.inf)).start()
    assert len(tested) == 1
    LocalSearch(SearchState(problem, piece, Undecided(problem))).start()  # with all the time
    assert len(tested) == 1 + TESTS + len(corners)
