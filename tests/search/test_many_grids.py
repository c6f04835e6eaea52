"""Searches where many columns have steps: a rounded point first, a proved bound, and an end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.core.model_set import ModelSet
from proplace.search import tree
from proplace.search.oracle import Oracle
from proplace.search.problem import SearchProblem
from proplace.search.rounding import Rounding
from proplace.search.state import ROUGH_NODES, SearchState
from support.problems import (
    MARGIN,
    SLACK,
    check_answer,
    compare,
    dense,
    plain,
    problem_of,
    random_problem,
)
from support.tiers import quick, seeds


def many(seed, columns, step=0.1):
    """A network over many columns, all with steps, and the hull of a refused row and robust ones."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        net = dense(rng, [columns, 8, 6, 1], gain=1.0, bias=0.3)
        schema = pp.Schema(
            [pp.Continuous(f"c{j}", -2, 2, step=step, scaling="none") for j in range(columns)]
        )
        X = schema.canonical(rng.uniform(-2.0, 2.0, (300, columns)))
        robust = X[pp.certify(net, X, 0.01, margin=MARGIN + SLACK).robust]
        refused = X[net.margin(X) < -0.2]
        if len(robust) < 15 or not len(refused):
            continue
        x = refused[0] + 0.03  # between the steps
        models = ModelSet(net, pp.Shifts.of(net, 0.01), margin=MARGIN)
        distance = L1(np.full(columns, 1.0 / columns))
        problem = SearchProblem((models,), 1, x, distance, SLACK, schema.grids(x))
        near = robust[np.argsort(distance.between(x, robust), kind="stable")[:15]]
        return problem, plain(x, np.vstack([x, near]), -2.0, 2.0)
    raise AssertionError("no such problem")


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_many_steps_end_with_an_answer_and_a_bound(seed):
    problem, piece = many(seed, 16)
    found = tree.solve(problem, piece)
    assert found.status in ("optimal", "feasible")
    assert found.gave_up == (found.status == "feasible")
    assert found.nodes <= ROUGH_NODES + 1
    check_answer(problem, piece, found)
    assert 0.0 < found.lower <= found.distance


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_the_bound_is_below_every_answer_of_a_long_search(seed, monkeypatch):
    """A search that may go on far longer finds nothing nearer than the bound of the short one."""
    problem, piece = many(seed, 14)
    short = tree.solve(problem, piece)
    monkeypatch.setattr("proplace.search.state.ROUGH_NODES", 3000)
    longer = tree.solve(problem, piece)
    assert longer.distance >= short.lower - 1e-9
    assert longer.lower >= short.lower - 1e-9
    assert longer.distance <= short.distance + 1e-12
    check_answer(problem, piece, longer)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_between_the_steps_nothing_is_farther(seed, monkeypatch):
    """The bound of the search between the steps holds for the exact answer on the grids."""
    problem, piece = many(seed, 5, step=0.25)
    exact = tree.solve(problem, piece)
    loose = tree.solve(replace(problem, between=True), piece)
    assert exact.status == loose.status == "optimal"
    assert loose.lower <= exact.distance + 1e-9
    monkeypatch.setattr("proplace.search.state.MANY_GRIDS", 1)
    early = tree.solve(problem, piece)
    assert early.status == "optimal"
    assert early.distance == pytest.approx(exact.distance, abs=1e-6)


@pytest.mark.parametrize("seed", quick(4, range(200, 216)))
def test_looking_between_the_steps_first_changes_no_answer(seed):
    """Random problems of all kinds, against Algorithm 1."""
    problem, piece = random_problem(seed)
    usual = tree.solve(problem, piece)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proplace.search.state.MANY_GRIDS", 1)
        first = tree.solve(problem, piece)
    assert usual.status == first.status
    assert first.distance == pytest.approx(usual.distance, abs=1e-6)
    compare(problem, piece)


def test_bound_includes_the_search_between_the_steps(monkeypatch):
    """A tree that ends at its first node proves less than the search that came before it."""
    monkeypatch.setattr("proplace.search.state.ROUGH_NODES", 0)
    problem, piece = many(0, 16)
    found = tree.solve(problem, piece)
    assert found.gave_up
    between = tree.solve(replace(problem, between=True), piece)
    assert found.lower >= between.lower > 0.0


@pytest.mark.parametrize("ruled", [False, True])
def test_rounding_offers_no_point_that_breaks_a_rule(ruled):
    """Halfway between (0, 0) and (0.7, 0.7) both columns round to 1, which a + b <= 1.5 forbids."""
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    schema = pp.Schema([pp.Continuous(name, 0, 2, step=1, scaling="none") for name in "ab"])
    problem = problem_of(net, [0.0, 0.0], 0.0, grids=dict(enumerate(schema.columns)))
    piece = plain(problem.x, np.array([[0.0, 0.0], [0.7, 0.7]]), 0.0, 2.0)
    if ruled:
        rule = {"A": np.ones((1, 2)), "row_lower": np.zeros(1), "row_upper": np.full(1, 1.5)}
        piece = replace(piece, **rule)
    state = SearchState(problem, piece, Oracle(problem))
    Rounding(state).near(np.array([0.6, 0.6]), [])
    if ruled:
        assert state.point is None
    else:
        np.testing.assert_array_equal(state.point, [1.0, 1.0])


def test_rounded_points_are_good_starts():
    """They need not be the nearest, but they are near: far nearer than the robust rows themselves."""
    gains = []
    for seed in range(8):
        problem, piece = many(seed, 16)
        state = SearchState(problem, piece, Oracle(problem))
        loose = tree.solve(replace(problem, between=True), piece)
        Rounding(state).near(loose.point, [])
        nearest_row = problem.distance.between(problem.x, piece.vertices[1:]).min()
        if state.point is not None:
            gains.append(state.distance / nearest_row)
    assert len(gains) >= 6
    assert np.median(gains) < 0.8
