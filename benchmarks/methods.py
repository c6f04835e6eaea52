"""Every method on the networks of the paper: validity, share robust, distance, plausibility, time.

One network per data set, 50 refused test rows, the options of the published runs. Beside each figure
stands the paper's. HELOC is the published file, as in the paper; it leaks its label.

    python benchmarks/methods.py [--data compas ...] [--methods WCE ...] [--rows 50] [--binary]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.neighbors import LocalOutlierFactor

import proplace as pp
from child import encoded_schema
from common import Problem, machine, problem
from proplace.baselines import METHODS, RobustBaseline, published

WIDTHS = {"adult": (10, 10), "compas": (20, 20), "gmc": (20, 20), "heloc": (20, 20)}
DELTA = {"adult": 0.035, "compas": 0.025, "gmc": 0.045, "heloc": 0.025}
FLAGS = {"adult": 7, "compas": 3, "gmc": 0, "heloc": 0}  # 0/1 columns of words, the last ones
PAPER = {  # vdelta / l1 / lof of Table 1
    "WCE": {
        "adult": (78, 0.175, 1.59),
        "compas": (0, 0.170, 1.81),
        "gmc": (18, 0.148, 2.80),
        "heloc": (0, 0.045, 1.16),
    },
    "RBR": {
        "adult": (0, 0.031, 1.28),
        "compas": (62, 0.043, 1.34),
        "gmc": (0, 0.050, 1.31),
        "heloc": (0, 0.038, 1.10),
    },
    "RobX": {
        "adult": (82, 0.064, 1.28),
        "compas": (82, 0.050, 1.11),
        "gmc": (96, 0.073, 1.35),
        "heloc": (30, 0.073, 1.04),
    },
    "ROAR": {
        "adult": (98, 0.279, 1.96),
        "compas": (100, 0.219, 2.84),
        "gmc": (88, 0.188, 4.22),
        "heloc": (98, 0.109, 1.57),
    },
    "PROTO-R": {
        "adult": (55, 0.068, 1.60),
        "compas": (100, 0.084, 1.36),
        "gmc": (100, 0.066, 1.49),
        "heloc": (100, 0.057, 1.21),
    },
    "MILP-R": {
        "adult": (100, 0.024, 1.69),
        "compas": (100, 0.040, 1.71),
        "gmc": (100, 0.059, 2.08),
        "heloc": (100, 0.044, 2.48),
    },
}


def measure(name: str, case: Problem, rows: int, *, binary: bool) -> str:
    """Return one line of the table."""
    data = case.name
    delta = DELTA[data]
    options = published(name, data)
    method_type = METHODS[name]
    if issubclass(method_type, RobustBaseline):
        options = {"delta": delta} | options
    schema = encoded_schema(case.X) if binary else None
    method = method_type(case.net, schema=schema, **options).fit(case.X[case.train])
    refused = case.X[case.test][case.net.predict(case.X[case.test]) == 0][:rows]
    method.explain(refused[:1])  # what is done once for all rows
    start = time.process_time()
    result = method.explain(refused)
    seconds = 1e3 * (time.process_time() - start) / len(refused)
    found = np.array([e.found for e in result])
    points = result.encoded_counterfactuals[found]
    if not found.any():
        return f"| {data} | {name} | 0 | | | | {seconds:.1f} |"
    robust = pp.certify(case.net, points, delta).robust.mean()
    distance = np.abs(points - refused[found]).mean()
    accepted = case.X[case.train][case.y[case.train] == 1]
    lof = LocalOutlierFactor(n_neighbors=10, novelty=True).fit(accepted)
    outlier = -lof.score_samples(points).mean()
    paper = PAPER.get(name, {}).get(data)
    said = "" if paper is None else f" ({paper[0]} / {paper[1]} / {paper[2]})"
    return (
        f"| {data} | {name} | {found.mean():.0%} | {robust:.0%} / {distance:.3f} / {outlier:.2f}"
        f"{said} | {seconds:.1f} |"
    )


def pairing(case: Problem) -> str:
    """Return how far rows move when adjacent 0/1 columns are read as one-hot pairs."""
    X = case.X[case.test]
    X = X[case.net.predict(X) == 0]
    flags = range(X.shape[1] - FLAGS[case.name], X.shape[1])
    moved = X.copy()
    for a, b in zip(flags[:-1:2], flags[1::2], strict=True):
        first = X[:, a] >= X[:, b]
        moved[:, a], moved[:, b] = first, ~first
    return f"{case.name}: 0/1 columns read as one-hot pairs: l1 {np.abs(moved - X).mean():.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(WIDTHS), choices=list(WIDTHS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--binary", action="store_true", help="0/1 columns stay 0 or 1")
    options = parser.parse_args()
    print(machine(), "\n")
    print("| data | method | found | robust / l1 / lof (paper's) | CPU ms an answer |")
    print("|---|---|---|---|---|")
    notes = []
    for data in options.data:
        case = problem(data, WIDTHS[data])
        for name in options.methods:
            print(measure(name, case, options.rows, binary=options.binary), flush=True)
        if FLAGS[data]:
            notes.append(pairing(case))
    print("", *notes, sep="\n")


if __name__ == "__main__":
    main()
