"""The calls of the library, answered by a service (``proplace serve``) that runs elsewhere.

``Client`` asks; ``answers`` and ``records`` are what comes back; ``http`` sends and tries again;
``people`` turns tables into what is sent; ``errors`` says what went wrong.

It may import ``core`` and ``certification``.
"""

from proplace.client.answers import Answer, Answers
from proplace.client.asking import Client
from proplace.client.errors import (
    AccessError,
    RefusedError,
    RequestError,
    ServiceError,
    UnreachableError,
)
from proplace.client.records import (
    AuditResult,
    CheckResult,
    IssuedPromise,
    Job,
    Prediction,
    PromiseRecord,
    RedeemResult,
    RenewalResult,
    Verdict,
    VerifyResult,
)

__all__ = [
    "AccessError",
    "Answer",
    "Answers",
    "AuditResult",
    "CheckResult",
    "Client",
    "IssuedPromise",
    "Job",
    "Prediction",
    "PromiseRecord",
    "RedeemResult",
    "RefusedError",
    "RenewalResult",
    "RequestError",
    "ServiceError",
    "UnreachableError",
    "Verdict",
    "VerifyResult",
]
