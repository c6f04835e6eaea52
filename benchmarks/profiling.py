"""Where the time of one explanation goes, by stage and by package.

    python benchmarks/profiling.py [heloc-repaired] [--scaler standard] [--size 2x30] [--no-steps]
                                   [--gap 0.01] [--people 5] [--limit 10] [--functions 15]

The profiler slows Python code and leaves solver code as it is, so shares are rough. A function of a
stage counts with everything that it calls outside any other stage: an exact test inside the tree counts
as an exact test, a linear program inside tightening as tightening. The time of the other packages goes
to the stage that called them. (The name ``profile.py`` would hide the module of the standard library
that cProfile imports, for every script in this folder.)
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import proplace as pp
from child import explain, without_steps
from common import NAMES, SCALERS, machine, own_model, widths_of

# Stages by the path of a module below src/proplace; the first match decides. Modules that several
# stages share, such as search/program.py, are left out and count for their callers.
STAGES = {
    "neighbours": ("region/",),
    "local search": ("search/local", "search/walk"),
    "tightening": ("search/tightening", "search/ranges"),
    "exact tests": ("search/oracle",),
    "writing": ("search/rounding", "explain/writing", "search/writing", "region/writing"),
    "tree": ("search/tree", "search/subproblem", "search/branching", "search/pieces"),
    "certificate": ("explain/prove", "certification/certificates"),
    "around": ("explain/", "tables/", "loaders/"),
}
REST = "other"
Function = tuple[str, int, str]  # file, line, name, as pstats keeps them
ROOT = Path(pp.__file__).parent.as_posix() + "/"


def stage_of(function: Function) -> str | None:
    """Return the stage that a function belongs to; None: the stage of its callers."""
    if not function[0].startswith(ROOT):
        return None
    path = function[0].removeprefix(ROOT)
    for stage, starts in STAGES.items():
        if path.startswith(starts):
            return stage
    return None


def package_of(function: Function) -> str:
    """Return the package of a function: part of proplace, or the library that it comes from."""
    file = function[0]
    if file.startswith(ROOT):
        return "proplace." + file.removeprefix(ROOT).split("/")[0].removesuffix(".py")
    if "highs" in file or "highs" in function[2].lower():
        return "HiGHS"
    if "site-packages/" in file:
        return file.split("site-packages/")[1].split("/")[0]
    if "numpy" in function[2] or "ufunc" in function[2]:
        return "numpy"
    return "built in"


def by_stage(stats: pstats.Stats) -> dict[str, float]:
    """Distribute the own time of every function over the stages.

    A function without a stage works for its callers, in proportion to the time that each spends in
    it. These shares solve a linear system, since callers without a stage work for their callers.
    """
    entries = stats.stats
    functions = list(entries)
    position = {function: i for i, function in enumerate(functions)}
    names = [*STAGES, REST]
    system = np.eye(len(functions))
    stages = np.zeros((len(functions), len(names)))
    for i, function in enumerate(functions):
        stage, callers = stage_of(function), entries[function][4]
        total = sum(call[3] for call in callers.values())
        if stage is not None or not total:
            stages[i, names.index(stage or REST)] = 1.0
            continue
        for caller, call in callers.items():
            # the factor keeps the system regular if functions only call each other
            system[i, position[caller]] -= (1.0 - 1e-9) * call[3] / total
    shares = np.linalg.solve(system, stages)
    own = np.array([entries[function][2] for function in functions])
    return dict(zip(names, (own @ shares).tolist(), strict=True))


def by_package(stats: pstats.Stats) -> dict[str, float]:
    """Sum the own time of the functions of every package."""
    seconds: dict[str, float] = defaultdict(float)
    for function, (_, _, own, _, _) in stats.stats.items():
        seconds[package_of(function)] += own
    return dict(seconds)


def print_table(title: str, seconds: dict[str, float], people: int) -> None:
    """Print seconds as shares and as milliseconds for one person."""
    total = sum(seconds.values())
    print(f"\n| {title} | share | ms a person |\n|---|---|---|")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        if spent >= 0.005 * total:
            print(f"| {name} | {spent / total:.0%} | {1e3 * spent / people:.1f} |")


def main() -> None:
    """Profile the explanations of one model and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("data", nargs="?", default="heloc-repaired", choices=NAMES)
    parser.add_argument("--scaler", default="standard", choices=list(SCALERS))
    parser.add_argument("--size", default="2x30", help="layers and width, default 2x30")
    parser.add_argument("--no-steps", action="store_true", help="numbers without steps")
    parser.add_argument("--gap", type=float, default=0.01, help="optimality gap, default 0.01")
    parser.add_argument("--people", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per person")
    parser.add_argument("--functions", type=int, default=15, help="functions to list")
    options = parser.parse_args()
    model = own_model(options.data, options.scaler, widths_of(options.size), options.seed)
    explainer = pp.Proplace(model.pipeline, model.delta, time_limit=options.limit).fit(model.train)
    if options.no_steps:
        schema = without_steps(explainer, model.train)
        explainer = pp.Proplace(
            model.pipeline, model.delta, schema=schema, time_limit=options.limit
        ).fit(model.train)
    people = model.refused[: options.people + 1]
    explain(explainer, people[-1:], options.gap)  # the first use is not profiled
    people = people[:-1]
    start = time.process_time()
    explain(explainer, people, options.gap)
    plain = time.process_time() - start
    profiler = cProfile.Profile()
    result = profiler.runcall(explain, explainer, people, options.gap)
    steps = "no steps" if options.no_steps else "steps"
    statuses = ", ".join(found.status for found in result)
    print(f"{options.data}, {options.scaler}, {options.size}, {steps}, gap {options.gap:g}")
    print(f"{machine()}; {1e3 * plain / len(people):.0f} ms a person unprofiled; {statuses}")
    stats = pstats.Stats(profiler)
    print_table("stage", by_stage(stats), len(people))
    print_table("package", by_package(stats), len(people))
    print()
    stats.sort_stats("tottime").print_stats(options.functions)


if __name__ == "__main__":
    main()
