"""What a few features of one person can do: the least change of them alone that all networks accept.

Only the features of a set F may change, to any value that the schema allows (not only between robust
neighbours: a reason speaks of what is possible, not of what the data hold); all others stay as they are.
F is *responsive* if some such input is robust in every set of networks. Three ways to an answer, the
cheapest first:

1. The model in use itself must accept an answer. Where another class wins on the whole box of F, by a
   quick test over boxes of inputs, F is not responsive.
2. Where all features of F have few values, each is tested exactly, the nearest first.
3. Else the search for the nearest robust point, on the box of F with all other columns fixed; that F is
   not responsive is then as certain as the solver's linear programs are, as with ``optimal``.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from proplace.certification import STRICT, certify
from proplace.core.shifts import Shifts
from proplace.explain.findings import Finding
from proplace.region.convex_piece import ConvexPiece
from proplace.region.neighbours import profile_options, profiles, time_left, variants
from proplace.schema.person import TOLERANCE
from proplace.search.pieces import search
from proplace.search.problem import SearchProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proplace.core.distances import Distance
    from proplace.core.network import Array, Network
    from proplace.explain.proving import Judge, Prover
    from proplace.schema import Schema
    from proplace.search.pieces import SearchName
    from proplace.solvers import Solver

Features = tuple[int, ...]
"""Numbers of the features that may change."""

MOST_VALUES = 512
"""Combinations of values that are tested one by one; where there are more, a search is made."""
_BLOCK = 64  # of them that are tested at once


@dataclass(frozen=True, eq=False)
class Response:
    """What some features can do.

    ``found``: the least change of them that is accepted, with its proof. ``none``: no change of them
    is. ``open``: not decided.
    """

    features: Features
    status: Literal["found", "none", "open"]
    finding: Finding | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked about every person.

    Attributes
    ----------
    net
        The model in use.
    prover
        The sets of networks that must accept.
    low, high
        Ends of the training data, which stand in for the range of a feature without one.
    """

    net: Network
    schema: Schema
    prover: Prover
    distance: Distance
    slack: float
    method: SearchName
    solver: Solver
    low: Array
    high: Array
    target: int


class Changes:
    """One person, of whom some features may change."""

    def __init__(self, question: Question, x: Array, deadline: float = math.inf) -> None:
        self.question, self.x, self.deadline = question, x, deadline
        self.people = variants(question.schema, x)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.deadline

    def hopeful(self, sets: Sequence[Features]) -> list[Features]:
        """The sets of features that the model in use does not refuse whatever they become.

        Those come first for which a test has met the input that it accepts most clearly.
        """
        q = self.question
        pieces = [(n, piece) for n, features in enumerate(sets) for piece in self.pieces(features)]
        if not pieces:
            return []
        low = np.array([piece.lower for _, piece in pieces])
        high = np.array([piece.upper for _, piece in pieces])
        refused = np.zeros(len(pieces), dtype=bool)
        least = np.full(len(pieces), -np.inf)  # by how much another class wins at some point met
        for other in range(q.net.classes):
            if other != q.target:
                report = certify(
                    q.net,
                    low + (high - low) / 2.0,
                    Shifts.of(q.net, 0.0),
                    other,
                    box=(low, high),
                    margin=STRICT,
                    quick=True,
                    time_limit=time_left(self.deadline),
                )
                refused |= report.robust
                least = np.maximum(least, report.upper)
        best: dict[int, float] = {}
        for i in np.flatnonzero(~refused).tolist():
            n = pieces[i][0]
            best[n] = min(best.get(n, math.inf), float(least[i]))
        return [sets[n] for n in sorted(best, key=lambda n: (best[n], n))]

    def response(self, features: Features) -> Response:
        """What some features can do together."""
        start = time.monotonic()
        if self.late:
            return Response(features, "open")
        pieces = list(self.pieces(features))
        rows = self._rows(features, pieces)
        found = self._searched(features, pieces) if rows is None else self._tested(features, rows)
        if found.finding is None:
            return found
        finding = replace(found.finding, x=self.x, seconds=time.monotonic() - start)
        return replace(found, finding=finding)

    def pieces(self, features: Features) -> Iterator[ConvexPiece]:
        """The box of some features, for each combination of their categories that the rules allow."""
        q = self.question
        kept = np.array([column.feature not in features for column in q.schema.columns])
        for person in self.people:
            ends = person.reach
            if ((self.x < ends[0]) | (self.x > ends[1]))[kept].any():
                continue  # another variant leaves this value as it is
            options = [choices for choices in profile_options(q.schema, person) if choices]
            options = [choices for choices in options if not kept[choices[0][0]].any()]
            for row in profiles(person, options):
                if not person.profile_allowed(row):
                    continue
                lower = np.where(kept, self.x, person.lower)
                upper = np.where(kept, self.x, person.upper)
                profile = q.schema.profile_columns
                lower[profile] = upper[profile] = row[profile]
                lower = np.where(np.isfinite(lower), lower, np.minimum(q.low, self.x))
                upper = np.where(np.isfinite(upper), upper, np.maximum(q.high, self.x))
                if (lower > upper).any():
                    continue
                rules = person.linear(row)
                yield ConvexPiece(None, lower, upper, rules.A, rules.lower, rules.upper)

    # -- value by value ------------------------------------------------------------------------

    def _rows(self, features: Features, pieces: Sequence[ConvexPiece]) -> Array | None:
        """All inputs in which these features differ, nearest first; None where they are too many."""
        q, grids = self.question, self.question.schema.grids(self.x)
        columns = [j for j, c in enumerate(q.schema.columns) if c.feature in features]
        free = [j for j in columns if q.schema.columns[j].kind != "binary"]
        total, found = 0, []
        for piece in pieces:
            values = []
            for j in free:
                grid = grids[j].grid if j in grids else None
                if grid is None or grid.count > MOST_VALUES:
                    return None
                codes = np.append(grid.encoded(np.arange(grid.count)), self.x[j])
                inside = (codes >= piece.lower[j] - TOLERANCE) & (
                    codes <= piece.upper[j] + TOLERANCE
                )
                values.append(np.unique(codes[inside]))
            total += math.prod(map(len, values))
            if total > MOST_VALUES:
                return None
            for chosen in itertools.product(*values):
                row = piece.lower.copy()
                row[free] = chosen
                found.append(row)
        rows = np.array(found).reshape(-1, len(self.x))
        rows = np.unique(q.schema.canonical(rows, person=self.x), axis=0)
        allowed = np.any([person.allowed(rows) for person in self.people], axis=0)
        rows = rows[allowed & (rows != self.x).any(axis=1)]
        order = np.argsort(q.distance.between(self.x, rows), kind="stable")
        ordered: Array = rows[order]
        return ordered

    def _tested(self, features: Features, rows: Array) -> Response:
        """Test inputs one after the other, the nearest first."""
        q, sure = self.question, True
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            good, undecided = self._robust(block)
            if good.any():
                i = int(np.argmax(good))
                judged = q.prover.judge(block[i], q.target, self.deadline)
                if judged.robust:
                    sure = sure and not undecided[:i].any()
                    distance = float(q.distance.between(self.x, block[i]))
                    finding = Finding(
                        "optimal" if sure else "feasible",
                        "" if sure else "whether a nearer value is accepted is not decided",
                        point=block[i],
                        distance=distance,
                        bound=distance if sure else 0.0,
                        margin=judged.margin,
                        certificate=judged.proof,
                    )
                    return Response(features, "found", finding)
                return Response(features, "open")
            sure = sure and not undecided.any()
            if self.late:
                return Response(features, "open")
        return Response(features, "none" if sure else "open")

    def _robust(self, rows: Array) -> tuple[Array, Array]:
        """Which inputs are robust in every set, and of which that is not decided."""
        good, undecided = np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
        judge: Judge
        for judge in self.question.prover.judges:
            left = np.flatnonzero(good)
            if not len(left):
                break
            report = judge.certify(rows[left], self.question.target, self.deadline)
            good[left] = report.robust
            undecided[left] |= report.undecided
        return good, undecided

    # -- by a search ---------------------------------------------------------------------------

    def _searched(self, features: Features, pieces: Sequence[ConvexPiece]) -> Response:
        """The nearest robust point of the pieces."""
        q = self.question
        sets = tuple(judge.models for judge in q.prover.judges)
        grids = q.schema.grids(self.x)
        problem = SearchProblem(sets, q.target, self.x, q.distance, q.slack, grids)
        outcome = search(problem, pieces, method=q.method, solver=q.solver, deadline=self.deadline)
        if outcome.status == "infeasible" and not outcome.trouble:
            return Response(features, "none")
        if outcome.point is None:
            return Response(features, "open")
        proved = q.prover.first(
            [problem.snap(outcome.point)],
            self.people,
            q.target,
            evidence=outcome.evidence,
            until=self.deadline,
        )
        if proved is None:
            return Response(features, "open")
        sure = outcome.status == "optimal"
        distance = float(q.distance.between(self.x, proved.point))
        finding = Finding(
            "optimal" if sure else "feasible",
            "" if sure else "stopped before it was proved nearest",
            point=proved.point,
            distance=distance,
            bound=min(max(outcome.lower, 0.0), distance),
            margin=proved.margin,
            certificate=proved.proof,
            nodes=outcome.nodes,
            programs=outcome.programs,
            rounds=outcome.rounds,
        )
        return Response(features, "found", finding)
