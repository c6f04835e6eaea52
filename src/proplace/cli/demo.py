"""`proplace demo`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import Annotated

import typer


def demo(
    people: Annotated[int, typer.Option(min=1, help="Refused applicants to explain.")] = 6,
    delta: Annotated[float, typer.Option(help="Largest change of any parameter.")] = 0.01,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the result into this PNG or SVG file.")
    ] = None,
) -> None:
    """Explain refused mortgage applicants on embedded real data."""
    from proplace.demo import run  # noqa: PLC0415  (heavy, and needs an extra)

    run(people=people, delta=delta, picture=picture)
