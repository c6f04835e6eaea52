"""Sizes beyond which a file is rejected.

The limits are far above the needs of a model, a table or a proof of this package.
"""

from __future__ import annotations

MODEL_BYTES = 2**28  #: bytes of a model file, and of its content after unpacking
GRAPH_NODES = 20_000  #: nodes of an ONNX graph, with functions counted once per call
CLASSES = 1_000  #: classes of a model in an ONNX graph
SCHEMA_BYTES = 2**22  #: bytes of a schema file
LABELS = 1_000  #: categories of one column of a model
TABLE_COLUMNS = 100_000  #: columns of a table file
TABLE_CELL = 100_000  #: characters of one cell: an open quote may run to the end of the file
TABLE_ROW = 2**22  #: characters of one row of a CSV file
CHUNK_CELLS = 2_000_000  #: cells of the part of a table in memory
CHUNK_CHARACTERS = 2**25  #: characters of the part of a CSV file in memory
SPREADSHEET_CELL = 32_000  #: characters of a sentence in a table: spreadsheets cut longer cells
MANIFEST_BYTES = 2**26  #: bytes of the manifest of a folder of results


def readable(size: int) -> str:
    """Format a number of bytes.

    >>> readable(2**28), readable(1500)
    ('256 MiB', '1500 bytes')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
