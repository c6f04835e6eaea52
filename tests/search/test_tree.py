"""The tree against Algorithm 1, brute force and linear programs of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

import proplace as pp
from proplace.search import bilevel, least_distance, search, tree
from proplace.search.problem import Outcome
from proplace.search.program import DeadlineReached
from proplace.search.relaxation import Relaxation
from proplace.search.subproblem import Child
from support.problems import (
    MARGIN,
    SAME,
    SLACK,
    Clock,
    check_answer,
    compare,
    dense,
    plain,
    problem_of,
    random_net,
    random_problem,
    with_margin,
)
from support.tiers import quick, seeds


@pytest.mark.parametrize("seed", seeds(8, 120))
def test_same_as_algorithm_1(seed):
    compare(*random_problem(seed))


# -- what random problems meet too seldom ----------------------------------------------------------


@pytest.mark.parametrize("seed", quick(3, [14, 28, 53, 71, 78, 113, 153, 181]))
def test_frozen_first_layer_is_shared_by_classes(seed):
    """One first-layer neuron in scenarios of which only a later one needs its upper side."""
    rng = np.random.default_rng(seed)
    net = pp.Network(
        [
            (rng.normal(size=(5, 3)), rng.normal(size=5) * 0.5),
            (rng.normal(size=(4, 5)), rng.normal(size=4) * 0.3),
        ]
    )
    X = rng.normal(size=(80, 3))
    delta = [(0.0, 0.0), (0.02, 0.02)]
    robust = X[pp.certify(net, X, delta, 0, margin=MARGIN + SLACK).robust]
    for x in X[net.predict(X) != 0][:2]:
        near = robust[np.argsort(np.abs(robust - x).sum(axis=1))[:10]]
        problem = problem_of(net, x, delta, target=0)
        compare(problem, plain(x, np.vstack([x, near]), -9.0, 9.0))


@pytest.mark.parametrize(
    ("seed", "person"),
    quick(2, [(158, 0), (158, 1), (2, 0), (2, 1), (3, 0), (3, 1), (5, 0), (5, 1)]),
)
def test_tightened_signs_are_enforced(seed, person):
    """A sign known from tightening holds for points of interest only: its row must be there."""
    rng = np.random.default_rng(seed)
    d, hidden = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    sizes = [d, *rng.integers(3, 6, size=hidden), 3]
    net = dense(rng, sizes, bias=0.5)
    delta = [(0.0, 0.0)] + [(float(rng.choice([0, 0.02, 0.1])),) * 2 for _ in range(hidden)]
    X = rng.normal(size=(60, d))
    target = int(rng.integers(3))
    robust = X[pp.certify(net, X, delta, target, margin=MARGIN + SLACK).robust]
    refused = X[net.predict(X) != target]
    assert len(robust)
    x = refused[person]
    near = robust[np.argsort(np.abs(robust - x).sum(axis=1))[:14]]
    compare(problem_of(net, x, delta, target=target), plain(x, np.vstack([x, near]), -9.0, 9.0))


def test_single_vertices():
    """A profile with one neighbour is one point: a program without columns."""
    net = pp.Network([([[1.0, 1.0]], [0.0])])
    problem = problem_of(net, [-1.0, -1.0], 0.01)
    good = plain(problem.x, np.array([[1.0, 1.0]]))
    found = compare(problem, good)
    np.testing.assert_array_equal(found.point, [1.0, 1.0])
    bad = plain(problem.x, np.array([[-0.5, 0.1]]))
    assert compare(problem, bad).status == "infeasible"
    both = search(problem, [bad, good])
    assert both.status == "optimal"
    np.testing.assert_array_equal(both.point, [1.0, 1.0])


def test_nothing_robust_in_piece():
    net = pp.Network([([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [-9.0])])
    problem = problem_of(net, [0.0, 0.0], 0.05)
    hull = plain(problem.x, np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    for piece in (hull, plain(problem.x, None, -1.0, 1.0)):
        assert compare(problem, piece).status == "infeasible"


@pytest.mark.parametrize("seed", quick(4, range(3000, 3012)))
def test_between_margin_and_margin_with_slack(seed):
    """The answer is not nearer than the optimum at the margin nor farther than with the slack."""
    problem, piece = random_problem(seed)
    loose = with_margin(problem, MARGIN, 3e-3)
    far = with_margin(problem, MARGIN + 3e-3, 1e-9)
    near = with_margin(problem, MARGIN, 1e-9)
    found = tree.solve(loose, piece)
    low, high = bilevel.solve(near, piece), bilevel.solve(far, piece)
    if high.point is not None:
        assert found.distance <= high.distance + SAME
    if found.point is not None:
        assert found.distance >= low.distance - SAME
        check_answer(loose, piece, found, attacks=False)


# -- cut-off, clock, pieces ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", quick(5, range(0, 40, 3)))
def test_cutoff(seed):
    problem, piece = random_problem(seed)
    best = tree.solve(problem, piece)
    assert best.point is not None
    near = tree.solve(problem, piece, cutoff=best.distance * 0.999)
    assert near.point is None
    assert near.status == "infeasible"
    again = tree.solve(problem, piece, cutoff=best.distance * 1.01 + 1e-6)
    assert again.distance == pytest.approx(best.distance, abs=SAME)


@pytest.mark.parametrize("seed", quick(2, range(1, 40, 4)))
def test_bound_at_any_deadline(seed, monkeypatch):
    """Stopped anywhere, the bound is not above the optimum and the point, if any, is robust."""
    problem, piece = random_problem(seed)
    best = tree.solve(problem, piece)
    clock = Clock(monkeypatch)
    for stop in (0, 1, 2, 3, 4, 6, 9, 14, 20, 30, 50, 100):
        found = tree.solve(problem, piece, deadline=clock.now + stop + 0.5)
        assert found.lower <= best.distance + SAME
        if found.status in ("optimal", "infeasible"):
            assert found.status == best.status
        if found.point is not None:
            check_answer(problem, piece, found, attacks=False)
            assert found.distance >= best.distance - SAME
        elif best.point is not None:
            assert found.status == "unknown"


class HalfDone:
    """In the place of a subproblem: children of some bounds, of which the nearest takes too long."""

    def __init__(self, state, local, child, scenarios):
        self.bound, self.many_open = child.bound, False
        self.relaxation = Relaxation(state.polytope, 0.0)

    def explore(self):
        if self.bound == 0.0:
            return [Child(0.03, {}), Child(0.01, {}), Child(0.02, {})]
        self.bound = 0.05  # what was learnt of this child until the deadline came
        raise DeadlineReached


def test_bound_counts_with_children_that_wait(monkeypatch):
    problem, piece = random_problem(1)
    monkeypatch.setattr(tree, "Subproblem", HalfDone)
    found = tree.solve(problem, piece)
    assert found.distance > 0.05
    assert (found.status, found.lower) == ("feasible", 0.02)


@pytest.mark.parametrize("other", ["infeasible", "optimal"])
def test_piece_that_was_stopped_leaves_answer_open(other, monkeypatch):
    """Without a point, too: it may hold the nearest."""
    problem = problem_of(pp.Network([([[1.0, 1.0]], [0.0])]), [-1.0, -1.0], 0.01)
    stopped, rest = (plain(problem.x, np.array([[v, v]])) for v in (0.5, 1.0))
    outcomes = {
        id(stopped): Outcome(None, np.inf, 1.2, "unknown"),
        id(rest): Outcome(np.ones(2), 2.0, 2.0, "optimal")
        if other == "optimal"
        else Outcome(None, np.inf, np.inf, "infeasible"),
    }
    monkeypatch.setattr(tree, "solve", lambda problem, piece, **_: outcomes[id(piece)])
    found = search(problem, [stopped, rest])
    assert found.status == ("feasible" if other == "optimal" else "unknown")
    assert found.lower == 1.2


@pytest.mark.parametrize("method", ["tree", "bilevel"])
@pytest.mark.parametrize("seed", quick(1, range(5)))
def test_search_over_pieces(seed, method):
    """The nearest over several hulls is the least of their optima."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        net = random_net(rng, 3, 1, 6, 1)
        X = rng.uniform(-2.0, 2.0, (200, 3))
        target = 1 - int(net.predict(X[0])[0])
        robust = X[pp.certify(net, X, 0.01, target, margin=MARGIN + SLACK).robust]
        if len(robust) >= 12:
            break
    problem = problem_of(net, X[0], 0.01, target=target)
    groups = [robust[i : i + 4] for i in range(0, 12, 4)]
    pieces = [plain(problem.x, np.vstack([problem.x, g]) if i else g) for i, g in enumerate(groups)]
    truth = min(bilevel.solve(problem, piece).distance for piece in pieces)
    found = search(problem, pieces, method=method)
    assert found.status == "optimal"
    assert found.distance == pytest.approx(truth, abs=SAME)
    for piece in pieces:
        assert least_distance(problem, piece) <= bilevel.solve(problem, piece).distance + SAME
    late = search(problem, pieces, method=method, deadline=-math.inf)
    assert late.status == "unknown"
    assert late.point is None
    assert late.lower <= truth


# -- brute force -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", quick(1, range(10)))
@pytest.mark.parametrize("depth", [1, 2])
def test_no_nearer_point_on_fine_mesh(seed, depth):
    for attempt in range(100):
        rng = np.random.default_rng([seed, depth, attempt])
        net = random_net(rng, 2, depth, 4, int(rng.choice([1, 3])))
        target = int(rng.integers(net.classes))
        X = rng.uniform(-2.0, 2.0, (120, 2))
        robust = X[pp.certify(net, X, 0.02, target, margin=2e-4).robust]
        refused = X[net.margin(X, target) < -0.05]
        if len(robust) >= 2 and len(refused):
            break
    problem = problem_of(net, refused[0], 0.02, target=target, slack=1e-5)
    # Barycentric mesh of the triangle of the person and two robust rows.
    corners = np.vstack([problem.x, robust[:2]])
    n = 120
    i, j = np.meshgrid(np.arange(n + 1), np.arange(n + 1))
    i, j = i[i + j <= n], j[i + j <= n]
    mesh = np.stack([n - i - j, i, j], axis=1) / n @ corners
    report = pp.certify(net, mesh, 0.02, target, margin=MARGIN, exact_margin=True)
    between = problem.distance.between(problem.x, mesh)
    found = tree.solve(problem, plain(problem.x, corners))
    check_answer(problem, plain(problem.x, corners), found)
    strict = report.lower >= problem.search_margin
    assert found.distance <= between[strict].min() + SAME
    # A mesh point within one cell of the answer is nearly robust, so the answer is not far too near.
    assert between[report.upper >= -0.2].min() <= found.distance + 0.1
