"""The least effort of both searches: the same by every way, and none less on all legal points."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import proplace as pp
from oracles import corner_margins
from proplace.core.distances import L1, Convex
from proplace.core.effort import Curve, Efforts
from proplace.core.model_set import ModelSet
from proplace.region.convex_piece import ConvexPiece
from proplace.schema import Schema
from proplace.search import bilevel, tree
from proplace.search.pieces import least_distance, search
from proplace.search.polytope import Polytope
from proplace.search.problem import SearchProblem
from proplace.search.program import Program
from search_problems import (
    MARGIN,
    SAME,
    SLACK,
    check_answer,
    problem_of,
    random_curve,
    random_problem,
)


@pytest.mark.parametrize("seed", range(7000, 7016))
def test_rows_cuts_and_both_searches_agree(seed):
    """As rows of the programs, as supporting cuts of a distance that is not known, by Algorithm 1."""
    problem, piece = random_problem(seed, "effort", width=5)
    found = tree.solve(problem, piece)
    truth = bilevel.solve(problem, piece)
    assert found.status == truth.status
    if truth.point is None:
        return
    check_answer(problem, piece, found, attacks=False)
    assert found.distance == pytest.approx(truth.distance, abs=SAME)
    efforts = problem.distance
    assert found.distance == pytest.approx(float(efforts.between(problem.x, found.point)))
    unknown = Convex(lambda x, p: float(efforts.between(x, p)), efforts.subgradient)
    by_cuts = tree.solve(replace(problem, distance=unknown), piece)
    assert by_cuts.distance == pytest.approx(truth.distance, abs=1e-5)
    assert least_distance(problem, piece, problem.half_steps()) <= truth.distance + SAME


@pytest.mark.parametrize("seed", range(7100, 7106))
def test_numbers_are_the_weights_of_l1(seed):
    problem, piece = random_problem(seed, "l1", width=5)
    curves = tuple(Curve.of(float(w)) for w in problem.distance.weights)
    one, other = (
        tree.solve(replace(problem, distance=distance), piece)
        for distance in (L1(problem.distance.weights), Efforts(curves))
    )
    assert one.status == other.status
    assert one.distance == pytest.approx(other.distance, abs=SAME)


@pytest.mark.parametrize("seed", range(8))
def test_the_program_knows_what_the_nearest_point_takes(seed):
    """Without a network the nearest point of a box is x, moved to its sides; categories are given."""
    rng = np.random.default_rng(seed)
    x = np.append(rng.normal(size=3), [1.0, 0.0])
    curves = (*(random_curve(rng, 1.0) for _ in range(3)), Curve.of(0.0), Curve.of(0.0))
    efforts = Efforts(curves, ((3, 5, 2.5),))
    low = np.append(x[:3] + rng.uniform(-1.5, 1.5, 3), [0.0, 1.0])
    high = np.append(low[:3] + 1.0, [0.0, 1.0])
    piece = ConvexPiece(None, low, high, np.zeros((0, 5)), np.zeros(0), np.zeros(0))
    problem = problem_of(pp.Network([(np.ones((1, 5)), [0.0])]), x, 0.0, distance=efforts)
    nearest = np.clip(x, low, high)
    expected = 2.5 + sum(c.at(float(t)) for c, t in zip(curves, nearest - x, strict=True))
    found = Program(Polytope.of(problem, piece)).nearest()
    assert found.objective == pytest.approx(expected)
    assert float(efforts.between(x, found.point)) == pytest.approx(expected)
    assert least_distance(problem, piece, np.zeros(5)) == pytest.approx(expected)


def tiny(seed):
    """A net of one neuron in the middle over grids, and all of its legal points."""
    rng = np.random.default_rng(seed)
    schema = Schema(
        [
            pp.Continuous("a", -1, 1, step=0.125, scaling="none"),
            pp.Ordinal("b", [-1, -0.5, 0.3, 1], scaling="none"),
        ]
    )
    net = pp.Network(
        [
            (rng.normal(size=(1, 2)) * 2, rng.normal(size=1)),
            ([[2.0]], [-float(rng.uniform(0.5, 2))]),
        ]
    )
    codes = [column.grid.encoded(np.arange(column.size)) for column in schema.columns]
    return rng, schema, net, np.array(list(itertools.product(*codes)))


@pytest.mark.parametrize("seed", range(12))
def test_no_legal_point_takes_less(seed):
    """All points of the grids against all corners of Delta; curves that cost more for less."""
    for attempt in range(100):
        rng, schema, net, rows = tiny([seed, attempt])
        worst = np.array([corner_margins(net, row, 0.02, 1).min() for row in rows])
        refused = rows[net.margin(rows, 1) < 0.0]
        if len(refused) and worst.max() > 2 * MARGIN:
            break
    x = refused[int(rng.integers(len(refused)))]
    points = [(0, 0), (0.25, 0.1), (0.6, 1.0), (-0.3, 0.5), (-0.5, 2.0)]
    efforts = Efforts((Curve.of(points), Curve.of([(0.8, 0.2), (1.5, 3.0)])))
    models = ModelSet(net, pp.Shifts.of(net, 0.02), margin=MARGIN)
    problem = SearchProblem((models,), 1, x, efforts, SLACK, schema.grids(x))
    piece = ConvexPiece(
        None, schema.lower, schema.upper, np.zeros((0, 2)), np.zeros(0), np.zeros(0)
    )
    costs = sum(
        np.array([curve.at(float(t)) for t in (rows - x)[:, j]])
        for j, curve in enumerate(efforts.curves)
    )
    for method in ("tree", "bilevel"):
        found = search(problem, [piece], method=method)
        assert found.status == "optimal"
        assert found.distance <= costs[worst >= MARGIN + SLACK + 1e-9].min() + SAME
        assert found.distance >= costs[worst >= MARGIN - 1e-9].min() - SAME
