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
def atomic_write(path: Path, *, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its place only when everything is written.

    Content and name are on the disk at the end: what comes next may rely on the file. Until then the
    content is in ``temporary``, which must be the caller's own and on the same disk; without it, in
    a new file beside ``path``. Only ``kill -9`` leaves that file behind.
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
        os.chmod(temporary, 0o666 & ~mask)  # as a plain open() would; mkstemp is private
        move(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move(name: Path, path: Path) -> None:
    """Give a file another name on the same disk, for good."""
    os.replace(name, path)
    _keep_names(path.parent)


def _keep_names(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system lets folders be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
