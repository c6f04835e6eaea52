"""A file as it was when it was first read: what has changed since is noticed, never used.

A long run reads its input many times, piece by piece. Digests of its blocks, taken when it is opened,
are compared whenever a block is read again, before anything of it is handed on. So whatever happens
to the file, all that a run uses are the bytes of one and the same content.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING

from proplace.core.errors import TableError

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import WriteableBuffer

BLOCK = 2**20


class Pinned:
    """The content of a file at this moment: its digest, and a way to read it again.

    Attributes
    ----------
    path
        The file.
    size
        Its length in bytes.
    digest
        SHA-256 of all of it, in hexadecimal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        whole, blocks, size = hashlib.sha256(), [], 0
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                whole.update(block)
                blocks.append(hashlib.sha256(block).digest())
                size += len(block)
        self.size, self.digest, self._blocks = size, whole.hexdigest(), tuple(blocks)

    def open(self) -> io.BufferedReader:
        """Open the file for reading; a block that has changed raises :class:`TableError`."""
        try:
            file = io.FileIO(self.path)
        except FileNotFoundError:
            raise self.changed() from None
        return io.BufferedReader(_Reader(self, file), BLOCK)

    def check(self) -> None:
        """Read everything again; raise :class:`TableError` unless it is what it was."""
        with self.open() as file:
            while file.read(BLOCK):
                pass

    def block(self, file: io.FileIO, number: int) -> bytes:
        """One block of an open file, compared with what it was."""
        file.seek(number * BLOCK)
        with memoryview(bytearray(BLOCK)) as room:
            filled = 0
            while filled < BLOCK and (more := file.readinto(room[filled:])):
                filled += more
            content = bytes(room[:filled])
        same = os.fstat(file.fileno()).st_size == self.size
        if not same or hashlib.sha256(content).digest() != self._blocks[number]:
            raise self.changed()
        return content

    def changed(self) -> TableError:
        """What to say when the file is not what it was."""
        return TableError(
            f"{self.path}: was changed while it was in use, and answers must not mix two files; put "
            "it back as it was and give the same command again, or begin anew with the changed one"
        )


class _Reader(io.RawIOBase):
    """Bytes of a pinned file from any place on, a block at a time."""

    def __init__(self, pinned: Pinned, file: io.FileIO) -> None:
        self._pinned, self._file, self._place = pinned, file, 0
        self._number, self._block = -1, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._pinned.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if self._place >= self._pinned.size:
            return 0
        number, first = divmod(self._place, BLOCK)
        if number != self._number:
            self._number, self._block = number, self._pinned.block(self._file, number)
        with memoryview(buffer).cast("B") as room:
            piece = self._block[first : first + len(room)]
            room[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()
