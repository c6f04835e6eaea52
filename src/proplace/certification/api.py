"""Delta-robustness for tables of rows: ``certify``, ``worst_case`` and ``output_range``.

All three ask one engine for the least value of an objective over the logits: the margin of a class
is the least of its objectives, a logit's range is that of plus and minus the logit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.certification.bounds import Abstraction
from proplace.certification.branch import decide, glance
from proplace.certification.exact import minimise
from proplace.certification.worst import shifted_network
from proplace.errors import InputError, OptionError
from proplace.progress import progress_bar
from proplace.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.network import Array, Network
    from proplace.shifts import Delta

Mask = npt.NDArray[np.bool_]

TOLERANCE = 1e-9
"""Gap, relative to max(1, |margin|), at which two bounds count as equal."""

_CHUNK_FLOATS = 2_000_000  # of one array of a chunk: keeps a chunk's memory near 200 MB


@dataclass(frozen=True, eq=False)
class Report:
    """Verdicts of :func:`certify`, one entry per row.

    Attributes
    ----------
    robust
        True where every network in Delta gives the target class with at least ``margin``.
    lower, upper
        Proved bounds on the worst margin. ``upper`` is reached by a concrete network in Delta.
    undecided
        True where there is no verdict (``robust`` is False there): the time limit came first. At
        extreme scales of the parameters rounding can have the same effect.
    margin
        The margin that was asked for.
    """

    robust: Mask
    lower: Array
    upper: Array
    undecided: Mask
    margin: float

    def __len__(self) -> int:
        return len(self.robust)

    def __repr__(self) -> str:
        rest = f", {int(self.undecided.sum())} undecided" if self.undecided.any() else ""
        return f"Report({int(self.robust.sum())} of {len(self)} rows robust{rest})"


@dataclass(frozen=True, eq=False)
class WorstCase:
    """The worst network in Delta for one row.

    Attributes
    ----------
    network
        A network within Delta (every parameter, exactly) whose margin is the least.
    margin
        Its margin, by a plain forward pass.
    lower
        Proved lower bound on the margin of any network in Delta; meets ``margin`` to tolerance
        unless a time limit was hit.
    """

    network: Network
    margin: float
    lower: float


def certify(
    net: Network,
    X: npt.ArrayLike,
    delta: Delta,
    target: int = 1,
    *,
    margin: float = 0.0,
    exact_margin: bool = False,
    time_limit: float | None = None,
    progress: bool = False,
) -> Report:
    """Say for each row whether every network within ``delta`` gives it the target class.

    The verdict is exact: robust iff the least margin over Delta is at least ``margin``. Cheap
    batched bounds and attacks decide most rows; branch and bound decides the rest.

    Parameters
    ----------
    net
        The trained network.
    X
        Rows as the network takes them, shape (n, inputs).
    delta
        Largest change of any parameter, or one (weight, bias) pair per layer.
    target
        The wanted class.
    margin
        The least margin a robust row must keep.
    exact_margin
        Also close the gap between ``lower`` and ``upper`` for each row (slower).
    time_limit
        Seconds for the whole table; rows without a verdict by then are ``undecided``.
    progress
        Show a progress bar on standard error.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> report = certify(net, [[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]], delta=0.05)
    >>> report
    Report(2 of 3 rows robust)
    >>> report.robust
    array([ True,  True, False])
    """
    if not math.isfinite(margin):
        raise OptionError(f"margin must be a finite number, not {margin!r}")
    U = net.transform(X)
    shifts = Shifts.of(net, delta)
    objectives = net.objectives(target)
    deadline = _deadline(time_limit)
    threshold = -np.inf if exact_margin else margin
    abstraction = Abstraction(net, shifts)
    lower, upper = np.full(len(U), np.inf), np.full(len(U), np.inf)
    with progress_bar("certify", len(U), show=progress) as advance:
        for rows in _chunks(net, len(U)):
            lower[rows], upper[rows] = _least(abstraction, U[rows], objectives, threshold, deadline)
            advance(rows.stop - rows.start)
    met = (lower >= margin) | (upper - lower <= _gap(upper))
    met &= np.isfinite(lower) & np.isfinite(upper)  # an overflow proves nothing
    return Report((upper >= margin) & met, lower, upper, ~(upper < margin) & ~met, margin)


def worst_case(
    net: Network,
    x: npt.ArrayLike,
    delta: Delta,
    target: int = 1,
    *,
    time_limit: float | None = None,
) -> WorstCase:
    """Find the network within ``delta`` that gives ``x`` the least margin for the target class.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> worst = worst_case(net, [1.0, 0.0], delta=0.05)
    >>> round(worst.margin, 6), net.distance(worst.network) <= 0.05
    (1.055, True)
    """
    U = net.transform(x)
    if len(U) != 1:
        raise InputError(f"worst_case takes one row, not {len(U)}")
    shifts = Shifts.of(net, delta)
    deadline = _deadline(time_limit)
    abstraction = Abstraction(net, shifts)
    root = abstraction.tighten(abstraction.root(U)) if net.widths else None
    best: Network | None = None
    margin, lower = np.inf, np.inf
    for c in net.objectives(target):
        hidden: tuple[Array, ...] = ()
        if root is None:
            lower = min(lower, float(abstraction.linear_minimum(U, c)[0]))
        else:
            minimum = minimise(abstraction, root, c, tolerance=TOLERANCE, deadline=deadline)
            lower, hidden = min(lower, minimum.lower), minimum.hidden
        candidate = shifted_network(net, shifts, U[0], hidden, c)
        value = float(candidate.margin(x, target)[0])
        if value < margin:
            best, margin = candidate, value
    assert best is not None  # noqa: S101  (a target has at least one objective)
    return WorstCase(best, margin, min(lower, margin))


def output_range(
    net: Network, X: npt.ArrayLike, delta: Delta, *, progress: bool = False
) -> tuple[Array, Array]:
    """Exact range of each logit over Delta: the interval abstraction of the network.

    Returns two arrays of shape (n, outputs). With one logit and range [l, u], every network in
    Delta says class 1 if l >= 0 and class 0 if u < 0; otherwise the class is open.

    Examples
    --------
    >>> from proplace import Network
    >>> net = Network([([[1.0, -1.0]], [0.5])])
    >>> low, high = output_range(net, [[2.0, -1.0]], delta=0.1)
    >>> low.round(6), high.round(6)
    (array([[3.1]]), array([[3.9]]))
    """
    U = net.transform(X)
    abstraction = Abstraction(net, Shifts.of(net, delta))
    low, high = np.empty((2, len(U), net.outputs))
    with progress_bar("output range", len(U), show=progress) as advance:
        for rows in _chunks(net, len(U)):
            for k, unit in enumerate(np.eye(net.outputs)):
                for values, c in ((low, unit), (high, -unit)):
                    least, _ = _least(abstraction, U[rows], c[None], -np.inf, np.inf)
                    values[rows, k] = c[k] * least
            advance(rows.stop - rows.start)
    return low, high


def _least(
    abstraction: Abstraction, U: Array, objectives: Array, threshold: float, deadline: float
) -> tuple[Array, Array]:
    """Lower and upper bounds on the least objective of each row.

    With a finite threshold they are tight enough to decide against it; with ``-inf`` they meet.
    """
    if not abstraction.net.widths:
        values = np.min([abstraction.linear_minimum(U, c) for c in objectives], axis=0)
        return values, values.copy()
    lower, upper = np.full(len(U), np.inf), np.full(len(U), np.inf)
    root = abstraction.root(U)
    for c in objectives:
        a, const = abstraction.objective(c)
        bounds = glance(abstraction, root, a, const)
        upper = np.minimum(upper, bounds.upper)
        rows = np.flatnonzero(_open(bounds.lower, upper, threshold))
        if len(rows):
            tight = abstraction.tighten(root.take(rows))
            part = decide(abstraction, tight, a, const, threshold, deadline)
            bounds.lower[rows] = np.maximum(bounds.lower[rows], part.lower)
            upper[rows] = np.minimum(upper[rows], part.upper)
            for i in np.flatnonzero(_open(bounds.lower[rows], upper[rows], threshold)):
                if time.monotonic() >= deadline:
                    break
                minimum = minimise(
                    abstraction,
                    tight.take(np.array([i])),
                    c,
                    threshold=threshold if np.isfinite(threshold) else None,
                    tolerance=TOLERANCE,
                    deadline=deadline,
                )
                bounds.lower[rows[i]] = max(bounds.lower[rows[i]], minimum.lower)
                upper[rows[i]] = min(upper[rows[i]], minimum.upper)
        lower = np.minimum(lower, bounds.lower)
    return np.minimum(lower, upper), upper


def _open(lower: Array, upper: Array, threshold: float) -> Mask:
    """Rows that still need work: no verdict yet, or no exact value where one is asked for."""
    wide = lower < upper - _gap(upper)
    return wide & (lower < threshold) & (upper >= threshold) if np.isfinite(threshold) else wide


def _gap(upper: Array) -> Array:
    return TOLERANCE * np.maximum(1.0, np.abs(upper))


def _deadline(time_limit: float | None) -> float:
    if time_limit is None:
        return np.inf
    if not time_limit > 0.0:
        raise OptionError(f"time_limit must be a positive number of seconds, not {time_limit!r}")
    return time.monotonic() + time_limit


def _chunks(net: Network, rows: int) -> Iterator[slice]:
    """Slices of the table such that the largest array of a chunk stays within the budget."""
    widths = net.widths or (1,)
    # Bounds of layer j (the third and later) take one objective per neuron over each layer before.
    deep = max((widths[j] * max(widths[:j]) for j in range(2, len(widths))), default=0)
    size = max(1, _CHUNK_FLOATS // max(deep, 10 * sum(widths), net.inputs))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
