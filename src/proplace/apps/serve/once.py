"""Requests with a key of their own (header ``Idempotency-Key``) are done once, however often they come.

The first outcome is kept with a digest of what was asked, and given to whoever asks the same again; two
that come at the same time share one outcome. What may be done later though it was not done now (too
busy, a search that died) is no outcome. A request that was left without one, as by a power cut, may have
been done: its job has a number that was chosen before, and its promise is in the ledger, so that asked
again it finds what was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from proplace.apps.serve.access import Refused
from proplace.apps.serve.refusals import refusal_of
from proplace.core.errors import ProplaceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request

    from proplace.apps.serve.store import KeptRequest, Store

HEADER = "Idempotency-Key"
_LONGEST = 255  # characters of a key
_DONE = (201, 202)  # of requests that have made something
_FINAL = (404, 409, 415, 422)  # of refusals that are outcomes


class Outcome(NamedTuple):
    """What came of a request."""

    status: int
    content: Any

    def response(self) -> Response:
        """The same answer again."""
        headers = {}
        if self.status == 202:
            headers["location"] = f"/api/v1/jobs/{self.content['job']}"
        return JSONResponse(self.content, status_code=self.status, headers=headers)


class Once:
    """Requests that are done once."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._running: dict[tuple[str, str], tuple[str, Future[Response]]] = {}

    async def answer(
        self,
        request: Request,
        by: str,
        handler: Callable[[Request], Awaitable[Response]],
    ) -> Response:
        """Handle a request of somebody, or give the outcome that it has had."""
        key = (by, request.headers[HEADER])
        if not 0 < len(key[1]) <= _LONGEST or not key[1].isprintable():
            raise Refused(422, f"{HEADER} must have 1 to {_LONGEST} printable characters")
        digest = await _digest(request)
        found = await asyncio.to_thread(self._begun, key, digest)
        if isinstance(found, Outcome):
            return found.response()
        if isinstance(found, Future):
            return await asyncio.shield(asyncio.wrap_future(found))
        request.state.job = found.job
        request.state.first = None if found.new else found.created
        try:
            answer = await handler(request)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(self._failed, key, error))
            raise
        await asyncio.shield(asyncio.to_thread(self._ended, key, answer))
        return answer

    def _begun(self, key: tuple[str, str], digest: str) -> Outcome | Future[Response] | KeptRequest:
        """What is known of a request; where that is nothing, it is noted, and to be done."""
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                _check(running[0], digest)
                return running[1]
            kept = self._store.begin_request(*key, digest)
            _check(kept.digest, digest)
            if kept.status is not None:
                return Outcome(kept.status, json.loads(kept.content))
            if not kept.new and self._store.job(kept.job) is not None:
                return Outcome(202, {"job": kept.job})
            self._running[key] = (digest, Future())
            return kept

    def _ended(self, key: tuple[str, str], answer: Response) -> None:
        content = bytes(answer.body).decode()
        with self._lock:
            if answer.status_code in _DONE:
                self._store.end_request(*key, answer.status_code, content)
            else:  # nothing was made
                self._store.drop_request(*key)
            self._running.pop(key)[1].set_result(answer)

    def _failed(self, key: tuple[str, str], error: BaseException) -> None:
        told: Exception = Refused(503, "the request was given up; ask again", after=1)
        with self._lock, contextlib.suppress(Exception):
            if isinstance(error, RequestValidationError | HTTPException):
                self._store.drop_request(*key)
                told = error
            elif isinstance(error, ProplaceError):
                told = refusal = refusal_of(error)
                if refusal.status in _FINAL:
                    content = json.dumps({"error": str(refusal)})
                    self._store.end_request(*key, refusal.status, content)
        with self._lock:
            self._running.pop(key)[1].set_exception(told)


def _check(known: str, digest: str) -> None:
    if known != digest:
        raise Refused(
            422, f"this {HEADER} was used for another request; use a new one for each request"
        )


async def _digest(request: Request) -> str:
    """SHA-256 of what is asked; of a form its fields, since what lies between them is chance."""
    sha = hashlib.sha256(f"{request.method} {request.url.path}\n".encode())
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        sha.update(await request.body())
        return sha.hexdigest()
    for name, value in (await request.form(max_files=1, max_fields=10)).multi_items():
        given = value if isinstance(value, str) else value.filename or ""
        content = b""
        if isinstance(value, UploadFile):
            content = await value.read()
            await value.seek(0)
        sha.update(json.dumps([name, given, len(content)]).encode())
        sha.update(content)
    return sha.hexdigest()
