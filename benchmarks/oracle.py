r"""Bounds and distances of the search against an independent optimum, on small random problems.

    python benchmarks/oracle.py [--problems 2000] [--seed 0]

A problem is a random network (one or two hidden layers of 2 to 6 neurons), a delta, a random table with
or without categories, and a refused person. The gaps 0, .01, .05 and .2 take turns. The oracle is built
here from the mathematics and solved by HiGHS; nothing of it calls the library:

- the robust neighbours: the k nearest training rows that have the margin of the search in the worst
  case, which is the margin plus the slack;
- the region: the convex hull of the vertices of every category profile;
- one hidden layer: the worst-case margin in closed form, so that the problem is one MILP. With
  :math:`s = |x|_1 + 1` and :math:`c_k = w_k^{(2)} - \delta` it is

  .. math:: \sum_{c_k \ge 0} c_k (w_k x + b_k - \delta s)^+
            + \sum_{c_k < 0} c_k (w_k x + b_k + \delta s)^+ + b^{(2)} - \delta

- two hidden layers: Algorithm 1. An outer MILP finds the nearest point that a list of shifted networks
  accepts; an inner MILP finds the worst shift at that point, until the point is robust.

A bound is wrong if it exceeds the optimum. A distance is wrong if it is below the optimum at the margin,
or, if the status is ``optimal``, above the optimum by more than the gap. The bound holds for points with
the margin of the search. The command fails if anything is wrong.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import highspy
import numpy as np

import proplace as pp
from child import SLACK
from common import machine

MARGIN = 1e-6  # default of the library
TOLERANCE = 1e-7  # of distances, which are about .01 to 1
GAPS = (0.0, 0.01, 0.05, 0.2)
PEOPLE = 5  # of one network
ROUNDS = 100  # shifted networks of Algorithm 1, at most


# -- mixed-integer programs ----------------------------------------------------------------------


class Program:
    """A mixed-integer program, column by column and row by row."""

    def __init__(self) -> None:
        self.columns: list[tuple[float, float, float, bool]] = []
        self.rows: list[tuple[float, float, np.ndarray, np.ndarray]] = []

    def add(self, low, high, cost=0.0, *, integer=False) -> int:
        """Add a variable and return its index."""
        self.columns.append((float(low), float(high), float(cost), integer))
        return len(self.columns) - 1

    def require(self, low, high, *terms) -> None:
        """Require ``low <= sum of coefficient times variable <= high``; terms are pairs of both."""
        index = np.concatenate([np.atleast_1d(i) for _, i in terms]).astype(np.int32)
        value = np.concatenate(
            [np.broadcast_to(np.asarray(c, float), np.shape(np.atleast_1d(i))) for c, i in terms]
        )
        self.rows.append((low, high, index, value))

    def solve(self) -> np.ndarray | None:
        """Return an optimal point, or None if there is none.

        The integer variables are fixed at the end and the rest is solved again, so that the
        tolerance of integers does not multiply large coefficients.
        """
        solver = self._loaded()
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        point = np.array(solver.getSolution().col_value)
        whole = [i for i, column in enumerate(self.columns) if column[3]]
        if not whole:
            return point
        polished = self._loaded()
        for i in whole:
            value = round(point[i])
            polished.changeColIntegrality(i, highspy.HighsVarType.kContinuous)
            polished.changeColBounds(i, value, value)
        polished.run()
        if polished.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return point
        return np.array(polished.getSolution().col_value)

    def _loaded(self) -> highspy.Highs:
        solver = highspy.Highs()
        solver.silent()
        for name, value in {
            "threads": 1,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 0.0,
            "primal_feasibility_tolerance": 1e-9,
            "dual_feasibility_tolerance": 1e-9,
            "mip_feasibility_tolerance": 1e-9,
        }.items():
            solver.setOptionValue(name, value)
        for i, (low, high, cost, integer) in enumerate(self.columns):
            solver.addVar(low, high)
            solver.changeColCost(i, cost)
            if integer:
                solver.changeColIntegrality(i, highspy.HighsVarType.kInteger)
        for low, high, index, value in self.rows:
            solver.addRow(low, high, len(index), index, value)
        return solver


INF = highspy.kHighsInf


def relu_at_most(p: Program, terms, constant, low, high) -> int | None:
    """Add h <= max(0, z) for z = terms + constant in [low, high]; None: h is 0."""
    if high <= 0.0:
        return None
    h = p.add(0.0, high)
    if low >= 0.0:
        p.require(-INF, constant, (1.0, h), *((-np.asarray(c), i) for c, i in terms))
        return h
    on = p.add(0.0, 1.0, integer=True)
    p.require(-INF, 0.0, (1.0, h), (-high, on))
    p.require(-INF, constant - low, (1.0, h), *((-np.asarray(c), i) for c, i in terms), (-low, on))
    return h


def relu_at_least(p: Program, terms, constant) -> int:
    """Add h >= max(0, z) for z = terms + constant."""
    h = p.add(0.0, INF)
    p.require(constant, INF, (1.0, h), *((-np.asarray(c), i) for c, i in terms))
    return h


def relu(p: Program, terms, constant, low, high) -> int | None:
    """Add h = max(0, z) for z = terms + constant in [low, high]; None: h is 0."""
    h = relu_at_most(p, terms, constant, low, high)
    if h is not None:
        p.require(constant, INF, (1.0, h), *((-np.asarray(c), i) for c, i in terms))
    return h


def hull(x0: np.ndarray, vertices: np.ndarray) -> tuple[Program, np.ndarray]:
    """Return a program over the hull of vertices with the distance as cost, and the columns of x."""
    p = Program()
    shares = np.array([p.add(0.0, 1.0) for _ in vertices])
    x = np.array([p.add(-INF, INF) for _ in x0])
    away = np.array([p.add(0.0, INF, 1.0 / len(x0)) for _ in x0])
    p.require(1.0, 1.0, (1.0, shares))
    for j in range(len(x0)):
        p.require(0.0, 0.0, (1.0, x[j]), (-vertices[:, j], shares))
        p.require(-x0[j], INF, (1.0, away[j]), (-1.0, x[j]))
        p.require(x0[j], INF, (1.0, away[j]), (1.0, x[j]))
    return p, x


# -- the worst case ------------------------------------------------------------------------------

Layers = list[tuple[np.ndarray, np.ndarray]]


def worst(layers: Layers, delta: float, x: np.ndarray) -> tuple[float, Layers]:
    """Return the smallest logit over the shift set at x, and a shifted network that attains it."""
    (W, b), *_, (w, c) = layers
    reach = delta * (np.abs(x).sum() + 1.0)
    middle, out = W @ x + b, w[0] - delta
    low, high = np.maximum(middle - reach, 0.0), np.maximum(middle + reach, 0.0)
    if len(layers) == 2:
        h = np.where(out >= 0.0, low, high)
        return float(out @ h + c[0] - delta), []
    V, a = layers[1]
    p = Program()
    first = np.array([p.add(*ends) for ends in zip(low, high, strict=True)])
    for k, cost in enumerate(out):
        sign = -1.0 if cost >= 0.0 else 1.0
        row, constant = V[k] + sign * delta, a[k] + sign * delta
        if cost >= 0.0:
            h = relu_at_least(p, [(row, first)], constant)
        else:
            ends = np.stack([row * low, row * high])
            h = relu_at_most(
                p,
                [(row, first)],
                constant,
                ends.min(0).sum() + constant,
                ends.max(0).sum() + constant,
            )
        if h is not None:
            p.columns[h] = (*p.columns[h][:2], float(cost), False)
    found = p.solve()
    h1 = np.clip(found[first], low, high)
    t = np.zeros_like(middle) if not reach else np.clip((h1 - middle) / reach, -1.0, 1.0)
    t = np.where(h1 > 0.0, t, -1.0 if reach else 0.0)
    t2 = np.where(out >= 0.0, -1.0, 1.0)
    shifted = [
        (W + delta * t[:, None] * np.sign(x), b + delta * t),
        (V + delta * t2[:, None], a + delta * t2),
        (w - delta, c - delta),
    ]
    return float(logit(shifted, x)), shifted


def logit(layers: Layers, x: np.ndarray) -> float:
    """Return the logit of one row."""
    for i, (W, b) in enumerate(layers):
        x = W @ x + b
        x = np.maximum(x, 0.0) if i < len(layers) - 1 else x
    return x[0]


# -- the nearest robust point ----------------------------------------------------------------------


def nearest(layers: Layers, delta: float, x0, vertices, margin: float) -> np.ndarray | None:
    """Return the nearest point of a hull whose worst-case margin is at least ``margin``."""
    if len(layers) == 2:
        return nearest_in_one(layers, delta, x0, vertices, margin)
    scenarios = [layers]
    for _ in range(ROUNDS):
        p, x = hull(x0, vertices)
        for scenario in scenarios:
            accept(p, x, scenario, vertices, margin)
        found = p.solve()
        if found is None:
            return None
        least, shifted = worst(layers, delta, found[x])
        if least >= margin - 1e-9:
            return found[x]
        scenarios.append(shifted)
    raise ArithmeticError(f"Algorithm 1 did not end after {ROUNDS} rounds")


def nearest_in_one(layers: Layers, delta: float, x0, vertices, margin: float) -> np.ndarray | None:
    """Solve a network with one hidden layer: one program with the worst case in closed form."""
    (W, b), (w, c) = layers
    p, x = hull(x0, vertices)
    size = np.array([p.add(0.0, INF) for _ in x0])  # |x|; smaller values only help, so >= is exact
    for j in range(len(x0)):
        p.require(0.0, INF, (1.0, size[j]), (-1.0, x[j]))
        p.require(0.0, INF, (1.0, size[j]), (1.0, x[j]))
    reach = delta * (np.abs(vertices).sum(1) + 1.0)
    terms = []
    for k, weight in enumerate(w[0] - delta):
        sign = -1.0 if weight >= 0.0 else 1.0
        z, constant = [(W[k], x), (sign * delta, size)], b[k] + sign * delta
        if weight >= 0.0:
            middle = vertices @ W[k] + b[k]
            h = relu_at_most(p, z, constant, (middle - reach).min(), middle.max() - delta)
        else:
            h = relu_at_least(p, z, constant)
        if h is not None:
            terms.append((weight, h))
    if not terms:
        return x0 if c[0] - delta >= margin else None
    p.require(margin - (c[0] - delta), INF, *terms)
    found = p.solve()
    return None if found is None else found[x]


def accept(p: Program, x: np.ndarray, layers: Layers, vertices, margin: float) -> None:
    """Require that one network of two hidden layers reaches the margin at x."""
    (W, b), (V, a), (w, c) = layers
    at = vertices @ W.T + b
    first = [relu(p, [(W[k], x)], b[k], at[:, k].min(), at[:, k].max()) for k in range(len(W))]
    tops, bottoms = np.maximum(at.max(0), 0.0), np.maximum(at.min(0), 0.0)
    terms = []
    for k in range(len(V)):
        used = [(V[k, i], h) for i, h in enumerate(first) if h is not None]
        ends = np.stack([V[k] * bottoms, V[k] * tops])
        low, high = ends.min(0).sum() + a[k], ends.max(0).sum() + a[k]
        if not used:
            p.require(a[k], a[k], (1.0, h := p.add(-INF, INF)))
            h = None if a[k] <= 0.0 else h
        else:
            h = relu(p, used, a[k], low, high)
        if h is not None:
            terms.append((w[0, k], h))
    if terms:
        p.require(margin - c[0], INF, *terms)
    elif c[0] < margin:
        p.require(1.0, INF, (0.0, x[0]))


# -- problems --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A random network with a table, a schema and a delta."""

    layers: Layers
    delta: float
    rows: np.ndarray
    schema: pp.Schema
    categories: np.ndarray  # columns of categories
    k: int

    def margin(self, x: np.ndarray) -> float:
        """Return the worst-case margin of a row."""
        return worst(self.layers, self.delta, x)[0]


def random_case(rng: np.random.Generator) -> Case:
    """Draw a network, a table and a delta."""
    numbers, flags = int(rng.integers(2, 5)), int(rng.integers(0, 3))
    levels = int(rng.choice([0, 0, 3]))
    signed = rng.random() < 0.5
    count = 60
    low, high = (-0.5, 0.5) if signed else (0.0, 1.0)  # of length 1, the unit of a distance
    parts = [rng.uniform(low, high, (count, numbers))]
    parts += [rng.integers(0, 2, (count, flags)).astype(float)]
    if levels:
        parts.append(np.eye(levels)[rng.integers(0, levels, count)])
    rows = np.hstack(parts)
    features = [pp.Continuous(f"n{i}", low, high, scaling="none") for i in range(numbers)]
    features += [pp.Binary(f"f{i}") for i in range(flags)]
    if levels:
        features.append(pp.Categorical("c", [f"l{i}" for i in range(levels)]))
    hidden = [int(n) for n in rng.integers(2, 7, rng.choice([1, 2]))]
    sizes = [rows.shape[1], *hidden, 1]
    layers = [
        (rng.normal(size=(n, m)) / np.sqrt(m) * 1.5, rng.normal(size=n) * 0.3)
        for m, n in itertools.pairwise(sizes)
    ]
    logits = np.array([logit(layers, row) for row in rows])
    W, b = layers[-1]
    layers[-1] = (W, b - np.quantile(logits, 0.6))
    delta = float(rng.choice([0.0, 0.003, 0.01, 0.03, 0.06]))
    return Case(
        layers,
        delta,
        rows,
        pp.Schema(features),
        np.arange(numbers, rows.shape[1]),
        int(rng.integers(2, 9)),
    )


def region(case: Case, robust: np.ndarray, x0: np.ndarray) -> list[np.ndarray]:
    """Return the vertices of every convex piece of the region of a person."""
    rows = np.unique(robust, axis=0)
    order = np.argsort(np.abs(rows - x0).mean(1), kind="stable")[: case.k]
    vertices = np.vstack([x0, rows[order]])
    profiles = vertices[:, case.categories]
    return [vertices[(profiles == profile).all(1)] for profile in np.unique(profiles, axis=0)]


def optimum(case: Case, pieces: list[np.ndarray], x0: np.ndarray, margin: float) -> float:
    """Return the smallest distance of a point with the margin; infinite if there is none."""
    best = np.inf
    for vertices in pieces:
        point = nearest(case.layers, case.delta, x0, vertices, margin)
        if point is not None:
            best = min(best, float(np.abs(point - x0).mean()))
    return best


@dataclass
class Tally:
    """Counts of problems and of wrong results."""

    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    largest: float = -np.inf

    def add(self, case: Case, pieces, x0, gap: float, found: pp.Explanation, name: str) -> None:
        """Compare one explanation with the optimum."""
        self.counts[len(case.layers) - 1, gap] += 1
        self.counts["optimal"] += found.status == "optimal"
        best = optimum(case, pieces, x0, MARGIN + SLACK)
        if not found.found:
            if np.isfinite(best):
                self.wrong.append(f"{name}: {found.status} although {best!r} exists")
            return
        if np.isfinite(best):
            self.largest = max(self.largest, found.bound - best)
        if found.bound > best + TOLERANCE:
            self.wrong.append(f"{name}: bound {found.bound!r} above the optimum {best!r}")
        distance = found.distance
        if distance < best - TOLERANCE:
            least = optimum(case, pieces, x0, MARGIN)
            if distance < least - TOLERANCE:
                self.wrong.append(f"{name}: distance {distance!r} below the optimum {least!r}")
        if found.status == "optimal" and (1.0 - gap) * distance > best + TOLERANCE:
            self.wrong.append(f"{name}: distance {distance!r} beyond the gap above {best!r}")

    def __str__(self) -> str:
        groups = [key for key in self.counts if key != "optimal"]
        total = sum(self.counts[key] for key in groups)
        lines = ["| hidden layers | gap | problems |", "|---|---|---|"]
        lines += [f"| {key[0]} | {key[1]:g} | {self.counts[key]} |" for key in sorted(groups)]
        lines += [
            "",
            f"{total} problems, {self.counts['optimal']} optimal; {len(self.wrong)} wrong; largest "
            f"bound minus optimum {self.largest:.1e} (tolerance {TOLERANCE:g})",
            *(f"WRONG: {text}" for text in self.wrong),
        ]
        return "\n".join(lines)


def compare(case: Case, count: int, gaps: list[float], tally: Tally, name: str) -> int:
    """Explain people of a case, compare them with the oracle, and return their number."""
    margins = np.array([case.margin(row) for row in case.rows])
    robust = case.rows[margins >= MARGIN + SLACK]
    logits = np.array([logit(case.layers, row) for row in case.rows])
    people = case.rows[logits < 0.0][:count]
    if not len(robust) or np.any(np.abs(margins - MARGIN - SLACK) < 1e-7):
        return 0
    explainer = pp.Proplace(pp.Network(case.layers), case.delta, schema=case.schema, k=case.k)
    explainer.fit(case.rows)
    takes_gap = "gap" in inspect.signature(explainer.explain).parameters
    for i, (x0, gap) in enumerate(zip(people, gaps, strict=False)):
        options = {"gap": gap} if takes_gap else {}
        found = explainer.explain(x0[None], **options)[0]
        pieces = region(case, robust, x0)
        tally.add(case, pieces, x0, gap, found, f"{name}, person {i}, gap {gap:g}")
    return len(people)


def main() -> None:
    """Compare random problems and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"Search against an independent oracle. {machine()}", flush=True)
    tally, done, number, start = Tally(), 0, 0, time.perf_counter()
    while done < options.problems:
        case = random_case(np.random.default_rng([options.seed, number]))
        gaps = [GAPS[(done + i) % len(GAPS)] for i in range(PEOPLE)]
        name = f"seed {options.seed}, network {number}"
        done += compare(case, min(PEOPLE, options.problems - done), gaps, tally, name)
        number += 1
    print(f"{tally}\n{time.perf_counter() - start:.0f} s")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
