"""Promises from a folder of results, in bounded memory: what is read at once is a part of it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from proplace.core.errors import LedgerError
from proplace.explain.results import Explanations
from proplace.ledger.issuing import growth_note, nothing_to_promise, people_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from proplace.ledger.issuing import Ids

_PART = 500  # answers in one transaction


class IssuedFolder(NamedTuple):
    """What became of the answers of a folder.

    Attributes
    ----------
    new
        How many promises were issued now.
    known
        How many were in the ledger already.
    skipped
        How many rows hold nothing to promise.
    growing
        As for :class:`~proplace.ledger.issuing.Issued`.
    """

    new: int = 0
    known: int = 0
    skipped: int = 0
    growing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.new:,} promise{'s' * (self.new != 1)} issued"]
        if self.known:
            parts.append(f"{self.known:,} known already")
        if self.skipped:
            parts.append(f"{self.skipped:,} rows with nothing to promise")
        return ", ".join(parts) + growth_note(self.growing)


def parts_of(folder: str | os.PathLike[str], ids: Ids) -> Iterator[Explanations]:
    """The answers of a folder, some whole people at once, after a look at the ids of all of them."""
    from proplace.batch.reading import open_results

    opened = open_results(folder)
    if not opened.certificates:
        raise LedgerError(
            f"{folder}: its certificates were not kept, and nothing is promised without a proof; "
            "explain the same input into another folder with --certificates (certificates=True)",
            name="certificates",
        )
    if ids is not None and not isinstance(ids, (str, Mapping)):
        raise LedgerError(
            "ids of a folder are the name of an id column, or {number of a row: id}, not a list",
            name="ids",
        )
    _check_ids(opened, ids)
    yield from opened.parts(_PART)


def _check_ids(opened: Any, ids: Ids) -> None:
    """Refuse a folder in which somebody has no id, or two rows have the same."""
    digests = array("Q", (_digest(person) for _, person in _people(opened, ids)))
    values, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    seen: dict[str, Any] = {}
    for index, person in _people(opened, ids) if suspects else ():
        if _digest(person) not in suspects:
            continue
        if person in seen:
            raise LedgerError(
                f"rows {seen[person]} and {index} have the same id {person!r}; give an id that tells "
                "all rows apart (such as the number of an application), as another column or as "
                "{number of a row: id}",
                name="ids",
                value=person,
            )
        seen[person] = index


def _people(opened: Any, ids: Ids) -> Iterator[tuple[Any, str]]:
    """Rows to which something is promised, and who they are."""
    last = None
    for line in opened.lines():
        e = line.explanation
        if e.index != last and not nothing_to_promise(e):
            last = e.index
            yield e.index, people_of(Explanations([e]), ids)[0]


def _digest(person: str) -> int:
    return int.from_bytes(hashlib.blake2b(person.encode(), digest_size=8).digest(), "big")
