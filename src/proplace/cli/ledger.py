"""`proplace ledger`: issue, list, show, redeem, withdraw, erase and verify promises."""

from __future__ import annotations

import getpass
import json
import os
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import inputs, options
from proplace.cli.console import echo, echo_table, is_quiet, progress, tell
from proplace.core.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd

    from proplace.explain.words import Wording
    from proplace.ledger.ledger import Ledger
    from proplace.ledger.promise import Promise
    from proplace.schema import Schema

NOT_MET, BROKEN = 3, 4
"""Exit statuses of `redeem`."""

ledger = typer.Typer(
    no_args_is_help=True, help="Issue, list, show, redeem, withdraw, erase and verify promises."
)


class States(StrEnum):
    """States of a promise."""

    open = "open"
    expired = "expired"
    redeemed = "redeemed"
    renewed = "renewed"
    withdrawn = "withdrawn"
    erased = "erased"


class Existing(StrEnum):
    """Actions if a person has another open promise."""

    refuse = "refuse"
    add = "add"
    renew = "renew"


Place = Annotated[
    str,
    typer.Argument(metavar="LEDGER", help="SQLite file, or postgresql://user@host/name."),
]
Number = Annotated[int, typer.Argument(metavar="PROMISE", help="Number of the promise.")]


@contextmanager
def opened_ledger(place: str, *, create: bool = False) -> Iterator[Ledger]:
    """Open a ledger. Every entry names the user of the operating system."""
    from proplace.ledger.ledger import Ledger  # noqa: PLC0415  (quick help)

    actor = None
    with suppress(KeyError, OSError):  # a container may have no name for its user
        actor = getpass.getuser()
    with Ledger(place, actor=actor, create=create) as opened:
        yield opened


@ledger.command("list")
def list_(
    place: Place,
    person: Annotated[
        str | None, typer.Option(metavar="ID", help="Promises of this person alone.")
    ] = None,
    state: Annotated[States | None, typer.Option(help="Promises in this state alone.")] = None,
    letters: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the letter of each listed promise that is open."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List promises: number, person, state, days and class.

    [bold]Example[/bold]

    proplace ledger list promises.db --state open --letters letters
    """
    with opened_ledger(place) as opened:
        frame = opened.promises(person, None if state is None else state.value)
        if letters is not None:
            numbers, grow = frame.index[frame["state"] == States.open.value], dict[str, None]()
            with progress_bar("letters", len(numbers), show=not is_quiet()) as advance:
                for number in numbers:
                    path = letters / f"promise-{number}.html"
                    grow |= dict.fromkeys(_write_letter(opened.promise(number), path))
                    advance(1)
            _note_growing(grow)
            progress(f"{letters}: {len(numbers)} letters written")
    if as_json:
        typer.echo(json.dumps(_records(frame), indent=2))
        return
    columns = ["id", "person", "state", "issued", "expires", "target", "model"]
    rows = [
        ["" if row[name] is None else str(row[name]) for name in columns]
        for row in _records(frame.assign(issued=frame["issued"].str[:10]))
    ]
    echo_table(["promise", *columns[1:]], rows)


@ledger.command()
def show(
    place: Place,
    number: Number,
    letter: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the letter. Template: letter of the project file.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the certificate, its networks and the page that checks it.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show one promise: the person, the counterfactual, and all that happened.

    [bold]Example[/bold]

    proplace ledger show promises.db 5 --letter letter.html --proof proof
    """
    with opened_ledger(place) as opened:
        promise, history = opened.promise(number), list(opened.entries(number))
    if letter is not None:
        _note_growing(_write_letter(promise, letter))
        progress(f"{letter}: open it in a browser{_to_fill_in(letter)}")
    check = None if proof is None else _write_proof(promise, proof)
    entries = [
        {"entry": e.seq, "time": e.time, "kind": e.kind, **_public(e.facts)} for e in history
    ]
    if as_json:
        typer.echo(json.dumps({**_facts(promise), "history": entries, "check": check}, indent=2))
        return
    for name, value in _facts(promise).items():
        if name not in ("original", "answer", "guaranteed_ranges"):
            echo(f"{name:<9} {'' if value is None else value}")
    if promise.explanation is not None:
        words = promise.explanation.describe()
        goals = {c.title: c.goal for c in words.claims}
        rows = [[title, was, goals.get(title, "the same")] for title, was in words.person]
        echo_table(["feature", "then", "promised"], rows)
    echo_table(
        ["entry", "time", "kind", "facts"],
        [[str(one.pop("entry")), one.pop("time"), one.pop("kind"), _text(one)] for one in entries],
    )
    if check is not None:
        echo(f"check it: {check}")


@ledger.command()
def issue(
    place: Place,
    folder: Annotated[Path, typer.Argument(help="Folder of results (explain --out).")],
    column: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column with the ids of people. Default: the only id column.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DAY", help="Last day, such as 2027-03-31. Default: none.")
    ] = None,
    existing: Annotated[
        Existing,
        typer.Option(
            help="If a person has an open promise: refuse, add another, or renew (replace) it."
        ),
    ] = Existing.refuse,
    as_json: options.Json = False,
) -> None:
    """Promise the counterfactuals of a folder of results.

    Creates the ledger if there is none. A repeated command issues no promise twice.
    The words are those of wording in proplace.yaml.

    [bold]Example[/bold]

    proplace ledger issue promises.db results --id customer --expires 2999-12-31
    """
    from proplace.batch.results import open_results  # noqa: PLC0415  (quick help)

    _check_day(expires)
    wording = _wording()
    open_results(folder)  # an error here creates no ledger
    if "://" not in place and not Path(place).exists():
        tell(f"note: {place} is a new ledger")
    with opened_ledger(place, create=True) as opened:
        issued = opened.issue_folder(
            folder,
            column,
            expires=expires,
            existing=existing.value,
            wording=wording,
            progress=not is_quiet(),
        )
    if as_json:
        typer.echo(json.dumps(issued._asdict()))
    else:
        echo(str(issued))


@ledger.command()
def redeem(
    place: Place,
    number: Number,
    person: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE", help="The person, feature by feature.", show_default=False
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", help="Table of people.", rich_help_panel=options.PEOPLE
        ),
    ] = None,
    row: Annotated[
        int, typer.Option(metavar="N", help="Row of the table.", rich_help_panel=options.PEOPLE)
    ] = 0,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Model that decides. Default: the current one of the ledger.",
            rich_help_panel=options.PROJECT,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Compare a returning person with their promise, and record the outcome.

    Exit status 0: accepted, and the promise is redeemed. 3: refused, because the
    person does not meet the promise. 4: refused, although the person meets it, so
    the promise is broken.

    [bold]Examples[/bold]

    proplace ledger redeem promises.db 5 age=41 income=52000 job=cook

    proplace ledger redeem promises.db 5 --input people.csv --row 7
    """
    from proplace.core.errors import InputError, OptionError  # noqa: PLC0415  (quick help)
    from proplace.project import Project  # noqa: PLC0415

    values, project = options.pairs_of(person), Project.find()
    if bool(values) == (table is not None):
        raise OptionError(
            "give the person as name=value pairs, or as --input FILE --row N", name="--input"
        )
    whole = None if model is None else project.described(project.read_model(model), scaled=False)
    with opened_ledger(place) as opened:
        features = opened.promise(number).terms.model.schema
        if table is None:
            cells = _of_values(values, features)
        else:
            cells, broken = project.table(table).row(features, row)
            if broken:
                raise InputError(next(iter(broken.values())).reason, row=row)
            cells = _typed(cells, features)
        found = opened.redeem(number, cells, whole, record=not dry_run)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        echo(str(found))
    if not found.accepted:
        raise typer.Exit(BROKEN if found.verdict == "broken" else NOT_MET)


@ledger.command()
def withdraw(
    place: Place,
    number: Number,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason. It stays forever (no personal data).")
    ],
) -> None:
    """Withdraw a promise.

    [bold]Example[/bold]

    proplace ledger withdraw promises.db 5 --reason "issued by mistake"
    """
    with opened_ledger(place) as opened:
        opened.withdraw(number, reason)
    echo(f"promise {number} is withdrawn")


@ledger.command()
def erase(
    place: Place,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="Id of the person.")],
    yes: Annotated[bool, typer.Option("--yes", help="Erase without a question.")] = False,
) -> None:
    """Erase all personal data of a person forever. The hash chain stays valid.

    [bold]Example[/bold]

    proplace ledger erase promises.db anna --yes
    """
    from proplace.core.errors import LedgerError  # noqa: PLC0415  (quick help)

    with opened_ledger(place) as opened:
        if not yes:
            count = len(opened.promises(person))
            typer.confirm(f"erase {person} and {count} promises forever?", abort=True)
        numbers = opened.erase(person)
    if not numbers:
        raise LedgerError(
            f"nothing is known about {person!r}; proplace ledger list shows the people",
            value=person,
        )
    echo(f"erased: promises {', '.join(map(str, numbers))}")


@ledger.command()
def verify(
    place: Place,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD", help="A saved head: the entries up to it must not have changed."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all entries as JSON lines. They hold no personal data.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Confirm that no entry was changed. Exit status 1 if one was.

    Save the printed head in another place. It detects even a rewritten chain.

    [bold]Example[/bold]

    proplace ledger verify promises.db --export chain.jsonl
    """
    with opened_ledger(place) as opened:
        found = opened.verify(head)
        if export is not None:
            _write_entries(opened, export)
    if as_json:
        facts = {**vars(found), "head": str(found.head), "valid": found.valid}
        typer.echo(json.dumps(facts, indent=2))
    else:
        for line in str(found).splitlines():
            echo(line)
    if not found.valid:
        raise typer.Exit(1)


# -- files -----------------------------------------------------------------------------------------


def _write_letter(promise: Promise, path: Path) -> list[str]:
    """Write a letter, and return the features that grow with time beyond what it promises."""
    from proplace.project import Project  # noqa: PLC0415
    from proplace.report.letter import growing, letter_of_promise  # noqa: PLC0415

    with inputs.new_file(path):
        letter_of_promise(promise, path, template=Project.find().letter)
    return growing(promise)


def _note_growing(names: Iterable[str]) -> None:
    if found := list(names):
        inputs.note(
            f"{', '.join(found)} may grow, and no tolerance covers that, so the letter is only certain "
            f"while the value is the same. Explain with a tolerance, such as a year more of {found[0]}"
        )


def _to_fill_in(letter: Path) -> str:
    """Return what to do about the empty places of the default template."""
    empty = letter.read_text(encoding="utf-8").count(' class="fill"')
    return f", and fill in {empty} yellow places (or name a template as letter)" if empty else ""


def _write_proof(promise: Promise, folder: Path) -> str:
    """Write the certificate of a promise, and return the command that checks it."""
    from proplace.report.proofs import save_proof  # noqa: PLC0415

    with inputs.new_file(folder):
        return save_proof(promise, folder)


def _write_entries(opened: Ledger, path: Path) -> None:
    """Write all entries. The file appears when it is complete."""
    part = path.with_name(f"{path.name}.part")
    with inputs.new_file(path):
        with part.open("w", encoding="utf-8") as file:
            for entry in opened.entries():
                file.write(f"{json.dumps(entry._asdict())}\n")
        os.replace(part, path)


def _wording() -> Wording | None:
    """Return the wording of the project file, or None for the default one."""
    from proplace.explain.words import Wording  # noqa: PLC0415
    from proplace.project import Project  # noqa: PLC0415

    words = Project.find().wording
    return Wording(**words) if words else None


def _check_day(day: str | None) -> None:
    """Raise unless an expiry date is a day that is not over."""
    import datetime  # noqa: PLC0415

    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.ledger.tables import now  # noqa: PLC0415

    if day is None:
        return
    try:
        date = datetime.date.fromisoformat(day)
    except ValueError:
        raise OptionError(
            f"--expires {day!r} is not a day. Give one such as 2027-03-31",
            name="--expires",
            value=day,
        ) from None
    if f"{date}" < now()[:10]:
        raise OptionError(f"--expires {day} is over. Give a later day", name="--expires", value=day)


# -- facts -----------------------------------------------------------------------------------------


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows of a table of promises, with None for missing cells."""
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
    """Return the facts of an entry without internal digests."""
    return {name: facts[name] for name in facts if name not in ("commitment", "terms", "entries")}


def _text(facts: dict[str, Any]) -> str:
    more = {name: facts[name] for name in facts if name not in ("issued", "expires")}
    if "model" in more:
        more["model"] = f"{more['model'][:12]}..."
    return ", ".join(f"{name} {value}" for name, value in more.items() if value not in (None, ""))


def _of_values(values: dict[str, str], schema: Schema) -> pd.DataFrame:
    """Return one person as a table."""
    import pandas as pd  # noqa: PLC0415

    from proplace.tables.files import typed_text  # noqa: PLC0415

    cells = pd.DataFrame({name: [text] for name, text in values.items()}, dtype=object)
    for name, feature in schema.by_name.items():
        if name in cells.columns:
            cells[name] = typed_text(cells[name], feature)
    return _typed(cells, schema)


def _typed(cells: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Convert columns of the current model alone to numbers if all cells are numbers."""
    from proplace.tables.files import numbers_of  # noqa: PLC0415

    cells = cells.copy()
    for name in cells.columns:
        if name not in schema.by_name and isinstance(cells[name].iloc[0], str):
            cells[name] = numbers_of(cells[name])
    return cells
