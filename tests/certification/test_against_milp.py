"""Verdicts, worst-case margins and ranges against one mixed-integer program for each row."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import proplace as pp
from oracles import (
    Milp,
    Trouble,
    attack,
    milp_margin,
    pairs_of,
    radii_of,
    random_case,
    sampled_margins,
    scale_of,
    size_of,
)
from proplace.certification import batched_bnb, engine, lp_bnb
from proplace.certification.bounds import Abstraction, WorstCaseProblem
from proplace.solvers import linear
from support.tiers import every

SEEDS = 32
ROWS = 2  # 5 depths x 32 networks x 2 rows = 320 cases, and the wide ones


class Problem:
    """A random case and its worst-case margins by mixed-integer programs."""

    def __init__(self, case):
        self.net, self.X, self.delta, self.target = case.net, case.X, case.delta, case.target
        self.truth = np.array([milp_margin(self.net, x, self.delta, self.target) for x in self.X])
        self.slack = 1e-6 * np.maximum(1.0, np.abs(self.truth))

    def certify(self, **options):
        return pp.certify(self.net, self.X, self.delta, self.target, **options)

    def margins(self, rng):
        """Thresholds at which the verdicts are hard: near the truth, and on it."""
        near = self.truth + rng.normal(size=len(self.truth)) * 0.05
        return [0.0, *near, *(self.truth + 1e-5), *(self.truth - 1e-5), float(self.truth[0])]

    def check(self, report, margin):
        clear = np.abs(self.truth - margin) > 1e-6
        np.testing.assert_array_equal(report.robust[clear], (self.truth >= margin)[clear])
        assert (report.lower <= self.truth + self.slack).all()
        assert (report.upper >= self.truth - self.slack).all()
        assert (report.lower <= report.upper).all()
        assert not report.undecided[clear].any()
        above = (report.upper - margin)[report.undecided]  # at a tie that floats cannot see
        assert (above <= 1e-9 * np.maximum(1.0, np.abs(self.truth[report.undecided]))).all()


@cache
def problem_of(name):
    kind, seed = name.rsplit("-", 1)
    rng = np.random.default_rng([hash_of(kind), int(seed)])
    if kind.startswith("wide"):
        return Problem(random_case(rng, int(kind[-1]), width=9, inputs=4, rows=1))
    return Problem(random_case(rng, int(kind[-1]), rows=ROWS))


def hash_of(kind):
    return sum(ord(letter) * 31**i for i, letter in enumerate(kind))


NAMES = [f"hidden{hidden}-{seed}" for hidden in range(5) for seed in range(SEEDS)]
NAMES += [f"wide{hidden}-{seed}" for hidden in (2, 3, 4) for seed in range(12)]


@pytest.fixture(scope="module", params=every(7, NAMES))
def problem(request):
    return problem_of(request.param)


def test_worst_case_margin(problem):
    report = problem.certify(exact_margin=True)
    np.testing.assert_allclose(report.upper, problem.truth, rtol=0, atol=problem.slack.min())
    gap = report.upper - report.lower
    assert (gap <= 1e-9 * np.maximum(1.0, np.abs(report.upper))).all()
    problem.check(report, 0.0)


def test_verdicts(problem):
    for margin in problem.margins(np.random.default_rng(0)):
        problem.check(problem.certify(margin=float(margin)), margin)


def test_linear_program_alone(problem, monkeypatch):
    """No batched tree: each row that one pass does not decide goes to the linear program."""
    monkeypatch.setattr(batched_bnb, "NODES_PER_ROW", 1)
    monkeypatch.setattr(batched_bnb, "ROOT_STEPS", 1)
    monkeypatch.setattr(batched_bnb, "NODE_STEPS", 1)
    for margin in problem.margins(np.random.default_rng(1)):
        problem.check(problem.certify(margin=float(margin)), margin)


def test_batched_tree_alone(problem):
    """``decide`` never contradicts the truth, whether or not it reaches a verdict."""
    net, shifts = problem.net, pp.Shifts.of(problem.net, problem.delta)
    if not net.widths:
        return  # a linear model has no tree
    abstraction = Abstraction(net, shifts)
    root = abstraction.tighten(abstraction.interval_bounds(net.transform(problem.X)))
    for margin in problem.margins(np.random.default_rng(2)):
        lower, upper = np.inf, np.inf
        for c in net.objectives(problem.target):
            a, const = objective = abstraction.objective(c)
            asked = WorstCaseProblem(abstraction, root, net.transform(problem.X), objective)
            bounds = batched_bnb.decide(asked, float(margin))
            np.testing.assert_allclose(bounds.hidden[-1] @ a + const, bounds.upper, atol=1e-9)
            lower, upper = np.minimum(lower, bounds.lower), np.minimum(upper, bounds.upper)
        assert (lower <= problem.truth + problem.slack).all()
        assert (upper >= problem.truth - problem.slack).all()


def test_worst_network(problem):
    net = problem.net
    for x, truth in zip(problem.X, problem.truth, strict=True):
        worst = pp.worst_case(net, x, problem.delta, problem.target)
        assert worst.margin == pytest.approx(truth, abs=1e-6 * scale_of(truth))
        plain = float(worst.network.margin(x, problem.target)[0])
        assert worst.margin == pytest.approx(plain, abs=1e-9)
        assert worst.margin - 1e-8 * scale_of(truth) <= worst.lower <= worst.margin
        exact_margin = pp.certify(net, x, problem.delta, problem.target, exact_margin=True)
        assert worst.margin == pytest.approx(exact_margin.upper[0], abs=1e-8 * scale_of(truth))
        assert_inside(net, worst.network, problem.delta)


def assert_inside(net, other, delta):
    """Every parameter lies within its radius as a real number, and nothing else has changed."""
    for mine, theirs, (dw, db) in zip(net.layers, other.layers, radii_of(net, delta), strict=True):
        assert mine.W.shape == theirs.W.shape
        for a, b in zip(mine.W.ravel(), theirs.W.ravel(), strict=True):
            assert abs(Fraction(float(a)) - Fraction(float(b))) <= Fraction(dw)
        assert (mine.b is None) == (theirs.b is None)
        if mine.b is not None:
            for a, b in zip(mine.b, theirs.b, strict=True):
                assert abs(Fraction(float(a)) - Fraction(float(b))) <= Fraction(db)
    for a, b in ((net.scale, other.scale), (net.shift, other.shift)):
        np.testing.assert_array_equal(a, b)


def positions(net, other, delta):
    """Position of a network in the box, in [-1, 1] per parameter."""
    parts = []
    radii = radii_of(net, delta)
    for (W, b), (V, c), (dw, db) in zip(pairs_of(net), pairs_of(other), radii, strict=True):
        parts += [(V - W).ravel() / (dw or 1.0), (c - b) / (db or 1.0)]
    return np.concatenate(parts)


def test_no_attack_beats_bounds(problem):
    net, delta, target = problem.net, problem.delta, problem.target
    rng = np.random.default_rng(4)
    x, truth = problem.X[0], problem.truth[0]
    lower = pp.certify(net, x, delta, target).lower[0]
    exact_lower = pp.certify(net, x, delta, target, exact_margin=True).lower[0]
    worst = pp.worst_case(net, x, delta, target)
    slack = 1e-9 * scale_of(truth)
    starts = np.vstack([np.zeros(size_of(net)), rng.uniform(-1, 1, (30, size_of(net)))])
    at_worst = positions(net, worst.network, delta)
    near = np.clip(at_worst + 0.05 * rng.normal(size=(20, len(at_worst))), -1.0, 1.0)
    found = [
        sampled_margins(net, x, delta, target, rng, 500).min(),
        attack(net, x, delta, target, starts),
        attack(net, x, delta, target, np.vstack([at_worst, near])),
    ]
    assert min(found) >= worst.margin - slack
    assert min(found) >= max(lower, exact_lower) - slack
    assert found[2] <= worst.margin + slack  # the attack starts from the worst network itself


def test_attacks_come_close():
    """The attack above is a real one: without it finding the worst case, it proves nothing."""
    close = 0
    for seed in range(40):
        rng = np.random.default_rng([5, seed])
        case = random_case(rng, 1 + seed % 2, rows=1)
        worst = pp.worst_case(case.net, case.X[0], case.delta, case.target).margin
        starts = rng.uniform(-1, 1, (30, size_of(case.net)))
        found = attack(case.net, case.X[0], case.delta, case.target, starts)
        close += found <= worst + 1e-3 * scale_of(worst)
    assert close >= 30


def test_output_range(problem):
    net, delta = problem.net, problem.delta
    low, high = pp.output_range(net, problem.X, delta)
    assert low.shape == high.shape == (len(problem.X), net.outputs)
    assert (low <= high).all()
    rng = np.random.default_rng(6)
    program = Milp(net, problem.X[0], delta)
    for k, unit in enumerate(np.eye(net.outputs)):
        ends = program.least(unit), -program.least(-unit)
        assert low[0, k] == pytest.approx(ends[0], abs=1e-6 * scale_of(ends[0]))
        assert high[0, k] == pytest.approx(ends[1], abs=1e-6 * scale_of(ends[1]))
    for i, x in enumerate(problem.X):
        if net.outputs == 1:
            one = pp.worst_case(net, x, delta, 1).margin
            zero = pp.worst_case(net, x, delta, 0).margin
            assert low[i, 0] == pytest.approx(one, abs=1e-8 * scale_of(one))
            assert high[i, 0] == pytest.approx(-zero, abs=1e-8 * scale_of(zero))
            inside = sampled_margins(net, x, delta, 1, rng, 300)
            assert low[i, 0] <= inside.min() + 1e-9 * scale_of(one)
            assert high[i, 0] >= inside.max() - 1e-9 * scale_of(zero)
    if net.outputs == 1:  # Definition 6: robust iff the range lies on the class's side of 0
        clear = np.minimum(np.abs(low), np.abs(high))[:, 0] > 1e-7
        for target, expected in ((1, low[:, 0] >= 0.0), (0, high[:, 0] <= 0.0)):
            robust = pp.certify(net, problem.X, delta, target).robust
            np.testing.assert_array_equal(robust[clear], expected[clear])


def test_hard_paths_are_taken():
    """Among these problems some need the batched tree and some the linear program's."""
    nodes, splits = [], []
    split = batched_bnb._split

    def counted_split(nodes, pick):
        splits.append(len(pick))
        return split(nodes, pick)

    def counted(*arguments, **options):
        minimum = lp_bnb.minimise(*arguments, **options)
        nodes.append(minimum.nodes)
        return minimum

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "minimise", counted)
        patch.setattr(batched_bnb, "_split", counted_split)
        for name in [name for name in NAMES if name.startswith("wide")]:
            problem = problem_of(name)
            problem.certify(exact_margin=True)
            for margin in problem.margins(np.random.default_rng(0)):
                problem.certify(margin=float(margin))
    assert sum(count > 5 for count in nodes) >= 10
    assert sum(splits) >= 50


# -- solver failures -----------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("trouble", [{"unknown": 1.0}, {"unknown": 0.5}, {"noise": 0.1}])
def test_solver_in_trouble_never_gives_wrong_bound(trouble, monkeypatch):
    healthy = linear.quiet
    made = []

    def broken():
        made.append(Trouble(healthy(), **trouble))
        return made[-1]

    monkeypatch.setattr(linear, "quiet", broken)
    monkeypatch.setattr(batched_bnb, "NODES_PER_ROW", 1)
    for name in [f"hidden{h}-{seed}" for h in (2, 3) for seed in range(12)]:
        problem = problem_of(name)
        for margin in [*problem.margins(np.random.default_rng(3)), *(problem.truth - 0.3)]:
            report = problem.certify(margin=float(margin))
            assert (report.lower <= problem.truth + problem.slack).all()
            assert (report.upper >= problem.truth - problem.slack).all()
            clear = np.abs(problem.truth - margin) > 1e-6
            true = problem.truth >= margin
            assert (true | ~report.robust)[clear].all()
            assert (~true | report.robust | report.undecided)[clear].all()
        report = problem.certify(exact_margin=True)
        assert (report.lower <= problem.truth + problem.slack).all()
        assert (report.upper >= problem.truth - problem.slack).all()
        worst = pp.worst_case(problem.net, problem.X[0], problem.delta, problem.target)
        assert worst.lower <= problem.truth[0] + problem.slack[0]
        assert worst.margin >= problem.truth[0] - problem.slack[0]
        assert_inside(problem.net, worst.network, problem.delta)
    assert made  # the solver was called
