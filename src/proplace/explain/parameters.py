"""Parameters in the manner of scikit-learn: kept as given, read and set by name."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from proplace.core import errors


class Parameters(BaseEstimator):  # type: ignore[misc]
    """An estimator of scikit-learn whose model is data: cloning it must not make an untrained one."""

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params(deep=False))


class NotFittedError(errors.NotFittedError, SklearnNotFittedError):  # type: ignore[misc]
    """Also what those catch who know scikit-learn's own."""


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
    return isinstance(a, (bool, int, float, str, tuple, list)) and bool(a == b)
