"""CSV files that gzip has packed: the same table as the unpacked file."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import run
from proplace.core.errors import TableError
from proplace.tables.files import open_table
from support.errors import raises

SCHEMA = pp.Schema.encoded(2, names=["a", "b"])


def text(rows=50, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.random((rows, 2)), columns=["a", "b"]).to_csv(index=False)


@pytest.mark.parametrize("name", ["t.CSV.GZ", "t.csv"])
@pytest.mark.parametrize("members", [1, 3])
def test_packed_table_is_table(tmp_path, name, members):
    content = text().encode()
    (tmp_path / "plain.csv").write_bytes(content)
    cut = len(content) // members + 1
    parts = [gzip.compress(content[i : i + cut]) for i in range(0, len(content), cut)]
    (tmp_path / name).write_bytes(b"".join(parts))
    found, plain = open_table(tmp_path / name), open_table(tmp_path / "plain.csv")
    assert (found.columns, found.rows) == (plain.columns, plain.rows)
    pd.testing.assert_frame_equal(found.read(SCHEMA)[0], plain.read(SCHEMA)[0])
    pd.testing.assert_frame_equal(found.row(SCHEMA, 31)[0], plain.row(SCHEMA, 31)[0])


def test_packed_file_with_another_encoding(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress("job\nköchin\n".encode("latin-1")))
    assert next(open_table(path, encoding="latin-1").cells())[0]["job"].tolist() == ["köchin"]
    with raises(TableError, name="t.csv.gz", match="line 2"):
        open_table(path)


def damaged():
    packed = bytearray(gzip.compress(text(2000).encode()))
    turned = packed.copy()
    turned[len(turned) // 2] ^= 0xFF
    sums = packed.copy()
    sums[-6] ^= 0xFF  # the checksum of the content
    return {
        "cut off": bytes(packed[: len(packed) // 2]),
        "turned bits": bytes(turned),
        "checksum": bytes(sums),
        "rubbish behind": bytes(packed) + b"rubbish",
        "header alone": bytes(packed[:4]),
    }


@pytest.mark.parametrize("name", sorted(damaged()))
def test_damaged_file_is_reported(tmp_path, name):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(damaged()[name])
    with raises(TableError, name="t.csv.gz"):
        open_table(path)


def test_misleading_file_names_are_rejected(tmp_path):
    (tmp_path / "t.csv.gz").write_text(text())
    with raises(TableError, name="t.csv.gz", match="gzip"):
        open_table(tmp_path / "t.csv.gz")
    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    with raises(TableError, name="t.parquet.gz", match="gunzip"):
        open_table(tmp_path / "t.parquet.gz")


def test_every_command_takes_packed_tables(tmp_path):
    rng = np.random.default_rng(0)
    train = pd.DataFrame(rng.random((80, 2)), columns=["a", "b"])
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    net.save(tmp_path / "net.npz")
    people = train[net.predict(train.to_numpy()) == 0][:5]
    for name, frame in (("train", train), ("people", people)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        frame.to_csv(tmp_path / f"{name}.csv.gz", index=False)

    def outputs(end):
        files = {name: tmp_path / f"{name}{end}" for name in ("train", "people")}
        model = ("--model", tmp_path / "net.npz", "--delta", 0.01)
        explain = ("explain", *model, "--train", files["train"], "--input", files["people"])
        done = [
            run("certify", *model, "--input", files["people"], "--json"),
            run(*explain, "--out", tmp_path / f"out{end}"),
            run("schema", files["train"]),
        ]
        assert [d.returncode for d in done] == [0] * 3, [d.stderr for d in done]
        results = (tmp_path / f"out{end}" / "results.csv").read_text()
        return json.loads(done[0].stdout), results, done[2].stdout

    assert outputs(".csv.gz") == outputs(".csv")
