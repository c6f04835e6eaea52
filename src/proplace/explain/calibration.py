r"""How large should delta be? Two measurements on retrained networks.

Let :math:`\theta` be the parameters in use and :math:`\theta^{(1)}, \dots, \theta^{(m)}` those of
retrained networks.

(a) *Change.* :math:`\|\theta^{(j)} - \theta\|_\infty` for each j. If the retrainings are incremental
    (they start from :math:`\theta`), a delta of at least the largest change puts every one of them
    into Delta, so every answer is valid on all of them: a proof. Networks retrained from scratch are
    not near :math:`\theta` in any such sense, and this number is then far too large to be of use.
    Where scalers or encoders were fitted again, :math:`\theta^{(j)}` stands for the parameters of the
    same model behind the scalers in use (see :mod:`proplace.loaders.coordinates`). Where a batch norm
    is folded into the model in use, a change is that of trained parameters which would lead to the
    retrained network behind *this* batch norm, since Delta counts it as fixed: what retraining does to
    the batch norm is part of the change, and where no parameter can express it, it is infinite.

(b) *Validity.* For each of a list of deltas, explain the refused validation rows and count

    .. math::
        v(\delta) = \frac{1}{n m} \sum_{i=1}^{n} \sum_{j=1}^{m}
            [\,\theta^{(j)} \text{ gives } x'_i(\delta) \text{ the target class}\,] .

    The calibrated delta is the smallest of the list with :math:`v(\delta)` at least as wanted.
    This is a measurement, not a proof; it never needs more than (a), where (a) leaves robust rows.

A delta that leaves next to no robust row is of no use, however valid its few answers are: all people
would be sent to the same place, and most would get no answer. Of the training rows that the model in
use accepts, a share of at least ``least_robust`` (10% unless told otherwise) must stay robust.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.certification import certify
from proplace.core.errors import (
    InputError,
    ModelDisagrees,
    ModelNotSupported,
    NetworkError,
    OptionError,
    SchemaError,
)
from proplace.core.optional import require
from proplace.core.options import processes
from proplace.core.shifts import Shifts
from proplace.explain.proplace import DEFAULT_MARGIN, DEFAULT_SLACK, Proplace
from proplace.loaders.coordinates import in_coordinates_of
from proplace.loaders.model import Model
from proplace.tables.frames import as_frame
from proplace.tables.rows import distinct, model_of, training_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from proplace.core import distances
    from proplace.core.network import Array
    from proplace.explain.results import Explanation
    from proplace.schema import Schema
    from proplace.schema.validation import Label
    from proplace.tables.rows import Table

_GRID = 10  # deltas tried when none are given
_SMALLEST = 64.0  # the smallest of them is this part of the largest that leaves a robust row
_REFINE = 3  # halvings between the last delta that is too small and the first that is not
# A little more margin than a search asks for (its margin and slack together), so that a row that keeps
# it is robust for the search too.
_ENOUGH_MARGIN = 2.0 * max(DEFAULT_MARGIN, DEFAULT_SLACK)
_SEARCH_ROWS = 2000  # rows by which the largest delta of interest is found
_LEAST_ROBUST = 0.1  # share of the accepted rows that must stay robust


class CalibrationWarning(UserWarning):
    """A delta leaves too few robust rows to be of use, or is not large enough."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What :func:`calibrate_delta` measured.

    Attributes
    ----------
    delta
        The smallest delta of the curve whose answers stay valid as often as wanted. Where none
        does, or too few rows stay robust there, the delta with the largest validity of those that
        leave enough robust rows; ``reached`` is False then.
    reached
        Whether ``delta`` gives the wanted validity and leaves enough robust rows.
    scarce
        Whether what is missing is robust rows: those of the delta that would be valid are too few.
    change
        The quantile of ``changes`` that was asked for: a delta that *proves* validity on that share
        of the retrained networks.
    changes
        Largest change of a trained parameter of each retrained network; infinite where no delta
        includes it, because its batch norm moved what no parameter in use can move.
    curve
        One row per delta: ``delta``, ``validity`` (share of answers and retrained networks where the
        class is kept; NaN without answers), ``robust_rows`` (how many of the accepted training rows
        stay robust), ``robust`` (their share of all training rows), ``robust_of_accepted`` (their
        share of the accepted ones), ``answered`` (share of the refused validation rows with an
        answer), ``distance`` (mean). Rows that occur twice count once.
    accepted
        How many training rows the model in use gives the target class.
    wanted, least_robust
        The validity, and the share of the accepted rows, that were asked for.
    """

    delta: float
    reached: bool
    scarce: bool
    change: float
    changes: Array
    curve: pd.DataFrame
    accepted: int
    wanted: float
    least_robust: float

    def __repr__(self) -> str:
        at = self.curve.loc[self.curve["delta"] == self.delta].iloc[0]
        return (
            f"Calibration(delta {self.delta:g}: validity {at['validity']:.1%}, "
            f"{at['robust_rows']:.0f} of {self.accepted} accepted rows robust; "
            f"change {self.change:.3g})"
        )

    def plot(self, to: str | os.PathLike[str] | Any) -> Any:
        """Draw validity and the share of robust rows against delta; return the axes.

        ``to`` is a path (PNG, SVG, PDF) or axes of matplotlib (the extra ``plot``).
        """
        pyplot = require("matplotlib.pyplot", "plot", "drawing the calibration")
        figure: Any = None
        axes: Any = to
        if not hasattr(to, "plot"):
            figure, axes = pyplot.subplots(figsize=(6.0, 3.6))
        seen = self.curve.dropna(subset=["validity"])
        axes.plot(
            seen["delta"],
            seen["validity"],
            marker="o",
            color="#2a6f97",
            label="valid after retraining",
        )
        axes.plot(
            self.curve["delta"],
            self.curve["robust_of_accepted"],
            marker=".",
            color="#8d99ae",
            linestyle="--",
            label="accepted rows robust",
        )
        axes.axhline(self.wanted, color="#8d99ae", linewidth=0.7)
        axes.axvline(self.delta, color="#c44e52", linewidth=1.0)
        word = "calibrated" if self.reached else "best"
        axes.annotate(
            f"{word}: {self.delta:.3g}",
            (self.delta, 0.5),
            xytext=(4, 0),
            textcoords="offset points",
            color="#c44e52",
        )
        low, high = self.curve["delta"].min(), self.curve["delta"].max()
        if low > 0.0:
            axes.set_xscale("log")
            # Five labels: those of a logarithmic axis overlap, or are missing within a decade.
            ticks = np.unique(np.geomspace(low, high, 5))
            axes.set_xticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
            axes.minorticks_off()
        axes.set_ylim(-0.03, 1.05)
        axes.set_xlabel("delta (largest change of any parameter)")
        axes.set_ylabel("share")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left", fontsize="small")
        if figure is not None:
            figure.tight_layout()
            figure.savefig(to, dpi=150)
            pyplot.close(figure)
        return axes


def calibrate_delta(
    source: object,
    retrained: Sequence[object],
    X_train: Table,
    X_valid: Table,
    *,
    schema: Schema | None = None,
    k: int = 20,
    distance: distances.Name | distances.Distance = "l1",
    quantile: float = 1.0,
    wanted: float = 1.0,
    least_robust: float = _LEAST_ROBUST,
    deltas: Sequence[float] | None = None,
    target: Label = 1,
    n_jobs: int = 1,
) -> Calibration:
    """Find the smallest delta whose answers survive retraining as often as wanted.

    Parameters
    ----------
    source
        The model in use: a pipeline, a module, a file, a :class:`Network`, as for
        :class:`~proplace.Proplace`.
    retrained
        Models of the same architecture, retrained the way it will be retrained. Scalers and encoders
        may have been fitted again: the models are compared behind those in use, where that is exact.
    X_train
        Training rows: the robust ones span the regions.
    X_valid
        People to explain; those who have the target class already are left out.
    schema, k, distance
        As for :class:`~proplace.Proplace`.
    quantile
        Which quantile of the parameter changes to report as ``change`` (1: the largest).
    wanted
        Share of (answer, retrained network) pairs that must stay valid.
    least_robust
        Share of the accepted training rows that must stay robust.
    deltas
        Deltas to try. Without: ten in geometric steps up to the largest that leaves a robust row,
        then three between the last too small and the first large enough.
    target
        The wanted class, by its label.
    n_jobs
        Processes for the explanations.

    Warns
    -----
    CalibrationWarning
        When a delta that was given leaves no robust row, when the change of the retrainings does,
        when no delta gives the wanted validity, and when the one that does leaves too few robust
        rows.

    Examples
    --------
    >>> from proplace import Network, calibrate_delta
    >>> net = Network([([[1.0]], [-0.5])])  # accepts x >= 0.5
    >>> stricter = Network([([[1.0]], [-0.6])])  # accepts x >= 0.6
    >>> rows = [[0.2], [0.8], [0.9], [1.0]]
    >>> found = calibrate_delta(net, [stricter], rows, rows, deltas=[0.01, 0.04, 0.07, 0.1])
    >>> found.delta, round(found.change, 6)
    (0.07, 0.1)
    """
    _check(retrained, quantile, wanted, least_robust, deltas)
    n_jobs = processes("n_jobs", n_jobs) or 1
    base, declared = Model.of(source), schema is not None
    model, rows = training_rows(model_of(base, schema), X_train, declared=declared)
    others = [_retrained(n, r, schema, X_train) for n, r in enumerate(retrained)]
    changes = np.array([_change(n, model, other) for n, other in enumerate(others)])
    question = _Question(model, others, distinct(rows), X_valid, model.target(target))

    def measure(delta: float) -> dict[str, float]:
        explainer = Proplace(base, delta, k=k, schema=schema, distance=distance, n_jobs=n_jobs)
        return question.measured(explainer.fit(X_train), delta)

    if deltas is None:
        grid = question.largest_delta() * np.geomspace(1.0 / _SMALLEST, 1.0, _GRID)
        curve = [measure(_short(delta)) for delta in grid]
        curve += _refined(curve, wanted, measure)
    else:
        curve = [measure(float(delta)) for delta in deltas]
    table = pd.DataFrame(curve).sort_values("delta", ignore_index=True)
    if not table["answered"].any():
        raise InputError(
            "no delta leaves a robust row, so nobody can be explained; give smaller deltas, or rows "
            f"that the network puts further inside class {target}"
        )
    chosen, reached, scarce = _chosen(table, wanted, least_robust)
    found = Calibration(
        delta=float(table["delta"].to_numpy()[chosen]),
        reached=reached,
        scarce=scarce,
        change=float(np.quantile(changes, quantile, method="higher")),
        changes=changes,
        curve=table,
        accepted=len(question.accepted),
        wanted=wanted,
        least_robust=least_robust,
    )
    _warn(found, question)
    return found


def _check(
    retrained: Sequence[object],
    quantile: float,
    wanted: float,
    least_robust: float,
    deltas: Sequence[float] | None,
) -> None:
    if not len(retrained):
        raise InputError("calibration needs at least one retrained network")
    for name, value in (
        ("quantile", quantile),
        ("wanted", wanted),
        ("least_robust", least_robust),
    ):
        if not 0.0 <= value <= 1.0:
            raise OptionError(f"{name} must be between 0 and 1, not {value!r}")
    if deltas is not None and not (
        len(deltas) and all(math.isfinite(delta) and delta >= 0.0 for delta in deltas)
    ):
        raise OptionError("deltas must be one or more finite numbers >= 0")


def _retrained(n: int, source: object, schema: Schema | None, X_train: Table) -> Model:
    """Read a retrained model; it is compared with its own predictions on the training table."""
    try:
        model, _ = training_rows(model_of(source, schema), X_train, declared=schema is not None)
    except (InputError, ModelDisagrees, ModelNotSupported, SchemaError) as error:
        raise type(error)(f"retrained[{n}]: {error}") from error
    return model


def _change(n: int, model: Model, other: Model) -> float:
    """Return how far the parameters of a retrained model are from those in use, behind one scaler."""
    try:
        return model.network.distance(in_coordinates_of(model, other))
    except (InputError, NetworkError) as error:
        raise type(error)(f"retrained[{n}]: {error}") from error


@dataclass(frozen=True, eq=False)
class _Question:
    """What is measured at each delta: the models, the rows and the people.

    Attributes
    ----------
    model, others
        The model in use and the retrained ones.
    rows
        Distinct training rows as the network in use takes them.
    people
        Validation rows.
    target
        Number of the wanted class.
    """

    model: Model
    others: list[Model]
    rows: Array
    people: Table
    target: int

    @property
    def label(self) -> Label:
        return self.model.classes[self.target]

    @cached_property
    def accepted(self) -> Array:
        """Distinct training rows that have the class."""
        return self.rows[self.model.network.margin(self.rows, self.target) >= 0.0]

    def measured(self, explainer: Proplace, delta: float) -> dict[str, float]:
        """One row of the curve."""
        robust = len(explainer.robust_rows(self.label))
        people = explainer.explain(self.people, self.label)
        bad = next((e for e in people if e.status == "bad_input"), None)
        if bad is not None:
            raise InputError(f"a validation row cannot be read: row {bad.index}, {bad.reason}")
        asked = [e for e in people if e.status not in ("already_valid", "worker_died")]
        if not asked:
            raise InputError(f"no validation row is refused: all have class {self.label} already")
        found = [(n, e) for n, e in enumerate(people) if e.found and e.status != "already_valid"]
        validity, distance = np.nan, np.nan
        if found:
            validity = self._validity(found)
            distance = float(np.mean([e.distance for _, e in found]))
        return {
            "delta": delta,
            "validity": validity,
            "robust_rows": robust,
            "robust": robust / len(self.rows),
            "robust_of_accepted": robust / max(1, len(self.accepted)),
            "answered": len(found) / len(asked),
            "distance": distance,
        }

    def _validity(self, found: list[tuple[int, Explanation]]) -> float:
        """Share of pairs of an answer and a retrained model that gives it the class.

        Each model reads the answer in the units of the table, and says it itself where it can be run.
        """
        names = list(self.model.schema.by_name)
        given = as_frame(self.people)
        table = pd.DataFrame(index=range(len(found)))
        if given is not None:  # what the model in use never looks at stays the person's own
            table = given.iloc[[n for n, _ in found]].reset_index(drop=True)
        cells = {name: [e.counterfactual[name] for _, e in found] for name in names}  # type: ignore[index]
        table = table.assign(**{name: pd.Series(values) for name, values in cells.items()})
        shares = []
        for other in self.others:
            said = other.original(table)
            shares.append(np.mean((other.predict(table) if said is None else said) == self.label))
        return float(np.mean(shares))

    def largest_delta(self) -> float:
        """Nearly the largest delta at which some row is robust, found on the rows deepest inside."""
        net, target = self.model.network, self.target
        margins = net.margin(self.rows, target)
        rows = self.rows[np.argsort(-margins, kind="stable")[:_SEARCH_ROWS]]
        if margins.max() <= _ENOUGH_MARGIN:
            raise InputError(f"no training row has class {self.label}: nothing can be robust")

        def robust(delta: float) -> bool:
            # A little more margin than the search asks for, so that it finds the row too.
            asked = np.max(self.model.margins(Shifts.of(net, delta), self.rows, None))
            if not np.isfinite(asked):
                return False
            return bool(
                certify(net, rows, delta, target, margin=float(asked) + _ENOUGH_MARGIN).robust.any()
            )

        low, high = 0.0, 1.0
        while robust(high):
            low, high = high, 2.0 * high
        while high - low > 0.05 * high:
            middle = (low + high) / 2.0 if low else high / 4.0
            if middle < 1e-12:
                raise InputError(
                    f"no training row is robust for class {self.label} at any delta; give rows that "
                    "the network puts further inside the class"
                )
            if robust(middle):
                low = middle
            else:
                high = middle
        return low


def _chosen(table: pd.DataFrame, wanted: float, least_robust: float) -> tuple[int, bool, bool]:
    """Place of the delta to take, whether it is as wanted, and whether robust rows are what it lacks."""
    valid = table["validity"] >= wanted
    enough = table["robust_of_accepted"] >= least_robust
    if (valid & enough).any():
        return int((valid & enough).argmax()), True, False
    usable = enough & table["validity"].notna()
    candidates = table["validity"].where(usable if usable.any() else table["validity"].notna())
    return int(candidates.argmax()), False, bool(valid.any() or not usable.any())


def _refined(
    curve: list[dict[str, float]], wanted: float, measure: Callable[[float], dict[str, float]]
) -> list[dict[str, float]]:
    """Halve the step below the first delta that is large enough."""
    first = next((i for i, row in enumerate(curve) if row["validity"] >= wanted), 0)
    if first == 0:
        return []
    low, high = curve[first - 1]["delta"], curve[first]["delta"]
    more = []
    for _ in range(_REFINE):
        middle = _short(math.sqrt(low * high))
        if middle in (low, high):
            break
        more.append(measure(middle))
        if more[-1]["validity"] >= wanted:
            high = middle
        else:
            low = middle
    return more


def _short(delta: float) -> float:
    """Three digits, downwards, so that what is printed is what was used."""
    digits = 2 - math.floor(math.log10(delta))
    return float(f"{math.floor(delta * 10**digits) / 10**digits:.{max(digits, 0)}f}")


def _warn(found: Calibration, question: _Question) -> None:
    def say(text: str) -> None:
        warnings.warn(text, CalibrationWarning, stacklevel=4)

    curve = found.curve
    empty = curve.loc[curve["robust_rows"] == 0, "delta"]
    if len(empty):
        say(
            f"no training row is robust at delta {', '.join(f'{d:g}' for d in empty)}: nobody can be "
            "explained there"
        )
    if found.scarce:
        say(_scarce(found))
    elif not found.reached:
        say(
            f"no delta gives a validity of {found.wanted:.1%} on the retrained networks; the best is "
            f"{curve['validity'].max():.1%} at delta {found.delta:g}"
        )
    if math.isinf(found.change):
        say(
            "batch norm of the retrained networks moved a neuron that no weight or bias of the model in "
            "use can move (a layer without bias, a factor of 0), so that no delta includes them: "
            "validity on them is measured, not proved. Keep batch norm fixed when you retrain, train "
            "the layer in front of it with a bias, or give the box of such networks, Shifts.hull(...)"
        )
    elif not certify(
        question.model.network, question.rows, found.change, question.target
    ).robust.any():
        say(
            f"the retrained networks moved by {found.change:.3g}, and no training row is robust at "
            "such a delta: validity on them is measured, not proved. Retrain incrementally (start "
            "from the network in use, small steps), or train with more weight decay"
        )


def _scarce(found: Calibration) -> str:
    """Say how few rows stay robust, and what to do."""
    curve = found.curve
    valid = curve[curve["validity"] >= found.wanted]
    at = curve.iloc[int(curve["validity"].argmax())] if valid.empty else valid.iloc[0]
    instead = (
        f"Delta {found.delta:g} is given instead, which leaves enough and has a lower validity. "
        if at["delta"] != found.delta
        else ""
    )
    return (
        f"delta {at['delta']:g}, with a validity of {at['validity']:.1%}, leaves "
        f"{at['robust_rows']:.0f} of {found.accepted} accepted training rows robust "
        f"({at['robust_of_accepted']:.1%}), and at least {found.least_robust:.0%} are asked for: so "
        f"few answers would be far away, much alike, and missing for many people. {instead}Retrain in "
        "small steps from the model in use, train with more weight decay, ask for less validity "
        "(wanted=0.95, --wanted 0.95), or take such a delta knowingly (least_robust=0, --least-robust 0)"
    )
