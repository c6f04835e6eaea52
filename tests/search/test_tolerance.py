"""Searches for points that bear a miss: the tree against Algorithm 1, a mesh of points, and attacks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from oracles import joint_attack, milp_box_margin
from proplace.certification import certify
from proplace.core.distances import L1
from proplace.core.guarantee import Guarantee, Member
from proplace.search import bilevel, tree
from proplace.search.oracle import Oracle
from proplace.search.problem import SearchProblem
from support.problems import MARGIN, SAME, compare, dense, plain, random_problem
from support.tiers import seeds


def tolerant(seed):
    """A random problem whose answers may be missed, with what is left of its robust rows."""
    for attempt in range(60):
        problem, piece = random_problem((seed, attempt), depth=seed % 4)
        rng = np.random.default_rng([seed, attempt, 11])
        t = rng.choice([0.0, 0.02, 0.1, 0.3], (2, len(problem.x)))
        if not t.any():
            continue
        sets = tuple(replace(models, tolerance=t) for models in problem.guarantee.members)
        problem = replace(problem, guarantee=Guarantee(sets))
        if piece.vertices is None or len(robust(problem, piece.vertices)):
            return problem, piece
    raise AssertionError("no such problem")


def robust(problem, rows):
    for models in problem.guarantee.members:
        asked = {"margin": models.margin + problem.slack, "box": models.around(rows)}
        rows = rows[certify(models.network, rows, models.shifts, problem.target, **asked).robust]
    return rows


@pytest.mark.parametrize("seed", seeds(6, 24))
def test_same_as_algorithm_1(seed):
    compare(*tolerant(seed))


@pytest.mark.slow
def test_tolerance_takes_answers_farther_in_many_problems():
    """Otherwise, the tests above could not distinguish a tolerance from none."""
    farther = 0
    for seed in range(10):
        problem, piece = tolerant(seed)
        plain_sets = tuple(replace(models, tolerance=None) for models in problem.guarantee.members)
        exact = tree.solve(replace(problem, guarantee=Guarantee(plain_sets)), piece)
        farther += tree.solve(problem, piece).distance > exact.distance + 1e-3
    assert farther >= 5


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_answers_bear_every_miss_that_attack_finds(seed):
    problem, piece = tolerant(seed)
    found = tree.solve(problem, piece)
    rng = np.random.default_rng(seed)
    for models in problem.guarantee.members if found.point is not None else ():
        less, more = models.tolerance
        low, high = found.point - less, found.point + more
        met = joint_attack(models.network, low, high, models.shifts, problem.target, rng, 200)
        assert met >= models.margin - 1e-9


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_no_nearer_point_on_fine_mesh(seed):
    """A mesh of points. Mixed-integer programs decide each point over its box."""
    for attempt in range(200):
        rng = np.random.default_rng([seed, 7, attempt])
        sizes = [2, *rng.integers(2, 5, size=int(rng.integers(3))), 1]
        net = dense(rng, sizes)
        t = rng.choice([0.0, 0.1, 0.3], (2, 2))
        models = Member(net, pp.Shifts.of(net, 0.03), margin=MARGIN, tolerance=t)
        X = rng.uniform(-2.0, 2.0, (80, 2))
        problem = SearchProblem(Guarantee((models,)), 1, X[0], L1(np.full(2, 0.5)), 1e-5)
        good = robust(problem, X)
        if t.any() and len(good) >= 2 and net.margin(X[0])[0] < -0.05:
            break
    corners = np.vstack([problem.x, good[:2]])
    found = tree.solve(problem, plain(problem.x, corners))
    n = 14
    shares = [(n - i - j, i, j) for i, j in itertools.product(range(n + 1), repeat=2) if i + j <= n]
    mesh = np.array(shares) / n @ corners
    between = problem.distance.between(problem.x, mesh)
    for point in mesh[between < found.distance - SAME]:
        assert milp_box_margin(net, point - t[0], point + t[1], 0.03, 1) < MARGIN + 1e-5 + 1e-7


@pytest.mark.parametrize("solve", [tree.solve, bilevel.solve])
@pytest.mark.parametrize(("start", "bias"), [(-1.0, 0.0), (-1.0, 0.5), (-3.0, 2.0)])
def test_worst_miss_of_one_number(solve, start, bias):
    """The worst logit is (1 - d) u + b - d for u >= 0 and (1 + d) u + b - d below, at u = x - t."""
    net, d, t = pp.Network([([[1.0]], [bias])]), 0.02, 0.25
    models = Member(net, pp.Shifts.of(net, d), tolerance=np.array([[t], [0.0]]))
    problem = SearchProblem(Guarantee((models,)), 1, np.array([start]), L1(np.ones(1)), 1e-9)
    u = (d - bias) / (1.0 - d) if bias < d else (d - bias) / (1.0 + d)
    assert solve(problem, plain(problem.x)).point[0] == pytest.approx(u + t, abs=1e-6)


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_scenarios_are_shifts_at_misses(seed):
    """Values of the oracle are never below the worst-case margin, and a refuting shift misses it."""
    problem, _ = tolerant(seed)
    models, oracle = problem.guarantee.members[0], Oracle(problem)
    for point in np.random.default_rng(seed).uniform(-2.0, 2.0, (4, len(problem.x))):
        asked = {"box": models.around(point[None]), "exact_margin": True}
        worst = certify(models.network, point, models.shifts, problem.target, **asked)
        (scenario,) = oracle.attack(point[None])
        assert scenario.value(point) >= worst.lower[0] - 1e-7
        ok, scenario, _ = oracle.test(point)
        if not ok:
            assert worst.lower[0] - 1e-7 <= scenario.value(point) < models.margin
        assert ok == (worst.lower[0] >= models.margin)
