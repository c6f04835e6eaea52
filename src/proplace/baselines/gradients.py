r"""Input gradients of a ReLU network in NumPy, for a batch of rows, and the optimiser Adam.

With masks :math:`M_i` of the active neurons at :math:`x`, the logits are locally
:math:`W_L M_{L-1} W_{L-1} \cdots M_1 W_1 x + \text{const}`. A gradient is one pass back through it.

Products are summed column by column, not by the linear algebra library, because the last bit of its
sums depends on the processor and on the number of rows. Such differences would grow with every step.

Methods that follow a gradient take steps of Adam (AMSGrad variant), each point on its own.

.. math::
    m \leftarrow .9 m + .1 g, \quad v \leftarrow .999 v + .001 g^2, \quad
    \hat v \leftarrow \max(\hat v, v), \quad
    x \leftarrow x - \eta \frac{m / (1 - .9^t)}{\sqrt{\hat v / (1 - .999^t)} + 10^{-8}} .
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from proplace.core.network import Array, Network

Masks = list[npt.NDArray[np.bool_]]


def forward(net: Network, X: Array) -> tuple[Array, Masks]:
    """Return the logits of each row, and a mask of the active neurons of each layer."""
    h = net.input_transform(X)
    masks: Masks = []
    for layer in net.layers[:-1]:
        z = _times(h, layer.W.T) + layer.bias
        masks.append(z > 0.0)
        h = np.maximum(z, 0.0)
    last = net.layers[-1]
    return _times(h, last.W.T) + last.bias, masks


def pull_back(net: Network, masks: Masks, weights: Array) -> Array:
    """Return the gradient, with respect to the inputs, of ``sum_k weights[:, k] * logits[:, k]``."""
    g = _times(weights, net.layers[-1].W)
    for layer, mask in zip(reversed(net.layers[:-1]), reversed(masks), strict=True):
        g = _times(g * mask, layer.W)
    return net.input_transform.pull_back(g)


def margin(net: Network, X: Array, target: int) -> Array:
    """Return the margin of each row for the target class."""
    return _margin(forward(net, X)[0], target)[0]


def margin_gradient(net: Network, X: Array, target: int) -> tuple[Array, Array]:
    """Return the margin of each row for the target class, and its gradient."""
    logits, masks = forward(net, X)
    value, weights = _margin(logits, target)
    return value, pull_back(net, masks, weights)


def gap(net: Network, X: Array, target: int) -> Array:
    """Return the gap of the probabilities of each row: see :func:`gap_gradient`."""
    return _gap(forward(net, X)[0], target)[0]


def gap_gradient(net: Network, X: Array, target: int) -> tuple[Array, Array]:
    r"""Return the gap :math:`p_t - \max_{o \ne t} p_o` of each row, and its gradient.

    For one logit the gap is :math:`\tanh(m / 2)` with the margin :math:`m`. For several it is
    :math:`a^\top p` with :math:`p` the softmax of the logits and :math:`a` the sign of both classes,
    so its gradient in the logits is :math:`p \odot (a - a^\top p)`.
    """
    logits, masks = forward(net, X)
    value, weights = _gap(logits, target)
    return value, pull_back(net, masks, weights)


def _margin(logits: Array, target: int) -> tuple[Array, Array]:
    """Return the margin of each row, and its gradient with respect to the logits."""
    if logits.shape[1] == 1:
        sign = 1.0 if target == 1 else -1.0
        return sign * logits[:, 0], np.full_like(logits, sign)
    others = logits.copy()
    others[:, target] = -np.inf
    weights = np.zeros_like(logits)
    weights[np.arange(len(logits)), others.argmax(axis=1)] = -1.0
    weights[:, target] = 1.0
    return (weights * logits).sum(axis=1), weights


def _gap(logits: Array, target: int) -> tuple[Array, Array]:
    """Return the gap of the probabilities, and its gradient with respect to the logits."""
    value, weights = _margin(logits, target)
    if logits.shape[1] == 1:
        value = np.tanh(value / 2.0)
        return value, weights * ((1.0 - value**2) / 2.0)[:, None]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    value = (weights * p).sum(axis=1)
    return value, p * (weights - value[:, None])


def _times(rows: Array, matrix: Array) -> Array:
    result: Array = (rows[:, :, None] * matrix).sum(axis=1)
    return result


@dataclass
class Adam:
    """State of the optimiser. ``step`` returns the change of the points for their gradients."""

    shape: tuple[int, ...]
    rate: float
    _mean: Array = field(init=False)
    _square: Array = field(init=False)
    _largest: Array = field(init=False)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._mean, self._square, self._largest = np.zeros((3, *self.shape))

    def step(self, gradient: Array, rows: npt.NDArray[np.int64]) -> Array:
        """Return the step of the points ``rows``. Each of them must have taken every earlier step."""
        self._count += 1
        self._mean[rows] = 0.9 * self._mean[rows] + 0.1 * gradient
        self._square[rows] = 0.999 * self._square[rows] + 0.001 * gradient**2
        self._largest[rows] = np.maximum(self._largest[rows], self._square[rows])
        mean = self._mean[rows] / (1.0 - 0.9**self._count)
        root = np.sqrt(self._largest[rows] / (1.0 - 0.999**self._count))
        result: Array = -self.rate * mean / (root + 1e-8)
        return result
