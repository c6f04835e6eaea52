"""One problem of the experiment: networks, people and delta.

Delta is the published one, or a smaller one if fewer than k training rows are robust at it. A curve of
validity against delta is measured too, on other retrained networks and other people than those of the
evaluation, so that methods may choose by it.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proplace import __version__
from proplace.calibrate.delta import CalibrationWarning, calibrate_delta
from proplace.core.errors import InputError
from proplace.core.files import atomic_write
from proplace.experiment.archive import Trained, train_all, trained
from proplace.experiment.data import Dataset, load
from proplace.experiment.settings import FEWER
from proplace.experiment.training import accuracy
from proplace.explain.proplace import Proplace
from proplace.tables.files import read_csv

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from proplace.core.network import Array, Network
    from proplace.experiment.archive import Archive
    from proplace.experiment.settings import Settings, Task
    from proplace.schema import Schema

VALID = 0.99  # validity of a delta that is not given
FACTORS = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # deltas tried, over the published one
_TRIED = 25  # people of the calibration, at most, for each delta
_SKIPPED = {*sys.stdlib_module_names, "sklearn"}  # the latter for its size: BaseEstimator is a base


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of all methods and metrics for one task.

    Attributes
    ----------
    task, settings
        The task, and the settings of its data set.
    nets
        The networks of the archive.
    X
        Encoded people to explain. Slow methods explain the first of them.
    validation
        Encoded people for choices.
    rows
        Encoded rows of the first half, which methods may use.
    schema
        Features that methods respect.
    delta
        Radius of the shift set.
    curve
        Validity against delta, on the networks and people of the calibration.
    accuracy
        Accuracy of the current network on the test part of the first half.
    code
        Digest of the source code of proplace, on which ``curve`` and all results depend.
    """

    task: Task
    settings: Settings
    nets: Trained
    X: Array
    validation: Array
    rows: Array
    schema: Schema
    delta: float
    curve: pd.DataFrame
    accuracy: float
    code: str

    @property
    def net(self) -> Network:
        """The current network."""
        return self.nets.net


@lru_cache(maxsize=2)
def dataset(data: str, folder: str | None) -> Dataset:
    """Read a data set once per process."""
    return load(data.removesuffix("-repaired"), folder, repaired=data.endswith("-repaired"))


def problem(
    task: Task, cache: Path, data_folder: str | None = None, archive: Archive | None = None
) -> Problem:
    """Make the problem of a task, with networks from the archive or trained into the cache."""
    own = task.own
    if own is not None:
        nets = own.complete(trained(task, cache, lambda: own.train(task.seed)))
        return assemble(task, own.data, task.settings, nets, cache / task.name)
    data = dataset(task.data, data_folder)
    nets = trained(task, cache, lambda: train_all(data, task.settings, task.seed), archive)
    return assemble(task, data, task.settings, nets, cache / task.name)


def assemble(task: Task, data: Dataset, settings: Settings, nets: Trained, folder: Path) -> Problem:
    """Make the problem of a data set and its networks. The curve of delta is saved in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    schema = data.schema if task.actionable else data.free
    rows = data.X[data.first.rows]
    validation = data.X[nets.validation][: FEWER if task.other_size else _TRIED]
    code = source_digest(Proplace) or __version__
    bound = "actionable" if task.actionable else "free"
    digest = hashlib.sha256(nets.to_bytes()).hexdigest()
    curve = _cached_curve(
        folder / f"curve-{bound}-{digest[:10]}-{code[:10]}.csv",
        lambda: _curve(nets, rows, validation, schema, settings),
    )
    delta = _delta(curve, settings, len(np.unique(rows, axis=0)))
    return Problem(
        task=task,
        settings=settings,
        nets=nets,
        X=data.X[nets.people][: task.people],
        validation=validation,
        rows=rows,
        schema=schema,
        delta=delta,
        curve=curve,
        accuracy=accuracy(nets.net, data.X[data.first.test], data.y[data.first.test]),
        code=code,
    )


def _curve(
    nets: Trained, rows: Array, validation: Array, schema: Schema, settings: Settings
) -> pd.DataFrame:
    """Validity against delta, around the published one."""

    def measured(deltas: list[float] | None) -> pd.DataFrame:
        return calibrate_delta(
            nets.net,
            rows,
            retrained=nets.calibration,
            people=validation,
            schema=schema,
            k=settings.k,
            deltas=deltas,
        ).curve

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # the results state the delta in use
        if settings.delta is not None:
            with contextlib.suppress(InputError):  # no row is robust at any of them
                return measured([factor * settings.delta for factor in FACTORS])
        return measured(None)


def _cached_curve(path: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    if not path.exists():
        with atomic_write(path) as file:
            file.write(make().to_csv(index=False).encode())
    return read_csv(path)


def _delta(curve: pd.DataFrame, settings: Settings, rows: int) -> float:
    """Return the largest delta up to the published one that leaves at least k rows robust.

    If none does, return the smallest. Without a published one, return the smallest delta that is
    valid enough, or the most valid one.
    """
    usable = curve[curve["robust"] * rows >= settings.k]
    if settings.delta is not None:
        usable = usable[usable["delta"] <= settings.delta]
        return float(usable["delta"].max() if len(usable) else curve["delta"].min())
    good = usable[usable["validity"] >= VALID]
    if len(good):
        return float(good["delta"].min())
    return float(curve["delta"].to_numpy()[curve["validity"].argmax()])


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
