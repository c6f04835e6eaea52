"""Tests of rows against a guarantee, member by member.

Only rows that are robust for one member go on to the next.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.certification.certificate import CertificateBundle
from proplace.certification.engine import FULL
from proplace.certification.robustness import certify
from proplace.certification.roundoff import required_margins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.certificate import Certificate, Proof
    from proplace.certification.engine import Budget
    from proplace.certification.input_boxes import InputBox
    from proplace.certification.robustness import CertificationResult
    from proplace.core.guarantee import Guarantee
    from proplace.core.network import Array

Index = npt.NDArray[np.intp]

_LEAST_TIME = 1e-3


@dataclass(frozen=True, eq=False)
class GuaranteeResult:
    """Verdicts of :func:`prove`, one entry per row.

    Attributes
    ----------
    robust
        True if the row is robust for every member.
    undecided
        True if the row is neither proved robust nor refuted.
    lower
        Lower bound on the margin of every network of the members that were tested.
    failed
        Position of the first member for which the row is not proved robust, or the number of
        members if there is none.
    tested
        For each member, the tested rows and the result.
    """

    robust: npt.NDArray[np.bool_]
    undecided: npt.NDArray[np.bool_]
    lower: Array
    failed: Index
    tested: Sequence[tuple[Index, CertificationResult]]

    def proof(self, row: int) -> Proof | None:
        """Return the proof that a row is robust, or the certificate that it is not for one member.

        Returns None if the row is undecided.
        """
        found: list[Certificate | None] = []
        for rows, result in self.tested[: int(self.failed[row]) + 1]:
            assert result.certificates is not None  # noqa: S101  (requested)
            found.append(result.certificates[int(np.searchsorted(rows, row))])
        return together(found) if self.robust[row] else found[-1]


def prove(
    guarantee: Guarantee,
    rows: Array,
    target: int,
    box: InputBox | None = None,
    deadline: float = math.inf,
    *,
    budget: Budget = FULL,
    certificates: bool = True,
    progress: bool = False,
) -> GuaranteeResult:
    """Test for each row if every member gives it the target class with the required margin.

    Parameters
    ----------
    box
        Ends of a box around each row, all points of which must be accepted. Default: the box of the
        tolerance.
    deadline
        Time, by ``time.monotonic``, after which rows are left undecided.
    budget
        Work limit for each row and member.
    certificates
        If True, write the proof of each verdict.
    progress
        If True, show a progress bar on standard error.
    """
    left = np.arange(len(rows))
    undecided = np.zeros(len(rows), dtype=bool)
    lower = np.full(len(rows), np.inf)
    failed = np.full(len(rows), len(guarantee.members))
    tested: list[tuple[Index, CertificationResult]] = []
    for number, member in enumerate(guarantee.members):
        if not len(left):
            break
        some = rows[left]
        ends = member.around(some) if box is None else (box[0][left], box[1][left])
        result = certify(
            member.network,
            some,
            member.shifts,
            target,
            margin=required_margins(member, some, ends),
            box=ends,
            certificates=certificates,
            time_limit=time_left(deadline),
            budget=budget,
            progress=progress,
        )
        tested.append((left, result))
        lower[left] = np.minimum(lower[left], result.lower)
        undecided[left] = result.undecided
        failed[left[~result.robust]] = number
        left = left[result.robust]
    robust = np.zeros(len(rows), dtype=bool)
    robust[left] = True
    return GuaranteeResult(robust, undecided, lower, failed, tested)


def together(proofs: Sequence[Certificate | None]) -> Proof:
    """Return a single certificate unchanged, or several in a bundle."""
    known = [proof for proof in proofs if proof is not None]
    return known[0] if len(known) == 1 else CertificateBundle.of(known)


def time_left(deadline: float) -> float | None:
    """Return the seconds to a deadline, never zero, so that easy work is always done."""
    return None if math.isinf(deadline) else max(deadline - time.monotonic(), _LEAST_TIME)
