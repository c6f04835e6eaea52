"""A run of the experiment: every method on every task, each once.

A cell is one task and method. Its counterfactuals, measures and seconds are one file in the cache, so a
second run resumes the first. The file is used again only if the networks and the source code of proplace
and of the method are unchanged. ``seconds`` is processor time per counterfactual in one thread, with all
preparation.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from proplace.baselines import METHODS, RobustBaseline, published
from proplace.core.errors import OptionError
from proplace.core.files import atomic_write
from proplace.core.shifts import Shifts
from proplace.experiment import as_published
from proplace.experiment.archive import PAPER, Archive
from proplace.experiment.metrics import evaluate, outlier_model, vr
from proplace.experiment.ours import EXACT, OURS, explainer, points
from proplace.experiment.protocol import Problem, dataset, problem, source_digest
from proplace.experiment.settings import SLOWEST
from proplace.explain.proplace import Proplace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sklearn.neighbors import LocalOutlierFactor

    from proplace.core.network import Array, Network
    from proplace.experiment.own import Own
    from proplace.experiment.settings import Task

    Report = Callable[[str], None]

MEASURES = ("found", "valid", "vr", "all", "vdelta", "l1", "lof", "plausible", "changed")
WITHIN = "within delta"
"""Retraining that stays in the shift set: the networks of new data, clipped to it."""
KEYS = ("data", "network", "seed", "method")


@dataclass(frozen=True, eq=False)
class Results:
    """All measures of a run.

    Attributes
    ----------
    people
        One row per person and method: :data:`KEYS`, ``person``, :data:`MEASURES`, and the share of
        valid networks by kind of retraining, such as ``vr without 10%``.
    cells
        One row per task and method: :data:`KEYS`, the facts of the task, ``seconds`` and ``error``.
    curves
        Validity against delta of each task.
    """

    people: pd.DataFrame
    cells: pd.DataFrame
    curves: pd.DataFrame


def names() -> tuple[str, ...]:
    """Return the names of all methods: the rows of PROPLACE and :data:`~proplace.baselines.METHODS`."""
    return (*OURS, *METHODS)


def run(
    tasks: Sequence[Task],
    methods: Sequence[str],
    cache: Path,
    *,
    data_folder: str | None = None,
    archive: Path | None = None,
    n_jobs: int = 1,
    report: Report = lambda _: None,
) -> Results:
    """Run every method on every task.

    Parameters
    ----------
    tasks, methods
        Tasks, and names of :func:`names`.
    cache
        Folder for networks and results.
    data_folder
        Folder of the data sets, see :func:`proplace.experiment.data.load`.
    archive
        File with trained networks. Default: networks are trained into the cache.
    n_jobs
        Number of cells that run at the same time, on the joblib backend that is active.
    report
        Called with a line of text for each finished task and cell.
    """
    for name in methods:
        if name not in names():
            raise OptionError(
                f"{name!r} is not a method; methods: {', '.join(names())}",
                name="methods",
                value=name,
            )
    cache.mkdir(parents=True, exist_ok=True)
    source = _Source(cache, data_folder, archive)
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator")
    curves = []
    prepared = parallel(joblib.delayed(_curve)(task, source) for task in tasks)
    for number, (task, curve) in enumerate(zip(tasks, prepared, strict=True), start=1):
        report(f"delta {number}/{len(tasks)}: {task.name}")
        curves.append(curve)
    # A worker may hold a class without the file that it came from, so digests are taken here.
    codes = {name: source_digest(METHODS.get(name, Proplace)) for name in methods}
    wanted = [(task, name) for task in tasks for name in methods if possible(name, task)]
    if not wanted:
        raise OptionError(
            f"{' and '.join(methods)} cannot run on these networks. Leave the width out, to have those "
            "of the published size",
            name="methods",
            value=list(methods),
        )
    jobs = (
        joblib.delayed(_cell)(task, name, METHODS.get(name), codes[name], source)
        for task, name in wanted
    )
    cells, people = [], []
    for number, (cell, measures) in enumerate(parallel(jobs), start=1):
        report(f"cell {number}/{len(wanted)}: {_line(cell, measures)}")
        cells.append(cell)
        people.append(measures)
    return Results(
        people=pd.concat(people, ignore_index=True),
        cells=pd.DataFrame(cells, columns=[*KEYS, *_FACTS, "seconds", "error"]),
        curves=pd.concat(curves, ignore_index=True),
    )


def possible(name: str, task: Task) -> bool:
    """Return True if a method runs on a task.

    Learned shift sets need a history, which the archive has for networks of the published size.
    """
    if name in SLOWEST and task.other_size:
        return task.people is not None
    return name != "PROPLACE-learned" or task.settings.counts.history > 0


def options(name: str, made: Problem) -> dict[str, Any]:
    """Return the options of a baseline: those of the published run, if it was in it.

    If delta is not the published one, a method that was run at another delta than it was measured
    at (MILP-R) keeps the ratio of the two. For data of the user, methods have their default options.
    """
    robust = issubclass(METHODS[name], RobustBaseline)
    if made.settings.delta is None or made.task.own is not None:
        return {"seed": made.task.seed} | ({"delta": made.delta} if robust else {})
    chosen = {"seed": made.task.seed, **published(name, made.task.published)}
    if robust:
        ratio = made.delta / made.settings.delta
        chosen["delta"] = chosen.get("delta", made.settings.delta) * ratio
    return chosen


def answered(name: str, made: Problem) -> Array:
    """Run a method on the people of a problem and return their counterfactuals, NaN for none."""
    if name in OURS:
        shifts, others, request = OURS[name]
        method: Any = explainer(made, shifts(made) | others)
        return points(method.explain(made.X, **request), made.net)
    people, schema, chosen = made.X, made.schema, options(name, made)
    if made.task.as_published:
        people, schema = as_published.people(name, made), as_published.schema(name, made)
        chosen |= as_published.options(name)
    method = METHODS[name](made.net, schema=schema, **chosen).fit(made.rows)
    request = EXACT if isinstance(method, Proplace) else {}
    return points(method.explain(people, **request), made.net)


def measure(found: Array, made: Problem, reference: LocalOutlierFactor) -> pd.DataFrame:
    """Measure counterfactuals on the networks of a problem, one row per person."""
    judges = made.nets.retrained
    table = evaluate(
        found,
        made.X,
        made.net,
        retrained=[net for kind in PAPER for net in judges.get(kind, [])],
        delta=made.delta,
        reference=reference,
    )
    there = table["found"].to_numpy()
    for kind, nets in {**judges, WITHIN: _within(made)}.items():
        shares = np.zeros(len(found))
        if there.any():
            shares[there] = vr(nets, found[there])
        table[f"vr {kind}"] = shares
    if made.task.as_published:
        table.loc[~there, "vdelta"] = np.nan
    return table


def _within(made: Problem) -> list[Network]:
    shifts = Shifts.of(made.net, made.delta)
    return [shifts.project(net) for net in made.nets.retrained["new data"]]


# -- one cell --------------------------------------------------------------------------------------

_FACTS = ("delta", "accuracy", "people", "unseen")


@dataclass(frozen=True)
class _Source:
    """Places of networks and data."""

    cache: Path
    data_folder: str | None
    archive: Path | None

    def problem(self, task: Task) -> Problem:
        """Make the problem of a task."""
        archive = None if self.archive is None else Archive(self.archive)
        return problem(task, self.cache, self.data_folder, archive)


def _curve(task: Task, source: _Source) -> pd.DataFrame:
    with threadpool_limits(1):
        made = source.problem(task)
    data, network, seed, _ = _key(task, "")
    return made.curve.assign(data=data, network=network, seed=seed, used=made.delta)


@lru_cache(maxsize=1)
def _problem(task: Task, source: _Source) -> Problem:
    return source.problem(task)


@lru_cache(maxsize=5)
def _outliers(data: str, own: Own | None, source: _Source) -> LocalOutlierFactor:
    """Fit the local outlier factor, which all seeds and networks of a data set share."""
    table = dataset(data, source.data_folder) if own is None else own.data
    return outlier_model(table.desired)


def _key(task: Task, name: str) -> tuple[str, str, int, str]:
    return task.data, "x".join(map(str, task.settings.widths)), task.seed, name


def _cell(
    task: Task, name: str, method: type[Any] | None, code: str | None, source: _Source
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the facts of a cell and its measures. A failing cell does not lose the others.

    ``method`` is the entry of ``METHODS``, which a worker may lack. ``code`` is the digest of its
    source. Without one, the cell is run each time.
    """
    if method is not None:
        METHODS[name] = method
    made = _problem(task, source)
    made = replace(made, X=made.X[: task.people_for(name)])
    facts = (made.delta, made.accuracy, len(made.X))
    key: dict[str, Any] = dict(zip(KEYS, _key(task, name), strict=True))
    unseen = min(made.nets.unseen, len(made.X))
    cell = key | dict(zip(_FACTS, (*facts, unseen), strict=True))
    try:
        stored = _stored(name, made, code, source)
    except Exception as error:
        return cell | {"error": f"{type(error).__name__}: {error}"}, pd.DataFrame()
    seconds = float(stored.pop("seconds"))
    table = pd.DataFrame({column: stored[column] for column in stored if column != "points"})
    for column, value in key.items():
        table[column] = value
    table["person"] = np.arange(len(table))
    return cell | {"seconds": seconds, "error": ""}, table


def _stored(name: str, made: Problem, code: str | None, source: _Source) -> dict[str, Any]:
    """Return the arrays of a cell, from its file if nothing that it depends on has changed."""
    task = replace(made.task, widths=made.settings.widths, people=None)
    facts = (name, task, made.delta, len(made.X))
    networks = hashlib.sha256(made.nets.to_bytes()).hexdigest()
    key = hashlib.sha256(repr((facts, networks, code, made.code)).encode()).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    path = source.cache / made.task.name / f"{safe}-{key[:10]}.npz"
    if code is not None and path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    with threadpool_limits(1):
        start = time.process_time()
        found = answered(name, made)
        seconds = (time.process_time() - start) / len(made.X)
        reference = _outliers(made.task.data, made.task.own, source)
        table = measure(found, made, reference)
    result: dict[str, Any] = {str(column): table[column].to_numpy(dtype=float) for column in table}
    result |= {"points": found, "seconds": np.array(seconds)}
    if code is not None:
        with atomic_write(path) as file:
            file.write(_npz(result))
    return result


def _npz(arrays: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _line(cell: Mapping[str, Any], people: pd.DataFrame) -> str:
    """Describe a finished cell."""
    what = f"{cell['data']} {cell['network']} seed {cell['seed']} {cell['method']}"
    if cell["error"]:
        return f"{what} FAILED: {cell['error']}"
    means = people[["vr", "vdelta", "l1", "lof"]].mean()
    return (
        f"{what}: vr {means['vr']:.1%}, vdelta {means['vdelta']:.1%}, l1 {means['l1']:.3f}, "
        f"lof {means['lof']:.2f}, {cell['seconds']:.2g} s"
    )
