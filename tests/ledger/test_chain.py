"""The chain by itself: hashes against those of a few lines of code, heads, commitments."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from proplace.core.errors import LedgerError
from proplace.ledger.chain import START, Entry, Head, canonical, commitment, new_salt
from support.errors import raises

ENTRY = Entry.after(Head(6, "a" * 64), "2026-01-31T12:00:00Z", "issued", 7, {"b": 1, "a": "ä"})


def test_hash_is_over_entry_and_hash_before():
    """As an auditor would compute it, without this package."""
    content = json.dumps([7, "2026-01-31T12:00:00Z", "issued", 7, '{"a":"\\u00e4","b":1}'])
    assert ENTRY.hash == hashlib.sha256(("a" * 64 + "\n" + content).encode()).hexdigest()
    assert ENTRY.seq == 7
    assert ENTRY.facts == {"a": "ä", "b": 1}


def test_every_field_counts():
    changes = {"seq": 8, "time": "", "kind": "document", "promise": None, "body": "{}"}
    hashes = {ENTRY._replace(**{name: value}).expected("a" * 64) for name, value in changes.items()}
    hashes |= {ENTRY.expected("a" * 64), ENTRY.expected(START)}
    assert len(hashes) == len(changes) + 2


def test_bytes_cannot_move_between_fields():
    """Quotes and commas in a text do not make it look like two."""
    one = ENTRY._replace(kind='issued", 7, "', body="x")
    two = ENTRY._replace(kind="issued", body='", "x')
    assert one.expected(START) != two.expected(START)


def test_head_is_read_as_it_is_written():
    head = Head(12, "0123456789abcdef" * 4)
    assert Head.parse(f"  {head}\n") == head
    assert Head.parse(str(head).upper()) == head
    for wrong in (
        "",
        "12",
        "12:abc",
        f"-1:{'0' * 64}",
        f"x:{'0' * 64}",
        f"12:{'g' * 64}",
        f"²:{START}",
    ):
        with raises(LedgerError, name="head"):
            Head.parse(wrong)


def test_facts_are_written_in_one_way():
    assert canonical({"b": [1.5, None], "a": True}) == canonical({"a": True, "b": [1.5, None]})
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))


def test_commitment_binds_each_part():
    """The commitment depends on each part, on where it ends, and on the salt."""
    salt = bytes(range(32))
    few = [None, b"", b"-", b"1:", b"1", b"11:1", b"0:"]
    seen = {commitment(salt, parts) for parts in itertools.product(few, repeat=3)}
    assert len(seen) == len(few) ** 3
    assert commitment(salt, [b"a"]) != commitment(bytes(32), [b"a"])


def test_salts_have_one_length_and_differ():
    salts = {new_salt() for _ in range(100)}
    assert len(salts) == 100
    assert {len(salt) for salt in salts} == {32}
    for wrong in (b"", bytes(31), bytes(33)):
        with raises(LedgerError, name="salt"):
            commitment(wrong, [b"a"])
