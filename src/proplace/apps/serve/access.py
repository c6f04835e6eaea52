"""Who may do what, how often, and from where."""

from __future__ import annotations

import hmac
import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from proplace.core.errors import ProplaceError

if TYPE_CHECKING:
    from proplace.apps.serve.store import Key, Role, Session

COOKIE = "proplace_session"
CSRF_HEADER = "x-csrf-token"
CSRF_FIELD = "csrf"

_MINUTE = 60.0
_MOST_CALLERS = 50_000  # that are remembered at once

_ASK = {"models", "predict", "explain", "certify", "check", "jobs"}
_CASES = {"people", "promises", "issue", "redeem", "withdraw"}
_AUDITS = {"promises", "audit", "decide", "ledger", "metrics"}
PERMISSIONS: dict[Role, frozenset[str]] = {
    "reader": frozenset(_ASK),
    "caseworker": frozenset(_ASK | _CASES),
    "auditor": frozenset(_ASK | _AUDITS),
    "admin": frozenset(_ASK | _CASES | _AUDITS | {"erase", "keys", "live"}),
}
"""What each role may do."""


class Refused(ProplaceError):
    """A request that is not answered: why, and the status that says so."""

    def __init__(self, status: int, reason: str, *, after: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.after = status, after

    def __reduce__(self) -> tuple[Any, ...]:
        """Come back whole from another process."""
        return partial(Refused, after=self.after), (self.status, str(self))


@dataclass(frozen=True)
class Caller:
    """Who asks: by a key, or by a session of the page."""

    key: Key
    session: Session | None = None

    @property
    def name(self) -> str:
        """As it is noted in the ledger."""
        return self.key.name

    def may(self, permission: str) -> bool:
        """Whether the role allows it."""
        return permission in PERMISSIONS[self.key.role]

    def check(self, permission: str) -> None:
        """Raise where the role does not allow it."""
        if not self.may(permission):
            raise Refused(403, f"the role {self.key.role} may not do this ({permission})")

    def check_csrf(self, given: str | None) -> None:
        """Raise where a change is asked for by a cookie alone."""
        if self.session is None:
            return
        if not hmac.compare_digest((given or "").encode(), self.session.csrf.encode()):
            raise Refused(403, "this form is not from a page of this session; load the page again")


class RateLimit:
    """So many requests in a minute for each caller, evenly: a bucket that fills as time goes."""

    def __init__(self, per_minute: int) -> None:
        self._size, self._rate = float(per_minute), per_minute / _MINUTE
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def check(self, who: str) -> None:
        """Count a request; raise where there were too many."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            left, last = self._buckets.get(who, (self._size, now))
            left = min(self._size, left + (now - last) * self._rate)
            if left < 1.0:
                after = math.ceil((1.0 - left) / self._rate)
                raise Refused(429, "too many requests; wait a little", after=after)
            self._buckets.pop(who, None)
            self._buckets[who] = (left - 1.0, now)

    def _forget(self, now: float) -> None:
        """Forget whose bucket is full again, and the longest known of too many; they are in order."""
        while self._buckets:
            who, (_, last) = next(iter(self._buckets.items()))
            if now - last < _MINUTE and len(self._buckets) < _MOST_CALLERS:
                return
            del self._buckets[who]


DOCUMENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; "
    "base-uri 'none'; sandbox"
)
"""For pages that stand alone, such as that of an audit: their own style, no script, no form."""

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
