r"""The line from one network to another, and bounds of a margin along a stretch of it.

.. math::
    \theta(t) = \theta_0 + t\, (\theta_1 - \theta_0), \qquad 0 \le t \le 1 .

Over a stretch :math:`[a, b]` let :math:`t = m + s r` with :math:`m` its middle, :math:`r` half its
length and :math:`|s| \le 1`. Every activation is enclosed by a line in s and an error, :math:`h(s) \in
h_c + s\, h_d \pm h_e`. With :math:`W(s) = W_c + s W_d` an affine layer gives

.. math::
    z(s) \in W_c h_c + b_c + s\, (W_c h_d + W_d h_c + b_d) + s^2\, W_d h_d \pm (|W_c| + |W_d|)\, h_e ,

where :math:`s^2 \in [0, 1]`, so that the error is of second order in r. A ReLU whose sign is known on
the stretch leaves the enclosure as it is, or makes it 0; for one that is open, with :math:`l \le z \le
u`,

.. math::
    \max(0, z) \in \lambda z + [0,\ \max(-\lambda l,\ (1 - \lambda) u)], \qquad
    \lambda = \frac{u}{u - l} .

The margin is then at most :math:`v_c + |v_d| + v_e` on the whole stretch. The same holds along
:math:`\theta(t) + d` for a fixed displacement d, by which a promise that must also be kept under every
network within delta is refuted on a stretch: by one network for each t, which is known. All roundings
are covered by the errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proplace.core.errors import InputError
from proplace.core.network import Layer, Network
from proplace.core.shifts import Shifts
from proplace.loaders.coordinates import in_coordinates_of
from proplace.promises.keeping import UNITS, rounded

if TYPE_CHECKING:
    import numpy.typing as npt

    from proplace.core.network import Array
    from proplace.loaders.model import Model

_U = 2.0**-53
_TINY = 2.0**-960


class _Enclosure(NamedTuple):
    """Values that lie within ``error`` of ``centre + s * slope`` for each s in [-1, 1]."""

    centre: Array
    slope: Array
    error: Array

    @property
    def size(self) -> Array:
        result: Array = np.abs(self.centre) + np.abs(self.slope) + self.error
        return result


@dataclass(frozen=True, eq=False)
class Line:
    """All networks between two of the same shape and input map.

    Attributes
    ----------
    start, end
        The networks at 0 and at 1.
    """

    start: Network
    end: Network

    @classmethod
    def between(cls, old: Model, new: Model) -> Line:
        """The line from one model to another, in the coordinates of the first."""
        first, last = old.network, in_coordinates_of(old, new)
        shapes = [[(layer.W.shape, layer.b is None) for layer in n.layers] for n in (first, last)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{first!r} and {last!r} differ in architecture (widths, or a bias that one of them "
                "lacks), so that there is nothing between them; blend models of one architecture, or "
                "use repair(new, promises), which needs no old one"
            )
        precision = max(first.precision, last.precision, key=lambda name: list(UNITS).index(name))
        folds = first.folds if _same_folds(first, last) else None
        parts = first.input_map.parts
        ends = [
            Network([(p.W, p.b) for p in n.layers], **parts, precision=precision, folds=folds)
            for n in (first, last)
        ]
        return cls(ends[0], ends[1])

    def at(self, t: float) -> Network:
        """The network at t, with parameters that are numbers of the model's precision."""
        if t == 0.0:
            return self.start
        folded = self.start.folded or self.end.folded  # such parameters are in no file
        precision = "float64" if folded else self.start.precision
        layers = []
        for first, last in zip(self.start.layers, self.end.layers, strict=True):
            pair = [(first.W, last.W), (first.bias, last.bias)]
            W, b = (rounded(q if t == 1.0 else p + t * (q - p), precision) for p, q in pair)
            layers.append((W, None if first.b is None else b))
        return self.start.with_layers(layers)

    def hull(self, at_start: Shifts, at_end: Shifts) -> Shifts:
        """The smallest box around the boxes of both ends."""
        low, high = (
            self.start.with_layers(
                (pick(p.W, q.W), None if p.b is None else pick(p.bias, q.bias))
                for p, q in zip(a.layers, b.layers, strict=True)
            )
            for pick, a, b in (
                (np.minimum, at_start.low, at_end.low),
                (np.maximum, at_start.high, at_end.high),
            )
        )
        return Shifts(low, high)

    def most(
        self,
        a: float,
        b: float,
        points: Array,
        targets: npt.NDArray[np.intp],
        moved: tuple[Layer, ...] | None = None,
    ) -> Array:
        """Upper bound of the margin of each point for its target under every network from a to b.

        With ``moved``, a displacement of every parameter that is added to each of them.
        """
        middle = (a + b) / 2.0
        half = (b - a) / 2.0 * (1.0 + 8.0 * _U) + 8.0 * _U
        front, n = self.start.input_map, points.shape[1]
        centre = front(points)
        error = 16.0 * (n + 8) * _U * front.size(points) + _TINY
        h = _Enclosure(centre, np.zeros_like(centre), error)
        last = len(self.start.layers) - 1
        with np.errstate(over="ignore", invalid="ignore"):
            for i, (first, end) in enumerate(zip(self.start.layers, self.end.layers, strict=True)):
                z = _affine(h, first, end, (middle, half), None if moved is None else moved[i])
                h = z if i == last else _relu(z)
            bound = _margin(h, targets)
        return np.where(np.isnan(bound), np.inf, bound)


def _affine(
    h: _Enclosure,
    first: Layer,
    last: Layer,
    stretch: tuple[float, float],
    moved: Layer | None,
) -> _Enclosure:
    """The layer between two of them, over a stretch given by its middle and half its length."""
    middle, half = stretch
    dW, db = last.W - first.W, last.bias - first.bias
    W, b = first.W + middle * dW, first.bias + middle * db
    size, bias_size = np.abs(first.W) + np.abs(last.W), np.abs(first.bias) + np.abs(last.bias)
    if moved is not None:
        W, b = W + moved.W, b + moved.bias
        size, bias_size = size + np.abs(moved.W), bias_size + np.abs(moved.bias)
    dW, db = half * dW, half * db
    square = h.slope @ dW.T  # times s^2, which lies in [0, 1]
    rounding = 32.0 * (W.shape[1] + 8) * _U * (h.size @ size.T + bias_size) + _TINY
    return _Enclosure(
        h.centre @ W.T + b + square / 2.0,
        h.slope @ W.T + h.centre @ dW.T + db,
        h.error @ (np.abs(W) + np.abs(dW)).T + np.abs(square) / 2.0 + rounding,
    )


def _relu(z: _Enclosure) -> _Enclosure:
    reach = np.abs(z.slope) + z.error
    reach = reach + 8.0 * _U * (np.abs(z.centre) + reach)
    low, high = z.centre - reach, z.centre + reach
    width = np.where(high > low, high - low, 1.0)
    share = np.where(low >= 0.0, 1.0, np.where(high <= 0.0, 0.0, np.clip(high / width, 0.0, 1.0)))
    above = np.maximum(
        np.where(low < 0.0, -share * low, 0.0), (1.0 - share) * np.maximum(high, 0.0)
    )
    rounding = np.where(high > 0.0, 16.0 * _U * z.size + _TINY, 0.0)
    return _Enclosure(
        share * z.centre + above / 2.0, share * z.slope, share * z.error + above / 2.0 + rounding
    )


def _margin(v: _Enclosure, targets: npt.NDArray[np.intp]) -> Array:
    """Upper bound of the margin, from the logits."""
    count, outputs = v.centre.shape
    if outputs == 1:
        sign = np.where(targets == 1, 1.0, -1.0)
        bound = sign * v.centre[:, 0] + np.abs(v.slope[:, 0]) + v.error[:, 0]
        return np.asarray(bound + 8.0 * _U * v.size[:, 0], dtype=np.float64)
    rows, own = np.arange(count), targets[:, None]
    bound = np.take_along_axis(v.centre, own, 1) - v.centre
    bound += np.abs(np.take_along_axis(v.slope, own, 1) - v.slope)
    bound += np.take_along_axis(v.error, own, 1) + v.error
    bound += 16.0 * _U * (np.take_along_axis(v.size, own, 1) + v.size)
    bound[rows, targets] = np.inf
    return np.asarray(bound.min(axis=1), dtype=np.float64)


def _same_folds(a: Network, b: Network) -> bool:
    """Whether the same fixed numbers are folded into the layers of both."""
    for p, q in zip(a.folds, b.folds, strict=True):
        if (p is None) != (q is None):
            return False
        if p is not None and q is not None:
            others = q.arrays
            if not all(np.array_equal(array, others[name]) for name, array in p.arrays.items()):
                return False
    return True
