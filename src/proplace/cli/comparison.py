"""`--predictions`: compare the imported network with a column of predictions of the model in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from proplace.loaders.model import Model
    from proplace.schema.grid import Integers
    from proplace.tables.files import TableFile

Predictions = Annotated[
    str | None,
    typer.Option(
        help="Column with the classes that the model in use gave. A difference is an error."
    ),
]


def check_predictions(
    model: Model, table: TableFile, frames: Iterable[pd.DataFrame], column: str | None
) -> dict[str, Any]:
    """Raise if the model clearly gives a row another class than a column; return facts for JSON.

    Rows on a boundary between classes, where rounding decides, may differ. Missing cells are skipped.
    """
    import numpy as np  # noqa: PLC0415

    from proplace.core.errors import ModelMismatchError, TableError  # noqa: PLC0415
    from proplace.core.text import short  # noqa: PLC0415

    if column is None:
        return {}
    _check_column(table, column, list(model.schema.by_name))
    classes, rows, agree = np.array(model.classes, dtype=object), 0, 0
    for frame in frames:
        numbers = _class_numbers(model, table, frame, column)
        part, given = frame[numbers >= 0], classes[numbers[numbers >= 0]]
        encoded = model.schema.encode(part)
        found = classes[model.network.predict(encoded)]
        for row in model.disagreements(encoded, given):
            raise ModelMismatchError(
                f"{table.path}, row {part.index[row]}, column {short(column)}: the model in use gave "
                f"{given[row]!r}, but the imported network gives {found[row]!r}. Check that this is "
                "the model in use, that the columns are its own, and that the schema scales the "
                "numbers as in training (scaling: none, minmax or [offset, scale])",
                name=column,
                value=given[row],
                row=int(part.index[row]),
            )
        rows, agree = rows + len(given), agree + int((found == given).sum())
    if not rows:
        raise TableError(
            f"{table.path}, column {short(column)}: every cell is missing", name=column
        )
    common.note(f"model and column {short(column)} agree in {agree:,} of {rows:,} rows")
    return {"predictions": {"column": column, "rows": rows, "agree": agree}}


def _check_column(table: TableFile, column: str, features: list[str]) -> None:
    """Raise unless a column with classes is in the table and is not a feature."""
    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.core.text import did_you_mean, listing  # noqa: PLC0415

    if column not in table.columns:
        hint = did_you_mean(column, table.columns)
        raise TableError(
            f"{table.path}: there is no column {column!r}{hint}; the file has "
            f"{listing(table.columns)}",
            name=column,
        )
    if column in features:
        raise TableError(
            f"{table.path}: {column!r} is a feature of the model, not a prediction", name=column
        )


def _class_numbers(model: Model, table: TableFile, frame: pd.DataFrame, column: str) -> Integers:
    """Return the number of each row's class, and -1 if its cell is missing."""
    import numpy as np  # noqa: PLC0415

    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.core.text import listing, short  # noqa: PLC0415
    from proplace.schema.values import codes  # noqa: PLC0415
    from proplace.tables.files import CsvTable, labels_of  # noqa: PLC0415

    cells = frame[column]
    if isinstance(table, CsvTable):
        cells = labels_of(cells, model.classes)
    numbers = codes(cells, model.classes)
    for n in np.flatnonzero((numbers < 0) & cells.notna()).tolist():
        row, cell = int(frame.index[n]), cells.iloc[n]
        raise TableError(
            f"{table.path}, row {row}, column {short(column)}: {short(cell)} is not a class of the "
            f"model; its classes are {listing(model.classes)}",
            name=column,
            value=cell,
            row=row,
        )
    return numbers
