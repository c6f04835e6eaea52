"""`proplace explain`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import (
    common,
    comparison,
    delta,
    one_person,
    promising,
    report,
    request,
    whole_input,
)
from proplace.cli.whole_input import Backend
from proplace.core.request import DEFAULT_GAP, DEFAULT_TIME_LIMIT

if TYPE_CHECKING:
    from proplace.core.shifts import Shifts
    from proplace.explain.proplace import Proplace
    from proplace.loaders.model import Model as WholeModel
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile


class Region(StrEnum):
    """Names of regions."""

    hull = "hull"
    box = "box"


class Searches(StrEnum):
    """Names of searches."""

    tree = "tree"
    bilevel = "bilevel"


class Solvers(StrEnum):
    """Names of solvers."""

    highs = "highs"
    gurobi = "gurobi"


Words = Annotated[
    list[str] | None, typer.Argument(help="One person as name=value pairs.", show_default=False)
]
Input = Annotated[
    Path | None, typer.Option("--input", help="CSV (.gz too) or Parquet file with the people.")
]
Row = Annotated[
    int | None, typer.Option(help="Explain this row of the input alone; the first is 0.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the results of a whole input, where a killed run goes on, and for "
        "--certificates."
    ),
]
K = Annotated[
    int,
    typer.Option("--k", help="Number of robust training rows that span the region of a search."),
]
Regions = Annotated[
    Region,
    typer.Option(help="hull: mixtures of robust training rows; box: all values within the ranges."),
]
Search = Annotated[
    Searches,
    typer.Option(help="Search method. tree: branch and bound; bilevel: the paper's Algorithm 1."),
]
Solver = Annotated[
    Solvers,
    typer.Option(help="Solver for --search bilevel. gurobi needs the extra proplace[gurobi]."),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        help="Seconds per person, after which the best counterfactual so far is returned; inf: no limit."
    ),
]
Jobs = Annotated[int | None, typer.Option(help="Processes; -1: as many as there are processors.")]
Where = Annotated[Backend, typer.Option(help="Where: this machine or a cluster.")]
Address = Annotated[
    str | None,
    typer.Option(help="Of the Dask scheduler or the Ray cluster; else one is made here."),
]
Certificates = Annotated[
    bool, typer.Option("--certificates", help="Also write a proof for each answer (see: check).")
]
Kind = Annotated[
    common.FileFormat | None,
    typer.Option("--format", help="Of the results; else that of the input."),
]
Every = Annotated[
    float, typer.Option(help="Seconds between shards: what a killed run loses at most.")
]


@dataclass(frozen=True)
class Question:
    """What is asked of the explainer, whoever it is about.

    Attributes
    ----------
    given
        Delta or shifts: for which networks the answers must hold.
    file
        The file of the shifts; None for a number.
    others
        More models that must accept them, with what :func:`proplace.cli.delta.required` says of each.
    k, region, search, solver, time_limit
        As :class:`proplace.Proplace` takes them.
    target
        The wanted class, by its label as text.
    predictions
        Column of the training table with the classes that the model in use gave.
    schema
        File with the features.
    """

    given: float | Shifts
    file: Path | None
    others: list[tuple[WholeModel, tuple[Path, float | Shifts | None, Path | None]]]
    k: int
    region: Region
    search: Searches
    solver: Solvers
    time_limit: float
    target: str
    predictions: str | None
    schema: Path | None

    def fitted(
        self,
        model: WholeModel,
        path: Path,
        rows: TableFile,
        others: list[str],
        processes: int | None,
        *,
        progress: bool,
    ) -> tuple[Proplace, Label, dict[str, Any]]:
        """Return the fitted explainer, the wanted class, and how the model agrees with columns."""
        from proplace.explain.proplace import Proplace  # noqa: PLC0415

        whole = common.with_names(model, self.schema, rows, others)
        delta.check(self.given, self.file, whole.network, path)
        target = common.target_of(whole, self.target)
        also: list[WholeModel | tuple[WholeModel, float | Shifts]] = []
        for read, (file, given, shifts) in self.others:
            other = common.with_names(read, self.schema, rows, others)
            if given is not None:
                delta.check(given, shifts, other.network, file)
            also.append(other if given is None else (other, given))
        explainer = Proplace(
            whole,
            self.given,
            required_models=also or None,
            k=self.k,
            region=self.region.value,
            search=self.search.value,
            solver=self.solver.value,
            n_jobs=processes,
            time_limit=self.time_limit,
        )
        known = common.training_rows(rows, whole.schema, others)
        agreement = comparison.check_predictions(whole, rows, [known], self.predictions)
        with common.warnings_as_notes():
            explainer.fit(known, progress=progress)
        return explainer, target, agreement


def explain(
    model: common.Model,
    train: common.Train,
    number: delta.Number = None,
    shifts: delta.File = None,
    required_model: delta.Also = None,
    person: Words = None,
    table: Input = None,
    row: Row = None,
    out: Out = None,
    schema: common.SchemaFile = None,
    predictions: comparison.Predictions = None,
    target: common.Target = common.DEFAULT_TARGET,
    cutoff: common.Cutoff = None,
    count: request.Count = 1,
    prefer: request.Preference = request.Prefer.nearest,
    max_changes: request.MaxChanges = None,
    immutable: request.Immutable = None,
    increasing: request.Increasing = None,
    decreasing: request.Decreasing = None,
    ranges: request.Ranges = None,
    tolerance: common.Tolerance = None,
    typical: request.Typical = None,
    gap: request.Gap = DEFAULT_GAP,
    k: K = 20,
    region: Regions = Region.hull,
    search: Search = Searches.tree,
    solver: Solver = Solvers.highs,
    time_limit: TimeLimit = DEFAULT_TIME_LIMIT,
    jobs: Jobs = None,
    backend: Where = Backend.loky,
    address: Address = None,
    ids: common.Ids = None,
    drop: common.Drop = None,
    certificates: Certificates = False,
    kind: Kind = None,
    every: Every = 5.0,
    page: report.Page = None,
    statement: report.Statement = None,
    subject: promising.Subject = None,
    outcome: promising.Outcome = None,
    ledger: promising.Place = None,
    id_column: promising.Column = None,
    expires: promising.Expires = None,
    existing: promising.AnExisting = promising.Existing.refuse,
    delimiter: common.Delimiter = None,
    encoding: common.Encoding = "utf-8",
    as_json: common.Json = False,
) -> None:
    """Find the nearest counterfactual that every network within delta accepts.

    A whole --input goes to the folder --out: answers in results.csv, one line each, people without
    one with the reason. A run that was killed goes on when the same command is given again. One
    person (--row, or name=value pairs) is shown; only --certificates are written to --out then.
    With --ledger the answers become promises; a repeated command issues none twice.

    [bold]Examples[/bold]

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --out results

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --row 7 --json

    proplace explain --model m.onnx --train train.csv --schema schema.yaml --delta 0.02 age=40 job=cook

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --out results
    --prefer sparse --max-changes 3 --immutable age --increasing savings --range income=0:90000

    proplace explain --model m.onnx --train train.csv --shifts shifts.npz --input people.csv
    --out results --required-model last-year.onnx:0.01

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --out results
    --ledger promises.db --ids customer --expires 2999-12-31
    """
    from proplace.tables.files import open_table  # noqa: PLC0415

    words = one_person.pairs(person or [])
    single = _is_single(words, table, row)
    promises = promising.Promising.of(ledger, id_column, expires, existing, ids or [])
    if promises is not None:
        ids = list(dict.fromkeys([*(ids or []), promises.column]))
        certificates = certificates or not single
    _check_output(out, page, statement, single=single, certificates=certificates)
    promising.check_wording(promises, subject, outcome)
    jobs, ends = common.processes(jobs), request.ranges_of(ranges)
    given, more = delta.chosen(number, shifts), [*map(delta.required, required_model or [])]
    whole, *rest = [
        common.read_model(path, stated)
        for path, stated in [(model, cutoff), *((file, None) for file, *_ in more)]
    ]
    drop = [*(drop or []), *([] if predictions is None else [predictions])]
    others = [*(ids or []), *drop]
    question = Question(
        given,
        shifts,
        list(zip(rest, more, strict=True)),
        k,
        region,
        search,
        solver,
        time_limit,
        target,
        predictions,
        schema,
    )
    rows = open_table(train, delimiter=delimiter, encoding=encoding)
    source = None if table is None else open_table(table, delimiter=delimiter, encoding=encoding)
    explainer, wanted, agreement = question.fitted(
        whole,
        model,
        rows,
        others,
        jobs if backend is Backend.loky else None,
        progress=common.watched() and not single,
    )
    asked = explainer.request(
        wanted,
        count=count,
        prefer=prefer.value,
        max_changes=max_changes,
        immutable=immutable or (),
        increasing=increasing or (),
        decreasing=decreasing or (),
        ranges=ends,
        tolerance=common.tolerance_of(tolerance),
        typical=typical,
        gap=gap,
    )
    wording = promising.wording_of(wanted, subject, outcome)
    if single:
        someone = one_person.Person(source, row, words, ids or [], others)
        answers = someone.explain(explainer, asked)
        if out is not None:
            one_person.save_certificates(answers, out / "certificates")
        if page is not None:
            report.write_person_page(answers, page, out, statement)
        if promises is not None:
            promises.issue(answers, wording)
        if as_json:
            one_person.show_json(answers, row, agreement)
        else:
            one_person.show(answers)
        return
    assert source is not None and out is not None  # noqa: S101, PT018  (checked above)
    batch = whole_input.Batch(
        out, ids or [], drop, certificates, kind, every, backend, address, jobs
    )
    summary = batch.run(explainer, source, asked)
    whole_input.summarise(summary, agreement, as_json=as_json)
    if page is not None:
        report.write_folder_page(out, page, statement)
    if promises is not None:
        promises.issue_folder(out, wording)


def _is_single(words: dict[str, str], table: Path | None, row: int | None) -> bool:
    """Whether one person is asked about, or a whole input."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if words and table is not None:
        first = next(iter(words.items()))
        raise OptionError(
            f"{'='.join(first)} describes one person, and --input {table} holds people: to explain "
            "one row of that file, give its number as --row N (the first is 0); to explain a person "
            "who is described by name=value pairs, leave --input out and give every feature",
            name="--input",
            value=str(table),
        )
    if not words and table is None:
        raise OptionError(
            "give the people as --input FILE, or one person as name=value pairs", name="--input"
        )
    if row is not None and table is None:
        raise OptionError("--row needs --input FILE", name="--input")
    return bool(words) or row is not None


def _check_output(
    out: Path | None, page: Path | None, statement: str | None, *, single: bool, certificates: bool
) -> None:
    """Say what is wrong with what is to be written, before any work."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if out is None and (certificates or not single):
        raise OptionError(
            f"{'--certificates' if single else '--input'} needs --out FOLDER", name="--out"
        )
    if out is not None and single and not certificates:
        raise OptionError(
            "one person is shown, not written to --out, unless with --certificates", name="--out"
        )
    if page is not None:
        report.check_page(page)
    report.check_statement(statement, page)
