"""`proplace serve`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli.console import say, tell

if TYPE_CHECKING:
    from proplace.project import OpenedProject, Project

File = Annotated[
    Path | None,
    typer.Argument(
        help="Project file. Default: proplace.yaml of this folder, else the demonstration.",
        show_default=False,
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Check the project, and do not serve it.")]
Create = Annotated[
    bool, typer.Option("--create-ledger", help="Make the ledger if there is none yet.")
]
Host = Annotated[
    str, typer.Option(help="Address to listen on. Any other than this machine's needs --token.")
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PROPLACE_TOKEN", help="Secret of programs and of the login. Default: a fresh one."
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="Name by which a proxy calls the workbench; repeatable."),
]
Root = Annotated[str, typer.Option(help="Sub-path behind a proxy, such as /workbench.")]
DEMO_LEDGER = Path("proplace-demo/workbench.db")
_SHORTEST = 16  # characters of a token


def serve(
    project: File = None,
    check: Check = False,
    create_ledger: Create = False,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    token: Token = None,
    allowed_host: Names = None,
    root_path: Root = "",
) -> None:
    """Open a local page: see a counterfactual, move its values, promise it, audit a model.

    The first line is a link. It is good once and logs the browser in.

    [bold]Examples[/bold]

    proplace serve

    proplace serve proplace.yaml --check

    proplace serve proplace.yaml --create-ledger --port 9000
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)
    from proplace.project import DEFAULT_NAME, Project  # noqa: PLC0415

    path = Path(DEFAULT_NAME) if project is None and Path(DEFAULT_NAME).is_file() else project
    found = None if path is None else Project.read(path)
    place = str(DEMO_LEDGER) if found is None else found.ledger
    local = host in ("127.0.0.1", "localhost", "::1")
    if not local and token is None:
        raise OptionError(
            f"--host {host} lets other machines in: give a secret as PROPLACE_TOKEN", name="--token"
        )
    if token is not None and (len(token) < _SHORTEST or not token.isascii()):
        raise OptionError(f"--token has at least {_SHORTEST} plain characters", name="--token")
    if root_path and not (root_path.startswith("/") and root_path.isprintable()):
        raise OptionError("--root-path begins with a slash: /workbench", name="--root-path")
    if check:
        _check(found, place, create=create_ledger)
        return
    root_path = root_path.rstrip("/")
    _serve(found, place, (host, port), token, allowed_host or [], root_path, create=create_ledger)


def _serve(
    found: Project | None,
    place: str | None,
    address: tuple[str, int],
    token: str | None,
    names: list[str],
    root: str,
    *,
    create: bool,
) -> None:
    """Listen and print the link first: reading the model takes seconds."""
    import secrets  # noqa: PLC0415

    from proplace.core.errors import OptionError  # noqa: PLC0415

    try:
        listening = listen(*address)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {address[0]} port {address[1]} ({error.strerror}); give another --port",
            name="--port",
        ) from None
    code = secrets.token_urlsafe(24)
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    say(f"proplace workbench: http://{host}:{listening.getsockname()[1]}{root}/login?code={code}")
    own = token is None
    token = token or secrets.token_urlsafe(24)
    if own:
        tell(f"token for programs: {token}")
    from proplace.serve.app import LOCAL, Access, run  # noqa: PLC0415
    from proplace.serve.workbench import Workbench  # noqa: PLC0415

    hosts = frozenset({*LOCAL, address[0].lower(), *(name.lower() for name in names)})
    access = Access(token, hosts, root, code)
    problem = run(Workbench(lambda: _opened(found, place, create=create)), access, listening)
    if problem:
        raise OptionError(problem)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait in it until the server runs."""
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


def _opened(found: Project | None, place: str | None, *, create: bool) -> OpenedProject:
    """Open the project, or make the demonstration; a ledger is made if that was asked for."""
    from proplace.ledger.ledger import Ledger  # noqa: PLC0415

    if found is None:
        from proplace.demo.project import demo_project  # noqa: PLC0415

        DEMO_LEDGER.parent.mkdir(exist_ok=True)
        opened = demo_project(DEMO_LEDGER)
    else:
        opened = found.open()
    if place is not None and (create or found is None):
        Ledger(place).close()
    return opened


def _check(found: Project | None, place: str | None, *, create: bool) -> None:
    """Open everything as the workbench would, and say what it is."""
    from proplace.ledger.ledger import Ledger  # noqa: PLC0415

    opened = _opened(found, place, create=create)
    if place is not None:
        Ledger(place, create=False).close()
    people = 0 if opened.people is None else len(opened.people)
    say(
        f"ok: {opened.model!r}, {len(opened.train):,} training rows, {people:,} people, "
        f"{'no ledger' if place is None else f'ledger {place}'}"
    )
