"""The pieces of the proof, one by one, with everything that is free chosen at random."""

from __future__ import annotations

import itertools
import types

import numpy as np
import pytest

import proplace as pp
from oracles import Trouble, accepted_rows, milp_margin, random_case, scale_of
from proplace.certification import batched_bnb, lp_bnb, node_program
from proplace.certification.bounds import Abstraction, WorstCaseProblem, chords
from proplace.certification.node_program import NodeProgram
from proplace.solvers import WITH_DUALS, LinearProgram
from support.problems import dense
from support.tiers import seeds


def prepared(seed, hidden, *, width=5, rows=1):
    case = random_case(np.random.default_rng([55, hidden, seed]), hidden, width=width, rows=rows)
    abstraction = Abstraction(case.net, pp.Shifts.of(case.net, case.delta))
    root = abstraction.tighten(abstraction.interval_bounds(case.net.transform(case.X)))
    return case, abstraction, root


def program_of(abstraction, root, U, c):
    """The linear program of the one row in ``root``."""
    sizes = [size[0] for size in abstraction.roundoff.sizes(U)]
    return NodeProgram(problem_of(abstraction, root, U, c), sizes)


def problem_of(abstraction, root, U, c):
    return WorstCaseProblem(abstraction, root, U, abstraction.objective(c))


def reachable(abstraction, root, rng, count):
    """Activations of random shifts of the one row in ``root``, and U of each inner layer.

    On the way: L and U lie in the ranges that the root gives for them.
    """
    t = rng.uniform(-0.2, 1.2, (count, root.low.shape[1])).clip(0.0, 1.0)
    hidden, highs = [root.low + t * (root.high - root.low)], []
    for inner in abstraction.inner:
        low, high = inner.both(hidden[-1])
        level = root.preactivations[len(highs)]
        for values, least, most in (
            (low, level.L_min, level.L_max),
            (high, level.U_min, level.U_max),
        ):
            assert (least - 1e-9 <= values).all()
            assert (values <= most + 1e-9).all()
        highs.append(high)
        t = rng.uniform(-0.5, 1.5, low.shape).clip(0.0, 1.0)
        hidden.append(np.maximum(low + t * (high - low), 0.0))
    return hidden, highs


@pytest.mark.parametrize("hidden", [2, 3, 4])
@pytest.mark.parametrize("seed", seeds(4, 12))
def test_any_slopes_and_multipliers_give_bound(hidden, seed):
    """backward() holds for all slopes in [0, 1] and all multipliers of the sign of their split."""
    case, abstraction, root = prepared(seed, hidden)
    rng = np.random.default_rng(seed)
    points, highs = reachable(abstraction, root, rng, 3000)
    for c in case.net.objectives(case.target):
        a, const = abstraction.objective(c)
        values = points[-1] @ a + const
        for trial in range(12):
            alpha = [rng.uniform(size=level.L_min.shape) for level in root.preactivations]
            splits, gamma, inside = [], [], np.ones(len(values), dtype=bool)
            for level, U in zip(root.preactivations, highs, strict=True):
                open_sign = (level.U_min < 0.0) & (level.U_max > 0.0)
                chosen = open_sign & (rng.random(open_sign.shape) < 0.4) & (trial > 0)
                split = np.where(chosen, rng.choice([-1, 1], open_sign.shape), 0).astype(np.int8)
                splits.append(split)
                gamma.append(split * rng.exponential(size=split.shape))
                inside &= ((split == 0) | (U * split >= 0.0)).all(axis=1)
            if inside.any():
                uppers = [
                    chords(level, split)
                    for level, split in zip(root.preactivations, splits, strict=True)
                ]
                bound = abstraction.backward(root, a, const, alpha, uppers, gamma).value[0]
                assert bound <= values[inside].min() + 1e-9 * scale_of(bound)


@pytest.mark.parametrize("seed", range(8))
def test_chord_lies_above_relu(seed):
    _, _, root = prepared(seed, 3)
    for level in root.preactivations:
        slope, offset = chords(level, None)
        for t in np.linspace(0.0, 1.0, 11):
            U = level.U_min + t * (level.U_max - level.U_min)
            assert (slope * U + offset >= np.maximum(U, 0.0) - 1e-9).all()
        ends = [slope * U + offset - np.maximum(U, 0.0) for U in (level.U_min, level.U_max)]
        np.testing.assert_allclose(ends, 0.0, atol=1e-9)  # and touches it at both ends


def test_split_multipliers_help(monkeypatch):
    """A split is worth more with its multiplier: the ascent finds some that are not 0."""
    net, X = accepted_rows(3, (8, 30, 30, 30, 1), 60)
    delta = 0.012
    ascend, used = batched_bnb._Trees._ascend, []

    def counting(trees, *arguments):
        found = ascend(trees, *arguments)
        used.append(np.any([layer.any(axis=1) for layer in found.nodes.gamma], axis=0).sum())
        return found

    monkeypatch.setattr(batched_bnb._Trees, "_ascend", counting)
    report = pp.certify(net, X, delta)
    middle = (report.lower + report.upper) / 2.0
    for x, value in zip(X[::2], middle[::2], strict=True):
        for shift in (-0.02, 0.01):
            pp.certify(net, x, delta, margin=float(value + shift))
    assert sum(used) >= 5


@pytest.mark.parametrize("hidden", [2, 3, 4])
@pytest.mark.parametrize("seed", seeds(4, 12))
def test_any_dual_values_give_bound(hidden, seed):
    """The linear program's bound holds whatever numbers the solver calls its duals."""
    case, abstraction, root = prepared(seed, hidden)
    rng = np.random.default_rng(seed)
    points, highs = reachable(abstraction, root, rng, 3000)
    for c in case.net.objectives(case.target):
        a, const = abstraction.objective(c)
        program = program_of(abstraction, root, case.net.transform(case.X), c)
        values = points[-1] @ a + const
        for trial in range(8):
            splits, inside = [], np.ones(len(values), dtype=bool)
            for level, U in zip(root.preactivations, highs, strict=True):
                open_sign = ((level.U_min < 0.0) & (level.U_max > 0.0))[0]
                chosen = open_sign & (rng.random(open_sign.shape) < 0.4) & (trial > 0)
                split = np.where(chosen, rng.choice([-1, 1], open_sign.shape), 0).astype(np.int8)
                splits.append(split)
                inside &= ((split == 0) | (U * split >= 0.0)).all(axis=1)
            value, point, duals, _ = program.bound(tuple(splits))
            if not inside.any() or point is None:
                continue
            least = values[inside].min()
            assert value <= least + 1e-9 * scale_of(value)
            for noise in (1e-9, 1e-6, 1e-3, 0.1, 2.0):
                noisy = duals + noise * rng.normal(size=len(duals))
                bound = program.dual_bounds.bound(noisy, tuple(splits)).value
                assert bound <= least + 1e-9 * scale_of(bound)
                if noise == 1e-9:  # near the solver's duals the bound is near its value
                    assert bound == pytest.approx(value, abs=1e-6 * scale_of(value))


@pytest.mark.parametrize("hidden", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_noisy_duals_never_lift_bound_above_truth(hidden, seed):
    """At the root, against the true minimum: noise may only lower the bound."""
    case, abstraction, root = prepared(seed, hidden)
    rng = np.random.default_rng(seed)
    c = case.net.objectives(case.target)[0]
    U = case.net.transform(case.X)
    truth = lp_bnb.minimise(problem_of(abstraction, root, U, c)).upper
    if case.net.outputs == 1:
        oracle = milp_margin(case.net, case.X[0], case.delta, case.target)
        assert truth == pytest.approx(oracle, abs=1e-6 * scale_of(oracle))
    program = program_of(abstraction, root, U, c)
    splits = tuple(np.zeros(level.L_min.shape[1], np.int8) for level in root.preactivations)
    duals = program.bound(splits).duals
    for noise in (0.0, 1e-6, 1e-4, 1e-2, 1.0):
        for _ in range(20):
            noisy = duals + noise * rng.normal(size=len(duals))
            assert program.dual_bounds.bound(noisy, splits).value <= truth + 1e-9 * scale_of(truth)
        program.program.solver = Trouble(program.program.solver, noise=noise, seed=seed)
        for _ in range(5):
            assert program.bound(splits).value <= truth + 1e-9 * scale_of(truth)


def test_leaves_that_another_search_has_closed_count_with_their_bound():
    """The open leaves may lie far above the closed ones, which then give the smallest value."""
    case, abstraction, root = prepared(1, 2)
    U, c = case.net.transform(case.X), case.net.objectives(case.target)[0]
    problem = problem_of(abstraction, root, U, c)
    truth = lp_bnb.minimise(problem)
    whole = tuple(np.zeros(level.L_min.shape[1], np.int8) for level in root.preactivations)
    for below in (0.0, 0.5, 3.0):
        left = batched_bnb.OpenLeaves((whole,), truth.upper - below)
        found = lp_bnb.minimise(problem, open_leaves=left)
        assert found.lower <= truth.upper - below + 1e-9
        assert found.upper == pytest.approx(truth.upper, abs=1e-9)


def test_bound_of_large_multipliers_includes_rounding():
    """Of a frozen layer of active neurons L is U: multipliers of 1e12 on both cancel up to rounding."""
    rng = np.random.default_rng(0)
    W = [rng.uniform(0.1, 1.0, size) for size in ((4, 2), (5, 4), (1, 5))]
    net = pp.Network([(layer, np.ones(len(layer))) for layer in W])
    abstraction = Abstraction(net, pp.Shifts.of(net, [(0.1, 0.1), (0.0, 0.0), (0.0, 0.0)]))
    U, c = rng.uniform(size=(1, 2)), net.objectives(1)[0]
    root = abstraction.interval_bounds(U)
    program, splits = program_of(abstraction, root, U, c), (np.zeros(5, np.int8),)
    value, _, duals, _ = program.bound(splits)
    large = duals.copy()
    large[: program.formulation.rows[1]] += 1e12
    error = 1e12 * abstraction.roundoff.unit * abstraction.roundoff.sizes(U)[0].sum()
    bound = program.dual_bounds.bound(large, splits).value
    assert value - 5.0 * error <= bound <= value - error


def test_multipliers_are_noted_with_sizes_they_act_on():
    """Rounding takes its share of them: of each leaf of a tree, and of each linear program."""
    net, X, delta = medium_problem()
    abstraction = Abstraction(net, pp.Shifts.of(net, delta))
    root = abstraction.tighten(abstraction.interval_bounds(X))
    c = net.objectives(1)[0]
    truth = pp.certify(net, X, delta, exact_margin=True).upper
    sizes = abstraction.roundoff.sizes(X)
    problem = problem_of(abstraction, root, X, c)
    found = batched_bnb.decide(problem, truth - 1e-3, traced=True)
    used = 0
    for nodes in found.leaves:
        for i, row in enumerate(nodes.row):
            push = sum(np.abs(g[i]) @ size[row] for g, size in zip(nodes.gamma, sizes, strict=True))
            assert found.multiplier_size[row] >= push * (1 - 1e-9)
            used += push > 0.0
    assert used >= 5
    for i in range(0, len(X), 5):
        one = root.take(np.array([i]))
        minimum = lp_bnb.minimise(problem.take(np.array([i])))
        if minimum.nodes:
            program = program_of(abstraction, one, X[i : i + 1], c)
            bound = program.bound(
                tuple(np.zeros(level.L_min.shape[1], np.int8) for level in one.preactivations)
            )
            assert minimum.multiplier_size >= bound.multiplier_size > 0.0
            used += 1
    assert used >= 8


def test_node_is_empty_only_if_rounding_cannot_have_made_it_so(monkeypatch):
    """With sizes of which rounding takes more than the ray proves, nothing is proved."""
    monkeypatch.setattr(node_program, "_SHOWS", np.inf)  # bounds as they are
    rng, seen = np.random.default_rng(0), 0
    net = dense(rng, [3, 8, 14, 1])
    abstraction = Abstraction(net, pp.Shifts.of(net, 0.1))
    for _ in range(10):
        U = net.transform(rng.normal(size=(1, 3)))
        c, root = net.objectives(1)[0], abstraction.interval_bounds(U)
        sizes = [1e15 * size[0] for size in abstraction.roundoff.sizes(U)]
        rough = NodeProgram(problem_of(abstraction, root, U, c), sizes)
        program = program_of(abstraction, root, U, c)
        for _ in range(10):
            splits = tuple(
                np.where(decided, rng.choice([-1, 1], len(decided)), 0).astype(np.int8)
                for decided in program.formulation.open
            )
            seen += program.bound(splits).value == np.inf
            assert rough.bound(splits).value < np.inf
    assert seen >= 10


def test_best_of_several_shifts_of_row_is_kept():
    incumbents = batched_bnb.Incumbents(np.array([9.0, 9.0, 1.0]), [np.zeros((3, 1))])
    rows, values = np.array([0, 0, 0, 1, 2]), np.array([5.0, 3.0, 4.0, 8.0, 2.0])
    improved = incumbents.offer(rows, values, [values[:, None] * 10.0])
    assert set(improved) == {0, 1}
    np.testing.assert_array_equal(incumbents.upper, [3.0, 8.0, 1.0])
    np.testing.assert_array_equal(incumbents.hidden[0][:, 0], [30.0, 80.0, 0.0])


# -- a clock that strikes anywhere in the tree -----------------------------------------------------


def medium_problem():
    return *accepted_rows(12, (6, 16, 16, 1), 40), 0.04


@pytest.mark.parametrize("module", [batched_bnb, lp_bnb], ids=["batched_tree", "linear_program"])
def test_deadline_in_middle_of_tree_leaves_valid_bounds(monkeypatch, module):
    net, X, delta = medium_problem()
    truth = pp.certify(net, X, delta, exact_margin=True)
    monkeypatch.setattr(batched_bnb, "NODES_PER_BATCH", 2)
    abstraction = Abstraction(net, pp.Shifts.of(net, delta))
    root = abstraction.tighten(abstraction.interval_bounds(X))
    problem = problem_of(abstraction, root, X, net.objectives(1)[0])
    interrupted = 0
    for ticks in range(1, 30):
        ticking = iter(range(10**9))
        clock = types.SimpleNamespace(monotonic=lambda ticking=ticking: float(next(ticking)))
        with monkeypatch.context() as patch:
            patch.setattr(module, "time", clock)
            # Thresholds just below the truth: the whole tree must close for a verdict.
            for i in range(0, len(X), 3):
                threshold = truth.upper[i] - 1e-3
                one = problem.take(np.array([i]))
                if module is batched_bnb:
                    bounds = batched_bnb.decide(one, threshold, float(ticks))
                    lower, upper = bounds.lower[0], bounds.upper[0]
                else:
                    minimum = lp_bnb.minimise(one, threshold=threshold, deadline=float(ticks))
                    lower, upper = minimum.lower, minimum.upper
                assert lower <= truth.upper[i] + 1e-9
                assert upper >= truth.lower[i] - 1e-9
                interrupted += lower < threshold <= upper
    assert interrupted >= 10  # the clock did strike before the end


def test_batched_tree_decides_nearly_everything():
    """Speed rests on it: few rows are left to the linear program."""
    net, X, delta = medium_problem()
    abstraction = Abstraction(net, pp.Shifts.of(net, delta))
    root = abstraction.tighten(abstraction.interval_bounds(X))
    problem = problem_of(abstraction, root, X, net.objectives(1)[0])
    truth = pp.certify(net, X, delta, exact_margin=True).upper
    open_rows = total = 0
    for shift in (-0.1, -0.03, 0.03, 0.1):
        for threshold in truth[::4] + shift:
            bounds = batched_bnb.decide(problem, float(threshold))
            open_rows += int(((bounds.lower < threshold) & (bounds.upper >= threshold)).sum())
            total += len(X)
    assert open_rows <= 0.05 * total


@pytest.mark.parametrize("seed", range(8))
def test_false_report_of_emptiness_is_not_believed(seed, monkeypatch):
    """A node is dropped only when the solver's ray proves it empty."""
    rng = np.random.default_rng(seed)
    sizes = [3, 5, 5, 1]
    net = dense(rng, sizes)
    x = rng.normal(size=(1, 3))
    truth = pp.certify(net, x, 0.1, exact_margin=True).upper[0]
    honest = LinearProgram.solve
    calls = itertools.count()

    def lying(program, deadline):
        verdict = honest(program, deadline)
        return "infeasible" if next(calls) % 3 == 1 else verdict

    monkeypatch.setattr(LinearProgram, "solve", lying)
    report = pp.certify(net, x, 0.1, exact_margin=True)
    assert report.lower[0] <= truth + 1e-9
    assert report.upper[0] >= truth - 1e-9


def test_overflow_proves_nothing():
    """Floats overflow here. Exact arithmetic still decides, and no bound uses an overflow."""
    net = pp.Network([([[1e200]], [0.0]), ([[1e200]], [0.0])])
    for target in (0, 1):
        with np.errstate(all="ignore"):
            report = pp.certify(net, [[1.0]], 0.0, target)
        assert report.robust[0] == (target == 1)
        assert not report.undecided[0]
        assert report.lower[0] == (0.0 if target == 1 else -np.inf)
        assert report.upper[0] == (np.inf if target == 1 else np.nextafter(0.0, -1.0))


def test_corner_that_its_gradient_requires_needs_no_program(monkeypatch):
    """The linear program finds nothing below such a corner, but improves other shifts."""
    asked, skipped, deeper = [], 0, 0

    def counted(*arguments):
        asked.append(arguments)
        return NodeProgram(*arguments)

    monkeypatch.setattr(lp_bnb, "NodeProgram", counted)
    for seed in range(60):
        case, abstraction, root = prepared(seed, 2, width=12)
        for c in case.net.objectives(case.target):
            problem = problem_of(abstraction, root, case.net.transform(case.X), c)
            first = batched_bnb.first_bounds(problem)
            before, start = abstraction.sharpen(
                root, *problem.objective, first.upper, first.hidden, 3
            )
            asked.clear()
            value, _ = lp_bnb.refine_attack(problem, start)
            if asked:
                deeper += value < before[0] - 1e-6
                continue
            skipped += 1
            with monkeypatch.context() as patch:
                patch.setattr(Abstraction, "steepest", lambda *_: ([], np.zeros(0)))
                assert value <= lp_bnb.refine_attack(problem, start)[0] + 1e-7
    assert skipped >= 20
    assert deeper >= 3


@pytest.mark.parametrize("stalls", [1, 2, 3])
def test_stalled_solve_is_tried_in_other_ways(monkeypatch, stalls):
    """A bound that came at the second to fourth attempt is the bound."""
    case, abstraction, root = prepared(1, 2)
    U, c = case.net.transform(case.X), case.net.objectives(case.target)[0]
    splits = tuple(np.zeros(level.L_min.shape[1], np.int8) for level in root.preactivations)
    expected = program_of(abstraction, root, U, c).bound(splits).value
    left = [stalls]
    plain = LinearProgram.run

    def run(self, deadline):
        verdict = plain(self, deadline)
        left[0] -= 1
        return "failed" if left[0] >= 0 else verdict

    monkeypatch.setattr(LinearProgram, "run", run)
    program = program_of(abstraction, root, U, c)
    solver = program.program.solver
    options = {name for attempt in WITH_DUALS.retries for name in attempt}
    before = {name: solver.getOptionValue(name) for name in options}
    found, point, *_ = program.bound(splits)
    assert point is not None
    assert found == pytest.approx(expected, abs=1e-6 * scale_of(expected))
    assert {name: solver.getOptionValue(name) for name in options} == before


def test_empty_node_is_seen_where_solver_stalls(monkeypatch):
    """A node that is not empty is not called empty, and the program works on as before."""
    rng, seen = np.random.default_rng(0), {True: 0, False: 0}
    sizes = [3, 8, 14, 1]
    for _ in range(12):
        net = dense(rng, sizes)
        abstraction = Abstraction(net, pp.Shifts.of(net, 0.1))
        U = net.transform(rng.normal(size=(1, 3)))
        program = program_of(abstraction, abstraction.interval_bounds(U), U, net.objectives(1)[0])
        for _ in range(12):
            splits = tuple(
                np.where(decided, rng.choice([-1, 1], len(decided)), 0).astype(np.int8)
                for decided in program.formulation.open
            )
            expected = program.bound(splits).value
            with monkeypatch.context() as patch:
                patch.setattr(LinearProgram, "solve", lambda *_: "failed")
                found, point, *_ = program.bound(splits)
            assert point is None
            assert (found == np.inf) == (expected == np.inf)
            assert program.bound(splits).value == pytest.approx(expected)
            seen[expected == np.inf] += 1
    assert min(seen.values()) >= 10
