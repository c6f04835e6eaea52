"""The application: routes, limits, headers, logs and numbers around the service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from proplace import __version__
from proplace.apps.serve import api, pages
from proplace.apps.serve.access import SECURITY_HEADERS, Refused
from proplace.apps.serve.bulk import told
from proplace.apps.serve.metrics import Metrics
from proplace.apps.serve.once import Once
from proplace.apps.serve.refusals import refusal_of
from proplace.apps.serve.store import InUse
from proplace.core.errors import ProplaceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

    from proplace.apps.serve.service import Service

    Scope = MutableMapping[str, Any]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

log = logging.getLogger("proplace.serve")

_A_SECOND = 65_536  # bytes of a body for which it has one more
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::[0-9]{0,5})?")  # a name and, behind it, a port


def app_of(service: Service) -> FastAPI:
    """Make the application of a service; closing it closes the service."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="proplace",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.service, app.state.metrics = service, Metrics(service)
    app.state.once = Once(service.store)
    app.include_router(api.router)
    app.include_router(api.open_router)
    app.include_router(pages.router)
    app.add_exception_handler(ProplaceError, _refused)
    app.add_exception_handler(InUse, _in_use)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Guard, service=service, metrics=app.state.metrics)
    return app


class Guard:
    """Around every request: allowed hosts, size of bodies, headers, one line of log."""

    def __init__(self, app: Any, service: Service, metrics: Metrics) -> None:
        self._app, self._service, self._metrics = app, service, metrics
        names = {"127.0.0.1", "localhost", "[::1]", service.config.host, *service.config.hosts}
        self._hosts = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, request = time.perf_counter(), secrets.token_hex(8)
        status = 0

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                more = {**SECURITY_HEADERS, "x-request-id": request}
                if status in (408, 413):  # the rest of the body is not waited for
                    more["connection"] = "close"
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in more.items() if n.encode() not in own),
                ]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, self._limited(scope, receive), sending)
            else:
                await _answer(Request(scope), refusal)(scope, receive, sending)
        except Exception as error:
            log.error(json.dumps({"time": time.time(), "request": request, **_kind(error)}))
            if not status:
                refusal = Refused(
                    500, f"the service failed; its log says more of request {request}"
                )
                await _answer(Request(scope), refusal)(scope, receive, sending)
        finally:
            self._note(scope, request, status, time.perf_counter() - start)

    def _note(self, scope: Scope, request: str, status: int, seconds: float) -> None:
        """One line of log and a few numbers: nothing of what was sent or answered."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.seen(method, route, status, seconds)
        caller = scope.get("state", {}).get("caller")
        facts = {
            "time": time.time(), "request": request, "method": method, "route": route,
            "status": status, "ms": round(1e3 * seconds, 1),
            "by": None if caller is None else caller.key.id,
        }  # fmt: skip
        log.info(json.dumps(facts))

    def _refusal(self, scope: Scope) -> Refused | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        named = _HOST.fullmatch(host)
        if named is None or named[1].lower() not in self._hosts:
            return Refused(421, "the service is not called by this name; add it to hosts")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 15 or int(length) > self._most(scope):
            return Refused(413, f"a request may have {self._most(scope):,} bytes")
        return None

    def _most(self, scope: Scope) -> int:
        limits = self._service.config.limits
        uploads = scope["path"].endswith("/audits") or scope["path"].startswith("/models")
        return limits.model_file + 65_536 if uploads else limits.body

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Count what is read, where no length was given, and how long it takes to come.

        A body has so many seconds, and one more for each part that has come: who sends slower than that
        is not waited for.
        """
        most, start, came, whole = self._most(scope), time.monotonic(), 0, False

        async def counted() -> MutableMapping[str, Any]:
            nonlocal came, whole
            if whole:  # what comes now is that the other side has gone
                return await receive()
            until = start + self._service.config.limits.sending + came / _A_SECOND
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request came too slowly") from None
            came += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if came > most:
                raise HTTPException(413, "the request is too large")
            return message

        return counted


def _answer(request: Request, error: Refused) -> Response:
    """Say why a request is not answered: as a page to people, as JSON to programs."""
    if not request.url.path.startswith("/api/"):
        return pages.error_page(request, error.status, str(error), error.after)
    headers = {} if error.after is None else {"retry-after": str(error.after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProplaceError)  # noqa: S101  (it was registered for these)
    return _answer(request, refusal_of(error))


async def _in_use(request: Request, _: Exception) -> Response:
    return _answer(request, Refused(503, "the state of the service is in use; ask again", after=5))


async def _invalid(request: Request, error: Exception) -> Response:
    """Say which field is wrong, without repeating what was sent: it may be personal."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  (it was registered for these)
    return _answer(request, told(error.errors()))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    return _answer(request, Refused(error.status_code, str(error.detail)))


def _kind(error: Exception) -> dict[str, Any]:
    """An error of ours for the log: its kind and place; its text may be personal."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    at = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "at": at}
