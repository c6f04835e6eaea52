"""Several answers: what is kept while the next one is looked for."""

from __future__ import annotations

import numpy as np

import proplace as pp
from proplace.explain.diverse import diverse
from proplace.explain.findings import Finding
from proplace.schema import Schema


def run(changes, count, width=6):
    """Answers of a search that changes the features that are not kept, by their ``changes``.

    Returns the answers, and what was kept in each search.
    """
    schema, asked = Schema([pp.Continuous(f"c{i}", 0, 1) for i in range(width)]), []

    def find(kept):
        asked.append(set(kept))
        x, point = np.zeros(width), np.zeros(width)
        for feature, change in enumerate(changes):
            if feature not in kept:
                point[feature] = change
        if not point.any():
            return Finding("not_found", "nothing", x=x)
        return Finding("optimal", "", x=x, point=point, distance=float(1.0 + len(kept)))

    return list(diverse(find, schema, count)), asked


def test_what_changes_most_is_kept_first():
    answers, asked = run([0.1, 0.4, 0.3, 0.2], 2)
    assert asked == [set(), {1}, {2}, {3}, {0}]
    assert len(answers) == 2
    _, asked = run([0.1, 0.2, 0.6, 0.5, 0.4, 0.3], 2)
    assert asked == [set(), {2}, {3}, {4}, {5}]  # of many, a few
    _, asked = run([0.3, 0.3], 2)
    assert asked == [set(), {0}, {1}]  # of equals, the first


def test_what_was_kept_stays_kept():
    """The second answer keeps feature 1; what comes after it keeps that and one more."""
    answers, asked = run([0.1, 0.4, 0.2], 4)
    assert asked[:4] == [set(), {1}, {2}, {0}]
    assert asked[4:] == [{1, 2}, {0, 1}, {0, 2}]  # each once
    changed = [set(np.flatnonzero(e.point)) for e in answers]
    assert changed == [{0, 1, 2}, {0, 2}, {0, 1}, {1, 2}]
    assert [e.rank for e in answers] == [0, 1, 2, 3]


def test_no_more_searches_than_answers_need():
    _, asked = run([0.1, 0.4, 0.2], 1)
    assert asked == [set()]
