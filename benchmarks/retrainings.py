"""Networks of the experiment and what they become when they are retrained, kept in a folder.

*Incremental*: from the network in use, 2 epochs at a rate of 3e-4. *From scratch*: as the network in
use was trained, from another start. Both on bootstrap samples of its training rows (as many rows,
drawn with replacement). Retrainings from scratch know nothing of the network in use, so they serve
every one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import proplace as pp
from common import data_set
from proplace.core.files import atomic_write
from proplace.experiment.archive import two_classes
from proplace.experiment.settings import SETTINGS, Settings
from proplace.experiment.training import train_further

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proplace.experiment.data import Dataset

EPOCHS, RATE = 2, 3e-4  # of incremental retraining
_CHUNK = 60  # networks that are trained side by side


@dataclass(frozen=True)
class Counts:
    """How much is trained.

    Attributes
    ----------
    history, unseen
        Known retrainings, and others that judge.
    epochs
        From scratch; None: all.
    skipped
        Retrainings between the two that are left out, such as those that judged before.
    """

    history: int = 79
    unseen: int = 100
    epochs: int | None = None
    skipped: int = 0


@dataclass(frozen=True, eq=False)
class Case:
    """A data set with a network in use, and its retrainings of one kind."""

    data: Dataset
    settings: Settings
    net: pp.Network
    kind: str
    history: list[pp.Network]
    unseen: list[pp.Network]

    @property
    def rows(self) -> np.ndarray:
        """The encoded rows that explainers see: the first half, as in the experiment."""
        return self.data.X[self.data.first.rows]

    def accepted(self, count: int) -> np.ndarray:
        """Test rows that the network in use accepts."""
        X = self.data.X[self.data.first.test]
        return X[self.net.predict(X) == 1][:count]

    def refused(self, count: int) -> np.ndarray:
        """Test rows that the network in use refuses."""
        X = self.data.X[self.data.first.test]
        return X[self.net.predict(X) == 0][:count]


def cases(name: str, seed: int, counts: Counts, cache: Path) -> tuple[Case, Case]:
    """Incremental retraining and retraining from scratch; trained where the cache has none."""
    data, settings = data_set(name), SETTINGS[name.removesuffix("-repaired")]
    if counts.epochs is not None:
        settings = replace(settings, epochs=counts.epochs)
    rows = data.first.train
    cache.mkdir(parents=True, exist_ok=True)
    first = counts.history + counts.skipped  # that judges
    total = first + counts.unseen

    def bootstrap(*key: int) -> list[np.ndarray]:
        rng = np.random.default_rng(key)
        return [np.sort(rng.choice(rows, len(rows))) for _ in range(total)]

    def from_scratch() -> list[pp.Network]:
        drawn, seeds = bootstrap(1), [1000 + n for n in range(total)]
        parts = [slice(n, n + _CHUNK) for n in range(0, total, _CHUNK)]
        return [net for p in parts for net in two_classes(data, drawn[p], settings, seeds[p])]

    def incremental() -> list[pp.Network]:
        seeds = [2000 + n for n in range(total)]
        return train_further(
            net, data.X, data.y, bootstrap(2, seed), epochs=EPOCHS, rate=RATE, seeds=seeds
        )

    label = f"{name}-{settings.epochs}"
    (net,) = _kept(
        cache / f"{label}-net{seed}.npz", lambda: two_classes(data, [rows], settings, [seed])
    )
    scratch = _kept(cache / f"{label}-scratch{total}.npz", from_scratch)
    further = _kept(cache / f"{label}-incremental{seed}-{total}.npz", incremental)
    made = [
        Case(data, settings, net, kind, nets[: counts.history], nets[first:])
        for kind, nets in (("incremental", further), ("from scratch", scratch))
    ]
    return made[0], made[1]


def _kept(path: Path, make: Callable[[], list[pp.Network]]) -> list[pp.Network]:
    """Networks of one architecture from a file, or made and written to it."""
    if not path.exists():
        made = make()
        layers = range(len(made[0].layers))
        with atomic_write(path) as file:
            np.savez(
                file,
                **{f"W{i}": np.array([net.layers[i].W for net in made]) for i in layers},
                **{f"b{i}": np.array([net.layers[i].bias for net in made]) for i in layers},
            )
    with np.load(path) as arrays:
        layers = range(len(arrays.files) // 2)
        W, b = [arrays[f"W{i}"] for i in layers], [arrays[f"b{i}"] for i in layers]
    return [pp.Network([(W[i][n], b[i][n]) for i in layers]) for n in range(len(W[0]))]
