"""Public names that a package imports on first use, so that commands start quickly."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    The stub ``__init__.pyi`` is the only list of its names, also for type checkers and editors.
    ``__all__`` leaves out the sub-packages of the stub (``from . import baselines``).

    Parameters
    ----------
    package
        ``__name__`` of the package.
    file
        ``__file__`` of the package.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home is None:
            return importlib.import_module(f"{package}.{name}")
        value: object = getattr(importlib.import_module(home), name)
        setattr(importlib.import_module(package), name, value)
        return value

    return load, lambda: sorted(homes), [name for name, home in homes.items() if home]
