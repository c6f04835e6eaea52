r"""One convex piece of the plausible region.

A piece belongs to one *profile*: one combination of values of the binary and one-hot columns. Its
points are

.. math::
    x' = V^\top \lambda, \qquad \lambda \ge 0,\ \textstyle\sum_l \lambda_l = 1, \qquad
    l \le x' \le u, \qquad A x' \in [a, b] ,

with V the robust neighbours of that profile (and the person, in its own profile). A piece without
vertices is the whole box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

from proplace.schema.person import TOLERANCE

if TYPE_CHECKING:
    import numpy.typing as npt

    from proplace.core.network import Array

    Mask = npt.NDArray[np.bool_]

IN_HULL = 1e-9
"""Distance from the hull, relative to its size, that counts as rounding."""

_ROUNDING = 1e-4  # size of a hull, relative to its values, below which these decide


@dataclass(frozen=True, eq=False)
class ConvexPiece:
    """The points of one categorical profile.

    Attributes
    ----------
    vertices
        Corners of the hull, shape (m, columns); None for the whole box.
    lower, upper
        Bounds of each column; equal for the columns that the profile fixes.
    A, row_lower, row_upper
        Linear rules ``row_lower <= A x' <= row_upper``.
    """

    vertices: Array | None
    lower: Array
    upper: Array
    A: Array
    row_lower: Array
    row_upper: Array

    def box(self) -> tuple[Array, Array]:
        """Smallest box around the piece."""
        if self.vertices is None:
            return self.lower, self.upper
        low, high = self.vertices.min(axis=0), self.vertices.max(axis=0)
        return np.maximum(low, self.lower), np.minimum(high, self.upper)

    def contains(self, rows: Array) -> Mask:
        """Test which rows lie in the piece, up to ``IN_HULL`` times its size.

        The weights of a row of the hull are found by non-negative least squares.
        """
        found = _within(rows, self.lower, self.upper)
        found &= _within(rows @ self.A.T, self.row_lower, self.row_upper)
        if self.vertices is None or not found.any():
            return found
        centre = self.vertices.mean(axis=0)
        spread = self.vertices - centre
        rounding = _ROUNDING * float(np.abs(self.vertices).max())  # of a hull far from the origin
        size = max(float(np.abs(spread).max()), rounding, TOLERANCE)
        # A row outside the affine span of the vertices needs no further test.
        _, values, axes = np.linalg.svd(spread / size, full_matrices=False)
        axes = axes[values > IN_HULL]
        away = (rows - centre) / size
        found &= np.abs(away - away @ axes.T @ axes).max(axis=1) <= IN_HULL
        system = np.vstack([spread.T / size, np.ones(len(spread))])
        for i in np.flatnonzero(found):
            try:
                found[i] = nnls(system, np.append(away[i], 1.0))[1] <= IN_HULL
            except RuntimeError:  # no weights within the iterations of the method
                found[i] = False
        return found


def _within(rows: Array, low: Array, high: Array) -> Mask:
    """Test which rows lie between two ends, up to rounding."""
    inside: Mask = np.all((rows >= low - TOLERANCE) & (rows <= high + TOLERANCE), axis=1)
    return inside
