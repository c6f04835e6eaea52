"""Answers that a person can follow, beside plain ones: readable, short, and with room for a miss.

    python benchmarks/follow.py [--data compas ...] [--rows 50] [--retrained 5] [--smoke]

*plain*: the nearest robust point, numbers continuous, as in the paper. *steps*: numbers in readable
steps (``Schema.infer``). *few*: steps and ``prefer="few"``. *tolerance*: all of that, and every number
that may change may be missed by 1% of its range. All for the same people, network, delta and data.

Columns: *answered*; *digits* of a changed number, the most; *changed* features, median; *distance*, the
median of its ratio to that of the plain answer of the same person; *lof* (10 neighbours among rows of
the wanted class); *retrained*: share of answers that networks trained anew on bootstrap samples accept;
*survive*: share of random misses (each changed number off by up to 1% of its range) after which the
network in use accepts; *proved*: share of answers for which it is proved that every network within delta
accepts at every such miss; *optimal*; *time*: processor time of an answer, over that of a plain one.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import LocalOutlierFactor
from sklearn.neural_network import MLPClassifier

import proplace as pp
from common import data_set, machine

if TYPE_CHECKING:
    from proplace.apps.experiment.data import Dataset

NAMES = ["adult", "compas", "gmc", "heloc-repaired"]
WIDTHS = {"adult": (10, 10), "compas": (20, 20), "gmc": (20, 20), "heloc-repaired": (20, 20)}
DELTA = {"adult": 0.035, "compas": 0.025, "gmc": 0.045, "heloc-repaired": 0.025}
EPOCHS = 10
SHARE = 0.01  # of the range of a number, by which it may be missed
MISSES = 50  # random misses of each answer


@dataclass(frozen=True, eq=False)
class Case:
    """A data set, a network in use, what it became when it was trained anew, and refused people."""

    data: Dataset
    net: pp.Network
    retrained: list[pp.Network]
    rows: np.ndarray
    people: np.ndarray


def trained(data: Dataset, rows: np.ndarray, seed: int) -> pp.Network:
    """Train a network on some rows."""
    model = MLPClassifier(
        WIDTHS[data.name],
        learning_rate_init=0.01,
        batch_size=32,
        alpha=1e-4,
        max_iter=EPOCHS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.X[rows], data.y[rows])
    return pp.Network.from_sklearn(model)


def case_of(name: str, people: int, retrained: int) -> Case:
    """Train the networks and choose refused people of the first half's test rows."""
    data = data_set(name)
    rows = data.first.train
    net = trained(data, rows, 0)
    rng = np.random.default_rng(0)
    others = [trained(data, rng.choice(rows, len(rows)), seed) for seed in range(1, retrained + 1)]
    refused = data.first.test[net.predict(data.X[data.first.test]) == 0]
    return Case(data, net, others, rows, refused[:people])


def in_steps(data: Dataset) -> pp.Schema:
    """The free features with readable steps, encoded as before."""
    readable = pp.Schema.infer(data.frame).by_name
    features = []
    for feature in data.free.features:
        if isinstance(feature, pp.Continuous):
            own = readable[feature.name]
            scaling = (feature.offset, feature.scale)
            if isinstance(own, pp.Continuous):
                ends = {"lower": own.lower, "upper": own.upper, "step": own.step}
                feature = replace(feature, **ends, scaling=scaling)  # noqa: PLW2901
        features.append(feature)
    return pp.Schema(features)


def plain(data: Dataset) -> pp.Schema:
    """The free features without steps."""
    return pp.Schema(
        [
            replace(feature, step=None) if isinstance(feature, pp.Continuous) else feature
            for feature in data.free.features
        ]
    )


def digits(value: object) -> int:
    """Digits of a number as it is written, without leading and trailing zeros."""
    if isinstance(value, (str, bool, np.bool_)):
        return 0
    text = f"{float(value):.15g}".split("e")[0].lstrip("-").replace(".", "")
    return max(1, len(text.strip("0")))


@dataclass(frozen=True, eq=False)
class Way:
    """One way of asking for answers."""

    name: str
    schema: pp.Schema
    options: dict


def ways(data: Dataset) -> list[Way]:
    """All ways that are compared."""
    steps = in_steps(data)
    miss = {f.name: SHARE * f.scale for f in steps.features if isinstance(f, pp.Continuous)}
    return [
        Way("plain", plain(data), {}),
        Way("steps", steps, {}),
        Way("few", steps, {"prefer": "few"}),
        Way("tolerance", steps, {"prefer": "few", "tolerance": miss}),
    ]


def measure(case: Case, way: Way) -> tuple[pp.Explanations, float]:
    """The answers, and the processor time of one."""
    data = case.data
    explainer = pp.Proplace(case.net, DELTA[data.name], schema=way.schema, **way.options)
    explainer.fit(data.frame.iloc[case.rows])
    people = data.frame.iloc[case.people]
    explainer.explain(people[:1])  # what is done once for all people
    start = time.process_time()
    result = explainer.explain(people)
    return result, (time.process_time() - start) / len(people)


def line(case: Case, way: Way, first: tuple[pp.Explanations, float] | None) -> tuple[str, tuple]:
    """One line of the table, and what later lines are compared with."""
    result, seconds = measured = measure(case, way)
    base, usual = first or measured
    data, net, delta = case.data, case.net, DELTA[case.data.name]
    found = np.array([e.found for e in result])
    points = result.points[found]
    changed = [len(e.changed) for e in result if e.found]
    most = [digits(after) for e in result if e.found for _, after in e.changed.values()]
    ratio = [
        e.distance / b.distance for e, b in zip(result, base, strict=True) if e.found and b.found
    ]
    lof = LocalOutlierFactor(n_neighbors=10, novelty=True).fit(data.desired)
    valid = np.mean([other.predict(points) == 1 for other in case.retrained] or [np.nan])
    reach = moves(way.schema, result)[found]
    rng = np.random.default_rng(0)
    shares = rng.uniform(-1.0, 1.0, (MISSES, *reach.shape))
    survive = np.mean([net.predict(points + s * reach) == 1 for s in shares])
    proved = pp.certification.certify(net, points, delta, 1, box=(points - reach, points + reach))
    cells = [
        data.name,
        way.name,
        f"{found.mean():.0%}",
        f"{max(most, default=0)}",
        f"{np.median(changed):g}",
        f"{np.median(ratio):.2f}",
        f"{-lof.score_samples(points).mean():.2f}",
        f"{valid:.1%}",
        f"{survive:.1%}",
        f"{proved.robust.mean():.0%}",
        f"{sum(e.status == 'optimal' for e in result) / len(result):.0%}",
        f"{seconds / usual:.1f} ({1e3 * seconds:.0f} ms)",
    ]
    return f"| {' | '.join(cells)} |", measured


def moves(schema: pp.Schema, result: pp.Explanations) -> np.ndarray:
    """How far each changed number of each answer may be missed, encoded: 1% of its range."""
    number = np.zeros(schema.width, dtype=bool)
    for feature in schema.features:
        if isinstance(feature, pp.Continuous):
            number[schema.span(feature.name)] = True
    return np.array(
        [
            np.where(number & (e.x != e.point), SHARE, 0.0) if e.found else np.zeros(schema.width)
            for e in result
        ]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--retrained", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="two people of COMPAS")
    options = parser.parse_args()
    if options.smoke:
        options.data, options.rows, options.retrained = ["compas"], 2, 1
    print(machine(), "\n")
    names = "data | answers | answered | digits | changed | distance | lof | retrained | survive"
    print(f"| {names} | proved | optimal | time |")
    print(f"|{'---|' * 12}")
    for name in options.data:
        case, first = case_of(name, options.rows, options.retrained), None
        for way in ways(case.data):
            text, measured = line(case, way, first)
            first = first or measured
            print(text, flush=True)


if __name__ == "__main__":
    main()
