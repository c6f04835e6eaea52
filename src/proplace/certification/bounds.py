r"""Batched bounds on the worst margin over Delta, for a fixed input.

The worst shift for a fixed input
---------------------------------
Let :math:`u` be what the first layer sees and :math:`h_1, \dots, h_H` the hidden activations of a
shifted network. Row by row the parameters move independently, so over all of Delta

.. math::
    h_1 &\in [\max(0, z - r),\ \max(0, z + r)], \quad
        z = W_1 u + b_1,\ r = \delta_1^w |u|_1 + \delta_1^b, \\
    h_i &\in [\max(0, L_i),\ \max(0, U_i)], \quad
        L_i = (W_i - \delta_i^w) h_{i-1} + b_i - \delta_i^b,\
        U_i = (W_i + \delta_i^w) h_{i-1} + b_i + \delta_i^b
        \quad (i \ge 2),

both *exactly*: the first for inputs of any sign, the second because :math:`h_{i-1} \ge 0`. For an
objective :math:`c` over the logits the output rows move independently too, hence the least value of
:math:`c \cdot \text{logits}` is the minimum of :math:`a \cdot h_H + \text{const}` with

.. math::
    a = c W - |c|_1 \delta^w, \qquad \text{const} = c\, b - |c|_1 \delta^b .

What is convex and what is not
------------------------------
``h >= 0`` and ``h >= L`` are linear. ``h <= max(0, U)`` is a disjunction: ``h <= 0`` or ``h <= U``.
Where the sign of U is open, it is relaxed to the chord of the ReLU over the range of U. A *split*
by the sign of U makes it linear: ``h <= 0`` where ``U <= 0`` (-1), ``h <= U`` where ``U >= 0``
(+1).

A bound from multipliers
------------------------
For any slopes :math:`\alpha \in [0, 1]` on open lower sides, replacing, from the last hidden layer
to the second,

.. math::
    a_k h_k \ge a_k \alpha_k L_k \ (a_k \ge 0), \qquad
    a_k h_k \ge a_k (s_k U_k + t_k) \ (a_k < 0,\ \text{chord } s_k U_k + t_k),

leaves a linear function of :math:`h_1`, whose minimum over the exact box is a valid lower bound.
So does adding :math:`-\gamma_k U_k` for a split neuron, with :math:`\gamma_k` of the sign of the
split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.network import Array, Network
    from proplace.shifts import Shifts

Splits = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Inner:
    """A hidden layer behind the first: the two extreme affine maps of its shifts."""

    W_low: Array
    b_low: Array
    W_high: Array
    b_high: Array

    def low(self, h: Array) -> Array:
        """L(h): the least pre-activation that a shift can give."""
        return h @ self.W_low.T + self.b_low

    def high(self, h: Array) -> Array:
        """U(h): the greatest pre-activation that a shift can give."""
        return h @ self.W_high.T + self.b_high


@dataclass(frozen=True)
class Level:
    """Ranges of L and U of one inner layer over everything the layers before can produce."""

    L_min: Array
    L_max: Array
    U_min: Array
    U_max: Array

    def take(self, rows: npt.NDArray[np.intp]) -> Level:
        """Return the ranges of the given rows."""
        return Level(self.L_min[rows], self.L_max[rows], self.U_min[rows], self.U_max[rows])


@dataclass(frozen=True)
class Root:
    """Bounds of a batch of rows: the exact box of h_1 and the levels behind it."""

    low: Array
    high: Array
    levels: tuple[Level, ...]

    def take(self, rows: npt.NDArray[np.intp]) -> Root:
        """Return the bounds of the given rows."""
        return Root(
            self.low[rows], self.high[rows], tuple(level.take(rows) for level in self.levels)
        )

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class Pass:
    """What one backward pass gives for a batch.

    ``value`` is the lower bound; ``sides`` the coefficient of each inner activation (its sign says
    which side of the ReLU was used); ``corner`` the minimising corner of the box of h_1.
    """

    value: Array
    sides: tuple[Array, ...]
    corner: Array


class Abstraction:
    """A network whose parameters are intervals, prepared once for (network, shifts)."""

    def __init__(self, net: Network, shifts: Shifts) -> None:
        self.net = net
        self.shifts = shifts
        self.inner = tuple(
            Inner(layer.W - dw, layer.bias - db, layer.W + dw, layer.bias + db)
            for layer, dw, db in zip(
                net.layers[1:-1], shifts.weight[1:-1], shifts.bias[1:-1], strict=True
            )
        )
        last = net.layers[-1]
        largest = max(np.abs(last.W).max(), np.abs(last.bias).max())
        # What 1 is to ordinary logits: tolerances must not hide the sign of tiny ones.
        self.unit = min(1.0, float(largest + shifts.weight[-1] + shifts.bias[-1]))

    def objective(self, c: Array) -> tuple[Array, float]:
        """Return (a, const) over the last hidden layer for the objective ``c`` over the logits."""
        last, size = self.net.layers[-1], np.abs(c).sum()
        a = c @ last.W - size * self.shifts.weight[-1]
        return a, float(c @ last.bias - size * self.shifts.bias[-1])

    def linear_minimum(self, U: Array, c: Array) -> Array:
        """Return the exact least value of ``c . logits`` for a network without hidden layers."""
        layer, size = self.net.layers[0], np.abs(c).sum()
        radius = self.shifts.weight[0] * np.abs(U).sum(axis=1) + self.shifts.bias[0]
        value: Array = U @ (c @ layer.W) + c @ layer.bias - size * radius
        return value

    def root(self, U: Array) -> Root:
        """Bounds of all activations for rows ``U`` (as seen by the first layer), by intervals."""
        layer = self.net.layers[0]
        z = U @ layer.W.T + layer.bias
        r = (self.shifts.weight[0] * np.abs(U).sum(axis=1) + self.shifts.bias[0])[:, None]
        first_low, first_high = low, high = np.maximum(z - r, 0.0), np.maximum(z + r, 0.0)
        levels = []
        for inner in self.inner:
            level = _interval(inner, low, high)
            levels.append(level)
            low, high = np.maximum(level.L_min, 0.0), np.maximum(level.U_max, 0.0)
        return Root(first_low, first_high, tuple(levels))

    def tighten(self, root: Root) -> Root:
        """Intersect the bounds of third and later layers with those of backward passes.

        The second layer's bounds are exact over the box of h_1 already.
        """
        for index in range(1, len(root.levels)):
            front = Root(root.low, root.high, root.levels[:index])
            level = self._tighter(front, self.inner[index], root.levels[index])
            root = Root(root.low, root.high, (*front.levels, level, *root.levels[index + 1 :]))
        return root

    def _tighter(self, front: Root, inner: Inner, level: Level) -> Level:
        alpha = start_slopes(front)

        def least(W: Array, b: Array) -> Array:
            return self.backward(front, W, b, alpha).value

        return Level(
            np.maximum(level.L_min, least(inner.W_low, inner.b_low)),
            np.minimum(level.L_max, -least(-inner.W_low, -inner.b_low)),
            np.maximum(level.U_min, least(inner.W_high, inner.b_high)),
            np.minimum(level.U_max, -least(-inner.W_high, -inner.b_high)),
        )

    def backward(
        self,
        root: Root,
        a: Array,
        const: Array | float,
        alpha: Sequence[Array],
        uppers: Sequence[tuple[Array, Array]] | None = None,
        gamma: Sequence[Array] | None = None,
    ) -> Pass:
        """Lower bound of ``a . h + const`` by linear relaxation, h the layer behind ``root``.

        ``a`` has shape (n,), or (m, n) for m objectives at once; ``value`` then has shape (B,) or
        (B, m).
        """
        several = a.ndim == 2
        A = a[None]  # one row stands for all until the layers tell them apart
        total: Array | float = const
        sides: list[Array] = []
        for index in reversed(range(len(root.levels))):
            inner, level = self.inner[index], root.levels[index]
            slope, offset = chords(level, None) if uppers is None else uppers[index]
            lower = alpha[index]
            if several:
                slope, offset, lower = slope[:, None], offset[:, None], lower[:, None]
            sides.append(A)
            negative = np.minimum(A, 0.0)
            on_low = (A - negative) * lower
            on_high = negative * slope
            if gamma is not None:
                on_high = on_high - gamma[index]
            total = total + on_low @ inner.b_low + on_high @ inner.b_high
            total = total + (negative * offset).sum(axis=-1)
            A = _rows_times(on_low, inner.W_low) + _rows_times(on_high, inner.W_high)
        low, high = (root.low[:, None], root.high[:, None]) if several else (root.low, root.high)
        corner = np.where(A >= 0.0, low, high)
        return Pass(total + (A * corner).sum(axis=-1), tuple(reversed(sides)), corner)

    def attack(self, a: Array, const: float, bound: Pass) -> tuple[Array, list[Array]]:
        """Value and activations of a concrete shift.

        The corner of h_1, then each neuron on the side on which the bound used it.
        """
        hidden = [bound.corner]
        for inner, side in zip(self.inner, bound.sides, strict=True):
            h = hidden[-1]
            hidden.append(np.maximum(np.where(side >= 0.0, inner.low(h), inner.high(h)), 0.0))
        value: Array = hidden[-1] @ a + const
        return value, hidden

    def sharpen(
        self, root: Root, a: Array, const: float, value: Array, hidden: list[Array], steps: int
    ) -> tuple[Array, list[Array]]:
        """Improve concrete shifts by moving each neuron to the side that its gradient asks for."""
        for _ in range(steps):
            A = a[None]
            sides: list[Array] = []
            for inner, h in zip(reversed(self.inner), reversed(hidden), strict=False):
                sides.append(A)
                on = A * (h > 0.0)
                low = on >= 0.0
                A = _rows_times(np.where(low, on, 0.0), inner.W_low) + _rows_times(
                    np.where(low, 0.0, on), inner.W_high
                )
            corner = np.where(A >= 0.0, root.low, root.high)
            new, moved = self.attack(a, const, Pass(value, tuple(reversed(sides)), corner))
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
        self, bound: Pass, alpha: Sequence[Array], uppers: Sequence[tuple[Array, Array]]
    ) -> tuple[list[Array], list[Array]]:
        """L and U of each inner layer at the minimiser of the linear relaxation."""
        h = bound.corner
        lows, highs = [], []
        for index, (inner, side) in enumerate(zip(self.inner, bound.sides, strict=True)):
            low, high = inner.low(h), inner.high(h)
            slope, offset = uppers[index]
            h = np.where(side >= 0.0, alpha[index] * low, slope * high + offset)
            lows.append(low)
            highs.append(high)
        return lows, highs


def start_slopes(root: Root) -> list[Array]:
    """Slopes of the lower sides: fixed where the sign of L is known, else the smaller area."""
    return [
        np.where(level.L_max <= 0.0, 0.0, (level.L_max >= -level.L_min).astype(np.float64))
        for level in root.levels
    ]


def free_slopes(level: Level) -> npt.NDArray[np.bool_]:
    """Where the slope of the lower side may be chosen: the sign of L is open."""
    return (level.L_min < 0.0) & (level.L_max > 0.0)


def chords(level: Level, splits: Splits | None) -> tuple[Array, Array]:
    """Slope and offset of the upper side ``slope * U + offset``, given the splits made so far."""
    open_sign = (level.U_min < 0.0) & (level.U_max > 0.0)
    if splits is not None:
        open_sign &= splits == 0
    width = np.where(open_sign, level.U_max - level.U_min, 1.0)
    slope = np.where(open_sign, level.U_max / width, level.U_min >= 0.0)
    if splits is not None:
        slope = np.where(splits == 0, slope, splits > 0)
    return slope, np.where(open_sign, -slope * level.U_min, 0.0)


def _interval(inner: Inner, low: Array, high: Array) -> Level:
    """Ranges of L and U over a box of the previous layer: exact for the second layer."""
    centre, radius = (low + high) / 2.0, (high - low) / 2.0
    L, L_radius = inner.low(centre), radius @ np.abs(inner.W_low).T
    U, U_radius = inner.high(centre), radius @ np.abs(inner.W_high).T
    return Level(L - L_radius, L + L_radius, U - U_radius, U + U_radius)


def _rows_times(A: Array, W: Array) -> Array:
    """Return ``A @ W`` as one matrix product: all leading axes of ``A`` are flattened."""
    product: Array = (A.reshape(-1, A.shape[-1]) @ W).reshape(*A.shape[:-1], W.shape[1])
    return product
