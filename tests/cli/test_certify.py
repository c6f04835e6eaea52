"""`proplace certify` and `proplace schema` through their entry points."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from proplace.core.errors import OutputError, SchemaError, TableError
from support.errors import failed


def options(loans, **changes):
    words = loans.options("certify", **{"train": None, "k": None, **changes})
    return ["certify", *words]


def test_verdicts_are_those_of_library(loans, tmp_path):
    train = loans.train.assign(id=range(len(loans.train)))
    train.loc[4, "job"] = "pilot"
    train.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "verdicts.csv"
    words = [*options(loans, input=tmp_path / "rows.csv", out=out), "tables.id:", "id", "--json"]
    done = good(*words)
    found = pd.read_csv(out)
    usable = train.index != 4
    X = loans.schema.encode(loans.train)
    report = pp.certify(loans.net, X[usable], 0.01)
    assert found["id"].tolist() == found["row"].tolist() == list(range(len(train)))
    assert found.loc[usable, "verdict"].eq("robust").tolist() == report.robust.tolist()
    assert found.loc[4, "verdict"] == "bad_input"
    assert "pilot" in found.loc[4, "reason"]
    np.testing.assert_array_equal(found.loc[usable, "class"], loans.net.predict(X[usable]))
    np.testing.assert_array_equal(found.loc[usable, "lower"], report.lower)
    assert done.json == {
        "delta": 0.01,
        "target": 1,
        "rows": len(train),
        "robust": int(report.robust.sum()),
        "not_robust": int((~report.robust).sum()),
        "undecided": 0,
        "bad_input": 1,
        "out": str(out),
    }
    before = out.read_bytes()
    failed(run(*words), OutputError, name=out.name)
    assert out.read_bytes() == before


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_user_keep_their_names(loans, suffix, tmp_path):
    """An id that is called as a column of ours is kept, and ours gives way."""
    pytest.importorskip("pyarrow")
    rows = loans.people.assign(verdict="mine", reason="because")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / f"out.{suffix}"
    words = options(loans, input=tmp_path / "rows.csv", out=out, id=["verdict", "reason"])
    counts = good(*words, "--json").json
    found = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert found["verdict"].eq("mine").all()
    assert found["reason"].eq("because").all()
    assert (found["ce_verdict"] == "robust").sum() == counts["robust"]
    assert (found["ce_verdict"] == "not_robust").sum() == counts["not_robust"] > 0


def test_table_of_several_chunks_is_one_table(tmp_path):
    """One header, and invalid rows keep their numbers and reasons beyond the first 2,000 rows."""
    net = pp.Network([([[1.0, -1.0], [0.5, 1.0]], [0.0, -0.5]), ([[1.0, -1.0]], [0.1])])
    net.save(tmp_path / "net.npz")
    X = np.random.default_rng(0).uniform(size=(4321, 2)).round(3)
    lines = ["a,b", *(f"{a},{b}" for a, b in X)]
    lines[1 + 2100] = "0.5,many"
    lines[1 + 2200] = "0.5,0.5,0.5"
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out.csv"
    words = ["--model", tmp_path / "net.npz", "--input", tmp_path / "rows.csv", "--delta", "0.02"]
    good("certify", *words, "--out", out)
    text = out.read_text().splitlines()
    assert len(text) == 1 + len(X)
    assert sum(line.startswith("row,") for line in text) == 1
    found = pd.read_csv(out, keep_default_na=False)
    assert found["row"].tolist() == list(range(len(X)))
    bad = np.isin(found["row"], [2100, 2200])
    assert (found["verdict"] == "bad_input").tolist() == bad.tolist()
    assert "many" in found.loc[2100, "reason"]
    assert "3 cells" in found.loc[2200, "reason"]
    assert (found.loc[~bad, "reason"] == "").all()
    report = pp.certify(net, X[~bad], 0.02)
    assert found.loc[~bad, "verdict"].eq("robust").tolist() == report.robust.tolist()


def test_suffix_of_name_chooses_format_of_verdicts(loans, tmp_path):
    pytest.importorskip("pyarrow")
    rows = loans.train.assign(id=range(len(loans.train)))
    rows.loc[4, "job"] = "pilot"
    rows.to_parquet(tmp_path / "rows.parquet")
    for out in ("verdicts.csv", "verdicts.parquet"):
        words = options(loans, input=tmp_path / "rows.parquet", id="id", out=tmp_path / out)
        good(*words)
    found = pd.read_parquet(tmp_path / "verdicts.parquet")
    assert found["id"].dtype == np.int64
    expected = pd.read_csv(
        tmp_path / "verdicts.csv", keep_default_na=False, na_values={"class": ""}
    )
    for name in ("lower", "upper"):
        expected[name] = pd.to_numeric(expected[name])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    other = tmp_path / "verdicts.xlsx"
    failed(run(*options(loans, out=other)), OutputError, name=other.name)
    assert not other.exists()


def test_number_of_robust_rows_is_printed(loans):
    done = run(*options(loans, target=0, input=loans.folder / "train.csv"))
    report = pp.certify(loans.net, loans.schema.encode(loans.train), 0.01, target=0)
    assert done.stdout.startswith(f"{report.robust.sum()} of {len(report)} ")


def test_schema_is_guessed_and_fits_model(loans, tmp_path):
    table = loans.train.assign(approved=1, happy=np.arange(len(loans.train)) % 2 == 0)
    table.to_csv(tmp_path / "train.csv", index=False)
    out = tmp_path / "schema.yaml"
    words = ["schema", tmp_path / "train.csv", "--drop", "approved", "--immutable", "member"]
    shown = good(*words, "--increasing", "age")
    (tmp_path / "shown.yaml").write_text(shown.stdout)
    expected = pp.Schema.infer(
        table.drop(columns="approved"), immutable=["member"], increasing=["age"]
    )
    assert pp.Schema.read(tmp_path / "shown.yaml") == expected
    words += ["--immutable", "age"]
    good(*words, "--drop", "happy", "--model", loans.folder / "model.onnx", "--out", out)
    assert pp.Schema.read(out) == pp.Schema.infer(loans.train, immutable=["age", "member"])
    before = out.read_bytes()
    failed(run(*words, "--out", out), OutputError, name=out.name)
    assert out.read_bytes() == before
    wide = run(*words, "--model", loans.folder / "model.onnx", "--out", tmp_path / "other.yaml")
    failed(wide, SchemaError)
    assert not (tmp_path / "other.yaml").exists()


def test_schema_command_points_out_columns_that_need_decision(tmp_path):
    table = pd.DataFrame({"age": [20, 30, 55], "score": [3, 40, -9], "sex": ["f", "m", "f"]})
    table.to_csv(tmp_path / "train.csv", index=False)
    notes = good("schema", tmp_path / "train.csv").stderr.splitlines()
    assert [note.split("'")[1] for note in notes] == ["sex", "age", "score"]
    named = ["--immutable", "sex", "--increasing", "age"]
    (note,) = good("schema", tmp_path / "train.csv", *named).stderr.splitlines()
    assert note.startswith("note: 'score' has the value -9 in 1 row, ")


@pytest.mark.parametrize(
    ("text", "error"),
    [("a,b\n", TableError), ("a,b\n1,\n2,\n", SchemaError), ("a\n1\n1\n", SchemaError)],
)
def test_no_schema_from_nothing(text, error, tmp_path):
    (tmp_path / "train.csv").write_text(text)
    failed(run("schema", tmp_path / "train.csv"), error)
