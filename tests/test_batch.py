"""Batches from Python: the table of results, whatever the columns are called and hold."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace import table_files as tables
from proplace.batch import explain_file
from proplace.errors import OptionError, OutputError, TableError
from proplace.table_files import open_table


@pytest.fixture(scope="module")
def world():
    """Features with awkward names: one is a column of the results, one holds labels of two types."""
    rng = np.random.default_rng(1)
    schema = pp.Schema(
        [
            pp.Continuous("status", 0, 10, step=1),
            pp.Continuous("x", 0, 1),
            pp.Categorical("mixed", ["low", 2, "high"]),
        ]
    )
    n = 150
    frame = pd.DataFrame(
        {
            "status": rng.integers(0, 11, n),
            "x": rng.random(n),
            "mixed": [["low", 2, "high"][i] for i in rng.integers(0, 3, n)],
        }
    )
    X = schema.encode(frame)
    net = pp.Network([(rng.normal(size=(6, 5)), np.zeros(6)), (rng.normal(size=(1, 6)), [0.0])])
    first, last = net.layers
    net = pp.Network([(first.W, first.b), (last.W, -np.median(net.logits(X), axis=0))])
    explainer = pp.Proplace(net, 0.005, k=5, schema=schema).fit(frame)
    people = frame[net.predict(X) == 0].head(20).reset_index(drop=True)
    return explainer, people


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("every", [1e-9, 1000.0])
def test_results_hold_what_explain_says(world, kind, every, tmp_path):
    pytest.importorskip("pyarrow")
    explainer, people = world
    table = people.assign(reason=[f"r{i}" for i in range(len(people))])
    table.loc[[4, 5], "x"] = 7.0  # out of range
    table.to_csv(tmp_path / "people.csv", index=False)
    expected = explainer.explain(table[["status", "x", "mixed"]], count=2)
    summary = explain_file(
        explainer,
        tmp_path / "people.csv",
        tmp_path / "out",
        count=2,
        ids=["reason"],
        kind=kind,
        every=every,
    )
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    found = read(summary.results)
    facts = ["ce_status", "distance", "bound", "margin", "rank", "ce_reason"]
    assert list(found.columns) == ["row", "reason", "status", "x", "mixed", *facts]
    assert found["row"].tolist() == [e.index for e in expected]
    assert found["reason"].tolist() == [f"r{e.index}" for e in expected]
    assert found["ce_status"].tolist() == [e.status for e in expected]
    np.testing.assert_array_equal(found["distance"], [e.distance for e in expected])
    good = [e for e in expected if e.counterfactual is not None]
    rows = found[found["ce_status"] != "bad_input"]
    assert rows["status"].tolist() == [e.counterfactual["status"] for e in good]
    assert rows["mixed"].tolist() == [str(e.counterfactual["mixed"]) for e in good]
    assert summary.statuses == {"optimal": len(people) - 2, "bad_input": 2}
    bad = found.loc[found["row"].isin([4, 5]), "ce_reason"]
    assert bad.str.startswith("column 'x': 7 is above").all()


def test_shards_do_not_decide_how_numbers_are_written(tmp_path):
    """A whole number stays one beside fractions and missing cells, in shards of any size."""
    rng = np.random.default_rng(0)
    schema = pp.Schema([pp.Continuous("n", 0, 10, step=1), pp.Continuous("x", 0, 1)])
    train = pd.DataFrame({"n": rng.integers(0, 11, 80), "x": rng.random(80)})
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    explainer = pp.Proplace(net, 0.01, k=3, schema=schema).fit(train)
    people = train.assign(x=train["x"].where(train.index != 3)).head(12)
    people.to_csv(tmp_path / "p.csv", index=False)
    small, large = (
        explain_file(explainer, tmp_path / "p.csv", tmp_path / str(every), every=every)
        for every in (1e-9, 1000.0)
    )
    text = large.results.read_text()
    assert small.results.read_text() == text
    cells = [line.split(",")[1] for line in text.splitlines()[1:]]
    assert cells[3] == ""
    assert all(cell.isdigit() for n, cell in enumerate(cells) if n != 3)


def test_a_lost_shard_is_noticed(world, tmp_path):
    explainer, people = world
    people.to_csv(tmp_path / "p.csv", index=False)
    stopped = tmp_path / "out"
    original = explainer.stream

    class Stop(Exception):
        pass

    def stops(*args, **options):
        for n, part in enumerate(original(*args, **options)):
            if n == 6:
                raise Stop
            yield part

    explainer.stream = stops
    try:
        with pytest.raises(Stop):
            explain_file(explainer, tmp_path / "p.csv", stopped, every=1e-9)
    finally:
        del explainer.stream
    shards = sorted((stopped / "shards").iterdir())
    assert len(shards) == 6
    shards[2].unlink()
    with pytest.raises(OutputError, match="rows 2 to 2 are missing"):
        explain_file(explainer, tmp_path / "p.csv", stopped)


def test_options_that_make_no_sense(world, tmp_path):
    explainer, people = world
    people.to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(OptionError, match="'csv' or 'parquet'"):
        explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", kind="xlsx")
    with pytest.raises(OptionError, match="every"):
        explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", every=0.0)
    with pytest.raises(TableError, match="no column 'id'"):
        explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", ids=["id"])
    assert not (tmp_path / "out").exists()


def test_the_manifest_says_what_was_asked(world, tmp_path):
    explainer, people = world
    people.head(2).to_csv(tmp_path / "p.csv", index=False)
    explain_file(explainer, tmp_path / "p.csv", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format"] == "proplace-batch-1"
    assert manifest["question"]["k"] == 5
    other = pp.Proplace(explainer.net, 0.005, k=5, schema=explainer.schema, distance="l2")
    other.fit(people)
    with pytest.raises(OutputError, match="another training rows and distance"):
        explain_file(other, tmp_path / "p.csv", tmp_path / "out")


def test_the_file_is_read_as_rows_are_done_and_not_ahead(world, tmp_path, monkeypatch):
    explainer, people = world
    monkeypatch.setattr(tables, "CHUNK", 4)
    people.to_csv(tmp_path / "p.csv", index=False)
    source = open_table(tmp_path / "p.csv")
    original = source.cells
    ahead = []

    def cells(start=0):
        for frame, broken in original(start):
            names = [path.stem.split("-") for path in (tmp_path / "out" / "shards").iterdir()]
            ahead.append(int(frame.index[0]) - max((int(stop) for _, _, stop in names), default=0))
            yield frame, broken

    monkeypatch.setattr(source, "cells", cells)
    summary = explain_file(explainer, source, tmp_path / "out", every=1000.0)
    assert ahead == [0] * 5  # all rows before a chunk are on the disk when it is read
    assert summary.rows == 20
