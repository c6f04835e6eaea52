r"""Batched bounds on the worst-case margin over Delta, for a fixed input.

The worst shift for a fixed input
---------------------------------
Let :math:`u` be the input of the first layer and :math:`h_1, \dots, h_H` the hidden activations of
a shifted network. The hidden layers after the first are called *inner* layers. The parameters of
each neuron move independently of those of the others, so over all of Delta

.. math::
    h_1 &\in [\max(0, z - r),\ \max(0, z + r)], \quad
        z = W_1 u + b_1,\ r = \delta_1^w |u|_1 + \delta_1^b, \\
    h_i &\in [\max(0, L_i),\ \max(0, U_i)], \quad
        L_i = (W_i - \delta_i^w) h_{i-1} + b_i - \delta_i^b,\
        U_i = (W_i + \delta_i^w) h_{i-1} + b_i + \delta_i^b
        \quad (i \ge 2),

both *exactly*: the first for inputs of any sign, the second because :math:`h_{i-1} \ge 0`. For an
objective :math:`c` over the logits the output rows move independently too, so the minimum of
:math:`c \cdot \text{logits}` is the minimum of :math:`a \cdot h_H + \text{const}` with

.. math::
    a = c W - |c|_1 \delta^w, \qquad \text{const} = c\, b - |c|_1 \delta^b .

Convexity
---------
The *lower side* of a neuron, ``h >= 0`` and ``h >= L``, is linear. Its *upper side*, ``h <= max(0,
U)``, is a disjunction: ``h <= 0`` or ``h <= U``. If U can have either sign, the side is relaxed to
the chord of the ReLU over the range of U. A *split* by the sign of U makes it linear: ``h <= 0``
for ``U <= 0`` (-1), ``h <= U`` for ``U >= 0`` (+1).

A bound from multipliers
------------------------
For any slopes :math:`\alpha \in [0, 1]` on unstable lower sides, replacing, from the last hidden
layer to the second,

.. math::
    a_k h_k \ge a_k \alpha_k L_k \ (a_k \ge 0), \qquad
    a_k h_k \ge a_k (s_k U_k + t_k) \ (a_k < 0,\ \text{chord } s_k U_k + t_k),

leaves a linear function of :math:`h_1`, whose minimum over the exact box is a valid lower bound: a
*backward pass*. It stays valid when :math:`-\gamma_k U_k` is added for a split neuron, with
:math:`\gamma_k` of the sign of the split, because this term is not positive within the split.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from proplace.certification.roundoff import Roundoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.layer_box import LayerBox
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts

Splits = npt.NDArray[np.int8]
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

EQUAL_BOUNDS = 1e-9
"""Gap, relative to the value or to the last layer's parameters, at which two bounds count as equal."""

_TINY = float(np.finfo(np.float64).tiny)
# Numbers in one array of ``tighten``: few enough for the cache and for frequent deadline checks.
_FLOATS_PER_PASS = 1 << 17


class InnerLayer:
    """A hidden layer after the first: the two extreme affine maps of its shifts, L and U.

    Both are stacked, so that one product gives both.
    """

    def __init__(self, box: LayerBox) -> None:
        self.width = len(box.low.W)
        self.W = np.concatenate([box.low.W, box.high.W])
        self.b = np.concatenate([box.low.bias, box.high.bias])
        self.size = np.abs(self.W)
        self.W_low, self.W_high = self.W[: self.width], self.W[self.width :]
        self.b_low, self.b_high = self.b[: self.width], self.b[self.width :]

    def both(self, h: Array) -> tuple[Array, Array]:
        """Return L(h) and U(h): the smallest and the largest pre-activation over all shifts."""
        z = h @ self.W.T + self.b
        return z[..., : self.width], z[..., self.width :]

    def high(self, h: Array) -> Array:
        """Return U(h): the largest pre-activation over all shifts."""
        result: Array = h @ self.W_high.T + self.b_high
        return result

    def range(self, low: Array, high: Array) -> PreactivationRange:
        """Bound L and U over a box of the layer before, exactly for the second layer."""
        middle = ((low + high) / 2.0) @ self.W.T + self.b
        radius = ((high - low) / 2.0) @ self.size.T
        least, most, n = middle - radius, middle + radius, self.width
        return PreactivationRange(least[:, :n], most[:, :n], least[:, n:], most[:, n:])


@dataclass(frozen=True)
class PreactivationRange:
    """Ranges of L and U of one inner layer over all possible activations of the layers before."""

    L_min: Array
    L_max: Array
    U_min: Array
    U_max: Array

    @cached_property
    def open_upper(self) -> Mask:
        """True for neurons whose U may have either sign."""
        return (self.U_min < 0.0) & (self.U_max > 0.0)

    @cached_property
    def open_lower(self) -> Mask:
        """True for neurons whose L may have either sign. Their lower side's slope is free."""
        return (self.L_min < 0.0) & (self.L_max > 0.0)

    @cached_property
    def slopes(self) -> Array:
        """Initial slopes of the lower sides.

        They are exact if the sign of L is fixed. Otherwise, they are 0 or 1, whichever has the smaller
        area between the line and the ReLU.
        """
        return _shared((self.L_min + self.L_max >= 0.0).astype(np.float64))

    @cached_property
    def chord(self) -> tuple[Array, Array]:
        """Slope and offset of the upper side ``slope * U + offset`` without splits.

        If the sign of U is fixed, this is the ReLU itself.
        """
        low, high = np.minimum(self.U_min, 0.0), np.maximum(self.U_max, 0.0)
        slope = high / np.maximum(high - low, _TINY)
        return _shared(slope), _shared(-slope * low)

    def take(self, rows: Index) -> PreactivationRange:
        """Return the ranges of the given rows."""
        return PreactivationRange(
            self.L_min[rows], self.L_max[rows], self.U_min[rows], self.U_max[rows]
        )

    def put(self, rows: Index, other: PreactivationRange) -> PreactivationRange:
        """Return these ranges, replaced by others at the given rows."""
        parts = []
        for name in ("L_min", "L_max", "U_min", "U_max"):
            part = getattr(self, name).copy()
            part[rows] = getattr(other, name)
            parts.append(part)
        return PreactivationRange(*parts)


@dataclass(frozen=True)
class ActivationBounds:
    """Bounds on the activations of a batch of rows, over all of Delta.

    ``low`` and ``high`` are the exact box of h_1, ``preactivations`` the ranges of the inner
    layers.
    """

    low: Array
    high: Array
    preactivations: tuple[PreactivationRange, ...]

    def take(self, rows: Index) -> ActivationBounds:
        """Return the bounds of the given rows."""
        return ActivationBounds(
            self.low[rows],
            self.high[rows],
            tuple(ranges.take(rows) for ranges in self.preactivations),
        )

    def put(self, rows: Index, other: ActivationBounds) -> ActivationBounds:
        """Return these bounds with the inner ranges replaced by others at the given rows."""
        if len(rows) == len(self):
            return other
        pairs = zip(self.preactivations, other.preactivations, strict=True)
        return ActivationBounds(
            self.low, self.high, tuple(mine.put(rows, new) for mine, new in pairs)
        )

    def spread(self, rows: Index) -> ActivationBounds:
        """Return the bounds of the given rows. A single row stands for all rows by broadcasting."""
        return self if len(self) == 1 else self.take(rows)

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class BackwardPass:
    """Result of one backward pass for a batch.

    ``value`` is the lower bound. ``sides`` holds the coefficient of each inner activation, whose
    sign gives the side of the ReLU that was used. ``corner`` is the minimising corner of the box of
    h_1.
    """

    value: Array
    sides: tuple[Array, ...]
    corner: Array

    def take(self, rows: Index) -> BackwardPass:
        """Return the results of the given rows."""
        sides = (side if len(side) == 1 else side[rows] for side in self.sides)
        return BackwardPass(self.value[rows], tuple(sides), self.corner[rows])


class Objective(NamedTuple):
    """An objective ``a . h + const`` over the last hidden layer."""

    a: Array
    const: float


class RelaxedLayer(NamedTuple):
    """One inner layer at the minimiser of the linear relaxation: L, U and the chord of max(0, U)."""

    low: Array
    high: Array
    chord: Array


class Abstraction:
    """A network whose parameters are intervals, prepared once for (network, shift set)."""

    def __init__(self, net: Network, shifts: Shifts) -> None:
        self.net = net
        self.shifts = shifts
        self.inner = tuple(InnerLayer(box) for box in shifts.layers[1:-1])
        weights, biases = shifts.layers[-1].size
        # Factor of tolerances, so that they do not hide the sign of tiny logits.
        self.unit = min(1.0, float(max(weights.max(), biases.max())))

    @cached_property
    def roundoff(self) -> Roundoff:
        """Bound on the rounding error of the bounds."""
        return Roundoff(self.net, self.shifts)

    def objective(self, c: Array) -> Objective:
        """Return the worst case of ``c . logits`` as a linear function of the last hidden layer."""
        return Objective(*self.shifts.layers[-1].least(c))

    def linear_minimum(self, U: Array, c: Array) -> Array:
        """Return the exact minimum of ``c . logits`` for a network without hidden layers."""
        low, high = self.shifts.layers[0].preactivations(U)
        value: Array = low @ np.maximum(c, 0.0) + high @ np.minimum(c, 0.0)
        return value

    def interval_bounds(self, U: Array) -> ActivationBounds:
        """Bound all activations for rows ``U`` (inputs of the first layer), by intervals."""
        low, high = (np.maximum(z, 0.0) for z in self.shifts.layers[0].preactivations(U))
        first_low, first_high = low, high
        preactivations = []
        for inner in self.inner:
            ranges = inner.range(low, high)
            preactivations.append(ranges)
            low, high = np.maximum(ranges.L_min, 0.0), np.maximum(ranges.U_max, 0.0)
        return ActivationBounds(first_low, first_high, tuple(preactivations))

    def tighten(self, activations: ActivationBounds, deadline: float = np.inf) -> ActivationBounds:
        """Intersect the bounds of third and later layers with those of backward passes.

        The second layer's bounds are already exact over the box of h_1. After the deadline, a time
        by ``time.monotonic``, bounds stay unchanged.
        """
        for index in range(1, len(activations.preactivations)):
            front = ActivationBounds(
                activations.low, activations.high, activations.preactivations[:index]
            )
            known = activations.preactivations[index]
            ranges = self._tighter(front, self.inner[index], known, deadline)
            activations = ActivationBounds(
                activations.low,
                activations.high,
                (*front.preactivations, ranges, *activations.preactivations[index + 1 :]),
            )
        return activations

    def _tighter(
        self,
        front: ActivationBounds,
        inner: InnerLayer,
        ranges: PreactivationRange,
        deadline: float,
    ) -> PreactivationRange:
        """Tighten the ranges of L and U of neurons that are unstable in some row.

        Other neurons are skipped: of a range without 0, only the sign is used.
        """
        alpha = start_slopes(front)
        ends = [ranges.L_min.copy(), -ranges.L_max, ranges.U_min.copy(), -ranges.U_max]
        signs, opens = (1.0, -1.0, 1.0, -1.0), (ranges.open_lower, ranges.open_upper)
        sides = (inner.W_low, inner.b_low), (inner.W_high, inner.b_high)
        widest = 2 * max(layer.width for layer in self.inner)
        step = max(1, _FLOATS_PER_PASS // (len(front) * widest))
        for number, (known, sign) in enumerate(zip(ends, signs, strict=True)):
            neurons = np.flatnonzero(opens[number // 2].any(axis=0))
            W, b = sides[number // 2]
            for start in range(0, len(neurons), step):
                if time.monotonic() >= deadline:
                    break
                some = neurons[start : start + step]
                found = self.backward(front, sign * W[some], sign * b[some], alpha).value
                known[:, some] = np.maximum(known[:, some], found)
        L_min, L_max, U_min, U_max = ends
        return PreactivationRange(L_min, -L_max, U_min, -U_max)

    def backward(
        self,
        activations: ActivationBounds,
        a: Array,
        const: Array | float,
        alpha: Sequence[Array],
        uppers: Sequence[tuple[Array, Array]] | None = None,
        gamma: Sequence[Array] | None = None,
    ) -> BackwardPass:
        """Bound ``a . h + const`` from below by relaxation, h the last layer of ``activations``.

        Parameters
        ----------
        activations
            Bounds of a batch of B rows, up to the layer of h.
        a, const
            The objective: ``a`` of shape (n,), or (m, n) for m objectives at once. The bounds then
            have shape (B,) or (B, m).
        alpha
            Slopes of the lower sides.
        uppers
            Slopes and offsets of the upper sides. Default: those of the chords.
        gamma
            Multipliers of the splits. Default: none.
        """
        several = a.ndim == 2
        A = a[None]  # one row stands for all until the layers differ between rows
        total: Array | float = const
        sides: list[Array] = []
        for index in reversed(range(len(activations.preactivations))):
            inner, ranges = self.inner[index], activations.preactivations[index]
            slope, offset = ranges.chord if uppers is None else uppers[index]
            lower = alpha[index]
            if several:
                slope, offset, lower = slope[:, None], offset[:, None], lower[:, None]
            sides.append(A)
            negative = np.minimum(A, 0.0)
            on_high = negative * slope
            if gamma is not None:
                on_high = on_high - gamma[index]
            on_both = np.concatenate([(A - negative) * lower, on_high], axis=-1)
            total = total + on_both @ inner.b + (negative * offset).sum(axis=-1)
            A = _rows_times(on_both, inner.W)
        low, high = activations.low, activations.high
        if several:
            low, high = low[:, None], high[:, None]
        corner = np.where(A >= 0.0, low, high)
        return BackwardPass(total + (A * corner).sum(axis=-1), tuple(reversed(sides)), corner)

    def attack(self, a: Array, const: float, bound: BackwardPass) -> tuple[Array, list[Array]]:
        """Return value and activations of the concrete shift that a backward pass suggests.

        h_1 is the minimising corner, and each inner neuron uses L or U as in the pass.
        """
        hidden = [bound.corner]
        for inner, side in zip(self.inner, bound.sides, strict=True):
            low, high = inner.both(hidden[-1])
            hidden.append(np.maximum(np.where(side >= 0.0, low, high), 0.0))
        value: Array = hidden[-1] @ a + const
        return value, hidden

    def steepest(
        self, activations: ActivationBounds, a: Array, hidden: list[Array]
    ) -> tuple[list[Array], Array]:
        """Return the sides of the inner neurons and the corner in the direction of the gradient.

        A side is the coefficient of the activation: L if it is at least 0, otherwise U.
        """
        A = a[None]
        sides: list[Array] = []
        for inner, h in zip(reversed(self.inner), reversed(hidden), strict=False):
            sides.append(A)
            on = A * (h > 0.0)
            negative = np.minimum(on, 0.0)
            A = np.concatenate([on - negative, negative], axis=-1) @ inner.W
        return sides[::-1], np.where(A >= 0.0, activations.low, activations.high)

    def sharpen(
        self,
        activations: ActivationBounds,
        a: Array,
        const: float,
        value: Array,
        hidden: list[Array],
        steps: int,
    ) -> tuple[Array, list[Array]]:
        """Improve concrete shifts by switching each neuron to the side that lowers the value."""
        for _ in range(steps):
            sides, corner = self.steepest(activations, a, hidden)
            new, moved = self.attack(a, const, BackwardPass(value, tuple(sides), corner))
            better = new < value
            if not better.any():
                break
            value = np.where(better, new, value)
            hidden = [
                np.where(better[:, None], after, before)
                for after, before in zip(moved, hidden, strict=True)
            ]
        return value, hidden

    def relaxed_forward(
        self, bound: BackwardPass, alpha: Sequence[Array], uppers: Sequence[tuple[Array, Array]]
    ) -> list[RelaxedLayer]:
        """Return the inner layers at the minimiser of the linear relaxation."""
        h = bound.corner
        layers = []
        for index, (inner, side) in enumerate(zip(self.inner, bound.sides, strict=True)):
            low, high = inner.both(h)
            slope, offset = uppers[index]
            chord = slope * high + offset
            layers.append(RelaxedLayer(low, high, chord))
            h = np.where(side >= 0.0, alpha[index] * low, chord)
        return layers


@dataclass(frozen=True, eq=False)
class WorstCaseProblem:
    """For each row of a batch: the minimum of an objective over all of Delta.

    ``U`` holds the inputs of the first layer, ``activations`` the bounds that hold for them.
    """

    abstraction: Abstraction
    activations: ActivationBounds
    U: Array
    objective: Objective

    def take(self, rows: Index) -> WorstCaseProblem:
        """Return the problem of the given rows."""
        return replace(self, activations=self.activations.take(rows), U=self.U[rows])

    def __len__(self) -> int:
        return len(self.U)


def start_slopes(activations: ActivationBounds) -> list[Array]:
    """Return the initial slopes of the lower sides of all inner layers."""
    return [ranges.slopes for ranges in activations.preactivations]


def chords(ranges: PreactivationRange, splits: Splits | None) -> tuple[Array, Array]:
    """Return slope and offset of the upper side ``slope * U + offset``, given the splits."""
    slope, offset = ranges.chord
    if splits is None:
        return slope, offset
    unsplit = splits == 0
    return np.where(unsplit, slope, splits > 0), np.where(unsplit, offset, 0.0)


def _shared(values: Array) -> Array:
    """Make an array read-only, because it is computed once and shared."""
    values.setflags(write=False)
    return values


def _rows_times(A: Array, W: Array) -> Array:
    """Return ``A @ W`` as one matrix product: all leading axes of ``A`` are flattened."""
    product: Array = (A.reshape(-1, A.shape[-1]) @ W).reshape(*A.shape[:-1], W.shape[1])
    return product
