"""A page that checks certificates in a browser, without this package: a second, independent checker.

The page is one file. Its parts lie beside this module: the checker in JavaScript, which runs in a
worker, the page around it, and its style. A policy in its head forbids every connection, and every
script and style other than its own, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "verify.html"
"""Name of the page beside certificates."""

_CHECKER = (
    "numbers",
    "json",
    "sha256",
    "npz",
    "claim",
    "fixed",
    "statement",
    "check",
    "words",
    "demand",
    "worker",
)


def page() -> str:
    """Return the page."""
    checker = "\n".join(_part(f"{name}.js") for name in _CHECKER)
    script, style = _part("page.js"), _part("page.css")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "worker-src blob:",  # the checker itself, from this page
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    text = _part("page.html")
    for name, part in {
        "policy": policy,
        "style": style,
        "checker": checker,
        "script": script,
    }.items():
        text = text.replace(f"%{name}%", part, 1)
    return text


def write_page(path: Path) -> None:
    """Write the page to a file, in place of an earlier one."""
    path.write_text(page(), encoding="utf-8", newline="\n")


def _part(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source of one script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
