"""Tables: CSV against the csv module of the standard library, Parquet against its own numbers."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pandas as pd

import proplace as pp
from fuzz.mutate import NUMERALS, WORDS, damaged, some
from fuzz.reader import Reader
from proplace.core.errors import ProplaceError
from proplace.tables.files import MISSING, open_table

_SCHEMA = pp.Schema(
    [
        pp.Continuous("age", 0, 90, step=1),
        pp.Continuous("debt", scaling="none"),
        pp.Categorical("job", ["clerk", "manager", 3]),
        pp.Binary("married", [False, True]),
    ]
)
_FRAME = pd.DataFrame(
    {
        "age": [30, 41, 55],
        "debt": [0.5, -1e-3, 7.0],
        "job": ["clerk", "manager", "3"],
        "married": [True, False, True],
        "id": ["a", "b,c", 'd"e'],
    }
)
_CELLS = (
    *WORDS,
    *NUMERALS,
    *sorted(MISSING),
    *("x" * 110_000, '"', '""', "a,b", "True", "TRUE", "1.0", "3", " 3", "3 "),
)


def _columns(table):
    table.check_columns(list(_SCHEMA.by_name), others=["id"])


class CsvTables(Reader):
    """CSV files."""

    name = "csv"
    suffix = ".csv"

    def prepare(self, folder):
        text = _FRAME.to_csv(index=False)
        self._rows = list(csv.reader(io.StringIO(text)))
        self._seeds = [text.encode(), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()]

    def seeds(self):
        return self._seeds

    def make(self, rng):
        if rng.random() < 0.3:
            return damaged(rng, rng.choice(self._seeds), self._seeds)
        rows = [list(row) for row in self._rows]
        for _ in range(some(rng, 6)):
            i, kind = rng.randrange(len(rows)), rng.randrange(7)
            if kind <= 3 and rows[i]:
                rows[i][rng.randrange(len(rows[i]))] = rng.choice(_CELLS)
            elif kind == 4:
                rows.insert(i, list(rng.choice(rows)))
            elif kind == 5 and rows[i]:
                del rows[i][rng.randrange(len(rows[i]))]
            elif rng.random() < 0.1:
                rows[i] = rows[i] * rng.choice((2, 50))
            else:
                rows[i].append(rng.choice(_CELLS))
        out = io.StringIO()
        quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        writer = csv.writer(
            out, quoting=quoting, lineterminator=rng.choice(("\n", "\r\n", "\r", "\n\n"))
        )
        writer.writerows(rows)
        data = out.getvalue().encode("utf-8", "surrogatepass")
        return damaged(rng, data) if rng.random() < 0.1 else data

    def read(self, path, data):
        table = open_table(path)
        cells = [part for part, _ in table.cells()]
        try:
            _columns(table)
        except ProplaceError:
            return table, cells, None
        frame, broken = table.read(_SCHEMA) if table.rows else (None, {})
        if frame is not None:
            _SCHEMA.encode_valid(frame)
        return table, cells, (frame, broken)

    def judge(self, data, found):
        table, cells, typed = found
        csv.field_size_limit(10**6)
        lines = [
            line
            for line in csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
            if line
        ]
        if list(table.columns) != lines[0] or table.rows != len(lines) - 1:
            return "other columns or another number of rows than the csv module reads"
        mine = [list(row) for part in cells for row in part.itertuples(index=False, name=None)]
        for line, row in zip(lines[1:], mine, strict=True):
            if len(line) == len(row) and line != row:
                return f"other cells than the csv module reads: {line} {row}"
        if typed is None or typed[0] is None:
            return None
        frame, broken = typed
        for number, line in enumerate(lines[1:]):
            if number in broken or len(line) != len(table.columns):
                if number not in broken:
                    return f"a row of another length is not called broken: {line}"
                continue
            for name in ("age", "debt"):
                text, value = line[table.columns.index(name)], frame[name].iloc[number]
                if isinstance(value, float) and not _means(text, value):
                    return f"a number is not as in the file: {text!r} became {value!r}"
        return None


def _means(text, value):
    if text in MISSING:
        return math.isnan(value)
    plain = (
        text.isascii()
        and "_" not in text
        and not text.strip().lower().lstrip("+-").startswith(("inf", "nan"))
    )
    return (plain or not math.isfinite(value)) and (float(text) == value or math.isnan(value))


class ParquetTables(Reader):
    """Parquet files."""

    name = "parquet"
    suffix = ".parquet"

    def prepare(self, folder):
        import pyarrow as arrow
        from pyarrow import parquet

        arrow.set_cpu_count(1)
        arrow.set_io_thread_count(1)
        self._parquet = parquet
        self._seeds = []
        dates = arrow.array([0, 2**62, None], arrow.timestamp("ns"))
        lists = arrow.array([[1], [], None])
        plain = arrow.Table.from_pandas(_FRAME, preserve_index=False)
        tables = [
            plain,
            plain.append_column("at", dates),
            plain.append_column("many", lists),
            plain.slice(0, 0),
        ]
        tables.append(plain.append_column("age", plain["age"]))
        for table in tables:
            for packing in ("none", "snappy"):
                whole = io.BytesIO()
                parquet.write_table(table, whole, compression=packing, row_group_size=2)
                self._seeds.append(whole.getvalue())

    def seeds(self):
        return self._seeds[:1]

    def make(self, rng):
        data = rng.choice(self._seeds)
        if rng.random() < 0.6:  # the description of the columns is at the end
            size = int.from_bytes(data[-8:-4], "little")
            at = len(data) - 8 - size
            foot = damaged(rng, data[at:-8])
            return data[:at] + foot + len(foot).to_bytes(4, "little") + b"PAR1"
        return damaged(rng, data, self._seeds)

    def read(self, path, data):
        table = open_table(path)
        cells = [part for part, _ in table.cells()]
        try:
            _columns(table)
        except ProplaceError:
            return table, cells
        if table.rows and cells:
            _SCHEMA.encode_valid(table.read(_SCHEMA)[0])
        return table, cells

    def judge(self, data, found):
        table, cells = found
        rows = sum(map(len, cells))
        if rows != table.rows:
            return f"another number of rows than the file holds: {table.rows}, {rows}"
        try:
            theirs = self._parquet.ParquetFile(io.BytesIO(data)).read().to_pandas()
        except Exception:
            return None
        if not rows or [*theirs.columns] != [*table.columns]:
            return None
        mine = pd.concat(cells)
        for name in ("age", "debt"):
            if name in mine and mine.columns.tolist().count(name) == 1:
                a, b = (
                    pd.to_numeric(frame[name], errors="coerce").to_numpy(float)
                    for frame in (mine, theirs)
                )
                if not np.array_equal(a, b, equal_nan=True):
                    return f"other numbers than pyarrow reads: {name}"
        return None
