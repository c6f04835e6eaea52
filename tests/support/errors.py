"""Errors compared by their fields, so that a reworded message breaks no test."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

ANY = object()


@contextmanager
def raises(error, *, name=ANY, value=ANY, row=ANY, match=None):
    """Expect an error of exactly this class with the given fields, and with a message.

    ``match`` is a word of the message, for two errors with equal fields. The caller gets the
    information of ``pytest.raises``.
    """
    with pytest.raises(error, match=match) as info:
        yield info
    compare(info.value, error, name=name, value=value, row=row)


def failed(done, error, *, name=ANY, value=ANY, row=ANY, notes=0):
    """Expect exit status 1, this error on one line (and lines of its code), and no other output.

    ``notes`` is the number of lines on standard error before that of the error.
    """
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 + notes + len(done.error.code), done.stderr
    compare(done.error, error, name=name, value=value, row=row)


def compare(found, error, *, name=ANY, value=ANY, row=ANY):
    """Compare the class and the fields of an error, which must have a message."""
    assert type(found) is error, f"{type(found).__name__}: {found}"
    assert str(found).strip(), "the error has no message"
    for field, expected in (("name", name), ("value", value), ("row", row)):
        if expected is not ANY:
            actual = getattr(found, field)
            assert actual == expected, f"{field} is {actual!r}: {found}"
