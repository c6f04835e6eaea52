"""Tables in files: text becomes values cell by cell, in chunks, from any row on."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from proplace import table_files as tables
from proplace.errors import TableError
from proplace.table_files import guessed, literal, open_table, plain, write_csv

SCHEMA = pp.Schema(
    [
        pp.Continuous("n", 0, 1000, step=1),
        pp.Continuous("x", -10, 1e9),
        pp.Ordinal("grade", ["NA", "B", "A"]),
        pp.Categorical("code", [1, 2, 3]),
        pp.Binary("flag", [False, True]),
        pp.Binary("bit"),
    ]
)


def table(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_table(path, **options)


def test_text_becomes_the_values_of_the_schema(tmp_path):
    text = "bit,flag,code,grade,x,n\n1,true,2.0,NA,1e3,7\n0,False,3,A,-0.25,8.0\n1.0,TRUE,1,B,,x\n"
    frame, broken = table(tmp_path, text).read(SCHEMA)
    assert not broken
    assert frame["n"].tolist() == [7.0, 8.0, "x"]
    assert frame["x"].tolist()[:2] == [1000.0, -0.25]
    assert math.isnan(frame["x"].tolist()[2])
    assert frame["grade"].tolist() == ["NA", "A", "B"]  # a level may be spelt as a missing cell
    assert frame["code"].tolist() == [2, 3, 1]
    assert frame["flag"].tolist() == [True, False, True]
    assert frame["bit"].tolist() == [1, 0, 1]
    assert set(SCHEMA.problems(frame)) == {2}


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 123456789.123456789, -5e-324, 2.0**53 + 2])
def test_every_digit_of_a_number_is_read(tmp_path, value):
    schema = pp.Schema.encoded(1, names=["x"])
    frame, _ = table(tmp_path, f"x\n{value!r}\n").read(schema)
    assert frame["x"].tolist() == [value]


def test_chunks_and_any_first_row_give_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK", 7)
    rows = [[str(n), f"a {n}", "x,y\nz" if n % 3 else ""] for n in range(40)]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([["n", "text", "odd"], *rows])
    source = table(tmp_path, text.getvalue().replace("\r\n3,", "\r\n\r\n3,"))  # and a blank line
    assert source.rows == 40
    for start in (0, 1, 6, 7, 8, 39, 40):
        chunks = [frame for frame, _ in source.cells(start)]
        assert [row for frame in chunks for row in frame.to_numpy().tolist()] == rows[start:]
        assert [n for frame in chunks for n in frame.index] == list(range(start, 40))
        assert all(len(frame) <= 7 for frame in chunks)


def test_parquet_gives_the_same_chunks(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "CHUNK", 7)
    frame = pd.DataFrame({"n": range(40), "text": [f"a {n}" for n in range(40)]})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=11)
    source = open_table(tmp_path / "t.parquet")
    assert (source.columns, source.rows) == (("n", "text"), 40)
    for start in (0, 6, 7, 20, 39):
        found = pd.concat([chunk for chunk, _ in source.cells(start)])
        assert found.equals(frame.iloc[start:])


def test_a_file_that_is_not_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(TableError, match="not a Parquet file"):
        open_table(tmp_path / "t.parquet")


def test_broken_rows_are_named_by_their_number(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK", 2)
    schema = pp.Schema.encoded(2, names=["a", "b"])
    source = table(tmp_path, "a,b\n1,2\n3\n5,6\n7,8,9\n")
    frame, broken = source.read(schema)
    assert set(broken) == {1, 3}
    assert frame["a"].isna().tolist() == [False, True, False, True]
    assert source.row(schema, 2)[1] == {}
    assert set(source.row(schema, 3)[1]) == {3}


def test_marks_and_encodings(tmp_path):
    assert table(tmp_path, "\ufeffa,b\n1,2\n".encode()).columns == ("a", "b")
    latin = table(tmp_path, "a;b\né;2\n".encode("latin-1"), delimiter=";", encoding="latin-1")
    assert next(latin.cells())[0].to_numpy().tolist() == [["é", "2"]]
    with pytest.raises(TableError, match="line 3: the text is not utf-8"):
        table(tmp_path, b"a,b\n1,2\n\xff,3\n")


@pytest.mark.parametrize(
    ("text", "hint"),
    [("a;b\n1;2\n", "';'"), ("a\tb\n1\t2\n", "\\t"), ("a|b\n1|2\n", "'|'"), ("a\n1\n", None)],
)
def test_a_wrong_delimiter_is_guessed(tmp_path, text, hint):
    with pytest.raises(TableError) as caught:
        table(tmp_path, text).check_columns(["a", "b"], others=[])
    assert ("--delimiter" in str(caught.value)) == (hint is not None)
    assert hint is None or hint in str(caught.value)


def test_types_are_guessed_from_all_cells():
    text = pd.DataFrame(
        {
            "number": ["1", "2.5", "NA"],
            "truth": ["true", "False", ""],
            "word": ["yes", "", "1"],
        }
    )
    found = guessed(text.astype(object))
    assert found["number"].dtype == np.float64
    assert found["truth"].tolist()[:2] == [True, False]
    assert found["truth"].isna().tolist() == [False, False, True]
    assert found["word"].tolist()[::2] == ["yes", "1"]
    assert found["word"].isna().tolist() == [False, True, False]


def test_plain_values_are_those_of_the_schema():
    cells = {"n": 7.0, "x": np.float64(0.5), "grade": "A", "code": 2.0, "flag": 1, "bit": 1.0}
    kinds = [plain(value, SCHEMA.by_name[name]) for name, value in cells.items()]
    assert kinds == [7, 0.5, "A", 2, True, 1]
    assert [type(value) for value in kinds] == [int, float, str, int, bool, int]


def test_what_is_written_is_read_again(tmp_path):
    frame = pd.DataFrame(
        {"a": [1, None, 3], "b": ['say "x", then', "new\nline", ""], "c": [0.1, 1 / 3, math.nan]},
        dtype=object,
    )
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        write_csv(frame, file)
        write_csv(frame, file, header=False)
    found = list(csv.reader(path.open(encoding="utf-8", newline="")))
    assert found[0] == ["a", "b", "c"]
    assert found[1] == ["1", 'say "x", then', "0.1"]
    assert found[2] == ["", "new\nline", repr(1 / 3)]
    assert found[1:4] == found[4:]


# -- text that a spreadsheet would run -------------------------------------------------------------

FORMULAS = ["=1+1", "+49 170 1", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "-", "=", "-inf"]
HARMLESS = ["-5", "+5", "-.5", "-5.", "+1e-3", "", "a=1", "it's", "'quoted'", " =1", "1-2"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_shown_and_not_run(text):
    assert literal(text) == f"'{text}"
    assert literal(f"'{text}") == f"''{text}"  # so that one apostrophe less is always right


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_written_as_it_is(text):
    assert literal(text) == text


@pytest.mark.parametrize("value", [-5, -0.5, -math.inf, None, True, np.float64(-1e-9)])
def test_values_that_are_no_text_are_written_as_they_are(value):
    assert literal(value) is value


@given(st.text(alphabet="'=+-@\t\r1.e", max_size=6))
def test_no_two_texts_are_written_alike(text):
    written = literal(text)
    assert not re.match(r"[=+\-@\t\r]", written) or written == text  # a plain number
    assert written == text or (written[0] == "'" and literal(written[1:]) == written)


def test_every_table_that_is_written_is_safe_to_open(tmp_path):
    """Names, text of any type of column; numbers keep their sign."""
    frame = pd.DataFrame({"=name": ["=1+1", "-5"], "n": [-1, 2], "mixed": [-0.5, "@x"]})
    frame["text"] = frame["=name"].astype("string")
    frame["label"] = frame["=name"].astype("category")
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        write_csv(frame, file)
    found = list(csv.reader(path.open(encoding="utf-8", newline="")))
    assert found == [
        ["'=name", "n", "mixed", "text", "label"],
        ["'=1+1", "-1", "-0.5", "'=1+1", "'=1+1"],
        ["-5", "2", "'@x", "-5", "-5"],
    ]
    assert frame["=name"].tolist() == ["=1+1", "-5"]  # the table itself is as it was


def test_labels_are_read_as_they_were_written(tmp_path):
    labels = ["=a", "-b", "'-c", "-5", "c"]
    schema = pp.Schema([pp.Categorical("job", labels)])
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        write_csv(pd.DataFrame({"job": labels}), file)
    assert open_table(path).read(schema)[0]["job"].tolist() == labels
    path.write_text("job\n=a\n-b\n")  # and as a user writes them
    assert open_table(path).read(schema)[0]["job"].tolist() == ["=a", "-b"]
