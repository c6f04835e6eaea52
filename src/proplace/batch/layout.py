"""The table of results: its columns, and how answers become lines of it."""

from __future__ import annotations

import csv
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from proplace.core.errors import require
from proplace.explain.record import AnswerColumns
from proplace.tables.writing import TableWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from proplace.batch.shards import Range
    from proplace.explain.results import Explanation, Setting
    from proplace.schema import Schema
    from proplace.schema.values import BadRow
    from proplace.tables.files import TableFile
    from proplace.tables.writing import Format


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

    def told(self, explanation: Explanation, ids: Sequence[str]) -> Explanation:
        """Return an answer with the cells that say whose it is, and why a row has none."""
        row: Any = explanation.index
        bad = self.broken.get(row)
        return replace(
            explanation,
            ids={name: self.frame.loc[row, name] for name in ids},
            reason=explanation.reason if bad is None else bad.reason,
        )


@dataclass(frozen=True)
class Layout:
    """The results of a batch: the columns, and how they are written."""

    columns: AnswerColumns
    writer: TableWriter

    @classmethod
    def of(cls, setting: Setting, ids: Sequence[str], kind: Format, source: TableFile) -> Layout:
        """Columns for the answers of a setting and the id columns of a table."""
        columns = AnswerColumns.of(list(setting.schema.by_name), ids)
        types = source.arrow_types(ids) if kind == "parquet" else {}
        return cls(columns, TableWriter(kind, columns.types(setting, types)))

    def content(self, answers: Iterable[Explanation]) -> bytes:
        """Answers as the bytes of a file, one line each."""
        records = [{self.columns.row: e.index, **self.columns.record(e)} for e in answers]
        frame = pd.DataFrame(records, columns=list(self.writer.types), dtype=object)
        return self.writer.content(frame)

    def statuses(self, results: Path) -> dict[str, int]:
        """Count people by status."""
        status, rank = self.columns.facts["status"], self.columns.facts["rank"]
        if self.writer.kind == "csv":
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
