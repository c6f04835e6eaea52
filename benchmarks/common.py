"""Data sets, trained networks and pipelines, and a delta to measure at, for all benchmarks."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from pandas.api.types import is_numeric_dtype
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

import proplace as pp
from proplace.experiment.data import load
from proplace.experiment.settings import SETTINGS

if TYPE_CHECKING:
    import pandas as pd

    from proplace.experiment.data import Dataset

threadpool_limits(1)  # a script may have imported NumPy before the variables above were set


@dataclass(frozen=True)
class Problem:
    """A data set, encoded as in the paper, and a network trained on its first half."""

    name: str
    X: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    net: pp.Network


def data_folder() -> Path | None:
    """Return the folder of the data files: PROPLACE_DATA, or shared/data beside the checkout.

    Return None if there is neither; the loader then downloads the files (extra ``data``).
    """
    if "PROPLACE_DATA" in os.environ:
        return Path(os.environ["PROPLACE_DATA"])
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return beside if beside.exists() else None


def data_set(name: str) -> Dataset:
    """Read a data set of the experiment.

    Benchmarks use "heloc-repaired" for credit data. The published file, "heloc", leaks its label; it
    is kept for comparisons with the paper and for the table of releases.
    """
    return load(name.removesuffix("-repaired"), data_folder(), repaired=name.endswith("-repaired"))


def problem(
    name: str, widths: tuple[int, ...], seed: int = 0, epochs: int | None = None
) -> Problem:
    """Train a network of the given widths on the first half of a data set."""
    data = data_set(name)
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
        max_iter=epochs or SETTINGS[name.removesuffix("-repaired")].epochs,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X[train], y[train])
    return Problem(name, X, y, train, test, pp.Model.of(model).network)


def delta_for_share(
    source: pp.Network | Pipeline, X: np.ndarray | pd.DataFrame, share: float = 1 / 3
) -> float:
    """Return a delta at which about ``share`` of the rows ``X`` are robust."""
    X = X[:600]

    def enough(delta: float) -> bool:
        return bool(pp.certify(source, X, delta).robust.mean() >= share)

    low = 1e-4
    while not enough(low):
        low /= 2
        if low < 1e-12:
            raise ValueError(f"fewer than {share:.0%} of the rows are robust at any delta")
    while enough(2 * low):
        low *= 2
    high = 2 * low
    for _ in range(6):
        middle = (low + high) / 2
        if enough(middle):
            low = middle
        else:
            high = middle
    return float(f"{low:.3g}")


NAMES = ("adult", "compas", "gmc", "heloc-repaired")
SCALERS = {"standard": StandardScaler, "minmax": MinMaxScaler, "none": lambda: "passthrough"}
TRAINING_ROWS = 8000  # at most
ATTEMPTS, FEWEST = 5, 50  # networks to train; accepted and refused rows that are needed


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A pipeline as users train it, on a table with its categories, and people that it refuses.

    ``refused`` and ``accepted`` hold rows of the part of the table that training did not see.
    """

    name: str
    pipeline: Pipeline
    train: pd.DataFrame
    refused: pd.DataFrame
    accepted: pd.DataFrame
    delta: float


def size_of(widths: tuple[int, ...]) -> str:
    """Return the size of a network as text: 2x30."""
    return f"{len(widths)}x{widths[0]}"


def widths_of(size: str) -> tuple[int, ...]:
    """Return the widths of a network from its size as text."""
    layers, width = size.split("x")
    return (int(width),) * int(layers)


def table(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the features and labels of a data set of the paper, heloc-repaired or cancer."""
    if name == "cancer":
        found = load_breast_cancer(as_frame=True)
        return found.data, found.target.to_numpy()
    data = data_set(name)
    return data.frame, data.y


def own_model(
    name: str, scaler: str, widths: tuple[int, ...], seed: int = 7, *, share: float = 0.7
) -> OwnModel:
    """Train a scaler, an encoder of words and a network on a share of the table of a data set.

    ``seed`` decides the split, the training and the order of the people. ``delta`` leaves 40% of
    the accepted training rows robust. Early stopping can end with a network that gives every row
    the same class; then the next seeds are tried. Raise ``ValueError`` if none helps.
    """
    frame, y = table(name)
    order = np.random.default_rng(seed).permutation(len(frame))
    cut = min(TRAINING_ROWS, int(share * len(order)))
    frame = frame.iloc[order].reset_index(drop=True)
    train, rest = frame[:cut], frame[cut:]
    for attempt in range(ATTEMPTS):
        pipeline = own_pipeline(frame, scaler, widths, seed + 100 * attempt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            pipeline.fit(train, y[order[:cut]])
        accepted = train[pipeline.predict(train) == 1]
        labels = pipeline.predict(rest)
        if min(len(accepted), (labels == 0).sum()) >= FEWEST:
            delta = delta_for_share(pipeline, accepted, 0.4)
            return OwnModel(name, pipeline, train, rest[labels == 0], rest[labels == 1], delta)
    raise ValueError(f"{ATTEMPTS} networks gave almost every row the same class")


def own_pipeline(
    frame: pd.DataFrame, scaler: str, widths: tuple[int, ...], seed: int = 0
) -> Pipeline:
    """Return an untrained pipeline for the columns of a table."""
    words = [column for column in frame if not is_numeric_dtype(frame[column])]
    numbers = [column for column in frame if column not in words]
    encoder = make_column_transformer((SCALERS[scaler](), numbers), (OneHotEncoder(), words))
    network = MLPClassifier(
        widths, batch_size=32, early_stopping=True, n_iter_no_change=20, random_state=seed
    )
    return make_pipeline(encoder, network)


def machine() -> str:
    """Return one line that describes the machine."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {np.__version__}; one thread"
    )
