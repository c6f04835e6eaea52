"""Style and script of the page: the style is that of the reports, with what a form needs beside it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from functools import cache
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from proplace.apps.serve.access import Refused

router = APIRouter()

_LOOK = ("proplace.apps.report", "templates/style.css.j2")
_OWN = "proplace.apps.serve"
_FILES = {
    "app.css": ("text/css", (_LOOK, (_OWN, "static/app.css"))),
    "app.js": ("text/javascript", ((_OWN, "static/app.js"),)),
}


@cache
def _content(name: str) -> bytes:
    _, parts = _FILES[name]
    return b"\n".join((resources.files(package) / path).read_bytes() for package, path in parts)


def address(name: str) -> str:
    """Where a file is, by a name that changes with its content."""
    return f"/static/{name}?{hashlib.sha256(_content(name)).hexdigest()[:12]}"


@router.get("/static/{name}")
def static(name: str) -> Response:
    """A file that all pages use."""
    if name not in _FILES:
        raise Refused(404, f"there is no file {name!r}")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(_content(name), media_type=_FILES[name][0], headers=headers)


@cache
def checker_page() -> str | None:
    """The page that checks certificates in a browser, where this version has it."""
    if importlib.util.find_spec("proplace.apps.verify") is None:
        return None
    return str(importlib.import_module("proplace.apps.verify").page())


@router.get("/verify.html")
def checker() -> Response:
    """The checker of certificates, for everyone: it needs nothing from here."""
    page = checker_page()
    if page is None:
        raise Refused(404, "this version has no checker for browsers")
    # The page itself allows its own script and no other; a header must only not forbid it.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; "
        "img-src data:; worker-src blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    return HTMLResponse(page, headers={"content-security-policy": policy})
