"""`proplace audit`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common, delta, report
from proplace.cli.console import say, say_table, tell

if TYPE_CHECKING:
    from proplace.ledger.audit import Audit, Renewal
    from proplace.loaders.model import Model as WholeModel
    from proplace.schema import Schema

NOT_RELEASED = 3
"""Exit status of a release gate that is closed; 1 is an error."""

_SHOWN = 20  # broken promises that are listed; the rest are counted


class FailOn(StrEnum):
    """What a release gate does not let pass."""

    broken = "broken"
    holds = "holds"


LedgerPlace = Annotated[
    str,
    typer.Option(
        "--ledger", help="The ledger: a SQLite file, or postgresql://user@host/name of a database."
    ),
]


def audit(
    ledger: LedgerPlace,
    model: common.Model,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help="A release gate. broken: exit status 3 if a promise is broken; holds: if one is not "
            "proved. Undecided promises never pass. Judged is the model, before --renew."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write an HTML page to read.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="The day on which promises are open; today if left out.")
    ] = None,
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Leave the ledger as it is.")
    ] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Search new answers for the broken promises; needs --train and --delta or --shifts.",
        ),
    ] = False,
    issue: Annotated[
        bool, typer.Option("--issue", help="With --renew: issue them in the place of the broken.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option(help="With --issue: their last day; else that of the promise it replaces."),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="With --renew: CSV or Parquet file with the training rows.")
    ] = None,
    number: delta.Number = None,
    shifts: delta.File = None,
    k: Annotated[int, typer.Option("--k", help="With --renew: robust neighbours.")] = 20,
    classes: common.Classes = None,
    cutoff: common.Cutoff = None,
    schema: common.SchemaFile = None,
    drop: common.Drop = None,
    delimiter: common.Delimiter = None,
    encoding: common.Encoding = "utf-8",
    as_json: common.Json = False,
) -> None:
    """Say of every open promise what a retrained model makes of it: proved, holds or broken.

    Exit status 0, or 3 where --fail-on does not let the model pass. The audit is recorded in the ledger
    unless --no-record is given. New answers (--renew) are searched with the request of the promise that
    they replace: its tolerance, immutable features, ranges and preference.

    [bold]Examples[/bold]

    proplace audit --ledger promises.db --model new.onnx --fail-on broken

    proplace audit --ledger promises.db --model new.onnx --out audit.html --json

    proplace audit --ledger promises.db --model new.onnx --renew --train new.csv --drop label
    --delta 0.02 --issue
    """
    from proplace.explain.proplace import Proplace  # noqa: PLC0415  (quick help)
    from proplace.ledger.ledger import Ledger  # noqa: PLC0415
    from proplace.loaders.coordinates import with_cutoff_of  # noqa: PLC0415
    from proplace.tables.files import open_table  # noqa: PLC0415

    asked = _renewing(renew=renew, issue=issue, expires=expires, train=train, fail_on=fail_on)
    given = delta.chosen(number, shifts) if asked else None
    if out is not None:
        report.check_page(out)
    whole = common.with_classes(common.read_model(model), classes)
    whole = common.with_cutoff(whole, cutoff)
    if schema is not None:
        whole = common.with_schema(whole, schema)
    with Ledger(ledger, create=False) as opened:
        found = opened.audit(whole, as_of=as_of, record=not no_record)
        renewal = None
        if given is not None and asked is not None and found.broken:
            rows = open_table(asked, delimiter=delimiter, encoding=encoding)
            base = opened.promise(found.broken[0]).terms.model
            whole = with_cutoff_of(base, whole)
            known = whole if schema is not None else _described(whole, base)
            delta.check(given, shifts, known.network, model)
            people = common.training_rows(rows, known.schema, drop or [])
            explainer = Proplace(known, given, k=k).fit(people)
            renewal = found.renew(explainer)
        if as_json:
            say(json.dumps(_facts(found, renewal)))
        else:
            _show(found, renewal)
        if out is not None:
            found.report(out)
        if renewal is not None and issue:
            tell(str(renewal.issue(expires=expires)))
        if fail_on is not None and not found.passes(fail_on.value):
            tell(f"not released: --fail-on {fail_on.value}: {found.sentence}")
            raise typer.Exit(NOT_RELEASED)


def _renewing(
    *, renew: bool, issue: bool, expires: str | None, train: Path | None, fail_on: FailOn | None
) -> Path | None:
    """The training table, where new answers are asked for."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if not renew:
        if issue or train is not None:
            raise OptionError(
                "--issue and --train are for new answers: give --renew, too", name="--renew"
            )
        return None
    if train is None:
        raise OptionError(
            "--renew searches new answers: give the training rows as --train FILE", name="--train"
        )
    if issue and fail_on is not None:
        raise OptionError(
            "--issue promises what the new model answers, which --fail-on may not release; release it "
            "first, then give --issue without --fail-on",
            name="--issue",
        )
    if expires is not None and not issue:
        raise OptionError(
            "--expires is the last day of what is issued: give --issue, too", name="--issue"
        )
    return train


def _described(model: WholeModel, base: WholeModel) -> WholeModel:
    """The new model with the ranges, steps and rules of the promises."""
    from proplace.core.errors import SchemaError  # noqa: PLC0415

    schema: Schema = base.schema
    try:
        return model.with_schema(schema.unscaled() if model.has_preprocessing else schema)
    except SchemaError as error:
        raise SchemaError(
            f"the schema of the promises does not fit the new model ({error}); describe its columns "
            "with --schema FILE",
            name="--schema",
        ) from None


def _facts(audit: Audit, renewal: Renewal | None) -> dict[str, Any]:
    facts = audit.to_dict()
    if renewal is not None:
        lines = renewal.to_frame().astype(object)
        facts["renewal"] = json.loads(lines.to_json(orient="records", default_handler=str))
    return facts


def _show(audit: Audit, renewal: Renewal | None) -> None:
    """Print what was found, and the first broken promises."""
    for line in str(audit).splitlines():
        say(line)
    broken = audit.to_frame("broken") if audit.broken else None
    if broken is not None:
        rows = [
            (str(number), str(row["person"]), f"{row['margin']:.4g}", str(row["note"]))
            for number, row in broken.head(_SHOWN).iterrows()
        ]
        say_table(("broken promise", "person", "margin", "note"), rows)
        if len(broken) > _SHOWN:
            say(f"and {len(broken) - _SHOWN:,} more: --json lists all")
    if renewal is not None:
        say(str(renewal))
        lines = renewal.to_frame().fillna("").astype(str)
        columns = ["promise", "person", "feature", "was", "promised", "now"]
        say_table(columns, lines[columns].head(3 * _SHOWN).to_numpy().tolist())
