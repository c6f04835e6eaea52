"""What several commands share: options, reading what they name, and talking to people."""

from __future__ import annotations

import math
import sys
import warnings
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from proplace.loaders.model import Model as WholeModel
    from proplace.schema import Schema
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile

Model = Annotated[
    Path,
    typer.Option(help="The trained model: .onnx or .npz; never a pickle."),
]

Train = Annotated[Path, typer.Option(help="CSV (.gz too) or Parquet file with the training rows.")]
People = Annotated[
    Path, typer.Option("--input", help="CSV (.gz too) or Parquet file with the people.")
]
Target = Annotated[str, typer.Option(help="The wanted class, by its label.")]
DEFAULT_TARGET = "1"
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="Features and rules (see: proplace schema). Without it, tables hold the network's own "
        "columns.",
    ),
]
Drop = Annotated[
    list[str] | None, typer.Option(help="Column to leave out, such as the label; may be repeated.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", help="Column to keep beside the answers; may be repeated."),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        help="What ends a cell in every CSV file; left out, it is found for each by itself: the "
        "comma, semicolon, tab or bar that the first line has most of."
    ),
]
Encoding = Annotated[str, typer.Option(help="Encoding of CSV files.")]
Tolerance = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LESS:MORE",
        help="How far a feature may be missed, in the units of the table: income=500 is 500 less or "
        "more, age=0:1 is 0 less and 1 more; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


class FileFormat(StrEnum):
    """How tables are written."""

    csv = "csv"
    parquet = "parquet"


Classes = Annotated[
    str | None,
    typer.Option(
        help="Labels of the model's classes, in the order of its outputs, where it does not name them: "
        "refused,approved."
    ),
]


Cutoff = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL=P",
        help="Probability from which the model gives a class, such as approved=0.7; 0.7 alone is that "
        "of class 1.",
    ),
]


def read_model(path: Path, cutoff: str | None = None) -> WholeModel:
    """Read a whole model, with a cut-off as it is written on the command line."""
    from proplace.loaders.model import Model as WholeModel  # noqa: PLC0415  (quick help)

    return with_cutoff(WholeModel.of(path), cutoff)


def with_cutoff(model: WholeModel, text: str | None) -> WholeModel:
    """Return a model with a cut-off as it is written on the command line."""
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.loaders.model import Model as WholeModel  # noqa: PLC0415

    if text is None:
        return model
    word, _, number = text.rpartition("=")
    try:
        p = float(number)
    except ValueError:
        raise OptionError(
            f"--cutoff {text!r}: give a label and its probability, such as approved=0.7",
            name="--cutoff",
            value=text,
        ) from None
    label = next((known for known in model.classes if str(known) == word), word)
    try:
        return WholeModel.of(model, cutoff={label: p} if word else p)
    except OptionError as error:
        raise OptionError(f"--cutoff {text}: {error}", name="--cutoff", value=text) from None


def with_classes(model: WholeModel, classes: str | None) -> WholeModel:
    """Return a model whose classes have the labels that were stated; numbers if all are whole ones."""
    if classes is None:
        return model
    words = [word.strip() for word in classes.split(",")]
    return model.with_classes([int(w) for w in words] if all(map(str.isdigit, words)) else words)


def tolerance_of(words: list[str] | None) -> dict[str, tuple[float, float]] | None:
    """Read by how much less and more each feature may be; None without --tolerance."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    found: dict[str, tuple[float, float]] = {}
    for word in words or []:
        name, _, missed = word.rpartition("=")
        less, colon, more = missed.partition(":")
        try:
            pair = float(less), float(more if colon else less)
        except ValueError:
            pair = math.nan, math.nan
        if not name or not all(0.0 <= t < math.inf for t in pair):
            raise OptionError(
                f"--tolerance {word!r}: give the name of a feature and a number of its unit, 0 or "
                "more, such as income=500, or two numbers for less and more, such as age=0:1",
                name="--tolerance",
                value=word,
            )
        if name in found:
            raise OptionError(f"--tolerance names {name!r} twice", name="--tolerance", value=word)
        found[name] = pair
    return found or None


def note(text: str) -> None:
    """Say something worth knowing, beside the results."""
    tell(f"note: {text}")


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each warning of the library once, as a note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        note(text)


def warn(text: str) -> None:
    """Say that something is probably wrong."""
    tell(f"warning: {text}")


def watched() -> bool:
    """Whether a person looks at standard error: else there is no progress bar and no summary."""
    return sys.stderr.isatty()


def processes(jobs: int | None) -> int | None:
    """Return a number of processes, or say what it must be."""
    from proplace.core.options import processes as checked  # noqa: PLC0415

    return checked("--jobs", jobs)


def with_names(
    model: WholeModel, schema: Path | None, table: TableFile, others: Sequence[str]
) -> WholeModel:
    """Return a model whose columns have their names, from the schema or from a table."""
    from proplace.core.errors import TableError  # noqa: PLC0415

    if schema is not None:
        return with_schema(model, schema)
    names = [name for name in table.columns if name not in others]
    if model.has_column_names or set(model.schema.by_name) <= set(names):
        return _with_booleans(model.with_names_of_table(names), table)
    if len(names) != len(model.schema.features):
        raise TableError(
            f"{table.path}: {len(names)} columns where the network takes "
            f"{len(model.schema.features)}; name columns that are no inputs with "
            f"--id or --drop, or give a --schema{table.hint()}",
            name=table.path.name,
            value=names,
        )
    return _with_booleans(model.with_column_names(names), table)


def _with_booleans(model: WholeModel, table: TableFile) -> WholeModel:
    """Return a model whose numbers that are true or false in the first rows of a table are called so."""
    from proplace.tables.files import CsvTable, guessed  # noqa: PLC0415
    from proplace.tables.rows import with_booleans  # noqa: PLC0415

    frame, _ = next(table.cells(), (None, None))
    if frame is None:
        return model
    return with_booleans(model, guessed(frame) if isinstance(table, CsvTable) else frame)


def with_schema(model: WholeModel, schema: Path, *, scaled: bool = True) -> WholeModel:
    """Return a model with the features of a schema file; not ``scaled``: each scales in its own way."""
    from proplace.core.errors import SchemaError  # noqa: PLC0415
    from proplace.schema import Schema  # noqa: PLC0415

    given = Schema.read(schema)
    try:
        own = model.has_preprocessing and not scaled
        return model.with_schema(given.unscaled() if own else given)
    except SchemaError as error:
        raise SchemaError(f"{schema}: {error}", name=error.name, value=error.value) from None


def target_of(model: WholeModel, text: str) -> Label:
    """Return the label of a class that is written on the command line."""
    from proplace.core.errors import TargetError  # noqa: PLC0415
    from proplace.core.text import did_you_mean, listing  # noqa: PLC0415

    for label in model.classes:
        if text in _texts(label):
            return label
    default = ", the default," if text == DEFAULT_TARGET else ""
    hint = did_you_mean(text, model.classes)
    raise TargetError(
        f"target {text!r}{default} is not a class of the model{hint}; its classes are "
        f"{listing(model.classes)}: name the wanted one with --target",
        name="--target",
        value=text,
    )


def _texts(label: Label) -> set[str]:
    """Return the ways to write a label on the command line: 1.0 is 1, and True is true."""
    text = str(label)
    number = isinstance(label, float) and label.is_integer()
    return {
        text,
        text.lower() if isinstance(label, bool) else text,
        f"{label:.0f}" if number else text,
    }


def training_rows(table: TableFile, schema: Schema, others: Sequence[str]) -> pd.DataFrame:
    """Read the training table; rows that cannot be used are left out, and this is said."""
    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.schema.values import left_out  # noqa: PLC0415

    table.check_columns(list(schema.by_name), others=others)
    if not table.rows:
        raise TableError(f"{table.path}: there are column names but no rows", name=table.path.name)
    frame, broken = table.read(schema)
    problems = {**schema.problems(frame), **broken}
    if problems:
        note(left_out(problems, len(frame), str(table.path)))
    return frame.drop(index=list(problems))


def good_rows(table: TableFile, schema: Schema) -> Iterator[pd.DataFrame]:
    """The rows of a table that can be read, chunk by chunk."""
    for frame, broken in table.frames(schema):
        bad = [*broken, *(frame.index[i] for i in schema.problems(frame))]
        yield frame.drop(index=list(dict.fromkeys(bad)))


@contextmanager
def refused_if_there(path: Path) -> Iterator[None]:
    """Write a new file: nothing takes the place of another, and trouble is one sentence."""
    from proplace.core.errors import OutputError  # noqa: PLC0415

    if path.exists():
        raise OutputError(
            f"{path}: is there already; give another name or remove it", name=path.name
        )
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise OutputError(f"{path}: cannot be written ({why})", name=path.name) from error
