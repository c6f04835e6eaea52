"""`proplace ledger`: what was promised to whom, and what became of it."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common, one_person, promising
from proplace.cli.console import say, say_table, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from proplace.ledger.ledger import Ledger
    from proplace.ledger.promise import Promise
    from proplace.schema import Schema

_PAGE = 20_000  # promises that are read at once
NOT_MET, BROKEN = 3, 4
"""Exit statuses of `redeem`."""

ledger = typer.Typer(
    no_args_is_help=True,
    help="Look up, redeem, erase, verify and export promises (see: explain --ledger).",
)


class States(StrEnum):
    """What a promise can be."""

    open = "open"
    expired = "expired"
    redeemed = "redeemed"
    renewed = "renewed"
    withdrawn = "withdrawn"
    erased = "erased"


Place = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER", help="A file such as promises.db, or postgresql://user@host/name."
    ),
]
Number = Annotated[int, typer.Argument(metavar="PROMISE", help="Number of the promise.")]
Results = Annotated[
    Path, typer.Argument(help="Folder that explain --certificates --out has written.")
]
Words = Annotated[
    list[str] | None, typer.Argument(help="The person as name=value pairs.", show_default=False)
]
Input = Annotated[
    Path | None, typer.Option("--input", help="CSV (.gz too) or Parquet file with the person.")
]
InUse = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="The model in use; default: the one adopted last, else the promise's own.",
    ),
]
Chain = Annotated[
    Path | None,
    typer.Option(
        help="Write the chain here, as JSON lines: everything that happened, no personal data."
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option("--promises", help="Write the promises here, as CSV, with people and sentences."),
]
By = Annotated[
    str | None, typer.Option(help="Who does it; noted in the ledger (no personal data).")
]
AsOf = Annotated[str | None, typer.Option(help="The day whose state is asked for; default: today.")]


@contextmanager
def _opened(place: str, by: str | None = None, *, create: bool = False) -> Iterator[Ledger]:
    from proplace.ledger.ledger import Ledger  # noqa: PLC0415  (quick help)

    with Ledger(place, actor=by, create=create) as opened:
        yield opened


@ledger.command("list")
def list_(
    place: Place,
    person: Annotated[str | None, typer.Option(help="Of this person only.")] = None,
    state: Annotated[States | None, typer.Option(help="In this state only.")] = None,
    as_of: AsOf = None,
    as_json: common.Json = False,
) -> None:
    """List promises: number, person, state, days and class.

    [bold]Example[/bold]

    proplace ledger list promises.db --state open
    """
    with _opened(place) as opened:
        frame = opened.promises(person, None if state is None else state.value, as_of=as_of)
    if as_json:
        typer.echo(json.dumps(_records(frame), indent=2))
        return
    columns = ["id", "person", "state", "issued", "expires", "target", "model"]
    rows = [
        ["" if row[name] is None else str(row[name]) for name in columns] for row in _records(frame)
    ]
    say_table(["promise", *columns[1:]], rows)


@ledger.command()
def show(place: Place, number: Number, as_of: AsOf = None, as_json: common.Json = False) -> None:
    """Show one promise: what was promised, to whom, and everything that happened to it.

    [bold]Example[/bold]

    proplace ledger show promises.db 5
    """
    with _opened(place) as opened:
        promise, history = opened.promise(number, as_of=as_of), list(opened.entries(number))
    entries = [
        {"entry": e.seq, "time": e.time, "kind": e.kind, **_public(e.facts)} for e in history
    ]
    if as_json:
        typer.echo(json.dumps({**_facts(promise), "history": entries}, indent=2))
        return
    for name, value in _facts(promise).items():
        if name not in ("original", "answer", "guaranteed_ranges"):
            say(f"{name:<9} {'' if value is None else value}")
    if promise.explanation is not None:
        words = promise.explanation.describe()
        goals = {c.title: c.goal for c in words.claims}
        rows = [[title, was, goals.get(title, "the same")] for title, was in words.person]
        say_table(["feature", "then", "promised"], rows)
    say_table(
        ["entry", "time", "what", "more"],
        [[str(one.pop("entry")), one.pop("time"), one.pop("kind"), _told(one)] for one in entries],
    )


@ledger.command()
def letter(
    place: Place,
    number: Number,
    out: Annotated[Path, typer.Option(help="File of the letter, such as letter.html.")],
    template: Annotated[
        Path | None,
        typer.Option(help="Jinja template of the letter. Default: a plain letter."),
    ] = None,
) -> None:
    """Write the letter of an open promise, to print on A4 from a browser.

    [bold]Example[/bold]

    proplace ledger letter promises.db 5 --out letter.html --template letter.html.j2
    """
    from proplace.report.letter import letter_of_promise  # noqa: PLC0415

    with _opened(place) as opened:
        promise = opened.promise(number)
    with common.refused_if_there(out):
        letter_of_promise(promise, out, template=template)
    if common.watched():
        tell(f"{out}: written")


@ledger.command()
def proof(
    place: Place,
    number: Number,
    out: Annotated[Path, typer.Option(help="A new folder for the certificate and its networks.")],
) -> None:
    """Write the certificate of a promise, all that a check needs, and the page that checks it.

    [bold]Example[/bold]

    proplace ledger proof promises.db 5 --out proof
    """
    from proplace.report.proofs import save_proof  # noqa: PLC0415

    with _opened(place) as opened:
        promise = opened.promise(number)
    with common.refused_if_there(out):
        command = save_proof(promise, out)
    say(f"check it: {command}")


@ledger.command()
def verify(
    place: Place,
    head: Annotated[
        str | None,
        typer.Option(help="A head that was kept elsewhere: entries up to it must be the same."),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Look whether everything is as it was written; exit status 0 if it is, else 1.

    Keep the head that is printed in another place: with it, a rewritten chain is noticed, too.

    [bold]Example[/bold]

    proplace ledger verify promises.db
    """
    with _opened(place) as opened:
        found = opened.verify(head)
    if as_json:
        facts = {**vars(found), "head": str(found.head), "valid": found.valid}
        typer.echo(json.dumps(facts, indent=2))
    else:
        for line in str(found).splitlines():
            say(line)
    if not found.valid:
        raise typer.Exit(1)


@ledger.command()
def issue(
    place: Place,
    results: Results,
    column: Annotated[
        str | None,
        typer.Option("--ids", help="Column with the id of each person; default: the one --id."),
    ] = None,
    expires: promising.Expires = None,
    existing: promising.AnExisting = promising.Existing.refuse,
    by: By = None,
) -> None:
    """Promise the answers of a folder of results; a repeated command issues none twice.

    [bold]Example[/bold]

    proplace ledger issue promises.db results --ids customer --expires 2999-12-31
    """
    promising.check_day(expires)
    if promising.is_new(place):
        tell(f"note: {place} is a new ledger")
    with _opened(place, by, create=True) as opened:
        issued = opened.issue_folder(results, column, expires=expires, existing=existing.value)
        say(str(issued))


@ledger.command()
def redeem(
    place: Place,
    number: Number,
    person: Words = None,
    table: Input = None,
    row: Annotated[int, typer.Option(help="Row of the input; the first is 0.")] = 0,
    model: InUse = None,
    classes: common.Classes = None,
    schema: common.SchemaFile = None,
    as_of: Annotated[
        str | None, typer.Option(help="The day on which the person came; default: today.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look only; write nothing.")] = False,
    delimiter: common.Delimiter = None,
    encoding: common.Encoding = "utf-8",
    by: By = None,
    as_json: common.Json = False,
) -> None:
    """Look whether a person who comes back has what was promised, and write it down.

    Exit status: 0 the model in use accepts, and the promise is redeemed; 3 the promise is not met and
    the model refuses; 4 the promise is met and the model refuses: it is broken.

    [bold]Examples[/bold]

    proplace ledger redeem promises.db 5 age=41 income=52000 job=cook

    proplace ledger redeem promises.db 5 --input people.csv --row 7 --model new.onnx
    """
    from proplace.core.errors import InputError, OptionError  # noqa: PLC0415
    from proplace.tables.files import open_table  # noqa: PLC0415

    words = one_person.pairs(person or [])
    if bool(words) == (table is not None):
        raise OptionError(
            "give the person as name=value pairs, or as --input FILE --row N", name="--input"
        )
    whole = None
    if model is not None:
        whole = common.with_classes(common.read_model(model), classes)
    if whole is not None and schema is not None:
        whole = common.with_schema(whole, schema)
    with _opened(place, by) as opened:
        features = opened.promise(number).terms.model.schema
        if table is None:
            cells = _of_words(words, features)
        else:
            source = open_table(table, delimiter=delimiter, encoding=encoding)
            cells, broken = source.row(features, row)
            if broken:
                raise InputError(next(iter(broken.values())).reason, row=row)
            cells = _typed(cells, features)
        found = opened.redeem(number, cells, whole, as_of=as_of, record=not dry_run)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        say(str(found))
    if not found.accepted:
        raise typer.Exit(BROKEN if found.verdict == "broken" else NOT_MET)


@ledger.command()
def adopt(
    place: Place,
    model: common.Model,
    note: Annotated[str, typer.Option(help="Why; it stays for good (no personal data).")] = "",
    classes: common.Classes = None,
    schema: common.SchemaFile = None,
    by: By = None,
) -> None:
    """Say which model decides from now on: redeem asks it where no other is given.

    [bold]Example[/bold]

    proplace ledger adopt promises.db --model new.onnx --note "retrained in spring"
    """
    whole = common.with_classes(common.read_model(model), classes)
    if schema is not None:
        whole = common.with_schema(whole, schema)
    with _opened(place, by) as opened:
        entry = opened.set_current_model(whole, note)
    say(f"{model} decides from entry {entry.seq} on")


@ledger.command()
def withdraw(
    place: Place,
    number: Number,
    reason: Annotated[
        str, typer.Option(help="Why; it stays in the ledger for good (no personal data).")
    ],
    by: By = None,
) -> None:
    """Take a promise back.

    [bold]Example[/bold]

    proplace ledger withdraw promises.db 5 --reason "issued by mistake"
    """
    with _opened(place, by) as opened:
        opened.withdraw(number, reason)
    say(f"promise {number} is withdrawn")


@ledger.command()
def erase(
    place: Place,
    person: Annotated[str, typer.Argument(help="The user's own id of the person.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    by: By = None,
) -> None:
    """Erase all that is known about a person, for good; the chain stays as it is.

    [bold]Example[/bold]

    proplace ledger erase promises.db anna --yes
    """
    from proplace.core.errors import LedgerError  # noqa: PLC0415

    with _opened(place, by) as opened:
        if not yes:
            count = len(opened.promises(person))
            typer.confirm(f"erase {person} and {count} promises, for good?", abort=True)
        numbers = opened.erase(person)
    if not numbers:
        raise LedgerError(
            f"nothing is known about {person!r}; proplace ledger list shows the people",
            value=person,
        )
    say(f"erased: promises {', '.join(map(str, numbers))}")


@ledger.command()
def export(
    place: Place,
    chain: Chain = None,
    table: Csv = None,
    as_of: AsOf = None,
) -> None:
    """Write what is in a ledger to files, for other tools; nothing is overwritten.

    The promises are listed from the latest to the first.

    [bold]Example[/bold]

    proplace ledger export promises.db --chain chain.jsonl --promises promises.csv
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if chain is None and table is None:
        raise OptionError(
            "nothing to write: give --chain FILE, --promises FILE, or both", name="--promises"
        )
    with _opened(place) as opened:
        if chain is not None:
            with _whole(chain) as part, part.open("w", encoding="utf-8") as file:
                for entry in opened.entries():
                    file.write(f"{json.dumps(entry._asdict())}\n")
        if table is not None:
            _write_csv(opened, table, as_of)


# -- inside ----------------------------------------------------------------------------------------


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file that is there when it is whole."""
    part = path.with_name(f"{path.name}.part")
    with common.refused_if_there(path):
        yield part
        os.replace(part, path)
    if common.watched():
        tell(f"{path}: written")


def _write_csv(opened: Ledger, path: Path, as_of: str | None) -> None:
    from proplace.tables.files import write_csv  # noqa: PLC0415

    with _whole(path) as part, part.open("wb") as file:
        frame = opened.page(_PAGE, as_of=as_of)
        write_csv(frame.reset_index(), file)
        while len(frame):
            frame = opened.page(_PAGE, before=frame.index[-1], as_of=as_of)
            write_csv(frame.reset_index(), file, header=False)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table of promises, with None where there is nothing."""
    whole = frame.reset_index().astype(object)
    return [
        {str(name): None if cell != cell else cell for name, cell in row.items()}  # noqa: PLR0124
        for row in whole.to_dict("records")
    ]


def _facts(promise: Promise) -> dict[str, Any]:
    facts = promise.facts
    return {
        "promise": promise.id,
        "person": promise.person,
        "state": promise.state,
        "issued": promise.issued,
        "expires": promise.expires,
        "target": promise.target,
        "model": promise.terms.model.origin.name,
        "terms": promise.terms.digest,
        "sentence": promise.sentence or None,
        "original": facts.get("original"),
        "answer": facts.get("answer"),
        "guaranteed_ranges": facts.get("guaranteed_ranges"),
    }


def _public(facts: dict[str, Any]) -> dict[str, Any]:
    """What an entry says, without digests that mean nothing to people."""
    return {name: facts[name] for name in facts if name not in ("commitment", "terms", "entries")}


def _told(facts: dict[str, Any]) -> str:
    more = {name: facts[name] for name in facts if name not in ("issued", "expires")}
    if "model" in more:
        more["model"] = f"{more['model'][:12]}..."
    return ", ".join(f"{name} {value}" for name, value in more.items() if value not in (None, ""))


def _of_words(words: dict[str, str], schema: Schema) -> pd.DataFrame:
    """One person from name=value pairs."""
    import pandas as pd  # noqa: PLC0415

    from proplace.tables.files import typed_text  # noqa: PLC0415

    cells = pd.DataFrame({name: [text] for name, text in words.items()}, dtype=object)
    for name, feature in schema.by_name.items():
        if name in cells.columns:
            cells[name] = typed_text(cells[name], feature)
    return _typed(cells, schema)


def _typed(cells: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Columns that only the model in use may know: numbers where they look like such."""
    from proplace.tables.files import numbers_of  # noqa: PLC0415

    cells = cells.copy()
    for name in cells.columns:
        if name not in schema.by_name and isinstance(cells[name].iloc[0], str):
            cells[name] = numbers_of(cells[name])
    return cells
