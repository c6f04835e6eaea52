"""Tables that change after they were opened."""

from __future__ import annotations

import hashlib
import os

import pytest

import proplace as pp
from proplace.core.errors import TableError
from proplace.tables.files import open_table
from support.errors import raises

CONTENT = b"a,b\n" + b"1,2\n" * 50
SCHEMA = pp.Schema.encoded(2, names=["a", "b"])


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(CONTENT)
    return file


def test_digest_of_unchanged_table_is_sha256_of_file(path):
    table = open_table(path)
    assert table.digest == hashlib.sha256(CONTENT).hexdigest()
    table.read(SCHEMA)
    table.check_unchanged()


@pytest.mark.parametrize("content", [CONTENT + b"3,4\n", CONTENT[:-4], b"", None])
def test_table_that_grows_shrinks_or_disappears_is_noticed(path, content):
    table = open_table(path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with raises(TableError, name="t.csv", match="changed"):
        table.read(SCHEMA)
    with raises(TableError, name="t.csv", match="changed"):
        table.check_unchanged()
    path.write_bytes(CONTENT)
    table.check_unchanged()


def test_changed_byte_with_restored_time_is_noticed_at_end(path):
    table, times = open_table(path), os.stat(path)
    path.write_bytes(CONTENT.replace(b"1", b"9"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with raises(TableError, name="t.csv", match="changed"):
        table.check_unchanged()


def test_no_row_is_used_after_change_between_two_chunks(path, monkeypatch):
    monkeypatch.setattr("proplace.tables.files.CHUNK", 5)
    chunks = open_table(path).cells()
    next(chunks)
    path.write_bytes(CONTENT + b"3,4\n")
    with raises(TableError, name="t.csv", match="changed"):
        next(chunks)
