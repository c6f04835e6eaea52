"""`proplace explain`: one person, or a whole table into a folder of results."""

from __future__ import annotations

import csv
import json
import math
import shlex
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import inputs, options
from proplace.cli.console import echo, echo_table, is_quiet
from proplace.cli.running import Backend, cluster, stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from proplace.batch import Summary
    from proplace.core.request import Request
    from proplace.explain.proplace import Proplace
    from proplace.explain.results import Explanation, Explanations
    from proplace.explain.words import Wording
    from proplace.project import Project
    from proplace.schema import Schema
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile


class SearchName(StrEnum):
    """Names of search methods."""

    tree = "tree"
    bilevel = "bilevel"


class SolverName(StrEnum):
    """Names of solvers."""

    highs = "highs"
    gurobi = "gurobi"


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE", help="One person, feature by feature.", show_default=False
    ),
]
Row = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="This row of the table alone; the first is 0.",
        rich_help_panel=options.PEOPLE,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of results. Repeat the command to resume.",
        rich_help_panel=options.OUTPUT,
    ),
]
Search = Annotated[
    SearchName | None,
    typer.Option(
        help="Branch and bound, or the paper's Algorithm 1. Default: tree.",
        rich_help_panel=options.SEARCH,
    ),
]
Solver = Annotated[
    SolverName | None,
    typer.Option(help="Solver of bilevel. Default: highs.", rich_help_panel=options.SEARCH),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time per person; inf: no limit. Default: 10.",
        rich_help_panel=options.SEARCH,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Processes; -1: one per processor.", rich_help_panel=options.SEARCH
    ),
]
Place = Annotated[
    Backend | None,
    typer.Option(help="This machine, Dask or Ray. Default: loky.", rich_help_panel=options.SEARCH),
]


def explain(
    person: Words = None,
    config: options.Config = None,
    model: options.Model = None,
    train: options.Train = None,
    schema: options.SchemaFile = None,
    delta: options.Delta = None,
    target: options.Target = None,
    drop: options.Drop = None,
    ids: options.Ids = None,
    table: options.People = None,
    row: Row = None,
    count: options.Count = None,
    prefer: options.Preference = None,
    max_changes: options.MaxChanges = None,
    immutable: options.Immutable = None,
    increasing: options.Increasing = None,
    decreasing: options.Decreasing = None,
    ranges: options.Ranges = None,
    tolerance: options.Tolerance = None,
    typical: options.Typical = None,
    gap: options.Gap = None,
    search: Search = None,
    solver: Solver = None,
    time_limit: TimeLimit = None,
    jobs: Jobs = None,
    backend: Place = None,
    out: Out = None,
    as_json: options.Json = False,
) -> None:
    """Find the nearest counterfactual that every network within delta accepts.

    A table of people goes to the folder --out, with certificates. One person
    (--row, or NAME=VALUE) is shown, and also written with --out.

    [bold]Examples[/bold]

    proplace explain --out results

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --row 7 --json

    proplace explain age=40 income=31000 job=cook --immutable age --tolerance income=500
    """
    from proplace.project import Project  # noqa: PLC0415  (quick help)

    request = {
        "count": count,
        "prefer": prefer and prefer.value,
        "max_changes": max_changes,
        "immutable": immutable or None,
        "increasing": increasing or None,
        "decreasing": decreasing or None,
        "ranges": options.ranges_of(ranges),
        "tolerance": options.tolerance_of(tolerance),
        "typical": typical,
        "gap": gap,
    }
    project = Project.find(config).changed(
        model=model,
        train=train,
        schema=schema,
        delta=options.delta_of(delta),
        target=target,
        drop=tuple(drop or ()),
        id=tuple(ids or ()),
        request=request,
        explainer={
            "search": search and search.value,
            "solver": solver and solver.value,
            "time_limit": time_limit,
        },
        batch={"jobs": jobs, "backend": backend and backend.value},
    )
    values = options.pairs_of(person)
    _check_people(project, values, table, row, out)
    with _source(project, values, table) as source:
        _explain(project, source, 0 if values else row, values, out, as_json=as_json)


def _explain(
    project: Project,
    source: Path,
    row: int | None,
    values: Mapping[str, str],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Explain a row of a table, or all of them."""
    asked = _Asked.of(project, single=row is not None)
    explainer = asked.explainer
    if values:
        _check_values(values, explainer.schema_, project)
        asked = replace(asked, ids=[name for name in asked.ids if name in values])
    people = project.table(source)
    if row is not None:
        frame = _person(people, row, explainer.schema_, asked)
    if out is not None:
        summary = _write(asked, people, out, row)
        if row is None:
            _summarise(summary, asked.agreement, as_json=as_json)
            return
    if row is not None:
        answers = _answers(asked, frame) if out is None else _written(out)
        if as_json:
            shown = None if values else row
            echo_json(answers, shown, asked.agreement, asked.wording)
        else:
            _show(answers, asked.wording)


def _check_people(
    project: Project,
    values: Mapping[str, str],
    table: Path | None,
    row: int | None,
    out: Path | None,
) -> None:
    """Raise unless the options name one person or a table of people."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if values and table is not None:
        first = "=".join(next(iter(values.items())))
        raise OptionError(
            f"{first} describes one person, but --input {table} holds people. Give the number of a row "
            "of that file as --row N (the first is 0), or leave --input out and give every feature",
            name="--input",
            value=str(table),
        )
    if not values and table is None and project.people is None:
        raise OptionError(
            "give the people as --input FILE, or one person as name=value pairs", name="--input"
        )
    if values and row is not None:
        raise OptionError("--row needs --input FILE", name="--input")
    if out is None and not values and row is None:
        raise OptionError("a table of people needs --out FOLDER for the results", name="--out")


@contextmanager
def _source(project: Project, values: Mapping[str, str], table: Path | None) -> Iterator[Path]:
    """Yield the table of people, which has one row for one person."""
    if not values:
        yield table or project.people or Path()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "person.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=project.delimiter or ",").writerows(
                [list(values), list(values.values())]
            )
        yield path


# -- the explainer ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """A fitted explainer, the request, and how to run it.

    Attributes
    ----------
    project
        The project with the options of the command.
    explainer, request
        The fitted explainer and its request.
    agreement
        Facts about the column of predictions, for JSON.
    ids
        Columns to keep beside the results.
    wording
        Words of the sentences. None: the default words.
    """

    project: Project
    explainer: Proplace
    request: Request
    agreement: dict[str, Any]
    ids: list[str]
    wording: Wording | None

    @classmethod
    def of(cls, project: Project, *, single: bool) -> _Asked:
        """Read the model and the training rows, and fit."""
        from proplace.core.options import processes  # noqa: PLC0415
        from proplace.explain.proplace import Proplace  # noqa: PLC0415

        jobs = processes("--jobs", project.batch.get("jobs"))
        needed = ("model", "train", "delta")
        project.check_has(*needed, options=needed)
        read = project.read_model()
        rows = project.table(project.train or Path())
        model = project.named(read, rows)
        shifts = inputs.shifts_of(project, model)
        target: Label = project.label(model)
        required = inputs.required_of(project, rows)
        local = project.batch.get("backend") in (None, Backend.loky)
        explainer = Proplace(
            model,
            shifts,
            required_models=required or None,
            n_jobs=jobs if local else None,
            **project.explainer,
        )
        known = inputs.training_rows(rows, model.schema, project.others)
        agreement = inputs.check_predictions(model, rows, [known], project.predictions)
        with inputs.warnings_as_notes():
            explainer.fit(known, progress=not single and not is_quiet())
        request = explainer.request(target, **project.request)
        wording = project.words(model) if project.wording else None
        return cls(project, explainer, request, agreement, list(project.id), wording)


def _check_values(values: Mapping[str, str], schema: Schema, project: Project) -> None:
    """Raise unless every feature has a value and nothing else has one."""
    from proplace.core.errors import SchemaError  # noqa: PLC0415
    from proplace.core.text import did_you_mean  # noqa: PLC0415

    for name in values:
        if name not in schema.by_name and name not in project.id:
            raise SchemaError(
                f"{name!r} is not a feature{did_you_mean(name, schema.by_name)}. If it names the "
                f"person, give --id {shlex.quote(name)}",
                name=name,
            )
    missing = [name for name in schema.by_name if name not in values]
    if missing:
        raise SchemaError(
            f"no value for {', '.join(map(repr, missing))}. Give each as name=value, or give a row of "
            "a file: --input FILE --row N",
            name=missing[0],
        )


# -- one person ------------------------------------------------------------------------------------


def _person(source: TableFile, row: int, schema: Schema, asked: _Asked) -> pd.DataFrame:
    """Read one row of a table."""
    from proplace.core.errors import InputError, TableError  # noqa: PLC0415

    source.check_columns(list(schema.by_name), others=asked.project.others)
    for name in asked.ids:
        if name not in source.columns:
            raise TableError(
                f"{source.path}: there is no column {name!r} to keep as an id",
                name="--id",
                value=name,
            )
    frame, broken = source.row(schema, row)
    problems = [*broken.values(), *schema.encode_people(frame)[1].values()]
    if problems:
        raise InputError(problems[0].reason, name=problems[0].column, row=row)
    return frame


def _answers(asked: _Asked, frame: pd.DataFrame) -> Explanations:
    """Explain one person."""
    from proplace.explain.results import Explanations  # noqa: PLC0415

    ids = {name: frame[name].iloc[0] for name in asked.ids}
    table = frame[list(asked.explainer.schema_.by_name)]
    (found,) = asked.explainer.stream([table], asked.request, every=math.inf)
    answers = [replace(answer, ids=ids) for answer in found]
    return Explanations(answers, complete=found.complete, provenance=found.provenance)


def _written(out: Path) -> Explanations:
    from proplace.batch import read_results  # noqa: PLC0415

    return read_results(out)


def _show(result: Explanations, wording: Wording | None) -> None:
    """Print the answers for people."""
    from proplace.core.text import short  # noqa: PLC0415

    for answer in result:
        if not answer.found:
            echo(f"{answer.status}: {answer.reason}")
            continue
        words = answer.describe(wording)
        echo_table(["feature", "now", "then"], [[c.title, c.was, c.goal] for c in words.claims])
        echo(words.sentence)
        echo(
            f"{answer.status}; distance {answer.distance:.6g}; every model {_within(answer)} "
            f"reaches class {short(answer.label)} by at least {answer.margin:.3g}"
        )
        if answer.reason:
            echo(answer.reason)


def _within(answer: Explanation) -> str:
    from proplace.explain.words import short_networks  # noqa: PLC0415

    return "within delta" if answer.setting is None else short_networks(answer.setting)


def echo_json(
    result: Explanations,
    row: int | None,
    agreement: Mapping[str, Any],
    wording: Wording | None = None,
) -> None:
    """Print all facts about each answer, its certificate included."""
    from proplace.explain.record import explanation_json  # noqa: PLC0415

    made = result.provenance
    assert made is not None  # noqa: S101  (an explainer made it)
    facts = [
        {"row": row, **explanation_json(answer, made, wording), **agreement} for answer in result
    ]
    typer.echo(json.dumps(facts, indent=2))


# -- a table of people -----------------------------------------------------------------------------


def _write(asked: _Asked, source: TableFile, out: Path, row: int | None) -> Summary:
    """Write the results of all rows, or of one. A signal ends the run like Ctrl-C."""
    from proplace.batch import explain_file  # noqa: PLC0415
    from proplace.tables.files import is_parquet  # noqa: PLC0415

    project, usual = asked.project, "parquet" if is_parquet(source.path) else "csv"
    how = project.batch
    with stop_on_signal(), cluster(how.get("backend"), how.get("address"), how.get("jobs")):
        return explain_file(
            asked.explainer,
            source,
            out,
            asked.request,
            ids=asked.ids,
            drop=[name for name in project.others if name not in asked.ids],
            kind=how.get("format", usual),
            every=how.get("seconds", 5.0),
            certificates=how.get("certificates", True),
            progress=row is None and not is_quiet(),
            row=row,
            wording=asked.wording,
        )


def _summarise(summary: Summary, agreement: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a batch, and raise if people have no result yet."""
    from proplace.core.errors import WorkerError  # noqa: PLC0415

    for path in summary.quarantined:
        inputs.note(
            f"{path}: this shard, or a certificate of it, was changed after it was written. It is set "
            "aside, and its rows are done again"
        )
    if as_json:
        facts = {
            "results": str(summary.results),
            "rows": summary.rows,
            "resumed": summary.resumed,
            "statuses": summary.statuses,
            **agreement,
        }
        typer.echo(json.dumps(facts))
    else:
        parts = ", ".join(f"{number} {status}" for status, number in summary.statuses.items())
        before = f" ({summary.resumed} were done before)" if summary.resumed else ""
        echo(f"{summary.results}: {summary.rows} people{before}: {parts}")
    if lost := summary.statuses.get("worker_died", 0):
        raise WorkerError(
            f"{summary.results}: {lost} of {summary.rows} people have no answer because the process "
            "died each time (status worker_died), as if killed or out of memory. The same command "
            "tries them again; fewer --jobs need less memory",
            name=summary.results.name,
            value=lost,
        )
