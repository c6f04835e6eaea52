"""The data sets of the paper for tests, which are skipped where the files are not at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proplace.experiment.data import load

FOLDER = Path(
    os.environ.get("PROPLACE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
NAMES = ("adult", "compas", "gmc", "heloc")


def folder():
    """The folder of the data sets, or skip."""
    if not all((FOLDER / f"{name}.csv.gz").exists() for name in NAMES):
        pytest.skip(f"no data sets in {FOLDER}; set PROPLACE_DATA to the folder that holds them")
    return FOLDER


def dataset(name, *, repaired=False):
    """A data set of the paper, or skip."""
    return load(name, folder(), repaired=repaired)
