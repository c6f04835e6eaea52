"""Tightening, rebuilding, splits and new incumbents, forced upon problems that need none of them.

On small networks, few neurons are unstable, and a tree ends before any of these steps. Here the
constants that start the steps are set so that they always run, in several ways with the same result.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest

from proplace.search import bilevel, subproblem, tree
from proplace.search.relaxation import Relaxation
from proplace.search.subproblem import Subproblem
from support.problems import SAME, check_answer, random_problem, set_constants, within_looks
from support.tiers import every, quick

EAGER = {
    "subproblem.FEW_OPEN": 1,
    "subproblem.LEAST_ITERATIONS": 0,
    "subproblem.ITERATION_SHARE": 0.0,
    "subproblem.WORTH_CUTTING": 0.0,
    "subproblem.WORTH_IMPROVING": 0.0,
}
"""Everything at once, as early and as often as can be."""

WEAK = {**EAGER, "local.STARTS": 0, "local.LINES": 1, "local.STEPS": 0}
"""A first incumbent that leaves much to be found."""

ROUTES = {
    "few scenarios": {**EAGER, "subproblem.TIGHTENED_SCENARIOS": 0},
    "rebuilt each round": {
        **EAGER,
        "subproblem.REBUILD_SHARE": 1.1,
        "subproblem.TIGHTENING_ROUNDS": 3,
        "subproblem.TIGHTENED_SCENARIOS": 99,
        "relaxation.RANGE_REACHED": 0.0,
        "local.RESERVE": 0.5,
    },
    "never rebuilt": {
        **WEAK,
        "subproblem.REBUILD_SHARE": 0.0,
        "subproblem.TIGHTENED_SCENARIOS": 99,
        "subproblem.LEAST_ITERATIONS": 10,
        "relaxation.RANGE_REACHED": 0.1,
    },
    "weak incumbents": {
        **WEAK,
        "subproblem.LEAST_ITERATIONS": 15,
        "subproblem.ITERATION_SHARE": 0.02,
        "tree.INHERITED_SCENARIOS": 1,
        "state.REFUTED_BELOW": 1e-7,
        "local.RESERVE": 0.0,
    },
}


@pytest.fixture
def counts(monkeypatch):
    """Counts of the steps that ran."""
    result = Counter()

    def counted(owner, name, label, happened=lambda _: True):
        plain = getattr(owner, name)

        def run(*args, **options):
            value = plain(*args, **options)
            result[label] += bool(happened(value))
            return value

        monkeypatch.setattr(owner, name, run)

    counted(Relaxation, "limit", "tightened")
    counted(Subproblem, "_relaxed", "built")
    counted(Subproblem, "__init__", "subproblems")
    counted(subproblem, "tighten", "closed", lambda left: not left)
    counted(Subproblem, "_split", "splits", bool)
    counted(Subproblem, "_cut_if_worth", "cut", bool)
    return result


CASES = [
    *((seed, 1, 8) for seed in range(4000, 4025)),
    *((seed, 2, 6) for seed in range(4100, 4145)),
    *((seed, 3, 4) for seed in range(4200, 4225)),
]


@pytest.mark.parametrize(("seed", "depth", "width"), every(10, CASES))
def test_every_route_leads_to_same_distance(seed, depth, width):
    problem, piece = random_problem(seed, depth=depth, width=width)
    truth = bilevel.solve(problem, piece)
    for route, constants in ROUTES.items():
        found = within_looks(problem, piece, constants)
        assert found.status == truth.status, route
        if truth.point is None:
            assert math.isinf(found.lower), route
            continue
        check_answer(problem, piece, found, attacks=False)
        assert found.distance == pytest.approx(truth.distance, abs=SAME), route


@pytest.mark.parametrize("route", quick(1, ROUTES))
def test_all_routes_of_subproblem_are_reached(route, counts, monkeypatch):
    set_constants(monkeypatch, ROUTES[route])
    for seed, depth, width in CASES[25:70]:
        problem, piece = random_problem(seed, depth=depth, width=width)
        tree.solve(problem, piece)
    assert counts["tightened"] > 100
    assert counts["splits"] >= 5
    assert counts["cut"] >= 3
    rebuilt = counts["built"] - counts["subproblems"]
    assert (rebuilt >= 10) == (route != "never rebuilt")


def test_incumbent_at_no_distance():
    """A column that costs nothing may be the only necessary change. A local search finds it late."""
    problem, piece = random_problem(20856, depth=2, width=14)
    found = tree.solve(problem, piece)
    assert found.status == "optimal"
    assert found.distance == pytest.approx(0.0, abs=SAME)
    check_answer(problem, piece, found)
