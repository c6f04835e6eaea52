"""Certificates: how many are false, how large they are, what making and checking them costs.

1. Random networks (the tests' generator) and networks made to break floating point: every verdict of
   ``certify`` is checked by the exact checker, and a rational search for counterexamples tries to
   refute what was accepted. On the second set the paper's mixed-integer program (HiGHS, default
   tolerances, a valid big-M) gives verdicts too; those contradicted by an exact counterexample count.
2. Networks trained on repaired HELOC: bytes, seconds of checking; time of ``certify`` with certificates
   over without, on the rows that one backward pass and one attack do not decide.

    python benchmarks/proof.py [--cases 300] [--only 3x50]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

import exactly
import proplace as pp
from certify import milp_least_margin
from common import machine, problem
from oracles import random_case
from proplace.certification.batched_bnb import first_bounds
from proplace.certification.bounds import Abstraction, WorstCaseProblem

DELTAS = {  # each leaves a third of the training rows robust
    (20, 20): 0.021,
    (50, 50): 0.0194,
    (100, 100): 0.00505,
    (50, 50, 50): 0.0268,
}
FACTORS = {
    "layers of 1e6": (1e6, 1e6, 1e6),
    "layers of 1e6 and 1e-6": (1e6, 1e-6, 1.0),
    "tiny weights": (1e-9, 1e-9, 1.0),
    "denormals": (1e-310, 1.0, 1.0),
}


def adversarial(rng: np.random.Generator, kind: str) -> tuple[pp.Network, np.ndarray, float]:
    """Return a network, an input >= 0 and a delta, with a worst margin very near to 0."""
    if kind == "cancelling paths":
        size = 10.0 ** rng.integers(3, 9)
        W = np.array([[size, 1.0], [size, 1.0 + rng.normal() / size]])
        layers = [
            (W, np.zeros(2)),
            (np.eye(2), np.zeros(2)),
            (np.array([[1.0, -1.0]]), np.zeros(1)),
        ]
    else:
        sizes = (2, 3, 3, 1)
        layers = [
            (rng.normal(size=(m, n)) * f, rng.normal(size=m) * f)
            for n, m, f in zip(sizes, sizes[1:], FACTORS[kind], strict=False)
        ]
    x = rng.uniform(size=2)
    delta = float(rng.choice([0.0, 1e-3]) * min(np.abs(W).max() for W, _ in layers))
    net = pp.Network(layers)
    worst = pp.worst_case(net, x, delta).margin
    hair = rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-10, -4) * max(1.0, abs(worst))
    W, b = layers[-1]
    return pp.Network([*layers[:-1], (W, b - worst + hair)]), x, delta


def big_m(net: pp.Network, x: np.ndarray, delta: float) -> float:
    """Return a valid M: more than any pre-activation of any network in Delta."""
    h = np.abs(x)
    most = 1.0
    for layer in net.layers[:-1]:
        h = (np.abs(layer.W) + delta) @ h + np.abs(layer.bias) + delta
        most = max(most, float(h.max()))
    return 1.01 * most


def count_false(cases: int) -> None:
    """Print how many verdicts of either method are false."""
    rng = np.random.default_rng(0)
    checked = robust = open_rows = false = rejected = 0
    for hidden in range(5):
        for i in range(cases):
            case = random_case(np.random.default_rng([3, hidden, i]), hidden, rows=4)
            report = pp.certify(case.net, case.X, case.delta, case.target, certificates=True)
            for certificate in report.certificates:
                if certificate is None:
                    open_rows += 1
                    continue
                checked += 1
                robust += certificate.verdict == "robust"
                rejected += not certificate.check(case.net).accepted
                false += not exactly.is_true(case.net, certificate.facts, rng)
    print(
        f"random networks: {checked} verdicts checked exactly ({robust} robust), {rejected} rejected, "
        f"{open_rows} without a verdict, {false} refuted"
    )
    print(
        "| set | checked exactly | rejected | no verdict | false | MILP says robust | MILP false |"
    )
    print("|---|---|---|---|---|---|---|")
    totals = np.zeros(6, dtype=int)
    for kind in ("cancelling paths", *FACTORS):
        row = np.zeros(6, dtype=int)
        for _ in range(cases):
            net, x, delta = adversarial(rng, kind)
            certificate = pp.certify(net, x, delta, certificates=True).certificates[0]
            says = milp_least_margin(net, x, delta, big_m(net, x, delta)) >= 0.0
            row[4] += says
            if certificate is None:
                row[2] += 1
                continue
            row[0] += 1
            row[1] += not certificate.check(net).accepted
            row[3] += not exactly.is_true(net, certificate.facts, rng)
            row[5] += says and certificate.verdict == "not robust"
        print(f"| {kind} | " + " | ".join(map(str, row)) + " |")
        totals += row
    print("| all | " + " | ".join(map(str, totals)) + " |")


def needs_branching(net: pp.Network, X: np.ndarray, delta: float) -> np.ndarray:
    """Return the rows that one backward pass and one attack leave open."""
    abstraction = Abstraction(net, pp.Shifts.of(net, delta))
    U, objective = net.transform(X), abstraction.objective(net.objectives(1)[0])
    root = abstraction.interval_bounds(U)
    bounds = first_bounds(WorstCaseProblem(abstraction, root, U, objective))
    return X[(bounds.lower < 0.0) & (bounds.upper >= 0.0)]


def seconds(net: pp.Network, X: np.ndarray, delta: float, certificates: bool) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    pp.certify(net, X, delta, certificates=certificates)
    return time.perf_counter() - start


def cost(widths: tuple[int, ...], delta: float) -> str:
    """Measure sizes and times on one network trained on repaired HELOC; return a row of the table."""
    p = problem("heloc-repaired", widths)
    X = p.X[p.train]
    hard = needs_branching(p.net, X, delta)[:60]
    seconds(p.net, hard, delta, True)
    pairs = [
        (seconds(p.net, hard, delta, False), seconds(p.net, hard, delta, True)) for _ in range(5)
    ]
    ratio = np.median([after / before for before, after in pairs])
    report = pp.certify(p.net, hard, delta, certificates=True)
    easy = pp.certify(p.net, X[:200], delta, certificates=True)
    proofs = [c for c in report.certificates if c is not None and c.verdict == "robust"]
    plain = [c for c in easy.certificates if c is not None and c.verdict == "robust"]
    shifts = [c for c in easy.certificates if c is not None and c.verdict == "not robust"]
    times = []
    largest = max(proofs, key=lambda certificate: len(certificate.text))
    for certificate in [largest, *proofs[:30], *plain[:20], *shifts[:20]]:
        start = time.perf_counter()
        if not certificate.check(p.net).accepted:
            raise SystemExit(f"rejected: {certificate}")
        times.append(time.perf_counter() - start)
    size = "x".join([str(len(widths)), str(widths[0])])
    bytes_hard = [len(c.text) for c in proofs]
    return (
        f"| {size} | {delta:g} | {np.median([len(c.text) for c in plain]):,.0f} | "
        f"{np.median(bytes_hard):,.0f} | {max(bytes_hard):,} | "
        f"{np.median([len(c.text) for c in shifts]):,.0f} | {np.median(times):.3f} | {max(times):.2f} | "
        f"{len(hard)} | {1e3 * pairs[0][0] / len(hard):.2f} | {ratio:.2f} |"
    )


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--only", help="only the costs of one network, such as 3x50")
    options = parser.parse_args()
    print(machine())
    if options.only is None:
        count_false(options.cases)
    print(
        "| repaired HELOC | delta | bytes, one leaf | bytes, branching (median) | (largest) "
        "| bytes, not robust | check s (median) | (largest) | rows that branch | certify ms/row "
        "| with / without |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for widths, delta in DELTAS.items():
        if options.only in (None, f"{len(widths)}x{widths[0]}"):
            print(cost(widths, delta), flush=True)


if __name__ == "__main__":
    main()
