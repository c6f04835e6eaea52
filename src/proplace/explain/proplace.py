"""PROPLACE: the nearest plausible input that every network within delta accepts."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from proplace.certification import UNCOVERED_ADVICE
from proplace.core.distances import L1
from proplace.core.errors import InputError, OptionError
from proplace.core.options import integer, not_negative, one_of
from proplace.core.request import DEFAULT_TIME_LIMIT
from proplace.explain.attempt import NO_TIME, Attempt
from proplace.explain.base import Explainer
from proplace.explain.diverse import diverse
from proplace.explain.few import FewChanges, Tried
from proplace.explain.findings import Finding
from proplace.explain.fixed import fixed
from proplace.explain.following import (
    Preference,
    check_options,
    column_weights,
    fixed_features,
    in_words,
)
from proplace.explain.holds import Answer, holds
from proplace.explain.proving import Clock, Judge, Prover
from proplace.explain.several import IN_USE, Voter, check_also, read_also
from proplace.loaders.coordinates import shifts_for
from proplace.region.neighbours import (
    Neighbours,
    RobustRows,
    box_pieces,
    hull_pieces,
    unrestricted,
    variants,
)
from proplace.schema.tolerances import check_tolerance, encoded_tolerance, tolerances
from proplace.search.oracle import Oracle
from proplace.search.pieces import SearchResult, search
from proplace.search.problem import SMALLEST_GAP, SearchProblem
from proplace.search.subsets import Moves, SubsetBounds
from proplace.solvers import Solver, check
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from proplace.certification import Margin
    from proplace.core.distances import Weights
    from proplace.core.model_set import ModelSet
    from proplace.core.network import Array
    from proplace.core.request import Request
    from proplace.core.shifts import Delta
    from proplace.explain.proving import Proved
    from proplace.loaders.model import Model
    from proplace.region.convex_piece import ConvexPiece
    from proplace.region.neighbours import RegionKind
    from proplace.schema import Schema
    from proplace.schema.cells import Label
    from proplace.schema.person import Person
    from proplace.search.pieces import SearchName
    from proplace.search.subsets import Features
    from proplace.search.writing import Written

DEFAULT_MARGIN = 1e-6
SLACK = 1e-4
"""Extra margin demanded inside the search, so that its result passes the test at the margin."""
_UNANSWERED = ("no_robust_neighbour", "infeasible_rules", "not_found", "solver_error")
_HAIR = "its answer failed the last test by a hair"
_ROUNDING = 1e-9  # relative, of a distance


def _without_delta() -> OptionError:
    """Return the error about a missing delta, with the lines that measure one."""
    return OptionError(
        "Proplace needs a delta: the largest change of a parameter that every counterfactual must "
        "survive. Measure it with\n"
        "found = proplace.calibrate_delta(pipeline, X_train, y_train, refits=10)\n"
        "explainer = proplace.Proplace(pipeline, found.delta)",
        name="delta",
    )


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
        accepted by it as well. It is required: without it, the error names the call that measures one.
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
        Features, units and rules. Without one, tables hold the model's own columns, all free; numbers
        of a model that encodes its table itself get the range and a readable step of the training
        table then. Such a model keeps its encoding: the schema adds ranges, steps, directions, labels
        and rules.
    weights
        Weights in the distance, the mean absolute difference of encoded columns (a number that the
        model scales itself counts in units of its range in the training rows). Factors by feature
        name, ``{"income": 2}``: a feature that is not named has 1, and all columns of a feature have
        its weight. Or ``"mad"``: each column counts in units of its median absolute deviation over
        the training rows.
    region
        ``"hull"``: the convex hulls of the robust neighbours and the person. ``"box"``: anywhere
        within the features' ranges and rules, plausible or not.
    changeable
        Names of the features that answers may change (as far as the schema lets them); all others
        are kept as if they were immutable. None: all.
    max_changes
        Answers change at most so many features: the nearest of these.
    prefer
        ``"near"``: the nearest answer. ``"few"``: of the answers within 1.25 times the distance of
        that one, the one that changes the fewest features, and of those the nearest. Other
        features are kept as if they were immutable, so that the region is the one that such
        rules define. ``optimal`` then means that fewer changes are excluded; ``bound`` is about the
        nearest answer all the same.
    margin
        Every network in Delta must reach the target class by at least this much. ``"float32"``:
        as much as covers the rounding of a model deployed in float32. The default is ``"float32"``
        for such a model (``net.precision``), and 1e-6 for float64.
    search
        ``"tree"`` (default) or ``"bilevel"``, the paper's Algorithm 1; same answers.
    solver
        Of the programs of ``search="bilevel"``: ``"highs"`` or ``"gurobi"`` (with the extra of that
        name); same answers. The tree runs on HiGHS.
    n_jobs
        Processes (joblib; None: one, or what ``joblib.parallel_config`` says). The answers are the
        same for any number, here or on a cluster.
    time_limit
        Seconds per person, 10 by default; None for no limit. At the limit the best point so far is
        returned, certified, with a lower bound on the distance, and marked as ``timed_out``.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Proplace
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    >>> explainer = Proplace(net, delta=0.05, k=3).fit(train)
    >>> result = explainer.explain([[0.2, 0.3]])
    >>> result[0].status, round(result[0].distance, 2)
    ('optimal', 0.42)
    >>> bool(net.predict(result.points)[0])
    True
    """

    def __init__(
        self,
        source: object,
        delta: Delta | None = None,
        *,
        also: Sequence[object] | None = None,
        tolerance: Mapping[str, float] | None = None,
        holds: bool = False,
        k: int = 20,
        schema: Schema | None = None,
        weights: Weights | None = None,
        region: RegionKind = "hull",
        changeable: Sequence[str] | None = None,
        max_changes: int | None = None,
        prefer: Preference = "near",
        margin: Margin | None = None,
        search: SearchName = "tree",
        solver: Solver = "highs",
        n_jobs: int | None = None,
        time_limit: float | None = DEFAULT_TIME_LIMIT,
    ) -> None:
        if delta is None:
            raise _without_delta()
        self.source = source
        self.delta = delta
        self.also = also
        self.tolerance = tolerance
        self.holds = holds
        self.k = k
        self.schema = schema
        self.weights = weights
        self.region = region
        self.changeable = changeable
        self.max_changes = max_changes
        self.prefer = prefer
        self.margin = margin
        self.search = search
        self.solver = solver
        self.n_jobs = n_jobs
        self.time_limit = time_limit

    # -- what the lifecycle asks for ---------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        if self.delta is None:  # set_params takes anything
            raise _without_delta()
        check_also(self.also)
        check_tolerance(self.tolerance)
        if not isinstance(self.holds, (bool, np.bool_)):
            raise OptionError(
                f"holds must be True or False, not {self.holds!r}", name="holds", value=self.holds
            )
        integer("k", self.k)
        one_of("region", self.region, ("hull", "box"))
        check_options(self.changeable, self.max_changes, self.prefer)
        one_of("search", self.search, ("tree", "bilevel"))
        _check_solver(self.search, self.solver)
        if isinstance(self.margin, str):
            if self.margin != "float32":
                raise OptionError(
                    f"margin must be a number or 'float32', not {self.margin!r}",
                    name="margin",
                    value=self.margin,
                )
        elif self.margin is not None:
            not_negative("margin", self.margin)
        if self.time_limit is not None and not self.time_limit > 0.0:
            raise OptionError(
                f"time_limit must be a positive number of seconds, not {self.time_limit!r}",
                name="time_limit",
                value=self.time_limit,
            )

    def learn(self, rows: Array) -> None:
        """Fit the distance and the margins; which rows are robust is found for each target."""
        model = self.model_
        self.shifts_ = shifts_for(model, self.delta)
        self.rows_ = distinct(self.rows_)
        self.tolerance_ = tolerances(model.schema, self.tolerance)
        self.others_ = tuple(read_also(model, self.also, self.schema))
        voters = (Voter(IN_USE, model, self.shifts_), *self.others_)
        judges = [self._judge(models, voter.model) for voter in voters for models in voter.sets()]
        self.prover_ = Prover(self.schema_, tuple(judges))
        self.sets_ = tuple(judge.models for judge in judges)
        units = model.units(rows) if model.preprocesses else None
        self.distance_ = L1(column_weights(self.schema_, self.weights, rows, units))
        self.fixed_ = fixed_features(self.schema_, self.changeable)
        self.changes_ = in_words(self.changeable, self.max_changes, self.prefer)
        self._ends = self.rows_.min(axis=0), self.rows_.max(axis=0)
        self._robust: dict[int, RobustRows] = {}

    def _judge(self, models: ModelSet, model: Model) -> Judge:
        """Work out the margin that covers every training row, and so their hulls, for one set."""
        margin = self.margin
        if margin is None:
            margin = DEFAULT_MARGIN if models.net.precision == "float64" else "float32"
        tolerance = encoded_tolerance(self.schema_, self.tolerance_)
        judge = Judge(replace(models, tolerance=tolerance), model, margin)
        # The required margin is convex in x, so its maximum over the rows bounds it on their hulls.
        margins = judge.margins(self.rows_)
        largest = float(np.max(margins))
        if not np.isfinite(largest):
            row = int(np.argmax(~np.isfinite(margins)))
            raise InputError(
                f"distinct training row {row} leaves the range of {margin} on its way through "
                f"{models.name}; {UNCOVERED_ADVICE}",
                name="X_train",
                row=row,
            )
        return replace(judge, models=replace(judge.models, margin=largest))

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Find the robust rows."""
        self._robust_rows(target, progress=progress)

    def robust_rows(self, target: Label = 1) -> Array:
        """Distinct training rows that are robust for a target, as the network sees them."""
        self.check_fitted()
        return self._robust_rows(self.model_.target(target)).robust

    def find(self, X: Array, request: Request) -> list[list[Finding]]:
        """Answers for each person, nearest first, each with another set of changed features."""
        found = []
        for x in X:
            start = time.monotonic()
            answers = self._answers_or_none(x, request)
            seconds = time.monotonic() - start
            found.append([replace(answer, seconds=seconds) for answer in answers])
        return found

    # -- one person --------------------------------------------------------------------------

    def _answers_or_none(self, x: Array, request: Request) -> list[Finding]:
        """Answers for one person; without any, it is asked whether there can be one."""
        clock, target = Clock.of(self.time_limit), request.target
        found = self._answers(x, request, clock)
        if self.holds or self.tolerance_:
            people = variants(self.schema_, x, self.fixed_)
            found = [self._holding(f, people, target, clock) if f.found else f for f in found]
        if found[0].status not in _UNANSWERED or clock.over:
            return found
        assert self.prover_ is not None  # noqa: S101  (this method has a delta)
        proved = fixed(self.schema_, self.prover_.judges, self.rows_, x, target, clock.search)
        return found if proved is None else [proved]

    def _answers(self, x: Array, request: Request, clock: Clock) -> list[Finding]:
        target, gap = request.target, max(request.gap, SMALLEST_GAP)

        def find(kept: frozenset[int]) -> Finding:
            if kept and clock.over:
                return Finding("not_found", NO_TIME, x=x)
            if self.prefer == "few" or self.max_changes is not None:
                return self._short(x, target, kept, clock)
            return self._tried(_Asked(x, target, self.fixed_ | kept, gap=gap), clock).finding

        few = self.prefer == "few"
        return diverse(find, self.schema_, request.count, self.distance_, few=few)

    def _short(self, x: Array, target: int, kept: frozenset[int], clock: Clock) -> Finding:
        """The answer with few changes that keeps some features as they are."""
        kept = self.fixed_ | kept
        near, _, rounded = self._tried(_Asked(x, target, kept), clock)
        if not near.found:
            return near
        everything = frozenset(range(len(self.schema_.features)))
        problem = self._problem(x, target)
        moves = Moves.of(self.schema_, x, *self._reach(problem, kept), everything - kept)
        assert near.point is not None  # noqa: S101  (it was found)
        bounds = SubsetBounds(problem, moves, Oracle(problem), near.point[None])

        def solve(features: Features, cutoff: float) -> Tried:
            asked = _Asked(x, target, everything - features, cutoff=cutoff, bounds=bounds)
            return self._tried(asked, clock)

        search = FewChanges(self.schema_, near, solve, bounds, clock, rounded)
        if self.max_changes is not None:
            found = search.at_most(self.max_changes)
            if found is None:
                most = f"at most {self.max_changes} feature{'s' * (self.max_changes > 1)}"
                reason = f"no robust point of the region changes {most}; raise max_changes"
                return Finding("infeasible_rules", reason, x=x)
            search.near = found
        if self.prefer == "few" and search.near.found:
            search.near = search.fewest()
        return search.near

    def _problem(self, x: Array, target: int) -> SearchProblem:
        return SearchProblem(
            self.sets_,
            target,
            x,
            self.distance_,
            SLACK,
        )

    def _reach(self, problem: SearchProblem, kept: frozenset[int]) -> tuple[Array, Array]:
        """Ends of the columns of every region in which some features are kept."""
        x = problem.x
        person = variants(self.schema_, x, kept)[0]
        low, high = self._ends
        if self.region == "box":
            low = np.where(np.isfinite(person.lower), person.lower, low)
            high = np.where(np.isfinite(person.upper), person.upper, high)
        else:
            low, high = np.maximum(person.lower, low), np.minimum(person.upper, high)
        return np.minimum(low, x), np.maximum(high, x)

    def _tried(self, asked: _Asked, clock: Clock) -> Tried:
        """The nearest answer for one person in one region, as far as it is within a cutoff."""
        x = asked.x
        people = variants(self.schema_, x, asked.fixed)
        near, pieces = self._region(people, asked, clock)
        if near.status != "found":
            return Tried(Finding(near.status, near.reason, x=x), settled=True)
        problem = replace(self._problem(x, asked.target), gap=asked.gap)
        if near.late:  # without all neighbours nothing can be said of the region
            outcome = SearchResult(None, np.inf, 0.0, "unknown", timed_out=True)
        else:
            outcome = search(
                problem,
                pieces,
                method=self.search,
                solver=self.solver,
                deadline=clock.search,
                cutoff=asked.cutoff,
            )
        settled = outcome.status in ("optimal", "infeasible")
        if outcome.point is None and np.isfinite(asked.cutoff):
            return Tried(Finding("not_found", "nothing within the cutoff", x=x), settled)
        boxes = self.region == "box"
        attempt = Attempt(
            problem,
            people,
            near.rows,
            outcome,
            self.schema_.grids(x),
            () if boxes else tuple(pieces),
            ruled=bool(asked.fixed),
        )
        finding = self._finding(attempt, clock, "" if near.late else self._few(near.rows))
        finding = replace(
            finding,
            x=x,
            neighbours=near.rows,
            nodes=outcome.nodes,
            programs=outcome.programs,
            rounds=outcome.rounds,
            timed_out=finding.timed_out or outcome.timed_out,
        )
        rounded = bool(attempt.grids) and not finding.timed_out
        return Tried(finding, settled and finding.status == "optimal", rounded)

    def _region(
        self, people: Sequence[Person], asked: _Asked, clock: Clock
    ) -> tuple[Neighbours, Iterable[ConvexPiece]]:
        """Neighbours (none for a box) and convex pieces, over all variants of the person."""
        schema, robust = self.schema_, self._robust_rows(asked.target)
        if self.region == "box":
            low, high = self._ends
            boxes = (box_pieces(schema, person, low, high) for person in people)
            return Neighbours(robust.rows[:0], "found"), itertools.chain.from_iterable(boxes)
        found, pieces = [], []
        for person in people:
            free = unrestricted(schema) and person is people[0] and not asked.fixed
            near = (
                robust.nearest(person.x, self.k)
                if free
                else self._admissible(robust, person, asked, clock)
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

    def _admissible(
        self, robust: RobustRows, person: Person, asked: _Asked, clock: Clock
    ) -> Neighbours:
        if asked.bounds is None:
            return robust.admissible(person, self.k, clock.search)
        kept = np.array([c.feature in asked.fixed for c in self.schema_.columns])
        categories = self.schema_.profile_columns
        return robust.keeping(
            person,
            np.flatnonzero(~kept),
            categories[kept[categories]],
            self.k,
            asked.bounds.may_be_robust,
            clock.search,
        )

    def _few(self, neighbours: Array) -> str:
        """Say so where there are fewer neighbours than were asked for."""
        if not 0 < len(neighbours) < self.k:
            return ""
        return f"only {len(neighbours)} of k = {self.k} robust neighbours exist"

    def _finding(self, attempt: Attempt, clock: Clock, few: str) -> Finding:
        """Prove the best point that can be proved, and describe it.

        Tried in order: the point of the search as it is written; points on the segments from it to
        robust neighbours, which lie in the hull too; the nearest robust neighbour.
        """
        outcome, target = attempt.outcome, attempt.problem.target
        assert self.prover_ is not None  # noqa: S101  (this method has a delta)
        written = attempt.written(self.schema_, clock.writing)
        own, near = attempt.candidates() if written is None else ([written.point], [])
        proved = self.prover_.first(
            [*own, *near],
            attempt.people,
            target,
            evidence=outcome.evidence if written is None else written.evidence,
            until=clock.proof,
        )
        if proved is not None:
            is_answer = proved.candidate < len(own)
            trouble = outcome.trouble or ("" if is_answer else _HAIR)
            return self._proved(attempt, proved, trouble, few, written if is_answer else None)
        proved = self.prover_.nearest(attempt.fallback, attempt.people, target, clock.proof)
        if proved is None:
            ruled = attempt.ruled or not unrestricted(self.schema_)
            return Finding(*attempt.why_none(clock, ruled=ruled))
        return self._proved(attempt, proved, attempt.trouble(clock), few, None)

    def _proved(
        self, attempt: Attempt, proved: Proved, trouble: str, few: str, written: Written | None
    ) -> Finding:
        """The finding of a point that is proved robust.

        ``written`` is the point of the search with its steps, if that is the one that was proved.
        """
        problem, outcome = attempt.problem, attempt.outcome
        bound = 0.0 if outcome.status == "infeasible" else max(outcome.lower, 0.0)
        distance = float(self.distance_.between(problem.x, proved.point))
        if written is not None:
            in_region = written.in_region
        else:
            in_region = not attempt.grids or bool(attempt.in_region(proved.point[None])[0])
        near = distance * (1.0 - problem.gap) <= bound * (1.0 + _ROUNDING)
        optimal = not trouble and outcome.status == "optimal" and in_region and near
        # Without steps and trouble, only the clock can keep the nearest point from being proved.
        timed_out = not optimal and (outcome.timed_out or not (trouble or attempt.grids))
        why = ""
        if not optimal:
            why = "written in steps" if in_region else "written in steps, outside the hull"
            if trouble:
                why = f"the solver failed ({trouble})"
            elif timed_out:
                why = "stopped at the time limit"
            why = f"{why}; nothing nearer than {bound:.6g} has the margin in the region"
        return Finding(
            "optimal" if optimal else "feasible",
            "; ".join(part for part in (why, few) if part),
            point=proved.point,
            distance=distance,
            bound=min(bound, distance) if in_region else bound,
            in_region=in_region,
            timed_out=timed_out,
            margin=proved.margin,
            certificate=proved.proof,
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

    def _robust_rows(self, target: int, *, progress: bool = False) -> RobustRows:
        if target not in self._robust:
            self._robust[target] = RobustRows(
                self.sets_,
                target,
                SLACK,
                self.rows_,
                self.distance_,
                self.model_.called(target),
                progress,
            )
        return self._robust[target]


@dataclass(frozen=True, eq=False)
class _Asked:
    """Which region of a person is searched, and what of it is of interest.

    ``fixed`` features make the region, as if they were immutable. ``bounds``, where there are some, know
    rows that are not robust. ``gap`` is the relative optimality gap.
    """

    x: Array
    target: int
    fixed: frozenset[int]
    cutoff: float = np.inf
    bounds: SubsetBounds | None = None
    gap: float = SMALLEST_GAP


def _check_solver(search: SearchName, solver: Solver) -> None:
    one_of("solver", solver, get_args(Solver))
    if search == "tree" and solver != "highs":
        raise OptionError(
            f"search='tree' runs on HiGHS; solver={solver!r} belongs to search='bilevel'",
            name="solver",
            value=solver,
        )
    check(solver)
