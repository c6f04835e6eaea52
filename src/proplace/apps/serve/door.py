"""Looking who asks: in threads of its own, so that nobody waits at the door for slow requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

if TYPE_CHECKING:
    from collections.abc import Callable

_A = TypeVar("_A")
_T = TypeVar("_T")
_THREADS = 8
_limiter: RunVar[CapacityLimiter] = RunVar("proplace_door")  # one for each event loop


async def at_the_door(look: Callable[[_A], _T], given: _A) -> _T:
    """Call a function that looks who asks."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await to_thread.run_sync(look, given, limiter=limiter)
