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
from proplace.certification.deployed import DOUBLE, resolve, rounding_error
from proplace.certification.exact import minimise
from proplace.certification.least import TOLERANCE, least, least_with_error
from proplace.certification.producer import Certificates, Notes, Proofs
from proplace.certification.worst import shifted_network
from proplace.errors import InputError, OptionError, SolverError
from proplace.progress import progress_bar
from proplace.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.certification.deployed import Margin
    from proplace.network import Array, Network
    from proplace.shifts import Delta

Mask = npt.NDArray[np.bool_]

_CLOSED = 1e-6  # gap, relative as TOLERANCE, up to which a range counts as exact
_CHUNK_FLOATS = 2_000_000  # of one array of a chunk: keeps a chunk's memory near 200 MB


@dataclass(frozen=True, eq=False)
class Report:
    """Verdicts of :func:`certify`, one entry per row.

    Attributes
    ----------
    robust
        True where every network in Delta gives the target class with at least ``margin``.
    lower, upper
        Bounds on the worst margin, up to the rounding of float64; ``upper`` is reached by a concrete
        network in Delta. The verdicts do not rest on their last digits: ``lower >= margin`` where a row
        is robust, ``upper < margin`` where it is not.
    undecided
        True where there is no verdict (``robust`` is False there): the time limit came first, or
        the worst margin is so near to ``margin`` that neither side can be proved.
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
        Lower bound on the margin of any network in Delta, up to the rounding of float64. It meets
        ``margin`` to tolerance unless a time limit came first, or the sizes of the parameters differ
        so much that the solver could not do better: where it lies far below, ``network`` need not be
        the worst.
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
    margin: Margin | Array | None = None,
    certificates: bool = False,
    exact_margin: bool = False,
    time_limit: float | None = None,
    progress: bool = False,
) -> Report:
    """Say for each row whether every network within ``delta`` gives it the target class.

    The verdict is exact: robust iff the least margin over Delta, in real numbers, is at least
    ``margin``. Cheap batched bounds and attacks decide most rows; branch and bound decides the rest. A
    row whose bounds do not clear ``margin`` by more than all rounding errors together is decided by a
    proof in exact arithmetic; where there is none, it is ``undecided``.

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
        The least margin a robust row must keep. ``"float32"``, ``"float16"`` or ``"bfloat16"``: what
        covers the rounding of a model that is deployed so, a number for each row (see
        :mod:`proplace.certification.deployed`). None: the name of the network's own precision, and 0
        for float64. Or an array of one number for each row.
    certificates
        Also write down each verdict's proof, so that :mod:`proplace.certification.checker` accepts it in
        exact arithmetic; a row without such a proof is undecided.
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
    shifts = Shifts.of(net, delta)
    asked = resolve(net, shifts, X, margin)
    question = _Question(net, shifts, Abstraction(net, shifts), target, _deadline(time_limit))
    wanted = np.broadcast_to(np.asarray(asked, dtype=np.float64), len(X))
    lower, upper = np.full(len(X), -np.inf), np.full(len(X), np.inf)
    robust, undecided = np.zeros(len(X), dtype=bool), np.ones(len(X), dtype=bool)
    parts: list[Proofs] = []
    with progress_bar("certify", len(X), show=progress) as advance:
        for rows in _chunks(net, len(X)):
            if question.late() and rows.start:
                if not certificates:
                    break
                parts.append(question.unproved(X[rows], wanted[rows]))
                continue
            if certificates:
                low, high, proofs = question.proved(X[rows], wanted[rows])
                parts.append(proofs)
                yes, no = proofs.robust & proofs.proved, ~proofs.robust & proofs.proved
            else:
                low, high, yes, no = question.decided(X[rows], wanted[rows])
            if exact_margin:
                closer = question.bounds(X[rows], np.full(len(low), -np.inf))
                low, high = np.maximum(low, closer[0]), np.minimum(high, closer[1])
            robust[rows], undecided[rows] = yes, ~yes & ~no
            lower[rows], upper[rows] = _agreeing(low, high, wanted[rows], yes, no)
            advance(rows.stop - rows.start)
    found = Certificates(parts) if certificates else None
    return Report(robust, lower, upper, undecided, asked, found)


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked of every row of a table."""

    net: Network
    shifts: Shifts
    abstraction: Abstraction
    target: int
    deadline: float

    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    def bounds(self, X: Array, wanted: Array, notes: Notes | None = None) -> tuple[Array, Array]:
        """Bounds on the worst margin of each row, tight enough to decide against ``wanted``."""
        objectives = self.net.objectives(self.target)
        U = self.net.transform(X)
        return least(self.abstraction, U, objectives, wanted, self.deadline, notes)

    def decided(self, X: Array, wanted: Array) -> tuple[Array, Array, Mask, Mask]:
        """Bounds, and the rows that are robust and that are not, for certain.

        Where the bounds clear ``wanted`` by more than rounding can have done, they decide; elsewhere a
        proof does.
        """
        objectives = self.net.objectives(self.target)
        low, high, error = least_with_error(self.abstraction, X, objectives, wanted, self.deadline)
        with np.errstate(invalid="ignore"):  # of what overflowed nothing is known
            yes, no = low - error >= wanted, high + error < wanted
        near = np.flatnonzero(~yes & ~no & ((low >= wanted) | (high < wanted)))
        if len(near):
            *_, proofs = self.proved(X[near], wanted[near])
            yes[near], no[near] = proofs.robust & proofs.proved, ~proofs.robust & proofs.proved
        return low, high, yes, no

    def proved(self, X: Array, wanted: Array) -> tuple[Array, Array, Proofs]:
        """Bounds, and proofs of what they say."""
        notes = Notes()
        low, high = self.bounds(X, wanted, notes)
        missed = (high < wanted) & np.isfinite(wanted)  # an infinite margin cannot be written down
        clear = np.zeros(len(X), dtype=bool)  # far enough for all roundings on the way to a shift
        rows = np.flatnonzero(missed)
        if len(rows):
            error = 64.0 * rounding_error(self.net, self.shifts, X[rows], DOUBLE)
            clear[rows] = high[rows] + error < wanted[rows]
        proofs = Proofs(
            self.net,
            self.shifts,
            self.target,
            X,
            wanted,
            notes,
            np.flatnonzero(~missed & (low >= wanted)),
            np.flatnonzero(missed),
            np.flatnonzero(missed & ~clear),
            self.deadline,
        )
        return low, high, proofs

    def unproved(self, X: Array, wanted: Array) -> Proofs:
        """What is left of rows for which there was no time."""
        none = np.zeros(0, dtype=np.intp)
        net, shifts = self.net, self.shifts
        return Proofs(net, shifts, self.target, X, wanted, Notes(), none, none, none)


def _agreeing(low: Array, high: Array, wanted: Array, yes: Mask, no: Mask) -> tuple[Array, Array]:
    """Bounds that say what the verdicts say, also where these were settled beyond rounding."""
    low = np.where(np.isfinite(low), low, -np.inf)  # what overflowed says nothing
    high = np.where(np.isfinite(high), high, np.inf)
    below = np.nextafter(wanted, -np.inf)
    return (
        np.where(yes, np.maximum(low, wanted), np.minimum(low, below)),
        np.where(no, np.minimum(high, below), np.maximum(high, wanted)),
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
            minimum = minimise(abstraction, root, U, c, tolerance=TOLERANCE, deadline=deadline)
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

    Returns two arrays of shape (n, outputs), right up to the rounding of float64 and the tolerance of
    the linear programs. With one logit and range [l, u], every network in Delta says class 1 if l >= 0
    and class 0 if u < 0; otherwise the class is open. For verdicts that no rounding touches, use
    :func:`certify`.

    Raises
    ------
    SolverError
        An end of a range could not be told exactly (parameters of very different sizes).

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
                    bound, reached = least(abstraction, U[rows], c[None], exact, np.inf)
                    _check_closed(bound, reached, abstraction.unit, rows.start)
                    values[rows, k] = c[k] * bound
            advance(rows.stop - rows.start)
    return low, high


def _check_closed(lower: Array, upper: Array, unit: float, first: int) -> None:
    """Refuse ranges of which an end is known only roughly."""
    gap = upper - lower
    wide = np.flatnonzero(~(gap <= _CLOSED * np.maximum(unit, np.abs(upper))))
    if len(wide):
        names = ", ".join(str(first + row) for row in wide[:10]) + (
            ", ..." if len(wide) > 10 else ""
        )
        raise SolverError(
            f"the range of a logit is known only to {gap[wide].max():.2g} for row {names}: the sizes of "
            "the network's parameters differ too much for linear programs in floats. "
            "certify(..., exact_margin=True) gives bounds for each row"
        )


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
