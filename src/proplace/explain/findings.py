"""What a method says about one person, before it is put in the table's own units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from proplace.core.errors import SolverError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.certification import Proof
    from proplace.core.network import Array

Status = Literal[
    "optimal",
    "feasible",
    "valid",
    "already_valid",
    "no_robust_neighbour",
    "infeasible_rules",
    "fixed_prediction",
    "not_found",
    "bad_input",
    "solver_error",
    "worker_died",
    "model_mismatch",
]


class Meaning(NamedTuple):
    """What a status says: whether there is an answer, whether it is certified, and in words."""

    found: bool
    certified: bool
    text: str


STATUSES: Mapping[Status, Meaning] = {
    "optimal": Meaning(
        True, True, "within the gap of the nearest robust point of the region, proved"
    ),
    "feasible": Meaning(True, True, "certified robust, not proved nearest"),
    "valid": Meaning(True, False, "accepted by the network itself, not certified robust"),
    "already_valid": Meaning(False, False, "the network gives the target class already"),
    "no_robust_neighbour": Meaning(False, False, "nothing in the data is robust at this delta"),
    "infeasible_rules": Meaning(False, False, "the rules leave no robust point"),
    "fixed_prediction": Meaning(
        False, False, "proved: no network of Delta accepts anything within the rules"
    ),
    "not_found": Meaning(False, False, "the method, or its time, ended without a point"),
    "bad_input": Meaning(False, False, "the row is not one that the model can take"),
    "solver_error": Meaning(False, False, "the solver failed, which is no fault of the row"),
    "worker_died": Meaning(False, False, "the process died at this row each time; try again"),
    "model_mismatch": Meaning(False, False, "the model itself refuses the answer: withheld"),
}
"""Every status with its meaning; ``already_valid`` may carry a certificate of the person's own row."""


CERTIFIABLE = frozenset({s for s, m in STATUSES.items() if m.certified} | {"already_valid"})
"""Statuses of a row with a point that may be proved: an answer, or the person as is."""
FOUND = frozenset({s for s, m in STATUSES.items() if m.found})
"""Statuses of a row with an answer."""
ANSWERED = FOUND | {"already_valid"}
"""Statuses of a row with a point: an answer, or the person as is."""


@dataclass(frozen=True, eq=False)
class Finding:
    """One answer for one person as the network sees it, or the reason why there is none.

    The fields are those of :class:`proplace.Explanation`, which is made of it.
    """

    status: Status
    reason: str
    encoded_original: Array | None = None
    encoded_counterfactual: Array | None = None
    distance: float = np.nan
    bound: float = np.nan
    in_region: bool = True
    timed_out: bool = False
    margin: float = np.nan
    plausibility: float = np.nan
    nearest_row: int | None = None
    rank: int = 0
    neighbours: Array | None = None
    certificate: Proof | None = None
    guaranteed_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    nodes: int = 0
    lp_solves: int = 0
    scenarios: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def found(self) -> bool:
        """Whether there is an answer."""
        return STATUSES[self.status].found


def failed(error: Exception, x: Array) -> Finding:
    """A row that an error has ended: the failure of a solver is no fault of the row."""
    status: Status = "solver_error" if isinstance(error, SolverError) else "bad_input"
    reason = f"this row could not be explained ({type(error).__name__}: {error})"
    return Finding(status, reason, encoded_original=x)
