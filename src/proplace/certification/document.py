"""Certificates as files: canonical JSON, its digest, and how it is read and written."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from proplace.certification import checker
from proplace.core.errors import CertificateError
from proplace.core.files import atomic_write

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


def canonical(facts: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, no spaces, shortest decimals."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


class Document(ABC):
    """A claim with its proof, as one line of canonical JSON."""

    _called: ClassVar[str]
    """What it is called where a file is something else."""

    if TYPE_CHECKING:  # a field of those that are nothing but text, else a property

        @property
        def text(self) -> str:
            """The document as canonical JSON."""

    @classmethod
    @abstractmethod
    def _read(cls, facts: dict[str, Any]) -> Self:
        """Make it of what a file holds; raises ``checker.Rejected`` where that is something else."""

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the document."""
        facts: dict[str, Any] = json.loads(self.text)
        return facts

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the document as JSON, one line."""
        return self.text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document; the file appears whole or not at all."""
        with atomic_write(Path(path)) as file:
            file.write(self.text.encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file. What it claims is checked by ``check``, not here."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                return cls._read(checker.parse(file.read(checker.MOST_BYTES + 1)))
        except FileNotFoundError:
            raise CertificateError(f"{path}: no such file", name=path.name) from None
        except (OSError, ValueError, RecursionError, checker.Rejected) as error:
            raise CertificateError(
                f"{path.name}: not {cls._called} ({error})", name=path.name
            ) from None
