"""A box of networks in figures: how many parameters move, how far, and where a network leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proplace.core.layer_box import LayerBox, Mask
    from proplace.core.network import Array, Layer, Network
    from proplace.core.shifts import Shifts

_ROUNDING = 4.0  # units in the last place that an end and the difference from it may be off by


@dataclass(frozen=True)
class LayerFigures:
    """The intervals of one layer.

    Attributes
    ----------
    parameters, moving
        How many weights and biases there are, and how many of them have an interval of some length.
    largest, median
        Lengths of the intervals, those of length 0 included.
    symmetric
        Whether each parameter of a given network lies in the middle of its interval, up to rounding;
        None where no network was given.
    """

    parameters: int
    moving: int
    largest: float
    median: float
    symmetric: bool | None = None


@dataclass(frozen=True)
class Outlier:
    """A parameter of a network that lies outside of its interval, and by how much."""

    name: str
    value: float
    low: float
    high: float
    beyond: float


def by_layer(shifts: Shifts, net: Network | None = None) -> list[LayerFigures]:
    """Figures of each layer; with a network of the same shape, whether it lies in the middle."""
    found = []
    for i, box in enumerate(shifts.layers):
        low, high = _ends(box)
        length = high - low
        symmetric = None if net is None else _centred(_flat(net.layers[i]), low, high)
        found.append(
            LayerFigures(
                length.size,
                int(np.count_nonzero(length)),
                float(length.max()),
                float(np.median(length)),
                symmetric,
            )
        )
    return found


def counts(shifts: Shifts) -> tuple[int, int]:
    """How many parameters move, and how many there are."""
    layers = by_layer(shifts)
    return sum(layer.moving for layer in layers), sum(layer.parameters for layer in layers)


def outside(shifts: Shifts, net: Network) -> list[Outlier]:
    """Parameters of a network of the same shape that leave their intervals, the farthest first.

    Examples
    --------
    >>> from proplace import Network, Shifts
    >>> shifts = Shifts.of(Network([([[1.0, -1.0]], [0.0])]), 0.25)
    >>> outside(shifts, Network([([[1.0, -2.0]], [0.5])]))
    [Outlier(name='layer 1, weight [0, 1]', value=-2.0, low=-1.25, high=-0.75, beyond=0.75), \
Outlier(name='layer 1, bias [0]', value=0.5, low=-0.25, high=0.25, beyond=0.25)]
    """
    return sorted(_outliers(shifts, net), key=lambda outlier: -outlier.beyond)


def _outliers(shifts: Shifts, net: Network) -> Iterator[Outlier]:
    for n, (box, layer) in enumerate(zip(shifts.layers, net.layers, strict=True), start=1):
        low, high = _ends(box)
        values = _flat(layer)
        width = layer.W.shape[1]
        out: Mask = (values < low) | (values > high)
        for i in np.flatnonzero(out):
            k = int(i) - layer.W.size
            place = f"weight [{i // width}, {i % width}]" if k < 0 else f"bias [{k}]"
            value, least, most = float(values[i]), float(low[i]), float(high[i])
            beyond = max(least - value, value - most)
            yield Outlier(f"layer {n}, {place}", value, least, most, beyond)


def _ends(box: LayerBox) -> tuple[Array, Array]:
    """Both ends of all intervals of a layer, weights first; a layer without bias has none for them."""
    wide = box.outward()
    return _flat(wide.low), _flat(wide.high)


def _flat(layer: Layer) -> Array:
    return layer.W.ravel() if layer.b is None else np.concatenate([layer.W.ravel(), layer.b])


def _centred(values: Array, low: Array, high: Array) -> bool:
    size = np.maximum(np.maximum(np.abs(low), np.abs(high)), np.abs(values))
    return bool((np.abs((high - values) - (values - low)) <= _ROUNDING * np.spacing(size)).all())
