"""Bounds of the neurons of one shifted network over a polytope, by backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Hashable

    from proplace.network import Array
    from proplace.search.oracle import Shifted
    from proplace.search.polytope import Polytope

Bounds = list[tuple["Array", "Array"]]
Limits = dict["Hashable", tuple[float, float]]
Mask = npt.NDArray[np.bool_]


def key_of(shifted: Shifted, copy: int, layer: int, k: int) -> Hashable:
    """Name a neuron; equal neurons of the first layer have one name in all copies."""
    if layer > 0:
        return (copy, layer, k)
    W, b = shifted.layers[0]
    return (W[k].tobytes(), float(b[k]))


def layer_bounds(
    polytope: Polytope,
    shifted: Shifted,
    limits: Limits,
    copy: int,
) -> Bounds:
    """Bounds of every hidden pre-activation over the polytope, and not wider than ``limits``."""
    bounds: Bounds = []
    for layer, (W, b) in enumerate(shifted.layers):
        both = np.vstack([W, -W])
        C, const = _to_input(shifted, bounds, both, np.concatenate([b, -b]))
        least = polytope.least(C) + const
        low, high = least[: len(W)], -least[len(W) :]
        if layer > 0:  # sums of activations with weights >= 0
            low = np.where((W >= 0.0).all(axis=1), np.maximum(low, b), low)
        if limits:
            for k in np.flatnonzero((low < 0.0) & (high > 0.0)):
                known = limits.get(key_of(shifted, copy, layer, int(k)))
                if known is not None:
                    low[k], high[k] = max(low[k], known[0]), min(high[k], known[1])
        bounds.append((low, high))
    return bounds


def _to_input(shifted: Shifted, bounds: Bounds, A: Array, const: Array) -> tuple[Array, Array]:
    """Linear lower bounds ``C x' + const`` of ``A v + const``, v the layer behind ``bounds``."""
    for (W, b), (low, high) in zip(
        reversed(shifted.layers[: len(bounds)]), reversed(bounds), strict=True
    ):
        open_ = (low < 0.0) & (high > 0.0)
        chord = np.where(open_, high / np.where(open_, high - low, 1.0), low >= 0.0)
        lower = np.where(open_, high >= -low, low >= 0.0)
        negative = np.minimum(A, 0.0)
        const = const + (negative * np.where(open_, -chord * low, 0.0)).sum(axis=1)
        A = negative * chord + (A - negative) * lower
        const = const + A @ b
        A = A @ W
    return A, const


def needs_of(shifted: Shifted, bounds: Bounds) -> list[tuple[Mask, Mask]]:
    """For each layer: which neurons must be bounded from above, and which from below."""
    needs: list[tuple[Mask, Mask]] = [(shifted.a > 0.0, shifted.a < 0.0)]
    for layer in range(len(shifted.layers) - 1, 0, -1):
        W, alive = shifted.layers[layer][0], bounds[layer][1] > 0.0
        upper, lower = needs[0][0] & alive, needs[0][1] & alive
        positive, negative = W > 0.0, W < 0.0
        above = (positive & upper[:, None]) | (negative & lower[:, None])
        below = (negative & upper[:, None]) | (positive & lower[:, None])
        needs.insert(0, (cast("Mask", above.any(axis=0)), cast("Mask", below.any(axis=0))))
    return needs[: len(shifted.layers)]


def weights_of(shifted: Shifted, bounds: Bounds) -> list[Array]:
    """How much the objective can move with each activation, at most."""
    weights = [np.abs(shifted.a)]
    for layer in range(len(shifted.layers) - 1, 0, -1):
        W, alive = shifted.layers[layer][0], bounds[layer][1] > 0.0
        weights.insert(0, (weights[0] * alive) @ np.abs(W))
    return weights[: len(shifted.layers)]
