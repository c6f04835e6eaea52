r"""Worst-case margins against methods that share no code with the library, on random problems.

    python benchmarks/referees.py [--problems 300] [--rows 15] [--seed 0]

A problem is a network, a shift set, an input of any sign and a class. Small random networks have one
to three hidden layers of 1 to 5 neurons, one, three or four logits, zero weights, dead neurons, and a
radius, radii per layer or an interval per parameter. Networks trained on tables of scikit-learn have
2x20 and 3x10 neurons. :func:`proplace.certification.certify` bounds the worst-case margin from both
sides. The other methods are:

- *auto_LiRPA* with perturbed weights (interval bounds, CROWN, optimised CROWN). Its lower bound may not
  exceed the worst-case margin. Version 0.3, the newest on the package index, requires torch < 1.13;
  version 0.7.1 is in its repository.
- *SCIP* (``pip install pyscipopt``), feasibility tolerance 1e-9 and no gap: a binary per unstable
  neuron; after activations :math:`h \ge 0`, both ends of the weights bound :math:`z`.
- *Gurobi* with the weights as variables, thus products :math:`w_i h_i`. Its free licence takes 200
  variables.
- *Sampling*: random shifts, random signs per parameter, and random signs per neuron. No sampled network
  may have a smaller margin.
- *Rational arithmetic*: the worst shift of the library lies in the shift set and attains its upper
  bound; the standalone checker accepts a certificate of its lower bound (if that is not negative).

A disagreement is settled by rational arithmetic: the network of the lower claim is put into the shift
set and evaluated exactly. The command fails if the library is wrong. Methods that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import minmax_scale

import proplace as pp
from common import machine
from proplace.certification import certify, worst_case

scip = gurobi = torch = lirpa = None
with contextlib.suppress(ImportError):
    import pyscipopt as scip
with contextlib.suppress(ImportError):
    import gurobipy as gurobi
with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import auto_LiRPA as lirpa
    import torch

TOLERANCE = 1e-6  # of solvers, relative to margins of at least 1
ROUNDING = 1e-9  # of sums in double precision, likewise
LIMIT = 30.0  # seconds for one program
SAMPLES = 3000  # networks of each problem
GUROBI_VARIABLES = 200  # of the free licence, in a program with products

Layers = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Problem:
    """A network with the ends of its shift set, an input and a class."""

    group: str
    middle: Layers
    low: Layers
    high: Layers
    x: np.ndarray
    target: int
    delta: object  # as the library takes it

    @property
    def network(self) -> pp.Network:
        """The network in the middle."""
        return pp.Network(self.middle)

    @property
    def objectives(self) -> list[np.ndarray]:
        """Rows c such that the margin is the smallest c . logits."""
        outputs = len(self.middle[-1][1])
        if outputs == 1:
            return [np.array([1.0 if self.target == 1 else -1.0])]
        unit = np.eye(outputs)
        return [unit[self.target] - unit[o] for o in range(outputs) if o != self.target]


class Claim(NamedTuple):
    """Bounds of another method; ``network`` has a margin of ``upper``, if there is one."""

    lower: float
    upper: float
    network: list | None = None


# -- problems --------------------------------------------------------------------------------------


def shift_set(rng: np.random.Generator, middle: Layers) -> tuple[object, Layers, Layers]:
    """Draw a radius, radii per layer, or an interval per parameter; return it with both ends."""
    kind = rng.integers(3)
    if kind == 2:
        low, high = [], []
        for pair in middle:
            centres = [v + rng.normal(size=v.shape) * rng.choice([0.0, 0.05]) for v in pair]
            radii = [
                rng.exponential(rng.choice([0.01, 0.1]), v.shape) * (rng.random(v.shape) < 0.8)
                for v in pair
            ]
            low.append(tuple(c - r for c, r in zip(centres, radii, strict=True)))
            high.append(tuple(c + r for c, r in zip(centres, radii, strict=True)))
        return pp.Shifts(pp.Network(low), pp.Network(high)), low, high
    if kind == 1:
        delta = [tuple(map(float, rng.choice([0.0, 0.02, 0.1, 0.3], 2))) for _ in middle]
        pairs = delta
    else:
        delta = float(rng.choice([0.0, 0.003, 0.01, 0.05, 0.2]))
        pairs = [(delta, delta)] * len(middle)
    low, high = (
        [(W + s * p, b + s * q) for (W, b), (p, q) in zip(middle, pairs, strict=True)]
        for s in (-1.0, 1.0)
    )
    return delta, low, high


def random_problem(rng: np.random.Generator) -> Problem:
    """Draw a small network with everything that may be special in it."""
    hidden, outputs = int(rng.integers(1, 4)), int(rng.choice([1, 1, 3, 4]))
    sizes = [int(rng.integers(1, 6)), *map(int, rng.integers(1, 6, hidden)), outputs]
    middle = []
    for m, n in itertools.pairwise(sizes):
        W, b = rng.normal(size=(n, m)) * rng.uniform(0.5, 1.5), rng.normal(size=n) * 0.5
        if rng.random() < 0.3:
            W[rng.random(W.shape) < 0.4] = 0.0
        if rng.random() < 0.1:
            b[rng.integers(n)] = -20.0
        middle.append((W, b))
    x = rng.normal(size=sizes[0]) * 1.5
    x[rng.random(x.shape) < 0.1] = 0.0
    delta, low, high = shift_set(rng, middle)
    group = f"{hidden} hidden, {'two' if outputs == 1 else outputs} classes"
    return Problem(group, middle, low, high, x, int(rng.integers(max(2, outputs))), delta)


def trained_problems(rows: int, seed: int) -> list[Problem]:
    """Train networks on tables of scikit-learn and take rows near and far from the boundary."""
    found = []
    for table, widths, delta in (
        ("cancer", (20, 20), 0.01),
        ("cancer", (10, 10, 10), 0.02),
        ("wine", (20, 20), 0.03),
        ("wine", (10, 10, 10), 0.05),
    ):
        X, y = (load_breast_cancer if table == "cancer" else load_wine)(return_X_y=True)
        X = minmax_scale(X)
        model = MLPClassifier(widths, max_iter=300, learning_rate_init=0.01, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        net = pp.Model.of(model).network
        middle = [(np.array(layer.W), np.array(layer.bias)) for layer in net.layers]
        rng = np.random.default_rng([seed, *widths])
        for number in range(rows):
            i, j = rng.integers(len(X), size=2)
            x = X[i] + rng.uniform() * (X[j] - X[i])
            radius = delta * float(rng.choice([0.5, 1.0, 2.0]))
            low, high = ([(W + s * radius, b + s * radius) for W, b in middle] for s in (-1.0, 1.0))
            group = f"{table} {len(widths)}x{widths[0]}"
            target = number % net.classes
            found.append(Problem(group, middle, low, high, x, target, radius))
    return found


# -- exact arithmetic ------------------------------------------------------------------------------


def ends_of(problem: Problem) -> list:
    """Return both ends of every parameter as fractions: (W, W', b, b') for each layer."""
    if isinstance(problem.delta, pp.Shifts):
        pairs = zip(problem.low, problem.high, strict=True)
        return [tuple(map(rational, (V, W, a, b))) for (V, a), (W, b) in pairs]
    delta = problem.delta
    pairs = delta if isinstance(delta, list) else [(delta, delta)] * len(problem.middle)
    found = []
    for (W, b), (p, q) in zip(problem.middle, pairs, strict=True):
        r, s, V, a = Fraction(p), Fraction(q), rational(W), rational(b)
        found.append((V - r, V + r, a - s, a + s))
    return found


def rational(values: np.ndarray) -> np.ndarray:
    """Return an array of fractions."""
    return np.vectorize(Fraction, otypes=[object])(np.asarray(values, dtype=float))


def exact_margin(problem: Problem, network: list) -> tuple[Fraction, bool]:
    """Return the margin of a network clipped into the shift set, and True if nothing was clipped."""
    h, inside = rational(problem.x), True
    for i, (layer, (low, high, least, most)) in enumerate(
        zip(network, ends_of(problem), strict=True)
    ):
        V, a = (v if v.dtype == object else rational(v) for v in layer)
        W, b = np.clip(V, low, high), np.clip(a, least, most)
        inside = inside and bool((W == V).all() and (b == a).all())
        h = W.dot(h) + b
        h = np.maximum(h, Fraction(0)) if i < len(network) - 1 else h
    return min(
        sum(Fraction(v) * z for v, z in zip(c, h, strict=True)) for c in problem.objectives
    ), inside


def network_of(problem: Problem, preactivations: list[np.ndarray]) -> list:
    """Return the network whose neurons come as near to given pre-activations as the shift set allows."""
    h, found = rational(problem.x), []
    for (low, high, least, most), wanted in zip(ends_of(problem), preactivations, strict=True):
        up = np.vectorize(lambda v: v >= 0, otypes=[bool])(h)
        bottom, top = np.where(up, low, high), np.where(up, high, low)
        z, reach = bottom.dot(h) + least, (top - bottom).dot(h) + most - least
        share = [
            min(max((Fraction(float(w)) - v) / r, Fraction(0)), Fraction(1)) if r else Fraction(0)
            for w, v, r in zip(wanted, z, reach, strict=True)
        ]
        t = np.array(share, dtype=object)
        W, b = bottom + t[:, None] * (top - bottom), least + t * (most - least)
        found.append((W, b))
        h = np.maximum(W.dot(h) + b, Fraction(0))
    return found


# -- other methods ---------------------------------------------------------------------------------


def interval_ends(problem: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return bounds of the pre-activations of every layer, slightly outwards."""
    low = high = problem.x
    found = []
    for (V, a), (W, b) in zip(problem.low, problem.high, strict=True):
        products = np.stack([V * low, V * high, W * low, W * high])
        least = products.min(axis=0).sum(axis=1) + a
        most = products.max(axis=0).sum(axis=1) + b
        wide = 1e-9 * np.maximum(1.0, np.maximum(np.abs(least), np.abs(most)))
        found.append((least - wide, most + wide))
        low, high = np.maximum(found[-1][0], 0.0), np.maximum(found[-1][1], 0.0)
    return found


def scip_bounds(problem: Problem) -> Claim | None:
    """Solve one mixed-integer program per objective."""
    claims = [_scip(problem, c) for c in problem.objectives]
    return None if None in claims else min(claims, key=lambda claim: claim.upper)


def _scip(problem: Problem, c: np.ndarray) -> Claim | None:
    program = scip.Model()
    program.hideOutput()
    program.setParams(
        {
            "numerics/epsilon": 1e-11,  # the default is too near to the next two: see the docs
            "numerics/feastol": 1e-9,
            "numerics/dualfeastol": 1e-9,
            "limits/gap": 0.0,
            "limits/absgap": 0.0,
            "limits/time": LIMIT,
            "parallel/maxnthreads": 1,
        }
    )
    h: list = problem.x.tolist()
    layers = []
    ends = interval_ends(problem)
    for i, ((V, a), (W, b)) in enumerate(zip(problem.low, problem.high, strict=True)):
        z = [
            program.addVar(lb=low, ub=high)
            for low, high in zip(*(end.tolist() for end in ends[i]), strict=True)
        ]
        for k, variable in enumerate(z):
            below, above = float(a[k]), float(b[k])
            for j, value in enumerate(h):
                positive = i > 0 or value >= 0.0
                below += float(V[k, j] if positive else W[k, j]) * value
                above += float(W[k, j] if positive else V[k, j]) * value
            program.addCons(variable >= below)
            program.addCons(variable <= above)
        layers.append(z)
        h = [_scip_relu(program, v, *pair) for v, *pair in zip(z, *ends[i], strict=True)]
    program.setObjective(
        scip.quicksum(float(v) * z for v, z in zip(c, layers[-1], strict=True)), "minimize"
    )
    program.optimize()
    if program.getStatus() != "optimal":
        return None
    values = [np.array([program.getVal(v) for v in z]) for z in layers]
    return Claim(program.getDualbound(), program.getPrimalbound(), network_of(problem, values))


def _scip_relu(program, z, low: float, high: float):
    """Return max(0, z); a neuron of one sign needs no binary."""
    if low >= 0.0:
        return z
    h = program.addVar(lb=0.0, ub=max(0.0, float(high)))
    if high > 0.0:
        on = program.addVar(vtype="B")
        program.addCons(h >= z)
        program.addCons(h <= z - float(low) * (1 - on))
        program.addCons(h <= float(high) * on)
    return h


def gurobi_bounds(problem: Problem) -> Claim | None:
    """Solve a program with the weights as variables per objective; None if it is too large."""
    neurons = sum(len(b) for _, b in problem.middle)
    products = sum(W.size + b.size for W, b in problem.middle[1:])
    if products + 3 * neurons > GUROBI_VARIABLES:
        return None
    claims = [_gurobi(problem, c) for c in problem.objectives]
    return None if None in claims else min(claims, key=lambda claim: claim.upper)


_ENVIRONMENT = []


def _gurobi(problem: Problem, c: np.ndarray) -> Claim | None:
    if not _ENVIRONMENT:
        _ENVIRONMENT.append(gurobi.Env(params={"OutputFlag": 0}))
    with gurobi.Model(env=_ENVIRONMENT[0]) as program:
        for name, value in {
            "NonConvex": 2, "MIPGap": 0.0, "MIPGapAbs": 1e-9, "FeasibilityTol": 1e-9,
            "IntFeasTol": 1e-9, "OptimalityTol": 1e-9, "TimeLimit": LIMIT, "Threads": 1,
        }.items():  # fmt: skip
            program.setParam(name, value)
        (low, high), *rest = ends = interval_ends(problem)
        z = program.addMVar(len(low), lb=low, ub=high)  # linear in the first weights, one by one
        layers, parameters = [z], []
        for i, (least, most) in enumerate(rest, start=1):
            h = _gurobi_relu(program, z, *ends[i - 1])
            (V, a), (W, b) = problem.low[i], problem.high[i]
            weights = program.addMVar(V.shape, lb=V, ub=W)
            biases = program.addMVar(a.shape, lb=a, ub=b)
            z = program.addMVar(len(least), lb=least, ub=most)
            for k in range(len(a)):
                program.addConstr(z[k] == weights[k] @ h + biases[k])
            parameters.append((weights, biases))
            layers.append(z)
        program.setObjective(c @ z, gurobi.GRB.MINIMIZE)
        program.optimize()
        if program.Status != gurobi.GRB.OPTIMAL:
            return None
        first = network_of(problem, [v.X for v in layers])[:1]
        network = [*first, *((W.X, b.X) for W, b in parameters)]
        return Claim(program.ObjBound, program.ObjVal, network)


def _gurobi_relu(program, z, low: np.ndarray, high: np.ndarray):
    """Return max(0, z)."""
    top, bottom = np.maximum(high, 0.0), np.minimum(low, 0.0)
    h = program.addMVar(len(low), lb=np.maximum(low, 0.0), ub=top)
    on = program.addMVar(
        len(low), vtype="B", lb=(low >= 0.0).astype(float), ub=(high > 0.0).astype(float)
    )
    program.addConstr(h >= z)
    program.addConstr(h <= z - bottom * (1.0 - on))
    program.addConstr(h <= top * on)
    return h


METHODS = ("IBP", "CROWN", "CROWN-Optimized")  # of auto_LiRPA


def lirpa_bounds(problem: Problem) -> dict[str, float]:
    """Return the lower bound of each method of auto_LiRPA."""
    torch.set_default_dtype(torch.float64)
    pairs = zip(problem.low, problem.high, strict=True)
    model = torch.nn.Sequential()
    for i, (low, high) in enumerate(pairs):
        layer = torch.nn.Linear(low[0].shape[1], len(low[1]))
        for name, p, q in zip(("weight", "bias"), low, high, strict=True):
            radius = torch.tensor((q - p) / 2.0)
            shift = lirpa.PerturbationLpNorm(norm=np.inf, eps=radius)
            setattr(layer, name, lirpa.BoundedParameter(torch.tensor((p + q) / 2.0), shift))
        model.append(layer)
        if i < len(problem.low) - 1:
            model.append(torch.nn.ReLU())
    x = torch.tensor(problem.x)[None]
    options = {
        "sparse_intermediate_bounds": False,
        "sparse_conv_intermediate_bounds": False,
        "sparse_intermediate_bounds_with_ibp": False,
        "verbosity": 0,
    }
    bounded = lirpa.BoundedModule(model, x, bound_opts=options)
    objectives, found = torch.tensor(np.array(problem.objectives))[None], {}
    for name in METHODS:
        with contextlib.redirect_stdout(None):  # it prints why an optimisation stops
            lower, _ = bounded.compute_bounds(x=(x,), C=objectives, method=name)
        found[f"auto_LiRPA, {name}"] = float(lower.min())
    return found


def sampled(problem: Problem, rng: np.random.Generator) -> Claim:
    """Return the smallest margin of random networks of the shift set."""
    third = SAMPLES // 3
    h = np.broadcast_to(problem.x, (SAMPLES, len(problem.x)))
    drawn = []
    for i, ((V, a), (W, b)) in enumerate(zip(problem.low, problem.high, strict=True)):
        t, s = rng.random((SAMPLES, *V.shape)), rng.random((SAMPLES, *a.shape))
        t[third:], s[third:] = t[third:].round(), s[third:].round()
        side = s[2 * third :, :, None]
        t[2 * third :] = np.where(h[2 * third :, None, :] >= 0.0, side, 1.0 - side)
        drawn.append((t, s))
        h = ((V + t * (W - V)) @ h[:, :, None])[:, :, 0] + a + s * (b - a)
        h = np.maximum(h, 0.0) if i < len(problem.low) - 1 else h
    margins = np.min([h @ c for c in problem.objectives], axis=0)
    best = int(margins.argmin())
    ends = zip(problem.low, problem.high, drawn, strict=True)
    network = [(V + t[best] * (W - V), a + s[best] * (b - a)) for (V, a), (W, b), (t, s) in ends]
    return Claim(-math.inf, float(margins[best]), network)


# -- comparisons -----------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts of comparisons per method, and the disagreements."""

    comparisons: Counter = field(default_factory=Counter)
    equal: Counter = field(default_factory=Counter)
    unfinished: Counter = field(default_factory=Counter)
    against: Counter = field(default_factory=Counter)
    excess: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)

    def add(
        self,
        method: str,
        problem: Problem,
        ours: Claim,
        theirs: Claim,
        *,
        tolerance: float,
        name: str,
    ) -> None:
        """Compare two pairs of bounds: neither lower bound may exceed the other upper bound."""
        self.comparisons[method] += 1
        excess = max(theirs.lower - ours.upper, ours.lower - theirs.upper)
        scale = max(1.0, abs(ours.upper))
        self.excess[method] = max(self.excess.get(method, -math.inf), excess / scale)
        ends = [v for v in (theirs.lower, theirs.upper) if math.isfinite(v)]
        self.equal[method] += all(abs(v - ours.upper) <= TOLERANCE * scale for v in ends)
        if excess <= tolerance * scale:
            return
        self.against[method] += 1
        said = f"{name}: {method} {theirs[:2]}, library {ours[:2]}"
        lower = ours if theirs.lower > ours.upper else theirs
        exact, _ = exact_margin(problem, lower.network)
        if lower is theirs and float(exact) < ours.lower - ROUNDING * scale:
            self.wrong.append(f"{said}; a network of the shift set has {float(exact)!r}")
        elif lower is ours and float(exact) > ours.upper + ROUNDING * scale:
            self.wrong.append(f"{said}; the worst shift of the library has {float(exact)!r}")
        else:
            self.settled.append(f"{said}; exactly {float(exact)!r}, so {method} is wrong")

    def fails(self, method: str, text: str) -> None:
        """Count a wrong statement of the library that rational arithmetic found."""
        self.against[method] += 1
        self.wrong.append(text)

    def __str__(self) -> str:
        lines = [
            "| method | comparisons | equal within 1e-6 | disagreements | largest excess "
            "| not finished or too large |",
            "|---|---|---|---|---|---|",
        ]
        for method in self.comparisons | self.unfinished:
            lines.append(
                f"| {method} | {self.comparisons[method]} | {self.equal[method]} "
                f"| {self.against[method]} | {self.excess.get(method, math.nan):.1e} "
                f"| {self.unfinished[method]} |"
            )
        total = sum(self.comparisons.values())
        lines += [
            "",
            f"{total} comparisons, {sum(self.against.values())} disagreements: the library is wrong in "
            f"{len(self.wrong)}",
            *(f"WRONG: {text}" for text in self.wrong),
            *(f"Settled: {text}" for text in self.settled),
        ]
        return "\n".join(lines)


def ours(problem: Problem) -> Claim:
    """Bound the worst-case margin with the library."""
    found = certify(
        problem.network, problem.x[None], problem.delta, problem.target, exact_margin=True
    )
    worst = worst_case(problem.network, problem.x, problem.delta, problem.target).network
    layers = [(np.array(layer.W), np.array(layer.bias)) for layer in worst.layers]
    return Claim(float(found.lower[0]), float(found.upper[0]), layers)


def compare(problem: Problem, rng: np.random.Generator, tally: Tally, name: str) -> None:
    """Compare the library with every method on one problem."""
    claim = ours(problem)
    against_itself(problem, claim, tally, name)
    tolerance = {"SCIP": TOLERANCE, "Gurobi, weights as variables": TOLERANCE, "sampling": ROUNDING}
    methods = {
        "SCIP": (scip, lambda: scip_bounds(problem)),
        "Gurobi, weights as variables": (gurobi, lambda: gurobi_bounds(problem)),
        "sampling": (np, lambda: sampled(problem, rng)),
    }
    for method, (installed, ask) in methods.items():
        if installed is None:
            continue
        theirs = ask()
        if theirs is None:
            tally.unfinished[method] += 1
        else:
            tally.add(method, problem, claim, theirs, tolerance=tolerance[method], name=name)
    if lirpa is not None:
        for method, lower in lirpa_bounds(problem).items():
            theirs = Claim(lower, math.inf)
            tally.add(method, problem, claim, theirs, tolerance=ROUNDING, name=name)


def against_itself(problem: Problem, claim: Claim, tally: Tally, name: str) -> None:
    """Check both bounds of the library in rational arithmetic."""
    exact, inside = exact_margin(problem, claim.network)
    attained = Claim(-math.inf, float(exact), claim.network)
    method = "rational: worst shift"
    tally.add(method, problem, claim, attained, tolerance=ROUNDING, name=name)
    if not inside or float(exact) > claim.upper + ROUNDING * max(1.0, abs(claim.upper)):
        tally.fails(method, f"{name}: the worst shift has {float(exact)!r}, inside: {inside}")
    margin = claim.lower - ROUNDING * max(1.0, abs(claim.lower))
    if margin < 0.0:
        return
    method = "rational: certificate"
    tally.comparisons[method] += 1
    net, shifts = problem.network, pp.Shifts.of(problem.network, problem.delta)
    found = certify(net, problem.x[None], shifts, problem.target, margin=margin, certificates=True)
    proof = found.certificates[0]
    named = shifts if shifts.radii is None else None
    if proof is None or proof.verdict != "robust" or not proof.check(net, named).accepted:
        tally.fails(method, f"{name}: no certificate of the margin {margin!r}")
    else:
        tally.equal[method] += 1


def main() -> None:
    """Compare all problems and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--problems", type=int, default=300, help="random problems. Default: 300")
    parser.add_argument(
        "--rows", type=int, default=15, help="rows per trained network. Default: 15"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"Worst-case margins against other methods. {machine()}", flush=True)
    tally, start, groups = Tally(), time.process_time(), Counter()
    rngs = (np.random.default_rng([options.seed, n]) for n in itertools.count())
    problems = [random_problem(next(rngs)) for _ in range(options.problems)]
    problems += trained_problems(options.rows, options.seed)
    for number, problem in enumerate(problems):
        groups[problem.group] += 1
        compare(problem, next(rngs), tally, f"problem {number} ({problem.group})")
    print(", ".join(f"{count} of {group}" for group, count in sorted(groups.items())))
    print(f"{tally}\n{time.process_time() - start:.0f} s of processor time")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
