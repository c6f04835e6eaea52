"""What the person behind a promise of the ledger is given: a letter, and the proof with all it needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from proplace.apps import verify
from proplace.apps.batch.folder import NETWORK, files_of
from proplace.apps.report.letter import letter_of
from proplace.apps.report.proofs import MODEL, command
from proplace.core.errors import LedgerError
from proplace.explain.results import Explanations

if TYPE_CHECKING:
    import os

    from proplace.explain.words import Wording
    from proplace.promises.promise import Promise

CERTIFICATE = "certificate.json"
"""What the certificate of a promise is called as a file."""


def letter_of_promise(
    promise: Promise, path: str | os.PathLike[str] | None, wording: Wording, reference: str
) -> str | Path:
    """Write the letter of a promise with the day of its issue, or return it where there is no path.

    A letter is read as a promise, so there is none of one that is no longer open.
    """
    if promise.state != "open" or promise.explanation is None:
        raise LedgerError(
            f"promise {promise.id} is {promise.state}, and a letter would say that it holds; what "
            f"was promised is shown by: proplace ledger show LEDGER {promise.id}"
        )
    answer = replace(promise.explanation, index=promise.person, ids={})
    return letter_of(
        Explanations([answer]),
        promise.person,
        path,
        wording,
        date=promise.issued[:10],
        valid_until=promise.expires,
        reference=reference,
    )


def save_proof(promise: Promise, folder: Path) -> None:
    """Write the certificate of a promise, the networks it speaks of, and the page that checks it."""
    if promise.certificate is None:
        raise LedgerError(f"promise {promise.id} is erased, and its certificate with it")
    promise.certificate.save(folder / CERTIFICATE)
    for name, thing in files_of(promise.terms.sets).items():
        thing.save(folder / (MODEL if name == NETWORK else name))
    verify.write_page(folder / verify.PAGE)


def check_command(promise: Promise, folder: Path = Path()) -> str:
    """What checks the proof of a promise in a folder; empty where it is erased."""
    e = promise.explanation
    if e is None:
        return ""
    return command(str(folder / CERTIFICATE), str(folder / MODEL), e.setting, folder)
