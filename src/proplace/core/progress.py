"""Progress of long work on standard error: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SECONDS = 10.0  # between two lines in a log


@contextmanager
def progress_bar(label: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the bar by a number of rows, or nothing unless ``show``."""
    if not show:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _Lines(label, total).advance
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda rows: bar.advance(task, rows)


class _Lines:
    """Progress as lines of a log, none of them before ten seconds have passed."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._began = self._last = time.monotonic()

    def advance(self, rows: int) -> None:
        """Count rows, and print a line if the last one is ten seconds old."""
        self._done += rows
        now = time.monotonic()
        if now - self._last >= _SECONDS and self._done:
            self._last = now
            left = (now - self._began) * (self._total - self._done) / self._done
            text = f"{self._label}: {self._done:,} of {self._total:,}, {left:,.0f} s left"
            print(text, file=sys.stderr, flush=True)
