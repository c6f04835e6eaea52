"""Values on their way through the graph of a torch module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core.errors import ModelNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.loaders._flow import Flowing


class Spread(ModelNotSupportedError):
    """One column stands against several numbers: perhaps the rows have more columns."""


BATCH = 7  # rows in runs on places: no usual width, so that rows and columns are not confused


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor in front of the first layer: columns of the table in the shape of one row."""

    entries: npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Codes:
    """Columns cut to whole numbers: numbers of categories."""

    entries: npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Neurons:
    """What the chain holds after ``step`` steps: places of its outputs in the shape of one row."""

    step: int
    entries: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trained:
    """A parameter that the module uses by itself, outside of its layers."""

    name: str
    tensor: Any


Followed = (Rows, Codes, Neurons, Trained)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a function or method, with the values of its arguments.

    ``held`` are the arguments that depend on the rows or on trained numbers.
    """

    title: str
    where: str
    node: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    held: list[Any]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Value of an argument given by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def on(self, tensors: list[Any]) -> Any:
        """Run the call with other tensors in the place of those that are held."""
        rest = iter(tensors)
        args, kwargs = _replaced([self.args, self.kwargs], lambda: next(rest))
        return run(self.node, args, kwargs)


def run(node: Any, args: Any, kwargs: Any) -> Any:
    """Run the function or method of a node."""
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def entries(columns: Sequence[Flowing]) -> npt.NDArray[np.object_]:
    """Return columns as an array of objects."""
    found = np.empty(len(columns), dtype=object)
    found[:] = columns
    return found


def flat(value: Any) -> list[Any]:
    """Return everything inside nested arguments."""
    if isinstance(value, (tuple, list)):
        return [item for part in value for item in flat(part)]
    if isinstance(value, dict):
        return [item for part in value.values() for item in flat(part)]
    return [value]


def _replaced(value: Any, new: Callable[[], Any]) -> Any:
    """Return nested arguments with every held tensor replaced."""
    if isinstance(value, Followed):
        return new()
    if not any(isinstance(item, Followed) for item in flat(value)):
        return value
    if isinstance(value, dict):
        return {key: _replaced(part, new) for key, part in value.items()}
    return [_replaced(part, new) for part in value]
