"""Sizes beyond which a file is refused, before anything of that size is allocated.

Every reader of a file from outside asks here first. The limits are far above what a model, a table
or a proof of this package needs, and far below what would hurt the machine that reads it.
"""

from __future__ import annotations

MODEL_BYTES = 2**30  #: of a model file, and of what it unpacks to
PARAMETERS = 50_000_000  #: numbers in one model, constants of its graph included
CONFIG_BYTES = 2**24  #: of the description of a model (JSON) inside its file
SCHEMA_BYTES = 2**22  #: of a schema file
SCHEMA_NODES = 200_000  #: values in a schema file, aliases counted as often as they are used
LABELS = 1_000  #: categories of one column of a model
