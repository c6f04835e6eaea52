"""One line for every release in ``benchmarks/releases.md``, so that a loss of speed is seen.

    python benchmarks/releases.py [--src /path/to/checkout/src] [--repetitions 7] [--dry]

The cases never change: the paper's networks at gap 0, ``certify`` on one table, and one pipeline with
steps and categories at the default options. Times are processor seconds, with certificates. Each is
divided by the time of a yardstick (a fixed loop of linear programs and matrix products) that runs
before and after it in the same process; the figure is the median over alternating repetitions. Ratios
of different machines can be compared, seconds cannot.

A checkout without git history needs ``--commit``. A version that cannot run a case gets a dash.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import numpy as np

from child import OWN_SOURCE, git, run
from common import machine, own_model, problem

TABLE = Path(__file__).with_name("releases.md")
PAPER = [  # the published HELOC file, with its label leak: every release is measured on it
    ("adult", (10, 10), 0.035, 20),
    ("compas", (20, 20), 0.025, 20),
    ("heloc", (20, 20), 0.025, 20),
    ("gmc", (20, 20), 0.045, 20),
]
PEOPLE, OWN_PEOPLE = 20, 8
OWN = ("compas", "standard", (30, 30))
COLUMNS = (
    "date | version | commit | adult 2x10 | compas 2x20 | heloc 2x20 | gmc 2x20 | certify | "
    "own pipeline | machine"
)
HEAD = f"""# Speed of every release

`python benchmarks/releases.py` adds a line. Figures are multiples of the yardstick, with processor time
in brackets: for one counterfactual with its certificate, and for 1,000 rows of `certify`. The networks
are the paper's at gap 0. The own pipeline is {OWN[0]} with StandardScaler, 2x30, steps and categories,
at the default options (0.1 and 0.2 have no gap and prove 1e-7). A smaller multiple is faster.

| {COLUMNS} |
|{"---|" * len(COLUMNS.split(" | "))}
"""


def paper_case(name: str, widths: tuple[int, ...], delta: float, k: int) -> dict:
    """Return the data of one case of the paper; every version builds its own network from it."""
    p = problem(name, widths)
    test = p.X[p.test]
    return {
        "name": name,
        "layers": [(np.array(layer.W), np.array(layer.bias)) for layer in p.net.layers],
        "train": p.X[p.train],
        "people": test[p.net.predict(test) == 0][:PEOPLE],
        "delta": delta,
        "k": k,
    }


def figures(source: Path, repetitions: int) -> dict:
    """Measure all cases on one checkout."""
    cases = [paper_case(*case) for case in PAPER]
    heloc = next(case for case in cases if case["name"] == "heloc")
    table = {"layers": heloc["layers"], "rows": heloc["train"], "delta": heloc["delta"]}
    model = own_model(*OWN)
    own = {
        "pipeline": model.pipeline,
        "train": model.train,
        "people": model.refused[:OWN_PEOPLE],
        "delta": model.delta,
    }
    return run("release", source, cases=cases, own=own, table=table, repetitions=repetitions)


def line(found: dict, commit: str) -> str:
    """Return the line of one release."""
    cells = [datetime.datetime.now(datetime.UTC).date().isoformat(), found["version"], commit]
    for name in [*(case[0] for case in PAPER), "certify", "own pipeline"]:
        if name not in found["figures"]:
            cells.append("-")
            continue
        spent, ratio = found["figures"][name]
        cells.append(f"{ratio:.3g} ({1e3 * spent:.3g} ms)")
    return f"| {' | '.join([*cells, machine()])} |"


def main() -> None:
    """Measure one checkout and add its line to the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--src", type=Path, default=OWN_SOURCE, help="src folder to measure")
    parser.add_argument("--commit", help="commit of a source without git history")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="print the line without saving it")
    options = parser.parse_args()
    found = figures(options.src.resolve(), options.repetitions)
    commit = options.commit or git(options.src, "rev-parse", "--short", "HEAD") or "unknown"
    text = line(found, commit)
    print(text)
    if not options.dry:
        before = TABLE.read_text(encoding="utf-8") if TABLE.exists() else HEAD
        TABLE.write_text(before + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
