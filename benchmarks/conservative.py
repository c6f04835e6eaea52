"""How conservative is a shift set? Certified margins against those of random networks of the set.

``python benchmarks/conservative.py`` prints the table of docs/guarantee.md. Counterfactuals of
PROPLACE have a worst-case margin that is proved. Random networks of the same shift set move every
parameter by the whole delta, up or down.
"""

from __future__ import annotations

import argparse

import numpy as np

import proplace as pp
from common import NAMES, delta_for_share, machine, problem


def random_margins(net: pp.Network, x: np.ndarray, delta: float, count: int) -> np.ndarray:
    """Return the margins of ``x`` under networks that move each parameter by plus or minus delta."""
    rng = np.random.default_rng(0)

    def moved(values: np.ndarray) -> np.ndarray:
        return np.asarray(values + delta * rng.choice((-1.0, 1.0), values.shape))

    networks = (
        net.with_layers([(moved(layer.W), moved(layer.b)) for layer in net.layers])
        for _ in range(count)
    )
    return np.array([other.margin(x[None], 1)[0] for other in networks])


def row(name: str, people: int, count: int) -> str:
    """Return one line of the table."""
    case = problem(name, (20, 20))
    train, test = case.X[case.train], case.X[case.test]
    delta = delta_for_share(case.net, train[case.net.predict(train) == 1])
    refused = test[case.net.predict(test) == 0][:people]
    found = [e for e in pp.Proplace(case.net, delta).fit(train).explain(refused) if e.found]
    certified = [e.margin for e in found]
    random = [random_margins(case.net, e.encoded_counterfactual, delta, count).min() for e in found]
    return (
        f"| {name} | {delta} | {len(found)} | {np.median(certified):.2g} | "
        f"{np.median(random):.2f} ({min(random):.2f} to {max(random):.2f}) |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--networks", type=int, default=500)
    options = parser.parse_args()
    print(f"{options.networks} random networks a counterfactual, 2x20, {machine()}\n")
    print("| data | delta | people | proved margin (median) | smallest random margin |")
    print("|---|---|---|---|---|")
    for name in NAMES:
        print(row(name, options.people, options.networks), flush=True)


if __name__ == "__main__":
    main()
