"""The command line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import Annotated

import typer

from proplace import __version__
from proplace.errors import ProplaceError

app = typer.Typer(no_args_is_help=True, help="Recourse that survives retraining, with proofs.")


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


@app.command()
def demo(
    people: Annotated[int, typer.Option(min=1, help="Refused applicants to explain.")] = 6,
    delta: Annotated[float, typer.Option(help="Largest change of any parameter.")] = 0.01,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the result into this PNG or SVG file.")
    ] = None,
) -> None:
    """Explain refused mortgage applicants on embedded real data."""
    from proplace.demo import run  # noqa: PLC0415  (heavy, and needs an extra)

    try:
        run(people=people, delta=delta, picture=picture)
    except ProplaceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
