r"""Delta-robustness for tables of rows: ``certify``, ``worst_case`` and ``output_range``.

All three use one engine for the minimum of an objective over the logits: the margin of a class is
the minimum of its objectives, and a logit's range follows from plus and minus the logit.

:func:`lower_margins` gives lower bounds by one backward pass for each row, for very many rows at
once, if a sound and fast bound is worth more than an exact one. For an input box :math:`|x - c| \le
r`, the input of the first layer satisfies :math:`|u - u_c| \le \rho`, and for parameters within
their intervals

.. math::
    W u + b \ge \min_{W, b} (W u_c + b) - \max |W|\, \rho ,

so the activations of the first layer have a box, and the pass continues as for a point.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from proplace.certification import checker
from proplace.certification.bounds import (
    Abstraction,
    ActivationBounds,
    WorstCaseProblem,
    start_slopes,
)
from proplace.certification.engine import FULL, Budget, Rows, least_values, traced_least_values
from proplace.certification.input_boxes import InputBoxes, checked_box
from proplace.certification.lp_bnb import minimise
from proplace.certification.proofs import Certificates, Claims, Decided, prove
from proplace.certification.roundoff import DOUBLE, rounding_error, thresholds
from proplace.core.errors import InputError, OptionError, SolverError
from proplace.core.progress import progress_bar
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.certification.engine import LeastValues
    from proplace.certification.input_boxes import InputBox
    from proplace.certification.proofs import Proofs
    from proplace.certification.roundoff import Margin
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Delta


Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

_CLOSED = 1e-6  # gap, relative as EQUAL_BOUNDS, below which a range counts as exact
_CHUNK_FLOATS = 2_000_000  # of one array of a chunk: keeps a chunk's memory near 200 MB
# The budgets, round by round, with a time limit.
_STAGES = (*(Budget(nodes, 0) for nodes in (0, 200, 2_000, 20_000)), FULL)
_NODES_AT_ONCE = 8_000  # of all trees that grow together, after the first round


@dataclass(frozen=True, eq=False)
class CertificationResult:
    """Verdicts of :func:`certify`, one entry per row.

    Attributes
    ----------
    robust
        True if every network in Delta gives the target class with a margin of at least
        ``threshold``.
    lower, upper
        Bounds on the worst-case margin, up to the rounding of float64. A concrete network in Delta
        reaches ``upper``. The verdicts do not depend on their last digits: ``lower >= threshold``
        for robust rows, ``upper < threshold`` for rows that are not robust.
    undecided
        True if there is no verdict (``robust`` is then False): the time limit came first, or the
        worst-case margin is so near to ``threshold`` that neither side can be proved.
    threshold
        The required margin: one number, or one per row.
    certificates
        One :class:`Certificate` per row if requested (None for an undecided row).
    checked_with_original
        True if the original model gave every row the same class as the network. False if it could
        not be run, for example for a :class:`proplace.Network`.
    """

    robust: Mask
    lower: Array
    upper: Array
    undecided: Mask
    threshold: float | Array
    certificates: Certificates | None = None
    checked_with_original: bool = False

    def __len__(self) -> int:
        return len(self.robust)

    def __repr__(self) -> str:
        rest = f", {int(self.undecided.sum())} undecided" if self.undecided.any() else ""
        return f"CertificationResult({int(self.robust.sum())} of {len(self)} rows robust{rest})"


@dataclass(frozen=True, eq=False)
class WorstCase:
    """The worst network in Delta for one row.

    Attributes
    ----------
    network
        A network within Delta (every parameter, exactly) with the smallest margin.
    margin
        Its margin, by a plain forward pass.
    point
        The input at which the network has this margin: the row itself, or the worst point of its
        box.
    lower
        Lower bound on the margin of any network in Delta, up to the rounding of float64. It equals
        ``margin`` up to a tolerance, unless a time limit came first, or the sizes of the parameters
        differ too much for the solver. If it is far lower, ``network`` need not be the worst.
    """

    network: Network
    margin: float
    lower: float
    point: Array


def certify(
    net: Network,
    X: npt.ArrayLike,
    delta: Delta,
    target: int = 1,
    *,
    margin: Margin | Array | None = None,
    box: InputBox | None = None,
    certificates: bool = False,
    exact_margin: bool = False,
    time_limit: float | None = None,
    budget: Budget = FULL,
    progress: bool = False,
) -> CertificationResult:
    """Test for each row if every network within ``delta`` gives it the target class.

    Rows and target are those of the network itself. Otherwise this is :func:`proplace.certify`,
    which describes the parameters. Here ``margin`` may also be an array with one number per row.
    With ``box``, the ends of a box around each row, every point of the box is covered. Rows that
    need more work than the ``budget`` stay undecided.

    Cheap batched bounds and attacks decide most rows. Branch and bound decides the rest. A row
    whose bounds do not clear the threshold by more than all rounding errors together is decided by
    a proof in exact arithmetic. Without such a proof, it is ``undecided``.
    """
    X = net.rows(X)
    shifts = Shifts.of(net, delta)
    box = None if box is None else checked_box(X, box)
    threshold = thresholds(net, shifts, X, margin, box)
    wanted = np.broadcast_to(np.asarray(threshold, dtype=np.float64), len(X))
    if certificates and (least := float(wanted.min(initial=math.inf))) < checker.MIN_MARGIN:
        raise OptionError(
            f"margin is {least:g}, but certificates need a margin of 0 or more, because an input "
            "with less does not reach the class. Give margin=0, or leave out certificates=True",
            name="margin",
            value=margin,
        )
    whole = Claims(net, shifts, target, X, wanted)
    if box is not None:
        whole = replace(whole, box=box, larger=InputBoxes(net, shifts))
    test = _RowTest.of(whole, _deadline(time_limit))
    found = _Verdicts.none(len(X))
    parts: list[tuple[Index, Proofs]] = []
    with progress_bar("certify", len(X), show=progress) as advance:
        for rows, asked, last in _rounds(test, found, wanted, budget):
            claims = whole.take(rows)
            if certificates:
                verdicts, proofs = asked.proved(claims)
                parts.append((rows, proofs))
            else:
                verdicts = asked.decided(claims)
            found.put(rows, verdicts)
            advance(len(rows) if last else int(verdicts.certain.sum()))
    if exact_margin:
        for some in _chunks(test.abstraction.net, len(X)):
            if not test.late() or not some.start:
                closer = test.exact(whole.take(some))
                found.lower[some] = np.maximum(found.lower[some], closer.lower)
                found.upper[some] = np.minimum(found.upper[some], closer.upper)
    lower, upper = _agreeing(found, wanted)
    written = Certificates(parts, len(X)) if certificates else None
    return CertificationResult(found.robust, lower, upper, ~found.certain, threshold, written)


def _rounds(
    test: _RowTest, found: _Verdicts, threshold: Array, budget: Budget
) -> Iterator[tuple[Index, _RowTest, bool]]:
    """Yield rows to decide together, their test, and True in their last round.

    With a time limit, hard rows must not delay others: all rows get one backward pass first, then
    the undecided ones get larger and larger trees, the nearest to a proof first. In the end each
    gets its share of the time. ``found`` holds the verdicts so far.
    """
    limited = budget == FULL and np.isfinite(test.deadline)
    stages = _STAGES if limited else (budget,)
    for number, each in enumerate(stages):
        left = np.flatnonzero(~found.certain)
        most, last = None, number == len(stages) - 1
        if number:
            with np.errstate(invalid="ignore"):
                left = left[np.argsort(threshold[left] - found.lower[left], kind="stable")]
            most = 1 if each.nodes is None else max(1, _NODES_AT_ONCE // each.nodes)
        for rows in _chunks(test.abstraction.net, len(left), most):
            if test.late() and (number or rows.start):
                return
            deadline = test.deadline
            if number and each.nodes is None:
                now = time.monotonic()
                deadline = now + (deadline - now) / (len(left) - rows.start)
            yield left[rows], replace(test, budget=each, deadline=deadline), last


@dataclass(frozen=True, eq=False)
class _Verdicts:
    """Bounds on the worst-case margins of some rows, and the rows with a certain verdict."""

    lower: Array
    upper: Array
    robust: Mask
    refuted: Mask

    @classmethod
    def none(cls, rows: int) -> _Verdicts:
        """Return empty verdicts."""
        no = np.zeros(rows, dtype=bool)
        return cls(np.full(rows, -np.inf), np.full(rows, np.inf), no, no.copy())

    @property
    def certain(self) -> Mask:
        """True if a row has a verdict."""
        return self.robust | self.refuted

    def put(self, rows: Index, other: _Verdicts) -> None:
        """Store the results of some rows. Bounds that overflowed are dropped."""
        self.lower[rows] = np.fmax(self.lower[rows], other.lower)
        self.upper[rows] = np.fmin(self.upper[rows], other.upper)
        self.robust[rows], self.refuted[rows] = other.robust, other.refuted


@dataclass(frozen=True, eq=False)
class _RowTest:
    """The test of every row of a table, or of every point of a box around it.

    ``abstraction`` is that of the network, or of the larger one that takes boxes. ``budget`` limits
    the work for each row.
    """

    abstraction: Abstraction
    objectives: Array
    deadline: float
    budget: Budget = FULL

    @classmethod
    def of(cls, claims: Claims, deadline: float) -> _RowTest:
        model = claims.larger or claims
        return cls(Abstraction(model.net, model.shifts), claims.objectives, deadline)

    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    def exact(self, claims: Claims) -> LeastValues:
        """Return bounds on the worst-case margin of each row that are equal, if time allows."""
        rows = Rows(claims.seen, np.full(len(claims), -np.inf), self.deadline)
        return least_values(self.abstraction, rows, self.objectives)

    def decided(self, claims: Claims) -> _Verdicts:
        """Return the verdicts of the rows.

        Bounds decide a row if they clear the threshold by more than rounding. A proof decides the
        others.
        """
        threshold, front = claims.threshold, self.abstraction.net.input_transform
        rows = Rows(claims.seen, threshold, self.deadline, self.budget)
        found = least_values(self.abstraction, rows, self.objectives)
        low, high = found.lower, found.upper
        size = None if front.matrix is None else front.size(claims.X)
        error = self.abstraction.roundoff.error(
            rows.U, self.objectives, found.multiplier_size, size
        )
        # A larger network equals the network itself except for last digits, which are rounded
        # outwards. They move the value of a shift by far less than another such error.
        away = error if claims.box is None else 2.0 * error
        with np.errstate(invalid="ignore"):  # an overflow is inconclusive
            yes, no = low - error >= threshold, high + away < threshold
        near = np.flatnonzero(~yes & ~no & ((low >= threshold) | (high < threshold)))
        if len(near):
            verdicts, _ = self.proved(claims.take(near))
            yes[near], no[near] = verdicts.robust, verdicts.refuted
        return _Verdicts(low, high, yes, no)

    def proved(self, claims: Claims) -> tuple[_Verdicts, Proofs]:
        """Return only the verdicts that have a proof."""
        rows = Rows(claims.seen, claims.threshold, self.deadline, self.budget)
        found, trace = traced_least_values(self.abstraction, rows, self.objectives)
        proofs = prove(claims, trace, self._sorted(claims, found), self.deadline)
        yes, no = proofs.robust & proofs.proved, ~proofs.robust & proofs.proved
        return _Verdicts(found.lower, found.upper, yes, no), proofs

    def _sorted(self, claims: Claims, found: LeastValues) -> Decided:
        """Sort the rows by their bounds."""
        threshold, high = claims.threshold, found.upper
        missed = (high < threshold) & np.isfinite(threshold)  # infinity cannot be written
        clear = np.zeros(
            len(claims), dtype=bool
        )  # by more than all roundings on the way to a shift
        rows = np.flatnonzero(missed)
        if len(rows):
            here = claims.take(rows)
            ends = (here.X,) if here.box is None else here.box
            error = 64.0 * rounding_error(here.net, here.shifts, ends[0], DOUBLE, ends[-1])
            clear[rows] = high[rows] + error < threshold[rows]
        return Decided(
            robust=np.flatnonzero(~missed & (found.lower >= threshold)),
            refuted=rows,
            risky=np.flatnonzero(missed & ~clear),
        )


def _agreeing(found: _Verdicts, threshold: Array) -> tuple[Array, Array]:
    """Make bounds agree with the verdicts, even if a proof beyond rounding decided."""
    low = np.where(np.isfinite(found.lower), found.lower, -np.inf)  # an overflow is inconclusive
    high = np.where(np.isfinite(found.upper), found.upper, np.inf)
    below = np.nextafter(threshold, -np.inf)
    return (
        np.where(found.robust, np.maximum(low, threshold), np.minimum(low, below)),
        np.where(found.refuted, np.minimum(high, below), np.maximum(high, threshold)),
    )


def worst_case(
    net: Network,
    x: npt.ArrayLike,
    delta: Delta,
    target: int = 1,
    *,
    box: InputBox | None = None,
    time_limit: float | None = None,
) -> WorstCase:
    """Find the network within ``delta`` that gives ``x`` the smallest margin for the target class.

    Row and target are those of the network itself. Otherwise this is :func:`proplace.worst_case`.
    With ``box``, the ends of a box around the row, also find its worst point.
    """
    X = net.rows(x)
    if len(X) != 1:
        raise InputError(f"worst_case takes one row, not {len(X)}", name="X")
    claims = Claims(net, Shifts.of(net, delta), target, X, np.zeros(1))
    if box is not None:
        larger = InputBoxes(net, claims.shifts)
        claims = replace(claims, box=checked_box(X, box), larger=larger)
    deadline, U = _deadline(time_limit), claims.seen
    abstraction = _RowTest.of(claims, deadline).abstraction
    hidden_layers = abstraction.net.widths
    activations = None
    if hidden_layers:
        activations = abstraction.tighten(abstraction.interval_bounds(U), deadline)
    found: list[tuple[float, Network, Array]] = []
    lower = np.inf
    for c in net.objectives(target):
        hidden: tuple[Array, ...] = ()
        if activations is None:
            lower = min(lower, float(abstraction.linear_minimum(U, c)[0]))
        else:
            problem = WorstCaseProblem(abstraction, activations, U, abstraction.objective(c))
            minimum = minimise(problem, deadline=deadline)
            lower, hidden = min(lower, minimum.lower), minimum.hidden
        network, point = claims.shifted(0, hidden, c)
        found.append((float(network.margin(point, target)[0]), network, point))
    margin, best, point = min(found, key=lambda each: each[0])
    return WorstCase(best, margin, min(lower, margin), point)


def output_range(
    net: Network, X: npt.ArrayLike, delta: Delta, *, progress: bool = False
) -> tuple[Array, Array]:
    """Return the exact range of each logit over Delta: the interval abstraction of the network.

    Rows are those of the network itself. Otherwise this is :func:`proplace.output_range`.
    """
    U = net.transform(X)
    abstraction = Abstraction(net, Shifts.of(net, delta))
    low, high = np.empty((2, len(U), net.outputs))
    with progress_bar("output range", len(U), show=progress) as advance:
        for rows in _chunks(net, len(U)):
            for k, unit in enumerate(np.eye(net.outputs)):
                for values, c in ((low, unit), (high, -unit)):
                    exact = Rows(U[rows], np.full(rows.stop - rows.start, -np.inf))
                    found = least_values(abstraction, exact, c[None])
                    _check_closed(found, abstraction.unit, rows.start)
                    values[rows, k] = c[k] * found.lower
            advance(rows.stop - rows.start)
    return low, high


def _check_closed(found: LeastValues, unit: float, first: int) -> None:
    """Reject ranges with an inexact end."""
    gap = found.upper - found.lower
    wide = np.flatnonzero(~(gap <= _CLOSED * np.maximum(unit, np.abs(found.upper))))
    if len(wide):
        names = ", ".join(str(first + row) for row in wide[:10]) + (
            ", ..." if len(wide) > 10 else ""
        )
        raise SolverError(
            f"the range of a logit is known only to {gap[wide].max():.2g} for row {names}, because "
            "the sizes of the network's parameters differ too much for linear programs in floats. "
            "Use certify(..., exact_margin=True) for bounds on each row",
            row=int(first + wide[0]),
        )


def _deadline(time_limit: float | None) -> float:
    if time_limit is None:
        return np.inf
    if not time_limit > 0.0:
        raise OptionError(
            f"time_limit must be a positive number of seconds, not {time_limit!r}",
            name="time_limit",
            value=time_limit,
        )
    return time.monotonic() + time_limit


def _chunks(net: Network, rows: int, most: int | None = None) -> Iterator[slice]:
    """Split rows into slices whose largest array stays within the memory budget."""
    widths = net.widths or (1,)
    size = max(1, _CHUNK_FLOATS // max(10 * sum(widths), net.inputs))
    size = size if most is None else min(size, most)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


_ROWS = 4_096  # at once
_OUTWARD = 2.0**-44  # relative: far more than the rounding errors of a radius


def lower_margins(net: Network, shifts: Shifts, target: int, low: Array, high: Array) -> Array:
    """Bound the margin for the target from below, over Delta and over the inputs between two ends.

    The result is a lower bound in real numbers, because all rounding errors are subtracted.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Shifts
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> row = np.array([[1.0, 0.0]])
    >>> lower_margins(net, Shifts.of(net, 0.05), 1, row, row).round(6)
    array([1.055])
    """
    abstraction, objectives = Abstraction(net, shifts), net.objectives(target)
    found = np.empty(len(low))
    for start in range(0, len(low), _ROWS):
        rows = slice(start, start + _ROWS)
        found[rows] = _bounds(abstraction, objectives, low[rows], high[rows])
    return found


def _bounds(abstraction: Abstraction, objectives: Array, low: Array, high: Array) -> Array:
    front = abstraction.net.input_transform
    boxed = bool((low < high).any())
    centre = low + (high - low) / 2.0 if boxed else low
    U, size = front(centre), front.size(centre)
    radius = _radius(abstraction.net, low, high, size) if boxed else np.zeros_like(U)
    values = np.full(len(U), np.inf)
    with np.errstate(all="ignore"):
        if abstraction.net.widths:
            root = _activations(abstraction, U, radius)
            slopes = start_slopes(root)
            for c in objectives:
                found = abstraction.backward(root, *abstraction.objective(c), slopes)
                values = np.minimum(values, found.value)
        else:
            weights, _ = abstraction.shifts.layers[0].size
            for c in objectives:
                lost = (radius @ weights.T) @ np.abs(c)
                values = np.minimum(values, abstraction.linear_minimum(U, c) - lost)
        none = np.zeros(len(U))
        sums = None if front.matrix is None else size
        error = abstraction.roundoff.error(np.abs(U) + radius, objectives, none, sums)
        result: Array = values - (2.0 * error if boxed else error)
    return np.where(np.isfinite(result), result, -np.inf)


def _radius(net: Network, low: Array, high: Array, size: Array) -> Array:
    """Compute the radius of each box in the inputs of the first layer, rounded up."""
    front = net.input_transform
    reach = (high - low) / 2.0
    if front.scale is not None:
        reach = reach * np.abs(front.scale)
    moved = reach if front.matrix is None else reach @ np.abs(front.matrix).T
    result: Array = moved + net.inputs * _OUTWARD * (size + moved)
    return result


def _activations(abstraction: Abstraction, U: Array, radius: Array) -> ActivationBounds:
    """Bound all activations, from those of the first layer."""
    first = abstraction.shifts.layers[0]
    lost = radius @ first.size[0].T
    least, most = first.preactivations(U)
    low, high = np.maximum(least - lost, 0.0), np.maximum(most + lost, 0.0)
    start, ranges = (low, high), []
    for inner in abstraction.inner:
        found = inner.range(low, high)
        ranges.append(found)
        low, high = np.maximum(found.L_min, 0.0), np.maximum(found.U_max, 0.0)
    return ActivationBounds(*start, tuple(ranges))
