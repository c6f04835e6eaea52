"""`--letters` of `proplace explain`: a printable page for each person."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli import common
from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from proplace.explain.results import Explanations
    from proplace.explain.words import Wording
    from proplace.schema.values import Label

Folder = Annotated[
    Path | None,
    typer.Option(
        "--letters",
        help="Also write a letter to each person into this new folder; needs --certificates.",
    ),
]
Subject = Annotated[str | None, typer.Option(help="What is decided, in the letters: 'the loan'.")]
Outcome = Annotated[
    str | None, typer.Option(help="What it is in the wanted class, in the letters: 'approved'.")
]
ValidUntil = Annotated[
    str | None, typer.Option(help="Last day of the letters' validity, such as 2026-12-31.")
]


def check(
    folder: Path | None, certificates: bool, subject: str | None, outcome: str | None,
    valid_until: str | None,
) -> None:  # fmt: skip
    """Say what is wrong with letters that are to be written, before any work."""
    import datetime  # noqa: PLC0415

    from proplace.core.errors import OptionError, require  # noqa: PLC0415
    from proplace.report.letter import day_of  # noqa: PLC0415

    if folder is None:
        given = {"--subject": subject, "--outcome": outcome, "--valid-until": valid_until}
        for name, value in given.items():
            if value is not None:
                raise OptionError(f"{name} is for letters: give --letters FOLDER, too", name=name)
        return
    if not certificates:
        raise OptionError(
            "a letter names the proof of its promise: --letters needs --certificates",
            name="--certificates",
        )
    with common.refused_if_there(folder):
        require("jinja2", "report", "letters")
    if valid_until is not None and day_of("--valid-until", valid_until) < datetime.date.today():
        raise OptionError(
            f"--valid-until {valid_until} is over", name="--valid-until", value=valid_until
        )


def wording_of(target: Label, subject: str | None, outcome: str | None) -> Wording | None:
    """Return the words of letters and promises for a class, by its label; None for the defaults."""
    from proplace.explain.words import Wording  # noqa: PLC0415

    if subject is None and outcome is None:
        return None
    usual = Wording()
    words = usual.outcomes if outcome is None else {target: outcome}
    return Wording(usual.subject if subject is None else subject, words)


def of_folder(results: Path) -> Iterator[Explanations]:
    """The people of a folder of results, one after the other."""
    from proplace.batch.reading import ResultsFolder  # noqa: PLC0415

    opened = ResultsFolder.open(results)
    for _, lines in itertools.groupby(opened.lines(), lambda line: line.explanation.index):
        yield opened.explanations(lines)


def write(
    people: Iterable[Explanations],
    folder: Path,
    wording: Wording | None,
    valid_until: str | None,
    reference: Callable[[Explanations], str | None] | None = None,
) -> None:
    """Write a letter to each person; the folder is there when all of them are.

    ``reference`` says what to call the promises of a person, where the letter does not know it.
    """
    from proplace.explain.words import Wording  # noqa: PLC0415
    from proplace.report.letter import UNSENT  # noqa: PLC0415

    part = folder.with_name(f"{folder.name}.part")
    unsent: list[str] = []
    with common.refused_if_there(folder):
        part.mkdir(parents=True, exist_ok=True)
        for old in part.glob("row-*.html"):  # of a run that was killed
            old.unlink()
        for answers in people:
            first = answers[0]
            row = int(str(first.index))
            if first.status in UNSENT:
                unsent.append(f"row {row}")
                continue
            answers.letter(
                first.index,
                part / f"row-{row:012d}.html",
                wording or Wording(),
                valid_until=valid_until,
                reference=None if reference is None else reference(answers),
            )
        part.rename(folder)
    if unsent:
        some = ", ".join(unsent[:5]) + (", ..." if len(unsent) > 5 else "")
        common.note(f"no letter for {len(unsent)} that could not be explained: {some}")
    if common.watched():
        tell(f"{folder}: one letter for each person, to print from a browser")
