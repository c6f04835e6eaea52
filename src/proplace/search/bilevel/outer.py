r"""The outer minimisation: the nearest point that is valid for each model of a set.

With :math:`(W_i^j, B_i^j)` the parameters of model :math:`j \in \Delta'`,

.. math::
    \min\ & dist(x, x') \\
    & x' \in [l, u], \quad a \le A x' \le b, \quad
      \lambda \ge 0,\ \textstyle\sum_l \lambda_l = 1, \quad
      |x' - \textstyle\sum_l \lambda_l x'_l| \le \eta \\
    & x'_i = e_0 + n\,s,\ n \in \mathbb{Z} \quad\text{or}\quad
      x'_i = \textstyle\sum_n e_n \beta_n,\ \textstyle\sum_n \beta_n = 1,\ \beta_n \in \{0, 1\}
      \quad\text{(grid columns)} \\
    & V_0^j = x' \ \text{(after the fixed input transform)}, \quad
      \gamma_i^j \in \{0, 1\}^{|N_i|} \\
    & 0 \le V_i^j \le M^+ \gamma_i^j, \quad
      W_i^j V_{i-1}^j + B_i^j \ \le\ V_i^j \ \le\ W_i^j V_{i-1}^j + B_i^j + M^- (1 - \gamma_i^j) \\
    & c \cdot (W_{h+1}^j V_h^j + B_{h+1}^j) \ge \sigma .

Each neuron has its own :math:`M^\pm`, the ends of the interval that its pre-activation can reach
over the piece: one large M with a solver's tolerance gives wrong optima.

The distance is a sum or a maximum of :math:`d_i \ge w_i |x'_i - x_i|` for L1 and LInf. Any other
convex :math:`f` is the limit of its supporting cuts, :math:`\theta \ge f(x^r) + g^r \cdot (x' - x^r)`,
added at each solution, and at those of the linear program with its integers fixed, until
:math:`f(x') - \theta` is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.distances import L1, LInf
from proplace.core.errors import SolverError
from proplace.schema.grid import WithValue
from proplace.search.bilevel.grids import encoded, legal_numbers, uniform_step
from proplace.search.bilevel.relu import interval, relu
from proplace.solvers import Model

if TYPE_CHECKING:
    from proplace.core.network import Array, Network
    from proplace.region.convex_piece import ConvexPiece
    from proplace.schema import Column
    from proplace.search.bilevel.member import Member
    from proplace.search.bilevel.run import Run
    from proplace.search.problem import SearchProblem
    from proplace.solvers import Integers, Solution

_MAX_CUTS = 1000  # of the distance in one outer minimisation; a smooth distance needs tens
_NOT_MET = (
    "the distance is not met by {} cuts; check that it is convex and that subgradient() is its "
    "subgradient, or allow a larger tolerance"
)


@dataclass(frozen=True, eq=False)
class Nearest:
    """Answer of the outer minimisation; without a point it is infeasible, or the time is over."""

    point: Array | None
    value: float
    bound: float
    over: bool


class Outer:
    """The outer minimisation; models and cuts of the distance are added to it as the search goes on."""

    def __init__(self, problem: SearchProblem, piece: ConvexPiece) -> None:
        self.problem, self.piece = problem, piece
        self.model = Model()
        self.low, self.high = piece.box(problem.half_steps())
        self.x = self.model.columns(self.low, self.high)
        self._rules()
        self._hull()
        for i, column in problem.grids.items():
            self._grid(i, column)
        self.theta: Integers | None = None
        self._distance()

    def _rules(self) -> None:
        """Require a <= A x' <= b."""
        if len(self.piece.A):
            self.model.rows([(self.x, self.piece.A)], self.piece.row_lower, self.piece.row_upper)

    def _hull(self) -> None:
        """Require lambda >= 0, sum of lambda = 1, x' within eta of their combination."""
        vertices = self.piece.vertices
        if vertices is None:
            return
        weights = self.model.columns(np.zeros(len(vertices)), 1.0)
        self.model.rows([(weights, np.ones((1, len(vertices))))], 1.0, 1.0)
        eta = self.problem.half_steps()
        self.model.rows([(self.x, np.eye(len(self.x))), (weights, -vertices.T)], -eta, eta)

    def _grid(self, i: int, column: Column) -> None:
        """Require a legal value of x'_i: e_0 + n s, or one of a list."""
        if self.piece.lower[i] == self.piece.upper[i]:
            return  # a legal value, or that of x
        here, low, high = self.x[[i]], self.piece.lower[i], self.piece.upper[i]
        if isinstance(column.grid, WithValue):
            grid = replace(column, grid=column.grid.grid)
            first, last = legal_numbers(grid, low, high)
            step, value = uniform_step(grid), column.grid.code
            if not low <= value <= high:
                column = grid
            elif step is not None and first <= last:
                self._lattice_or(here, (first, last), (encoded(grid, 0), step), value)
                return
        first, last = legal_numbers(column, low, high)
        step = uniform_step(column)
        if step is not None:
            n = self.model.columns(first, last, integer=True)
            base = encoded(column, 0)
            self.model.rows([(here, [[1.0]]), (n, [[-step]])], base, base)
            return
        codes = encoded(column, np.arange(first, last + 1))
        chosen = self.model.columns(np.zeros(len(codes)), 1.0, integer=True)
        self.model.rows([(chosen, np.ones((1, len(codes))))], 1.0, 1.0)
        self.model.rows([(here, [[1.0]]), (chosen, -codes[None])], 0.0, 0.0)

    def _lattice_or(
        self, here: Integers, numbers: tuple[int, int], lattice: tuple[Array, float], value: float
    ) -> None:
        """Require ``e_0 + n s``, or one more value: a binary says which."""
        base, step = lattice
        ends = [float(base + n * step) for n in numbers]
        far = max(*ends, value) - min(*ends, value)
        n = self.model.columns(*numbers, integer=True)
        other = self.model.columns(0.0, 1.0, integer=True)
        for sign in (-1.0, 1.0):
            on_grid = [(here, [[sign]]), (n, [[-sign * step]]), (other, [[-far]])]
            self.model.rows(on_grid, -math.inf, sign * base)
            there = [(here, [[sign]]), (other, [[far]])]
            self.model.rows(there, -math.inf, sign * value + far)

    def _distance(self) -> None:
        """Make the objective the distance: exact for L1 and LInf, by cuts for the rest."""
        x, distance = self.problem.x, self.problem.distance
        eye = np.eye(len(x))
        if isinstance(distance, L1):
            d = self.model.columns(np.zeros(len(x)), math.inf, cost=distance.weights)
            self.model.rows([(d, eye), (self.x, -eye)], -x, math.inf)
            self.model.rows([(d, eye), (self.x, eye)], x, math.inf)
        elif isinstance(distance, LInf):
            d = self.model.columns(0.0, math.inf, cost=1.0)
            w, ones = distance.weights, np.ones((len(x), 1))
            self.model.rows([(d, ones), (self.x, -np.diag(w))], -w * x, math.inf)
            self.model.rows([(d, ones), (self.x, np.diag(w))], w * x, math.inf)
        else:
            self.theta = self.model.columns(-math.inf, math.inf, cost=1.0)
            self._distance_cut(x)
            for vertex in () if self.piece.vertices is None else self.piece.vertices:
                self._distance_cut(vertex)

    def _distance_cut(self, point: Array) -> None:
        """Require theta >= f(point) + g (x' - point)."""
        assert self.theta is not None  # noqa: S101  (only distances that are cut come here)
        g = self.problem.distance.subgradient(self.problem.x, point)
        value = distance_to(self.problem, point) - g @ point
        self.model.rows([(self.theta, [[1.0]]), (self.x, -g[None])], value, math.inf)

    def require(self, member: Member) -> None:
        """Add one model of Delta': V, gamma and the rows that make it accept x' with sigma."""
        net, sigma = member.network, member.margin + self.problem.slack
        W, b = _first_layer(net)
        low, high = self._first_range(W, b)
        V = self.x
        for deeper in net.layers[1:]:
            V = relu(self.model, V, (W, b), (W, b), low, high)
            W, b = deeper.W, deeper.bias
            low, high = interval(W, b, np.maximum(low, 0.0), np.maximum(high, 0.0))
        for c in net.objectives(self.problem.target):
            self.model.rows([(V, (c @ W)[None])], sigma - c @ b, math.inf)

    def _first_range(self, W: Array, b: Array) -> tuple[Array, Array]:
        """Range of W x' + b over the piece: its box, and the images of its vertices."""
        low, high = interval(W, b, self.low, self.high)
        if self.piece.vertices is None:
            return low, high
        images = self.piece.vertices @ W.T + b
        reach = np.abs(W) @ self.problem.half_steps()
        return (
            np.maximum(low, images.min(axis=0) - reach),
            np.minimum(high, images.max(axis=0) + reach),
        )

    def minimise(self, run: Run) -> Nearest:
        """Solve the program; where the distance is met by cuts, until they meet it."""
        best = Nearest(None, math.inf, -math.inf, over=False)
        for _ in range(_MAX_CUTS):
            solution = run.solve(self.model)
            if solution.x is None or solution.status != "optimal":
                return Nearest(None, math.inf, solution.bound, over=solution.status == "limit")
            if self.theta is None:
                return Nearest(solution.x[self.x], solution.objective, solution.bound, over=False)
            value, point = self._follow(solution, run)
            if value < best.value:
                best = Nearest(point, value, solution.bound, over=False)
            # Not the bound: it may lie lower by the solver's gap, which no cut closes.
            if best.value - solution.objective <= run.gap(best.value):
                return Nearest(best.point, best.value, solution.bound, over=False)
        raise SolverError(_NOT_MET.format(_MAX_CUTS))

    def _follow(self, solution: Solution, run: Run) -> tuple[float, Array]:
        """Add cuts with the integers of a solution fixed: linear programs, not integer ones.

        Returns the nearest point seen and its distance.
        """
        assert solution.x is not None  # noqa: S101
        assert self.theta is not None  # noqa: S101
        fixed = solution.x
        best = math.inf, solution.x[self.x]
        for _ in range(_MAX_CUTS):
            if solution.x is None or solution.status != "optimal":
                return best  # rounding the integers, or the clock, left nothing
            point = solution.x[self.x]
            value = distance_to(self.problem, point)
            best = min(best, (value, point), key=lambda pair: pair[0])
            if best[0] - float(solution.x[self.theta[0]]) <= run.gap(value):
                return best
            self._distance_cut(point)
            solution = run.solve(self.model.fixed(fixed))
        raise SolverError(_NOT_MET.format(_MAX_CUTS))


def _first_layer(net: Network) -> tuple[Array, Array]:
    """W and B of the first layer as a map of x', the fixed input transform inside."""
    return net.input_map.fold(net.layers[0].W, net.layers[0].bias)


def distance_to(problem: SearchProblem, point: Array) -> float:
    """Distance of a point from x."""
    return float(problem.distance.between(problem.x, point[None])[0])
