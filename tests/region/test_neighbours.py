"""Robust rows, and the remaining pieces if some features are unchanged."""

from __future__ import annotations

import numpy as np

import proplace as pp
from proplace.core.distances import L1
from proplace.core.guarantee import Guarantee, Member
from proplace.region.neighbours import RobustRows
from proplace.region.pieces import hull_pieces
from proplace.schema import Categorical, Continuous, Schema


def test_rows_are_tested_at_margin_of_search():
    """The worst-case margin is x - 0.25 here, so the rows at 0.25 and 0.5 miss a margin of 0.5."""
    net = pp.Network([([[1.0]], [0.0])])
    shifts = pp.Shifts.of(net, [(0.0, 0.25)])
    X = np.array([[0.0], [0.25], [0.5], [0.75], [1.0]])
    rows = RobustRows(Guarantee((Member(net, shifts),)), 1, 0.5, X, L1(np.ones(1)))
    np.testing.assert_array_equal(rows.robust, [[0.75], [1.0]])


def test_features_that_are_kept_stay_in_every_piece():
    schema = Schema([Categorical("job", ["clerk", "cook"]), Continuous("age", 0, 1)])
    x = np.array([1.0, 0.0, 0.25])
    rows = np.array([[1.0, 0.0, 0.75], [0.0, 1.0, 0.5]])
    profiles = {(): [[1.0, 0.0], [0.0, 1.0]], (0,): [[1.0, 0.0]], (1,): [[1.0, 0.0], [0.0, 1.0]]}
    for kept, expected in profiles.items():
        person = schema.person(x, kept=kept)
        adapted = person.adapt(rows, overwrite_categories=True)
        pieces = hull_pieces(schema, person, adapted[person.allowed(adapted)])
        assert [piece.lower[:2].tolist() for piece in pieces] == expected
        for piece in pieces:
            ages = 0.25 if 1 in kept else piece.vertices[:, 2]
            assert (piece.vertices[:, 2] == ages).all()
            assert (piece.lower[2] == piece.upper[2] == 0.25) == (1 in kept)
