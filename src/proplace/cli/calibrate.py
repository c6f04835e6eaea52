"""`proplace calibrate`."""

from __future__ import annotations

import warnings
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import Annotated

import typer

from proplace.cli import common
from proplace.cli.console import say, tell


def calibrate(
    model: Annotated[Path, typer.Argument(help="The network in use (.npz, .onnx, .pt, .keras).")],
    retrained: Annotated[list[Path], typer.Argument(help="Retrained networks.")],
    train: Annotated[Path, typer.Option(help="CSV or Parquet file of training rows.")],
    people: Annotated[Path, typer.Option(help="CSV or Parquet file of people to try answers on.")],
    schema: common.SchemaFile = None,
    k: Annotated[int, typer.Option(min=1, help="Robust neighbours that span a region.")] = 20,
    wanted: Annotated[
        float, typer.Option(min=0, max=1, help="Share of answers that must stay valid.")
    ] = 1.0,
    quantile: Annotated[
        float, typer.Option(min=0, max=1, help="Quantile of the parameter changes to report.")
    ] = 1.0,
    target: Annotated[int, typer.Option(min=0, help="The wanted class.")] = 1,
    delta: Annotated[
        list[float] | None, typer.Option(help="A delta to try; repeat for more. Default: a grid.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1: as many as there are processors.")] = 1,
    drop: common.Drop = None,
    delimiter: common.Delimiter = ",",
    encoding: common.Encoding = "utf-8",
    curve: Annotated[Path | None, typer.Option(help="Write the curve to this CSV file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the curve into this PNG or SVG file.")
    ] = None,
) -> None:
    """Find the smallest delta whose answers survive retraining.

    Columns that are no features are left out; rows that cannot be read are too, and this is said.
    """
    from proplace.calibration import calibrate_delta  # noqa: PLC0415  (quick help)
    from proplace.files import whole_file  # noqa: PLC0415
    from proplace.network import Network  # noqa: PLC0415
    from proplace.table_files import open_table  # noqa: PLC0415

    processes = common.processes(jobs) or 1
    net = Network.load(model)
    rows, asked = (
        open_table(path, delimiter=delimiter, encoding=encoding) for path in (train, people)
    )
    features = common.read_schema(schema, net, rows, drop or [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = calibrate_delta(
            net,
            [Network.load(path) for path in retrained],
            common.training_rows(rows, features, rows.columns),
            common.training_rows(asked, features, asked.columns),
            schema=features,
            k=k,
            quantile=quantile,
            wanted=wanted,
            deltas=delta or None,
            target=target,
            n_jobs=processes,
        )
    for warning in caught:
        tell(f"warning: {warning.message}")
    for line in found.curve.to_string(index=False, float_format=lambda v: f"{v:.4g}").split("\n"):
        say(line)
    say(
        f"parameters of the retrained networks moved by {found.changes.mean():.4g} on average, at most "
        f"{found.changes.max():.4g}; quantile {quantile:g}: {found.change:.4g}"
    )
    word = "" if found.reached else " (best; the wanted validity was not reached)"
    say(f"delta {found.delta:g}{word}")
    if curve is not None:
        with whole_file(curve) as file:
            file.write(found.curve.to_csv(index=False).encode())
    if picture is not None:
        found.plot(picture)
