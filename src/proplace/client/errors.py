"""What can go wrong between a client and a service; each is also the error the library would raise."""

from __future__ import annotations

from proplace.core.errors import LedgerError, ProplaceError


class ServiceError(ProplaceError):
    """A service did not answer as it should; ``status`` is its HTTP status, None without an answer."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class UnreachableError(ServiceError, ConnectionError):
    """There is no service, it takes too long, or the connection broke."""


class AccessError(ServiceError, PermissionError):
    """The key is not known (401), or its role does not allow this (403)."""


class RequestError(ServiceError, ValueError):
    """What was asked cannot be answered: a value, an option or a name is wrong."""


class RefusedError(ServiceError, LedgerError):
    """The ledger, or the state of things, does not allow it (409)."""


_KINDS: dict[int, type[ServiceError]] = {
    401: AccessError,
    403: AccessError,
    404: RequestError,
    409: RefusedError,
    413: RequestError,
    415: RequestError,
    422: RequestError,
}


def error_of(status: int, reason: str) -> ServiceError:
    """The error that an HTTP status stands for."""
    return _KINDS.get(status, ServiceError)(reason, status)
