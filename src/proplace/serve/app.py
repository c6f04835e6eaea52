"""The application: login, errors, and the server around it.

The guard checks every request before its route. Each process has three secrets: a code for one login, a
cookie that the login sets, and a token that programs send. Addresses contain no personal data, and the
log contains methods, routes, times and statuses only.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from proplace import __version__
from proplace.core.errors import LedgerError, NotInLedgerError, ProplaceError
from proplace.serve import api, pages
from proplace.serve.forms import FieldErrors
from proplace.serve.workbench import BusyError, GoneError, NotReadyError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, MutableMapping

    from starlette.responses import Response

    from proplace.serve.workbench import Workbench

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("proplace.serve")

MOST_BODY = 262_144
MOST_UPLOAD = 64 * 1024 * 1024
LOCAL = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]{0,5})?")
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass
class Access:
    """The secrets of one process, and the host names that it accepts."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    hosts: frozenset[str] = frozenset(LOCAL)
    root: str = ""
    code: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _used: threading.Lock = field(default_factory=threading.Lock)

    def takes_code(self, code: str) -> bool:
        """Return True for the code of the link, once."""
        if not _same(code, self.code):
            return False
        return self._used.acquire(blocking=False)

    def takes_token(self, token: str) -> bool:
        """Return True for the token of programs, which a person may also type."""
        return _same(token, self.token)

    def cookie(self) -> str:
        """Return the header that starts the session of a browser."""
        path = f"{self.root}/"
        return f"proplace={self.session}; Path={path}; HttpOnly; SameSite=Strict"


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())


def app_of(bench: Workbench, access: Access) -> FastAPI:
    """Make the application of a workbench."""
    app = FastAPI(
        title="proplace workbench",
        version=__version__,
        description="Robust counterfactuals, verdicts and promises of one model.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.bench, app.state.access = bench, access
    app.include_router(api.router())
    pages.add_to(app)
    for kind in (ProplaceError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    app.add_middleware(Guard, access=access)
    return app


class Guard:
    """Checks every request before any route handles it, and logs it."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        root = self._access.root
        if root and (scope["path"] == root or scope["path"].startswith(f"{root}/")):
            scope["path"] = scope["path"][len(root) :] or "/"
        scope["root_path"] = ""

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name.lower() for name, _ in message["headers"]}
                more = ((n.encode(), v.encode()) for n, v in HEADERS.items())
                message["headers"] = [*message["headers"], *(p for p in more if p[0] not in own)]
            await send(message)

        request = Request(scope, receive)
        try:
            refusal = self._refusal(request)
            if refusal is not None:
                await refusal(scope, receive, sending)
            else:
                await self._app(scope, _limited(scope, receive), sending)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-3:]
            places = ", ".join(f"{Path(f.filename).name}:{f.lineno}" for f in at)
            log.error(
                "%s at %s", type(error).__name__, places
            )  # its text may contain personal data
            if not status:
                response = _response(request, 500, "The workbench failed. Its log names the place.")
                await response(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            seconds = time.perf_counter() - start
            log.info("%s %s %s %.0f ms", scope["method"], route, status, 1e3 * seconds)

    def _refusal(self, request: Request) -> Response | None:
        """Return the response to a request that no route may handle."""
        headers, path = request.headers, request.url.path
        named = _HOST.fullmatch(headers.get("host", ""))
        if named is None or named[1].strip("[]").lower() not in self._access.hosts:
            advice = "This host name is not served. Add it to serve.hosts of proplace.yaml."
            return _response(request, 421, advice)
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 12 or int(length) > _most(path):
            return _response(request, 413, f"A request has at most {_most(path):,} bytes.")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.takes_token(token.strip()):
            return None
        if request.method not in ("GET", "HEAD") and not _same_origin(request):
            if path.startswith("/api/"):
                return _stranger(request)
            return _response(request, 403, "Only pages of the workbench can send its forms.")
        known = _same(_cookie(headers.get("cookie", "")), self._access.session)
        return None if known or path in pages.OPEN else _stranger(request)


def _stranger(request: Request) -> Response:
    if request.url.path.startswith("/api/"):
        return api.error(401, "Send the token: Authorization: Bearer TOKEN.")
    return pages.login_page(request, status=401)


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header[:4096]).get("proplace")
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same_origin(request: Request) -> bool:
    """Return True if the headers of a browser name a page of the workbench as the sender."""
    site: str | None = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host, origin = request.headers.get("host"), str(request.headers.get("origin"))
    return origin in (f"http://{host}", f"https://{host}")


def _most(path: str) -> int:
    return MOST_UPLOAD + 65_536 if path in ("/audits", "/api/v1/audits") else MOST_BODY


def _limited(scope: Message, receive: Receive) -> Receive:
    """Count the bytes of a body that comes without its length."""
    came, most = 0, _most(scope["path"])

    async def counted() -> Message:
        nonlocal came
        message = await receive()
        came += len(message.get("body", b""))
        if came > most:
            raise HTTPException(413, f"A request has at most {most:,} bytes.")
        return message

    return counted


# -- errors ----------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    """Return an error as a page to people and as JSON to programs, without the data that was sent."""
    if isinstance(error, RequestValidationError):
        places = {".".join(map(str, e["loc"][1:])): e["msg"] for e in error.errors()}
        return _response(request, 422, "The request is not valid.", places)
    if isinstance(error, HTTPException):
        return _response(request, error.status_code, str(error.detail))
    if isinstance(error, FieldErrors):
        return _response(request, 422, "Some values cannot be used.", error.errors)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 422)
    return _response(request, status, str(error))


_STATUS = ((GoneError, 404), (NotInLedgerError, 404), (NotReadyError, 503), (BusyError, 503),
           (LedgerError, 409))  # fmt: skip


def _response(
    request: Request, status: int, text: str, fields: dict[str, str] | None = None
) -> Response:
    if request.url.path.startswith("/api/"):
        return api.error(status, text, fields)
    return pages.error_page(request, status, text, fields)


# -- the server ------------------------------------------------------------------------------------


def run(bench: Workbench, access: Access, listening: socket.socket) -> str:
    """Serve until Ctrl-C. Return the error if the project could not be opened."""
    config = uvicorn.Config(
        app_of(bench, access),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)

    def start() -> None:
        begin = time.monotonic()
        try:
            bench.start()
            print(f"ready in {time.monotonic() - begin:.1f} s", file=sys.stderr)
        except Exception:  # bench.error holds the message
            server.should_exit = True

    threading.Thread(target=start, name="start", daemon=True).start()
    server.run(sockets=[listening])
    bench.close()
    return bench.error
