r"""A priori bounds on rounding errors: of the float64 bounds, and of a model deployed in float32.

**The bounds in float64.** Let :math:`\bar h_i` be the activations of the network of absolute values,

.. math::
    \bar h_0 = |s \cdot x| + |t|, \qquad
    \bar h_i = (|W_i| + \delta_i^w)\, \bar h_{i-1} + |b_i| + \delta_i^b .

Every number on the way to a bound or to an attack is a sum of products of parameters, activations,
slopes in [0, 1] and multipliers. The same sum of absolute values is at most :math:`S = |c| \cdot
\bar h_L` for an objective :math:`c` over the logits, and each unit of a multiplier of neuron k of
layer i adds at most its :math:`\bar h_{ik}`. In a sum of n terms, in any order, the error of each
of them is at most :math:`\gamma_n` of its size, u the unit roundoff:

- the box of the first activations has the error :math:`2 n u\, \bar h_1`, each range of a later
layer
  :math:`2 n u\, \bar h_i` more than that of the layer before, and each chord is too low by at most
  as much, and some last bits;
- a backward pass adds at most :math:`5 n u S` a layer, and the errors of the chords it uses;
- ranges of the third and later hidden layers come from backward passes, so these errors enter
  once more: a factor 2 for each such layer.

With L layers and N the number of all inputs and neurons, the sum of all these errors is below

.. math::
    16\, (L + 1)\, (2 N + 16 L)\, 2^{\max(0, L - 3)}\, u \,
    (S + \textstyle\sum_{ik} |m_{ik}| \bar h_{ik})

with m the multipliers (of splits, or of the rows of a linear program). A tiny number that is added
to each bias covers underflows. After an overflow there is no bound.

**A model in float32.** A margin covers the rounding of a model that is deployed in float32. Let u be
the unit roundoff, :math:`2^{-24}`. A forward pass rounds the input, the fixed transform, and each
affine map of n inputs. In any order of summation, with or without fused operations, the computed
:math:`\hat z` of a layer with weights :math:`W'` differs from the exact :math:`z` by at most

.. math::
    e_z \le |W'|\, e_h + \gamma_{n+2} \bigl(|W'| (h + e_h) + |b'|\bigr) + \eta,
    \qquad \gamma_n = \frac{n u}{1 - n u} ,

with :math:`e_h` the error of the layer's input and :math:`\eta` for underflows (even if they are
flushed to zero). The ReLU itself is exact and does not enlarge an error. Over all of Delta
:math:`|W'| \le |W| + \delta^w`, :math:`|b'| \le |b| + \delta^b`, and the activations lie below

.. math::
    h_1 \le \max(0, W_1 u_0 + b_1 + \delta_1^w |u_0|_1 + \delta_1^b), \qquad
    h_i \le \max\bigl(0, \max(0, W_i + \delta_i^w)\, h_{i-1} + b_i + \delta_i^b\bigr) .

The error of a comparison of two logits is at most the sum of their errors. If the exact margin of a
network in Delta exceeds this bound, its computed logits give the same class. All steps are convex
and increasing in the bounds before, so over a convex hull the bound is largest at a vertex.

Covered: IEEE float32 arithmetic in any order. Not covered: matrix products in less than float32
(TF32), and a float32 sigmoid or softmax that rounds two different logits to one probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from proplace.core.errors import OptionError

if TYPE_CHECKING:
    from proplace.core.guarantee import Member
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


_U = 2.0**-53
_TINY = 2.0**-960  # times the unit roundoff, it is still far above all underflows of one sum


class Roundoff:
    """Bounds on rounding errors for one network and its shift set."""

    def __init__(self, net: Network, shifts: Shifts) -> None:
        L, N = len(net.layers), net.inputs + sum(len(layer.W) for layer in net.layers)
        self.unit = 16.0 * (L + 1) * (2 * N + 16 * L) * 2.0 ** max(0, L - 3) * _U
        self._terms = net.inputs + 4  # of the sum for an entry of U
        mixed = net.input_transform.matrix is not None
        shift = 0.0 if net.shift is None or mixed else net.shift
        self._offset = 2.0 * np.abs(shift) + _TINY
        with np.errstate(all="ignore"):
            self._layers = [
                (weights, biases + _TINY) for weights, biases in (box.size for box in shifts.layers)
            ]
            self._slope, self._const = np.eye(net.outputs), np.zeros(net.outputs)
            for W, b in reversed(self._layers):
                self._const = self._const + self._slope @ b
                self._slope = self._slope @ W + _TINY

    def error(
        self, U: Array, objectives: Array, multiplier_size: Array, size: Array | None = None
    ) -> Array:
        """Bound the rounding error of the bounds and attacks of each row.

        ``U`` holds the inputs of the first layer, ``objectives`` the rows over the logits,
        ``multiplier_size`` the contribution of the multipliers to the sizes. With a matrix in the
        input transform, the sum for an entry of ``U`` can be much larger than the entry: ``size``
        holds those sums of absolute values. The bounds are then those of the rounded ``U``, and the
        effect of its rounding is at most its size times the slope of the network of absolute
        values.
        """
        with np.errstate(all="ignore"):
            logits = self._seen(U) @ self._slope.T + self._const
            largest: Array = (logits @ np.abs(objectives).T).max(axis=1) + multiplier_size
            error = self.unit * largest
            if size is not None:
                moved = (self._terms * 4.0 * _U * size + _TINY) @ self._slope.T
                error = error + (moved @ np.abs(objectives).T).max(axis=1)
        return np.where(np.isfinite(error), error, np.inf)

    def sizes(self, U: Array) -> list[Array]:
        """Return the largest sizes of the pre-activations of each hidden layer after the first."""
        h, found = self._seen(U), []
        with np.errstate(all="ignore"):
            for W, b in self._layers[:-1]:
                h = h @ W.T + b
                found.append(h)
        return found[1:]

    def _seen(self, U: Array) -> Array:
        """Bound ``|s x| + |t|`` by the value of the sum: the product is at most ``|u| + |t|``."""
        return np.abs(U) + self._offset


Margin: TypeAlias = float | Literal["float32"]

#: The next step if no margin covers the rounding of some row.
UNCOVERED_ADVICE = "drop or rescale such rows, or give a margin as a number"


@dataclass(frozen=True)
class Format:
    """Numbers of a floating-point format.

    Attributes
    ----------
    unit
        Unit roundoff.
    flush
        At least two of the smallest normal numbers: the loss if subnormal numbers count as zero,
        including the rounding of the sum they are added to.
    finite
        Largest number of a pass without a risk of overflow. No margin covers larger ones.
    """

    unit: float
    flush: float
    finite: float


_FLOAT32 = Format(2.0**-24, 2.0**-125, 2.0**127)
# For the passes of this package, over numbers no larger than those of float32.
DOUBLE = Format(2.0**-53, 2.0**-125, 2.0**127)


def float32_margin(net: Network, shifts: Shifts, low: Array, high: Array | None = None) -> Array:
    """Bound the float32 rounding error of the margin over Delta, for each row.

    With ``high``, the bound holds for all inputs in the box from ``low`` to ``high``.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Shifts
    >>> net = Network([([[1.0, -1.0]], [0.5])], precision="float32")
    >>> bool(float32_margin(net, Shifts.of(net, 0.1), np.array([[2.0, 1.0]]))[0] < 2e-6)
    True
    """
    return rounding_error(net, shifts, low, _FLOAT32, high)


def rounding_error(
    net: Network, shifts: Shifts, low: Array, numbers: Format, high: Array | None = None
) -> Array:
    """Bound the error of the margin in an arithmetic of such numbers: see above."""
    high = low if high is None else high
    with np.errstate(all="ignore"):
        centre, radius, u, error, biggest = _seen(net, low, high, numbers)
        n = net.layers[0].W.shape[1]
        weights, bias = shifts.layers[0].size
        error = _after(error, u, weights, bias, numbers)
        # Sums of n terms in float64: the second part is far above their rounding.
        size = u @ weights.T + bias
        h = shifts.layers[0].preactivations(centre)[1] + radius @ weights.T
        h = np.maximum(h + 4.0 * (n + 4) * 2.0**-53 * size, 0.0)
        biggest = np.maximum(biggest, np.max(size + error, axis=1))
        biggest = np.maximum(biggest, max(np.max(weights), np.max(bias)))
        for box in shifts.layers[1:]:
            weights, bias = box.size
            error = _after(error, h, weights, bias, numbers)
            size = h @ weights.T + bias
            biggest = np.maximum(biggest, np.max(size + error, axis=1))
            biggest = np.maximum(biggest, max(np.max(weights), np.max(bias)))
            terms = 4.0 * (weights.shape[1] + 4) * 2.0**-53
            most = h @ np.maximum(box.high.W, 0.0).T + box.high.bias
            h = np.maximum(most + terms * size, 0.0)
        total = np.sort(error, axis=1)[:, -2:].sum(axis=1)  # of the two worst logits, or of one
        covered = np.isfinite(total) & (biggest < numbers.finite)
    return np.where(covered, total * (1.0 + 2.0**-20) + 2.0**-140, np.inf)


def thresholds(
    net: Network,
    shifts: Shifts,
    X: Array,
    margin: Margin | Array | None,
    box: tuple[Array, Array] | None = None,
) -> float | Array:
    """Return the required margin of each row: a number unchanged, ``"float32"`` computed per row.

    With ``box``, the margin is required at every point of a box around each row. None means
    ``"float32"`` for a model that is deployed in float32, otherwise 0.
    """
    if isinstance(margin, np.ndarray):
        return margin
    margin = checked_margin(net, margin)
    if margin != "float32":
        return margin
    low, high = (X, None) if box is None else box
    return float32_margin(net, shifts, low, high)


def required_margins(
    member: Member, rows: Array, box: tuple[Array, Array] | None = None
) -> float | Array:
    """Return the required margin of each row, at every point of its box.

    Without ``box``, the box is that of the member's tolerance.
    """
    deployed = member.deployment
    if deployed is None:
        return member.margin
    box = member.around(rows) if box is None else box
    if box is not None:
        ends = [deployed.offset + deployed.scale * end for end in box]
        box = np.minimum(*ends), np.maximum(*ends)
    cells = deployed.offset + deployed.scale * rows
    return thresholds(deployed.network, member.shifts, cells, "float32", box) + deployed.cutoff


def checked_margin(net: Network, margin: Margin | None) -> float | Literal["float32"]:
    """Return a margin unchanged, or for None that of the network's precision."""
    if margin is None:
        margin = 0.0 if net.precision == "float64" else "float32"
    if margin == "float32":
        return margin
    if not isinstance(margin, (int, float, np.number)) or not math.isfinite(margin):
        raise OptionError(
            f"margin must be a finite number or 'float32', not {margin!r}",
            name="margin",
            value=margin,
        )
    return float(margin)


def _seen(
    net: Network, low: Array, high: Array, numbers: Format
) -> tuple[Array, Array, Array, Array, Array]:
    """Return centre, radius, largest size and error of the first layer's input.

    The last result is the largest number of each row in these computations.
    """
    scale = np.ones(net.inputs) if net.scale is None else net.scale
    shift = np.zeros(net.inputs) if net.shift is None else net.shift
    x = np.maximum(np.abs(low), np.abs(high))
    size = x * np.abs(scale) + np.abs(shift)
    centre = (low + high) / 2.0 * scale + shift
    radius = (high - low) / 2.0 * np.abs(scale) + 2.0**-50 * size
    # The input is rounded, then scaled: (x - mean) / deviation or scale * x + shift, at most five
    # roundings of numbers of this size together with those of the constants.
    steps = 1 if net.scale is None and net.shift is None else 8
    u = np.abs(centre) + radius if steps > 1 else size
    # Constants and inputs may be flushed to zero as well: an input times the scale, and so on.
    flush = numbers.flush
    error = _gamma(steps, numbers.unit) * size + flush * (2.0 + np.abs(scale) + x)
    # The mean is -shift / scale and the deviation 1 / scale. Its inverse must not be subnormal.
    inverse = np.divide(1.0, np.abs(scale), out=np.zeros(net.inputs), where=scale != 0.0)
    largest = np.maximum(x + np.abs(shift) * inverse, np.maximum(size, 2.0 * np.abs(scale)))
    biggest = np.max(np.maximum(largest, inverse), axis=1)
    front = net.input_transform
    if front.matrix is None:
        return centre, radius, u, error, biggest
    # The scaling may come in two steps before a matrix: twice the error covers both.
    n, M = net.inputs, front.matrix
    c = np.zeros(len(M)) if front.offset is None else front.offset
    error = 2.0 * error @ np.abs(M).T
    size = size @ np.abs(M).T + np.abs(c)
    error = error + _gamma(n + 6, numbers.unit) * (size + error)
    error = error + flush * (n + 4.0 + np.abs(M).sum(axis=1))
    centre = centre @ M.T + c
    radius = radius @ np.abs(M).T + 2.0**-50 * size * (n + 4)
    biggest = np.maximum(biggest, np.max(size + error, axis=1))
    return centre, radius, np.abs(centre) + radius, error, np.maximum(biggest, np.abs(M).max())


def _after(error: Array, h: Array, weights: Array, bias: Array, numbers: Format) -> Array:
    """Return the error of the affine map, from the error of its input of size ``h``."""
    n = weights.shape[1]
    flushed = numbers.flush * (n + 4 + weights.sum(axis=1) + h.sum(axis=1, keepdims=True))
    rounding = _gamma(n + 2, numbers.unit) * ((h + error) @ weights.T + bias)
    total: Array = error @ weights.T + rounding + flushed
    return total


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1.0 - n * unit) if n * unit < 0.5 else math.inf
