"""Logging in with a key, and out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response  # noqa: TC002  (FastAPI reads it)
from starlette.datastructures import FormData  # noqa: TC002  (FastAPI reads it)

from proplace.apps.serve.access import COOKIE, Caller
from proplace.apps.serve.pages.common import (
    Visit,
    from_here,
    login_page,
    see_other,
    stranger,
    visit,
)

router = APIRouter()

Anyone = Annotated[Visit, Depends(stranger)]
_OURS = re.compile(r"/(people|answers|promises|models|ledger)(/[\w.~%-]+)*")
_HELD = "held:"
"""In front of the fields of a form that is kept while somebody logs in again."""


async def _form(request: Request) -> FormData:
    return await request.form(max_files=0, max_fields=5_000)


@router.get("/")
def home() -> Response:
    """The page begins with people."""
    return see_other("/people")


@router.get("/login")
def form(seen: Anyone, to: str = "") -> Response:
    """Ask for a key."""
    return login_page(seen, to=to if _OURS.fullmatch(to) else "")


@router.post("/login")
def login(seen: Anyone, given: Annotated[FormData, Depends(_form)]) -> Response:
    """Begin a session. The key is not kept; a random token is its cookie."""
    request, service = seen.request, seen.service
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise seen.refusal(403, "error.foreign")
    to = str(given.get("to", ""))
    to = to if _OURS.fullmatch(to) else ""
    fields = [(name.removeprefix(_HELD), str(value)) for name, value in given.multi_items()
              if name.startswith(_HELD) and to]  # fmt: skip
    key = str(given.get("key", ""))[:200]
    found = service.store.key(key.strip())
    if found is None:
        service.logins.check("address " + (request.client.host if request.client else ""))
        return login_page(seen, 401, why="wrong", to=to, held=fields)
    service.rate.check(f"key {found.id}")
    hours = service.config.limits.session
    service.store.end_session(request.cookies.get(COOKIE, ""))
    token = service.store.start_session(found, hours)
    answer: Response = see_other(to or "/people")
    if fields:
        answer = _held_page(seen, Caller(found, service.store.session(token)), to, fields)
    answer.set_cookie(
        COOKIE,
        token,
        max_age=int(3600 * hours),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return answer


def _held_page(seen: Visit, who: Caller, to: str, fields: list[tuple[str, str]]) -> Response:
    """What was entered before the login, to be sent by whoever has logged in, and not by itself."""
    return replace(seen, caller=who).render(
        "held.html.j2", to=to, held=fields if from_here(seen.request) else []
    )


@router.post("/logout")
def logout(seen: Annotated[Visit, visit("models")]) -> Response:
    """End the session."""
    seen.service.store.end_session(seen.request.cookies.get(COOKIE, ""))
    answer = see_other("/login")
    answer.delete_cookie(COOKIE, path="/")
    return answer
