"""Rows per second of ``certify`` against one mixed-integer program a row, in one run.

The program is the paper's test (interval weights, one binary and a big-M pair per hidden neuron),
solved by HiGHS. Both get the same rows; every verdict is compared.

    python benchmarks/certify.py [--rows 40] [--only 2x20]
"""

from __future__ import annotations

import argparse
import resource
import time

import highspy
import numpy as np

import proplace as pp
from common import delta_for_share, machine, problem

CASES = [
    ("compas", (20, 20), 0.025),
    ("heloc", (20, 20), 0.025),
    ("adult", (10, 10), 0.035),
    ("gmc", (20, 20), 0.045),
    ("heloc", (20, 20), None),
    ("heloc", (50, 50), None),
    ("heloc", (100, 100), None),
    ("heloc", (50, 50, 50), None),
]


LIMIT = 20.0  # seconds for one mixed-integer program


def milp_least_margin(net: pp.Network, x: np.ndarray, delta: float, big: float = 100.0) -> float:
    """Least logit over Delta by the paper's mixed-integer program, for an input >= 0.

    NaN when the time limit came first.
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
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.nan
    return solver.getInfo().objective_function_value + float(last.bias[0]) - delta


def compare(name: str, widths: tuple[int, ...], delta: float | None, rows: int) -> str:
    """Measure one case and return a row of the table."""
    p = problem(name, widths)
    X = p.X[p.train]
    delta = delta_for_share(p.net, X) if delta is None else delta
    pp.certify(p.net, X[:100], delta)
    start = time.perf_counter()
    report = pp.certify(p.net, X, delta)
    ours = (time.perf_counter() - start) / len(X)
    rng = np.random.default_rng(0)
    sample = rng.choice(len(X), size=min(rows, len(X)), replace=False)
    start = time.perf_counter()
    margins = [milp_least_margin(p.net, x, delta) for x in X[sample]]
    theirs = (time.perf_counter() - start) / len(sample)
    solved = np.isfinite(margins)
    equal = int(((np.array(margins) >= 0.0) == report.robust[sample])[solved].sum())
    late = "" if solved.all() else f" ({int((~solved).sum())} MILPs stopped at {LIMIT:g} s)"
    size = f"{len(widths)}x{widths[0]}"
    return (
        f"| {name} {size} | {delta:g} | {len(X)} | {report.robust.mean():.0%} | {1 / ours:,.0f} | "
        f"{1 / theirs:,.1f} | {theirs / ours:,.0f} | {equal} of {int(solved.sum())}{late} |"
    )


def large() -> str:
    """Decide a table of 100,000 rows on a 2x100 network and report the peak memory."""
    p = problem("heloc", (100, 100))
    delta = delta_for_share(p.net, p.X[p.train])
    rng = np.random.default_rng(0)
    X = p.X[rng.integers(len(p.X), size=100_000)]
    X = np.clip(X + rng.normal(scale=0.02, size=X.shape), 0.0, 1.0)
    start = time.perf_counter()
    report = pp.certify(p.net, X, delta)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"100,000 rows on heloc 2x100 at delta {delta:g}: {report}, {seconds:.1f} s, "
        f"peak memory of the process {peak:.2f} GB"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40, help="rows for the mixed-integer program")
    parser.add_argument("--only", help="run only the cases whose name contains this, as 3x50")
    options = parser.parse_args()
    print(f"certify against one MILP a row. {machine()}\n", flush=True)
    print(
        "| network | delta | rows | robust | certify rows/s | MILP rows/s | ratio "
        "| verdicts equal |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, widths, delta in CASES:
        if options.only and options.only not in f"{name} {len(widths)}x{widths[0]}":
            continue
        print(compare(name, widths, delta, options.rows), flush=True)
    if not options.only:
        print("\n" + large())


if __name__ == "__main__":
    main()
