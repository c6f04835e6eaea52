"""Promises that are written into a ledger, unless they are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.core.errors import LedgerError
from proplace.core.text import listing
from proplace.ledger import tables
from proplace.ledger.chain import commitment, new_salt
from proplace.ledger.queries import PARAMETERS, is_open
from proplace.ledger.tables import sa
from proplace.ledger.terms import Archive

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from proplace.ledger.database import Writer
    from proplace.ledger.issuing import Draft, Existing
    from proplace.schema.values import Label

Said = tuple[str, bytes, bytes | None, bytes | None, str | None]
"""What is promised: terms, point, box and the last day. The same to the same person is one promise."""


def known_promises(
    connection: sa.Connection, drafts: Sequence[Draft], time: str
) -> dict[str, dict[Said, int]]:
    """Open promises of the people, by what is promised."""
    found: dict[str, dict[Said, int]] = {}
    p, own = tables.promises.c, tables.personal.c
    people = sorted({one.person for one in drafts})
    for start in range(0, len(people), PARAMETERS):
        query = (
            sa.select(own.person, p.id, p.terms, own.point, own.low, own.high, p.expires)
            .join_from(tables.personal, tables.promises, own.entry == p.id)
            .where(own.person.in_(people[start : start + PARAMETERS]), is_open(time[:10]))
        )
        for person, number, *key in connection.execute(query):
            found.setdefault(person, {})[tuple(key)] = number
    return found


def issue_drafts(
    writer: Writer,
    drafts: Sequence[Draft],
    expires: str | None,
    known: dict[str, dict[Said, int]],
    existing: Existing,
    *,
    label: Label,
    replacing: Collection[int] | None,
) -> tuple[list[int], list[int]]:
    """Write what is not known yet; return the numbers of all promises, and of the new ones.

    Only promises of the same class stand in the way of another, or give way to it.
    """
    archive = Archive(writer.connection)
    found, new = list[int](), dict[str, list[int]]()
    rows, given = dict[str, set[object]](), dict[str, set[int]]()
    for one in drafts:
        key = (*one.promised, expires)
        theirs = known.setdefault(one.person, {})
        if key not in theirs:
            theirs[key] = append_promise(writer, one, expires)
            new.setdefault(one.person, []).append(theirs[key])
        found.append(theirs[key])
        rows.setdefault(one.person, set()).add(one.row)
        given.setdefault(one.person, set()).add(theirs[key])
    labels = {drafts[0].terms: label}
    for terms, *_ in {key for person in new for key in known[person]}:
        if terms not in labels:
            labels[terms] = archive.terms(terms).label
    others = {
        person: sorted(
            number
            for (terms, *_), number in known[person].items()
            if number not in given[person] and labels[terms] == label
        )
        for person in new
    }
    several = [person for person in new if others[person] or len(rows[person]) > 1]
    if several and existing == "refuse":
        raise LedgerError(
            f"{len(several)} of the people have an open promise already, or stand in several rows "
            f"({listing(several)}); existing='add' (--existing add) lets all of them hold, "
            "existing='renew' (--existing renew) puts the new ones in the place of those before",
            name="existing",
            value=existing,
        )
    for person, numbers in others.items() if existing == "renew" else ():
        for number in numbers:
            if replacing is None or number in replacing:
                writer.append("renewed", {"into": new[person]}, number)
    return found, [number for numbers in new.values() for number in numbers]


def append_promise(writer: Writer, one: Draft, expires: str | None) -> int:
    """Write one promise."""
    number, salt = writer.next, new_salt()
    facts = {
        "terms": one.terms,
        "issued": writer.time,
        "expires": expires,
        "commitment": commitment(salt, one.parts),
    }
    writer.append("issued", facts, number)
    writer.add("promises", {"id": number, **facts})
    row = {name: value for name, value in one._asdict().items() if name not in ("terms", "row")}
    writer.add("personal", {"entry": number, "salt": salt, **row})
    return number
