"""Settings of each data set, the figures of the paper, and the tasks of the experiment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from proplace.experiment.data import SOURCES

if TYPE_CHECKING:
    from proplace.experiment.own import Own

_FORMAT = 3  # of the files with networks


@dataclass(frozen=True)
class Counts:
    """Number of networks of each kind and of people, for one data set, architecture and seed.

    Attributes
    ----------
    new_data, without_1, without_10, other_seed, incremental
        Retrained networks by which counterfactuals are measured (see
        :mod:`proplace.experiment.archive`).
    calibration
        Networks that select delta. Half have new data, half lack 1% of the rows.
    history
        Incremental retrainings that shift sets are learned from.
    people
        People to explain, and as many others for the calibration.
    """

    new_data: int = 10
    without_1: int = 10
    without_10: int = 6
    other_seed: int = 6
    incremental: int = 6
    calibration: int = 40
    history: int = 20
    people: int = 50


OTHER_SIZE = Counts(
    new_data=5, without_1=5, without_10=0, other_seed=0, incremental=0, calibration=10, history=0
)
"""Counts for networks of another size than the published one."""


@dataclass(frozen=True)
class Settings:
    """Architecture, training and search of one data set, as published.

    ``delta`` is None if it is to be calibrated.
    """

    widths: tuple[int, ...]
    epochs: int
    delta: float | None
    k: int
    counts: Counts = Counts()


SETTINGS = {
    "adult": Settings((10, 10), 20, 0.035, 20),
    "compas": Settings((20, 20), 50, 0.025, 20),
    "gmc": Settings((20, 20), 3, 0.045, 20),
    "heloc": Settings((20, 20), 50, 0.025, 23),
}
DATA = (*SETTINGS, "heloc-repaired")
"""Names of the data sets of :class:`Task`."""
SIZES = ((10, 10), (20, 20), (50, 50))
"""Architectures of the archive."""
SEEDS = tuple(range(10))
"""Training seeds of the archive."""
SLOW = ("PROPLACE-Algorithm-1", "PROPLACE-networks", "PROPLACE-sparse", "PROTO-R", "MILP-R")
"""Methods that explain :data:`FEWER` people per seed, since they take most of the time."""
SLOWEST = ("PROPLACE-Algorithm-1", "PROTO-R")
"""Methods that explain nobody with networks of another size, if no number of people is given."""
FEWER = 10
"""People per seed for :data:`SLOW` methods, and for networks of another size than published."""


@dataclass(frozen=True)
class Task:
    """One data set, training seed and architecture.

    Attributes
    ----------
    data
        ``"adult"``, ``"compas"``, ``"gmc"``, ``"heloc"`` or ``"heloc-repaired"``.
    seed
        Training seed.
    widths
        Neurons of the hidden layers. Default: as published.
    people
        Largest number of people to explain, by every method. Default: see :meth:`people_for`.
    actionable
        True to respect immutable features and rules (see :mod:`proplace.experiment.data`). Default:
        as in the paper, every number may change within its range and every category is free.
    as_published
        True to run the other methods as the published code does (see
        :mod:`proplace.experiment.as_published`).
    own
        A table and a model of the user, in place of a data set of the paper.
    """

    data: str
    seed: int
    widths: tuple[int, ...] | None = None
    people: int | None = None
    actionable: bool = False
    as_published: bool = False
    own: Own | None = None

    @property
    def published(self) -> str:
        """Name under which the paper has the data set."""
        return self.data.removesuffix("-repaired")

    @property
    def other_size(self) -> bool:
        """True if the architecture is not the published one."""
        return self.own is None and self.widths not in (None, SETTINGS[self.published].widths)

    def people_for(self, method: str) -> int | None:
        """Return the largest number of people that a method explains, or None for all."""
        if self.people is not None:
            return self.people
        return FEWER if self.other_size or method in SLOW else None

    @property
    def settings(self) -> Settings:
        """Settings of the data set, with the architecture of the task."""
        if self.own is not None:
            return self.own.settings
        settings = SETTINGS[self.published]
        if self.widths is None or not self.other_size:
            return settings
        return replace(settings, widths=self.widths, counts=OTHER_SIZE)

    @property
    def name(self) -> str:
        """Name of the networks, such as ``adult-10x10-seed0-9e107d9d37``."""
        settings = self.settings
        source = SOURCES[self.published].sha256 if self.own is None else self.own.digest
        facts = (_FORMAT, self.data, self.seed, settings, source)
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
        return f"{self.data}-{'x'.join(map(str, settings.widths))}-seed{self.seed}-{digest}"


def all_tasks() -> list[Task]:
    """Return the tasks of the archive."""
    return [Task(data, seed, widths) for data in DATA for widths in SIZES for seed in SEEDS]


# -- figures of the paper ---------------------------------------------------------------------------

PUBLISHED: dict[str, dict[str, tuple[int, int, float, float]]] = {
    "WCE": {
        "adult": (89, 78, 0.175, 1.59),
        "compas": (57, 0, 0.170, 1.81),
        "gmc": (84, 18, 0.148, 2.80),
        "heloc": (49, 0, 0.045, 1.16),
    },
    "RBR": {
        "adult": (100, 0, 0.031, 1.28),
        "compas": (100, 62, 0.043, 1.34),
        "gmc": (90, 0, 0.050, 1.31),
        "heloc": (80, 0, 0.038, 1.10),
    },
    "RobX": {
        "adult": (100, 82, 0.064, 1.28),
        "compas": (100, 82, 0.050, 1.11),
        "gmc": (100, 96, 0.073, 1.35),
        "heloc": (100, 30, 0.073, 1.04),
    },
    "ROAR": {
        "adult": (99, 98, 0.279, 1.96),
        "compas": (98, 100, 0.219, 2.84),
        "gmc": (96, 88, 0.188, 4.22),
        "heloc": (98, 98, 0.109, 1.57),
    },
    "PROTO-R": {
        "adult": (98, 55, 0.068, 1.60),
        "compas": (100, 100, 0.084, 1.36),
        "gmc": (100, 100, 0.066, 1.49),
        "heloc": (100, 100, 0.057, 1.21),
    },
    "MILP-R": {
        "adult": (100, 100, 0.024, 1.69),
        "compas": (100, 100, 0.040, 1.71),
        "gmc": (100, 100, 0.059, 2.08),
        "heloc": (100, 100, 0.044, 2.48),
    },
    "PROPLACE": {
        "adult": (100, 100, 0.046, 1.22),
        "compas": (100, 100, 0.039, 1.24),
        "gmc": (100, 100, 0.058, 1.24),
        "heloc": (100, 100, 0.057, 1.04),
    },
}
"""Table 1 of the paper: vr %, vdelta %, l1 and lof, by method and data set."""

PUBLISHED_SECONDS = {
    "PROTO-R": "54-78",
    "RBR": "7-8",
    "MILP-R": "0.5-3.6",
    "PROPLACE": "0.1-1.2",
}
"""Seconds per counterfactual, as published."""

ACCURACY = {"adult": 0.84, "compas": 0.85, "gmc": 0.94, "heloc": 0.76}
"""Test accuracy of the networks of the paper."""
