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

The distance is the sum of :math:`w_i d_i` with :math:`d_i \ge |x'_i - x_i|`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

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
    from proplace.solvers import Integers


@dataclass(frozen=True, eq=False)
class Nearest:
    """Answer of the outer minimisation; without a point it is infeasible, or the time is over."""

    point: Array | None
    bound: float
    over: bool


class Outer:
    """The outer minimisation; models are added to it as the search goes on."""

    def __init__(self, problem: SearchProblem, piece: ConvexPiece) -> None:
        self.problem, self.piece = problem, piece
        self.model = Model()
        self.low, self.high = piece.box(problem.half_steps())
        self.x = self.model.columns(self.low, self.high)
        self._rules()
        self._hull()
        for i, column in problem.grids.items():
            self._grid(i, column)
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
        """Make the objective the distance."""
        x = self.problem.x
        eye = np.eye(len(x))
        d = self.model.columns(np.zeros(len(x)), math.inf, cost=self.problem.distance.weights)
        self.model.rows([(d, eye), (self.x, -eye)], -x, math.inf)
        self.model.rows([(d, eye), (self.x, eye)], x, math.inf)

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
        """Solve the program."""
        solution = run.solve(self.model)
        if solution.x is None or solution.status != "optimal":
            return Nearest(None, solution.bound, over=solution.status == "limit")
        return Nearest(solution.x[self.x], solution.bound, over=False)


def _first_layer(net: Network) -> tuple[Array, Array]:
    """W and B of the first layer as a map of x', the fixed input transform inside."""
    return net.input_map.fold(net.layers[0].W, net.layers[0].bias)


def distance_to(problem: SearchProblem, point: Array) -> float:
    """Distance of a point from x."""
    return float(problem.distance.between(problem.x, point[None])[0])
