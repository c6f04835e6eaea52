"""Algorithm 1 against brute force, the certifier, and itself with other solvers.

A returned point must lie in the piece, by an independent linear program, and be robust, by the
certifier. No robust point of a fine grid over the piece may be nearer.
"""

from __future__ import annotations

import functools
import itertools
import math
import time

import numpy as np
import pytest

import proplace as pp
from proplace import solvers
from proplace.core.errors import OptionError, SolverError
from proplace.region.pieces import ConvexPiece
from proplace.search import bilevel
from proplace.solvers import Solution
from proplace.solvers import solve as solve_model
from support import problems
from support.errors import raises
from support.problems import MARGIN, dense, outside, plain
from support.tiers import quick, seeds

SLACK = 1e-5
problem_of = functools.partial(problems.problem_of, slack=SLACK)


def box(d, low=-1.0, high=1.0):
    return plain(np.zeros(d), None, low, high)


def hull(vertices, low=-1.0, high=1.0):
    return plain(vertices[0], vertices, low, high)


def instance(seed, sizes, *, delta=0.03, target=1, vertices=3, bias=0.3, **front):
    """The first network from ``seed`` on with refused and robust rows, and a hull around one person."""
    for number in range(seed, seed + 1000):
        rng = np.random.default_rng(number)
        net = dense(rng, sizes, gain=1.5, bias=bias, **front)
        X = rng.uniform(-1.0, 1.0, size=(200, sizes[0]))
        robust = X[pp.certify(net, X, delta, target, margin=MARGIN + SLACK).robust]
        refused = X[net.margin(X, target) < -0.1]
        if len(robust) >= vertices and len(refused):
            x = refused[0]
            near = np.argsort(np.abs(robust - x).sum(axis=1))[:vertices]
            problem = problem_of(net, x, delta, target=target)
            return problem, hull(np.vstack([x, robust[near]]))
    raise AssertionError("no such network")


def combinations(vertices, steps):
    """All convex combinations with weights that are multiples of 1/steps."""
    parts = itertools.combinations_with_replacement(range(len(vertices)), steps)
    counts = np.array([np.bincount(part, minlength=len(vertices)) for part in parts])
    return counts / steps @ vertices


def mesh(low, high, steps):
    axes = [np.linspace(a, b, steps) for a, b in zip(low, high, strict=True)]
    return np.stack([part.ravel() for part in np.meshgrid(*axes)], axis=1)


def best_of(problem, points):
    """Smallest distance of the points whose exact worst-case margin suffices. Infinite without one."""
    report = pp.certify(
        problem.guarantee.members[0].network,
        points,
        problem.guarantee.members[0].shifts,
        problem.target,
        margin=MARGIN,
        exact_margin=True,
    )
    robust = points[report.upper >= problem.search_margin]
    return float(problem.distance.between(problem.x, robust).min()) if len(robust) else math.inf


def check(problem, piece, outcome, points):
    """Check an outcome against points of the piece that were tried one by one."""
    best = best_of(problem, points)
    if outcome.status == "infeasible":
        assert best == math.inf
        assert outcome.point is None
        assert outcome.lower == outcome.distance == math.inf
        return
    assert outcome.status == "optimal"
    point = outcome.point
    assert ((point >= piece.lower) & (point <= piece.upper)).all()
    assert outside(piece, point) <= 1e-8
    assert pp.certify(
        problem.guarantee.members[0].network,
        point,
        problem.guarantee.members[0].shifts,
        problem.target,
        margin=MARGIN,
    ).robust[0]
    assert outcome.distance == pytest.approx(
        float(problem.distance.between(problem.x, point[None])[0]), abs=1e-15
    )
    assert outcome.distance - 1e-7 <= outcome.lower <= outcome.distance
    assert outcome.distance <= best + 1e-7


# -- against brute force ---------------------------------------------------------------------------

DEPTHS = [(), (4,), (4, 3), (3, 3, 2)]
WIDTHS = quick(3, [(widths,) for widths in DEPTHS])


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("d", [1, 2])
def test_hull(d, widths):
    problem, piece = instance(10 * d, (d, *widths, 1))
    outcome = bilevel.solve(problem, piece)
    assert outcome.status == "optimal"
    check(problem, piece, outcome, combinations(piece.vertices, 16))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_box(widths):
    problem, piece = instance(40, (2, *widths, 1))
    piece = box(2)
    outcome = bilevel.solve(problem, piece)
    assert outcome.status == "optimal"
    check(problem, piece, outcome, mesh(piece.lower, piece.upper, 33))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("target", [0, 1, 2])
def test_several_classes(widths, target):
    problem, piece = instance(50, (2, *widths, 3), target=target)
    check(problem, piece, bilevel.solve(problem, piece), combinations(piece.vertices, 16))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_two_logits_and_one_logit_with_target_0(widths):
    for outputs in (1, 2):
        problem, piece = instance(60, (2, *widths, outputs), target=0)
        check(problem, piece, bilevel.solve(problem, piece), combinations(piece.vertices, 16))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_negative_inputs(widths):
    """If every input is negative, (W - delta) x is the upper end, not the lower."""
    problem, piece = instance(70, (2, *widths, 1))
    piece = box(2, -1.0, -0.1)
    check(problem, piece, bilevel.solve(problem, piece), mesh(piece.lower, piece.upper, 33))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_input_transform(widths):
    options = {"scale": [2.0, -0.5], "shift": [-0.3, 0.4]}
    problem, piece = instance(80, (2, *widths, 1), **options)
    check(problem, piece, bilevel.solve(problem, piece), combinations(piece.vertices, 16))


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_layers_without_bias(widths):
    problem, piece = instance(91, (2, *widths, 1), bias=0.0)
    assert {bias for _, bias in problem.guarantee.members[0].shifts.radii} == {0.0}
    check(problem, piece, bilevel.solve(problem, piece), combinations(piece.vertices, 16))


def test_radius_of_each_layer():
    delta = [(0.05, 0.0), (0.0, 0.02), (0.01, 0.03)]
    problem, piece = instance(100, (2, 4, 3, 1), delta=delta)
    check(problem, piece, bilevel.solve(problem, piece), combinations(piece.vertices, 16))


def test_zero_weights():
    """Neurons and inputs without weights have intervals of no width: no big M is left."""
    net = pp.Network(
        [
            ([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [0.0, -0.2, 0.5]),
            ([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], [0.0, -1.0]),
            ([[1.0, 0.0]], [-0.1]),
        ]
    )
    problem, piece = problem_of(net, np.array([-0.5, 0.2]), 0.02), box(2)
    check(problem, piece, bilevel.solve(problem, piece), mesh(piece.lower, piece.upper, 33))
    nothing = pp.Network([(np.zeros((2, 2)), np.zeros(2)), (np.zeros((1, 2)), [0.5])])
    problem = problem_of(nothing, np.zeros(2), 0.02)
    outcome = bilevel.solve(problem, piece)
    assert outcome.distance == 0.0
    assert np.array_equal(outcome.point, problem.x)


def test_rules():
    problem, piece = instance(110, (2, 4, 3, 1))
    free = bilevel.solve(problem, piece)
    A = np.array([[1.0, 2.0]])
    side = float((A @ free.point)[0])
    far = float((A @ (piece.vertices - problem.x).T).mean())
    low, high = (side + 0.05, math.inf) if far > 0 else (-math.inf, side - 0.05)
    ruled = ConvexPiece(
        piece.vertices, piece.lower, piece.upper, A, np.array([low]), np.array([high])
    )
    points = combinations(piece.vertices, 24)
    points = points[((points @ A.T >= low) & (points @ A.T <= high))[:, 0]]
    assert len(points)
    outcome = bilevel.solve(problem, ruled)
    assert outcome.distance > free.distance
    check(problem, ruled, outcome, points)


def test_bounds_cut_hull():
    problem, piece = instance(120, (2, 4, 1))
    free = bilevel.solve(problem, piece)
    moved = int(np.abs(free.point - problem.x).argmax())
    lower, upper = piece.lower.copy(), piece.upper.copy()
    (upper if free.point[moved] > problem.x[moved] else lower)[moved] = (
        0.5 * free.point[moved] + 0.5 * problem.x[moved]
    )
    cut = ConvexPiece(piece.vertices, lower, upper, piece.A, piece.row_lower, piece.row_upper)
    points = combinations(piece.vertices, 24)
    points = points[((points >= lower) & (points <= upper)).all(axis=1)]
    outcome = bilevel.solve(problem, cut)
    assert outcome.distance >= free.distance - 1e-9
    check(problem, cut, outcome, points)


def test_bilevel_without_shifts_finds_plausible_counterfactual():
    problem, piece = instance(130, (2, 4, 3, 1), delta=0.0)
    outcome = bilevel.solve(problem, piece)
    assert outcome.rounds == 0
    check(problem, piece, outcome, combinations(piece.vertices, 24))


# -- nothing to find -------------------------------------------------------------------------------


def test_no_robust_point():
    problem, _ = instance(170, (2, 4, 1))
    stay = hull(np.vstack([problem.x, problem.x + 1e-3]))
    outcome = bilevel.solve(problem, stay)
    assert outcome.status == "infeasible"
    check(problem, stay, outcome, combinations(stay.vertices, 16))


def test_robust_points_vanish_as_delta_grows():
    problem, piece = instance(180, (2, 4, 3, 1))
    statuses = []
    for delta in (0.01, 0.1, 0.3, 1.0):
        problem = problem_of(problem.guarantee.members[0].network, problem.x, delta)
        outcome = bilevel.solve(problem, piece)
        check(problem, piece, outcome, combinations(piece.vertices, 16))
        statuses.append(outcome.status)
    assert statuses[0] == "optimal"
    assert statuses[-1] == "infeasible"


def test_contradicting_rules():
    problem, piece = instance(190, (2, 4, 1))
    A = np.array([[1.0, 0.0], [1.0, 0.0]])
    rules = np.array([0.5, -math.inf]), np.array([math.inf, 0.4])
    ruled = ConvexPiece(piece.vertices, piece.lower, piece.upper, A, *rules)
    assert bilevel.solve(problem, ruled).status == "infeasible"


def test_bounds_beside_hull():
    problem, piece = instance(190, (2, 4, 1))
    outcome = bilevel.solve(problem, hull(piece.vertices, 2.0, 3.0))
    assert outcome.status == "infeasible"
    assert outcome.programs == 0


# -- solvers, limits and what goes wrong -----------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(4, 10))
def test_solvers_agree(seed):
    pytest.importorskip("gurobipy")
    widths = DEPTHS[seed % 4]
    problem, piece = instance(200 + 10 * seed, (3, *widths, 1 + seed % 3))
    ours, theirs = (bilevel.solve(problem, piece, solver=name) for name in ("highs", "gurobi"))
    assert theirs.status == ours.status
    assert theirs.distance == pytest.approx(ours.distance, abs=1e-7)
    if theirs.point is not None:
        assert outside(piece, theirs.point) <= 1e-8
        assert pp.certify(
            problem.guarantee.members[0].network,
            theirs.point,
            problem.guarantee.members[0].shifts,
            problem.target,
            margin=MARGIN,
        ).robust[0]


def test_same_answer_twice():
    problem, piece = instance(300, (2, 4, 3, 1))
    first, second = (bilevel.solve(problem, piece) for _ in range(2))
    assert np.array_equal(first.point, second.point)
    assert (first.programs, first.rounds) == (second.programs, second.rounds)


def test_no_time():
    problem, piece = instance(310, (2, 4, 1))
    outcome = bilevel.solve(problem, piece, deadline=time.monotonic())
    assert (outcome.status, outcome.point) == ("unknown", None)
    assert outcome.lower == -math.inf


@pytest.mark.parametrize("stop", range(4))
def test_bound_when_time_is_over(stop, monkeypatch):
    """The clock stops the search at program number ``stop``. The bound at that time is true."""
    problem, piece = instance(320, (2, 4, 3, 1))
    answer = bilevel.solve(problem, piece)
    assert answer.programs > stop
    count = itertools.count()

    def stopped(model, solver, left):
        if next(count) == stop:
            return Solution("limit", None, math.inf, -math.inf)
        return solve_model(model, solver, left)

    monkeypatch.setattr(solvers, "solve", stopped)
    outcome = bilevel.solve(problem, piece, deadline=time.monotonic() + 1e6)
    assert (outcome.status, outcome.point, outcome.distance) == ("unknown", None, math.inf)
    assert outcome.lower <= answer.distance + 1e-9
    assert (outcome.lower > 0.0) == (stop > 0)


def test_counts():
    problem, piece = instance(330, (2, 4, 3, 1))
    outcome = bilevel.solve(problem, piece)
    assert outcome.rounds >= 1
    assert outcome.programs == 2 * (outcome.rounds + 1)  # one outer and one inner each


def test_too_many_rounds():
    problem, piece = instance(330, (2, 4, 3, 1))
    with raises(SolverError, name="max_rounds", value=1):
        bilevel.solve(problem, piece, max_rounds=1)


def test_wrong_solver_does_not_send_search_in_circles(monkeypatch):
    problem, piece = instance(340, (2, 4, 1))

    def wrong(model, solver, left):
        solution = solve_model(model, solver, left)
        x = solution.x.copy()
        x[:2] = problem.x  # the outer program's answer is the person, refused by every model
        return Solution("optimal", x, solution.objective, solution.bound)

    monkeypatch.setattr(solvers, "solve", wrong)
    with raises(SolverError, match="would not end"):
        bilevel.solve(problem, piece)


def test_wrong_inner_answer_is_noticed(monkeypatch):
    problem, piece = instance(350, (2, 4, 3, 1))

    def wrong(model, solver, left):
        solution = solve_model(model, solver, left)
        return Solution("optimal", solution.x, solution.objective, solution.bound - 0.5)

    monkeypatch.setattr(solvers, "solve", wrong)
    with raises(SolverError, match="worst-case margin"):
        bilevel.solve(problem, piece)


def test_unbounded_box():
    problem, _ = instance(370, (2, 4, 1))
    with raises(OptionError, name="column 0"):
        bilevel.solve(problem, box(2, -math.inf, math.inf))
