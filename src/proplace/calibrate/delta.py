r"""Choosing delta by measurements on retrained models.

Let :math:`\theta` be the current parameters and :math:`\theta^{(1)}, \dots, \theta^{(m)}` those of
retrained networks.

(a) *Change.* :math:`\|\theta^{(j)} - \theta\|_\infty` for each j. If the retrainings are incremental
    (they start from :math:`\theta`), a delta of at least the largest change puts every one of them
    into the shift set, which proves that every counterfactual is valid on all of them. Networks
    retrained from scratch are not near :math:`\theta`, and this number is then too large to be of use.
    If scalers or encoders were refitted, :math:`\theta^{(j)}` are the parameters of the same model
    after the current scalers (see :mod:`proplace.loaders.align`). If a batch norm is folded into
    the current model, the shift set keeps it fixed. A change is then the change of trained parameters
    that would lead to the retrained network with *this* batch norm. It is infinite if no parameters
    can do so.

(b) *Validity.* For each of a list of deltas, explain the refused validation rows and count

    .. math::
        v(\delta) = \frac{1}{n m} \sum_{i=1}^{n} \sum_{j=1}^{m}
            [\,\theta^{(j)} \text{ gives } x'_i(\delta) \text{ the target class}\,] .

    The calibrated delta is the smallest of the list whose :math:`v(\delta)` reaches ``validity``.
    This is a measurement, not a proof. It never exceeds (a) if (a) leaves robust rows.

(c) *Risk.* A statement about the next retraining: the smallest delta for which the expected share of
    broken promises is at most the risk (see :mod:`proplace.calibrate.conformal`).

With ``shifts``, the size t of a shift set is chosen instead of delta, as ``shifts.scaled(t)``.

A delta that leaves almost no robust row is of no use, even if its few counterfactuals are valid: most
people would get none, and the others would all get the same. At least ``min_robust_share`` (10% by
default) of the training rows that the current model accepts must stay robust, and the same share of the
people must get a counterfactual.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.calibrate.conformal import HeldOutResult, bounds, check_enough, probability
from proplace.calibrate.refits import Rows, check_refits, refitted
from proplace.calibrate.trials import CalibrationTask, Retrained, without_table_warnings
from proplace.certification import certify
from proplace.core.errors import InputError, OptionError, require
from proplace.core.options import integer, not_negative, processes
from proplace.core.progress import progress_bar
from proplace.core.request import DEFAULT_GAP, DEFAULT_TIME_LIMIT
from proplace.core.shifts import Shifts
from proplace.core.text import short
from proplace.explain.proplace import Proplace
from proplace.loaders.align import shifts_for
from proplace.loaders.model import Model
from proplace.tables.rows import distinct, model_of, training_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from proplace.calibrate.trials import Trial
    from proplace.core.network import Array
    from proplace.loaders.cutoffs import Cutoff
    from proplace.schema import Schema
    from proplace.schema.grid import Integers
    from proplace.schema.values import Label
    from proplace.tables.rows import Table

_GRID = 7  # number of default deltas
_FINE_GRID = 19  # number of default deltas for a risk, which must not depend on the results
_SMALLEST = 64.0  # ratio of the largest to the smallest default delta
_REFINE = 3  # bisections between the last delta that is too small and the first that is not
_LEAST_ROBUST = 0.1  # share of the accepted rows that must stay robust
_GAP, _SECONDS = 0.05, 1.0  # optimality gap and time limit per person, if models are refitted here


class CalibrationWarning(UserWarning):
    """Warning: a delta leaves too few robust rows to be of use, or is not large enough."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Result of :func:`calibrate_delta`.

    Attributes
    ----------
    delta
        The smallest delta of the curve whose counterfactuals reach ``validity``, or whose risk is at
        most the requested one. If no such delta leaves enough robust rows, this is the best delta of
        those that do, and ``success`` is False. If the size of a shift set was chosen, this is the
        factor t of ``shifts.scaled(t)``.
    shifts
        The chosen shift set.
    success
        True if ``delta`` reaches the validity or the risk and leaves enough robust rows and
        counterfactuals.
    too_few_robust_rows
        True if the smallest delta that reaches them leaves too few robust rows or counterfactuals.
    shortfall
        The reason why no delta suffices, and a next step. Empty on success.
    max_change
        The requested quantile of ``change_per_model``, by default the largest: a delta that *proves*
        validity on that share of the retrained networks.
    change_per_model
        Largest change of a trained parameter of each retrained network. NaN if parameters cannot be
        compared, infinite if no delta includes the network because of its batch norm.
    curve
        One row per delta: ``delta``, ``validity`` (share of (counterfactual, retrained model) pairs
        that are accepted, NaN without counterfactuals), ``robust_rows`` (number of accepted training
        rows that stay robust), ``robust`` (their share of all training rows), ``robust_of_accepted``
        (their share of the accepted ones), ``share_explained`` (share of the refused validation rows
        with a counterfactual), ``distance`` (mean), ``risk`` (bound on the expected share of promises
        that the next retraining breaks). Rows that occur twice count once.
    nearest
        The same measurements at delta 0: the plain nearest counterfactuals.
    accepted
        Number of distinct training rows to which the current model gives the target class.
    people
        Number of refused people that were explained.
    refits
        True if :func:`calibrate_delta` trained the models itself.
    validity, min_robust_share
        The requested validity, and the requested share of the accepted rows.
    risk
        The requested risk, if any.
    promises
        Number of people with a counterfactual at ``delta``.
    held_out
        Share of these counterfactuals that held-out models accept. None without held-out models.
    """

    delta: float
    shifts: Shifts
    success: bool
    too_few_robust_rows: bool
    shortfall: str
    max_change: float
    change_per_model: Array
    curve: pd.DataFrame
    nearest: pd.Series[float]
    accepted: int
    people: int
    refits: bool
    validity: float
    min_robust_share: float
    risk: float | None
    promises: int
    held_out: HeldOutResult | None

    @property
    def label(self) -> str:
        """The chosen size as a phrase: ``delta 0.02``, or ``0.8 times the shift set``."""
        return self._label(self.delta)

    @property
    def statement(self) -> str:
        """A statement about the next retraining, with its conditions.

        The statement covers models that a procedure draws. The theorem covers every network of the
        shift set. Neither follows from the other.
        """
        at = self._at
        models = f"{self._models}{' on bootstrap rows with other seeds' * self.refits}"
        promised = f"the promises made to {_people(self.promises)} with {self.label}"
        if self.risk is None:
            first = (
                f"Of {promised}, {models} honoured {at['validity']:.1%}. They also chose it, so "
                "this is a measurement and not a promise about the next retraining."
            )
        elif at["risk"] <= self.risk:
            first = (
                f"Of {promised}, an expected share of at most {self.risk:.1%} is broken at the next "
                f"retraining (conformal risk control by N = {models}), if it is exchangeable with "
                "them. This is an average over all draws of these models, and a draw for which no "
                "size suffices counts as no broken promise. It is not conditional on this draw: "
                "draws for which a size suffices may break a larger share."
            )
        else:
            first = (
                f"Of {promised}, {models} broke {1.0 - at['validity']:.1%}, so a risk of "
                f"{self.risk:.1%} at the next retraining cannot be stated."
            )
        none = "No model was held out, so there is no figure for models that did not choose it."
        return f"{first} {none if self.held_out is None else self.held_out}"

    def __str__(self) -> str:
        """Describe the validity and the distance at delta, after the shortfall if there is one."""
        at, plain = self._at, self.nearest
        validity = (
            f"{self.label.capitalize()}: {self._models} "
            f"accept{'s' * (len(self.change_per_model) == 1)} "
            f"{at['validity']:.1%} of the counterfactuals of {_people(self.people)} "
            f"(delta 0: {_share(plain['validity'])})."
        )
        cost = (
            f"Mean distance {at['distance']:.3g} (delta 0: {plain['distance']:.3g}). "
            f"{at['share_explained']:.0%} of these people have a counterfactual, and "
            f"{at['robust_rows']:.0f} of {self.accepted} accepted training rows stay robust "
            f"({at['robust_of_accepted']:.0%})."
        )
        return "\n".join([*([self.shortfall] if self.shortfall else []), validity, cost])

    @property
    def _models(self) -> str:
        """The number and the kind of the models that chose."""
        n = len(self.change_per_model)
        return f"{n} {'refit' if self.refits else 'retrained model'}{'s' * (n > 1)}"

    def _label(self, size: float) -> str:
        """Name a size of the family."""
        one_delta = self.shifts.trained_radius == self.delta
        return f"delta {size:g}" if one_delta else f"{size:g} times the shift set"

    @property
    def _at(self) -> pd.Series[float]:
        """The chosen row of the curve."""
        row: pd.Series[float] = self.curve.loc[self.curve["delta"] == self.delta].iloc[0]
        return row

    def __repr__(self) -> str:
        at = self._at
        return (
            f"Calibration({self.label}: validity {at['validity']:.1%}, "
            f"{at['robust_rows']:.0f} of {self.accepted} accepted rows robust; "
            f"change {self.max_change:.3g})"
        )

    def plot(self, to: str | os.PathLike[str] | Any) -> Any:
        """Draw validity and the share of robust rows against delta, and return the axes.

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
        required = self.validity if self.risk is None else 1.0 - self.risk
        axes.axhline(required, color="#8d99ae", linewidth=0.7)
        axes.axvline(self.delta, color="#c44e52", linewidth=1.0)
        word = "calibrated" if self.success else "best"
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
            # Default labels of a logarithmic axis overlap, or are missing within a decade.
            ticks = np.unique(np.geomspace(low, high, 5))
            axes.set_xticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
            axes.minorticks_off()
        axes.set_ylim(-0.03, 1.05)
        axes.set_xlabel(
            "delta (largest change of any parameter)"
            if self.shifts.trained_radius == self.delta
            else "size of the shift set"
        )
        axes.set_ylabel("share")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left", fontsize="small")
        if figure is not None:
            figure.tight_layout()
            figure.savefig(to, dpi=150)
            pyplot.close(figure)
        return axes


def calibrate_delta(
    model: object,
    X: Table,
    y: object = None,
    *,
    refits: int | None = None,
    train: Callable[[Integers], object] | None = None,
    retrained: Sequence[object] | None = None,
    people: Table | None = None,
    held_out: Sequence[object] | float | None = None,
    validity: float = 0.95,
    min_robust_share: float = _LEAST_ROBUST,
    risk: float | None = None,
    confidence: float = 0.95,
    quantile: float = 1.0,
    deltas: Sequence[float] | None = None,
    shifts: Shifts | None = None,
    target: Label = 1,
    schema: Schema | None = None,
    cutoff: Cutoff | None = None,
    k: int = 20,
    seed: int = 0,
    n_jobs: int = 1,
    progress: bool = False,
) -> Calibration:
    """Find the smallest delta whose counterfactuals retrained models accept.

    Parameters
    ----------
    model
        The current model, of any kind that :class:`~proplace.Proplace` accepts.
    X
        Training rows. The robust ones span the regions.
    y
        Labels of these rows. Needed for ``refits`` without ``train``.
    refits
        Number of models to train from scratch, each on a bootstrap sample of the rows and with other
        seeds: clones of a scikit-learn estimator, or results of ``train``. Give this or
        ``retrained``. A bootstrap sample keeps at least one row of each category and class.
    train
        Function that receives positions of rows of X and returns a new model trained on them, of any
        kind that ``model`` can be. For torch, Keras and others. It runs in this process.
    retrained
        Retrained models, trained as the current one will be. They choose delta. Scalers and encoders
        may have been refitted, and architectures may differ.
    people
        Rows to explain. Rows that have the target class already are skipped. Default: up to 40
        refused people, drawn from at most a fifth of X. Neither refits nor regions use these rows.
    held_out
        Further retrained models, or the share of all that is held out. They do not choose delta, but
        measure its validity.
    validity
        Share of (counterfactual, retrained model) pairs that the models must accept, between 0 and 1.
        Not used with a risk.
    min_robust_share
        Share of the accepted training rows that must stay robust, and of the people who must get a
        counterfactual.
    risk
        Largest expected share of the promises that the next retraining breaks. Delta is then chosen by
        conformal risk control, which needs at least 1 / risk - 1 retrained models (19 for 0.05).
    confidence
        Confidence of the bounds that the held-out models give.
    quantile
        Quantile of the parameter changes to report as ``max_change`` (1: the largest).
    deltas
        Deltas to try, or factors t if ``shifts`` is given. Default: geometric steps up to the largest
        delta that leaves enough robust rows, until one suffices, and three below that one. With a
        risk, nineteen steps that do not depend on the retrained models.
    shifts
        Shift set whose size is chosen instead of delta, as ``shifts.scaled(t)``. For a risk, it must
        not be learned from the models that choose its size.
    target
        The target class, by its label.
    schema, cutoff, k
        As for :class:`~proplace.Proplace`. Retrained models decide with the same cut-off.
    seed
        Seed of the held-out people and models, the bootstrap samples and the refits.
    n_jobs
        Number of processes for the refits and the explanations.
    progress
        Show progress bars on standard error.

    Warns
    -----
    CalibrationWarning
        If a given delta, or the change of the retrainings, leaves no robust row. If no delta reaches
        the validity or the risk with enough robust rows and counterfactuals. If a retrained model
        cannot read a counterfactual.

    Examples
    --------
    >>> from proplace import Network, calibrate_delta
    >>> net = Network([([[1.0]], [-0.5])])  # accepts x >= 0.5
    >>> stricter = Network([([[1.0]], [-0.6])])  # accepts x >= 0.6
    >>> rows = [[0.2], [0.8], [0.9], [1.0]]
    >>> found = calibrate_delta(
    ...     net, rows, retrained=[stricter], people=rows, deltas=[0.01, 0.04, 0.07, 0.1]
    ... )
    >>> found.delta, round(found.max_change, 6)
    (0.07, 0.1)
    >>> print(found)
    Delta 0.07: 1 retrained model accepts 100.0% of the counterfactuals of 1 person (delta 0: 0.0%).
    Mean distance 0.416 (delta 0: 0.3). 100% of these people have a counterfactual, and 3 of 3 ...
    >>> later = [Network([([[1.0]], [-0.4 - 0.01 * n])]) for n in range(20)]
    >>> found = calibrate_delta(
    ...     net, rows, retrained=later, people=rows, risk=0.2, held_out=0.5, deltas=[0.04, 0.07]
    ... )
    >>> found.delta
    0.07
    >>> print(found.statement)
    Of the promises made to 1 person with delta 0.07, an expected share of at most 20.0% is broken ...
    """
    _check(quantile, validity, min_robust_share, deltas, shifts)
    probability("confidence", confidence)
    integer("seed", seed, least=0)
    n_jobs = processes("n_jobs", n_jobs) or 1
    check_refits(refits, retrained, model, y, train)
    named: dict[str, object] = (
        {f"refits[{n}]": None for n in range(refits or 0)}  # trained below, after all checks
        if retrained is None
        else {f"retrained[{n}]": one for n, one in enumerate(retrained)}
    )
    choosing, reporting = _parts(named, held_out, seed)
    if risk is not None:
        check_enough(len(choosing), risk)
    base, declared = Model.of(model, cutoff=cutoff), schema is not None
    with without_table_warnings():  # the rows of the regions are read again below
        whole, *_ = training_rows(model_of(base, schema), X, declared=declared)
    labels = y if refits is not None else None
    rows = Rows.of(whole, X, labels, whole.target(target), seed=seed, split=people is None)
    known = X if people is not None else rows.taken(rows.train)
    everyone = choosing | reporting
    if refits is not None:
        made = refitted(model, rows, refits, train, seed=seed, n_jobs=n_jobs, progress=progress)
        everyone |= dict(zip(named, made, strict=True))
    current, encoded, _ = training_rows(model_of(base, schema), known, declared=declared)
    others = [Retrained.read(name, one, schema, known, base) for name, one in everyone.items()]
    changes = np.array([other.change(current) for other in others])[: len(choosing)]
    explained = rows.readable(current) if people is None else people
    gap, seconds = (DEFAULT_GAP, DEFAULT_TIME_LIMIT) if refits is None else (_GAP, _SECONDS)
    number = current.target(target)
    task = CalibrationTask(current, others, distinct(encoded), explained, number, gap)

    if shifts is not None:
        shifts_for(current, shifts)

    def family(size: float) -> Shifts:
        return Shifts.of(current.network, size) if shifts is None else shifts.scaled(size)

    def trial_at(delta: float | Shifts, size: float) -> Trial:
        explainer = Proplace(base, delta, k=k, schema=schema, n_jobs=n_jobs, time_limit=seconds)
        with without_table_warnings():
            trial = task.measure(explainer.fit(known), size)
        advance(1)
        return trial

    def measure(size: float) -> Trial:
        return trial_at(size if shifts is None else shifts.scaled(size), size)

    def largest() -> float:
        return task.largest(family, min_robust_share)

    with progress_bar("delta", _steps(deltas, risk), show=progress) as advance:
        nearest = trial_at(0.0, 0.0)
        trials = _trials(measure, deltas, largest, len(choosing), (validity, risk))
    table = _curve(trials, len(choosing))
    if not table["share_explained"].any():
        raise InputError(
            "No delta leaves a robust row, so nobody can be explained. Give smaller deltas, or rows "
            f"with a larger margin for class {target}.",
            name="deltas",
        )
    fine = table["validity"] >= validity if risk is None else table["risk"] <= risk
    best = table["validity"] if risk is None else -table["risk"]
    at, success, scarce = _chosen(table, fine, best, min_robust_share)
    honours = trials[at].honours
    found = Calibration(
        delta=float(table["delta"].to_numpy()[at]),
        shifts=family(float(table["delta"].to_numpy()[at])),
        success=success,
        too_few_robust_rows=scarce,
        shortfall="",
        max_change=_quantile(changes, quantile),
        change_per_model=changes,
        curve=table,
        nearest=_curve([nearest], len(choosing)).iloc[0],
        accepted=len(task.accepted),
        people=trials[at].people,
        refits=refits is not None,
        validity=validity,
        min_robust_share=min_robust_share,
        risk=risk,
        promises=honours.shape[1],
        held_out=HeldOutResult.of(honours[len(choosing) :], confidence),
    )
    found = replace(found, shortfall=_shortfall(found, fine, given=deltas is not None))
    _warn(found, task, [text for trial in trials for text in trial.unread])
    return found


def _check(
    quantile: float,
    validity: float,
    min_robust_share: float,
    deltas: Sequence[float] | None,
    shifts: Shifts | None,
) -> None:
    for name, value in (
        ("quantile", quantile),
        ("validity", validity),
        ("min_robust_share", min_robust_share),
    ):
        if not_negative(name, value) > 1.0:
            raise OptionError(
                f"{name} must be between 0 and 1, not {value!r}", name=name, value=value
            )
    if deltas is not None:
        if not np.iterable(deltas) or not len(deltas):
            raise OptionError(
                f"deltas must be a list of one or more numbers >= 0, not {short(deltas)}",
                name="deltas",
                value=deltas,
            )
        for delta in deltas:
            not_negative("deltas", delta)
    if shifts is not None and shifts.is_single_network:
        raise OptionError(
            "shifts contains a single network, so it has no size to choose.", name="shifts"
        )


def _parts(
    named: dict[str, object], held_out: Sequence[object] | float | None, seed: int
) -> tuple[dict[str, object], dict[str, object]]:
    """Split the models into those that choose and those that are held out, by their names."""
    if not named:
        raise InputError("calibration needs at least one retrained network", name="retrained")
    if held_out is None:
        return named, {}
    if not isinstance(held_out, (int, float)):
        return named, {f"held_out[{n}]": one for n, one in enumerate(held_out)}
    share = probability("held_out", held_out)
    count = max(1, round(share * len(named)))
    if count == len(named):
        raise InputError(
            f"putting {float(share):.0%} of {len(named)} retrained models aside leaves none to choose "
            "by; give more of them, or a smaller share",
            name="held_out",
            value=held_out,
        )
    names = list(named)
    aside = {names[n] for n in np.random.default_rng(seed).permutation(len(names))[:count]}
    return (
        {name: one for name, one in named.items() if name not in aside},
        {name: one for name, one in named.items() if name in aside},
    )


def _trials(
    measure: Callable[[float], Trial],
    deltas: Sequence[float] | None,
    largest: Callable[[], float],
    models: int,
    goals: tuple[float, float | None],
) -> list[Trial]:
    """Measure at each size, in increasing order."""
    validity, risk = goals

    def enough(trial: Trial) -> bool:
        return trial.validity(models) >= validity

    if deltas is not None:
        trials = [measure(float(delta)) for delta in deltas]
    elif risk is not None:
        grid = largest() * np.geomspace(1.0 / _SMALLEST, 1.0, _FINE_GRID)
        trials = [measure(_short(size)) for size in grid]
    else:
        trials = []
        for size in largest() * np.geomspace(1.0 / _SMALLEST, 1.0, _GRID):
            trials.append(measure(_short(size)))
            if enough(trials[-1]):
                break
        trials += _refined(trials, measure, enough)
    return sorted(trials, key=lambda trial: trial.row["delta"])


def _steps(deltas: Sequence[float] | None, risk: float | None) -> int:
    """Return the largest number of deltas to try."""
    if deltas is not None:
        return len(deltas) + 1
    return (_GRID + _REFINE if risk is None else _FINE_GRID) + 1


def _curve(trials: list[Trial], models: int) -> pd.DataFrame:
    """Return one row per size, with the validity and the risk on the models that choose."""
    table = pd.DataFrame([trial.row for trial in trials])
    table.insert(1, "validity", [trial.validity(models) for trial in trials])
    table["risk"] = bounds([trial.honours[:models] for trial in trials])
    return table


def _quantile(changes: Array, quantile: float) -> float:
    """Return a quantile of the known changes. NaN if none is known."""
    known = changes[~np.isnan(changes)]
    return float(np.quantile(known, quantile, method="higher")) if len(known) else np.nan


def _chosen(
    table: pd.DataFrame, fine: pd.Series[bool], best: pd.Series[float], min_robust_share: float
) -> tuple[int, bool, bool]:
    """Return the position of the chosen delta, True if it suffices, True if too few rows are robust.

    ``fine`` marks the deltas that reach the goal, and ``best`` orders the others.
    """
    known = table["validity"].notna()
    fine = fine & known
    enough = table["robust_of_accepted"] >= min_robust_share
    usable = enough & (table["share_explained"] >= min_robust_share) & known
    if (fine & usable).any():
        return int((fine & usable).argmax()), True, False
    if usable.any():
        return int(best.where(usable).argmax()), False, bool(fine.any())
    return int(fine.argmax() if fine.any() else best.where(known).argmax()), False, True


def _refined(
    trials: list[Trial], measure: Callable[[float], Trial], enough: Callable[[Trial], bool]
) -> list[Trial]:
    """Bisect below the first delta that is large enough."""
    first = next((i for i, trial in enumerate(trials) if enough(trial)), 0)
    if first == 0:
        return []
    low, high = trials[first - 1].row["delta"], trials[first].row["delta"]
    more: list[Trial] = []
    for _ in range(_REFINE):
        middle = _short(math.sqrt(low * high))
        if middle in (low, high):
            break
        more.append(measure(middle))
        if enough(more[-1]):
            high = middle
        else:
            low = middle
    return more


def _short(delta: float) -> float:
    """Round down to three digits, so that the printed delta is the one that was used."""
    digits = 2 - math.floor(math.log10(delta))
    return float(f"{math.floor(delta * 10**digits) / 10**digits:.{max(digits, 0)}f}")


def _warn(found: Calibration, task: CalibrationTask, unread: list[str]) -> None:
    def warn(text: str) -> None:
        warnings.warn(text, CalibrationWarning, stacklevel=4)

    curve = found.curve
    empty = curve.loc[curve["robust_rows"] == 0, "delta"]
    if len(empty):
        which = ", ".join(found._label(size).removeprefix("delta ") for size in empty)
        word = "delta " * found.label.startswith("delta")
        warn(f"no training row is robust at {word}{which}: nobody can be explained there")
    if found.shortfall:
        warn(found.shortfall)
    if unread:
        warn(
            f"retrained models cannot read {len(unread)} (counterfactual, model) pairs, which count as "
            f"refused; the first: {unread[0]}"
        )
    if found.refits:  # trainings from scratch: a largest change proves nothing
        return
    one_delta = found.label.startswith("delta")
    if one_delta and math.isinf(found.max_change):
        warn(
            "Batch norm of the retrained networks moved a neuron that no weight or bias of the current "
            "model can move (a layer without bias, a factor of 0), so no delta includes them. "
            "Validity on them is measured, not proved. Keep batch norm fixed when you retrain, train "
            "the layer before it with a bias, or use the shift set Shifts.bounding(...)."
        )
    elif one_delta and np.isfinite(found.max_change) and not _any_robust(task, found.max_change):
        warn(
            f"The retrained networks moved by {found.max_change:.3g}, and no training row is robust at "
            "this delta. Validity on them is measured, not proved. Retrain incrementally (start from "
            "the current network, with small steps), train with more weight decay, or learn a shift "
            "set from retrainings (Shifts.learn)."
        )


def _any_robust(task: CalibrationTask, delta: float) -> bool:
    """Return True if a training row is robust at a delta."""
    report = certify(task.model.network, task.rows, delta, task.target)
    return bool(report.robust.any())


def _shortfall(found: Calibration, fine: pd.Series[bool], *, given: bool) -> str:
    """Describe why no delta suffices and a next step. Empty if one suffices.

    ``given`` is true if the user chose the deltas.
    """
    if found.success:
        return ""
    curve, at = found.curve, found._at
    usable = min(at["robust_of_accepted"], at["share_explained"]) >= found.min_robust_share
    best = f"the best is {found.label}, with {{}}"
    advice = []
    if found.risk is not None:
        allowed = math.ceil(1000.0 * at["risk"]) / 1000.0
        lack = f"No size keeps the expected share of broken promises within {found.risk:g}"
        best = best.format(f"a bound of {at['risk']:.3g}")
        less = f"allow more risk (risk={allowed:g}, --risk {allowed:g})" if allowed < 1.0 else ""
    else:
        reached = math.floor(100.0 * at["validity"]) / 100.0
        lack = f"No delta reaches a validity of {found.validity:.1%}"
        best = best.format(f"a validity of {at['validity']:.1%}")
        less = (
            f"accept less (validity={reached:g}, --validity {reached:g})" if reached > 0.0 else ""
        )
    if usable and less:
        advice.append(less)
    if found.too_few_robust_rows:
        good = curve[fine & curve["validity"].notna()]
        row = at if good.empty else good.iloc[0]
        few = f"leaves {row['robust_rows']:.0f} of {found.accepted} accepted training rows robust "
        few += f"({row['robust_of_accepted']:.1%})"
        if row["robust_of_accepted"] >= found.min_robust_share:
            few = f"gives {row['share_explained']:.1%} of the people a counterfactual"
        share = math.floor(1000.0 * min(row["robust_of_accepted"], row["share_explained"])) / 1000.0
        advice.append(
            "accept counterfactuals that are distant, similar and missing for many people "
            f"(min_robust_share={share:g})"
        )
        named = found._label(row["delta"])
        lack = f"{lack} and leaves enough robust rows: {named}, "
        lack += f"with a validity of {row['validity']:.1%}, {few}, and at least "
        lack += f"{found.min_robust_share:.0%} is required"
    elif given:
        advice.append("try larger deltas")
    elif found.min_robust_share > 0.0:
        advice.append("try larger deltas, which leave fewer robust rows (min_robust_share=0)")
    if not found.refits:
        advice.append("learn a shift set from retrainings (shifts=Shifts.learn(history))")
        advice.append(
            "require that several models accept each counterfactual (required_models=[...])"
        )
    advice.append("or train with more weight decay")
    return f"{lack}; {best}. To go on, {', '.join(advice)}."


def _people(count: int) -> str:
    """Write a number of people."""
    return "1 person" if count == 1 else f"{count} people"


def _share(share: float) -> str:
    """Write a share, or "none" without counterfactuals."""
    return "none" if math.isnan(share) else f"{share:.1%}"
