r"""The rows of a ReLU layer, shared by both programs.

With :math:`\gamma \in \{0, 1\}^{|N|}`, a lower map :math:`W V + b` and an upper map
:math:`\overline{W} V + \overline{b}`,

.. math::
    0 \le V' \le M^+ \gamma, \qquad
    W V + b \ \le\ V' \ \le\ \overline{W} V + \overline{b} + M^- (1 - \gamma) .
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.solvers import Integers, Model


def relu(
    model: Model,
    V: Integers,
    lower_map: tuple[Array, Array],
    upper_map: tuple[Array, Array],
    low: Array,
    high: Array,
) -> Integers:
    """Add columns between the ReLUs of two affine maps of ``V`` (the same map twice: its ReLU).

    ``low`` and ``high`` bound the upper map from below and above, and serve as the two M.
    """
    (W, b), (W_up, b_up) = lower_map, upper_map
    n = len(b)
    M_plus, M_minus = np.maximum(high, 0.0), np.maximum(-low, 0.0)
    out = model.columns(np.zeros(n), M_plus)
    # A neuron with a fixed sign has its gamma fixed. One that is always 0 counts as off.
    on, off = (low >= 0.0) & (high > 0.0), high <= 0.0
    gamma = model.columns(on.astype(float), (~off).astype(float), integer=True)
    eye = np.eye(n)
    model.rows([(out, eye), (gamma, -np.diag(M_plus))], -math.inf, 0.0)
    model.rows([(out, eye), (V, -W)], b, math.inf)
    model.rows([(out, eye), (V, -W_up), (gamma, np.diag(M_minus))], -math.inf, b_up + M_minus)
    return out


def interval(W: Array, b: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the range of W v + b over the box [low, high]."""
    positive, negative = np.maximum(W, 0.0), np.minimum(W, 0.0)
    return positive @ low + negative @ high + b, positive @ high + negative @ low + b
