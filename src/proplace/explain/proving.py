"""From a point of a search to the point that is reported: as a table can hold it, proved robust."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification import FULL, Budget, CertificateBundle, certify
from proplace.region.neighbours import time_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from proplace.certification import (
        Certificate,
        CertificationResult,
        Evidence,
        InputBox,
        Margin,
        Proof,
    )
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.loaders.model import Model
    from proplace.region.neighbours import Mask
    from proplace.schema import Schema
    from proplace.schema.person import Person


_RESERVE = 0.1  # share of a time limit that is kept for the proof of the search's answer
_BOX_BUDGET = Budget(200, 0)  # for the proof of a box around a counterfactual
_SAME = 1e-12  # encoded difference of a point before and after it is written in original units
_MOST_RESERVE = 1.0  # that share is never more than so many seconds


@dataclass(frozen=True)
class Clock:
    """Times, by ``time.monotonic``, by which search, writing and proof of a counterfactual end."""

    search: float = math.inf
    writing: float = math.inf
    proof: float = math.inf

    @classmethod
    def of(cls, time_limit: float | None) -> Clock:
        """Start now."""
        if time_limit is None:
            return cls()
        end = time.monotonic() + time_limit
        reserve = min(_RESERVE * time_limit, _MOST_RESERVE)
        return cls(end - reserve, end - reserve / 2.0, end)

    @property
    def over(self) -> bool:
        """Whether the search has no time left."""
        return time.monotonic() >= self.search


class Judged(NamedTuple):
    """What is proved of one point, for all sets of networks together.

    ``margin`` is a lower bound on the margin of every network. Where the point is not robust, or that
    is not decided, ``which`` is the first set of which this is so.
    """

    robust: bool
    undecided: bool
    margin: float
    proof: Proof | None
    which: Member | None = None


class Proved(NamedTuple):
    """A point with its proof and least margin, and which of the candidates it was."""

    point: Array
    proof: Proof
    margin: float
    candidate: int


@dataclass(frozen=True, eq=False)
class Judge:
    """One set of networks, and the margin that rows must keep for it.

    Attributes
    ----------
    models
        The set.
    model
        The model that it comes from, on the rows of the model in use: its rounding is what a margin
        covers that is named after an arithmetic.
    margin
        The margin as it was asked for.
    """

    models: Member
    model: Model
    margin: Margin | None

    def margins(self, rows: Array, box: InputBox | None = None) -> float | Array:
        """Return the margin that each row must keep, at every point of its box.

        Without ``box`` it is that of all misses within the tolerance.
        """
        box = self.models.around(rows) if box is None else box
        return self.model.margins(self.models.shifts, rows, self.margin, box)

    def rounding(self, low: Array, high: Array) -> Array:
        """What the rounding of a model that is deployed in fewer digits can do to a margin, on boxes."""
        if not isinstance(self.margin, str):
            return np.zeros(len(low))
        margins = self.model.margins(self.models.shifts, low, self.margin, (low, high))
        return np.broadcast_to(margins, len(low))

    def certify(
        self,
        rows: Array,
        target: int,
        until: float = math.inf,
        *,
        box: InputBox | None = None,
        budget: Budget = FULL,
    ) -> CertificationResult:
        """Verdicts with certificates, as far as they come in time."""
        box = self.models.around(rows) if box is None else box
        return certify(
            self.models.network,
            rows,
            self.models.shifts,
            target,
            margin=self.required(rows, box) if self.model.rounds_more else self.margin,
            box=box,
            certificates=True,
            time_limit=time_left(until),
            budget=budget,
        )

    def known(self, evidence: Evidence, target: int, until: float) -> Certificate | None:
        """Write down what a search has proved of a point already, if it is enough."""
        required = self.required(evidence.point[None])
        net, shifts = self.models.network, self.models.shifts
        return evidence.certificate(net, shifts, target, required, until)

    def required(self, rows: Array, box: InputBox | None = None) -> float:
        """The margin that covers each of some rows."""
        return float(np.max(self.margins(rows, box)))


@dataclass(frozen=True, eq=False)
class Prover:
    """Proves points robust for every set of networks that has a say; the first is the model in use."""

    schema: Schema
    judges: tuple[Judge, ...]

    def judge(self, point: Array, target: int, until: float = math.inf) -> Judged:
        """Prove of one point that it is robust for all sets, or that it is not for one."""
        margin, proofs = math.inf, []
        for judge in self.judges:
            report = judge.certify(point[None], target, until)
            assert report.certificates is not None  # noqa: S101  (asked for)
            proof, margin = report.certificates[0], min(margin, float(report.lower[0]))
            if not report.robust[0]:
                return Judged(False, bool(report.undecided[0]), margin, proof, judge.models)
            assert proof is not None  # noqa: S101  (a robust row has one)
            proofs.append(proof)
        return Judged(True, False, margin, _together(proofs))

    def first(
        self,
        candidates: Iterable[Array],
        people: Sequence[Person],
        target: int,
        *,
        evidence: Sequence[Evidence] = (),
        until: float = math.inf,
    ) -> Proved | None:
        """The first of some points that, as it will be read, is legal for the person and robust.

        ``people`` are the variants of the person (:func:`proplace.region.pieces.variants`),
        ``evidence`` what a search has proved of one point already, for each set.
        """
        for number, row in enumerate(candidates):
            point = self.schema.canonical(row, person=people[0].x)[0]
            if not allowed(people, point[None])[0]:
                continue
            if evidence and np.abs(evidence[0].point - point).max() <= _SAME:
                proof = self._known(evidence, point, target, until)
                if proof is not None:
                    margin = min(each.lower for each in evidence)
                    return Proved(point, proof, margin, number)
            judged = self.judge(point, target, until)
            if judged.proof is not None and judged.robust:
                return Proved(point, judged.proof, judged.margin, number)
            if time.monotonic() >= until:
                break
        return None

    def boxes(
        self, rows: Array, target: int, box: InputBox, until: float = math.inf
    ) -> list[Proof | None]:
        """Prove of boxes around rows that every point is robust for all sets, by quick bounds.

        None where they do not prove it.
        """
        proofs: list[list[Certificate]] = [[] for _ in rows]
        left = np.arange(len(rows))
        for judge in self.judges:
            if not len(left):
                break
            ends = box[0][left], box[1][left]
            report = judge.certify(rows[left], target, until, box=ends, budget=_BOX_BUDGET)
            assert report.certificates is not None  # noqa: S101  (asked for)
            for i in np.flatnonzero(report.robust):
                proof = report.certificates[int(i)]
                assert proof is not None  # noqa: S101  (a robust row has one)
                proofs[left[i]].append(proof)
            left = left[report.robust]
        return [_together(found) if i in left else None for i, found in enumerate(proofs)]

    def _known(
        self, evidence: Sequence[Evidence], point: Array, target: int, until: float
    ) -> Proof | None:
        """The proof that a search has found already, if it proves the point for each set."""
        proofs = []
        for judge, each in zip(self.judges, evidence, strict=True):
            box = judge.models.around(point)
            proof = judge.known(replace(each, point=point, box=box), target, until)
            if proof is None:
                return None
            proofs.append(proof)
        return _together(proofs)

    def nearest(
        self, rows: Array, people: Sequence[Person], target: int, until: float
    ) -> Proved | None:
        """The first robust one of some rows that the person may become.

        All rows are tested at once, set by set; those that pass go on to the next.
        """
        rows = self.schema.canonical(rows, person=people[0].x)
        rows = rows[allowed(people, rows)]
        left = np.arange(len(rows))
        found: list[tuple[CertificationResult, npt.NDArray[np.intp]]] = []
        for judge in self.judges:
            if not len(left):
                return None
            report = judge.certify(rows[left], target, until)
            found.append((report, left))
            left = left[report.robust]
        if not len(left):
            return None
        row, proofs, margin = int(left[0]), [], math.inf
        for report, tested in found:
            i = int(np.searchsorted(tested, row))
            assert report.certificates is not None  # noqa: S101  (asked for)
            proof = report.certificates[i]
            assert proof is not None  # noqa: S101  (a robust row has one)
            proofs.append(proof)
            margin = min(margin, float(report.lower[i]))
        return Proved(rows[row], _together(proofs), margin, row)


def _together(proofs: Sequence[Certificate]) -> Proof:
    """One certificate as it is, several in a bundle."""
    return proofs[0] if len(proofs) == 1 else CertificateBundle.of(proofs)


def allowed(people: Sequence[Person], rows: Array) -> Mask:
    """Which rows a person may become, in one variant or another."""
    good: Mask = np.any([person.allowed(rows) for person in people], axis=0)
    return good
