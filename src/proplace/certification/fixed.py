r"""Fixed predictions: no network of Delta gives the target class anywhere in a set of inputs.

A network refuses an input if another class has the larger logit. For one input box it is enough
that *one* other class o beats the target t there,

.. math::
    \min_{\theta \in \Delta,\ x \in [\underline x, \overline x]}
        \mathrm{logit}_o - \mathrm{logit}_t \ge m > 0 ,

which is robustness of class o over an input box, for the network with only the logits of o and t.
The margin m is positive, because a tie may count as acceptance: one logit of 0 is class 1, and of
equal logits the first class wins.

A :class:`Space` of inputs is a product: an interval for each number, and a finite set of values for
categories and short grids. Its convex hull is tried first, with one-hot columns anywhere in
between, which is sound. If this fails, the space is cut in two, at the number or the category with
the largest influence, and both parts must be refused, perhaps in favour of different classes. The
cuts form a tree, whose leaves are refused boxes: the proof.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification.certificate import FixedPrediction
from proplace.certification.robustness import certify
from proplace.core.network import Network
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from proplace.certification.certificate import Certificate
    from proplace.core.network import Array


STRICT = 2.0**-30
"""The smallest margin by which another class must win. Anything nearer to a tie is not refused."""
MOST_BOXES = 256
"""Largest number of boxes in one proof."""
_SHARE = 0.5  # of the remaining time, for one round of boxes: a hard one must not take it all
_LEAST_TIME = 1e-3


@dataclass(frozen=True, eq=False)
class Choice:
    """Columns that take their values jointly, from a list of shape (values, columns)."""

    columns: npt.NDArray[np.int64]
    values: Array


@dataclass(frozen=True, eq=False)
class Space:
    """A product of intervals and choices.

    Attributes
    ----------
    low, high
        Ends of every column. For the columns of choices, the ends of the hull of their values.
    choices
        Columns that take certain values only. No column is in two of them.
    """

    low: Array
    high: Array
    choices: tuple[Choice, ...] = ()

    @classmethod
    def of(cls, low: Array, high: Array, choices: Sequence[Choice] = ()) -> Space:
        """Build a space with the ends of its choices' columns."""
        low, high = low.copy(), high.copy()
        for choice in choices:
            low[choice.columns] = choice.values.min(axis=0)
            high[choice.columns] = choice.values.max(axis=0)
        return cls(low, high, tuple(choices))

    @property
    def mixed(self) -> bool:
        """True if a choice has several values, so that the hull is larger than the space."""
        return any(len(choice.values) > 1 for choice in self.choices)

    def widest(self, influence: Array) -> tuple[int, float] | None:
        """Choose a cut: a column and a value, or a choice (as -1 - number) and a count of its values.

        Returns None for a single point.
        """
        spread = influence * (self.high - self.low)
        score = np.where(self.high > self.low, spread, -1.0)
        for choice in self.choices:
            score[choice.columns] = -1.0
        best, cut = -1.0, None
        j = int(score.argmax())
        middle = self.low[j] + (self.high[j] - self.low[j]) / 2.0
        if score[j] >= 0.0 and self.low[j] < middle < self.high[j]:
            best, cut = float(score[j]), (j, float(middle))
        for number, choice in enumerate(self.choices):
            worth = float(spread[choice.columns].sum())
            if len(choice.values) > 1 and worth > best:
                best, cut = worth, (-1 - number, len(choice.values) // 2)
        return cut

    def cut(self, at: tuple[int, float]) -> tuple[Space, Space]:
        """Return both parts: below and above a value, or the first values of a choice and the rest."""
        where, place = at
        if where >= 0:
            high, low = self.high.copy(), self.low.copy()
            high[where] = low[where] = place
            return replace(self, high=high), replace(self, low=low)
        number = -1 - where
        choice = self.choices[number]
        halves = choice.values[: int(place)], choice.values[int(place) :]
        first, second = (
            Space.of(
                self.low,
                self.high,
                [replace(c, values=half) if c is choice else c for c in self.choices],
            )
            for half in halves
        )
        return first, second


@dataclass(eq=False)
class Node:
    """A space in the tree of cuts: cut in two, or refused as a whole in favour of a class."""

    space: Space
    at: tuple[int, float] | None = None
    parts: tuple[Node, ...] = ()
    other: int | None = None
    proof: Certificate | None = None

    def preorder(self) -> Iterator[Node]:
        """Iterate over all nodes: a cut, then the nodes of its first side, then those of the other."""
        yield self
        for part in self.parts:
            yield from part.preorder()

    def leaves(self) -> Iterator[Node]:
        """Iterate over the boxes of the tree, in preorder."""
        return (node for node in self.preorder() if not node.parts)


@dataclass(frozen=True, eq=False)
class FixedPredictionSearch:
    """Search for a proof that every network of a shift set refuses every input of some spaces.

    Attributes
    ----------
    net, shifts
        The networks.
    target
        The class that must not be given.
    margins
        Function for the margin by which another class must win on each of some boxes, given by
        their ends. For a model deployed in float32, the margin covers its rounding.
    """

    net: Network
    shifts: Shifts
    target: int
    margins: Callable[[Array, Array], Array] = field(
        default=lambda low, high: np.full(len(low), STRICT)
    )

    def prove(
        self, spaces: Sequence[Space], *, most: int = MOST_BOXES, deadline: float = np.inf
    ) -> list[Node] | None:
        """Return a tree of refused boxes for each space, or None without a proof.

        There is no proof if some input is not refused, if more than ``most`` boxes would be needed,
        or at the deadline.
        """
        roots = [Node(space) for space in spaces]
        open_, count, influence = roots, len(roots), self._influence()
        while open_:
            if count > most or time.monotonic() >= deadline:
                return None
            if self._accepted(open_, deadline):
                return None
            left: list[Node] = []
            for node in open_:
                if node.other is not None:
                    continue
                node.at = node.space.widest(influence)
                if node.at is None:
                    return None
                node.parts = tuple(Node(part) for part in node.space.cut(node.at))
                left += node.parts
            open_, count = left, count + len(left)
        return roots

    def certificate(self, trees: Sequence[Node]) -> FixedPrediction:
        """Write the result of :meth:`prove` as a certificate."""
        return FixedPrediction.of(self.net, self.shifts, self.target, trees)

    def _accepted(self, nodes: Sequence[Node], deadline: float) -> bool:
        """Find a class that beats the target on each box, or True if an input is accepted."""
        low, high = (
            np.array([getattr(node.space, end) for node in nodes]) for end in ("low", "high")
        )
        margins = np.maximum(self.margins(low, high), STRICT)
        lost = np.zeros(len(nodes), dtype=bool)
        rivals = [o for o in range(self.net.classes) if o != self.target]
        for other in rivals:
            rows = np.flatnonzero([node.other is None for node in nodes])
            if not len(rows):
                break
            net, shifts, winner = self.duel(other)
            report = certify(
                net,
                low[rows] + (high[rows] - low[rows]) / 2.0,
                shifts,
                winner,
                margin=margins[rows],
                box=(low[rows], high[rows]),
                certificates=True,
                time_limit=_share(deadline, len(rivals)),
            )
            assert report.certificates is not None  # noqa: S101  (requested)
            for i in np.flatnonzero(report.robust).tolist():
                node = nodes[rows[i]]
                node.other, node.proof = other, report.certificates[i]
            lost[rows] = ~report.robust & ~report.undecided
        return len(rivals) == 1 and any(
            gone and not node.space.mixed for node, gone in zip(nodes, lost, strict=True)
        )

    def duel(self, other: int) -> tuple[Network, Shifts, int]:
        """Return the networks with only two logits, and the number of ``other`` among them."""
        if self.net.outputs <= 2:
            return self.net, self.shifts, other
        pair = [other, self.target]
        if self.shifts.radii is None:
            ends = (_with_logits(end, pair) for end in (self.shifts.low, self.shifts.high))
            return _with_logits(self.net, pair), Shifts(*ends), 0
        net = _with_logits(self.net, pair)
        return net, Shifts.of(net, list(self.shifts.radii)), 0

    def _influence(self) -> Array:
        """Estimate the effect of each column on a logit by products of the sizes of all weights."""
        reach = np.ones(self.net.outputs)
        for box in reversed(self.shifts.layers):
            reach = reach @ box.size[0]
        front = self.net.input_transform
        if front.matrix is not None:
            reach = reach @ np.abs(front.matrix)
        return reach if front.scale is None else reach * np.abs(front.scale)


def _with_logits(net: Network, classes: list[int]) -> Network:
    """Return the network with some of its logits, in that order."""
    *hidden, last = net.layers
    pairs = [(layer.W, layer.b) for layer in hidden]
    pairs.append((last.W[classes], None if last.b is None else last.b[classes]))
    return Network(pairs, **net.input_transform.parts, precision=net.precision, folds=None)


def _share(deadline: float, parts: int) -> float | None:
    """Return the seconds for one test: a part of the time left, but never zero."""
    if np.isinf(deadline):
        return None
    return max(_SHARE * (deadline - time.monotonic()) / parts, _LEAST_TIME)
