"""Parameters in the manner of scikit-learn: stored as given, read and set by name, shown in the repr."""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np

from proplace.errors import OptionError
from proplace.text import short

_PLAIN = (bool, int, float, str, type(None))


class Parameters:
    """What scikit-learn's tools ask of an estimator, without scikit-learn.

    The parameters are those of the constructor, each kept under its own name as it was given and
    checked in ``fit``.
    """

    @classmethod
    def _signature(cls) -> dict[str, inspect.Parameter]:
        """The parameters of the constructor by name."""
        found = dict(inspect.signature(cls.__init__).parameters)
        found.pop("self")
        return found

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; ``deep`` changes nothing, since a source is not taken apart."""
        return {name: getattr(self, name) for name in self._signature()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; call ``fit`` again after that."""
        for name in params:
            if name not in self._signature():
                known = ", ".join(self._signature())
                raise OptionError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {known}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted, about the very same model: a trained model is data here."""
        return type(self)(**self.get_params())

    def __repr__(self) -> str:
        parts = []
        for name, parameter in self._signature().items():
            value = getattr(self, name)
            if not _same(value, parameter.default):
                plain = isinstance(value, _PLAIN)
                parts.append(f"{name}={short(value) if plain else f'<{type(value).__name__}>'}")
        return f"{type(self).__name__}({', '.join(parts)})"


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of the parameters that have another value now."""
    return [name for name, value in now.items() if not _same(before[name], value)]


def _same(a: object, b: object) -> bool:
    """Whether two values are one and the same, or plain and equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return isinstance(a, (*_PLAIN, tuple, list)) and bool(a == b)
