"""The command line as a shell runs it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from unittest import mock

from proplace.apps.cli import main


def run(*words, encoding="utf-8", **environment):
    """Run the command line within this process, as ``python -m proplace`` does."""
    out, err = (_Stream(encoding=encoding) for _ in range(2))
    status = _run(words, out, err, {"COLUMNS": "120", **environment})
    return subprocess.CompletedProcess(words, status, out.text, err.text)


call = run_quickly = run


def run_on_a_terminal(*words, **environment):
    """Run it on a terminal with colours. Return the exit status and both outputs as one text."""
    shown = _Terminal()
    colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "FORCE_COLOR": "1"}
    status = _run(words, shown, shown, {"COLUMNS": "200", **colours, **environment})
    return status, shown.text


def run_process(*words, **environment):
    """Run it in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "proplace", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


class _Stream(io.TextIOWrapper):
    """An output that is kept in memory."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding)

    @property
    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


class _Terminal(_Stream):
    def isatty(self):
        return True


def _run(words, out, err, environment):
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.stdin", _Stream()),
        mock.patch("sys.argv", ["proplace", *map(str, words)]),
        mock.patch.dict(os.environ, environment),
    ):
        try:
            main()
        except SystemExit as end:
            return end.code
