"""`proplace calibrate`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common
from proplace.cli import delta as deltas
from proplace.cli.console import say
from proplace.cli.shifts import check_out

if TYPE_CHECKING:
    from proplace.calibrate.delta import Calibration


Validity = Annotated[
    float, typer.Option(min=0, max=1, help="Share of (counterfactual, model) pairs to accept.")
]
MinRobustShare = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of the accepted training rows that must stay robust."),
]
Quantile = Annotated[
    float, typer.Option(min=0, max=1, help="Quantile of the parameter changes to report.")
]
Deltas = Annotated[
    list[float] | None, typer.Option(help="A delta to try; repeat for more. Default: a grid.")
]
Risk = Annotated[
    float | None,
    typer.Option(
        help="Choose the smallest set for which the expected share of broken promises at the next "
        "retraining is at most this, such as 0.05 (conformal risk control), and print the statement."
    ),
]
Family = Annotated[
    Path | None,
    typer.Option(
        "--shifts",
        help="Choose among the sizes of this set (see: shifts) in place of deltas; needs --risk.",
    ),
]
OutShifts = Annotated[
    Path | None, typer.Option(help="Write the set that was chosen to this .npz file.")
]
Picture = Annotated[Path | None, typer.Option(help="Draw the curve into this PNG or SVG file.")]


def calibrate(
    model: common.Model,
    retrained: Annotated[
        list[Path], typer.Argument(help="Retrained models, in any format that --model takes.")
    ],
    train: common.Train,
    table: common.People,
    schema: common.SchemaFile = None,
    target: common.Target = common.DEFAULT_TARGET,
    cutoff: common.Cutoff = None,
    k: Annotated[int, typer.Option("--k", help="Robust neighbours that span the region.")] = 20,
    validity: Validity = 0.95,
    min_robust_share: MinRobustShare = 0.1,
    quantile: Quantile = 1.0,
    delta: Deltas = None,
    risk: Risk = None,
    shifts: Family = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1: as many as there are processors.")] = 1,
    ids: common.Ids = None,
    drop: common.Drop = None,
    delimiter: common.Delimiter = None,
    encoding: common.Encoding = "utf-8",
    curve: Annotated[Path | None, typer.Option(help="Write the curve to this CSV file.")] = None,
    picture: Picture = None,
    out_shifts: OutShifts = None,
    as_json: common.Json = False,
) -> None:
    """Find the smallest delta whose answers survive retraining.

    For each delta: how often its answers stay valid on the retrained models, and how many of the
    accepted training rows stay robust. Scalers and encoders may have been fitted again. Exit status 1
    if no delta suffices. Files cannot be trained again: in Python, calibrate_delta(refits=10) does it.

    [bold]Example[/bold]

    proplace calibrate --model m.onnx later-1.onnx later-2.onnx --train train.csv --input people.csv

    proplace calibrate --model m.onnx later/*.onnx --train train.csv --input people.csv --risk 0.05
    --out-shifts shifts.npz
    """
    from proplace.calibrate.delta import calibrate_delta  # noqa: PLC0415  (quick help)
    from proplace.tables.files import open_table  # noqa: PLC0415

    processes = common.processes(jobs) or 1
    more = _more(risk, shifts, delta)
    if out_shifts is not None:
        check_out(out_shifts)
    for path in (curve, picture):
        if path is not None:
            with common.refused_if_there(path):  # now, not after the work
                pass
    models = [common.read_model(model, cutoff), *map(common.read_model, retrained)]
    others = [*(ids or []), *(drop or [])]
    rows, asked = (
        open_table(path, delimiter=delimiter, encoding=encoding) for path in (train, table)
    )
    whole, *later = (common.with_names(one, schema, rows, others) for one in models)
    features = whole.schema
    if shifts is not None:
        deltas.check_fits(shifts, more["shifts"], whole.network, model)
    with common.warnings_as_notes():
        found = calibrate_delta(
            whole,
            common.training_rows(rows, features, others),
            retrained=later,
            people=common.training_rows(asked, features, others),
            k=k,
            quantile=quantile,
            validity=validity,
            min_robust_share=min_robust_share,
            deltas=delta or None,
            target=common.target_of(whole, target),
            n_jobs=processes,
            progress=common.watched(),
            **more,
        )
    if as_json:
        typer.echo(json.dumps(_facts(found, retrained)))
    else:
        _show(found, quantile)
    _write(found, curve, picture)
    if out_shifts is not None:
        with common.refused_if_there(out_shifts):
            found.shifts.save(out_shifts)
    if not found.success:
        raise typer.Exit(1)


def _more(risk: float | None, shifts: Path | None, delta: list[float] | None) -> dict[str, Any]:
    """What is asked for beside the deltas, as :func:`proplace.calibrate_delta` takes it."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if shifts is None:
        return {} if risk is None else {"risk": risk}
    if risk is None:
        raise OptionError(
            "--shifts chooses the size of the set by its risk: give --risk 0.05, too", name="--risk"
        )
    if delta:
        raise OptionError(
            "give deltas (--delta) or a set whose size is chosen (--shifts), not both",
            name="--shifts",
        )
    return {"risk": risk, "shifts": deltas.read(shifts)}


def _write(found: Calibration, curve: Path | None, picture: Path | None) -> None:
    """Write the curve to the files that were asked for."""
    from proplace.core.files import atomic_write  # noqa: PLC0415

    if curve is not None:
        with common.refused_if_there(curve), atomic_write(curve) as file:
            file.write(found.curve.to_csv(index=False).encode())
    if picture is not None:
        with common.refused_if_there(picture):
            found.plot(picture)


def _show(found: Calibration, quantile: float) -> None:
    """Print the curve and what follows from it."""
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
        say("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    known = [change for change in found.change_per_model.tolist() if not math.isnan(change)]
    if known:
        say(
            f"parameters of the retrained networks moved by {sum(known) / len(known):.4g} on average, "
            f"at most {max(known):.4g}; quantile {quantile:g}: {found.max_change:.4g}"
        )
    if found.statement:
        say(found.statement)
    for text in str(found).splitlines():
        say(text)


def _finite(change: float) -> float | None:
    """A change as JSON can hold it: null where no delta includes the network."""
    return change if math.isfinite(change) else None


def _facts(found: Calibration, retrained: list[Path]) -> dict[str, Any]:
    """Everything that was measured, as JSON can hold it."""
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
