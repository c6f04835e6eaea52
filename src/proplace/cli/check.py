"""`proplace check`."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli import common

if TYPE_CHECKING:
    from proplace.certification.checker import Demand, Parameters, Verdict
    from proplace.network import Network


def check(
    proofs: Annotated[
        list[Path], typer.Argument(help="Certificate files, or folders of .json files.")
    ],
    model: Annotated[Path, typer.Option(help="The network: .npz, .onnx, .keras, .pt, ...")],
    target: Annotated[
        int | None, typer.Option(help="Reject what is not proved for this class.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Reject what is proved for a smaller delta.")
    ] = None,
    row: Annotated[
        str | None,
        typer.Option(
            "--input", help="Reject what is proved for another input, such as 0.5,-1,2 (encoded)."
        ),
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Reject what is proved for a smaller margin.")
    ] = None,
    assume: common.Assume = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
    ] = False,
) -> None:
    """Check certificates in exact arithmetic; exit status 0 if all are accepted, else 1.

    Prints what each one proves: the class, delta, the margin and the input. With --target, --delta,
    --input or --margin, a certificate that proves less, or that a row is not robust, is rejected.

    [bold]Example[/bold]

    proplace check proof.json --model m.onnx --target 1 --delta 0.02
    """
    from proplace.certification import checker  # noqa: PLC0415  (quick help)
    from proplace.certification.proof import parameters  # noqa: PLC0415
    from proplace.errors import CertificateError  # noqa: PLC0415

    files = [
        file
        for path in proofs
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ]
    if not files:
        raise CertificateError("no .json files to check")
    demand = checker.Demand(target, delta, _numbers(row), margin)
    readings = [parameters(network) for network in _readings(model, assume)]
    found = []
    for file in files:
        try:
            with file.open("rb") as proof:
                verdict = _first(proof.read(checker.MOST_BYTES + 1), readings, demand)
        except OSError as error:
            verdict = checker.Verdict(False, f"not readable: {error.strerror}")
        proved = None if verdict.statement is None else verdict.statement._asdict()
        found.append(
            {
                "file": str(file),
                "accepted": verdict.accepted,
                "reason": verdict.reason,
                "proved": proved,
            }
        )
        if not as_json:
            word = "accepted" if verdict.accepted else "rejected"
            typer.echo(f"{_printable(str(file))}: {word}: {verdict.reason}")
    accepted = all(entry["accepted"] for entry in found)
    if as_json:
        typer.echo(json.dumps({"accepted": accepted, "certificates": found}))
    if not accepted:
        raise typer.Exit(1)


def _readings(model: Path, assume: common.Assumption | None) -> list[Network]:
    """Return the networks of a model file: whole (scaling left to the table), and as it stands."""
    from proplace.errors import ProplaceError  # noqa: PLC0415
    from proplace.network import Network  # noqa: PLC0415

    whole = common.read_model(model, assume).network
    try:
        plain = Network.load(model, activation=common.activation(assume))
    except ProplaceError:  # a table of several inputs, categories: only whole
        return [whole]
    return [whole] if plain == whole else [whole, plain]


def _first(proof: bytes, readings: list[Parameters], demand: Demand) -> Verdict:
    """Check a certificate against the reading of the network that it speaks of."""
    from proplace.certification import checker  # noqa: PLC0415

    verdicts = [checker.check(proof, network, demand) for network in readings]
    return next((v for v in verdicts if v.accepted or v.statement is not None), verdicts[0])


def _numbers(row: str | None) -> list[float] | None:
    """Read the numbers of a row, with commas between them."""
    from proplace.certification import checker  # noqa: PLC0415
    from proplace.errors import OptionError  # noqa: PLC0415

    try:
        return None if row is None else checker.row(row)
    except ValueError:
        raise OptionError(
            f"--input takes the numbers of one row with commas between them, such as 0.5,-1,2, "
            f"not {row!r}"
        ) from None


def _printable(name: str) -> str:
    """Escape what a file name could use to write lines of its own."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
