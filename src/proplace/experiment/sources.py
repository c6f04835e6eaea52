"""Digests of source code: a stored result is used again only if the code is unchanged."""

from __future__ import annotations

import hashlib
import inspect
import sys
from pathlib import Path

_SKIPPED = {*sys.stdlib_module_names, "sklearn"}  # the latter for its size: BaseEstimator is a base


def digest(method: object) -> str | None:
    """Digest of the source files of a class and its bases (not of Python and scikit-learn).

    A module of a package counts with all Python files of the top-level package, any other module
    with all Python files of its folder. The files are read now, so they must be those that were
    imported. Return None if the source of a class is not in a file, as in an interactive session.
    """
    if not isinstance(method, type):
        return None
    places: dict[str, list[Path]] = {}
    for base in method.__mro__:
        top = base.__module__.partition(".")[0]
        if top in _SKIPPED:
            continue
        try:
            inspect.getsource(base)
        except (OSError, TypeError):
            return None
        places[top] = _files(top)
    if not all(places.values()):
        return None
    found = hashlib.sha256()
    for _, files in sorted(places.items()):
        for path in files:
            content = path.read_bytes()
            found.update(f"{path.name} {len(content)} ".encode() + content)
    return found.hexdigest()


def _files(top: str) -> list[Path]:
    """Python files of a top-level package, or of the folder of a top-level module."""
    module = sys.modules.get(top)
    folders = getattr(module, "__path__", None)
    if folders is not None:
        return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    file = getattr(module, "__file__", None)
    return [] if file is None else sorted({Path(file), *Path(file).parent.glob("*.py")})
