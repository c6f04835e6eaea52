"""Atomic file writes: a file appears complete or not at all, even after a power cut."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_write(path: Path, *, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces ``path`` only when it is complete.

    At the end, content and name are on the disk, so later steps may rely on the file. Until then
    the content is in ``temporary``, which must belong to the caller and be on the same disk.
    Default: a new file beside ``path``. Only ``kill -9`` leaves that file behind.
    """
    if temporary is None:
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=".proplace-", suffix=".tmp")
        temporary = Path(name)
        opened = os.fdopen(fd, "wb")
    else:
        opened = temporary.open("wb")
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # the name must not outlive the content in a power cut
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # as a plain open() would, because mkstemp is private
        move(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move(name: Path, path: Path) -> None:
    """Rename a file on the same disk and make the new name permanent."""
    os.replace(name, path)
    _keep_names(path.parent)


def _keep_names(folder: Path) -> None:
    """Write the names in a folder to the disk, if the system can open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
