"""What holds for model files of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path


def check_file(path: Path) -> None:
    """Raise ModelFileError unless ``path`` is a file."""
    if not path.exists():
        raise ModelFileError(f"{path}: no such file")
    if path.is_dir():
        raise ModelFileError(f"{path}: this is a folder; give the path of one model file")
    if not path.is_file():
        raise ModelFileError(f"{path}: this is not a regular file")


def read_bytes(path: Path) -> bytes:
    """Content of a file, or ModelFileError."""
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: the file cannot be read ({error.strerror})") from None
