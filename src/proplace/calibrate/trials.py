"""Measurements at one size of a shift set: robust rows, counterfactuals, and their validity."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from proplace.certification import certify
from proplace.core.errors import (
    DraftWarning,
    InputError,
    ModelMismatchError,
    ModelNotSupportedError,
    NetworkError,
    RowsSkippedWarning,
    SchemaError,
)
from proplace.core.text import listing
from proplace.explain.proplace import DEFAULT_MARGIN, SLACK
from proplace.loaders.align import in_coordinates_of, with_cutoff_of
from proplace.tables.rows import as_frame, model_of, training_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proplace.calibrate.conformal import Honours
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.explain.proplace import Proplace
    from proplace.explain.results import Explanation
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.values import Label
    from proplace.tables.rows import Table

# A little more than the margin and the slack of a search, so that a row with this margin is robust for
# the search as well.
_ENOUGH_MARGIN = 2.0 * max(DEFAULT_MARGIN, SLACK)
_SEARCH_ROWS = 2000  # rows that determine the largest size of interest
_LARGEST = 2.0**40  # largest size that is tried


@contextmanager
def without_table_warnings() -> Iterator[None]:
    """Suppress warnings about a training table that another step reads, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RowsSkippedWarning)
        warnings.simplefilter("ignore", DraftWarning)
        yield


@dataclass(frozen=True, eq=False)
class Retrained:
    """A retrained model, and its name in messages, such as ``retrained[3]``."""

    name: str
    model: Model

    @classmethod
    def read(
        cls, name: str, source: object, schema: Schema | None, X_train: Table, base: Model
    ) -> Retrained:
        """Read a model, and compare it with its own predictions on the training table."""
        declared = schema is not None
        try:
            own = with_cutoff_of(base, model_of(source, None))
            if schema is not None:  # scalers may have been refitted
                own = own.with_schema(schema.unscaled() if own.has_preprocessing else schema)
            with without_table_warnings():
                model, _, _ = training_rows(own, X_train, declared=declared)
        except (InputError, ModelMismatchError, ModelNotSupportedError, SchemaError) as error:
            raise type(error)(f"{name}: {error}", name=name) from error
        return cls(name, model)

    def change(self, base: Model) -> float:
        """Return the largest change of a parameter after the current scalers. NaN if not comparable."""
        if self.model.classes != base.classes:
            raise InputError(
                f"{self.name}: the retrained model has the classes {listing(self.model.classes)}, the "
                f"current model {listing(base.classes)}. Retrain it for the same classes.",
                name=self.name,
            )
        try:
            return base.network.distance(in_coordinates_of(base, self.model))
        except (InputError, NetworkError):
            return np.nan

    def accepts(self, table: pd.DataFrame, label: Label) -> tuple[Array, dict[int, str]]:
        """Test which rows get the class, and collect errors about rows that cannot be read.

        A row that the model cannot read is refused.
        """
        try:
            return self._labels(table) == label, {}
        except ValueError as error:
            if len(table) == 1:
                return np.zeros(1, dtype=bool), {0: f"{self.name}: {error}"}
        parts = [self.accepts(table.iloc[[i]], label) for i in range(len(table))]
        unread = {i: why for i, (_, bad) in enumerate(parts) for why in bad.values()}
        return np.concatenate([accepted for accepted, _ in parts]), unread

    def _labels(self, table: pd.DataFrame) -> Array:
        """Return the class of each row, by the original model if there is one."""
        labels = self.model.predict_original(table)
        found: Array = self.model.predict(table) if labels is None else labels
        return found


@dataclass(frozen=True, eq=False)
class Trial:
    """Result at one size: a row of the curve, and which model honours which counterfactual.

    ``people`` counts the refused people. ``unread`` holds the reason for each pair of a model and a
    counterfactual that it cannot read.
    """

    row: dict[str, float]
    honours: Honours
    people: int
    unread: tuple[str, ...] = ()

    def validity(self, models: int) -> float:
        """Return the share of pairs of a counterfactual and one of the first models that accept it."""
        honours = self.honours[:models]
        return float(honours.mean()) if honours.size else np.nan


@dataclass(frozen=True, eq=False)
class CalibrationTask:
    """The models, the rows and the people that are measured at each size.

    Attributes
    ----------
    model, others
        The current model and the retrained ones.
    rows
        Distinct training rows, encoded for the current model.
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
        """Label of the target class."""
        return self.model.classes[self.target]

    @cached_property
    def accepted(self) -> Array:
        """Distinct training rows that the current model accepts."""
        return self.rows[self.model.network.margin(self.rows, self.target) >= 0.0]

    def measure(self, explainer: Proplace, size: float) -> Trial:
        """Measure at one size, with an explainer that is fitted to the set of that size."""
        robust = len(explainer.robust_rows(self.label))
        explainer.proves_ranges = False  # no trial uses them
        people = explainer.explain(self.people, self.label, gap=self.gap)
        bad = next((e for e in people if e.status == "bad_input"), None)
        if bad is not None:
            raise InputError(
                f"a row of people cannot be read: row {bad.index}, {bad.reason}",
                name="people",
            )
        refused = [e for e in people if e.status not in ("already_valid", "worker_died")]
        if not refused:
            raise InputError(
                f"none of the people is refused: all have class {self.label} already", name="people"
            )
        found = [(n, e) for n, e in enumerate(people) if e.found and e.status != "already_valid"]
        row = {
            "delta": size,
            "robust_rows": robust,
            "robust": robust / len(self.rows),
            "robust_of_accepted": robust / max(1, len(self.accepted)),
            "share_explained": len(found) / len(refused),
            "distance": float(np.mean([e.distance for _, e in found])) if found else np.nan,
        }
        honours, unread = self._honours(found)
        return Trial(row, honours, len(refused), unread)

    def _honours(self, found: list[tuple[int, Explanation]]) -> tuple[Honours, tuple[str, ...]]:
        """Test which retrained model accepts which counterfactual, and collect errors of reading.

        Each model reads the counterfactual in the units of the table.
        """
        if not found:
            return np.zeros((len(self.others), 0), dtype=bool), ()
        names = list(self.model.schema.by_name)
        given = as_frame(self.people)
        table = pd.DataFrame(index=range(len(found)))
        if given is not None:  # columns that the current model ignores keep the person's values
            table = given.iloc[[n for n, _ in found]].reset_index(drop=True)
        cells = {name: [e.counterfactual[name] for _, e in found] for name in names}  # type: ignore[index]
        table = table.assign(**{name: pd.Series(values) for name, values in cells.items()})
        parts = [other.accepts(table, self.label) for other in self.others]
        unread = tuple(why for _, bad in parts for why in bad.values())
        return np.array([accepted for accepted, _ in parts], dtype=bool), unread

    def largest(self, family: Callable[[float], Shifts], share: float) -> float:
        """Return nearly the largest size at which a share of the accepted rows is robust.

        If no size leaves this share, one robust row is enough.
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
            f"no training row is robust for class {self.label} at any delta. Give rows that "
            "the network puts further inside the class",
            name="X",
        )

    def _largest(self, family: Callable[[float], Shifts], rows: Array, least: int) -> float | None:
        """Return nearly the largest size at which ``least`` of the rows are robust, or None."""
        net, target = self.model.network, self.target

        def robust(size: float) -> bool:
            shifts = family(size)
            required = np.max(self.model.margins(shifts, self.rows, None))
            if not np.isfinite(required):
                return False
            margin = float(required) + _ENOUGH_MARGIN
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
