"""PROPLACE: the nearest plausible input that every network within delta accepts."""

from __future__ import annotations

import functools
import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from proplace import distances, markup
from proplace.certification import certify
from proplace.errors import InputError, MissingExtra, OptionError
from proplace.explanations import (
    Explanation,
    Explanations,
    Optimality,
    Setting,
    status_of,
    unexplained,
)
from proplace.lp import LP_TOLERANCE
from proplace.options import one_of, processes, whole
from proplace.parallel import Workers
from proplace.progress import progress_bar
from proplace.provenance import Provenance, Training
from proplace.region import (
    Neighbours,
    RobustRows,
    box_pieces,
    hull_pieces,
    keep,
    time_left,
    unrestricted,
    ways,
)
from proplace.search.hunt import GAP
from proplace.search.pieces import Answer, search
from proplace.search.problem import Problem
from proplace.search.solvers import TITLES, Solver, check
from proplace.several import several
from proplace.shifts import Shifts
from proplace.tables import distinct, in_words, model_of, read_people, refereed, training_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pandas as pd

    from proplace.certification import Certificate, Report
    from proplace.certification.deployed import Margin
    from proplace.certification.producer import Evidence
    from proplace.distances import Distance
    from proplace.explanations import Status
    from proplace.network import Array
    from proplace.region import Mask, RegionKind
    from proplace.schema import Schema
    from proplace.schema._model import Label
    from proplace.schema.person import Person
    from proplace.schema.problems import BadRow
    from proplace.search.pieces import SearchName
    from proplace.search.problem import Piece
    from proplace.shifts import Delta
    from proplace.tables import People, Table

_TIDY = 1e-6  # encoded change that a reader would not see: taken back where what is left is robust
_REPAIRS = (1e-6, 1e-4, 1e-2, 0.1, 0.5)  # steps towards a neighbour when a proof fails by a hair
_RESERVE = 0.1  # share of a time limit that is kept for the proof of what the search has found,
_MOST_RESERVE = 1.0  # seconds of that, at most
_GRACE = 0.2  # seconds beyond the limit in which to prove at least a neighbour
_NO_TIME = "the time limit came before a point was proved robust; allow more time"
_ASK_AGAIN = "this is no fault of the row: raise the slack, or try another search"


@dataclass(frozen=True)
class _Clock:
    """Times, by ``time.monotonic``, by which the search and the proof of its answer must end."""

    search: float
    proof: float

    @classmethod
    def of(cls, time_limit: float | None) -> _Clock:
        """Start now."""
        if time_limit is None:
            return cls(math.inf, math.inf)
        end = time.monotonic() + time_limit
        return cls(end - min(_RESERVE * time_limit, _MOST_RESERVE), end + _GRACE)

    @property
    def over(self) -> bool:
        """Whether the search has no time left."""
        return time.monotonic() >= self.search


@dataclass(frozen=True, eq=False)
class _Proved:
    """A point with its certificate and least margin; ``trouble`` where it is not what was wanted."""

    point: Array
    certificate: Certificate
    margin: float
    trouble: str
    is_answer: bool  # whether it is the search's own


class Proplace:
    """Provably robust and plausible counterfactual explanations.

    Parameters
    ----------
    source
        The trained model: a fitted scikit-learn pipeline, a torch module, a Keras model, the path of
        a model file, a :class:`proplace.Model`, or a bare :class:`proplace.Network`.
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    k
        Number of robust neighbours that span the plausible region.
    schema
        Features, units and rules. Without one, tables hold the model's own columns, all free. A
        model that encodes its table itself keeps its encoding: the schema adds ranges, steps,
        directions, labels and rules.
    distance
        ``"l1"`` (mean absolute difference of encoded columns; a number that the model scales itself
        counts in units of its range in the training rows), ``"l2"``, ``"linf"``, ``"mad"``, or
        an object with ``between`` and ``subgradient``.
    weights
        One weight per encoded column for a named distance.
    region
        ``"hull"``: the convex hulls of the robust neighbours and the person. ``"box"``: anywhere
        within the features' ranges and rules, plausible or not.
    margin
        Every network in Delta must reach the target class by at least this much. ``"float32"``: as
        much as covers the rounding of a model deployed in float32; this is the default for models
        that are (``net.precision``), else 1e-6.
    slack
        Extra margin asked for inside the search, so that answers pass the test at ``margin``.
    search
        ``"tree"`` (default) or ``"bilevel"``, the paper's Algorithm 1; same answers.
    solver
        Of the programs of ``search="bilevel"``: ``"highs"``, ``"gurobi"`` or ``"scip"`` (the last two
        with the extra of that name); same answers. The tree runs on HiGHS.
    n_jobs
        Processes (joblib; None: one, or what ``joblib.parallel_config`` says). The answers are the
        same for any number, here or on a cluster.
    time_limit
        Seconds per person. At the limit the best point so far is returned, certified, with a bound
        on how much nearer any answer could be.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Proplace
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    >>> explainer = Proplace(net, delta=0.05, k=3).fit(train)
    >>> result = explainer.explain([[0.2, 0.3]])
    >>> result[0].status, round(result[0].distance, 3)
    ('optimal', 0.42)
    >>> bool(net.predict(result.points)[0])
    True
    """

    def __init__(
        self,
        source: object,
        delta: Delta,
        *,
        k: int = 20,
        schema: Schema | None = None,
        distance: distances.Name | Distance = "l1",
        weights: npt.ArrayLike | None = None,
        region: RegionKind = "hull",
        margin: Margin | None = None,
        slack: float = 1e-4,
        search: SearchName = "tree",
        solver: Solver = "highs",
        n_jobs: int | None = None,
        time_limit: float | None = None,
    ) -> None:
        self.model = model_of(source, schema)
        self.net = net = self.model.network
        self.shifts = Shifts.of(net, delta)
        self.k = whole("k", k)
        self.schema = schema
        self.distance = distance
        self.weights = weights
        self.region = one_of("region", region, ("hull", "box"))
        self.search = one_of("search", search, ("tree", "bilevel"))
        self.solver = _solver(self.search, solver)
        if margin is None:
            margin = "float32" if net.precision == "float32" else 1e-6
        if isinstance(margin, str) and margin != "float32":
            raise OptionError(f"margin must be a number >= 0 or 'float32', not {margin!r}")
        for name, value in (("margin", margin), ("slack", slack)):
            if value != "float32" and not (math.isfinite(value) and value >= 0.0):
                raise OptionError(f"{name} must be a number >= 0, not {value!r}")
        if slack == 0.0:
            raise OptionError("slack must be positive: answers are tested in floating point")
        self.margin: Margin = margin if margin == "float32" else float(margin)
        self.slack = float(slack)
        self.n_jobs = processes("n_jobs", n_jobs)
        if time_limit is not None and not time_limit > 0.0:
            raise OptionError(
                f"time_limit must be a positive number of seconds, not {time_limit!r}"
            )
        self.time_limit = time_limit
        self._rows: Array | None = None
        self._robust: dict[int, RobustRows] = {}

    # -- lifecycle ---------------------------------------------------------------------------

    def fit(self, X: Table) -> Proplace:
        """Take the training rows; which of them are robust is found when a target is asked for."""
        self.model, rows = training_rows(self.model, X, declared=self.schema is not None)
        self._schema = self.model.schema
        self._rows = distinct(rows)
        self._training = Training.of(rows)
        units = self.model.units(rows) if self.model.preprocesses else None
        self._distance = distances.resolve(
            self.distance, self.net.inputs, rows, self.weights, units
        )
        # One margin for all of a search: of the rows and hence, being convex, of their hulls.
        margins = self.model.margins(self.shifts, self._rows, self.margin)
        self._margin = float(np.max(margins))
        if not np.isfinite(self._margin):
            row = int(np.argmax(~np.isfinite(margins)))
            raise InputError(
                f"distinct training row {row} leaves the range of float32 on its way through the "
                "network; drop or rescale such rows, or give a margin as a number"
            )
        self._robust = {}
        return self

    @property
    def setting(self) -> Setting:
        """What every answer is about: network, Delta, features, distance and classes."""
        self._check_fitted()
        return Setting(self.net, self.shifts, self._schema, self._distance, self.model.classes)

    def provenance(self, target: int) -> Provenance:
        """What answers for a class, given by its number, are made from; the date is that of now."""
        self._check_fitted()
        return Provenance.of(
            self.model,
            self._training,
            self.shifts,
            target,
            method=type(self).__name__,
            distance=self.distance,
            k=self.k,
            region=self.region,
        )

    def robust_rows(self, target: Label = 1) -> Array:
        """Distinct training rows that are robust for a target, as the network sees them."""
        return self._robust_rows(self.model.target(target)).robust

    def explain(
        self, X: Table, target: Label = 1, *, count: int = 1, progress: bool = False
    ) -> Explanations:
        """Find the nearest robust and plausible input of class ``target`` for each row.

        Parameters
        ----------
        X
            A table in original units (pandas, polars, a dictionary, ...), or rows as the model takes
            them.
        target
            The wanted class, by its label.
        count
            Up to this many answers per row that differ in what they change, nearest first.
        progress
            Show a progress bar on standard error.

        Ctrl-C returns what is done so far (``complete`` is False then).
        """
        self._check_fitted()
        number = self.model.target(target)
        count = whole("count", count)
        people = self._read(X)
        with progress_bar("explain", len(people[0]), show=progress) as advance:
            (result,) = self._parts([people], number, count, math.inf, advance)
        return result

    def stream(
        self,
        tables: Iterable[Table],
        target: Label = 1,
        *,
        count: int = 1,
        every: float = 5.0,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Explanations]:
        """Explain tables one after another, such as the chunks of a file; memory stays bounded.

        What is ready is handed over about every ``every`` seconds and at the end of each table, in
        order. ``advance`` is called with the number of rows that were done. Workers are started
        once for all tables. Ctrl-C ends with a last part whose ``complete`` is False.
        """
        self._check_fitted()
        number = self.model.target(target)
        count = whole("count", count)
        people = (self._read(table) for table in tables)
        return self._parts(people, number, count, every, advance)

    def _parts(
        self,
        tables: Iterable[People],
        target: int,
        count: int,
        every: float,
        advance: Callable[[int], None],
    ) -> Iterator[Explanations]:
        made = self.provenance(target)
        shared = (self, self._robust_rows(target), target, count)
        lost = functools.partial(_lost_row, target)
        with Workers(_explain_row, shared, lost=lost, n_jobs=self.n_jobs) as workers:
            for rows, problems, people in tables:
                done: list[list[Explanation]] = []
                given, complete, start = 0, True, time.monotonic()
                try:
                    for found in workers.map([(x, problems.get(i)) for i, x in enumerate(rows)]):
                        done.append(found)
                        advance(1)
                        if time.monotonic() - start >= every:
                            yield self._told(done, people, given, complete, made)
                            given, done, start = given + len(done), [], time.monotonic()
                except KeyboardInterrupt:
                    complete = False
                if done or not given or not complete:
                    yield self._told(done, people, given, complete, made)
                if not complete:
                    return

    # -- one person --------------------------------------------------------------------------

    def _answers(
        self, robust: RobustRows, x: Array, target: int, count: int
    ) -> Iterator[Explanation]:
        """Answers for one person, nearest first, each with another set of changed features."""
        clock = _Clock.of(self.time_limit)

        def find(kept: frozenset[int]) -> Explanation:
            if kept and clock.over:
                return Explanation(None, "not_found", _NO_TIME, target, x=x)
            return self._answer(robust, x, target, kept, clock)

        return several(find, self._schema, count)

    def _answer(
        self, robust: RobustRows, x: Array, target: int, kept: frozenset[int], clock: _Clock
    ) -> Explanation:
        """The nearest answer for one person that keeps some features as they are."""
        start = time.monotonic()
        schema = self._schema
        people = ways(schema, x)
        neighbours, late = robust.rows[:0], False
        pieces: Iterable[Piece]
        if self.region == "hull":
            found, pieces = self._hulls(robust, people, clock)
            if found.status != "found":
                return Explanation(None, found.status, found.reason, target, x=x)
            neighbours, late = found.rows, found.late
        else:
            low, high = robust.rows.min(axis=0), robust.rows.max(axis=0)
            pieces = itertools.chain.from_iterable(
                box_pieces(schema, person, low, high) for person in people
            )
        if kept:
            columns = [i for i, column in enumerate(schema.columns) if column.feature in kept]
            pieces = keep(pieces, x, columns)
        problem = Problem(
            self.net,
            self.shifts,
            target,
            x,
            self._distance,
            self._margin,
            self.slack,
            {i: c for i, c in enumerate(schema.columns) if c.kind == "grid"},
        )
        if late:  # without all neighbours nothing can be said of the region
            outcome = Answer(None, np.inf, 0.0, "unknown")
        else:
            outcome = search(
                problem, pieces, method=self.search, solver=self.solver, deadline=clock.search
            )
        fallback = neighbours[:0] if kept else neighbours
        proved = self._proved(problem, people, fallback, outcome, clock.proof)
        facts: dict[str, Any] = {
            "x": problem.x,
            "neighbours": neighbours,
            "nodes": outcome.nodes,
            "programs": outcome.programs,
            "rounds": outcome.rounds,
            "seconds": time.monotonic() - start,
        }
        if proved is None:
            status, reason = self._why_none(outcome, fallback, clock)
            return Explanation(None, status, reason, target, **facts)
        few = "" if late else self._few(neighbours)
        return self._found(problem, outcome, proved, few, facts)

    def _hulls(
        self, robust: RobustRows, people: Sequence[Person], clock: _Clock
    ) -> tuple[Neighbours, list[Piece]]:
        """Robust neighbours and the pieces that they span, over all ways that a person may go."""
        found, pieces = [], []
        for person in people:
            free = unrestricted(self._schema) and person is people[0]
            near = (
                robust.nearest(person.x, self.k)
                if free
                else robust.admissible(person, self.k, clock.search)
            )
            found.append(near)
            if near.status == "found":
                pieces += hull_pieces(self._schema, person, near.rows)
        good = [near for near in found if near.status == "found"]
        if len(good) <= 1:
            return (good or found)[0], pieces
        rows = np.vstack([near.rows for near in good])
        order = np.argsort(self._distance.between(people[0].x, rows), kind="stable")
        late = any(near.late for near in good)
        return Neighbours(rows[order], "found", late=late), pieces

    def _few(self, neighbours: Array) -> str:
        """Say so where there are fewer neighbours than were asked for."""
        if not 0 < len(neighbours) < self.k:
            return ""
        return f"only {len(neighbours)} of k = {self.k} robust neighbours exist"

    def _proved(
        self,
        problem: Problem,
        people: Sequence[Person],
        fallback: Array,
        outcome: Answer,
        until: float,
    ) -> _Proved | None:
        """The best point that is exactly what will be read, with its proof.

        That of the search; should its proof fail by a hair, one near it; else the nearest robust
        neighbour that can be proved in time. Points between robust rows and the search's stay in
        the hull.
        """
        x = problem.x
        near = _alongside(people, outcome.point, fallback)
        for row, trouble in _candidates(x, outcome.point, near):
            point = self._schema.canonical(problem.snap(row), own=x)[0]
            if not _allowed(people, point[None])[0]:
                continue
            proof, margin = self._certified(point, problem.target, outcome.evidence, until)
            if proof is not None:
                return _Proved(point, proof, margin, outcome.trouble or trouble, trouble == "")
            if time.monotonic() >= until:
                break
        rows = self._schema.canonical(problem.snap(fallback), own=x)
        rows = rows[_allowed(people, rows)]
        if not len(rows):
            return None
        report = self._certify(rows, problem.target, until)
        good = np.flatnonzero(report.robust)
        if not len(good):
            return None
        i = int(good[0])
        trouble = outcome.trouble
        if outcome.status == "infeasible":
            trouble = trouble or "it found no point in a region that holds one"
        elif outcome.point is not None and time.monotonic() < until:
            trouble = trouble or "its answer failed the last test"
        proof = None if report.certificates is None else report.certificates[i]
        assert proof is not None  # noqa: S101  (a robust row has one)
        return _Proved(rows[i], proof, float(report.lower[i]), trouble, is_answer=False)

    def _why_none(self, outcome: Answer, fallback: Array, clock: _Clock) -> tuple[Status, str]:
        """Status and reason where no point is proved."""
        if outcome.trouble:
            return "solver_error", f"the solver failed ({outcome.trouble}); {_ASK_AGAIN}"
        if outcome.status == "infeasible" and not len(fallback):
            ruled_out = not unrestricted(self._schema)
            none = "no point within the features' ranges and rules is robust at this delta"
            return "infeasible_rules" if ruled_out else "no_robust_neighbour", none
        if clock.over:
            return "not_found", _NO_TIME
        return "solver_error", f"the solver failed (its answer failed the last test); {_ASK_AGAIN}"

    def _found(
        self, problem: Problem, outcome: Answer, proved: _Proved, few: str, facts: dict[str, Any]
    ) -> Explanation:
        """The explanation of a point that is proved robust."""
        optimal = proved.is_answer and outcome.status == "optimal"
        bound = 0.0 if outcome.status == "infeasible" else max(outcome.lower, 0.0)
        why = ""
        if not optimal:
            failed = f"the solver failed ({proved.trouble})"
            why = failed if proved.trouble else "stopped at the time limit"
            why = f"{why}; nothing nearer than {bound:.6g} has the margin in the region"
        distance = float(self._distance.between(problem.x, proved.point))
        return Explanation(
            None,
            "optimal" if optimal else "feasible",
            "; ".join(part for part in (why, few) if part),
            problem.target,
            distance=distance,
            bound=min(bound, distance),
            margin=proved.margin,
            point=proved.point,
            certificate=proved.certificate,
            optimality=Optimality(
                min(bound, distance),
                problem.search_margin,
                GAP,
                LP_TOLERANCE,
                f"{self.search}, {TITLES[self.solver]}",
            ),
            **facts,
        )

    def _certified(
        self, point: Array, target: int, evidence: Evidence | None, until: float
    ) -> tuple[Certificate | None, float]:
        """The certificate that a point is robust, if it is, and its least margin."""
        if evidence is not None and np.array_equal(evidence.point, point):
            margin = self._asked(point[None])
            certificate = evidence.certificate(self.net, self.shifts, target, margin)
            if certificate is not None:
                return certificate, evidence.lower
        report = self._certify(point[None], target, until)
        assert report.certificates is not None  # noqa: S101  (asked for)
        certificate = report.certificates[0] if report.robust[0] else None
        return certificate, float(report.lower[0])

    def _asked(self, rows: Array) -> float:
        """The margin that each of some rows must keep."""
        return float(np.max(self.model.margins(self.shifts, rows, self.margin)))

    def _certify(self, rows: Array, target: int, until: float = math.inf) -> Report:
        """Verdicts with certificates, as far as they come in time."""
        return certify(
            self.net,
            rows,
            self.shifts,
            target,
            margin=self._asked(rows) if self.model.preprocesses else self.margin,
            certificates=True,
            time_limit=time_left(until),
        )

    def _already(self, x: Array, target: int) -> Explanation:
        """The explanation of a person who has the target class, perhaps robustly."""
        start, clock = time.monotonic(), _Clock.of(self.time_limit)
        report = self._certify(x[None], target, clock.proof)
        assert report.certificates is not None  # noqa: S101  (asked for)
        how = "but not robustly"
        if report.robust[0]:
            how = "under every network within delta"
        elif report.undecided[0]:
            how = f"whether robustly is not decided{' in the time limit' if clock.over else ''}"
        return Explanation(
            None,
            "already_valid",
            f"the network gives {self.model.called(target)} already, {how}",
            target,
            distance=0.0,
            bound=0.0,
            margin=float(report.lower[0]),
            x=x,
            point=x,
            certificate=report.certificates[0],
            seconds=time.monotonic() - start,
        )

    # -- inside ------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        radius = self.shifts.radius(self.net)
        rows = [
            ("model", self.model),
            ("delta", "per layer" if radius is None else radius),
            ("k", self.k),
            ("region", self.region),
            ("distance", distances.name_of(self.distance)),
            ("margin", self.margin),
            ("search", f"{self.search}, {TITLES[self.solver]}"),
            (
                "time limit",
                "none" if self.time_limit is None else f"{self.time_limit:g} s a person",
            ),
            ("training rows", "not fitted" if self._rows is None else f"{self._training.rows:,}"),
        ]
        return markup.card(type(self).__name__, markup.table([], rows))

    def _read(self, X: Table) -> People:
        return read_people(self.model, X)

    def _told(
        self,
        done: list[list[Explanation]],
        people: pd.DataFrame | None,
        first: int,
        complete: bool,
        made: Provenance,
    ) -> Explanations:
        items = in_words(self.setting, done, people, first=first)
        if people is not None:
            items = refereed(self.model, items, people, first)
        names = (None,) if people is None else people.index.names
        return Explanations(items, complete=complete, index_names=names, provenance=made)

    def _robust_rows(self, target: int) -> RobustRows:
        self._check_fitted()
        if target not in self._robust:
            assert self._rows is not None  # noqa: S101  (checked above)
            self._robust[target] = RobustRows(
                self.net,
                self.shifts,
                target,
                self._margin + self.slack,
                self._rows,
                self._distance,
                self.model.called(target),
            )
        return self._robust[target]

    def _check_fitted(self) -> None:
        if self._rows is None:
            raise OptionError("call fit(X_train) before asking for explanations")


def _explain_row(
    shared: tuple[Proplace, RobustRows, int, int], person: tuple[Array, BadRow | None]
) -> list[Explanation]:
    """All answers for one row; a row that fails never loses the others."""
    (explainer, robust, target, count), (x, problem) = shared, person
    if problem is not None:
        return [Explanation(None, "bad_input", problem.reason, target)]
    try:
        if explainer.net.predict(x)[0] == target:
            return [explainer._already(x, target)]
        return list(explainer._answers(robust, x, target, count))
    except (OptionError, MissingExtra):  # the call is wrong, not the row
        raise
    except Exception as error:  # one row must not lose the others
        return [Explanation(None, status_of(error), unexplained(error), target, x=x)]


def _lost_row(target: int, person: tuple[Array, BadRow | None]) -> list[Explanation]:
    """What to say about a row during which the workers died; a bad row needs no worker."""
    x, problem = person
    if problem is not None:
        return [Explanation(None, "bad_input", problem.reason, target)]
    reason = "no answer yet: the process died each time, as if killed or out of memory; try again"
    return [Explanation(None, "worker_died", reason, target, x=x)]


def _allowed(people: Sequence[Person], rows: Array) -> Mask:
    """Which rows a person may become, in one way or another."""
    good: Mask = np.any([person.allowed(rows) for person in people], axis=0)
    return good


def _alongside(people: Sequence[Person], point: Array | None, rows: Array) -> Array:
    """Rows that keep the same values outside of a range as a point: what is between them is legal."""
    if point is None or len(people) == 1:
        return rows
    x = people[0].x
    inside = (people[0].lower > x) | (people[0].upper < x)  # of the columns that may move there
    same: Array = rows[((rows == x) == (point == x))[:, inside].all(axis=1)]
    return same


def _candidates(x: Array, point: Array | None, neighbours: Array) -> Iterator[tuple[Array, str]]:
    """Points to certify, best first, each with what is wrong if it comes to that.

    The search's point, without changes that nobody would see; then points on the way from it to the
    nearest robust neighbours.
    """
    if point is None:
        return
    tidy = np.where(np.abs(point - x) <= _TIDY, x, point)
    if (tidy != point).any():
        yield tidy, ""
    yield point, ""
    for step in _REPAIRS:
        for goal in neighbours[:3]:
            yield point + step * (goal - point), "its answer failed the last test by a hair"


def _solver(search: SearchName, solver: Solver) -> Solver:
    one_of("solver", solver, get_args(Solver))
    if search == "tree" and solver != "highs":
        raise OptionError(
            f"search='tree' runs on HiGHS; solver={solver!r} belongs to search='bilevel'"
        )
    return check(solver)
