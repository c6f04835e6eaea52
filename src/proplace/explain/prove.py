"""Proofs about one person: of a point as a table can hold it, and of ranges around it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification import FULL, Budget, CertificateBundle, certify
from proplace.core.layer_box import sum_down, sum_up
from proplace.region.neighbours import time_left
from proplace.schema.features import Continuous
from proplace.schema.person import TOLERANCE as LEGAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from proplace.certification import (
        Certificate,
        CertificationResult,
        Evidence,
        InputBox,
        Margin,
        Proof,
    )
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.loaders.model import Model
    from proplace.region.neighbours import Mask
    from proplace.schema import Schema
    from proplace.schema.grid import Column
    from proplace.schema.person import Person

    Interval = tuple[float, float]


MOST_CHANGES = 5
"""Changes of a counterfactual up to which ranges are proved around it."""
_RESERVE = 0.1  # share of a time limit that is kept for the proof of the search's answer
_BOX_BUDGET = Budget(200, 0)  # for the proof of a box around a counterfactual
_SAME = 1e-12  # encoded difference of a point before and after it is written in original units
_MOST_RESERVE = 1.0  # that share is never more than so many seconds
_ROUNDING = 2.0**-48  # relative: far more than the rounding of a cell, a sum and a quotient


@dataclass(frozen=True)
class Clock:
    """Times, by ``time.monotonic``, by which search, writing and proof of a counterfactual end."""

    search: float = math.inf
    writing: float = math.inf
    proof: float = math.inf

    @classmethod
    def of(cls, time_limit: float | None) -> Clock:
        """Start now."""
        if time_limit is None:
            return cls()
        end = time.monotonic() + time_limit
        reserve = min(_RESERVE * time_limit, _MOST_RESERVE)
        return cls(end - reserve, end - reserve / 2.0, end)

    @property
    def over(self) -> bool:
        """Whether the search has no time left."""
        return time.monotonic() >= self.search


class Judged(NamedTuple):
    """What is proved of one point, for all sets of networks together.

    ``margin`` is a lower bound on the margin of every network. Where the point is not robust, or that
    is not decided, ``which`` is the first set of which this is so.
    """

    robust: bool
    undecided: bool
    margin: float
    proof: Proof | None
    which: Member | None = None


class Proved(NamedTuple):
    """A point with its proof and least margin, and which of the candidates it was."""

    point: Array
    proof: Proof
    margin: float
    candidate: int


@dataclass(frozen=True, eq=False)
class Judge:
    """One set of networks, and the margin that rows must keep for it.

    Attributes
    ----------
    models
        The set.
    model
        The model that it comes from, on the rows of the model in use: its rounding is what a margin
        covers that is named after an arithmetic.
    margin
        The margin as it was asked for.
    """

    models: Member
    model: Model
    margin: Margin | None

    def margins(self, rows: Array, box: InputBox | None = None) -> float | Array:
        """Return the margin that each row must keep, at every point of its box.

        Without ``box`` it is that of all misses within the tolerance.
        """
        box = self.models.around(rows) if box is None else box
        return self.model.margins(self.models.shifts, rows, self.margin, box)

    def rounding(self, low: Array, high: Array) -> Array:
        """What the rounding of a model that is deployed in fewer digits can do to a margin, on boxes."""
        if not isinstance(self.margin, str):
            return np.zeros(len(low))
        margins = self.model.margins(self.models.shifts, low, self.margin, (low, high))
        return np.broadcast_to(margins, len(low))

    def certify(
        self,
        rows: Array,
        target: int,
        until: float = math.inf,
        *,
        box: InputBox | None = None,
        budget: Budget = FULL,
    ) -> CertificationResult:
        """Verdicts with certificates, as far as they come in time."""
        box = self.models.around(rows) if box is None else box
        return certify(
            self.models.network,
            rows,
            self.models.shifts,
            target,
            margin=self.required(rows, box) if self.model.rounds_more else self.margin,
            box=box,
            certificates=True,
            time_limit=time_left(until),
            budget=budget,
        )

    def known(self, evidence: Evidence, target: int, until: float) -> Certificate | None:
        """Write down what a search has proved of a point already, if it is enough."""
        required = self.required(evidence.point[None])
        net, shifts = self.models.network, self.models.shifts
        return evidence.certificate(net, shifts, target, required, until)

    def required(self, rows: Array, box: InputBox | None = None) -> float:
        """The margin that covers each of some rows."""
        return float(np.max(self.margins(rows, box)))


@dataclass(frozen=True, eq=False)
class Prover:
    """Proves points robust for every set of networks that has a say; the first is the model in use."""

    schema: Schema
    judges: tuple[Judge, ...]

    def judge(self, point: Array, target: int, until: float = math.inf) -> Judged:
        """Prove of one point that it is robust for all sets, or that it is not for one."""
        margin, proofs = math.inf, []
        for judge in self.judges:
            report = judge.certify(point[None], target, until)
            assert report.certificates is not None  # noqa: S101  (asked for)
            proof, margin = report.certificates[0], min(margin, float(report.lower[0]))
            if not report.robust[0]:
                return Judged(False, bool(report.undecided[0]), margin, proof, judge.models)
            assert proof is not None  # noqa: S101  (a robust row has one)
            proofs.append(proof)
        return Judged(True, False, margin, _together(proofs))

    def first(
        self,
        candidates: Iterable[Array],
        people: Sequence[Person],
        target: int,
        *,
        evidence: Sequence[Evidence] = (),
        until: float = math.inf,
    ) -> Proved | None:
        """The first of some points that, as it will be read, is legal for the person and robust.

        ``people`` are the variants of the person (:func:`proplace.region.pieces.variants`),
        ``evidence`` what a search has proved of one point already, for each set.
        """
        for number, row in enumerate(candidates):
            point = self.schema.canonical(row, person=people[0].x)[0]
            if not allowed(people, point[None])[0]:
                continue
            if evidence and np.abs(evidence[0].point - point).max() <= _SAME:
                proof = self._known(evidence, point, target, until)
                if proof is not None:
                    margin = min(each.lower for each in evidence)
                    return Proved(point, proof, margin, number)
            judged = self.judge(point, target, until)
            if judged.proof is not None and judged.robust:
                return Proved(point, judged.proof, judged.margin, number)
            if time.monotonic() >= until:
                break
        return None

    def boxes(
        self, rows: Array, target: int, box: InputBox, until: float = math.inf
    ) -> list[Proof | None]:
        """Prove of boxes around rows that every point is robust for all sets, by quick bounds.

        None where they do not prove it.
        """
        proofs: list[list[Certificate]] = [[] for _ in rows]
        left = np.arange(len(rows))
        for judge in self.judges:
            if not len(left):
                break
            ends = box[0][left], box[1][left]
            report = judge.certify(rows[left], target, until, box=ends, budget=_BOX_BUDGET)
            assert report.certificates is not None  # noqa: S101  (asked for)
            for i in np.flatnonzero(report.robust):
                proof = report.certificates[int(i)]
                assert proof is not None  # noqa: S101  (a robust row has one)
                proofs[left[i]].append(proof)
            left = left[report.robust]
        return [_together(found) if i in left else None for i, found in enumerate(proofs)]

    def _known(
        self, evidence: Sequence[Evidence], point: Array, target: int, until: float
    ) -> Proof | None:
        """The proof that a search has found already, if it proves the point for each set."""
        proofs = []
        for judge, each in zip(self.judges, evidence, strict=True):
            box = judge.models.around(point)
            proof = judge.known(replace(each, point=point, box=box), target, until)
            if proof is None:
                return None
            proofs.append(proof)
        return _together(proofs)

    def nearest(
        self, rows: Array, people: Sequence[Person], target: int, until: float
    ) -> Proved | None:
        """The first robust one of some rows that the person may become.

        All rows are tested at once, set by set; those that pass go on to the next.
        """
        rows = self.schema.canonical(rows, person=people[0].x)
        rows = rows[allowed(people, rows)]
        left = np.arange(len(rows))
        found: list[tuple[CertificationResult, npt.NDArray[np.intp]]] = []
        for judge in self.judges:
            if not len(left):
                return None
            report = judge.certify(rows[left], target, until)
            found.append((report, left))
            left = left[report.robust]
        if not len(left):
            return None
        row, proofs, margin = int(left[0]), [], math.inf
        for report, tested in found:
            i = int(np.searchsorted(tested, row))
            assert report.certificates is not None  # noqa: S101  (asked for)
            proof = report.certificates[i]
            assert proof is not None  # noqa: S101  (a robust row has one)
            proofs.append(proof)
            margin = min(margin, float(report.lower[i]))
        return Proved(rows[row], _together(proofs), margin, row)


def _together(proofs: Sequence[Certificate]) -> Proof:
    """One certificate as it is, several in a bundle."""
    return proofs[0] if len(proofs) == 1 else CertificateBundle.of(proofs)


def allowed(people: Sequence[Person], rows: Array) -> Mask:
    """Which rows a person may become, in one variant or another."""
    good: Mask = np.any([person.allowed(rows) for person in people], axis=0)
    return good


# -- guaranteed ranges -----------------------------------------------------------------------------


class GuaranteedRanges(NamedTuple):
    """Intervals of features, in original units, in which a counterfactual is proved, and the proof.

    ``proof`` is None if the proof of the counterfactual itself covers the intervals.
    """

    values: dict[str, Interval]
    proof: Proof | None = None


class _Extension(NamedTuple):
    """A changed number, and all values from that of the counterfactual to an end.

    ``values`` is the interval in original units; ``low`` and ``high`` are its ends, encoded.
    """

    name: str
    column: int
    values: Interval
    low: float
    high: float


def guaranteed_ranges(
    prover: Prover,
    point: Array,
    person: Person,
    tolerance: Mapping[str, Interval],
    target: int,
    until: float,
) -> GuaranteedRanges:
    r"""Prove how far each change can be passed: "at least 52,000".

    Each changed number is extended in the direction of its change to the end of its range, or of what
    the person's rules allow. The box

    .. math::
        B = \prod_j [x'_j - t_j,\ \overline{x}_j] \quad\text{(for columns that rose; likewise downwards)}

    with the tolerances :math:`t` is certified for every set of networks. If not all numbers can be
    extended together, those are given up that cannot be extended even alone, then the longest
    extensions, until the rest is proved. Only quick bounds are used: a range may be missing.

    Parameters
    ----------
    point
        The counterfactual, encoded.
    person
        The variant of the person who may become it.
    tolerance
        Largest miss of each feature, in original units: how much less, and how much more.
    """
    schema, box = prover.schema, prover.judges[0].models.around(point) or (point, point)
    values = _numbers(schema, point, person)
    missed = {
        n: (_sum(values[n], -less), _sum(values[n], more)) for n, (less, more) in tolerance.items()
    }
    changed = {schema.columns[j].feature for j in np.flatnonzero(point != person.x).tolist()}
    some = _extensions(schema, point, person, values, tolerance)
    if not some or len(changed) > MOST_CHANGES:
        return GuaranteedRanges(missed)

    def prove(choices: Sequence[Sequence[_Extension]]) -> list[Proof | None]:
        boxes = [_extended(box, each) for each in choices]
        ends = np.array([low for low, _ in boxes]), np.array([high for _, high in boxes])
        return prover.boxes(np.repeat(point[None], len(boxes), axis=0), target, ends, until)

    (proof,) = prove([some])
    if proof is None and len(some) > 1:
        alone = zip(some, prove([[each] for each in some]), strict=True)
        some = [each for each, passed in alone if passed is not None]
        choices = [some[:size] for size in range(len(some), 0, -1)]
        passed = zip(choices, prove(choices) if choices else [], strict=True)
        some, proof = next((each for each in passed if each[1] is not None), ([], None))
    if proof is None:
        return GuaranteedRanges(missed)
    return GuaranteedRanges(missed | {each.name: each.values for each in some}, proof)


def range_box(schema: Schema, point: Array, ranges: Mapping[str, Interval]) -> InputBox:
    """Return the ends of the input box that a proof of guaranteed ranges must cover."""
    low, high = point.copy(), point.copy()
    for name, interval in ranges.items():
        feature = schema.by_name[name]
        if not isinstance(feature, Continuous):
            raise ValueError(f"{name!r} is not a number")
        j = schema.span(name).start
        codes = [(value - feature.offset) / feature.scale for value in interval]
        low[j], high[j] = min(low[j], codes[0]), max(high[j], codes[1])
    return low, high


def _extensions(
    schema: Schema,
    point: Array,
    person: Person,
    values: Mapping[str, float],
    tolerance: Mapping[str, Interval],
) -> list[_Extension]:
    """Return the changed numbers with all values beyond the counterfactual, shortest way first.

    Without those that would break a linear rule together with the others.
    """
    found = []
    for name, feature in schema.by_name.items():
        j = schema.span(name).start
        if not isinstance(feature, Continuous) or point[j] == person.x[j]:
            continue
        up, (less, more) = bool(point[j] > person.x[j]), tolerance.get(name, (0.0, 0.0))
        end = _end(feature, schema.columns[j], point[j], person, j, up=up)
        if end is not None:
            value, code = end
            here = _sum(values[name], -less if up else more)
            interval = (here, value) if up else (value, here)
            found.append(_Extension(name, j, interval, min(point[j], code), max(point[j], code)))
    found = [each for each in found if not _breaks_rule(each, found, point, person)]
    return sorted(found, key=lambda each: (each.high - each.low, each.column))


def _numbers(schema: Schema, point: Array, person: Person) -> dict[str, float]:
    """Return the numbers of a counterfactual in original units."""
    frame = schema.decode(point[None], people=person.x[None])
    features = schema.by_name.items()
    return {n: float(frame[n].iloc[0]) for n, f in features if isinstance(f, Continuous)}


def _end(
    feature: Continuous, column: Column, code: float, person: Person, j: int, *, up: bool
) -> Interval | None:
    """Return the end of what the person may become: its value and a code that surely covers it.

    None without an end beyond the counterfactual.
    """
    limit = float(person.upper[j] if up else person.lower[j])
    if not np.isfinite(limit):
        return None
    last = column.floor(limit) if up else column.ceil(limit)
    value = float(feature.write(np.array([[last]]))[0])
    last = float(feature.canonical(np.array([[last]]))[0, 0])
    sign = 1.0 if up else -1.0
    if sign * (last - code) <= 0.0 or sign * (last - limit) > LEGAL:
        return None
    slack = np.array(_ROUNDING * (abs(last) + abs(feature.offset) / feature.scale))
    here = np.array(last)
    return value, float(sum_up(here, slack) if up else sum_down(here, -slack))


def _breaks_rule(
    one: _Extension, found: Sequence[_Extension], point: Array, person: Person
) -> bool:
    """Test if a linear rule on a number fails somewhere in the box of all extensions."""
    rules = person.linear(point)
    low, high = _extended((point, point), found)
    ends = np.stack([rules.A * low, rules.A * high])
    least, most = ends.min(axis=0).sum(axis=1), ends.max(axis=0).sum(axis=1)
    broken = (least < rules.lower - LEGAL) | (most > rules.upper + LEGAL)
    return bool((broken & (rules.A[:, one.column] != 0.0)).any())


def _extended(box: InputBox, some: Sequence[_Extension]) -> InputBox:
    """Return a box with some numbers extended."""
    low, high = box[0].copy(), box[1].copy()
    for each in some:
        low[each.column] = min(low[each.column], each.low)
        high[each.column] = max(high[each.column], each.high)
    return low, high


def _sum(a: float, b: float) -> float:
    """Return the sum of two numbers as they are written: 0.3 less 0.1 is 0.2."""
    return float(Decimal(repr(a)) + Decimal(repr(b)))
