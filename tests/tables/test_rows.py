"""Tables of any library, and training rows: invalid ones are left out and counted."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.calibrate.delta import calibrate_delta
from proplace.core.errors import DraftWarning, RowsSkippedWarning, SchemaError
from proplace.tables.rows import as_frame
from support.errors import raises

CELLS = {"age": [30, 41], "rate": [0.5, None], "job": ["cook", None], "old": [True, False]}
EXPECTED = pd.DataFrame(CELLS)


NET = pp.Network([(np.eye(2), np.zeros(2)), ([[4.0, 4.0]], [-4.0])])
SCHEMA = pp.Schema([pp.Continuous("a", 0, 10), pp.Continuous("b", 0, 1)])


def people(rows=80):
    rng = np.random.default_rng(3)
    return pd.DataFrame({"a": rng.uniform(0, 10, rows), "b": rng.uniform(0, 1, rows)})


def with_gaps(table):
    """Three rows that cannot be used, at the start, inside and at the end, under repeated labels."""
    table = table.set_axis([7] * len(table))
    table.iloc[0, 0] = np.nan
    table.iloc[5, 1] = np.nan
    table.iloc[-1, 0] = 11.0
    good = np.delete(np.arange(len(table)), [0, 5, len(table) - 1])
    return table, table.iloc[good]


def test_rows_that_cannot_be_used_are_skipped_and_counted():
    table, clean = with_gaps(people())
    with pytest.warns(RowsSkippedWarning, match=r"3 of 80 rows.*row 0 .*'a'") as caught:
        fitted = pp.Proplace(NET, 0.01, schema=SCHEMA).fit(table)
    assert caught[0].filename == __file__  # where fit was called
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = pp.Proplace(NET, 0.01, schema=SCHEMA).fit(clean)
    np.testing.assert_array_equal(fitted.rows_, plain.rows_)
    np.testing.assert_array_equal(fitted.rows_, SCHEMA.encode(clean))
    assert (
        fitted.provenance(fitted.request(1)).training_digest
        == plain.provenance(plain.request(1)).training_digest
    )
    assert np.isfinite(fitted.explain([[0.1, 0.2]])[0].distance)


def test_model_without_imputer_is_compared_on_valid_rows_only():
    table, clean = with_gaps(people())
    y = clean["a"] / 10 + clean["b"] > 1.0
    model = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=30, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(clean, y.astype(int))
    table.iloc[-1, 0] = 3.0  # the pipeline takes any number
    with pytest.warns(RowsSkippedWarning, match="2 of 80 rows"):
        fitted = pp.Proplace(model, 0.01).fit(table)
    assert len(fitted.rows_) == 78
    with pytest.warns(RowsSkippedWarning, match="2 of 80 rows"):
        fitted = pp.Proplace(model, 0.01).fit(table.to_numpy())  # a table without names
    assert len(fitted.rows_) == 78


def test_no_usable_row_is_error():
    with raises(SchemaError, name="a", row=0):
        pp.Proplace(NET, 0.01, schema=SCHEMA).fit(people(4).assign(a=np.nan))


def test_encoded_rows_must_all_be_legal():
    rows = SCHEMA.encode(people(4))
    rows[2, 0] = 1.5
    with raises(SchemaError, name="X", row=2):
        pp.Proplace(NET, 0.01, schema=SCHEMA).fit(rows)


def test_calibration_leaves_them_out_too():
    table, clean = with_gaps(people())
    asked, later = people()[:10], [pp.Network([(np.eye(2), np.zeros(2)), ([[4.0, 4.0]], [-4.1])])]
    with pytest.warns(RowsSkippedWarning, match="3 of 80 rows"):
        found = calibrate_delta(
            NET, table, retrained=later, people=asked, schema=SCHEMA, deltas=[0.01, 0.03]
        )
    plain = calibrate_delta(
        NET, clean, retrained=later, people=asked, schema=SCHEMA, deltas=[0.01, 0.03]
    )
    pd.testing.assert_frame_equal(found.curve, plain.curve)


def test_fit_points_out_codes_in_undescribed_columns():
    table = people().round(2)
    table.loc[3, "a"] = -9.0
    y = table["a"] / 10 + table["b"] > 1.0
    model = make_pipeline(
        StandardScaler(), MLPClassifier((4,), solver="lbfgs", alpha=1.0, random_state=0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(table, y)
    with pytest.warns(DraftWarning, match=r"'a' has the value -9 in 1 row, ") as caught:
        explainer = pp.Proplace(model, 0.001).fit(table)
    (note,) = caught
    assert note.filename == __file__
    assert explainer.schema_.by_name["a"].lower == -9.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DraftWarning)
        calibrate_delta(model, table, retrained=[model], target=True, deltas=[0.001], k=3)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = explainer.explain(table[~y][:2], True, ranges={"a": (0, None)})
        schema = pp.Schema([pp.Continuous("a", -9, 10), pp.Continuous("b", 0, 1)])
        pp.Proplace(model, 0.001, schema=schema).fit(table)
    assert all(e.found and e.counterfactual["a"] >= 0 for e in result)


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
def test_plain_rows_are_not_table(rows):
    assert as_frame(rows) is None
