"""The tree search against Algorithm 1 of the paper (bilevel, HiGHS), same problems, one run.

    python benchmarks/search.py [--inputs 30] [--bilevel 10] [--only 2x20]

At the paper's sizes both searches run; beyond, the tree alone, with explanations an hour and the
share solved to optimality within the time limit.
"""

from __future__ import annotations

import argparse

import numpy as np

import proplace as pp
from common import Problem, delta_for_share, encoded_schema, machine, problem

PAPER = [
    ("adult", (10, 10), 0.035, 20),
    ("compas", (20, 20), 0.025, 20),
    ("heloc", (20, 20), 0.025, 23),
    ("gmc", (20, 20), 0.045, 20),
]
BEYOND = [
    ("heloc", (50, 50), None, 20),
    ("heloc", (100, 100), None, 20),
    ("heloc", (200, 200), None, 20),
    ("heloc", (20, 20, 20), None, 20),
]
LIMIT = 60.0


def refused(p: Problem, count: int) -> np.ndarray:
    """Return the first refused rows of the test part."""
    X = p.X[p.test]
    return X[p.net.predict(X) == 0][:count]


def seconds_of(explainer: pp.Proplace, rows: np.ndarray) -> tuple[np.ndarray, list[pp.Explanation]]:
    """Explain rows; return the seconds of each (neighbours, region, search, final test)."""
    explainer.explain(rows[:1])  # finds the robust rows, once for all
    found = list(explainer.explain(rows))
    return np.array([e.seconds for e in found]), found


def compare(name: str, widths: tuple[int, ...], delta: float, k: int, inputs: int, few: int) -> str:
    """Measure both searches on one data set of the paper."""
    p = problem(name, widths)
    schema = encoded_schema(p.X)
    rows = refused(p, inputs)
    train = p.X[p.train]
    tree, answers = seconds_of(pp.Proplace(p.net, delta, k=k, schema=schema).fit(train), rows)
    slow = pp.Proplace(p.net, delta, k=k, schema=schema, search="bilevel", time_limit=LIMIT)
    bilevel, others = seconds_of(slow.fit(train), rows[:few])
    both = [
        (a, b)
        for a, b in zip(answers, others, strict=False)
        if a.status == "optimal" and b.status == "optimal"
    ]
    worst = max((abs(a.distance - b.distance) for a, b in both), default=np.nan)
    ratio = np.median(bilevel / tree[: len(bilevel)])
    return (
        f"| {name} {len(widths)}x{widths[0]} | {delta:g} | {k} | {1e3 * np.median(tree):.0f} | "
        f"{1e3 * tree.max():.0f} | {1e3 * np.median(bilevel):.0f} | {1e3 * bilevel.max():.0f} | "
        f"{ratio:.0f} | {np.median([a.nodes for a in answers]):.0f} | "
        f"{np.median([a.programs for a in answers]):.0f} | "
        f"{np.median([a.rounds for a in answers]):.0f} | {worst:.1e} ({len(both)}) |"
    )


def alone(name: str, widths: tuple[int, ...], k: int, inputs: int) -> str:
    """Measure the tree on a larger network at a delta that leaves a third of the rows robust."""
    p = problem(name, widths)
    train = p.X[p.train]
    delta = delta_for_share(p.net, train)
    explainer = pp.Proplace(p.net, delta, k=k, time_limit=LIMIT).fit(train)
    times, answers = seconds_of(explainer, refused(p, inputs))
    solved = np.mean([a.status == "optimal" for a in answers])
    gaps = [1.0 - a.bound / a.distance for a in answers if a.status == "feasible"]
    gap = f"{max(gaps):.1%}" if gaps else "-"
    return (
        f"| {name} {len(widths)}x{widths[0]} | {delta:g} | {k} | {len(answers)} | "
        f"{1e3 * np.median(times):.0f} | {1e3 * times.mean():.0f} | {1e3 * times.max():.0f} | "
        f"{3600 / times.mean():,.0f} | {solved:.0%} | {gap} | "
        f"{np.median([a.nodes for a in answers]):.0f} | "
        f"{np.median([a.programs for a in answers]):.0f} | "
        f"{np.median([a.rounds for a in answers]):.0f} |"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=30)
    parser.add_argument("--bilevel", type=int, default=10, help="inputs for the bilevel search")
    parser.add_argument("--only", default="", help="only cases whose name contains this, as 2x50")
    options = parser.parse_args()

    def wanted(name: str, widths: tuple[int, ...]) -> bool:
        return options.only in f"{name} {len(widths)}x{widths[0]}"

    print(f"Search. {machine()}; times in milliseconds an answer\n", flush=True)
    print(
        "| network | delta | k | tree median | tree max | bilevel median | bilevel max | "
        "median ratio | nodes | LPs | shifts | largest difference (of) |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, widths, delta, k in PAPER:
        if wanted(name, widths):
            print(compare(name, widths, delta, k, options.inputs, options.bilevel), flush=True)
    print(
        "\n| network | delta | k | inputs | median | mean | max | an hour and core | "
        "optimal in 60 s | largest gap of the rest | nodes | LPs | shifts |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, widths, _, k in BEYOND:
        if wanted(name, widths):
            print(alone(name, widths, k, options.inputs), flush=True)


if __name__ == "__main__":
    main()
