"""Several answers: what is kept while the next one is looked for, and what is a path of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.distances import L1
from proplace.explain.diverse import diverse
from proplace.explain.results import Finding
from proplace.schema import Schema

WIDTH = 6


def run(answers, count, distance=None):
    """Run with known counterfactuals: changes by feature, for each set of kept features.

    Other sets have no counterfactual. Returns the changes of each result, and the kept features of each
    search.
    """
    schema, asked = Schema([pp.Continuous(f"c{i}", 0, 1) for i in range(WIDTH)]), []

    def find(kept):
        asked.append(set(kept))
        x, point = np.zeros(WIDTH), np.zeros(WIDTH)
        changes = answers.get(tuple(sorted(kept)))
        if changes is None:
            return Finding("not_found", "nothing", encoded_original=x)
        for feature, change in changes.items():
            point[feature] = change
        return Finding(
            "optimal",
            "",
            encoded_original=x,
            encoded_counterfactual=point,
            distance=sum(changes.values()),
        )

    found = diverse(find, schema, count, distance)
    assert [e.rank for e in found] == list(range(len(found)))
    return [
        {
            int(f): float(e.encoded_counterfactual[f])
            for f in np.flatnonzero(e.encoded_counterfactual)
        }
        if e.found
        else e.reason
        for e in found
    ], asked


def test_largest_change_is_kept_first():
    found, asked = run({(): {0: 0.1, 1: 0.4, 2: 0.3, 3: 0.2}, (1,): {4: 2.0}}, 2)
    assert asked == [set(), {1}, {2}, {3}, {0}]
    assert found == [{0: 0.1, 1: 0.4, 2: 0.3, 3: 0.2}, {4: 2.0}]
    _, asked = run({(): {0: 0.1, 1: 0.2, 2: 0.6, 3: 0.5, 4: 0.4, 5: 0.3}}, 2)
    assert asked == [set(), {2}, {3}, {4}, {5}]  # of many, a few
    _, asked = run({(): {0: 0.3, 1: 0.3}}, 2)
    assert asked == [set(), {0}, {1}]  # of equals, the first


def test_kept_features_stay_kept():
    """The second counterfactual keeps feature 1. Later ones keep it and one more."""
    answers = {(): {1: 1.0}, (1,): {2: 1.5, 3: 0.1}, (1, 2): {4: 3.0}, (1, 3): {2: 1.7}}
    found, asked = run(answers, 3)
    assert asked == [set(), {1}, {1, 2}, {1, 3}, {1, 2, 3}]
    assert found == [{1: 1.0}, {2: 1.5, 3: 0.1}, {4: 3.0}]


def test_trifle_more_or_less_is_not_path_of_its_own():
    """The same without a trifle, and with another one: what they share is kept instead."""
    answers = {
        (): {0: 1.0, 1: 0.02},
        (1,): {0: 1.1},
        (0,): {2: 1.2, 3: 0.3},
        (0, 1): {2: 1.6},
        (0, 2): {3: 3.0, 4: 0.1},
    }
    found, asked = run(answers, 3)
    assert found == [{0: 1.0, 1: 0.02}, {2: 1.2, 3: 0.3}, {3: 3.0, 4: 0.1}]
    assert {0, 1} in asked


@pytest.mark.parametrize(
    ("second", "taken"),
    [
        ({0: 0.6, 1: 0.4, 2: 5.0}, False),  # all that the first changes, and more
        ({0: 0.3, 1: 0.3, 2: 2.0}, False),  # less of it
        ({0: 0.1, 1: 0.1, 2: 5.0}, True),  # of that, trifles only
        ({0: 0.6}, False),  # nothing but a part of the first
        ({0: 0.5, 2: 0.26}, True),  # 0.5 of the 0.76 in common: less than two thirds
        ({0: 0.5, 2: 0.24}, False),
        ({0: 0.6, 2: 0.01}, False),
        ({0: 0.2, 1: 5.0}, False),  # the same features
        ({2: 0.01}, True),
    ],
)
def test_how_much_two_paths_may_share(second, taken):
    found, _ = run({(): {0: 0.6, 1: 0.4}, (0,): second, (1,): second}, 2)
    assert len(found) == 1 + taken


def test_largest_shared_change_is_kept_next():
    """Kept is as much as must go for the rest to be less than two thirds."""
    answers = {(): {0: 0.5, 1: 0.4, 2: 0.1}, (2,): {0: 0.5, 1: 0.4, 3: 0.2}}
    _, asked = run(answers, 2)
    assert asked == [set(), {0}, {1}, {2}, {0, 2}]
    answers = {(): {0: 0.3, 1: 0.3, 2: 0.4, 3: 0.4}, (2,): {0: 0.3, 1: 0.3, 3: 0.9}}
    _, asked = run(answers, 2)
    assert asked[5:] == [{2, 3}]
    answers[(2,)] = {0: 0.4, 1: 0.4, 3: 0.1}
    _, asked = run(answers, 2)
    assert asked[5:] == [{0, 2}]


def test_weights_define_main_changes():
    """Feature 0 changes most, but has hardly any weight."""
    answers = {(): {0: 0.9, 1: 0.1}, (1,): {0: 0.9, 2: 0.2}}
    found, asked = run(answers, 2)
    assert asked[1] == {0}
    assert found == [answers[()]]
    found, asked = run(answers, 2, L1(np.array([0.01, *[1.0] * (WIDTH - 1)])))
    assert asked[1] == {1}
    assert found == list(answers.values())


def test_nearer_one_comes_first():
    """A search that keeps a feature uses other neighbours, and may end nearer."""
    found, _ = run({(): {0: 1.0}, (0,): {1: 0.5}}, 2)
    assert found == [{1: 0.5}, {0: 1.0}]


def test_no_more_searches_than_answers_need():
    _, asked = run({(): {0: 0.1, 1: 0.4}}, 1)
    assert asked == [set()]
    found, asked = run({}, 3)
    assert (found, asked) == (["nothing"], [set()])


def test_searches_come_to_end(monkeypatch):
    monkeypatch.setattr("proplace.explain.diverse._SEARCHES", 1)
    _, asked = run({(): {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}}, 3)
    assert asked == [set(), {0}, {1}]


def test_neighbours_fit_kept_features():
    """All robust rows change both numbers. An alternative that keeps one is found all the same."""
    schema = Schema([pp.Continuous("a", 0, 100, step=1), pp.Continuous("b", 0, 100, step=1)])
    net = pp.Network([([[1.0, 1.0]], [-0.9])])
    train = pd.DataFrame({"a": [20, 90, 95], "b": [20, 95, 90]})
    explainer = pp.Proplace(net, 0.01, schema=schema, weights={"a": 2}).fit(train)
    result = explainer.explain(train[:1], count=3)
    assert {tuple(e.changes_by_feature) for e in result} >= {("b",), ("a", "b")}
    (kept,) = (e for e in result if list(e.changes_by_feature) == ["b"])
    assert (kept.neighbours[:, 0] == 0.2).all()
    assert (kept.neighbours[:, 1] > 0.8).all()
