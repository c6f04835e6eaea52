"""Certificates on a page: what each proves, its place, and the command that checks it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proplace import verify
from proplace.batch.folder import NETWORK, files_of, names_of
from proplace.core.errors import LedgerError
from proplace.explain.record import proof_name
from proplace.explain.statement import stated
from proplace.explain.words import short_networks

if TYPE_CHECKING:
    from proplace.core.guarantee import Guarantee
    from proplace.explain.results import Explanation, Explanations, Setting
    from proplace.explain.words import Wording
    from proplace.ledger.promise import Promise

_CERTIFICATE = "certificate.json"
MODEL = "model.npz"
"""Name of the file of the network beside certificates."""


@dataclass(frozen=True)
class Proof:
    """The certificate of one answer as the page names it.

    Attributes
    ----------
    statement, digest
        The proved statement, and the digest of the file.
    command
        Command that checks the file, empty if the file was not saved.
    page
        Page beside the file that checks it in a browser, empty if there is none.
    """

    statement: str
    digest: str
    command: str = ""
    page: str = ""


def saved_proofs(
    page: Path, result: Explanations, wording: Wording, folder: Path | None
) -> dict[int, Proof]:
    """Write certificates, networks and the page that checks them into a folder, if there is one.

    Certificates state the answers in original units, so that both checkers encode them again.
    """
    setting, found = setting_of(result), {}
    if folder is not None and setting is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _save_networks(setting.guarantee, folder)
    for n, e in enumerate(result):
        document = stated(e, wording)
        if document is None:
            continue
        if folder is None:
            found[n] = Proof(_statement(e), document.digest)
            continue
        place = folder / f"answer-{n + 1}.json"
        document.save(place)
        check = command(
            _beside(page, place), _beside(page, folder / MODEL), e.setting, folder, page
        )
        checker = _beside(page, folder / verify.PAGE)
        found[n] = Proof(_statement(e), document.digest, check, checker)
    return found


def results_proofs(page: Path, result: Explanations, folder: Path) -> dict[int, Proof]:
    """Name the certificates of a folder of results."""
    made, found = result.provenance, {}
    file = None if made is None or made.file_digest is None else made.model
    model = file or _beside(page, folder / NETWORK)
    for n, e in enumerate(result):
        if e.certificate is not None:
            place = folder / "certificates" / proof_name(int(str(e.index)), e.rank)
            check = command(_beside(page, place), model, e.setting, folder, page)
            found[n] = Proof(_statement(e), e.certificate.digest, check)
    return found


def command(
    proof: str, model: str, setting: Setting | None, folder: Path, page: Path | None = None
) -> str:
    """Return the command that checks a certificate, with the files of its networks in a folder.

    Paths are those from the folder of the page, if there is one.
    """
    near = folder if page is None else Path(_beside(page, folder))
    words = ["proplace", "check", proof, "--model", model]
    members = () if setting is None else setting.guarantee.members
    files = {} if setting is None else files_of(setting.guarantee)
    for number in range(1, len(members) + 1):
        network, shifts = names_of(number)
        if number == 1 and shifts in files:
            words += ["--delta", (near / shifts).as_posix()]
        elif number > 1 and network in files:
            more = f":{(near / shifts).as_posix()}" if shifts in files else ""
            words += ["--required-model", f"{(near / network).as_posix()}{more}"]
    return shlex.join(words)


def _statement(e: Explanation) -> str:
    where = "within delta" if e.setting is None else short_networks(e.setting)
    if e.certificate is not None and e.certificate.verdict == "robust":
        return f"Every network {where} accepts this answer."
    if e.status == "fixed_prediction":
        return "The networks in the certificate refuse all that this person may become."
    return f"The certificate holds a network {where} that refuses this answer."


def _beside(page: Path, file: Path) -> str:
    """Return the path of a file from the folder of the page."""
    return os.path.relpath(file, page.parent).replace(os.sep, "/")


def save_proof(promise: Promise, folder: Path) -> str:
    """Write the certificate of a promise, its networks and the page that checks it into a new folder.

    Return the command that checks the certificate.
    """
    proof = None if promise.explanation is None else stated(promise.explanation, promise.wording)
    if proof is None or promise.explanation is None:
        raise LedgerError(
            f"Promise {promise.id} was erased, and its certificate with it.",
            name="promise",
            value=promise.id,
        )
    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    proof.save(part / _CERTIFICATE)
    _save_networks(promise.terms.guarantee, part)
    part.rename(folder)
    setting = promise.explanation.setting
    return command(str(folder / _CERTIFICATE), str(folder / MODEL), setting, folder)


def _save_networks(guarantee: Guarantee, folder: Path) -> None:
    """Save the networks and shift sets of a guarantee, and the page that checks certificates."""
    for name, thing in files_of(guarantee).items():
        thing.save(folder / (MODEL if name == NETWORK else name))
    verify.write_page(folder / verify.PAGE)


def setting_of(result: Explanations) -> Setting | None:
    """Return the guarantee and the features of the answers."""
    return next((e.setting for e in result if e.setting is not None), None)
