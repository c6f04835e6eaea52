"""`proplace demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder for the report, the proofs and the picture.")
]


def demo(out: Out = Path("proplace-demo")) -> None:
    """Explain refused mortgage applicants on real data, certify, retrain and compare.

    Needs no file and no network, and takes about a minute.

    [bold]Example[/bold]

    proplace demo --out demo
    """
    from proplace.demo import run  # noqa: PLC0415  (heavy, and needs an extra)

    run(out)
