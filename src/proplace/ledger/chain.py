r"""The chain of a ledger: each entry is bound to all before it.

.. math::
    h_n = \mathrm{SHA256}\bigl(h_{n-1} \,\Vert\, \text{entry}_n\bigr), \qquad h_0 = 0 \ldots 0 .

Whoever changes, removes or inserts an entry changes the hashes of all that follow, up to the head.
Whoever holds the head of an earlier day can tell that nothing before it was changed, even by someone
who writes all hashes anew.

Personal data is not in the chain but beside it; an entry holds a commitment,
:math:`\mathrm{SHA256}(\text{salt} \,\Vert\, \text{data})` with 256 random bits of salt. When data and
salt are erased, what is left tells nothing about the person, and the chain holds as before.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from proplace.certification import canonical
from proplace.core.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterable

START = "0" * 64
"""The hash in front of the first entry."""

_SALT = 32


class Entry(NamedTuple):
    """Something that happened.

    Attributes
    ----------
    seq
        Its number, from 1 on.
    time
        When, in UTC.
    kind
        What: ``opened``, ``document``, ``issued``, ``renewed``, ``withdrawn``, ``erased``, ``audited``
        and so on.
    promise
        The promise that it is about, if it is about one.
    body
        The facts, as canonical JSON.
    hash
        Over all of this and the hash of the entry before.
    """

    seq: int
    time: str
    kind: str
    promise: int | None
    body: str
    hash: str

    @property
    def facts(self) -> dict[str, Any]:
        """What is in the body."""
        facts: dict[str, Any] = json.loads(self.body)
        return facts

    @classmethod
    def after(
        cls, head: Head, time: str, kind: str, promise: int | None, body: dict[str, Any]
    ) -> Entry:
        """The entry that follows a head."""
        entry = cls(head.entries + 1, time, kind, promise, canonical(body), "")
        return entry._replace(hash=entry.expected(head.hash))

    def expected(self, previous: str) -> str:
        """The hash that this entry must have behind another one."""
        content = json.dumps([self.seq, self.time, self.kind, self.promise, self.body])
        return hashlib.sha256(f"{previous}\n{content}".encode()).hexdigest()


class Head(NamedTuple):
    """The end of a chain: how many entries there are, and the hash of the last.

    Kept outside of the ledger (on paper, in a mail, in another system), it is what nobody can rewrite.
    """

    entries: int
    hash: str

    def __str__(self) -> str:
        """``entries:hash``, as :meth:`parse` reads it."""
        return f"{self.entries}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read what ``str`` has written."""
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip().lower())
        if found is None:
            raise LedgerError(
                f"{text[:80]!r} is no head of a ledger: the number of entries, a colon and 64 "
                "hexadecimal digits, as str(ledger.head) writes it",
                name="head",
                value=text,
            )
        return cls(int(found[1]), found[2])


def sha256(content: bytes) -> str:
    """Digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def new_salt() -> bytes:
    """Random bytes that make a commitment hide what it is about."""
    return secrets.token_bytes(_SALT)


def commitment(salt: bytes, parts: Iterable[bytes | None]) -> str:
    """Bind some data without showing it: which parts there are, their lengths and contents.

    All salts are of one length, so that no bytes can be moved between salt and data.
    """
    if len(salt) != _SALT:
        raise LedgerError(f"a salt has {_SALT} bytes, not {len(salt)}", name="salt")
    sha = hashlib.sha256(salt)
    for part in parts:
        sha.update(b"-" if part is None else f"{len(part)}:".encode() + part)
    return sha.hexdigest()
