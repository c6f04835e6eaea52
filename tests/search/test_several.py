"""Several shift sets: the tree against Algorithm 1, a mesh of points, and attacks in every set."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from oracles import milp_margin, random_box
from proplace.core.distances import L1
from proplace.core.guarantee import Guarantee, Member
from proplace.search import bilevel, search, tree
from proplace.search.oracle import Oracle
from proplace.search.problem import SearchProblem
from support.problems import (
    MARGIN,
    SAME,
    SLACK,
    check_answer,
    check_robust,
    compare,
    plain,
    random_delta,
    random_distance,
    random_net,
    random_piece,
    random_schema,
)
from support.tiers import quick, seeds


def random_set(rng, inputs, outputs, margin):
    """A network of any depth and input transform with a box of any kind, which need not hold it."""
    depth = int(rng.integers(4))
    net = random_net(rng, inputs, depth, 5 if depth < 3 else 4, outputs)
    if rng.random() < 0.3:  # seen through a matrix, as behind PCA
        rank = int(rng.integers(1, inputs + 1))
        first, *rest = ((layer.W, layer.b) for layer in net.layers)
        matrix = {"matrix": rng.normal(size=(rank, inputs)), "offset": rng.normal(size=rank) * 0.3}
        net = pp.Network([(rng.normal(size=(len(first[0]), rank)), first[1]), *rest], **matrix)
    kind = rng.integers(3)
    if kind == 0:
        shifts = pp.Shifts.of(net, random_delta(rng, depth))
    else:
        shifts = random_box(rng, net).scaled(float(rng.choice([0.1, 0.4])))
    return Member(net, shifts, margin=margin)


def survivors(sets, rows, target, slack=SLACK):
    for models in sets:
        report = pp.certify(
            models.network, rows, models.shifts, target, margin=models.margin + slack
        )
        rows = rows[report.robust]
    return rows


def random_several(seed):
    """A problem with two or three sets that have robust rows in common, and a piece of it."""
    for attempt in range(500):
        rng = np.random.default_rng([seed, attempt])
        d, outputs = int(rng.integers(2, 5)), int(rng.choice([1, 1, 3]))
        margins = rng.choice([MARGIN, MARGIN, 0.03, 0.3], 3)
        count = int(rng.integers(2, 4))
        sets = tuple(random_set(rng, d, outputs, float(margins[i])) for i in range(count))
        target = int(rng.integers(sets[0].network.classes))
        schema = random_schema(rng, d, int(rng.integers(0, 2)))
        X = schema.canonical(rng.uniform(-2.0, 2.0, size=(250, d)))
        robust = survivors(sets, X, target)
        refused = X[[min(s.network.margin(x, target)[0] for s in sets) < -0.05 for x in X]]
        if len(robust) < 3 or not len(refused):
            continue
        distance = random_distance(rng, d)
        problem = SearchProblem(Guarantee(sets), target, refused[0], distance, SLACK)
        return problem, random_piece(rng, problem, schema, robust)
    raise AssertionError("no such problem")


@pytest.mark.parametrize("seed", seeds(5, 40))
def test_same_as_algorithm_1(seed):
    compare(*random_several(seed))


def test_sets_disagree_in_many_problems():
    """Otherwise, the tests above could not distinguish several sets from one."""
    farther = 0
    for seed in range(10):
        problem, piece = random_several(seed)
        alone = tree.solve(
            replace(problem, guarantee=Guarantee(problem.guarantee.members[:1])), piece
        )
        farther += tree.solve(problem, piece).distance > alone.distance + 1e-3
    assert farther >= 4


@pytest.mark.parametrize("seed", quick(2, range(6)))
def test_no_nearer_point_on_fine_mesh(seed):
    """A mesh of points. A mixed-integer program decides each point for each set."""
    for attempt in range(200):
        rng = np.random.default_rng([seed, 7, attempt])
        outputs = int(rng.choice([1, 3]))
        sets = tuple(random_set(rng, 2, outputs, MARGIN) for _ in range(2))
        target = int(rng.integers(sets[0].network.classes))
        X = rng.uniform(-2.0, 2.0, (80, 2))
        robust = survivors(sets, X, target, 1e-3)
        refused = X[sets[1].network.margin(X, target) < -0.05]
        if len(robust) >= 2 and len(refused):
            break
    problem = SearchProblem(Guarantee(sets), target, refused[0], L1(np.full(2, 0.5)), 1e-5)
    corners = np.vstack([problem.x, robust[:2]])
    found = tree.solve(problem, plain(problem.x, corners))
    check_answer(problem, plain(problem.x, corners), found)
    n = 14
    shares = [(n - i - j, i, j) for i, j in itertools.product(range(n + 1), repeat=2) if i + j <= n]
    mesh = np.array(shares) / n @ corners
    between = problem.distance.between(problem.x, mesh)
    for i in np.flatnonzero(between < found.distance - SAME):
        worst = min(milp_margin(s.network, mesh[i], s.shifts, target) - s.margin for s in sets)
        assert worst < 1e-5 + 1e-7


@pytest.mark.parametrize("seed", quick(2, range(6)))
def test_order_of_sets_does_not_matter(seed):
    problem, piece = random_several(seed)
    other = replace(problem, guarantee=Guarantee(problem.guarantee.members[::-1]))
    one, two = (search(each, [piece]) for each in (problem, other))
    assert one.status == two.status
    assert two.distance == pytest.approx(one.distance, abs=SAME)
    if one.point is not None:
        assert len(one.evidence) == len(two.evidence) == len(problem.guarantee.members)


@pytest.mark.parametrize("method", ["tree", "bilevel"])
def test_search_finds_nothing_if_one_set_refuses_all(method):
    net = pp.Network([([[1.0, 1.0]], [0.0])])
    never = pp.Network([([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), ([[-1.0, -1.0]], [-1.0])])
    sets = (Member(net, pp.Shifts.of(net, 0.01)), Member(never, pp.Shifts.of(never, 0.0)))
    problem = SearchProblem(Guarantee(sets), 1, np.array([-1.0, -1.0]), L1(np.full(2, 0.5)), SLACK)
    assert search(problem, [plain(problem.x)], method=method).status == "infeasible"
    alone = replace(problem, guarantee=Guarantee(sets[:1]))
    assert search(alone, [plain(problem.x)], method=method).status == "optimal"


@pytest.mark.parametrize("method", ["tree", "bilevel"])
def test_only_networks_of_box_count(method):
    """The network given with a box may lie outside. It then does not need to accept."""
    net = pp.Network([([[-5.0]], [0.0])])  # the box holds networks of slope 1 to 2
    box = pp.Shifts(pp.Network([([[1.0]], [-1.0])]), pp.Network([([[2.0]], [-0.5])]))
    problem = SearchProblem(Guarantee((Member(net, box),)), 1, np.zeros(1), L1(np.ones(1)), 1e-9)
    found = search(problem, [plain(problem.x)], method=method)
    assert found.distance == pytest.approx(1.0, abs=1e-6)
    itself = Member(net, pp.Shifts.of(net, 0.0))
    both = replace(problem, guarantee=Guarantee((problem.guarantee.members[0], itself)))
    assert search(both, [plain(problem.x)], method=method).status == "infeasible"


@pytest.mark.parametrize("delta", [0.0, 0.02])
def test_each_set_has_its_own_margin(delta):
    """The logit of the worst network of each set is (1 - delta) x + bias - delta for x >= 0."""
    nets = [pp.Network([([[1.0]], [b])]) for b in (0.0, 0.5)]
    for margins in ((0.1, 0.2), (0.1, 0.9), (0.0, 0.0), (0.5, 0.6)):
        sets = tuple(
            Member(net, pp.Shifts.of(net, delta), margin=margin)
            for net, margin in zip(nets, margins, strict=True)
        )
        wanted = max(
            (margin + delta - bias) / (1.0 - delta)
            for margin, bias in zip(margins, (0.0, 0.5), strict=True)
        )
        for order in (sets, sets[::-1]):
            problem = SearchProblem(Guarantee(order), 1, np.array([-1.0]), L1(np.ones(1)), 1e-9)
            for solve in (tree.solve, bilevel.solve):
                found = solve(problem, plain(problem.x))
                assert found.point[0] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("good", [0, 1])
def test_set_that_looks_worst_and_is_not(good, monkeypatch):
    """The order of the tests saves time. The verdict is that of all sets."""
    nets = [pp.Network([([[1.0]], [b])]) for b in (5.0, -5.0)]
    sets = [Member(net, pp.Shifts.of(net, 0.0)) for net in nets]
    sets = sets if good == 0 else sets[::-1]
    problem = SearchProblem(Guarantee(tuple(sets)), 1, np.zeros(1), L1(np.ones(1)), SLACK)
    oracle = Oracle(problem)
    order = np.array([[0.0], [1.0]]) if good == 0 else np.array([[1.0], [0.0]])
    monkeypatch.setattr(oracle, "_bounds", lambda points: order)
    robust, scenario, _ = oracle.test(np.zeros(1))
    assert not robust
    assert scenario.value(np.zeros(1)) == pytest.approx(-5.0)
    assert oracle.parts[good].evidence(np.zeros(1)) is not None  # it was tested first
    assert oracle.evidence(np.zeros(1)) == ()


@pytest.mark.parametrize("seed", seeds(5, 20))
def test_oracle_tests_all_sets(seed):
    """Bounds and attacks are networks of some set, and verdicts hold for every set."""
    problem, piece = random_several(seed)
    oracle = Oracle(problem)
    rng = np.random.default_rng(seed)
    points = rng.uniform(-2.0, 2.0, (8, len(problem.x)))
    if piece.vertices is not None:
        points = np.vstack([points, piece.vertices[-2:]])
    reports = [
        pp.certify(s.network, points, s.shifts, problem.target, margin=s.margin, exact_margin=True)
        for s in problem.guarantee.members
    ]
    offsets = [problem.margin - s.margin for s in problem.guarantee.members]
    worst = np.min([r.lower + o for r, o in zip(reports, offsets, strict=True)], axis=0)
    tolerance = 1e-7 * (1.0 + np.abs(worst))
    bounds = oracle.upper_bounds(points)
    assert (bounds >= worst - tolerance).all()
    each = np.min([part.upper_bounds(points) for part in oracle.parts], axis=0)
    np.testing.assert_allclose(bounds, each)
    for i, (point, scenario) in enumerate(zip(points, oracle.attack(points), strict=True)):
        value = float(scenario.value(point))
        assert value >= worst[i] - tolerance[i]
        assert value <= bounds[i] + tolerance[i]  # of the set that looks worst
        robust, refuting, _ = oracle.test(point)
        if min(abs(worst[i] - problem.margin), 1.0) < 1e-6:
            continue
        assert robust == (worst[i] >= problem.margin)
        assert bool(oracle.evidence(point)) == robust
        if not robust:
            assert float(refuting.value(point)) < problem.margin


def test_scenarios_of_any_architecture_live_in_one_relaxation():
    met = set()
    for seed in range(12):
        problem, _ = random_several(seed)
        oracle = Oracle(problem)
        met.add(frozenset(len(part.attack(problem.x[None])[0].layers) for part in oracle.parts))
    assert sum(len(depths) > 1 for depths in met) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_twenty_networks_at_once(seed):
    """Retrainings from scratch, as it were: every box is attacked at the answer."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=3)
    sets = []
    for _ in range(20):
        W = np.vstack(
            [
                w + rng.normal(size=3) * 0.2,
                -w + rng.normal(size=3) * 0.2,
                *rng.normal(size=(3, 3)) * 0.2,
            ]
        )
        last = np.concatenate([[1.0, -1.0], rng.normal(size=3) * 0.1])
        net = pp.Network([(W, rng.normal(size=5) * 0.1), (last[None], [0.0])])
        sets.append(Member(net, pp.Shifts.of(net, 0.01), margin=MARGIN))
    sets = tuple(sets)
    X = rng.uniform(-1.0, 1.0, (300, 3))
    robust = survivors(sets, X, 1)
    x = X[sets[0].network.logits(X)[:, 0].argmin()]
    problem = SearchProblem(Guarantee(sets), 1, x, L1(np.full(3, 1 / 3)), SLACK)
    near = robust[np.argsort(problem.distance.between(x, robust))[:10]]
    piece = plain(x, np.vstack([x, near]))
    found = search(problem, [piece])
    assert found.status == "optimal"
    for models in sets:
        check_robust(models, found.point, 1)
    assert found.distance == pytest.approx(bilevel.solve(problem, piece).distance, abs=SAME)
