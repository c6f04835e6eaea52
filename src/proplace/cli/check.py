"""`proplace check`."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import Annotated

import typer


def check(
    proofs: Annotated[
        list[Path], typer.Argument(help="Certificate files, or folders of .json files.")
    ],
    model: Annotated[Path, typer.Option(help="The network: .npz, .onnx, .keras, .pt, ...")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
    ] = False,
) -> None:
    """Check certificates in exact arithmetic; exit status 0 if all are accepted, else 1."""
    from proplace.certification import checker  # noqa: PLC0415  (quick help)
    from proplace.certification.proof import parameters  # noqa: PLC0415
    from proplace.errors import CertificateError  # noqa: PLC0415
    from proplace.network import Network  # noqa: PLC0415

    files = [
        file
        for path in proofs
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ]
    if not files:
        raise CertificateError("no .json files to check")
    network = parameters(Network.load(model))
    found = []
    for file in files:
        try:
            with file.open("rb") as proof:
                verdict = checker.check(proof.read(checker.MOST_BYTES + 1), network)
        except OSError as error:
            verdict = checker.Verdict(False, f"not readable: {error.strerror}")
        found.append({"file": str(file), "accepted": verdict.accepted, "reason": verdict.reason})
        if not as_json:
            word = "accepted" if verdict.accepted else "rejected"
            typer.echo(f"{_printable(str(file))}: {word}: {verdict.reason}")
    accepted = all(entry["accepted"] for entry in found)
    if as_json:
        typer.echo(json.dumps({"accepted": accepted, "certificates": found}))
    if not accepted:
        raise typer.Exit(1)


def _printable(name: str) -> str:
    """Escape what a file name could use to write lines of its own."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
