"""Logging in with a key, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form
from fastapi.responses import Response  # noqa: TC002  (FastAPI reads it)

from proplace.apps.serve.access import COOKIE, Refused
from proplace.apps.serve.pages.common import Visit, see_other, stranger, visit

router = APIRouter()

Anyone = Annotated[Visit, Depends(stranger)]


@router.get("/")
def home() -> Response:
    """The page begins with people."""
    return see_other("/people")


@router.get("/login")
def form(seen: Anyone) -> Response:
    """Ask for a key."""
    return seen.render("login.html.j2", wrong=False)


@router.post("/login")
def login(seen: Anyone, key: Annotated[str, Form(max_length=200)] = "") -> Response:
    """Begin a session. The key is not kept; a random token is its cookie."""
    request, service = seen.request, seen.service
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, seen.text("error.foreign"))
    found = service.store.key(key.strip())
    if found is None:
        service.logins.check("address " + (request.client.host if request.client else ""))
        return seen.render("login.html.j2", 401, wrong=True)
    hours = service.config.limits.session
    token = service.store.start_session(found, hours)
    answer = see_other("/people")
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


@router.post("/logout")
def logout(seen: Annotated[Visit, visit("models")]) -> Response:
    """End the session."""
    seen.service.store.end_session(seen.request.cookies.get(COOKIE, ""))
    answer = see_other("/login")
    answer.delete_cookie(COOKIE, path="/")
    return answer
