"""Uploaded models: read and audited in a child process with limits of memory and time.

The child opens the ledger, compares its identity, and writes the audit itself. If the child is killed,
the ledger contains the whole audit or none of it.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proplace.core.errors import LedgerError, ModelFileError, ProplaceError

if TYPE_CHECKING:
    from proplace.ledger.ledger import Ledger

SUFFIXES = (".onnx", ".npz")
SECONDS = 60.0
MEMORY = 4 * 1024**3
_MOST_OUTPUT = 100_000


def audit(ledger: Ledger, place: str, name: str, content: bytes) -> dict[str, Any]:
    """Audit an uploaded model. Return the number of the audit and the counts of its verdicts."""
    name = Path(name.replace("\\", "/")).name[:120]
    if Path(name).suffix.lower() not in SUFFIXES:
        raise ModelFileError("Choose a model file that ends in .onnx or .npz.", name="file")
    with tempfile.TemporaryDirectory(prefix="proplace-") as folder:
        path = Path(folder) / f"model{Path(name).suffix.lower()}"
        path.write_bytes(content)
        words = [str(path), name, place, ledger.identity]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "proplace.serve.uploads"],
                input=json.dumps(words).encode(),  # an address may contain a password
                capture_output=True,
                timeout=SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ModelFileError(
                f"The audit took longer than {SECONDS:g} s.", name="file"
            ) from None
    try:
        found: dict[str, Any] = json.loads(done.stdout[:_MOST_OUTPUT])
    except ValueError:
        raise ModelFileError(
            "The model could not be read within the limits of memory and time.", name="file"
        ) from None
    if "error" in found:
        kind = LedgerError if found["kind"] == "ledger" else ModelFileError
        raise kind(found["error"], name="file")
    return found


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seconds = math.ceil(SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _child(path: str, name: str, place: str, identity: str) -> dict[str, Any]:
    """Read and audit a model in this process."""
    import dataclasses  # noqa: PLC0415

    from proplace.ledger.ledger import Ledger  # noqa: PLC0415
    from proplace.loaders.model import Model  # noqa: PLC0415

    try:
        model = Model.of(path)
        model = dataclasses.replace(model, origin=dataclasses.replace(model.origin, name=name))
        with Ledger(place, actor="workbench", create=False) as ledger:
            if ledger.identity != identity:
                raise LedgerError(f"{ledger.name} is not the ledger that the workbench opened.")
            found = ledger.audit(model)
    except ProplaceError as error:
        kind = "ledger" if isinstance(error, LedgerError) else "model"
        return {"error": str(error).replace(path, name), "kind": kind}
    return {"audit": found.number, "counts": found.counts, "sentence": found.sentence}


if __name__ == "__main__":
    print(json.dumps(_child(*json.load(sys.stdin))))
