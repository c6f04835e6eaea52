"""The table of results: its columns, and how answers become lines of it."""

from __future__ import annotations

import csv
import io
from collections import Counter, deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

import pandas as pd

from proplace.optional import require
from proplace.schema import Continuous
from proplace.table_files import plain, write_csv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from proplace.batch.shards import Range
    from proplace.explanations import Explanation
    from proplace.schema import Schema
    from proplace.schema.features import Binary, Categorical, Ordinal
    from proplace.schema.problems import BadRow
    from proplace.table_files import TableFile

Format = Literal["csv", "parquet"]
FACTS = ("status", "distance", "bound", "margin", "rank", "reason")


class Rows:
    """Pieces of a table that are to be explained, and the one that is being explained.

    The table is read once, in chunks; rows outside the ranges (in order) are passed over.
    """

    def __init__(self, source: TableFile, schema: Schema, ranges: Sequence[Range]) -> None:
        self._source, self._schema, self._ranges = source, schema, ranges
        self.frame = pd.DataFrame()
        self.broken: dict[int, BadRow] = {}

    def __iter__(self) -> Iterator[pd.DataFrame]:
        ahead = deque(self._ranges)
        for frame, broken in self._source.frames(self._schema, ahead[0][0]):
            self.broken = broken
            first, end = int(frame.index[0]), int(frame.index[-1]) + 1
            while ahead and ahead[0][0] < end:
                start, stop = ahead.popleft()
                self.frame = frame.iloc[max(start, first) - first : min(stop, end) - first]
                yield self.frame
                if stop > end:  # it goes on in the next chunk
                    ahead.appendleft((end, stop))
                    break
            if not ahead:
                return

    def reason(self, explanation: Explanation) -> str:
        """Why a row has no answer; where it is stands beside it already."""
        row: Any = explanation.index
        bad = self.broken.get(row)
        return explanation.reason if bad is None else bad.reason


@dataclass(frozen=True)
class Layout:
    """Columns of the results: number of the row, ids, features, facts.

    Where an id or a feature has the name of another column of the results, that one gets the prefix
    ``ce_``.
    """

    schema: Schema
    ids: tuple[str, ...]
    names: dict[str, str]
    kind: Format
    id_types: dict[str, Any]

    @classmethod
    def of(cls, schema: Schema, ids: Sequence[str], kind: Format, source: TableFile) -> Layout:
        """Columns for a schema and the id columns of a table."""
        taken = {*ids, *schema.by_name}
        names = {name: f"ce_{name}" if name in taken else name for name in ("row", *FACTS)}
        types: dict[str, Any] = {}
        if kind == "parquet":
            types = source.arrow_types(ids)
        return cls(schema, tuple(ids), names, kind, types)

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in order."""
        facts = [self.names[name] for name in FACTS]
        return [self.names["row"], *self.ids, *self.schema.by_name, *facts]

    def frame(self, part: Iterable[Explanation], rows: Rows) -> pd.DataFrame:
        """One line per answer."""
        records = []
        for e in part:
            record: dict[str, Any] = {self.names["row"]: e.index}
            row: Any = e.index
            record.update({name: rows.frame.loc[row, name] for name in self.ids})
            if e.counterfactual is not None:
                for name, feature in self.schema.by_name.items():
                    record[name] = plain(e.counterfactual[name], feature)
            record.update({self.names[name]: getattr(e, name) for name in FACTS})
            record[self.names["reason"]] = rows.reason(e)
            records.append(record)
        return pd.DataFrame(records, columns=self.columns, dtype=object)

    # -- files of it -------------------------------------------------------------------------------

    def content(self, frame: pd.DataFrame) -> bytes:
        """Answers as the bytes of a file."""
        file = io.BytesIO()
        if self.kind == "csv":
            write_csv(frame, file)
            return file.getvalue()
        for name, feature in self.schema.by_name.items():
            if not isinstance(feature, Continuous) and _mixed(feature):
                frame[name] = frame[name].map(str, na_action="ignore")
        arrow = require("pyarrow", "parquet", "writing Parquet files")
        table = arrow.Table.from_pandas(frame, schema=self._arrow_schema(), preserve_index=False)
        require("pyarrow.parquet", "parquet", "writing Parquet files").write_table(table, file)
        return file.getvalue()

    def join(self, contents: Iterable[bytes], file: IO[bytes]) -> None:
        """Put the contents of files together, one after the other."""
        if self.kind == "csv":
            head = self.content(pd.DataFrame(columns=self.columns))
            file.write(head)
            for content in contents:
                file.write(content[len(head) :])
            return
        parquet = require("pyarrow.parquet", "parquet", "writing Parquet files")
        with parquet.ParquetWriter(file, self._arrow_schema()) as writer:
            for content in contents:
                part = io.BytesIO(content)
                writer.write_table(parquet.read_table(part, schema=self._arrow_schema()))

    def statuses(self, results: Path) -> dict[str, int]:
        """Count people by status."""
        status, rank = self.names["status"], self.names["rank"]
        if self.kind == "csv":
            with results.open(encoding="utf-8", newline="") as file:
                return dict(
                    Counter(row[status] for row in csv.DictReader(file) if row[rank] == "0")
                )
        parquet = require("pyarrow.parquet", "parquet", "reading Parquet files")
        counts: Counter[str] = Counter()
        with parquet.ParquetFile(results) as file:
            for batch in file.iter_batches(columns=[status, rank]):
                frame = batch.to_pandas()
                counts.update(frame.loc[frame[rank] == 0, status])
        return dict(counts)

    def _arrow_schema(self) -> Any:
        arrow = require("pyarrow", "parquet", "writing Parquet files")
        types = {self.names["row"]: arrow.int64(), **self.id_types}
        for name, feature in self.schema.by_name.items():
            if isinstance(feature, Continuous):
                types[name] = arrow.int64() if feature.whole else arrow.float64()
            else:
                types[name] = (
                    arrow.string() if _mixed(feature) else arrow.array(feature.labels).type
                )
        for name in FACTS:
            types[self.names[name]] = (
                arrow.string()
                if name in ("status", "reason")
                else arrow.int64()
                if name == "rank"
                else arrow.float64()
            )
        return arrow.schema(list(types.items()))


def _mixed(feature: Categorical | Binary | Ordinal) -> bool:
    """Whether labels are of several types, which one column of a Parquet file cannot hold."""
    return len({type(label) for label in feature.labels}) > 1
