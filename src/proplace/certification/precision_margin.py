r"""The margin that covers the rounding of a model deployed in float32.

Let :math:`u = 2^{-24}`. A float32 forward pass rounds the input, the fixed transform, and each affine
map of n inputs. In any order of summation, with or without fused operations, the computed
:math:`\hat z` of a layer with weights :math:`W'` differs from the exact :math:`z` by at most

.. math::
    e_z \le |W'|\, e_h + \gamma_{n+2} \bigl(|W'| (h + e_h) + |b'|\bigr) + \eta,
    \qquad \gamma_n = \frac{n u}{1 - n u} ,

with :math:`e_h` the error of what the layer sees and :math:`\eta` for underflows (also where they are
flushed to zero); the ReLU itself is exact and does not enlarge an error. Over all of Delta
:math:`|W'| \le |W| + \delta^w`, :math:`|b'| \le |b| + \delta^b`, and the activations lie below

.. math::
    h_1 \le \max(0, W_1 u_0 + b_1 + \delta_1^w |u_0|_1 + \delta_1^b), \qquad
    h_i \le \max\bigl(0, \max(0, W_i + \delta_i^w)\, h_{i-1} + b_i + \delta_i^b\bigr) .

Two logits that are compared err by the sum of their errors. If the exact margin of a network in Delta
exceeds this bound, its float32 logits say the same class. All steps are convex and increasing
in the bounds before, so over a convex hull the bound is largest at a vertex.

Covered: IEEE float32 arithmetic in any order. Not covered: reduced-precision matrix products (TF32,
bfloat16), and a sigmoid or softmax that rounds two different logits to one probability.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from proplace.errors import OptionError

if TYPE_CHECKING:
    from proplace.network import Array, Network
    from proplace.shifts import Shifts

Margin: TypeAlias = "float | Literal['float32']"

_U = 2.0**-24
_FLUSH = 2.0**-125  # a subnormal float32 that counts as zero, twice
_FINITE = 2.0**127  # beyond this the float32 pass may overflow: no margin covers it


def float32_margin(net: Network, shifts: Shifts, low: Array, high: Array | None = None) -> Array:
    """Bound of the float32 rounding error of the margin, over Delta, for each row.

    With ``high``: for all inputs in the box from ``low`` to ``high``.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Shifts
    >>> net = Network([([[1.0, -1.0]], [0.5])], precision="float32")
    >>> bool(float32_margin(net, Shifts.of(net, 0.1), np.array([[2.0, 1.0]]))[0] < 2e-6)
    True
    """
    return rounding_error(net, shifts, low, _U, high)


def rounding_error(
    net: Network, shifts: Shifts, low: Array, unit: float, high: Array | None = None
) -> Array:
    """Bound of the error of the margin in an arithmetic with this unit roundoff: see above."""
    high = low if high is None else high
    with np.errstate(all="ignore"):
        centre, radius, u, error, biggest = _seen(net, low, high, unit)
        first = net.layers[0]
        n = first.W.shape[1]
        weights, bias = np.abs(first.W) + shifts.weight[0], np.abs(first.bias) + shifts.bias[0]
        error = _after(error, u, weights, bias, unit)
        # Sums of n terms in float64: the second part is far above their rounding.
        size = u @ weights.T + bias
        h = centre @ first.W.T + radius @ np.abs(first.W).T + first.bias
        h = h + (shifts.weight[0] * u.sum(axis=1) + shifts.bias[0])[:, None]
        h = np.maximum(h + 4.0 * (n + 4) * 2.0**-53 * size, 0.0)
        biggest = np.maximum(biggest, np.max(size + error, axis=1))
        biggest = np.maximum(biggest, max(np.max(weights), np.max(bias)))
        for layer, dw, db in zip(net.layers[1:], shifts.weight[1:], shifts.bias[1:], strict=True):
            weights, bias = np.abs(layer.W) + dw, np.abs(layer.bias) + db
            error = _after(error, h, weights, bias, unit)
            size = h @ weights.T + bias
            biggest = np.maximum(biggest, np.max(size + error, axis=1))
            biggest = np.maximum(biggest, max(np.max(weights), np.max(bias)))
            terms = 4.0 * (layer.W.shape[1] + 4) * 2.0**-53
            h = np.maximum(
                h @ np.maximum(layer.W + dw, 0.0).T + layer.bias + db + terms * size, 0.0
            )
        total = np.sort(error, axis=1)[:, -2:].sum(axis=1)  # of the two worst logits, or the one
        covered = np.isfinite(total) & (biggest < _FINITE)
    return np.where(covered, total * (1.0 + 2.0**-20) + 2.0**-140, np.inf)


def thresholds(
    net: Network, shifts: Shifts, X: Array, margin: Margin | Array | None
) -> float | Array:
    """The margin that each row must keep: numbers as they are, ``"float32"`` worked out row by row.

    None is ``"float32"`` for a model that is deployed in float32, else 0.
    """
    if isinstance(margin, np.ndarray):
        return margin
    if margin is None:
        margin = "float32" if net.precision == "float32" else 0.0
    if margin == "float32":
        return float32_margin(net, shifts, X)
    if not isinstance(margin, (int, float, np.number)) or not math.isfinite(margin):
        raise OptionError(f"margin must be a finite number or 'float32', not {margin!r}")
    return float(margin)


def _seen(
    net: Network, low: Array, high: Array, unit: float
) -> tuple[Array, Array, Array, Array, Array]:
    """Centre, radius and largest size of what the first layer sees, and its float32 error.

    Last, the largest number of each row on the way there.
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
    error = _gamma(steps, unit) * size + _FLUSH * (2.0 + np.abs(scale) + x)
    # The mean is -shift / scale and the deviation 1 / scale; its inverse must not be subnormal.
    inverse = np.divide(1.0, np.abs(scale), out=np.zeros(net.inputs), where=scale != 0.0)
    largest = np.maximum(x + np.abs(shift) * inverse, np.maximum(size, 2.0 * np.abs(scale)))
    biggest = np.max(np.maximum(largest, inverse), axis=1)
    front = net.input_map
    if front.matrix is None:
        return centre, radius, u, error, biggest
    # The scaling may come in two steps in front of a matrix: twice the error covers both.
    n, M = net.inputs, front.matrix
    c = np.zeros(len(M)) if front.offset is None else front.offset
    error = 2.0 * error @ np.abs(M).T
    size = size @ np.abs(M).T + np.abs(c)
    error = (
        error + _gamma(n + 6, unit) * (size + error) + _FLUSH * (n + 4.0 + np.abs(M).sum(axis=1))
    )
    centre = centre @ M.T + c
    radius = radius @ np.abs(M).T + 2.0**-50 * size * (n + 4)
    biggest = np.maximum(biggest, np.max(size + error, axis=1))
    return centre, radius, np.abs(centre) + radius, error, np.maximum(biggest, np.abs(M).max())


def _after(error: Array, h: Array, weights: Array, bias: Array, unit: float) -> Array:
    """Error of the affine map, from the error of its input of size ``h``."""
    n = weights.shape[1]
    flushed = _FLUSH * (n + 4 + weights.sum(axis=1) + h.sum(axis=1, keepdims=True))
    rounding = _gamma(n + 2, unit) * ((h + error) @ weights.T + bias)
    total: Array = error @ weights.T + rounding + flushed
    return total


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1.0 - n * unit) if n * unit < 0.5 else math.inf
