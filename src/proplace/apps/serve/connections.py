"""Connections that must not be held for ever: the header of a request has so many seconds to come.

uvicorn closes a connection that is idle after an answer, and waits without end for the first request
and for the rest of a header. Here a clock runs whenever no request is being answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    import asyncio


def bounded_protocol(seconds: float) -> type[asyncio.Protocol]:
    """The protocol of uvicorn, with a limit for headers."""

    class Bounded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _clock: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Have the clock run while no request is being answered, and never else."""
            cycle: Any = self.cycle
            if cycle is not None and not cycle.response_complete:
                self._stop()
            elif self._clock is None:
                self._clock = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

    return Bounded
