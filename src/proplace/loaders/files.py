"""Model files: where they are, how large they may be, and the zip archive of an ``.npz`` file.

What an archive says of itself is checked before anything is unpacked: it begins and ends as a zip
file does, so that it is not some other file with an archive hidden in it; each name occurs once; and
what its members unpack to, all together, stays within the limit.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Self

from proplace.core import limits
from proplace.core.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path

_FIRST = b"PK\x03\x04"  # of the first member, at the very beginning
_LAST = b"PK\x05\x06"  # of the end record, which is 22 bytes long without a comment
_END = 22
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_TROUBLE = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, OverflowError)


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


class Archive:
    """The members of a zip file by name; use it in a ``with`` block.

    Parameters
    ----------
    path
        The file.
    advice
        What to do where it is not such an archive, for messages.
    """

    def __init__(self, path: Path, advice: str) -> None:
        check_file(path)
        self._path = path
        self._advice = advice
        try:
            _check_ends(path)
            self._zip = zipfile.ZipFile(path)
        except _TROUBLE as error:
            raise self.damaged(str(error)) from None
        self._members: dict[str, zipfile.ZipInfo] = {}
        try:
            self._check()
        except ModelFileError:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """Names of the members in the order of the archive."""
        return list(self._members)

    def read(self, name: str, limit: int = limits.MODEL_BYTES) -> bytes:
        """Content of a member of at most ``limit`` bytes."""
        member = self._member(name)
        check_bytes(f"{self._path.name}: {name!r}", member.file_size, limit)
        try:
            with self._zip.open(member) as file:
                # With a size, no more than that is unpacked, whatever is packed.
                data = file.read(member.file_size + 1)
        except Exception as error:  # zlib raises its own
            raise self.damaged(f"{name!r}: {error}") from None
        if len(data) != member.file_size:
            raise self.damaged(f"{name!r} does not have the {member.file_size:,} bytes it says")
        return data

    def damaged(self, why: str) -> ModelFileError:
        """Return the refusal of this file for the reason ``why``."""
        return ModelFileError(
            f"{self._path.name}: {self._advice.format(why=why)}", name=self._path.name
        )

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise self.damaged(f"there is no {name!r} in the archive")
        return self._members[name]

    def _check(self) -> None:
        total, held = 0, self._path.stat().st_size
        for member in self._zip.infolist():
            if member.filename in self._members:
                raise self.damaged(f"{member.filename!r} is in the archive twice")
            if member.filename != member.orig_filename:  # a zero byte, behind which readers differ
                raise self.damaged(f"{member.orig_filename!r} is no name of a member")
            if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
                raise self.damaged(f"{member.filename!r} is encrypted or compressed in a rare way")
            # Room is made for what is packed, too.
            stored = member.compress_type == zipfile.ZIP_STORED
            if member.compress_size > held or (stored and member.file_size != member.compress_size):
                raise self.damaged(f"{member.filename!r} does not have the bytes it says")
            self._members[member.filename] = member
            total += member.file_size
        check_bytes(f"{self._path.name}, unpacked,", total)
        if not self._members or min(m.header_offset for m in self._members.values()) != 0:
            raise self.damaged("the archive does not begin where the file does")


def _check_ends(path: Path) -> None:
    with path.open("rb") as file:
        first = file.read(len(_FIRST))
        file.seek(max(0, path.stat().st_size - _END))
        last = file.read(_END)
    if first != _FIRST or len(last) != _END or not last.startswith(_LAST):
        raise ValueError("it does not begin and end as a zip archive does")
