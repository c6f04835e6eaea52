r"""The inner maximisation: the model in Delta that is worst for a point.

Here :math:`x'` is fixed and :math:`V, W, B, \gamma` are variables. Products :math:`W_i V_{i-1}` of
variables are not needed: the rows of the parameters move independently and :math:`V_i \ge 0`, so
the pre-activations reach exactly

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

(This is the case of one radius :math:`\delta`. In general the ends of the intervals replace
:math:`W_i^0 \mp \delta`.) There is one program for each competing class of each shift set. The
worst of their models, by its margin minus that of its set, joins :math:`\Delta'`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import InputBoxes
from proplace.core.errors import SolverError
from proplace.core.guarantee import off_centre
from proplace.core.network import Network
from proplace.core.shifts import shifted_network
from proplace.search.bilevel.relu import interval, relu
from proplace.solvers import Model

if TYPE_CHECKING:
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.search.bilevel import Run
    from proplace.search.problem import SearchProblem


@dataclass(frozen=True, eq=False)
class ScenarioModel:
    """One model of Delta', with the margin of its shift set."""

    network: Network
    margin: float

    def excess(self, point: Array, target: int) -> float:
        """Return the margin of a point, by a plain forward pass, minus the required one."""
        return float(self.network.margin(point, target)[0]) - self.margin


_AGREE = 1e-6  # of the margin's size: program and forward pass of the worst model


@dataclass(frozen=True, eq=False)
class Worst:
    """A model in Delta, and a lower bound for all: the margin minus the required one."""

    model: ScenarioModel
    least: float


def worst_model(problem: SearchProblem, point: Array, run: Run) -> Worst | None:
    """Find the worst model of all shift sets for ``point``, or return None after a timeout."""
    found = []
    for member in problem.guarantee.members:
        worst = _worst_of(member, problem.target, point, run)
        if worst is None:
            return None
        found.append(worst)
    return min(found, key=lambda worst: worst.least)


def _worst_of(member: Member, target: int, point: Array, run: Run) -> Worst | None:
    """Find the worst model of one set: the smallest margin by a plain forward pass."""
    net, shifts, boxes, away = member.network, member.shifts, None, np.zeros(len(point))
    if member.tolerance is not None:
        boxes = InputBoxes(net, shifts)
        net, shifts = boxes.net, boxes.shifts
        away = off_centre(member.tolerance)
        point = np.concatenate([point + away, member.tolerance.sum(axis=0) / 2.0])
    u = net.transform(point)[0]
    candidates: list[tuple[float, Network, list[Array]]] = []
    least = math.inf
    for c in net.objectives(target):
        if net.widths:
            found = _worst_activations(shifts, u, c, run)
            if found is None:
                return None
            value, hidden = found
        else:
            value, hidden = _least_output(shifts, u, c), []
        least = min(least, value)
        shifted = shifted_network(net, shifts, u, hidden, c)
        candidates.append((float(shifted.margin(point, target)[0]), shifted, hidden))
    margin, network, hidden = min(candidates, key=lambda each: each[0])
    # A forward pass of the model must agree with the program that found it.
    if margin - least > _AGREE * max(1.0, abs(least)):
        raise SolverError(
            f"{run.solver} found {least!r} for the worst-case margin of a point, but the model it "
            f"describes has {margin!r}. Try another solver"
        )
    if boxes is not None:
        network = _at_miss(boxes, network, u[: len(u) // 2] - away, hidden)
    return Worst(ScenarioModel(network, member.margin), least - member.margin)


def _at_miss(boxes: InputBoxes, larger: Network, point: Array, hidden: list[Array]) -> Network:
    """Return the network that evaluates a shift at another point of the input box."""
    pairs = [(layer.W, layer.bias) for layer in larger.layers]
    (W, b), *rest = boxes.of_network(pairs, hidden)
    miss = boxes.point(hidden) - point
    first = W, b + boxes.original.input_transform.pull_back(W) @ miss
    return Network([first, *rest]).with_input_transform(boxes.original.input_transform)


def _worst_activations(
    shifts: Shifts, u: Array, c: Array, run: Run
) -> tuple[float, list[Array]] | None:
    """Minimise c . V_{h+1} over Delta, and return the activations V_1..V_h too."""
    boxes, model = shifts.layers, Model()
    low, high = (np.maximum(z[0], 0.0) for z in boxes[0].preactivations(u[None]))
    V = [model.columns(low, high)]
    for box in boxes[1:-1]:
        lower_map, upper_map = (box.low.W, box.low.bias), (box.high.W, box.high.bias)
        least, _ = interval(*lower_map, low, high)
        upper_least, upper_most = interval(*upper_map, low, high)
        V.append(relu(model, V[-1], lower_map, upper_map, upper_least, upper_most))
        low, high = np.maximum(least, 0.0), np.maximum(upper_most, 0.0)
    objective = model.columns(-math.inf, math.inf, cost=1.0)
    a, model.offset = boxes[-1].least(c)
    model.rows([(objective, [[1.0]]), (V[-1], -a[None])], 0.0, 0.0)
    solution = run.solve(model)
    if solution.status == "limit":
        return None
    if solution.x is None:
        raise SolverError(f"{run.solver} found no model in Delta, although there are some")
    return solution.bound, [solution.x[columns] for columns in V]


def _least_output(shifts: Shifts, u: Array, c: Array) -> float:
    """Minimise c . V_1 over Delta for a network without hidden layers."""
    low, high = shifts.layers[0].preactivations(u[None])
    return float(low[0] @ np.maximum(c, 0.0) + high[0] @ np.minimum(c, 0.0))
