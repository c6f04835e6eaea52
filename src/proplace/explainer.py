"""PROPLACE: the nearest plausible input that every network within delta accepts."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from proplace import distances
from proplace.certification import certify
from proplace.certification.deployed import resolve
from proplace.errors import InputError, MissingExtra, OptionError, SolverError
from proplace.explanations import Explanation, Explanations, Optimality, Setting
from proplace.lp import LP_TOLERANCE
from proplace.options import one_of, whole
from proplace.parallel import Workers
from proplace.progress import progress_bar
from proplace.region import RobustRows, box_pieces, hull_pieces, keep, unrestricted
from proplace.search.hunt import GAP
from proplace.search.pieces import Answer, search
from proplace.search.problem import Problem
from proplace.search.solvers import TITLES, Solver, check
from proplace.several import several
from proplace.shifts import Shifts
from proplace.tables import check_schema, distinct, in_words, read_people, training_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt
    import pandas as pd

    from proplace.certification import Certificate
    from proplace.certification.deployed import Margin
    from proplace.certification.producer import Evidence
    from proplace.distances import Distance
    from proplace.network import Array, Network
    from proplace.region import RegionKind
    from proplace.schema import Schema
    from proplace.schema.person import Person
    from proplace.search.pieces import SearchName
    from proplace.shifts import Delta
    from proplace.tables import People, Table

_TIDY = 1e-6  # encoded change that a reader would not see: taken back where what is left is robust
_REPAIRS = (1e-6, 1e-4, 1e-2, 0.1, 0.5)  # steps towards a neighbour when a proof fails by a hair


class Proplace:
    """Provably robust and plausible counterfactual explanations.

    Parameters
    ----------
    net
        The trained network.
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    k
        Number of robust neighbours that span the plausible region.
    schema
        Features, units and rules. Without one, tables hold the network's own columns, all free.
    distance
        ``"l1"`` (mean absolute difference of encoded columns), ``"l2"``, ``"linf"``, ``"mad"``, or
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
        net: Network,
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
        self.net = net
        self.shifts = Shifts.of(net, delta)
        self.k = whole("k", k)
        self.schema = check_schema(net, schema)
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
        if n_jobs == 0:
            raise OptionError(
                "n_jobs must be a number of processes, or -1 for all processors, not 0"
            )
        self.n_jobs = n_jobs
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
        self._schema, rows = training_rows(self.net, self.schema, X)
        self._rows = distinct(rows)
        self._distance = distances.resolve(self.distance, self.net.inputs, rows, self.weights)
        # One margin for all of a search: of the rows and hence, being convex, of their hulls.
        margins = resolve(self.net, self.shifts, self._rows, self.margin)
        self._margin = float(np.max(margins))
        if not np.isfinite(self._margin):
            row = int(np.argmax(~np.isfinite(margins)))
            raise InputError(
                f"distinct training row {row} leaves the range of float32 on its way through the "
                "network; drop or rescale such rows, or give a margin as a number"
            )
        self._robust = {}
        return self

    def robust_rows(self, target: int = 1) -> Array:
        """Distinct training rows that are robust for a target, as the network sees them."""
        return self._robust_rows(target).robust

    def explain(
        self, X: Table, target: int = 1, *, count: int = 1, progress: bool = False
    ) -> Explanations:
        """Find the nearest robust and plausible input of class ``target`` for each row.

        Parameters
        ----------
        X
            A DataFrame in original units (with a schema), or rows as the network takes them.
        target
            The wanted class.
        count
            Up to this many answers per row that differ in what they change, nearest first.
        progress
            Show a progress bar on standard error.

        Ctrl-C returns what is done so far (``complete`` is False then).
        """
        self._check_fitted()
        target = self.net.check_target(target)
        count = whole("count", count)
        people = self._read(X)
        with progress_bar("explain", len(people[0]), show=progress) as advance:
            (result,) = self._parts([people], target, count, math.inf, advance)
        return result

    def stream(
        self,
        tables: Iterable[Table],
        target: int = 1,
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
        target = self.net.check_target(target)
        count = whole("count", count)
        people = (self._read(table) for table in tables)
        return self._parts(people, target, count, every, advance)

    def _parts(
        self,
        tables: Iterable[People],
        target: int,
        count: int,
        every: float,
        advance: Callable[[int], None],
    ) -> Iterator[Explanations]:
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
                            yield self._told(done, people, given, complete)
                            given, done, start = given + len(done), [], time.monotonic()
                except KeyboardInterrupt:
                    complete = False
                if done or not given or not complete:
                    yield self._told(done, people, given, complete)
                if not complete:
                    return

    # -- one person --------------------------------------------------------------------------

    def _answers(
        self, robust: RobustRows, x: Array, target: int, count: int
    ) -> Iterator[Explanation]:
        """Answers for one person, nearest first, each with another set of changed features."""
        limit = np.inf if self.time_limit is None else time.monotonic() + self.time_limit

        def find(kept: frozenset[int]) -> Explanation:
            return self._answer(robust, x, target, kept, limit)

        return several(find, self._schema, count)

    def _answer(
        self, robust: RobustRows, x: Array, target: int, kept: frozenset[int], limit: float
    ) -> Explanation:
        """The nearest answer for one person that keeps some features as they are."""
        start = time.perf_counter()
        schema = self._schema
        person = schema.person(x)
        free = unrestricted(schema)
        neighbours = robust.rows[:0]
        if self.region == "hull":
            found = robust.nearest(x, self.k) if free else robust.admissible(person, self.k)
            if found.status != "found":
                return Explanation(None, found.status, found.reason, target, x=x)
            neighbours = found.rows
            pieces = hull_pieces(schema, person, neighbours)
        else:
            data = robust.rows
            pieces = list(box_pieces(schema, person, data.min(axis=0), data.max(axis=0)))
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
        try:
            outcome = search(
                problem, pieces, method=self.search, solver=self.solver, deadline=limit
            )
        except SolverError as error:  # a neighbour is still a certified answer
            outcome, trouble = Answer(None, np.inf, 0.0, "unknown"), str(error)
        else:
            trouble = ""
        fallback = neighbours[: 0 if kept else 1]
        return self._finish(problem, person, neighbours, fallback, outcome, trouble, start)

    def _finish(
        self,
        problem: Problem,
        person: Person,
        neighbours: Array,
        fallback: Array,
        outcome: Answer,
        trouble: str,
        start: float,
    ) -> Explanation:
        """Make the point exactly what will be read, and certify that."""
        schema = self._schema
        facts: dict[str, Any] = {
            "x": problem.x,
            "neighbours": neighbours,
            "nodes": outcome.nodes,
            "programs": outcome.programs,
            "rounds": outcome.rounds,
        }
        status, bound = outcome.status, outcome.lower
        few = self.region == "hull" and 0 < len(neighbours) < self.k
        reason = f"only {len(neighbours)} of k = {self.k} robust neighbours exist" if few else ""
        if outcome.point is None:
            if not len(fallback):
                spent = "the time limit came before a robust point was found"
                none = "no point within the features' ranges and rules is robust at this delta"
                ruled_out = status == "infeasible" and not unrestricted(schema)
                return Explanation(
                    None,
                    "infeasible_rules" if ruled_out else "no_robust_neighbour",
                    trouble or (spent if status == "unknown" else none),
                    problem.target,
                    seconds=time.perf_counter() - start,
                    **facts,
                )
            status, bound = "feasible", min(bound, 0.0)
        proof: Certificate | None = None
        for row, note in _candidates(problem.x, outcome.point, neighbours, fallback):
            point = schema.canonical(problem.snap(row))[0]
            if not person.allowed(point)[0]:
                continue
            proof, margin = self._certified(point, problem.target, outcome.evidence)
            if proof is not None:
                if note and outcome.point is not None:
                    status, trouble = "feasible", trouble or note
                break
        if proof is None:
            return Explanation(
                None,
                "no_robust_neighbour",
                f"the solver failed ({trouble or 'its answer failed the last test'}); "
                "raise the slack",
                problem.target,
                seconds=time.perf_counter() - start,
                **facts,
            )
        bound = max(bound, 0.0)
        if status == "feasible":
            early = "stopped at the time limit" if self.time_limit else "the solver gave up"
            why = f"the solver failed ({trouble})" if trouble else early
            proved = f"{why}; nothing nearer than {bound:.6g} has the margin in the region"
            reason = f"{proved}; {reason}" if reason else proved
        distance = float(self._distance.between(problem.x, point))
        return Explanation(
            None,
            "optimal" if status == "optimal" else "feasible",
            reason,
            problem.target,
            distance=distance,
            bound=min(bound, distance),
            margin=margin,
            point=point,
            certificate=proof,
            optimality=Optimality(
                min(bound, distance),
                problem.search_margin,
                GAP,
                LP_TOLERANCE,
                f"{self.search}, {TITLES[self.solver]}",
            ),
            seconds=time.perf_counter() - start,
            **facts,
        )

    def _certified(
        self, point: Array, target: int, evidence: Evidence | None
    ) -> tuple[Certificate | None, float]:
        """The certificate that a point is robust, if it is, and its least margin."""
        if evidence is not None and np.array_equal(evidence.point, point):
            margin = float(np.max(resolve(self.net, self.shifts, point[None], self.margin)))
            certificate = evidence.certificate(self.net, self.shifts, target, margin)
            if certificate is not None:
                return certificate, evidence.lower
        report = certify(
            self.net, point, self.shifts, target, margin=self.margin, certificates=True
        )
        assert report.certificates is not None  # noqa: S101  (asked for)
        certificate = report.certificates[0] if report.robust[0] else None
        return certificate, float(report.lower[0])

    # -- inside ------------------------------------------------------------------------------

    def _read(self, X: Table) -> People:
        return read_people(self.net, self._schema, X, declared=self.schema is not None)

    def _told(
        self, done: list[list[Explanation]], people: pd.DataFrame | None, first: int, complete: bool
    ) -> Explanations:
        setting = Setting(self.net, self.shifts, self._schema, self._distance)
        items = in_words(setting, done, people, first=first)
        name = None if people is None else people.index.name
        return Explanations(items, complete=complete, index_name=name)

    def _robust_rows(self, target: int) -> RobustRows:
        self._check_fitted()
        if target not in self._robust:
            assert self._rows is not None  # noqa: S101  (checked above)
            self._robust[target] = RobustRows(
                self.net, self.shifts, target, self._margin + self.slack, self._rows, self._distance
            )
        return self._robust[target]

    def _check_fitted(self) -> None:
        if self._rows is None:
            raise OptionError("call fit(X_train) before asking for explanations")


def _explain_row(
    shared: tuple[Proplace, RobustRows, int, int], person: tuple[Array, str | None]
) -> list[Explanation]:
    """All answers for one row; a row that fails never loses the others."""
    (explainer, robust, target, count), (x, problem) = shared, person
    if problem is not None:
        return [Explanation(None, "bad_input", problem, target)]
    net = explainer.net
    if net.predict(x)[0] == target:
        report = certify(
            net, x, explainer.shifts, target, margin=explainer.margin, certificates=True
        )
        assert report.certificates is not None  # noqa: S101  (asked for)
        how = "under every network within delta" if report.robust[0] else "but not robustly"
        return [
            Explanation(
                None,
                "already_valid",
                f"the network gives class {target} already, {how}",
                target,
                distance=0.0,
                bound=0.0,
                margin=float(report.lower[0]),
                x=x,
                point=x,
                certificate=report.certificates[0],
            )
        ]
    try:
        return list(explainer._answers(robust, x, target, count))
    except (OptionError, MissingExtra):  # the call is wrong, not the row
        raise
    except Exception as error:  # one row must not lose the others
        reason = f"this row could not be explained ({type(error).__name__}: {error})"
        return [Explanation(None, "bad_input", reason, target, x=x)]


def _lost_row(target: int, person: tuple[Array, str | None]) -> list[Explanation]:
    """What to say about a row during which the workers died; a bad row needs no worker."""
    x, problem = person
    if problem is not None:
        return [Explanation(None, "bad_input", problem, target)]
    reason = "no answer yet: the process died each time, as if killed or out of memory; try again"
    return [Explanation(None, "worker_died", reason, target, x=x)]


def _candidates(
    x: Array, point: Array | None, neighbours: Array, fallback: Array
) -> Iterator[tuple[Array, str]]:
    """Points to certify, best first, each with what is wrong if it comes to that.

    The search's point, without changes that nobody would see; should its proof fail by a hair,
    points on the way from it to its robust neighbours, which stay in the hull; then a neighbour.
    """
    if point is not None:
        tidy = np.where(np.abs(point - x) <= _TIDY, x, point)
        if (tidy != point).any():
            yield tidy, ""
        yield point, ""
        for step in _REPAIRS if len(fallback) else ():
            for goal in neighbours[:3]:
                yield point + step * (goal - point), "its answer failed the last test by a hair"
    for row in fallback:
        yield row, "its answer failed the last test"


def _solver(search: SearchName, solver: Solver) -> Solver:
    one_of("solver", solver, get_args(Solver))
    if search == "tree" and solver != "highs":
        raise OptionError(
            f"search='tree' runs on HiGHS; solver={solver!r} belongs to search='bilevel'"
        )
    return check(solver)
