r"""How large should delta be? What retrained models say.

Let :math:`\theta` be the parameters in use and :math:`\theta^{(1)}, \dots, \theta^{(m)}` those of
retrained networks.

(a) *Change.* :math:`\|\theta^{(j)} - \theta\|_\infty` for each j. If the retrainings are incremental
    (they start from :math:`\theta`), a delta of at least the largest change puts every one of them
    into Delta, so every answer is valid on all of them: a proof. Networks retrained from scratch are
    not near :math:`\theta` in any such sense, and this number is then far too large to be of use.
    Where scalers or encoders were fitted again, :math:`\theta^{(j)}` stands for the parameters of the
    same model behind the scalers in use (see :mod:`proplace.loaders.coordinates`). Where a batch norm
    is folded into the current model, a change is that of trained parameters which would lead to the
    retrained network behind *this* batch norm, since Delta counts it as fixed: what retraining does to
    the batch norm is part of the change, and where no parameter can express it, it is infinite.

(b) *Validity.* For each of a list of deltas, explain the refused validation rows and count

    .. math::
        v(\delta) = \frac{1}{n m} \sum_{i=1}^{n} \sum_{j=1}^{m}
            [\,\theta^{(j)} \text{ gives } x'_i(\delta) \text{ the target class}\,] .

    The calibrated delta is the smallest of the list with :math:`v(\delta)` at least as wanted.
    This is a measurement, not a proof; it never needs more than (a), where (a) leaves robust rows.

(c) *Risk.* The same count with a promise about the next retraining: the smallest delta for which the
    expected share of broken promises is at most the risk (see :mod:`proplace.calibrate.conformal`).

A box of networks may take the place of delta; then its size t is chosen, ``shifts.scaled(t)``.

A delta that leaves next to no robust row is of no use, however valid its few answers are: all people
would be sent to the same place, and most would get no answer. Of the training rows that the model in
use accepts, a share of at least ``min_robust_share`` (10% by default) must stay robust, and as large a
share of the people must get an answer.
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
from proplace.calibrate.trials import Question, Retrained
from proplace.certification import certify
from proplace.core.errors import InputError, OptionError, RowsSkippedWarning, require
from proplace.core.options import integer, not_negative, processes
from proplace.core.progress import progress_bar
from proplace.core.request import DEFAULT_GAP, DEFAULT_TIME_LIMIT
from proplace.core.shifts import Shifts
from proplace.core.text import short
from proplace.explain.proplace import Proplace
from proplace.loaders.coordinates import shifts_for
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

_GRID = 7  # deltas tried when none are given
_FINE_GRID = 19  # the same for a risk: they must not depend on what is found
_SMALLEST = 64.0  # the smallest of them is this part of the largest that leaves a robust row
_REFINE = 3  # halvings between the last delta that is too small and the first that is not
_LEAST_ROBUST = 0.1  # share of the accepted rows that must stay robust
_GAP, _SECONDS = 0.05, 1.0  # optimality gap and time limit per person, if models are refitted here


class CalibrationWarning(UserWarning):
    """A delta leaves too few robust rows to be of use, or is not large enough."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What :func:`calibrate_delta` measured.

    Attributes
    ----------
    delta
        The smallest delta of the curve whose counterfactuals reach ``validity``, or whose risk is
        within the one asked for. If there is none, or too few rows stay robust there, the best delta of
        those that leave enough robust rows; ``success`` is False then. If the size of a box was
        chosen, this is the factor t of ``shifts.scaled(t)``.
    shifts
        The set of networks that was chosen.
    success
        True if ``delta`` does what was asked for and leaves enough robust rows and counterfactuals.
    too_few_robust_rows
        True if the smallest delta that does what was asked for leaves too few of them.
    shortfall
        The reason why no delta suffices, and what to do next; empty on success.
    max_change
        The requested quantile of ``change_per_model``, by default the largest: a delta that *proves*
        validity on that share of the retrained networks.
    change_per_model
        Largest change of a trained parameter of each retrained network; NaN where parameters cannot be
        compared, infinite where no delta includes it, because its batch norm moved what no parameter
        in use can move.
    curve
        One row per delta: ``delta``, ``validity`` (share of answers and retrained networks where the
        class is kept; NaN without answers), ``robust_rows`` (how many of the accepted training rows
        stay robust), ``robust`` (their share of all training rows), ``robust_of_accepted`` (their
        share of the accepted ones), ``share_explained`` (share of the refused validation rows with
        a counterfactual), ``distance`` (mean), ``risk`` (bound on the expected share of promises that
        the next retraining breaks). Rows that occur twice count once.
    nearest
        The same measurements at delta 0: the plain nearest counterfactuals.
    accepted
        Number of distinct training rows to which the current model gives the target class.
    people
        Number of refused people that were explained.
    refits
        True if :func:`calibrate_delta` trained the models itself.
    validity, min_robust_share
        The validity, and the share of the accepted rows, that were asked for.
    risk
        The risk that was asked for, if any.
    promises
        How many people have an answer at ``delta``.
    held_out
        Share of these counterfactuals that held-out models accept; None without held-out models.
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
        """The chosen size as a phrase: ``delta 0.02``, or ``0.8 times the box``."""
        return self._label(self.delta)

    @property
    def statement(self) -> str:
        """What may be said about the next retraining, and on what this is conditional.

        It speaks of models that are drawn by a procedure; the theorem speaks of every network of the
        set. The one does not follow from the other.
        """
        at = self._at
        models = f"{self._models}{' on bootstrap rows with other seeds' * self.refits}"
        promised = f"the promises made to {_people(self.promises)} with {self.label}"
        if self.risk is None:
            first = (
                f"Of {promised}, {models} honoured {at['validity']:.1%}; they also chose it, so that "
                "this is a measurement and no promise about the next one."
            )
        elif at["risk"] <= self.risk:
            first = (
                f"Of {promised}, an expected share of at most {self.risk:.1%} is broken at the next "
                f"retraining (conformal risk control by N = {models}), if it is exchangeable with "
                "them. This is an average over all draws of these models, and a draw for which no "
                "size suffices counts as no broken promise. It is not conditional on this draw: "
                "the draws for which a size suffices may break a larger share."
            )
        else:
            first = (
                f"Of {promised}, {models} broke {1.0 - at['validity']:.1%}, so that a risk of "
                f"{self.risk:.1%} at the next retraining cannot be stated."
            )
        none = "No model was held out, so nothing is said of models that had no part in the choice."
        return f"{first} {none if self.held_out is None else self.held_out}"

    def __str__(self) -> str:
        """What delta buys, and at what distance; before that, why no delta suffices."""
        at, plain = self._at, self.nearest
        bought = (
            f"{self.label.capitalize()}: {self._models} "
            f"accept{'s' * (len(self.change_per_model) == 1)} "
            f"{at['validity']:.1%} of the counterfactuals of {_people(self.people)} "
            f"(delta 0: {_share(plain['validity'])})."
        )
        paid = (
            f"Mean distance {at['distance']:.3g} (delta 0: {plain['distance']:.3g}); "
            f"{at['share_explained']:.0%} of these people have a counterfactual; "
            f"{at['robust_rows']:.0f} of {self.accepted} accepted training rows stay robust "
            f"({at['robust_of_accepted']:.0%})."
        )
        return "\n".join([*([self.shortfall] if self.shortfall else []), bought, paid])

    @property
    def _models(self) -> str:
        """The models that chose, with their number."""
        n = len(self.change_per_model)
        return f"{n} {'refit' if self.refits else 'retrained model'}{'s' * (n > 1)}"

    def _label(self, size: float) -> str:
        """Name a size of the family that was chosen from."""
        one_delta = self.shifts.trained_radius == self.delta
        return f"delta {size:g}" if one_delta else f"{size:g} times the box"

    @property
    def _at(self) -> pd.Series[float]:
        """The row of the curve that was chosen."""
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
        wanted = self.validity if self.risk is None else 1.0 - self.risk
        axes.axhline(wanted, color="#8d99ae", linewidth=0.7)
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
            # Five labels: those of a logarithmic axis overlap, or are missing within a decade.
            ticks = np.unique(np.geomspace(low, high, 5))
            axes.set_xticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
            axes.minorticks_off()
        axes.set_ylim(-0.03, 1.05)
        axes.set_xlabel(
            "delta (largest change of any parameter)"
            if self.shifts.trained_radius == self.delta
            else "size of the box"
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
    source: object,
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
    source
        The current model: a pipeline, a module, a file, a :class:`Network`, as for
        :class:`~proplace.Proplace`.
    X
        Training rows. The robust ones span the regions.
    y
        Labels of these rows. Needed for ``refits`` without ``train``.
    refits
        Number of models to train from scratch, each on a bootstrap sample of the rows and with other
        seeds: clones of a scikit-learn estimator, or what ``train`` returns. Give this or
        ``retrained``. A bootstrap sample keeps at least one row of each category and class.
    train
        Function that receives positions of rows of X and returns a new model trained on them, of any
        kind that ``source`` can be. For torch, Keras and others; it runs in this process.
    retrained
        Models that are retrained already, the way the current one will be; these choose. Scalers and
        encoders may have been fitted again, and architectures may differ.
    people
        Rows to explain; those who have the target class already are left out. Default: up to 40
        refused people, drawn from at most a fifth of X. Neither refits nor regions use these rows.
    held_out
        More retrained models, or the share of all that is put aside: they have no part in the choice,
        and report how it fares.
    validity
        Share of (counterfactual, retrained model) pairs that the models must accept, between 0 and 1.
        Not used with a risk.
    min_robust_share
        Share of the accepted training rows that must stay robust, and of the people who must get a
        counterfactual.
    risk
        Expected share of the promises that the next retraining may break: chooses by conformal risk
        control, which needs at least 1 / risk - 1 retrained models (19 for 0.05).
    confidence
        Of the bounds that the held-out models give.
    quantile
        Quantile of the parameter changes to report as ``max_change`` (1: the largest).
    deltas
        Deltas to try, or factors t if ``shifts`` is given. Default: geometric steps up to the largest
        that leaves enough robust rows, until one suffices, and three below that one. With a risk,
        nineteen steps, which do not depend on the retrained models.
    shifts
        A box of networks whose size is chosen in place of delta: ``shifts.scaled(t)``. For a risk it
        must not have been learned from the models that choose it.
    target
        The target class, by its label.
    schema, cutoff, k
        As for :class:`~proplace.Proplace`. Retrained models decide with the same cut-off.
    seed
        Draws the held-out people and models, the bootstrap samples and the seeds of the refits.
    n_jobs
        Processes for the refits and the explanations.
    progress
        Show progress bars on standard error.

    Warns
    -----
    CalibrationWarning
        If a delta that was given leaves no robust row, if the change of the retrainings does, if no
        delta reaches the validity or keeps the risk, if the one that does leaves too few robust rows
        or counterfactuals, and if a retrained model cannot read a counterfactual.

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
    Mean distance 0.416 (delta 0: 0.3); 100% of these people have a counterfactual; 3 of 3 ...
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
    check_refits(refits, retrained, source, y, train)
    named: dict[str, object] = (
        {f"refits[{n}]": None for n in range(refits or 0)}  # trained below, once all is checked
        if retrained is None
        else {f"retrained[{n}]": one for n, one in enumerate(retrained)}
    )
    choosing, reporting = _parts(named, held_out, seed)
    if risk is not None:
        check_enough(len(choosing), risk)
    base, declared = Model.of(source, cutoff=cutoff), schema is not None
    with warnings.catch_warnings():  # rows left out are reported when the regions are made
        warnings.simplefilter("ignore", RowsSkippedWarning)
        whole, *_ = training_rows(model_of(base, schema), X, declared=declared)
    labels = y if refits is not None else None
    rows = Rows.of(whole, X, labels, whole.target(target), seed=seed, split=people is None)
    known = X if people is not None else rows.taken(rows.train)
    everyone = choosing | reporting
    if refits is not None:
        made = refitted(source, rows, refits, train, seed=seed, n_jobs=n_jobs, progress=progress)
        everyone |= dict(zip(named, made, strict=True))
    model, encoded, _ = training_rows(model_of(base, schema), known, declared=declared)
    others = [Retrained.read(name, one, schema, known, base) for name, one in everyone.items()]
    changes = np.array([other.change(model) for other in others])[: len(choosing)]
    asked = rows.readable(model) if people is None else people
    request = (DEFAULT_GAP, DEFAULT_TIME_LIMIT) if refits is None else (_GAP, _SECONDS)
    question = Question(model, others, distinct(encoded), asked, model.target(target), request[0])

    if shifts is not None:
        shifts_for(model, shifts)

    def family(size: float) -> Shifts:
        return Shifts.of(model.network, size) if shifts is None else shifts.scaled(size)

    def tried(delta: float | Shifts, size: float) -> Trial:
        explainer = Proplace(base, delta, k=k, schema=schema, n_jobs=n_jobs, time_limit=request[1])
        trial = question.tried(explainer.fit(known), size)
        advance(1)
        return trial

    def measure(size: float) -> Trial:
        return tried(size if shifts is None else shifts.scaled(size), size)

    def largest() -> float:
        return question.largest(family, min_robust_share)

    with progress_bar("delta", _steps(deltas, risk), show=progress) as advance:
        nearest = tried(0.0, 0.0)
        trials = _trials(measure, deltas, largest, len(choosing), (validity, risk))
    table = _curve(trials, len(choosing))
    if not table["share_explained"].any():
        raise InputError(
            "no delta leaves a robust row, so nobody can be explained; give smaller deltas, or rows "
            f"that the network puts further inside class {target}",
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
        accepted=len(question.accepted),
        people=trials[at].people,
        refits=refits is not None,
        validity=validity,
        min_robust_share=min_robust_share,
        risk=risk,
        promises=honours.shape[1],
        held_out=HeldOutResult.of(honours[len(choosing) :], confidence),
    )
    found = replace(found, shortfall=_shortfall(found, fine, given=deltas is not None))
    _warn(found, question, [text for trial in trials for text in trial.unread])
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
            "shifts holds one network alone, so that it has no size to choose", name="shifts"
        )


def _parts(
    named: dict[str, object], held_out: Sequence[object] | float | None, seed: int
) -> tuple[dict[str, object], dict[str, object]]:
    """The models that choose and those that report, by what they are called in messages."""
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
    asked: tuple[float, float | None],
) -> list[Trial]:
    """What is measured at each size, in growing order."""
    validity, risk = asked

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
    """Count the deltas to try, at most."""
    if deltas is not None:
        return len(deltas) + 1
    return (_GRID + _REFINE if risk is None else _FINE_GRID) + 1


def _curve(trials: list[Trial], models: int) -> pd.DataFrame:
    """One row per size; validity and risk are those of the models that choose."""
    table = pd.DataFrame([trial.row for trial in trials])
    table.insert(1, "validity", [trial.validity(models) for trial in trials])
    table["risk"] = bounds([trial.honours[:models] for trial in trials])
    return table


def _quantile(changes: Array, quantile: float) -> float:
    """The quantile of the changes that are known; NaN if none is."""
    known = changes[~np.isnan(changes)]
    return float(np.quantile(known, quantile, method="higher")) if len(known) else np.nan


def _chosen(
    table: pd.DataFrame, fine: pd.Series[bool], best: pd.Series[float], min_robust_share: float
) -> tuple[int, bool, bool]:
    """Place of the delta to take, whether it is as asked, and whether robust rows are what it lacks.

    ``fine`` says which do what was asked for, and ``best`` how near the others come to that.
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
    """Halve the step below the first delta that is large enough."""
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
    """Three digits, downwards, so that what is printed is what was used."""
    digits = 2 - math.floor(math.log10(delta))
    return float(f"{math.floor(delta * 10**digits) / 10**digits:.{max(digits, 0)}f}")


def _warn(found: Calibration, question: Question, unread: list[str]) -> None:
    def say(text: str) -> None:
        warnings.warn(text, CalibrationWarning, stacklevel=4)

    curve = found.curve
    empty = curve.loc[curve["robust_rows"] == 0, "delta"]
    if len(empty):
        which = ", ".join(found._label(size).removeprefix("delta ") for size in empty)
        word = "delta " * found.label.startswith("delta")
        say(f"no training row is robust at {word}{which}: nobody can be explained there")
    if found.shortfall:
        say(found.shortfall)
    if unread:
        say(
            f"retrained models cannot read {len(unread)} (counterfactual, model) pairs, which count as "
            f"refused; the first: {unread[0]}"
        )
    if found.refits:  # trainings from scratch: a largest change proves nothing
        return
    one_delta = found.label.startswith("delta")
    if one_delta and math.isinf(found.max_change):
        say(
            "batch norm of the retrained networks moved a neuron that no weight or bias of the model in "
            "use can move (a layer without bias, a factor of 0), so that no delta includes them: "
            "validity on them is measured, not proved. Keep batch norm fixed when you retrain, train "
            "the layer in front of it with a bias, or give the box of such networks, "
            "Shifts.bounding(...)"
        )
    elif (
        one_delta and np.isfinite(found.max_change) and not _any_robust(question, found.max_change)
    ):
        say(
            f"the retrained networks moved by {found.max_change:.3g}, and no training row is robust at "
            "such a delta: validity on them is measured, not proved. Retrain incrementally (start "
            "from the network in use, small steps), train with more weight decay, or take a box that "
            "is learned from retrainings (Shifts.learn)"
        )


def _any_robust(question: Question, delta: float) -> bool:
    """Whether a training row is robust at a delta."""
    report = certify(question.model.network, question.rows, delta, question.target)
    return bool(report.robust.any())


def _shortfall(found: Calibration, fine: pd.Series[bool], *, given: bool) -> str:
    """Describe why no delta suffices and what to do next; empty if one does.

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
            f"ask for less (validity={reached:g}, --validity {reached:g})" if reached > 0.0 else ""
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
            "accept counterfactuals that are far away, much alike and missing for many "
            f"(min_robust_share={share:g}, --min-robust-share {share:g})"
        )
        named = found._label(row["delta"])
        lack = f"{lack} and leaves enough robust rows: {named}, "
        lack += f"with a validity of {row['validity']:.1%}, {few}, and at least "
        lack += f"{found.min_robust_share:.0%} is asked for"
    elif given:
        advice.append("try larger deltas")
    elif found.min_robust_share > 0.0:
        advice.append("try larger deltas, which leave fewer robust rows (min_robust_share=0)")
    if not found.refits:
        advice.append("take a box that is learned from retrainings (shifts=Shifts.learn(history))")
        advice.append("ask that several models accept each counterfactual (required_models=[...])")
    advice.append("or train with more weight decay")
    return f"{lack}; {best}. To go on, {', '.join(advice)}."


def _people(count: int) -> str:
    """Write a number of people."""
    return "1 person" if count == 1 else f"{count} people"


def _share(share: float) -> str:
    """Write a share; without counterfactuals there is none."""
    return "none" if math.isnan(share) else f"{share:.1%}"
