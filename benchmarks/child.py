"""One measurement in a process of its own, so that any checkout of proplace can be measured.

:func:`run` starts this file with the ``src`` folder of a checkout on the path. The task is a function
of this file with its arguments, stored with joblib; the result is JSON. The file imports neither
``common`` nor anything else that another version may lack.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import highspy
import joblib
import numpy as np

import proplace as pp

HERE = Path(__file__).resolve()
OWN_SOURCE = HERE.parents[1] / "src"
SLACK = 1e-4  # extra margin of the search: a bound holds for points with a margin of 1e-6 + SLACK


def run(task: str, source: Path = OWN_SOURCE, **arguments: object) -> object:
    """Run a function of this file on the checkout whose ``src`` folder is ``source``."""
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "task.joblib", Path(folder) / "result.json"
        joblib.dump((task, arguments), given)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", HERE, given, result],
            env=os.environ | {"PYTHONPATH": str(source)},
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{task} failed on {source} with exit status {done.returncode}")
        return json.loads(result.read_text(encoding="utf-8"))


def commit_of(source: Path = OWN_SOURCE) -> str:
    """Return the last commit that changed a source folder, with a plus sign if files were edited."""
    last = git(source, "log", "-1", "--format=%h", "--", ".")
    edited = git(source, "status", "--porcelain", "--untracked-files=no", ".")
    return (last or "unknown") + ("+" if edited else "")


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command; empty if the folder is not a checkout."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# -- people of one model -----------------------------------------------------------------------


def explain_people(pipeline, train, people, delta, steps, gaps, limit, long=None):
    """Explain people at every gap, one call each, and check every counterfactual.

    Return the seconds of ``fit`` and of the first use of the target, and one list of records for
    each gap. ``long`` is the time limit of one more run at gap 0. A version without the option
    ``gap`` runs once, with the key ``"none"``.
    """
    start = time.process_time()
    explainer = pp.Proplace(pipeline, delta, time_limit=limit).fit(train)
    fit = time.process_time() - start
    if not steps:
        schema = without_steps(explainer, train)
        explainer = pp.Proplace(pipeline, delta, schema=schema, time_limit=limit).fit(train)
    start = time.process_time()
    explainer.robust_rows(1)
    explain(explainer, people.iloc[-1:], 1.0)  # a person who is not measured
    first = time.process_time() - start
    runs = {}
    for gap in gaps if has_gap(explainer) else [None]:
        runs["none" if gap is None else f"{gap:g}"] = [
            timed(explainer, people.iloc[i : i + 1], gap) for i in range(len(people) - 1)
        ]
    if long and has_gap(explainer):
        explainer.time_limit = long
        runs["long"] = [timed(explainer, people.iloc[i : i + 1], 0) for i in range(len(people) - 1)]
    return {"version": pp.__version__, "fit": fit, "first_use": first, "runs": runs}


def without_steps(explainer, train):
    """Return a schema whose numbers have ranges and no steps."""
    own = {} if explainer.model_.has_preprocessing else {"scaling": "none"}
    features = []
    for f in explainer.schema_.features:
        if isinstance(f, pp.Continuous):
            low = float(train[f.name].min()) if f.lower is None else f.lower
            high = float(train[f.name].max()) if f.upper is None else f.upper
            features.append(pp.Continuous(f.name, low, high, **own))
        else:
            features.append(f)
    return pp.Schema(features)


def has_gap(explainer):
    """Return True if this version takes an optimality gap."""
    return "gap" in inspect.signature(explainer.explain).parameters


def explain(explainer, rows, gap):
    """Explain rows, with the gap if this version takes one."""
    return explainer.explain(rows, 1, **({"gap": gap} if has_gap(explainer) else {}))


def hull_distance(explainer, found, gap):
    """Return the distance of the hull's nearest point, or an upper bound on it with steps.

    A search that was not stopped by the clock has proved its gap, so with steps the bound tells how
    far the point of the hull is at most.
    """
    stepped = any(column.kind == "grid" for column in explainer.schema_.columns)
    if not stepped or gap in (None, 1) or found.timed_out:
        return found.distance
    return found.bound / (1.0 - max(gap, 1e-7))


def timed(explainer, row, gap):
    """Explain one row; return the record of its time, distances and checks."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    found = explain(explainer, row, gap)[0]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    # the library's own seconds leave out the reading of the table, about 7 ms a call
    record = {
        "wall": found.seconds,
        "cpu": found.seconds * min(1.0, cpu / wall),
        "status": found.status,
    }
    if found.found:
        record |= {
            "distance": found.distance,
            "hull_distance": hull_distance(explainer, found, gap),
            "bound": found.bound,
            "in_region": bool(getattr(found, "in_region", True)),
            "timed_out": bool(getattr(found, "timed_out", found.status != "optimal")),
            # a nearer point with a smaller margin than the search demands does not refute a bound
            "comparable": bool(found.margin >= 1e-6 + SLACK * (1 - 1e-6)),
            **checks(explainer, found),
        }
    return record


def checks(explainer, found):
    """Check a counterfactual: the pipeline accepts its values, and the certificate is valid."""
    frame = found.counterfactual.to_frame().T.infer_objects()
    model = explainer.source if hasattr(explainer, "source") else explainer.model
    accepted = model.predict(frame[list(model.feature_names_in_)])[0] == 1
    verdict = found.certificate.check(explainer.net_, explainer.shifts_)
    return {"accepted": bool(accepted), "certified": bool(verdict.accepted)}


# -- several requests ----------------------------------------------------------------------------


def ask(pipeline, train, people, delta, ways, limit):
    """Explain people in several ways; return the version and one list of records for each way.

    A way has ``steps`` (True: numbers have the steps of a drafted schema), ``immutable`` (names),
    ``rows`` (positions of the people) and ``wishes`` (keywords of ``explain``). The last person
    warms up.
    """
    fitted, found = {}, []
    for way in ways:
        options, wishes = in_own_words(way["wishes"])
        key = json.dumps([way["steps"], way["immutable"], options])
        if key not in fitted:
            schema = drafted(train, way["steps"], way["immutable"])
            explainer = pp.Proplace(pipeline, delta, schema=schema, time_limit=limit, **options)
            fitted[key] = explainer.fit(train)
        fitted[key].explain(people.iloc[-1:], 1, **wishes)
        found.append([asked(fitted[key], people.iloc[i : i + 1], wishes) for i in way["rows"]])
    return {"version": pp.__version__, "records": found}


def in_own_words(wishes):
    """Return the options of the constructor and the keywords of ``explain`` of this version.

    In 0.2 a request belonged to the constructor, sparse was called few, and nothing was typical.
    """
    if "prefer" not in inspect.signature(pp.Proplace).parameters:
        return {}, wishes
    names = {"sparse": "few", "nearest": "near"}
    options = {name: wishes[name] for name in ("prefer", "max_changes") if name in wishes}
    return {name: names.get(value, value) for name, value in options.items()}, {}


def drafted(train, steps, immutable):
    """Return the drafted schema of a table, with or without its steps."""
    schema = pp.Schema.infer(train, immutable=immutable, scaling="model")
    if steps:
        return schema
    plain = [replace(f, step=None) if isinstance(f, pp.Continuous) else f for f in schema.features]
    return pp.Schema(plain)


def asked(explainer, row, wishes):
    """Explain one row; return the record of its time, cells and checks."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    found = explainer.explain(row, 1, **wishes)[0]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    # the library's own seconds leave out the reading of the table, about 7 ms a call
    record = {
        "cpu": found.seconds * min(1.0, cpu / wall),
        "status": found.status,
    }
    if found.found:
        cells = found.counterfactual[list(row.columns)].tolist()
        record |= {
            "cells": [getattr(cell, "item", lambda cell=cell: cell)() for cell in cells],
            "typical": getattr(found, "typical", None),
            "reason": found.reason,
            **checks(explainer, found),
        }
    return record


# -- releases ------------------------------------------------------------------------------------


def yardstick():
    """Return the processor seconds of a fixed piece of work: linear programs and small matrices.

    Do not change it: the ratios of all releases refer to it.
    """
    rng = np.random.default_rng(0)
    A, b, c = rng.uniform(size=(40, 60)), rng.uniform(20.0, 30.0, 40), -rng.uniform(size=60)
    X, W = rng.normal(size=(60, 200)), rng.normal(size=(60, 60)) / 8.0
    start = time.process_time()
    for i in range(12):
        solver = highspy.Highs()
        solver.silent()
        for j in range(60):
            solver.addVar(0.0, 3.0)
            solver.changeColCost(j, float(c[j] + 0.01 * i))
        for row, side in zip(A, b, strict=True):
            solver.addRow(-highspy.kHighsInf, side, 60, np.arange(60, dtype=np.int32), row)
        solver.run()
    for _ in range(300):
        X = np.maximum(W @ X, 0.0) + 0.01
    return time.process_time() - start


def release(cases, own, table, repetitions):
    """Measure the fixed cases of a release, each beside the yardstick.

    ``cases`` are networks of the paper with people, at gap 0; ``own`` is a pipeline at the default
    gap; ``table`` is a network with rows for ``certify``. Return seconds for one person (1,000 rows
    of ``certify``), and their median ratio to the yardstick.
    """
    work = {case["name"]: paper_case(**case) for case in cases}
    work["certify"] = certify_case(**table)
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        work["own pipeline"] = own_case(**own)  # 0.1 does not take pipelines
    found = {name: [] for name in work}
    for _ in range(repetitions):
        for name, (call, count) in work.items():
            before = yardstick()
            start = time.process_time()
            call()
            spent = time.process_time() - start
            found[name].append((spent / count, spent / count / (before + yardstick()) * 2.0))
    figures = {name: np.median(values, axis=0).tolist() for name, values in found.items()}
    return {"version": pp.__version__, "figures": figures}


def paper_case(name, layers, train, people, delta, k):
    """Return a call that explains the people of a case at gap 0, and their number."""
    net = pp.Network(layers)
    explainer = pp.Proplace(net, delta, k=k, schema=encoded_schema(train)).fit(train)
    options = {"gap": 0} if has_gap(explainer) else {}
    explainer.explain(people[:1], **options)
    return lambda: explainer.explain(people, **options), len(people)


def own_case(pipeline, train, people, delta):
    """Return a call that explains people of a pipeline with default options, and their number."""
    explainer = pp.Proplace(pipeline, delta, time_limit=10).fit(train)
    explainer.explain(people.iloc[:1], 1)
    return lambda: explainer.explain(people, 1), len(people)


def certify_case(layers, rows, delta):
    """Return a call that certifies rows, and their number in thousands."""
    net = pp.Network(layers)
    pp.certify(net, rows[:100], delta)
    return lambda: pp.certify(net, rows, delta), len(rows) / 1000


def encoded_schema(X):
    """Return a schema of encoded columns: 0/1 columns are binary, the others continuous."""
    return pp.Schema(
        [
            pp.Binary(f"x{i}")
            if np.isin(column, (0.0, 1.0)).all()
            else pp.Continuous(f"x{i}", 0.0, 1.0, scaling="none")
            for i, column in enumerate(X.T)
        ]
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    task, arguments = joblib.load(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps(globals()[task](**arguments)), encoding="utf-8")
