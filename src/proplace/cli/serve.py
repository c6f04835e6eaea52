"""`proplace serve`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli.console import echo, tell

if TYPE_CHECKING:
    from proplace.project import OpenedProject, Project

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Project file. Default: proplace.yaml of this folder, else the demonstration.",
        show_default=False,
    ),
]
Create = Annotated[
    bool, typer.Option("--create-ledger", help="Make the ledger if there is none yet.")
]
Host = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Address to listen on. Other machines need the secret PROPLACE_TOKEN.",
    ),
]
Port = Annotated[
    int, typer.Option(metavar="N", help="Port to listen on; 0: any port that is free.")
]
DEMO_LEDGER = Path("proplace-demo/workbench.db")
_SHORTEST = 16  # characters of a token


def serve(
    config: Config = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    create_ledger: Create = False,
) -> None:
    """Open a local page: see a counterfactual, move its values, promise it, audit a model.

    The first line is a link. It is good once and logs the browser in.

    [bold]Examples[/bold]

    proplace serve

    proplace serve --config loans/proplace.yaml --create-ledger --port 9000
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)
    from proplace.project import Project  # noqa: PLC0415

    project = Project.find(config)
    token = os.environ.get("PROPLACE_TOKEN") or None
    if host not in ("127.0.0.1", "localhost", "::1") and token is None:
        raise OptionError(
            f"--host {host} lets other machines in: set a secret as PROPLACE_TOKEN", name="--host"
        )
    if token is not None and (len(token) < _SHORTEST or not token.isascii()):
        raise OptionError(
            f"PROPLACE_TOKEN must have at least {_SHORTEST} plain characters", name="PROPLACE_TOKEN"
        )
    _serve(project, (host, port), token, create=create_ledger)


def _serve(project: Project, address: tuple[str, int], token: str | None, *, create: bool) -> None:
    """Listen and print the link first: reading the model takes seconds."""
    import secrets  # noqa: PLC0415

    from proplace.core.errors import OptionError  # noqa: PLC0415

    try:
        listening = listen(*address)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {address[0]} port {address[1]} ({error.strerror}). Give another --port",
            name="--port",
        ) from None
    code = secrets.token_urlsafe(24)
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    echo(
        f"proplace workbench: http://{host}:{listening.getsockname()[1]}{project.path}/login?code={code}"
    )
    own = token is None
    token = token or secrets.token_urlsafe(24)
    if own:
        tell(f"token for programs: {token}")
    from proplace.serve.app import LOCAL, Access, run  # noqa: PLC0415
    from proplace.serve.workbench import Workbench  # noqa: PLC0415

    hosts = frozenset({*LOCAL, address[0].lower(), *(name.lower() for name in project.hosts)})
    access = Access(token, hosts, project.path, code)
    problem = run(Workbench(lambda: _opened(project, create=create)), access, listening)
    if problem:
        raise OptionError(problem)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Connections wait in it until the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio turns off the delay of small packets.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


def _opened(project: Project, *, create: bool) -> OpenedProject:
    """Open the project, or make the demonstration. Create a ledger only on request."""
    from proplace.ledger.ledger import Ledger  # noqa: PLC0415

    if project.place is None:
        from proplace.demo.project import demo_project  # noqa: PLC0415

        DEMO_LEDGER.parent.mkdir(exist_ok=True)
        Ledger(DEMO_LEDGER).close()
        return demo_project(DEMO_LEDGER)
    opened = project.open()
    if opened.ledger is not None and create:
        Ledger(opened.ledger).close()
    return opened
