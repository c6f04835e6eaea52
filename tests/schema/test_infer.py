"""Guessing a schema from a table."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import re
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import DraftWarning, OptionError, SchemaError
from proplace.schema import Binary, Categorical, Continuous, Ordinal, Schema
from proplace.schema.infer import grows_with_time, is_protected, with_range
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
            "cent": [0.01, 2.5, 3.0],
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
    found = [
        dataclasses.replace(f, drafted=None, default_scaling=None)
        if isinstance(f, Continuous)
        else f
        for f in schema.features
    ]
    assert schema.by_name["real"].default_scaling == (0.123, 2.877)
    assert schema.by_name["real"].drafted == (0.12, 3.0)
    assert found == [
        Continuous("count", 3, 7, step=1, direction="increasing"),
        Binary("flag", immutable=True),
        Binary("flag_float"),
        Binary("truth", (False, True)),
        Continuous("whole", 1, 5, step=1),
        Continuous("tenth", 0.1, 3, step=0.1),
        Continuous("cent", 0.01, 3, step=0.01),
        Continuous("real", 0.12, 3, step=0.02),
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
def test_columns_without_sensible_guess(column, word):
    frame = pd.DataFrame({"c": column, "ok": [1, 2, 3]})
    with raises(SchemaError, match="'c'") as caught:
        Schema.infer(frame, categorical_limit=2)
    assert word in str(caught.value)


def test_one_error_names_every_column_without_draft():
    frame = pd.DataFrame({"a": [1, 1], "b": [None, None], "c": ["x", "y"]})
    with raises(SchemaError, match="2 problems") as caught:
        Schema.infer(frame)
    assert all(name in str(caught.value) for name in ("'a'", "'b'"))


def test_bad_calls():
    with raises(SchemaError, name="frame", match="ndarray"):
        Schema.infer(np.zeros((2, 2)))
    with raises(SchemaError, name="frame"):
        Schema.infer(pd.DataFrame())
    with raises(SchemaError, match="text"):
        Schema.infer(pd.DataFrame([[1, 2], [3, 4]]))
    with raises(OptionError, match="did you mean 'job'"):
        Schema.infer(pd.DataFrame({"job": [1, 2]}), immutable=["jobs"])
    with raises(OptionError, match="increasing already"):
        Schema.infer(pd.DataFrame({"job": [1, 2]}), increasing=["job"], decreasing=["job"])
    with raises(OptionError, match="no order"):
        Schema.infer(pd.DataFrame({"job": list("abc")}), increasing=["job"])


def test_standard_scaling_is_that_of_scikit_learn():
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"income": rng.integers(18, 90, 50), "debt": rng.normal(5.0, 3.0, 50)})
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


def test_steps_below_float_resolution_are_skipped():
    (feature,) = Schema.infer(pd.DataFrame({"a": [1e9, 1e9 + 0.125]})).features
    assert (feature.lower, feature.upper, feature.step) == (1e9, 1e9 + 0.125, None)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1500, 2300, 7000], 100),  # loan amounts in hundreds
        ([12, 24, 36, 60], 12),  # terms in months
        ([7, 12, 24, 36, 60], 1),
        ([36, 60], 1),  # two numbers prove too little
        ([1, 2, 3, 50], 1),
        ([5, 10, 15, 25, 40], 5),
        ([0.5, 1.0, 2.5, 3.0, 4.5, 7.0], 0.5),
        ([0.25, 0.5, 0.75, 3.25], 0.25),
        ([-2000, 0, 4000, 7000], 1000),
        ([0, 3, 6, 9, 12, 15, 18], 1),  # 3 is not a round number
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "float64", "object", "Int64"])
def test_drafted_step_is_largest_round_number_that_fits(values, step, dtype):
    if dtype in ("int64", "Int64") and any(value % 1 for value in values):
        pytest.skip("whole numbers only")
    frame = pd.DataFrame({"a": pd.Series(values, dtype=dtype)})
    (feature,) = Schema.infer(frame).features
    assert feature.step == step
    assert (feature.lower, feature.upper) == (min(values), max(values))
    assert not Schema([feature]).problems(frame)


def test_few_other_numbers_do_not_change_drafted_step():
    hundreds = np.arange(100, 10_000, 100)
    (feature,) = Schema.infer(pd.DataFrame({"a": [*hundreds, 4321.5]})).features
    assert (feature.lower, feature.upper, feature.step) == (100, 9900, 100)
    (feature,) = Schema.infer(pd.DataFrame({"a": [*hundreds, *range(51, 100, 3)]})).features
    assert feature.step == 1
    means = [2.5639510341916423, 2.397237827715356]  # of each class, in the place of missing counts
    (feature,) = Schema.infer(pd.DataFrame({"a": [*range(18), *means]})).features
    assert feature.step == 1
    (feature,) = Schema.infer(pd.DataFrame({"a": [*range(7), *means]})).features
    assert feature.step < 1


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([3, 0, -9, 40, 17, -9], "-9"),
        ([3.5, 0.25, -999.0, 1.5], "-999"),
        ([23, 60, 999, 35, 41], "999"),
        ([1200, 5300, 9999, 4000, 2500], "9999"),
        ([-9, -8, -7, 0, 30, 200], "-9, -8 and -7"),
        ([-1, 5, 8, 400], "-1"),
        ([0.2, 0.4, 0.6, -1.0], "-1"),
        ([-1, 0, 1, 2], None),  # one step below the others
        ([-9, -6, -3, 0, 3], None),  # other numbers are below 0
        ([94, 95, 97, 98, 99], None),
        ([100, 700, 999, 1400], None),  # among the others
        ([0, 99], None),
    ],
)
def test_codes_that_stand_apart_are_pointed_out_once(values, codes):
    frame = pd.DataFrame({"a": values, "b": np.arange(len(values))})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schema = Schema.infer(frame)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == (codes is not None)
    if codes is not None:
        rows = sum(str(value).removesuffix(".0") in codes for value in values)
        assert f"'a' has the value{'s' if ' ' in codes else ''} {codes} in {rows} row" in texts[0]
    assert (schema.lower[0], schema.upper[0]) == (0.0, 1.0)  # codes stay in the range
    assert not schema.problems(frame)


def test_imputed_mean_does_not_refine_drafted_step():
    late = np.array([0.0, 1.0, 2.0, 4.0, 1.0, 0.0])
    found = with_range(Continuous("late", scaling=(0.7, 1.1), missing=0.72), late)
    assert (found.lower, found.upper, found.step) == (0.0, 4.0, 1.0)
    below = with_range(Continuous("late", scaling=(0.7, 1.1), missing=-0.5), late)
    assert (below.lower, below.step) == (-1.0, 1.0)


def test_edited_end_of_drafted_file_is_declared(tmp_path):
    path = tmp_path / "schema.yaml"
    Schema.infer(pd.DataFrame({"loan": [500, 900, 700], "debt": [0, 30, 10]})).write(path)
    assert path.read_text().startswith("# drafted: ")
    assert Schema.read(path).declared == set()
    path.write_text(path.read_text().replace("upper: 900", "upper: 800"))
    loan = Schema.read(path).by_name["loan"]
    assert loan.declared == (None, 800.0)
    assert loan.widened(1000.0).declared == (None, 1000.0)
    assert loan.widened(100.0).declared == (None, 800.0)
    narrow = Schema.read(path).restrict(ranges={"loan": (500, None), "debt": (None, 40)})
    assert [f.declared for f in narrow.features] == [(500.0, 800.0), (None, 40.0)]


def test_edited_range_of_drafted_file_keeps_encoding(tmp_path):
    table, path = pd.DataFrame({"loan": [500, 900, 700]}), tmp_path / "schema.yaml"
    drafted = Schema.infer(table)
    drafted.write(path)
    path.write_text(path.read_text().replace("upper: 900", "upper: 2000"))
    np.testing.assert_array_equal(Schema.read(path).encode(table), drafted.encode(table))


def test_advice_about_code_keeps_counterfactuals_away_from_it():
    frame = pd.DataFrame({"score": [-9.0, 3.0, 0.0, 40.0, 17.0], "b": range(5)})
    with pytest.warns(DraftWarning) as caught:
        schema = Schema.infer(frame)
    (advice,) = re.findall(r"ranges=(\{.*\})", str(caught[0].message))
    narrow = schema.restrict(ranges=ast.literal_eval(advice))
    assert (narrow.by_name["score"].lower, narrow.by_name["score"].upper) == (0.0, 40.0)
    assert list(narrow.problems(frame)) == [0]
    person = narrow.person(narrow.encode_people(frame)[0][0])  # a person keeps the code
    assert person.allowed(person.x)[0]


def test_ages_and_protected_traits_are_pointed_out_until_they_are_named():
    frame = pd.DataFrame(
        {
            "age": [20, 35, 61],
            "monthsSinceDefault": [1, 7, 4],
            "MaritalStatus": ["single", "married", "widowed"],
            "sex": [0, 1, 1],
            "income": [1, 2, 4],
        }
    )
    with pytest.warns(DraftWarning) as caught:
        drafted = Schema.infer(frame)
    assert [str(warning.message) for warning in caught] == [
        "Counterfactuals may change 'MaritalStatus' and 'sex', but the names suggest a protected trait. "
        "Add them to immutable.",
        "Counterfactuals may lower 'age' and 'monthsSinceDefault', but the names suggest an age. Add "
        "them to increasing or immutable.",
    ]
    named = {"immutable": ["sex", "MaritalStatus", "age"], "increasing": ["monthsSinceDefault"]}
    assert Schema.infer(frame, **named) == drafted.restrict(**named)


@pytest.mark.parametrize(
    ("name", "protected"),
    [
        *(
            (name, True)
            for name in ("Gender", "race_white", "white", "ETHNICITY", "religion", "nationality")
        ),
        *((name, True) for name in ("native-country", "foreign_worker", "disability status")),
        *((name, False) for name in ("age", "essex", "racecourse", "country", "worker", "status")),
    ],
)
def test_names_of_protected_traits_are_recognised(name, protected):
    assert is_protected(Binary(name)) == protected
    assert is_protected(Categorical("x", ["a", "b", "c"], label=name)) == protected


@pytest.mark.parametrize(
    ("name", "grows"),
    [
        *(
            (name, True)
            for name in ("months-employed", "months employed", "yearsEmployed", "tenure")
        ),
        *((name, True) for name in ("years_of_service", "years at job", "age", "days_since")),
        *((name, False) for name in ("employment", "loan_months", "service fee", "stage")),
    ],
)
def test_names_of_growing_numbers_are_recognised(name, grows):
    assert grows_with_time(Continuous(name)) == grows
