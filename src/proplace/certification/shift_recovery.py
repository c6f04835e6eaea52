r"""From worst activations back to the shifted network that has them.

Inside Delta each neuron's pre-activation is moved by one number :math:`t \in [-1, 1]`: the weights
of its row move by :math:`t\,\delta^w \operatorname{sign}(h)` and its bias by
:math:`t\,\delta^b`, which covers its whole interval. So the activations of the worst case fix all
parameters of the shift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


def shifted_layers(
    net: Network, shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> list[tuple[Array, Array]]:
    """Layers of the shift with activations ``hidden`` on ``u`` that minimises ``c . logits``.

    Parameters can leave their radius by a rounding error: see :func:`shifted_network`.
    """
    pairs: list[tuple[Array, Array]] = []
    h = u
    for layer, dw, db, wanted in zip(
        net.layers[:-1], shifts.weight, shifts.bias, hidden, strict=False
    ):
        z = layer.W @ h + layer.bias
        radius = dw * np.abs(h).sum() + db
        move = np.minimum(np.maximum(wanted - z, -radius), radius)
        t = np.where(wanted > 0.0, move / radius if radius > 0.0 else 0.0, -1.0)
        W, b = layer.W + t[:, None] * (dw * np.sign(h)), layer.bias + t * db
        pairs.append((W, b))
        h = np.maximum(W @ h + b, 0.0)
    last, t = net.layers[-1], -np.sign(c)
    W = last.W + t[:, None] * (shifts.weight[-1] * np.sign(h))
    pairs.append((W, last.bias + t * shifts.bias[-1]))
    return pairs


def shifted_network(
    net: Network, shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> Network:
    """Return the network in Delta with activations ``hidden`` on ``u`` and least ``c . logits``.

    Every parameter lies within its radius exactly, as real numbers, not up to rounding.
    """
    moved = shifted_layers(net, shifts, u, hidden, c)
    pairs = [
        (_inside(layer.W, W, dw), None if layer.b is None else _inside(layer.b, b, db))
        for layer, (W, b), dw, db in zip(net.layers, moved, shifts.weight, shifts.bias, strict=True)
    ]
    return net.with_layers(pairs)


def _inside(values: Array, moved: Array, radius: float) -> Array:
    """Return ``moved``, taken back by single floats where rounding left the radius.

    The exact difference of two floats is ``d + e`` with d the rounded difference and e its rounding
    error (Knuth's two-difference), so the comparison with the radius is exact.
    """
    while True:
        d = moved - values
        values_part = moved - d
        e = (moved - (d + values_part)) + (values_part - values)
        outside = (np.abs(d) > radius) | ((np.abs(d) == radius) & (e * np.sign(d) > 0.0))
        if not outside.any():
            return moved
        moved = np.where(outside, np.nextafter(moved, values), moved)
