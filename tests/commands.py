"""The command line as a shell runs it.

A word that ends with a colon is a key of the project file: ``run("explain", "explainer.k:", 5, ...)``
writes a file with the key and gives it as ``--config``. A repeated key becomes a list.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
import yaml

from proplace.cli import app, main
from proplace.project import KEYS

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


_FILES = tempfile.TemporaryDirectory(prefix="projects")
_PATHS = ("model", "schema", "letter", "tables.train", "tables.people")


def with_project(words):
    """Move words that are keys of the project file, and their values, into such a file."""
    rest, content, ahead = [], {}, iter(words)
    for word in ahead:
        key = str(word).removesuffix(":")
        if key == str(word) or key not in KEYS:
            rest.append(word)
            continue
        part, _, name = key.rpartition(".")
        place = content.setdefault(part, {}) if part else content
        value = _plain(key, next(ahead))
        place[name] = [*_listed(place[name]), value] if name in place else value
    if not content:
        return [str(word) for word in rest]
    text = yaml.safe_dump(content)
    file = Path(_FILES.name) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    file.write_text(text, encoding="utf-8")
    return [str(word) for word in rest] + ["--config", str(file)]


def named(command, **options):
    """Words of options that a command has, and of keys of the project file for the others.

    None leaves one out, and a list repeats one.
    """
    own = {name for p in _command(command).params for name in (*p.opts, *p.secondary_opts)}
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [option if option in own else f"{_KEYS[name]}:", one]
    return words


_KEYS = {key.rpartition(".")[2]: key for key in KEYS} | {"every": "batch.seconds"}


def _command(words):
    found = typer.main.get_command(app)
    for word in words.split():
        found = found.commands[word]
    return found


def _plain(key, value):
    if isinstance(value, Path) or key in _PATHS:
        return str(Path(value).absolute())
    return value


def _listed(value):
    return value if isinstance(value, list) else [value]


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
        [sys.executable, "-m", "proplace", *with_project(words)],
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
        mock.patch("sys.argv", ["proplace", *with_project(words)]),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(module, "_report", wraps=module._report) as told,
    ):
        try:
            main()
        except SystemExit as end:
            return end.code, told.call_args.args[0] if told.called else None
