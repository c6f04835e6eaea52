"""PROPLACE: the nearest input of the hull of real people that every network within delta accepts."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self, get_args

import numpy as np

from proplace.certification import UNCOVERED_ADVICE, required_margins
from proplace.core.distances import L1
from proplace.core.errors import InputError, OptionError
from proplace.core.guarantee import CURRENT_MODEL, Guarantee
from proplace.core.options import integer, not_negative, one_of
from proplace.core.request import DEFAULT_TIME_LIMIT
from proplace.core.text import listing
from proplace.explain.attempt import NO_TIME, Attempt
from proplace.explain.base import Explainer
from proplace.explain.diverse import diverse
from proplace.explain.fixed import fixed
from proplace.explain.prove import Clock, guaranteed_ranges
from proplace.explain.required_models import check_required, members_of, read_required
from proplace.explain.results import Finding
from proplace.explain.weights import column_weights
from proplace.loaders.coordinates import shifts_for
from proplace.loaders.model import Model
from proplace.region.neighbours import Neighbours, RobustRows, unrestricted
from proplace.region.pieces import box_pieces, hull_pieces
from proplace.schema.features import Continuous
from proplace.schema.tolerances import encoded_tolerance, tolerances
from proplace.search import SearchResult, search
from proplace.search.problem import SMALLEST_GAP, SearchProblem
from proplace.search.sparse import SparseSearch, Values
from proplace.solvers import Solver, check
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from proplace.certification import Margin
    from proplace.core.distances import Weights
    from proplace.core.guarantee import Member
    from proplace.core.network import Array, Network
    from proplace.core.request import Request, Tolerance
    from proplace.core.shifts import Delta
    from proplace.explain.prove import Proved
    from proplace.loaders.cutoffs import Cutoff
    from proplace.region.neighbours import RegionKind
    from proplace.region.pieces import ConvexPiece
    from proplace.region.typical import Typical
    from proplace.schema import Schema
    from proplace.schema.cells import Label
    from proplace.schema.person import Person
    from proplace.search import SearchName
    from proplace.search.writing import Written

_Misses = tuple[tuple[str, tuple[float, float]], ...]

DEFAULT_MARGIN = 1e-6
SLACK = 1e-4
"""Extra margin demanded inside the search, so that its result passes the test at the margin."""
_STARTS = 10  # robust rows from which a sparse search starts
_WALK = np.linspace(0.05, 1.0, 20)  # shares of the way from an atypical point to a robust row
_WALK_BLOCK = 50  # points of a walk that are tested together
_UNANSWERED = ("no_robust_neighbour", "infeasible_rules", "not_found", "solver_error")
_LESS_USUAL = "is less usual than most accepted rows"
_ATYPICAL = f"no typical point was found, so this one {_LESS_USUAL}"
_HAIR = "its answer failed the last test by a hair"
_ROUNDING = 1e-9  # relative, of a distance


def _without_delta(source: object, cutoff: Cutoff | None) -> OptionError:
    """Return the error about a missing delta, with the lines that measure one."""
    more = "" if cutoff is None else f", cutoff={cutoff!r}"
    classes = source.classes if isinstance(source, Model) else getattr(source, "classes_", ())
    labels = [label.item() if isinstance(label, np.generic) else label for label in classes]
    target, note = "", ""
    if labels and 1 not in labels:
        label = next(iter(cutoff)) if isinstance(cutoff, dict) else labels[0]
        target, note = f", target={label!r}", f" The classes are {listing(labels)}."
    return OptionError(
        "Proplace needs a delta: the largest change of a parameter that every counterfactual must "
        f"survive. Measure it for the class that people want.{note}\n"
        f"found = proplace.calibrate_delta(pipeline, X_train, y_train, refits=10{target}{more})\n"
        f"explainer = proplace.Proplace(pipeline, found.delta{more})",
        name="delta",
    )


class Proplace(Explainer):
    """Provably robust and plausible counterfactual explanations.

    Parameters
    ----------
    model
        The trained model: a fitted scikit-learn pipeline, a torch module, a Keras model, the path of
        a model file, a :class:`proplace.Model`, or a bare :class:`proplace.Network`.
    delta
        Largest change of any parameter, one (weight, bias) pair per layer, or a
        :class:`proplace.Shifts`. Where the model itself does not lie in such a box, answers are
        accepted by it as well. It is required: without it, the error names the call that measures one.
    required_models
        Other networks that must accept every answer, each of the kinds that ``model`` can be, or a
        pair of one and its delta: ``[net2, (net3, 0.01)]``. A network by itself stands for no other;
        with a delta, for all of its box. They may have other architectures, and scalers and encoders
        of their own: they look at the same columns of the table and have the same classes. A bare
        :class:`proplace.Network` takes rows as ``model`` encodes them. With several networks a
        certificate is a bundle of one for each, and a person counts as ``already_valid`` where the
        model in use accepts, whatever the others say (the reason tells). A model
        that states no cut-off of its own, as ``Model.of(other, cutoff=...)``, has that of ``model``.
    cutoff
        The probability from which the model accepts, as in ``{"approved": 0.7}``: a shorthand for
        ``Model.of(source, cutoff=...)`` as the model.
    schema
        Features, units and rules. Without one, tables hold the model's own columns, all free; numbers
        of a model that encodes its table itself get the range and a readable step of the training
        table then. Such a model keeps its encoding: the schema adds ranges, steps, directions, labels
        and rules.
    k
        Number of robust neighbours that span the plausible region. "Nearest", "optimal" and ``bound``
        refer to this region.
    region
        ``"hull"``: the convex hulls of the robust neighbours and the person. ``"box"``: anywhere
        within the features' ranges and rules, plausible or not.
    weights
        Weights in the distance, the mean absolute difference over columns. The unit of a number is the
        range that the schema declares; else its range in the training data, if these are a table or
        the model scales the column; else one encoded unit. Factors by feature
        name, ``{"income": 2}``: a feature that is not named has 1, and all columns of a feature have
        its weight. Or ``"mad"``: each column counts in units of its median absolute deviation over
        the training rows.
    margin
        Every network in Delta must reach the target class by at least this much. ``"float32"``:
        as much as covers the rounding of a model deployed in float32. The default is ``"float32"``
        for such a model (``net.precision``), and 1e-6 for float64.
    search
        ``"tree"`` (default) or ``"bilevel"``, the paper's Algorithm 1. Both give the same distance if
        neither filters typical points (``explain(typical=False)``).
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
    >>> bool(net.predict(result.encoded_counterfactuals)[0])
    True
    """

    def __init__(
        self,
        model: object,
        delta: Delta | None = None,
        *,
        required_models: Sequence[object] | None = None,
        cutoff: Cutoff | None = None,
        schema: Schema | None = None,
        k: int = 20,
        region: RegionKind = "hull",
        weights: Weights | None = None,
        margin: Margin | None = None,
        search: SearchName = "tree",
        solver: Solver = "highs",
        n_jobs: int | None = None,
        time_limit: float | None = DEFAULT_TIME_LIMIT,
    ) -> None:
        if delta is None:
            raise _without_delta(model, cutoff)
        self.model = model
        self.delta = delta
        self.required_models = required_models
        self.cutoff = cutoff
        self.schema = schema
        self.k = k
        self.region = region
        self.weights = weights
        self.margin = margin
        self.search = search
        self.solver = solver
        self.n_jobs = n_jobs
        self.time_limit = time_limit

    # -- what the lifecycle asks for ---------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        if self.delta is None:  # set_params takes anything
            raise _without_delta(self.model, self.cutoff)
        check_required(self.required_models)
        integer("k", self.k)
        one_of("region", self.region, ("hull", "box"))
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
        self.rows_, self._shifts = self._distinct[0], shifts_for(model, self.delta)
        self._required = read_required(model, self.required_models, self.schema)
        self.required_models_ = {name: required for name, required, _ in self._required}
        self.tolerance_ = tolerances(self.schema_)
        self._guarantees: dict[_Misses, Guarantee] = {}
        self.guarantee_ = self._guarantee(self.tolerance_)
        units = self._column_units
        self.distance_ = L1(column_weights(self.schema_, self.weights, rows, units))
        plain = self.weights if self.weights == "mad" else None
        self.units_ = column_weights(self.schema_, plain, rows, units)
        self._restricted = not unrestricted(self.schema_)
        self._ends = self.rows_.min(axis=0), self.rows_.max(axis=0)
        self._robust: dict[tuple[int, _Misses], RobustRows] = {}
        self._values: dict[int, Values] = {}

    def complete_tolerance(self, given: Mapping[str, Tolerance]) -> Mapping[str, Tolerance]:
        """Return a tolerance completed by the schema's."""
        return dict(tolerances(self.schema_, given))

    def asked(self, request: Request) -> Self:
        """Return a copy with the features and the tolerance of a request; what was fitted is shared."""
        view = super().asked(request)
        if request.misses != self.tolerance_:
            view = copy.copy(view)
            view.tolerance_ = dict(request.misses)
            view.guarantee_ = self._guarantee(request.misses)
        if view.schema_ is not self.schema_:
            low, high = view.schema_.lower, view.schema_.upper
            narrower = (low > self.schema_.lower).any() or (high < self.schema_.upper).any()
            view._restricted = bool(narrower) or not unrestricted(view.schema_)
        return view

    def check_request(self, request: Request) -> None:
        """Raise ``OptionError`` if typical points are asked for without a hull and the tree."""
        if request.typical and not self._protects:
            name = "region" if self.region != "hull" else "search"
            raise OptionError(
                f"typical=True needs region='hull' and search='tree', not {name}="
                f"{getattr(self, name)!r}; leave typical out",
                name="typical",
                value=True,
            )

    def _guarantee(self, misses: Mapping[str, tuple[float, float]]) -> Guarantee:
        """Return the guarantee with a tolerance, made at the first request for it."""
        key = tuple(misses.items())
        if key not in self._guarantees:
            tolerance = encoded_tolerance(self.schema_, misses)
            models = [(CURRENT_MODEL, self.model_, self._shifts), *self._required]
            members = [
                self._with_margin(replace(member, tolerance=tolerance))
                for name, model, shifts in models
                for member in members_of(model, shifts, name, self._margin(model.network))
            ]
            self._guarantees[key] = Guarantee(tuple(members))
        return self._guarantees[key]

    def _margin(self, net: Network) -> Margin:
        if self.margin is not None:
            return self.margin
        return DEFAULT_MARGIN if net.precision == "float64" else "float32"

    def _with_margin(self, member: Member) -> Member:
        """Return a member with the margin that covers every training row, and so their hulls."""
        # The required margin is convex in x, so its maximum over the rows bounds it on their hulls.
        margins = required_margins(member, self.rows_)
        largest = float(np.max(margins))
        if not np.isfinite(largest):
            row = int(np.argmax(~np.isfinite(margins)))
            raise InputError(
                f"distinct training row {row} leaves the range of float32 on its way through "
                f"{member.name}; {UNCOVERED_ADVICE}",
                name="X_train",
                row=row,
            )
        return replace(member, margin=largest)

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Find the robust rows, and the values that sparse counterfactuals may take."""
        self._robust_rows(target, progress=progress)
        if target not in self._values:
            accepted = self.rows_[self.net_.predict(self.rows_) == target]
            self._values[target] = Values.of(self.schema_, accepted)

    def robust_rows(self, target: Label = 1) -> Array:
        """Distinct training rows that are robust for a target, as the network sees them."""
        self.check_fitted()
        return self._robust_rows(self.model_.target(target)).robust

    def find(self, X: Array, request: Request) -> list[list[Finding]]:
        """Answers for each person, nearest first, each with another set of changed features."""
        found = []
        for x in X:
            start = time.monotonic()
            answers = self._widened(x)._answers_or_none(x, request)
            seconds = time.monotonic() - start
            found.append([replace(answer, seconds=seconds) for answer in answers])
        return found

    # -- one person --------------------------------------------------------------------------

    def _widened(self, x: Array) -> Self:
        """Return a copy whose ranges hold a person's own numbers; what was fitted is shared."""
        schema = self.schema_.widened(x)
        if schema is self.schema_:
            return self
        view = copy.copy(self)
        view.schema_ = schema
        return view

    def _answers_or_none(self, x: Array, request: Request) -> list[Finding]:
        """Answers for one person; without any, it is asked whether there can be one."""
        clock, target = Clock.of(self.time_limit), request.target
        found = self._answers(x, request, clock)
        person = self.schema_.person(x)
        found = [self._with_ranges(f, person, target, clock) if f.found else f for f in found]
        if found[0].status not in _UNANSWERED or clock.over or self._has_drafted_ranges:
            return found
        proved = fixed(self.schema_, self.guarantee_, self.rows_, x, target, clock.search)
        return found if proved is None else [proved]

    @property
    def _has_drafted_ranges(self) -> bool:
        """True if ranges come from the training table: a person may well lie beyond them."""
        return any(
            isinstance(f, Continuous) and f.drafted and not f.immutable
            for f in self.schema_.features
        )

    def _answers(self, x: Array, request: Request, clock: Clock) -> list[Finding]:
        def find(fixed: frozenset[int]) -> Finding:
            if fixed and clock.over:
                return Finding("not_found", NO_TIME, encoded_original=x)
            if not request.sparse:
                return self._nearest(x, request, fixed, clock)
            return self._sparse(x, request, fixed, clock)

        sparse = request.prefer == "sparse"
        return diverse(find, self.schema_, request.count, self.distance_, sparse=sparse)

    @property
    def _protects(self) -> bool:
        """True if typical points can be asked for."""
        return self.region == "hull" and self.search == "tree"

    def _filter(self, request: Request, fixed: frozenset[int]) -> Typical | None:
        """Return the reference that counterfactuals must be typical of; None without a filter."""
        on = request.typical
        if on is None:
            restricted = bool(fixed) or self._restricted
            on = self._protects and (request.sparse or restricted)
        return self.accepted_people(request.target) if on else None

    def _problem(self, x: Array, request: Request) -> SearchProblem:
        gap = max(request.gap, SMALLEST_GAP)
        return SearchProblem(self.guarantee_, request.target, x, self.distance_, SLACK, gap)

    # -- the nearest counterfactual ----------------------------------------------------------

    def _nearest(self, x: Array, request: Request, fixed: frozenset[int], clock: Clock) -> Finding:
        """Find the nearest counterfactual in the region that keeps some features."""
        person = self.schema_.person(x, kept=fixed)
        typical = self._filter(request, fixed)
        near, pieces = self._region(person, request.target, fixed, typical, clock)
        if near.status != "found":
            return Finding(near.status, near.reason, encoded_original=x)
        problem = self._problem(x, request)
        if near.timed_out:  # without all neighbours nothing can be concluded about the region
            outcome = SearchResult(None, np.inf, 0.0, "unknown", timed_out=True)
        else:
            outcome = search(
                problem, pieces, method=self.search, solver=self.solver, deadline=clock.search
            )
        boxes = self.region == "box"
        attempt = Attempt(
            problem,
            person,
            near.rows,
            outcome,
            self.schema_.grids(x),
            () if boxes else tuple(pieces),
            ruled=bool(fixed),
        )
        finding = self._finding(attempt, clock, "" if near.timed_out else self._few(near.rows))
        if typical is not None and finding.found:
            finding = self._made_typical(finding, attempt, typical, clock)
        return replace(
            finding,
            encoded_original=x,
            neighbours=near.rows,
            nodes=outcome.nodes,
            lp_solves=outcome.programs,
            scenarios=outcome.rounds,
            timed_out=finding.timed_out or outcome.timed_out,
        )

    def _region(
        self,
        person: Person,
        target: int,
        fixed: frozenset[int],
        typical: Typical | None,
        clock: Clock,
    ) -> tuple[Neighbours, Iterable[ConvexPiece]]:
        """Return the neighbours (none for a box) and the convex pieces of a person.

        The filter chooses the vertices of restricted people. Others keep the region of the paper.
        """
        schema, robust = self.schema_, self._robust_rows(target)
        if self.region == "box":
            low, high = self._ends
            return Neighbours(robust.rows[:0], "found"), box_pieces(schema, person, low, high)
        if self._restricted or fixed:
            near = robust.admissible(person, self.k, clock.search, typical)
        else:
            near = robust.nearest(person.x, self.k)
        found = near.status == "found"
        return near, hull_pieces(schema, person, near.rows) if found else []

    def _made_typical(
        self, finding: Finding, attempt: Attempt, typical: Typical, clock: Clock
    ) -> Finding:
        """Walk from an atypical point towards robust rows, to the nearest robust typical point.

        The rows are the vertices of the region, then the nearest robust typical rows.
        """
        point = finding.encoded_counterfactual
        assert point is not None  # noqa: S101  (it is found)
        if typical.test(point[None])[0]:
            return finding
        robust, problem = self._robust_rows(attempt.problem.target), attempt.problem
        for vertices in (attempt.fallback, None):
            goals = (
                vertices
                if vertices is not None
                else robust.nearest(problem.x, self.k, typical).rows
            )
            for row in self._on_the_way(attempt, point, goals, typical, clock):
                proved = self.prover.first([row], attempt.person, problem.target, until=clock.proof)
                if proved is not None:
                    return self._moved(finding, attempt, proved)
        late = time.monotonic() >= clock.proof
        limit = " in the time limit" * late
        why = f"no typical point was found{limit}, so this one {_LESS_USUAL}"
        reason = "; ".join(part for part in (finding.reason, why) if part)
        return replace(finding, reason=reason, timed_out=finding.timed_out or late)

    def _on_the_way(
        self, attempt: Attempt, point: Array, goals: Array, typical: Typical, clock: Clock
    ) -> Iterator[Array]:
        """Typical robust points between a point and some rows, nearest to the person first.

        The walk is short. It takes the time that is kept for writing and proof, so that a search that
        timed out is followed by one, too.
        """
        x, profile = attempt.problem.x, self.schema_.profile_columns
        between = point + _WALK[:, None, None] * (goals - point)
        between[:, :, profile] = goals[:, profile]  # categories do not mix
        rows = np.vstack([between.reshape(-1, len(point)), goals])
        rows = distinct(self.schema_.canonical(rows, person=x))
        rows = rows[attempt.person.allowed(rows)]
        rows = rows[np.argsort(self.distance_.between(x, rows), kind="stable")]
        robust = self._robust_rows(attempt.problem.target)
        for start in range(0, len(rows), _WALK_BLOCK):
            if time.monotonic() >= clock.proof:
                return
            block = rows[start : start + _WALK_BLOCK]
            block = block[robust.test(block, clock.proof)]
            yield from block[typical.test(block)]

    def _moved(self, finding: Finding, attempt: Attempt, proved: Proved) -> Finding:
        """The finding after a walk to a typical point."""
        distance = float(self.distance_.between(attempt.problem.x, proved.point))
        in_region = bool(attempt.in_region(proved.point[None])[0])
        bound = finding.bound
        where = "" if in_region else ", outside the hull"
        return replace(
            finding,
            status="feasible",
            reason=f"moved from an atypical point to the nearest typical one found{where}; "
            f"nothing nearer than {bound:.6g} has the margin in the region",
            encoded_counterfactual=proved.point,
            distance=distance,
            bound=min(bound, distance) if in_region else bound,
            in_region=in_region,
            margin=proved.margin,
            certificate=proved.proof,
        )

    # -- sparse counterfactuals ----------------------------------------------------------------

    def _sparse(self, x: Array, request: Request, fixed: frozenset[int], clock: Clock) -> Finding:
        """Find a counterfactual with few changes: a typical one, else a robust one that is marked."""
        near = None
        if request.prefer == "nearest" or self.region == "box":
            near = self._nearest(x, request, fixed, clock)
            most = request.max_changes or 0
            if request.prefer == "nearest" and near.found and self._changes(near) <= most:
                return near
        typical = self._filter(request, fixed)
        found = self._few_changes(x, request, fixed, clock, near, typical)
        if found.found or typical is None or clock.over:
            return found
        found = self._few_changes(x, request, fixed, clock, near, None)
        return replace(found, reason=f"{found.reason}; {_ATYPICAL}") if found.found else found

    def _few_changes(
        self,
        x: Array,
        request: Request,
        fixed: frozenset[int],
        clock: Clock,
        near: Finding | None,
        typical: Typical | None,
    ) -> Finding:
        """Search for few changes among the points that pass the filter."""
        target, most = request.target, request.max_changes
        person = self.schema_.person(x, kept=fixed)
        robust = self._robust_rows(target)
        starts = self._starts(person, target, fixed, typical, clock)
        rows = starts.rows
        if typical is not None and not (starts.typical and len(rows)):
            near = self._nearest(x, request, fixed, clock) if near is None else near
            if (
                near.encoded_counterfactual is None
                or not typical.test(near.encoded_counterfactual[None])[0]
            ):
                return Finding("not_found", "no typical point was found", encoded_original=x)
            rows = near.encoded_counterfactual[None]
        elif near is not None and near.encoded_counterfactual is not None and not len(rows):
            rows = near.encoded_counterfactual[None]
        elif starts.status != "found":
            return Finding(starts.status, starts.reason, encoded_original=x)
        features = enumerate(self.schema_.features)
        search = SparseSearch(
            self._problem(x, request),
            self.schema_,
            self._values[target].within(self.schema_, person.lower, person.upper),
            [number for number, each in features if number not in fixed and not each.immutable],
            person.allowed,
            lambda rows: robust.test(rows, clock.search),
            typical,
            clock.search,
        )
        found = search.run(rows, most, nearest=request.prefer == "nearest")
        proved = self.prover.first(found, person, target, until=clock.proof)
        if proved is None:
            if clock.over:
                return Finding("not_found", NO_TIME, encoded_original=x, timed_out=True)
            changes = f"at most {most} change{'s' * (most != 1)} was found; raise max_changes"
            return Finding("not_found", f"no robust point with {changes}", encoded_original=x)
        pieces = hull_pieces(self.schema_, person, rows)
        return Finding(
            "feasible",
            "found by a search for few changes, which proves no bound",
            encoded_original=x,
            encoded_counterfactual=proved.point,
            neighbours=rows,
            in_region=any(piece.contains(proved.point[None])[0] for piece in pieces),
            distance=float(self.distance_.between(x, proved.point)),
            margin=proved.margin,
            certificate=proved.proof,
            timed_out=clock.over,
        )

    def _starts(
        self,
        person: Person,
        target: int,
        fixed: frozenset[int],
        typical: Typical | None,
        clock: Clock,
    ) -> Neighbours:
        """Return the nearest robust rows from which changes are taken back."""
        robust = self._robust_rows(target)
        if self._restricted or fixed:
            return robust.admissible(person, _STARTS, clock.search, typical)
        return robust.nearest(person.x, _STARTS, typical)

    def _changes(self, finding: Finding) -> int:
        """Return how many features a counterfactual changes."""
        assert finding.encoded_original is not None and finding.encoded_counterfactual is not None  # noqa: S101, PT018
        columns = np.flatnonzero(
            finding.encoded_original != finding.encoded_counterfactual
        ).tolist()
        return len({self.schema_.columns[j].feature for j in columns})

    # -- the proof -------------------------------------------------------------------------------

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
        written = attempt.written(self.schema_, clock.writing)
        own, near = attempt.candidates() if written is None else ([written.point], [])
        proved = self.prover.first(
            [*own, *near],
            attempt.person,
            target,
            evidence=outcome.evidence if written is None else written.evidence,
            until=clock.proof,
        )
        if proved is not None:
            is_answer = proved.candidate < len(own)
            failure = outcome.solver_failure or ("" if is_answer else _HAIR)
            return self._proved(attempt, proved, failure, few, written if is_answer else None)
        proved = self.prover.nearest(attempt.fallback, attempt.person, target, clock.proof)
        if proved is None:
            ruled = attempt.ruled or self._restricted
            return Finding(*attempt.why_none(clock, ruled=ruled))
        return self._proved(attempt, proved, attempt.solver_failure(clock), few, None)

    def _proved(
        self, attempt: Attempt, proved: Proved, failure: str, few: str, written: Written | None
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
        optimal = not failure and outcome.status == "optimal" and in_region and near
        # Without steps and failures, only the clock can keep the nearest point from being proved.
        timed_out = not optimal and (outcome.timed_out or not (failure or attempt.grids))
        why = ""
        if not optimal:
            why = "written in steps" if in_region else "written in steps, outside the hull"
            if failure:
                why = f"the solver failed ({failure})"
            elif timed_out:
                why = "stopped at the time limit"
            why = f"{why}; nothing nearer than {bound:.6g} has the margin in the region"
        return Finding(
            "optimal" if optimal else "feasible",
            "; ".join(part for part in (why, few) if part),
            encoded_counterfactual=proved.point,
            distance=distance,
            bound=min(bound, distance) if in_region else bound,
            in_region=in_region,
            timed_out=timed_out,
            margin=proved.margin,
            certificate=proved.proof,
        )

    def _with_ranges(self, finding: Finding, person: Person, target: int, clock: Clock) -> Finding:
        """Return a finding with the ranges that are proved around its point."""
        point = finding.encoded_counterfactual
        assert point is not None  # noqa: S101  (it is found)
        found = guaranteed_ranges(self.prover, point, person, self.tolerance_, target, clock.proof)
        certificate = found.proof or finding.certificate
        return replace(finding, guaranteed_ranges=found.values, certificate=certificate)

    def _robust_rows(self, target: int, *, progress: bool = False) -> RobustRows:
        key = target, tuple(self.tolerance_.items())
        if key not in self._robust:
            self._robust[key] = RobustRows(
                self.guarantee_,
                target,
                SLACK,
                self.rows_,
                self.distance_,
                self.model_.class_name(target),
                progress,
            )
        return self._robust[key]

    def _for_workers(self, target: int) -> Self:
        lean = super()._for_workers(target)
        key = target, tuple(self.tolerance_.items())
        lean._required, lean._guarantees = [], {}
        lean._robust = {key: self._robust[key]}
        return lean


def _check_solver(search: SearchName, solver: Solver) -> None:
    one_of("solver", solver, get_args(Solver))
    if search == "tree" and solver != "highs":
        raise OptionError(
            f"search='tree' runs on HiGHS; solver={solver!r} belongs to search='bilevel'",
            name="solver",
            value=solver,
        )
    check(solver)
