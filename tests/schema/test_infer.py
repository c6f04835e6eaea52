"""Guessing a schema from a table."""

from __future__ import annotations

import datetime
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import SchemaError
from proplace.schema import Binary, Categorical, Continuous, Ordinal, Schema
from support.errors import raises


def test_each_kind_of_column():
    frame = pd.DataFrame(
        {
            "count": [3, 7, 5],
            "flag": [0, 1, 1],
            "flag_float": [0.0, 1.0, 1.0],
            "truth": [True, False, True],
            "whole": [1.0, 5.0, np.nan],
            "tenth": [0.1, 2.5, 3.0],
            "cent": [0.25, 2.5, 3.0],
            "real": [0.123, 2.5, 3.0],
            "two": ["b", "a", "a"],
            "three": ["b", "c", "a"],
            "pandas": pd.Categorical(["z", "y", "y"], categories=["z", "y", "x"]),
            "ordered": pd.Categorical(["lo", "hi", "lo"], ["lo", "mid", "hi"], ordered=True),
            "objects": pd.Series([1, 2, 5], dtype=object),
            "nullable": pd.array([1, None, 4], dtype="Int64"),
        }
    )
    schema = Schema.infer(frame, immutable=["flag"], increasing=["count"], decreasing=["ordered"])
    assert list(schema.features) == [
        Continuous("count", 3, 7, step=1, direction="increasing"),
        Binary("flag", immutable=True),
        Binary("flag_float"),
        Binary("truth", (False, True)),
        Continuous("whole", 1, 5, step=1),
        Continuous("tenth", 0.1, 3, step=0.1),
        Continuous("cent", 0.25, 3, step=0.01),
        Continuous("real", 0.12, 3, step=0.02, scaling=(0.123, 2.877)),
        Binary("two", ["a", "b"]),
        Categorical("three", ["a", "b", "c"]),
        Categorical("pandas", ["z", "y", "x"]),
        Ordinal("ordered", ["lo", "mid", "hi"], direction="decreasing"),
        Continuous("objects", 1, 5, step=1),
        Continuous("nullable", 1, 4, step=1),
    ]
    assert sorted(schema.problems(frame)) == [1, 2]
    good = frame.iloc[:1]
    back = schema.decode(schema.encode(good), like=good)
    assert back.iloc[0].tolist() == good.iloc[0].tolist()


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ([5, 5, 5], "5"),
        (["a", "a", "a"], "'a'"),
        ([True, True, True], "True"),
        ([np.nan, np.nan, np.nan], "missing"),
        ([None, None, None], "missing"),
        ([1.0, np.inf, 2.0], "infinite"),
        (pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]), "datetime64"),
        ([datetime.date(2020, 1, d) for d in (1, 2, 3)], "object"),
        ([1 + 1j, 2, 3], "complex128"),
        (["ann", "bob", "cem"], "categorical_limit=2"),
    ],
)
def test_columns_without_a_sensible_guess(column, word):
    frame = pd.DataFrame({"c": column, "ok": [1, 2, 3]})
    with raises(SchemaError, match="'c'") as caught:
        Schema.infer(frame, categorical_limit=2)
    assert word in str(caught.value)


def test_all_problems_are_told_at_once():
    frame = pd.DataFrame({"a": [1, 1], "b": [None, None], "c": ["x", "y"]})
    with raises(SchemaError, match="3 problems") as caught:
        Schema.infer(frame, immutable=["imm"])
    assert all(name in str(caught.value) for name in ("'imm'", "'a'", "'b'"))


def test_bad_calls():
    with raises(SchemaError, name="frame", match="ndarray"):
        Schema.infer(np.zeros((2, 2)))
    with raises(SchemaError, name="frame"):
        Schema.infer(pd.DataFrame())
    with raises(SchemaError, match="text"):
        Schema.infer(pd.DataFrame([[1, 2], [3, 4]]))
    with raises(SchemaError, match="did you mean 'job'"):
        Schema.infer(pd.DataFrame({"job": [1, 2]}), immutable=["jobs"])
    with raises(SchemaError, match="both"):
        Schema.infer(pd.DataFrame({"job": [1, 2]}), increasing=["job"], decreasing=["job"])
    with raises(SchemaError, match="no order"):
        Schema.infer(pd.DataFrame({"job": list("abc")}), increasing=["job"])


def test_standard_scaling_is_that_of_scikit_learn():
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, 50), "debt": rng.normal(5.0, 3.0, 50)})
    schema = Schema.infer(frame, scaling="standard")
    expected = StandardScaler().fit_transform(frame.to_numpy(dtype=float))
    np.testing.assert_allclose(schema.encode(frame), expected, atol=1e-12)
    pd.testing.assert_frame_equal(schema.decode(schema.encode(frame), like=frame), frame)


def test_unknown_scaling():
    with raises(SchemaError, name="scaling", value="robust"):
        Schema.infer(pd.DataFrame({"a": [1.0, 2.5]}), scaling="robust")


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([17.0, 90.0], 1.0),
        ([0.0, 999_999.0], 1.0),
        ([0.0, 1_490_400.0], 10.0),  # six digits
        ([0.0, 2e12], 1e7),
        ([-2e12, 0.0], 1e7),
        ([0.25, 9999.75], 0.01),
        ([0.25, 2e10], 1e5),
        ([0.0, 1.0, 0.12345], 0.01),
        ([-3.21, 2.987], 0.05),
        ([1e9, 1e9 + 7.0], 1.0),  # a tiny range far from 0
        ([1e-7, 3.3e-5], 2e-7),
    ],
)
def test_steps_are_readable(values, step):
    frame = pd.DataFrame({"a": values})
    (feature,) = Schema.infer(frame).features
    assert feature.step == step
    for end in (feature.lower, feature.upper):
        assert float(Fraction(repr(end)) / Fraction(repr(step))).is_integer()
    assert feature.lower <= min(values) < feature.lower + step
    assert feature.upper - step < max(values) <= feature.upper
    codes = Schema([feature]).encode(frame)[:, 0]
    np.testing.assert_allclose([codes.min(), codes.max()], [0.0, 1.0], atol=1e-9)  # of the table


def test_steps_that_could_not_be_told_apart_are_left_out():
    (feature,) = Schema.infer(pd.DataFrame({"a": [1e9, 1e9 + 0.125]})).features
    assert (feature.lower, feature.upper, feature.step) == (1e9, 1e9 + 0.125, None)
