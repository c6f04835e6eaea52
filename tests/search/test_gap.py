"""Bounds at an optimality gap: never above the optimum, and within the requested gap."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from proplace.search import bilevel, search, tree
from proplace.search.problem import SMALLEST_GAP
from support.problems import (
    MARGIN,
    SAME,
    SLACK,
    Clock,
    check_answer,
    plain,
    problem_of,
    random_net,
    random_problem,
)
from support.tiers import every, quick, seeds

GAPS = [0.0, 0.01, 0.05, 0.2, 0.5, 0.999999]


def at_gap(problem, gap):
    return replace(problem, gap=max(gap, SMALLEST_GAP))


def check_gap(found, optimum, gap):
    """Check an outcome at a gap against the distance of the nearest robust point."""
    gap = max(gap, SMALLEST_GAP)
    assert found.lower <= optimum * (1.0 + 1e-6) + 1e-9
    if found.point is not None:
        assert found.distance >= optimum - SAME
        assert found.lower <= found.distance
    if found.status == "infeasible":
        assert math.isinf(optimum)
    if found.status == "optimal":
        assert not found.timed_out
        assert found.lower >= (1.0 - gap) * found.distance * (1.0 - 1e-9)
        assert (1.0 - gap) * found.distance <= optimum * (1.0 + 1e-6) + 1e-9


@pytest.mark.parametrize("seed", seeds(10, 120))
def test_tree_proves_its_bound_at_every_gap(seed):
    problem, piece = random_problem(seed)
    truth = bilevel.solve(problem, piece)
    for gap in GAPS:
        found = tree.solve(at_gap(problem, gap), piece)
        assert found.status == truth.status
        check_gap(found, truth.distance, gap)
        if found.point is not None:
            check_answer(problem, piece, found, attacks=False)


def test_gap_of_one_ends_with_first_robust_point():
    problem, piece = random_problem(6)
    found = tree.solve(at_gap(problem, 1.0), piece)
    assert found.status == "optimal"
    check_gap(found, bilevel.solve(problem, piece).distance, 1.0)


@pytest.mark.parametrize("seed", seeds(3, 40))
def test_bound_holds_at_any_deadline_and_gap(seed, monkeypatch):
    problem, piece = random_problem(1 + 2 * seed)
    truth = bilevel.solve(problem, piece)
    clock = Clock(monkeypatch)
    for gap in GAPS:
        for looks in (0, 1, 2, 4, 7, 12, 20, 40):
            found = tree.solve(at_gap(problem, gap), piece, deadline=clock.now + looks + 0.5)
            check_gap(found, truth.distance, gap)
            assert found.timed_out == (found.status in ("feasible", "unknown"))


def several_pieces(seed):
    """A problem with three hulls, of which one holds the person, and the distance of the nearest."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        net = random_net(rng, 3, int(rng.integers(1, 3)), 6, 1)
        X = rng.uniform(-2.0, 2.0, (200, 3))
        target = 1 - int(net.predict(X[0])[0])
        robust = X[pp.certify(net, X, 0.01, target, margin=MARGIN + SLACK).robust]
        if len(robust) >= 15:
            break
    problem = problem_of(net, X[0], 0.01, target=target)
    near = robust[np.argsort(problem.distance.between(problem.x, robust), kind="stable")[:15]]
    groups = [near[i::3] for i in range(3)]
    pieces = [plain(problem.x, np.vstack([problem.x, g]) if i else g) for i, g in enumerate(groups)]
    return problem, pieces, min(bilevel.solve(problem, piece).distance for piece in pieces)


@pytest.mark.parametrize("seed", every(20, range(2, 60)))
def test_bound_over_several_pieces_holds_at_every_gap(seed):
    """A piece that is cut off at the gap of another may hold a nearer point."""
    problem, pieces, optimum = several_pieces(seed)
    for gap in GAPS:
        found = search(at_gap(problem, gap), pieces)
        assert found.status == "optimal"
        check_gap(found, optimum, gap)


@pytest.mark.parametrize("seed", quick(2, range(2, 20)))
def test_bound_over_several_pieces_holds_at_any_deadline(seed, monkeypatch):
    problem, pieces, optimum = several_pieces(seed)
    clock = Clock(monkeypatch)
    for gap in GAPS:
        for looks in (0, 3, 5, 8, 15, 30, 60):
            found = search(at_gap(problem, gap), pieces, deadline=clock.now + looks + 0.5)
            check_gap(found, optimum, gap)
            assert found.timed_out == (found.status in ("feasible", "unknown"))
