"""Certificates of answers on paper: what each says, where it lies, and the command that checks it."""

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
from proplace.explain.words import in_delta

if TYPE_CHECKING:
    from proplace.explain.results import Explanation, Explanations, Setting
    from proplace.ledger.promise import Promise

_CERTIFICATE = "certificate.json"
MODEL = "model.npz"
"""What the network is called beside proofs."""


@dataclass(frozen=True)
class Proof:
    """The certificate of one answer: what it says, and how to save (if need be) and check it.

    Attributes
    ----------
    says, digest
        What is proved, and the digest of the certificate.
    command
        How to check it.
    save
        What saves certificate and model in Python; empty where that is not the way.
    again
        Options that make the same command save it, and those whose place they take; None likewise.
    page
        The page beside it that checks it in a browser; empty where there is none.
    """

    says: str
    digest: str
    command: str
    save: tuple[str, ...] = ()
    again: tuple[str, str] | None = None
    page: str = ""


def new_proofs(
    page: Path, result: Explanations, folder: str | os.PathLike[str] | None
) -> dict[int, Proof]:
    """What to say about each certificate; with a folder, write them there with the networks.

    The page that checks them in a browser goes there, too.
    """
    setting, found = setting_of(result), {}
    files = {} if setting is None else files_of(setting.guarantee)
    files = {MODEL if name == NETWORK else name: thing for name, thing in files.items()}
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, thing in files.items():
            thing.save(Path(folder) / name)
        verify.write_page(Path(folder) / verify.PAGE)
    for n, e in enumerate(result):
        if e.certificate is None:
            continue
        if folder is None:
            check = command("proof.json", MODEL, e.setting, Path())
            found[n] = Proof(_says(e), e.certificate.digest, check, _saving(n, e.setting))
            continue
        place = Path(folder) / f"answer-{n + 1}.json"
        e.certificate.save(place)
        model = _beside(page, Path(folder) / MODEL)
        near = Path(_beside(page, Path(folder)))
        check = command(_beside(page, place), model, e.setting, near)
        page_beside = _beside(page, Path(folder) / verify.PAGE)
        found[n] = Proof(_says(e), e.certificate.digest, check, page=page_beside)
    return found


def kept_proofs(
    page: Path, result: Explanations, folder: Path, again: tuple[str, str] | None
) -> dict[int, Proof]:
    """What to say about each certificate of a folder of results."""
    made, found = result.provenance, {}
    file = None if made is None or made.file_digest is None else made.model
    model = file or _beside(page, folder / NETWORK)
    near = Path(_beside(page, folder))
    for n, e in enumerate(result):
        if e.certificate is not None:
            place = folder / "certificates" / proof_name(int(str(e.index)), e.rank)
            check = command(_beside(page, place), model, e.setting, near)
            found[n] = Proof(_says(e), e.certificate.digest, check, again=again)
    return found


def command(proof: str, model: str, setting: Setting | None, near: Path) -> str:
    """How to check a certificate, with the files of its networks in some folder."""
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


def _saving(n: int, setting: Setting | None) -> tuple[str, ...]:
    """Return Python lines that save a certificate and the guarantee that it is about."""
    words = [f'result[{n}].certificate.save("proof.json")']
    members = () if setting is None else setting.guarantee.members
    files = {} if setting is None else files_of(setting.guarantee)
    for number in range(1, len(members) + 1):
        which = "current" if number == 1 else f"guarantee.members[{number - 1}]"
        for name, part in zip(names_of(number), ("network", "shifts"), strict=True):
            if name in files:
                words.append(
                    f'result[{n}].setting.{which}.{part}.save("{MODEL if name == NETWORK else name}")'
                )
    return tuple(words)


def _says(e: Explanation) -> str:
    where = "within delta" if e.setting is None else in_delta(e.setting)
    if e.certificate is not None and e.certificate.verdict == "robust":
        return f"Every network {where} gives this answer the outcome."
    if e.status == "fixed_prediction":
        return "The networks named there refuse all that this person may become."
    return f"Some network {where} gives another outcome; the proof holds it."


def _beside(page: Path, file: Path) -> str:
    """The path of a file as seen from the folder of the page."""
    return os.path.relpath(file, page.parent).replace(os.sep, "/")


def save_proof(promise: Promise, folder: Path) -> str:
    """Write the certificate of a promise, its networks and the page that checks it into a new folder.

    Returns the command that checks the certificate.
    """
    proof = None if promise.explanation is None else stated(promise.explanation, promise.wording)
    if proof is None or promise.explanation is None:
        raise LedgerError(
            f"promise {promise.id} is erased, and its certificate with it",
            name="promise",
            value=promise.id,
        )
    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    proof.save(part / _CERTIFICATE)
    for name, thing in files_of(promise.terms.guarantee).items():
        thing.save(part / (MODEL if name == NETWORK else name))
    verify.write_page(part / verify.PAGE)
    part.rename(folder)
    setting = promise.explanation.setting
    return command(str(folder / _CERTIFICATE), str(folder / MODEL), setting, folder)


def setting_of(result: Explanations) -> Setting | None:
    """The network, Delta and features that answers are about."""
    return next((e.setting for e in result if e.setting is not None), None)
