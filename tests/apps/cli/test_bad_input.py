"""What is wrong is said in one sentence, with exit status 1, and nothing is overwritten."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import run
from proplace.core.errors import DeltaError

GOOD = "age,income,job,member\n30,2.5,cook,no\n"


class Bomb:
    """A pickle that leaves a trace when it is read."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (Path(self.trace),)


def refused(done, *parts):
    """One sentence on standard error and nothing else."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "something unexpected" not in done.stderr
    for part in parts:
        assert part in done.stderr


TABLES = {
    "empty": (b"", "the file is empty"),
    "header_only": (b"age,income,job,member\n", "no rows"),
    "missing_column": (b"age,income,job\n30,2.5,cook\n", "a column is missing: 'member'"),
    "misspelt_column": (GOOD.replace("job", "jobs").encode(), "'job' (did you mean 'jobs'?)"),
    "extra_column": (b"age,income,job,member,id\n30,2.5,cook,no,1\n", "--id id"),
    "two_of_a_name": (b"age,age,income,job,member\n1,30,2.5,cook,no\n", "two columns"),
    "wrong_encoding": ("age,income,job,member\n30,2.5,cook,né\n".encode("latin-1"), "line 2"),
    "huge_cell": (b"age,income,job,member\n30,2.5," + b"x" * 200_000 + b",no\n", "100,000"),
    "open_quote": (b'age,income,job,member\n30,2.5,"cook,no\n', "this is not CSV"),
    "bytes": (bytes(range(256)) * 4, "not utf-8"),
}


@pytest.mark.parametrize("role", ["input", "train"])
@pytest.mark.parametrize("case", TABLES)
def test_tables(loans, role, case, tmp_path):
    content, message = TABLES[case]
    table, out = tmp_path / "table.csv", tmp_path / "out"
    table.write_bytes(content)
    done = run("explain", *loans.options(**{role: table, "out": out}))
    refused(done, "table.csv", message)
    assert not list(tmp_path.glob("out/results*"))
    assert table.read_bytes() == content


def _files(folder):
    """Bad model files and what is said about them."""
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
    ("name", "message"),
    [
        ("wide.onnx", "the schema encodes to 6 columns but the network takes 9"),
        ("sine.onnx", "Sin"),
        ("truncated.onnx", "truncated.onnx"),
        ("model.pkl", "pickles are never read"),
        ("pickle.onnx", "pickle.onnx"),
        ("pickle.pt", "pickle.pt: weights without an architecture are not read"),
        ("model.txt", "files with suffix '.txt' are not read"),
        ("absent.onnx", "no such file"),
    ],
)
def test_models(loans, name, message, tmp_path):
    _files(tmp_path)
    whole = (loans.folder / "model.onnx").read_bytes()
    (tmp_path / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "model.txt").write_bytes(whole)
    trace = tmp_path / "executed"
    for bomb in ("model.pkl", "pickle.onnx", "pickle.pt"):
        (tmp_path / bomb).write_bytes(pickle.dumps(Bomb(str(trace))))
    out = tmp_path / "out"
    refused(run("explain", *loans.options(model=tmp_path / name, out=out)), message)
    assert not trace.exists()
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0}, "--delta must be a positive number"),
        ({"delta": -0.1}, "--delta must be a positive number"),
        ({"delta": "nan"}, "--delta must be a positive number"),
        ({"delta": "inf"}, "--delta must be a positive number"),
        ({"jobs": 0}, "--jobs must be a whole number >= 1, or -1 for all processors, not 0"),
        ({"k": 0}, "k must be a whole number >= 1"),
        ({"count": 0}, "count must be a whole number >= 1"),
        ({"target": 2}, "target"),
        ({"time_limit": 0}, "time_limit must be a positive number"),
        ({"every": "nan"}, "every must be a positive number"),
        ({"row": 99}, "there is no row 99"),
        ({"input": "absent.csv"}, "absent.csv: no such file"),
        ({"train": "/"}, "not a file"),
        ({"schema": "absent.yaml"}, "absent.yaml: no such file"),
        ({"schema": None}, "4 columns where the network takes 6"),
        ({"encoding": "klingon"}, "there is no encoding 'klingon'"),
        ({"delimiter": ";;"}, "one character"),
        ({"delimiter": ";"}, "do cells end at ','? then leave --delimiter out"),
        ({"delimiter": ";", "schema": None}, "then leave --delimiter out"),
        ({"id": "name"}, "there is no column 'name'"),
        ({"input": None}, "give the people as --input FILE, or one person as name=value pairs"),
        ({"out": None}, "--input needs --out"),
        ({"address": "tcp://nowhere:1"}, "--address needs --backend"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options(loans, changes, message, tmp_path):
    out = None if "row" in changes else tmp_path / "out"
    done = run("explain", *loans.options(**{"out": out, **changes}))
    refused(done, message)
    assert not list(tmp_path.glob("out/results*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["age=30"], "no value for 'income', 'job', 'member'"),
        (["incme=3"], "'incme' is not a feature (did you mean 'income'?)"),
        (["age"], "'age' is not of the form name=value"),
        (["age=30", "age=31"], "occurs twice"),
        (["age=30", "income=2", "job=cok", "member=no"], "'cok' is not a category"),
        (["age=30", "income=much", "job=cook", "member=no"], "'income'"),
        (["age=30", "income=13", "job=cook", "member=no"], "'income'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_person_in_words(loans, words, message):
    refused(run("explain", *loans.options(input=None), *words), message)


def test_a_person_of_a_file_by_name(loans, tmp_path):
    """What the message says to do instead, works."""
    people = loans.people.assign(customer=[f"C-{i}" for i in range(len(loans.people))])
    people.to_csv(tmp_path / "people.csv", index=False)
    words = ["explain", *loans.options(input=tmp_path / "people.csv"), "--id", "customer"]
    done = run(*words, "customer=C-3")
    refused(
        done, "customer=C-3 describes one person", "--row N (the first is 0)", "leave --input out"
    )
    done = run(*words, "--row", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["id"] == {"customer": "C-3"}
    words = ["explain", *loans.options(input=None)]
    person = [f"{name}={value}" for name, value in loans.people.iloc[3].items()]
    done = run(*words, *person, "customer=C-3")
    refused(done, "'customer' is not a feature; if it says who this is, also give --id customer")
    done = run(*words, "--id", "customer", *person, "customer=C-3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["id"] == {"customer": "C-3"}


BAD_ROWS = {
    "30,,cook,no": "column 'income'",
    "30,NaN,cook,no": "column 'income'",
    "30,inf,cook,no": "column 'income'",
    "30,2.5,pilot,no": "column 'job': 'pilot' is not a category",
    "-1,2.5,cook,no": "column 'age'",
    "30,12.6,cook,no": "column 'income'",
    "30,much,cook,no": "column 'income'",
    "30,1_0,cook,no": "column 'income': '1_0' is not a number",
    "30,２,cook,no": "column 'income': '２' is not a number",
    "30,2.5,cook": "3 cells where the first line of the file names 4",
    "30,2.5,cook,no,5": "5 cells where the first line of the file names 4",
}


def test_bad_rows_are_reported_and_lose_no_others(loans, tmp_path):
    lines = GOOD.splitlines()
    people = tmp_path / "people.csv"
    people.write_text("\n".join([*lines, *BAD_ROWS, lines[1], ""]))
    done = run("explain", *loans.options(input=people, out=tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "out" / "results.csv")
    assert found["row"].tolist() == list(range(len(BAD_ROWS) + 2))
    assert found["status"].tolist() == ["optimal", *["bad_input"] * len(BAD_ROWS), "optimal"]
    for reason, expected in zip(found["reason"][1:-1], BAD_ROWS.values(), strict=True):
        assert reason.startswith(expected)
    assert found.loc[[0], "age":"distance"].equals(
        found.loc[[len(found) - 1], "age":"distance"].set_axis([0])
    )


def test_bad_training_rows_are_left_out_and_counted(loans, tmp_path):
    train = tmp_path / "train.csv"
    text = (loans.folder / "train.csv").read_text()
    train.write_text(text + "30,much,cook,no\n30,2.5\n")
    done = run("explain", *loans.options(train=train, row=0), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("note: ")
    assert f"2 of {len(loans.train) + 2} rows are left out" in done.stderr
    plain = run("explain", *loans.options(row=0), "--json")
    assert done.stdout == plain.stdout


def test_debug_shows_where_it_comes_from(loans):
    with pytest.raises(DeltaError):
        run("explain", *loans.options(delta=0), "--debug", "--row", 1)


def test_wrong_usage_has_its_own_exit_status(loans):
    for words in (["explain"], ["explain", *loans.options(delta="much")], ["nothing"]):
        done = run(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_an_output_that_cannot_be_written(loans, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "results"):
        refused(run("explain", *loans.options(out=out)), "cannot be written")
    assert file.read_text() == "mine"
    table = ["--input", loans.folder / "people.csv", "--schema", loans.folder / "schema.yaml"]
    words = ["certify", "--model", loans.folder / "model.onnx", *table, "--delta", 0.01]
    refused(run(*words, "--out", file / "verdicts.csv"), "cannot be written")


def test_results_of_others_are_not_touched(loans, tmp_path):
    (tmp_path / "results.csv").write_text("mine")
    refused(run("explain", *loans.options(out=tmp_path)), "no manifest.json")
    assert (tmp_path / "results.csv").read_text() == "mine"
    (tmp_path / "manifest.json").write_text("{}")
    refused(run("explain", *loans.options(out=tmp_path)), "manifest.json")
    assert (tmp_path / "manifest.json").read_text() == "{}"


def test_a_full_disk_keeps_what_is_done(loans, tmp_path):
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
        refused(run("explain", *words), "No space left on device", "same command goes on")
        shards = sorted((disk / "out" / "shards").iterdir())
        assert shards
        assert not list(disk.glob("**/*.tmp"))
        kept = [shard.read_bytes() for shard in shards]
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        done = run("explain", *words)
        assert done.returncode == 0, done.stderr
        text = (disk / "out" / "results.csv").read_bytes()
        head = text.index(b"\n") + 1
        assert text[head:].startswith(b"".join(shard[head:] for shard in kept))
        rows = pd.read_csv(disk / "out" / "results.csv")["row"]
        assert rows.tolist() == list(range(len(people)))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
