"""A solver that gives no answer: nothing is concluded from it, and nothing is lost by it."""

from __future__ import annotations

import functools
import math

import highspy
import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import SolverError
from proplace.search import bilevel, search, tree
from proplace.search.oracle import Verdict
from proplace.search.subproblem import MOST_SPLITS_WITHOUT_SOLUTION, Subproblem
from proplace.solvers import LinearProgram
from support.problems import (
    ODD_STATUSES,
    SAME,
    Clock,
    check_answer,
    compare,
    ill_solver,
    plain,
    problem_of,
    random_problem,
    shrunk_problem,
)
from support.tiers import quick

PATTERNS = {
    "the first": lambda n: n == 0,
    "one in the middle": lambda n: n == 9,
    "five on end": lambda n: 4 <= n < 9,  # every way of asking
    "every other one": lambda n: n % 2 == 0,
    "two of three": lambda n: n % 3 > 0,
    "nine of ten": lambda n: n % 10 > 0,
    "all but the first few": lambda n: n >= 6,
    "all": lambda n: True,
}


# -- networks on which it happened ------------------------------------------------------------------


@pytest.mark.parametrize("case", [(12, 3, 5), (40, 3, 5), (130, 3, 5), (112, 8, 10), (147, 8, 10)])
def test_minute_neurons(case):
    compare(*shrunk_problem(*case))


@pytest.mark.parametrize("case", [(12, 3, 5), (112, 8, 10)])
def test_minute_neurons_take_no_second_try(case, monkeypatch):
    """In their own units, the programs are ordinary. Without them, further tries still succeed."""
    tries = []
    plain_run = LinearProgram.run

    def counted(program, deadline=math.inf):
        tries.append(plain_run(program, deadline))
        return tries[-1]

    monkeypatch.setattr(LinearProgram, "run", counted)
    problem, piece = shrunk_problem(*case)
    found = tree.solve(problem, piece)
    assert "failed" not in tries
    tries.clear()
    monkeypatch.setattr("proplace.search.relaxation.MINUTE_NEURON", 0.0)
    again = tree.solve(problem, piece)
    assert "failed" in tries
    assert again.status == found.status
    if found.point is not None:
        assert again.distance == pytest.approx(found.distance, abs=SAME)


# -- the searches -----------------------------------------------------------------------------------

PROBLEMS = (1, 6, 9)


def check_sound(problem, piece, found, truth):
    """No claim about the problem is false, whatever status the solver returns."""
    assert found.lower <= truth.distance + SAME
    if found.point is not None:
        check_answer(problem, piece, found, attacks=False)
        assert found.distance >= truth.distance - SAME
    if found.status == "optimal":
        assert found.distance == pytest.approx(truth.distance, abs=SAME)
    elif found.status == "infeasible":
        assert truth.point is None
    else:
        assert found.solver_failure


@functools.cache
def known(seed, depth=None, width=None):
    """A random problem with its answer, found in peace."""
    problem, piece = random_problem(seed, depth=depth, width=width)
    return problem, piece, bilevel.solve(problem, piece)


STATUSES = {
    "tree": ["kTimeLimit", "kUnknown"],
    "bilevel": ["kTimeLimit", "kUnknown", "kUnbounded", "kUnboundedOrInfeasible", "kModelEmpty"],
}
"""The statuses that the searches distinguish. test_linear covers all of them."""


@pytest.mark.parametrize(
    ("method", "status"),
    quick(1, [(method, one) for method in STATUSES for one in STATUSES[method]]),
)
def test_nothing_is_concluded_from_no_answer(method, status):
    problems, least = {"tree": (3, 6), "bilevel": (2, 2)}[method]
    answered = 0
    for seed in PROBLEMS[:problems]:
        problem, piece, truth = known(seed)
        for pattern in PATTERNS.values():
            with pytest.MonkeyPatch.context() as patch:
                ill_solver(patch, status, pattern)
                found = search(problem, [piece], method=method)
            check_sound(problem, piece, found, truth)
            answered += found.status in ("optimal", "infeasible")
    assert answered >= least  # single failures cost nothing


def test_node_without_answer_is_split(monkeypatch):
    """If single programs fail permanently, the search continues without them to the same optimum."""
    split = proved = 0
    plain_choice = Subproblem._choose_without_solution

    def counted(self, decisions):
        nonlocal split
        chosen = plain_choice(self, decisions)
        split += chosen is not None
        return chosen

    monkeypatch.setattr(Subproblem, "_choose_without_solution", counted)
    for seed in range(12):
        problem, piece, truth = known((4100, seed), depth=2, width=8)
        for first in (3, 8, 15):
            with pytest.MonkeyPatch.context() as patch:
                ill_solver(patch, "kUnknown", lambda n, first=first: first <= n < first + 5)
                found = tree.solve(problem, piece)
            check_sound(problem, piece, found, truth)
            proved += found.status == truth.status
    assert split >= 3
    assert proved >= 30


def test_blind_splits_end(monkeypatch):
    """No result at all, on a network with many unstable neurons."""
    problem, piece = random_problem(20080, depth=2, width=14)
    ill_solver(monkeypatch, "kUnknown", lambda n: True)
    found = tree.solve(problem, piece, deadline=Clock(monkeypatch).now + 5000.0)
    assert found.nodes <= 4 * MOST_SPLITS_WITHOUT_SOLUTION
    assert "did not solve" in found.solver_failure
    assert found.status in ("feasible", "unknown")


def test_exact_test_without_verdict_leaves_its_node_open(monkeypatch):
    """Neither robust nor refuted, and no deadline: the point is no answer, its bound stays."""
    problem, piece = random_problem(1)
    truth = tree.solve(problem, piece)
    assert truth.status == "optimal"
    monkeypatch.setattr("proplace.search.oracle.Oracle.test", lambda *_: Verdict(False))
    found = tree.solve(problem, piece)
    assert (found.status, found.point) == ("unknown", None)
    assert "without a verdict" in found.solver_failure
    assert found.lower <= truth.distance + SAME


def test_piece_without_answer_does_not_lose_others(monkeypatch):
    """One piece fails, a farther one has a point: that is the answer, not proved nearest."""
    net = pp.Network([([[1.0, 1.0]], [0.0])])
    problem = problem_of(net, [-1.0, -1.0], 0.01)
    near = plain(problem.x, np.array([[0.5, 0.5]]))
    far = plain(problem.x, np.array([[1.0, 1.0]]))
    solve = bilevel.solve

    def failing(problem, piece, **options):
        if piece is near:
            raise SolverError("out of luck")
        return solve(problem, piece, **options)

    monkeypatch.setattr(bilevel, "solve", failing)
    found = search(problem, [far, near], method="bilevel")
    np.testing.assert_array_equal(found.point, [1.0, 1.0])
    assert (found.status, found.solver_failure) == ("feasible", "out of luck")
    assert found.lower == pytest.approx(1.5)
    alone = search(problem, [near], method="bilevel")
    assert (alone.status, alone.solver_failure) == ("unknown", "out of luck")


# -- the clock --------------------------------------------------------------------------------------


def test_each_step_looks_at_clock():
    """Stopped at any reading of the clock, the search ends soon, and its result is true."""
    for seed in (1, 6, 9):
        problem, piece, truth = known(seed)
        with pytest.MonkeyPatch.context() as patch:
            clock = Clock(patch)
            whole = search(problem, [piece], deadline=math.inf)
            looks = clock.looks
            assert whole.status == truth.status
            for stop in sorted({0, 1, 2, 3, 5, 8, *range(13, looks + 40, 13)}):
                clock = Clock(patch)
                deadline = clock.now + stop + 0.5
                found = search(problem, [piece], deadline=deadline)
                assert clock.now <= deadline + 8.0
                assert found.lower <= truth.distance + SAME
                if found.status in ("optimal", "infeasible"):
                    assert found.status == truth.status
                    continue
                assert not found.solver_failure
                if found.point is not None:
                    check_answer(problem, piece, found, attacks=False)


def test_every_solver_status_is_handled():
    """A new version of HiGHS may have more statuses."""
    assert {"kUnknown", "kNotset", "kSolveError", "kIterationLimit"} <= set(ODD_STATUSES)
    assert "kUnboundedOrInfeasible" in ODD_STATUSES
    assert len(ODD_STATUSES) == len(highspy.HighsModelStatus.__members__) - 2
