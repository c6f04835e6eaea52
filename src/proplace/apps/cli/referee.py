"""`--label` and `--predictions`: a column of the table says whether the model is read as it is."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.apps.cli import common

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from proplace.loaders.agreement import Agreement
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.tables.files import TableFile

    Tables = Callable[[], Iterable[pd.DataFrame]]

Label = Annotated[
    str | None,
    typer.Option(help="Column with the true class: how often the model agrees with it is said."),
]
Predictions = Annotated[
    str | None,
    typer.Option(
        help="Column with the classes that the model in use gave: a difference is refused."
    ),
]


def named(*columns: str | None) -> list[str]:
    """The columns that are given: they are no features."""
    return [column for column in columns if column is not None]


def referee(
    model: Model, table: TableFile, tables: Tables, label: str | None, predictions: str | None
) -> dict[str, Any]:
    """Compare the model with columns of a table; returns what to put beside other JSON.

    Predictions that differ are an error, labels are spoken of on standard error.
    """
    check_column(table, named(label, predictions), list(model.schema.by_name))
    facts: dict[str, Any] = {}
    if predictions is not None:
        found = _compared(model, table, tables, predictions)
        advice = _advice(model, found, table, "--predictions")
        found.check_predictions(table.path, advice)
        common.note(found.words)
        facts["predictions"] = found.facts
    if label is not None:
        found = _compared(model, table, tables, label)
        warning = found.warning(_advice(model, found, table, "--label"))
        if warning is None:
            common.note(found.words)
        else:
            common.warn(warning)
        facts["label"] = found.facts
    return facts


def best_reading(
    model: Model, table: TableFile, tables: Tables, columns: Sequence[str]
) -> Schema | None:
    """The schema whose scaling of numbers agrees clearly better with a column; None: it is as it is.

    A model that preprocesses its table knows its own scaling, and keeps it.
    """
    from proplace.loaders.agreement import scaled  # noqa: PLC0415
    from proplace.schema import Schema  # noqa: PLC0415

    for column in columns:
        better = _compared(model, table, tables, column).better
        if better is not None and not model.preprocesses:
            common.note(f"column {column!r} speaks for {better.words}; the schema says so")
            return Schema(scaled(model.schema, better), rules=model.schema.rules)
    return None


def check_column(table: TableFile, columns: Sequence[str], features: Sequence[str]) -> None:
    """Raise unless columns with classes are in the table and are no features."""
    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.core.text import did_you_mean, listing  # noqa: PLC0415

    for column in columns:
        if column not in table.columns:
            hint = did_you_mean(column, table.columns)
            raise TableError(
                f"{table.path}: there is no column {column!r}{hint}; the file has "
                f"{listing(table.columns)}"
            )
        if column in features:
            raise TableError(
                f"{table.path}: {column!r} is a feature of the model, and no label or prediction"
            )


def _compared(model: Model, table: TableFile, tables: Tables, column: str) -> Agreement:
    from proplace.core.errors import TableError  # noqa: PLC0415
    from proplace.loaders.agreement import compare  # noqa: PLC0415
    from proplace.tables.files import CsvTable, labels_of  # noqa: PLC0415

    def typed() -> Iterable[pd.DataFrame]:
        for frame in tables():
            cells = frame[column]
            text = isinstance(table, CsvTable)
            yield frame.assign(**{column: labels_of(cells, model.classes) if text else cells})

    try:
        return compare(model, typed, column)
    except TableError as error:
        raise TableError(f"{table.path}, {error}") from None


def _advice(model: Model, found: Agreement, table: TableFile, option: str) -> str:
    """What to change where another reading fits better."""
    if found.better is None:
        return ""
    if model.preprocesses:
        return {
            "none": "The table seems to hold scaled numbers: give it in original units, as the model "
            "takes it",
            "minmax": "The model seems to be trained on numbers that were scaled before: give the "
            "table with these, as the model takes it",
        }[found.better.name]
    setting = {
        "none": "scaling: none",
        "minmax": "scaling: minmax (with lower and upper)",
        "standard": "scaling: [mean, standard deviation]",
    }[found.better.name]
    command = _drafting(model, found, table, option)
    return (
        f"Write {setting} for each number in the schema, or let {command} write one that does, and "
        "give it as --schema schema.yaml"
    )


def _drafting(model: Model, found: Agreement, table: TableFile, option: str) -> str:
    """The command that drafts a schema with the scaling that a column speaks for."""
    known = {*model.schema.by_name, found.column}
    drop = "".join(f" --drop {shlex.quote(name)}" for name in table.columns if name not in known)
    return (
        f"proplace schema {shlex.quote(str(table.path))} --model MODEL {option} "
        f"{shlex.quote(found.column)}{drop} --out schema.yaml"
    )
