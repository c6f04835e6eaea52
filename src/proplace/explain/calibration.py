r"""How large should delta be? What retrained models say.

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

(c) *Risk.* The same count with a promise about the next retraining: the smallest delta for which the
    expected share of broken promises is at most the risk (see :mod:`proplace.explain.promises`).

A box of networks may take the place of delta; then its size t is chosen, ``shifts.scaled(t)``.

A delta that leaves next to no robust row is of no use, however valid its few answers are: all people
would be sent to the same place, and most would get no answer. Of the training rows that the model in
use accepts, a share of at least ``least_robust`` (10% unless told otherwise) must stay robust, and as
large a share of the people must get an answer.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.certification import certify
from proplace.core.conformal import probability
from proplace.core.errors import InputError, OptionError
from proplace.core.optional import require
from proplace.core.options import processes
from proplace.core.shifts import Shifts
from proplace.explain import promises
from proplace.explain.promises import Unseen
from proplace.explain.proplace import Proplace
from proplace.explain.trials import Question, Retrained
from proplace.loaders.coordinates import shifts_for
from proplace.loaders.model import Model
from proplace.tables.rows import distinct, model_of, training_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from proplace.core.network import Array
    from proplace.explain.trials import Trial
    from proplace.schema import Schema
    from proplace.schema.cells import Label
    from proplace.tables.rows import Table

_GRID = 10  # deltas tried when none are given
_FINE_GRID = 19  # the same for a risk: they must not depend on what is found
_SMALLEST = 64.0  # the smallest of them is this part of the largest that leaves a robust row
_REFINE = 3  # halvings between the last delta that is too small and the first that is not
_LEAST_ROBUST = 0.1  # share of the accepted rows that must stay robust


class CalibrationWarning(UserWarning):
    """A delta leaves too few robust rows to be of use, or is not large enough."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What :func:`calibrate_delta` measured.

    Attributes
    ----------
    delta
        The smallest delta of the curve whose answers stay valid as often as wanted, or whose risk is
        within the one asked for. Where none is, or too few rows stay robust there, the best delta of
        those that leave enough robust rows; ``reached`` is False then. Where the size of a box was
        chosen, this is the factor t of ``shifts.scaled(t)``.
    shifts
        The set of networks that was chosen.
    reached
        Whether ``delta`` does what was asked for and leaves enough robust rows and answers.
    scarce
        Whether what is missing is robust rows or answers: the delta that would do leaves too few.
    change
        The quantile of ``changes`` that was asked for: a delta that *proves* validity on that share
        of the retrained networks.
    changes
        Largest change of a trained parameter of each retrained network; NaN where parameters cannot be
        compared, infinite where no delta includes it, because its batch norm moved what no parameter
        in use can move.
    curve
        One row per delta: ``delta``, ``validity`` (share of answers and retrained networks where the
        class is kept; NaN without answers), ``robust_rows`` (how many of the accepted training rows
        stay robust), ``robust`` (their share of all training rows), ``robust_of_accepted`` (their
        share of the accepted ones), ``answered`` (share of the refused validation rows with an
        answer), ``distance`` (mean), ``risk`` (bound on the expected share of promises that the next
        retraining breaks). Rows that occur twice count once.
    accepted
        How many training rows the model in use gives the target class.
    wanted, least_robust
        The validity, and the share of the accepted rows, that were asked for.
    risk
        The risk that was asked for, if any.
    promises
        How many people have an answer at ``delta``.
    unseen
        What retrained models did to these answers that had no part in the choice, if there are any.
    """

    delta: float
    shifts: Shifts
    reached: bool
    scarce: bool
    change: float
    changes: Array
    curve: pd.DataFrame
    accepted: int
    wanted: float
    least_robust: float
    risk: float | None
    promises: int
    unseen: Unseen | None

    @property
    def called(self) -> str:
        """What was chosen, in words: ``delta 0.02``, or ``0.8 times the box``."""
        return self._called(self.delta)

    @property
    def statement(self) -> str:
        """What may be said about the next retraining, in two sentences.

        It speaks of models that are drawn by a procedure; the theorem speaks of every network of the
        set. The one does not follow from the other.
        """
        at, n = self._at, len(self.changes)
        who = "1 person" if self.promises == 1 else f"{self.promises} people"
        people = f"the promises made to {who} with {self.called}"
        if self.risk is None:
            first = (
                f"Of {people}, {n} retrained model{'s' * (n > 1)} honoured {at['validity']:.1%}; they "
                "also chose it, so that this is a measurement and no promise about the next one."
            )
        elif at["risk"] <= self.risk:
            first = (
                f"Of {people}, an expected share of at most {self.risk:.1%} is broken at the next "
                f"retraining (conformal risk control by N = {n} retrained models), if it is "
                "exchangeable with them."
            )
        else:
            first = (
                f"Of {people}, {n} retrained models broke {1.0 - at['validity']:.1%}, so that a risk of "
                f"{self.risk:.1%} at the next retraining cannot be stated."
            )
        none = "No model was held out, so nothing is said of models that had no part in the choice."
        return f"{first} {none if self.unseen is None else self.unseen}"

    def _called(self, size: float) -> str:
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
            f"Calibration({self.called}: validity {at['validity']:.1%}, "
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
        wanted = self.wanted if self.risk is None else 1.0 - self.risk
        axes.axhline(wanted, color="#8d99ae", linewidth=0.7)
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
    retrained: Sequence[object],
    X_train: Table,
    X_valid: Table,
    *,
    schema: Schema | None = None,
    k: int = 20,
    quantile: float = 1.0,
    wanted: float = 1.0,
    risk: float | None = None,
    least_robust: float = _LEAST_ROBUST,
    deltas: Sequence[float] | None = None,
    shifts: Shifts | None = None,
    held_out: Sequence[object] | float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
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
        Models retrained the way it will be retrained; these choose. Scalers and encoders may have
        been fitted again, and architectures may differ: predictions are all that counts.
    X_train
        Training rows: the robust ones span the regions.
    X_valid
        People to explain; those who have the target class already are left out.
    schema, k
        As for :class:`~proplace.Proplace`.
    quantile
        Which quantile of the parameter changes to report as ``change`` (1: the largest).
    wanted
        Share of (answer, retrained network) pairs that must stay valid. With a risk it plays no part.
    risk
        Expected share of the promises that the next retraining may break: chooses by conformal risk
        control, which needs at least 1 / risk - 1 retrained models (19 for 0.05).
    least_robust
        Share of the accepted training rows that must stay robust, and of the people who must get an
        answer.
    deltas
        Deltas to try, or factors t where ``shifts`` is given. Without: ten in geometric steps up to
        the largest that leaves a robust row, then three between the last too small and the first
        large enough; with a risk nineteen, which do not depend on the retrained models.
    shifts
        A box of networks whose size is chosen in place of delta: ``shifts.scaled(t)``. For a risk it
        must not have been learned from the models that choose it.
    held_out
        More retrained models, or the share of ``retrained`` that is put aside: they have no part in
        the choice, and report how it fares.
    confidence
        Of the bounds that these give.
    seed
        Draws which are put aside.
    target
        The wanted class, by its label.
    n_jobs
        Processes for the explanations.

    Warns
    -----
    CalibrationWarning
        When a delta that was given leaves no robust row, when the change of the retrainings does,
        when no delta gives the wanted validity or keeps the risk, and when the one that does leaves
        too few robust rows or answers.

    Examples
    --------
    >>> from proplace import Network, calibrate_delta
    >>> net = Network([([[1.0]], [-0.5])])  # accepts x >= 0.5
    >>> stricter = Network([([[1.0]], [-0.6])])  # accepts x >= 0.6
    >>> rows = [[0.2], [0.8], [0.9], [1.0]]
    >>> found = calibrate_delta(net, [stricter], rows, rows, deltas=[0.01, 0.04, 0.07, 0.1])
    >>> found.delta, round(found.change, 6)
    (0.07, 0.1)
    >>> later = [Network([([[1.0]], [-0.4 - 0.01 * n])]) for n in range(20)]
    >>> found = calibrate_delta(
    ...     net, later, rows, rows, risk=0.2, held_out=0.5, deltas=[0.01, 0.04, 0.07]
    ... )
    >>> found.delta
    0.07
    >>> print(found.statement)
    Of the promises made to 1 person with delta 0.07, an expected share of at most 20.0% is broken ...
    """
    _check(quantile, wanted, least_robust, deltas, shifts)
    probability("confidence", confidence)
    n_jobs = processes("n_jobs", n_jobs) or 1
    choosing, reporting = _parts(retrained, held_out, seed)
    if risk is not None:
        promises.check_enough(len(choosing), risk)
    base, declared = Model.of(source), schema is not None
    model, rows, _ = training_rows(model_of(base, schema), X_train, declared=declared)
    others = [
        Retrained.read(name, one, schema, X_train, base)
        for name, one in (choosing | reporting).items()
    ]
    changes = np.array([other.change(model) for other in others])[: len(choosing)]
    question = Question(model, others, distinct(rows), X_valid, model.target(target))

    if shifts is not None:
        shifts_for(model, shifts)

    def family(size: float) -> Shifts:
        return Shifts.of(model.network, size) if shifts is None else shifts.scaled(size)

    def measure(size: float) -> Trial:
        delta = size if shifts is None else shifts.scaled(size)
        explainer = Proplace(base, delta, k=k, schema=schema, n_jobs=n_jobs)
        return question.tried(explainer.fit(X_train), size)

    trials = _trials(
        measure, deltas, lambda: question.largest(family), len(choosing), (wanted, risk)
    )
    table = _curve(trials, len(choosing))
    if not table["answered"].any():
        raise InputError(
            "no delta leaves a robust row, so nobody can be explained; give smaller deltas, or rows "
            f"that the network puts further inside class {target}",
            name="deltas",
        )
    fine = table["validity"] >= wanted if risk is None else table["risk"] <= risk
    best = table["validity"] if risk is None else -table["risk"]
    at, reached, scarce = _chosen(table, fine, best, least_robust)
    honours = trials[at].honours
    found = Calibration(
        delta=float(table["delta"].to_numpy()[at]),
        shifts=family(float(table["delta"].to_numpy()[at])),
        reached=reached,
        scarce=scarce,
        change=_quantile(changes, quantile),
        changes=changes,
        curve=table,
        accepted=len(question.accepted),
        wanted=wanted,
        least_robust=least_robust,
        risk=risk,
        promises=honours.shape[1],
        unseen=Unseen.of(honours[len(choosing) :], confidence),
    )
    _warn(found, question, fine)
    return found


def _check(
    quantile: float,
    wanted: float,
    least_robust: float,
    deltas: Sequence[float] | None,
    shifts: Shifts | None,
) -> None:
    for name, value in (
        ("quantile", quantile),
        ("wanted", wanted),
        ("least_robust", least_robust),
    ):
        if not 0.0 <= value <= 1.0:
            raise OptionError(
                f"{name} must be between 0 and 1, not {value!r}", name=name, value=value
            )
    if deltas is not None and not (
        len(deltas) and all(math.isfinite(delta) and delta >= 0.0 for delta in deltas)
    ):
        raise OptionError(
            "deltas must be one or more finite numbers >= 0", name="deltas", value=deltas
        )
    if shifts is not None and shifts.frozen:
        raise OptionError(
            "shifts holds one network alone, so that it has no size to choose", name="shifts"
        )


def _parts(
    retrained: Sequence[object], held_out: Sequence[object] | float | None, seed: int
) -> tuple[dict[str, object], dict[str, object]]:
    """The models that choose and those that report, by what they are called in messages."""
    named: dict[str, object] = {f"retrained[{n}]": one for n, one in enumerate(retrained)}
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
    wanted, risk = asked
    if deltas is not None:
        trials = [measure(float(delta)) for delta in deltas]
    else:
        steps = _GRID if risk is None else _FINE_GRID
        grid = largest() * np.geomspace(1.0 / _SMALLEST, 1.0, steps)
        trials = [measure(_short(size)) for size in grid]
        if risk is None:
            trials += _refined(trials, measure, lambda trial: trial.validity(models) >= wanted)
    return sorted(trials, key=lambda trial: trial.row["delta"])


def _curve(trials: list[Trial], models: int) -> pd.DataFrame:
    """One row per size; validity and risk are those of the models that choose."""
    table = pd.DataFrame([trial.row for trial in trials])
    table.insert(1, "validity", [trial.validity(models) for trial in trials])
    table["risk"] = promises.bounds([trial.honours[:models] for trial in trials])
    return table


def _quantile(changes: Array, quantile: float) -> float:
    """The quantile of the changes that are known; NaN if none is."""
    known = changes[~np.isnan(changes)]
    return float(np.quantile(known, quantile, method="higher")) if len(known) else np.nan


def _chosen(
    table: pd.DataFrame, fine: pd.Series[bool], best: pd.Series[float], least_robust: float
) -> tuple[int, bool, bool]:
    """Place of the delta to take, whether it is as asked, and whether robust rows are what it lacks.

    ``fine`` says which do what was asked for, and ``best`` how near the others come to that.
    """
    answered = table["validity"].notna()
    fine = fine & answered
    enough = table["robust_of_accepted"] >= least_robust
    usable = enough & (table["answered"] >= least_robust) & answered
    if (fine & usable).any():
        return int((fine & usable).argmax()), True, False
    if usable.any():
        return int(best.where(usable).argmax()), False, bool(fine.any())
    return int(fine.argmax() if fine.any() else best.where(answered).argmax()), False, True


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


def _warn(found: Calibration, question: Question, fine: pd.Series[bool]) -> None:
    def say(text: str) -> None:
        warnings.warn(text, CalibrationWarning, stacklevel=4)

    curve = found.curve
    empty = curve.loc[curve["robust_rows"] == 0, "delta"]
    if len(empty):
        which = ", ".join(found._called(size).removeprefix("delta ") for size in empty)
        word = "delta " * found.called.startswith("delta")
        say(f"no training row is robust at {word}{which}: nobody can be explained there")
    if found.scarce:
        say(_scarce(found, fine))
    elif not found.reached and found.risk is not None:
        say(
            f"no size keeps the expected share of broken promises within {found.risk:g}; the best "
            f"bound is {found._at['risk']:.3g} with {found.called}. {_INSTEAD}, or allow more risk "
            "(risk=)"
        )
    elif not found.reached:
        say(
            f"no delta gives a validity of {found.wanted:.1%} on the retrained networks; the best is "
            f"{curve['validity'].max():.1%} with {found.called}. {_INSTEAD}"
        )
    one_delta = found.called.startswith("delta")
    if one_delta and math.isinf(found.change):
        say(
            "batch norm of the retrained networks moved a neuron that no weight or bias of the model in "
            "use can move (a layer without bias, a factor of 0), so that no delta includes them: "
            "validity on them is measured, not proved. Keep batch norm fixed when you retrain, train "
            "the layer in front of it with a bias, or give the box of such networks, Shifts.hull(...)"
        )
    elif one_delta and np.isfinite(found.change) and not _any_robust(question, found.change):
        say(
            f"the retrained networks moved by {found.change:.3g}, and no training row is robust at "
            "such a delta: validity on them is measured, not proved. Retrain incrementally (start "
            "from the network in use, small steps), train with more weight decay, or take a box that "
            "is learned from retrainings (Shifts.learn)"
        )


def _any_robust(question: Question, delta: float) -> bool:
    """Whether a training row is robust at a delta."""
    report = certify(question.model.network, question.rows, delta, question.target)
    return bool(report.robust.any())


_INSTEAD = (
    "Take a box that is learned from retrainings, with an interval for each parameter "
    "(shifts=Shifts.learn(history)), ask that several networks accept each answer (Proplace(..., "
    "also=[...])), retrain in small steps from the model in use, or train with more weight decay"
)


def _scarce(found: Calibration, fine: pd.Series[bool]) -> str:
    """Say how few rows stay robust, or people are answered, and what to do."""
    curve = found.curve
    good = curve[fine & curve["validity"].notna()]
    at = curve.iloc[int(curve["validity"].argmax())] if good.empty else good.iloc[0]
    lower = "a lower validity" if found.risk is None else "a larger risk"
    instead = (
        f"{found.called.capitalize()} is given instead, which leaves enough and has {lower}. "
        if at["delta"] != found.delta
        else ""
    )
    few = (
        f"leaves {at['robust_rows']:.0f} of {found.accepted} accepted training rows robust "
        f"({at['robust_of_accepted']:.1%})"
    )
    if at["robust_of_accepted"] >= found.least_robust:
        few = f"gives {at['answered']:.1%} of the people an answer"
    less = (
        "ask for less validity (wanted=0.95, --wanted 0.95)"
        if found.risk is None
        else "allow more risk (risk=0.1, --risk 0.1)"
    )
    return (
        f"{found._called(at['delta'])}, with a validity of {at['validity']:.1%}, {few}, and at least "
        f"{found.least_robust:.0%} are asked for: so few answers would be far away, much alike, and "
        f"missing for many people. {instead}{_INSTEAD}, {less}, or take such a delta knowingly "
        "(least_robust=0, --least-robust 0)"
    )
