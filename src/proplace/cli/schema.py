"""`proplace schema`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli import common
from proplace.cli.console import tell

if TYPE_CHECKING:
    import pandas as pd

    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature

Names = list[str] | None


def schema(
    table: Annotated[
        Path, typer.Argument(help="A CSV (.gz too) or Parquet file with the training rows.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write (.yaml or .json); else it is printed.")
    ] = None,
    drop: common.Drop = None,
    immutable: Annotated[Names, typer.Option(help="Feature that cannot change; repeat.")] = None,
    increasing: Annotated[Names, typer.Option(help="Feature that cannot fall; repeat.")] = None,
    decreasing: Annotated[Names, typer.Option(help="Feature that cannot rise; repeat.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Read the encoding of the columns from this model, and check the schema."
        ),
    ] = None,
    delimiter: common.Delimiter = None,
    encoding: common.Encoding = "utf-8",
) -> None:
    """Guess what the columns of a table mean and write it as YAML to edit.

    The order of the features is that of the columns and must be that of the network's inputs;
    categories become one 0/1 column each. Read the file before you use it.

    [bold]Example[/bold]

    proplace schema train.csv --drop approved --immutable sex --increasing age --out schema.yaml
    """
    import pandas as pd  # noqa: PLC0415

    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.schema import Schema  # noqa: PLC0415
    from proplace.schema.files import text_of  # noqa: PLC0415
    from proplace.tables.files import CsvTable, guessed, open_table  # noqa: PLC0415

    drop = drop or []
    whole = None if model is None else common.read_model(model)
    source = open_table(table, delimiter=delimiter, encoding=encoding)
    source.check_columns(drop, others=source.columns)
    if not source.rows:
        raise TableError(f"{table}: there are column names but no rows", name=table.name)
    parts = [(frame.drop(columns=drop), broken) for frame, broken in source.cells()]
    frame = pd.concat([part.drop(index=list(broken)) for part, broken in parts])
    if isinstance(source, CsvTable):
        frame = guessed(frame)
    if whole is not None and whole.has_column_names:
        frame = frame[[name for name in frame.columns if name in whole.schema.by_name]]
    with common.warnings_as_notes():
        found = Schema.infer(
            frame,
            immutable=immutable or (),
            increasing=increasing or (),
            decreasing=decreasing or (),
            scaling="minmax" if whole is None or not whole.has_preprocessing else "model",
        )
    if whole is not None:
        found = _with_missing(found, frame, whole.schema)
        # What the model does to its table itself (scaling, categories) is kept, in its own words.
        found = whole.with_schema(found).schema
    if out is None:
        # A file, whatever the terminal can show: in its own encoding, and nothing in it hidden.
        typer.echo(text_of(found, ".yaml").encode("utf-8"), nl=False)
        return
    with common.refused_if_there(out):
        found.write(out)
    if common.watched():
        tell(f"{out}: {found!r}; read it, edit it, then: proplace explain --schema {out}")


def _with_missing(found: Schema, frame: pd.DataFrame, own: Schema) -> Schema:
    """A draft in whose ranges lies what the model fills into missing cells."""
    from proplace.schema import Continuous, Schema  # noqa: PLC0415
    from proplace.schema.infer import with_range  # noqa: PLC0415
    from proplace.schema.values import numbers  # noqa: PLC0415

    features: list[AnyFeature] = []
    for feature in found.features:
        fill = own.by_name[feature.name].missing if feature.name in own.by_name else None
        if isinstance(feature, Continuous) and fill is not None:
            wider = with_range(replace(feature, missing=fill), numbers(frame[feature.name]))
            features.append(replace(wider, missing=None))
        else:
            features.append(feature)
    return Schema(features, rules=found.rules)
