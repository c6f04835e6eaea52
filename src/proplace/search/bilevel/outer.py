r"""The outer minimisation: the nearest point that is valid for each model of a set.

With :math:`(W_i^j, B_i^j)` the parameters of model :math:`j \in \Delta'`,

.. math::
    \min\ & dist(x, x') \\
    & x' \in [l, u], \quad a \le A x' \le b, \quad
      \lambda \ge 0,\ \textstyle\sum_l \lambda_l = 1, \quad
      x' = \textstyle\sum_l \lambda_l x'_l \\
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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.search.bilevel.relu import interval, relu
from proplace.solvers import Model

if TYPE_CHECKING:
    from proplace.core.network import Array, Network
    from proplace.region.pieces import ConvexPiece
    from proplace.search.bilevel import Run
    from proplace.search.bilevel.inner import ScenarioModel
    from proplace.search.problem import SearchProblem


@dataclass(frozen=True, eq=False)
class Nearest:
    """Result of the outer minimisation. Without a point it is infeasible, or timed out."""

    point: Array | None
    bound: float
    over: bool


class Outer:
    """The outer minimisation, to which the search adds models."""

    def __init__(self, problem: SearchProblem, piece: ConvexPiece) -> None:
        self.problem, self.piece = problem, piece
        self.model = Model()
        self.low, self.high = piece.box()
        self.x = self.model.columns(self.low, self.high)
        self._rules()
        self._hull()
        self._distance()

    def _rules(self) -> None:
        """Require a <= A x' <= b."""
        if len(self.piece.A):
            self.model.rows([(self.x, self.piece.A)], self.piece.row_lower, self.piece.row_upper)

    def _hull(self) -> None:
        """Require lambda >= 0, sum of lambda = 1, x' their combination."""
        vertices = self.piece.vertices
        if vertices is None:
            return
        weights = self.model.columns(np.zeros(len(vertices)), 1.0)
        self.model.rows([(weights, np.ones((1, len(vertices))))], 1.0, 1.0)
        self.model.rows([(self.x, np.eye(len(self.x))), (weights, -vertices.T)], 0.0, 0.0)

    def _distance(self) -> None:
        """Make the objective the distance."""
        x = self.problem.x
        eye = np.eye(len(x))
        d = self.model.columns(np.zeros(len(x)), math.inf, cost=self.problem.distance.weights)
        self.model.rows([(d, eye), (self.x, -eye)], -x, math.inf)
        self.model.rows([(d, eye), (self.x, eye)], x, math.inf)

    def add_model(self, model: ScenarioModel) -> None:
        """Add one model of Delta': V, gamma and the rows that make it accept x' with sigma."""
        net, sigma = model.network, model.margin + self.problem.slack
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
        """Bound W x' + b over the piece: by its box, and by the images of its vertices."""
        low, high = interval(W, b, self.low, self.high)
        if self.piece.vertices is None:
            return low, high
        images = self.piece.vertices @ W.T + b
        return np.maximum(low, images.min(axis=0)), np.minimum(high, images.max(axis=0))

    def minimise(self, run: Run) -> Nearest:
        """Solve the program."""
        solution = run.solve(self.model)
        if solution.x is None or solution.status != "optimal":
            return Nearest(None, solution.bound, over=solution.status == "limit")
        return Nearest(solution.x[self.x], solution.bound, over=False)


def _first_layer(net: Network) -> tuple[Array, Array]:
    """Return W and B of the first layer as a map of x', including the fixed input transform."""
    return net.input_transform.fold(net.layers[0].W, net.layers[0].bias)


def distance_to(problem: SearchProblem, point: Array) -> float:
    """Return the distance of a point from x."""
    return float(problem.distance.between(problem.x, point[None])[0])
