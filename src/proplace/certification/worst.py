r"""From worst activations back to the shifted network that has them.

Inside Delta each neuron's pre-activation is moved by one number :math:`t \in [-1, 1]`: the weights
of its row move by :math:`t\,\delta^w \operatorname{sign}(h)` and its bias by :math:`t\,\delta^b`, which
covers its whole interval. So the activations of the worst case fix all parameters of the shift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.network import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.network import Array
    from proplace.shifts import Shifts


def shifted_network(
    net: Network, shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> Network:
    """Return the network in Delta that has activations ``hidden`` on ``u`` and least ``c . logits``.

    Every parameter lies within its radius exactly, as real numbers, not up to rounding.
    """
    pairs: list[tuple[Array, Array | None]] = []
    h = u
    for layer, dw, db, wanted in zip(
        net.layers[:-1], shifts.weight, shifts.bias, hidden, strict=False
    ):
        z = layer.W @ h + layer.bias
        radius = dw * np.abs(h).sum() + db
        t = (wanted - z) / radius if radius > 0.0 else np.zeros_like(z)
        t = np.where(wanted > 0.0, np.clip(t, -1.0, 1.0), -1.0)
        W = _inside(layer.W, np.outer(t, np.sign(h)) * dw, dw)
        b = None if layer.b is None else _inside(layer.b, t * db, db)
        pairs.append((W, b))
        h = np.maximum(W @ h + (0.0 if b is None else b), 0.0)
    last, t = net.layers[-1], -np.sign(c)
    dw, db = shifts.weight[-1], shifts.bias[-1]
    pairs.append(
        (
            _inside(last.W, np.outer(t, np.sign(h)) * dw, dw),
            None if last.b is None else _inside(last.b, t * db, db),
        )
    )
    return Network(pairs, scale=net.scale, shift=net.shift, precision=net.precision)


def _inside(values: Array, change: Array, radius: float) -> Array:
    """``values + change``, moved back by single floats where rounding left the radius.

    The exact difference of two floats is ``d + e`` with d the rounded difference and e its rounding
    error (Knuth's two-difference), so the comparison with the radius is exact.
    """
    moved = values + change
    while True:
        d = moved - values
        values_part = moved - d
        e = (moved - (d + values_part)) + (values_part - values)
        outside = (np.abs(d) > radius) | ((np.abs(d) == radius) & (e * np.sign(d) > 0.0))
        if not outside.any():
            return moved
        moved = np.where(outside, np.nextafter(moved, values), moved)
