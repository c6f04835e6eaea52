"""What is wrong with a row of a table, as a value: where it is, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import SchemaError
from proplace.core.text import short

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used; ``str`` of it says where and why, ``reason`` only why.

    Attributes
    ----------
    row
        Position of the row in its table, from 0.
    column
        Name of the column with the first bad cell; None where the row as a whole is bad.
    text
        What is wrong there.
    index
        Label of the row in its table; None where rows have none but their position.

    Examples
    --------
    >>> bad = BadRow(2, "age", "200 is above the upper bound 90", "Ann")
    >>> print(bad)
    row 2 (index 'Ann'), column 'age': 200 is above the upper bound 90
    >>> bad.reason
    "column 'age': 200 is above the upper bound 90"
    """

    row: int
    column: str | None
    text: str
    index: Hashable = None

    @property
    def reason(self) -> str:
        """Why the row is bad, for a reader who knows which row this is."""
        return self.text if self.column is None else f"column {short(self.column)}: {self.text}"

    def __str__(self) -> str:
        label = self.index.item() if isinstance(self.index, np.generic) else self.index
        known = label is None or label == self.row
        where = f"row {self.row}" if known else f"row {self.row} (index {short(label)})"
        return f"{where}{': ' if self.column is None else ', '}{self.reason}"


def left_out(problems: Mapping[int, BadRow], rows: int, table: str) -> str:
    """Say how many rows of a training table are left out, and why the first.

    A table of which no row is left raises a ``SchemaError``.

    Examples
    --------
    >>> left_out({1: BadRow(1, "age", "the cell is missing")}, 3, "train.csv")
    "train.csv: 1 of 3 rows are left out; the first: row 1, column 'age': the cell is missing"
    """
    first = problems[min(problems)]
    if len(problems) == rows:
        raise SchemaError(
            f"{table}: no row can be used; the first: {first}", name=first.column, row=first.row
        )
    return f"{table}: {len(problems)} of {rows} rows are left out; the first: {first}"


def refuse(problems: Mapping[int, BadRow]) -> None:
    """Raise a ``SchemaError`` about the first of some bad rows."""
    if not problems:
        return
    rest = len(problems) - 1
    more = f"{rest} more row{' has' if rest == 1 else 's have'} problems"
    tail = f" ({more}; see Schema.problems)" if rest else ""
    first = problems[min(problems)]
    raise SchemaError(f"{first}{tail}", name=first.column, row=first.row)
