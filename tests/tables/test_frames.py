"""Any table is read by the names of its columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest

from proplace.tables.frames import as_frame

CELLS = {"age": [30, 41], "rate": [0.5, None], "job": ["cook", None], "old": [True, False]}
EXPECTED = pd.DataFrame(CELLS)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(CELLS),
        polars.DataFrame(CELLS),
        polars.DataFrame(CELLS).lazy(),
        pyarrow.table(CELLS),
        CELLS,
        [dict(zip(CELLS, row, strict=True)) for row in zip(*CELLS.values(), strict=True)],
    ],
    ids=["pandas", "polars", "lazy", "arrow", "columns", "rows"],
)
def test_tables(table):
    pd.testing.assert_frame_equal(as_frame(table), EXPECTED)


def test_one_person():
    person = {"age": 30, "job": "cook"}
    expected = pd.DataFrame([person])
    pd.testing.assert_frame_equal(as_frame(person), expected)
    series = as_frame(pd.Series(person, name=7))
    assert series.index.tolist() == [7]
    pd.testing.assert_frame_equal(series.reset_index(drop=True), expected)


@pytest.mark.parametrize(
    "rows", [np.eye(2), [[1.0, 2.0]], [1.0, 2.0], pd.Series([1.0, 2.0]), "text", 3, None]
)
def test_plain_rows_are_no_table(rows):
    assert as_frame(rows) is None
