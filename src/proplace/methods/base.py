"""What every method shares: tables, one failing row among many, legal points, processes, seeds.

A method is one class with one function of its own, :meth:`Method.find`: from encoded rows that do not
have the target class to a candidate each. It may look at ``self.net``, at the training rows
``self.rows``, and call :meth:`Method.legal` to stay among points that can be written in the table.
Everything else happens here, once, for all of them.
"""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import joblib
import numpy as np

from proplace import markup
from proplace.certification import certify
from proplace.distances import L1
from proplace.errors import OptionError
from proplace.explanations import (
    Explanation,
    Explanations,
    Setting,
    status_of,
    unexplained,
)
from proplace.options import whole
from proplace.progress import progress_bar
from proplace.provenance import Provenance, Training
from proplace.region import unrestricted
from proplace.schema.features import Continuous
from proplace.shifts import Shifts
from proplace.tables import in_words, model_of, read_people, refereed, training_rows

if TYPE_CHECKING:
    from proplace.explanations import Status
    from proplace.network import Array
    from proplace.schema import Schema
    from proplace.schema._model import Label
    from proplace.schema.problems import BadRow
    from proplace.shifts import Delta
    from proplace.tables import Table

MARGIN = 1e-6
"""Margin that methods aim at, so that a point counts as valid in spite of rounding."""

_BLOCK = 64  # rows that are searched together


@dataclass(frozen=True, eq=False)
class Candidate:
    """What a method found for one row: a point, or the status and reason why there is none."""

    point: Array | None
    reason: str = ""
    status: Status = "not_found"


class Method(ABC):
    """A method that finds counterfactuals from the network and the training rows alone.

    Parameters
    ----------
    source
        The trained model, or a bare network: see :class:`proplace.Proplace`.
    schema
        Features, units and rules. Without one, tables hold the network's own columns, and answers
        stay within the range of the training rows.
    seed
        Seed of everything random. A row's answer depends on the seed and the row, not on which other
        rows are explained with it.
    n_jobs
        Processes (joblib); the answers are the same for any number.
    """

    def __init__(
        self, source: object, *, schema: Schema | None = None, seed: int = 0, n_jobs: int = 1
    ) -> None:
        self.model = model_of(source, schema)
        self.net = net = self.model.network
        self.schema = schema
        self.seed = whole("seed", seed, least=0)
        self.n_jobs = n_jobs
        self.shifts = Shifts.of(net, 0.0)  # a method without a delta knows the network alone
        self.distance = L1(np.full(net.inputs, 1.0 / net.inputs))
        self._rows: Array | None = None
        self._ready: int | None = None  # the target that was prepared for

    # -- what a method adds ------------------------------------------------------------------

    @abstractmethod
    def find(self, X: Array, target: int) -> list[Candidate]:
        """Return one candidate for each encoded row; none of them has the target class yet."""

    def prepare(self, target: int) -> None:  # noqa: B027  (most methods have nothing to prepare)
        """Do what is done once for a target, before any row is looked at."""

    def judge(self, point: Array, target: int) -> tuple[bool, float]:
        """Whether a valid point is certified robust, and its margin.

        A method without a delta knows the network alone, and certifies nothing.
        """
        return False, float(self.net.margin(point, target)[0])

    # -- lifecycle ---------------------------------------------------------------------------

    def fit(self, X: Table) -> Self:
        """Take the training rows: a DataFrame (in original units with a schema) or encoded rows."""
        self.model, self._rows = training_rows(self.model, X, declared=self.schema is not None)
        self._schema = self.model.schema
        self._training = Training.of(self._rows)
        if self.model.preprocesses:
            self.distance = L1(1.0 / (self.net.inputs * self.model.units(self._rows)))
        self._span = self._rows.min(axis=0), self._rows.max(axis=0)
        self._free = unrestricted(self._schema)
        self._ready = None
        return self

    @property
    def rows(self) -> Array:
        """The training rows as the network takes them."""
        self._check_fitted()
        assert self._rows is not None  # noqa: S101  (checked above)
        return self._rows

    def explain(self, X: Table, target: Label = 1, *, progress: bool = False) -> Explanations:
        """Find a counterfactual of class ``target`` for each row.

        Parameters
        ----------
        X
            A DataFrame in original units (with a schema), or rows as the network takes them.
        target
            The wanted class.
        progress
            Show a progress bar on standard error.

        ``seconds`` of an explanation is its share of the block of rows that was searched together;
        what is done once for all rows (:meth:`prepare`) is not in it. Ctrl-C returns what is done
        so far (``complete`` is False then).
        """
        target = self.model.target(target)
        self._check_fitted()
        rows, problems, people = read_people(self.model, X)
        made = Provenance.of(
            self.model,
            self._training,
            self.shifts,
            target,
            method=type(self).__name__,
            distance="l1",
        )
        if self._ready != target:
            self.prepare(target)
            self._ready = target
        size = max(
            1, min(_BLOCK, math.ceil(len(rows) / max(1, joblib.effective_n_jobs(self.n_jobs))))
        )
        blocks = [range(i, min(i + size, len(rows))) for i in range(0, len(rows), size)]
        jobs = (
            joblib.delayed(_explain_block)(
                self, rows[block.start : block.stop], [problems.get(i) for i in block], target
            )
            for block in blocks
        )
        done: list[list[Explanation]] = []
        complete = True
        with progress_bar("explain", len(rows), show=progress) as advance:
            try:
                for found in joblib.Parallel(n_jobs=self.n_jobs, return_as="generator")(jobs):
                    done += [[explanation] for explanation in found]
                    advance(len(found))
            except KeyboardInterrupt:
                complete = False
        names = (None,) if people is None else people.index.names
        setting = Setting(self.net, self.shifts, self._schema, self.distance, self.model.classes)
        items = in_words(setting, done, people)
        if people is not None:
            items = refereed(self.model, items, people, 0)
        return Explanations(items, complete=complete, index_names=names, provenance=made)

    # -- for the methods ---------------------------------------------------------------------

    def bounds(self, X: Array) -> tuple[Array, Array]:
        """Range of each column for each person; that of the training rows where there is none."""
        if self._free:
            lower = np.broadcast_to(self._schema.lower, X.shape)
            upper = np.broadcast_to(self._schema.upper, X.shape)
        else:
            people = [self._schema.person(x) for x in X]
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
        for feature, span in zip(self._schema.features, self._schema.spans, strict=True):
            if not isinstance(feature, Continuous) or feature.step is not None:
                points[:, span] = feature.canonical(points[:, span])
        return np.where(lower == upper, lower, points)  # also where it is no legal value

    def reachable(self, x: Array) -> Array:
        """Training rows that a person may become, made to fit the person's rules where they can."""
        if self._free:
            return self.rows
        person = self._schema.person(x)
        rows = person.adapt(self.rows, traits=True)
        return rows[person.allowed(rows)]

    def generator(self, x: Array) -> np.random.Generator:
        """Random numbers of one row: they depend on the seed and the row alone."""
        digest = hashlib.sha256((x + 0.0).tobytes()).digest()  # -0.0 is 0.0
        return np.random.default_rng([self.seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])

    # -- inside ------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        radius = self.shifts.radius(self.net)
        rows = [
            ("model", self.model),
            ("delta", "per layer" if radius is None else radius),
            ("seed", self.seed),
            ("training rows", "not fitted" if self._rows is None else f"{self._training.rows:,}"),
        ]
        return markup.card(type(self).__name__, markup.table([], rows))

    def _check_fitted(self) -> None:
        if self._rows is None:
            raise OptionError("call fit(X_train) before asking for explanations")

    def _finish(self, x: Array, candidate: Candidate, target: int, seconds: float) -> Explanation:
        """Make the point exactly what will be read, and judge that."""
        facts: dict[str, Any] = {"x": x, "seconds": seconds}
        if candidate.point is None:
            reason = candidate.reason or "the method ended without a point of the target class"
            return Explanation(None, candidate.status, reason, target, **facts)
        point = self._schema.canonical(candidate.point, own=x)[0]
        person = self._schema.person(x)
        if not person.allowed(point)[0]:
            broken = "; ".join(list(person.blame(point))[:3])
            reason = f"the point that was found breaks a rule ({broken})"
            return Explanation(None, "infeasible_rules", reason, target, **facts)
        if self.net.predict(point)[0] != target:
            reason = candidate.reason or "the point that was found does not have the target class"
            return Explanation(None, "not_found", reason, target, **facts)
        robust, margin = self.judge(point, target)
        status: Status = "feasible" if robust else "valid"
        said = "certified robust, not proved nearest" if robust else "not certified robust"
        return Explanation(
            None,
            status,
            f"{candidate.reason}; {said}" if candidate.reason else said,
            target,
            distance=float(self.distance.between(x, point)),
            bound=0.0,
            margin=margin,
            point=point,
            **facts,
        )

    def _already(self, x: Array, target: int) -> Explanation:
        robust, margin = self.judge(x, target)
        how = ", under every network within delta" if robust else ""
        reason = f"the network gives {self.model.called(target)} already{how}"
        facts: dict[str, Any] = {"distance": 0.0, "bound": 0.0, "margin": margin}
        return Explanation(None, "already_valid", reason, target, x=x, point=x, **facts)


class RobustMethod(Method):
    """A method that tests its points for Delta-robustness.

    Parameters
    ----------
    source
        The trained model, or a bare network: see :class:`proplace.Proplace`.
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    schema, seed, n_jobs
        As for every :class:`Method`.
    """

    def __init__(
        self,
        source: object,
        delta: Delta,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        n_jobs: int = 1,
    ) -> None:
        super().__init__(source, schema=schema, seed=seed, n_jobs=n_jobs)
        self.shifts = Shifts.of(self.net, delta)

    def judge(self, point: Array, target: int) -> tuple[bool, float]:
        """Whether a valid point is certified robust, and the proved bound on its worst margin."""
        report = certify(self.net, point, self.shifts, target)
        return bool(report.robust[0]), float(report.lower[0])


def _explain_block(
    method: Method, X: Array, problems: list[BadRow | None], target: int
) -> list[Explanation]:
    """Explanations of a block of rows; a row that fails never loses the others."""
    found: dict[int, Explanation] = {}
    todo: list[int] = []
    for i, problem in enumerate(problems):
        if problem is not None:
            found[i] = Explanation(None, "bad_input", problem.reason, target)
        elif method.net.predict(X[i])[0] == target:
            found[i] = method._already(X[i], target)
        else:
            todo.append(i)
    found |= dict(zip(todo, _search(method, X[todo], target), strict=True))
    return [found[i] for i in range(len(X))]


def _search(method: Method, X: Array, target: int) -> list[Explanation]:
    """Search rows together; if that fails, one by one, so that only the bad one is lost."""
    if not len(X):
        return []
    start = time.monotonic()
    try:
        candidates = method.find(X, target)
        each = (time.monotonic() - start) / len(X)
        return [
            method._finish(x, candidate, target, each)
            for x, candidate in zip(X, candidates, strict=True)
        ]
    except OptionError:  # the call is wrong, not the row
        raise
    except Exception as error:
        if len(X) > 1:
            return [explanation for x in X for explanation in _search(method, x[None], target)]
        return [Explanation(None, status_of(error), unexplained(error), target, x=X[0])]
