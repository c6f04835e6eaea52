r"""The bounds of :mod:`proplace.certification.checker`, batched, in floats rounded to the safe side.

A real number is enclosed as a float ``mid`` with a radius. For a dot product of n terms, in any order
of summation, with or without fused operations,

.. math::
    |\mathrm{fl}(x \cdot y) - x \cdot y| \le \gamma_n\, |x| \cdot |y|, \qquad
    \gamma_n = \frac{n u}{1 - n u},\quad u = 2^{-53} ,

and an underflow adds at most :math:`2^{-1074}` per term. Radii are sums of non-negative terms, so a
factor covers their own rounding. The pass takes the same steps as the checker. Its bound is never
above the checker's with the same multipliers, so the checker accepts every certificate that is
accepted here. An overflow gives :math:`-\infty`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.batched_bnb import Nodes
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


Mask = npt.NDArray[np.bool_]

_U = 2.0**-53
_TINY = 2.0**-1060  # far above all underflows of one sum, far below everything else
# Numbers in one array of a pass: it fits in the cache, and the deadline is checked often.
FLOATS_PER_PASS = 1 << 17


class TimedOut(Exception):
    """The deadline came before the enclosure was complete."""


class Enclosure:
    """Outward-rounded ranges of all activations of a batch of rows, and bounds from them.

    Make one with :meth:`of`.
    """

    def __init__(
        self,
        net: Network,
        shifts: Shifts,
        lower: Sequence[Array],
        upper: Sequence[Array],
        unit: float,
        deadline: float,
    ) -> None:
        self.net, self.shifts, self.lower, self.upper = net, shifts, lower, upper
        self.unit, self.deadline = unit, deadline
        self.ranges: list[tuple[Array, Array]] = []
        self.lines: list[Array] = []
        self._stacked = [  # low ends above high ends, so that one product takes both
            (
                np.concatenate([box.low.W, box.high.W]),
                np.concatenate([box.low.bias, box.high.bias])[:, None],
            )
            for box in shifts.layers[1:-1]
        ]

    @classmethod
    def of(
        cls,
        net: Network,
        shifts: Shifts,
        X: Array,
        lower: Sequence[Array],
        upper: Sequence[Array],
        *,
        tighten: bool,
        unit: float | None = None,
        deadline: float = np.inf,
    ) -> Enclosure:
        """Enclose the activations of rows.

        Parameters
        ----------
        X
            The rows.
        lower, upper
            Slopes of the lower and upper sides of each inner layer, arrays (rows, width).
        tighten
            If True, ranges after the second hidden layer also come from backward passes.
        unit
            For a larger network that takes input boxes: the :func:`cut_unit` of the original
            network, to which the checker cuts.
        deadline
            Time, by ``time.monotonic``, after which no further pass is made.

        Raises
        ------
        TimedOut
            The deadline came before the enclosure was complete.
        """
        unit = cut_unit(net, shifts) if unit is None else unit
        enclosure = cls(net, shifts, lower, upper, unit, deadline)
        with np.errstate(all="ignore"):
            enclosure._first(X)
            if net.widths:
                enclosure._inner(tighten=tighten)
        return enclosure

    def _first(self, X: Array) -> None:
        """Enclose the ends of the first pre-activations, and the box of the activations."""
        u, rad = X, np.zeros_like(X)
        if self.net.scale is not None:
            u = u * self.net.scale
            rad = 2.0 * _U * np.abs(u) + _TINY
        if self.net.shift is not None:
            u = u + self.net.shift
            rad = (rad + 2.0 * _U * np.abs(u)) * (1.0 + 8.0 * _U)
        front = self.net.input_transform
        if front.matrix is not None:
            u, rad = _dot(u, rad, front.matrix.T)
        if front.offset is not None:  # an offset comes with a matrix
            u = u + front.offset
            rad = (rad + 2.0 * _U * np.abs(u)) * (1.0 + 8.0 * _U)
        box, signed = self.shifts.layers[0], np.hstack([np.maximum(u, 0.0), np.minimum(u, 0.0)])
        cut = self.unit * (1.0 + (np.abs(u) + rad).sum(axis=1, keepdims=True))
        self.ends = []  # the smallest and the largest pre-activation, each with its radius
        for end, other in ((box.low, box.high), (box.high, box.low)):
            z, z_rad = _dot(signed, np.hstack([rad, rad]), np.hstack([end.W, other.W]).T)
            z = z + end.bias
            size = np.abs(z) + np.abs(end.bias)  # radii round a bias once more
            self.ends.append((z, (z_rad + 2.0 * _U * size + cut) * (1.0 + 8.0 * _U)))
        (low, low_rad), (high, high_rad) = self.ends
        self.low = np.maximum(_down(low - low_rad), 0.0)
        self.high = np.maximum(_up(high + high_rad), 0.0)

    def _inner(self, *, tighten: bool) -> None:
        low, high = self.low, self.high
        for i, box in enumerate(self.shifts.layers[1:-1]):
            C, b = box.high.W, box.high.bias
            lo, hi = _interval(C, b, low, high, self.unit)
            if i + 1 < len(self.upper):  # the input box of the next inner layer
                L_low, _ = _interval(box.low.W, box.low.bias, low, high, self.unit)
                low, high = np.maximum(L_low, 0.0), np.maximum(hi, 0.0)
            if tighten and i:
                lo = np.fmax(lo, self._least(C, b))
                hi = np.fmin(hi, -self._least(-C, -b))
            self.ranges.append((lo, hi))
            self.lines.append(_offset(self.upper[i], lo, hi))

    def _least(self, C: Array, b: Array) -> Array:
        """Bound ``C v + b`` from below at the activations of each row, a few objectives at a time."""
        widest = 2 * max(len(box.low.W) for box in self.shifts.layers[1:-1])
        step = max(1, FLOATS_PER_PASS // (len(self.low) * widest))
        found = []
        for start in range(0, len(C), step):
            self._check_time()
            part = slice(start, start + step)
            A, R = C[None, part], 2.0 * _U * np.abs(C[None, part]) + self.unit
            e = 2.0 * _U * np.abs(b[None, part]) + self.unit
            found.append(self._pass(A, R, b[None, part], e, None)[0])
        return np.concatenate(found, axis=1)

    def _check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise TimedOut

    def bounds(self, c: Array, nodes: Nodes | None) -> tuple[Array, list[Mask]]:
        """Bound ``c . logits`` from below at each node, or at each row without hidden layers.

        The second result marks, per inner layer, the lower sides that may have been used.
        """
        with np.errstate(all="ignore"):
            if not self.net.widths:
                return self._linear(c), []
            assert nodes is not None  # noqa: S101  (a network with hidden layers has nodes)
            last, size = self.shifts.layers[-1], np.abs(c)
            a, const = last.least(c)
            R, e = (8.0 * _U * (size @ part) + self.unit for part in last.size)
            value, used = self._pass(
                a[None, None], R[None, None], np.array([[const]]), np.array([[e]]), nodes
            )
            return value[:, 0], [layer[:, 0] for layer in used]

    def _linear(self, c: Array) -> Array:
        (low, low_rad), (high, high_rad) = self.ends
        up, down = np.maximum(c, 0.0), np.minimum(c, 0.0)
        parts = np.abs(low) @ up - np.abs(high) @ down
        error = low_rad @ up - high_rad @ down + _gamma(2 * len(c) + 8) * parts
        return _proved(low @ up + high @ down, error * (1.0 + 16.0 * _U * len(c)))

    def _pass(
        self, A: Array, R: Array, total: Array, error: Array, nodes: Nodes | None
    ) -> tuple[Array, list[Mask]]:
        """Bound ``A . v + total`` from below: A is (1 or nodes, objectives, width), R its radius.

        Without nodes, the bound is at the activations of each row. ``error`` is the radius of
        ``total``.
        """
        row = slice(None) if nodes is None else nodes.row
        used: list[Mask] = []
        for i in reversed(range(len(self.ranges))):
            box = self.shifts.layers[i + 1]
            n = len(box.low.W)
            lo, hi = (part[row][:, None] for part in self.ranges[i])
            slope, line = self.upper[i][row][:, None], self.lines[i][row][:, None]
            alpha = self.lower[i][row][:, None]
            push: Array | float = 0.0
            if nodes is not None:
                alpha, push = nodes.alpha[i][:, None], nodes.gamma[i][:, None]
                sign = nodes.splits[i][:, None]
                lo = np.where(sign > 0, np.maximum(lo, 0.0), lo)
                hi = np.where(sign < 0, np.minimum(hi, 0.0), hi)
                slope = np.where(sign != 0, sign > 0, slope)
                line = np.where(sign != 0, 0.0, line)
            on_L, on_U = np.maximum(A, 0.0) * alpha, np.minimum(A, 0.0) * slope
            used.append(A + R > 0.0)
            parts = np.concatenate([on_L, on_U - push], axis=-1)
            size = np.concatenate(
                np.broadcast_arrays(np.abs(on_L), np.abs(on_U) + np.abs(push)), axis=-1
            )
            rad = np.concatenate(
                [np.where(used[-1], R * alpha, 0.0), np.where(A - R < 0.0, R * slope, 0.0)], axis=-1
            )
            rad = (rad + 4.0 * _U * size) * (1.0 + 8.0 * _U) + _TINY
            cut = self.unit * size.sum(axis=-1, keepdims=True)
            terms = [np.minimum(_down(A - R), 0.0) * line]
            if nodes is not None:
                terms.append(np.where(push > 0.0, push * lo, push * hi))
            for term in terms:
                total = total + term.sum(axis=-1)
                error = error + _gamma(n + 8) * (np.abs(term).sum(axis=-1) + np.abs(total))
            bias, bias_rad = _dot(parts, rad, self._stacked[i][1])
            total = total + bias[..., 0]
            error = error + bias_rad[..., 0] + cut[..., 0]
            error = error + _gamma(n + 8) * (np.abs(bias[..., 0]) + np.abs(total))
            A, R = _dot(parts, rad, self._stacked[i][0])
            R = (R + cut) * (1.0 + 16.0 * _U)
        low, high = self.low[row][:, None], self.high[row][:, None]
        least = _down(A - R)
        term = np.maximum(least, 0.0) * low + np.minimum(least, 0.0) * high
        total = total + term.sum(axis=-1)
        error = error + _gamma(A.shape[-1] + 8) * (np.abs(term).sum(axis=-1) + np.abs(total))
        error = error + _TINY
        return _proved(total, error), used[::-1]


def cut_unit(net: Network, shifts: Shifts) -> float:
    """Bound the units to which the checker may cut parameters.

    These are 2^-96 of the smallest layer's largest weight: of the network if delta is around it,
    otherwise of the box's ends.
    """
    weights = [np.abs(layer.W) for layer in net.layers]
    if shifts.radii is None:
        weights = [box.size[0] for box in shifts.layers]
    sizes = [float(W.max()) for W in weights]
    return 2.0**-90 * min((size for size in sizes if size > 0.0), default=1.0) + _TINY


def _dot(mid: Array, rad: Array, W: Array) -> tuple[Array, Array]:
    """Enclose ``x @ W`` for x within ``rad`` of ``mid``, with W rounded at most once."""
    n = W.shape[0]
    shape = (*mid.shape[:-1], W.shape[1])
    value = mid.reshape(-1, n) @ W
    away = (rad + _gamma(n + 2) * np.abs(mid)).reshape(-1, n) @ np.abs(W)
    return value.reshape(shape), (away * _grow(n) + _TINY).reshape(shape)


def _interval(C: Array, b: Array, low: Array, high: Array, unit: float) -> tuple[Array, Array]:
    """Enclose ``C h + b`` over a box with 0 <= low <= high, with C and b rounded once."""
    up, down = np.maximum(C, 0.0).T, np.minimum(C, 0.0).T
    n = C.shape[1]
    slack = _gamma(2 * n + 10) * (high @ np.abs(C).T + np.abs(b)) * _grow(n) + _TINY
    slack = slack + unit * (1.0 + high.sum(axis=1, keepdims=True))
    return (
        _down(low @ up + high @ down + b - slack),
        _up(high @ up + low @ down + b + slack),
    )


def _offset(slope: Array, lo: Array, hi: Array) -> Array:
    """Return the maximum of ``max(0, U) - slope U`` on [lo, hi], rounded up, for slopes in [0, 1]."""
    ends = np.maximum(np.maximum(lo, 0.0) - slope * lo, np.maximum(hi, 0.0) - slope * hi)
    return ends + 8.0 * _U * np.maximum(np.abs(lo), np.abs(hi)) + _TINY


def _proved(value: Array, error: Array) -> Array:
    """Return ``value - error`` rounded down, or -inf after an overflow."""
    bound = _down(value - error * (1.0 + 2.0**-20))
    return np.where(np.isfinite(bound), bound, -np.inf)


def _gamma(n: int) -> float:
    return 1.01 * n * _U


def _grow(n: int) -> float:
    return 1.0 + 4.0 * (n + 8) * _U


def _up(x: Array) -> Array:
    return np.nextafter(x, np.inf)


def _down(x: Array) -> Array:
    return np.nextafter(x, -np.inf)
