"""Import of frameworks that may not be installed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from proplace.core.errors import MissingExtra

if TYPE_CHECKING:
    from types import ModuleType


def require(package: str, extra: str, purpose: str) -> ModuleType:
    """Import ``package``, or say which extra installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra.of(package, extra, purpose) from error
