"""The networks for which all of some promises are proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import DeltaError, LedgerError
from proplace.core.network import Network
from proplace.core.shifts import Shifts
from proplace.loaders.coordinates import one_cutoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array, Layer
    from proplace.ledger.terms import Terms
    from proplace.loaders.model import Model


def common_set(model: Model, terms: Sequence[Terms]) -> Shifts:
    """What the sets of some terms have in common, as one of a model that encodes its table alike.

    One set is taken as it is. What several have in common is a box of floats, made a little smaller, so
    that it lies in each of them whatever was rounded on the way.
    """
    if not terms:
        raise LedgerError("no promise is open, so that there is no set to stay in")
    boxes: dict[str, Shifts] = {}
    for one in terms:
        # What trains within the set takes its cut-off from it.
        encoding = (
            model.encoding
            if model.has_column_names or model.has_preprocessing
            else one.model.encoding
        )
        if encoding != one.model.encoding:
            raise DeltaError(
                "promises were made of a model that scales or encodes its table in another way, so that "
                "this one cannot keep to its set; keep its scalers and encoders when it is retrained, "
                "or use repair"
            )
        shifts = one.guarantee.current.shifts
        boxes[f"{shifts.digest} {shifts.trained_radii}"] = shifts.encoded_as(one.model)
    one_cutoff([one.model for one in terms])
    first, *others = boxes.values()
    if not others:
        return first
    found = first
    for other in others:
        found = found.intersect(other)
    low, high = ([*net.layers] for net in (found.low, found.high))
    pairs = [_inward(a, b) for a, b in zip(low, high, strict=True)]
    nets = [
        Network(layers, **found.input_transform.parts, precision="float64", folds=None)
        for layers in zip(*pairs, strict=True)
    ]
    return Shifts(*nets, description=found.description, encoding=found.encoding)


def _inward(
    low: Layer, high: Layer
) -> tuple[tuple[Array, Array | None], tuple[Array, Array | None]]:
    """Both ends of a layer, two floats towards each other where there is room."""
    (W_low, W_high), (b_low, b_high) = _closer(low.W, high.W), _closer(low.bias, high.bias)
    none = low.b is None
    return (W_low, None if none else b_low), (W_high, None if none else b_high)


def _closer(low: Array, high: Array) -> tuple[Array, Array]:
    a, b = low, high
    for _ in range(2):
        a, b = np.nextafter(a, np.inf), np.nextafter(b, -np.inf)
    good = a <= b
    if (~good & (low < high)).any():
        raise DeltaError("the sets of the promises have hardly a network in common; use repair")
    return np.where(good, a, low), np.where(good, b, high)
