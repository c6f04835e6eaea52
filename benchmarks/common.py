"""What the benchmarks share: the data sets, trained networks, and a delta to measure at."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp
from proplace.apps.experiment.data import load
from proplace.apps.experiment.protocol import SETTINGS


@dataclass(frozen=True)
class Problem:
    """A data set, encoded as in the paper, and a network trained on its first half."""

    name: str
    X: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    net: pp.Network


def data_folder() -> Path:
    """Return the folder of the data files: PROPLACE_DATA, or shared/data beside the checkout."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PROPLACE_DATA", default))
    if not (folder / "heloc.csv.gz").exists():
        raise SystemExit(
            f"no data sets in {folder}; set PROPLACE_DATA to the folder that holds them"
        )
    return folder


def problem(
    name: str, widths: tuple[int, ...], seed: int = 0, epochs: int | None = None
) -> Problem:
    """Train a network of the given widths on the first half of a data set."""
    data = load(name, data_folder())
    X, y = data.X, data.y
    order = np.random.default_rng(1).permutation(len(X))
    half = order[: len(X) // 2 - 1]
    cut = int(0.8 * len(half))
    train, test = half[:cut], half[cut:]
    model = MLPClassifier(
        hidden_layer_sizes=widths,
        learning_rate_init=0.01 if max(widths) <= 50 else 0.003,
        batch_size=32,
        alpha=1e-4,
        max_iter=epochs or SETTINGS[name].epochs,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X[train], y[train])
    return Problem(name, X, y, train, test, pp.Network.from_sklearn(model))


def encoded_schema(X: np.ndarray) -> pp.Schema:
    """Schema of already encoded columns: 0/1 columns are binary, the others continuous."""
    return pp.Schema(
        [
            pp.Binary(f"x{i}")
            if np.isin(column, (0.0, 1.0)).all()
            else pp.Continuous(f"x{i}", 0.0, 1.0, scaling="none")
            for i, column in enumerate(X.T)
        ]
    )


def delta_for_share(net: pp.Network, X: np.ndarray, share: float = 1 / 3) -> float:
    """Return a delta at which about ``share`` of the rows ``X`` are robust."""
    X = X[:600]
    low = 1e-4
    while pp.certify(net, X, 2 * low).robust.mean() >= share:
        low *= 2
    high = 2 * low
    for _ in range(6):
        middle = (low + high) / 2
        if pp.certify(net, X, middle).robust.mean() >= share:
            low = middle
        else:
            high = middle
    return float(f"{low:.3g}")


def machine() -> str:
    """Return one line on what this was measured on."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {np.__version__}; one thread"
    )
