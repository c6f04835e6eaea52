"""The tree against Algorithm 1, brute force and linear programs of its own.

Random problems hold everything that may go wrong at once: grids, rules, hulls with and without the
person, boxes, several classes, frozen layers, dead neurons, zero weights, input transforms.
"""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from scipy.optimize import linprog

import proplace as pp
from oracles import attack, sampled_margins, size_of
from proplace.distances import L1, L2, Convex, LInf
from proplace.schema import Schema
from proplace.search import bilevel, tree
from proplace.search.pieces import least_distance, search
from proplace.search.problem import Piece, Problem

MARGIN, SLACK = 1e-4, 1e-7
SAME = 1e-6


# -- random problems -----------------------------------------------------------------------------


def quadratic(x, point):
    return float(((point - x) ** 2).sum() + 0.3 * np.abs(point - x).max())


def quadratic_slope(x, point):
    slope = 2.0 * (point - x)
    i = int(np.abs(point - x).argmax())
    slope[i] += 0.3 * np.sign(point - x)[i]
    return slope


def distance_of(kind, rng, d):
    weights = rng.uniform(0.2, 1.5, d)
    if rng.random() < 0.3 and d > 2:
        weights[rng.integers(d)] = 0.0  # a column that costs nothing
    return {
        "l1": lambda: L1(weights / d),
        "linf": lambda: LInf(weights),
        "l2": lambda: L2(weights),
        "convex": lambda: Convex(quadratic, quadratic_slope),
    }[kind]()


def random_net(rng, inputs, depth, width, outputs):
    sizes = [inputs, *rng.integers(3, width + 1, size=depth), outputs]
    layers = []
    for n, m in itertools.pairwise(sizes):
        W = rng.normal(size=(m, n)) * 1.4 / np.sqrt(n)
        b = rng.normal(size=m) * 0.4
        if rng.random() < 0.3:
            W[rng.random(W.shape) < 0.3] = 0.0
        if m > 2 and rng.random() < 0.3:
            b[rng.integers(m)] = -20.0  # never active
        layers.append((W, None if rng.random() < 0.15 else b))
    transform = {}
    if rng.random() < 0.3:
        transform = {"scale": rng.uniform(0.5, 2.0, inputs) * rng.choice([-1.0, 1.0], inputs)}
        if rng.random() < 0.5:
            transform["shift"] = rng.normal(size=inputs)
    return pp.Network(layers, **transform)


def random_delta(rng, depth):
    if rng.random() < 0.5:
        return float(rng.choice([0.0, 0.01, 0.03]))
    return [(float(w), float(b)) for w, b in rng.choice([0.0, 0.01, 0.04], (depth + 1, 2))]


def random_schema(rng, d, grids):
    """Columns over [-3, 3]; the first ``grids`` of them on a grid of some kind."""
    features = []
    for j in range(d):
        kind = int(rng.integers(4)) if j < grids else 4
        features.append(
            [
                lambda j: pp.Continuous(f"c{j}", -3, 3, step=0.5, scaling="none"),
                lambda j: pp.Continuous(f"c{j}", -3, 3, step=1.5, scaling=(0.0, 2.0)),
                lambda j: pp.Ordinal(f"c{j}", [-3, -1, 1, 3], scaling="none"),
                lambda j: pp.Ordinal(f"c{j}", [-3, -2.5, -1, 0, 1.7, 3], scaling="none"),
                lambda j: pp.Continuous(f"c{j}", -3, 3, scaling="none"),
            ][kind](j)
        )
    order = rng.permutation(d)
    return Schema([features[i] for i in order])


def random_problem(seed, kind="l1"):
    """A problem and a piece of it, of the first network from ``seed`` on that has robust rows."""
    for attempt in range(200):
        rng = np.random.default_rng([seed, attempt])
        depth = seed % 4
        d = int(rng.integers(2, 7 if depth < 3 else 5))
        net = random_net(rng, d, depth, 8 if depth < 2 else 5, int(rng.choice([1, 1, 3])))
        delta, target = random_delta(rng, depth), int(rng.integers(net.classes))
        schema = random_schema(rng, d, int(rng.integers(0, 3)))
        X = schema.canonical(rng.uniform(-2.0, 2.0, size=(250, d)))
        robust = X[pp.certify(net, X, delta, target, margin=MARGIN + SLACK).robust]
        refused = X[net.margin(X, target) < -0.05]
        if len(robust) < 3 or not len(refused):
            continue
        x = refused[0]
        distance = distance_of(kind, rng, d)
        grids = {i: c for i, c in enumerate(schema.columns) if c.kind == "grid"}
        shifts = pp.Shifts.of(net, delta)
        problem = Problem(net, shifts, target, x, distance, MARGIN, SLACK, grids)
        return problem, random_piece(rng, problem, schema, robust)
    raise AssertionError("no such problem")


def random_piece(rng, problem, schema, robust):
    d = len(problem.x)
    k = int(rng.choice([1, 2, 5, 12, 30]))
    near = robust[np.argsort(problem.distance.between(problem.x, robust), kind="stable")[:k]]
    A, low, high = np.zeros((0, d)), np.zeros(0), np.zeros(0)
    if rng.random() < 0.4:  # one or two rules that the nearest robust row meets
        A = rng.normal(size=(int(rng.integers(1, 3)), d))
        A /= np.abs(A).sum(axis=1, keepdims=True)
        at = A @ near[0]
        low = np.where(rng.random(len(A)) < 0.5, -np.inf, at - rng.uniform(0.0, 0.1, len(A)))
        high = np.where(np.isinf(low), at + rng.uniform(0.0, 0.1, len(A)), np.inf)
        allowed = ((near @ A.T >= low) & (near @ A.T <= high)).all(axis=1)
        near = near[allowed]
    lower, upper = np.maximum(schema.lower, -3.0), np.minimum(schema.upper, 3.0)
    if rng.random() < 0.25:
        return Piece(None, lower, upper, A, low, high)
    vertices = near if rng.random() < 0.25 else np.vstack([problem.x, near])
    vertices = vertices[np.sort(np.unique(vertices, axis=0, return_index=True)[1])]
    return Piece(vertices, lower, upper, A, low, high)


# -- what an answer must be ------------------------------------------------------------------------


def outside(problem, piece, point):
    """How far a point is from the piece: bounds, rules, and a linear program for the hull."""
    far = max(0.0, float((piece.lower - point).max()), float((point - piece.upper).max()))
    if len(piece.A):
        rows = piece.A @ point
        far = max(far, float((piece.row_lower - rows).max()), float((rows - piece.row_upper).max()))
    for i, column in problem.grids.items():
        codes = column.grid.encoded(np.arange(column.size))
        far = max(far, float(np.abs(codes - point[i]).min()))
    if piece.vertices is None:
        return far
    V = piece.vertices.T
    room = np.zeros(len(point))
    for i, column in problem.grids.items():  # half of the largest step, from the legal values
        codes = column.grid.encoded(np.arange(column.size))
        room[i] = np.diff(codes).max() / 2.0
    off = -np.ones((len(point), 1))
    result = linprog(
        np.append(np.zeros(V.shape[1]), 1.0),
        A_ub=np.block([[V, off], [-V, off]]),
        b_ub=np.concatenate([point + room, room - point]),
        A_eq=np.append(np.ones(V.shape[1]), 0.0)[None],
        b_eq=[1.0],
        bounds=(0.0, None),
    )
    assert result.status == 0
    return max(far, float(result.fun))


def check_answer(problem, piece, outcome, *, attacks=True):
    point = outcome.point
    assert outside(problem, piece, point) <= 1e-7
    between = float(problem.distance.between(problem.x, point))
    assert outcome.distance == pytest.approx(between, abs=1e-12)
    assert outcome.lower <= outcome.distance
    report = pp.certify(problem.net, point, problem.shifts, problem.target, margin=problem.margin)
    assert report.robust[0]
    if attacks:
        delta = list(zip(problem.shifts.weight, problem.shifts.bias, strict=True))
        rng = np.random.default_rng(0)
        least = sampled_margins(problem.net, point, delta, problem.target, rng, 200).min()
        T = rng.uniform(-1.0, 1.0, (10, size_of(problem.net)))
        least = min(least, attack(problem.net, point, delta, problem.target, T, steps=10))
        assert least >= problem.margin - 1e-9


def compare(problem, piece):
    """The tree and Algorithm 1 must give the same distance, or both nothing."""
    start = time.monotonic()
    found = tree.solve(problem, piece, deadline=start + 20.0)
    assert time.monotonic() - start < 15.0, "the tree did not end"
    truth = bilevel.solve(problem, piece)
    assert found.status == truth.status
    if truth.point is None:
        assert found.point is None
        assert math.isinf(found.lower)
        return found
    assert found.status == "optimal"
    check_answer(problem, piece, found)
    assert found.distance == pytest.approx(truth.distance, abs=SAME)
    return found


@pytest.mark.parametrize("seed", range(120))
def test_same_as_algorithm_1(seed):
    compare(*random_problem(seed, "l1"))


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_same_as_algorithm_1_linf(seed):
    compare(*random_problem(seed, "linf"))


@pytest.mark.parametrize("seed", range(2000, 2020))
@pytest.mark.parametrize("kind", ["l2", "convex"])
def test_same_as_algorithm_1_convex(seed, kind):
    compare(*random_problem(seed, kind))


# -- what random problems meet too seldom ----------------------------------------------------------


def plain(x, vertices=None, low=-3.0, high=3.0):
    d = len(x)
    none = np.zeros((0, d)), np.zeros(0), np.zeros(0)
    return Piece(vertices, np.full(d, low), np.full(d, high), *none)


def problem_of(net, x, delta, *, target=1, distance=None, grids=None, margin=MARGIN, slack=SLACK):
    x = np.asarray(x, dtype=float)
    distance = distance or L1(np.full(len(x), 1.0 / len(x)))
    return Problem(net, pp.Shifts.of(net, delta), target, x, distance, margin, slack, grids or {})


@pytest.mark.parametrize("beyond", [0.0, 1e-9, 3e-8, 9e-8, 1.1e-7, 1e-6])
def test_border_a_hair_beyond_a_grid_value(beyond):
    """Between the tolerances of floor and of the tree, both sides once kept the same point."""
    schema = Schema([pp.Continuous("a", 0, 10, step=1), pp.Continuous("b", 0, 1)])
    net = pp.Network([([[1.0, 0.0]], [-(0.5 + beyond) + MARGIN + SLACK])])
    problem = problem_of(net, [0.1, 0.3], 0.0, grids={0: schema.columns[0]})
    vertices = np.array([[0.1, 0.3], [0.9, 0.4], [1.0, 0.9], [0.8, 0.1]])
    piece = plain(problem.x, vertices, 0.0, 1.0)
    found = tree.solve(problem, piece, deadline=time.monotonic() + 10.0)
    assert found.status == "optimal"
    assert found.nodes < 50
    check_answer(problem, piece, found)
    # Up to the slack of the search, 0.5 is as good as robust.
    assert found.point[0] in ((0.5,) if not beyond else (0.6,) if beyond > SLACK else (0.5, 0.6))


@pytest.mark.parametrize("seed", [*range(9), 218, 350, 362, 446])
def test_fine_grids_end(seed):
    """Steps near the tolerance of the linear programs: rounding must not look like a decision."""
    step = (1.0, 100.0, 0.01)[seed % 3]
    schema = Schema(
        [
            pp.Continuous("a", 0, 2e5, step=step),
            pp.Continuous("b", 0, 1000, step=1),
            pp.Continuous("c", -1, 1),
        ]
    )
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        net = random_net(rng, 3, 1, 6, 1)
        X = schema.canonical(rng.uniform(0.0, 1.0, (80, 3)))
        target = int(net.predict(X[0])[0] == 0)
        robust = X[pp.certify(net, X, 0.01, target, margin=MARGIN + 1e-4).robust]
        if len(robust):
            break
    grids = {0: schema.columns[0], 1: schema.columns[1]}
    problem = problem_of(net, X[0], 0.01, target=target, grids=grids, slack=1e-4)
    piece = plain(problem.x, np.vstack([problem.x, robust[:10]]), 0.0, 1.0)
    start = time.monotonic()
    found = tree.solve(problem, piece, deadline=start + 10.0)
    assert found.status == "optimal"
    assert schema.legal(found.point)[0]
    check_answer(problem, piece, found)


@pytest.mark.parametrize("seed", [14, 28, 53, 71, 78, 113, 153, 181])
def test_frozen_first_layer_is_shared_by_classes(seed):
    """One first-layer neuron in copies of which only a later one needs its upper side."""
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


@pytest.mark.parametrize("seed", [158, 2, 4, 5])
@pytest.mark.parametrize("person", [0, 1])
def test_tightened_signs_are_kept(seed, person):
    """A sign known from tightening holds for points of interest only: its row must be there."""
    rng = np.random.default_rng(seed)
    d, hidden = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    sizes = [d, *rng.integers(3, 6, size=hidden), 3]
    net = pp.Network(
        [(rng.normal(size=(m, n)), rng.normal(size=m) * 0.5) for n, m in itertools.pairwise(sizes)]
    )
    delta = [(0.0, 0.0)] + [(float(rng.choice([0, 0.02, 0.1])),) * 2 for _ in range(hidden)]
    X = rng.normal(size=(60, d))
    target = int(rng.integers(3))
    robust = X[pp.certify(net, X, delta, target, margin=MARGIN + SLACK).robust]
    refused = X[net.predict(X) != target]
    if not len(robust) or len(refused) <= person:
        pytest.skip("nothing to explain here")
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


def test_nothing_robust_in_the_piece():
    net = pp.Network([([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [-9.0])])
    problem = problem_of(net, [0.0, 0.0], 0.05)
    hull = plain(problem.x, np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    for piece in (hull, plain(problem.x, None, -1.0, 1.0)):
        assert compare(problem, piece).status == "infeasible"


@pytest.mark.parametrize("seed", range(3000, 3012))
def test_between_margin_and_margin_with_slack(seed):
    """The answer is not nearer than the optimum at the margin nor farther than with the slack."""
    problem, piece = random_problem(seed, "l1")
    loose = Problem(**{**vars(problem), "slack": 3e-3})
    far = Problem(**{**vars(problem), "margin": MARGIN + 3e-3, "slack": 1e-9})
    near = Problem(**{**vars(problem), "slack": 1e-9})
    found = tree.solve(loose, piece)
    low, high = bilevel.solve(near, piece), bilevel.solve(far, piece)
    if high.point is not None:
        assert found.distance <= high.distance + SAME
    if found.point is not None:
        assert found.distance >= low.distance - SAME
        check_answer(loose, piece, found, attacks=False)


# -- cut-off, clock, pieces ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_cutoff(seed):
    problem, piece = random_problem(seed, "l1")
    best = tree.solve(problem, piece)
    if best.point is None:
        pytest.skip("nothing robust in this piece")
    near = tree.solve(problem, piece, cutoff=best.distance * 0.999)
    assert near.point is None
    assert near.status == "infeasible"
    again = tree.solve(problem, piece, cutoff=best.distance * 1.01 + 1e-6)
    assert again.distance == pytest.approx(best.distance, abs=SAME)


@pytest.mark.parametrize("seed", range(1, 40, 4))
def test_bound_at_any_deadline(seed):
    """Stopped anywhere, the bound is not above the optimum and the point, if any, is robust."""
    problem, piece = random_problem(seed, "l1")
    best = tree.solve(problem, piece)
    for limit in (0.0, 0.001, 0.003, 0.01, 0.03):
        found = tree.solve(problem, piece, deadline=time.monotonic() + limit)
        assert found.lower <= best.distance + SAME
        assert found.status in ("optimal", "feasible", "infeasible", "unknown")
        if found.point is not None:
            check_answer(problem, piece, found, attacks=False)
            assert found.distance >= best.distance - SAME
        elif best.point is not None:
            assert found.status == "unknown"


@pytest.mark.parametrize("method", ["tree", "bilevel"])
@pytest.mark.parametrize("seed", range(5))
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
    room = problem.room()
    for piece in pieces:
        assert least_distance(problem, piece, room) <= bilevel.solve(problem, piece).distance + SAME
    late = search(problem, pieces, method=method, deadline=time.monotonic() - 1.0)
    assert late.status == "unknown"
    assert late.point is None
    assert late.lower <= truth


# -- brute force -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("depth", [1, 2])
def test_no_nearer_point_on_a_fine_mesh(seed, depth):
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


@pytest.mark.parametrize("seed", range(12))
def test_all_legal_points_of_a_grid(seed):
    """Only grid columns: every legal point of the hull, one by one."""
    features = [
        pp.Continuous("a", -2, 2, step=0.5, scaling="none"),
        pp.Ordinal("b", [-2, -1.5, 0, 0.4, 2], scaling="none"),
        pp.Continuous("c", -2, 2, step=1, scaling="none"),
    ]
    schema = Schema(features)
    axes = [c.grid.encoded(np.arange(c.size)) for c in schema.columns]
    legal = np.array(list(itertools.product(*axes)))
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        net = random_net(rng, 3, 1 + seed % 2, 5, 1)
        x = legal[rng.integers(len(legal))]
        target = 1 - int(net.predict(x)[0])
        worst = pp.certify(net, legal, 0.02, target, exact_margin=True)
        robust = legal[worst.lower >= MARGIN + SLACK]
        if len(robust):
            break
    problem = problem_of(net, x, 0.02, target=target, grids=dict(enumerate(schema.columns)))
    for piece in (
        plain(x, np.vstack([x, robust[rng.permutation(len(robust))[:4]]]), -2.0, 2.0),
        plain(x, None, -2.0, 2.0),
    ):
        between = problem.distance.between(x, legal)
        best = math.inf
        for i in np.argsort(between):
            if worst.lower[i] >= MARGIN + SLACK and outside(problem, piece, legal[i]) <= 1e-9:
                best = float(between[i])
                break
        found = tree.solve(problem, piece)
        assert found.distance == pytest.approx(best, abs=1e-12)
