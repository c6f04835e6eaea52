"""Batches from Python: the table of results, whatever the columns are called and hold."""

from __future__ import annotations

import dataclasses
import inspect
import json

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.batch import explain_file, read_results
from proplace.core.errors import OptionError, OutputError, TableError
from proplace.core.request import Request
from proplace.tables import files as tables
from proplace.tables.files import open_table
from support.errors import raises

READ = {"csv": tables.read_csv, "parquet": pd.read_parquet}


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


@pytest.fixture(scope="module")
def two_answers(world):
    """People, two of them without a number, and the results of the explainer."""
    explainer, people = world
    table = people.assign(reason=[f"r{i}" for i in range(len(people))])
    table.loc[[4, 5], "x"] = np.nan
    return table, explainer.explain(table[["status", "x", "mixed"]], count=2)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("every", [1e-9, 1000.0])
def test_results_equal_explanations(world, two_answers, kind, every, tmp_path):
    pytest.importorskip("pyarrow")
    explainer, people = world
    table, expected = two_answers
    table.to_csv(tmp_path / "people.csv", index=False)
    summary = explain_file(
        explainer,
        tmp_path / "people.csv",
        tmp_path / "out",
        explainer.request(count=2),
        ids=["reason"],
        kind=kind,
        every=every,
    )
    found = READ[kind](summary.results)
    facts = [
        "ce_status",
        "distance",
        "bound",
        "gap",
        "in_region",
        "timed_out",
        "margin",
        "plausibility",
        "nearest_row",
        "rank",
        "ce_reason",
        "target",
        "delta",
    ]
    facts += ["changes", "sentence", "certificate", "imputed", "guaranteed_ranges"]
    facts += ["checked_with_original"]
    before = ["original_status", "original_x", "original_mixed"]
    assert list(found.columns) == ["row", "reason", "status", "x", "mixed", *facts, *before]
    assert found["row"].tolist() == [e.index for e in expected]
    assert found["reason"].tolist() == [f"r{e.index}" for e in expected]
    assert found["ce_status"].tolist() == [e.status for e in expected]
    np.testing.assert_array_equal(found["distance"], [e.distance for e in expected])
    good = [e for e in expected if e.counterfactual is not None]
    rows = found[found["ce_status"] != "bad_input"]
    assert rows["status"].tolist() == [e.counterfactual["status"] for e in good]
    assert rows["mixed"].tolist() == [str(e.counterfactual["mixed"]) for e in good]
    found_ = summary.statuses.get("optimal", 0) + summary.statuses.get("feasible", 0)
    assert (found_, summary.statuses["bad_input"]) == (len(people) - 2, 2)
    bad = found.loc[found["row"].isin([4, 5]), "ce_reason"]
    assert bad.str.contains("'x'").all()


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


def test_options_that_make_no_sense(world, tmp_path):
    explainer, people = world
    people.to_csv(tmp_path / "p.csv", index=False)
    with raises(OptionError, name="kind", value="xlsx"):
        explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", kind="xlsx")
    with raises(OptionError, name="every", value=0.0):
        explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", every=0.0)
    with raises(TableError, name="id"):
        explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", ids=["id"])
    assert not (tmp_path / "out").exists()


def test_manifest_holds_settings(world, tmp_path):
    explainer, people = world
    people.head(2).to_csv(tmp_path / "p.csv", index=False)
    explain_file(explainer, tmp_path / "p.csv", tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format"] == "proplace-batch-10"
    assert manifest["question"]["k"] == 5
    other = pp.Proplace(explainer.net_, 0.005, k=5, schema=explainer.schema, weights="mad")
    other.fit(people)
    with raises(OutputError, name="training rows", match="weights of"):
        explain_file(other, tmp_path / "p.csv", tmp_path / "out")


# -- another question is refused -------------------------------------------------------------------

ASKED = {"delta": 0.005, "k": 5}
OF_THE_EXPLAINER = {
    "delta": 0.006,
    "cutoff": 0.6,
    "required_models": [pp.Network([(np.ones((1, 5)), [5.0])])],
    "k": 4,
    "weights": {"x": 2.0},
    "region": "box",
    "margin": 1e-3,
    "search": "bilevel",
    "time_limit": 100.0,
}
OF_THE_BATCH = {
    "target": 0,
    "count": 2,
    "prefer": "sparse",
    "max_changes": 1,
    "typical": False,
    "gap": 0.2,
    "immutable": ["x"],
    "increasing": ["x"],
    "decreasing": ["x"],
    "ranges": {"x": (0.1, 0.8)},
    "tolerance": {"x": 0.01},
    "ids": ["name"],
    "certificates": True,
    "kind": "parquet",
    "row": 1,
    "wording": pp.Wording("the loan"),
}
SAME_ANSWERS = {"n_jobs", "every", "progress", "drop"}
GIVEN_OTHERWISE = {"self", "model", "schema", "explainer", "table", "out", "request"}


def test_every_option_is_tried():
    options = {*inspect.signature(pp.Proplace).parameters}
    options |= {*inspect.signature(explain_file).parameters}
    options |= {field.name for field in dataclasses.fields(Request)}
    known = {*OF_THE_EXPLAINER, *OF_THE_BATCH, "solver"} | SAME_ANSWERS | GIVEN_OTHERWISE
    assert options <= known


@pytest.fixture
def asked(world, tmp_path):
    """Explain two people into a folder, before another request uses it."""
    explainer, people = world
    table = people.head(2).assign(name=["José", "Zoë"])
    table.to_csv(tmp_path / "p.csv", index=False)

    def ask(fitted=None, table=tmp_path / "p.csv", **options):
        options = {"ids": ["name"] if "ids" in options else [], "drop": ["name"]} | options
        wishes = {
            f.name: options.pop(f.name) for f in dataclasses.fields(Request) if f.name in options
        }
        request = (fitted or explainer).request(**wishes)
        return explain_file(fitted or explainer, table, tmp_path / "out", request, **options)

    ask()
    return ask, explainer, people


@pytest.mark.parametrize("name", OF_THE_EXPLAINER)
def test_another_option_of_explainer_is_refused(asked, world, name):
    ask, explainer, _ = asked
    frame = explainer.schema.decode(explainer.rows_)
    same = pp.Proplace(explainer.net_, **ASKED, schema=explainer.schema, n_jobs=2).fit(frame)
    assert ask(same, every=1.0).resumed == 2
    options = {**ASKED, name: OF_THE_EXPLAINER[name]}
    other = pp.Proplace(explainer.net_, **options, schema=explainer.schema).fit(frame)
    first = {"weights": "weights of the distance", "cutoff": "network"}.get(name, name)
    with raises(OutputError, name=first):
        ask(other)


def test_another_solver_is_refused(world, tmp_path):
    pytest.importorskip("gurobipy")
    explainer, people = world
    people.head(3).to_csv(tmp_path / "p.csv", index=False)
    frame = explainer.schema.decode(explainer.rows_)

    def ask(solver, out):
        options = {"schema": explainer.schema, "search": "bilevel", "solver": solver}
        made = pp.Proplace(explainer.net_, **ASKED, **options).fit(frame)
        return explain_file(made, tmp_path / "p.csv", tmp_path / out)

    one, other = (pd.read_csv(ask(solver, solver).results) for solver in ("highs", "gurobi"))
    assert one["ce_status"].isin(["optimal", "feasible"]).all()  # one feature has a step
    np.testing.assert_allclose(other["bound"], one["bound"], atol=1e-6)
    with raises(OutputError, name="solver", match="now gurobi"):
        ask("gurobi", "highs")


@pytest.mark.parametrize("name", OF_THE_BATCH)
def test_another_option_of_batch_is_refused(asked, name):
    ask, _, _ = asked
    word = {"ids": "id columns", "kind": "format"}.get(name, name)
    if name == "kind":
        pytest.importorskip("pyarrow")
    with raises(OutputError, name=word):
        ask(**{name: OF_THE_BATCH[name]})


def test_another_network_schema_or_input_is_refused(asked, tmp_path):
    ask, explainer, people = asked
    frame = explainer.schema.decode(explainer.rows_)
    first, last = explainer.net_.layers
    net = pp.Network([(first.W, first.b), (last.W, last.b + 1e-9)])
    with raises(OutputError, name="network"):
        ask(pp.Proplace(net, **ASKED, schema=explainer.schema).fit(frame))
    schema = pp.Schema([pp.Continuous("status", 0, 10, step=2), *explainer.schema.features[1:]])
    even = frame.assign(status=frame["status"] // 2 * 2)
    with raises(OutputError, name="training rows", match="schema"):
        ask(pp.Proplace(explainer.net_, **ASKED, schema=schema).fit(even))
    people.head(3).assign(name="x").to_csv(tmp_path / "three.csv", index=False)
    with raises(OutputError, name="input"):
        ask(table=tmp_path / "three.csv")


def test_another_reading_of_same_bytes_is_refused(asked, tmp_path):
    ask, _, _ = asked
    assert ask(table=open_table(tmp_path / "p.csv", encoding="UTF8")).resumed == 2
    with raises(OutputError, name="encoding", match="iso8859-1"):
        ask(table=open_table(tmp_path / "p.csv", encoding="latin-1"))


def test_another_delimiter_is_refused(tmp_path):
    """A file of a single column has no delimiter, but the option still changes the request."""
    net = pp.Network([([[1.0]], [-0.5])])
    explainer = pp.Proplace(net, 0.01, k=2).fit(pd.DataFrame({"a": [0.1, 0.9, 1.0]}))
    (tmp_path / "p.csv").write_text("a\n0.25\n")
    explain_file(explainer, open_table(tmp_path / "p.csv"), tmp_path / "out")
    with raises(OutputError, name="delimiter", match="now ;"):
        explain_file(explainer, open_table(tmp_path / "p.csv", delimiter=";"), tmp_path / "out")


def test_training_rows_that_occur_twice_are_another_question_where_they_count(world, tmp_path):
    explainer, people = world
    people.head(4).to_csv(tmp_path / "p.csv", index=False)
    frame = explainer.schema.decode(explainer.rows_)
    more = pd.concat([frame, *[frame.iloc[[0, 1]]] * 100])

    def fitted(table, weights):
        made = pp.Proplace(explainer.net_, 0.005, k=5, schema=explainer.schema, weights=weights)
        return made.fit(table)

    explain_file(fitted(frame, None), tmp_path / "p.csv", tmp_path / "l1")
    assert explain_file(fitted(more, None), tmp_path / "p.csv", tmp_path / "l1").resumed == 4
    one = explain_file(fitted(frame, "mad"), tmp_path / "p.csv", tmp_path / "mad")
    two = explain_file(fitted(more, "mad"), tmp_path / "p.csv", tmp_path / "more")
    assert one.results.read_text() != two.results.read_text()
    with raises(OutputError, name="weights of the distance"):
        explain_file(fitted(more, "mad"), tmp_path / "p.csv", tmp_path / "mad")


def test_file_is_read_as_rows_are_done_and_not_ahead(world, tmp_path, monkeypatch):
    explainer, people = world
    monkeypatch.setattr(tables, "CHUNK", 4)
    people.to_csv(tmp_path / "p.csv", index=False)
    source = open_table(tmp_path / "p.csv")
    original = source.cells
    ahead = []

    def cells(start=0):
        for frame, broken in original(start):
            done = [int(path.name.split("-")[2]) for path in (tmp_path / "out/shards").iterdir()]
            ahead.append(int(frame.index[0]) - max(done, default=0))
            yield frame, broken

    monkeypatch.setattr(source, "cells", cells)
    summary = explain_file(explainer, source, tmp_path / "out", every=1000.0)
    assert ahead == [0] * 5  # all rows before a chunk are on the disk when it is read
    assert summary.rows == 20


def test_numbers_of_features_are_doubles_in_parquet(world, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    explainer, people = world
    people.head(3).to_csv(tmp_path / "p.csv", index=False)
    summary = explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", kind="parquet")
    types = {field.name: str(field.type) for field in parquet.read_schema(summary.results)}
    assert [types[name] for name in ("row", "status", "x", "rank")] == [
        "int64",
        "double",  # a feature with whole steps: a person's own value need not be whole
        "double",
        "int64",
    ]


def test_folder_holds_request_and_its_ranges(world, tmp_path):
    """The request is read back, and the results keep the declared ranges."""
    explainer, people = world
    people.head(3).to_csv(tmp_path / "p.csv", index=False)
    request = explainer.request(immutable=["x"], ranges={"status": (0, 8)})
    explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", request)
    assert explain_file(explainer, tmp_path / "p.csv", tmp_path / "out", request).resumed == 3
    question = json.loads((tmp_path / "out" / "manifest.json").read_text())["question"]
    assert Request.from_dict(question["request"]) == request
    features = read_results(tmp_path / "out")[0].setting.schema.by_name
    assert features["x"].immutable
    assert features["status"].upper == 8
