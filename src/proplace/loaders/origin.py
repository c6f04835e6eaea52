"""Where a model was read from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Origin:
    """Where a model was read from: the name of its file, or of what it was in memory.

    ``digest`` is the SHA-256 of the file, None where there was none.
    """

    name: str
    digest: str | None = None

    @classmethod
    def file(cls, path: Path) -> Origin:
        """Name a file and take its digest."""
        with path.open("rb") as file:
            return cls(path.name, hashlib.file_digest(file, "sha256").hexdigest())
