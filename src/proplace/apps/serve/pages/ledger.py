"""The ledger: search it, verify the chain, export it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from proplace.apps.serve.pages.common import Visit, visit
from proplace.apps.serve.pages.promises import STATES
from proplace.core.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.promises.verifying import Verification

router = APIRouter(prefix="/ledger")

Looking = Annotated[Visit, visit("ledger")]
_LATEST = 50  # entries that are shown


@router.get("")
def ledger(seen: Looking) -> Response:
    """The end of the chain, and what happened last."""
    return _page(seen)


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


def _page(seen: Visit, *, found: Verification | None = None, problem: str = "") -> Response:
    head = seen.service.ledger.head
    latest = list(seen.service.ledger.entries(after=max(0, head.entries - _LATEST)))[::-1]
    return seen.render(
        "ledger.html.j2",
        422 if problem else 200,
        head=str(head),
        latest=latest,
        found=found,
        given=seen.given("head"),
        states=STATES,
        problem=problem,
    )
