"""Tables in files: CSV and Parquet, read in chunks, so that a file may be larger than memory.

CSV cells are text. They become numbers and labels through a schema, cell by cell, so that one bad
cell makes one invalid row, not a column of text.

The digest of a file is taken when it is opened. A change during the run is an error (FileDigest).
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from proplace.core import limits
from proplace.core.errors import TableError, require
from proplace.core.text import VALUE, clipped, did_you_mean, listing, short
from proplace.schema import Continuous, Schema
from proplace.schema.values import BadRow

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

CHUNK = 2_000  # rows at a time, fewer if they are wide or long
MISSING = frozenset(("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>"))
_NUMBER = re.compile(r"[ \t]*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[ \t]*")
_CODE = re.compile(r"[ \t]*[-+]?0[0-9]")  # such as 017: a name, not a number
# Ends a line while a table is written. Cells with a character of it get quotes, also a carriage
# return, which ends a line for many readers. No text has a NUL (see _Lines).
_LINE = "\r\n\0"
_GZIP = b"\x1f\x8b"  # the first bytes of every gzip file, and of no text
_DELIMITERS = (",", ";", "\t", "|")
# Text that a spreadsheet would run, and the plain numbers among it.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def open_table(
    path: str | os.PathLike[str], *, delimiter: str | None = None, encoding: str = "utf-8"
) -> TableFile:
    """Open a table by its suffix: ``.parquet`` or ``.pq``, else CSV with a line of column names.

    A CSV file may be packed with gzip (``.csv.gz``). ``delimiter`` None stands for the comma, semicolon,
    tab or bar that gives the first line the most cells, the comma before others.

    The whole file is read once, so that its problems are reported before any work.
    """
    path = Path(path)
    if not path.exists():
        raise TableError(f"{path}: no such file", name=path.name)
    if not path.is_file():
        raise TableError(f"{path}: this is not a file. Give the path of one table", name=path.name)
    if path.suffix.lower() == ".gz" and is_parquet(path.with_suffix("")):
        raise TableError(
            f"{path}: a Parquet file is packed already. Unpack this one (gunzip)", name=path.name
        )
    try:
        if is_parquet(path):
            return ParquetTable(path)
        return CsvTable(path, delimiter=delimiter, encoding=encoding)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})", name=path.name) from None


def is_parquet(path: Path) -> bool:
    """Test if a file is Parquet by its suffix."""
    return path.suffix.lower() in (".parquet", ".pq")


class FileDigest:
    """Content of a file when it was opened.

    Attributes
    ----------
    digest
        SHA-256 in hexadecimal.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._times = path, _times(path)
        self.digest = _sha256(path)

    def check_times(self) -> None:
        """Raise TableError if the size or the time of the last change differs."""
        self._check(_times, self._times)

    def check(self) -> None:
        """Raise TableError unless the file still has the same digest."""
        self._check(_sha256, self.digest)

    def _check(self, measure: Callable[[Path], object], expected: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            if measure(self._path) == expected:
                return
        raise TableError(
            f"{self._path} was changed while proplace was reading it. Restore the original file and "
            "run the same command again, or start again with the changed file in a new folder.",
            name=self._path.name,
        )


def _times(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TableFile(ABC):
    """A table in a file.

    Attributes
    ----------
    path
        The file.
    columns
        Names of its columns.
    rows
        Number of its rows.
    """

    path: Path
    columns: tuple[str, ...]
    rows: int
    _content: FileDigest

    def cells(self, start: int = 0) -> Iterator[tuple[pd.DataFrame, dict[int, BadRow]]]:
        """Yield chunks of the table from a row on, with the cells of the file.

        The index is the number of the row. The dictionary has the malformed rows, whose cells are
        missing. A file that was changed since it was opened raises TableError.
        """
        self._content.check_times()
        for chunk in self._chunks(start):
            self._content.check_times()  # no row of a changed file is used
            yield chunk

    @abstractmethod
    def _chunks(self, start: int) -> Iterator[tuple[pd.DataFrame, dict[int, BadRow]]]:
        """Yield chunks of the table from a row on."""

    @abstractmethod
    def typed(self, series: pd.Series[Any], feature: AnyFeature) -> pd.Series[Any]:
        """Convert cells of one column to values of a feature. Other cells stay unchanged."""

    @abstractmethod
    def arrow_types(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the types of some columns for a Parquet file."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file when it was opened, in hexadecimal."""
        return self._content.digest

    def check_unchanged(self) -> None:
        """Raise TableError unless the content of the file is still the content when it was opened."""
        self._content.check()

    @property
    def reading(self) -> dict[str, str]:
        """Options needed to read the file again."""
        return {}

    def frames(
        self, schema: Schema, start: int = 0
    ) -> Iterator[tuple[pd.DataFrame, dict[int, BadRow]]]:
        """Yield chunks from a row on, with the columns of the schema converted to its values."""
        for frame, broken in self.cells(start):
            values = {
                name: self.typed(frame[name], schema.by_name[name])
                if name in schema.by_name
                else frame[name]
                for name in frame.columns
            }
            yield pd.DataFrame(values, index=frame.index), broken

    def read(self, schema: Schema) -> tuple[pd.DataFrame, dict[int, BadRow]]:
        """Return the whole table and the malformed rows."""
        parts = list(self.frames(schema))
        broken = {row: bad for _, more in parts for row, bad in more.items()}
        return pd.concat([frame for frame, _ in parts]), broken

    def row(self, schema: Schema, number: int) -> tuple[pd.DataFrame, dict[int, BadRow]]:
        """Return one row, as :meth:`frames` does."""
        if not 0 <= number < self.rows:
            raise TableError(
                f"{self.path}: there is no row {number}; rows are numbered from 0 to {self.rows - 1}",
                name=self.path.name,
                row=number,
            )
        frame, broken = next(self.frames(schema, number))
        return frame.iloc[:1], {row: bad for row, bad in broken.items() if row == number}

    def check_columns(self, needed: Sequence[str], *, others: Sequence[str]) -> None:
        """Raise unless the columns are those needed and, at most, the ``others``."""
        present, known = set(self.columns), {*needed, *others}
        missing = [name for name in needed if name not in present]
        extra = [name for name in self.columns if name not in known]
        if missing:
            words = [f"{short(name)}{did_you_mean(name, extra)}" for name in missing[:5]]
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise TableError(
                f"{self.path}: {'columns are' if len(missing) > 1 else 'a column is'} missing: "
                f"{', '.join(words)}{more}; the file has {listing(self.columns)}{self.hint()}",
                name=missing[0],
            )
        if extra:
            raise TableError(
                f"{self.path}: {listing(extra)} "
                f"{'are not features' if extra[1:] else 'is not a feature'}. Name columns to keep "
                "beside the results in tables.id of the project file (explain: --id), and columns to "
                "leave out in tables.drop (explain: --drop)",
                name=extra[0],
            )

    def _check_width(self) -> None:
        """Raise if there are more columns than any table has."""
        if len(self.columns) > limits.TABLE_COLUMNS:
            raise TableError(
                f"{self.path}: {len(self.columns):,} columns where a table has at most "
                f"{limits.TABLE_COLUMNS:,}; are rows and columns exchanged?",
                name=self.path.name,
            )

    def _check_names(self) -> None:
        """Raise if two columns have one name."""
        twice = next((name for name, count in Counter(self.columns).items() if count > 1), None)
        if twice is not None:
            raise TableError(f"{self.path}: two columns are called {short(twice)}", name=twice)

    @property
    def _chunk_rows(self) -> int:
        """Rows at a time."""
        return max(1, min(CHUNK, limits.CHUNK_CELLS // max(1, len(self.columns))))

    def hint(self) -> str:
        """Return advice about another delimiter, or nothing."""
        return ""


class CsvTable(TableFile):
    """A CSV file, plain or packed with gzip, whose first line names the columns."""

    def __init__(self, path: Path, *, delimiter: str | None, encoding: str) -> None:
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"\0'):
            raise TableError(
                f"the delimiter must be one character and no quote or end of line, not "
                f"{short(delimiter)}",
                name="delimiter",
                value=delimiter,
            )
        self.path = path
        self._content = FileDigest(path)
        self._packed = self._is_packed()
        # Spreadsheets put a mark at the start of UTF-8 files.
        self._encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
        self._delimiter = self._found_delimiter() if delimiter is None else delimiter
        records = self._records()
        names = next(records, None)
        if names is None:
            raise TableError(
                f"{path}: the file is empty. Its first line must name the columns", name=path.name
            )
        self.columns = tuple(names)
        self._check_width()
        self._check_names()
        self.rows = sum(1 for _ in records)

    def _chunks(self, start: int) -> Iterator[tuple[pd.DataFrame, dict[int, BadRow]]]:
        """Yield chunks of text cells."""
        width, first = len(self.columns), start
        records = itertools.islice(self._records(), 1 + start, None)
        while block := self._block(records):
            broken = {
                first + n: BadRow(
                    first + n,
                    None,
                    f"{len(line)} cells where the first line of the file names {width}",
                )
                for n, line in enumerate(block)
                if len(line) != width
            }
            for row in broken:
                block[row - first] = [""] * width
            index = pd.RangeIndex(first, first + len(block))
            yield pd.DataFrame(block, columns=list(self.columns), index=index, dtype=object), broken
            first += len(block)

    def _block(self, records: Iterator[list[str]]) -> list[list[str]]:
        """Return the next rows, as many as may be in memory at once."""
        block: list[list[str]] = []
        characters = 0
        for record in itertools.islice(records, self._chunk_rows):
            block.append(record)
            characters += len(record) + sum(map(len, record))
            if characters > limits.CHUNK_CHARACTERS:
                break
        return block

    def typed(self, series: pd.Series[Any], feature: AnyFeature) -> pd.Series[Any]:
        """Convert text to the numbers or labels of a feature."""
        return typed_text(series, feature)

    @property
    def reading(self) -> dict[str, str]:
        """Delimiter and encoding, the latter by its one proper name."""
        return {"delimiter": self._delimiter, "encoding": codecs.lookup(self._encoding).name}

    def arrow_types(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the type of text."""
        return dict.fromkeys(names, require("pyarrow", "parquet", "Parquet files").string())

    def _found_delimiter(self) -> str:
        """Return the delimiter with the most cells in the first line, the comma before others."""
        return max(_DELIMITERS, key=self._width)

    def _width(self, delimiter: str) -> int:
        """Count the cells of the first line with a delimiter, 0 if the line is not CSV with it."""
        try:
            return len(next(self._records(delimiter), ()))
        except TableError:  # raised again when the file is read
            return 0

    def _records(self, delimiter: str | None = None) -> Iterator[list[str]]:
        """Yield the cells of each line that is not blank."""
        csv.field_size_limit(limits.TABLE_CELL)
        with self._bytes() as content, self._text(content) as file:
            lines = _Lines(file)
            reader = csv.reader(lines, delimiter=delimiter or self._delimiter, strict=True)
            try:
                for record in reader:
                    lines.characters = 0
                    if record:
                        yield record
            except csv.Error as error:
                line = f"{self.path}, line {reader.line_num}"
                raise TableError(
                    f"{line}: {self._trouble(str(error))}", name=self.path.name
                ) from None
            except _BadLine as error:
                raise TableError(
                    f"{self.path}, line {reader.line_num + 1}: {error}", name=self.path.name
                ) from None
            except UnicodeError:
                raise TableError(
                    f"{self.path}{self._undecodable()}: the text is not "
                    f"{self._encoding.removesuffix('-sig')}. Save the file as UTF-8 or name its "
                    "encoding, such as tables.encoding: latin-1",
                    name=self.path.name,
                ) from None

    def _text(self, content: IO[bytes]) -> IO[str]:
        try:
            return io.TextIOWrapper(content, encoding=self._encoding, newline="")
        except (LookupError, ValueError):
            raise TableError(
                f"there is no encoding {short(self._encoding)}. Try utf-8",
                name="encoding",
                value=self._encoding,
            ) from None

    @contextlib.contextmanager
    def _bytes(self) -> Iterator[IO[bytes]]:
        """Open the file, unpacked if gzip has packed it."""
        try:
            with gzip.open(self.path) if self._packed else self.path.open("rb") as file:
                yield cast("IO[bytes]", file)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TableError(
                f"{self.path}: the file is packed with gzip, and damaged ({error}). Pack it again",
                name=self.path.name,
            ) from None

    def _is_packed(self) -> bool:
        """Test if gzip has packed the file, by its first bytes."""
        with self.path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        if self.path.suffix.lower() == ".gz" and not packed:
            raise TableError(
                f"{self.path}: the name ends in .gz, but the file is not packed. Pack it with gzip, "
                "or call it .csv",
                name=self.path.name,
            )
        return packed

    def _trouble(self, text: str) -> str:
        if "field larger" in text:
            return f"a cell has more than {limits.TABLE_CELL:,} characters; is a quote left open?"
        return f"this is not CSV ({text})"

    def _undecodable(self) -> str:
        """Return the first line that cannot be decoded, for encodings that keep line ends."""
        with self._bytes() as file:
            for number in itertools.count(1):
                line = file.readline(limits.TABLE_ROW)
                if len(line) in (0, limits.TABLE_ROW):
                    return ""
                try:
                    line.decode(self._encoding)
                except UnicodeError:
                    return f", line {number}"
        return ""

    def hint(self) -> str:
        """Return advice if another delimiter gives the first line more cells."""
        found = self._found_delimiter()
        if self._width(found) <= len(self.columns):
            return ""
        shown = "a tab" if found == "\t" else repr(found)
        return f"; do cells end at {shown}? Then leave tables.delimiter out: it is detected"


class _BadLine(Exception):
    """A line that is not part of any table."""


class _Lines:
    """Lines of a text file for the CSV reader, with a limit on the length of a row."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.characters = 0  # of the row that is being read, which may go on over several lines

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(limits.TABLE_ROW + 1)
        if not line:
            raise StopIteration
        self.characters += len(line)
        if self.characters > limits.TABLE_ROW:
            raise _BadLine(
                f"a row has more than {limits.TABLE_ROW:,} characters; does the file have line ends, "
                "or is a quote left open?"
            )
        if "\0" in line:
            raise _BadLine(
                "there is a NUL character, which no text has; is the file damaged, or its encoding "
                "another, such as tables.encoding: utf-16?"
            )
        return line


class ParquetTable(TableFile):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        require("pyarrow", "parquet", "reading Parquet files")
        self._parquet = require("pyarrow.parquet", "parquet", "reading Parquet files")
        self._content = FileDigest(path)
        with self._open() as file:
            self.columns = tuple(file.schema_arrow.names)
            self._types = dict(zip(self.columns, file.schema_arrow.types, strict=True))
            claimed = int(file.metadata.num_rows)
        self._check_width()
        self._check_names()
        # Counted, because the number in the file may be false.
        self.rows = sum(len(batch) for batch in self._batches())
        if self.rows != claimed:
            raise self._damaged(f"it says that it has {claimed:,} rows and has {self.rows:,}")

    def _chunks(self, start: int) -> Iterator[tuple[pd.DataFrame, dict[int, BadRow]]]:
        """Yield chunks of the values in the file."""
        first = 0
        for batch in self._batches():
            # Metadata of pandas about types and index are not part of the table.
            with self._readable():
                frame = batch.replace_schema_metadata(None).to_pandas()
            frame.index = pd.RangeIndex(first, first + len(frame))
            first += len(frame)
            if first > start:
                yield frame[frame.index >= start], {}

    def _batches(self) -> Iterator[Any]:
        """Yield pieces of the file, in the types of pyarrow."""
        with self._open() as file:
            for batch in file.iter_batches(batch_size=self._chunk_rows):
                batch.validate(full=True)  # text that is no text, places outside of the column
                yield batch

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        with self._readable(), self._parquet.ParquetFile(self.path) as file:
            yield file

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn any exception of pyarrow into a TableError."""
        try:
            yield
        except TableError:
            raise
        except Exception as error:
            raise self._damaged(str(error) or type(error).__name__) from None

    def _damaged(self, why: str) -> TableError:
        words = clipped(" ".join(why.split()), 2 * VALUE)
        return TableError(
            f"{self.path}: this is not a Parquet file, or a damaged one ({words}). Write it again",
            name=self.path.name,
        )

    def typed(self, series: pd.Series[Any], feature: AnyFeature) -> pd.Series[Any]:
        """Return the values, which have types already."""
        return series

    def arrow_types(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the types in the file."""
        return {name: self._types[name] for name in names}


# -- text and values -------------------------------------------------------------------------------


def typed_text(series: pd.Series[Any], feature: AnyFeature) -> pd.Series[Any]:
    """Convert text to the numbers or labels of a feature. Other text stays text."""
    if isinstance(feature, Continuous):
        return numbers_of(series)
    return labels_of(series, feature.labels)


def numbers_of(series: pd.Series[Any]) -> pd.Series[Any]:
    """Convert text to floats, NaN for missing cells. Other text stays text."""
    values = [_number(text) for text in series]
    kind = object if any(isinstance(value, str) for value in values) else np.float64
    return pd.Series(values, index=series.index, dtype=kind)


def _number(text: str) -> float | str:
    """Convert decimal digits alone: Python also reads 1_000, inf and digits of other scripts."""
    if text in MISSING:
        return np.nan
    return float(text) if _NUMBER.fullmatch(text) else text


def labels_of(series: pd.Series[Any], known: Sequence[Label]) -> pd.Series[Any]:
    """Convert text to labels by their spelling, else by their value as a number or a boolean."""
    value = {text: _label(text, known) for text in series.unique()}
    return pd.Series([value[text] for text in series], index=series.index, dtype=object)


def _label(text: str, known: Sequence[Label]) -> Label | None:
    for label in known:
        if str(label) == text or (isinstance(label, bool) and str(label) == text.capitalize()):
            return label
    for label in known:
        if literal(str(label)) == text:  # as write_csv writes it
            return label
    number = _number(text)
    for label in known:
        if not isinstance(label, str) and label == number:
            return label
    return None if text in MISSING else text


def guessed(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert columns of text to numbers or booleans if every cell is one, to draft a schema.

    Codes with leading zeros such as 017 stay text, because numbers would lose the zeros.
    """
    columns = {}
    for name in frame.columns:
        text = frame[name]
        values = numbers_of(text)
        words = {cell.capitalize() for cell in text if cell not in MISSING}
        if values.dtype != object and not any(_CODE.match(cell) for cell in text):
            columns[name] = values
        elif words <= {"True", "False"}:
            columns[name] = text.str.capitalize().map({"True": True, "False": False})
        else:
            columns[name] = text.where(~text.isin(list(MISSING)), None)
    return pd.DataFrame(columns, index=frame.index)


def plain(value: Any, feature: AnyFeature) -> Any:
    """Return a value of a feature as a Python object, with whole numbers as int.

    A person's own number need not be whole.
    """
    if isinstance(feature, Continuous):
        return int(value) if feature.whole and value == int(value) else float(value)
    return next(label for label in feature.labels if label == value)


# -- pandas' own types -----------------------------------------------------------------------------

_BEFORE_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)


def read_csv(source: str | os.PathLike[str] | IO[bytes]) -> pd.DataFrame:
    """Read a CSV table with pandas' types and each number as the float nearest to its text.

    pandas before 3.1 rounds otherwise by default. Later versions warn about the option.
    """
    if _BEFORE_EXACT:
        return pd.read_csv(source, float_precision="round_trip")
    return pd.read_csv(source)


# -- writing ---------------------------------------------------------------------------------------


def write_csv(frame: pd.DataFrame, file: IO[bytes], *, header: bool = True) -> None:
    """Write a table as CSV in UTF-8, with nothing in missing cells.

    Text that a spreadsheet would run as a formula gets an apostrophe (see :func:`literal`).
    """
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator=_LINE)
    if header:
        writer.writerow([_shown(str(name)) for name in frame.columns])
    columns = [[_shown(cell) for cell in frame[name].tolist()] for name in frame.columns]
    writer.writerows(zip(*columns, strict=True))
    file.write(lines.getvalue().replace(_LINE, "\n").encode("utf-8"))


def _shown(cell: Any) -> Any:
    """Return the text of a cell: nothing for a missing one, with NUL spelt out."""
    if pd.api.types.is_scalar(cell) and pd.isna(cell):
        return ""
    return literal(cell.replace("\0", r"\x00") if isinstance(cell, str) else cell)


def literal(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would run. Other cells are unchanged.

    Such text begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return, and is not a plain
    number. Text that seems to have the apostrophe already gets one more, so that :func:`unliteral`
    always returns the original.

    Examples
    --------
    >>> [literal(cell) for cell in ("=1+1", "-5", "- none -", "it's", -5.0)]
    ["'=1+1", '-5', "'- none -", "it's", -5.0]
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unliteral(cell: str) -> str:
    """Undo :func:`literal`.

    Examples
    --------
    >>> [unliteral(literal(cell)) for cell in ("=1+1", "-5", "'=x", "it's", "'-5")]
    ['=1+1', '-5', "'=x", "it's", "'-5"]
    """
    rest = cell[1:]
    return rest if cell.startswith("'") and literal(rest) == cell else cell
