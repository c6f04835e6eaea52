"""Rows that count as robust, and the pieces that are left where some features are kept."""

from __future__ import annotations

import numpy as np

import proplace as pp
from proplace.core.distances import L1
from proplace.core.model_set import ModelSet
from proplace.region.neighbours import RobustRows, hull_pieces, keep
from proplace.schema import Categorical, Continuous, Schema


def test_rows_are_tested_at_the_margin_of_the_search():
    """The worst margin is x - 0.25 here; the rows at 0.25 and 0.5 do not keep a margin of 0.5."""
    net = pp.Network([([[1.0]], [0.0])])
    shifts = pp.Shifts.of(net, [(0.0, 0.25)])
    X = np.array([[0.0], [0.25], [0.5], [0.75], [1.0]])
    rows = RobustRows((ModelSet(net, shifts),), 1, 0.5, X, L1(np.ones(1)))
    np.testing.assert_array_equal(rows.robust, [[0.75], [1.0]])


def test_features_that_are_kept_leave_the_pieces_of_their_own_category():
    schema = Schema([Categorical("job", ["clerk", "cook"]), Continuous("age", 0, 1)])
    x = np.array([1.0, 0.0, 0.25])
    person = schema.person(x)
    neighbours = np.array([[1.0, 0.0, 0.75], [0.0, 1.0, 0.5]])
    pieces = hull_pieces(schema, person, neighbours)
    assert [piece.lower[:2].tolist() for piece in pieces] == [[1.0, 0.0], [0.0, 1.0]]
    (own,) = keep(pieces, x, [0, 1])
    assert own.lower[:2].tolist() == own.upper[:2].tolist() == [1.0, 0.0]
    kept = keep(pieces, x, [2])  # a number: every category may keep it
    assert [piece.lower[:2].tolist() for piece in kept] == [[1.0, 0.0], [0.0, 1.0]]
    for piece in kept:
        np.testing.assert_array_equal(piece.A, [[0.0, 0.0, 1.0]])
        assert piece.row_lower.tolist() == piece.row_upper.tolist() == [0.25]
