"""Ways of giving Delta, on networks that are really retrained: what each proves, and what it costs.

    python benchmarks/shifts.py [--data heloc ...] [--seeds 0 1 2] [--people 50] [--cache build/shifts]
    python benchmarks/shifts.py --smoke    # one data set, little of everything, in seconds

For HELOC, COMPAS, ADULT and GMC, networks as in the experiment, and two ways of retraining
(retrainings.py). Sets are made of a history of retrainings and judged by *unseen* ones, which play no
part in any choice. Results are kept per data set and seed in the folder ``--cache``; a run that was
interrupted goes on where it was.

Columns: *certified*: share of accepted test rows that are proved accepted by every network of the
set; *answered*, *l1*, *lof*: refused test rows with an answer, their mean absolute change and local
outlier factor; *inside*: unseen retrainings that lie wholly in the set; *valid*: pairs of an answer
and an unseen retraining that accepts it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import proplace as pp
from common import machine
from proplace.core.files import atomic_write
from proplace.explain.metrics import l1, lof, outlier_model, vr
from retrainings import Case, Counts, cases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = ("heloc", "compas", "adult", "gmc")


@dataclass(frozen=True)
class Options:
    """What is measured, and how much of it."""

    counts: Counts = Counts()
    coverage: float = 0.95
    rows: int = 1000
    people: int = 50


SMOKE = Options(Counts(history=21, unseen=6, epochs=3), coverage=0.8, rows=60, people=3)


# -- ways of giving Delta --------------------------------------------------------------------------


def mean(nets: Sequence[pp.Network]) -> pp.Network:
    """The network in the middle: the mean of each parameter."""
    layers = zip(*(net.layers for net in nets), strict=True)
    return nets[0].with_layers(
        (np.mean([n.W for n in same], axis=0), np.mean([n.bias for n in same], axis=0))
        for same in layers
    )


def changes(net: pp.Network, other: pp.Network) -> np.ndarray:
    """The largest change of the weights, and of the biases, of each layer."""
    pairs = zip(net.layers, other.layers, strict=True)
    return np.array([(np.abs(a.W - b.W).max(), np.abs(a.bias - b.bias).max()) for a, b in pairs])


def halves(history: Sequence[pp.Network]) -> tuple[Sequence[pp.Network], Sequence[pp.Network]]:
    """Retrainings for a shape, and others for its size."""
    half = (len(history) + 1) // 2
    return history[:half], history[half:]


def one_delta(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """One radius for all parameters, around the network in use."""
    return pp.Shifts.learn(history, coverage, shape=pp.Shifts.of(net, 1.0))


def recentred(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """One radius for all parameters, around the mean of half of the retrainings."""
    shaping, sizing = halves(history)
    return one_delta(mean(shaping), sizing, coverage)


def per_layer(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """One radius for the weights and one for the biases of each layer, around the network in use."""
    shaping, sizing = halves(history)
    radii = np.max([changes(net, other) for other in shaping], axis=0)
    return pp.Shifts.learn(sizing, coverage, shape=pp.Shifts.of(net, radii.tolist()))


def learned(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """An interval for each parameter, as the library learns them."""
    return pp.Shifts.learn(history, coverage)


def hull(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """The smallest box that contains the retrainings; nothing is said of the next one."""
    return pp.Shifts.hull(history)


WAYS: dict[str, Callable[[pp.Network, Sequence[pp.Network], float], pp.Shifts]] = {
    "one delta": one_delta,
    "one delta, re-centred": recentred,
    "radii per layer": per_layer,
    "learned": learned,
    "hull": hull,
}


# -- what they are worth ---------------------------------------------------------------------------


def answers(explainer: pp.Proplace, case: Case, people: np.ndarray) -> dict[str, float]:
    """Explain people; how many get an answer, how near and plausible, and how it fares later."""
    result = explainer.fit(case.rows).explain(people)
    found = np.array([e.found for e in result])
    cells = {"answered": found.mean(), "l1": np.nan, "lof": np.nan, "valid": np.nan}
    if found.any():
        points = result.points[found]
        cells["l1"] = l1(people[found], points).mean()
        cells["lof"] = lof(points, outlier_model(case.data.desired)).mean()
        cells["valid"] = vr(case.unseen, points).mean()
    return {name: float(value) for name, value in cells.items()}


def judged(case: Case, shifts: pp.Shifts, options: Options) -> dict[str, float]:
    """Everything about one set."""
    rows = case.accepted(options.rows)
    report = pp.certify(case.net, rows, shifts)
    explainer = pp.Proplace(case.net, shifts, k=case.settings.k, schema=case.data.free)
    inside = [shifts.contains(net) for net in case.unseen]
    return {
        "certified": float(report.robust.mean()),
        "inside": float(np.mean(inside)),
        **answers(explainer, case, case.refused(options.people)),
    }


def sets(name: str, seed: int, options: Options, cache: Path) -> list[dict[str, object]]:
    """Every way of giving Delta, for both ways of retraining."""
    found = []
    for case in cases(name, seed, options.counts, cache):
        for way, make in WAYS.items():
            start = time.process_time()
            shifts = make(case.net, case.history, options.coverage)
            cells = judged(case, shifts, options)
            spent = time.process_time() - start
            row = {"data": name, "seed": seed, "retraining": case.kind, "way": way}
            found.append(row | cells | {"seconds": spent})
            print(found[-1], flush=True)
    return found


def kept(path: Path, make: Callable[[], list[dict[str, object]]]) -> pd.DataFrame:
    """Rows from a file, or measured and written to it."""
    if not path.exists():
        found = make()
        with atomic_write(path) as file:
            file.write(json.dumps(found, indent=1).encode())
    return pd.DataFrame(json.loads(path.read_text()))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=DATA)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--people", type=int, default=Options.people)
    parser.add_argument("--cache", type=Path, default=Path("build/shifts"))
    parser.add_argument("--smoke", action="store_true", help="little of everything, in seconds")
    given = parser.parse_args()
    options = SMOKE if given.smoke else Options(people=given.people)
    print(f"Ways of giving Delta. {machine()}\n", flush=True)
    digest = hashlib.sha256(json.dumps(asdict(options)).encode()).hexdigest()[:8]
    for name in ("compas",) if given.smoke else given.data:
        for seed in (0,) if given.smoke else given.seeds:
            path = given.cache / f"{name}-{seed}-sets-{digest}.json"
            t = kept(path, lambda: sets(name, seed, options, given.cache))  # noqa: B023
            print(t.to_string())


if __name__ == "__main__":
    main()
