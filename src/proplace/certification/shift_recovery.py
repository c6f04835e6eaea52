r"""From worst activations back to the shifted network that has them.

Inside Delta each neuron's pre-activation is moved by one number :math:`t \in [-1, 1]`: with
:math:`m, r` the middle and the radius of a parameter's interval, the weights of its row are
:math:`m + t\,r \operatorname{sign}(h)` and its bias is :math:`m + t\,r`, which covers its whole range.
So the activations of the worst case fix all parameters of the shift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


def shifted_layers(
    shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> list[tuple[Array, Array]]:
    """Layers of the shift with activations ``hidden`` on ``u`` that minimises ``c . logits``.

    Parameters can leave their radius by a rounding error: see :func:`shifted_network`.
    """
    pairs: list[tuple[Array, Array]] = []
    h = u
    for box, wanted in zip(shifts.layers[:-1], hidden, strict=True):
        t = np.where(wanted > 0.0, box.share(wanted, h), -1.0)
        W, b = box.at(t, np.sign(h))
        pairs.append((W, b))
        h = np.maximum(W @ h + b, 0.0)
    pairs.append(shifts.layers[-1].at(-np.sign(c), np.sign(h)))
    return pairs


def shifted_network(
    net: Network, shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> Network:
    """Return the network in Delta with activations ``hidden`` on ``u`` and least ``c . logits``.

    Every parameter lies within its radius exactly, as real numbers, not up to rounding.
    """
    moved = shifted_layers(shifts, u, hidden, c)
    clipped = [
        box.clip(W, None if box.low.b is None else b)
        for box, (W, b) in zip(shifts.layers, moved, strict=True)
    ]
    return net.with_layers((layer.W, layer.b) for layer in clipped)
