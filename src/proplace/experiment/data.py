"""The four data sets of the paper, from a folder or by download, with checksums.

The files are those of the CARLA benchmark (repository ``carla-recourse/cf-data``). They are not part
of this package. Label 1 is the desired outcome.

*Encoding*: numbers are scaled to [0, 1] by their range over the whole file, two-valued categories are
one 0/1 column, numbers first. *Split* (as in the published runs): NumPy's legacy generator seeded
with 1 draws ``n // 2 - 1`` rows, the first half. Each half is split 80/20, stratified, with
scikit-learn's ``random_state=0``.

HELOC as published leaks its label: missing cells were replaced with the mean of the row's own class.
The repaired version replaces every cell that is not a whole number (no observed value is) with the
median of the first half's training rows of both labels.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.model_selection import train_test_split

from proplace.core.errors import InputError, OptionError, require
from proplace.schema import Binary, Continuous, Linear, Schema
from proplace.tables.files import read_csv

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import pandas as pd

    from proplace.core.network import Array

    Rows = npt.NDArray[np.int64]

FOLDER_VARIABLE = "PROPLACE_DATA"
_COMMIT = "2d56677095bd11deba5d8e3731f8941b95e0a880"
_ADDRESS = "https://raw.githubusercontent.com/carla-recourse/cf-data/{version}/{file}"


@dataclass(frozen=True)
class Source:
    """File, checksum, target and schema of a data set."""

    file: str
    sha256: str
    target: str
    schema: Callable[[pd.DataFrame], Schema]


# -- schemas ---------------------------------------------------------------------------------------


def adult(_: pd.DataFrame) -> Schema:
    """Census income: traits and the survey weight are fixed, age and schooling only grow."""
    fixed = True
    return Schema(
        [
            Continuous("age", 17, 90, step=1, direction="increasing", unit="years"),
            Continuous("fnlwgt", 12_285, 1_490_400, step=1, immutable=True),
            Continuous("education-num", 1, 16, step=1, direction="increasing"),
            Continuous("capital-gain", 0, 99_999, step=1, unit="dollars"),
            Continuous("capital-loss", 0, 4_356, step=1, unit="dollars"),
            Continuous("hours-per-week", 1, 99, step=1),
            Binary("marital-status", ["Married", "Non-Married"], immutable=fixed),
            Binary("native-country", ["Non-US", "US"], immutable=fixed),
            Binary("occupation", ["Managerial-Specialist", "Other"]),
            Binary("race", ["Non-White", "White"], immutable=fixed),
            Binary("relationship", ["Husband", "Non-Husband"], immutable=fixed),
            Binary("sex", ["Female", "Male"], immutable=fixed),
            Binary("workclass", ["Non-Private", "Private"]),
        ]
    )


def compas(_: pd.DataFrame) -> Schema:
    """Risk scores: traits are fixed, a count of past offences cannot go down."""
    return Schema(
        [
            Continuous("age", 18, 96, step=1, immutable=True, unit="years"),
            Binary("two_year_recid", immutable=True),
            Continuous("priors_count", 0, 38, step=1, direction="increasing"),
            Continuous("length_of_stay", -1, 799, step=1, unit="days"),
            Binary("c_charge_degree", ["F", "M"]),
            Binary("race", ["African-American", "Other"], immutable=True),
            Binary("sex", ["Female", "Male"], immutable=True),
        ]
    )


def gmc(_: pd.DataFrame) -> Schema:
    """Give Me Some Credit: age and dependants are fixed, counts are whole numbers."""
    return Schema(
        [
            Continuous("RevolvingUtilizationOfUnsecuredLines", 0, 771),
            Continuous("age", 21, 94, step=1, immutable=True, unit="years"),
            Continuous("NumberOfTime30-59DaysPastDueNotWorse", 0, 10, step=1),
            Continuous("DebtRatio", 0, 1299),
            Continuous("MonthlyIncome", 0, 49_750, step=1, unit="dollars"),
            Continuous("NumberOfOpenCreditLinesAndLoans", 0, 24, step=1),
            Continuous("NumberOfTimes90DaysLate", 0, 10, step=1),
            Continuous("NumberRealEstateLoansOrLines", 0, 4, step=1),
            Continuous("NumberOfTime60-89DaysPastDueNotWorse", 0, 8, step=1),
            Continuous("NumberOfDependents", 0, 4, step=1, immutable=True),
        ]
    )


def heloc(frame: pd.DataFrame) -> Schema:
    """Home equity credit: another lender's score is fixed, past delinquencies cannot go down.

    Steps of 1 for columns of whole numbers (all columns of the repaired version).
    """
    late = ("NumTrades60Ever2DerogPubRec", "NumTrades90Ever2DerogPubRec")
    return Schema(
        [
            Continuous(
                str(name),
                float(column.min()),
                float(column.max()),
                step=1 if (column % 1 == 0).all() else None,
                immutable=name == "ExternalRiskEstimate",
                direction="increasing" if name in late else None,
            )
            for name, column in frame.items()
        ],
        rules=[
            Linear({late[0]: 1, late[1]: -1}, lower=0, name="90 days late is also 60 days late"),
            Linear(
                {"NumInqLast6M": 1, "NumInqLast6Mexcl7days": -1},
                lower=0,
                name="inquiries without the last week are among all inquiries",
            ),
        ],
    )


def free(schema: Schema) -> Schema:
    """Treat features as the paper does: numbers anywhere in their range, categories legal, no rule."""
    return Schema(
        [
            Binary(feature.name, feature.values)
            if isinstance(feature, Binary)
            else Continuous(feature.name, feature.lower, feature.upper)
            for feature in schema.features
            if isinstance(feature, (Binary, Continuous))
        ]
    )


SOURCES = {
    "adult": Source(
        "adult.csv",
        "e98ef37848b34919802d9e110718dd02ccbc8ec0369677f92bb1fd40b71eccdc",
        "income",
        adult,
    ),
    "compas": Source(
        "compas.csv",
        "e99430e4bdeebc858ba22726be3c3924c8435e6c890e2ae7f52d0411a3cc0516",
        "score",
        compas,
    ),
    "gmc": Source(
        "give_me_some_credit.csv",
        "a79d610d1d3e1e8ee1906185cd958c671391fe4866a02f79c148ac6685a6dcb0",
        "SeriousDlqin2yrs",
        gmc,
    ),
    "heloc": Source(
        "heloc.csv",
        "6a668dddbd2b59aed119c0169c562d54ad6a462580ca783628e88cbc59315d41",
        "RiskPerformance",
        heloc,
    ),
}


@dataclass(frozen=True, eq=False)
class Half:
    """Row positions of one half of a data set. ``rows`` is the training and the test part."""

    train: Rows
    test: Rows

    @property
    def rows(self) -> Rows:
        """All rows of the half, in the order of the file."""
        return np.sort(np.concatenate([self.train, self.test]))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table in original units, its labels, schema and split.

    Attributes
    ----------
    name
        As in tables: ``"heloc"`` as published, ``"heloc-repaired"`` without the label leak.
    frame, y
        Features in original units, in the order of the encoding, and labels (1: desired).
    schema
        Kinds, ranges and rules.
    first, second
        The halves: networks are trained on the first and retrained on both.
    """

    name: str
    frame: pd.DataFrame
    y: Rows
    schema: Schema
    first: Half
    second: Half

    @cached_property
    def X(self) -> Array:  # noqa: N802  (as everywhere: rows of features)
        """All rows, encoded as in the paper."""
        return self.schema.encode(self.frame)

    @cached_property
    def desired(self) -> Array:
        """Encoded rows of the first half with label 1."""
        rows = self.first.rows
        wanted: Array = self.X[rows[self.y[rows] == 1]]
        return wanted

    @cached_property
    def free(self) -> Schema:
        """The features as the paper treats them: same encoding, no rule."""
        return free(self.schema)


def load(
    name: str, folder: str | os.PathLike[str] | None = None, *, repaired: bool = False
) -> Dataset:
    """Read a data set of the paper.

    Parameters
    ----------
    name
        ``"adult"``, ``"compas"``, ``"gmc"`` or ``"heloc"``.
    folder
        Folder with the CSV files (also gzipped). Default: the folder of the environment variable
        ``PROPLACE_DATA``, otherwise a download (the extra ``data``), which is saved.
    repaired
        HELOC only: remove the label leak.
    """
    if name not in SOURCES:
        raise OptionError(
            f"data set must be one of {', '.join(SOURCES)}, not {name!r}", name="name", value=name
        )
    if repaired and name != "heloc":
        raise OptionError(
            f"only heloc has a repaired version; {name} needs none", name="repaired", value=repaired
        )
    source = SOURCES[name]
    frame = read_csv(io.BytesIO(_content(name, source, folder)))
    y = frame.pop(source.target).to_numpy().astype(np.int64)
    first, second = halves(y)
    if repaired:
        frame = without_leak(frame, first.train)
    schema = source.schema(frame)
    frame = frame[[feature.name for feature in schema.features]]
    return Dataset(f"{name}-repaired" if repaired else name, frame, y, schema, first, second)


def halves(y: Rows) -> tuple[Half, Half]:
    """Split rows by their labels as the published runs do."""
    drawn = np.random.RandomState(1).choice(len(y), len(y) // 2 - 1, replace=False)
    first = np.sort(drawn)
    second = np.setdiff1d(np.arange(len(y)), first)
    parts = []
    for half in (first, second):
        train, test = train_test_split(half, test_size=0.2, stratify=y[half], random_state=0)
        parts.append(Half(train, test))
    return parts[0], parts[1]


def without_leak(frame: pd.DataFrame, train: Rows) -> pd.DataFrame:
    """Replace cells that are no whole number with the (lower) median of the training rows."""
    known = frame.where(frame % 1 == 0)
    return known.fillna(known.iloc[train].quantile(0.5, interpolation="lower"))


def _content(name: str, source: Source, folder: str | os.PathLike[str] | None) -> bytes:
    """The CSV file as bytes, checked."""
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    path = _download(source) if folder is None else _find(name, source, Path(folder))
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if hashlib.sha256(content).hexdigest() != source.sha256:
        raise InputError(
            f"{path} is not the file of the benchmark (its SHA-256 differs)", name=path.name
        )
    return content


def _find(name: str, source: Source, folder: Path) -> Path:
    names = dict.fromkeys([f"{name}.csv.gz", f"{name}.csv", source.file, f"{source.file}.gz"])
    for candidate in names:
        if (folder / candidate).exists():
            return folder / candidate
    raise InputError(
        f"{folder} holds none of {', '.join(names)}. Give the folder of the data sets",
        name="folder",
        value=folder,
    )


def _download(source: Source) -> Path:
    pooch = require("pooch", "data", "downloading data sets")
    problem: Exception | None = None
    for version in (_COMMIT, "main"):
        try:
            return Path(
                pooch.retrieve(
                    _ADDRESS.format(version=version, file=source.file),
                    known_hash=f"sha256:{source.sha256}",
                    fname=source.file,
                    path=pooch.os_cache("proplace"),
                )
            )
        except Exception as error:  # whatever the network layers raise
            problem = error
    raise InputError(
        f"{source.file} could not be downloaded ({problem}). Put it into a folder and give that "
        f"folder, or set {FOLDER_VARIABLE}",
        name=source.file,
    ) from problem
