"""`proplace audit`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import inputs, options
from proplace.cli.console import echo, echo_table, tell
from proplace.cli.ledger import opened_ledger
from proplace.cli.report import check_page

if TYPE_CHECKING:
    from proplace.ledger.audit import Audit, Renewal
    from proplace.loaders.model import Model
    from proplace.project import Project

NOT_RELEASED = 3
"""Exit status of a closed release gate. 1 is an error."""

_SHOWN = 20  # broken promises that are listed, the others are counted


class FailOn(StrEnum):
    """Verdicts that close a release gate."""

    broken = "broken"
    holds = "holds"


New = Annotated[Path, typer.Argument(metavar="MODEL", help="Retrained model: .onnx or .npz.")]
Ledger = Annotated[
    str | None,
    typer.Option(
        metavar="LEDGER",
        help="SQLite file, or postgresql://user@host/name. Default: that of the project file.",
        rich_help_panel=options.PROJECT,
    ),
]
Gate = Annotated[
    FailOn | None,
    typer.Option(
        help="Exit status 3 if a promise is broken; holds: if one is not proved. Undecided promises "
        "never pass.",
        rich_help_panel="Decision",
    ),
]
Approve = Annotated[
    bool,
    typer.Option(
        "--approve",
        help="Make it the current model, unless the gate is closed.",
        rich_help_panel="Decision",
    ),
]
Renew = Annotated[
    bool,
    typer.Option(
        "--renew",
        help="Search and issue new promises in place of the broken ones.",
        rich_help_panel="Decision",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Write nothing to the ledger.", rich_help_panel="Decision"),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", help="Write an HTML page.", rich_help_panel=options.OUTPUT
    ),
]


def audit(
    model: New,
    config: options.Config = None,
    ledger: Ledger = None,
    fail_on: Gate = None,
    approve: Approve = False,
    renew: Renew = False,
    dry_run: DryRun = False,
    page: Page = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a retrained model against all open promises: proved, holds, broken or undecided.

    The ledger records the audit. --renew needs tables.train and delta in the
    project file, and keeps the request and the expiry date of each promise.
    Nothing is approved or issued if the gate is closed.

    [bold]Examples[/bold]

    proplace audit new.onnx --ledger promises.db --fail-on broken --report audit.html

    proplace audit new.onnx --fail-on broken --approve --renew
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)
    from proplace.project import Project  # noqa: PLC0415

    project = Project.find(config).changed(ledger=ledger)
    project.check_has("ledger", options=("ledger",))
    if approve and dry_run:
        raise OptionError("--approve writes to the ledger: leave --dry-run out", name="--approve")
    if renew:
        project.check_has("train", "delta")
    if page is not None:
        check_page(page)
    whole = project.described(project.read_model(model), scaled=False)
    with opened_ledger(str(project.ledger)) as book:
        found = book.audit(whole, record=not dry_run)
        passed = fail_on is None or found.passes(fail_on.value)
        renewal = None
        if renew and passed and found.broken:
            renewal = _renewal(project, found, whole)
        if as_json:
            typer.echo(json.dumps(_facts(found, renewal)))
        else:
            _show(found, renewal)
        if page is not None:
            found.report(page)
        if fail_on is not None and not passed:
            tell(f"not released: --fail-on {fail_on.value}: {found.sentence}")
            raise typer.Exit(NOT_RELEASED)
        if approve and found.number is not None:
            book.approve(found.number)
            tell(f"{model} is the current model")
        if renewal is not None and not dry_run:
            tell(str(renewal.issue()))


def _renewal(project: Project, audit: Audit, model: Model) -> Renewal:
    """Search new answers for the broken promises."""
    from proplace.explain.proplace import Proplace  # noqa: PLC0415
    from proplace.loaders.align import with_cutoff_of  # noqa: PLC0415

    base = audit.ledger.promise(audit.broken[0]).terms.model
    new = with_cutoff_of(base, model)
    known = new if project.schema is not None else _described(new, base)
    shifts = inputs.shifts_of(project, known)
    rows = inputs.training_rows(
        project.table(project.train or Path()), known.schema, project.others
    )
    return audit.renew(Proplace(known, shifts, **project.explainer).fit(rows))


def _described(model: Model, base: Model) -> Model:
    """Return the new model with the ranges, steps and rules of the promises."""
    from proplace.core.errors import SchemaError  # noqa: PLC0415

    schema = base.schema
    try:
        return model.with_schema(schema.unscaled() if model.has_preprocessing else schema)
    except SchemaError as error:
        raise SchemaError(
            f"the schema of the promises does not fit the new model ({error}). Describe its columns "
            "with schema in the project file",
            name="schema",
        ) from None


def _facts(audit: Audit, renewal: Renewal | None) -> dict[str, Any]:
    facts = audit.to_dict()
    if renewal is not None:
        lines = renewal.to_frame().astype(object)
        facts["renewal"] = json.loads(lines.to_json(orient="records", default_handler=str))
    return facts


def _show(audit: Audit, renewal: Renewal | None) -> None:
    """Print the counts, and the first broken promises."""
    for line in str(audit).splitlines():
        echo(line)
    broken = audit.to_frame("broken") if audit.broken else None
    if broken is not None:
        rows = [
            (str(number), str(row["person"]), f"{row['margin']:.4g}", str(row["note"]))
            for number, row in broken.head(_SHOWN).iterrows()
        ]
        echo_table(("broken promise", "person", "margin", "note"), rows)
        if len(broken) > _SHOWN:
            echo(f"and {len(broken) - _SHOWN:,} more: --json lists all")
    if renewal is not None:
        echo(str(renewal))
        lines = renewal.to_frame().fillna("").astype(str)
        columns = ["promise", "person", "feature", "was", "promised", "now"]
        echo_table(columns, lines[columns].head(3 * _SHOWN).to_numpy().tolist())
