"""Sets of features that are excluded have no robust point: no point that is certified contradicts it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.core.model_set import ModelSet
from proplace.region.neighbours import RobustRows, hull_pieces, variants
from proplace.search import subsets
from proplace.search.oracle import Oracle
from proplace.search.pieces import search
from proplace.search.problem import SearchProblem
from proplace.search.subsets import Moves, SubsetBounds
from support.problems import dense
from support.tiers import quick

SCHEMA = pp.Schema(
    [
        pp.Continuous("a", -1, 1, scaling="none"),
        pp.Continuous("b", 0, 1),
        pp.Categorical("c", ["p", "q", "r"]),
        pp.Binary("d"),
        pp.Continuous("e", 0, 1, direction="decreasing"),
        pp.Categorical("f", ["s", "t", "u"], encoding="dropfirst"),
    ]
)
WIDTH = SCHEMA.width
SLACK = 1e-4


def random_rows(rng, count):
    rows = rng.random((count, WIDTH))
    rows[:, 0] = 2 * rows[:, 0] - 1
    return SCHEMA.canonical(rows)


WEIGHTS = np.linspace(0.5, 1.5, WIDTH) / WIDTH
DISTANCES = {
    "l1": L1(WEIGHTS),
    "l1, a free feature": L1(WEIGHTS * (np.arange(WIDTH) != 1)),
}
SHAPES = [((), 1), ((6,), 1), ((5, 5), 1), ((5, 4, 4), 3), ((5, 5), 2)]


def question(seed, hidden, outputs, distance, *, also=False):
    """A problem of a person who is refused, though not by far, and the moves."""
    rng, target = np.random.default_rng(seed), 1
    nets = [dense(rng, [WIDTH, *hidden, outputs], bias=0.0 if seed % 2 else 0.3)]
    nets += [dense(rng, [WIDTH, 3, outputs], bias=0.3)] if also else []
    rows = random_rows(rng, 200)
    margins = nets[0].margin(rows, target)
    x = rows[np.argsort(margins)[max(0, int((margins < 0.0).sum()) - 20)]]
    sets = tuple(ModelSet(net, pp.Shifts.of(net, 0.01), margin=1e-6) for net in nets)
    problem = SearchProblem(sets, target, x, distance, SLACK)
    person = SCHEMA.person(x)
    moves = Moves.of(SCHEMA, x, person.lower, person.upper, range(len(SCHEMA.features)))
    return rng, problem, moves


@pytest.mark.parametrize("shape", quick(3, [(shape,) for shape in SHAPES]), ids=str)
@pytest.mark.parametrize("distance", DISTANCES)
def test_no_certified_point_is_in_an_excluded_set(shape, distance):
    excluded = met = 0
    for seed, also in itertools.product(range(3), (False, True)):
        rng, problem, moves = question(seed, *shape, DISTANCES[distance], also=also)
        points = random_rows(rng, 1500)
        every = len(SCHEMA.features)
        free = rng.random((len(points), every)) < 0.4  # features that each point may change
        columns = [column.feature for column in SCHEMA.columns]
        points = np.where(free[:, columns], points, problem.x)
        near = rng.random((len(points), 1)) ** 2  # also points that are near
        numbers = np.isin(np.arange(WIDTH), SCHEMA.profile_columns, invert=True)
        points = np.where(numbers, problem.x + near * (points - problem.x), points)
        good = SCHEMA.person(problem.x).allowed(points)
        for models in problem.sets:
            margin = models.margin + SLACK
            report = pp.certify(models.net, points, models.shifts, problem.target, margin=margin)
            good &= report.robust
        points = points[good]
        far = np.array([problem.distance.between(problem.x, point) for point in points])
        bounds = SubsetBounds(problem, moves, Oracle(problem), random_rows(rng, 1))
        cutoffs = (np.quantile(far, 0.3), np.inf) if len(far) else (0.3, np.inf)
        for size, cutoff in itertools.product((1, 2, 3), cutoffs):
            found = bounds.open_sets(size, cutoff)
            assert found.complete
            excluded += len(list(itertools.combinations(range(every), size))) - len(found.sets)
            for point in points[far <= cutoff]:
                changes = frozenset(columns[j] for j in np.flatnonzero(point != problem.x))
                if len(changes) == size:
                    met += 1
                    assert changes in found.sets
                    assert bounds.may_be_robust(point[None])[0]
                    assert bounds.not_excluded([changes], cutoff)
    assert excluded > 50
    assert met > 20


def test_of_given_sets_only_these_are_looked_at():
    _, problem, moves = question(1, (5, 5), 1, DISTANCES["l1"])
    bounds = SubsetBounds(problem, moves, Oracle(problem), problem.x[None])
    everything = bounds.open_sets(2, np.inf).sets
    pairs = [frozenset(each) for each in itertools.combinations(range(6), 2)]
    some = pairs[::2]
    assert set(bounds.open_sets(2, np.inf, among=some).sets) == set(everything) & set(some)
    assert not bounds.open_sets(2, np.inf, among=[]).sets
    assert not bounds.open_sets(7, np.inf).sets  # more than there are


@pytest.mark.parametrize("numbers", [1, 1_000])
def test_many_parts_are_bounded_in_waves(monkeypatch, numbers):
    monkeypatch.setattr(subsets, "_MOST_SCENARIOS", 1)  # which are met depends on the order
    _, problem, moves = question(1, (5, 5), 1, DISTANCES["l1"])
    bounds = SubsetBounds(problem, moves, Oracle(problem), problem.x[None])
    expected = [set(bounds.open_sets(size, np.inf).sets) for size in (1, 2, 3)]
    monkeypatch.setattr(subsets, "_WAVE", numbers)
    assert [set(bounds.open_sets(size, np.inf).sets) for size in (1, 2, 3)] == expected
    assert any(expected)


def test_given_sets_are_bounded_in_waves_until_the_deadline(monkeypatch):
    _, problem, moves = question(1, (5, 5), 1, DISTANCES["l1"])
    bounds = SubsetBounds(problem, moves, Oracle(problem), problem.x[None])
    pairs = [frozenset(each) for each in itertools.combinations(range(6), 2)]
    cutoff = 0.5 * min(bounds.open_sets(2, np.inf).sets.values())
    expected = bounds.not_excluded(pairs, cutoff)
    assert len(expected) < len(pairs)
    monkeypatch.setattr(subsets, "_WAVE", 1)
    assert bounds.not_excluded(pairs, cutoff) == expected
    clock = itertools.count()
    monkeypatch.setattr(subsets.time, "monotonic", lambda: next(clock))
    late = bounds.not_excluded(pairs, cutoff, 3)  # three waves of one set each
    assert late == [each for each in pairs[:3] if each in expected] + pairs[3:]


def test_what_is_open_is_told_at_once_and_lowers_the_cutoff():
    _, problem, moves = question(1, (5, 5), 1, DISTANCES["l1"])
    bounds = SubsetBounds(problem, moves, Oracle(problem), problem.x[None])
    told = []

    def tried(features):
        told.append(features)
        return 0.0  # nothing is that near

    found = bounds.open_sets(2, np.inf, tried=tried)
    assert found.complete
    assert told == list(found.sets)
    assert len(told) < len(bounds.open_sets(2, np.inf).sets)


def test_points_within_the_room_for_rounding_may_be_robust():
    rng, problem, moves = question(1, (5, 5), 1, DISTANCES["l1"])
    bounds = SubsetBounds(problem, moves, Oracle(problem), problem.x[None])
    points = random_rows(rng, 400)
    values = bounds.values(points)
    room = float(np.median(problem.search_margin - values[values < problem.search_margin]))
    bounds._room = [room] * len(bounds.scenarios)
    below = problem.search_margin - room
    np.testing.assert_array_equal(bounds.may_be_robust(points), values >= below)
    assert ((values >= below) & (values < problem.search_margin)).any()
    assert (values < below).any()


def test_without_work_or_time_nothing_is_claimed():
    _, problem, moves = question(0, (5, 5), 1, DISTANCES["l1"])
    bounds = SubsetBounds(problem, moves, Oracle(problem), problem.x[None])
    assert not bounds.open_sets(2, np.inf, most=0).complete
    assert not bounds.open_sets(2, np.inf, deadline=0.0).complete


def test_neighbours_that_keep_features_are_those_of_the_rules():
    """The quick way finds what the plain one does; ``screen`` only spares tests."""
    counts = set()
    for seed in range(6):
        rng, problem, moves = question(seed, (5, 5), 1, DISTANCES["l1"])
        rows = random_rows(rng, 300)
        rows[200:, 2:6] = problem.x[2:6]
        robust = RobustRows(problem.sets, problem.target, SLACK, rows, problem.distance)
        bounds = SubsetBounds(problem, moves, Oracle(problem), rows[:3])
        for free in itertools.combinations(range(6), 2):
            kept = [number for number in range(6) if number not in free]
            (person,) = variants(SCHEMA, problem.x, kept)
            fixed = np.array([c.feature in kept for c in SCHEMA.columns])
            np.testing.assert_array_equal(person.lower[fixed], problem.x[fixed])
            np.testing.assert_array_equal(person.upper[fixed], problem.x[fixed])
            categories = SCHEMA.profile_columns[fixed[SCHEMA.profile_columns]]
            plain = robust.admissible(person, 5)
            quick = robust.keeping(
                person, np.flatnonzero(~fixed), categories, 5, bounds.may_be_robust
            )
            np.testing.assert_array_equal(quick.rows, plain.rows)
            assert (quick.status == "found") == (plain.status == "found")
            counts.add(len(quick.rows))
    assert {0, 5} < counts


@pytest.mark.parametrize("method", ["tree", "bilevel"])
def test_a_search_with_a_cutoff(method):
    schema = pp.Schema([pp.Continuous(name, 0, 1) for name in "abc"])
    rng = np.random.default_rng(3)
    net = pp.Network([(rng.normal(0, 1, (4, 3)), np.zeros(4)), ([[1.0, 1.0, -0.5, 1.0]], [-0.8])])
    explainer = pp.Proplace(net, 0.01, k=4, schema=schema).fit(rng.random((60, 3)))
    x = next(row for row in rng.random((50, 3)) if net.predict(row)[0] == 0)
    near = explainer.explain(x[None])[0]
    assert near.status == "optimal"
    problem = explainer._problem(x, 1)
    people = variants(schema, x)
    pieces = hull_pieces(schema, people[0], near.neighbours)
    for factor, status in ((0.5, "infeasible"), (0.999, "infeasible"), (1.001, "optimal")):
        found = search(problem, pieces, method=method, cutoff=factor * near.distance)
        assert found.status == status
        assert (found.point is None) == (status == "infeasible")
    assert found.distance == pytest.approx(near.distance, rel=1e-5)
