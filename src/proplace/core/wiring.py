"""What a lower floor offers and an upper one does.

``Network.load`` reads files and ``Explanation.plot`` draws, but readers and pictures stand above
networks and results. So the lower floor asks for such a function by its name, and the package itself,
which knows every floor, says where each of them lives.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_homes: dict[str, str] = {}


def connect(homes: Mapping[str, str]) -> None:
    """Say in which module of the package each function lives."""
    _homes.update(homes)


def upstairs(name: str) -> Callable[..., Any]:
    """Return a function of an upper floor; its module is imported now."""
    function: Callable[..., Any] = getattr(importlib.import_module(_homes[name]), name)
    return function
