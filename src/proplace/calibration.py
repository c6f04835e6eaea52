r"""How large should delta be? Two measurements on retrained networks.

Let :math:`\theta` be the parameters in use and :math:`\theta^{(1)}, \dots, \theta^{(m)}` those of
retrained networks.

(a) *Change.* :math:`\|\theta^{(j)} - \theta\|_\infty` for each j. If the retrainings are incremental
    (they start from :math:`\theta`), a delta of at least the largest change puts every one of them
    into Delta, so every answer is valid on all of them: a proof. Networks retrained from scratch are
    not near :math:`\theta` in any such sense, and this number is then far too large to be of use.

(b) *Validity.* For each of a list of deltas, explain the refused validation rows and count

    .. math::
        v(\delta) = \frac{1}{n m} \sum_{i=1}^{n} \sum_{j=1}^{m}
            [\,\theta^{(j)} \text{ gives } x'_i(\delta) \text{ the target class}\,] .

    The calibrated delta is the smallest of the list with :math:`v(\delta)` at least as wanted.
    This is a measurement, not a proof; it never needs more than (a), where (a) leaves robust rows.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.certification import certify
from proplace.errors import InputError, OptionError
from proplace.explainer import DEFAULT_MARGIN, DEFAULT_SLACK, Proplace
from proplace.optional import require
from proplace.options import processes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from proplace.network import Array, Network
    from proplace.schema import Schema
    from proplace.tables import Table

_GRID = 10  # deltas tried when none are given
_SMALLEST = 64.0  # the smallest of them is this part of the largest that leaves a robust row
_REFINE = 3  # halvings between the last delta that is too small and the first that is not
# A little more margin than a search asks for (its margin and slack together), so that a row that keeps
# it is robust for the search too.
_ENOUGH_MARGIN = 2.0 * max(DEFAULT_MARGIN, DEFAULT_SLACK)
_SEARCH_ROWS = 2000  # rows by which the largest delta of interest is found


class NoRobustRows(UserWarning):
    """A delta leaves too few robust rows to explain anybody, or is not large enough."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What :func:`calibrate_delta` measured.

    Attributes
    ----------
    delta
        The smallest delta of the curve whose answers stay valid as often as wanted. Where none
        does, the delta with the largest validity; ``reached`` is False then.
    reached
        Whether ``delta`` gives the wanted validity.
    change
        The quantile of ``changes`` that was asked for: a delta that *proves* validity on that share
        of the retrained networks.
    changes
        Largest parameter change of each retrained network.
    curve
        One row per delta: ``delta``, ``validity`` (share of answers and retrained networks where the
        class is kept; NaN without answers), ``robust`` (share of the training rows that are robust),
        ``answered`` (share of the refused validation rows with an answer), ``distance`` (mean).
    wanted
        The validity that was asked for.
    """

    delta: float
    reached: bool
    change: float
    changes: Array
    curve: pd.DataFrame
    wanted: float

    def __repr__(self) -> str:
        at = self.curve.loc[self.curve["delta"] == self.delta].iloc[0]
        return (
            f"Calibration(delta {self.delta:g}: validity {at['validity']:.1%}, "
            f"{at['robust']:.1%} of the rows robust; change {self.change:.3g})"
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
            self.curve["robust"],
            marker=".",
            color="#8d99ae",
            linestyle="--",
            label="training rows robust",
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
    net: Network,
    retrained: Sequence[Network],
    X_train: Table,
    X_valid: Table,
    *,
    schema: Schema | None = None,
    k: int = 20,
    quantile: float = 1.0,
    wanted: float = 1.0,
    deltas: Sequence[float] | None = None,
    target: int = 1,
    n_jobs: int = 1,
) -> Calibration:
    """Find the smallest delta whose answers survive retraining as often as wanted.

    Parameters
    ----------
    net
        The network in use.
    retrained
        Networks of the same architecture, retrained the way it will be retrained.
    X_train
        Training rows (DataFrame with a schema, or encoded rows): the robust ones span the regions.
    X_valid
        People to explain; those who have the target class already are left out.
    schema, k
        As for :class:`~proplace.Proplace`.
    quantile
        Which quantile of the parameter changes to report as ``change`` (1: the largest).
    wanted
        Share of (answer, retrained network) pairs that must stay valid.
    deltas
        Deltas to try. Without: ten in geometric steps up to the largest that leaves a robust row,
        then three between the last too small and the first large enough.
    target
        The wanted class.
    n_jobs
        Processes for the explanations.

    Warns
    -----
    NoRobustRows
        When a delta that was given leaves no robust row, when the change of the retrainings does,
        and when no delta gives the wanted validity.

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
    _check(net, retrained, quantile, wanted, deltas)
    n_jobs = processes("n_jobs", n_jobs) or 1
    changes = np.array([net.distance(other) for other in retrained])
    change = float(np.quantile(changes, quantile, method="higher"))
    rows = np.unique(_encoded(net, schema, X_train), axis=0)

    def measure(delta: float) -> dict[str, float]:
        explainer = Proplace(net, delta, k=k, schema=schema, n_jobs=n_jobs).fit(X_train)
        robust = len(explainer.robust_rows(target)) / len(rows)
        people = explainer.explain(X_valid, target)
        bad = next((e for e in people if e.status == "bad_input"), None)
        if bad is not None:
            raise InputError(f"a validation row cannot be read: {bad.reason}")
        found = [e for e in people if e.status not in ("already_valid", "worker_died")]
        if not found:
            raise InputError(f"no validation row is refused: all have class {target} already")
        points = np.array([e.point for e in found if e.found])
        validity, distance = np.nan, np.nan
        if len(points):
            validity = float(np.mean([other.predict(points) == target for other in retrained]))
            distance = float(np.mean([e.distance for e in found if e.found]))
        return {
            "delta": delta,
            "validity": validity,
            "robust": robust,
            "answered": len(points) / len(found),
            "distance": distance,
        }

    if deltas is None:
        largest = _largest_delta(net, rows, target)
        grid = largest * np.geomspace(1.0 / _SMALLEST, 1.0, _GRID)
        curve = [measure(_short(delta)) for delta in grid]
        curve += _refined(curve, wanted, measure)
    else:
        curve = [measure(float(delta)) for delta in deltas]
    table = pd.DataFrame(curve).sort_values("delta", ignore_index=True)
    enough = table["validity"] >= wanted
    if not table["answered"].any():
        raise InputError(
            "no delta leaves a robust row, so nobody can be explained; give smaller deltas, or rows "
            f"that the network puts further inside class {target}"
        )
    chosen = int((enough if enough.any() else table["validity"]).argmax())
    found = Calibration(
        float(table["delta"].to_numpy()[chosen]), bool(enough.any()), change, changes, table, wanted
    )
    _warn(found, net, rows, target)
    return found


def _check(
    net: Network,
    retrained: Sequence[Network],
    quantile: float,
    wanted: float,
    deltas: Sequence[float] | None,
) -> None:
    if not len(retrained):
        raise InputError("calibration needs at least one retrained network")
    for name, value in (("quantile", quantile), ("wanted", wanted)):
        if not 0.0 <= value <= 1.0:
            raise OptionError(f"{name} must be between 0 and 1, not {value!r}")
    if deltas is not None and not (
        len(deltas) and all(math.isfinite(delta) and delta >= 0.0 for delta in deltas)
    ):
        raise OptionError("deltas must be one or more finite numbers >= 0")


def _encoded(net: Network, schema: Schema | None, X: Table) -> Array:
    """The training rows as the network sees them."""
    if isinstance(X, pd.DataFrame):
        return net.rows(X.to_numpy()) if schema is None else schema.encode(X)
    return net.rows(X)


def _largest_delta(net: Network, rows: Array, target: int) -> float:
    """Nearly the largest delta at which some row is robust, found on the rows deepest inside."""
    margins = net.margin(rows, target)
    rows = rows[np.argsort(-margins, kind="stable")[:_SEARCH_ROWS]]
    if margins.max() <= _ENOUGH_MARGIN:
        raise InputError(f"no training row has class {target}: nothing can be robust")

    def robust(delta: float) -> bool:
        return bool(certify(net, rows, delta, target, margin=_ENOUGH_MARGIN).robust.any())

    low, high = 0.0, 1.0
    while robust(high):
        low, high = high, 2.0 * high
    while high - low > 0.05 * high:
        middle = (low + high) / 2.0 if low else high / 4.0
        if robust(middle):
            low = middle
        else:
            high = middle
    return low


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


def _warn(found: Calibration, net: Network, rows: Array, target: int) -> None:
    empty = found.curve.loc[found.curve["robust"] == 0.0, "delta"]
    if len(empty):
        warnings.warn(
            f"no training row is robust at delta {', '.join(f'{d:g}' for d in empty)}: nobody can be "
            "explained there",
            NoRobustRows,
            stacklevel=3,
        )
    if not found.reached:
        best = found.curve["validity"].max()
        warnings.warn(
            f"no delta gives a validity of {found.wanted:.1%} on the retrained networks; the best is "
            f"{best:.1%} at delta {found.delta:g}",
            NoRobustRows,
            stacklevel=3,
        )
    if not certify(net, rows, found.change, target).robust.any():
        warnings.warn(
            f"the retrained networks moved by {found.change:.3g}, and no training row is robust at "
            "such a delta: validity on them is measured, not proved. Retrain incrementally (start "
            "from the network in use, small steps), or train with more weight decay",
            NoRobustRows,
            stacklevel=3,
        )
