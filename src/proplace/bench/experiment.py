"""Run methods on problems, each cell once: an interrupted run goes on where it was.

A cell is one data set, training seed and method. What it gives (counterfactuals, metrics, seconds) is
one file in the cache, which appears whole or not at all. A cell runs in one process with one thread;
``seconds`` is processor time per counterfactual, with everything a method prepares, so that other
programs on the machine do not count.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from proplace.bench.protocol import SETTINGS, Problem, Task, dataset, problem
from proplace.errors import OptionError
from proplace.explainer import Proplace
from proplace.files import whole_file
from proplace.methods import METHODS, Method, RobustMethod, published
from proplace.metrics import evaluate, outlier_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sklearn.neighbors import LocalOutlierFactor

    from proplace.network import Array

OURS = "PROPLACE"
NAMES = (OURS, *METHODS)
METRICS = ("found", "valid", "vr", "vdelta", "l1", "lof")


@dataclass(frozen=True)
class Cell:
    """One method on one task."""

    task: Task
    method: str

    def file(self, cache: Path, options: dict[str, Any]) -> Path:
        """Where the result is kept; another file for other options."""
        digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:10]
        return self.task.folder(cache) / f"{self.method}-{digest}.npz"


def run(
    tasks: Sequence[Task],
    methods: Sequence[str],
    cache: Path,
    *,
    data_folder: str | None = None,
    n_jobs: int = 1,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run every method on every task; return one row per cell, and the curves of validity.

    Parameters
    ----------
    tasks, methods
        What to run; method names as in :data:`NAMES`.
    cache
        Folder for networks and results.
    data_folder
        Folder of the data sets, see :func:`proplace.bench.data.load`.
    n_jobs
        Cells that run at the same time.
    report
        Called with the row of each cell as it is done.
    """
    for name in methods:
        if name not in NAMES:
            raise OptionError(f"{name!r} is not a method; methods: {', '.join(NAMES)}")
    cache.mkdir(parents=True, exist_ok=True)
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    curves = list(parallel(joblib.delayed(_curve)(task, cache, data_folder) for task in tasks))
    jobs = (
        joblib.delayed(_record)(Cell(task, name), cache, data_folder)
        for task in tasks
        for name in methods
    )
    records = []
    for record in parallel(jobs):
        report(record)
        records.append(record)
    return pd.DataFrame(records), pd.concat(curves, ignore_index=True)


def explainer(name: str, made: Problem) -> tuple[Callable[[], Proplace | Method], dict[str, Any]]:
    """How to make a method for a problem, and the options it gets.

    Options are those of the published runs. Where delta was calibrated, a method that was run at
    another delta than it was judged at (MILP-R) keeps the ratio of the two.
    """
    settings = SETTINGS[made.task.name]
    if name == OURS:
        options: dict[str, Any] = {"delta": made.delta, "k": settings.k}
        return lambda: Proplace(made.net, schema=made.schema, **options), options
    method = METHODS[name]
    options = {"seed": made.task.seed, **published(name, made.task.name)}
    if issubclass(method, RobustMethod):
        options["delta"] = options.get("delta", settings.delta) * made.delta / settings.delta
    return lambda: method(made.net, schema=made.schema, **options), options


def measure(
    name: str, made: Problem, reference: LocalOutlierFactor
) -> tuple[pd.DataFrame, Array, float]:
    """Run a method on a problem: metrics per input, counterfactuals, seconds per counterfactual."""
    make, _ = explainer(name, made)
    with threadpool_limits(1):
        start = time.process_time()
        answers = make().fit(made.rows).explain(made.X)
        seconds = (time.process_time() - start) / len(made.X)
        table = evaluate(
            answers,
            made.X,
            made.net,
            retrained=made.retrained,
            delta=made.delta,
            reference=reference,
        )
    none = np.full(made.X.shape[1], np.nan)
    points = np.array([none if e.point is None else e.point for e in answers])
    return table, points, seconds


def _curve(task: Task, cache: Path, data_folder: str | None) -> pd.DataFrame:
    with threadpool_limits(1):
        made = problem(task, cache, data_folder)
    return made.curve.assign(data=task.data, seed=task.seed, used=made.delta)


@lru_cache(maxsize=1)
def _problem(task: Task, cache: Path, data_folder: str | None) -> Problem:
    return problem(task, cache, data_folder)


@lru_cache(maxsize=2)
def _outliers(data: str, data_folder: str | None) -> LocalOutlierFactor:
    return outlier_model(dataset(data, data_folder).desired)


def _record(cell: Cell, cache: Path, data_folder: str | None) -> dict[str, Any]:
    """The row of a cell, from its file or by running it; a failing cell does not lose the others."""
    made = _problem(cell.task, cache, data_folder)
    record: dict[str, Any] = {
        "data": cell.task.data,
        "seed": cell.task.seed,
        "method": cell.method,
        "delta": made.delta,
        "calibrated": made.calibrated,
        "accuracy": made.accuracy,
        "inputs": len(made.X),
        "fresh": made.fresh,
    }
    _, options = explainer(cell.method, made)
    path = cell.file(cache, options)
    try:
        if not path.exists():
            reference = _outliers(cell.task.data, data_folder)
            table, points, seconds = measure(cell.method, made, reference)
            with whole_file(path) as file:
                columns = {name: table[name].to_numpy(dtype=float) for name in METRICS}
                np.savez(
                    file,
                    allow_pickle=False,
                    points=points,
                    X=made.X,
                    seconds=np.array(seconds),
                    **columns,
                )
        with np.load(path, allow_pickle=False) as stored:
            means = {name: _mean(stored[name]) for name in METRICS}
            return record | means | {"seconds": float(stored["seconds"]), "error": ""}
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def _mean(values: Array) -> float:
    """Mean of what is there; missing if nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
