"""Results as small pieces of HTML, as notebooks show them.

What is shown comes from users' tables and files: all of it is escaped here, and in no other place.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from proplace.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LEFT = "text-align:left;vertical-align:top;padding-right:1em"


def escaped(text: object) -> str:
    """Return text that is read as it is, wherever it stands in a page.

    Examples
    --------
    >>> escaped("<b>5 & 6</b>")
    '&lt;b&gt;5 &amp; 6&lt;/b&gt;'
    """
    return html.escape(visible(str(text)))


def paragraph(text: object) -> str:
    """Write one paragraph."""
    return f"<p>{escaped(text)}</p>"


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Write a table; the first cell of a row is its name."""
    titles = "".join(f'<th scope="col" style="{_LEFT}">{escaped(cell)}</th>' for cell in head)
    lines = []
    for name, *cells in rows:
        rest = "".join(f'<td style="{_LEFT}">{escaped(cell)}</td>' for cell in cells)
        lines.append(f'<tr><th scope="row" style="{_LEFT}">{escaped(name)}</th>{rest}</tr>')
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    return f"<table>{top}<tbody>{''.join(lines)}</tbody></table>"


def card(title: object, *parts: str) -> str:
    """Put parts under a title; the parts are HTML already."""
    return f"<div><strong>{escaped(title)}</strong>{''.join(parts)}</div>"
