"""The protocol of the experiment: settings per data set, the paper's figures, trained problems.

For one data set and one training seed, a :class:`Problem` holds the network that is explained, the
networks it is retrained to (half of them on both halves of the data, half leaving out a different
1% each, all from scratch with other seeds), the inputs (refused by all of them), and delta.

Delta is the published one where it does what the paper says it does, and calibrated otherwise.
Whether it does is decided on other networks (retrained the same way, other seeds) and other rows
than those of the evaluation: at least k training rows must be robust, and 99% of answers on
validation rows must stay valid.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proplace import __version__
from proplace.calibrate.delta import CalibrationWarning, calibrate_delta
from proplace.core.errors import InputError
from proplace.core.files import atomic_write
from proplace.core.network import Network
from proplace.experiment.data import SOURCES, Dataset, load
from proplace.experiment.settings import SETTINGS, Settings
from proplace.experiment.training import accuracy, train
from proplace.explain.proplace import Proplace
from proplace.tables.files import read_csv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    import pandas as pd

    from proplace.core.network import Array
    from proplace.schema import Schema

    Rows = npt.NDArray[np.int64]

VALID = 0.99  # share of answers that must stay valid on retrained networks
FACTORS = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # deltas tried, over the published one
_TRIES = 5  # trainings until a network has two classes
_FORMAT = 2  # of the cached files
_SKIPPED = {*sys.stdlib_module_names, "sklearn"}  # the latter for its size: BaseEstimator is a base


PUBLISHED = {  # Table 1 of the paper: vr %, vdelta %, l1, lof
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

# Algorithm 1 and the tree search compute the same counterfactuals, so both stand beside these figures.
PUBLISHED["PROPLACE-Algorithm-1"] = PUBLISHED["PROPLACE"]

PUBLISHED_SECONDS = {  # per counterfactual, as published
    "PROTO-R": "54-78",
    "RBR": "7-8",
    "MILP-R": "0.5-3.6",
    "PROPLACE": "0.1-1.2",
    "PROPLACE-Algorithm-1": "0.1-1.2",
}

ACCURACY = {"adult": 0.84, "compas": 0.85, "gmc": 0.94, "heloc": 0.76}


@dataclass(frozen=True)
class Task:
    """One problem by its settings: everything that its files in the cache depend on.

    Attributes
    ----------
    data
        ``"adult"``, ``"compas"``, ``"gmc"``, ``"heloc"`` or ``"heloc-repaired"``.
    seed
        Training seed.
    inputs
        Number of people to explain.
    retrained
        Networks retrained in each of the two ways.
    actionable
        Whether people are bound by what they could change (see :mod:`proplace.experiment.data`);
        otherwise features are as in the paper: numbers in their range, categories legal.
    """

    data: str
    seed: int
    inputs: int = 50
    retrained: int = 10
    actionable: bool = False

    @property
    def name(self) -> str:
        """The data set without its version: the key of settings and published figures."""
        return self.data.removesuffix("-repaired")

    def folder(self, cache: Path) -> Path:
        """Where the files of this task are kept."""
        facts = (_FORMAT, asdict(self), SETTINGS[self.name], SOURCES[self.name].sha256)
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
        return cache / f"{self.data}-seed{self.seed}-{digest}"


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that methods and metrics need for one data set and training seed.

    Attributes
    ----------
    task, settings
        What was asked for, and the settings of the data set.
    net, retrained
        The network to explain, and those it is retrained to.
    X
        Encoded people to explain, refused by all of these networks.
    fresh
        How many of them are in no training part. They come first; where they are too few, training
        rows fill up.
    rows
        Encoded rows of the first half, for methods.
    schema
        Feature kinds for methods.
    delta, calibrated
        Size of the shifts, and whether it is another than the published one.
    curve
        Validity against delta on the calibration's own networks and rows.
    accuracy
        Of ``net`` on the test part of the first half.
    code
        Digest of the source code of proplace, on which ``curve`` and the results of methods depend.
    """

    task: Task
    settings: Settings
    net: Network
    retrained: list[Network]
    X: Array
    fresh: int
    rows: Array
    schema: Schema
    delta: float
    calibrated: bool
    curve: pd.DataFrame
    accuracy: float
    code: str


@lru_cache(maxsize=2)
def dataset(data: str, folder: str | None) -> Dataset:
    """Read a data set once a process."""
    return load(data.removesuffix("-repaired"), folder, repaired=data.endswith("-repaired"))


def problem(task: Task, cache: Path, data_folder: str | None = None) -> Problem:
    """Train what is not in the cache, and put the problem together."""
    return assemble(task, dataset(task.data, data_folder), SETTINGS[task.name], task.folder(cache))


def assemble(task: Task, data: Dataset, settings: Settings, folder: Path) -> Problem:
    """Make the problem of a data set, with trained networks and the choice of delta in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    networks = _networks(task, data, settings, folder)
    net, *rest = networks
    retrained, others = rest[: 2 * task.retrained], rest[2 * task.retrained :]
    rng = np.random.default_rng([task.seed, 7])
    unseen = np.concatenate([data.first.test, data.second.test])
    refused = _refused(unseen, data.X, [net, *retrained], rng)[: task.inputs]
    more = _refused(data.first.train, data.X, [net, *retrained], rng)
    filled = task.inputs - len(refused)
    chosen = np.concatenate([refused, more[:filled]])
    validation = more[filled:][: task.inputs]
    if not (len(chosen) and len(validation)):
        raise InputError(f"{task.data}, seed {task.seed}: too few rows are refused by all networks")
    schema = data.schema if task.actionable else data.free
    rows = data.X[data.first.rows]
    code = source_digest(Proplace) or __version__
    curve = _cached_curve(
        folder / f"curve-{code[:10]}.csv",
        lambda: _curve(net, others, rows, data.X[validation], schema, settings),
    )
    delta = _delta(curve, settings, len(np.unique(rows, axis=0)))
    return Problem(
        task=task,
        settings=settings,
        net=net,
        retrained=retrained,
        X=data.X[chosen],
        fresh=len(refused),
        rows=rows,
        schema=schema,
        delta=delta,
        calibrated=delta != settings.delta,
        curve=curve,
        accuracy=accuracy(net, data.X[data.first.test], data.y[data.first.test]),
        code=code,
    )


def _networks(task: Task, data: Dataset, settings: Settings, folder: Path) -> list[Network]:
    """The network, its retrainings for the evaluation, then those for the calibration."""
    first, both = data.first.train, np.concatenate([data.first.train, data.second.train])
    out = max(1, len(first) // 100)
    groups: list[list[Rows]] = [[first]]
    for purpose in (1, 2):
        rng = np.random.default_rng([task.seed, purpose])
        without = [np.sort(rng.permutation(first)[out:]) for _ in range(task.retrained)]
        groups += [[both] * task.retrained, without]
    networks: list[Network] = []
    for number, group in enumerate(groups):
        paths = [folder / f"network-{number}-{i}.npz" for i in range(len(group))]
        if not all(path.exists() for path in paths):
            seeds = [_seed(task.seed, number, i) for i in range(len(group))]
            for path, net in zip(paths, two_classes(data, group, settings, seeds), strict=True):
                net.save(path)
        networks += [Network.load(path) for path in paths]
    return networks


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def two_classes(
    data: Dataset, rows: list[Rows], settings: Settings, seeds: list[int]
) -> list[Network]:
    """Train; where the network accepts (or refuses) everybody, train again with another seed.

    It happens on GMC: 93% of label 1, and three epochs.
    """

    def trained(which: Sequence[int], seeds: list[int]) -> list[Network]:
        return train(
            data.X,
            data.y,
            [rows[i] for i in which],
            widths=settings.widths,
            epochs=settings.epochs,
            seeds=seeds,
        )

    networks = trained(range(len(rows)), seeds)
    for attempt in range(1, _TRIES):
        bad = [i for i, net in enumerate(networks) if len(set(net.predict(data.X[rows[i]]))) < 2]
        if not bad:
            break
        for i, net in zip(bad, trained(bad, [seeds[i] + attempt for i in bad]), strict=True):
            networks[i] = net
    return networks


def _refused(rows: Rows, X: Array, networks: list[Network], rng: np.random.Generator) -> Rows:
    """Rows with distinct features that every network refuses, in random order.

    The order does not depend on the networks: if one prediction changes, the others keep their places.
    """
    rows = rng.permutation(rows)
    distinct = rows[np.sort(np.unique(X[rows], axis=0, return_index=True)[1])]
    keep = np.logical_and.reduce([net.predict(X[distinct]) == 0 for net in networks])
    refused: Rows = distinct[keep]
    return refused


def _curve(
    net: Network,
    others: list[Network],
    rows: Array,
    validation: Array,
    schema: Schema,
    settings: Settings,
) -> pd.DataFrame:
    """Validity against delta, around the published one."""

    def measured(deltas: list[float] | None) -> pd.DataFrame:
        return calibrate_delta(
            net,
            rows,
            retrained=others,
            people=validation,
            schema=schema,
            k=settings.k,
            validity=VALID,
            deltas=deltas,
        ).curve

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # the results say so
        try:
            return measured([factor * settings.delta for factor in FACTORS])
        except InputError:  # no row is robust at any of them
            return measured(None)


def _cached_curve(path: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    if not path.exists():
        with atomic_write(path) as file:
            file.write(make().to_csv(index=False).encode())
    return read_csv(path)


def _delta(curve: pd.DataFrame, settings: Settings, rows: int) -> float:
    """The published delta where it does what it should, else the smallest that does, else the best."""
    usable = curve[curve["robust"] * rows >= settings.k]
    good = usable[usable["validity"] >= VALID]
    if (good["delta"] == settings.delta).any():
        return settings.delta
    if len(good):
        return float(good["delta"].min())
    return float(usable["delta"].to_numpy()[usable["validity"].argmax()])


def source_digest(method: object) -> str | None:
    """Digest of the source files of a class and its bases (not of Python and scikit-learn).

    A module of a package counts with all Python files of the top-level package, any other module
    with all Python files of its folder. The files are read now, so they must be those that were
    imported. Return None if the source of a class is not in a file, as in an interactive session.
    """
    if not isinstance(method, type):
        return None
    places: dict[str, list[Path]] = {}
    for base in method.__mro__:
        top = base.__module__.partition(".")[0]
        if top in _SKIPPED:
            continue
        try:
            inspect.getsource(base)
        except (OSError, TypeError):
            return None
        places[top] = _files(top)
    if not all(places.values()):
        return None
    found = hashlib.sha256()
    for _, files in sorted(places.items()):
        for path in files:
            content = path.read_bytes()
            found.update(f"{path.name} {len(content)} ".encode() + content)
    return found.hexdigest()


def _files(top: str) -> list[Path]:
    """Python files of a top-level package, or of the folder of a top-level module."""
    module = sys.modules.get(top)
    folders = getattr(module, "__path__", None)
    if folders is not None:
        return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    file = getattr(module, "__file__", None)
    return [] if file is None else sorted({Path(file), *Path(file).parent.glob("*.py")})
