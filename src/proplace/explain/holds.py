r"""How much more, or less, than an answer is accepted, too: "at least 52,000", proved.

An answer moves some numbers of a person. Often the way goes on: more income than the answer asks for is
accepted as well. For the numbers that were changed, each in the direction of its change, this is tried
for all values up to the end of the feature's range, or to what the person's rules allow, jointly: the
box

.. math::
    B = \prod_j [x'_j - t_j,\ \overline{x}_j] \quad\text{(for columns that rose; likewise downwards)}

with the tolerances :math:`t` of all columns is certified as one box of inputs, for every set of
networks. Where not all can be widened together, those go that cannot be widened even alone, then those
that are widened most, until what is left is proved. Only cheap bounds are used (no linear programs), so
that this takes a few passes; what they do not prove is not claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.core.layer_box import sum_down, sum_up
from proplace.schema.features import Continuous
from proplace.schema.person import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proplace.certification import InputBox, Proof
    from proplace.core.network import Array
    from proplace.explain.proving import Prover
    from proplace.schema import Schema
    from proplace.schema.person import Person

    Interval = tuple[float, float]

_ROUNDING = 2.0**-48  # relative: far more than the rounding of a cell, a sum and a quotient


class Holds(NamedTuple):
    """What is proved to be accepted around an answer: values by feature name, and the proof of it.

    Without a ``proof`` it is that of the answer itself.
    """

    values: dict[str, Interval]
    proof: Proof | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer, who it is for, and by how much its features may be missed.

    Attributes
    ----------
    schema
        The features.
    point
        The answer, encoded.
    person
        The person, as far as the answer is one that they may become.
    tolerance
        How much less and how much more, in original units, by feature name.
    box
        The ends of the box of all misses, encoded; both are the answer where it is met exactly.
    """

    schema: Schema
    point: Array
    person: Person
    tolerance: Mapping[str, Interval]
    box: InputBox

    def missed(self) -> dict[str, Interval]:
        """Values that miss the answer by no more than the tolerance."""
        value = self._values()
        pairs = self.tolerance.items()
        return {n: (_sum(value[n], -less), _sum(value[n], more)) for n, (less, more) in pairs}

    def widenings(self) -> list[Widening]:
        """Numbers that were changed, with all that lies beyond; the least widening first.

        One that would break a linear rule together with the others is left out.
        """
        found = []
        values, before = self._values(), self.person.x
        for name, feature in self.schema.by_name.items():
            j = self.schema.span(name).start
            if not isinstance(feature, Continuous) or self.point[j] == before[j]:
                continue
            up = bool(self.point[j] > before[j])
            end = self._end(feature, j, up=up)
            if end is not None:
                less, more = self.tolerance.get(name, (0.0, 0.0))
                here = _sum(values[name], -less if up else more)
                interval = (here, end[0]) if up else (end[0], here)
                found.append(Widening(name, j, interval, end[1], up=up, own=self.point[j]))
        found = [each for each in found if not self._breaks(each, found)]
        return sorted(found, key=lambda each: (each.size, each.column))

    def widened(self, some: Sequence[Widening]) -> InputBox:
        """The box with some numbers widened to their ends."""
        low, high = self.box[0].copy(), self.box[1].copy()
        for each in some:
            ends, best = (high, max) if each.up else (low, min)
            ends[each.column] = best(ends[each.column], each.end)
        return low, high

    def _values(self) -> dict[str, float]:
        """Numbers of the answer in original units."""
        frame = self.schema.decode(self.point[None], people=self.person.x[None])
        features = self.schema.by_name.items()
        return {n: float(frame[n].iloc[0]) for n, f in features if isinstance(f, Continuous)}

    def _end(self, feature: Continuous, j: int, *, up: bool) -> tuple[float, float] | None:
        """Where the range, or what the person may become, ends: original and encoded.

        None where it has no end, or none beyond the answer.
        """
        column = self.schema.columns[j]
        limit = float(self.person.upper[j] if up else self.person.lower[j])
        if not np.isfinite(limit):
            return None
        code = column.floor(limit) if up else column.ceil(limit)
        value = float(feature.write(np.array([[code]]))[0])
        code = float(feature.canonical(np.array([[code]]))[0, 0])
        sign = 1.0 if up else -1.0
        if sign * (code - self.point[j]) <= 0.0 or sign * (code - limit) > TOLERANCE:
            return None
        slack = np.array(_ROUNDING * (abs(code) + abs(feature.offset) / feature.scale))
        here = np.array(code)
        return value, float(sum_up(here, slack) if up else sum_down(here, -slack))

    def _breaks(self, one: Widening, found: Sequence[Widening]) -> bool:
        """Whether a linear rule that a number is part of does not hold for all that is widened."""
        rules = self.person.linear(self.point)
        low, high = self.point.copy(), self.point.copy()
        for each in found:
            (high if each.up else low)[each.column] = each.end
        ends = np.stack([rules.A * low, rules.A * high])
        least, most = ends.min(axis=0).sum(axis=1), ends.max(axis=0).sum(axis=1)
        broken = (least < rules.lower - TOLERANCE) | (most > rules.upper + TOLERANCE)
        return bool((broken & (rules.A[:, one.column] != 0.0)).any())


@dataclass(frozen=True, eq=False)
class Widening:
    """A number that was changed, and all values beyond that of the answer, to an end.

    Attributes
    ----------
    name, column
        The feature and its encoded column.
    values
        The interval in original units.
    end
        The end in the direction of the change, encoded.
    up
        The direction.
    own
        The value of the answer, encoded.
    """

    name: str
    column: int
    values: Interval
    end: float
    up: bool
    own: float

    @property
    def size(self) -> float:
        """How far it is widened."""
        return abs(self.end - self.own)


def holds(answer: Answer, prover: Prover, target: int, until: float) -> Holds:
    """Prove as much as can be proved of what lies beyond an answer, with a handful of tests."""
    some = answer.widenings()
    found = answer.missed()
    if not some:
        return Holds(found)

    def proved(choices: Sequence[Sequence[Widening]]) -> list[Proof | None]:
        boxes = [answer.widened(each) for each in choices]
        ends = np.array([low for low, _ in boxes]), np.array([high for _, high in boxes])
        return prover.boxes(np.repeat(answer.point[None], len(boxes), axis=0), target, ends, until)

    (proof,) = proved([some])
    if proof is None and len(some) > 1:
        alone = zip(some, proved([[each] for each in some]), strict=True)
        some = [each for each, passed in alone if passed is not None]
        choices = [some[:size] for size in range(len(some), 0, -1)]  # without the widest, and so on
        passed = zip(choices, proved(choices) if choices else [], strict=True)
        some, proof = next((each for each in passed if each[1] is not None), ([], None))
    if proof is None:
        return Holds(found)
    return Holds(found | {each.name: each.values for each in some}, proof)


def held_box(schema: Schema, point: Array, values: Mapping[str, Interval]) -> InputBox:
    """The box of encoded rows that stands for what is said to hold: what a proof of it must cover."""
    low, high = point.copy(), point.copy()
    for name, interval in values.items():
        feature = schema.by_name[name]
        if not isinstance(feature, Continuous):
            raise ValueError(f"{name!r} is not a number")
        j = schema.span(name).start
        codes = [(value - feature.offset) / feature.scale for value in interval]
        low[j], high[j] = min(low[j], codes[0]), max(high[j], codes[1])
    return low, high


def _sum(a: float, b: float) -> float:
    """The sum of two numbers as they are written: 0.3 less 0.1 is 0.2."""
    return float(Decimal(repr(a)) + Decimal(repr(b)))
