"""Listening: where, for whom, and how it ends."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from proplace.core.errors import OptionError
from proplace.core.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.apps.serve.config import Config
    from proplace.apps.serve.service import Service

_LOCAL_KEY = "this machine"


def serve_forever(config: Config, tell: Callable[[str], None]) -> None:
    """Serve until a signal; requests and jobs in flight get a few seconds."""
    uvicorn = require("uvicorn", "serve", "the service")
    require("fastapi", "serve", "the service")
    from proplace.apps.serve.app import app_of  # noqa: PLC0415
    from proplace.apps.serve.service import Service  # noqa: PLC0415
    from proplace.apps.serve.store import Store  # noqa: PLC0415

    if not config.local:
        store = Store(config.state)
        known = [key for key in store.all_keys() if key["revoked"] is None]
        store.close()
        if not known:
            raise OptionError(
                f"{config.host} can be reached by others, and there are no keys; make one first: "
                f"proplace serve keys add NAME --role admin --state {config.state}"
            )
    _log_to_stderr()
    service = Service.open(config)
    secret = _local_key(service) if config.local else None
    address = f"http://{config.host}:{config.port}"
    tell(f"serving {', '.join(service.engines)} on {address}")
    if secret is not None:
        tell(f"log in: {address}/login#{secret}")
    uvicorn.run(
        app_of(service),
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=15,
    )


def _local_key(service: Service) -> str:
    """A key for whoever sits at this machine, made anew at each start."""
    for key in service.store.all_keys():
        if key["name"] == _LOCAL_KEY:
            service.store.revoke_key(_LOCAL_KEY)
    return service.store.add_key(_LOCAL_KEY, "admin")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("proplace.serve")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
