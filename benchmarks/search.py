"""The tree search against Algorithm 1 of the paper (bilevel), same problems, one run.

    python benchmarks/search.py [--inputs 30] [--bilevel 10] [--only 2x20]
                                [--solver highs|gurobi] [--bilevel-beyond 5]

At the paper's sizes both searches run; beyond, the tree, with explanations an hour and the share
solved to optimality within the time limit, and with --bilevel-beyond the other search too. Inputs
that a solver gives up before the limit (Gurobi does where its licence is too small) are counted and
left out of the times.
"""

from __future__ import annotations

import argparse
from typing import get_args

import numpy as np

import proplace as pp
from child import encoded_schema, explain
from common import Problem, delta_for_share, machine, problem
from proplace.solvers import Solver

PAPER = [  # the paper's networks, so the published HELOC file, with its label leak
    ("adult", (10, 10), 0.035, 20),
    ("compas", (20, 20), 0.025, 20),
    ("heloc", (20, 20), 0.025, 23),
    ("gmc", (20, 20), 0.045, 20),
]
BEYOND = [
    ("heloc-repaired", (50, 50), None, 20),
    ("heloc-repaired", (100, 100), None, 20),
    ("heloc-repaired", (200, 200), None, 20),
    ("heloc-repaired", (20, 20, 20), None, 20),
]
LIMIT = 60.0


def refused(p: Problem, count: int) -> np.ndarray:
    """Return the first refused rows of the test part."""
    X = p.X[p.test]
    return X[p.net.predict(X) == 0][:count]


def seconds_of(explainer: pp.Proplace, rows: np.ndarray) -> tuple[np.ndarray, list[pp.Explanation]]:
    """Explain rows at gap 0; return the seconds of each, with neighbours and certificate."""
    explain(explainer, rows[:1], 0)  # finds the robust rows, once for all
    found = list(explain(explainer, rows, 0))
    return np.array([e.seconds for e in found]), found


def against(
    tree: np.ndarray,
    answers: list[pp.Explanation],
    bilevel: np.ndarray,
    others: list[pp.Explanation],
) -> tuple[str, str, str]:
    """Cells of a comparison: times of bilevel, their ratio to the tree's, and where both agree."""
    pairs = list(zip(answers, others, strict=False))
    early = [b.status == "feasible" and b.seconds < LIMIT - 1.0 for b in others]
    given_up = np.array(early, dtype=bool)
    note = f" ({given_up.sum()} given up)" if given_up.any() else ""
    both = [(a, b) for a, b in pairs if a.status == "optimal" and b.status == "optimal"]
    worst = max((abs(a.distance - b.distance) for a, b in both), default=np.nan)
    times, base = bilevel[~given_up], tree[: len(bilevel)][~given_up]
    if not len(times):
        return f"- | -{note}", "-", "-"
    return (
        f"{1e3 * np.median(times):.0f} | {1e3 * times.max():.0f}{note}",
        f"{np.median(times / base):.0f}",
        f"{worst:.1e} ({len(both)})",
    )


def compare(
    name: str,
    widths: tuple[int, ...],
    delta: float,
    k: int,
    inputs: int,
    few: int,
    solver: Solver,
) -> str:
    """Measure both searches on one data set of the paper."""
    p = problem(name, widths)
    schema = encoded_schema(p.X)
    rows = refused(p, inputs)
    train = p.X[p.train]
    tree, answers = seconds_of(pp.Proplace(p.net, delta, k=k, schema=schema).fit(train), rows)
    options = {"search": "bilevel", "solver": solver, "time_limit": LIMIT}
    slow = pp.Proplace(p.net, delta, k=k, schema=schema, **options)
    times, ratio, worst = against(tree, answers, *seconds_of(slow.fit(train), rows[:few]))
    return (
        f"| {name} {len(widths)}x{widths[0]} | {delta:g} | {k} | {1e3 * np.median(tree):.0f} | "
        f"{1e3 * tree.max():.0f} | {times} | {ratio} | "
        f"{np.median([a.nodes for a in answers]):.0f} | "
        f"{np.median([a.lp_solves for a in answers]):.0f} | "
        f"{np.median([a.scenarios for a in answers]):.0f} | {worst} |"
    )


def beyond(
    name: str, widths: tuple[int, ...], k: int, inputs: int, few: int, solver: Solver
) -> str:
    """Measure a larger network at a delta that leaves a third of the rows robust."""
    p = problem(name, widths)
    train, rows = p.X[p.train], refused(p, inputs)
    delta = delta_for_share(p.net, train)
    explainer = pp.Proplace(p.net, delta, k=k, time_limit=LIMIT).fit(train)
    times, answers = seconds_of(explainer, rows)
    gaps = [1.0 - a.bound / a.distance for a in answers if a.status == "feasible"]
    gap = f"{max(gaps):.1%}" if gaps else "-"
    line = (
        f"| {name} {len(widths)}x{widths[0]} | {delta:g} | {k} | {len(answers)} | "
        f"{1e3 * np.median(times):.0f} | {1e3 * times.mean():.0f} | {1e3 * times.max():.0f} | "
        f"{3600 / times.mean():,.0f} | {solved(answers)} | {gap} | "
        f"{np.median([a.nodes for a in answers]):.0f} | "
        f"{np.median([a.lp_solves for a in answers]):.0f} | "
        f"{np.median([a.scenarios for a in answers]):.0f} |"
    )
    if not few:
        return line
    options = {"search": "bilevel", "solver": solver, "time_limit": LIMIT}
    slow, others = seconds_of(pp.Proplace(p.net, delta, k=k, **options).fit(train), rows[:few])
    spent, ratio, worst = against(times, answers, slow, others)
    return f"{line} {len(others)} | {spent} | {solved(others)} | {ratio} | {worst} |"


def solved(answers: list[pp.Explanation]) -> str:
    """Share solved to optimality."""
    return f"{np.mean([a.status == 'optimal' for a in answers]):.0%}"


def print_head(columns: str) -> None:
    """Print the names of columns, separated by bars, as the head of a table."""
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=30)
    parser.add_argument("--bilevel", type=int, default=10, help="inputs for the bilevel search")
    parser.add_argument(
        "--bilevel-beyond", type=int, default=0, help="the same for the larger networks"
    )
    parser.add_argument(
        "--solver", choices=get_args(Solver), default="highs", help="of the bilevel search"
    )
    parser.add_argument("--only", default="", help="only cases whose name contains this, as 2x50")
    options = parser.parse_args()

    def wanted(name: str, widths: tuple[int, ...]) -> bool:
        return options.only in f"{name} {len(widths)}x{widths[0]}"

    print(
        f"Search. {machine()}; times in milliseconds an answer; bilevel on {options.solver}\n",
        flush=True,
    )
    print_head(
        "network | delta | k | tree median | tree max | bilevel median | bilevel max | "
        "median ratio | nodes | LPs | shifts | largest difference (of)"
    )
    for name, widths, delta, k in PAPER:
        if wanted(name, widths):
            each = options.inputs, options.bilevel, options.solver
            print(compare(name, widths, delta, k, *each), flush=True)
    print()
    print_head(
        "network | delta | k | inputs | median | mean | max | an hour and core | "
        "optimal in 60 s | largest gap of the rest | nodes | LPs | shifts"
        + (
            " | bilevel inputs | bilevel median | bilevel max | bilevel optimal in 60 s | "
            "median ratio | largest difference (of)"
            if options.bilevel_beyond
            else ""
        )
    )
    for name, widths, _, k in BEYOND:
        if wanted(name, widths):
            each = options.inputs, options.bilevel_beyond, options.solver
            print(beyond(name, widths, k, *each), flush=True)


if __name__ == "__main__":
    main()
