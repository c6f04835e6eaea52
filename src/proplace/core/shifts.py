r"""Delta: the box of parameter changes against which a verdict must hold.

With one radius :math:`\delta_i^w` for the weights and one :math:`\delta_i^b` for the biases of each
layer,

.. math::
    \Delta = \{ (W_i', b_i')_i : |W_i' - W_i| \le \delta_i^w,\; |b_i' - b_i| \le \delta_i^b \} ,

the L-infinity ball of the paper when all radii are equal. A radius of 0 freezes a layer.
A layer without bias has no bias to shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from proplace.core.errors import DeltaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Network

Delta: TypeAlias = "float | Sequence[tuple[float, float]] | Shifts"


@dataclass(frozen=True)
class Shifts:
    """Radii of the parameter box, one number per layer for weights and for biases."""

    weight: tuple[float, ...]
    bias: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weight) != len(self.bias):
            raise DeltaError(
                f"{len(self.weight)} weight radii but {len(self.bias)} bias radii; "
                "give one of each per layer (0 for a layer without bias)"
            )

    @classmethod
    def of(cls, net: Network, delta: Delta) -> Shifts:
        """Read ``delta`` (one number, or one (weight, bias) pair per layer) for this network."""
        if isinstance(delta, Shifts):
            delta = list(zip(delta.weight, delta.bias, strict=True))
        if isinstance(delta, (int, float, np.number)) and not isinstance(delta, bool):
            pairs = [(float(delta), float(delta))] * len(net.layers)
        else:
            pairs = _pairs(net, delta)
        for i, pair in enumerate(pairs, start=1):
            if not all(math.isfinite(radius) and radius >= 0.0 for radius in pair):
                raise DeltaError(
                    f"delta must be finite and not negative; layer {i} has {pair}. "
                    "Give a number such as 0.02, or one (weight, bias) pair per layer"
                )
        return cls(
            weight=tuple(weight for weight, _ in pairs),
            bias=tuple(
                0.0 if layer.b is None else bias
                for (_, bias), layer in zip(pairs, net.layers, strict=True)
            ),
        )

    def radius(self, net: Network) -> float | None:
        """The one radius of all parameters of a network, or None if they differ."""
        biases = zip(self.bias, net.layers, strict=True)
        radii = {*self.weight, *(radius for radius, layer in biases if layer.b is not None)}
        return radii.pop() if len(radii) == 1 else None


def _pairs(net: Network, delta: object) -> list[tuple[float, float]]:
    try:
        pairs = [(float(weight), float(bias)) for weight, bias in delta]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise DeltaError(
            f"delta must be a number or one (weight, bias) pair per layer, not {delta!r}"
        ) from None
    if len(pairs) != len(net.layers):
        raise DeltaError(
            f"delta has {len(pairs)} (weight, bias) pairs but the network has {len(net.layers)} "
            "layers (the output layer counts)"
        )
    return pairs
