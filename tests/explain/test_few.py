"""Answers with few changes, against brute force over all sets of features.

In a box whose columns all have steps the oracle looks at every legal point, and knows the worst margin
of a network with one hidden layer in closed form. In hulls it is a plain search for each set, in a
schema in which all other features are immutable.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import OptionError
from proplace.explain import few, proving
from proplace.explain.findings import Finding
from proplace.explain.proving import Clock
from proplace.search.subsets import OpenSets
from support.errors import raises
from support.people import random_network, worst_logit

network = functools.partial(random_network, balanced=True)
DELTA = 0.02
MARGIN = 1e-6 + 1e-4  # what the search asks for
STRETCH = 1.25


def changed(e):
    """Numbers of the features that an answer changes, from its encoded rows alone."""
    columns = e.setting.schema.columns
    return frozenset(columns[j].feature for j in np.flatnonzero(e.x != e.point))


# -- boxes: every legal point ----------------------------------------------------------------------


GRID = pp.Schema(
    [
        pp.Continuous("a", 0, 4, step=1),
        pp.Continuous("b", 0, 4, step=1, direction="increasing"),
        pp.Continuous("c", 0, 4, step=1, max_decrease=2),
        pp.Continuous("d", 0, 4, step=2),
        pp.Categorical("e", ["p", "q", "r"]),
        pp.Binary("f", immutable=True),
    ]
)


def grid_points(x):
    """Every legal point of the schema above for a person, encoded."""
    quarters = np.arange(5) / 4
    values = [
        quarters,
        quarters[quarters >= x[1]],
        quarters[quarters >= x[2] - 0.5 - 1e-12],
        np.unique([0.0, 0.5, 1.0, x[3]]),
    ]
    points = [
        [*numbers, *category, x[-1]]
        for numbers in itertools.product(*values)
        for category in np.eye(3)
    ]
    return np.array(points)


def counts_of(points, x):
    """How many features each point changes: four numbers, and one category of three columns."""
    differs = points != x
    return differs[:, :4].sum(axis=1) + differs[:, 4:7].any(axis=1)


CHOICES = pp.Schema(
    [
        *(pp.Categorical(name, ["p", "q", "r"]) for name in "abcd"),
        pp.Binary("e"),
        pp.Binary("f", immutable=True),
    ]
)


def choices(x):
    """Every legal point of the schema above for a person, encoded."""
    values = [*[np.eye(3)] * 4, np.array([[0.0], [1.0]])]
    return np.array([np.concatenate([*part, x[-1:]]) for part in itertools.product(*values)])


def choices_changed(points, x):
    """How many features each point changes: four categories of three columns, and one binary."""
    differs = points != x
    return sum(differs[:, i : i + 3].any(axis=1) for i in range(0, 12, 3)) + differs[:, 12]


def refused(schema, net, seed):
    """A table, and the encoded rows of some people of it whom the network refuses."""
    frame = schema.decode(np.random.default_rng(seed).random((60, schema.width)))
    rows = schema.encode(frame)
    return frame, rows[net.predict(rows) == 0][:6]


@pytest.mark.parametrize("seed", range(3))
def test_in_a_box_nothing_legal_is_shorter(seed):
    """Categories have no steps: each profile is one point, and the search is exact."""
    net = network(seed, CHOICES.width)
    frame, people = refused(CHOICES, net, seed)
    options = {"schema": CHOICES, "region": "box"}
    most, checked = 2, 0
    asked = {"few": {"prefer": "few"}, "most": {"max_changes": most}}
    found = {
        name: pp.Proplace(net, DELTA, **options, **more).fit(frame).explain(people, gap=0)
        for name, more in asked.items()
    }
    for i, x in enumerate(people):
        points = choices(x)
        value = worst_logit(net, points, DELTA)
        points = points[value >= MARGIN]
        if not len(points) or ((value > 0.0) & (value < 2 * MARGIN)).any():
            continue
        distances, counts = np.abs(points - x).mean(axis=1), choices_changed(points, x)
        near = distances <= STRETCH * distances.min() * (1 + 1e-9)
        fewest = counts[near].min()
        e = found["few"][i]
        assert e.status == "optimal"
        assert len(changed(e)) == fewest
        assert e.distance == pytest.approx(distances[near & (counts == fewest)].min())
        assert e.bound <= distances.min() + 1e-9
        assert (points == e.point).all(axis=1).any()
        e = found["most"][i]
        if (counts <= most).any():
            assert e.status == "optimal"
            assert len(changed(e)) <= most
            assert e.distance == pytest.approx(distances[counts <= most].min())
        else:
            assert e.status == "infeasible_rules"
            assert "raise max_changes" in e.reason
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize("seed", range(6))
def test_with_steps_only_what_is_true_is_called_optimal(seed):
    """The nearest answer is rounded, and how near the nearest legal one is stays open."""
    net = network(seed, GRID.width)
    frame, people = refused(GRID, net, seed)
    most, checked = 2, 0
    few_, limited = (
        pp.Proplace(net, DELTA, schema=GRID, region="box", **more).fit(frame).explain(people, gap=0)
        for more in ({"prefer": "few"}, {"max_changes": most})
    )
    for x, short, e in zip(people, few_, limited, strict=True):
        points = grid_points(x)
        value = worst_logit(net, points, DELTA)
        points = points[value >= MARGIN]
        if not len(points) or ((value > 0.0) & (value < 2 * MARGIN)).any():
            continue
        distances, counts = np.abs(points - x).mean(axis=1), counts_of(points, x)
        for answer in (short, e):
            if answer.found:
                assert (points == answer.point).all(axis=1).any()
                assert answer.bound <= distances.min() + 1e-9
                assert answer.certificate.check(net).accepted
        if short.found:
            near = distances <= STRETCH * short.distance * (1 + 1e-9)
            assert short.distance >= distances[counts == len(changed(short))].min() - 1e-9
            if short.status == "optimal":
                assert len(changed(short)) == counts[near].min()
        if e.found:
            assert len(changed(e)) <= most
            if e.status == "optimal":
                assert e.distance == pytest.approx(distances[counts <= most].min())
        elif e.status == "infeasible_rules":
            assert not (counts <= most).any()
        checked += 1
    assert checked >= 1


# -- hulls: a plain search for each set ------------------------------------------------------------


def kept(schema, free):
    """The schema in which all features but some are immutable."""
    features = [
        feature if i in free else dataclasses.replace(feature, immutable=True)
        for i, feature in enumerate(schema.features)
    ]
    return pp.Schema(features, rules=schema.rules)


MIXED = pp.Schema(
    [
        pp.Continuous("a", 0, 1),
        pp.Continuous("b", 0, 10, step=1, direction="increasing"),
        pp.Categorical("c", ["p", "q", "r"]),
        pp.Binary("d"),
        pp.Continuous("e", 0, 1, immutable=True),
    ],
    rules=[pp.Linear({"a": 1, "b": -0.1}, lower=-0.9)],
)
PLAIN = pp.Schema([pp.Continuous(name, 0, 1) for name in "abcd"])
CASES = {
    "numbers": (PLAIN, {"hidden": (6, 6)}, {}),
    "mixed": (MIXED, {"hidden": (6, 6)}, {}),
    "three classes": (PLAIN, {"hidden": (6,), "outputs": 3}, {}),
    "two networks": (PLAIN, {"hidden": (6,)}, {"also": [(network(91, 4, (5, 5)), 0.01)]}),
    "no hidden layer": (PLAIN, {"hidden": ()}, {}),
    "weights": (PLAIN, {"hidden": (6, 6)}, {"weights": {"a": 0.0, "b": 3.0}}),
    "bilevel": (PLAIN, {"hidden": (5,)}, {"search": "bilevel"}),
}


class Hull:
    """A case, its answers, and the distance of each person for each set of features."""

    def __init__(self, name, people=4):
        schema, shape, options = CASES[name]
        self.schema = schema
        self.options = {"k": 6, **options}
        for seed in itertools.count():
            self.net = network(seed, schema.width, **shape)
            self.rows = schema.canonical(np.random.default_rng(seed).random((150, schema.width)))
            explainer = self.explainer(schema)
            refused = self.rows[self.net.predict(self.rows) != 1]
            if len(explainer.robust_rows()) >= 8 and len(refused) >= people:
                break
        self.people = refused[:people]
        free = [i for i, feature in enumerate(schema.features) if not feature.immutable]
        self.sets = [
            frozenset(each)
            for size in range(1, len(free) + 1)
            for each in itertools.combinations(free, size)
        ]
        self.distances = {}
        for each in self.sets:
            found = self.explainer(kept(schema, each)).explain(self.people, gap=0)
            self.distances[each] = [e.distance if e.found else np.inf for e in found]
        self.near = explainer.explain(self.people, gap=0)

    def explainer(self, schema, **options):
        return pp.Proplace(self.net, DELTA, schema=schema, **self.options, **options).fit(self.rows)

    def answers(self, **options):
        return self.explainer(self.schema, **options).explain(self.people, gap=0)

    def best(self, i, size, cutoff):
        """The least distance of a person over all sets of a size, if it is within a cutoff."""
        least = min(d[i] for each, d in self.distances.items() if len(each) == size)
        return least if least <= cutoff * (1 + 1e-7) else np.inf


hull_of = functools.cache(Hull)


@pytest.fixture(scope="module", params=CASES)
def hull(request):
    return hull_of(request.param)


def legal(hull, e):
    """An answer is what a certificate says, and legal for the person."""
    bundle, sets = isinstance(e.certificate, pp.Bundle), e.setting.sets
    verdict = e.certificate.check(sets) if bundle else e.certificate.check(hull.net)
    assert verdict.accepted, verdict.reason
    assert len(sets) == 1 or bundle
    assert all(pp.certify(each.net, e.point, each.shifts).robust.all() for each in sets)
    assert hull.schema.person(e.x).allowed(e.point[None])[0]


def test_in_hulls_no_smaller_set_has_an_answer(hull):
    checked = 0
    for i, (e, near) in enumerate(zip(hull.answers(prefer="few"), hull.near, strict=True)):
        if not near.found:
            assert e.status == near.status
            continue
        legal(hull, e)
        cutoff, count = STRETCH * near.distance, len(changed(near))
        by_size = {size: hull.best(i, size, cutoff) for size in range(1, count + 1)}
        size = min((size for size, d in by_size.items() if np.isfinite(d)), default=count)
        least = by_size[size] if size < count else min(by_size[count], near.distance)
        assert e.status == "optimal"
        assert len(changed(e)) <= size
        assert e.distance == pytest.approx(least, rel=1e-5, abs=1e-9)
        assert e.bound == pytest.approx(min(near.bound, e.distance))
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize("most", [1, 2])
def test_in_hulls_the_nearest_with_at_most_so_many_changes(hull, most):
    answers = hull.answers(max_changes=most)
    for i, (e, near) in enumerate(zip(answers, hull.near, strict=True)):
        if not near.found:
            continue
        least = min(hull.best(i, size, np.inf) for size in range(1, most + 1))
        if len(changed(near)) <= most:
            least = min(least, near.distance)
        if np.isinf(least):
            assert e.status == "infeasible_rules"
            continue
        legal(hull, e)
        assert e.status == "optimal"
        assert len(changed(e)) <= most
        assert e.distance == pytest.approx(least, rel=1e-5, abs=1e-9)


def test_both_together_are_short_within_the_stretch_of_the_nearest_of_these(hull):
    few_of_two = hull.answers(prefer="few", max_changes=2)
    for e, near in zip(few_of_two, hull.answers(max_changes=2), strict=True):
        assert e.found == near.found
        if e.found:
            assert len(changed(e)) <= len(changed(near))
            assert e.distance <= STRETCH * near.distance * (1 + 1e-6)


# -- where not all can be proved -------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    return hull_of("numbers")


@pytest.mark.parametrize("limit", ["MOST_SETS", "MOST_WORK"])
def test_beyond_the_work_allowed_no_change_can_be_left_out(plain, monkeypatch, limit):
    monkeypatch.setattr(few, limit, 0)
    seen = set()
    for i, (e, near) in enumerate(zip(plain.answers(prefer="few"), plain.near, strict=True)):
        legal(plain, e)
        assert e.distance <= STRETCH * near.distance * (1 + 1e-6)
        now = changed(e)
        if len(now) > 1:  # each smaller set has nothing within the stretch
            for feature in now:
                assert plain.distances[now - {feature}][i] > STRETCH * near.distance
        seen.add(e.status)
        if e.status == "feasible":
            assert "not proved" in e.reason
    assert "feasible" in seen


class Nothing:
    """Bounds that exclude nothing, and know nothing of the margins."""

    work = 0

    def open_sets(self, *_, **__):
        return OpenSets({}, complete=False)

    def not_excluded(self, sets, *_):
        return sets

    def values(self, points):
        return np.zeros(len(points))


def test_what_is_not_needed_goes_one_after_another():
    """Features 2 and 5 of six are needed; nothing else is told beforehand."""
    schema = pp.Schema([pp.Continuous(f"c{i}", 0, 1) for i in range(6)])
    asked = []

    def answer(features):
        point = np.isin(np.arange(6), list(features)).astype(float)
        return Finding("optimal", "", x=np.zeros(6), point=point, distance=1.0, bound=1.0)

    def solve(features, cutoff):
        asked.append(set(features))
        assert cutoff == pytest.approx(STRETCH)
        good = features >= {2, 5}
        return few.Tried(answer(features) if good else Finding("not_found", ""), settled=True)

    search = few.FewChanges(schema, answer(range(6)), solve, Nothing(), Clock())
    found = search.fewest()
    assert np.flatnonzero(found.point).tolist() == [2, 5]
    assert found.status == "feasible"
    assert found.reason == "that fewer than 2 changes are not enough is not proved"
    assert {2} in asked
    assert {5} in asked  # the last of the changes was tried, too


@pytest.mark.parametrize("limit", ["MOST_SETS", "MOST_WORK"])
def test_beyond_the_work_allowed_max_changes_holds_all_the_same(plain, monkeypatch, limit):
    monkeypatch.setattr(few, limit, 0)
    for e in plain.answers(max_changes=2):
        assert e.status in ("feasible", "optimal", "not_found")
        if e.found:
            legal(plain, e)
            assert len(changed(e)) <= 2


def test_at_the_time_limit_the_nearest_answer_is_given(plain, monkeypatch):
    monkeypatch.setattr(few.FewChanges, "_over", property(lambda self: True))
    monkeypatch.setattr(few.FewChanges, "_shortened", lambda self, *_: self.near)
    for e, near in zip(plain.answers(prefer="few"), plain.near, strict=True):
        assert e.distance == near.distance
        assert e.status == "feasible"
        assert "not proved" in e.reason
    for e in plain.answers(prefer="few", max_changes=2, time_limit=1e-3):
        assert e.status in ("optimal", "feasible", "not_found")


class Counting(Nothing):
    """Bounds that exclude every set; so much time passes at each question."""

    def __init__(self, monkeypatch, seconds=0.0):
        self.now, self.asked, self.seconds = 0.0, [], seconds
        monkeypatch.setattr(proving.time, "monotonic", lambda: self.now)

    def open_sets(self, size, *_, **__):
        self.asked.append(size)
        self.now += self.seconds
        assert len(self.asked) < 100
        return OpenSets({}, complete=True)


def six_changes():
    """A search that starts from an answer which changes six features."""
    schema = pp.Schema([pp.Continuous(f"c{i}", 0, 1) for i in range(6)])
    near = Finding("optimal", "", x=np.zeros(6), point=np.ones(6), distance=1.0, bound=1.0)
    return schema, near, lambda *_: few.Tried(Finding("not_found", ""), settled=True)


def test_no_more_changes_are_looked_for_than_there_are_features(monkeypatch):
    bounds = Counting(monkeypatch)
    found = few.FewChanges(*six_changes(), bounds, Clock()).at_most(10**9)
    assert bounds.asked == [1, 2, 3, 4, 5, 6]
    assert found.status == "optimal"


def test_after_the_time_limit_no_other_size_is_looked_at(monkeypatch):
    bounds = Counting(monkeypatch, seconds=1.0)
    found = few.FewChanges(*six_changes(), bounds, Clock(2.5, 9.0)).at_most(5)
    assert bounds.asked == [1, 2, 3]
    assert found.status == "not_found"
    assert "the time limit came before" in found.reason


class Given(Nothing):
    """Bounds that leave given sets of each size open; of other sizes nothing is decided."""

    def __init__(self, sets):
        self.sets = sets

    def open_sets(self, size, *_, among=None, **__):
        if size not in self.sets:
            return OpenSets({}, complete=False)
        wanted = map(frozenset, self.sets[size]) if among is None else among
        return OpenSets(dict.fromkeys(wanted, 0.0), complete=True)


def answer_of(features, distance=1.0):
    point = np.isin(np.arange(6), list(features)).astype(float)
    return Finding("optimal", "", x=np.zeros(6), point=point, distance=distance, bound=distance)


def search_of(near, sets, answers):
    """A search from an answer; ``answers`` has distance and proof of what some sets give."""
    schema = pp.Schema([pp.Continuous(f"c{i}", 0, 1) for i in range(6)])

    def solve(features, cutoff):
        distance, settled = answers.get(tuple(sorted(features)), (np.inf, True))
        found = answer_of(features, distance) if distance <= cutoff else Finding("not_found", "")
        return few.Tried(found, settled=settled)

    return few.FewChanges(schema, answer_of(near), solve, Given(sets), Clock())


def test_unfinished_search_of_one_set_leaves_level_unproved():
    """The first set is not searched to its end; the proof of the second says nothing of it."""
    answers = {(0,): (np.inf, False), (1,): (1.1, True)}
    found = search_of([0, 1], {1: [[0], [1]]}, answers).fewest()
    assert np.flatnonzero(found.point).tolist() == [1]
    assert (found.status, found.reason) == (
        "feasible",
        "that none with as few changes is nearer is not proved",
    )


def test_shortened_answer_of_least_size_is_not_called_too_long():
    """One change is excluded by a proof, and two changes do: only how near they are is open."""
    found = search_of([0, 1, 2], {1: []}, {(0, 1): (1.1, True)}).fewest()
    assert np.flatnonzero(found.point).tolist() == [0, 1]
    assert found.reason == "that none with as few changes is nearer is not proved"


def test_max_changes_keeps_nearer_answer_with_fewer_changes():
    answers = {(0,): (1.2, True), (0, 1): (1.22, True)}
    found = search_of([0, 1, 2], {1: [[0]], 2: [[0, 1]]}, answers).at_most(2)
    assert (found.distance, np.flatnonzero(found.point).tolist()) == (1.2, [0])


# -- several answers ------------------------------------------------------------


def test_several_short_answers(plain):
    explainer = plain.explainer(plain.schema, prefer="few")
    first, several = (
        explainer.explain(plain.people, gap=0),
        explainer.explain(plain.people, count=3, gap=0),
    )
    for i, one in enumerate(first):
        answers = [e for e in several if e.index == i]
        assert [e.rank for e in answers] == list(range(len(answers)))
        assert answers[0].point.tobytes() == one.point.tobytes()
        sets = [frozenset(changed(e)) for e in answers]
        assert len(set(sets)) == len(sets)
        order = [(len(changed(e)), e.distance) for e in answers]
        assert order == sorted(order)
        for e in answers:
            legal(plain, e)
    assert len(several) > len(first)


# -- by hand ---------------------------------------------------------------------------------------


def test_by_hand():
    """The logit is 2a + 1.9b - 1; delta takes 0.1 (|a| + |b|) + 0.1 of it at most."""
    net = pp.Network([([[2.0, 1.9]], [-1.0])])
    rows = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    options = {"k": 3, "schema": pp.Schema([pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)])}

    def explain(**more):
        return pp.Proplace(net, 0.1, **options, **more).fit(rows).explain([[0, 0]], gap=0)[0]

    needed = (1.1 + MARGIN) / np.array([1.9, 1.8])
    e = explain(prefer="few")
    assert changed(e) == {0}
    assert e.distance == pytest.approx(needed[0] / 2)
    e = explain(changeable=["b"])
    assert (e.status, changed(e)) == ("optimal", {1})
    assert e.distance == pytest.approx(needed[1] / 2)
    e = explain(weights={"a": 3.0})
    assert changed(e) == {1}
    e = explain(weights={"a": 3.0}, changeable=["a"])
    assert e.distance == pytest.approx(3 * needed[0] / 2)


def test_equal_features_are_chosen_in_their_order():
    net = pp.Network([([[1.0, 1.0, 1.0]], [-0.5])])
    rows = [[0.0, 0.0, 0.0], *np.eye(3).tolist()]
    e = pp.Proplace(net, 0.01, k=3, prefer="few").fit(rows).explain([[0.0, 0.0, 0.0]], gap=0)[0]
    assert (e.status, changed(e)) == ("optimal", {0})


def test_a_person_outside_of_a_range_may_stay_there():
    schema = pp.Schema([pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)])
    net = pp.Network([([[1.0, 2.0]], [-1.0])])
    rows = np.array([[0.1, 0.1], [0.2, 0.9], [0.9, 0.8], [0.5, 1.0]])
    explainer = pp.Proplace(net, 0.01, k=3, schema=schema, prefer="few").fit(rows)
    e = explainer.explain([[-0.05, 0.1]], gap=0)[0]
    assert (e.status, changed(e)) == ("optimal", {1})
    assert e.point[0] == -0.05


# -- options ---------------------------------------------------------------------------------------


def test_changeable_is_as_if_all_others_were_immutable(hull):
    free = [f.name for f in hull.schema.features if not f.immutable][:2]
    numbers = {i for i, f in enumerate(hull.schema.features) if f.name in free}
    names = [*free, *(f.name for f in hull.schema.features if f.immutable)]
    for e, d in zip(
        hull.answers(changeable=names), hull.distances[frozenset(numbers)], strict=True
    ):
        assert e.found == np.isfinite(d)
        if e.found:
            assert changed(e) <= numbers
            assert e.distance == pytest.approx(d)


BAD = [
    ({"changeable": ["a", "bb"]}, "changeable", "bb"),
    ({"changeable": []}, "changeable", []),
    ({"changeable": "a"}, "changeable", "a"),
    ({"changeable": [1]}, "changeable", [1]),
    ({"changeable": ["e"]}, "changeable", ["e"]),
    ({"max_changes": 0}, "max_changes", 0),
    ({"prefer": "short"}, "prefer", "short"),
]


@pytest.mark.parametrize(("options", "name", "value"), BAD, ids=[str(each[0]) for each in BAD])
def test_bad_options_are_refused_with_what_to_change(options, name, value):
    rows = MIXED.canonical(np.random.default_rng(0).random((30, MIXED.width)))
    explainer = pp.Proplace(network(0, MIXED.width), DELTA, schema=MIXED, **options)
    with raises(OptionError, name=name, value=value):
        explainer.fit(rows)
