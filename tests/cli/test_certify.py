"""`proplace certify` and `proplace schema` through their entry points."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import run, run_quickly


def options(loans, **changes):
    words = loans.options(**{"train": None, "k": None, **changes})
    return ["certify", *words]


def test_verdicts_are_those_of_the_library(loans, tmp_path):
    train = loans.train.assign(id=range(len(loans.train)))
    train.loc[4, "job"] = "pilot"
    train.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "verdicts.csv"
    done = run(*options(loans, input=tmp_path / "rows.csv", out=out), "--id", "id", "--json")
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(out)
    good = train.index != 4
    X = loans.schema.encode(loans.train)
    report = pp.certify(loans.net, X[good], 0.01)
    assert found["id"].tolist() == found["row"].tolist() == list(range(len(train)))
    assert found.loc[good, "verdict"].eq("robust").tolist() == report.robust.tolist()
    assert found.loc[4, "verdict"] == "bad_input"
    assert "'pilot' is not a category" in found.loc[4, "reason"]
    np.testing.assert_array_equal(found.loc[good, "class"], loans.net.predict(X[good]))
    np.testing.assert_array_equal(found.loc[good, "lower"], report.lower)
    assert json.loads(done.stdout) == {
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
    again = run_quickly(*options(loans, input=tmp_path / "rows.csv", out=out), "--id", "id")
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert out.read_bytes() == before


def test_verdicts_are_written_as_the_name_says(loans, tmp_path):
    pytest.importorskip("pyarrow")
    rows = loans.train.assign(id=range(len(loans.train)))
    rows.loc[4, "job"] = "pilot"
    rows.to_parquet(tmp_path / "rows.parquet")
    for out in ("verdicts.csv", "verdicts.parquet"):
        words = options(loans, input=tmp_path / "rows.parquet", id="id", out=tmp_path / out)
        done = run_quickly(*words)
        assert done.returncode == 0, done.stderr
    found = pd.read_parquet(tmp_path / "verdicts.parquet")
    assert found["id"].dtype == np.int64
    expected = pd.read_csv(
        tmp_path / "verdicts.csv", keep_default_na=False, na_values={"class": ""}
    )
    for name in ("lower", "upper"):
        expected[name] = pd.to_numeric(expected[name])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    other = run_quickly(*options(loans, out=tmp_path / "verdicts.xlsx"))
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "verdicts are written to a .csv, .parquet or .pq file" in other.stderr
    assert not (tmp_path / "verdicts.xlsx").exists()


def test_the_number_of_robust_rows_is_printed(loans):
    done = run_quickly(*options(loans, target=0, input=loans.folder / "train.csv"))
    report = pp.certify(loans.net, loans.schema.encode(loans.train), 0.01, target=0)
    expected = f"{report.robust.sum()} of {len(report)} rows get class 0"
    assert done.stdout.startswith(expected)


def test_schema_is_guessed_and_fits_the_model(loans, tmp_path):
    table = loans.train.assign(approved=1, happy=np.arange(len(loans.train)) % 2 == 0)
    table.to_csv(tmp_path / "train.csv", index=False)
    out = tmp_path / "schema.yaml"
    words = ["schema", tmp_path / "train.csv", "--drop", "approved", "--immutable", "member"]
    done = run_quickly(
        *words, "--drop", "happy", "--model", loans.folder / "model.onnx", "--out", out
    )
    assert done.returncode == 0, done.stderr
    assert pp.Schema.read(out) == pp.Schema.infer(loans.train, immutable=["member"])
    shown = run_quickly(*words, "--increasing", "age")
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "shown.yaml").write_text(shown.stdout)
    expected = pp.Schema.infer(
        table.drop(columns="approved"), immutable=["member"], increasing=["age"]
    )
    assert pp.Schema.read(tmp_path / "shown.yaml") == expected
    before = out.read_bytes()
    again = run_quickly(*words, "--out", out)
    assert (again.returncode, out.read_bytes()) == (1, before)
    wide = run_quickly(
        *words, "--model", loans.folder / "model.onnx", "--out", tmp_path / "other.yaml"
    )
    assert wide.returncode == 1
    assert "encodes to 7 columns" in wide.stderr
    assert not (tmp_path / "other.yaml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "no rows"),
        ("a,b\n1,\n2,\n", "every cell is missing"),
        ("a\n1\n1\n", "constant"),
    ],
)
def test_no_schema_from_nothing(text, message, tmp_path):
    (tmp_path / "train.csv").write_text(text)
    done = run_quickly("schema", tmp_path / "train.csv")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
