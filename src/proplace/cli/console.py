"""Output of the commands: every text goes through here and appears as it is.

Labels, names and paths come from the files of other people. None of them may colour a line, end the
command or move the cursor. So nothing in them is read as markup, and control characters are spelt out
(see :mod:`proplace.core.text`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from proplace.core.text import MESSAGE, clipped, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_quiet = False


def set_quiet(quiet: bool) -> None:
    """Switch progress and summaries on standard error off or on."""
    global _quiet  # noqa: PLW0603  (one option of the whole command)
    _quiet = quiet


def is_quiet() -> bool:
    """Return True if the command was called with --quiet."""
    return _quiet


def echo(text: str) -> None:
    """Print a line on standard output."""
    typer.echo(_shown(text, sys.stdout.encoding))


def tell(text: str) -> None:
    """Print a note or an error on standard error, cut if it is long."""
    typer.echo(_shown(clipped(text, MESSAGE), sys.stderr.encoding), err=True)


def progress(text: str) -> None:
    """Print a line about progress on standard error, unless the command is quiet."""
    if not _quiet:
        tell(text)


def echo_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
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
    """Spell out the characters of a text that must not, or cannot, be written."""
    name = encoding or "utf-8"
    return visible(text).encode(name, "backslashreplace").decode(name)
