"""The cells of the matrix: every source, in Python and on the command line, on real tables."""

from __future__ import annotations

from dataclasses import dataclass

from end_to_end.sources import SOURCES
from end_to_end.tables import TABLES
from end_to_end.walks import WAYS

# It saves nothing but pickles, which are never read. Its ONNX exports are separate sources.
IN_MEMORY = "scikit-learn"


@dataclass(frozen=True)
class Cell:
    """A source on a table, given in one of the ways."""

    source: str
    way: str
    table: str

    def __str__(self):
        return f"{self.source}, {self.way}, {self.table}"

    def walk(self, folder):
        """Run the whole path, and write the files to the folder."""
        source = SOURCES[self.source](TABLES[self.table](), folder)
        return WAYS[self.way](source, folder / str(self).replace(": ", "-"))


def cells(tables):
    """All cells of some tables."""
    return [
        Cell(source, way, table)
        for table in tables
        for source in SOURCES
        for way in WAYS
        if way == "Python" or not source.startswith(IN_MEMORY)
    ]
