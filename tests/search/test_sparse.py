"""Steps of the sparse search against their definitions, on linear models and by enumeration."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import proplace as pp
from proplace.search import sparse
from proplace.search.sparse import SparseSearch, Values

SCHEMA = pp.Schema(
    [
        pp.Continuous("a", 0, 1),
        pp.Categorical("job", ["x", "y", "z"]),
        pp.Continuous("b", 0, 1),
        pp.Binary("owner"),
        pp.Continuous("c", 0, 1),
    ]
)
SPANS = SCHEMA.spans
NUMBERS = [0, 2, 4]
GRID = np.arange(5) / 4.0
LEVELS = np.eye(3)
SEEDS = range(12)


def member(w, required, margin=0.0, *, contains=True):
    network = SimpleNamespace(margin=lambda rows, target: target * (rows @ w - required))
    return SimpleNamespace(network=network, margin=margin, contains_network=contains)


class Usual:
    """A stand-in for the reference of typical points: a linear score."""

    def __init__(self, w, least):
        self.w, self.least = w, least

    def plausibility(self, rows):
        assert len(rows)
        return rows @ self.w

    def test(self, rows):
        return rows @ self.w >= self.least


def world(seed, *, typical=True, values=GRID):
    """Return a search with random linear tests, and random rows that pass."""
    rng = np.random.default_rng(seed)
    w, v, u, t = (rng.uniform(-0.2, 1.0, SCHEMA.width) for _ in range(4))
    weights = rng.uniform(0.2, 2.0, SCHEMA.width)
    coarse = tuple(
        values[:, None] if f in NUMBERS else LEVELS if f == 1 else np.array([[0.0], [1.0]])
        for f in range(5)
    )
    fine = tuple(
        np.linspace(0.0, 1.0, 33)[:, None] if f in NUMBERS else coarse[f][:0] for f in range(5)
    )
    x = np.array([0.0, 1.0, 0.0, 0.0, 0.25, 0.0, 0.5])
    problem = SimpleNamespace(
        x=x,
        target=1,
        slack=0.01,
        distance=SimpleNamespace(between=lambda x, rows: np.abs(rows - x) @ weights),
        guarantee=SimpleNamespace(members=[member(w, 0.9, 0.02), member(v, 0.8)]),
    )
    search = SparseSearch(
        problem,
        SCHEMA,
        Values(coarse, fine),
        [0, 1, 2, 3, 4],
        lambda rows: rows[:, 0] + rows[:, 6] <= 1.7,
        lambda rows: (rows @ w >= 1.1) & (rows @ u >= 0.7),
        Usual(t, 0.5) if typical else None,
    )
    cells = itertools.product(GRID, LEVELS, GRID, [0.0, 1.0], GRID)
    every = np.array([[a, *job, b, o, c] for a, job, b, o, c in cells])
    every = every[(every != x).any(axis=1)]
    return search, every[passes(search, every)]


def margins(search, rows):
    """Return the smallest excess over the margin that each network must keep, less the slack."""
    each = [m.network.margin(rows, 1) - m.margin for m in search.problem.guarantee.members]
    return np.min(each, axis=0) - search.problem.slack


def passes(search, rows):
    good = search.allowed(rows) & (margins(search, rows) >= 0.0) & search.robust(rows)
    return good if search.typical is None else good & search.typical.test(rows)


def changed(search, rows):
    """Return which features differ from the person's."""
    x = search.problem.x
    return np.array(
        [[(row[s] != x[s]).any() for s in SPANS] for row in np.atleast_2d(rows)], dtype=bool
    ).reshape(-1, 5)


def counts(search, rows):
    return changed(search, rows).sum(axis=1)


def with_value(row, feature, value):
    row = row.copy()
    row[SPANS[feature]] = value
    return row


def distance(search, rows):
    return search.problem.distance.between(search.problem.x, rows)


def best(search, rows):
    """Return the distance of the nearest row that passes, or infinity without one."""
    rows = np.array(rows)
    good = passes(search, rows)
    return distance(search, rows[good]).min() if good.any() else math.inf


def reached(search, row):
    return math.inf if row is None else float(distance(search, row[None])[0])


# -- values ----------------------------------------------------------------------------------------


def test_some_values_are_spread_evenly_from_end_to_end():
    assert sparse._some(np.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert sparse._some(np.arange(5), 5).tolist() == [0, 1, 2, 3, 4]
    assert sparse._some(np.arange(6), 5).tolist() == [0, 1, 2, 3, 5]


def test_values_are_quantiles_of_rows_and_of_distinct_values():
    column = np.repeat([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [40, 40, 1, 1, 1, 1, 1, 1, 1, 10])
    # half of 5, rounded up: rows 0, 48 and 96 of 97, and distinct values 0, 4 and 9 of 0 to 9
    assert sparse._spread(column, 5).tolist() == [0.0, 1.0, 4.0, 9.0]
    assert sparse._spread(column, 10).tolist() == list(range(10))
    assert len(sparse._spread(column, 9)) < 10


def test_values_of_features_are_those_of_rows(monkeypatch):
    rng = np.random.default_rng(0)
    rows = np.hstack(
        [
            rng.random((900, 1)),
            np.eye(3)[rng.integers(0, 2, 900)],
            rng.choice(GRID, (900, 1)),
            np.ones((900, 1)),
            rng.random((900, 1)),
        ]
    )
    found = Values.of(SCHEMA, rows)
    assert found.coarse[1].tolist() == [[0, 1, 0], [1, 0, 0]]
    assert found.coarse[2][:, 0].tolist() == found.fine[2][:, 0].tolist() == GRID.tolist()
    assert found.coarse[3].tolist() == [[1.0]]
    assert [len(found.fine[f]) for f in (1, 3)] == [0, 0]
    for f, j in ((0, 0), (4, 6)):
        for part, most in ((found.coarse[f], sparse.VALUES), (found.fine[f], sparse.FINE_VALUES)):
            assert np.isin(part[:, 0], rows[:, j]).all()
            assert {rows[:, j].min(), rows[:, j].max()} <= set(part[:, 0])
            assert 0.5 * most < len(part) <= most + 1
            assert (np.diff(part[:, 0]) > 0.0).all()
    grade = pp.Schema([pp.Ordinal("grade", ["low", "mid", "high"])])
    assert Values.of(grade, np.array([[0.5], [0.0]])).fine[0].tolist() == [[0.0], [0.5]]
    monkeypatch.setattr(sparse, "_SAMPLE", 3)
    assert set(Values.of(SCHEMA, rows).coarse[0][:, 0]) == set(rows[[0, 449, 899], 0])


def test_values_within_bounds_keep_those_that_lie_inside():
    search, _ = world(0)
    lower = np.array([0.25, 0, 0, 0, 0, 0, 0.5])
    upper = np.array([0.5, 1, 0, 1, 1, 0, 0.5])
    found = search.values.within(SCHEMA, lower, upper)
    assert found.coarse[0][:, 0].tolist() == [0.25, 0.5]
    assert found.coarse[1].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert found.coarse[3].tolist() == [[0.0]]
    assert found.fine[0][:, 0].tolist() == (np.arange(8, 17) / 32).tolist()
    assert found.fine[4][:, 0].tolist() == [0.5]
    assert found.fine[1].shape == (0, 3)


# -- rows and tests ----------------------------------------------------------------------------------


def test_changes_are_counted_by_feature():
    search, every = world(1)
    assert (search._changed(every) == changed(search, every)).all()
    assert (search._counts(every) == counts(search, every)).all()
    assert search._fewest(every) == counts(search, every).min()
    assert search._fewest(every[:0]) == 5
    for row in every[:20]:
        assert search._changes(row) == np.flatnonzero(changed(search, row)[0]).tolist()


def test_restore_takes_own_values_of_some_features():
    search, every = world(1)
    row = every[-1].copy()
    found = search._restore(row, [1, 4])
    expected = with_value(with_value(row, 1, [1.0, 0.0, 0.0]), 4, 0.5)
    assert found.tolist() == expected.tolist()
    assert row.tolist() == every[-1].tolist()


def test_with_values_leaves_out_present_value_and_own_one():
    search, _ = world(1)
    row = np.array([0.5, 0.0, 0.0, 1.0, 0.25, 1.0, 0.5])
    found = search._with_values(row, [(0, GRID[:, None]), (1, LEVELS)])
    assert found[:, 0].tolist() == [0.25, 0.75, 1.0, 0.5]  # neither 0.5 nor 0, the person's
    assert found[:, 1:4].tolist() == [[0, 0, 1]] * 3 + [[0, 1, 0]]
    assert (found[:, 4:] == row[4:]).all()
    assert search._with_values(row, []).shape == (0, 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_screened_rows_are_allowed_and_in_order_of_their_margins(seed):
    search, _ = world(seed)
    rows = np.random.default_rng(seed).choice(GRID, (300, 7))
    known = margins(search, rows)
    assert np.allclose(search._margin(rows), known, atol=1e-15)
    good = rows[search.allowed(rows) & (known >= 0.0)]
    found = search._screened(rows, 1000)
    assert len(found) == len(good)
    assert set(map(bytes, found)) == set(map(bytes, good))
    assert (np.diff(margins(search, found)) <= 1e-15).all()
    assert search._screened(rows, 7).tolist() == found[:7].tolist()
    assert search._screened(rows[:0], 7).shape == (0, 7)


def test_margin_of_zero_passes_and_outside_networks_do_not_count():
    search, _ = world(0)
    w = np.eye(7)[0]
    members = [member(w, 0.5, 0.25), member(w, 99.0, contains=False)]
    problem = SimpleNamespace(**{**vars(search.problem), "slack": 0.0})
    problem.guarantee = SimpleNamespace(members=members)
    search = replace(search, problem=problem)
    rows = np.zeros((3, 7))
    rows[:, 0] = [0.74, 0.75, 0.76]
    assert search._margin(rows).round(9).tolist() == [-0.01, 0.0, 0.01]
    assert search._screened(rows, 9)[:, 0].tolist() == [0.76, 0.75]


@pytest.mark.parametrize("typical", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_nearest_and_first_rows_pass_every_test(seed, typical, monkeypatch):
    search, _ = world(seed, typical=typical)
    rows = np.random.default_rng(seed).choice(GRID, (400, 7))
    good = search.robust(rows) & (search.typical.test(rows) if typical else True)
    assert (search._passing(rows) == good).all()
    assert search._passing(rows[:0]).shape == (0,)
    for block, part in ((300, 50), (7, 3), (1, 1)):
        monkeypatch.setattr(sparse, "_BLOCK", block)
        monkeypatch.setattr(sparse, "_TYPICAL_BLOCK", part)
        assert reached(search, search._nearest(rows)) == pytest.approx(best(search, rows))
        first = search._first(rows)
        assert first is None if not good.any() else first.tolist() == rows[good][0].tolist()
    assert search._nearest(rows[:0]) is None
    late = replace(search, deadline=time.monotonic() - 1.0)
    assert late._first(rows) is None


def test_first_row_ends_when_many_robust_rows_are_atypical(monkeypatch):
    search, _ = world(0)
    rows = np.ones((20, 7))
    rows[:, 0] = np.arange(20) / 100
    search = replace(search, robust=lambda rows: rows[:, 0] > 0.0, typical=Usual(np.eye(7)[0], 0.1))
    monkeypatch.setattr(sparse, "_BLOCK", 1)
    for most, found in ((9, True), (8, False)):  # rows 1 to 9 are robust and atypical
        monkeypatch.setattr(sparse, "_MOST_TESTS", most)
        row = search._first(rows)
        assert (row is not None) == found
        if found:
            assert row[0] == 0.1


def test_typical_rows_are_found_anywhere_in_block():
    search, _ = world(0)
    rows = np.ones((300, 7))
    rows[:, 0] = np.arange(300)
    for last in (0, 49, 50, 149, 299):
        sizes = []
        usual = Usual(np.eye(7)[0], last)
        usual.test = lambda rows, sizes=sizes, last=last: (
            sizes.append(len(rows)) or rows[:, 0] >= last
        )
        search = replace(search, robust=lambda rows: np.ones(len(rows), bool), typical=usual)
        assert search._first(rows)[0] == last
        assert sizes == [50] * (last // 50 + 1)


def test_rows_that_tie_stay_in_their_order():
    search, _ = world(0, typical=False)
    rows = np.repeat(np.array([[1.0, 0, 0, 1, 1, 1, 0.5]]), 400, axis=0)
    search.problem.guarantee.members[:] = [member(np.zeros(7), -1.0)]
    search = replace(search, allowed=lambda rows: np.ones(len(rows), bool))
    rows[:, 1:4] = np.random.default_rng(0).random((400, 3))  # counts in no margin
    assert search._screened(rows, 400).tolist() == rows.tolist()
    search.problem.distance.between = lambda x, rows: np.zeros(len(rows))
    assert search._by_distance(rows).tolist() == rows.tolist()


def test_only_nearest_rows_are_tested(monkeypatch):
    search, _ = world(0, typical=False)
    rows = np.ones((6, 7))
    rows[:, 0] = [0.6, 0.1, 0.5, 0.2, 0.4, 0.3]
    search = replace(search, robust=lambda rows: rows[:, 0] >= 0.4)
    for most, found in ((3, None), (4, 0.4)):
        monkeypatch.setattr(sparse, "_GRID", most)
        row = search._nearest(rows)
        assert (None if row is None else row[0]) == found


# -- steps -------------------------------------------------------------------------------------------


def restored(search, row):
    """Restore one feature after another, always the one that leaves the largest margin."""
    while True:
        options = [with_value(row, f, search.problem.x[SPANS[f]]) for f in search._changes(row)]
        good = [one for one in options if passes(search, one[None])[0]]
        if not good:
            return row
        row = max(good, key=lambda one: margins(search, one[None])[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_put_back_restores_by_margin_until_nothing_passes(seed):
    search, every = world(seed)
    starts = every[:: max(1, len(every) // 40)]
    before = starts.copy()
    found = search._put_back(starts)
    assert found.tolist() == [restored(search, row).tolist() for row in starts]
    assert starts.tolist() == before.tolist()
    late = replace(search, deadline=time.monotonic() - 1.0)
    assert late._put_back(starts).tolist() == before.tolist()
    assert search._put_back(starts[:0]).shape == (0, 7)


@pytest.mark.parametrize("free", [[0, 1, 2, 3, 4], [1, 2, 4], [3]])
@pytest.mark.parametrize("seed", SEEDS)
def test_singles_are_nearest_points_with_one_change(seed, free):
    search, _ = world(seed)
    search = replace(search, free=free)
    x = search.problem.x
    rows = [with_value(x, f, v) for f in free for v in search.values.coarse[f]]
    rows = [row for row in rows if (row != x).any()]
    assert reached(search, search._singles()) == pytest.approx(best(search, rows))


@pytest.mark.parametrize("free", [[0, 1, 2, 3, 4], [1, 2, 4], [0, 3], [2]])
@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_nearest_points_with_two_changes(seed, free):
    search, every = world(seed)
    search = replace(search, free=free)
    other = [f for f in range(5) if f not in free]
    mask = changed(search, every)
    pairs = every[(mask.sum(axis=1) == 2) & ~mask[:, other].any(axis=1)]
    assert reached(search, search._pairs()) == pytest.approx(
        best(search, pairs) if len(pairs) else math.inf
    )


def test_promising_features_raise_margin_or_plausibility_most(monkeypatch):
    search, _ = world(0)
    gain, usual = (
        np.array([5.0, 1, 1, 1, 2.0, 3.0, 4.0]),
        np.array([0.01, 0.06, 0.06, 0.06, 0.03, 0.02, 0.05]),
    )
    problem = SimpleNamespace(**vars(search.problem))
    problem.guarantee = SimpleNamespace(members=[member(gain, 0.0)])
    search = replace(search, problem=problem, typical=Usual(usual, 0.0))
    # by margin: a (5), owner (3), c (2), b (1.5), job (0). By plausibility: c (2.5), b, owner, a, job
    for most, chosen in ((1, [0]), (2, [0, 4]), (3, [0, 3, 4]), (4, [0, 2, 3, 4])):
        monkeypatch.setattr(sparse, "_PAIRED", most)
        assert search._promising() == chosen, most
    monkeypatch.setattr(sparse, "_PAIRED", 2)
    assert replace(search, typical=None)._promising() == [0, 3]  # then the order of features counts
    assert replace(search, free=[2, 1])._promising() == [1, 2]
    coarse = (search.values.coarse[0][:0], *search.values.coarse[1:])
    search = replace(search, values=replace(search.values, coarse=coarse))
    assert search._promising() == [3, 4]  # nothing is known of a feature without values


def shorter(search, row):
    """Return every row with one change fewer that moves one feature, or restores two for one."""
    own = np.flatnonzero(changed(search, row)[0]).tolist()
    values = search.values.coarse

    def moved(base, features):
        for f in features:
            for value in values[f]:
                one = with_value(base, f, value)
                if (one != base).any() and (value != search.problem.x[SPANS[f]]).any():
                    yield one

    first = [
        one for g in own for one in moved(search._restore(row, [g]), [f for f in own if f != g])
    ]
    second = [
        one
        for pair in itertools.combinations(own, 2)
        for one in moved(search._restore(row, list(pair)), [f for f in range(5) if f not in pair])
    ]
    return first, second if len(own) > 2 else []


@pytest.mark.parametrize("seed", SEEDS)
def test_shorter_points_have_largest_margin_of_their_kind(seed):
    search, every = world(seed)
    for row in every[:: max(1, len(every) // 25)]:
        found = search._shorter(row)
        kinds = [np.array(rows).reshape(-1, 7) for rows in shorter(search, row)]
        kinds = [rows[passes(search, rows)] for rows in kinds]
        rows = next((rows for rows in kinds if len(rows)), None)
        if counts(search, row)[0] < 2 or rows is None:
            assert found is None
            continue
        assert any((found == one).all() for one in rows)
        assert margins(search, found[None])[0] == pytest.approx(margins(search, rows).max())
        assert counts(search, found)[0] < counts(search, row)[0]


def test_moved_rows_are_limited(monkeypatch):
    """Each step gets its share of the rows, and only those with the largest margins are tested."""
    search, _ = world(0, typical=False)
    tested = []
    search = replace(
        search, robust=lambda rows: tested.extend(rows.tolist()) or np.zeros(len(rows), bool)
    )
    row = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.75])
    steps = [([0], [2, 4]), ([2], [4])]
    monkeypatch.setattr(sparse, "_MAX_ROWS", 4)
    assert search._moved(row, steps) is None
    rows = search._with_values(search._restore(row, [0]), [(2, GRID[:, None])])[:2].tolist()
    rows += search._with_values(search._restore(row, [2]), [(4, GRID[:, None])])[:2].tolist()
    expected = [one for one in rows if margins(search, np.array([one]))[0] >= 0.0]
    assert sorted(tested) == sorted(expected)
    tested.clear()
    monkeypatch.setattr(sparse, "_MOST_TESTS", 1)
    search._moved(row, steps)
    assert len(tested) == min(1, len(expected))
    assert search._moved(row, []) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_compressed_points_cannot_be_shortened(seed):
    search, every = world(seed)
    if not len(every):
        return
    points = search._put_back(every[:: max(1, len(every) // 10)])
    found = search._compressed(points)
    distinct = np.unique(points, axis=0)
    new = len(found) - len(distinct)
    assert new == min(sparse._COMPRESSED, len(distinct))
    assert found[new:].tolist() == distinct.tolist()
    order = sorted(
        range(len(distinct)),
        key=lambda n: (counts(search, distinct[n])[0], distance(search, distinct[n][None])[0]),
    )
    for start, point in zip(order, found[:new], strict=False):
        assert passes(search, point[None])[0]
        assert counts(search, point)[0] <= counts(search, distinct[start])[0]
        assert search._shorter(point) is None
    late = replace(search, deadline=time.monotonic() - 1.0)
    assert late._compressed(points)[:new].tolist() == distinct[order[:new]].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_polished_points_keep_their_changes_and_come_nearer(seed):
    search, every = world(seed)
    x = search.problem.x
    for row in every[:: max(1, len(every) // 15)]:
        found = search._polished(row)
        assert (changed(search, found) <= changed(search, row)).all()
        for f in (1, 3):
            assert (found[SPANS[f]] == row[SPANS[f]]).all()
        assert distance(search, found[None])[0] <= distance(search, row[None])[0] + 1e-15
        assert passes(search, found[None])[0]
        numbers = [f for f in NUMBERS if changed(search, row)[0, f]]
        if len(numbers) == 1:  # then the grid is the whole of the fine values
            (f,) = numbers
            j = SPANS[f].start
            fine = search.values.fine[f][:, 0]
            near = np.append(fine[(fine - x[j]) * (fine - row[j]) < 0.0], row[j])
            assert reached(search, found) == pytest.approx(
                best(search, [with_value(row, f, v) for v in near])
            )
        elif not numbers:
            assert found is row


def test_polishing_tries_all_combinations_of_few_values():
    """Two numbers in the way of each other: only both together may come nearer."""
    search, _ = world(0, typical=False)
    rows = []
    search = replace(
        search,
        robust=lambda some: rows.extend(some.tolist()) or np.zeros(len(some), bool),
        allowed=lambda some: np.ones(len(some), bool),
    )
    row = with_value(with_value(search.problem.x, 0, 1.0), 4, 1.0)
    assert search._polished(row).tolist() == row.tolist()
    tried = {(one[0], one[6]) for one in rows}
    known = {(a / 32, c / 32) for a in range(1, 33) for c in range(17, 33)} - {(1.0, 1.0)}
    known = {
        (a, c)
        for a, c in known
        if margins(search, with_value(with_value(row, 0, a), 4, c)[None])[0] >= 0.0
    }
    assert tried == known


@pytest.mark.parametrize(("size", "each"), [(8, 0), (9, 3), (15, 3), (16, 4)])
def test_polishing_grid_has_root_of_its_size_for_each_number(size, each, monkeypatch):
    search, _ = world(0, typical=False)
    rows = []
    search = replace(
        search,
        robust=lambda some: rows.extend(some.tolist()) or np.zeros(len(some), bool),
        allowed=lambda some: np.ones(len(some), bool),
    )
    problem = SimpleNamespace(**vars(search.problem))
    problem.guarantee = SimpleNamespace(members=[member(np.zeros(7), -1.0)])
    search = replace(search, problem=problem)
    monkeypatch.setattr(sparse, "_GRID", size)
    row = with_value(with_value(search.problem.x, 0, 1.0), 4, 1.0)
    assert search._polished(row).tolist() == row.tolist()
    both = {(one[0], one[6]) for one in rows if one[0] < 1.0 and one[6] < 1.0}
    assert len(both) == max(0, each - 2) ** 2  # the last two values are that of the point


def test_polishing_moves_numbers_together():
    """Neither number can come nearer alone."""
    search, _ = world(0, typical=False)
    search = replace(
        search,
        robust=lambda rows: rows[:, 6] == 0.5 + rows[:, 0] / 2,
        allowed=lambda rows: np.ones(len(rows), bool),
    )
    search.problem.guarantee.members[:] = [member(np.zeros(7), -1.0)]
    row = with_value(with_value(search.problem.x, 0, 1.0), 4, 1.0)
    found = search._polished(row)
    assert (found[0], found[6]) == (1 / 16, 17 / 32)


def test_values_around_change_lie_in_its_direction(monkeypatch):
    search, _ = world(0)
    up = search._around(0.25, 0.5, 0, 100)
    assert up.tolist() == (np.arange(9, 19) / 32).tolist()  # up to 1.3 times the change
    down = search._around(0.5, 0.26, 0, 100)
    assert down.tolist() == sorted([*np.arange(7, 16) / 32, 0.26])
    few = search._around(0.25, 0.5, 0, 4)
    assert few.tolist() == [9 / 32, 13 / 32, 16 / 32, 18 / 32]
    monkeypatch.setattr(sparse, "_BEYOND", 1.5)  # then both ends are values themselves
    assert search._around(0.25, 0.5, 0, 100).tolist() == (np.arange(9, 21) / 32).tolist()
    assert search._around(0.5, 0.25, 0, 100).tolist() == (np.arange(4, 16) / 32).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_nearer_value_is_nearest_that_passes(seed):
    search, every = world(seed)
    for row in every[:: max(1, len(every) // 15)]:
        for f in NUMBERS:
            j = SPANS[f].start
            fine = search.values.fine[f][:, 0]
            low, high = sorted((search.problem.x[j], row[j]))
            rows = [with_value(row, f, v) for v in fine[(fine > low) & (fine < high)]]
            found = search._nearer_value(row, f)
            if rows and best(search, rows) < math.inf:
                assert reached(search, found) == pytest.approx(best(search, rows))
            else:
                assert found is row


# -- the whole search ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("most", [None, 1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_run_returns_points_that_pass_best_first(seed, most, nearest):
    search, every = world(seed)
    starts = every[np.argsort(distance(search, every), kind="stable")][:10]
    found = search.run(starts, most, nearest=nearest)
    by_count = {n: every[counts(search, every) == n] for n in (1, 2)}
    fewest = counts(search, every).min(initial=5)
    if not found:
        # Only one and two changes are searched completely.
        assert not len(every) or (most is not None and (most < fewest or fewest > 2))
        return
    assert len(found) <= sparse._COMPRESSED
    rows = np.array(found)
    assert passes(search, rows).all()
    assert (np.diff(distance(search, rows)) >= 0.0).all()
    assert (counts(search, rows) <= (most or 5)).all()
    if fewest < 3 and not nearest:
        assert (counts(search, rows) == fewest).all()
        assert distance(search, rows).min() <= best(search, by_count[fewest]) + 1e-12
    if nearest:
        known = [by_count[n] for n in (1, 2) if n <= (most or 5) and len(by_count[n])]
        limit = min((best(search, part) for part in known), default=math.inf)
        assert distance(search, rows).min() <= limit + 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_run_needs_no_starts_for_one_and_two_changes(seed):
    search, every = world(seed)
    some = [every[counts(search, every) == n] for n in (1, 2)]
    known = [best(search, rows) for rows in some if len(rows)]
    found = search.run(every[:0], None, nearest=False)
    assert len(found) == min(len(known), 1)
    if known:
        assert counts(search, found[0])[0] == (1 if len(some[0]) else 2)
        assert distance(search, found[0][None])[0] <= known[0] + 1e-12
    found = search.run(every[:0], None, nearest=True)
    assert len(found) == len(known)  # each point once
    if known:
        assert distance(search, found[0][None])[0] <= min(known) + 1e-12


def test_pairs_are_searched_if_more_than_two_changes_remain(monkeypatch):
    for seed in SEEDS:
        search, every = world(seed)
        by_count = [every[counts(search, every) == n] for n in range(6)]
        if len(by_count[1]) or not len(by_count[2]) or not len(by_count[3]):
            continue
        monkeypatch.setattr(SparseSearch, "_compressed", lambda self, _, rows=by_count[3]: rows)
        (found,) = search.run(by_count[3], None, nearest=False)
        assert counts(search, found)[0] == 2
        monkeypatch.setattr(SparseSearch, "_compressed", lambda self, _, rows=by_count[2]: rows)
        monkeypatch.setattr(SparseSearch, "_pairs", lambda self: pytest.fail("not needed"))
        assert search.run(by_count[2], None, nearest=False)
        return
    pytest.fail("no such case")
