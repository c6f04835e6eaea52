"""Published packages on the inputs and networks of the experiment, judged by the exact test.

    python benchmarks/rivals.py [--people 20] [--seeds 0] [--only heloc-repaired] [--write]

ElliCE, NICE and DiCE run in virtual environments, which the command makes in ``--environments`` with
pip. A package that does not install is listed with pip's error. RNCE and proplace run beside them, with
the encoding, the people, the training rows and the delta of the experiment. Every method gets the ranges
of the training rows and the 0/1 columns. ``rival_answers.py`` has the options of each package.

Points are judged as they are returned: accepted by the network, robust within delta by the exact test,
accepted by networks retrained on new data and with 1% of the rows left out, distance, local outlier
factor, and changed columns (by more than 1e-4, since ElliCE computes in single precision). ``--write``
saves the tables in ``docs/results/rivals.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import proplace as pp
from common import data_folder, machine
from proplace.baselines import Rnce
from proplace.certification import certify
from proplace.experiment import protocol
from proplace.experiment.archive import BUNDLED, Archive
from proplace.experiment.metrics import l1, lof, outlier_model
from proplace.experiment.settings import DATA as KNOWN
from proplace.experiment.settings import Task
from rival_answers import METHODS

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results" / "rivals.md"
BUILD = HERE.parent / "build"
PACKAGES = {
    "ellice": ["torch==2.13.0", "ellice==0.1.4"],
    "nice": ["NICEx==0.2.3", "scipy"],
    "dice": ["dice-ml==0.12"],
}
"""Environments, and what pip installs there, in turn."""
DATA = ("heloc-repaired", "compas", "adult")
RETRAINED = 10  # networks of each of the two kinds
CHANGED = 1e-4
LIMIT = 900  # seconds for all people of one method


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A network of the archive, the networks that it is retrained to, and people whom it refuses."""

    data: str
    net: pp.Network
    new_data: list[pp.Network]
    left_out: list[pp.Network]
    X: np.ndarray
    rows: np.ndarray
    y: np.ndarray
    binary: np.ndarray
    desired: np.ndarray
    schema: pp.Schema
    delta: float
    k: int


@dataclass(frozen=True, eq=False)
class Answers:
    """Points (NaN if there is none), seconds per person, and reasons of missing points."""

    points: np.ndarray
    seconds: float
    preparation: float
    reasons: list[str]


def evaluation(data: str, seed: int, people: int, cache: Path) -> Evaluation:
    """Return a problem of the experiment; its networks come from the archive."""
    folder = data_folder()
    task = Task(data, seed, people=people)
    found = protocol.problem(task, cache, folder and str(folder), Archive(BUNDLED))
    table = protocol.dataset(data, folder and str(folder))
    return Evaluation(
        data,
        found.net,
        found.nets.retrained["new data"],
        found.nets.retrained["without 1%"],
        found.X,
        found.rows,
        table.y[table.first.rows],
        np.isin(table.X, [0.0, 1.0]).all(axis=0),
        table.desired,
        found.schema,
        found.delta,
        found.settings.k,
    )


# -- answers ---------------------------------------------------------------------------------------


def environment(name: str, folder: Path) -> Path:
    """Return the interpreter of an environment, which is made if it is missing.

    Raise ``RuntimeError`` with pip's message if a package does not install.
    """
    python = folder / name / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
    for package in PACKAGES[name]:
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", package],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise RuntimeError(f"pip install {package}: {' '.join(errors) or done.stderr[-500:]}")
    return python


def of_package(name: str, case: Evaluation, folder: Path) -> Answers:
    """Ask a package in its environment."""
    python = environment(name.partition(",")[0].lower(), folder)
    arrays = {"X": case.X, "rows": case.rows, "y": case.y, "binary": case.binary}
    for i, layer in enumerate(case.net.layers):
        arrays |= {f"W{i}": layer.W, f"b{i}": layer.bias}
    with tempfile.TemporaryDirectory() as place:
        given, result = Path(place) / "problem.npz", Path(place) / "answers.npz"
        np.savez(given, **arrays)
        done = subprocess.run(
            [python, HERE / "rival_answers.py", name, given, result],
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        with np.load(result, allow_pickle=False) as found:
            return Answers(
                found["points"],
                float(found["seconds"].mean()),
                float(found["preparation"]),
                found["reasons"].tolist(),
            )


def of_ours(explainer, case: Evaluation) -> Answers:
    """Ask a method of proplace."""
    start = time.process_time()
    explainer.fit(case.rows)
    explainer.explain(case.X[:1])  # what is done once for all people
    preparation = time.process_time() - start
    start = time.process_time()
    result = explainer.explain(case.X)
    seconds = (time.process_time() - start) / len(case.X)
    points = np.full(case.X.shape, np.nan)
    for i, each in enumerate(result):
        if each.found:
            points[i] = each.encoded_counterfactual
    return Answers(points, seconds, preparation, ["" if e.found else e.reason for e in result])


OURS = {
    "proplace": lambda case: pp.Proplace(case.net, case.delta, schema=case.schema, k=case.k),
    "RNCE": lambda case: Rnce(case.net, case.delta, schema=case.schema),
}


def answers(name: str, case: Evaluation, folder: Path) -> Answers:
    """Ask a method by its name."""
    if name in OURS:
        return of_ours(OURS[name](case), case)
    return of_package(name, case, folder)


# -- judgement -------------------------------------------------------------------------------------

COLUMNS = (
    "method", "accepted", "robust within delta", "valid, new data", "valid, 1% left out", "l1", "lof",
    "changed", "0/1 columns kept", "CPU ms", "missing",
)  # fmt: skip


def judged(name: str, case: Evaluation, found: Answers) -> tuple[str, str]:
    """Return the line of a method, and a note on its missing answers.

    Shares are of all people. Distances, outlier factors and changes are means over accepted points.
    """
    points = found.points
    returned = np.isfinite(points).all(axis=1)
    moved = np.zeros(len(points), dtype=bool)
    moved[returned] = (np.abs(points - case.X)[returned] > CHANGED).any(axis=1)
    accepted = moved.copy()
    accepted[moved] = case.net.predict(points[moved]) == 1
    good = points[accepted]
    shares = [accepted.mean()]
    if len(good):
        count = len(points)
        shares.append(certify(case.net, good, case.delta).robust.sum() / count)
        for networks in (case.new_data, case.left_out):
            shares.append(np.mean([net.predict(good).sum() / count for net in networks]))
        flags = good[:, case.binary]
        away = l1(case.X[accepted], good).mean()
        outlier = lof(good, outlier_model(case.desired)).mean()
        changed = (np.abs(good - case.X[accepted]) > CHANGED).sum(axis=1).mean()
        kept = np.isin(flags, [0.0, 1.0]).all(axis=1).mean() if flags.size else np.nan
        cells = [f"{away:.3f}", f"{outlier:.2f}", f"{changed:.1f}"]
        cells.append("-" if np.isnan(kept) else f"{kept:.0%}")
    else:
        shares, cells = [0.0] * 4, ["-"] * 4
    cells = [f"{share:.0%}" for share in shares] + cells
    cells += [f"{1e3 * found.seconds:.1f}", str(int((~accepted).sum()))]
    note = reasons(found, returned, moved, accepted)
    return f"| {name} | " + " | ".join(cells) + " |", note and f"{name}: {note}"


def reasons(found: Answers, returned: np.ndarray, moved: np.ndarray, accepted: np.ndarray) -> str:
    """Describe why people have no counterfactual."""
    said: dict[str, int] = {}
    for i in np.flatnonzero(~accepted):
        if not returned[i]:
            text = found.reasons[i] or "not a number"
        else:
            text = "refused by the network" if moved[i] else "the person's own row"
        said[text] = said.get(text, 0) + 1
    return "; ".join(f"{count} x {text}" for text, count in said.items())


def section(data: str, seed: int, options: argparse.Namespace) -> list[str]:
    """Ask and judge every method on one problem."""
    case = evaluation(data, seed, options.people, options.cache)
    lines = [
        f"## {data}, seed {seed}",
        "",
        f"Network {'x'.join(map(str, case.net.widths))}, delta {case.delta:g}, {len(case.X)} people, "
        f"{len(case.rows):,} training rows.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    notes = []
    for name in (*OURS, *METHODS):
        try:
            found = answers(name, case, options.environments)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            notes.append(f"{name}: not run: {error}")
            continue
        line, note = judged(name, case, found)
        print(line, flush=True)
        lines.append(line)
        notes += [note] if note else []
    return [*lines, "", *(f"- {note}" for note in notes), ""]


HEAD = """# Published packages beside proplace

`python benchmarks/rivals.py --write` made this page. {machine}

Packages: {packages}. Their options:

- **ElliCE**: `robustness_epsilon` of 10% of the training loss (its documented default) and
  `requires="robust"`;
  `allowed_values` for 0/1 columns. Continuous search with its default weight of proximity, 0, and with
  1; and data-supported, which selects a training row. Its guarantee is about the last layer.
- **NICE**: `optimization` none (the nearest accepted row), proximity and sparsity; 0/1 columns as
  categories. It has no option for robustness.
- **DiCE**: methods random and genetic with one counterfactual and its default precision of numbers; 0/1
  columns as categories. It has no option for robustness. `stopping_threshold=0.9` demands a
  probability of .9.
- **RNCE** and **proplace**: the delta of the problem; proplace with the k of the experiment, gap 1%.

Shares are of all people, so that a missing answer counts as a failure. "Valid" is the mean share over
{retrained} networks retrained from scratch, on new data or with 1% of the rows left out. "Missing"
counts people without a point that the network accepts. Means are over the accepted points of a method.
"""


def main() -> None:
    """Print the tables, and write the page if that is demanded."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--only", nargs="*", default=list(DATA), choices=KNOWN)
    parser.add_argument("--environments", type=Path, default=BUILD / "rivals")
    parser.add_argument("--cache", type=Path, default=BUILD / "experiment")
    parser.add_argument("--write", action="store_true", help=f"save {PAGE.name}")
    options = parser.parse_args()
    packages = ", ".join(
        f"`{names[-1] if key != 'nice' else names[0]}`" for key, names in PACKAGES.items()
    )
    lines = [HEAD.format(machine=machine() + ".", packages=packages, retrained=RETRAINED)]
    for data in options.only:
        for seed in options.seeds:
            lines += section(data, seed, options)
    if options.write:
        PAGE.write_text("\n".join(lines), encoding="utf-8")
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
