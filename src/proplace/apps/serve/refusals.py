"""What is told of an error: its status, and when it is worth asking again."""

from __future__ import annotations

from proplace.apps.serve.access import Refused
from proplace.apps.serve.workers import Busy, Cancelled, Died, Failed, Late
from proplace.core.errors import LedgerError, NotInLedger, ProplaceError, TamperedError

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Busy, 429),
    (Late, 504),
    (Died, 503),
    (Cancelled, 503),
    (Failed, 500),
    (TamperedError, 500),
    (NotInLedger, 404),
    (LedgerError, 409),
    (ProplaceError, 422),
)
_AFTER = {429: 2, 503: 1}  # seconds until it is worth asking again


def refusal_of(error: ProplaceError) -> Refused:
    """The refusal that an error is told as."""
    if isinstance(error, Refused):
        return error
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return Refused(status, str(error), after=_AFTER.get(status))
