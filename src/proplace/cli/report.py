"""`proplace report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proplace.cli import inputs
from proplace.cli.console import progress

Folder = Annotated[Path, typer.Argument(help="Folder of results (explain --out).")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Page to write. Default: report.html in the folder."),
]


def report(folder: Folder, out: Out = None) -> None:
    """Write a page about a folder of results: one HTML file that opens offline.

    It shows the first 50 counterfactuals and the number of people. The digests of
    the folder are compared first.

    [bold]Example[/bold]

    proplace report results --out page.html
    """
    from proplace.batch.results import ResultsFolder  # noqa: PLC0415  (quick help)
    from proplace.report.page import MOST  # noqa: PLC0415

    page = folder / "report.html" if out is None else out
    check_page(page)
    opened = ResultsFolder.open(folder)
    result, people = opened.first(MOST), opened.people()
    shown = len({e.index for e in result})
    note = ""
    if shown < people:
        note = (
            f"This page shows the first {shown:,} of {people:,} people. All results are in "
            f"{opened.table.path.name}."
        )
    with inputs.new_file(page):
        result.report(
            page,
            opened.wording,
            note=note,
            certificates_folder=folder if opened.certificates else None,
        )
    progress(f"{page}: open it in a browser")


def check_page(page: Path) -> None:
    """Raise about the name of a page and about missing packages before any work."""
    from proplace.core.errors import OutputError, require  # noqa: PLC0415

    if page.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{page}: give a name that ends in .html", name=page.name)
    with inputs.new_file(page):
        for package in ("jinja2", "matplotlib"):
            require(package, "report", "the report")
