"""A fingerprint of every answer of the searches, to compare before and after a change of the code.

    python benchmarks/answers.py --cache nets > before.txt
    ... change the code ...
    python benchmarks/answers.py --cache nets > after.txt; diff before.txt after.txt

One line per person: status, distance, bound and counts in full, and digests of the point and of its
certificate. The networks are trained once and kept in the folder ``--cache``. The processor time of
each case goes to standard error, where it does not disturb the comparison.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import proplace as pp
from child import encoded_schema, explain
from common import data_set, problem


class Case(NamedTuple):
    """One setting of the explainer, and for how many people."""

    width: int
    region: str
    weights: str | None
    rules: bool  # steps, directions and rules of the features; otherwise all are free
    search: str
    people: int


CASES = [
    Case(20, "hull", None, False, "tree", 30),
    Case(20, "hull", "mad", True, "tree", 10),
    Case(20, "box", None, True, "tree", 20),
    Case(50, "hull", None, False, "tree", 20),
    Case(50, "hull", "mad", True, "tree", 10),
    Case(100, "hull", None, False, "tree", 6),
    Case(20, "hull", None, True, "bilevel", 2),
]
DELTAS = {
    "adult": {20: 0.035, 50: 0.012, 100: 0.008},
    "compas": {20: 0.025, 50: 0.015, 100: 0.01},
    "gmc": {20: 0.045, 50: 0.02, 100: 0.012},
    "heloc-repaired": {20: 0.03, 50: 0.012, 100: 0.007},
}


def network(name: str, width: int, cache: Path) -> pp.Network:
    """Train a network of two layers on a data set, or read it from the cache."""
    path = cache / f"{name}-{width}.npz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        problem(name, (width, width), epochs=10).net.save(path)
    return pp.Network.load(path)


def line(found: pp.Explanation) -> str:
    """Everything that must not change about an answer."""
    certificate = found.certificate
    parts = [
        found.status,
        repr(found.distance),
        repr(found.bound),
        f"{found.nodes}/{found.lp_solves}/{found.scenarios}",
        digest(
            b"" if found.encoded_counterfactual is None else found.encoded_counterfactual.tobytes()
        ),
        digest(b"" if certificate is None else certificate.to_json().encode()),
        found.reason,
    ]
    return " | ".join(parts)


def digest(content: bytes) -> str:
    """The first digits of a hash."""
    return hashlib.sha256(content).hexdigest()[:12] if content else "-"


def main() -> None:
    """Print the fingerprints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder for trained networks")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--repeat", type=int, default=1, help="times to measure each case")
    options = parser.parse_args()
    for name in DELTAS:
        data = data_set(name)
        half = np.random.default_rng(1).permutation(len(data.X))[: len(data.X) // 2]
        cut = min(4000, len(half) // 2)
        train, test = data.X[half[:cut]], data.X[half[cut:]]
        for case in CASES:
            title = " ".join(str(part) for part in (name, *case[:-1]))
            if options.only not in title:
                continue
            net = network(name, case.width, options.cache)
            schema = data.schema if case.rules else encoded_schema(data.X)
            people = test[net.predict(test) == 0][: case.people]
            explainer = pp.Proplace(
                net,
                DELTAS[name][case.width],
                schema=schema,
                region=case.region,
                weights=case.weights,
                search=case.search,
            ).fit(train)
            explain(explainer, people[:1], 0)  # finds the robust rows, once for all
            times = []
            for _ in range(options.repeat):
                start = time.process_time()
                result = explain(explainer, people, 0)
                times.append(time.process_time() - start)
            for i, found in enumerate(result):
                print(f"{title} {i}: {line(found)}", flush=True)
            print(f"{title}: {min(times):.3f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
