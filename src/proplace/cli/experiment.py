"""`proplace experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proplace.cli.console import echo, tell

Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Data set: adult, compas, gmc, heloc or heloc-repaired; repeatable. Default: all.",
        rich_help_panel="What to run",
    ),
]
Method = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Method, by its name in the table of results; repeatable. Default: all.",
        rich_help_panel="What to run",
    ),
]
Seed = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Training seed; repeatable. Default: 0, 1, 2.",
        rich_help_panel="What to run",
    ),
]
People = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="People to explain per seed.", rich_help_panel="What to run"
    ),
]
Actionable = Annotated[
    bool,
    typer.Option(
        "--actionable",
        help="Respect immutable features, which the paper does not.",
        rich_help_panel="What to run",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Cells to run at the same time; -1: one per processor. Default: 1.",
        rich_help_panel="Running",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER",
        help="Folder for tables, pictures and the cache.",
        rich_help_panel="Output",
    ),
]


def experiment(
    data: Data = None,
    method: Method = None,
    seed: Seed = None,
    people: People = 50,
    actionable: Actionable = False,
    jobs: Jobs = None,
    out: Out = Path("experiment"),
) -> None:
    """Reproduce the comparison of the paper.

    Repeat the command to resume an interrupted run. The data come from the folder that the
    environment variable PROPLACE_DATA names, or are downloaded.

    [bold]Example[/bold]

    proplace experiment --data compas --method PROPLACE --seed 0 --people 20
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.core.options import processes  # noqa: PLC0415
    from proplace.experiment import output, protocol, run, settings  # noqa: PLC0415  (quick help)

    number = processes("--jobs", jobs) or 1
    output.check()
    names = [name.lower() for name in data or settings.DATA]
    for name in names:
        if name not in settings.DATA:
            known = ", ".join(settings.DATA)
            raise OptionError(
                f"--data must be one of {known}, not {name!r}", name="--data", value=name
            )
    tasks = [
        protocol.Task(name, one, people, actionable=actionable)
        for name in dict.fromkeys(names)
        for one in dict.fromkeys([0, 1, 2] if seed is None else seed)
    ]
    results, curves = run.run(
        tasks,
        list(dict.fromkeys(method or run.names())),
        out / "cache",
        n_jobs=number,
        report=tell,
    )
    for path in run.write(results, curves, out):
        echo(f"wrote {path}")
    for line in ["", *(out / "results.md").read_text(encoding="utf-8").split("\n")]:
        echo(line)
    if (results["error"] != "").any():
        raise typer.Exit(1)
