"""Batches of a tiny network and many people, as commands of a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import proplace as pp
from commands import with_project
from proplace.batch import explain_file

ROWS = 2_100
SIGNALLED = str(Path(__file__).parent / "support" / "signalled.py")


def make_crowd(folder):
    """A model and tables."""
    rng = np.random.default_rng(0)
    W = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    net = pp.Network([(W, np.zeros(3)), ([[1.0, -0.3, 0.5]], [-1.0])])
    net.save(folder / "model.npz")
    train = pd.DataFrame(rng.random((60, 2)), columns=["a", "b"])
    train.to_csv(folder / "train.csv", index=False)
    people = pd.DataFrame(rng.random((ROWS, 2)).round(4), columns=["a", "b"]).astype(object)
    people.iloc[::97, 1] = "?"
    people.to_csv(folder / "people.csv", index=False)
    return folder


def explain_crowd(folder):
    """The answers of a run that nothing disturbs."""
    explainer = pp.Proplace(pp.Network.load(folder / "model.npz"), 0.01, k=3)
    explainer.fit(pd.read_csv(folder / "train.csv"))
    return explain_file(explainer, folder / "people.csv", folder / "whole", every=1000.0)


def words(folder, out, *more, people="people.csv", delta=0.01):
    names = {"model": "model.npz", "train": "train.csv", "input": people}
    options = [part for name, file in names.items() for part in (f"--{name}", folder / file)]
    return ["explain", *options, "--delta", delta, "explainer.k:", 3, "--out", out, *more]


def first_rows(folder, whole, number):
    """A file with the first people, and their part of the results."""
    lines = (folder / "people.csv").read_text().splitlines(keepends=True)
    (folder / f"first{number}.csv").write_text("".join(lines[: 1 + number]))
    answers = whole.results.read_text().splitlines(keepends=True)
    return f"first{number}.csv", "".join(answers[: 1 + number])


def start(arguments, *, at=None, number=signal.SIGKILL, ignore=None, **options):
    """Start a command; with ``at``, it gets a signal just before it renames its n-th file.

    Signals that the tests may have been told to ignore mean something again, except ``ignore``.
    """
    program = ["-m", "proplace"] if at is None else [SIGNALLED, str(at), str(int(number))]
    return subprocess.Popen(
        [sys.executable, *program, *with_project(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: _listen(ignore),  # noqa: PLW1509  (it takes no lock)
        **options,
    )


def start_and_stop(arguments, at):
    """Start a command and return when it stands still before it renames its n-th file."""
    process = start(arguments, at=at, number=signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.communicate()
    return process


def _listen(ignore):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number == ignore else signal.SIG_DFL)


def rows_done(out):
    """Rows that are in shards, if there are no gaps."""
    return max((int(p.name.split("-")[2]) for p in (out / "shards").glob("rows-*.csv")), default=0)
