"""`proplace verify-page`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proplace.apps.cli import common
from proplace.apps.cli.console import say


def verify_page(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("verify.html"),
) -> None:
    """Write a page that checks certificates in a browser, without this package and without a network.

    It is one file, a second checker in JavaScript that computes as exactly as the first one. Whoever
    gets a proof opens it and chooses the certificate (.json) and the network (.npz) that it names.
    Nothing is overwritten.

    [bold]Example[/bold]

    proplace verify-page --out verify.html
    """
    from proplace.apps.verify import write_page  # noqa: PLC0415  (quick help)
    from proplace.core.errors import OutputError  # noqa: PLC0415

    if out.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{out}: the page is an HTML file; give a name that ends in .html")
    with common.refused_if_there(out):
        write_page(out)
    say(f"{out}: open it in a browser, and choose a certificate with the file of its network")
