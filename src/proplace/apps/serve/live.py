"""Audited models that are served in place of those that the configuration names.

The file of an audited model is kept beside the state under its SHA-256. It goes live after the last
decision on its audit was a go, if it is read as it was audited and keeps the promises made since. What
is live is noted in the state, and in the ledger with who and when. A note in the state is begun before
the entry of the ledger is written and ended after it: of one that was left in between, the ledger says
whether it counts.

After a restart a live model is served again as long as the configuration names a file of the same
content as when it went live. Once it names another one, that is served, and the model is live no longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import LedgerError, OptionError, ProplaceError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from proplace.apps.serve.config import Config
    from proplace.apps.serve.models import Engine
    from proplace.apps.serve.store import Store
    from proplace.loaders.model import Model
    from proplace.promises.ledger import Ledger


@dataclass(frozen=True)
class Live:
    """An audited model in service.

    Attributes
    ----------
    audit
        Number of its audit.
    file, digest
        Name and SHA-256 of the file, as it was uploaded.
    path
        Where it is kept.
    by, since
        Who put it into service, and when, in seconds since 1970.
    """

    audit: int
    file: str
    digest: str
    path: str
    by: str
    since: float


# -- files -----------------------------------------------------------------------------------------


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep(upload: Path, folder: Path) -> None:
    """Keep an uploaded file under its digest; it is there whole or not at all."""
    folder.mkdir(mode=0o700, exist_ok=True)
    goal = folder / f"{digest_of(upload)}{upload.suffix}"
    part = goal.with_suffix(f"{goal.suffix}.part")
    shutil.copyfile(upload, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(goal)


def kept(folder: Path, digest: str | None) -> Path | None:
    """The file of a digest, if it is kept and is what it is called."""
    found = [] if digest is None else sorted(folder.glob(f"{digest}.*"))
    whole = (path for path in found if path.suffix != ".part" and digest_of(path) == digest)
    return next(whole, None)


def forget(folder: Path, most: int, needed: Collection[str]) -> None:
    """Delete files beyond the latest so many that nobody needs."""
    if not folder.is_dir():
        return
    with contextlib.suppress(FileNotFoundError):
        files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[most:]:
            if path.name.split(".")[0] not in needed:
                path.unlink(missing_ok=True)


# -- may it go live? -------------------------------------------------------------------------------


def check_decided(ledger: Ledger, audit: int) -> None:
    """Raise where the last decision on an audit is none, or is a no-go."""
    decision = ledger.decision(audit)
    if decision is None:
        raise LedgerError(f"nothing is decided on audit {audit}; record a go first")
    if not decision:
        raise LedgerError(
            f"the last decision on audit {audit} is no go; record a go first, or audit another model"
        )


def check_same(engine: Engine, audited: Model) -> None:
    """Raise where a model is not read as it was audited: other parameters, or other values of them."""
    new = engine.model
    mine, theirs = new.network.layers, audited.network.layers
    same = len(mine) == len(theirs) and all(
        np.array_equal(a.W, b.W) and np.array_equal(a.bias, b.bias)
        for a, b in zip(mine, theirs, strict=True)
    )
    if same:
        try:
            rows = audited.encode(engine.train[list(audited.schema.by_name)])
            said, read = audited.network.logits(rows), new.network.logits(new.encode(engine.train))
            same = np.allclose(said, read, rtol=1e-9, atol=1e-9)
        except (ProplaceError, KeyError):
            same = False
    if not same:
        raise LedgerError(
            f"{new.origin.name} was audited as a model of other columns than those of {engine.name}, so "
            "that the audit says nothing about it there; name the model that it is to replace when you "
            "upload it, or name the file in the configuration"
        )


def check_since(ledger: Ledger, audit: int, model: Model) -> None:
    """Raise where a model breaks promises that were made after it was audited."""
    new = {entry.seq for entry in ledger.entries(kinds=("issued",), after=audit)}
    if not new:
        return
    found = ledger.audit(model, record=False)
    broken = sorted(new & {*found.broken, *found.having("unknown"), *found.alarms})
    if broken:
        some = ", ".join(map(str, broken[:5])) + (", ..." if len(broken) > 5 else "")
        raise LedgerError(
            f"{len(broken)} promises that were made since audit {audit} would not be kept ({some}); "
            "audit the model again, and decide on that"
        )


# -- after a restart -------------------------------------------------------------------------------


def resumed(config: Config, store: Store, ledger: Ledger) -> tuple[dict[str, Live], list[str]]:
    """What is live by the state, the ledger and the configuration; and in words, to be told."""
    for row in store.unconfirmed_lives():
        entry = _entry(ledger, row)
        store.drop_live(row["id"]) if entry is None else store.confirm_live(row["id"], entry)
    found, told = {}, []
    for row in store.lives():
        name, file, audit = row["model"], row["file"], row["audit"]
        if name not in config.models:
            continue
        own = config.models[name].model
        if _digest(own) != row["configured"]:
            store.end_lives(name)
            told.append(
                f"{name}: {own.name} is served, as the configuration names it since {file} of audit "
                f"{audit} went live, which is live no longer"
            )
            continue
        folder = models_folder(config)
        path = kept(folder, row["digest"])
        if path is None:
            raise OptionError(
                f"{name}: {file} is live (audit {audit}), and its file {row['digest'][:12]}... is not "
                f"in {folder} as it was kept; put it back from a backup, or name the model that is to "
                "be served in the configuration"
            )
        found[name] = Live(audit, file, row["digest"], str(path), row["by"], row["since"])
        told.append(
            f"{name}: {file} is served (audit {audit}, live by {row['by']}), not {own.name}"
        )
    return found, told


def models_folder(config: Config) -> Path:
    """Where files of audited models are kept."""
    return config.state.with_suffix(".files") / "models"


def _digest(path: Path) -> str | None:
    """None where it cannot be read: the reading of the model says so."""
    return digest_of(path) if path.is_file() else None


def _entry(ledger: Ledger, row: dict[str, Any]) -> int | None:
    """The entry of the ledger that a note was begun for."""
    said = (row["audit"], row["model"], row["by"])
    for entry in ledger.entries(kinds=("live",), after=row["after"]):
        facts = entry.facts
        if (facts["audit"], facts["name"], facts.get("by")) == said:
            return entry.seq
    return None
