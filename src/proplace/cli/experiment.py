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
        help="Training seed; repeatable. Default: 0 to 9.",
        rich_help_panel="What to run",
    ),
]
Width = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Neurons of both hidden layers: 10, 20 or 50 in the archive; repeatable. Default: as "
        "in the paper.",
        rich_help_panel="What to run",
    ),
]
People = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="People per seed, for every method. Default: 50, and 10 for slow methods and other sizes.",
        rich_help_panel="What to run",
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
AsPublished = Annotated[
    bool,
    typer.Option(
        "--as-published",
        help="Run the other methods as the published code does, where it contradicts the paper.",
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
Table = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="CSV or Parquet file with features and labels, in place of the data sets of the paper. "
        "Needs --model.",
        rich_help_panel="Own data",
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Trained model of two classes with one output: .npz or .onnx. Needs --table.",
        rich_help_panel="Own data",
    ),
]
Label = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Column of the labels in --table.", rich_help_panel="Own data"
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Radius of the shift set. Default: calibrated on retrained networks.",
        rich_help_panel="Own data",
    ),
]
Networks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Archive of trained networks. Default: that of the repository; without one, networks are "
        "trained into the cache.",
        rich_help_panel="Networks",
    ),
]
Train = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Train the networks, write them to this archive, and stop.",
        rich_help_panel="Networks",
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
    width: Width = None,
    people: People = None,
    actionable: Actionable = False,
    as_published: AsPublished = False,
    table: Table = None,
    model: Model = None,
    label: Label = "label",
    delta: Delta = None,
    archive: Networks = None,
    train: Train = None,
    jobs: Jobs = None,
    out: Out = Path("experiment"),
) -> None:
    """Reproduce the comparison of the paper, or make it for a table and a model of your own.

    Repeat the command to resume an interrupted run. The data come from the folder that the
    environment variable PROPLACE_DATA names, or are downloaded.

    [bold]Example[/bold]

    proplace experiment --data compas --method PROPLACE --seed 0 --people 20

    proplace experiment --table mine.csv --model model.npz --label approved
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.core.options import processes  # noqa: PLC0415
    from proplace.experiment import output, run, settings  # noqa: PLC0415  (quick help)
    from proplace.experiment.archive import BUNDLED, build  # noqa: PLC0415

    number = processes("--jobs", jobs) or 1
    if (table is None) != (model is None):
        given, missing = ("--model", "--table") if table is None else ("--table", "--model")
        raise OptionError(f"{given} needs {missing}: give both files", name=missing)
    own = None
    if table is not None and model is not None:
        from proplace.experiment.own import Own  # noqa: PLC0415

        own = Own(table, model, label, delta)
    names = [name.lower() for name in data or settings.DATA]
    for name in names:
        if name not in settings.DATA:
            known = ", ".join(settings.DATA)
            raise OptionError(
                f"--data must be one of {known}, not {name!r}", name="--data", value=name
            )
    sizes = settings.SIZES if train is not None else [None]
    tasks = [
        settings.Task(name, one, size, people, actionable, as_published)
        for name in dict.fromkeys(names)
        for size in dict.fromkeys([(w, w) for w in width] if width else sizes)
        for one in dict.fromkeys(settings.SEEDS if seed is None else seed)
    ]
    if own is not None:
        seeds = dict.fromkeys([0] if seed is None else seed)
        tasks = [settings.Task(own.name, one, people=people, own=own) for one in seeds]
    elif train is not None:
        made = build(train, tasks, out / "cache", n_jobs=number, report=tell)
        echo(f"wrote {train} with SHA-256 {made.digest} of its checksums")
        return
    output.check()
    bundled = BUNDLED if BUNDLED.exists() else None
    results = run.run(
        tasks,
        list(dict.fromkeys(method or run.names())),
        out / "cache",
        archive=archive or bundled,
        n_jobs=number,
        report=tell,
    )
    for path in output.write(results, out):
        echo(f"wrote {path}")
    for line in ["", *(out / "results.md").read_text(encoding="utf-8").split("\n")]:
        echo(line)
    if (results.cells["error"] != "").any():
        raise typer.Exit(1)
