"""The `proplace` command: its options for all commands, and how errors are shown."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from proplace import __version__
from proplace.cli.benchmark import benchmark
from proplace.cli.calibrate import calibrate
from proplace.cli.check import check
from proplace.cli.demo import demo
from proplace.errors import ProplaceError

app = typer.Typer(no_args_is_help=True, help="Recourse that survives retraining, with proofs.")
app.command()(demo)
app.command()(calibrate)
app.command()(check)
app.command()(benchmark)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Recourse that survives retraining, with proofs."""


def main() -> None:
    """Run the command line; an error of the user's is one sentence and exit status 1."""
    try:
        app(prog_name="proplace")
    except ProplaceError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
