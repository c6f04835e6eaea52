"""A folder of results read back: the same results, or an error that names the problem."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.batch import explain_file
from proplace.batch.manifest import FORMAT, Manifest, _sha256
from proplace.core.errors import OutputError, ResultsError
from proplace.tables.files import open_table, read_csv
from support.errors import raises

READ = {"csv": read_csv, "parquet": pd.read_parquet}


@pytest.fixture(scope="module")
def world():
    """Labels that look like others or like missing cells, and an invalid person."""
    rng = np.random.default_rng(3)
    schema = pp.Schema(
        [
            pp.Continuous("status", 0, 10, step=1, unit="years"),
            pp.Continuous("x", -1, 1),
            pp.Categorical("mixed", ["low", 2, "=high", True]),
            pp.Ordinal("level", ["", "NA", "'-"]),
        ]
    )
    n = 120
    train = pd.DataFrame(
        {
            "status": rng.integers(0, 11, n),
            "x": rng.uniform(-1, 1, n),
            "mixed": [["low", 2, "=high", True][i] for i in rng.integers(0, 4, n)],
            "level": [["", "NA", "'-"][i] for i in rng.integers(0, 3, n)],
        }
    )
    X = schema.encode(train)
    net = pp.Network([(rng.normal(size=(6, 7)), np.zeros(6)), (rng.normal(size=(1, 6)), [0.0])])
    first, last = net.layers
    net = pp.Network([(first.W, first.b), (last.W, -np.median(net.logits(X), axis=0))])
    explainer = pp.Proplace(net, 0.004, k=5, schema=schema).fit(train)
    people = train.head(14).assign(name=["=cmd", "'x", "-5", "Zoë", *"abcdefghij"])
    people.loc[[4], "x"] = np.nan
    return explainer, people


@pytest.fixture(scope="module")
def written(world, tmp_path_factory):
    """Folders of results with certificates, by format, and the results of the explainer."""
    pytest.importorskip("pyarrow")
    explainer, people = world
    folder = tmp_path_factory.mktemp("written")
    people.to_csv(folder / "people.csv", index=False)
    for kind in READ:
        options = {"ids": ["name"], "kind": kind, "certificates": True}
        request = explainer.request(count=2)
        explain_file(explainer, folder / "people.csv", folder / kind, request, **options)
    return folder, explainer.explain(people.drop(columns="name"), count=2)


@pytest.fixture
def copy(written, tmp_path):
    folder, _ = written
    return shutil.copytree(folder / "csv", tmp_path / "copy")


@pytest.mark.parametrize("kind", READ)
def test_read_results_equal_explanations(written, world, kind):
    folder, expected = written
    found = pp.read_results(folder / kind)
    _, people = world
    assert len(found) == len(expected) > len(people)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.index, mine.status, mine.reason) == (
            theirs.index,
            theirs.status,
            theirs.reason,
        )
        assert (mine.rank, mine.target, mine.label) == (theirs.rank, theirs.target, theirs.label)
        assert mine.ids == {"name": people["name"][theirs.index]}
        numbers = [(e.distance, e.bound, e.margin) for e in (mine, theirs)]
        np.testing.assert_array_equal(*numbers)
        for name in ("encoded_original", "encoded_counterfactual"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert (a is None) == (b is None)
            assert a is None or a.tobytes() == b.tobytes()
        for name in ("original", "counterfactual"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert (a is None) == (b is None)
            assert a is None or [(v, type(v) is bool) for v in a] == [(v, v is True) for v in b]
        assert mine.certificate == theirs.certificate
        assert mine.describe() == theirs.describe()
    assert {e.status for e in found} >= {"optimal", "already_valid", "bad_input"}
    assert found.provenance == expected.provenance
    assert found[0].setting.current.network == expected[0].setting.current.network
    assert found[0].setting.current.shifts == expected[0].setting.current.shifts
    assert found[0].setting.schema == expected[0].setting.schema
    columns = [c for c in found.to_frame().columns if c != "name"]
    pd.testing.assert_frame_equal(
        found.to_frame()[columns], expected.to_frame(), check_names=False, check_dtype=False
    )


def test_names_full_of_semicolons_end_no_cells(tmp_path):
    """The delimiter of foreign tables is detected, that of results is known."""
    name = ";".join(map(str, range(60)))
    explainer = pp.Proplace(pp.Network([([[1.0]], [-0.5])]), 0.01, k=2)
    explainer.fit(pd.DataFrame({name: [0.1, 0.9, 1.0]}))
    pd.DataFrame({name: ["0.2"]}).to_csv(tmp_path / "p.csv", index=False, quoting=csv.QUOTE_ALL)
    explain_file(explainer, open_table(tmp_path / "p.csv", delimiter=","), tmp_path / "out")
    assert [e.status for e in pp.read_results(tmp_path / "out")] == ["optimal"]


@pytest.mark.parametrize("kind", READ)
def test_line_of_results_is_complete(written, world, kind):
    """The person's own values, the changes, the sentence, the class and delta, in the file itself."""
    folder, expected = written
    table = READ[kind](folder / kind / f"results.{kind}")
    assert table["delta"].eq(0.004).all()
    assert table["target"].eq(1).all()
    for (_, line), e in zip(table.iterrows(), expected, strict=True):
        assert line["sentence"].lstrip("'") == e.describe().sentence
        if e.original is not None:
            assert line["original_status"] == e.original["status"]
            assert line["original_x"] == e.original["x"]
        for change in e.claims:
            assert f"{change.title} {change.was} → {change.goal}" in line["changes"]
        if e.certificate is not None:
            assert line["certificate"] == e.certificate.digest
    assert table.loc[table["ce_status"] == "bad_input", "original_x"].isna().all()


def test_report_of_read_results(written, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    folder, expected = written
    page = pp.read_results(folder / "csv")[:3].report(tmp_path / "page.html")
    text = page.read_text()
    assert expected[0].certificate.digest in text


def change(name, old, new):
    def damage(folder):
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def remove(name):
    return lambda folder: next(iter(sorted(folder.glob(name)))).unlink()


def forged(folder):
    """A manifest with a seal of its own, over other results."""
    path = folder / "manifest.json"
    facts = json.loads(path.read_text())
    del facts["seal"]
    facts["results"] = ["0" * 64]
    path.write_text(json.dumps({**facts, "seal": _sha256(facts)}))


def other_network(folder):
    (folder / "network.npz").unlink()
    pp.Network([(np.ones((1, 7)), [0.0])]).save(folder / "network.npz")


@pytest.mark.parametrize(
    ("damage", "name", "word"),
    [
        (change("results.csv", "optimal", "feasible"), "results.csv", "was changed"),
        (change("manifest.json", "0.004", "0.005"), "manifest.json", "was changed"),
        (change("manifest.json", FORMAT, "proplace-batch-6"), "manifest.json", "batch-6"),
        (change("manifest.json", FORMAT, "proplace-batch-99"), "manifest.json", "batch-99"),
        (change("manifest.json", FORMAT, "proplace-batch-x"), "manifest.json", "this version"),
        (forged, "results.csv", "was changed"),
        (remove("manifest.json"), "manifest.json", "--out"),
        (remove("results.csv"), "results.csv", "gone"),
        (remove("network.npz"), "network.npz", "missing"),
        (other_network, "network.npz", "was changed"),
        (remove("certificates/*.json"), "row-000000000000-0.json", "name =cmd"),
        (
            change("certificates/row-000000000000-0.json", '"margin":', '"margin": '),
            "row-000000000000-0.json",
            "row 0",
        ),
    ],
)
def test_damaged_folder_is_refused(copy, damage, name, word):
    assert len(pp.read_results(copy)) > 14
    damage(copy)
    with raises(ResultsError, name=name, match=word):
        pp.read_results(copy)


def test_batch_that_has_not_ended(copy):
    path = copy / "manifest.json"
    begun = Manifest.read(path)
    path.write_bytes(Manifest(begun.question, begun.about).content())
    with raises(ResultsError, name="results.csv", match="proplace explain"):
        pp.read_results(copy)


def test_folder_of_another_version_is_not_resumed(world, copy, tmp_path):
    explainer, people = world
    people.to_csv(tmp_path / "people.csv", index=False)
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace(FORMAT, "proplace-batch-6"))
    before = path.read_bytes()
    with raises(OutputError, name="manifest.json", match="version"):
        explain_file(explainer, tmp_path / "people.csv", copy, ids=["name"])
    assert path.read_bytes() == before


def test_changed_network_ends_run(world, tmp_path):
    explainer, people = world
    people.to_csv(tmp_path / "people.csv", index=False)
    explain_file(explainer, tmp_path / "people.csv", tmp_path / "out", drop=["name"])
    (tmp_path / "out" / "results.csv").unlink()
    other_network(tmp_path / "out")
    with raises(OutputError, name="network.npz"):
        explain_file(explainer, tmp_path / "people.csv", tmp_path / "out", drop=["name"])


def test_without_certificates_rest_is_read(world, tmp_path):
    explainer, people = world
    people.to_csv(tmp_path / "people.csv", index=False)
    explain_file(explainer, tmp_path / "people.csv", tmp_path / "out", drop=["name"])
    found = pp.read_results(tmp_path / "out")
    assert all(e.certificate is None for e in found)
    assert [e.ids for e in found] == [{}] * len(people)
    expected = explainer.explain(people.drop(columns="name"))
    assert [e.describe().sentence for e in found] == [e.describe().sentence for e in expected]


def test_one_delta_per_layer(tmp_path):
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    rows = pd.DataFrame(np.random.default_rng(0).random((40, 2)), columns=["a", "b"])
    explainer = pp.Proplace(net, [(0.01, 0.02), (0.0, 0.01)], k=3).fit(rows)
    rows.head(3).to_csv(tmp_path / "p.csv", index=False)
    summary = explain_file(explainer, tmp_path / "p.csv", tmp_path / "out")
    assert pd.read_csv(summary.results)["delta"].tolist() == ["[[0.01, 0.02], [0.0, 0.01]]"] * 3
    assert pp.read_results(tmp_path / "out")[0].setting.current.shifts == explainer.shifts_
