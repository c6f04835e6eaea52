r"""One convex piece of the plausible region.

A piece belongs to one *profile*: one combination of values of the binary and one-hot columns. Its
points are

.. math::
    x' = V^\top \lambda + g, \qquad \lambda \ge 0,\ \textstyle\sum_l \lambda_l = 1, \qquad
    l \le x' \le u, \qquad A x' \in [a, b], \qquad |g_i| \le \eta_i ,

with V the robust neighbours of that profile (and the person, in its own profile). Columns with a grid
take legal values only, and there :math:`\eta_i` is half of the grid's (largest) step: a legal point
counts as in the hull when it lies in the cell of a point of the hull. Elsewhere
:math:`\eta_i = 0`. A piece without vertices is the whole box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from proplace.core.network import Array


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

    def box(self, half_steps: Array) -> tuple[Array, Array]:
        """Smallest box around the piece, given half of the step of each grid column."""
        if self.vertices is None:
            return self.lower, self.upper
        low, high = self.vertices.min(axis=0) - half_steps, self.vertices.max(axis=0) + half_steps
        return np.maximum(low, self.lower), np.minimum(high, self.upper)
