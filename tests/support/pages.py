"""Pages and letters, read by code that is independent of the library."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "source"}


class Page(HTMLParser):
    """A page as a reader sees it, with the elements for a browser. All its tags match.

    Attributes
    ----------
    elements
        Tags with their attributes.
    cells
        Texts of all table cells, row by row.
    text
        All that is shown, in one line.
    """

    def __init__(self, page):
        super().__init__()
        self.source = page if isinstance(page, str) else page.read_text(encoding="utf-8")
        self.elements, self.cells, self._open, shown = [], [], [], []
        self._shown = shown
        self.feed(self.source)
        assert not self._open
        self.text = re.sub(r"\s+", " ", " ".join(shown))

    def all(self, tag):
        """Return the attributes of all elements with a tag."""
        return [attrs for name, attrs in self.elements if name == tag]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open:
            return
        self._shown.append(data)
        if {"td", "th"} & {*self._open}:
            self.cells[-1][-1] += data
