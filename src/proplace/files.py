"""Files that appear whole or not at all, also after a power cut."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its place only when everything is written.

    Content and name are on the disk at the end: what comes next may rely on the file.
    """
    fd, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # the name must not outlive the content in a power cut
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # as a plain open() would; mkstemp is private
        os.replace(name, path)
        _keep_names(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _keep_names(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system lets folders be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
