"""What the commands print: every text goes through here, and is shown as it is.

Labels, names and paths come from other people's files. None of them may colour a line, end the
command, become a picture or move the cursor, so nothing in them is read as markup, and control
characters are spelt out (see :mod:`proplace.core.text`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from proplace.core.text import MESSAGE, clipped, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def say(text: str) -> None:
    """Print a line on standard output."""
    typer.echo(_shown(text, sys.stdout.encoding))


def tell(text: str) -> None:
    """Print a line on standard error, where notes and errors go; the first part of a long one."""
    typer.echo(_shown(clipped(text, MESSAGE), sys.stderr.encoding), err=True)


def say_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on standard output."""
    from rich.console import Console  # noqa: PLC0415  (quick help)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(markup=False, emoji=False, highlight=False)
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")  # a long word is broken, not cut off
    for row in rows:
        table.add_row(*(Text(_shown(cell, console.encoding)) for cell in row))
    console.print(table)


def _shown(text: str, encoding: str | None) -> str:
    """A text with everything spelt out that must not, or cannot, be written."""
    name = encoding or "utf-8"
    return visible(text).encode(name, "backslashreplace").decode(name)
