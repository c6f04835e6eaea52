"""Refits: trainings from scratch of the current model, on bootstrap rows and with other seeds.

A bootstrap sample of the training rows may lose a rare category, all missing cells of a column, or a
class. An encoder that is fitted on it then has other columns, or rejects people of that category. Each
sample therefore gets one random row of everything that it lost.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from proplace.core.errors import InputError, OptionError
from proplace.core.options import integer
from proplace.core.progress import progress_bar
from proplace.core.text import listing, short
from proplace.schema import Continuous
from proplace.tables.rows import as_frame, read_people

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.loaders.model import Model
    from proplace.schema.grid import Integers
    from proplace.tables.rows import Table

_PEOPLE = 40  # largest number of refused people that are held out
_HELD_OUT = 5  # at most one row in 5 is held out


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table, and the part on which refits are trained.

    Attributes
    ----------
    X, y
        The given table or array, and its labels.
    groups
        Codes of everything that no sample may lose: categories and missing cells of each column, and
        the classes.
    train, people
        Positions of the rows that train refits and span the region, and of the held-out people.
    """

    X: Any
    y: Any
    groups: Sequence[Integers]
    train: Integers
    people: Integers

    @classmethod
    def of(cls, model: Model, X: Table, y: object, target: int, *, seed: int, split: bool) -> Rows:
        """Hold out random refused people if ``split``. Every category stays in the rest."""
        frame = as_frame(X)
        given = np.asarray(X) if frame is None else frame
        labels = None if y is None else _labels(model, y, len(given))
        groups = _groups(model, given, labels)
        everybody = np.arange(len(given))
        if not split:
            return cls(given, labels, groups, everybody, everybody[:0])
        encoded, bad, _ = read_people(model, X)
        refused = np.zeros(len(given), dtype=bool)
        good = np.delete(everybody, list(bad))
        refused[good] = model.network.predict(encoded[good]) != target
        order = np.random.default_rng(seed).permutation(len(given))
        needed = [order[np.unique(codes[order], return_index=True)[1]] for codes in groups]
        free = order[~np.isin(order, np.concatenate([order[:0], *needed]))]
        free = free[: len(given) // _HELD_OUT]
        free = free[: 1 + np.searchsorted(np.cumsum(refused[free]), _PEOPLE)]
        if not refused[free].any():
            raise InputError(
                f"none of the {len(free)} rows of X that can be held out is refused by the current "
                f"model. Give the people to explain as people=... (their labels are not needed)",
                name="people",
            )
        return cls(given, labels, groups, np.setdiff1d(everybody, free), free[refused[free]])

    def taken(self, positions: Integers) -> Any:
        """Return some rows, in the given type."""
        if isinstance(self.X, pd.DataFrame):
            return self.X.iloc[positions]
        return self.X[positions]

    def readable(self, model: Model) -> Any:
        """Return the held-out people whom a model can read; numbers may lie beyond the other rows."""
        bad = read_people(model, self.taken(self.people))[1]
        if len(bad) == len(self.people):
            raise InputError(
                f"none of the {len(bad)} refused people that are held out can be explained by the other "
                f"rows: {bad[min(bad)].reason}. Give the people to explain as people=...",
                name="people",
            )
        return self.taken(np.delete(self.people, list(bad)))

    def sample(self, rng: np.random.Generator) -> Integers:
        """Draw a bootstrap sample of the training rows, with one row of each group that it lost."""
        drawn = rng.choice(self.train, len(self.train))
        for codes in self.groups:
            lost = np.setdiff1d(codes[self.train], codes[drawn])
            more = [rng.choice(self.train[codes[self.train] == code]) for code in lost]
            drawn = np.concatenate([drawn, np.array(more, dtype=drawn.dtype)])
        return drawn


def refitted(
    source: object,
    rows: Rows,
    count: int,
    train: Callable[[Integers], object] | None,
    *,
    seed: int,
    n_jobs: int,
    progress: bool,
) -> list[object]:
    """Train models from scratch. ``train`` runs in this process, one model after another."""
    draws = [np.random.default_rng([seed, number]) for number in range(count)]
    samples = [rows.sample(rng) for rng in draws]
    found: list[object] = []
    with progress_bar("refit", count, show=progress) as advance:
        if train is None:
            seeds = [int(rng.integers(2**31 - 1)) for rng in draws]
            tasks = (
                joblib.delayed(_fit)(source, rows.taken(sample), rows.y[sample], one, number)
                for number, (sample, one) in enumerate(zip(samples, seeds, strict=True))
            )
            models = joblib.Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
        else:
            models = (train(sample) for sample in samples)
        for model in models:
            if model is None:
                raise OptionError(
                    "train returned None. It must return the new model", name="train", value=train
                )
            if any(model is other for other in (source, *found)):
                raise OptionError(
                    "train returned the same model twice, or the current one. It must make a new model "
                    "in each call",
                    name="train",
                )
            found.append(model)
            advance(1)
    return found


def check_refits(
    refits: int | None, retrained: object, source: object, y: object, train: object
) -> None:
    """Raise ``OptionError`` unless there are retrained models, or the source can be trained again."""
    if (refits is None) == (retrained is None):
        raise OptionError(
            "Give either refits=10, to train models here, or retrained=[...], the retrained models.",
            name="refits",
            value=refits,
        )
    if refits is None:
        if train is not None:
            raise OptionError(
                "train needs the number of refits. Give it as refits=10.", name="train"
            )
        return
    integer("refits", refits)
    if train is not None:
        if not callable(train):
            raise OptionError(
                "train must be a function train(rows) that returns a newly trained model, not "
                f"{short(train)}",
                name="train",
                value=train,
            )
        return
    if not (hasattr(source, "get_params") and hasattr(source, "fit")):
        raise OptionError(
            f"refits can clone scikit-learn estimators only, and this is a {type(source).__name__}. "
            "Give a function train(rows) that returns a new model trained on the rows at these "
            "positions of X (train=...), or models that are trained already (retrained=[...])",
            name="train",
        )
    if y is None:
        raise OptionError(
            "refits needs the labels of the training rows: calibrate_delta(pipeline, X_train, "
            "y_train, refits=10)",
            name="y",
        )


def _labels(model: Model, y: object, count: int) -> Any:
    """Return the labels as an array; they must be classes of the model."""
    labels = np.asarray(y)
    labels = labels.ravel() if labels.shape == (count, 1) else labels
    if labels.shape != (count,):
        raise InputError(f"y must have {count} labels, one for each row of X", name="y")
    known = pd.unique(pd.Series(labels)).tolist()
    strange = [label for label in known if label not in model.classes]
    if strange:
        raise InputError(
            f"y holds {listing(strange)}, and the classes of the model are {listing(model.classes)}. "
            "Give the labels that the model was trained with",
            name="y",
        )
    return labels


def _groups(model: Model, X: Any, labels: Any) -> list[Integers]:
    """Return codes of the categories of each column, of missing cells, and of the classes."""
    found = [] if labels is None else [pd.factorize(labels)[0]]
    if not isinstance(X, pd.DataFrame):
        if not model.has_preprocessing:
            return found
        X = model.table(X)
    columns = {str(name): X.iloc[:, i] for i, name in enumerate(X.columns)}
    for feature in model.schema.features:
        if feature.name not in columns:
            continue
        cells: pd.Series[Any] = columns[feature.name]
        if isinstance(feature, Continuous):
            cells = cells.isna()
        found.append(pd.factorize(cells, use_na_sentinel=False)[0])
    return found


def _fit(source: Any, X: Any, y: Any, seed: int, number: int) -> object:
    """Fit a clone with other seeds."""
    model = clone(source)
    seeded = [
        name
        for name in model.get_params(deep=True)
        if name == "random_state" or name.endswith("__random_state")
    ]
    model.set_params(**dict.fromkeys(seeded, seed))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(X, y)
    except (TypeError, ValueError) as error:
        raise InputError(f"refits[{number}] cannot be trained: {error}", name="X") from error
