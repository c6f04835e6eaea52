"""Wrong input ends a command with one error and exit status 1, and nothing is overwritten."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import good, run
from proplace.core.errors import (
    DeltaError,
    InputError,
    ModelFileError,
    ModelNotSupportedError,
    OptionError,
    OutputError,
    SchemaError,
    TableError,
    TargetError,
)
from support.errors import ANY, failed

GOOD = "age,income,job,member\n30,2.5,cook,no\n"


class Bomb:
    """A pickle that leaves a trace when it is read."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (Path(self.trace),)


TABLES = {
    "empty": (b"", "table.csv"),
    "header_only": (b"age,income,job,member\n", "table.csv"),
    "missing_column": (b"age,income,job\n30,2.5,cook\n", "member"),
    "misspelt_column": (GOOD.replace("job", "jobs").encode(), "job"),
    "extra_column": (b"age,income,job,member,id\n30,2.5,cook,no,1\n", "id"),
    "two_of_a_name": (b"age,age,income,job,member\n1,30,2.5,cook,no\n", "age"),
    "wrong_encoding": ("age,income,job,member\n30,2.5,cook,né\n".encode("latin-1"), "table.csv"),
    "huge_cell": (b"age,income,job,member\n30,2.5," + b"x" * 200_000 + b",no\n", "table.csv"),
    "open_quote": (b'age,income,job,member\n30,2.5,"cook,no\n', "table.csv"),
    "bytes": (bytes(range(256)) * 4, "table.csv"),
}
"""Tables, and the name in the error."""


@pytest.mark.parametrize("role", ["input", "train"])
@pytest.mark.parametrize("case", TABLES)
def test_tables(loans, role, case, tmp_path):
    content, name = TABLES[case]
    table, out = tmp_path / "table.csv", tmp_path / "out"
    table.write_bytes(content)
    done = run("explain", *loans.options(**{role: table, "out": out}))
    failed(done, TableError, name=name)
    assert "table.csv" in done.stderr
    assert not list(tmp_path.glob("out/results*"))
    assert table.read_bytes() == content


def _files(folder):
    """Write model files that are not supported."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    def graph(width, operator):
        weights = numpy_helper.from_array(np.ones((width, 1), dtype=np.float32), "W")
        nodes = [
            helper.make_node("MatMul", ["x", "W"], ["h"]),
            helper.make_node(operator, ["h"], ["y"], name="last"),
        ]
        shape = helper.make_tensor_value_info
        made = helper.make_graph(
            nodes,
            "g",
            [shape("x", TensorProto.FLOAT, [None, width])],
            [shape("y", TensorProto.FLOAT, [None, 1])],
            [weights],
        )
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])

    onnx.save(graph(9, "Sigmoid"), folder / "wide.onnx")
    onnx.save(graph(6, "Sin"), folder / "sine.onnx")
    return folder


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("wide.onnx", SchemaError),
        ("sine.onnx", ModelNotSupportedError),
        ("truncated.onnx", ModelFileError),
        ("model.pkl", ModelFileError),
        ("pickle.onnx", ModelFileError),
        ("pickle.pt", ModelFileError),
        ("model.txt", ModelFileError),
        ("absent.onnx", ModelFileError),
    ],
)
def test_models(loans, name, error, tmp_path):
    _files(tmp_path)
    whole = (loans.folder / "model.onnx").read_bytes()
    (tmp_path / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "model.txt").write_bytes(whole)
    trace = tmp_path / "executed"
    for bomb in ("model.pkl", "pickle.onnx", "pickle.pt"):
        (tmp_path / bomb).write_bytes(pickle.dumps(Bomb(str(trace))))
    out = tmp_path / "out"
    done = run("explain", *loans.options(model=tmp_path / name, out=out))
    failed(done, error)
    assert done.stderr.splitlines()[1:] == [f"    {line}" for line in done.error.code]
    assert bool(done.error.code) == (name in ("model.pkl", "pickle.pt"))
    assert not trace.exists()
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "error", "name", "value"),
    [
        ({"delta": "much"}, DeltaError, "--delta", "much"),
        ({"delta": 0}, DeltaError, "--delta", 0.0),
        ({"delta": -0.1}, DeltaError, "--delta", -0.1),
        ({"delta": "nan"}, DeltaError, "--delta", ANY),
        ({"delta": "inf"}, DeltaError, "--delta", float("inf")),
        ({"jobs": 0}, OptionError, "--jobs", 0),
        ({"k": 0}, OptionError, "k", 0),
        ({"count": 0}, OptionError, "count", 0),
        ({"target": 2}, TargetError, "--target", "2"),
        ({"time_limit": 0}, OptionError, "time_limit", 0.0),
        ({"row": 99}, TableError, "people.csv", ANY),
        ({"input": "absent.csv"}, TableError, "absent.csv", None),
        ({"train": "/"}, TableError, ANY, ANY),
        ({"schema": "absent.yaml"}, SchemaError, "absent.yaml", None),
        ({"schema": None}, TableError, "train.csv", ["age", "income", "job", "member"]),
        ({"encoding": "klingon"}, TableError, "encoding", ANY),
        ({"delimiter": ";;"}, TableError, "delimiter", ANY),
        ({"delimiter": ";"}, TableError, "age", ANY),
        ({"delimiter": ";", "schema": None}, TableError, "train.csv", ["age,income,job,member"]),
        ({"id": "name"}, TableError, "name", None),
        ({"input": None}, OptionError, "--input", None),
        ({"out": None}, OptionError, "--out", None),
        ({"address": "tcp://nowhere:1"}, OptionError, "batch.address", "tcp://nowhere:1"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_options(loans, changes, error, name, value, tmp_path):
    out = None if "row" in changes else tmp_path / "out"
    done = run("explain", *loans.options(**{"out": out, **changes}))
    failed(done, error, name=name, value=value)
    if "delimiter" in changes:
        assert "tables.delimiter" in done.stderr or len(changes["delimiter"]) > 1
    assert not list(tmp_path.glob("out/results*"))


@pytest.mark.parametrize(
    ("words", "error", "name"),
    [
        (["age=30"], SchemaError, "income"),
        (["incme=3"], SchemaError, "incme"),
        (["age"], OptionError, "age"),
        (["age=30", "age=31"], OptionError, "age"),
        (["age=30", "income=2", "job=cok", "member=no"], InputError, "job"),
        (["age=30", "income=much", "job=cook", "member=no"], InputError, "income"),
        (["age=30", "income=inf", "job=cook", "member=no"], InputError, "income"),
    ],
)
def test_person_in_words(loans, words, error, name):
    failed(run("explain", *loans.options(input=None), *words), error, name=name)


def test_person_of_file_by_name(loans, tmp_path):
    """The options that the error names work."""
    people = loans.people.assign(customer=[f"C-{i}" for i in range(len(loans.people))])
    people.to_csv(tmp_path / "people.csv", index=False)
    words = ["explain", *loans.options(input=tmp_path / "people.csv"), "--id", "customer"]
    done = run(*words, "customer=C-3")
    failed(done, OptionError, name="--input", value=str(tmp_path / "people.csv"))
    assert "--row" in done.stderr
    done = good(*words, "--row", 3, "--json")
    assert done.json[0]["id"] == {"customer": "C-3"}
    words = ["explain", *loans.options(input=None)]
    person = [f"{name}={value}" for name, value in loans.people.iloc[3].items()]
    done = run(*words, *person, "customer=C-3")
    failed(done, SchemaError, name="customer")
    assert "--id customer" in done.stderr
    done = good(*words, "--id", "customer", *person, "customer=C-3", "--json")
    assert done.json[0]["id"] == {"customer": "C-3"}


BAD_ROWS = {
    "30,,cook,no": "income",
    "30,NaN,cook,no": "income",
    "30,inf,cook,no": "income",
    "30,2.5,pilot,no": "pilot",
    "30,much,cook,no": "income",
    "30,1_0,cook,no": "1_0",
    "30,２,cook,no": "２",
    "30,2.5,cook": "3",
    "30,2.5,cook,no,5": "5",
}
"""Rows, and a word of the reason that is written."""


def test_bad_rows_are_reported_and_lose_no_others(loans, tmp_path):
    lines = GOOD.splitlines()
    people = tmp_path / "people.csv"
    people.write_text("\n".join([*lines, *BAD_ROWS, lines[1], ""]))
    good("explain", *loans.options(input=people, out=tmp_path / "out"))
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    assert found["row"].tolist() == list(range(len(BAD_ROWS) + 2))
    assert found["status"].tolist() == ["feasible", *["bad_input"] * len(BAD_ROWS), "feasible"]
    for reason, expected in zip(found["reason"][1:-1], BAD_ROWS.values(), strict=True):
        assert expected in reason
        assert not reason.startswith("row ")  # its number stands in a column of its own
    assert found.loc[[0], "age":"distance"].equals(
        found.loc[[len(found) - 1], "age":"distance"].set_axis([0])
    )


def test_bad_training_rows_are_left_out_and_counted(loans, tmp_path):
    train = tmp_path / "train.csv"
    text = (loans.folder / "train.csv").read_text()
    train.write_text(text + "30,much,cook,no\n30,2.5\n")
    done = good("explain", *loans.options(train=train, row=0), "--json")
    assert f"2 of {len(loans.train) + 2}" in done.stderr
    plain = run("explain", *loans.options(row=0), "--json")
    assert done.stdout == plain.stdout


def test_debug_shows_where_it_comes_from(loans):
    with pytest.raises(DeltaError):
        run("explain", *loans.options(delta=0), "--debug", "--row", 1)


def test_wrong_usage_has_its_own_exit_status(loans):
    for words in (["audit"], ["explain", *loans.options(count="much")], ["nothing"]):
        done = run(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_output_that_cannot_be_written(loans, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "results"):
        failed(run("explain", *loans.options(out=out)), OutputError, name=out.name)
    assert file.read_text() == "mine"
    out = file / "verdicts.csv"
    failed(run("certify", *loans.options("certify", out=out)), OutputError, name=out.name)


def test_results_of_others_are_not_touched(loans, tmp_path):
    (tmp_path / "results.csv").write_text("mine")
    failed(run("explain", *loans.options(out=tmp_path)), OutputError, name="results.csv")
    assert (tmp_path / "results.csv").read_text() == "mine"
    (tmp_path / "manifest.json").write_text("{}")
    failed(run("explain", *loans.options(out=tmp_path)), OutputError, name="manifest.json")
    assert (tmp_path / "manifest.json").read_text() == "{}"


@pytest.mark.slow
def test_full_disk_keeps_finished_rows(loans, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this system does not let root mount a tmpfs")
    try:
        people = pd.concat([loans.people] * 12)
        people.to_csv(tmp_path / "people.csv", index=False)
        words = loans.options(input=tmp_path / "people.csv", out=disk / "out", every=0.001)
        failed(run("explain", *words), OutputError, name="out")
        shards = sorted((disk / "out" / "shards").iterdir())
        assert shards
        assert not list(disk.glob("**/*.tmp"))
        kept = [shard.read_bytes() for shard in shards]
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        good("explain", *words)
        text = (disk / "out" / "results.csv").read_bytes()
        head = text.index(b"\n") + 1
        assert text[head:].startswith(b"".join(shard[head:] for shard in kept))
        rows = pd.read_csv(disk / "out" / "results.csv")["row"]
        assert rows.tolist() == list(range(len(people)))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
