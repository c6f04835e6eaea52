"""`proplace calibrate`."""

from __future__ import annotations

import warnings
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import Annotated

import typer


def calibrate(
    model: Annotated[Path, typer.Argument(help="The network in use (.npz, .onnx, .pt, .keras).")],
    retrained: Annotated[list[Path], typer.Argument(help="Retrained networks.")],
    train: Annotated[Path, typer.Option(help="CSV file of training rows.")],
    people: Annotated[Path, typer.Option(help="CSV file of people to try answers on.")],
    schema: Annotated[
        Path | None,
        typer.Option(help="Schema (YAML or JSON); without, columns are the network's inputs."),
    ] = None,
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
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    curve: Annotated[Path | None, typer.Option(help="Write the curve to this CSV file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the curve into this PNG or SVG file.")
    ] = None,
) -> None:
    """Find the smallest delta whose answers survive retraining."""
    import pandas as pd  # noqa: PLC0415  (quick help)

    from proplace.calibration import calibrate_delta  # noqa: PLC0415
    from proplace.errors import InputError  # noqa: PLC0415
    from proplace.files import whole_file  # noqa: PLC0415
    from proplace.network import Network  # noqa: PLC0415
    from proplace.schema import Schema  # noqa: PLC0415

    def table(path: Path) -> pd.DataFrame:
        try:
            return pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}") from None

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = calibrate_delta(
            Network.load(model),
            [Network.load(path) for path in retrained],
            table(train),
            table(people),
            schema=None if schema is None else Schema.read(schema),
            k=k,
            quantile=quantile,
            wanted=wanted,
            deltas=delta or None,
            target=target,
            n_jobs=jobs,
        )
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)
    typer.echo(found.curve.to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    typer.echo(
        f"parameters of the retrained networks moved by {found.changes.mean():.4g} on average, at most "
        f"{found.changes.max():.4g}; quantile {quantile:g}: {found.change:.4g}"
    )
    word = "" if found.reached else " (best; the wanted validity was not reached)"
    typer.echo(f"delta {found.delta:g}{word}")
    if curve is not None:
        with whole_file(curve) as file:
            file.write(found.curve.to_csv(index=False).encode())
    if picture is not None:
        found.plot(picture)
