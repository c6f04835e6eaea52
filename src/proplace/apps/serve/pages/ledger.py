"""The ledger: search it, verify the chain, export it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from proplace.apps.serve.pages.common import Visit, visit
from proplace.apps.serve.pages.promises import STATES
from proplace.core.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.promises.chain import Entry
    from proplace.promises.ledger import Ledger
    from proplace.promises.verifying import Verification

router = APIRouter(prefix="/ledger")

Looking = Annotated[Visit, visit("ledger")]
KINDS = ("issued", "renewed", "redeemed", "presented", "withdrawn", "erased", "audited", "decided",
         "adopted", "live", "document", "opened", "migrated")  # fmt: skip
"""What an entry may be about, that which is looked for most first."""
_LATEST = 50  # entries that are shown
_WINDOW = 2_000  # entries that are read at a time, the latest first


@router.get("")
def ledger(seen: Looking, kind: str = "", before: int | None = None) -> Response:
    """The end of the chain, and what happened last, or before some entry, of some kind."""
    return _page(seen, kind=kind, before=before)


@router.post("/verify")
def verify(seen: Looking) -> Response:
    """Look whether everything is as it was written."""
    try:
        found = seen.service.ledger.verify(seen.given("head") or None)
    except LedgerError as error:
        return _page(seen, problem=str(error))
    return _page(seen, found=found)


@router.get("/export")
def export(seen: Looking) -> Response:
    """All entries, one JSON object on each line: they hold no personal data."""

    def lines() -> Iterator[str]:
        for entry in seen.service.ledger.entries():
            yield json.dumps(entry._asdict()) + "\n"

    headers = {"content-disposition": 'attachment; filename="ledger.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def _page(
    seen: Visit,
    *,
    found: Verification | None = None,
    problem: str = "",
    kind: str = "",
    before: int | None = None,
) -> Response:
    head = seen.service.ledger.head
    kind = kind if kind in KINDS else ""
    latest = entries_before(seen.service.ledger, before or head.entries + 1, kind)
    return seen.render(
        "ledger.html.j2",
        422 if problem else 200,
        head=str(head),
        latest=latest[:_LATEST],
        older=latest[_LATEST - 1].seq if len(latest) > _LATEST else None,
        kind=kind,
        kinds=KINDS,
        before=before,
        found=found,
        given=seen.given("head"),
        states=STATES,
        problem=problem,
    )


def entries_before(ledger: Ledger, end: int, kind: str = "") -> list[Entry]:
    """The last entries before one, the latest first, and one more if there are older ones."""
    found: list[Entry] = []
    end = min(end, ledger.head.entries + 1)
    while end > 1 and len(found) <= _LATEST:
        start = max(1, end - _WINDOW)
        part = ledger.entries(kinds=[kind] if kind else None, after=start - 1)
        found += list(itertools.takewhile(lambda e: e.seq < end, part))[::-1]  # noqa: B023
        end = start
    return found[: _LATEST + 1]
