"""Files that are packed with gzip, read as what they hold.

What comes out is limited in size before it is used, so that a small file cannot become an endless one,
and whatever is wrong with the packing is said as a :class:`TableError`.
"""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING, BinaryIO

from proplace import limits
from proplace.errors import TableError

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import WriteableBuffer

MAGIC = b"\x1f\x8b"
"""The first bytes of everything that gzip packs; no text begins so."""


class Unpacked(io.RawIOBase):
    """The content of a packed file that is open for reading, from the beginning on."""

    def __init__(self, path: Path, packed: BinaryIO, size: int) -> None:
        self._path, self._packed = path, packed
        self._gzip = gzip.GzipFile(fileobj=packed, mode="rb")
        ratio = max(limits.UNPACKED_SMALL, limits.UNPACKED_RATIO * size)
        self._left = min(limits.UNPACKED_BYTES, ratio)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read on, as far as the limits allow."""
        try:
            count = self._gzip.readinto(buffer)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TableError(
                f"{self._path}: the file is packed with gzip, and damaged ({error}); pack it again"
            ) from None
        self._left -= count
        if self._left < 0:
            raise TableError(
                f"{self._path}: the file unpacks to far more than packed tables do; unpack it "
                "yourself if it is one (gunzip), and give the unpacked file"
            )
        return count

    def close(self) -> None:
        """Close the packed file, too."""
        self._gzip.close()
        self._packed.close()
        super().close()
