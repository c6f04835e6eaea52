"""`proplace report`, and `--report` of `proplace explain`."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli import common
from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.explain.results import Explanations

Page = Annotated[
    Path | None,
    typer.Option("--report", help="Also write an HTML page to read, of the first 50 answers."),
]

Statement = Annotated[
    str | None,
    typer.Option(
        help="What past retrainings say about the next one (see: calibrate --risk), for the page: a "
        "paragraph of its own beside what is proved."
    ),
]


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of results (see: explain --out).")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; report.html in the folder if left out.")
    ] = None,
    statement: Statement = None,
) -> None:
    """Write a page to read about a folder of results: one HTML file that opens offline.

    It shows the first 50 answers, and says how many there are. The folder is compared with what was
    written to it first. Nothing is overwritten.

    [bold]Example[/bold]

    proplace report results --out page.html
    """
    page = folder / "report.html" if out is None else out
    check_page(page)
    write_folder_page(folder, page, statement)


def check_page(page: Path) -> None:
    """Say what is wrong with a page that is to be written, before any work."""
    from proplace.core.errors import OutputError, require  # noqa: PLC0415

    if page.suffix.lower() not in (".html", ".htm"):
        raise OutputError(
            f"{page}: a report is an HTML file; give a name that ends in .html", name=page.name
        )
    with common.refused_if_there(page):
        for package in ("jinja2", "matplotlib"):
            require(package, "report", "the report")


def check_statement(statement: str | None, page: Path | None) -> None:
    """Say that a statement needs a page to stand on."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if statement is not None and page is None:
        raise OptionError(
            "--statement is for the page: give --report page.html, too", name="--statement"
        )


def write_folder_page(folder: Path, page: Path, statement: str | None = None) -> None:
    """Write the page of a folder of results."""
    from proplace.batch.reading import ResultsFolder  # noqa: PLC0415
    from proplace.report.page import MOST  # noqa: PLC0415

    opened = ResultsFolder.open(folder)
    result, people = opened.first(MOST), opened.people()
    shown = len({e.index for e in result})
    note = ""
    if shown < people:
        note = (
            f"This page shows the first {shown:,} of {people:,} people; the answers for all are in "
            f"{opened.table.path.name}."
        )
    with _new(page):
        kept = folder if opened.certificates else None
        result.report(page, note=note, kept=kept, statement=statement or "")


def write_person_page(
    result: Explanations, page: Path, kept: Path | None, statement: str | None
) -> None:
    """Write the page of one person; ``kept`` is the folder of the certificates, if there is one.

    If not, the page says which options of the same command write them.
    """
    from proplace.explain.words import Wording  # noqa: PLC0415
    from proplace.report.page import MOST, write_report  # noqa: PLC0415

    note, again = "", None
    if len(result) > MOST:
        note = f"This page shows the first {MOST} of {len(result)} answers; --json prints all."
    if kept is None:
        kept = page.with_name(f"{page.stem}-proofs")
        again = (f"--certificates --out {_quoted(kept)}", f"--report {_quoted(page)}")
    with _new(page):
        write_report(
            page,
            result[:MOST],
            Wording(),
            kept=kept,
            again=again,
            note=note,
            statement=statement or "",
        )


@contextmanager
def _new(page: Path) -> Iterator[None]:
    """Write a page in the place of no other file, and say that it is there."""
    with common.refused_if_there(page):
        yield
    if common.watched():
        tell(f"{page}: open it in a browser")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
