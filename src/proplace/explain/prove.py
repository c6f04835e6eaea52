"""Proofs for one person: of a written point, of ranges around it, and of a fixed prediction.

If no counterfactual is found, this module tries to prove that none exists: that every network of a shift
set refuses every input that the schema allows the person (:mod:`proplace.region.pieces`,
:mod:`proplace.certification.fixed`). Without such a proof, the prediction may still be fixed.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.certification import Budget, FixedPredictionSearch, prove, required_margins, together
from proplace.core.guarantee import CURRENT_MODEL
from proplace.core.layer_box import sum_down, sum_up
from proplace.core.text import enumerated
from proplace.explain.claims import display_title, format_range
from proplace.explain.results import Finding
from proplace.region.pieces import admissible
from proplace.schema.features import Continuous
from proplace.schema.person import TOLERANCE as LEGAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from proplace.certification import Evidence, GuaranteeResult, InputBox, Proof, Space
    from proplace.core.guarantee import Guarantee, Member
    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.schema.grid import Column
    from proplace.schema.person import Person
    from proplace.schema.rules import AnyFeature

    Interval = tuple[float, float]


MOST_CHANGES = 5
"""Largest number of changes for which ranges are proved around a counterfactual."""
_RESERVE = 0.1  # share of a time limit that is reserved for the proof
_MOST_RESERVE = 1.0  # largest reserve in seconds
_BOX_BUDGET = Budget(200, 0)  # for the proof of a box around a counterfactual
_SAME = 1e-12  # encoded difference of a point before and after it is written in original units
_ROUNDING = 2.0**-48  # relative: far more than the rounding of a cell, a sum and a quotient


@dataclass(frozen=True)
class Deadlines:
    """Deadlines of search, writing and proof of a counterfactual, by ``time.monotonic``."""

    search: float = math.inf
    writing: float = math.inf
    proof: float = math.inf

    @classmethod
    def of(cls, time_limit: float | None) -> Deadlines:
        """Return the deadlines of a search that starts now."""
        if time_limit is None:
            return cls()
        end = time.monotonic() + time_limit
        reserve = min(_RESERVE * time_limit, _MOST_RESERVE)
        return cls(end - reserve, end - reserve / 2.0, end)

    @property
    def expired(self) -> bool:
        """True if the search has no time left."""
        return time.monotonic() >= self.search


class Proved(NamedTuple):
    """A point with its proof, its smallest margin, and the number of the candidate."""

    point: Array
    proof: Proof
    margin: float
    candidate: int


@dataclass(frozen=True, eq=False)
class Prover:
    """Proves that points, as written in a table, satisfy a guarantee."""

    schema: Schema
    guarantee: Guarantee

    def first(
        self,
        candidates: Iterable[Array],
        person: Person,
        target: int,
        *,
        evidence: Sequence[Evidence] = (),
        until: float = math.inf,
    ) -> Proved | None:
        """Return the first point that, as written, is legal for the person and robust.

        ``evidence`` contains the bounds that a search has proved for one point, for each member.
        """
        for number, row in enumerate(candidates):
            point = self.schema.canonical(row, person=person.x)[0]
            if not person.allowed(point)[0]:
                continue
            if evidence and np.abs(evidence[0].point - point).max() <= _SAME:
                proof = self._known(evidence, point, target, until)
                if proof is not None:
                    margin = min(each.lower for each in evidence)
                    return Proved(point, proof, margin, number)
            found = prove(self.guarantee, point[None], target, deadline=until)
            if found.robust[0]:
                return _proved(found, point, 0, number)
            if time.monotonic() >= until:
                break
        return None

    def _known(
        self, evidence: Sequence[Evidence], point: Array, target: int, until: float
    ) -> Proof | None:
        """Return the proof by the evidence of a search, if it proves the point for each member."""
        proofs = []
        for member, each in zip(self.guarantee.members, evidence, strict=True):
            mine = replace(each, point=point, box=member.around(point))
            margin = float(np.max(required_margins(member, point[None])))
            proof = mine.certificate(member.network, member.shifts, target, margin, until)
            if proof is None:
                return None
            proofs.append(proof)
        return together(proofs)

    def nearest(self, rows: Array, person: Person, target: int, until: float) -> Proved | None:
        """Return the first robust row that the person may become."""
        rows = self.schema.canonical(rows, person=person.x)
        rows = rows[person.allowed(rows)]
        found = prove(self.guarantee, rows, target, deadline=until)
        good = np.flatnonzero(found.robust)
        if not len(good):
            return None
        row = int(good[0])
        return _proved(found, rows[row], row, row)


def _proved(found: GuaranteeResult, point: Array, row: int, candidate: int) -> Proved:
    """Return a robust row with its proof."""
    proof = found.proof(row)
    assert proof is not None  # noqa: S101  (a robust row has one)
    return Proved(point, proof, float(found.lower[row]), candidate)


# -- guaranteed ranges -----------------------------------------------------------------------------


class GuaranteedRanges(NamedTuple):
    """Intervals of features, in original units, within which a counterfactual is proved.

    ``proof`` is None if the proof of the counterfactual itself covers the intervals.
    """

    values: dict[str, Interval]
    proof: Proof | None = None


class _Extension(NamedTuple):
    """A changed number, and all values from the counterfactual to an end of the range.

    ``values`` is the interval in original units. ``low`` and ``high`` are its encoded ends.
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
    r"""Prove ranges beyond the changed values, such as "at least 52,000".

    Each changed number is extended in the direction of its change to the end of its range, else to the
    limit of the person's rules. The box

    .. math::
        B = \prod_j [x'_j - t_j,\ \overline{x}_j] \quad\text{(for columns that rose; likewise downwards)}

    with the tolerances :math:`t` is certified for every member. If not all numbers can be extended
    together, those that cannot be extended alone are dropped first, and then the longest extensions,
    until the rest is proved. Only fast bounds are used, so a range may be missing.

    Parameters
    ----------
    point
        The counterfactual, encoded.
    person
        The person.
    tolerance
        Largest miss of each feature below and above, in original units.
    """
    schema, box = prover.schema, prover.guarantee.current.around(point) or (point, point)
    frame = schema.decode(point[None], people=person.x[None])
    features = schema.by_name.items()
    values = {n: float(frame[n].iloc[0]) for n, f in features if isinstance(f, Continuous)}
    missed = {
        n: (_sum(values[n], -less), _sum(values[n], more)) for n, (less, more) in tolerance.items()
    }
    changed = {schema.columns[j].feature for j in np.flatnonzero(point != person.x).tolist()}
    far, near = _extensions(schema, point, person, values, tolerance)
    if not (far or near) or len(changed) > MOST_CHANGES:
        return GuaranteedRanges(missed)

    def proofs_of(choices: Sequence[Sequence[_Extension]]) -> list[Proof | None]:
        if not choices:
            return []
        boxes = [_extended(box, each) for each in choices]
        ends = np.array([low for low, _ in boxes]), np.array([high for _, high in boxes])
        rows = np.repeat(point[None], len(boxes), axis=0)
        found = prove(prover.guarantee, rows, target, ends, until, budget=_BOX_BUDGET)
        return [found.proof(i) if good else None for i, good in enumerate(found.robust)]

    def first_proved(choices: Sequence[list[_Extension]]) -> tuple[list[_Extension], Proof | None]:
        passed = zip(choices, proofs_of(choices), strict=True)
        return next((each for each in passed if each[1] is not None), ([], None))

    some, proof = first_proved([far, near] if far != near else [near])
    single = list(dict.fromkeys([*far, *near]))
    if proof is None and len(single) > 1:
        alone = zip(single, proofs_of([[each] for each in single]), strict=True)
        passed = [each for each, found in alone if found is not None]
        # the farthest of each number
        some = _shortest_first({each.name: each for each in reversed(passed)}.values())
        some, proof = first_proved([some[:size] for size in range(len(some), 0, -1)])
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
) -> tuple[list[_Extension], list[_Extension]]:
    """Return the extensions of the changed numbers, shortest first.

    The first list goes to the ends of ranges, the second to the limits of the person's rules. Both omit
    extensions that would together break a linear rule.
    """
    far, near = list[_Extension](), list[_Extension]()
    for name, feature in schema.by_name.items():
        j = schema.span(name).start
        if not isinstance(feature, Continuous) or point[j] == person.x[j]:
            continue
        up, (less, more) = bool(point[j] > person.x[j]), tolerance.get(name, (0.0, 0.0))
        here = _sum(values[name], -less if up else more)
        limits = (schema.upper, person.upper) if up else (schema.lower, person.lower)
        for found, limit in zip((far, near), limits, strict=True):
            end = _end(feature, schema.columns[j], point[j], float(limit[j]), up=up)
            if end is not None:
                value, code = end
                interval = (here, value) if up else (value, here)
                found.append(
                    _Extension(name, j, interval, min(point[j], code), max(point[j], code))
                )

    def legal(some: list[_Extension]) -> list[_Extension]:
        return _shortest_first(each for each in some if not _breaks_rule(each, some, point, person))

    near, far = legal(near), legal(far)
    reached = {each.name for each in far}
    return legal([*far, *(each for each in near if each.name not in reached)]), near


def _shortest_first(some: Iterable[_Extension]) -> list[_Extension]:
    return sorted(some, key=lambda each: (each.high - each.low, each.column))


def _end(
    feature: Continuous, column: Column, code: float, limit: float, *, up: bool
) -> Interval | None:
    """Return the end of a range: its value, and a code that surely covers it.

    None without an end beyond the counterfactual.
    """
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
    """Return the sum of two numbers in decimals: 0.3 less 0.1 is 0.2."""
    return float(Decimal(repr(a)) + Decimal(repr(b)))


# -- fixed predictions -----------------------------------------------------------------------------

_SECONDS = 2.0
"""Largest number of seconds for the proof of one fixed prediction."""
_SAMPLE = 2000  # training rows that are tested first, because an accepted one refutes the claim
_NAMED = 6  # largest number of features that a reason names


def fixed_prediction(
    schema: Schema, guarantee: Guarantee, rows: Array, x: Array, target: int, deadline: float
) -> Finding | None:
    """Return the finding that a prediction is fixed. None without a proof.

    Parameters
    ----------
    schema
        The features that the person may change.
    guarantee
        The networks. The prediction is fixed if all networks of one member refuse.
    rows
        Training rows.
    x
        The person.
    target
        The target class.
    deadline
        End of the proof, by ``time.monotonic``, but at most ``_SECONDS`` from now.
    """
    start = time.monotonic()
    deadline = min(deadline, start + _SECONDS)
    spaces = admissible(schema, x)
    if not spaces:
        return None
    person = schema.person(x)
    known = schema.canonical(person.adapt(rows[:_SAMPLE], overwrite_categories=True), person=x)
    known = known[person.allowed(known)]
    for member in guarantee.members:
        if member.contains_network and (member.network.predict(known) == target).any():
            continue
        rounding = functools.partial(_deployed_rounding, member)
        refusal = FixedPredictionSearch(member.network, member.shifts, target, rounding)
        trees = refusal.prove(spaces, deadline=deadline)
        if trees is not None:
            return Finding(
                "fixed_prediction",
                f"{networks_of(member)} refuses {_inputs(schema, spaces)}. This is proved",
                encoded_original=x,
                certificate=refusal.certificate(trees),
                seconds=time.monotonic() - start,
            )
    return None


def _deployed_rounding(member: Member, low: Array, high: Array) -> Array:
    """Bound the effect of float32 rounding in a deployed model on a margin, over boxes."""
    if member.deployment is None:
        return np.zeros(len(low))
    return np.broadcast_to(required_margins(member, low, (low, high)), len(low))


def networks_of(member: Member) -> str:
    """Name the networks of a member in a reason."""
    if member.shifts.is_single_network:
        return member.name or CURRENT_MODEL
    if member.name.startswith("the shift set of"):
        return f"every network of {member.name}"
    where = "of the shift set" if member.has_parameter_intervals else "within delta"
    whose = "" if member.name in ("", CURRENT_MODEL) else f" of {member.name}"
    return f"every network {where}{whose}"


def _inputs(schema: Schema, spaces: Sequence[Space]) -> str:
    """Describe the refused inputs: all values of the actionable features."""
    low = np.min([space.low for space in spaces], axis=0)
    high = np.max([space.high for space in spaces], axis=0)
    free = {schema.columns[j].feature for j in np.flatnonzero(low < high).tolist()}
    if not free:
        return "this person, who may change nothing"
    features = list(enumerate(schema.features))
    moves = [_with_range(schema, spaces, feature) for n, feature in features if n in free]
    stays = [display_title(feature) for n, feature in features if n not in free]
    what = enumerated(moves)
    if len(moves) > _NAMED:
        what = f"the {len(moves)} actionable features"
    why = f" ({enumerated(stays)} cannot change)" if 0 < len(stays) <= _NAMED else ""
    return f"all values of {what}{why}"


def _with_range(schema: Schema, spaces: Sequence[Space], feature: AnyFeature) -> str:
    """Return the title of a feature, with the searched range of a number."""
    title = display_title(feature)
    if not isinstance(feature, Continuous):
        return title
    j = schema.span(feature.name).start
    wide = [space for space in spaces if space.low[j] < space.high[j]]
    if not wide:
        return title
    ends = min(space.low[j] for space in wide), max(space.high[j] for space in wide)
    low, high = feature.write(np.array(ends)[:, None]).tolist()
    low = low if feature.lower is None else max(low, feature.lower)
    high = high if feature.upper is None else min(high, feature.upper)
    return f"{title} ({format_range(feature, low, high)})"
