"""A scenario: one network of Delta, as a constraint that every robust point keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from proplace.core.network import Array, Network


@dataclass(frozen=True, eq=False)
class ShiftedObjective:
    """A network of Delta together with the objective over its logits that it hurts.

    ``layers`` are its hidden layers as functions of ``x'`` (the input transform is folded into the
    first, which is fixed here), ``a`` and ``const`` the objective over the last of them. Networks of
    any architecture can be scenarios of one problem.
    """

    layers: tuple[tuple[Array, Array], ...]
    a: Array
    const: float

    @classmethod
    def of(
        cls,
        net: Network,
        pairs: list[tuple[Array, Array]],
        c: Array,
        offset: float = 0.0,
        miss: Array | None = None,
    ) -> ShiftedObjective:
        """Read the shifted layers of a network, for the objective ``c`` over its logits.

        ``offset`` is added to the objective, so that sets of different margins have one threshold.
        With ``miss`` the network is asked at ``x' + miss``.
        """
        pairs = list(pairs)
        W, b = net.input_map.fold(*pairs[0])
        pairs[0] = W, b if miss is None else b + W @ miss
        last, bias = pairs.pop()
        return cls(tuple(pairs), c @ last, float(c @ bias) + offset)

    def value(self, points: Array) -> Array:
        """The objective at each point."""
        h = points
        for W, b in self.layers:
            h = np.maximum(h @ W.T + b, 0.0)
        result: Array = h @ self.a + self.const
        return result

    def gradient(self, point: Array) -> Array:
        """Gradient of the objective at one point."""
        h, masks = point, []
        for W, b in self.layers:
            z = W @ h + b
            masks.append(z > 0.0)
            h = np.maximum(z, 0.0)
        g = self.a
        for (W, _), mask in zip(reversed(self.layers), reversed(masks), strict=True):
            g = (g * mask) @ W
        return g
