"""`proplace experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proplace.cli import common
from proplace.cli.console import say, tell


def experiment(
    data: Annotated[
        list[str] | None,
        typer.Option(help="adult, compas, gmc, heloc or heloc-repaired; repeat. Default: all."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method as in the table; repeat. Default: all.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="Training seed; repeat. Default: 0, 1, 2.")
    ] = None,
    inputs: Annotated[int, typer.Option(min=1, help="People to explain per seed.")] = 50,
    retrained: Annotated[
        int, typer.Option(min=1, help="Networks retrained in each of the two ways.")
    ] = 10,
    actionable: Annotated[
        bool, typer.Option(help="Respect what people could change (the paper does not).")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Cells that run at the same time.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Data sets; default: PROPLACE_DATA, else a download.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables and pictures.")] = Path("experiment"),
    cache: Annotated[
        Path | None, typer.Option(help="Folder for networks and cells; default: OUT/cache.")
    ] = None,
) -> None:
    """Reproduce the comparison of the paper; an interrupted run goes on where it was."""
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.experiment import output, protocol, run  # noqa: PLC0415  (quick help)

    processes = common.processes(jobs) or 1
    output.check()
    names = [name.lower() for name in data or protocol.DATA]
    for name in names:
        if name not in protocol.DATA:
            known = ", ".join(protocol.DATA)
            raise OptionError(
                f"data set must be one of {known}, not {name!r}", name="--data", value=name
            )
    methods = method or list(run.names())
    seeds = [0, 1, 2] if seed is None else seed
    tasks = [
        protocol.Task(name, number, inputs, retrained, actionable)
        for name in dict.fromkeys(names)
        for number in dict.fromkeys(seeds)
    ]
    results, curves = run.run(
        tasks,
        list(dict.fromkeys(methods)),
        out / "cache" if cache is None else cache,
        data_folder=None if folder is None else str(folder),
        n_jobs=processes,
        report=tell,
    )
    for path in run.write(results, curves, out):
        say(f"wrote {path}")
    for line in ["", *(out / "results.md").read_text(encoding="utf-8").split("\n")]:
        say(line)
    if (results["error"] != "").any():
        raise typer.Exit(1)
