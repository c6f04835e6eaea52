"""`proplace calibrate`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import inputs, options
from proplace.cli.console import echo, is_quiet, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.calibrate.delta import Calibration
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.project import Project

Retrained = Annotated[
    list[Path], typer.Argument(metavar="MODEL...", help="Retrained models: .onnx or .npz.")
]
Risk = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Expected share of promises that the next retraining may break, such as 0.05.",
        rich_help_panel="Method",
    ),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Learn a shift set that contains the next model with this probability, such as 0.9.",
        rich_help_panel="Method",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the shift set to this .npz file, to give as --delta.",
        rich_help_panel=options.OUTPUT,
    ),
]


def calibrate(
    retrained: Retrained,
    config: options.Config = None,
    table: options.People = None,
    risk: Risk = None,
    coverage: Coverage = None,
    out: Out = None,
    as_json: options.Json = False,
) -> None:
    """Find the smallest delta whose counterfactuals survive retraining.

    Needs model and tables.train in the project file. Prints for each delta the
    share of counterfactuals that the retrained models accept, and the share of
    accepted rows that stay robust. Exit status 1: no delta suffices. --risk chooses
    by conformal risk control. If the project has a shift set as its delta, --risk
    chooses the size of the set. --coverage needs no people.

    [bold]Examples[/bold]

    proplace calibrate later-1.onnx later-2.onnx --input people.csv

    proplace calibrate past-*.onnx --coverage 0.9 --out shifts.npz
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)
    from proplace.project import Project  # noqa: PLC0415

    project = Project.find(config).changed(people=table)
    if risk is not None and coverage is not None:
        raise OptionError("give --risk or --coverage, not both", name="--risk")
    if out is not None:
        _check_out(out)
    project.check_has("model")
    model = project.read_model()
    later = [_read(project, model, path) for path in retrained]
    if coverage is not None:
        _learn(project, model, later, retrained, coverage, out, as_json=as_json)
        return
    if project.people is None:
        raise OptionError("give the people as --input FILE", name="--input")
    found = _calibrated(project, model, later, risk)
    if as_json:
        typer.echo(json.dumps(_facts(found, retrained)))
    else:
        _show(found, project.calibration.get("quantile", 1.0))
    if out is not None:
        _save(found.shifts, out)
    if not found.success:
        raise typer.Exit(1)


def _read(project: Project, model: Model, path: Path) -> Model:
    """Read a retrained model, with the cut-off of the current one."""
    from proplace.loaders.align import with_cutoff_of  # noqa: PLC0415
    from proplace.loaders.model import Model  # noqa: PLC0415

    found = Model.of(path)
    if project.classes is not None:
        found = found.with_classes(project.classes)
    return with_cutoff_of(model, found)


def _calibrated(
    project: Project, model: Model, later: Sequence[Model], risk: float | None
) -> Calibration:
    """Measure how counterfactuals of several deltas fare under the retrained models."""
    from proplace.calibrate.delta import calibrate_delta  # noqa: PLC0415
    from proplace.core.options import processes  # noqa: PLC0415

    project.check_has("train")
    jobs = processes("--jobs", project.batch.get("jobs")) or 1
    rows = project.table(project.train or Path())
    people = project.table(project.people or Path())
    whole = project.named(model, rows)
    others = [project.named(one, rows, scaled=False) for one in later]
    # all features are required, so other columns of the people need no name
    others_of_people = [c for c in people.columns if c not in whole.schema.by_name]
    more: dict[str, Any] = {} if risk is None else {"risk": risk}
    if risk is not None and isinstance(project.delta, Path):
        shifts = project.shifts()
        assert not isinstance(shifts, float)  # noqa: S101  (a file holds a shift set)
        more["shifts"] = inputs.compared(shifts, project.delta, whole.network)
    for name in ("validity", "min_robust_share", "quantile"):
        if name in project.calibration:
            more[name] = project.calibration[name]
    with inputs.warnings_as_notes():
        return calibrate_delta(
            whole,
            inputs.training_rows(rows, whole.schema, project.others),
            retrained=others,
            people=inputs.training_rows(people, whole.schema, others_of_people),
            k=project.explainer.get("k", 20),
            deltas=project.calibration.get("deltas"),
            target=project.label(whole),
            n_jobs=jobs,
            progress=not is_quiet(),
            **more,
        )


# -- a shift set of past models --------------------------------------------------------------------


def _learn(
    project: Project,
    model: Model,
    later: Sequence[Model],
    paths: Sequence[Path],
    coverage: float,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Learn a shift set and write it."""
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.core.shifts import Shifts, counts  # noqa: PLC0415

    if out is None:
        raise OptionError("--coverage learns a shift set: give --out shifts.npz", name="--out")
    source = project.described(model)
    history = [project.described(one, scaled=False) for one in later]
    _check_alike(source, history, paths)
    found = Shifts.learn(history, coverage, source=source)
    _save(found, out)
    moving, parameters = counts(found)
    if as_json:
        facts = {"digest": found.digest, "about": found.description, "out": str(out)}
        typer.echo(json.dumps({**facts, "parameters": parameters, "moving": moving}))
    else:
        echo(f"{found.description}; {moving} of {parameters} parameters move")


def _check_alike(source: Model, history: Sequence[Model], paths: Sequence[Path]) -> None:
    """Raise if a model cannot be compared with the current one, parameter by parameter."""
    from proplace.core.errors import DeltaError, InputError  # noqa: PLC0415
    from proplace.core.shifts import same_architecture  # noqa: PLC0415
    from proplace.loaders.align import in_coordinates_of  # noqa: PLC0415

    for path, model in zip(paths, history, strict=True):
        try:
            same_architecture([source.network, in_coordinates_of(source, model)])
        except DeltaError:
            raise DeltaError(
                f"{path} has another architecture than the current model, so they share no shift set. "
                "Leave it out, or add it to required_models of the project file",
                name=path.name,
            ) from None
        except InputError as error:
            raise InputError(
                f"{path} cannot be compared with the current model: {error}", name=path.name
            ) from None


def _check_out(out: Path) -> None:
    """Raise about the file of the shift set before any work."""
    from proplace.core.errors import OutputError  # noqa: PLC0415

    if out.suffix != ".npz":
        raise OutputError(f"{out}: give a name that ends in .npz", name=out.name)
    with inputs.new_file(out):
        pass


def _save(shifts: Shifts, out: Path) -> None:
    with inputs.new_file(out):
        shifts.save(out)
    progress(f"{out}: give it as --delta {out}")


# -- what was measured -----------------------------------------------------------------------------


def _show(found: Calibration, quantile: float) -> None:
    """Print the curve and its conclusion."""
    titles = ["delta", "validity", "robust rows", "explained", "distance"]
    lines = [
        [
            f"{row['delta']:.4g}",
            "-" if math.isnan(row["validity"]) else f"{row['validity']:.1%}",
            f"{row['robust_rows']:.0f} of {found.accepted} ({row['robust_of_accepted']:.1%})",
            f"{row['share_explained']:.0%}",
            "-" if math.isnan(row["distance"]) else f"{row['distance']:.4g}",
        ]
        for _, row in found.curve.iterrows()
    ]
    widths = [max(map(len, cells)) for cells in zip(titles, *lines, strict=True)]
    for line in (titles, *lines):
        echo("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    known = [change for change in found.change_per_model.tolist() if not math.isnan(change)]
    if known:
        echo(
            f"parameters of the retrained networks moved by {sum(known) / len(known):.4g} on average, "
            f"at most {max(known):.4g}; quantile {quantile:g}: {found.max_change:.4g}"
        )
    if found.statement:
        echo(found.statement)
    for text in str(found).splitlines():
        echo(text)


def _finite(change: float) -> float | None:
    """Return a change as JSON can hold it. None: no delta includes the network."""
    return change if math.isfinite(change) else None


def _facts(found: Calibration, retrained: Sequence[Path]) -> dict[str, Any]:
    """Return all measurements as JSON can hold them."""
    curve = [
        {str(name): _finite(value) for name, value in row.items()}
        for row in found.curve.to_dict("records")
    ]
    changes = found.change_per_model.tolist()
    return {
        "delta": found.delta,
        "success": found.success,
        "too_few_robust_rows": found.too_few_robust_rows,
        "validity": found.validity,
        "min_robust_share": found.min_robust_share,
        "accepted": found.accepted,
        "max_change": _finite(found.max_change),
        "change_per_model": [
            {"model": str(path), "change": _finite(change)}
            for path, change in zip(retrained, changes, strict=True)
        ],
        "curve": curve,
        "statement": found.statement or None,
    }
