"""Rows per second of ``certify`` against exact methods that take one row at a time, in one run.

    python benchmarks/certify.py [--rows 40] [--only 2x20]

*Paper's MILP*: interval weights, one binary and a big-M pair per hidden neuron, solved by HiGHS. *Strong
MILP*: tight bounds per neuron, stable neurons and all binaries that are not needed removed. *Marabou*: a
public complete verifier, if it is installed (``pip install --no-deps maraboupy==2.0.0``). Its query is
the same set of networks: linear inequalities for the interval weights, ReLUs, and a negative output.
All get the same rows; every verdict is compared. Times are processor seconds. auto_LiRPA 0.3, the
newest on the package index, requires torch < 1.13 and does not import under NumPy 2.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import time
from typing import TYPE_CHECKING

import highspy
import numpy as np

import proplace as pp
from common import delta_for_share, machine, problem, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

MarabouCore = None
with contextlib.suppress(ImportError):
    from maraboupy import MarabouCore

CASES = [
    ("compas", (20, 20), 0.025),
    ("heloc-repaired", (20, 20), 0.025),
    ("adult", (10, 10), 0.035),
    ("gmc", (20, 20), 0.045),
    ("heloc-repaired", (20, 20), None),
    ("heloc-repaired", (50, 50), None),
    ("heloc-repaired", (100, 100), None),
    ("heloc-repaired", (50, 50, 50), None),
]


LIMIT = 20.0  # seconds for one row


def milp_least_margin(net: pp.Network, x: np.ndarray, delta: float, big: float = 100.0) -> float:
    """Return the smallest logit over the shift set by the paper's program, for an input >= 0.

    The program has a binary and a big-M pair for every neuron. Return NaN if it timed out.
    """
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("time_limit", LIMIT)
    solver.setOptionValue("threads", 1)
    previous = None
    for layer in net.layers[:-1]:
        n = layer.W.shape[0]
        z = [solver.addVariable(-highspy.kHighsInf, highspy.kHighsInf) for _ in range(n)]
        v = [solver.addVariable(0.0, big) for _ in range(n)]
        gamma = [solver.addVariable(0.0, 1.0, type=highspy.HighsVarType.kInteger) for _ in range(n)]
        for k in range(n):
            if previous is None:
                centre = float(layer.W[k] @ x + layer.bias[k])
                radius = delta * (np.abs(x).sum() + 1.0)
                solver.changeColBounds(z[k].index, centre - radius, centre + radius)
            else:
                columns = np.array([z[k].index, *(p.index for p in previous)], dtype=np.int32)
                for sign in (-1.0, 1.0):
                    row = np.array([1.0, *-(layer.W[k] + sign * delta)])
                    side = layer.bias[k] + sign * delta
                    bounds = (side, highspy.kHighsInf) if sign < 0 else (-highspy.kHighsInf, side)
                    solver.addRow(*bounds, len(columns), columns, row)
            i, j, g = z[k].index, v[k].index, gamma[k].index
            solver.addRow(
                0.0, highspy.kHighsInf, 2, np.array([j, i], np.int32), np.array([1.0, -1.0])
            )
            solver.addRow(
                -highspy.kHighsInf, 0.0, 2, np.array([j, g], np.int32), np.array([1.0, -big])
            )
            solver.addRow(
                -highspy.kHighsInf,
                big,
                3,
                np.array([j, i, g], np.int32),
                np.array([1.0, -1.0, big]),
            )
        previous = v
    last = net.layers[-1]
    for k, variable in enumerate(previous):
        solver.changeColCost(variable.index, float(last.W[0, k]) - delta)
    return minimum(solver) + float(last.bias[0]) - delta


def minimum(solver: highspy.Highs) -> float:
    """Solve a program and return its minimum; NaN if it timed out."""
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.nan
    return solver.getInfo().objective_function_value


def decision(margin: float) -> bool | None:
    """Return True for a margin of at least 0, and None for NaN."""
    return None if np.isnan(margin) else bool(margin >= 0.0)


def paper_milp(net: pp.Network, x: np.ndarray, delta: float) -> bool | None:
    """Decide one row by the paper's program."""
    return decision(milp_least_margin(net, x, delta))


Bounds = list[tuple[np.ndarray, np.ndarray]]


def interval_bounds(net: pp.Network, x: np.ndarray, delta: float) -> Bounds:
    """Return bounds of the pre-activations of every hidden layer over the shift set."""
    found: Bounds = []
    for layer in net.layers[:-1]:
        if not found:
            middle, reach = layer.W @ x + layer.bias, delta * (np.abs(x).sum() + 1.0)
            found.append((middle - reach, middle + reach))
            continue
        low, high = (np.maximum(end, 0.0) for end in found[-1])
        least, most = layer.W - delta, layer.W + delta
        found.append(
            (
                np.minimum(least * low, least * high).sum(axis=1) + layer.bias - delta,
                np.maximum(most * low, most * high).sum(axis=1) + layer.bias + delta,
            )
        )
    return found


def strong_milp(net: pp.Network, x: np.ndarray, delta: float) -> bool | None:
    """Decide one row by the strongest plain program we know.

    Every neuron has its own bounds, and stable neurons have no binary. The first layer is a box of
    activations, without binaries. In the last hidden layer only neurons that lower the output at
    their upper end need one.
    """
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("time_limit", LIMIT)
    solver.setOptionValue("threads", 1)
    bounds, last = interval_bounds(net, x, delta), net.layers[-1]
    cost = last.W[0] - delta
    inf, count = highspy.kHighsInf, 0

    def variable(low: float, high: float, price: float = 0.0) -> int:
        nonlocal count
        solver.addVar(low, high)
        solver.changeColCost(count, price)
        count += 1
        return count - 1

    hidden = len(bounds)
    first = [(max(low, 0.0), max(high, 0.0)) for low, high in zip(*bounds[0], strict=True)]
    prices = cost if hidden == 1 else np.zeros(len(first))
    previous = [variable(*ends, price) for ends, price in zip(first, prices, strict=True)]
    for depth in range(1, hidden):
        layer, final, current = net.layers[depth], depth == hidden - 1, []
        for k, (low, high) in enumerate(zip(*bounds[depth], strict=True)):
            price = float(cost[k]) if final else 0.0
            h = variable(0.0, max(high, 0.0), price)
            current.append(h)
            if high <= 0.0:
                continue
            columns = np.array([h, *previous], dtype=np.int32)
            if not final or price >= 0.0:  # h >= the lower end of the pre-activation
                row = np.array([1.0, *-(layer.W[k] - delta)])
                solver.addRow(float(layer.bias[k]) - delta, inf, len(row), columns, row)
            if final and price >= 0.0:
                continue
            row, side = np.array([1.0, *-(layer.W[k] + delta)]), float(layer.bias[k]) + delta
            if low >= 0.0:
                solver.addRow(-inf, side, len(row), columns, row)
                continue
            on = variable(0.0, 1.0)
            solver.changeColIntegrality(on, highspy.HighsVarType.kInteger)
            solver.addRow(-inf, 0.0, 2, np.array([h, on], np.int32), np.array([1.0, -high]))
            # the lower end of the upper row decides how far it must be relaxed
            solver.addRow(
                -inf,
                side - low,
                len(row) + 1,
                np.array([*columns, on], dtype=np.int32),
                np.array([*row, -low]),
            )
        previous = current
    return decision(minimum(solver) + float(last.bias[0]) - delta)


def marabou(net: pp.Network, x: np.ndarray, delta: float) -> bool | None:
    """Decide one row by Marabou, which searches for a shift with a negative logit."""
    core = MarabouCore
    query, count = core.InputQuery(), 0
    bounds = interval_bounds(net, x, delta)
    query.setNumberOfVariables(2 * sum(len(low) for low, _ in bounds))

    def require(kind: object, columns: list[int], row: np.ndarray, side: float) -> None:
        equation = core.Equation(kind)
        for column, value in zip(columns, row, strict=True):
            equation.addAddend(float(value), column)
        equation.setScalar(float(side))
        query.addEquation(equation)

    previous: list[int] = []
    for layer, (low, high) in zip(net.layers[:-1], bounds, strict=True):
        z = list(range(count, count + len(low)))
        h = list(range(count + len(low), count + 2 * len(low)))
        count += 2 * len(low)
        for k in range(len(low)):
            query.setLowerBound(z[k], float(low[k]))
            query.setUpperBound(z[k], float(high[k]))
            query.setLowerBound(h[k], max(float(low[k]), 0.0))
            query.setUpperBound(h[k], max(float(high[k]), 0.0))
            core.addReluConstraint(query, z[k], h[k])
            if previous:
                columns = [z[k], *previous]
                for kind, sign in ((core.Equation.GE, -1.0), (core.Equation.LE, 1.0)):
                    row = np.array([1.0, *-(layer.W[k] + sign * delta)])
                    require(kind, columns, row, layer.bias[k] + sign * delta)
        previous = h
    last = net.layers[-1]
    require(core.Equation.LE, previous, last.W[0] - delta, -(last.bias[0] - delta))
    options = core.Options()
    options._verbosity, options._timeoutInSeconds, options._numWorkers = 0, int(LIMIT), 1
    code, _, _ = core.solve(query, options, "")
    return {"sat": False, "unsat": True}.get(code)


BASELINES: dict[str, Callable[[pp.Network, np.ndarray, float], bool | None]] = {
    "paper's MILP": paper_milp,
    "strong MILP": strong_milp,
}
if MarabouCore is not None:
    BASELINES["Marabou"] = marabou


def compare(name: str, widths: tuple[int, ...], delta: float | None, rows: int) -> str:
    """Measure one case and return a row of the table."""
    p = problem(name, widths)
    X = p.X[p.train]
    delta = delta_for_share(p.net, X) if delta is None else delta
    pp.certify(p.net, X[:100], delta)
    spent = []
    for _ in range(3):
        start = time.process_time()
        report = pp.certify(p.net, X, delta)
        spent.append(time.process_time() - start)
    ours = float(np.median(spent)) / len(X)
    sample = np.random.default_rng(0).choice(len(X), size=min(rows, len(X)), replace=False)
    cells = [f"{name} {size_of(widths)}", f"{delta:g}", str(len(X)), f"{report.robust.mean():.0%}"]
    cells.append(f"{1 / ours:,.0f}")
    for decide in BASELINES.values():
        start = time.process_time()
        found = [decide(p.net, x, delta) for x in X[sample]]
        theirs = (time.process_time() - start) / len(sample)
        decided = [i for i, one in enumerate(found) if one is not None]
        equal = sum(found[i] == report.robust[sample[i]] for i in decided)
        late = f", {len(found) - len(decided)} timed out" if len(decided) < len(found) else ""
        cells.append(f"{1 / theirs:,.1f} | {theirs / ours:,.0f} | {equal} of {len(decided)}{late}")
    return f"| {' | '.join(cells)} |"


def large() -> str:
    """Decide a table of 100,000 rows on a 2x100 network and report the peak memory."""
    p = problem("heloc-repaired", (100, 100))
    delta = delta_for_share(p.net, p.X[p.train])
    rng = np.random.default_rng(0)
    X = p.X[rng.integers(len(p.X), size=100_000)]
    X = np.clip(X + rng.normal(scale=0.02, size=X.shape), 0.0, 1.0)
    start = time.perf_counter()
    report = pp.certify(p.net, X, delta)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"100,000 rows on heloc-repaired 2x100 at delta {delta:g}: {report}, {seconds:.1f} s, "
        f"peak memory of the process {peak:.2f} GB"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40, help="rows for the other methods")
    parser.add_argument("--only", help="run only the cases whose name contains this, as 3x50")
    options = parser.parse_args()
    print(f"certify against exact methods for one row. {machine()}\n", flush=True)
    columns = ["network", "delta", "rows", "robust", "certify rows/s"]
    for name in BASELINES:
        columns += [f"{name} rows/s", "ratio", "verdicts equal"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name, widths, delta in CASES:
        if options.only and options.only not in f"{name} {size_of(widths)}":
            continue
        print(compare(name, widths, delta, options.rows), flush=True)
    if not options.only:
        print("\n" + large())


if __name__ == "__main__":
    main()
