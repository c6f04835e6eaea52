"""`proplace demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the report, the proofs and the picture.")
    ] = Path("proplace-demo"),
    people: Annotated[
        int, typer.Option(min=1, help="Refused applicants to explain; six are shown in full.")
    ] = 30,
    retrainings: Annotated[
        int, typer.Option(min=1, help="Retrained networks to test the answers on.")
    ] = 20,
    delta: Annotated[
        float | None, typer.Option(help="Largest change of any parameter; calibrated if not given.")
    ] = None,
) -> None:
    """Explain refused mortgage applicants on real data, certify, retrain and compare.

    Needs no file and no network, and takes about a minute.
    """
    from proplace.demo import run  # noqa: PLC0415  (heavy, and needs an extra)

    run(out, people=people, retrainings=retrainings, delta=delta)
