"""Tightening, rebuilding, halves and new incumbents, forced upon problems that need none of them.

On small networks few neurons are open and a tree ends before any of these begins. Here the constants
that say when they are worth it are set so that they always are, on several routes to one answer.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest

from proplace.search import bilevel, hunt, local, part, relaxation, tree
from proplace.search.hunt import Hunt
from proplace.search.part import Part
from proplace.search.relaxation import Relaxation
from search_problems import SAME, check_answer, random_problem, within_looks

EAGER = {
    (part, "FEW"): 1,
    (part, "LEAST_WORK"): 0,
    (part, "WORK"): 0.0,
    (hunt, "WORTH_CUTTING"): 0.0,
    (hunt, "WORTH_IMPROVING"): 0.0,
}
"""Everything at once, as early and as often as can be."""

WEAK = {(local, "STARTS"): 0, (local, "GOALS"): 1, (local, "STEPS"): 0}
"""A first incumbent that leaves much to be found."""

ROUTES = {
    "one probe": {**EAGER, (part, "PROBES"): 1, (part, "TIGHT_SHIFTS"): 0},
    "rebuilt each round": {
        **EAGER,
        (part, "SHRUNK"): 1.1,
        (part, "ROUNDS"): 3,
        (part, "TIGHT_SHIFTS"): 99,
        (relaxation, "REACHED"): 0.0,
        (local, "SAFETY"): 0.5,
    },
    "never rebuilt": {
        **EAGER,
        **WEAK,
        (part, "SHRUNK"): 0.0,
        (part, "TIGHT_SHIFTS"): 99,
        (part, "LEAST_WORK"): 10,
        (relaxation, "REACHED"): 0.1,
    },
    "weak incumbents": {
        **EAGER,
        **WEAK,
        (part, "PROBES"): 2,
        (part, "LEAST_WORK"): 15,
        (part, "WORK"): 0.02,
        (tree, "PART_SHIFTS"): 1,
        (hunt, "BROKEN"): 1e-7,
        (local, "SAFETY"): 0.0,
    },
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

    counted(Relaxation, "_limit", "tightened")
    counted(Relaxation, "rebuilt", "rebuilt")
    counted(Relaxation, "tighten", "closed", lambda left: not left)
    counted(Part, "_halves", "halves", bool)
    counted(Hunt, "_cut_if_worth", "cut", bool)
    return result


def follow(route, monkeypatch):
    for (module, name), value in ROUTES[route].items():
        monkeypatch.setattr(module, name, value)


CASES = [
    *((seed, "l1", 1, 8) for seed in range(4000, 4025)),
    *((seed, "l1", 2, 6) for seed in range(4100, 4145)),
    *((seed, "l1", 3, 4) for seed in range(4200, 4225)),
    *((seed, "linf", 1 + seed % 3, 5) for seed in range(4300, 4325)),
    *((seed, "l2", 1 + seed % 3, 4) for seed in range(4400, 4415)),
    *((seed, "convex", 1 + seed % 3, 4) for seed in (*range(4500, 4506), *range(4509, 4518))),
]


@pytest.mark.parametrize(("seed", "kind", "depth", "width"), CASES)
def test_every_route_leads_to_the_same_distance(seed, kind, depth, width):
    problem, piece = random_problem(seed, kind, depth=depth, width=width)
    truth = bilevel.solve(problem, piece)
    for route in ROUTES:
        with pytest.MonkeyPatch.context() as patch:
            follow(route, patch)
            found = within_looks(problem, piece)
        assert found.status == truth.status, route
        if truth.point is None:
            assert math.isinf(found.lower), route
            continue
        check_answer(problem, piece, found, attacks=False)
        assert found.distance == pytest.approx(truth.distance, abs=SAME), route


@pytest.mark.parametrize("route", ROUTES)
def test_the_routes_go_where_they_should(route, counts, monkeypatch):
    follow(route, monkeypatch)
    for seed, kind, depth, width in CASES[25:70]:
        tree.solve(*random_problem(seed, kind, depth=depth, width=width))
    assert counts["tightened"] > 100
    assert counts["halves"] >= 5
    assert counts["cut"] >= 3
    assert (counts["rebuilt"] >= 10) == (route != "never rebuilt")


def test_an_incumbent_at_no_distance():
    """A column that costs nothing may be all that has to change; a local search finds that late."""
    problem, piece = random_problem(20080, "l1", depth=2, width=14)
    found = tree.solve(problem, piece)
    assert found.status == "optimal"
    assert found.distance == pytest.approx(0.0, abs=SAME)
    check_answer(problem, piece, found)


@pytest.mark.parametrize("seed", [2000, 2002, 2004, 2007])
@pytest.mark.parametrize("kind", ["l2", "convex"])
def test_no_claim_beyond_the_tangents(seed, kind, monkeypatch):
    """Where the program underrates the distance, a robust point need not be the nearest."""
    problem, piece = random_problem(seed, kind)
    truth = bilevel.solve(problem, piece)
    monkeypatch.setattr(part, "MOST_TANGENTS", 5, raising=False)
    found = within_looks(problem, piece)
    assert found.lower <= truth.distance + SAME
    if found.status == "optimal":
        assert found.distance == pytest.approx(truth.distance, abs=SAME)
