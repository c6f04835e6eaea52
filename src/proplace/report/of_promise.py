"""What the person behind a promise of the ledger is given: a letter, and the proof with all it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from proplace import verify
from proplace.batch.folder import NETWORK, files_of
from proplace.core.errors import LedgerError
from proplace.explain.results import Explanations
from proplace.report.letter import letter_of
from proplace.report.proofs import MODEL, command

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.explain.words import Wording
    from proplace.ledger.promise import Promise

_CERTIFICATE = "certificate.json"


def letter_of_promise(promise: Promise, path: Path, wording: Wording | None = None) -> None:
    """Write the letter of an open promise, with the day of its issue.

    The default wording is the wording of the promise. A letter states that the promise holds, so a
    promise that is no longer open gets none.
    """
    if promise.state != "open" or promise.explanation is None:
        raise LedgerError(
            f"promise {promise.id} is {promise.state}, and a letter would say that it holds; what "
            f"was promised is shown by: proplace ledger show LEDGER {promise.id}",
            name="promise",
            value=promise.id,
        )
    answer = replace(promise.explanation, index=promise.person, ids={})
    letter_of(
        Explanations([answer]),
        promise.person,
        path,
        promise.wording if wording is None else wording,
        date=promise.issued[:10],
        valid_until=promise.expires,
        reference=f"promise {promise.id}",
    )


def save_proof(promise: Promise, folder: Path) -> str:
    """Write the certificate of a promise, its networks and the page that checks it into a new folder.

    Returns the command that checks the certificate.
    """
    if promise.certificate is None or promise.explanation is None:
        raise LedgerError(
            f"promise {promise.id} is erased, and its certificate with it",
            name="promise",
            value=promise.id,
        )
    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    promise.certificate.save(part / _CERTIFICATE)
    for name, thing in files_of(promise.terms.sets).items():
        thing.save(part / (MODEL if name == NETWORK else name))
    verify.write_page(part / verify.PAGE)
    part.rename(folder)
    setting = promise.explanation.setting
    return command(str(folder / _CERTIFICATE), str(folder / MODEL), setting, folder)
