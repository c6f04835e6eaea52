"""The counterfactuals of one person: region, search, proof."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from proplace.explain.diverse import diverse
from proplace.explain.prove import Deadlines, Prover, fixed_prediction, guaranteed_ranges
from proplace.explain.results import Finding
from proplace.region.neighbours import Neighbours
from proplace.region.pieces import box_pieces, hull_pieces
from proplace.schema.features import Continuous
from proplace.search import SearchResult, search
from proplace.search.problem import SMALLEST_GAP, SearchProblem
from proplace.search.sparse import SparseSearch, Values
from proplace.search.writing import Legal, write
from proplace.tables.rows import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from proplace.core.network import Array
    from proplace.core.request import Request
    from proplace.explain.proplace import Proplace
    from proplace.explain.prove import Proved
    from proplace.explain.results import Status
    from proplace.region.neighbours import Mask, RobustRows
    from proplace.region.pieces import ConvexPiece
    from proplace.region.typical import Typical
    from proplace.schema import Column, Schema
    from proplace.schema.person import Person
    from proplace.search.writing import Written

NO_TIME = "the time limit was reached before a point was proved robust; raise time_limit"
_NO_LEGAL_VALUES = (
    "a robust point exists, but none was found whose values are legal steps; allow smaller steps"
)
_RETRY = "the row is valid, so try another search"
_TIDY = 1e-6  # encoded changes up to this are reverted if the result is robust
# Steps towards a neighbour, tried in turn if a proof fails after rounding.
_REPAIRS = (1e-6, 1e-4, 1e-2, 0.1, 0.5)
_STARTS = 10  # robust rows from which a sparse search starts
_WALK = np.linspace(0.05, 1.0, 20)  # steps from an atypical point to a robust row
_WALK_BLOCK = 50  # points of a walk that are tested together
_UNANSWERED = ("no_robust_neighbour", "infeasible_rules", "not_found", "solver_error")
_LESS_USUAL = "is less usual than most accepted rows"
_ATYPICAL = f"no typical point was found, so this one {_LESS_USUAL}"
_FAILED_NARROWLY = "its solution narrowly failed the exact test"
_ROUNDING = 1e-9  # relative error of a distance


@dataclass(frozen=True, eq=False)
class OnePerson:
    """A person, a request, and the data of a fitted explainer that a search needs."""

    explainer: Proplace
    schema: Schema  # its ranges contain the person's own numbers
    x: Array
    request: Request
    clock: Deadlines
    robust: RobustRows
    values: Values  # legal values of sparse counterfactuals
    ends: tuple[Array, Array]  # smallest and largest value of each column of the training rows
    restricted: bool  # immutable features, directions or ranges restrict this person

    def answers(self) -> list[Finding]:
        """Return counterfactuals, the best first, with different changed features.

        If there is none, try to prove a fixed prediction. This needs declared ranges, because a person
        can lie beyond ranges that were drafted from the training table.
        """
        sparse = self.request.prefer == "sparse"
        distance = self.explainer.distance_
        found = diverse(self._find, self.schema, self.request.count, distance, sparse=sparse)
        if found[0].found:
            if not self.explainer.proves_ranges:
                return found
            return [self._with_ranges(finding) for finding in found]
        drafted = any(
            isinstance(f, Continuous) and f.is_drafted and not f.immutable
            for f in self.schema.features
        )
        if found[0].status not in _UNANSWERED or self.clock.expired or drafted:
            return found
        guarantee, rows = self.explainer.guarantee_, self.explainer.rows_
        proved = fixed_prediction(
            self.schema, guarantee, rows, self.x, self.request.target, self.clock.search
        )
        return found if proved is None else [proved]

    def _find(self, kept: frozenset[int]) -> Finding:
        """Find the best counterfactual that keeps some features, by their numbers."""
        if kept and self.clock.expired:
            return self._none("not_found", NO_TIME)
        return self._sparse(kept) if self.request.sparse else self._nearest(kept)

    def _none(self, status: Status, reason: str, *, timed_out: bool = False) -> Finding:
        """Return the finding that there is no counterfactual."""
        return Finding(status, reason, encoded_original=self.x, timed_out=timed_out)

    def _with_ranges(self, finding: Finding) -> Finding:
        """Return a finding with the guaranteed ranges around its point."""
        point = finding.encoded_counterfactual
        assert point is not None  # noqa: S101  (it is found)
        found = guaranteed_ranges(
            self.prover,
            point,
            self.schema.person(self.x),
            self.explainer.tolerance_,
            self.request.target,
            self.clock.proof,
        )
        certificate = found.proof or finding.certificate
        return replace(finding, guaranteed_ranges=found.values, certificate=certificate)

    @cached_property
    def prover(self) -> Prover:
        """The prover of points for this person."""
        return Prover(self.schema, self.explainer.guarantee_)

    @cached_property
    def problem(self) -> SearchProblem:
        """The problem of the search."""
        return SearchProblem(
            self.explainer.guarantee_,
            self.request.target,
            self.x,
            self.explainer.distance_,
            self.robust.slack,
            max(self.request.gap, SMALLEST_GAP),
        )

    def _filter(self, kept: frozenset[int]) -> Typical | None:
        """Return the rows that define typical points. None without a filter."""
        on = self.request.typical
        if on is None:
            chosen = self.request.sparse or self.restricted or bool(kept)
            on = chosen and self.explainer.filters_typical
        return self.explainer.accepted_people(self.request.target) if on else None

    def _distance(self, point: Array) -> float:
        return float(self.explainer.distance_.between(self.x, point))

    # -- the nearest counterfactual ----------------------------------------------------------

    def _nearest(self, kept: frozenset[int]) -> Finding:
        """Find the nearest counterfactual in the region that keeps some features."""
        person, typical, explainer = (
            self.schema.person(self.x, kept=kept),
            self._filter(kept),
            self.explainer,
        )
        near, pieces = self._region(person, kept, typical)
        if near.status != "found":
            return self._none(near.status, near.reason)
        if near.timed_out:  # the region is unknown without all neighbours
            outcome = SearchResult(None, np.inf, 0.0, "unknown", timed_out=True)
        else:
            outcome = search(
                self.problem,
                pieces,
                method=explainer.search,
                solver=explainer.solver,
                deadline=self.clock.search,
            )
        attempt = Attempt(
            self.problem,
            person,
            near.rows,
            outcome,
            self.schema.grids(self.x),
            () if explainer.region == "box" else tuple(pieces),
            restricted=bool(kept) or self.restricted,
        )
        few = ""
        if 0 < len(near.rows) < explainer.k and not near.timed_out:
            few = f"only {len(near.rows)} of k = {explainer.k} robust neighbours exist"
        finding = self._proved_first(attempt, few)
        if typical is not None and finding.found:
            finding = self._made_typical(finding, attempt, typical)
        return replace(
            finding,
            encoded_original=self.x,
            neighbours=near.rows,
            nodes=outcome.nodes,
            lp_solves=outcome.programs,
            scenarios=outcome.rounds,
            timed_out=finding.timed_out or outcome.timed_out,
        )

    def _region(
        self, person: Person, kept: frozenset[int], typical: Typical | None
    ) -> tuple[Neighbours, Iterable[ConvexPiece]]:
        """Return the neighbours (none for a box) and the convex pieces of a person.

        The filter chooses the vertices of restricted people. Others keep the region of the paper.
        """
        schema, k = self.schema, self.explainer.k
        if self.explainer.region == "box":
            return Neighbours(self.robust.rows[:0], "found"), box_pieces(schema, person, *self.ends)
        if self.restricted or kept:
            near = self.robust.admissible(person, k, self.clock.search, typical)
        else:
            near = self.robust.nearest(self.x, k)
        return near, hull_pieces(schema, person, near.rows) if near.status == "found" else []

    def _proved_first(self, attempt: Attempt, few: str) -> Finding:
        """Prove the best point that can be proved, and describe it.

        The candidates, in order: the written point of the search, points on the segments from it to
        robust neighbours, which lie in the hull as well, and the nearest robust neighbour.
        """
        outcome, target, clock = attempt.outcome, self.request.target, self.clock
        written = attempt.written(self.schema, clock.writing)
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
            failure = outcome.solver_failure or ("" if is_answer else _FAILED_NARROWLY)
            return self._proved(attempt, proved, failure, few, written if is_answer else None)
        proved = self.prover.nearest(attempt.fallback, attempt.person, target, clock.proof)
        if proved is None:
            return Finding(*attempt.why_none(clock))
        return self._proved(attempt, proved, attempt.solver_failure(clock), few, None)

    def _proved(
        self, attempt: Attempt, proved: Proved, failure: str, few: str, written: Written | None
    ) -> Finding:
        """Return the finding of a point that is proved robust.

        ``written`` is the written point of the search, if it is the proved point.
        """
        problem, outcome = attempt.problem, attempt.outcome
        bound = 0.0 if outcome.status == "infeasible" else max(outcome.lower, 0.0)
        distance = self._distance(proved.point)
        if written is not None:
            in_region = written.in_region
        else:
            in_region = not attempt.grids or bool(attempt.in_region(proved.point[None])[0])
        near = distance * (1.0 - problem.gap) <= bound * (1.0 + _ROUNDING)
        optimal = not failure and outcome.status == "optimal" and in_region and near
        # Without steps and failures, only a timeout can prevent the proof of the nearest point.
        timed_out = not optimal and (outcome.timed_out or not (failure or attempt.grids))
        why = ""
        if not optimal:
            why = "rounded to steps" if in_region else "rounded to steps, outside the region"
            if failure:
                why = f"the solver failed ({failure})"
            elif timed_out:
                why = "stopped at the time limit"
            why = f"{why}; proved lower bound on the distance in the region: {bound:.6g}"
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

    # -- typical points ----------------------------------------------------------------------

    def _made_typical(self, finding: Finding, attempt: Attempt, typical: Typical) -> Finding:
        """Walk from an atypical point towards robust rows, to the nearest robust typical point.

        The rows are the vertices of the region, then the nearest robust typical rows.
        """
        point = finding.encoded_counterfactual
        assert point is not None  # noqa: S101  (it is found)
        if typical.test(point[None])[0]:
            return finding
        target, until = self.request.target, self.clock.proof
        for vertices in (attempt.fallback, None):
            goals = vertices
            if goals is None:
                goals = self.robust.nearest(self.x, self.explainer.k, typical).rows
            for row in self._on_the_way(attempt.person, point, goals, typical):
                proved = self.prover.first([row], attempt.person, target, until=until)
                if proved is not None:
                    return self._moved(finding, attempt, proved)
        late = time.monotonic() >= until
        limit = " in the time limit" * late
        why = f"no typical point was found{limit}, so this one {_LESS_USUAL}"
        reason = "; ".join(part for part in (finding.reason, why) if part)
        return replace(finding, reason=reason, timed_out=finding.timed_out or late)

    def _on_the_way(
        self, person: Person, point: Array, goals: Array, typical: Typical
    ) -> Iterator[Array]:
        """Yield typical robust points between a point and some rows, nearest to the person first.

        The walk is short. It uses the time reserved for writing and proof, so it also follows a search
        that timed out.
        """
        profile, until = self.schema.profile_columns, self.clock.proof
        between = point + _WALK[:, None, None] * (goals - point)
        between[:, :, profile] = goals[:, profile]  # categories do not mix
        rows = np.vstack([between.reshape(-1, len(point)), goals])
        rows = distinct(self.schema.canonical(rows, person=self.x))
        rows = rows[person.allowed(rows)]
        rows = rows[np.argsort(self.explainer.distance_.between(self.x, rows), kind="stable")]
        for start in range(0, len(rows), _WALK_BLOCK):
            if time.monotonic() >= until:
                return
            block = rows[start : start + _WALK_BLOCK]
            block = block[self.robust.test(block, until)]
            yield from block[typical.test(block)]

    def _moved(self, finding: Finding, attempt: Attempt, proved: Proved) -> Finding:
        """Return the finding after a walk to a typical point."""
        distance, bound = self._distance(proved.point), finding.bound
        in_region = bool(attempt.in_region(proved.point[None])[0])
        where = "" if in_region else ", outside the region"
        return replace(
            finding,
            status="feasible",
            reason=f"moved from an atypical point to the nearest typical one found{where}; "
            f"proved lower bound on the distance in the region: {bound:.6g}",
            encoded_counterfactual=proved.point,
            distance=distance,
            bound=min(bound, distance) if in_region else bound,
            in_region=in_region,
            margin=proved.margin,
            certificate=proved.proof,
        )

    # -- sparse counterfactuals --------------------------------------------------------------

    def _sparse(self, kept: frozenset[int]) -> Finding:
        """Find a sparse counterfactual: a typical one, or a marked robust one if there is none."""
        near, nearest = None, self.request.prefer == "nearest"
        if nearest or self.explainer.region == "box":
            near = self._nearest(kept)
            if nearest and near.found and self._changes(near) <= (self.request.max_changes or 0):
                return near
        typical = self._filter(kept)
        found = self._few_changes(kept, near, typical)
        if found.found or typical is None or self.clock.expired:
            return found
        found = self._few_changes(kept, near, None)
        return replace(found, reason=f"{found.reason}; {_ATYPICAL}") if found.found else found

    def _few_changes(
        self, kept: frozenset[int], near: Finding | None, typical: Typical | None
    ) -> Finding:
        """Search for few changes among the points that pass the filter."""
        clock, robust, most = self.clock, self.robust, self.request.max_changes
        person = self.schema.person(self.x, kept=kept)
        if self.restricted or kept:
            starts = robust.admissible(person, _STARTS, clock.search, typical)
        else:
            starts = robust.nearest(self.x, _STARTS, typical)
        rows = starts.rows
        if typical is not None and not (starts.typical and len(rows)):
            near = self._nearest(kept) if near is None else near
            point = near.encoded_counterfactual
            if point is None or not typical.test(point[None])[0]:
                return self._none("not_found", "no typical point was found")
            rows = point[None]
        elif near is not None and near.encoded_counterfactual is not None and not len(rows):
            rows = near.encoded_counterfactual[None]
        elif starts.status != "found":
            return self._none(starts.status, starts.reason)
        features = enumerate(self.schema.features)
        sparse = SparseSearch(
            self.problem,
            self.schema,
            self.values.within(self.schema, person.lower, person.upper),
            [number for number, each in features if number not in kept and not each.immutable],
            person.allowed,
            lambda rows: robust.test(rows, clock.search),
            typical,
            clock.search,
        )
        found = sparse.run(rows, most, nearest=self.request.prefer == "nearest")
        proved = self.prover.first(found, person, self.request.target, until=clock.proof)
        if proved is None:
            if clock.expired:
                return self._none("not_found", NO_TIME, timed_out=True)
            changes = f"at most {most} change{'s' * (most != 1)} was found; raise max_changes"
            return self._none("not_found", f"no robust point with {changes}")
        pieces = hull_pieces(self.schema, person, rows)
        return Finding(
            "feasible",
            "found by a search for few changes, which proves no bound",
            encoded_original=self.x,
            encoded_counterfactual=proved.point,
            neighbours=rows,
            in_region=any(piece.contains(proved.point[None])[0] for piece in pieces),
            distance=self._distance(proved.point),
            margin=proved.margin,
            certificate=proved.proof,
            timed_out=clock.expired,
        )

    def _changes(self, finding: Finding) -> int:
        """Return how many features a counterfactual changes."""
        columns = np.flatnonzero(self.x != finding.encoded_counterfactual).tolist()
        return len({self.schema.columns[j].feature for j in columns})


@dataclass(frozen=True, eq=False)
class Attempt:
    """A search with its result, and the rows to fall back to."""

    problem: SearchProblem
    person: Person
    fallback: Array
    outcome: SearchResult
    grids: Mapping[int, Column]  # columns with steps
    pieces: tuple[ConvexPiece, ...] = ()  # convex pieces of a hull
    restricted: bool = False  # features are kept, or restricted by the schema

    def written(self, schema: Schema, deadline: float = math.inf) -> Written | None:
        """Write the point of the search in the steps of its features. None without steps or a point."""
        point = self.outcome.point
        if point is None or not self.grids:
            return None
        x, profile = self.problem.x, schema.profile_columns
        base = schema.canonical(point, person=x)[0]
        steps = list(self.grids)
        base[steps] = np.where(np.abs(point - x)[steps] <= _TIDY, x[steps], point[steps])
        near = (self.fallback[:, profile] == base[profile]).all(axis=1)
        lower, upper = self.person.lower.copy(), self.person.upper.copy()
        lower[profile] = upper[profile] = base[profile]
        legal = Legal(
            self.grids,
            lower,
            upper,
            self.person.allowed,
            self.in_region,
            self.fallback[near],
        )
        return write(self.problem, base, legal, deadline)

    def in_region(self, rows: Array) -> Mask:
        """Test which rows lie in the region. In a box, all allowed rows do."""
        if not self.pieces:
            return np.ones(len(rows), dtype=bool)
        found: Mask = np.any([piece.contains(rows) for piece in self.pieces], axis=0)
        return found

    def candidates(self) -> tuple[list[Array], list[Array]]:
        """Return points to certify, best first: the point of the search, then points near it.

        The point of the search comes first without negligible changes, then unchanged. The others lie
        on the segments from it to the nearest robust neighbours.
        """
        point = self.outcome.point
        if point is None:
            return [], []
        tidy = np.where(np.abs(point - self.problem.x) <= _TIDY, self.problem.x, point)
        own = [tidy, point] if (tidy != point).any() else [point]
        goals = self.fallback[:3]
        return own, [point + step * (goal - point) for step in _REPAIRS for goal in goals]

    def solver_failure(self, clock: Deadlines) -> str:
        """Describe the failure if only a neighbour was proved."""
        outcome = self.outcome
        if outcome.solver_failure:
            return outcome.solver_failure
        if outcome.status == "infeasible":
            return "it found no point in a region that holds one"
        if outcome.point is not None and time.monotonic() < clock.proof:
            return "its solution failed the exact test"
        return ""

    def why_none(self, clock: Deadlines) -> tuple[Status, str]:
        """Return the status and the reason if no point is proved."""
        outcome = self.outcome
        if outcome.solver_failure:
            return "solver_error", f"the solver failed ({outcome.solver_failure}); {_RETRY}"
        if outcome.status == "infeasible" and not len(self.fallback):
            members = self.problem.guarantee.members
            names = ", ".join(member.name for member in members)
            who = members[0].description if len(members) == 1 else f"for each of {names}"
            none = f"no point within the features' ranges and rules is robust {who}"
            return "infeasible_rules" if self.restricted else "no_robust_neighbour", none
        if clock.expired:
            return "not_found", NO_TIME
        if self.grids and outcome.point is not None:
            return "not_found", _NO_LEGAL_VALUES
        return "solver_error", f"the solver failed (its solution failed the exact test); {_RETRY}"
