"""Run methods on problems, each cell once: an interrupted run goes on where it was.

A cell is one data set, training seed and method. Its result (counterfactuals, metrics, seconds) is one
file in the cache, which appears whole or not at all. The file is used again only if the source code of
proplace and of the method is unchanged. A cell runs in one process with one thread; ``seconds`` is
processor time per counterfactual, with everything a method prepares, so that other programs on the
machine do not count.
"""

from __future__ import annotations

import hashlib
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from proplace.baselines import METHODS, RobustBaseline, published
from proplace.core.errors import OptionError
from proplace.core.files import atomic_write
from proplace.experiment import output
from proplace.experiment.metrics import evaluate, outlier_model
from proplace.experiment.protocol import Problem, Task, dataset, problem, source_digest
from proplace.explain.proplace import Proplace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sklearn.neighbors import LocalOutlierFactor

    from proplace.core.network import Array

OURS: dict[str, dict[str, Any]] = {
    "PROPLACE": {"search": "tree"},
    "PROPLACE-Algorithm-1": {"search": "bilevel"},
}
"""PROPLACE with each of its two exact searches."""
METRICS = ("found", "valid", "vr", "vdelta", "l1", "lof")


def names() -> tuple[str, ...]:
    """Names of the methods that can be run: ours, and all that are in ``METHODS`` by now."""
    return (*OURS, *METHODS)


def run(
    tasks: Sequence[Task],
    methods: Sequence[str],
    cache: Path,
    *,
    data_folder: str | None = None,
    n_jobs: int = 1,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run every method on every task; return one row per cell, and the curves of validity.

    Parameters
    ----------
    tasks, methods
        What to run; method names as :func:`names` gives them.
    cache
        Folder for networks and results.
    data_folder
        Folder of the data sets, see :func:`proplace.experiment.data.load`.
    n_jobs
        Cells that run at the same time.
    report
        Called with a line of text as each task is prepared and each cell is done.
    """
    for name in methods:
        if name not in names():
            raise OptionError(
                f"{name!r} is not a method; methods: {', '.join(names())}",
                name="methods",
                value=name,
            )
    cache.mkdir(parents=True, exist_ok=True)
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    curves = []
    prepare = (joblib.delayed(_curve)(task, cache, data_folder) for task in tasks)
    for number, (task, curve) in enumerate(zip(tasks, parallel(prepare), strict=True), start=1):
        report(f"networks {number}/{len(tasks)}: {task.data} seed {task.seed}")
        curves.append(curve)
    cells = [(task, name) for task in tasks for name in methods]
    records = []
    # A worker may hold a class without the file that it came from, so digests are taken here.
    codes = {name: source_digest(METHODS.get(name, Proplace)) for name in methods}
    jobs = (
        joblib.delayed(_record)(task, name, METHODS.get(name), codes[name], cache, data_folder)
        for task, name in cells
    )
    for number, record in enumerate(parallel(jobs), start=1):
        report(f"cell {number}/{len(cells)}: {_line(record)}")
        records.append(record)
    columns = [*_FACTS, *METRICS, "seconds", "error"]
    return pd.DataFrame(records, columns=columns), pd.concat(curves, ignore_index=True)


def write(results: pd.DataFrame, curves: pd.DataFrame, out: Path) -> list[Path]:
    """Write tables and pictures of a run into a folder; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "results.csv": results.to_csv(index=False).encode(),
        "curves.csv": curves.to_csv(index=False).encode(),
        "results.md": (output.markdown(results) + "\n" + output.times(results)).encode(),
        "l1-lof.png": output.png(output.l1_lof(results[results["error"] == ""])),
        "vr-delta.png": output.png(output.vr_delta(curves)),
    }
    for name, content in files.items():
        with atomic_write(out / name) as file:
            file.write(content)
    return [out / name for name in files]


def options(name: str, made: Problem) -> dict[str, Any]:
    """Options of a method on a problem: those of the published runs, if it was in them.

    Where delta was calibrated, a method that was run at another delta than it was judged at (MILP-R)
    keeps the ratio of the two. PROPLACE has no time limit: with one, results would depend on the
    speed of the machine.
    """
    if name in OURS:
        return {"delta": made.delta, "k": made.settings.k, "time_limit": None, **OURS[name]}
    chosen = {"seed": made.task.seed, **published(name, made.task.name)}
    if issubclass(METHODS[name], RobustBaseline):
        ratio = made.delta / made.settings.delta
        chosen["delta"] = chosen.get("delta", made.settings.delta) * ratio
    return chosen


def measure(
    name: str, made: Problem, reference: LocalOutlierFactor
) -> tuple[pd.DataFrame, Array, float]:
    """Run a method on a problem: metrics per input, counterfactuals, seconds per counterfactual."""
    method: Any = Proplace if name in OURS else METHODS[name]
    with threadpool_limits(1):
        start = time.process_time()
        explainer = method(made.net, schema=made.schema, **options(name, made)).fit(made.rows)
        wishes = {"gap": 0.0, "typical": False} if method is Proplace else {}  # as in the paper
        answers = explainer.explain(made.X, **wishes)
        seconds = (time.process_time() - start) / len(made.X)
        metrics = evaluate(
            answers,
            made.X,
            made.net,
            retrained=made.retrained,
            delta=made.delta,
            reference=reference,
        )
    none = np.full(made.X.shape[1], np.nan)
    points = np.array(
        [none if e.encoded_counterfactual is None else e.encoded_counterfactual for e in answers]
    )
    return metrics, points, seconds


_FACTS = ("data", "seed", "method", "delta", "calibrated", "accuracy", "inputs", "fresh")


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


def _record(
    task: Task,
    name: str,
    method: type[Any] | None,
    code: str | None,
    cache: Path,
    data_folder: str | None,
) -> dict[str, Any]:
    """The row of a cell, from its file or by running it; a failing cell does not lose the others.

    ``method`` is what ``METHODS`` holds under the name: in a worker it may not be there yet. ``code``
    is the digest of its source; without one, the cell is run each time.
    """
    if method is not None:
        METHODS[name] = method
    made = _problem(task, cache, data_folder)
    facts = (task.data, task.seed, name, made.delta, made.calibrated, made.accuracy)
    record = dict(zip(_FACTS, (*facts, len(made.X), made.fresh), strict=True))
    try:
        stored = _stored(name, made, code, cache, data_folder)
        means = {metric: _mean(stored[metric]) for metric in METRICS}
        return record | means | {"seconds": float(stored["seconds"]), "error": ""}
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def _stored(
    name: str, made: Problem, code: str | None, cache: Path, data_folder: str | None
) -> dict[str, Array]:
    """The arrays of a cell, from its file if the method, its options and all code are unchanged."""
    chosen = sorted(options(name, made).items())
    key = hashlib.sha256(repr((name, chosen, made.delta, code, made.code)).encode()).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    path = made.task.folder(cache) / f"{safe}-{key[:10]}.npz"
    if code is not None and path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    metrics, points, seconds = measure(name, made, _outliers(made.task.data, data_folder))
    result: dict[str, Any] = {name: metrics[name].to_numpy(dtype=float) for name in METRICS}
    result |= {"points": points, "X": made.X, "seconds": np.array(seconds)}
    if code is not None:
        with atomic_write(path) as file:
            np.savez(file, **result)
    return result


def _mean(values: Array) -> float:
    """Mean of what is there; missing if nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _line(record: dict[str, Any]) -> str:
    """A cell in one line, for somebody who waits."""
    what = f"{record['data']} seed {record['seed']} {record['method']}"
    if record["error"]:
        return f"{what} FAILED: {record['error']}"
    return (
        f"{what}: vr {record['vr']:.1%}, vdelta {record['vdelta']:.1%}, l1 {record['l1']:.3f}, "
        f"lof {record['lof']:.2f}, {record['seconds']:.2g} s"
    )
