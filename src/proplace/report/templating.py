"""Templates of the pages: what they show is escaped, and nothing in it acts on a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proplace.core.errors import require
from proplace.core.text import visible

if TYPE_CHECKING:
    from collections.abc import Hashable


def templates(what: str) -> Any:
    """Return the templates; ``what`` names their user in the error about a missing package."""
    jinja2 = require("jinja2", "report", what)
    return jinja2.Environment(
        loader=jinja2.PackageLoader("proplace.report"),
        autoescape=True,  # names and categories come from the user's table
        finalize=_literal,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def _literal(value: object) -> object:
    """Spell out what would not be seen on the page; called for everything that it shows."""
    return visible(value) if type(value) is str else value


def generator() -> str:
    """What made a page."""
    from proplace import __version__  # noqa: PLC0415  (the package imports this module)

    return f"proplace {__version__}"


def label_of(index: Hashable) -> str:
    """Name a row; a row of several levels by all of them."""
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)
