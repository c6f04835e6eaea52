"""Common parts of the baselines: legal points, ranges, seeds, and the check of a candidate.

A baseline is a class with one method, :meth:`Baseline.propose`. It receives encoded rows without the
target class and returns a candidate for each. It may use the network ``self.net_`` and the training
rows ``self.rows_``. :meth:`Baseline.legal` returns points that can be written in the table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import prove
from proplace.core.distances import L1
from proplace.core.errors import OptionError
from proplace.core.guarantee import Guarantee, Member
from proplace.core.options import integer
from proplace.core.request import Request
from proplace.core.shifts import Shifts
from proplace.explain.base import Explainer
from proplace.explain.results import Finding
from proplace.loaders.align import shifts_for
from proplace.region.neighbours import unrestricted
from proplace.schema.features import Continuous

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.explain.results import Status
    from proplace.schema import Schema

MARGIN = 1e-6
"""Margin that methods aim at, so that rounding does not make a point invalid."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """The candidate of one row: a point, or the status and reason why there is none."""

    point: Array | None
    reason: str = ""
    status: Status = "not_found"


class Baseline(Explainer):
    """A method that finds counterfactuals from the network and the training rows alone.

    Parameters
    ----------
    model
        The trained model, or a network: see :class:`proplace.Proplace`.
    schema
        Features, units and rules. Without one, tables hold the network's own columns, and answers
        stay within the range of the training rows.
    seed
        Seed of everything random. A row's answer depends on the seed and the row, not on which other
        rows are explained with it.
    n_jobs
        Processes (joblib). Their number does not change results.
    """

    certifies = False

    _block = 64

    def __init__(
        self,
        model: object,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
    ) -> None:
        self.model = model
        self.schema = schema
        self.seed = seed
        self.n_jobs = n_jobs

    # -- what a baseline adds ----------------------------------------------------------------

    @abstractmethod
    def propose(self, X: Array, target: int) -> list[Candidate]:
        """Return one candidate for each encoded row. No row has the target class yet."""

    # -- lifecycle ---------------------------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        integer("seed", self.seed, least=0)

    def fit_rows(self, rows: Array) -> None:
        """Fit the distance and the ranges of the columns."""
        self.guarantee_ = Guarantee((Member(self.net_, Shifts.of(self.net_, 0.0)),))
        self.units_ = 1.0 / (self.net_.inputs * self._column_units)
        self.distance_ = L1(self.units_)
        self._span = rows.min(axis=0), rows.max(axis=0)
        self._free = unrestricted(self.schema_)

    def check_request(self, request: Request) -> None:
        """Raise ``OptionError`` for a request for more than a target class."""
        plain = Request(request.target)
        for field in dataclasses.fields(Request):
            value = getattr(request, field.name)
            if value != getattr(plain, field.name):
                raise OptionError(
                    f"{type(self).__name__} takes the target class alone, not {field.name}="
                    f"{value!r}; use Proplace, or leave {field.name} out",
                    name=field.name,
                    value=value,
                )

    def find(self, X: Array, request: Request) -> list[list[Finding]]:
        """Return one finding for each row, about its candidate as written in the table."""
        target = request.target
        start = time.monotonic()
        candidates = self.propose(X, target)
        seconds = (time.monotonic() - start) / len(X)
        return [
            [replace(self._finding(x, candidate, target), encoded_original=x, seconds=seconds)]
            for x, candidate in zip(X, candidates, strict=True)
        ]

    def _finding(self, x: Array, candidate: Candidate, target: int) -> Finding:
        """Write a candidate as in the table, and test the written point."""
        if candidate.point is None:
            reason = candidate.reason or "the method ended without a point of the target class"
            return Finding(candidate.status, reason)
        point = self.schema_.widened(x).canonical(candidate.point, person=x)[0]
        person = self.schema_.person(x)
        if not person.allowed(point)[0]:
            broken = "; ".join(list(person.broken_rules(point))[:3])
            return Finding("infeasible_rules", f"the point of the method breaks a rule ({broken})")
        if self.net_.predict(point)[0] != target:
            reason = candidate.reason or "the point of the method does not have the target class"
            return Finding("not_found", reason)
        status: Status = "valid"
        margin, certificate = float(self.net_.margin(point, target)[0]), None
        if self.certifies:
            found = prove(self.guarantee_, point[None], target)
            margin = float(found.lower[0])
            if found.robust[0]:
                status, certificate = "feasible", found.proof(0)
        said = (
            "not certified robust" if status == "valid" else "certified robust, not proved nearest"
        )
        return Finding(
            status,
            f"{candidate.reason}; {said}" if candidate.reason else said,
            encoded_counterfactual=point,
            distance=float(self.distance_.between(x, point)),
            bound=0.0,
            margin=margin,
            certificate=certificate,
        )

    # -- for the methods ---------------------------------------------------------------------

    def bounds(self, X: Array) -> tuple[Array, Array]:
        """Return the range of each column for each person. Default: the range of the training rows."""
        if self._free:
            lower = np.broadcast_to(self.schema_.lower, X.shape)
            upper = np.broadcast_to(self.schema_.upper, X.shape)
        else:
            people = [self.schema_.person(x) for x in X]
            lower = np.array([person.lower for person in people])
            upper = np.array([person.upper for person in people])
        low, high = self._span
        return (
            np.where(np.isfinite(lower), lower, np.minimum(low, X)),
            np.where(np.isfinite(upper), upper, np.maximum(high, X)),
        )

    def legal(self, points: Array, bounds: tuple[Array, Array]) -> Array:
        """Return the nearest points within bounds with legal categories and grid values."""
        lower, upper = (np.broadcast_to(bound, points.shape) for bound in bounds)
        points = np.clip(points, lower, upper)
        for feature, span in zip(self.schema_.features, self.schema_.spans, strict=True):
            if not isinstance(feature, Continuous) or feature.step is not None:
                points[:, span] = feature.canonical(points[:, span])
        return np.where(lower == upper, lower, points)  # even if it is not a legal value

    def reachable(self, x: Array) -> Array:
        """Return the training rows that a person may become, adapted to the person's rules."""
        if self._free:
            return self.rows_
        person = self.schema_.person(x)
        rows = person.adapt(self.rows_, overwrite_categories=True)
        return rows[person.allowed(rows)]

    def generator(self, x: Array) -> np.random.Generator:
        """Return a random generator that depends only on the seed and the row."""
        digest = hashlib.sha256((x + 0.0).tobytes()).digest()  # -0.0 is 0.0
        return np.random.default_rng([self.seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])


class RobustBaseline(Baseline):
    """A baseline that tests its points for Delta-robustness.

    Parameters
    ----------
    model
        The trained model, or a network: see :class:`proplace.Proplace`.
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    schema, seed, n_jobs
        As for every :class:`Baseline`.
    """

    certifies = True

    def __init__(
        self,
        model: object,
        delta: Delta,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int | None = 1,
    ) -> None:
        super().__init__(model, schema=schema, seed=seed, n_jobs=n_jobs)
        self.delta = delta

    def fit_rows(self, rows: Array) -> None:
        """Fit the attributes of every baseline, and the shift set."""
        super().fit_rows(rows)
        member = self.model_.member(shifts_for(self.model_, self.delta))
        self.guarantee_ = Guarantee((member,))
