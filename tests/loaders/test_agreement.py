"""The comparison of a model with known classes: the same however the table is cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.errors import ModelDisagrees, TableError
from proplace.loaders.agreement import compare


def world(n=200, missing=0):
    """A network that was trained on standardised numbers, and a table with its classes."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame(
        {"a": rng.normal(40, 10, n), "b": rng.gamma(2.0, 300.0, n), "c": rng.integers(0, 2, n)}
    )
    scaled = (table[["a", "b"]] - table[["a", "b"]].mean()) / table[["a", "b"]].std(ddof=0)
    net = pp.Network([([[1.0, -1.0, 0.5]], [-0.2])])
    table["said"] = net.predict(np.column_stack([scaled, table["c"]])).astype(float)
    table.loc[: missing - 1, "said"] = np.nan
    schema = pp.Schema([pp.Continuous("a", 0, 100), pp.Continuous("b", 0, 5000), pp.Binary("c")])
    return pp.Model.of(net).with_schema(schema), table


@pytest.mark.parametrize("sizes", [[200], [1, 199], [67, 67, 66], [0, 100, 0, 100]])
def test_a_table_in_parts_gives_the_same_as_a_whole_one(sizes):
    model, table = world()
    ends = np.cumsum(sizes)
    parts = [table.iloc[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    found = compare(model, lambda: parts, "said")
    assert [reading.name for reading in found.readings] == ["", "none", "standard"]
    assert found.agree[2] == 200  # mean and deviation are those of the whole table
    assert found.better is found.readings[2]
    encoded = model.network.predict(model.encode(table))
    assert found.agree[0] == (encoded == table.said).sum()
    plain = model.network.predict(table[["a", "b", "c"]].to_numpy())
    assert found.agree[1] == (plain == table.said).sum()
    assert found.first.row == int(np.flatnonzero(encoded != table.said)[0])


def test_rows_without_a_class_are_passed_over():
    model, table = world(missing=50)
    assert compare(model, lambda: [table], "said").rows == 150
    table["said"] = np.nan
    with pytest.raises(TableError, match="every cell is missing"):
        compare(model, lambda: [table], "said")


def test_rows_on_a_boundary_are_no_difference():
    """The margin of the row is 0: float32, in which it was predicted, may say either."""
    net = pp.Network([([[1.0]], [-0.5])], precision="float32")
    model = pp.Model.of(net).with_schema(pp.Schema([pp.Continuous("a", 0, 1)]))
    table = pd.DataFrame({"a": [0.5, 0.9], "said": [0, 1]})
    found = compare(model, lambda: [table], "said")
    assert (found.agree[0], found.first) == (1, None)
    found.check_predictions("t.csv", "")
    table["said"] = [0, 0]
    with pytest.raises(ModelDisagrees, match=r"t.csv, row 1, column 'said'"):
        compare(model, lambda: [table], "said").check_predictions("t.csv", "")


@pytest.mark.parametrize(("agree", "clearly"), [((50, 60, 70), False), ((50, 60, 71), True)])
def test_a_little_better_is_not_clearly_better(agree, clearly):
    """Of two readings of 100 rows that are equally good, one may have 20 more by chance."""
    model, table = world(n=100)
    found = dataclasses.replace(compare(model, lambda: [table], "said"), agree=agree)
    assert found.better is (found.readings[2] if clearly else None)
