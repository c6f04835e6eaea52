"""Reading of tables, models and shift sets for the commands, with notes about them."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pandas as pd

    from proplace.core.network import Network
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.project import Project
    from proplace.schema import Schema
    from proplace.schema.grid import Integers
    from proplace.tables.files import TableFile

_MOST = 5  # parameters outside their intervals that are named


def note(text: str) -> None:
    """Print a remark beside the results."""
    tell(f"note: {text}")


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each warning of the library once, as a note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        note(text)


@contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Write a new file: raise one sentence if it exists or cannot be written."""
    from proplace.core.errors import OutputError  # noqa: PLC0415  (quick help)

    if path.exists():
        raise OutputError(f"{path} exists. Give another name, or remove it", name=path.name)
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path} cannot be written ({reason})", name=path.name) from error


# -- tables ----------------------------------------------------------------------------------------


def training_rows(table: TableFile, schema: Schema, others: Iterable[str]) -> pd.DataFrame:
    """Read the usable rows of a table, and print a note about the others."""
    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.schema.values import left_out  # noqa: PLC0415

    table.check_columns(list(schema.by_name), others=list(others))
    if not table.rows:
        raise TableError(f"{table.path}: there are column names but no rows", name=table.path.name)
    frame, broken = table.read(schema)
    problems = {**schema.problems(frame), **broken}
    if problems:
        note(left_out(problems, len(frame), str(table.path)))
    return frame.drop(index=list(problems))


def usable_rows(table: TableFile, schema: Schema) -> Iterator[pd.DataFrame]:
    """Yield the usable rows of a table, chunk by chunk."""
    for frame, broken in table.frames(schema):
        bad = [*broken, *(frame.index[i] for i in schema.problems(frame))]
        yield frame.drop(index=list(dict.fromkeys(bad)))


def check_predictions(
    model: Model, table: TableFile, frames: Iterable[pd.DataFrame], column: str | None
) -> dict[str, Any]:
    """Raise if the model clearly gives a row another class than a column. Return facts for JSON.

    Rows on a boundary between classes may differ, because rounding decides there. Missing cells are
    skipped.
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
        part, expected = frame[numbers >= 0], classes[numbers[numbers >= 0]]
        encoded = model.schema.encode(part)
        found = classes[model.network.predict(encoded)]
        for row in model.disagreements(encoded, expected):
            raise ModelMismatchError(
                f"{table.path}, row {part.index[row]}, column {short(column)}: the current model gave "
                f"{expected[row]!r}, but the imported network gives {found[row]!r}. Check that this "
                "is the current model, that the columns are its own, and that the schema scales the "
                "numbers as in training (scaling: none, minmax or [offset, scale])",
                name=column,
                value=expected[row],
                row=int(part.index[row]),
            )
        rows, agree = rows + len(expected), agree + int((found == expected).sum())
    if not rows:
        raise TableError(
            f"{table.path}, column {short(column)}: every cell is missing", name=column
        )
    note(f"model and column {short(column)} agree in {agree:,} of {rows:,} rows")
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
            f"model. Its classes are {listing(model.classes)}",
            name=column,
            value=cell,
            row=row,
        )
    return numbers


# -- shift sets ------------------------------------------------------------------------------------


def shifts_of(project: Project, model: Model) -> float | Shifts:
    """Return the radius or the shift set of a project, compared with its model."""
    delta = project.shifts()
    return delta if isinstance(delta, float) else compared(delta, project.delta, model.network)


def compared(shifts: Shifts, file: object, net: Network) -> Shifts:
    """Raise if a shift set is for other networks. Print a note if the network lies outside it."""
    from proplace.core.errors import DeltaError  # noqa: PLC0415
    from proplace.core.shifts import Shifts, counts, outside  # noqa: PLC0415

    with suppress(DeltaError):
        Shifts.of(net, shifts)
        if not shifts.contains(net):
            far = outside(shifts, net)
            most = "; ".join(
                f"{one.name} is {one.value:.6g}, outside [{one.low:.6g}, {one.high:.6g}]"
                for one in far[:_MOST]
            )
            note(
                f"the model does not lie in the shift set {file}, so it must accept as well: "
                f"{len(far)} of its {counts(shifts)[1]} parameters lie outside ({most})"
            )
        return shifts
    own = [(box.low.W.shape, box.low.b is None) for box in shifts.layers]
    if own != [(layer.W.shape, layer.b is None) for layer in net.layers]:
        problem = f"another architecture ({_sizes(shifts.low)}) than the model ({_sizes(net)})"
    else:
        problem = "networks with another scaler or encoding than the model"
    raise DeltaError(
        f"{file}: its intervals are for {problem}. Make it again from retrainings of this model: "
        "proplace calibrate MODEL ... --coverage 0.9 --out shifts.npz",
        name=getattr(file, "name", str(file)),
    )


def required_of(project: Project, table: TableFile) -> list[Model | tuple[Model, float | Shifts]]:
    """Read the required models of a project, each with its own shift set if it has one."""
    from proplace.loaders.model import Model  # noqa: PLC0415

    found: list[Model | tuple[Model, float | Shifts]] = []
    for path, delta in project.required_models:
        model = project.named(Model.of(path), table, scaled=False)
        if delta is None:
            found.append(model)
        else:
            shifts = project.shifts(delta)
            own = shifts if isinstance(shifts, float) else compared(shifts, delta, model.network)
            found.append((model, own))
    return found


def _sizes(net: Network) -> str:
    sizes = [net.layers[0].W.shape[1], *(len(layer.W) for layer in net.layers)]
    bare = "" if all(layer.b is not None for layer in net.layers) else ", some layers without bias"
    return "-".join(map(str, sizes)) + bare
