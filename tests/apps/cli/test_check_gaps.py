"""`proplace check` rejects results that were changed by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import run
from proplace.apps.batch.manifest import Manifest
from proplace.tables.files import open_table


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(0)
    pp.Network([([[1.0, 1.0]], [-1.0])]).save(tmp_path / "net.npz")
    pd.DataFrame(rng.random((60, 2)), columns=["x0", "x1"]).to_csv(
        tmp_path / "train.csv", index=False
    )
    pd.DataFrame({"x0": [0.1, 0.3], "x1": [0.2, 0.1]}).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


def explain(place, *words):
    files = ["--model", place / "net.npz", "--train", place / "train.csv"]
    return run("explain", *files, "--input", place / "people.csv", "--delta", "0.01", *words)


def test_a_person_who_is_said_to_be_accepted_needs_a_proof(place):
    out = place / "out"
    assert explain(place, "--out", out, "--certificates").returncode == 0
    table = pd.read_csv(out / "results.csv", dtype=str, keep_default_na=False)
    table.loc[0, ["status", "certificate", "margin"]] = ["already_valid", "", "5"]
    table.loc[0, ["x0", "x1"]] = table.loc[0, ["original_x0", "original_x1"]].to_numpy()
    table.to_csv(out / "results.csv", index=False)
    next((out / "certificates").glob("row-000000000000*")).unlink()
    manifest = Manifest.read(out / "manifest.json")
    digest = open_table(out / "results.csv", delimiter=",").digest
    sealed = manifest.with_results(digest, complete=True).content()
    (out / "manifest.json").write_bytes(sealed)
    done = run("check", out, "--model", place / "net.npz", "--json")
    assert done.returncode == 1
    assert [entry["accepted"] for entry in done.json["certificates"]] == [False, True]
