"""Tables in files: text becomes values cell by cell, in chunks, from any row on."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
import re
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from commands import run
from proplace.core import limits
from proplace.core.errors import TableError
from proplace.tables import files as tables
from proplace.tables.files import guessed, literal, open_table, plain, write_csv
from proplace.tables.writing import TableWriter, feature_type
from support.errors import raises

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
TWO = pp.Schema.encoded(2, names=["a", "b"])


def table(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_table(path, **options)


def test_text_becomes_values_of_schema(tmp_path):
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((" 5", 5.0), ("5\t", 5.0), ("+5", 5.0), ("-.5", -0.5), ("5.", 5.0), ("1E3", 1e3)),
        *(("007", 7.0), ("1e-2", 0.01), ("-0", 0.0)),
        *((repr(v), v) for v in (1 / 3, 1e-300, 123456789.123456789, -5e-324, 2.0**53 + 2)),
    ],
)
def test_decimal_numbers_are_numbers(tmp_path, text, value):
    schema = pp.Schema.encoded(1, names=["x"])
    frame, _ = table(tmp_path, f"x\n{text}\n").read(schema)
    assert frame["x"].tolist() == [value]


@pytest.mark.parametrize(
    "text",
    [
        *("1_000", "1e1_0", "0x10", "0b1", "0o7", "１２", "١٢", "1\u00a0", "inf", "-inf"),
        *(
            "Infinity",
            "NAN",
            "1,5",
            "-nan",
            "1 000",
            "--1",
            "+",
            ".",
            "e5",
            "1e",
            "1d5",
            "5\u200b",
            "½",
            "1:30",
            "True",
        ),
    ],
)
def test_text_similar_to_numbers_stays_text(tmp_path, text):
    """Within a wide range, so that nothing but the spelling is wrong."""
    schema = pp.Schema([pp.Continuous("x", -1e12, 1e12), pp.Categorical("c", [1000, 12, 16])])
    frame, _ = table(tmp_path, f'x,c\n"{text}","{text}"\n').read(schema)
    assert frame.iloc[0].tolist() == [text, text]
    assert "is not a number; allowed" in schema.problems(frame)[0].text


def test_chunks_and_any_first_row_give_same_rows(tmp_path, monkeypatch):
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


def test_parquet_gives_same_chunks(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "CHUNK", 7)
    frame = pd.DataFrame({"n": range(40), "text": [f"a {n}" for n in range(40)]})
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=11)
    source = open_table(tmp_path / "t.parquet")
    assert (source.columns, source.rows) == (("n", "text"), 40)
    for start in (0, 6, 7, 20, 39):
        found = pd.concat([chunk for chunk, _ in source.cells(start)])
        assert found.equals(frame.iloc[start:])


def parquet(path, columns, **options):
    """Columns as pairs, so that a name may occur twice."""
    arrow = pytest.importorskip("pyarrow")
    whole = arrow.table([values for _, values in columns], names=[name for name, _ in columns])
    whole = whole.replace_schema_metadata(options.pop("metadata", None))
    pytest.importorskip("pyarrow.parquet").write_table(whole, path, compression="none", **options)
    return path


def test_two_columns_of_one_name_in_parquet(tmp_path):
    path = parquet(tmp_path / "t.parquet", [("a", [1]), ("b", [2]), ("a", [3])])
    with raises(TableError, name="a"):
        open_table(path)


@pytest.mark.parametrize("said", [b"{", b"\xff", b'{"columns": [{}]}', b'{"index_columns": 1}'])
def test_pandas_metadata_of_parquet_is_ignored(tmp_path, said):
    path = parquet(tmp_path / "t.parquet", [("a", [1, 2])], metadata={b"pandas": said})
    ((frame, broken),) = open_table(path).cells()
    assert (frame["a"].tolist(), broken) == ([1, 2], {})


def test_index_of_pandas_is_column(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": [1, 2]}, index=pd.Index([5, 6], name="id")).to_parquet(tmp_path / "t.pq")
    source = open_table(tmp_path / "t.pq")
    ((frame, _),) = source.cells()
    assert source.columns == tuple(frame.columns) == ("a", "id")
    assert frame["id"].tolist() == [5, 6]


def test_damaged_pages_of_parquet_are_noticed_when_it_is_opened(tmp_path):
    """Each byte before the final description changes. The file is rejected, or its content is true."""
    path = parquet(tmp_path / "t.parquet", [("a", list(range(100, 140)))], use_dictionary=False)
    good = path.read_bytes()
    refused = []
    for place in range(4, 40):
        path.write_bytes(good[:place] + b"\xff\xff" + good[place + 2 :])
        try:
            assert sum(len(frame) for frame, _ in open_table(path).cells()) == 40
        except TableError as error:
            refused.append(str(error))
    assert len(refused) > 5
    for words in refused:
        assert re.search("not a Parquet file, or a damaged one .*. Write it again", words)


def test_text_in_parquet_that_is_not_text(tmp_path):
    path = parquet(tmp_path / "t.parquet", [("a", ["one", "two"])], use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"\x03\0\0\0two", b"\x03\0\0\0t\xffo"))
    with raises(TableError, name="t.parquet", match="UTF"):
        open_table(path)


def test_parquet_file_that_claims_more_rows_than_it_has(tmp_path):
    path = parquet(tmp_path / "t.parquet", [("a", [1, 2, 3])])
    data = path.read_bytes()
    foot = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # The number of rows follows the list of columns: field 3, an i64 in zigzag form.
    place = data.index(b"\x16\x06\x19", foot)
    path.write_bytes(data[: place + 1] + b"\x08" + data[place + 2 :])
    with raises(TableError, name="t.parquet", match="4 rows"):
        open_table(path)


def test_file_that_is_damaged_behind_its_rows_is_refused_while_it_is_read(tmp_path, monkeypatch):
    """Values that pandas cannot hold are found only when they become a frame."""
    arrow = pytest.importorskip("pyarrow")
    source = open_table(parquet(tmp_path / "t.parquet", [("a", [1, 2])]))

    class Batch:
        def replace_schema_metadata(self, _):
            return self

        def to_pandas(self):
            raise arrow.ArrowInvalid("out of range")

    monkeypatch.setattr(source, "_batches", lambda: iter([Batch()]))
    with raises(TableError, name="t.parquet", match="out of range"):
        next(source.cells())


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
    with raises(TableError, name="table.csv", match="line 3"):
        table(tmp_path, b"a,b\n1,2\n\xff,3\n")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a,b\n1;2,3\n", ("a", "b")),
        ("a;b\n1,5;2\n", ("a", "b")),
        ("a\tb\n1\t2\n", ("a", "b")),
        ("\n\na|b\n1|2\n", ("a", "b")),
        ("a\n1;2;3\n", ("a",)),  # the first line alone decides
        ('"a,b,c";d\n1;2\n', ("a,b,c", "d")),  # what is within quotes ends no cell
        ('"a;\nb;c",d\n1,2\n', ("a;\nb;c", "d")),
        ("a, in euros;b;c\n1;2;3\n", ("a, in euros", "b", "c")),
        ("a;b,c\n1,2\n", ("a;b", "c")),  # as many of each: a comma
    ],
)
def test_delimiter_is_found(tmp_path, text, columns):
    found = table(tmp_path, text)
    assert found.columns == columns
    assert found.rows == 1


def test_delimiter_that_is_given_is_obeyed(tmp_path):
    assert table(tmp_path, "a;b;c,d\n1,2\n", delimiter=",").columns == ("a;b;c", "d")
    assert table(tmp_path, "a!b\n1!2\n", delimiter="!").columns == ("a", "b")


@pytest.mark.parametrize(
    ("text", "given", "hint"),
    [
        ("a;b\n1;2\n", ",", "';'"),
        ("a\tb\n1\t2\n", ";", "a tab"),
        ("a;c\n1;2\n", ";", None),
        ("a\n1\n", ";", None),
        ("a\n1\n", None, None),
    ],
)
def test_wrong_delimiter_is_guessed(tmp_path, text, given, hint):
    with raises(TableError, name="a" if hint else "b") as caught:
        table(tmp_path, text, delimiter=given).check_columns(["a", "b"], others=[])
    assert ("tables.delimiter" in str(caught.value)) == (hint is not None)
    assert hint is None or hint in str(caught.value)
    if hint:
        table(tmp_path, text).check_columns(["a", "b"], others=[])  # the advised step


# -- files that no table is --------------------------------------------------------------------


def refusal(tmp_path, text, name, **options):
    def read():
        table(tmp_path, text, **options).check_columns(["a"], others=[])

    with raises(TableError, name=name) as caught:
        read()
    assert len(str(caught.value)) < 4_000
    return str(caught.value)


@pytest.mark.slow
def test_file_without_line_ends_is_not_read_into_memory(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    os.truncate(path, 2**29)  # half a GB of NULs, none of them on the disk
    tracemalloc.start()
    try:
        with raises(TableError, name="t.csv", match="line 3"):
            open_table(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_row_of_many_lines_is_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TABLE_ROW", 50)
    line = '"x\n",' * 12 + "y\n"
    assert table(tmp_path, "a,b\n" + "1,2\n" * 99).rows == 99  # the limit is for each row
    assert "50 characters" in refusal(tmp_path, "a\n" + line, "table.csv")


@pytest.mark.parametrize("text", ["a,\0b\n1,2\n", "a,b\n1,2\n\0,3\n"])
def test_nul_is_not_text(tmp_path, text):
    line = 1 + text[: text.index("\0")].count("\n")
    assert f"line {line}: there is a NUL" in refusal(tmp_path, text, "table.csv")
    wide = table(tmp_path, text.replace("\0", "").encode("utf-16"), encoding="utf-16")
    assert wide.columns == ("a", "b")


def test_columns_are_limited(tmp_path):
    names = ",".join(f"c{n}" for n in range(limits.TABLE_COLUMNS + 1))
    assert "100,001 columns" in refusal(tmp_path, names + "\n", "table.csv")


def test_wide_or_long_rows_come_in_smaller_chunks(tmp_path, monkeypatch):
    text = "a,b\n" + "".join(f"{n},{'y' * 30}\n" for n in range(20))
    rows = [[str(n), "y" * 30] for n in range(20)]
    for limit, size in (("CHUNK_CELLS", 10), ("CHUNK_CHARACTERS", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, size)
            chunks = [frame for frame, _ in table(tmp_path, text).cells(3)]
            assert max(len(frame) for frame in chunks) <= 5
            assert [row for frame in chunks for row in frame.to_numpy().tolist()] == rows[3:]
            assert [n for frame in chunks for n in frame.index] == list(range(3, 20))
    monkeypatch.setattr(limits, "CHUNK_CHARACTERS", 100)
    empty = table(tmp_path, "a,b\n" + ("," * 99 + "\n") * 9)  # nothing but ends of cells
    assert max(len(frame) for frame, _ in empty.cells()) == 2


def test_parquet_comes_in_smaller_chunks_too(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": range(20), "b": range(20)}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr(limits, "CHUNK_CELLS", 10)
    assert [len(frame) for frame, _ in open_table(tmp_path / "t.parquet").cells()] == [5] * 4
    monkeypatch.setattr(limits, "TABLE_COLUMNS", 1)
    with raises(TableError, name="t.parquet", match="2 columns"):
        open_table(tmp_path / "t.parquet")


def test_delimiters_and_encodings_that_do_not_exist_are_rejected(tmp_path):
    for delimiter in ("", ";;", "\n", "\r", '"', "\0"):
        refusal(tmp_path, "a\n1\n", "delimiter", delimiter=delimiter)
    for encoding in ("klingon", "", "rot13", "utf-8\0", "hex"):
        refusal(tmp_path, "a\n1\n", "encoding", encoding=encoding)


def test_long_names_and_cells_are_shown_in_part(tmp_path):
    long = "x" * 90_000
    refusal(tmp_path, f"{long},{long}2\n1,2\n", "a")
    refusal(tmp_path, f"{long},{long}\n1,2\n", long)
    assert "'the \\x1b id' is not a feature" in refusal(
        tmp_path, "a,the \x1b id\n1,2\n", "the \x1b id"
    )
    frame, _ = table(tmp_path, f"n,grade,code\n{long},{long},{long}\n").read(SCHEMA)
    for name in frame.columns:
        assert len(SCHEMA.by_name[name].why(frame[name][0])) < 300


def test_types_are_guessed_from_all_cells():
    text = pd.DataFrame(
        {
            "number": ["1", "2.5", "NA"],
            "truth": ["true", "False", ""],
            "word": ["yes", "", "1"],
            "code": ["017", "20", "5"],  # a number would lose the zero
        }
    )
    found = guessed(text.astype(object))
    assert found["number"].dtype == np.float64
    assert found["truth"].tolist()[:2] == [True, False]
    assert found["truth"].isna().tolist() == [False, False, True]
    assert found["code"].tolist() == ["017", "20", "5"]
    assert found["word"].tolist()[::2] == ["yes", "1"]
    assert found["word"].isna().tolist() == [False, True, False]


def test_read_csv_returns_numbers_to_last_bit():
    numbers = np.random.default_rng(0).random(5000).tolist()
    text = "\n".join(["x,n,word", *(f"{number!r},{n},a" for n, number in enumerate(numbers))])
    found = tables.read_csv(io.BytesIO(text.encode()))
    assert found["x"].tolist() == numbers
    assert found["n"].tolist() == list(range(5000))
    assert found["n"].dtype == np.int64


def test_plain_values_are_those_of_schema():
    cells = {"n": 7.0, "x": np.float64(0.5), "grade": "A", "code": 2.0, "flag": 1, "bit": 1.0}
    kinds = [plain(value, SCHEMA.by_name[name]) for name, value in cells.items()]
    assert kinds == [7, 0.5, "A", 2, True, 1]
    assert [type(value) for value in kinds] == [int, float, str, int, bool, int]


def test_written_table_is_read_again(tmp_path):
    frame = pd.DataFrame(
        {"a": [1, None, 3], "b": ['say "x", then', "new\nline", ""], "c": [0.1, 1 / 3, math.nan]},
        dtype=object,
    )
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        write_csv(frame, file)
        write_csv(frame, file, header=False)
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))
    assert found[0] == ["a", "b", "c"]
    assert found[1] == ["1", 'say "x", then', "0.1"]
    assert found[2] == ["", "new\nline", repr(1 / 3)]
    assert found[1:4] == found[4:]


# -- text that a spreadsheet would run -------------------------------------------------------------

FORMULAS = ["=1+1", "+49 170 1", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "-", "=", "-inf"]
HARMLESS = ["-5", "+5", "-.5", "-5.", "+1e-3", "", "a=1", "it's", "'quoted'", " =1", "1-2"]


def test_only_formulas_get_apostrophe():
    for text in FORMULAS:
        assert literal(text) == f"'{text}"
        assert literal(f"'{text}") == f"''{text}"  # so that one apostrophe less is always right
    for value in (*HARMLESS, -5, -0.5, -math.inf, None, True, np.float64(-1e-9)):
        assert literal(value) is value


@given(st.text(alphabet="'=+-@\t\r1.e", max_size=6))
def test_no_two_texts_are_written_alike(text):
    written = literal(text)
    assert not re.match(r"[=+\-@\t\r]", written) or written == text  # a plain number
    assert written == text or (written[0] == "'" and literal(written[1:]) == written)


def test_every_table_that_is_written_is_safe_to_open(tmp_path):
    """Names and text of any column type. Numbers keep their sign."""
    frame = pd.DataFrame({"=name": ["=1+1", "-5"], "n": [-1, 2], "mixed": [-0.5, "@x"]})
    frame["text"] = frame["=name"].astype("string")
    frame["label"] = frame["=name"].astype("category")
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        write_csv(frame, file)
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))
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


def test_carriage_return_in_cell_ends_no_line(tmp_path):
    """No other line end does either. A NUL, which no reader accepts, is escaped."""
    cells = ["a\rb", "a\r\nb", "a\nb", "a\r\n\0b", 'a"b', "\r", ""]
    with (tmp_path / "t.csv").open("wb") as file:
        tables.write_csv(pd.DataFrame({"id\r": cells, "n": range(len(cells))}), file)
    table = tables.open_table(tmp_path / "t.csv")
    ((found, broken),) = table.cells()
    assert (table.columns, broken) == (("id\r", "n"), {})
    read = [tables.unliteral(cell) for cell in found["id\r"]]
    assert read == [cell.replace("\0", r"\x00") for cell in cells]


# -- types of pandas -------------------------------------------------------------------------------


def types_of_pandas(frame):
    return {
        "default": frame,
        "objects": frame.astype(object),
        "nullable": frame.convert_dtypes(),
        "arrow": frame.convert_dtypes(dtype_backend="pyarrow"),
        "categories": frame.astype({"text": "category", "bit": "category", "truth": "category"}),
        "small": frame.astype({"whole": "int8", "bit": "uint8"}),
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "types", ["default", "objects", "nullable", "arrow", "categories", "small"]
)
def test_every_type_of_pandas_gives_one_schema_and_comes_back_from_file(tmp_path, types, kind):
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    plain = pd.DataFrame(
        {
            "whole": rng.integers(0, 100, 40),
            "real": rng.random(40),
            "large": rng.normal(size=40) * 1e7,
            "truth": rng.random(40) < 0.5,
            "text": rng.choice(["a", "b", "c"], 40),
            "bit": rng.integers(0, 2, 40),
        }
    )
    frame, schema = types_of_pandas(plain)[types], pp.Schema.infer(plain)
    encoded = schema.encode(plain)
    assert pp.Schema.infer(frame) == schema
    assert (schema.encode(frame) == encoded).all()
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
        assert pp.Schema.infer(guessed(next(open_table(path).cells())[0])) == schema
    else:
        frame.to_parquet(path)
    assert (schema.encode(open_table(path).read(schema)[0]) == encoded).all()
    results = tmp_path / f"results.{kind}"
    with results.open("wb") as file:
        types = {feature.name: feature_type(feature) for feature in schema.features}
        TableWriter(kind, types).write([schema.decode(encoded, like=frame)], file)
    assert (schema.encode(open_table(results).read(schema)[0]) == encoded).all()


# -- files that change after they were opened -------------------------------------------------------

CONTENT = b"a,b\n" + b"1,2\n" * 50


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(CONTENT)
    return file


def test_digest_of_unchanged_table_is_sha256_of_file(path):
    table = open_table(path)
    assert table.digest == hashlib.sha256(CONTENT).hexdigest()
    table.read(TWO)
    table.check_unchanged()


@pytest.mark.parametrize("content", [CONTENT + b"3,4\n", CONTENT[:-4], b"", None])
def test_table_that_grows_shrinks_or_disappears_is_noticed(path, content):
    table = open_table(path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with raises(TableError, name="t.csv", match="changed"):
        table.read(TWO)
    with raises(TableError, name="t.csv", match="changed"):
        table.check_unchanged()
    path.write_bytes(CONTENT)
    table.check_unchanged()


def test_changed_byte_with_restored_time_is_noticed_at_end(path):
    table, times = open_table(path), os.stat(path)
    path.write_bytes(CONTENT.replace(b"1", b"9"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with raises(TableError, name="t.csv", match="changed"):
        table.check_unchanged()


def test_no_row_is_used_after_change_between_two_chunks(path, monkeypatch):
    monkeypatch.setattr("proplace.tables.files.CHUNK", 5)
    chunks = open_table(path).cells()
    next(chunks)
    path.write_bytes(CONTENT + b"3,4\n")
    with raises(TableError, name="t.csv", match="changed"):
        next(chunks)


# -- files that gzip has packed ---------------------------------------------------------------------


def numbers_as_text(rows=50, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.random((rows, 2)), columns=["a", "b"]).to_csv(index=False)


@pytest.mark.parametrize("name", ["t.CSV.GZ", "t.csv"])
@pytest.mark.parametrize("members", [1, 3])
def test_packed_table_is_table(tmp_path, name, members):
    content = numbers_as_text().encode()
    (tmp_path / "plain.csv").write_bytes(content)
    cut = len(content) // members + 1
    parts = [gzip.compress(content[i : i + cut]) for i in range(0, len(content), cut)]
    (tmp_path / name).write_bytes(b"".join(parts))
    found, plain = open_table(tmp_path / name), open_table(tmp_path / "plain.csv")
    assert (found.columns, found.rows) == (plain.columns, plain.rows)
    pd.testing.assert_frame_equal(found.read(TWO)[0], plain.read(TWO)[0])
    pd.testing.assert_frame_equal(found.row(TWO, 31)[0], plain.row(TWO, 31)[0])


def test_packed_file_with_another_encoding(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress("job\nköchin\n".encode("latin-1")))
    assert next(open_table(path, encoding="latin-1").cells())[0]["job"].tolist() == ["köchin"]
    with raises(TableError, name="t.csv.gz", match="line 2"):
        open_table(path)


def damaged():
    packed = bytearray(gzip.compress(numbers_as_text(2000).encode()))
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
    (tmp_path / "t.csv.gz").write_text(numbers_as_text())
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
