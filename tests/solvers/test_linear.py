"""Linear programs in HiGHS: warm changes, further tries after a failure, deadlines."""

from __future__ import annotations

import time

import numpy as np
import pytest

from proplace.solvers import INF, QUICKEST, WITH_DUALS, LinearProgram
from support.problems import ODD_STATUSES, Clock, ill_solver


def small_program(strategy=QUICKEST):
    """Least x + y with x + 2 y >= 1 over the unit square: 1/2."""
    program = LinearProgram(strategy)
    program.add_columns(np.zeros(2), np.ones(2), np.ones(2))
    columns = np.arange(2, dtype=np.int32)
    program.add_rows(np.ones(1), np.full(1, INF), np.array([[1.0, 2.0]]), columns)
    return program


@pytest.mark.parametrize("status", ODD_STATUSES)
@pytest.mark.parametrize("strategy", [QUICKEST, WITH_DUALS], ids=["quickest", "with duals"])
@pytest.mark.parametrize("failures", range(6))
def test_other_ways_are_tried_and_taken_back(status, strategy, failures, monkeypatch):
    program, tries = small_program(strategy), 1 + len(strategy.retries)
    names = sorted({name for way in strategy.retries for name in way})
    before = [program.solver.getOptionValue(name)[1] for name in names]
    numbers = ill_solver(monkeypatch, status, lambda n: n < failures)
    verdict = program.solve()
    assert verdict == ("optimal" if failures < tries else "failed")
    assert next(numbers) == min(failures + 1, tries)
    assert [program.solver.getOptionValue(name)[1] for name in names] == before
    if verdict == "optimal":
        assert program.objective == pytest.approx(0.5)
    while (again := program.solve()) == "failed":  # the rest of the failures
        pass
    assert again == "optimal"  # it starts anew
    assert program.objective == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("strategy", "number"),
    [(strategy, n) for strategy in (QUICKEST, WITH_DUALS) for n in range(len(strategy.retries))],
)
def test_each_way_gives_answer(strategy, number, monkeypatch):
    for side, verdict in ((1.0, "optimal"), (4.0, "infeasible")):
        program = small_program(strategy)
        program.set_row_bounds(0, side, INF)
        with monkeypatch.context() as patch:
            ill_solver(patch, "kUnknown", lambda n: n <= number)
            assert program.solve() == verdict
        if strategy is WITH_DUALS and verdict == "infeasible":
            ray = program.dual_ray()  # a multiple of the row that no point reaches
            assert ray is not None
            assert abs(float(ray[0])) > 0.0


def test_program_ends_at_deadline(monkeypatch):
    program = small_program()
    Clock(monkeypatch, step=0.0)
    before = program.solver.getRunTime()
    assert program.run(time.monotonic() + 1e6) == "optimal"
    limit = program.solver.getOptionValue("time_limit")[1]
    assert before <= limit - 1e6 <= program.solver.getRunTime()
    assert program.run(time.monotonic()) == "late"
    ill_solver(monkeypatch, "kTimeLimit", lambda n: True)
    assert program.run(time.monotonic() + 1e6) == "late"
    assert program.run() == "failed"  # there is no limit that it could have met


def random_program(rng):
    """A feasible program over a box, and its parts."""
    A, cost = rng.normal(size=(4, 6)), rng.normal(size=6)
    side = A @ rng.random(6)
    return A, cost, side


def loaded(A, cost, side, low=None, high=None):
    """The same program, built at once and in one piece."""
    program = LinearProgram(WITH_DUALS)
    low = np.zeros(len(cost)) if low is None else low
    high = np.ones(len(cost)) if high is None else high
    program.load(cost, (low, high), A, (side, np.full(len(side), INF)))
    return program


@pytest.mark.parametrize("seed", range(20))
def test_program_that_was_changed_is_program_built_anew(seed):
    """Rows, bounds and costs that come later, are overridden and come back: never another answer."""
    rng = np.random.default_rng(seed)
    A, cost, side = random_program(rng)
    grown = LinearProgram(QUICKEST)
    grown.add_columns(np.zeros(3), np.ones(3), np.zeros(3))
    grown.add_columns(np.zeros(3), np.ones(3), cost[3:])
    grown.set_costs(np.arange(3, dtype=np.int32), cost[:3])
    for row in A:
        grown.add_rows(np.array([-INF]), np.array([INF]), row[None], np.arange(6, dtype=np.int32))
    for i, value in enumerate(side):
        grown.set_row_bounds(i, float(value), INF)
    truth = loaded(A, cost, side)
    assert truth.solve() == "optimal"
    assert grown.solve() == "optimal"
    assert grown.objective == pytest.approx(truth.objective, abs=1e-7)
    np.testing.assert_allclose(truth.values @ cost, truth.objective, atol=1e-9)

    fixed = loaded(A, cost, side, high=np.array([0.0, *np.ones(5)]))
    grown.set_temporary_bounds({0: (0.0, 0.0)})
    assert grown.solve() == fixed.solve()
    if fixed.run() == "optimal":
        assert grown.objective == pytest.approx(fixed.objective, abs=1e-7)

    grown.set_temporary_bounds({})
    assert grown.solve() == "optimal"
    assert grown.objective == pytest.approx(truth.objective, abs=1e-7)
    grown.drop_costs()
    assert grown.solve() == "optimal"
    assert grown.objective == 0.0
    grown.restore_costs()
    assert grown.solve() == "optimal"
    assert grown.objective == pytest.approx(truth.objective, abs=1e-7)


def test_dual_values_and_rays_prove_solver_status():
    """Weak duality by hand: multipliers bound the objective, a ray leaves no point."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A, cost, side = random_program(rng)
        program = loaded(A, cost, side)
        assert program.solve() == "optimal"
        x, duals = program.values_and_duals()
        rest = cost - duals @ A
        bound = duals @ side + np.minimum(rest, 0.0).sum()  # over 0 <= x <= 1
        assert bound == pytest.approx(cost @ x, abs=1e-7)
        assert program.dual_ray() is None
        beyond = np.maximum(A, 0.0).sum(axis=1) + 0.1
        program.load(cost, (np.zeros(6), np.ones(6)), A, (beyond, np.full(4, INF)))
        assert program.solve() == "infeasible"
        ray = program.dual_ray()
        assert ray is not None
        ray = np.abs(ray)
        assert ray @ beyond > np.maximum(ray @ A, 0.0).sum()
