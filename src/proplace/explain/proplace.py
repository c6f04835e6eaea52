"""PROPLACE: the nearest plausible input that every network within delta accepts."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from proplace.certification import rounded_as, uncovered
from proplace.core import distances
from proplace.core.errors import InputError, OptionError
from proplace.core.options import integer, not_negative, one_of
from proplace.explain.base import Explainer
from proplace.explain.diverse import diverse
from proplace.explain.findings import Finding, Optimality
from proplace.explain.fixed import fixed
from proplace.explain.holds import Answer, holds
from proplace.explain.proving import Clock, Judge, Prover
from proplace.explain.reasons import DEFAULT_PAIRS, reasons_of
from proplace.explain.several import IN_USE, Voter, check_also, read_also
from proplace.loaders.coordinates import shifts_for
from proplace.region.neighbours import (
    Neighbours,
    RobustRows,
    box_pieces,
    hull_pieces,
    keep,
    unrestricted,
    variants,
)
from proplace.schema.tolerances import check_tolerance, encoded_tolerance, tolerances
from proplace.search.pieces import SearchResult, search
from proplace.search.problem import SearchProblem
from proplace.search.tuning import DEFAULT
from proplace.solvers import LP_TOLERANCE, TITLES, Solver, check
from proplace.tables.rows import distinct, read_people

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from proplace.certification import Margin
    from proplace.core.distances import Distance
    from proplace.core.model_set import ModelSet
    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.explain.findings import Status
    from proplace.explain.proving import Proved
    from proplace.explain.reasons import ReasonsList
    from proplace.loaders.model import Model
    from proplace.region.convex_piece import ConvexPiece
    from proplace.region.neighbours import RegionKind
    from proplace.schema import Schema
    from proplace.schema.person import Person
    from proplace.schema.validation import Label
    from proplace.search.pieces import SearchName
    from proplace.tables.rows import Table

DEFAULT_MARGIN = 1e-6
DEFAULT_SLACK = 1e-4
_UNANSWERED = ("no_robust_neighbour", "infeasible_rules", "not_found", "solver_error")
_TIDY = 1e-6  # encoded changes up to this are reverted where what is left is robust
# Shares of the way to a neighbour, tried in turn when a proof fails after rounding.
_REPAIRS = (1e-6, 1e-4, 1e-2, 0.1, 0.5)
_HAIR = "its answer failed the last test by a hair"
_NO_TIME = "the time limit came before a point was proved robust; allow more time"
_ASK_AGAIN = "this is no fault of the row: raise the slack, or try another search"


class Proplace(Explainer):
    """Provably robust and plausible counterfactual explanations.

    Parameters
    ----------
    source
        The trained model: a fitted scikit-learn pipeline, a torch module, a Keras model, the path of
        a model file, a :class:`proplace.Model`, or a bare :class:`proplace.Network`.
    delta
        Largest change of any parameter, one (weight, bias) pair per layer, or a
        :class:`proplace.Shifts`. Where the model itself does not lie in such a box, answers are
        accepted by it as well.
    also
        Other networks that must accept every answer, each of the kinds that ``source`` can be, or a
        pair of one and its delta: ``[net2, (net3, 0.01)]``. A network by itself stands for no other;
        with a delta, for all of its box. They may have other architectures, and scalers and encoders
        of their own: they look at the same columns of the table and have the same classes. A bare
        :class:`proplace.Network` takes rows as ``source`` encodes them. With several networks a
        certificate is a bundle of one for each, and a person counts as ``already_valid`` where the
        model in use accepts, whatever the others say (the reason tells).
    k
        Number of robust neighbours that span the plausible region.
    tolerance
        By how much a person may miss an answer and must be accepted all the same, in original units:
        ``{"income": 500}``. An answer is then accepted by every network of Delta at every point that
        misses it by no more, in all of these features at once, changed or not. It counts in the place
        of what the schema says of a feature (``Continuous(..., tolerance=500)``).
    holds
        Also prove how far an answer can be passed: for the numbers that it changes, that all values
        beyond it are accepted, too, up to the ends of their ranges, all at once ("at least 52,000").
        What can be proved quickly is in ``Explanation.holds``, and the certificate of the answer
        then is that of all of these values.
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
        Every network in Delta must reach the target class by at least this much. ``"float32"``,
        ``"float16"`` or ``"bfloat16"``: as much as covers the rounding of a model deployed so. The
        default is the model's own (``net.precision``), and 1e-6 for float64.
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
        also: Sequence[object] | None = None,
        tolerance: Mapping[str, float] | None = None,
        holds: bool = False,
        k: int = 20,
        schema: Schema | None = None,
        distance: distances.Name | Distance = "l1",
        weights: npt.ArrayLike | None = None,
        region: RegionKind = "hull",
        margin: Margin | None = None,
        slack: float = DEFAULT_SLACK,
        search: SearchName = "tree",
        solver: Solver = "highs",
        n_jobs: int | None = None,
        time_limit: float | None = None,
    ) -> None:
        self.source = source
        self.delta = delta
        self.also = also
        self.tolerance = tolerance
        self.holds = holds
        self.k = k
        self.schema = schema
        self.distance = distance
        self.weights = weights
        self.region = region
        self.margin = margin
        self.slack = slack
        self.search = search
        self.solver = solver
        self.n_jobs = n_jobs
        self.time_limit = time_limit

    # -- what the lifecycle asks for ---------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        check_also(self.also)
        check_tolerance(self.tolerance)
        if not isinstance(self.holds, (bool, np.bool_)):
            raise OptionError(f"holds must be True or False, not {self.holds!r}")
        integer("k", self.k)
        one_of("region", self.region, ("hull", "box"))
        one_of("search", self.search, ("tree", "bilevel"))
        _check_solver(self.search, self.solver)
        if isinstance(self.margin, str):
            rounded_as(self.margin)
        elif self.margin is not None:
            not_negative("margin", self.margin)
        if not_negative("slack", self.slack) == 0.0:
            raise OptionError("slack must be positive: answers are tested in floating point")
        if self.time_limit is not None and not self.time_limit > 0.0:
            raise OptionError(
                f"time_limit must be a positive number of seconds, not {self.time_limit!r}"
            )

    def learn(self, rows: Array) -> None:
        """Fit the distance and the margins; which rows are robust is found for each target."""
        model = self.model_
        self.shifts_ = shifts_for(model, self.delta)
        self.rows_ = distinct(model.schema.canonical(rows))  # answers lie between legal rows
        self.tolerance_ = tolerances(model.schema, self.tolerance)
        self.others_ = tuple(read_also(model, self.also, self.schema))
        voters = (Voter(IN_USE, model, self.shifts_), *self.others_)
        judges = [self._judge(models, voter.model) for voter in voters for models in voter.sets()]
        self.prover_ = Prover(self.schema_, tuple(judges))
        self.sets_ = tuple(judge.models for judge in judges)
        units = model.units(rows) if model.preprocesses else None
        self.distance_ = distances.resolve(
            self.distance, self.net_.inputs, rows, self.weights, units
        )
        self._robust: dict[int, RobustRows] = {}

    def _judge(self, models: ModelSet, model: Model) -> Judge:
        """Work out the margin that covers every training row, and so their hulls, for one set."""
        margin = self.margin
        if margin is None:
            precision = models.net.precision
            margin = DEFAULT_MARGIN if precision == "float64" else precision
        tolerance = encoded_tolerance(self.schema_, self.tolerance_)
        judge = Judge(replace(models, tolerance=tolerance), model, margin)
        # The required margin is convex in x, so its maximum over the rows bounds it on their hulls.
        margins = judge.margins(self.rows_)
        largest = float(np.max(margins))
        if not np.isfinite(largest):
            row = int(np.argmax(~np.isfinite(margins)))
            raise InputError(
                f"distinct training row {row} leaves the range of {margin} on its way through "
                f"{models.name}; {uncovered(models.net, margin)}"
            )
        return replace(judge, models=replace(judge.models, margin=largest))

    def prepare(self, target: int) -> None:
        """Find the robust rows."""
        self._robust_rows(target)

    def robust_rows(self, target: Label = 1) -> Array:
        """Distinct training rows that are robust for a target, as the network sees them."""
        self.check_fitted()
        return self._robust_rows(self.model_.target(target)).robust

    def reasons(
        self, X: Table, target: Label = 1, *, pairs: int = DEFAULT_PAIRS, progress: bool = False
    ) -> ReasonsList:
        """Say which features would have led to class ``target``, for a refusal notice.

        For each person: single features, and pairs of which neither is enough alone, that lead to
        the class under every network of Delta when they change as the schema allows and all else stays
        the same; each with the least change of them, certified, in the order of the distance. Features
        that never help alone are named, and so is a prediction that is fixed
        (:class:`proplace.explain.reasons.Reasons`). Values need not be plausible in the light of the
        data, as those of answers are; a feature without a range takes values in that of the training
        rows.

        Parameters
        ----------
        X, target, progress
            As for :meth:`explain`.
        pairs
            Pairs of features that are searched for one person, the most promising first; 0: none.
            ``time_limit`` counts for each person.

        Examples
        --------
        >>> from proplace import Continuous, Network, Proplace, Schema, Wording
        >>> schema = Schema([Continuous("debt", 0, 100, step=1, unit="% of income"),
        ...                  Continuous("savings", 0, 10, step=1, unit="months")])
        >>> net = Network([([[-1.0, 0.1]], [0.4])])
        >>> people = {"debt": [60, 20, 10], "savings": [1, 2, 9]}
        >>> (found,) = Proplace(net, 0.01, schema=schema).fit(people).reasons({"debt": [60],
        ...                                                                    "savings": [1]})
        >>> found.alone, found.never
        ((Reason(debt, distance 0.105),), ('savings',))
        >>> print(found.sentence(Wording("the loan", ["refused", "approved"])))
        The loan would have been approved, by every network whose weights and biases each differ by at
        most 0.01 from the model in use, with debt 39% of income instead of 60%. Savings alone
        would not have led to that, at any value.
        """
        self.check_fitted()
        number, pairs = self.model_.target(target), integer("pairs", pairs, least=0)
        people = read_people(self.model_, X)
        return reasons_of(self, people, number, pairs, progress=progress)

    def find(self, X: Array, target: int, count: int) -> list[list[Finding]]:
        """Answers for each person, nearest first, each with another set of changed features."""
        return [self._answers_or_none(x, target, count) for x in X]

    # -- one person --------------------------------------------------------------------------

    def _answers_or_none(self, x: Array, target: int, count: int) -> list[Finding]:
        """Answers for one person; without any, it is asked whether there can be one."""
        clock = Clock.of(self.time_limit)
        found = list(self._answers(x, target, count, clock))
        if found[0].status not in _UNANSWERED or clock.over:
            return found
        assert self.prover_ is not None  # noqa: S101  (this method has a delta)
        proved = fixed(self.schema_, self.prover_.judges, self.rows_, x, target, clock.search)
        return found if proved is None else [proved]

    def _answers(self, x: Array, target: int, count: int, clock: Clock) -> Iterator[Finding]:
        def find(kept: frozenset[int]) -> Finding:
            if kept and clock.over:
                return Finding("not_found", _NO_TIME, x=x)
            return self._answer(x, target, kept, clock)

        return diverse(find, self.schema_, count)

    def _answer(self, x: Array, target: int, kept: frozenset[int], clock: Clock) -> Finding:
        """The nearest answer for one person that keeps some features as they are."""
        start = time.monotonic()
        people = variants(self.schema_, x)
        near, pieces = self._region(people, target, clock)
        if near.status != "found":
            return Finding(near.status, near.reason, x=x)
        problem = SearchProblem(
            self.sets_,
            target,
            x,
            self.distance_,
            self.slack,
            self.schema_.grids(x),
        )
        if near.late:  # without all neighbours nothing can be said of the region
            outcome = SearchResult(None, np.inf, 0.0, "unknown")
        else:
            if kept:
                columns = [i for i, c in enumerate(self.schema_.columns) if c.feature in kept]
                pieces = keep(pieces, x, columns)
            outcome = search(
                problem, pieces, method=self.search, solver=self.solver, deadline=clock.search
            )
        attempt = _Attempt(problem, people, near.rows[:0] if kept else near.rows, outcome)
        finding = self._finding(attempt, clock, "" if near.late else self._few(near.rows))
        if finding.found and (self.holds or self.tolerance_):
            finding = self._holding(finding, people, target, clock)
        return replace(
            finding,
            x=x,
            neighbours=near.rows,
            nodes=outcome.nodes,
            programs=outcome.programs,
            rounds=outcome.rounds,
            seconds=time.monotonic() - start,
        )

    def _region(
        self, people: Sequence[Person], target: int, clock: Clock
    ) -> tuple[Neighbours, Iterable[ConvexPiece]]:
        """Neighbours (none for a box) and convex pieces, over all variants of the person."""
        schema, robust = self.schema_, self._robust_rows(target)
        if self.region == "box":
            low, high = self.rows_.min(axis=0), self.rows_.max(axis=0)
            boxes = (box_pieces(schema, person, low, high) for person in people)
            return Neighbours(robust.rows[:0], "found"), itertools.chain.from_iterable(boxes)
        found, pieces = [], []
        for person in people:
            free = unrestricted(schema) and person is people[0]
            near = (
                robust.nearest(person.x, self.k)
                if free
                else robust.admissible(person, self.k, clock.search)
            )
            found.append(near)
            if near.status == "found":
                pieces += hull_pieces(schema, person, near.rows)
        good = [near for near in found if near.status == "found"]
        if len(good) <= 1:
            return (good or found)[0], pieces
        rows = np.vstack([near.rows for near in good])
        order = np.argsort(self.distance_.between(people[0].x, rows), kind="stable")
        late = any(near.late for near in good)
        return Neighbours(rows[order], "found", late=late), pieces

    def _few(self, neighbours: Array) -> str:
        """Say so where there are fewer neighbours than were asked for."""
        if not 0 < len(neighbours) < self.k:
            return ""
        return f"only {len(neighbours)} of k = {self.k} robust neighbours exist"

    def _finding(self, attempt: _Attempt, clock: Clock, few: str) -> Finding:
        """Prove the best point that can be proved, and say what it is.

        Tried in order: the point of the search; points on the segments from it to robust
        neighbours, which lie in the hull too; the nearest robust neighbour.
        """
        problem, outcome = attempt.problem, attempt.outcome
        assert self.prover_ is not None  # noqa: S101  (this method has a delta)
        own, near = attempt.candidates()
        proved = self.prover_.first(
            (problem.snap(row) for row in (*own, *near)),
            attempt.people,
            problem.target,
            evidence=outcome.evidence,
            until=clock.proof,
        )
        if proved is not None:
            is_answer = proved.candidate < len(own)
            trouble = outcome.trouble or ("" if is_answer else _HAIR)
            return self._proved(attempt, proved, trouble, few, is_answer=is_answer)
        proved = self.prover_.nearest(
            problem.snap(attempt.fallback), attempt.people, problem.target, clock.proof
        )
        if proved is None:
            return Finding(*attempt.why_none(clock, ruled=not unrestricted(self.schema_)))
        return self._proved(attempt, proved, attempt.trouble(clock), few, is_answer=False)

    def _proved(
        self, attempt: _Attempt, proved: Proved, trouble: str, few: str, *, is_answer: bool
    ) -> Finding:
        """The finding of a point that is proved robust."""
        problem, outcome = attempt.problem, attempt.outcome
        optimal = is_answer and outcome.status == "optimal"
        bound = 0.0 if outcome.status == "infeasible" else max(outcome.lower, 0.0)
        why = ""
        if not optimal:
            why = f"the solver failed ({trouble})" if trouble else "stopped at the time limit"
            why = f"{why}; nothing nearer than {bound:.6g} has the margin in the region"
        distance = float(self.distance_.between(problem.x, proved.point))
        bound = min(bound, distance)
        names = f"{self.search}, {TITLES[self.solver]}"
        return Finding(
            "optimal" if optimal else "feasible",
            "; ".join(part for part in (why, few) if part),
            point=proved.point,
            distance=distance,
            bound=bound,
            margin=proved.margin,
            certificate=proved.proof,
            optimality=Optimality(bound, problem.search_margin, DEFAULT.gap, LP_TOLERANCE, names),
        )

    def _holding(
        self, finding: Finding, people: Sequence[Person], target: int, clock: Clock
    ) -> Finding:
        """The finding with what is proved around it: all misses, and what lies beyond."""
        point = finding.point
        assert point is not None and self.prover_ is not None  # noqa: S101, PT018  (it is found)
        person = next(each for each in people if each.allowed(point)[0])
        box = self.sets_[0].around(point) or (point, point)
        answer = Answer(self.schema_, point, person, self.tolerance_, box)
        if not self.holds:
            return replace(finding, holds=answer.missed())
        found = holds(answer, self.prover_, target, clock.proof)
        return replace(finding, holds=found.values, certificate=found.proof or finding.certificate)

    def _robust_rows(self, target: int) -> RobustRows:
        if target not in self._robust:
            self._robust[target] = RobustRows(
                self.sets_,
                target,
                self.slack,
                self.rows_,
                self.distance_,
                self.model_.called(target),
            )
        return self._robust[target]


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A search with what it found, and the rows that are answers of last resort."""

    problem: SearchProblem
    people: Sequence[Person]
    fallback: Array
    outcome: SearchResult

    def candidates(self) -> tuple[list[Array], list[Array]]:
        """Points to certify, best first: the search's own, then some that are near it.

        The search's point comes without changes that nobody would see, then as it is; the others lie
        on the way from it to the nearest robust neighbours.
        """
        point = self.outcome.point
        if point is None:
            return [], []
        tidy = np.where(np.abs(point - self.problem.x) <= _TIDY, self.problem.x, point)
        own = [tidy, point] if (tidy != point).any() else [point]
        goals = self._alongside(point)[:3]
        return own, [point + step * (goal - point) for step in _REPAIRS for goal in goals]

    def _alongside(self, point: Array) -> Array:
        """Neighbours that leave the same out-of-range values as a point: all in between is legal."""
        if len(self.people) == 1:
            return self.fallback
        person = self.people[0]
        moves = (person.lower > person.x) | (
            person.upper < person.x
        )  # columns that may move inside
        same = ((self.fallback == person.x) == (point == person.x))[:, moves].all(axis=1)
        rows: Array = self.fallback[same]
        return rows

    def trouble(self, clock: Clock) -> str:
        """What is wrong where only a neighbour was proved."""
        outcome = self.outcome
        if outcome.trouble:
            return outcome.trouble
        if outcome.status == "infeasible":
            return "it found no point in a region that holds one"
        if outcome.point is not None and time.monotonic() < clock.proof:
            return "its answer failed the last test"
        return ""

    def why_none(self, clock: Clock, *, ruled: bool) -> tuple[Status, str]:
        """Status and reason where no point is proved."""
        outcome = self.outcome
        if outcome.trouble:
            return "solver_error", f"the solver failed ({outcome.trouble}); {_ASK_AGAIN}"
        if outcome.status == "infeasible" and not len(self.fallback):
            sets = self.problem.sets
            names = ", ".join(models.name for models in sets)
            who = sets[0].where if len(sets) == 1 else f"for each of {names}"
            none = f"no point within the features' ranges and rules is robust {who}"
            return "infeasible_rules" if ruled else "no_robust_neighbour", none
        if clock.over:
            return "not_found", _NO_TIME
        return "solver_error", f"the solver failed (its answer failed the last test); {_ASK_AGAIN}"


def _check_solver(search: SearchName, solver: Solver) -> None:
    one_of("solver", solver, get_args(Solver))
    if search == "tree" and solver != "highs":
        raise OptionError(
            f"search='tree' runs on HiGHS; solver={solver!r} belongs to search='bilevel'"
        )
    check(solver)
