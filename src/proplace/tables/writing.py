"""Tables of results in CSV and Parquet files, for all commands."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

import pandas as pd

from proplace.core.errors import require
from proplace.schema import Continuous
from proplace.tables.files import write_csv

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

Format = Literal["csv", "parquet"]


def free_names(ours: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return names for columns of results that differ from the names of a user's columns.

    A name that is taken gets the prefix ``ce_``, as often as it must.

    Examples
    --------
    >>> free_names(["row", "status", "margin"], taken=["status", "margin", "ce_margin"])
    {'row': 'row', 'status': 'ce_status', 'margin': 'ce_ce_margin'}
    """
    used, names = set(taken), {}
    for name in ours:
        free = name
        while free in used:
            free = f"ce_{free}"
        used.add(free)
        names[name] = free
    return names


def labels_type(labels: Sequence[Label]) -> type:
    """Return the type of a column of labels, which is text for several types."""
    kinds = {
        next(kind for kind in (bool, int, float, str) if isinstance(label, kind))
        for label in labels
    }
    return kinds.pop() if len(kinds) == 1 else str


def feature_type(feature: AnyFeature) -> type:
    """Return the type of a column of a feature's values.

    Numbers are floats, because a person's own number need not be whole.
    """
    if isinstance(feature, Continuous):
        return float
    return labels_type(feature.labels)


@dataclass(frozen=True)
class TableWriter:
    """Writes tables with the same columns, whole or in pieces.

    Parameters
    ----------
    kind
        Format of the file.
    types
        Type of each column, in order: ``str``, ``int``, ``float``, ``bool``, or a type of pyarrow. CSV
        files have no types.
    """

    kind: Format
    types: Mapping[str, Any]

    def content(self, frame: pd.DataFrame) -> bytes:
        """Return a piece of a table as the bytes of a file of its own."""
        file = io.BytesIO()
        self.write([frame], file)
        return file.getvalue()

    def write(self, parts: Iterable[pd.DataFrame], file: IO[bytes]) -> None:
        """Write a table piece by piece."""
        if self.kind == "csv":
            write_csv(pd.DataFrame(columns=list(self.types)), file)
            for part in parts:
                write_csv(part[list(self.types)], file, header=False)
            return
        arrow, parquet = _pyarrow()
        schema = self._schema()
        with parquet.ParquetWriter(file, schema) as writer:
            for part in parts:
                table = self._tidy(part)
                writer.write_table(
                    arrow.Table.from_pandas(table, schema=schema, preserve_index=False)
                )

    def join(self, contents: Iterable[bytes], file: IO[bytes]) -> None:
        """Join the contents of several files."""
        if self.kind == "csv":
            head = self.content(pd.DataFrame(columns=list(self.types)))
            file.write(head)
            for content in contents:
                file.write(content[len(head) :])
            return
        _, parquet = _pyarrow()
        schema = self._schema()
        with parquet.ParquetWriter(file, schema) as writer:
            for content in contents:
                writer.write_table(parquet.read_table(io.BytesIO(content), schema=schema))

    def _tidy(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table whose columns of text hold text only."""
        text = [name for name, kind in self.types.items() if kind is str]
        return frame.assign(**{name: frame[name].map(str, na_action="ignore") for name in text})

    def _schema(self) -> Any:
        arrow, _ = _pyarrow()
        known = {
            str: arrow.string(),
            int: arrow.int64(),
            float: arrow.float64(),
            bool: arrow.bool_(),
        }
        return arrow.schema([(name, known.get(kind, kind)) for name, kind in self.types.items()])


def _pyarrow() -> tuple[Any, Any]:
    purpose = "writing Parquet files"
    return require("pyarrow", "parquet", purpose), require("pyarrow.parquet", "parquet", purpose)
