r"""How far rounding can take the float64 bounds from what they stand for, known beforehand.

Let :math:`\bar h_i` be the activations of the network of absolute values,

.. math::
    \bar h_0 = |s \cdot x| + |t|, \qquad
    \bar h_i = (|W_i| + \delta_i^w)\, \bar h_{i-1} + |b_i| + \delta_i^b .

Every number on the way to a bound or to an attack is a sum of products of parameters, activations,
slopes in [0, 1] and multipliers. The same sum of absolute values is at most
:math:`S = |c| \cdot \bar h_L` for an objective :math:`c` over the logits, and each unit of a
multiplier of neuron k of layer i adds at most its :math:`\bar h_{ik}`. In a sum of n terms, in any
order, each of them is wrong by at most :math:`\gamma_n` of its size, u the unit roundoff:

- the box of the first activations by :math:`2 n u\, \bar h_1`, each range of a later layer by
  :math:`2 n u\, \bar h_i` more than that of the layer before, and so each chord lies by at most as
  much, and some last bits, too low;
- a backward pass adds at most :math:`5 n u S` a layer, and the errors of the chords it uses;
- ranges of the third and later hidden layers come from backward passes, so that these errors enter
  once more: a factor 2 for each such layer.

With L layers and N the number of all inputs and neurons, all this together is below

.. math::
    16\, (L + 1)\, (2 N + 16 L)\, 2^{\max(0, L - 3)}\, u \,
    (S + \textstyle\sum_{ik} |m_{ik}| \bar h_{ik})

with m the multipliers (of splits, or of the rows of a linear program). An underflow is covered by a
tiny number that is added to each bias. What overflows here has no bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts

_U = 2.0**-53
_TINY = 2.0**-960  # times the unit roundoff it is still far above all underflows of one sum


class Roundoff:
    """Bounds on rounding errors for one network and its shifts."""

    def __init__(self, net: Network, shifts: Shifts) -> None:
        L, N = len(net.layers), net.inputs + sum(len(layer.W) for layer in net.layers)
        self.unit = 16.0 * (L + 1) * (2 * N + 16 * L) * 2.0 ** max(0, L - 3) * _U
        self._terms = net.inputs + 4  # of the sum behind an entry of U
        mixed = net.input_map.matrix is not None
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

        ``U`` holds the rows as the first layer sees them, ``objectives`` the rows over the logits,
        ``multiplier_size`` what the multipliers add to the sizes. Where a matrix stands in the input
        map, the sum behind an entry of ``U`` can be much larger than the entry: ``size`` holds those
        sums of absolute values. The bounds are then those of ``U`` as it was rounded, and what its
        rounding can do is the slope of the network of absolute values times it.
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
        """Largest sizes of the pre-activations of each hidden layer behind the first."""
        h, found = self._seen(U), []
        with np.errstate(all="ignore"):
            for W, b in self._layers[:-1]:
                h = h @ W.T + b
                found.append(h)
        return found[1:]

    def _seen(self, U: Array) -> Array:
        """Bound ``|s x| + |t|`` by what came of the sum: the product is at most ``|u| + |t|``."""
        return np.abs(U) + self._offset
