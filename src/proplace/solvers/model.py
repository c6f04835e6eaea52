r"""Mixed-integer linear programs, built in blocks of columns and rows.

A model is

.. math::
    \min_x\ c \cdot x + o \quad \text{s.t.} \quad
    a \le A x \le b, \qquad l \le x \le u, \qquad x_i \in \mathbb{Z}\ (i \in I) .

Infinite bounds are written ``inf``. A solver returns a :class:`Raw` with its own status words,
which becomes a :class:`Solution` after a check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array


Integers = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Arrays:
    """A model as arrays, the rows sparse."""

    cost: Array
    offset: float
    lower: Array
    upper: Array
    integer: npt.NDArray[np.bool_]
    A: sparse.csr_array
    row_lower: Array
    row_upper: Array

    def violation(self, x: Array) -> float:
        """Return the largest violation of a bound, a row or integrality by ``x``."""
        rows = self.A @ x
        parts = (
            self.lower - x,
            x - self.upper,
            self.row_lower - rows,
            rows - self.row_upper,
            np.abs(x - np.rint(x))[self.integer],
        )
        return max(float(np.max(part, initial=0.0)) for part in parts)


class Model:
    """A mixed-integer linear program, built in blocks.

    Examples
    --------
    >>> from proplace.solvers import solve
    >>> model = Model()
    >>> x = model.columns([0.0, 0.0], 3.0, cost=-1.0, integer=True)
    >>> model.rows([(x, [[2.0, 3.0]])], -np.inf, 7.5)
    >>> solution = solve(model)
    >>> solution.status, solution.x, solution.objective
    ('optimal', array([3., 0.]), -3.0)
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._columns: list[tuple[Array, Array, Array, npt.NDArray[np.bool_]]] = []
        self._rows: list[tuple[Array, Array]] = []
        self._entries: list[tuple[Integers, Integers, Array]] = []
        self._width = self._height = 0

    def columns(
        self,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        *,
        cost: npt.ArrayLike = 0.0,
        integer: bool = False,
    ) -> Integers:
        """Add columns and return their numbers. A scalar applies to all columns of the block."""
        low, high, c = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in (lower, upper, cost))
        )
        self._columns.append((low, high, c, np.full(len(low), integer)))
        first, self._width = self._width, self._width + len(low)
        return np.arange(first, self._width)

    def rows(
        self,
        terms: Sequence[tuple[Integers, npt.ArrayLike]],
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
    ) -> None:
        """Add rows ``lower <= sum of matrix @ x[columns] <= upper`` over ``(columns, matrix)``."""
        blocks = [(columns, np.asarray(matrix, dtype=np.float64)) for columns, matrix in terms]
        height = len(blocks[0][1])
        for columns, matrix in blocks:
            i, j = np.nonzero(matrix)
            self._entries.append((i + self._height, columns[j], matrix[i, j]))
        self._rows.append(
            (
                np.broadcast_to(np.asarray(lower, dtype=np.float64), height),
                np.broadcast_to(np.asarray(upper, dtype=np.float64), height),
            )
        )
        self._height += height

    def arrays(self) -> Arrays:
        """Return the model as arrays. Entries of the same row and column are added up."""
        lower, upper, cost, integer = _joined(self._columns, 4)
        row_lower, row_upper = _joined(self._rows, 2)
        i, j, values = _joined(self._entries, 3)
        index = (i.astype(np.intp), j.astype(np.intp))
        A = sparse.csr_array((values, index), shape=(self._height, self._width))
        A.sum_duplicates()
        return Arrays(
            cost, self.offset, lower, upper, integer.astype(np.bool_), A, row_lower, row_upper
        )


def _joined(blocks: Sequence[tuple[Any, ...]], parts: int) -> list[Any]:
    return [np.concatenate([np.zeros(0), *(block[k] for block in blocks)]) for k in range(parts)]


Status = Literal["optimal", "infeasible", "unbounded", "limit"]

TOLERANCE = 1e-9
"""Feasibility, integrality and absolute gap that every solver must reach."""

OPEN = "infeasible or unbounded"
"""The status of a presolve that cannot distinguish the two."""

FAILED = "failed"
"""Any inconclusive status."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Result of a solver.

    Attributes
    ----------
    status
        ``optimal``, ``infeasible``, ``unbounded`` or ``limit`` (out of time).
    x
        The best point, or None.
    objective
        Its objective: inf without a point, -inf for an unbounded model.
    bound
        Proved lower bound on the objective of any point, or inf if there is none.
    """

    status: Status
    x: Array | None
    objective: float
    bound: float


@dataclass(frozen=True, eq=False)
class Raw:
    """The result of one solver, mapped to a status but not yet checked."""

    status: Status | Literal["infeasible or unbounded", "failed"]
    x: Array | None
    bound: float
    words: str


def finite(bound: float) -> float:
    """Return a bound with the solver's own infinity, such as 1e100, written as inf."""
    return bound if abs(bound) < 1e20 else math.copysign(math.inf, bound)
