"""Written points against enumeration: legal, robust, near, and correctly placed in the hull.

Small problems with coarse steps. Roundings are enumerated, verdicts are those of the certifier, and
membership in the hull is decided by linear programs of scipy.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.region.pieces import ConvexPiece
from proplace.schema import Schema
from proplace.search import tree, writing
from proplace.search.oracle import Oracle
from proplace.search.writing import IN_REGION_RATIO, Legal, write
from support.problems import (
    MARGIN,
    Clock,
    check_robust,
    hull_distance,
    plain,
    problem_of,
    random_net,
)
from support.tiers import quick, seeds

SLACK = 1e-5


def random_feature(rng, name):
    """A number with a step, up to its whole range, an ordinal feature, or a number without a step."""
    fine, coarse = rng.choice([0.1, 0.25, 0.5, 1.0, 2.0, 4.0]), rng.choice([1.0, 5.0, 30.0, 90.0])
    kinds = [
        lambda: pp.Continuous(name, -2, 2, step=float(fine), scaling="none"),
        lambda: pp.Continuous(name, 0, 90, step=float(coarse)),
        lambda: pp.Ordinal(name, [-2, -1.5, 0, 0.4, 2], scaling="none"),
        lambda: pp.Continuous(name, -2, 2, scaling="none"),
        lambda: pp.Continuous(name, -2, 2, step=0.5, scaling=(0.0, 2.0)),
    ]
    return kinds[int(rng.integers(len(kinds)))]()


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with its nearest robust point, and the legal points around it."""

    schema: Schema
    problem: object
    piece: ConvexPiece
    neighbours: np.ndarray
    base: np.ndarray
    bound: float

    @property
    def grids(self):
        return self.schema.grids(self.problem.x)

    @property
    def person(self):
        return self.schema.person(self.problem.x)

    def legal(self, **changes):
        person = self.person
        goals = self.neighbours[:0] if self.piece.vertices is None else self.neighbours
        inside = self.piece.contains
        usual = Legal(self.grids, person.lower, person.upper, person.allowed, inside, goals)
        return replace(usual, **changes)

    def write(self, **changes):
        return write(self.problem, self.base, self.legal(**changes))

    def robust(self, rows):
        models = self.problem.guarantee.members[0]
        options = {"margin": models.margin}
        return pp.certify(
            models.network, rows, models.shifts, self.problem.target, **options
        ).robust

    def distance(self, rows):
        return self.problem.distance.between(self.problem.x, rows)

    def roundings(self):
        """Allowed rows that have the legal value below or above in each changed column with a step."""
        options = [[value] for value in self.base]
        for j, column in self.grids.items():
            if self.base[j] != self.problem.x[j]:
                values = column.grid.encoded(np.arange(column.size))
                below, above = values[values <= self.base[j]], values[values >= self.base[j]]
                options[j] = sorted({*below[-1:], *above[:1]})
        rows = np.array(list(itertools.product(*options)))
        return rows[self.person.allowed(rows)]

    def in_hull(self, row):
        return hull_distance(row, self.piece.vertices) <= 1e-7


def case(seed, *, box=False, columns=None):
    for attempt in range(300):
        rng = np.random.default_rng([seed, attempt])
        d = columns or int(rng.integers(2, 4))
        schema = Schema([random_feature(rng, f"c{j}") for j in range(d)])
        net = random_net(rng, d, 1 + int(rng.integers(2)), 5, int(rng.choice([1, 1, 3])))
        delta, target = float(rng.choice([0.0, 0.01, 0.03])), int(rng.integers(net.classes))
        lower, upper = schema.lower, schema.upper
        rows = schema.canonical(rng.uniform(lower, upper, (120, d)))
        robust = rows[pp.certify(net, rows, delta, target, margin=MARGIN + SLACK).robust]
        people = rng.uniform(lower, upper, (40, d))  # between the steps
        people[:20] = schema.canonical(people[:20])
        refused = people[net.margin(people, target) < -0.05]
        if len(robust) < 2 or not len(refused) or not schema.grids(refused[0]):
            continue
        distance = L1(rng.uniform(0.3, 1.5, d) / d)
        x = refused[0]
        problem = problem_of(net, x, delta, target=target, distance=distance, slack=SLACK)
        near = np.unique(robust, axis=0)
        near = near[np.argsort(distance.between(x, near), kind="stable")[: rng.integers(1, 9)]]
        piece = replace(plain(x, None if box else np.vstack([x, near])), lower=lower, upper=upper)
        found = tree.solve(problem, piece)
        if found.point is None:
            continue
        base = np.where(np.abs(found.point - x) <= 1e-6, x, found.point)
        return Case(schema, problem, piece, near, base, found.lower)
    raise AssertionError("no such problem")


# -- random problems -------------------------------------------------------------------------------


@pytest.mark.parametrize("box", [False, True], ids=["hull", "box"])
@pytest.mark.parametrize("seed", seeds(25, 200))
def test_written_point_is_legal_and_robust(seed, box):
    each = case(seed, box=box)
    found = each.write()
    if box and found is None:  # a region without neighbours has no last resort
        return
    x, point = each.problem.x, found.point
    for j, column in each.grids.items():
        values = column.grid.encoded(np.arange(column.size))
        assert point[j] == x[j] or point[j] in values  # bit for bit
    assert each.person.allowed(point[None])[0]
    check_robust(each.problem.guarantee.members[0], point, each.problem.target)
    assert found.distance == pytest.approx(each.distance(point), rel=1e-14)
    assert [len(evidence.point) for evidence in found.evidence] == [len(point)]
    assert all(evidence.point.tobytes() == point.tobytes() for evidence in found.evidence)


@pytest.mark.parametrize("seed", seeds(25, 300))
def test_written_point_is_in_hull_as_stated(seed):
    each = case(seed)
    found = each.write()
    assert found.in_region == each.in_hull(found.point)
    if found.in_region:
        assert each.bound <= found.distance * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", seeds(25, 300))
def test_written_point_is_not_farther_than_robust_rounding_or_neighbour(seed):
    each = case(seed)
    found = each.write()
    rows = np.vstack([each.roundings(), each.neighbours])
    nearest = each.distance(rows[each.robust(rows)]).min()
    ratio = IN_REGION_RATIO if found.in_region else 1.0
    assert found.distance <= ratio * nearest * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", seeds(25, 300))
def test_bound_is_not_above_any_legal_robust_point_of_hull(seed):
    each = case(seed, columns=2)
    options = [
        np.append(column.grid.encoded(np.arange(column.size)), x)
        if column.grid is not None
        else np.append(np.linspace(column.lower, column.upper, 40), x)
        for column, x in zip(each.schema.columns, each.problem.x, strict=True)
    ]
    rows = np.array(list(itertools.product(*options)))
    rows = rows[(each.distance(rows) < each.bound * (1.0 - 1e-6)) & each.person.allowed(rows)]
    rows = rows[[each.in_hull(row) for row in rows]] if len(rows) else rows
    models, target = each.problem.guarantee.members[0], each.problem.target
    if len(rows):
        margin = each.problem.search_margin + 1e-9
        assert not pp.certify(
            models.network, rows, models.shifts, target, margin=margin
        ).robust.any()


@pytest.mark.parametrize("seed", seeds(25, 200))
def test_columns_without_step_keep_their_bits(seed):
    """Unless no rounding is robust and the point moves towards a neighbour."""
    each = case(seed)
    found, rows = each.write(), each.roundings()
    if len(rows) and each.robust(rows).any() and len(each.neighbours) > 1:
        free = [j for j in range(len(each.base)) if j not in each.grids]
        is_row = (each.neighbours == found.point).all(axis=1).any()
        assert is_row or found.point[free].tobytes() == each.base[free].tobytes()


@pytest.mark.parametrize("seed", seeds(10, 60))
def test_exact_test_decides_if_screen_refutes_nothing(seed, monkeypatch):
    """Attacks that find nothing cost exact tests, never the guarantee."""
    attacks = Oracle.attack

    def harmless(self, points):
        return [replace(each, const=each.const + 1e6) for each in attacks(self, points)]

    monkeypatch.setattr(Oracle, "attack", harmless)
    monkeypatch.setattr(Oracle, "upper_bounds", lambda self, points: np.full(len(points), np.inf))
    each = case(seed)
    found = each.write()
    if found is not None:
        check_robust(each.problem.guarantee.members[0], found.point, each.problem.target)
        assert found.evidence


@pytest.mark.parametrize("seed", seeds(10, 40))
def test_written_point_is_same_twice(seed):
    one, two = (case(seed).write() for _ in range(2))
    assert one.point.tobytes() == two.point.tobytes()
    assert (one.distance, one.in_region) == (two.distance, two.in_region)


def test_both_sides_of_hull_are_met():
    found = [case(seed).write().in_region for seed in range(25)]
    assert 5 <= sum(found) <= 22


# -- constructed problems --------------------------------------------------------------------------


def two_steps(net, x, point, *, goals, high=10.0, step=1.0, inside=None, allowed=None):
    """Write a point in two columns with steps."""
    features = [pp.Continuous(name, 0, high, step=step, scaling="none") for name in "ab"]
    schema = Schema(features)
    problem = problem_of(net, x, 0.0, distance=L1(np.ones(2)))
    person = schema.person(problem.x)
    legal = Legal(
        schema.grids(problem.x),
        person.lower,
        person.upper,
        allowed or person.allowed,
        inside or (lambda rows: np.ones(len(rows), dtype=bool)),
        np.asarray(goals, dtype=float).reshape(-1, 2),
    )
    return write(problem, np.asarray(point, dtype=float), legal)


SUM = pp.Network([([[1.0, 1.0]], [-4.5])])  # accepts a + b >= 4.5


def test_hull_point_is_preferred_if_hardly_farther():
    """Of (105, 50) and (104, 51), one step each, only a point at the stated ratio is preferred."""
    net = pp.Network([([[1.0, 1.0]], [-154.5])])
    for extra, preferred in ((1.0, True), (6.0, False)):
        wanted = np.array([104.0, 51.0 + extra])

        def inside(rows, wanted=wanted):
            return (rows == wanted).all(axis=1)

        goals = [wanted, [150.0, 150.0]]
        found = two_steps(net, [0.0, 0.0], [104.2, 50.3], goals=goals, high=200.0, inside=inside)
        assert found.in_region == preferred
        assert (found.point == wanted).all() == preferred
        assert preferred == (wanted.sum() <= IN_REGION_RATIO * 155.0)


def test_rules_are_kept():
    """Only points with b <= 1 are allowed. Without the rule, the nearest has b = 2."""

    def allowed(rows):
        return (rows[:, 1] <= 1.0) & (rows >= 0.0).all(axis=1)

    net = pp.Network([([[1.0, 3.0]], [-8.5])])
    free = two_steps(net, [0.0, 0.0], [2.4, 2.1], goals=[[9.0, 1.0]])
    ruled = two_steps(net, [0.0, 0.0], [2.4, 2.1], goals=[[9.0, 1.0]], allowed=allowed)
    assert free.point[1] > 1.0
    assert allowed(ruled.point[None])[0]
    assert ruled.point.sum() >= 4.0


def test_bounds_are_kept():
    """The legal value above lies beyond a bound that cuts the range of a column."""
    schema = Schema([pp.Continuous("a", 0, 10, step=1, scaling="none", max_increase=2.5)])
    net = pp.Network([([[1.0]], [-2.2])])
    problem = problem_of(net, [0.0], 0.0, distance=L1(np.ones(1)))
    person = schema.person(problem.x)
    legal = Legal(
        schema.grids(problem.x),
        person.lower,
        person.upper,
        lambda rows: np.ones(len(rows), dtype=bool),
        lambda rows: np.ones(len(rows), dtype=bool),
        np.zeros((0, 1)),
    )
    assert write(problem, np.array([2.3]), legal) is None  # 3 is robust, and too much


def test_neighbour_is_last_resort():
    """A step as wide as the range: no legal value near the point is robust, the neighbour is."""
    schema = Schema(
        [pp.Ordinal("a", [0, 3.5, 10], scaling="none"), pp.Continuous("b", 0, 10, scaling="none")]
    )
    net = pp.Network([([[0.2, 1.0]], [-6.0])])
    problem = problem_of(net, [0.0, 0.0], 0.0, distance=L1(np.array([1.0, 1.0])))
    person = schema.person(problem.x)
    goal = np.array([3.5, 9.0])

    def far(rows):
        return (rows[:, 1] >= 8.9) & person.allowed(rows)

    legal = Legal(
        schema.grids(problem.x),
        person.lower,
        person.upper,
        far,
        lambda rows: np.zeros(len(rows), dtype=bool),
        goal[None],
    )
    found = write(problem, np.array([1.0, 6.0]), legal)
    np.testing.assert_array_equal(found.point, goal)
    assert not found.in_region


def test_value_that_barely_changes_stays_if_robust():
    """A point moves a by a step of 0.001 and b by 3. After rounding b up, b alone is enough."""
    schema = Schema(
        [
            pp.Continuous("a", 0, 90_000, step=1),
            pp.Continuous("b", 0, 10, step=1),
        ]
    )
    net = pp.Network([([[0.5, 1.0]], [-0.45])])
    x = schema.encode(pd.DataFrame({"a": [23_400], "b": [1]}))[0]
    problem = problem_of(net, x, 0.0)
    person = schema.person(x)
    base = x + np.array([-0.4 / 90_000, 0.25])
    legal = Legal(
        schema.grids(x),
        person.lower,
        person.upper,
        person.allowed,
        lambda rows: np.ones(len(rows), dtype=bool),
        np.ones((1, 2)),
    )
    found = write(problem, base, legal)
    assert found.point[0] == x[0]
    assert found.point[1] > x[1]


def test_without_robust_values_nothing_is_written():
    never = pp.Network([([[0.0, 0.0]], [-1.0])])
    assert two_steps(never, [0.0, 0.0], [2.2, 2.2], goals=[[9.0, 9.0]]) is None


def test_deadline_ends_writing(monkeypatch):
    clock = Clock(monkeypatch)
    each = case(3)
    assert write(each.problem, each.base, each.legal(), clock.now) is None
    assert write(each.problem, each.base, each.legal(), clock.now + 1e6) is not None


def test_exact_tests_are_counted(monkeypatch):
    monkeypatch.setattr(writing, "TESTS", 0)
    assert case(3).write() is None


# -- membership in a hull --------------------------------------------------------------------------


def random_hull(rng, kind):
    d = int(rng.integers(2, 6))
    vertices = rng.uniform(-1.0, 1.0, (int(rng.integers(2, 12)), d))
    if kind == "flat":
        vertices[:, -1] = 0.3
        vertices[:, 0] = 2.0 * vertices[:, 1] + 0.1
    if kind == "line":
        vertices = vertices[0] + rng.uniform(0.0, 1.0, (4, 1)) * (vertices[1] - vertices[0])
    if kind == "single":
        vertices = vertices[:1]
    return vertices * float(rng.choice([1e-3, 1.0, 1e4]))


@pytest.mark.parametrize("kind", ["full", "flat", "line", "single"])
@pytest.mark.parametrize("seed", quick(4, range(30)))
def test_contains_agrees_with_linear_programs(seed, kind):
    rng = np.random.default_rng(seed)
    vertices = random_hull(rng, kind)
    size = max(np.ptp(vertices), 1e-4 * np.abs(vertices).max())
    piece = plain(vertices[0], vertices, -np.inf, np.inf)
    shares = rng.dirichlet(np.full(len(vertices), 0.3), 10)
    pairs = vertices[rng.integers(len(vertices), size=(5, 2))]
    edges = pairs[:, 0] + rng.random((5, 1)) * (pairs[:, 1] - pairs[:, 0])
    inside = np.vstack([shares @ vertices, edges, vertices])
    assert piece.contains(inside).all()
    away = inside + rng.normal(size=inside.shape) * size * rng.choice([1e-4, 0.1, 1.0])
    found = piece.contains(away)
    for row, contained in zip(away, found, strict=True):
        far = hull_distance(row / size, vertices / size)
        if far > 1e-6 or far < 1e-12:
            assert contained == (far < 1e-12)


def test_contains_respects_bounds_and_rules():
    vertices = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    piece = ConvexPiece(
        vertices,
        np.zeros(2),
        np.array([0.6, 1.0]),
        np.array([[1.0, -1.0]]),
        np.array([-0.5]),
        np.array([np.inf]),
    )
    rows = np.array([[0.5, 0.2], [0.7, 0.1], [0.1, 0.7], [0.5, 0.6]])
    assert piece.contains(rows).tolist() == [True, False, False, False]
    assert replace(piece, vertices=None).contains(rows).tolist() == [True, False, False, True]
