r"""The fixed map in front of the trained layers.

.. math::
    u = M (s \odot x + t) + c ,

with a factor :math:`s` and a shift :math:`t` per column (a scaler), then a matrix :math:`M` and an
offset :math:`c` (PCA, a selection of columns, an embedding); every part may be missing. None of it is
a trained parameter of the network: shifts of the parameters never touch it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from proplace.core.network import Array


@dataclass(frozen=True, eq=False)
class InputMap:
    """``u = matrix (scale * x + shift) + offset``; None stands for a part that is not there."""

    scale: Array | None = None
    shift: Array | None = None
    matrix: Array | None = None
    offset: Array | None = None

    @property
    def parts(self) -> dict[str, Array]:
        """The parts that are there, by name."""
        names = ("scale", "shift", "matrix", "offset")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, X: Array) -> Array:
        """Map rows: what the first trained layer sees."""
        if self.scale is not None:
            X = X * self.scale
        if self.shift is not None:
            X = X + self.shift
        if self.matrix is not None:  # row by row: a row's bits do not depend on its neighbours
            X = (X[..., None, :] @ self.matrix.T)[..., 0, :]
        return X if self.offset is None else X + self.offset

    def fold(self, W: Array, b: Array) -> tuple[Array, Array]:
        """Return the affine map ``W u + b`` as one of ``x``."""
        if self.offset is not None:
            b = b + W @ self.offset
        W = self._behind(W)
        if self.shift is not None:
            b = b + W @ self.shift
        return (W if self.scale is None else W * self.scale), b

    def pull_back(self, G: Array) -> Array:
        """Turn gradients with respect to ``u`` (rows of G) into those with respect to ``x``."""
        G = self._behind(G)
        return G if self.scale is None else G * self.scale

    def size(self, X: Array) -> Array:
        """Sum of the absolute values of all terms behind each entry of ``u``."""
        size = np.abs(X)
        if self.scale is not None:
            size = size * np.abs(self.scale)
        if self.shift is not None:
            size = size + np.abs(self.shift)
        if self.matrix is not None:
            size = size @ np.abs(self.matrix).T
        return size if self.offset is None else size + np.abs(self.offset)

    def _behind(self, G: Array) -> Array:
        """Rows over ``u`` as rows over what the matrix sees; exact zeros stay exact."""
        if self.matrix is None:
            return G
        result: Array = G @ self.matrix
        return result
