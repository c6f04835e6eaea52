"""Tightening, rebuilding, splits and new incumbents, forced upon problems that need none of them.

On small networks few neurons are open and a tree ends before any of these begins. Here the constants
that say when they are worth it are set so that they always are, on several routes to one answer.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from proplace.search import bilevel, subproblem, tree
from proplace.search.relaxation import Relaxation
from proplace.search.subproblem import Subproblem
from proplace.search.tuning import Tuning
from search_problems import SAME, check_answer, random_problem, within_looks
from support.tiers import every

EAGER = Tuning(
    few_open=1, least_iterations=0, iteration_share=0.0, worth_cutting=0.0, worth_improving=0.0
)
"""Everything at once, as early and as often as can be."""

WEAK = replace(EAGER, starts=0, lines=1, steps=0)
"""A first incumbent that leaves much to be found."""

ROUTES = {
    "one probe": replace(EAGER, probes=1, tightened_scenarios=0),
    "rebuilt each round": replace(
        EAGER,
        rebuild_share=1.1,
        tightening_rounds=3,
        tightened_scenarios=99,
        range_reached=0.0,
        safety=0.5,
    ),
    "never rebuilt": replace(
        WEAK,
        rebuild_share=0.0,
        tightened_scenarios=99,
        least_iterations=10,
        range_reached=0.1,
    ),
    "weak incumbents": replace(
        WEAK,
        probes=2,
        least_iterations=15,
        iteration_share=0.02,
        inherited_scenarios=1,
        refuted_below=1e-7,
        safety=0.0,
    ),
}


@pytest.fixture
def counts(monkeypatch):
    """How often each part of the machinery ran."""
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


@pytest.mark.parametrize(("seed", "depth", "width"), every(5, CASES))
def test_every_route_leads_to_the_same_distance(seed, depth, width):
    problem, piece = random_problem(seed, depth=depth, width=width)
    truth = bilevel.solve(problem, piece)
    for route, tuning in ROUTES.items():
        found = within_looks(problem, piece, tuning=tuning)
        assert found.status == truth.status, route
        if truth.point is None:
            assert math.isinf(found.lower), route
            continue
        check_answer(problem, piece, found, attacks=False)
        assert found.distance == pytest.approx(truth.distance, abs=SAME), route


@pytest.mark.parametrize("route", ROUTES)
def test_the_routes_go_where_they_should(route, counts):
    for seed, depth, width in CASES[25:70]:
        problem, piece = random_problem(seed, depth=depth, width=width)
        tree.solve(problem, piece, tuning=ROUTES[route])
    assert counts["tightened"] > 100
    assert counts["splits"] >= 5
    assert counts["cut"] >= 3
    rebuilt = counts["built"] - counts["subproblems"]
    assert (rebuilt >= 10) == (route != "never rebuilt")


def test_an_incumbent_at_no_distance():
    """A column that costs nothing may be all that has to change; a local search finds that late."""
    problem, piece = random_problem(20080, depth=2, width=14)
    found = tree.solve(problem, piece)
    assert found.status == "optimal"
    assert found.distance == pytest.approx(0.0, abs=SAME)
    check_answer(problem, piece, found)
