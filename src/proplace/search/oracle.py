"""The robustness test of the searches, and its scenarios.

The test returns a verdict, and for a failed point a shift that violates the margin. That shift is a
scenario: one network of Delta, as a constraint that every robust point satisfies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from proplace.certification import FULL, PointRobustness
from proplace.core.guarantee import off_centre

if TYPE_CHECKING:
    from proplace.certification import Attack, Budget, Evidence
    from proplace.core.guarantee import Member
    from proplace.core.network import Array, Network
    from proplace.search.problem import SearchProblem


@dataclass(frozen=True, eq=False)
class Scenario:
    """A network of Delta together with the objective over its logits that it lowers.

    ``layers`` are its hidden layers as functions of ``x'`` (the first includes the input
    transform), ``a`` and ``const`` the objective over the last of them. Networks of any
    architecture can be scenarios of one problem.
    """

    layers: tuple[tuple[Array, Array], ...]
    a: Array
    const: float

    @classmethod
    def of(
        cls,
        net: Network,
        pairs: list[tuple[Array, Array]],
        c: Array,
        offset: float = 0.0,
        miss: Array | None = None,
    ) -> Scenario:
        """Read the shifted layers of a network, for the objective ``c`` over its logits.

        ``offset`` is added to the objective, so that shift sets with different margins share one
        threshold. With ``miss``, the network is evaluated at ``x' + miss``.
        """
        pairs = list(pairs)
        W, b = net.input_transform.fold(*pairs[0])
        pairs[0] = W, b if miss is None else b + W @ miss
        last, bias = pairs.pop()
        return cls(tuple(pairs), c @ last, float(c @ bias) + offset)

    def value(self, points: Array) -> Array:
        """Evaluate the objective at each point."""
        h = points
        for W, b in self.layers:
            h = np.maximum(h @ W.T + b, 0.0)
        result: Array = h @ self.a + self.const
        return result

    def gradient(self, point: Array) -> Array:
        """Return the gradient of the objective at one point."""
        h, masks = point, []
        for W, b in self.layers:
            z = W @ h + b
            masks.append(z > 0.0)
            h = np.maximum(z, 0.0)
        g = self.a
        for (W, _), mask in zip(reversed(self.layers), reversed(masks), strict=True):
            g = (g * mask) @ W
        return g


TRACKING_GAP = 1e-3
"""Gap below which scenarios track x'. Larger gaps close sooner with fixed shifts."""
_AT_END = 1e-7  # distance from an end of a range, or a kink, that counts as rounding


class Verdict(NamedTuple):
    """The exact test of a point.

    ``scenario`` refutes a point that is not robust. None means that a limit came before a verdict.
    ``missing`` is then the difference between the margin and the proved bound.
    """

    robust: bool
    scenario: Scenario | None = None
    missing: float = 0.0


class Oracle:
    """Robustness of points for every member of the guarantee of one problem.

    Values are relative to the margin of the first member: see :attr:`SearchProblem.margin`.
    """

    def __init__(self, problem: SearchProblem) -> None:
        self.parts = [
            SetOracle(
                each,
                problem.target,
                problem.margin - each.margin,
                tracking=problem.gap < TRACKING_GAP,
            )
            for each in problem.guarantee.members
        ]

    def upper_bounds(self, points: Array) -> Array:
        """Bound the worst-case margin of each point from above, by concrete shifts."""
        if len(self.parts) == 1:
            return self.parts[0].upper_bounds(points)
        lowest: Array = self._bounds(points).min(axis=0)
        return lowest

    def attack(self, points: Array) -> list[Scenario]:
        """Find a shift that lowers the margin of each point, not necessarily the worst.

        It comes from the member that looks worst for the point.
        """
        if len(self.parts) == 1:
            return self.parts[0].attack(points)
        found: dict[int, Scenario] = {}
        which = self._bounds(points).argmin(axis=0)
        for number in np.unique(which):
            rows = np.flatnonzero(which == number)
            found |= dict(zip(rows, self.parts[number].attack(points[rows]), strict=True))
        return [found[row] for row in range(len(points))]

    def test(self, point: Array, deadline: float = np.inf, budget: Budget = FULL) -> Verdict:
        """Test exactly if ``point`` is robust for all members, the worst-looking one first."""
        parts = self.parts
        if len(parts) > 1:
            order = np.argsort(self._bounds(point[None])[:, 0], kind="stable")
            parts = [parts[number] for number in order]
        for part in parts:
            tested = part.test(point, deadline, budget)
            if not tested.robust:
                return tested
        return Verdict(True)

    def evidence(self, point: Array) -> tuple[Evidence, ...]:
        """Return the evidence about a point, one for each member, or nothing if one is missing."""
        found = [part.evidence(point) for part in self.parts]
        known = tuple(each for each in found if each is not None)
        return known if len(known) == len(found) else ()

    def _bounds(self, points: Array) -> Array:
        """Bound each point for each member from above, as an array (members, points)."""
        return np.array([part.upper_bounds(points) for part in self.parts])


class SetOracle:
    """Robustness of points for one member. ``offset`` is added to all values."""

    def __init__(
        self, member: Member, target: int, offset: float = 0.0, *, tracking: bool = True
    ) -> None:
        self.net, self.margin = member.network, member.margin
        self.offset, self.tracking = offset, tracking
        self.robustness = PointRobustness(member.network, member.shifts, target, member.tolerance)
        self.shifts = self.robustness.shifts
        self.objectives = self.robustness.objectives
        self._passed: Evidence | None = None

    def upper_bounds(self, points: Array) -> Array:
        """Bound the worst-case margin of each point from above, by concrete shifts."""
        return self.robustness.upper_bounds(points) + self.offset

    def attack(self, points: Array) -> list[Scenario]:
        """Find a shift that lowers the margin of each point, not necessarily the worst."""
        shifts = []
        for point, attack in zip(points, self.robustness.attack(points), strict=True):
            passed = self.evidence(point)
            if passed is not None:
                attack = self.robustness.worst_attack(passed)  # noqa: PLW2901
            shifts.append(self._shifted(attack))
        return shifts

    def test(self, point: Array, deadline: float = np.inf, budget: Budget = FULL) -> Verdict:
        """Test exactly if ``point`` is robust for the member."""
        tested = self.robustness.test(point, self.margin, deadline, budget)
        if tested.upper < self.margin:
            return Verdict(False, self._shifted(self.robustness.worst_attack(tested, refine=True)))
        if not tested.lower >= self.margin:
            return Verdict(False, missing=float(self.margin - tested.lower))
        self._passed = tested
        return Verdict(True)

    def evidence(self, point: Array) -> Evidence | None:
        """Return the evidence about a point if it was the last that passed."""
        passed = self._passed
        return passed if passed is not None and np.array_equal(passed.point, point) else None

    def _shifted(self, attack: Attack) -> Scenario:
        u, hidden, c = attack.u, list(attack.hidden), self.objectives[attack.objective]
        pairs = self._layers(u, hidden, c)
        boxes = self.robustness.boxes
        if boxes is not None:
            tolerance = self.robustness.tolerance
            assert tolerance is not None  # noqa: S101  (there are input boxes)
            miss = boxes.point(hidden) - u[: len(u) // 2] + off_centre(tolerance)
            pairs = boxes.of_network(pairs, hidden)
            return Scenario.of(self.net, pairs, c, self.offset, miss)
        low, high = attack.low, attack.high
        if self.tracking and len(hidden) == 2 and low is not None and high is not None:
            inside = (hidden[0] > low + _AT_END) & (hidden[0] < high - _AT_END)
            if inside.any():
                pairs = self._following(u, hidden[0], np.flatnonzero(inside), pairs, c) or pairs
        return Scenario.of(self.net, pairs, c, self.offset)

    def _layers(self, u: Array, hidden: list[Array], c: Array) -> list[tuple[Array, Array]]:
        """Return the layers of the shift with activations ``hidden`` on ``u``, harmful elsewhere too.

        Parameters without effect at ``u`` are free: weights on activations that are 0 there, and
        neurons that cannot become active. They are set to lower the objective at other points, so
        that one shift excludes more of them and two shifts differ less.
        """
        moves: list[Array] = []
        h, boxes = u, self.shifts.layers
        a, _ = boxes[-1].least(c)
        for box, wanted, slope in zip(boxes, hidden, self._slopes(hidden, a), strict=False):
            free = box.preactivations(h[None])[1][0] <= 0.0
            elsewhere = np.where(free, -slope, -1.0)
            moves.append(np.where(wanted > 0.0, box.share(wanted, h), elsewhere))
            h = wanted
        moves[-1:] = [np.where(a >= 0.0, -1.0, 1.0)] if moves else []
        moves.append(-np.sign(c))
        pairs = []
        signs = np.where(u < 0.0, -1.0, 1.0)
        for box, t in zip(boxes, moves, strict=True):
            pairs.append(box.at(t, signs))
            signs = np.ones(len(t))
        return pairs

    def _slopes(self, hidden: list[Array], a: Array) -> list[Array]:
        """Return the sign of each activation's effect on the objective at given activations."""
        slopes = [np.where(a >= 0.0, 1.0, -1.0)]
        for box, h in zip(reversed(self.shifts.layers[1:-1]), reversed(hidden), strict=False):
            a = (a * (h > 0.0)) @ box.middle.W
            slopes.insert(0, np.where(a >= 0.0, 1.0, -1.0))
        return slopes

    def _following(
        self,
        u: Array,
        h: Array,
        inside: npt.NDArray[np.intp],
        pairs: list[tuple[Array, Array]],
        c: Array,
    ) -> list[tuple[Array, Array]] | None:
        r"""Return the shift that follows ``x'``, if the worst one lies inside ranges of ``h_i``.

        There the worst shift holds several helpful neurons k of the second layer at the kink of
        their ReLU, and it moves with ``x'``: no finite number of fixed shifts would suffice. With
        :math:`s^* = -M^{-1} (W_K h + b_K)`, which keeps the neurons K at 0, and M their weights on
        I,

        .. math::
            h_i = l_i + s_i, \qquad s = \max(0, s^*) - \max(0, s^* - (u - l)) ,

        lies between :math:`l_i` and :math:`u_i` for every ``x'``. This is therefore a network of
        Delta for each ``x'``, and all of them together are one network with one more layer
        (activations that pass through it are not negative).
        """
        (W1, b1), (W2, b2), last = pairs
        helpful = np.flatnonzero(c @ last[0] > 0.0)
        away = np.abs(W2[helpful] @ h + b2[helpful])
        kinks = helpful[np.argsort(away, kind="stable")[: len(inside)]]
        if len(kinks) < len(inside) or np.sort(away)[len(inside) - 1] > _AT_END:
            return None
        M = W2[np.ix_(kinks, inside)]
        if not np.linalg.cond(M) < 1e6:
            return None
        box, ones, signs = self.shifts.layers[0], np.ones(len(W1)), np.where(u < 0.0, -1.0, 1.0)
        W1, b1 = W1.copy(), b1.copy()
        W1[inside], b1[inside] = (part[inside] for part in box.at(-ones, signs))
        top = [part[inside] for part in box.at(ones, signs)]
        n, m = len(W1), len(inside)
        wanted = -np.linalg.solve(M, W2[kinks])
        offset = -np.linalg.solve(M, b2[kinks])
        width = np.zeros((m, n + m))
        width[:, inside], width[:, n:] = -np.eye(m), np.eye(m)
        wanted = np.hstack([wanted, np.zeros((m, m))])
        middle = np.vstack([np.eye(n + m), wanted, wanted - width])
        end = np.hstack([W2, np.zeros((len(W2), m)), W2[:, inside], -W2[:, inside]])
        return [
            (np.vstack([W1, top[0]]), np.concatenate([b1, top[1]])),
            (middle, np.concatenate([np.zeros(n + m), offset, offset])),
            (end, b2),
            last,
        ]
