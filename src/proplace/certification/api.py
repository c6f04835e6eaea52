"""Delta-robustness for tables of rows: ``certify``, ``worst_case`` and ``output_range``.

All three ask one engine for the least value of an objective over the logits: the margin of a class
is the least of its objectives, a logit's range is that of plus and minus the logit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.certification.bounds import Abstraction
from proplace.certification.deployed import resolve, rounding_error
from proplace.certification.exact import minimise
from proplace.certification.least import TOLERANCE, least
from proplace.certification.producer import Certificates, Notes, Proofs
from proplace.certification.worst import shifted_network
from proplace.errors import InputError, OptionError
from proplace.progress import progress_bar
from proplace.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.certification.deployed import Margin
    from proplace.network import Array, Network
    from proplace.shifts import Delta

Mask = npt.NDArray[np.bool_]

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
        True where there is no verdict (``robust`` is False there): the time limit came first, or
        the bounds meet to rounding with ``margin`` between them.
    margin
        The margin that was asked for: one number, or one per row.
    certificates
        One :class:`Certificate` per row where they were asked for (None for a row that is undecided).
    """

    robust: Mask
    lower: Array
    upper: Array
    undecided: Mask
    margin: float | Array
    certificates: Certificates | None = None

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
    margin: Margin | None = None,
    certificates: bool = False,
    exact_margin: bool = False,
    time_limit: float | None = None,
    progress: bool = False,
) -> Report:
    """Say for each row whether every network within ``delta`` gives it the target class.

    The verdict is exact: robust iff the least margin over Delta is at least ``margin``. Cheap
    batched bounds and attacks decide most rows; branch and bound decides the rest. A row is robust
    only if a lower bound reaches ``margin``: a tie that rounding hides is ``undecided``.

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
        The least margin a robust row must keep. ``"float32"``: what covers the rounding of a model
        that is deployed in float32, a number for each row (see :mod:`proplace.certification.deployed`).
        None: ``"float32"`` for such a model, else 0.
    certificates
        Also prove each verdict so that :mod:`proplace.certification.checker` accepts it in exact
        arithmetic; a row without such a proof is undecided.
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
    X = net.rows(X)
    U = net.transform(X)
    shifts = Shifts.of(net, delta)
    objectives = net.objectives(target)
    asked = resolve(net, shifts, X, margin)
    wanted = np.broadcast_to(np.asarray(asked, dtype=np.float64), len(X))
    deadline = _deadline(time_limit)
    abstraction = Abstraction(net, shifts)
    lower, upper = np.full(len(U), np.inf), np.full(len(U), np.inf)
    robust, undecided = np.zeros(len(U), dtype=bool), np.zeros(len(U), dtype=bool)
    parts: list[Proofs] = []
    with progress_bar("certify", len(U), show=progress) as advance:
        for rows in _chunks(net, len(U)):
            notes = Notes() if certificates else None
            low, high = least(abstraction, U[rows], objectives, wanted[rows], deadline, notes)
            if exact_margin:
                exact = np.full(len(low), -np.inf)
                closer = least(abstraction, U[rows], objectives, exact, deadline)
                low, high = np.maximum(low, closer[0]), np.minimum(high, closer[1])
            met = (low >= wanted[rows]) & np.isfinite(low) & np.isfinite(high)  # no overflow
            robust[rows] = (high >= wanted[rows]) & met
            undecided[rows] = ~(high < wanted[rows]) & ~met
            if notes is not None:
                proofs = _proofs(net, shifts, target, X[rows], wanted[rows], notes, low, high)
                parts.append(proofs)
                robust[rows] = proofs.robust & proofs.proved
                undecided[rows] = ~proofs.proved
            lower[rows], upper[rows] = low, high
            advance(rows.stop - rows.start)
    found = Certificates(parts) if certificates else None
    return Report(robust, lower, upper, undecided, asked, found)


def _proofs(
    net: Network,
    shifts: Shifts,
    target: int,
    X: Array,
    margin: Array,
    notes: Notes,
    lower: Array,
    upper: Array,
) -> Proofs:
    """Proofs of what the bounds say."""
    missed = (upper < margin) & np.isfinite(margin)  # an infinite margin cannot be written down
    clear = np.zeros(len(X), dtype=bool)  # far enough for all roundings on the way to a shift
    rows = np.flatnonzero(missed)
    if len(rows):
        error = 64.0 * rounding_error(net, shifts, X[rows], 2.0**-53)
        clear[rows] = upper[rows] + error < margin[rows]
    return Proofs(
        net,
        shifts,
        target,
        X,
        margin,
        notes,
        np.flatnonzero(~missed & (lower >= margin)),
        np.flatnonzero(missed),
        np.flatnonzero(missed & ~clear),
    )


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
                    exact = np.full(rows.stop - rows.start, -np.inf)
                    bound, _ = least(abstraction, U[rows], c[None], exact, np.inf)
                    values[rows, k] = c[k] * bound
            advance(rows.stop - rows.start)
    return low, high


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
