r"""Algorithm 1 of the paper to the letter: the readable statement, and the oracle of the tests.

Wanted is the point :math:`x'` of one piece that is nearest to the person :math:`x` and valid for
all shifted models in :math:`\Delta`. A finite set :math:`\Delta'` of models, at first the original
one alone, stands for :math:`\Delta`:

1. *outer minimisation*: the nearest :math:`x'` of the piece valid for each model in
   :math:`\Delta'`;
2. *inner maximisation*: the model in :math:`\Delta` that is worst for this :math:`x'`;
3. if :math:`x'` is valid for it too, :math:`x'` is the answer. Else it joins :math:`\Delta'`.

Valid means :math:`c \cdot V_{h+1} \ge \sigma` in step 1 and :math:`\ge t` in step 3, for each row
:math:`c` of ``net.objectives(target)`` (one for each competing class). With :math:`\sigma > t`
(``search_margin`` and ``margin`` of the problem) two answers of step 1 are a fixed distance apart,
so that the loop ends (Proposition 2).

Outer minimisation
------------------
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
convex :math:`f` is the limit of its tangents, :math:`\theta \ge f(x^r) + g^r \cdot (x' - x^r)`,
added at each solution, and at those of the linear program with its integers fixed, until
:math:`f(x') - \theta` is small.

Inner maximisation
------------------
Now :math:`x'` is fixed and :math:`V, W, B, \gamma` are not. Products :math:`W_i V_{i-1}` of
variables need not appear: the rows of the parameters move independently and
:math:`V_i \ge 0`, hence the pre-activations reach exactly

.. math::
    W_1 V_0 + B_1 \in W_1^0 x' + B_1^0 \pm (\delta |x'|_1 + \delta), \qquad
    W_i V_{i-1} + B_i \in [(W_i^0 - \delta) V_{i-1} + B_i^0 - \delta,\
                           (W_i^0 + \delta) V_{i-1} + B_i^0 + \delta] \ (i \ge 2) ,

and the program is linear:

.. math::
    \min\ & (c W_{h+1}^0 - |c|_1 \delta) \cdot V_h + c \cdot B_{h+1}^0 - |c|_1 \delta \\
    & V_1 \in [\max(0, W_1^0 x' + B_1^0 - \delta |x'|_1 - \delta),\
               \max(0, W_1^0 x' + B_1^0 + \delta |x'|_1 + \delta)] \\
    & \gamma_i \in \{0, 1\}^{|N_i|}, \quad 0 \le V_i \le M^+ \gamma_i \\
    & (W_i^0 - \delta) V_{i-1} + B_i^0 - \delta \ \le\ V_i \ \le\
      (W_i^0 + \delta) V_{i-1} + B_i^0 + \delta + M^- (1 - \gamma_i) \quad (i \ge 2) .

One program for each competing class; the worst of their models joins :math:`\Delta'`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification.worst import shifted_network
from proplace.distances import L1, LInf
from proplace.errors import OptionError, SolverError
from proplace.schema.grid import SNAP
from proplace.search import solvers
from proplace.search.problem import Outcome
from proplace.search.solvers import Model

if TYPE_CHECKING:
    from proplace.network import Array, Network
    from proplace.schema import Column
    from proplace.search.problem import Piece, Problem
    from proplace.search.solvers import Integers, Solution, Solver

_MAX_CUTS = 1000  # tangents in one outer minimisation; a smooth distance needs tens
_NOT_MET = (
    "the distance is not met by {} tangents; check that it is convex and that slope() is its "
    "subgradient, or allow a larger tolerance"
)
_AGREE = 1e-6  # of the margin's size: program and forward pass of the worst model
_UNIFORM = 1e-9  # of a step: what counts as equally spaced


def solve(
    problem: Problem,
    piece: Piece,
    *,
    solver: Solver = "highs",
    time_limit: float | None = None,
    tolerance: float = 1e-9,
    max_rounds: int = 200,
) -> Outcome:
    """Find the nearest robust point of ``piece`` by Algorithm 1.

    Parameters
    ----------
    problem, piece
        What is asked, and where.
    solver
        ``highs``, ``gurobi`` or ``scip``.
    time_limit
        Seconds for the whole search; the outcome is then ``unknown`` with a proved bound, since
        the first point that the algorithm knows to be robust is the answer.
    tolerance
        Gap, relative to max(1, distance), at which the tangents count as the distance.
    max_rounds
        Shifted models to add before the search is given up with a ``SolverError``.
    """
    run = _Run(solver, time_limit, tolerance)
    if _is_empty(problem, piece):
        return run.outcome(None, math.inf, math.inf, "infeasible")
    outer = _Outer(problem, piece)
    models = [problem.net]  # Delta'
    outer.require(problem.net)
    lower = -math.inf
    for _ in range(max_rounds):
        nearest = outer.minimise(run)
        lower = max(lower, nearest.bound)
        if nearest.point is None:
            return run.outcome(None, math.inf, lower, "unknown" if nearest.over else "infeasible")
        point = _legal_point(problem, piece, nearest.point)
        _check_progress(problem, models, point)
        worst = _inner(problem, point, run)
        if worst is None:
            return run.outcome(None, math.inf, lower, "unknown")
        if worst.least >= problem.margin:
            distance = _distance(problem, point)
            return run.outcome(point, distance, min(lower, distance), "optimal")
        models.append(worst.network)
        outer.require(worst.network)
        run.rounds += 1
    raise SolverError(
        f"no robust point after {max_rounds} shifted models; each keeps the search away from its "
        f"last point by the margin ({problem.margin:g}) and slack ({problem.slack:g}) at least, so "
        "larger ones make it end sooner"
    )


@dataclass
class _Run:
    """The solver, the clock and the counts of one search."""

    solver: Solver
    time_limit: float | None
    tolerance: float
    start: float = field(default_factory=time.monotonic)
    programs: int = 0
    rounds: int = 0

    def solve(self, model: Model) -> Solution:
        """Solve one program in the time that is left."""
        self.programs += 1
        left = None
        if self.time_limit is not None:
            left = self.time_limit - (time.monotonic() - self.start)
        solution = solvers.solve(model, self.solver, left)
        if solution.status == "unbounded":
            raise SolverError(f"{self.solver} calls a bounded program unbounded")
        return solution

    def gap(self, value: float) -> float:
        """Difference at which a bound counts as ``value``."""
        return self.tolerance * max(1.0, abs(value))

    def outcome(self, point: Array | None, distance: float, lower: float, status: str) -> Outcome:
        return Outcome(
            point,
            distance,
            lower,
            status,  # type: ignore[arg-type]
            programs=self.programs,
            rounds=self.rounds,
        )


# -- Outer minimisation ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Nearest:
    """Answer of the outer minimisation; without a point it is infeasible, or the time is over."""

    point: Array | None
    value: float
    bound: float
    over: bool


class _Outer:
    """The outer minimisation; models and tangents are added to it as the search goes on."""

    def __init__(self, problem: Problem, piece: Piece) -> None:
        self.problem, self.piece = problem, piece
        self.model = Model()
        self.low, self.high = piece.box(problem.room())
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
        room = self.problem.room()
        self.model.rows([(self.x, np.eye(len(self.x))), (weights, -vertices.T)], -room, room)

    def _grid(self, i: int, column: Column) -> None:
        """Require a legal value of x'_i: e_0 + n s, or one of a list."""
        first, last = _legal_numbers(column, self.piece.lower[i], self.piece.upper[i])
        step = _uniform_step(column)
        here = self.x[[i]]
        if step is not None:
            n = self.model.columns(first, last, integer=True)
            base = _encoded(column, 0)
            self.model.rows([(here, [[1.0]]), (n, [[-step]])], base, base)
            return
        codes = _encoded(column, np.arange(first, last + 1))
        chosen = self.model.columns(np.zeros(len(codes)), 1.0, integer=True)
        self.model.rows([(chosen, np.ones((1, len(codes))))], 1.0, 1.0)
        self.model.rows([(here, [[1.0]]), (chosen, -codes[None])], 0.0, 0.0)

    def _distance(self) -> None:
        """Make the objective the distance: exact for L1 and LInf, tangents for the rest."""
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
            self._tangent(x)
            for vertex in () if self.piece.vertices is None else self.piece.vertices:
                self._tangent(vertex)

    def _tangent(self, point: Array) -> None:
        """Require theta >= f(point) + g (x' - point)."""
        assert self.theta is not None  # noqa: S101  (only distances with tangents come here)
        g = self.problem.distance.subgradient(self.problem.x, point)
        value = _distance(self.problem, point) - g @ point
        self.model.rows([(self.theta, [[1.0]]), (self.x, -g[None])], value, math.inf)

    def require(self, net: Network) -> None:
        """Add one model of Delta': V, gamma and the rows that make it accept x' with sigma."""
        W, b = _first_layer(net)
        low, high = self._first_range(W, b)
        V = self.x
        for deeper in net.layers[1:]:
            V = _relu(self.model, V, (W, b), (W, b), low, high)
            W, b = deeper.W, deeper.bias
            low, high = _interval(W, b, np.maximum(low, 0.0), np.maximum(high, 0.0))
        for c in net.objectives(self.problem.target):
            self.model.rows([(V, (c @ W)[None])], self.problem.search_margin - c @ b, math.inf)

    def _first_range(self, W: Array, b: Array) -> tuple[Array, Array]:
        """Range of W x' + b over the piece: its box, and the images of its vertices."""
        low, high = _interval(W, b, self.low, self.high)
        if self.piece.vertices is None:
            return low, high
        images = self.piece.vertices @ W.T + b
        room = np.abs(W) @ self.problem.room()
        return (
            np.maximum(low, images.min(axis=0) - room),
            np.minimum(high, images.max(axis=0) + room),
        )

    def minimise(self, run: _Run) -> _Nearest:
        """Solve the program; where the distance has tangents, until they meet it."""
        best = _Nearest(None, math.inf, -math.inf, over=False)
        for _ in range(_MAX_CUTS):
            solution = run.solve(self.model)
            if solution.x is None or solution.status != "optimal":
                return _Nearest(None, math.inf, solution.bound, over=solution.status == "limit")
            if self.theta is None:
                return _Nearest(solution.x[self.x], solution.objective, solution.bound, over=False)
            value, point = self._follow(solution, run)
            if value < best.value:
                best = _Nearest(point, value, solution.bound, over=False)
            # Not the bound: it may lie lower by the solver's gap, which no tangent closes.
            if best.value - solution.objective <= run.gap(best.value):
                return _Nearest(best.point, best.value, solution.bound, over=False)
        raise SolverError(_NOT_MET.format(_MAX_CUTS))

    def _follow(self, solution: Solution, run: _Run) -> tuple[float, Array]:
        """Add tangents with the integers of a solution fixed: linear programs, not integer ones.

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
            value = _distance(self.problem, point)
            best = min(best, (value, point), key=lambda pair: pair[0])
            if best[0] - float(solution.x[self.theta[0]]) <= run.gap(value):
                return best
            self._tangent(point)
            solution = run.solve(self.model.fixed(fixed))
        raise SolverError(_NOT_MET.format(_MAX_CUTS))


def _relu(
    model: Model,
    V: Integers,
    lower_map: tuple[Array, Array],
    upper_map: tuple[Array, Array],
    low: Array,
    high: Array,
) -> Integers:
    """Columns between the ReLUs of two affine maps of ``V`` (the same map twice: its ReLU).

    ``low`` and ``high`` bound the upper map from below and above, and so are the two M.
    """
    (W, b), (W_up, b_up) = lower_map, upper_map
    n = len(b)
    M_plus, M_minus = np.maximum(high, 0.0), np.maximum(-low, 0.0)
    out = model.columns(np.zeros(n), M_plus)
    # A neuron whose sign is known has its gamma fixed; one that is always 0 counts as off.
    on, off = (low >= 0.0) & (high > 0.0), high <= 0.0
    gamma = model.columns(on.astype(float), (~off).astype(float), integer=True)
    eye = np.eye(n)
    model.rows([(out, eye), (gamma, -np.diag(M_plus))], -math.inf, 0.0)
    model.rows([(out, eye), (V, -W)], b, math.inf)
    model.rows([(out, eye), (V, -W_up), (gamma, np.diag(M_minus))], -math.inf, b_up + M_minus)
    return out


def _interval(W: Array, b: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Range of W v + b over the box [low, high]."""
    positive, negative = np.maximum(W, 0.0), np.minimum(W, 0.0)
    return positive @ low + negative @ high + b, positive @ high + negative @ low + b


def _first_layer(net: Network) -> tuple[Array, Array]:
    """W and B of the first layer as a map of x', the fixed input transform inside."""
    W, b = net.layers[0].W, net.layers[0].bias
    if net.shift is not None:
        b = b + W @ net.shift
    return (W if net.scale is None else W * net.scale), b


# -- Inner maximisation ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Worst:
    """A model in Delta, the margin it gives to the point, and what none in Delta is below."""

    network: Network
    margin: float
    least: float


def _inner(problem: Problem, point: Array, run: _Run) -> _Worst | None:
    """Find the worst model in Delta for ``point``; None when the time is over.

    Returned is the model with the least margin by a plain forward pass.
    """
    net, target = problem.net, problem.target
    u = net.transform(point)[0]
    candidates: list[tuple[float, Network]] = []
    least = math.inf
    for c in net.objectives(target):
        if net.widths:
            found = _worst_activations(problem, u, c, run)
            if found is None:
                return None
            value, hidden = found
        else:
            value, hidden = _least_output(problem, u, c), []
        least = min(least, value)
        shifted = shifted_network(net, problem.shifts, u, hidden, c)
        candidates.append((float(shifted.margin(point, target)[0]), shifted))
    margin, network = min(candidates, key=lambda pair: pair[0])
    # A forward pass of the model must agree with the program that found it.
    if margin - least > _AGREE * max(1.0, abs(least)):
        raise SolverError(
            f"{run.solver} found {least!r} for the worst margin of a point, but the model it "
            f"describes has {margin!r}; try another solver"
        )
    return _Worst(network, margin, least)


def _worst_activations(
    problem: Problem, u: Array, c: Array, run: _Run
) -> tuple[float, list[Array]] | None:
    """Least c . V_{h+1} over Delta and the activations V_1..V_h that have it."""
    layers, shifts = problem.net.layers, problem.shifts
    model = Model()
    z = layers[0].W @ u + layers[0].bias
    r = shifts.weight[0] * np.abs(u).sum() + shifts.bias[0]
    low, high = np.maximum(z - r, 0.0), np.maximum(z + r, 0.0)
    V = [model.columns(low, high)]
    for layer, dw, db in zip(layers[1:-1], shifts.weight[1:-1], shifts.bias[1:-1], strict=True):
        lower_map = layer.W - dw, layer.bias - db
        upper_map = layer.W + dw, layer.bias + db
        least, _ = _interval(*lower_map, low, high)
        upper_least, upper_most = _interval(*upper_map, low, high)
        V.append(_relu(model, V[-1], lower_map, upper_map, upper_least, upper_most))
        low, high = np.maximum(least, 0.0), np.maximum(upper_most, 0.0)
    last, size = layers[-1], np.abs(c).sum()
    objective = model.columns(-math.inf, math.inf, cost=1.0)
    a = c @ last.W - size * shifts.weight[-1]
    model.rows([(objective, [[1.0]]), (V[-1], -a[None])], 0.0, 0.0)
    model.offset = float(c @ last.bias - size * shifts.bias[-1])
    solution = run.solve(model)
    if solution.status == "limit":
        return None
    if solution.x is None:
        raise SolverError(f"{run.solver} finds no model in Delta, though the original is one")
    return solution.bound, [solution.x[columns] for columns in V]


def _least_output(problem: Problem, u: Array, c: Array) -> float:
    """Least c . V_1 over Delta of a network without hidden layers."""
    last, size = problem.net.layers[-1], float(np.abs(c).sum())
    radius = problem.shifts.weight[-1] * float(np.abs(u).sum()) + problem.shifts.bias[-1]
    return float(c @ (last.W @ u + last.bias)) - size * radius


# -- Points and grids ------------------------------------------------------------------------------


def _is_empty(problem: Problem, piece: Piece) -> bool:
    """Whether the bounds alone leave nothing; raises where they do not bound the piece."""
    low, high = piece.box(problem.room())
    if (low > high).any():
        return True
    if not (np.isfinite(low) & np.isfinite(high)).all():
        i = int(np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))[0])
        raise OptionError(
            f"column {i} ranges over [{low[i]}, {high[i]}]; a search without a hull needs finite "
            "bounds for each column"
        )
    for i, column in problem.grids.items():
        first, last = _legal_numbers(column, piece.lower[i], piece.upper[i])
        if first > last:
            return True
    return False


def _legal_numbers(column: Column, low: float, high: float) -> tuple[int, int]:
    """First and last number of the legal values in [low, high] (first > last if none is)."""
    assert column.grid is not None  # noqa: S101  (problem.grids holds columns with a grid)
    slack = SNAP * 2.0 * column.room
    first = int(column.grid.near(np.asarray(max(low, column.lower))))
    last = int(column.grid.near(np.asarray(min(high, column.upper))))
    first += bool(_encoded(column, first) < low - slack)
    last -= bool(_encoded(column, last) > high + slack)
    return first, last


def _encoded(column: Column, n: int | Integers) -> Array:
    assert column.grid is not None  # noqa: S101  (problem.grids holds columns with a grid)
    return column.grid.encoded(np.asarray(n))


def _uniform_step(column: Column) -> float | None:
    """Step of an equally spaced grid; None for any other."""
    count = column.size or 1
    if count == 1:
        return 0.0
    ends = _encoded(column, np.array([0, count - 1]))
    step = float(ends[1] - ends[0]) / (count - 1)
    if count > 4096:  # a lattice: computed from a step
        return step
    n = np.arange(count)
    off = np.abs(_encoded(column, n) - (ends[0] + n * step)).max()
    return step if off <= _UNIFORM * step else None


def _legal_point(problem: Problem, piece: Piece, point: Array) -> Array:
    """Return the point without the solver's tolerance: in the bounds, on the grids."""
    return problem.snap(np.clip(point, piece.lower, piece.upper))


def _distance(problem: Problem, point: Array) -> float:
    return float(problem.distance.between(problem.x, point[None])[0])


def _check_progress(problem: Problem, models: list[Network], point: Array) -> None:
    """Refuse a point that a model in Delta' rejects: it would be found for ever."""
    margin = min(float(net.margin(point, problem.target)[0]) for net in models)
    if margin < problem.margin:
        raise SolverError(
            f"the outer minimisation asks for a margin of {problem.search_margin!r} on "
            f"{len(models)} models but one of them gives {margin!r} to its answer, so the search "
            f"would go in circles; raise the slack (now {problem.slack:g}) or try another solver"
        )
