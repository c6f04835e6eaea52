"""A ledger is the one that was opened: its file is never made anew, and no other one is read."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

import proplace as pp
from proplace.core.errors import LedgerError


@pytest.fixture
def book(tmp_path, result):
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        ledger.issue(result[:1], ["anna"])
    return tmp_path / "promises.db"


def actions(result):
    """Everything that a program with an open ledger may do next."""
    return [
        lambda ledger: ledger.promise(5),
        lambda ledger: ledger.promises(),
        lambda ledger: ledger.page(),
        lambda ledger: ledger.issue(result[1:2], ["bert"]),
        lambda ledger: ledger.verify(),
    ]


@pytest.mark.parametrize("connected", [True, False])
def test_ledger_that_is_moved_while_open_is_error_and_not_made_anew(
    book, result, tmp_path, connected
):
    with pp.Ledger(book, create=False) as ledger:
        if not connected:  # the next action opens the file again
            ledger.close()
        for path in tmp_path.glob("promises.db*"):
            path.rename(path.with_name(path.name.replace("promises", "moved")))
        for act in actions(result):
            with pytest.raises(LedgerError, match=r"moved or replaced|unable to open"):
                act(ledger)
    assert not book.exists()
    with pp.Ledger(tmp_path / "moved.db", create=False) as ledger:
        assert len(ledger.promises()) == 1
        assert ledger.verify().valid


def test_ledger_whose_file_is_replaced_while_open_is_error(book, result, tmp_path):
    with pp.Ledger(tmp_path / "other.db") as other:
        other.issue(result, ["c", "d", "e"])
        head = other.head
    with pp.Ledger(book) as ledger:
        (tmp_path / "other.db").rename(book)
        for act in actions(result):
            with pytest.raises(LedgerError, match="moved or replaced"):
                act(ledger)
    with pp.Ledger(book, create=False) as ledger:
        assert ledger.head == head


def test_ledger_that_is_overwritten_in_place_is_error(book, result, tmp_path):
    """The file stays the same, but its content is another ledger."""
    with pp.Ledger(tmp_path / "other.db") as other:
        other.issue(result, ["c", "d", "e"])
    with pp.Ledger(book) as ledger:
        ledger.close()
        shutil.copyfile(tmp_path / "other.db", book)
        for act in actions(result):
            with pytest.raises(LedgerError, match="another ledger"):
                act(ledger)


def test_identity_is_that_of_first_entry_and_goes_with_copies(book, tmp_path):
    shutil.copyfile(book, tmp_path / "copy.db")
    with pp.Ledger(book) as one, pp.Ledger(tmp_path / "copy.db") as other:
        assert one.identity == other.identity == next(one.entries()).facts["ledger"]
    with pp.Ledger(tmp_path / "new.db") as new:
        assert new.identity != one.identity


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a?mode=memory.db", "a#b.db", "ä.db"])
def test_file_of_any_name_is_opened_under_its_name(tmp_path, result, name):
    with pp.Ledger(tmp_path / name) as ledger:
        ledger.issue(result[:1], ["anna"])
    assert (tmp_path / name).is_file()
    with sqlite3.connect(tmp_path / name) as connection:
        assert connection.execute("select count(*) from promises").fetchone() == (1,)


def test_ledger_that_is_put_back_after_copy_has_lost_nothing(book, result, tmp_path):
    """A connection to the copy must not leave its write-ahead log beside the ledger."""
    with pp.Ledger(book) as ledger:
        ledger.close()
        shutil.copyfile(book, tmp_path / "backup.db")
        ledger.issue(result[1:2], ["bert"])
        ledger.close()
        book.rename(tmp_path / "original.db")
        shutil.copyfile(tmp_path / "backup.db", book)
        with pytest.raises(LedgerError, match="moved or replaced"):
            ledger.issue(result[2:], ["carla"])
        (tmp_path / "original.db").rename(book)
        ledger.issue(result[2:], ["carla"])
        assert ledger.promises()["person"].tolist() == ["anna", "bert", "carla"]
        assert ledger.verify().valid
