"""Ways of giving Delta, on networks that are really retrained: what each proves, and what it costs.

    python benchmarks/shifts.py [--data heloc-repaired ...] [--seeds 0 1 2] [--cache build/shifts]
    python benchmarks/shifts.py --smoke    # one data set, little of everything, in seconds

For repaired HELOC, COMPAS, ADULT and GMC, networks as in the experiment, and two ways of retraining
(retrainings.py). All that is chosen is chosen by a history of retrainings, and judged by *unseen* ones,
which play no part in any choice. Results are kept per data set and seed in the folder ``--cache``; a
run that was interrupted goes on where it was (take another folder when the code has changed).

*Sets*: boxes made to contain 95% of retrainings. *From scratch*: no useful box contains them; one
delta, and several networks (``required_models=``) with a delta each, are made just large enough for
answers to be valid on (nearly) all retrainings of the history; "l1 at 99.5% valid" is read off, for
both alike, where that is the validity on the unseen ones, which is no choice that could be
made in practice.
*Times*: processor time of answers, as ratios.

Columns: *certified*: share of accepted test rows that are proved accepted by every network of the
set; *inside*: unseen retrainings that lie wholly in the set; *answered*, *l1*, *lof*: refused test rows
with an answer, their mean absolute change and local outlier factor; *valid*: pairs of an answer and an
unseen retraining that accepts it.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import proplace as pp
from common import machine
from proplace.calibrate.conformal import probability, quantile_index
from proplace.core.files import atomic_write
from proplace.experiment.metrics import l1, lof, outlier_model, vr
from retrainings import Case, Counts, cases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = ("heloc-repaired", "compas", "adult", "gmc")


@dataclass(frozen=True)
class Options:
    """What is measured, and how much of it."""

    counts: Counts = field(default_factory=Counts)
    coverage: float = 0.95  # of the sets
    rows: int = 1000  # accepted, to certify
    people: int = 50  # refused, to explain
    also: int = 40  # networks beside the one in use
    timed: int = 20  # the same, where time is measured
    wanted: float = 0.999  # validity on known retrainings; unseen ones give a little less
    repeats: int = 2  # of each time


SMOKE = Options(
    Counts(history=21, unseen=6, epochs=3),
    coverage=0.8,
    rows=60,
    people=3,
    also=2,
    timed=2,
    wanted=0.9,
    repeats=1,
)
SIZES = tuple(float(f"{0.0012 * 1.12**n:.3g}") for n in range(39))  # deltas to choose from
EQUAL = 0.995  # validity at which distances are compared


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


def sized(
    net: pp.Network, radii: np.ndarray, history: Sequence[pp.Network], coverage: float
) -> pp.Shifts:
    """Radii in given proportions, as large as covers the next retraining."""
    scores = sorted(float((changes(net, other) / radii).max()) for other in history)
    size = scores[quantile_index(len(scores), probability("coverage", coverage)) - 1]
    return pp.Shifts.of(net, (size * (1.0 + 1e-12) * radii).tolist())


def one_delta(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """One radius for all parameters, around the network in use."""
    return sized(net, np.ones((len(net.layers), 2)), history, coverage)


def recentred(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """One radius for all parameters, around the mean of half of the retrainings."""
    shaping, sizing = halves(history)
    return one_delta(mean(shaping), sizing, coverage)


def per_layer(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """One radius for the weights and one for the biases of each layer, around the network in use."""
    shaping, sizing = halves(history)
    radii = np.max([changes(net, other) for other in shaping], axis=0)
    return sized(net, radii, sizing, coverage)


def learned(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """An interval for each parameter, as the library learns them."""
    return pp.Shifts.learn(history, coverage)


def hull(net: pp.Network, history: Sequence[pp.Network], coverage: float) -> pp.Shifts:
    """The smallest box that contains the retrainings; nothing is said of the next one."""
    return pp.Shifts.bounding(history)


WAYS: dict[str, Callable[[pp.Network, Sequence[pp.Network], float], pp.Shifts]] = {
    "one delta": one_delta,
    "one delta, re-centred": recentred,
    "radii per layer": per_layer,
    "learned": learned,
    "hull": hull,
}


# -- what they are worth ---------------------------------------------------------------------------


def explained(explainer: pp.Proplace, case: Case, people: np.ndarray) -> pp.Explanations:
    """Answers of an explainer that sees the rows of the experiment."""
    return explainer.fit(case.rows).explain(people)


def quality(result: pp.Explanations, case: Case, people: np.ndarray) -> dict[str, float]:
    """How many get an answer, how near and plausible it is, and how it fares on unseen networks."""
    found = np.array([e.found for e in result])
    cells = {"answered": found.mean(), "l1": np.nan, "lof": np.nan, "valid": np.nan}
    if found.any():
        points = result.encoded_counterfactuals[found]
        cells["l1"] = l1(people[found], points).mean()
        cells["lof"] = lof(points, outlier_model(case.data.desired)).mean()
        cells["valid"] = vr(case.unseen, points).mean()
    return {name: float(value) for name, value in cells.items()}


def proplace(case: Case, delta: pp.Delta, also: Sequence[object] = ()) -> pp.Proplace:
    """The explainer with the options of the experiment."""
    return pp.Proplace(
        case.net,
        delta,
        required_models=list(also) or None,
        k=case.settings.k,
        schema=case.data.free,
    )


# -- parts of the benchmark ------------------------------------------------------------------------


def sets(case: Case, options: Options) -> list[dict[str, object]]:
    """Every way of giving Delta, made to contain as many retrainings as asked for."""
    found = []
    rows, people = case.accepted(options.rows), case.refused(options.people)
    for way, make in WAYS.items():
        shifts = make(case.net, case.history, options.coverage)
        report = pp.certify(case.net, rows, shifts)
        cells = {
            "way": way,
            "certified": float(report.robust.mean()),
            "inside": float(np.mean([shifts.contains(net) for net in case.unseen])),
        }
        result = explained(proplace(case, shifts), case, people)
        found.append(cells | quality(result, case, people))
    return found


class Ladder:
    """Answers to the same people at growing deltas, with a number of networks beside."""

    def __init__(self, case: Case, people: np.ndarray, count: int) -> None:
        self.case, self.people = case, people
        self.beside, self.judges = case.history[:count], case.history[count:]
        self.at: dict[int, pp.Explanations] = {}

    def answers(self, i: int) -> pp.Explanations:
        """What the i-th delta gives, with which every network moves."""
        if i not in self.at:
            also = [(net, SIZES[i]) for net in self.beside]
            self.at[i] = explained(proplace(self.case, SIZES[i], also), self.case, self.people)
        return self.at[i]

    def valid(self, i: int, judges: Sequence[pp.Network]) -> float:
        """Share of pairs of an answer and a judge that accepts it; 1 without answers."""
        points = [e.encoded_counterfactual for e in self.answers(i) if e.found]
        return float(vr(judges, points).mean()) if points else 1.0

    def first(self, judges: Sequence[pp.Network], wanted: float) -> int:
        """The first delta that is as valid as wanted, where validity grows."""
        places = range(len(SIZES) - 1)
        return bisect.bisect_left(places, wanted, key=lambda i: self.valid(i, judges))

    def l1_at(self, wanted: float) -> float:
        """Mean distance where exactly so many pairs with unseen networks are valid.

        Between two deltas the share of pairs that are not valid falls about geometrically, so that
        its logarithm is interpolated.
        """
        last = self.first(self.case.unseen, wanted)
        steps = [i for i in (last - 1, last) if i >= 0]
        pairs = len(self.people) * len(self.case.unseen)
        broken = [1.0 - self.valid(i, self.case.unseen) for i in steps]
        far = [quality(self.answers(i), self.case, self.people)["l1"] for i in steps]
        depth = -np.log(np.maximum(broken, 0.5 / pairs))
        return float(np.interp(-np.log(1.0 - wanted), depth, far))


def scratch(case: Case, options: Options) -> list[dict[str, object]]:
    """One delta against several networks with a delta each.

    Once the delta is the least that is valid on known retrainings (others than those beside), as it
    can be chosen in practice; and once l1 is read off where the validity on unseen ones is equal.
    """
    people, found = case.refused(options.people), []
    for count in (0, options.also):
        ladder = Ladder(case, people, count)
        chosen = ladder.first(ladder.judges, options.wanted)
        cells = {"way": f"{count} more networks" if count else "one delta", "delta": SIZES[chosen]}
        cells |= quality(ladder.answers(chosen), case, people)
        found.append(cells | {f"l1 at {EQUAL:.1%} valid": ladder.l1_at(EQUAL)})
    return found


def times(case: Case, options: Options) -> list[dict[str, object]]:
    """Processor time of the same answers, by the scalar and by its intervals; and with networks more."""
    delta, people = case.settings.delta / 2.0, case.refused(options.people)
    scalar = pp.Shifts.of(case.net, delta)
    beside = [(net, delta) for net in case.history[: options.timed]]
    explainers = {
        "scalar": proplace(case, delta),
        "general": proplace(case, pp.Shifts(scalar.low, scalar.high)),
        "also": proplace(case, delta, beside),
    }
    spent: dict[str, list[float]] = {name: [] for name in explainers}
    for explainer in explainers.values():
        explained(explainer, case, people[:1])  # finds the robust rows, once for all
    for _ in range(options.repeats):
        for name, explainer in explainers.items():
            start = time.process_time()
            explainer.explain(people)
            spent[name].append(time.process_time() - start)
    best = {name: 1e3 * min(each) / len(people) for name, each in spent.items()}
    return [{"delta": delta, "more": len(beside), **best}]


def measured(name: str, seed: int, options: Options, cache: Path) -> dict[str, list]:
    """All parts for a data set and a network in use, from the cache where they are there."""
    digest = hashlib.sha256(json.dumps(asdict(options)).encode()).hexdigest()[:8]
    incremental, from_scratch = cases(name, seed, options.counts, cache)
    parts = {
        "incremental": lambda: sets(incremental, options),
        "boxes-from-scratch": lambda: sets(from_scratch, options),
        "from-scratch": lambda: scratch(from_scratch, options),
        "times": lambda: times(from_scratch, options),
    }
    found = {}
    for part, make in parts.items():
        path = cache / f"{name}-{seed}-{part}-{digest}.json"
        if not path.exists():
            with atomic_write(path) as file:
                file.write(json.dumps(make(), indent=1).encode())
        rows = json.loads(path.read_text(encoding="utf-8"))
        found[part] = [{"data": name.upper(), "seed": seed} | row for row in rows]
    return found


# -- tables ----------------------------------------------------------------------------------------


def cell(name: str, value: float) -> str:
    """A figure as it is printed."""
    if np.isnan(value):
        return "-"
    if name in ("certified", "inside", "answered"):
        return f"{value:.0%}" if value == round(value, 2) else f"{value:.1%}"
    if name.startswith("l1"):
        return f"{value:.4f}"
    return {"valid": "{:.2%}", "lof": "{:.2f}"}.get(name, "{:.3g}").format(value)


def print_table(found: pd.DataFrame, keys: list[str]) -> None:
    """Means over seeds, in the order in which the rows came."""
    mean_of = found.drop(columns="seed").groupby(keys, sort=False).mean().reset_index()
    names = list(mean_of.columns)
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in mean_of.itertuples(index=False):
        cells = [
            str(value) if name in keys else cell(name, value)
            for name, value in zip(names, row, strict=True)
        ]
        print(f"| {' | '.join(cells)} |")
    print(flush=True)


def print_all(found: dict[str, list], options: Options) -> None:
    """The tables, and how they stand to what was hoped for."""
    seeds = f"means over {len({row['seed'] for row in found['times']})} networks in use"
    counts = options.counts
    print(
        f"## Incremental retraining: {options.coverage:.0%} coverage by {counts.history} "
        f"retrainings, judged by {counts.unseen} others; {seeds}\n"
    )
    print_table(pd.DataFrame(found["incremental"]), ["data", "way"])
    boxes = pd.DataFrame(found["boxes-from-scratch"])
    print(
        f"From scratch, the same boxes leave at most {boxes['certified'].max():.1%} of the accepted "
        f"rows certified and answer {boxes['answered'].max():.0%} of people.\n"
    )
    print(
        f"## From scratch: the least delta that is valid in {options.wanted:.1%} on "
        f"{counts.history} retrainings (less those beside), judged by {counts.unseen} others; {seeds}\n"
    )
    print_table(pd.DataFrame(found["from-scratch"]), ["data", "way"])
    print("## Milliseconds of processor time an answer\n")
    spent = pd.DataFrame(found["times"])
    spent["general / scalar"] = spent["general"] / spent["scalar"]
    spent["also / scalar"] = spent["also"] / spent["scalar"]
    print_table(spent, ["data"])


def main() -> None:
    """Measure what is not in the cache, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=DATA)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--cache", type=Path, default=Path("build/shifts"))
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out so many retrainings that judged before"
    )
    parser.add_argument("--smoke", action="store_true", help="little of everything, in seconds")
    given = parser.parse_args()
    options = SMOKE if given.smoke else Options(Counts(skipped=given.skip))
    names, seeds = (("compas",), (0,)) if given.smoke else (given.data, given.seeds)
    print(f"Ways of giving Delta. {machine()}\n", flush=True)
    found: dict[str, list] = {}
    for seed in seeds:
        for name in names:
            start = time.monotonic()
            for part, rows in measured(name, seed, options, given.cache).items():
                found.setdefault(part, []).extend(rows)
            print(f"{name}, seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    print_all(found, options)


if __name__ == "__main__":
    main()
