"""The reference of the command line, ``docs/reference.md``, made from the code.

``PYTHONPATH=src:tests python -m reference`` writes it, and ``--count`` counts commands and options.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import typer.main

from proplace.batch import manifest
from proplace.certification import checker
from proplace.cli import app
from proplace.cli.app import STATUSES
from proplace.cli.certify import COLUMNS
from proplace.core import network, shifts
from proplace.explain.record import FACTS
from proplace.ledger import tables
from proplace.project import KEYS
from proplace.schema import files

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """# Reference

<!-- Made by `make reference` from the code. Do not edit. -->

[The command line](cli.md) explains the most common commands.
"""
RESULTS = {
    "row": "Number of the person in the input; the first is 0.",
    "your id columns": "As they are in the input.",
    "each feature": "The counterfactual, in original units; empty without one.",
    **FACTS,
    "original_ and each feature": "The person, in original units. Empty for a missing cell.",
}
FORMATS = {
    checker.FORMAT: "certificate for a radius delta",
    checker.FORMAT_BOX: "certificate for a shift set in a file",
    checker.FORMAT_INPUTS: "certificate for an input box: a tolerance or guaranteed ranges",
    checker.FORMAT_FIXED: "certificate of a fixed prediction",
    checker.FORMAT_BUNDLE: "bundle of certificates, one per model",
    checker.FORMAT_STATED: "bundle with its statement in original units",
    manifest.FORMAT: "folder of results (`manifest.json`)",
    files.FORMAT: "schema, YAML or JSON",
    network.NPZ_FORMAT: "network, `.npz`",
    shifts.NPZ_FORMAT: "shift set, `.npz`",
    tables.FORMAT: "ledger, SQLite or PostgreSQL",
}


def commands(group=None, words=()):
    """Yield every command with its words; groups of commands are not commands."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def options(command):
    """Options of a command, without ``--help``."""
    return [p for p in command.params if p.param_type_name == "option"]


def arguments(command):
    return [p for p in command.params if p.param_type_name == "argument"]


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines) + "\n"


def _cell(text):
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def _section(name, command):
    text = inspect.cleandoc(command.help).partition("[bold]")[0]
    own = [arguments(command), options(command)]
    words = [p.metavar or p.name.upper() for p in own[0]]
    yield f"## proplace {name}\n\n{text.strip()}\n\n"
    yield f"`proplace {' '.join([name, *words])}`\n\n"
    rows = [(f"`{word}`", p.help) for word, p in zip(words, own[0], strict=True)]
    rows += [(f"`{'/'.join((*p.opts, *p.secondary_opts))}`", p.help) for p in own[1]]
    if rows:
        yield table(["option", "meaning"], rows)


def page():
    """The text of the page."""
    parts = [HEAD, "\n"]
    for name, command in commands():
        parts += _section(name, command)
    parts += ["## Options of every command\n\n"]
    top = [p for p in typer.main.get_command(app).params if p.name in ("version", "quiet", "debug")]
    parts += [table(["option", "meaning"], [(f"`{p.opts[0]}`", p.help) for p in top])]
    parts += ["## Keys of proplace.yaml\n\n"]
    parts += ["Paths are relative to the file. A dot stands for a nested mapping.\n\n"]
    parts += [table(["key", "meaning"], [(f"`{key}`", one.help) for key, one in KEYS.items()])]
    parts += ["## Columns of results\n\n"]
    parts += ["A column of yours with one of these names stays; ours gets the prefix `ce_`.\n\n"]
    parts += [table(["column", "meaning"], RESULTS.items())]
    parts += ["## Columns of verdicts\n\n", table(["column", "meaning"], COLUMNS.items())]
    parts += ["## Exit statuses\n\n", table(["status", "meaning"], STATUSES.items())]
    rows = [(f"`{name}`", text) for name, text in FORMATS.items()]
    parts += ["## Formats of files\n\n", table(["format", "meaning"], rows)]
    return "".join(parts).rstrip() + "\n"


def counts():
    """Rows of the table of commands: name, options, arguments."""
    return [(n, len(options(c)), len(arguments(c))) for n, c in commands()]


if __name__ == "__main__":
    if "--count" in sys.argv[1:]:
        rows = counts()
        total = [len(rows), sum(row[1] for row in rows), sum(row[2] for row in rows)]
        for row in [*rows, total]:
            print(*row, sep="\t")
    else:
        PAGE.write_text(page(), encoding="utf-8")
