r"""Which small sets of features can reach the margin at all: sets that cannot are excluded by a proof.

A *move* changes one feature: a number goes up or down by :math:`s \ge 0`, a category becomes another
one (:math:`s \in \{0, 1\}`). A point that changes at most m features is
:math:`x' = x + \sum_t s_t e_t` with at most one move of a feature and moves of at most m features. A
robust point keeps the margin in every network of Delta, so in any one of them (a scenario), and the
margin of a scenario is bounded from above by a linear function :math:`c + \sum_t g_t s_t` (backward
bounds through the ReLUs, as in :mod:`proplace.search.ranges`). Over all points nearer than D it is at
most

.. math::
    c + \min\Big( \textstyle\sum\text{ of the m largest } \max_{t \in f} g_t^+ \bar s_t,\;
    D \max_t g_t^+ / c_t \Big)

with :math:`c_t` the cost of a move. Where that is less than the margin, no set of m features has an
answer, whatever its region. Otherwise one feature after another is made to move, those before it are
left out, and these parts are bounded anew, until the whole set is known and the sizes of its moves are
cut in halves. A set is *open* when a point of it keeps the margin in all scenarios that were met, or
after enough cuts. Everything is done for many parts at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.search.oracle import Oracle
    from proplace.search.problem import SearchProblem
    from proplace.search.scenario import ShiftedObjective

Integers = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Features = frozenset[int]

_SAFE, _ROUNDING = 1e-9, 1e-13  # room for the rounding of bounds, and as a share of their sums
_MOST_SCENARIOS = 8
_HALVINGS = 10  # of the moves of one set, at most
_WAVE = 1_500_000  # numbers of one step of a bound that are held at once

MOST_WORK = 10_000_000
"""Numbers that the bounds for one answer may take, at most.

A part of the space of moves takes about 2,500 of them in a network of 2 x 20 neurons with 20 inputs.
"""


@dataclass(frozen=True, eq=False)
class Moves:
    """All moves of one person, those of a feature side by side.

    Attributes
    ----------
    feature
        Number of the feature of each move.
    E
        What a move of size 1 adds to the columns, one row a move.
    most
        Largest size of each move.
    whole
        Moves that are made as a whole or not at all: those of categories.
    first
        Position of the first move of each feature that has one.
    """

    feature: Integers
    E: Array
    most: Array
    whole: Mask
    first: Integers

    @classmethod
    def of(
        cls, schema: Schema, x: Array, low: Array, high: Array, features: Iterable[int]
    ) -> Moves:
        """The moves of some features, columns staying between ``low`` and ``high``."""
        found: list[tuple[int, Array, float, bool]] = []
        profile = set(schema.profile_columns.tolist())
        for number in sorted(features):
            span = schema.spans[number]
            if span.start in profile:
                for legal in _patterns(schema, number):
                    step = np.zeros(len(x))
                    step[span] = legal - x[span]
                    inside = (low[span] <= legal) & (legal <= high[span])
                    if step.any() and inside.all():
                        found.append((number, step, 1.0, True))
                continue
            for sign, room in ((1.0, high - x), (-1.0, x - low)):
                if room[span.start] > 0.0:
                    step = np.zeros(len(x))
                    step[span.start] = sign
                    found.append((number, step, float(room[span.start]), False))
        feature = np.array([each[0] for each in found], dtype=np.intp)
        return cls(
            feature,
            np.array([each[1] for each in found]).reshape(-1, len(x)),
            np.array([each[2] for each in found]),
            np.array([each[3] for each in found], dtype=bool),
            np.unique(feature, return_index=True)[1].astype(np.intp),
        )


def _patterns(schema: Schema, number: int) -> Array:
    """The legal values of the columns of a category or binary."""
    span = schema.spans[number]
    width = span.stop - span.start
    if width == 1:
        return np.array([[0.0], [1.0]])
    return np.vstack([np.eye(width), np.zeros((1, width))])  # the zeros: dropfirst


class _Nodes(NamedTuple):
    """Parts in which some moves are made, of any size, and others may be."""

    made: Integers  # (parts, moves made)
    allowed: Mask  # (parts, all moves)

    def take(self, which: Integers | Mask | slice) -> _Nodes:
        return _Nodes(self.made[which], self.allowed[which])


class _Boxes(NamedTuple):
    """Parts in which all moves are known, and their sizes lie between ``low`` and ``high``."""

    made: Integers
    low: Array
    high: Array
    cuts: Integers

    def take(self, which: Integers | Mask | slice) -> _Boxes:
        return _Boxes(self.made[which], self.low[which], self.high[which], self.cuts[which])

    def halved(self, moves: Integers) -> _Boxes:
        """Both halves of each box, cut at one of its moves."""
        rows, (low, high) = np.arange(len(moves)), (self.low.copy(), self.high.copy())
        low[rows, moves] = high[rows, moves] = 0.5 * (low + high)[rows, moves]
        return _Boxes(
            np.vstack([self.made, self.made]),
            np.vstack([low, self.low]),
            np.vstack([self.high, high]),
            np.tile(self.cuts + 1, 2),
        )


class _Bound(NamedTuple):
    """An upper bound on the margin in each part: that of a linear function ``const + g . sizes``.

    ``lower`` is a lower bound on the distance of a point that reaches the margin.
    """

    upper: Array
    lower: Array
    g: Array

    def take(self, which: Integers | Mask) -> _Bound:
        return _Bound(*(each[which] for each in self))


@dataclass(frozen=True)
class OpenSets:
    """Sets of features that are not excluded, each with a guess at the distance of an answer.

    ``complete``: every other set of the size is excluded.
    """

    sets: dict[Features, float]
    complete: bool


class SubsetBounds:
    """Excludes sets of features of one person; scenarios that are met are kept for the next question.

    ``start`` are points, such as the nearest answer, at which the first scenarios hurt.
    """

    def __init__(self, problem: SearchProblem, moves: Moves, oracle: Oracle, start: Array) -> None:
        self.problem, self.moves, self.oracle = problem, moves, oracle
        self.scenarios: list[ShiftedObjective] = []
        self._first: list[tuple[Array, Array]] = []  # the first layer at x, and of each move
        self._excluded: list[int] = []  # parts that each scenario has excluded
        self._size: list[int] = []  # numbers that the bound of one part takes
        self._room: list[float] = []  # for the rounding of bounds
        self.work = 0
        self.cost = problem.distance.between(problem.x, problem.x + moves.E)
        for scenario in oracle.attack(start):
            self._learn(scenario)

    def open_sets(
        self,
        size: int,
        cutoff: float,
        *,
        among: Iterable[Features] | None = None,
        most: int = MOST_WORK,
        deadline: float = np.inf,
        tried: Callable[[Features], float] | None = None,
    ) -> OpenSets:
        """The sets of ``size`` features (of some, if given) that may have an answer up to ``cutoff``.

        ``tried`` is called with each set as soon as it is open, and says which cutoff holds then.
        """
        found: dict[Features, float] = {}
        end = self.work + most
        nodes: list[_Nodes] = [self._roots(among)]
        boxes: list[_Boxes] = []
        while nodes or boxes:
            if self.work >= end or time.monotonic() >= deadline:
                return OpenSets(found, complete=False)
            if boxes:
                before = len(found)
                boxes += self._explore(boxes.pop(), cutoff, found)
                if tried is not None:
                    for features in list(found)[before:]:
                        cutoff = tried(features)
            else:
                node = nodes.pop()
                if node.made.shape[1] == size:
                    boxes += _waves(self._boxes(node, cutoff), self._wave())
                else:
                    nodes += _waves(self._grow(node, size, cutoff), self._wave())
        return OpenSets(found, complete=True)

    def not_excluded(
        self, sets: Sequence[Features], cutoff: float, deadline: float = np.inf
    ) -> list[Features]:
        """The sets of one size, which may be large, that a single bound for each does not exclude.

        Those that are not bounded before the deadline are not excluded.
        """
        left: list[Features] = []
        wave = self._wave()
        for start in range(0, len(sets), wave):
            if time.monotonic() >= deadline:
                return [*left, *sets[start:]]
            some = sets[start : start + wave]
            support = _NodeSupport(self, self._roots(some), len(some[0]), cutoff)
            left += [some[i] for i in self._survivors(support, len(some), cutoff)[0]]
        return left

    def may_be_robust(self, points: Array) -> Mask:
        """Which points keep the margin of the search in every scenario met so far."""
        good = np.ones(len(points), dtype=bool)
        for scenario, room in zip(self.scenarios, self._room, strict=True):
            left = np.flatnonzero(good)
            good[left] = scenario.value(points[left]) >= self.problem.search_margin - room
        return good

    # -- sets --------------------------------------------------------------------------------------

    def _roots(self, among: Iterable[Features] | None) -> _Nodes:
        feature = self.moves.feature
        everything = [np.ones(len(feature), dtype=bool)]
        allowed = everything if among is None else [np.isin(feature, list(each)) for each in among]
        return _Nodes(
            np.zeros((len(allowed), 0), dtype=np.intp),
            np.array(allowed, dtype=bool).reshape(-1, len(feature)),
        )

    def _grow(self, nodes: _Nodes, size: int, cutoff: float) -> _Nodes:
        """Of parts that are not excluded: one more move is made, of one feature after another.

        A feature that comes later in this order goes without those before it, so that each set is
        met once. The order is that of what the features could add, the most first: what comes
        later is excluded soon.
        """
        left, feature = size - nodes.made.shape[1], self.moves.feature
        most = self._most(cutoff)
        nodes = nodes._replace(allowed=nodes.allowed & (most > 0.0))
        nodes = nodes.take(self._counts(nodes.allowed) >= left)
        support = _NodeSupport(self, nodes, left, cutoff)
        alive, bound = self._survivors(support, len(nodes.made), cutoff)
        nodes = nodes.take(alive)
        if not len(nodes.made):
            return _Nodes(np.zeros((0, nodes.made.shape[1] + 1), dtype=np.intp), nodes.allowed)
        gain = np.where(nodes.allowed, np.maximum(bound.g, 0.0) * most, -1.0)
        gain = np.maximum.reduceat(gain, self.moves.first, axis=1)
        order = np.argsort(-gain, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(order.shape[1])[None], axis=1)
        number = np.searchsorted(
            feature[self.moves.first], feature
        )  # feature of a move, counted here
        rank = rank[:, number]
        row, move = np.nonzero(nodes.allowed)
        allowed = nodes.allowed[row] & (rank[row] > rank[row, move][:, None])
        children = _Nodes(np.column_stack([nodes.made[row], move]), allowed)
        return children.take(self._counts(allowed) >= left - 1)

    def _counts(self, allowed: Mask) -> Integers:
        """How many features may still move."""
        if not allowed.shape[1]:
            return np.zeros(len(allowed), dtype=np.intp)
        found: Integers = np.logical_or.reduceat(allowed, self.moves.first, axis=1).sum(axis=1)
        return found

    def _most(self, cutoff: float) -> Array:
        """The largest size of each move that is not beyond the cutoff; 0: it cannot be made."""
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.fmin(self.moves.most, cutoff / self.cost)
        return np.where(self.moves.whole & (most < 1.0), 0.0, most)

    # -- sizes -------------------------------------------------------------------------------------

    def _boxes(self, nodes: _Nodes, cutoff: float) -> _Boxes:
        high = self._most(cutoff)[nodes.made]
        low = self.moves.whole[nodes.made].astype(np.float64)
        return _Boxes(nodes.made, low, high, np.zeros(len(high), dtype=np.intp))

    def _explore(self, boxes: _Boxes, cutoff: float, found: dict[Features, float]) -> list[_Boxes]:
        """Bound boxes; a set with a box that looks feasible, or was halved often enough, is open.

        The other boxes that are left are cut in two, at the move whose size matters most.
        """
        boxes = self._within(boxes, cutoff)
        alive, bound = self._survivors(_BoxSupport(self, boxes, cutoff), len(boxes.made), cutoff)
        boxes = boxes.take(alive)
        if not len(boxes.made):
            return []
        points = self._points(boxes, bound, cutoff)
        wanted = self.problem.search_margin
        looks = self.values(points) >= wanted
        if looks.any() and len(self.scenarios) < _MOST_SCENARIOS:
            best = np.flatnonzero(looks)[bound.lower[looks].argmin()]
            self._learn(self.oracle.attack(points[best][None])[0])
            looks &= self.scenarios[-1].value(points) >= wanted
        width = boxes.high - boxes.low
        over = looks | (boxes.cuts >= _HALVINGS) | (width.max(axis=1) < _SAFE)
        features = [frozenset(each) for each in self.moves.feature[boxes.made].tolist()]
        for i in np.flatnonzero(over):
            found[features[i]] = min(found.get(features[i], np.inf), float(bound.lower[i]))
        left = np.array([each not in found for each in features])  # one box is enough
        boxes, g, width = boxes.take(left), bound.g[left], width[left]
        if not len(boxes.made):
            return []
        halves = boxes.halved((np.abs(g) * width).argmax(axis=1))
        return _waves(halves, self._wave())

    def _within(self, boxes: _Boxes, cutoff: float) -> _Boxes:
        """Shorten the moves to what the cutoff allows."""
        if not np.isfinite(cutoff):
            return boxes
        cost = self.cost[boxes.made]
        rest = cutoff - (boxes.low * cost).sum(axis=1)
        boxes, cost, rest = boxes.take(rest >= 0.0), cost[rest >= 0.0], rest[rest >= 0.0]
        with np.errstate(divide="ignore", invalid="ignore"):
            high = np.fmin(boxes.high, boxes.low + rest[:, None] / cost)
        return boxes._replace(high=high)

    def _points(self, boxes: _Boxes, bound: _Bound, cutoff: float) -> Array:
        """A point of each box at which the linear bound is large."""
        sizes = np.where(bound.g > 0.0, boxes.high, boxes.low)
        if np.isfinite(cutoff):
            cost = self.cost[boxes.made]
            with np.errstate(divide="ignore", invalid="ignore"):
                order = np.argsort(-bound.g / cost, axis=1, kind="stable")
            spent = np.take_along_axis((sizes - boxes.low) * cost, order, axis=1)
            rest = (cutoff - (boxes.low * cost).sum(axis=1))[:, None]
            before = np.cumsum(spent, axis=1) - spent
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(spent > 0.0, np.clip((rest - before) / spent, 0.0, 1.0), 1.0)
            back = np.empty_like(share)
            np.put_along_axis(back, order, share, axis=1)
            sizes = boxes.low + back * (sizes - boxes.low)
        moves = self.moves.E[boxes.made]
        points: Array = self.problem.x + (sizes[:, None] @ moves)[:, 0]
        return points

    def values(self, points: Array) -> Array:
        """Upper bounds on the worst margins: those of every scenario met so far."""
        result: Array = np.min([each.value(points) for each in self.scenarios], axis=0)
        return result

    # -- bounds ------------------------------------------------------------------------------------

    def _learn(self, scenario: ShiftedObjective) -> None:
        self.scenarios.append(scenario)
        self._excluded.append(0)
        a = scenario.a[None], np.array([scenario.const])
        W, b = scenario.layers[0] if scenario.layers else a
        self._first.append((W @ self.problem.x + b, W @ self.moves.E.T))
        pairs = [*(layer[0].shape for layer in scenario.layers[1:]), (len(W), len(self.moves.E))]
        self._size.append(sum(2 * rows * columns for rows, columns in pairs))
        self._room.append(self._rounding(scenario))

    def _rounding(self, scenario: ShiftedObjective) -> float:
        """What the rounding of a bound may amount to: a share of the largest sums that it is made of."""
        moves = self.moves
        h: Array = np.abs(self.problem.x) + moves.most @ np.abs(moves.E)
        for W, b in scenario.layers:
            h = np.abs(W) @ h + np.abs(b)
        return _SAFE + _ROUNDING * float(np.abs(scenario.a) @ h + abs(scenario.const))

    def _wave(self) -> int:
        return max(1, _WAVE // max(self._size))

    def _survivors(
        self, support: _NodeSupport | _BoxSupport, count: int, cutoff: float
    ) -> tuple[Integers, _Bound]:
        """Which parts no scenario excludes, each with the least of its bounds."""
        alive = np.arange(count)
        best: _Bound | None = None
        for number in sorted(range(len(self.scenarios)), key=lambda i: -self._excluded[i]):
            self.work += len(alive) * self._size[number]
            bound = self._bounds(number, support)
            if best is not None:
                keep = best.upper < bound.upper
                lower = np.maximum(best.lower, bound.lower)
                g = np.where(keep[:, None], best.g, bound.g)
                bound = _Bound(np.minimum(best.upper, bound.upper), lower, g)
            enough = self.problem.search_margin - self._room[number]
            good = (bound.upper >= enough) & (bound.lower <= cutoff)
            self._excluded[number] += len(good) - int(good.sum())
            alive, best = alive[good], bound.take(good)
            support = support.take(good)
            if not len(alive):
                break
        assert best is not None  # noqa: S101  (there is at least one scenario)
        return alive, best

    def _bounds(self, number: int, support: _NodeSupport | _BoxSupport) -> _Bound:
        """The bounds that one scenario gives."""
        scenario, (z, G) = self.scenarios[number], self._first[number]
        G = support.of_moves(G)
        if not scenario.layers:
            g, const = G, z[None]
        else:
            ranges: list[tuple[Array, Array]] = [(z - support(-G), z + support(G))]
            for W, b in scenario.layers[1:]:
                A, const = _back(scenario, ranges, np.vstack([W, -W])[None], np.append(b, -b)[None])
                top = const + A @ z + support(A @ G)
                ranges.append((-top[:, len(W) :], top[:, : len(W)]))
            A, const = _back(scenario, ranges, scenario.a[None, None], np.array([[scenario.const]]))
            const, g = const + A @ z, A @ G
        upper = const + support(g)
        lower = support.distance(g, const, self.problem.search_margin - self._room[number])
        return _Bound(upper[:, 0], lower, np.broadcast_to(g, (len(upper), *g.shape[1:]))[:, 0])


_Parts = TypeVar("_Parts", _Nodes, _Boxes)


def _waves(parts: _Parts, size: int) -> list[_Parts]:
    """Cut parts into waves; the first comes last, for it is taken from there."""
    starts = range(0, len(parts.made), size)
    return [parts.take(slice(start, start + size)) for start in starts][::-1]


def _back(
    scenario: ShiftedObjective, ranges: Sequence[tuple[Array, Array]], A: Array, const: Array
) -> tuple[Array, Array]:
    """Upper bounds ``A z + const``, z the first pre-activations, of functions of the activations."""
    for k in range(len(ranges) - 1, -1, -1):
        low, high = ranges[k]
        open_ = (low < 0.0) & (high > 0.0)
        chord = np.where(open_, high / np.where(open_, high - low, 1.0), low >= 0.0)
        below = np.where(open_, high >= -low, low >= 0.0)
        lift = np.where(open_, -chord * low, 0.0)
        positive = np.maximum(A, 0.0)
        const = const + (positive @ lift[:, :, None])[:, :, 0]
        A = positive * chord[:, None] + (A - positive) * below[:, None]
        if k > 0:
            W, b = scenario.layers[k]
            const = const + A @ b
            A = A @ W
    return A, const


class _NodeSupport:
    """Largest values of linear functions of the moves over nodes."""

    def __init__(self, bounds: SubsetBounds, nodes: _Nodes, left: int, cutoff: float) -> None:
        self.moves, self.nodes, self.left, self.cutoff = bounds.moves, nodes, left, cutoff
        most = bounds._most(cutoff)
        self.most, self.cost = most, bounds.cost
        self.free = np.where(nodes.allowed, most, 0.0)[:, None]
        self.made = np.zeros(nodes.allowed.shape)
        np.put_along_axis(self.made, nodes.made, most[nodes.made], axis=1)
        self.least = np.where(bounds.moves.whole, self.made, 0.0)  # at least so much is made
        self.used = self.least @ self.cost
        with np.errstate(divide="ignore"):
            usable = nodes.allowed | (self.made > self.least)
            self.rate = np.where(usable, 1.0 / self.cost, 0.0)[:, None]

    def take(self, which: Mask) -> _NodeSupport:
        """The same for some of the nodes."""
        if which.all():
            return self
        result = object.__new__(_NodeSupport)
        result.__dict__ = dict(self.__dict__)
        for name in ("nodes",):
            setattr(result, name, self.nodes.take(which))
        for name in ("free", "made", "least", "used", "rate"):
            setattr(result, name, getattr(self, name)[which])
        return result

    def of_moves(self, G: Array) -> Array:
        """Functions of all moves, one row each."""
        return G[None]

    def __call__(self, g: Array) -> Array:
        """Largest values of functions ``g`` (nodes or 1, functions, moves): (nodes, functions)."""
        positive = np.maximum(g, 0.0)
        total = (positive @ (self.made - self.least)[:, :, None])[:, :, 0] + self._top(positive)
        if np.isfinite(self.cutoff):
            rest = np.maximum(self.cutoff - self.used, 0.0)[:, None]
            total = np.fmin(total, _product(rest, _product(positive, self.rate).max(axis=2)))
        result: Array = total + (g @ self.least[:, :, None])[:, :, 0]
        return result

    def _top(self, positive: Array) -> Array:
        """Sum of the largest gains of the features that may still move."""
        gains = np.maximum.reduceat(positive * self.free, self.moves.first, axis=2)
        if self.left == 1:
            return np.asarray(gains.max(axis=2))
        if self.left < gains.shape[2]:
            gains = np.partition(gains, -self.left, axis=2)[:, :, -self.left :]
        return np.asarray(gains.sum(axis=2))

    def distance(self, g: Array, const: Array, wanted: float) -> Array:
        """Lower bounds on the distance at which a linear bound reaches what is wanted."""
        base = const + (g @ self.least[:, :, None])[:, :, 0]
        rate = _product(np.maximum(g, 0.0), self.rate).max(axis=2)
        return _reached(self.used, (wanted - base)[:, 0], rate[:, 0])


class _BoxSupport:
    """Largest values of linear functions of the moves over boxes."""

    def __init__(self, bounds: SubsetBounds, boxes: _Boxes, cutoff: float) -> None:
        self.made, self.low, self.cutoff = boxes.made, boxes.low, cutoff
        self.width = boxes.high - boxes.low
        cost = bounds.cost[boxes.made]
        self.used = (boxes.low * cost).sum(axis=1)
        with np.errstate(divide="ignore"):
            self.rate = np.where(self.width > 0.0, 1.0 / cost, 0.0)

    def take(self, which: Mask) -> _BoxSupport:
        """The same for some of the boxes."""
        if which.all():
            return self
        result = object.__new__(_BoxSupport)
        result.__dict__ = dict(self.__dict__)
        for name in ("made", "low", "width", "used", "rate"):
            setattr(result, name, getattr(self, name)[which])
        return result

    def of_moves(self, G: Array) -> Array:
        """Functions of the moves of each box."""
        return np.moveaxis(G[:, self.made], 1, 0)

    def __call__(self, g: Array) -> Array:
        """Largest values of functions ``g`` (boxes, functions, moves): (boxes, functions)."""
        positive = np.maximum(g, 0.0)
        total = (positive @ self.width[:, :, None])[:, :, 0]
        if np.isfinite(self.cutoff):
            rest = np.maximum(self.cutoff - self.used, 0.0)[:, None]
            ratio = _product(positive, self.rate[:, None]).max(axis=2)
            total = np.fmin(total, _product(rest, ratio))
        result: Array = total + (g @ self.low[:, :, None])[:, :, 0]
        return result

    def distance(self, g: Array, const: Array, wanted: float) -> Array:
        """Lower bounds on the distance at which a linear bound reaches what is wanted."""
        base = const + (g @ self.low[:, :, None])[:, :, 0]
        rate = _product(np.maximum(g, 0.0), self.rate[:, None]).max(axis=2)
        return _reached(self.used, (wanted - base)[:, 0], rate[:, 0])


def _product(positive: Array, rate: Array) -> Array:
    """Products of numbers >= 0, where nothing times infinity is nothing."""
    with np.errstate(invalid="ignore"):
        result: Array = positive * rate
    return np.where(positive > 0.0, result, 0.0) if np.isinf(rate).any() else result


def _reached(used: Array, need: Array, rate: Array) -> Array:
    """Distance used, and what must be added for what is still needed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(need > 0.0, used + need / rate, used)
