"""The solvers against each other and against enumeration, and their statuses after a failure."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from proplace.core.errors import MissingExtraError, OptionError, SolverError
from proplace.solvers import Model, Raw, mixed_integer, solve
from support.errors import raises

PACKAGES = {"highs": "highspy", "gurobi": "gurobipy"}


@pytest.fixture(params=PACKAGES)
def solver(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def random_model(seed):
    """A bounded model with whole, continuous and free columns and every kind of row."""
    rng = np.random.default_rng(seed)
    model = Model()
    whole = model.columns(np.full(3, -2.0), 3.0, cost=rng.normal(size=3), integer=True)
    box = model.columns(np.full(2, -1.0), [1.0, 2.0], cost=rng.normal(size=2))
    free = model.columns([-np.inf, 0.0], np.inf, cost=[0.5, 1.0])
    everything = [
        (whole, rng.normal(size=(4, 3))),
        (box, rng.normal(size=(4, 2))),
        (free, rng.normal(size=(4, 2))),
    ]
    inf = math.inf
    model.rows(everything, [-3.0, -inf, -2.0, -inf], [3.0, 2.5, inf, inf])
    model.rows([(free, np.eye(2)), (whole[:2], np.eye(2))], [-6.0, -6.0], [6.0, 6.0])
    model.rows([(box, [[1.0, 1.0]]), (free[:1], [[1.0]])], 0.25, 0.25)
    model.offset = 1.25
    return model


@pytest.mark.parametrize("seed", range(12))
def test_solvers_agree(seed, solver):
    model = random_model(seed)
    ours, theirs = solve(model), solve(model, solver)
    assert theirs.status == ours.status
    assert theirs.objective == pytest.approx(ours.objective, abs=1e-7)
    assert theirs.bound == pytest.approx(ours.objective, abs=1e-7)
    assert theirs.bound <= theirs.objective
    if theirs.x is not None:
        assert model.arrays().violation(theirs.x) <= 1e-8


@pytest.mark.parametrize("seed", range(6))
def test_whole_columns_against_enumeration(seed, solver):
    rng = np.random.default_rng(seed)
    cost, A = rng.normal(size=4), rng.normal(size=(2, 4))
    model = Model()
    x = model.columns(np.zeros(4), 2.0, cost=cost, integer=True)
    model.rows([(x, A)], [-0.5, -1.0], [0.5, 1.0])
    points = np.array(list(itertools.product(range(3), repeat=4)))
    inside = (np.abs(points @ A.T) <= [0.5, 1.0]).all(axis=1)
    solution = solve(model, solver)
    assert solution.status == "optimal"
    assert solution.objective == pytest.approx((points[inside] @ cost).min(), abs=1e-8)


def test_linear_model_has_its_own_bound(solver):
    model = Model()
    x = model.columns([0.0, 0.0], 1.0, cost=[1.0, 2.0])
    model.rows([(x, [[1.0, 1.0]])], 1.5, math.inf)
    solution = solve(model, solver)
    assert (solution.objective, solution.bound) == pytest.approx((2.0, 2.0))


def test_entries_of_one_place_are_added(solver):
    model = Model()
    x = model.columns(0.0, 10.0, cost=1.0)
    model.rows([(x, [[1.0]]), (x, [[1.0]])], 3.0, math.inf)
    assert solve(model, solver).objective == pytest.approx(1.5)


@pytest.mark.parametrize("integer", [False, True])
def test_infeasible(solver, integer):
    model = Model()
    x = model.columns([0.0, 0.0], 1.0, cost=1.0, integer=integer)
    model.rows([(x, [[1.0, 1.0]])], 2.5, math.inf)
    solution = solve(model, solver)
    assert solution.status == "infeasible"
    assert solution.x is None
    assert solution.bound == math.inf


def test_empty_row_that_cannot_hold(solver):
    model = Model()
    x = model.columns(0.0, 1.0, cost=1.0)
    model.rows([(x, [[0.0]])], 1.0, math.inf)
    assert solve(model, solver).status == "infeasible"


@pytest.mark.parametrize("integer", [False, True])
def test_unbounded(solver, integer):
    model = Model()
    x = model.columns([0.0, 0.0], math.inf, cost=[-1.0, 0.0], integer=integer)
    model.rows([(x, [[1.0, -1.0]])], -math.inf, 1.0)
    solution = solve(model, solver)
    assert (solution.status, solution.x) == ("unbounded", None)


def test_crossed_bounds_are_infeasible(solver):
    model = Model()
    model.columns(1.0, 0.0)
    assert solve(model, solver).status == "infeasible"


def test_no_time(solver):
    solution = solve(random_model(0), solver, time_limit=0.0)
    assert (solution.status, solution.x, solution.bound) == ("limit", None, -math.inf)


def test_same_answer_twice(solver):
    first, second = (solve(random_model(3), solver) for _ in range(2))
    assert np.array_equal(first.x, second.x)


def test_silent(solver, capfd):
    solve(random_model(1), solver)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


INTERRUPTED = """
import os, signal, sys, threading
import numpy as np
from proplace.solvers import Model, check, solve

rng = np.random.default_rng(0)  # a market split: hours of work for any solver
A = rng.integers(0, 100, (6, 50)).astype(float)
half = np.floor(A.sum(axis=1) / 2.0)
model = Model()
x = model.columns(np.zeros(50), 1.0, integer=True)
off = model.columns(np.zeros(12), np.inf, cost=1.0)
model.rows([(x, A), (off, np.hstack([np.eye(6), -np.eye(6)]))], half, half)
check(sys.argv[1])
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    print(solve(model, sys.argv[1], time_limit=6.0).status)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_interrupt(solver):
    """Ctrl-C ends the run, not just the program at hand, also where a solver listens for it."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, solver],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "interrupted"


def test_size_of_licence():
    gp = pytest.importorskip("gurobipy")
    model = Model()
    x = model.columns(np.zeros(2500), 1.0, cost=1.0)
    model.rows([(x, np.ones((1, 2500)))], 1.0, math.inf)
    with gp.Env(params={"OutputFlag": 0}) as env, gp.Model(env=env) as probe:
        probe.addMVar(2500)
        try:
            probe.optimize()
        except gp.GurobiError:
            pass
        else:
            pytest.skip("this machine has a full licence")
    with raises(SolverError, name="solver", value="gurobi", match="licence"):
        solve(model, "gurobi")


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with raises(MissingExtraError, name="gurobipy"):
        solve(random_model(0), "gurobi")


def test_unknown_solver():
    with raises(OptionError, name="solver", value="cplex"):
        solve(random_model(0), "cplex")


def test_wrong_point_is_refused(monkeypatch):
    def broken(arrays, time_limit):
        return Raw("optimal", arrays.upper + 1.0, 0.0, "fine")

    monkeypatch.setitem(mixed_integer._BACKENDS, "highs", broken)
    model = Model()
    model.columns(0.0, 1.0)
    with raises(SolverError, name="solver", value="highs", match="violates"):
        solve(model)


def test_failure_is_error(monkeypatch):
    def broken(arrays, time_limit):
        return Raw("failed", None, 0.0, "kSolveError")

    monkeypatch.setitem(mixed_integer._BACKENDS, "highs", broken)
    with raises(SolverError, name="solver", value="highs", match="kSolveError"):
        solve(random_model(0))
