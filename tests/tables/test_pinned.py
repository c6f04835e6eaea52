"""A file as it was when it was opened."""

from __future__ import annotations

import hashlib
import io
import os

import pytest

from proplace.core.errors import TableError
from proplace.tables import pinned
from proplace.tables.pinned import Pinned

CHANGED = "was changed while it was in use"


@pytest.fixture(params=[0, 1, 15, 16, 17, 32, 100])
def file(request, tmp_path, monkeypatch):
    """A file of some blocks of 16 bytes, its content, and what it was when it was pinned."""
    monkeypatch.setattr(pinned, "BLOCK", 16)
    content = os.urandom(request.param)
    path = tmp_path / "file"
    path.write_bytes(content)
    return path, content, Pinned(path)


def test_the_content_is_that_of_the_file(file):
    _, content, pin = file
    assert (pin.size, pin.digest) == (len(content), hashlib.sha256(content).hexdigest())
    pin.check()
    with pin.open() as opened:
        assert opened.read() == content
        assert opened.read() == b""


def test_any_part_can_be_read(file):
    _, content, pin = file
    with pin.open() as opened:
        assert opened.seekable()
        for start in (0, 3, 16, 40, 99, 100, 200):
            for number in (0, 1, 16, 33, -1):
                assert opened.seek(start) == start
                assert opened.read(number) == content[start:][: None if number < 0 else number]
        assert opened.seek(-min(5, len(content)), io.SEEK_END) == max(0, len(content) - 5)
        place = opened.tell()
        assert opened.seek(2, io.SEEK_CUR) == place + 2
        assert opened.read() == content[place + 2 :]


@pytest.mark.parametrize("place", [0, 15, 16, 60, 99])
def test_a_changed_byte_is_never_handed_over(tmp_path, monkeypatch, place):
    monkeypatch.setattr(pinned, "BLOCK", 16)
    path = tmp_path / "file"
    content = os.urandom(100)
    path.write_bytes(content)
    pin = Pinned(path)
    times = os.stat(path)
    changed = bytearray(content)
    changed[place] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    good = place // 16 * 16
    with pin.open() as opened:
        assert opened.read(good) == content[:good]
        with pytest.raises(TableError, match=CHANGED):
            opened.read(1)
    with pytest.raises(TableError, match=CHANGED):
        pin.check()


def test_a_file_that_grows_shrinks_or_goes(file):
    path, content, pin = file
    if not content:
        return
    for change in (content + b"x", content[:-1], b""):
        path.write_bytes(change)
        with pytest.raises(TableError, match=CHANGED):
            pin.check()
    path.unlink()
    with pytest.raises(TableError, match=CHANGED):
        pin.open()
    path.write_bytes(content)
    pin.check()
