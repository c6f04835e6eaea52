"""How the cost of an answer grows with width, depth, k and delta; draws docs/img/growth.png.

python benchmarks/growth.py [--inputs 12] [--out docs/img/growth.png]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np

import proplace as pp
from child import explain
from common import delta_for_share, machine, problem

mpl.use("Agg")
import matplotlib.pyplot as plt

LIMIT = 20.0


def seconds(
    net: pp.Network, train: np.ndarray, rows: np.ndarray, delta: float, k: int
) -> list[float]:
    """Return the seconds of every explanation at gap 0, at most the time limit."""
    explainer = pp.Proplace(net, delta, k=k, time_limit=LIMIT).fit(train)
    explainer.robust_rows()
    times = []
    for x in rows:
        start = time.perf_counter()
        explain(explainer, x, 0)
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Measure the four series and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("docs/img/growth.png"))
    options = parser.parse_args()
    print(f"Growth on heloc-repaired. {machine()}; median seconds an answer (limit {LIMIT:g} s)\n")
    series: dict[str, dict[float, list[float]]] = {"width": {}, "depth": {}, "k": {}, "delta": {}}
    for widths in [(10, 10), (20, 20), (40, 40), (70, 70), (100, 100), (20,), (20, 20, 20)]:
        p = problem("heloc-repaired", widths)
        train, test = p.X[p.train], p.X[p.test]
        rows = test[p.net.predict(test) == 0][: options.inputs]
        delta = delta_for_share(p.net, train)
        times = seconds(p.net, train, rows, delta, 20)
        if len(widths) == 2:
            series["width"][widths[0]] = times
        if widths[0] == 20:
            series["depth"][len(widths)] = times
        if widths == (20, 20):
            for k in (5, 20, 50, 100, 200):
                series["k"][k] = seconds(p.net, train, rows, delta, k)
            for share in (0.45, 0.33, 0.2, 0.1, 0.05):
                other = delta_for_share(p.net, train, share)
                series["delta"][other] = seconds(p.net, train, rows, other, 20)
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.1), sharey=True)
    names = {
        "width": "width (2 hidden layers, k 20)",
        "depth": "hidden layers (20 wide, k 20)",
        "k": "k (2x20)",
        "delta": "delta (2x20, k 20)",
    }
    for ax, (name, points) in zip(axes, series.items(), strict=True):
        xs = sorted(points)
        medians = [np.median(points[x]) for x in xs]
        ax.plot(xs, medians, marker="o", color="#2a6f97")
        ax.fill_between(
            xs,
            [min(points[x]) for x in xs],
            [max(points[x]) for x in xs],
            color="#2a6f97",
            alpha=0.15,
        )
        ax.set_xlabel(names[name])
        ax.set_yscale("log")
        ax.spines[["top", "right"]].set_visible(False)
        for x, median in zip(xs, medians, strict=True):
            print(f"| {name} | {x:g} | {median:.3f} | {max(points[x]):.3f} |", flush=True)
    axes[1].set_xticks(sorted(series["depth"]))
    axes[0].set_ylabel("seconds an answer\n(median; least to greatest)")
    figure.tight_layout()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=130)


if __name__ == "__main__":
    main()
