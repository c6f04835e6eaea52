"""What retraining does to promises, and what it costs to keep them.

    python benchmarks/promises.py [--data heloc-repaired ...] [--people 100] [--seeds 3] [--smoke]

A network is trained on the first half of a data set (scikit-learn, 10 epochs). Refused people of its
test rows get answers, proved for one delta, which are issued as promises of a ledger: that of the
paper's experiment, and a tenth of it, whose promises are weaker. Then it is retrained on rows of the
second half.

*free*: 5 epochs of Adam at a rate of .001 from the network in use. *within*: the same steps, each
projected on the promised set (``refit_within``). *repair*: *free* with the smallest change of its last
layer that keeps every promise. *scratch*: trained anew, from another start; *scratch, repaired*.

AUC and accuracy on test rows of the second half; *less*: AUC of *free* minus that of the line; the
promises by the ledger's audit of each model; *largest*: the largest change of a parameter from the
network in use; *change* and *time* of the repair. Means over the seeds; promises are counted over all
of them.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

import proplace as pp
from common import data_set, machine

if TYPE_CHECKING:
    from proplace.experiment.data import Dataset

NAMES = ["adult", "compas", "gmc", "heloc-repaired"]
WIDTHS = {"adult": (10, 10), "compas": (20, 20), "gmc": (20, 20), "heloc-repaired": (20, 20)}
DELTA = {"adult": 0.035, "compas": 0.025, "gmc": 0.045, "heloc-repaired": 0.025}
EPOCHS, LATER, RATE, BATCH = 10, 5, 0.001, 32
SHARES = (1.0, 0.1)  # of delta
ANYWHERE = 1e6  # a delta that no training reaches
VERDICTS = ("proved", "holds", "broken")


@dataclass
class Line:
    """What is known about one way to retrain, over all seeds."""

    auc: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    verdicts: Counter = field(default_factory=Counter)
    moved: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)


def trained(data: Dataset, rows: np.ndarray, seed: int) -> MLPClassifier:
    """Train a network on some rows."""
    model = MLPClassifier(
        WIDTHS[data.name],
        learning_rate_init=0.01,
        batch_size=BATCH,
        alpha=1e-4,
        max_iter=EPOCHS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(data.X[rows], data.y[rows])


def issued(data: Dataset, base: MLPClassifier, delta: float, people: int, ledger: pp.Ledger) -> int:
    """Promise answers to refused people; how many promises there are."""
    refused = data.first.test[base.predict(data.X[data.first.test]) == 0][:people]
    net = pp.Model.of(base).network
    explainer = pp.Proplace(net, delta, schema=data.free)
    result = explainer.fit(data.frame.iloc[data.first.train]).explain(data.frame.iloc[refused])
    return len(ledger.issue(result, ids=[f"row {row}" for row in refused]).ids)


def measure(name: str, delta: float, seed: int, people: int, lines: dict[str, Line]) -> int:
    """Retrain in every way, once; how many promises there are."""
    data = data_set(name)
    base = trained(data, data.first.train, seed)
    later, test = data.second.train, data.second.test
    X, y = data.X[later], data.y[later]

    def further(reach: float) -> MLPClassifier:
        slow = base.set_params(learning_rate_init=RATE)
        return pp.retrain.refit_within(
            slow, X, y, reach, epochs=LATER, batch_size=BATCH, random_state=seed
        )

    with tempfile.TemporaryDirectory() as folder, pp.Ledger(Path(folder) / "promises.db") as ledger:
        count = issued(data, base, delta, people, ledger)
        free, scratch = further(ANYWHERE), trained(data, later, seed + 1000)
        models = {"base": base, "free": free, "within": further(delta), "scratch": scratch}
        start = time.perf_counter()
        repaired = pp.retrain.repair(free, ledger)
        lines["repair"].seconds.append(time.perf_counter() - start)
        lines["repair"].changes.append(repaired.change)
        anew = pp.retrain.repair(scratch, ledger)
        lines["scratch, repaired"].changes.append(anew.change)
        models |= {"repair": repaired.model, "scratch, repaired": anew.model}
        net = pp.Model.of(base).network
        for way, model in models.items():
            line, own = lines[way], pp.Model.of(model).network
            line.auc.append(roc_auc_score(data.y[test], own.logits(data.X[test])[:, 0]))
            line.accuracy.append(float((model.predict(data.X[test]) == data.y[test]).mean()))
            line.verdicts.update(ledger.audit(model).counts)
            line.moved.append(net.distance(own))
        if not ledger.verify().valid:
            raise SystemExit("the ledger is not as it was written")
    return count


def text(name: str, delta: float, way: str, line: Line, free: Line, promises: int) -> str:
    """One line of the table."""
    shares = [f"{line.verdicts[verdict] / promises:.1%}" for verdict in VERDICTS]
    less = np.mean(np.array(free.auc) - np.array(line.auc))
    cells = [
        name,
        f"{delta:g}",
        way,
        f"{np.mean(line.auc):.4f}",
        f"{less:+.4f}",
        f"{np.mean(line.accuracy):.4f}",
        *shares,
        f"{np.mean(line.moved):.3f}",
        f"change {np.mean(line.changes):.3f}" if line.changes else "",
        f"{np.mean(line.seconds):.2f} s" if line.seconds else "",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="three people of COMPAS, once")
    options = parser.parse_args()
    if options.smoke:
        options.data, options.people, options.seeds = ["compas"], 3, 1
    print(machine(), "\n")
    names = "data | delta | retrained | AUC | less | accuracy | proved | holds | broken | largest"
    print(f"| {names} | | time |")
    print(f"|{'---|' * 12}")
    order = ["base", "free", "within", "repair", "scratch", "scratch, repaired"]
    for name, share in itertools.product(options.data, SHARES):
        lines: dict[str, Line] = defaultdict(Line)
        delta, seeds = share * DELTA[name], range(options.seeds)
        promises = sum(measure(name, delta, seed, options.people, lines) for seed in seeds)
        for way in order:
            print(text(name, delta, way, lines[way], lines["free"], promises), flush=True)


if __name__ == "__main__":
    main()
