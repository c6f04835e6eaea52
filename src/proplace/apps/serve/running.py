"""Listening: where, for whom, and how it ends."""

from __future__ import annotations

import logging
import socket
import sys
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from proplace.core.errors import OptionError
from proplace.core.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI
    from uvicorn import Server

    from proplace.apps.serve.config import Config
    from proplace.apps.serve.service import Service
    from proplace.apps.serve.store import Store

_LOCAL_KEY = "this machine"


def serve_forever(config: Config, tell: Callable[[str], None]) -> None:
    """Serve until a signal; requests and jobs in flight get a few seconds."""
    require("uvicorn", "serve", "the service")
    require("fastapi", "serve", "the service")
    from proplace.apps.serve.app import app_of  # noqa: PLC0415
    from proplace.apps.serve.service import Service  # noqa: PLC0415
    from proplace.apps.serve.store import Store  # noqa: PLC0415

    if not config.local:
        store = Store(config.state)
        _end_local_key(store)
        known = [key for key in store.all_keys() if key["revoked"] is None]
        store.close()
        if not known:
            raise OptionError(
                f"{', '.join((config.host, *config.hosts))} can be reached by others, and there are "
                "no keys; make one first: "
                f"proplace serve keys add NAME --role admin --state {config.state}"
            )
    _log_to_stderr()
    listening = _listening(config)
    threadpool_limits(1)  # small matrices, and many requests beside each other
    service = Service.open(config)
    secret = _local_key(service) if config.local else None
    address = f"http://{_shown(config.host)}:{listening.getsockname()[1]}"
    for note in service.notes:
        tell(note)
    tell(f"serving {', '.join(service.engines)} on {address}")
    if secret is not None:
        tell(f"log in: {address}/login#{secret}")
    server_of(app_of(service), config, lambda: tell(_left(service))).run(sockets=[listening])


def server_of(app: FastAPI, config: Config, stopped: Callable[[], None] = lambda: None) -> Server:
    """The server of an application, with limits on connections; ``stopped`` is called at its end.

    After a signal, ``run`` does not return: the signal is raised once more when all has ended.
    """
    import uvicorn  # noqa: PLC0415

    from proplace.apps.serve.connections import bounded_protocol  # noqa: PLC0415

    settings = uvicorn.Config(
        app,
        http=bounded_protocol(config.limits.header),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=15,
    )

    class Telling(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            stopped()

    return Telling(settings)


def _left(service: Service) -> str:
    """What a service that has stopped leaves to the next start."""
    jobs = len(service.store.unfinished())
    service.store.close()  # opened once more to count
    return f"stopped; {jobs} {'job goes' if jobs == 1 else 'jobs go'} on at the next start"


def _listening(config: Config) -> socket.socket:
    """The address, taken before anything is read: so the port is known, also where any will do."""
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
        family, kind, protocol, _, place = found[0]
        # With the protocol named, asyncio sets TCP_NODELAY; without, answers wait for 40 ms.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(2048)
        return listening
    except OSError as error:
        raise OptionError(
            f"{config.host}:{config.port} cannot be listened on ({error.strerror}); choose another "
            "--port, or 0 for any that is free"
        ) from None


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _local_key(service: Service) -> str:
    """A key for whoever sits at this machine, made anew at each start."""
    _end_local_key(service.store)
    return service.store.add_key(_LOCAL_KEY, "admin")


def _end_local_key(store: Store) -> None:
    """The key of an earlier start must not outlive it."""
    if any(key["name"] == _LOCAL_KEY and key["revoked"] is None for key in store.all_keys()):
        store.revoke_key(_LOCAL_KEY)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("proplace.serve")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
