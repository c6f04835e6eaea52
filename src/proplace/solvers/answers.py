"""What solvers answer: in their own words, and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from proplace.core.network import Array

Status = Literal["optimal", "infeasible", "unbounded", "limit"]

TOLERANCE = 1e-9
"""Feasibility, integrality and absolute gap that every solver is asked for."""

OPEN = "infeasible or unbounded"
"""What presolve may say without telling which."""

FAILED = "failed"
"""Any status that is no answer."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    Attributes
    ----------
    status
        ``optimal``, ``infeasible``, ``unbounded`` or ``limit`` (out of time).
    x
        The best point, or None.
    objective
        Its objective; inf without a point, -inf for an unbounded model.
    bound
        Proved lower bound on the objective of any point; inf when there is none.
    """

    status: Status
    x: Array | None
    objective: float
    bound: float


@dataclass(frozen=True, eq=False)
class Raw:
    """An answer in the words of one solver, mapped to a status but not yet checked."""

    status: Status | Literal["infeasible or unbounded", "failed"]
    x: Array | None
    bound: float
    words: str


def finite(bound: float) -> float:
    """Return a bound with the solver's own infinity, such as 1e100, written as inf."""
    return bound if abs(bound) < 1e20 else math.copysign(math.inf, bound)
