"""The clock of a ledger: always the real one.

``SOURCE_DATE_EPOCH`` fixes the dates of pages and results, so that they can be made again bit by bit.
What is written down when, and which promise is over, is no such thing.
"""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return this moment in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
