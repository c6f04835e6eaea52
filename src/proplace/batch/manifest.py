"""The manifest of a folder of results: its settings, its model and schema, and the digests of its files.

It ends with a seal, a SHA-256 over the other fields. A changed manifest is rejected, because the
description of every row depends on it (delta, the class, the units).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from proplace.core import limits
from proplace.core.errors import ProplaceError
from proplace.core.transforms import folds_digest
from proplace.explain.record import Provenance
from proplace.loaders.cutoffs import Threshold
from proplace.loaders.files import Origin
from proplace.loaders.model import Model
from proplace.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.core.network import Network
    from proplace.explain.results import Setting
    from proplace.schema.values import Label

FORMAT = "proplace-batch-10"
NAME = "manifest.json"
_ANY_VERSION = re.compile("proplace-batch-[0-9]{1,4}")
_FIELDS = {"format", "question", "about", "results", "complete", "seal"}


class NotAManifest(Exception):
    """Raised if a file is not a manifest of this version, or is damaged. The text names a next step."""


@dataclass(frozen=True)
class About:
    """The context of the results of a folder, so that they can be read without the model's file.

    Attributes
    ----------
    provenance
        Digests of the inputs, and the start of the batch.
    schema
        The features.
    classes
        Labels of the classes.
    folds
        Digest of the batch norm that was folded into the network. Empty without batch norm.
    encoding
        Digest of the model's own preprocessing. Empty for a model that takes encoded rows.
    columns
        Columns of the table in the order of the model's inputs.
    threshold
        The cut-off of the model: the number of a class and its probability. None without a cut-off.
    """

    provenance: Provenance
    schema: Schema
    classes: tuple[Label, ...]
    folds: str
    encoding: str = ""
    columns: tuple[str, ...] = ()
    threshold: Threshold | None = None

    @classmethod
    def of(cls, provenance: Provenance, setting: Setting) -> About:
        """Return the context of the results of a setting."""
        folds = folds_digest(setting.current.network.folds)
        return cls(
            provenance,
            setting.schema,
            setting.model.classes,
            folds,
            setting.model.encoding,
            setting.model.columns,
            setting.model.threshold,
        )

    def model(self, net: Network) -> Model:
        """Return the model with this network."""
        return Model(
            net,
            self.schema,
            self.classes,
            has_preprocessing=bool(self.encoding),
            _columns=self.columns or tuple(self.schema.by_name),
            origin=Origin(self.provenance.model, self.provenance.file_digest),
            declared=True,
            threshold=self.threshold,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold."""
        return {
            "provenance": self.provenance.to_dict(),
            **self.schema.to_dict(),
            "classes": list(self.classes),
            "folds": self.folds,
            "encoding": self.encoding,
            "columns": list(self.columns),
            **({} if self.threshold is None else {"cutoff": list(self.threshold)}),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> About:
        """Read the fields of :meth:`to_dict`."""
        schema = Schema.from_dict(fields)
        for name in ("folds", "encoding"):
            if not isinstance(fields[name], str):
                raise ValueError(f"{name} must be a digest, or empty")
        made = Provenance.from_dict(fields["provenance"])
        columns = tuple(fields["columns"])
        if columns and set(columns) != set(schema.by_name):
            raise ValueError("columns must be those of the features")
        return cls(
            made,
            schema,
            tuple(fields["classes"]),
            fields["folds"],
            fields["encoding"],
            columns,
            Threshold(*fields["cutoff"]) if "cutoff" in fields else None,
        )


@dataclass(frozen=True)
class Manifest:
    """The facts about a folder of results.

    Attributes
    ----------
    question
        The settings, as digests and options. A folder has one set of them.
    about
        The context of the results, as JSON.
    results
        Digests of all files that were the results.
    complete
        True if the last of them has a result for every row.
    """

    question: dict[str, Any]
    about: dict[str, Any]
    results: tuple[str, ...] = ()
    complete: bool = False

    @classmethod
    def of(cls, question: dict[str, Any], about: About) -> Manifest:
        """Return the manifest of a new batch."""
        return cls(*(json.loads(json.dumps(part)) for part in (question, about.to_dict())))

    @property
    def digest(self) -> str:
        """Digest of the settings."""
        return _sha256(self.question)

    def with_results(self, digest: str, *, complete: bool) -> Manifest:
        """Return the manifest with one more digest of results."""
        return replace(self, results=(*self.results, digest), complete=complete)

    def content(self) -> bytes:
        """Return the manifest as the bytes of its file."""
        facts = {
            "format": FORMAT,
            "question": self.question,
            "about": self.about,
            "results": list(self.results),
            "complete": self.complete,
        }
        return json.dumps({**facts, "seal": _sha256(facts)}, indent=2).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest.

        Raises
        ------
        NotAManifest
            The file is something else, of another version, or was changed.
        """
        found = _parsed(path)
        if _is_other_version(found.get("format")):
            raise NotAManifest(
                f"{path}: another version of proplace wrote this folder (format {found['format']}, this "
                f"version reads {FORMAT}). Explain the same input into a new folder"
            )
        good = (
            set(found) == _FIELDS
            and found["format"] == FORMAT
            and isinstance(found["question"], dict)
            and isinstance(found["about"], dict)
            and isinstance(found["results"], list)
            and isinstance(found["complete"], bool)
            and (bool(found["results"]) or not found["complete"])
        )
        if not good:
            raise NotAManifest(
                f"{path}: this is not the manifest of a batch of this version. Give another folder"
            )
        if found.pop("seal") != _sha256(found):
            raise NotAManifest(
                f"{path} was changed after proplace wrote it. Restore the original file, or explain the "
                "same input into another folder"
            )
        return cls(
            found["question"], found["about"], tuple(found["results"]), complete=found["complete"]
        )

    def facts(self) -> About:
        """Return the context of the results."""
        try:
            return About.from_dict(self.about)
        except (ProplaceError, KeyError, TypeError, ValueError) as error:
            raise NotAManifest(
                f"the manifest cannot be read ({error}). Explain the same input into a new folder"
            ) from None


def _is_other_version(name: object) -> bool:
    return isinstance(name, str) and name != FORMAT and bool(_ANY_VERSION.fullmatch(name))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(limits.MANIFEST_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _sha256(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
