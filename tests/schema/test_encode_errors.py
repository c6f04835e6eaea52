"""Bad cells and bad tables: every message names row, column, value and what is allowed."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import SchemaError
from proplace.schema import Binary, Categorical, Continuous, Ordinal, Schema
from support.errors import raises

SCHEMA = Schema(
    [
        Continuous("age", 17, 90, step=1),
        Continuous("ratio", 0, 2.5),
        Ordinal("grade", ["A", "B", "C"]),
        Categorical("job", ["clerk", "cook", "nurse"]),
        Binary("sex", ["Female", "Male"]),
    ]
)
GOOD = {"age": 30, "ratio": 0.5, "grade": "B", "job": "cook", "sex": "Male"}


def table(**cells):
    """Four rows with the labels p, q, r, s. The given cells are those of row r."""
    frame = pd.DataFrame([GOOD] * 4, index=list("pqrs"))
    for name, value in cells.items():
        column = frame[name].astype(object)
        column.iloc[2] = value
        frame[name] = column
    return frame


CASES = [
    ("age", 91, ["91", "17 to 90"]),
    ("age", 16, ["16", "17 to 90"]),
    ("age", np.nan, ["missing", "17 to 90"]),
    ("age", None, ["missing", "17 to 90"]),
    ("age", pd.NA, ["missing", "17 to 90"]),
    ("age", np.inf, ["inf", "17 to 90"]),
    ("age", "30", ["'30'", "17 to 90"]),
    ("age", True, ["True"]),
    ("age", datetime.date(2020, 1, 2), ["datetime.date(2020, 1, 2)"]),
    ("ratio", 2.6, ["2.6", "0 to 2.5"]),
    ("grade", "D", ["'D'", "'A', 'B', 'C'"]),
    ("job", "Cook", ["'Cook'", "did you mean 'cook'", "'clerk', 'cook'"]),
    ("job", 3, ["3", "'nurse'"]),
    ("job", ["cook"], ["['cook']"]),
    ("job", None, ["missing", "'nurse'"]),
    ("sex", "M", ["'M'", "'Female', 'Male'"]),
]


@pytest.mark.parametrize(("column", "value", "words"), CASES)
def test_bad_cells_are_named(column, value, words):
    frame = table(**{column: value})
    with raises(SchemaError, name=column, row=2) as caught:
        SCHEMA.encode(frame)
    message = str(caught.value)
    assert all(word in message for word in ["'r'", *words]), message
    (bad,) = SCHEMA.problems(frame).values()
    assert (bad.row, bad.column, bad.index, str(bad)) == (2, column, "r", message)


def test_bad_rows_do_not_lose_good_ones():
    frame = table(age=200, job="king")
    frame = pd.concat([frame, table(sex="x")], ignore_index=True)
    X, problems = SCHEMA.encode_valid(frame)
    assert sorted(problems) == [2, 6]
    assert str(problems[2]).startswith("row 2, column 'age': 200")
    assert str(problems[6]).startswith("row 6, column 'sex': 'x'")
    assert np.isnan(X[[2, 6]]).all()
    good = [0, 1, 3, 4, 5, 7]
    assert (X[good] == SCHEMA.encode(frame.iloc[good])).all()
    with raises(SchemaError, name="age", row=2, match="1 more"):
        SCHEMA.encode(frame)


def test_whole_columns_of_wrong_kind():
    frame = table()
    with raises(SchemaError, name="age", row=0, match="'p'"):
        SCHEMA.encode(frame.assign(age="x"))
    with raises(SchemaError, name="age", row=0, match="Timestamp"):
        SCHEMA.encode(frame.assign(age=pd.Timestamp("2020-01-01")))
    with raises(SchemaError, name="age", row=0, match="True"):
        SCHEMA.encode(frame.assign(age=True))
    with raises(SchemaError, name="job", row=0, match="7"):
        SCHEMA.encode(frame.assign(job=7))
    with raises(SchemaError, name="job", row=0, match="missing"):
        SCHEMA.encode(frame.assign(job=np.nan))
    assert len(SCHEMA.problems(frame.assign(age=pd.array([30, None, 30, None], "Int64")))) == 2


def test_missing_columns_are_listed_with_guess():
    frame = table().rename(columns={"age": "Age", "job": "profession"})
    with raises(SchemaError, name="age") as caught:
        SCHEMA.encode(frame)
    assert all(name in str(caught.value) for name in ("'Age'", "'job'", "'profession'"))


def test_tables_must_be_tables():
    with raises(SchemaError, name="frame", match="ndarray"):
        SCHEMA.encode(np.zeros((3, 7)))
    doubled = pd.concat([table(), table()[["age"]]], axis=1)
    with raises(SchemaError, name="age", match="two"):
        SCHEMA.encode(doubled)


def test_arithmetic_noise_is_forgiven():
    schema = Schema([Continuous("v", 0, 0.3), Continuous("w", 0, 1, step=0.1)])
    frame = pd.DataFrame({"v": [0.1 + 0.2], "w": [0.7 + 0.1 + 1e-9]})
    assert schema.encode(frame).tolist() == [[1.0, 0.8]]
    assert schema.decode(schema.encode(frame)).iloc[0].tolist() == [0.3, 0.8]


def test_long_lists_are_cut():
    schema = Schema([Categorical("c", [f"c{i}" for i in range(40)])])
    with raises(SchemaError, name="c", row=0, match="28 more"):
        schema.encode(pd.DataFrame({"c": ["zzz"]}))


def test_infinite_cells_without_bounds():
    schema = Schema.encoded(2)
    with raises(SchemaError, name="x1", row=1, match="missing"):
        schema.encode(np.array([[0.0, 1.0], [0.0, np.nan]]))
    with raises(SchemaError, name="x0", row=0):
        schema.encode(np.array([[np.inf, 1.0]]))
    half = Schema(
        [Continuous("v", lower=0, scaling="none"), Continuous("w", upper=1, scaling="none")]
    )
    with raises(SchemaError, name="v", row=0, match="from 0"):
        half.encode([[-1, 0]])
    with raises(SchemaError, name="w", row=0, match="up to"):
        half.encode([[1, 3]])
    with raises(SchemaError, name="X"):
        half.encode([["a", "b"]])


@pytest.mark.parametrize("step", [1e-3, 1, 1000])
def test_millionth_of_step_is_noise_and_more_is_not(step):
    schema = Schema([Continuous("v", 0, 10 * step, step=step)])
    off = np.array([0.0, 0.9e-6, -0.9e-6, 1.1e-6, -1.1e-6, 1e-3])
    frame = pd.DataFrame({"v": (3 + off) * step})
    X = schema.encode(frame)
    assert X[:3, 0].tolist() == [0.3] * 3  # snapped, to the bit
    assert (X[3:, 0] != 0.3).all()  # data may lie anywhere
    assert (schema.canonical(X)[:, 0] == 0.3).all()  # answers may not


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.3), (0.0, 1e-3), (0.0, 1e6), (-1e6, 5.0), (-5.0, 1e6), (1e6, 1e6 + 1)]
)
def test_value_may_stick_out_by_trillionth_of_largest_end(low, high):
    schema = Schema([Continuous("v", low, high)])
    size = max(abs(low), abs(high))
    frame = pd.DataFrame({"v": [low - 0.9e-12 * size, high + 0.9e-12 * size]})
    assert schema.encode(frame)[:, 0].tolist() == [0.0, 1.0]  # clipped
    frame = pd.DataFrame({"v": [low - 1.2e-12 * size, high + 1.2e-12 * size]})
    problems = schema.problems(frame)
    assert "below the lower bound" in problems[0].text
    assert "above the upper bound" in problems[1].text
