"""From a point of a search to the point that is reported: as a table can hold it, proved robust."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification import certify
from proplace.region.neighbours import time_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proplace.certification import Certificate, Evidence, Margin, Report
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.region.neighbours import Mask
    from proplace.schema.person import Person

_RESERVE = 0.1  # share of a time limit that is kept for the proof of the search's answer
_MOST_RESERVE = 1.0  # that share is never more than so many seconds
_GRACE = 0.2  # seconds beyond the limit: a neighbour that is proved is better than no answer


@dataclass(frozen=True)
class Clock:
    """Times, by ``time.monotonic``, by which the search and the proof of its answer must end."""

    search: float = math.inf
    proof: float = math.inf

    @classmethod
    def of(cls, time_limit: float | None) -> Clock:
        """Start now."""
        if time_limit is None:
            return cls()
        end = time.monotonic() + time_limit
        return cls(end - min(_RESERVE * time_limit, _MOST_RESERVE), end + _GRACE)

    @property
    def over(self) -> bool:
        """Whether the search has no time left."""
        return time.monotonic() >= self.search


class Proved(NamedTuple):
    """A point with its certificate and least margin, and which of the candidates it was."""

    point: Array
    certificate: Certificate
    margin: float
    candidate: int


@dataclass(frozen=True, eq=False)
class Prover:
    """Proves points robust for one model, Delta and margin."""

    model: Model
    shifts: Shifts
    margin: Margin | None

    def certify(self, rows: Array, target: int, until: float = math.inf) -> Report:
        """Verdicts with certificates, as far as they come in time."""
        return certify(
            self.model.network,
            rows,
            self.shifts,
            target,
            margin=self._required_margin(rows) if self.model.preprocesses else self.margin,
            certificates=True,
            time_limit=time_left(until),
        )

    def first(
        self,
        candidates: Iterable[Array],
        people: Sequence[Person],
        target: int,
        *,
        evidence: Evidence | None = None,
        until: float = math.inf,
    ) -> Proved | None:
        """The first of some points that, as it will be read, is legal for the person and robust.

        ``people`` are the variants of the person (:func:`proplace.region.neighbours.variants`),
        ``evidence`` what a search has proved of one point already.
        """
        for number, row in enumerate(candidates):
            point = self.model.schema.canonical(row, person=people[0].x)[0]
            if not _allowed(people, point[None])[0]:
                continue
            if evidence is not None and np.array_equal(evidence.point, point):
                made = evidence.certificate(
                    self.model.network, self.shifts, target, self._required_margin(point[None])
                )
                if made is not None:
                    return Proved(point, made, evidence.lower, number)
            report = self.certify(point[None], target, until)
            if report.robust[0]:
                return _proved(report, point[None], 0, number)
            if time.monotonic() >= until:
                break
        return None

    def nearest(
        self, rows: Array, people: Sequence[Person], target: int, until: float
    ) -> Proved | None:
        """The first robust one of some rows that the person may become; all are tested at once."""
        rows = self.model.schema.canonical(rows, person=people[0].x)
        rows = rows[_allowed(people, rows)]
        if not len(rows):
            return None
        report = self.certify(rows, target, until)
        good = np.flatnonzero(report.robust)
        return _proved(report, rows, int(good[0]), int(good[0])) if len(good) else None

    def _required_margin(self, rows: Array) -> float:
        """The margin that each of some rows must keep."""
        return float(np.max(self.model.margins(self.shifts, rows, self.margin)))


def _allowed(people: Sequence[Person], rows: Array) -> Mask:
    """Which rows a person may become, in one variant or another."""
    good: Mask = np.any([person.allowed(rows) for person in people], axis=0)
    return good


def _proved(report: Report, rows: Array, i: int, number: int) -> Proved:
    """Robust row ``i`` of a report with its certificate."""
    assert report.certificates is not None  # noqa: S101  (asked for)
    certificate = report.certificates[i]
    assert certificate is not None  # noqa: S101  (a robust row has one)
    return Proved(rows[i], certificate, float(report.lower[i]), number)
