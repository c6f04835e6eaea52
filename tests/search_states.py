"""Relaxations of random problems, with everything a search may know at some moment.

A state is a polytope (maybe cut at a distance), scenarios of several kinds and one point of interest,
from which signs and ranges of neurons can be learnt that hold for that point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.model_set import ModelSet
from proplace.core.shifts import Shifts
from proplace.search.oracle import Oracle
from proplace.search.polytope import Polytope
from proplace.search.ranges import key_of
from search_problems import random_problem

if TYPE_CHECKING:
    from proplace.search.problem import SearchProblem


@dataclass(frozen=True, eq=False)
class State:
    """A polytope, scenarios, and a point of it in the variables of the program."""

    problem: SearchProblem
    polytope: Polytope
    scenarios: list
    variables: np.ndarray
    point: np.ndarray
    rng: np.random.Generator

    @property
    def distance(self):
        return float(self.problem.distance.between(self.problem.x, self.point))

    @property
    def margin(self):
        """What the scenarios keep at the point, all but exactly."""
        return min(float(scenario.value(self.point)) for scenario in self.scenarios) - 1e-7

    def signs(self, share, narrow=0.3):
        """Limits that hold at the point: signs, sometimes narrow ranges, of a share of the neurons."""
        limits = {}
        for scenario in self.scenarios:
            for layer, z in enumerate(pre_activations(scenario, self.point)):
                for k in np.flatnonzero(self.rng.random(len(z)) < share):
                    low, high = (0.0, 1e3) if z[k] >= 0.0 else (-1e3, 0.0)
                    if self.rng.random() < narrow:
                        low, high = z[k] - self.rng.uniform(0.0, 0.3), z[k] + 0.1
                    limits[key_of(scenario, layer, int(k))] = (float(low), float(high))
        return limits

    def decisions(self, relaxation, share):
        """Decisions of open neurons that hold at the point."""
        at = {
            key_of(scenario, layer, k): float(value)
            for scenario in self.scenarios
            for layer, z in enumerate(pre_activations(scenario, self.point))
            for k, value in enumerate(z)
        }
        return [
            ("active" if at[neuron.key] >= 0.0 else "inactive", neuron.key, 1.0)
            for neuron in relaxation.neurons
            if self.rng.random() < share
        ]


def pre_activations(scenario, points):
    """Pre-activations of each hidden layer of a scenario."""
    result, h = [], points
    for W, b in scenario.layers:
        result.append(h @ W.T + b)
        h = np.maximum(result[-1], 0.0)
    return result


def points_of(polytope, rng, count):
    """Variables and points of the polytope, within bounds and rules (cuts aside)."""
    m, g = len(polytope.D), polytope.g_columns
    weights = rng.dirichlet(np.full(m + 1, 0.4), size=count)[:, 1:]
    offset = rng.uniform(polytope.g_low[g], polytope.g_high[g], size=(count, len(g)))
    points = polytope.base + weights @ polytope.D
    points[:, g] += offset
    piece = polytope.piece
    inside = ((points >= piece.lower) & (points <= piece.upper)).all(axis=1)
    inside &= polytope.keeps_rules(points)
    return np.hstack([weights, offset])[inside], points[inside]


def random_state(seed, *, depth, cut=True):
    """A state of a random problem, of the first seed from ``seed`` on that has points enough."""
    for attempt in range(100):
        problem, piece = random_problem([seed, attempt], depth=depth, width=8 if depth < 3 else 5)
        rng = np.random.default_rng([seed, attempt, 1])
        delta = float(rng.choice([0.02, 0.08, 0.15]))
        # A margin that nothing keeps: each test returns its worst shift.
        net = problem.sets[0].net
        problem = replace(problem, sets=(ModelSet(net, Shifts.of(net, delta), margin=1e6),))
        polytope = Polytope.of(problem, piece)
        variables, points = points_of(polytope, rng, 200)
        if len(points) < 20:
            continue
        oracle = Oracle(problem)
        tested = [oracle.test(point)[1] for point in points[1:13]]
        tested.sort(key=lambda scenario: -len(scenario.layers))  # those that follow x' first
        scenarios = [*oracle.attack(points[:1]), *tested[:2]]
        order = np.argsort(problem.distance.between(problem.x, points))
        here = order[int(rng.integers(len(order) // 4, len(order)))]
        state = State(problem, polytope, scenarios, variables[here], points[here], rng)
        if cut:
            reach = state.distance * (1.0 + 1e-9) + 1e-12
            near = polytope.within(reach, [state.point, points.mean(axis=0)])
            return replace(state, polytope=near)
        return state
    raise AssertionError("no such state")
