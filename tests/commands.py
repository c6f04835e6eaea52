"""The command line as a shell runs it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from proplace.cli import main

SHELL = {"COLUMNS": "120"}
"""A shell of one width; ``conftest.py`` removes the variables that ask for colours."""


@dataclass(frozen=True)
class Done:
    """A command that has ended: exit status, outputs, and the error that ``main`` caught."""

    returncode: int
    stdout: str
    stderr: str
    error: Exception | None

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def run(*words, encoding="utf-8", **environment):
    """Run the command line within this process, as ``python -m proplace`` does."""
    out, err = (_Stream(encoding=encoding) for _ in range(2))
    status, error = _run(words, out, err, {**SHELL, **environment})
    return Done(status, out.text, err.text, error)


def good(*words, **environment):
    """Run a command that must succeed."""
    done = run(*words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_on_a_terminal(*words, **environment):
    """Run it on a terminal with colours. Return the exit status and both outputs as one text."""
    shown = _Terminal()
    colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "FORCE_COLOR": "1"}
    status, _ = _run(words, shown, shown, {"COLUMNS": "200", **colours, **environment})
    return status, shown.text


def run_process(*words, **environment):
    """Run it in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "proplace", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **SHELL, **environment},
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
    module = importlib.import_module("proplace.cli.app")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.stdin", _Stream()),
        mock.patch("sys.argv", ["proplace", *map(str, words)]),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(module, "_told", wraps=module._told) as told,
    ):
        try:
            main()
        except SystemExit as end:
            return end.code, told.call_args.args[0] if told.called else None
