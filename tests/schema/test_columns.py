"""Laws of grids: ``floor``, ``ceil``, ``nearest`` and ``beside`` against a list of legal values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proplace.core.errors import SchemaError
from proplace.schema import Binary, Categorical, Continuous, Ordinal, Schema
from proplace.schema.values import codes
from support.errors import raises
from support.tiers import examples

FEATURES = [
    Continuous("small", 17, 90, step=1),
    Continuous("tenths", -0.3, 4.1, step=0.1),
    Continuous("scaled", -5, 40, step=3, scaling=(12.5, 7.25)),
    Continuous("plain", 0, 30, step=0.25, scaling="none"),
    Continuous("third", 0, 2, step=1 / 3),
    Continuous("huge", 0, 2e4, step=1),  # too many values for a table: computed
    Continuous("cents", -13.37, 900, step=0.01, scaling=(55.0, 3.3)),
    Ordinal("grade", ["A", "B", "C", "D"]),
    Ordinal("uneven", ["A", "B", "C", "D"], values=[0, 1, 10, 11]),
    Binary("flag"),
]
ids = [feature.name for feature in FEATURES]


def legal_values(feature):
    """All legal encoded values, the slow way: decode to a table, encode it."""
    schema = Schema([feature])
    column = schema.columns[0]
    if isinstance(feature, Continuous):
        count = int(np.floor((feature.upper - feature.lower) / feature.step + 1e-9)) + 1
        cells = pd.DataFrame({feature.name: feature.lower + np.arange(count) * feature.step})
        if feature.whole:
            cells = cells.round().astype("int64")
    else:
        cells = pd.DataFrame({feature.name: getattr(feature, "levels", (0, 1))})
    return column, schema.encode(cells)[:, 0]


@pytest.mark.parametrize("feature", FEATURES, ids=ids)
def test_legal_values_are_fixed_points(feature):
    column, legal = legal_values(feature)
    assert column.size == len(legal)
    assert (np.diff(legal) > 0).all()
    assert (column.lower, column.upper) == (legal[0], legal[-1])
    for snap in (column.nearest, column.floor, column.ceil):
        assert snap(legal).tobytes() == legal.tobytes()
        assert snap(float(legal[1])) == legal[1]
        assert isinstance(snap(float(legal[1])), float)
    assert column.legal(legal).all()
    between = (legal[1:] + legal[:-1]) / 2
    assert not column.legal(between).any()


@pytest.mark.parametrize("feature", FEATURES, ids=ids)
@examples(25)
@given(data=st.data())
def test_snapping_agrees_with_brute_force(feature, data):
    column, legal = legal_values(feature)
    span = legal[-1] - legal[0]
    seed = data.draw(st.integers(0, 2**32 - 1))
    v = np.random.default_rng(seed).uniform(legal[0] - 0.1 * span, legal[-1] + 0.1 * span, 20)
    for e, near, floor, ceil in zip(
        v, column.nearest(v), column.floor(v), column.ceil(v), strict=True
    ):
        assert abs(near - e) == np.abs(legal - e).min()
        below, above = legal[legal <= e], legal[legal >= e]
        assert floor == (below[-1] if len(below) else legal[0])
        assert ceil == (above[0] if len(above) else legal[-1])
        n = max(int((legal <= e).sum()) - 1, 0)  # number of the value below, or of the first
        assert column.beside(float(e)).tobytes() == legal[max(n - 1, 0) : n + 3].tobytes()


@pytest.mark.parametrize("feature", FEATURES, ids=ids)
def test_float_noise_does_not_cost_step(feature):
    column, legal = legal_values(feature)
    gap = np.diff(legal).min()
    assert (column.floor(legal - 1e-9 * gap) == legal).all()
    assert (column.ceil(legal + 1e-9 * gap) == legal).all()


def test_continuous_columns_only_clip():
    column = Schema([Continuous("v", 0, 4)]).columns[0]
    assert column.kind == "continuous"
    assert column.size is None
    for snap in (column.nearest, column.floor, column.ceil):
        assert [snap(v) for v in (-1.0, 0.3, 2.0)] == [0.0, 0.3, 1.0]
    assert column.beside(0.3).tolist() == [0.3]


def test_layout_of_columns():
    schema = Schema(
        [
            Continuous("n", 0, 4),
            Categorical("c", ["x", "y", "z"]),
            Binary("b", ["no", "yes"]),
            Categorical("d", ["p", "q", "r"], encoding="dropfirst"),
            Ordinal("o", [1, 2]),
        ]
    )
    names = ["n", "c_x", "c_y", "c_z", "b_yes", "d_q", "d_r", "o"]
    assert [column.name for column in schema.columns] == names
    assert [column.feature for column in schema.columns] == [0, 1, 1, 1, 2, 3, 3, 4]
    kinds = ["continuous", *["binary"] * 6, "grid"]
    assert [column.kind for column in schema.columns] == kinds
    assert schema.profile_columns.tolist() == [1, 2, 3, 4, 5, 6]
    assert [group.tolist() for group in schema.groups] == [[1, 2, 3], [5, 6]]
    assert schema.width == 8
    assert schema.span("d") == slice(5, 7)
    with raises(SchemaError, name="bb"):
        schema.span("bb")
    assert repr(schema) == "Schema(5 features, 8 columns)"


@pytest.mark.parametrize("upper", [100, 10_000])  # held as a table, and computed
def test_of_two_equally_near_values_upper_is_taken(upper):
    column = Schema([Continuous("v", 0, upper, step=1, scaling="none")]).columns[0]
    assert (column.size <= 4096) == (upper == 100)
    halves = np.arange(10) + 0.5
    assert column.nearest(halves).tolist() == (np.arange(10) + 1.0).tolist()
    assert column.nearest(np.nextafter(halves, 0.0)).tolist() == np.arange(10.0).tolist()


@pytest.mark.parametrize(
    ("cells", "dtype", "labels", "expected"),
    [
        (["b", "a", None, "c"], object, ["a", "b"], [1, 0, -1, -1]),
        (["b", "a", None, "c"], "string", ["a", "b"], [1, 0, -1, -1]),
        (["b", "a", None, "c"], "category", ["a", "b"], [1, 0, -1, -1]),
        ([1.0, 0.0, np.nan, 2.0], float, [0, 1], [1, 0, -1, -1]),
        ([True, False, pd.NA, True], "boolean", [0, 1], [1, 0, -1, 1]),
        ([1, 0, pd.NA, 7], "Int64", [False, True], [1, 0, -1, -1]),
        ([1, "1", True, [1]], object, [0, 1], [1, -1, 1, -1]),
        ([pd.NaT, float("nan"), pd.NA, -0.0], object, [0, 1], [-1, -1, -1, 0]),
    ],
)
@pytest.mark.parametrize("times", [1, 50])
def test_labels_are_read_alike_in_short_and_in_long_columns(cells, dtype, labels, expected, times):
    series = pd.Series(cells * times, dtype=dtype)
    assert codes(series, labels).tolist() == expected * times
