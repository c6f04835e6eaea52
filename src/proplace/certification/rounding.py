r"""The bounds of :mod:`proplace.certification.checker`, batched, in floats that never say too much.

A real number is enclosed as a float ``mid`` with a radius. For a dot product of n terms, in any order
of summation, with or without fused operations,

.. math::
    |\mathrm{fl}(x \cdot y) - x \cdot y| \le \gamma_n\, |x| \cdot |y|, \qquad
    \gamma_n = \frac{n u}{1 - n u},\quad u = 2^{-53} ,

and an underflow adds at most :math:`2^{-1074}` a term. Radii are sums of terms that are not
negative, so their own rounding is covered by a factor. The pass goes through the same steps as the
checker's: what it returns is at most what the checker finds with the same multipliers, so a
certificate accepted here is accepted there. An overflow gives :math:`-\infty`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.batched_bnb import Nodes
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts

_U = 2.0**-53
_TINY = 2.0**-1060  # far above all underflows of one sum, far below everything else


class Enclosure:
    """Outward-rounded ranges of all activations of a batch of rows, and bounds from them.

    Make one with :meth:`of`.
    """

    def __init__(
        self, net: Network, shifts: Shifts, lower: Sequence[Array], upper: Sequence[Array]
    ) -> None:
        self.net, self.shifts, self.lower, self.upper = net, shifts, lower, upper
        self.ranges: list[tuple[Array, Array]] = []
        self.lines: list[Array] = []
        # The checker may cut parameters to units that are 2^-96 of the smallest layer's largest
        # weight, and grow delta by as much: see there.
        sizes = [float(np.abs(layer.W).max()) for layer in net.layers]
        self.unit = 2.0**-90 * min((size for size in sizes if size > 0.0), default=1.0) + _TINY

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
    ) -> Enclosure:
        """Enclose the activations of rows.

        Parameters
        ----------
        X
            The rows.
        lower, upper
            Slopes of the lower and upper sides of each inner layer, arrays (rows, width).
        tighten
            Whether ranges behind the second hidden layer also come from backward passes.
        """
        enclosure = cls(net, shifts, lower, upper)
        with np.errstate(all="ignore"):
            enclosure._first(X)
            if net.widths:
                enclosure._inner(tighten=tighten)
        return enclosure

    def _first(self, X: Array) -> None:
        """Enclose ``z`` and the radius of the first layer; the box of its activations."""
        u, rad = X, np.zeros_like(X)
        if self.net.scale is not None:
            u = u * self.net.scale
            rad = 2.0 * _U * np.abs(u) + _TINY
        if self.net.shift is not None:
            u = u + self.net.shift
            rad = (rad + 2.0 * _U * np.abs(u)) * (1.0 + 8.0 * _U)
        front = self.net.input_map
        if front.matrix is not None:
            u, rad = _dot(u, rad, front.matrix.T)
        if front.offset is not None:  # it comes with a matrix
            u = u + front.offset
            rad = (rad + 2.0 * _U * np.abs(u)) * (1.0 + 8.0 * _U)
        layer, n = self.net.layers[0], u.shape[1]
        z, z_rad = _dot(u, rad, layer.W.T)
        z = z + layer.bias
        size = (np.abs(u) + rad).sum(axis=1)
        cut = self.unit * (1.0 + size[:, None])
        self.z, self.z_rad = z, z_rad + 2.0 * _U * np.abs(z) + cut
        radius = self.shifts.weight[0] * size + self.shifts.bias[0]
        self.radius = radius[:, None] * (1.0 + (n + 8) * 2.0 * _U) + _TINY
        away = (self.z_rad + self.radius) * (1.0 + 4.0 * _U)
        self.low = np.maximum(_down(z - away), 0.0)
        self.high = np.maximum(_up(z + away), 0.0)

    def _inner(self, *, tighten: bool) -> None:
        low, high = self.low, self.high
        for i, layer in enumerate(self.net.layers[1:-1]):
            dw, db = self.shifts.weight[i + 1], self.shifts.bias[i + 1]
            C, b, size = layer.W + dw, layer.bias + db, np.abs(layer.bias) + db
            lo, hi = _interval(C, b, low, high, size, self.unit)
            if i + 1 < len(self.upper):  # the box that the next inner layer sees
                L_low, _ = _interval(layer.W - dw, layer.bias - db, low, high, size, self.unit)
                low, high = np.maximum(L_low, 0.0), np.maximum(hi, 0.0)
            if tighten and i:
                A, R = C[None], 2.0 * _U * np.abs(C)[None] + self.unit
                e = 2.0 * _U * np.abs(b) + self.unit
                lo = np.fmax(lo, self._pass(A, R, b[None], e[None], None)[0])
                hi = np.fmin(hi, -self._pass(-A, R, -b[None], e[None], None)[0])
            self.ranges.append((lo, hi))
            self.lines.append(_offset(self.upper[i], lo, hi))

    def bounds(self, c: Array, nodes: Nodes | None) -> tuple[Array, list[Mask]]:
        """Bound ``c . logits`` from below at each node (without hidden layers: of each row).

        Also returns, per inner layer, where a lower side may have been used.
        """
        with np.errstate(all="ignore"):
            if not self.net.widths:
                return self._linear(c), []
            assert nodes is not None  # noqa: S101  (a network with hidden layers has nodes)
            last, size = self.net.layers[-1], float(np.abs(c).sum())
            a = c @ last.W - size * self.shifts.weight[-1]
            const = c @ last.bias - size * self.shifts.bias[-1]
            R = 8.0 * _U * (np.abs(c) @ np.abs(last.W) + size * self.shifts.weight[-1]) + self.unit
            e = 8.0 * _U * (np.abs(c) @ np.abs(last.bias) + size * self.shifts.bias[-1]) + self.unit
            value, used = self._pass(
                a[None, None], R[None, None], np.array([[const]]), np.array([[e]]), nodes
            )
            return value[:, 0], [layer[:, 0] for layer in used]

    def _linear(self, c: Array) -> Array:
        size = np.abs(c)
        value = self.z @ c - size.sum() * self.radius[:, 0]
        parts = np.abs(self.z) @ size + size.sum() * self.radius[:, 0]
        return _proved(value, self.z_rad @ size + _gamma(len(c) + 8) * parts)

    def _pass(
        self, A: Array, R: Array, total: Array, error: Array, nodes: Nodes | None
    ) -> tuple[Array, list[Mask]]:
        """Bound ``A . v + total`` from below; A is (1 or nodes, objectives, width), R its radius.

        Without nodes: at the activations of each row. ``error`` is the radius of ``total``.
        """
        row = slice(None) if nodes is None else nodes.row
        used: list[Mask] = []
        for i in reversed(range(len(self.ranges))):
            layer = self.net.layers[i + 1]
            dw, db, n = self.shifts.weight[i + 1], self.shifts.bias[i + 1], layer.W.shape[0]
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
            rad = np.where(used[-1], R * alpha, 0.0) + np.where(A - R < 0.0, R * slope, 0.0)
            size = np.abs(on_L) + np.abs(on_U) + np.abs(push)
            rad = (rad + 4.0 * _U * size) * (1.0 + 8.0 * _U) + _TINY
            both = on_L + on_U - push
            apart = (on_U - push - on_L).sum(axis=-1, keepdims=True)
            apart_rad = rad.sum(axis=-1, keepdims=True) * _grow(n)
            moved = size.sum(axis=-1, keepdims=True)
            apart_rad = apart_rad + _gamma(n + 4) * moved + _TINY
            cut = self.unit * moved
            terms = [np.minimum(_down(A - R), 0.0) * line]
            if nodes is not None:
                terms.append(np.where(push > 0.0, push * lo, push * hi))
            for term in terms:
                total = total + term.sum(axis=-1)
                error = error + _gamma(n + 8) * (np.abs(term).sum(axis=-1) + np.abs(total))
            bias, bias_rad = _dot(both, rad, layer.bias[:, None])
            extra = apart * db
            total = total + bias[..., 0] + extra[..., 0]
            error = error + bias_rad[..., 0] + (apart_rad * db + 4.0 * _U * np.abs(extra))[..., 0]
            error = error + _gamma(n + 8) * (np.abs(bias[..., 0]) + np.abs(total)) + cut[..., 0]
            A, R = _dot(both, rad, layer.W)
            shared = apart * dw
            A = A + shared
            R = R + apart_rad * dw + 4.0 * _U * (np.abs(A) + np.abs(shared)) + cut
            R = R * (1.0 + 16.0 * _U)
        low, high = self.low[row][:, None], self.high[row][:, None]
        least = _down(A - R)
        term = np.maximum(least, 0.0) * low + np.minimum(least, 0.0) * high
        total = total + term.sum(axis=-1)
        error = error + _gamma(A.shape[-1] + 8) * (np.abs(term).sum(axis=-1) + np.abs(total))
        error = error + _TINY
        return _proved(total, error), used[::-1]


def _dot(mid: Array, rad: Array, W: Array) -> tuple[Array, Array]:
    """Enclose ``x @ W`` for x within ``rad`` of ``mid``; W is exact."""
    n = W.shape[0]
    shape = (*mid.shape[:-1], W.shape[1])
    value = mid.reshape(-1, n) @ W
    away = (rad + _gamma(n + 2) * np.abs(mid)).reshape(-1, n) @ np.abs(W)
    return value.reshape(shape), (away * _grow(n) + _TINY).reshape(shape)


def _interval(
    C: Array, b: Array, low: Array, high: Array, size: Array, unit: float
) -> tuple[Array, Array]:
    """Outward range of ``C h + b`` over a box with 0 <= low <= high; C and b are rounded once."""
    up, down = np.maximum(C, 0.0).T, np.minimum(C, 0.0).T
    n = C.shape[1]
    slack = _gamma(2 * n + 10) * (high @ np.abs(C).T + size) * _grow(n) + _TINY
    slack = slack + unit * (1.0 + high.sum(axis=1, keepdims=True))
    return (
        _down(low @ up + high @ down + b - slack),
        _up(high @ up + low @ down + b + slack),
    )


def _offset(slope: Array, lo: Array, hi: Array) -> Array:
    """Greatest ``max(0, U) - slope U`` on [lo, hi], rounded up, for slopes in [0, 1]."""
    ends = np.maximum(np.maximum(lo, 0.0) - slope * lo, np.maximum(hi, 0.0) - slope * hi)
    return ends + 8.0 * _U * np.maximum(np.abs(lo), np.abs(hi)) + _TINY


def _proved(value: Array, error: Array) -> Array:
    """``value - error`` rounded down, -inf where something overflowed."""
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
