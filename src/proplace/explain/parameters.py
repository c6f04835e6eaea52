"""Parameters in the manner of scikit-learn: kept as given, read and set by name."""

from __future__ import annotations

from typing import Self

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from proplace.core import errors


class Parameters(BaseEstimator):  # type: ignore[misc]
    """An estimator of scikit-learn whose model is data: cloning it must not make an untrained one."""

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params(deep=False))


class NotFittedError(errors.NotFittedError, SklearnNotFittedError):  # type: ignore[misc]
    """Also what those catch who know scikit-learn's own."""
