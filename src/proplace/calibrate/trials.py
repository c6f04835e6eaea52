"""What is measured at one size of a set of networks: robust rows, answers, and who honours them."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from proplace.certification import certify
from proplace.core.errors import (
    InputError,
    ModelMismatchError,
    ModelNotSupportedError,
    NetworkError,
    RowsSkippedWarning,
    SchemaError,
)
from proplace.core.text import listing
from proplace.explain.proplace import DEFAULT_MARGIN, SLACK
from proplace.loaders.coordinates import in_coordinates_of, with_cutoff_of
from proplace.tables.frames import as_frame
from proplace.tables.rows import model_of, training_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.calibrate.conformal import Honours
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.explain.proplace import Proplace
    from proplace.explain.results import Explanation
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.values import Label
    from proplace.tables.rows import Table

# A little more margin than a search asks for (its margin and slack together), so that a row that keeps
# it is robust for the search too.
_ENOUGH_MARGIN = 2.0 * max(DEFAULT_MARGIN, SLACK)
_SEARCH_ROWS = 2000  # rows by which the largest size of interest is found
_LARGEST = 2.0**40  # beyond, what grows has no influence


@dataclass(frozen=True, eq=False)
class Retrained:
    """A retrained model, and what to call it in messages: ``retrained[3]``."""

    name: str
    model: Model

    @classmethod
    def read(
        cls, name: str, source: object, schema: Schema | None, X_train: Table, base: Model
    ) -> Retrained:
        """Read a model; it is compared with its own predictions on the training table."""
        declared = schema is not None
        try:
            own = with_cutoff_of(base, model_of(source, None))
            if schema is not None:  # scalers may have been fitted again
                own = own.with_schema(schema.unscaled() if own.has_preprocessing else schema)
            with warnings.catch_warnings():  # the current model has reported rows that are left out
                warnings.simplefilter("ignore", RowsSkippedWarning)
                model, _, _ = training_rows(own, X_train, declared=declared)
        except (InputError, ModelMismatchError, ModelNotSupportedError, SchemaError) as error:
            raise type(error)(f"{name}: {error}", name=name) from error
        return cls(name, model)

    def change(self, base: Model) -> float:
        """Largest change of a parameter behind the scalers in use; NaN if none can be compared."""
        if self.model.classes != base.classes:
            raise InputError(
                f"{self.name}: the retrained model has the classes {listing(self.model.classes)}, the "
                f"model in use {listing(base.classes)}; retrain it for the same classes",
                name=self.name,
            )
        try:
            return base.network.distance(in_coordinates_of(base, self.model))
        except (InputError, NetworkError):
            return np.nan

    def accepts(self, table: pd.DataFrame, label: Label) -> tuple[Array, dict[int, str]]:
        """Return which rows get the class from the original model, and why others cannot be read.

        A row that the model cannot read is refused.
        """
        try:
            return self._says(table) == label, {}
        except ValueError as error:
            if len(table) == 1:
                return np.zeros(1, dtype=bool), {0: f"{self.name}: {error}"}
        parts = [self.accepts(table.iloc[[i]], label) for i in range(len(table))]
        unread = {i: why for i, (_, bad) in enumerate(parts) for why in bad.values()}
        return np.concatenate([accepted for accepted, _ in parts]), unread

    def _says(self, table: pd.DataFrame) -> Array:
        """Class of each row, by the original model if it is at hand."""
        said = self.model.predict_original(table)
        found: Array = self.model.predict(table) if said is None else said
        return found


@dataclass(frozen=True, eq=False)
class Trial:
    """What was measured at one size: a row of the curve, and which model honours which answer.

    ``people`` counts the refused people, and ``unread`` holds the reason for each pair of a model and an
    answer that it cannot read.
    """

    row: dict[str, float]
    honours: Honours
    people: int
    unread: tuple[str, ...] = ()

    def validity(self, models: int) -> float:
        """Share of pairs of an answer and one of the first models that gives it the class."""
        honours = self.honours[:models]
        return float(honours.mean()) if honours.size else np.nan


@dataclass(frozen=True, eq=False)
class Question:
    """What is measured at each size: the models, the rows and the people.

    Attributes
    ----------
    model, others
        The current model and the retrained ones.
    rows
        Distinct training rows as the network in use takes them.
    people
        Validation rows.
    target
        Number of the target class.
    gap
        Relative optimality gap of the search.
    """

    model: Model
    others: list[Retrained]
    rows: Array
    people: Table
    target: int
    gap: float

    @property
    def label(self) -> Label:
        """The wanted class."""
        return self.model.classes[self.target]

    @cached_property
    def accepted(self) -> Array:
        """Distinct training rows that have the class."""
        return self.rows[self.model.network.margin(self.rows, self.target) >= 0.0]

    def tried(self, explainer: Proplace, size: float) -> Trial:
        """Measure at one size; ``explainer`` is fitted with the set of that size."""
        robust = len(explainer.robust_rows(self.label))
        people = explainer.explain(self.people, self.label, gap=self.gap)
        bad = next((e for e in people if e.status == "bad_input"), None)
        if bad is not None:
            raise InputError(
                f"a row of people cannot be read: row {bad.index}, {bad.reason}",
                name="people",
            )
        asked = [e for e in people if e.status not in ("already_valid", "worker_died")]
        if not asked:
            raise InputError(
                f"none of the people is refused: all have class {self.label} already", name="people"
            )
        found = [(n, e) for n, e in enumerate(people) if e.found and e.status != "already_valid"]
        row = {
            "delta": size,
            "robust_rows": robust,
            "robust": robust / len(self.rows),
            "robust_of_accepted": robust / max(1, len(self.accepted)),
            "share_explained": len(found) / len(asked),
            "distance": float(np.mean([e.distance for _, e in found])) if found else np.nan,
        }
        honours, unread = self._honours(found)
        return Trial(row, honours, len(asked), unread)

    def _honours(self, found: list[tuple[int, Explanation]]) -> tuple[Honours, tuple[str, ...]]:
        """Which retrained model gives which answer the class, and why some answers cannot be read.

        Each model reads the answer in the units of the table.
        """
        if not found:
            return np.zeros((len(self.others), 0), dtype=bool), ()
        names = list(self.model.schema.by_name)
        given = as_frame(self.people)
        table = pd.DataFrame(index=range(len(found)))
        if given is not None:  # what the current model never looks at stays the person's own
            table = given.iloc[[n for n, _ in found]].reset_index(drop=True)
        cells = {name: [e.counterfactual[name] for _, e in found] for name in names}  # type: ignore[index]
        table = table.assign(**{name: pd.Series(values) for name, values in cells.items()})
        parts = [other.accepts(table, self.label) for other in self.others]
        unread = tuple(why for _, bad in parts for why in bad.values())
        return np.array([accepted for accepted, _ in parts], dtype=bool), unread

    def largest(self, family: Callable[[float], Shifts], share: float) -> float:
        """Nearly the largest size at which a share of the accepted rows is robust, but at least one.

        If no size leaves so many, one row is enough.
        """
        net, target = self.model.network, self.target
        margins = net.margin(self.accepted, target)
        if not len(margins) or margins.max() <= _ENOUGH_MARGIN:
            raise InputError(
                f"no training row has class {self.label}: nothing can be robust", name="X"
            )
        deepest = self.accepted[np.argsort(-margins, kind="stable")]
        spread = np.linspace(0, len(deepest) - 1, min(len(deepest), _SEARCH_ROWS)).astype(int)
        least = math.ceil(share * len(spread))
        for rows, count in ((deepest[spread], least), (deepest[:_SEARCH_ROWS], 1)):
            found = self._largest(family, rows, max(1, count))
            if found is not None:
                return found
        raise InputError(
            f"no training row is robust for class {self.label} at any delta; give rows that "
            "the network puts further inside the class",
            name="X",
        )

    def _largest(self, family: Callable[[float], Shifts], rows: Array, least: int) -> float | None:
        """Nearly the largest size at which so many of some rows are robust; None if there is none."""
        net, target = self.model.network, self.target

        def robust(size: float) -> bool:
            shifts = family(size)
            # A little more margin than the search asks for, so that it finds the row too.
            asked = np.max(self.model.margins(shifts, self.rows, None))
            if not np.isfinite(asked):
                return False
            margin = float(asked) + _ENOUGH_MARGIN
            report = certify(net, rows, shifts, target, margin=margin)
            return bool(report.robust.sum() >= least)

        low, high = 0.0, 1.0
        while high < _LARGEST and robust(high):
            low, high = high, 2.0 * high
        while high - low > 0.05 * high:
            middle = (low + high) / 2.0 if low else high / 4.0
            if middle < 1e-12:
                return None
            if robust(middle):
                low = middle
            else:
                high = middle
        return low
