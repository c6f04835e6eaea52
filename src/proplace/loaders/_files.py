"""What holds for model files of every kind: where they are, how large they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.core import limits
from proplace.core.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path


def check_file(path: Path) -> None:
    """Raise ModelFileError unless ``path`` is a file of a size that is read."""
    if not path.exists():
        raise ModelFileError(f"{path}: no such file", name=path.name)
    if path.is_dir():
        raise ModelFileError(
            f"{path}: this is a folder; give the path of one model file", name=path.name
        )
    if not path.is_file():
        raise ModelFileError(f"{path}: this is not a regular file")
    check_bytes(path.name, path.stat().st_size)


def check_bytes(where: str, size: int, limit: int | None = None) -> None:
    """Raise ModelFileError where more than ``limit`` bytes (those of a model) would be read."""
    limit = limits.MODEL_BYTES if limit is None else limit
    if size > limit:
        raise ModelFileError(
            f"{where} has {size:,} bytes; at most {limits.readable(limit)} are read"
        )


def read_bytes(path: Path) -> bytes:
    """Content of a file, or ModelFileError."""
    check_file(path)
    try:
        with path.open("rb") as file:
            # One byte more shows a file that grew since it was looked at; room is made for all.
            data = file.read(path.stat().st_size + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: the file cannot be read ({error.strerror})") from None
    check_bytes(path.name, len(data))
    return data
