"""`proplace schema`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli import inputs, options
from proplace.cli.console import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from proplace.loaders.model import Model
    from proplace.project import Project
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

Table = Annotated[
    Path, typer.Argument(metavar="TABLE", help="Training rows: CSV (.gz too) or Parquet.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Schema to write (.yaml or .json); with --model also a proplace.yaml beside it, if there "
        "is none. Default: print the schema.",
        rich_help_panel=options.OUTPUT,
    ),
]


def schema(
    table: Table,
    model: options.Model = None,
    drop: options.Drop = None,
    immutable: options.Immutable = None,
    increasing: options.Increasing = None,
    decreasing: options.Decreasing = None,
    out: Out = None,
) -> None:
    """Draft the schema of a table, and a project file, to edit.

    The features are in the order of the columns, which must be that of the
    network's inputs. --model reads the encoding of the columns from the model and
    checks the schema.

    [bold]Example[/bold]

    proplace schema train.csv --drop approved --immutable sex --model m.onnx --out schema.yaml
    """
    from proplace.project import DEFAULT_NAME, Project  # noqa: PLC0415  (quick help)
    from proplace.schema import Schema  # noqa: PLC0415
    from proplace.schema.files import text_of  # noqa: PLC0415

    # the schema of the project is the one to draft, and may not exist yet
    project = Project.find(without=("schema",)).changed(model=model, drop=tuple(drop or ()))
    whole = None if model is None else project.read_model()
    frame = _frame(project, table, drop or [], whole)
    with inputs.warnings_as_notes():
        found = Schema.infer(
            frame,
            immutable=immutable or (),
            increasing=increasing or (),
            decreasing=decreasing or (),
            scaling="minmax" if whole is None or not whole.has_preprocessing else "model",
        )
    if whole is not None:
        found = _with_missing(found, frame, whole.schema)
        # categories in the model's own words; each model keeps its own scaling, also a retrained one
        found = whole.with_schema(found).schema
        found = found.unscaled() if whole.has_preprocessing else found
    if out is None:
        # as a file: in its own encoding, whatever the terminal can show
        typer.echo(text_of(found, ".yaml").encode("utf-8"), nl=False)
        return
    with inputs.new_file(out):
        found.write(out)
    progress(f"{out}: {found!r}. Read and edit it")
    place = out.parent / DEFAULT_NAME
    if model is not None and not place.exists():
        assert whole is not None  # noqa: S101  (it was read)
        files = {"model": model, "schema": out, "train": table}
        _write_project(place, files, drop or [], whole.classes)


def _frame(project: Project, table: Path, drop: list[str], whole: Model | None) -> pd.DataFrame:
    """Read the features of a table."""
    import pandas as pd  # noqa: PLC0415

    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.tables.files import CsvTable, guessed  # noqa: PLC0415

    source = project.table(table)
    source.check_columns(drop, others=source.columns)
    if not source.rows:
        raise TableError(f"{table}: there are column names but no rows", name=table.name)
    parts = [(frame.drop(columns=drop), broken) for frame, broken in source.cells()]
    frame = pd.concat([part.drop(index=list(broken)) for part, broken in parts])
    if isinstance(source, CsvTable):
        frame = guessed(frame)
    if whole is not None and whole.has_column_names:
        frame = frame[[name for name in frame.columns if name in whole.schema.by_name]]
    return frame


def _with_missing(found: Schema, frame: pd.DataFrame, own: Schema) -> Schema:
    """Widen ranges to the values that the model imputes for missing cells."""
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


def _write_project(
    place: Path, files: dict[str, Path], drop: list[str], classes: Sequence[Label]
) -> None:
    """Write a project file with the paths of this command, relative to its folder."""
    import os  # noqa: PLC0415

    import yaml  # noqa: PLC0415

    from proplace.core.text import listing  # noqa: PLC0415

    paths = {name: os.path.relpath(path, place.parent) for name, path in files.items()}
    tables = {"train": paths.pop("train"), **({"drop": drop} if drop else {})}
    text = yaml.safe_dump({**paths, "tables": tables}, sort_keys=False, allow_unicode=True)
    with inputs.new_file(place):
        place.write_text(text, encoding="utf-8")
    progress(
        f"{place}: a project file. Add delta, tables.people, tables.id, target (one of "
        f"{listing(classes)}) and wording"
    )
