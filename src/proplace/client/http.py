"""Sending requests, and trying again where that does no harm.

A service that is busy (429) or not there for a moment (503, no connection) is asked again until
``patience`` is over. Where a connection breaks after a request was sent, only what may be done twice is
sent again, and what the service does ``once``: such a request has a key of its own, by which the service
knows it again. Of anything else it is not known whether it was done, and the error says so.
"""

from __future__ import annotations

import email.utils
import random
import secrets
import time
from typing import TYPE_CHECKING, Any, TypeVar

from proplace.client.errors import RequestError, ServiceError, UnreachableError, error_of
from proplace.core.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

_LOCAL = ("127.0.0.1", "::1", "localhost")
_SHORTEST, _LONGEST = 0.1, 5.0  # seconds between two tries, where the service does not say
_NO_ADDRESS = "this is no address of a service, such as http://127.0.0.1:8765"
_SHOWN = 300  # characters of an answer that is no JSON


_Read = TypeVar("_Read")


def _as_it_is(found: Any) -> Any:
    return found


class Connection:
    """A service under its address.

    Parameters
    ----------
    url, key
        Where it is, and the key.
    patience
        Seconds for which a request is tried again.
    timeout
        Seconds that one answer may take.
    insecure
        Whether the key may be sent to another machine without TLS.
    """

    def __init__(
        self, url: str, key: str, *, patience: float, timeout: float, insecure: bool
    ) -> None:
        self._httpx = require("httpx", "client", "the client")
        try:
            place = self._httpx.URL(url)
        except (self._httpx.InvalidURL, TypeError):
            raise RequestError(_NO_ADDRESS) from None
        if place.scheme not in ("http", "https") or not place.host:
            raise RequestError(_NO_ADDRESS)
        if place.userinfo:
            raise RequestError("an address holds no name and no password; the key is given as key=")
        local = place.host in _LOCAL
        if place.scheme == "http" and not local and not insecure:
            raise RequestError(
                f"{url} would carry the key in the open; use https://, or insecure=True in a network "
                "that you trust"
            )
        if not key or not key.isascii() or any(c.isspace() for c in key):
            raise RequestError("a key is one word, as proplace serve keys add has printed it")
        self._url, self._patience, self._timeout = str(place), patience, timeout
        self._client: httpx.Client = self._httpx.Client(
            base_url=f"{str(place).rstrip('/')}/api/v1/",
            headers={"authorization": f"Bearer {key}"},
            timeout=self._httpx.Timeout(timeout, connect=10.0),
            trust_env=not local,  # a proxy knows nothing about this machine
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        read: Callable[[Any], _Read] = _as_it_is,
        *,
        twice: bool = True,
        once: bool = False,
        **content: Any,
    ) -> _Read:
        """Send a request and return what is ``read`` of the JSON of the answer, None if it is empty."""
        if once:
            content["headers"] = {"idempotency-key": secrets.token_urlsafe(24)}
        answer = self.send(method, path, twice=twice, **content)
        try:
            found = answer.json() if answer.content else None
        except (ValueError, RecursionError):
            raise ServiceError(
                f"{self._url} did not answer in JSON; is it the address of proplace serve?",
                answer.status_code,
            ) from None
        try:
            return read(found)
        except ServiceError:
            raise
        except Exception as error:
            raise ServiceError(
                f"the answer of {self._url} is not understood ({type(error).__name__}); is it "
                "proplace serve, in the version of this client?",
                answer.status_code,
            ) from error

    def send(self, method: str, path: str, *, twice: bool = True, **content: Any) -> httpx.Response:
        """Send a request until it is answered; ``twice`` says whether it may be done again."""
        until, tried = time.monotonic() + self._patience, 0
        while True:
            error: ServiceError
            after = None
            try:
                answer = self._client.request(method, path, **content)
            except self._httpx.ConnectError as cause:
                error = UnreachableError(f"no service answers at {self._url} ({cause})")
            except self._httpx.TransportError as cause:
                error = self._broken(cause, twice)
            else:
                if answer.is_success:
                    return answer
                error = error_of(answer.status_code, _reason(answer))
                if answer.status_code != 429 and not (answer.status_code == 503 and twice):
                    raise error
                after = _seconds(answer.headers.get("retry-after"))
            tried += 1
            wait = min(_LONGEST, _SHORTEST * 2**tried) if after is None else max(after, _SHORTEST)
            wait *= random.uniform(1.0, 1.3)  # noqa: S311  (clients must not come back together)
            if time.monotonic() + wait > until:
                raise error
            time.sleep(wait)

    def _broken(self, cause: Exception, twice: bool) -> UnreachableError:
        """The error of a connection that broke; raised at once where nothing may be sent again."""
        if isinstance(cause, self._httpx.TimeoutException):
            late = f"{self._url} did not answer within {self._timeout:g} s"
            if isinstance(cause, (self._httpx.ConnectTimeout, self._httpx.PoolTimeout)):
                return UnreachableError(late)
            raise UnreachableError(late) from None
        if twice:
            return UnreachableError(f"the connection to {self._url} broke ({cause})")
        raise UnreachableError(
            f"the connection to {self._url} broke ({cause}), and it is not known whether this was "
            "done; look at the ledger before you ask again"
        ) from None


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        said = " ".join(answer.text.split())[:_SHOWN]
        return f"the service answered with status {answer.status_code}: {said or 'nothing'}"


def _seconds(given: str | None) -> float | None:
    """The header Retry-After: seconds, or a date."""
    if given is None:
        return None
    if given.isascii() and given.strip().isdigit():
        return float(given)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
