r"""A shift set that is learned from retrainings: its shape, and the score of a network.

*Shape.* Some retrainings give an interval :math:`[\underline\theta, \overline\theta]` for every
parameter. Retraining changes hundreds of parameters at once, so the next one almost surely leaves some
of these intervals. Every interval is therefore widened by the same amount,

.. math::
    B(t) = \{ \theta : \underline\theta_p - t \le \theta_p \le \overline\theta_p + t
        \text{ for every parameter } p \} .

The sets grow with t. The weights, or the biases, of a layer stay frozen if none of them ever moved. A
single parameter that never moved is widened like the others, because that may be chance.

*Score.* The smallest float t with the network in B(t), by the exact test of membership. A set of size t
contains exactly the networks whose score is at most t.

On incremental retrainings of HELOC (networks of 2 x 20, by Adam and by SGD), this shape leaves more rows
robust at the same coverage than two others: radii proportional to standard deviations or ranges, and
margins proportional to those of a layer. A few samples determine the tails of single parameters poorly,
and a parameter that hardly moves needs a margin because it may move next time.
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.calibrate.conformal import calibration_size, needed, quantile_index
from proplace.core.errors import DeltaError
from proplace.core.layer_box import LayerBox, hull_of
from proplace.core.network import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from proplace.core.network import Network

SHAPE = 2  #: smallest number of networks that a shape is learned from


@dataclass(frozen=True, eq=False)
class GrownHull:
    """The bounding intervals of some networks, widened by t."""

    hull: tuple[LayerBox, ...]

    @classmethod
    def of(cls, nets: Sequence[Network]) -> GrownHull:
        """Return the family around some networks of the same architecture."""
        layers = zip(*(net.layers for net in nets), strict=True)
        return cls(tuple(hull_of(parts) for parts in layers))

    @property
    def frozen(self) -> list[str]:
        """Names of the parameters that never moved, such as "the biases of layer 2"."""
        return [
            f"the {name} of layer {i}"
            for i, box in enumerate(self.hull, start=1)
            for name, low, high in (
                ("weights", box.low.W, box.high.W),
                ("biases", box.low.b, box.high.b),
            )
            if low is not None and high is not None and not (high > low).any()
        ]

    def at(self, t: float) -> list[LayerBox]:
        """Return the intervals at size t. They contain those of every smaller size."""
        return [LayerBox(_moved(box, box.low, -t), _moved(box, box.high, t)) for box in self.hull]

    def estimate(self, net: Network) -> float:
        """Return the score of a network, up to rounding."""
        scores = [0.0]
        for box, layer in zip(self.hull, net.layers, strict=True):
            for name in ("W", "bias"):
                low, high, value = (getattr(part, name) for part in (box.low, box.high, layer))
                beyond = float(np.maximum(low - value, value - high).max(initial=0.0))
                moves = (high > low).any()
                scores.append(beyond if moves or beyond == 0.0 else np.inf)
        return max(scores)


def score(family: GrownHull, net: Network) -> float:
    """Return the smallest float t >= 0 for which a family contains a network, or infinity."""

    def inside(t: float) -> bool:
        pairs = zip(family.at(t), net.layers, strict=True)
        return all(box.contains(layer) for box, layer in pairs)

    if inside(0.0):
        return 0.0
    low, high, step = 0.0, max(family.estimate(net), sys.float_info.min), 2.0**-51
    while high < np.inf and not inside(high):
        low, high, step = high, high * (1.0 + step), 2.0 * step
    if high == np.inf:
        return high
    while low == 0.0 and step < 1.0:  # first near the estimate, because bisection from 0 is slow
        below = high * (1.0 - step)
        if inside(below):
            high, step = below, 2.0 * step
        else:
            low = below
    while low < (middle := low + (high - low) / 2.0) < high:
        if inside(middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True, eq=False)
class History:
    """Retrained networks after one input transform. The ``first`` ones always give the shape."""

    nets: tuple[Network, ...]
    first: int = 0

    def learn(self, coverage: Fraction, seed: int) -> tuple[Sequence[LayerBox], str]:
        """Return intervals that cover the next retraining, and their description."""
        n = len(self.nets)
        size = calibration_size(n, coverage, SHAPE)
        if not size:
            raise DeltaError(_too_short(n, coverage), name="history")
        shaping, sizing = self._split(size, seed)
        family = GrownHull.of(shaping)
        scores = sorted(score(family, net) for net in sizing)
        t = scores[quantile_index(size, coverage) - 1]
        boxes = family.at(t) if t < np.inf else []
        if not boxes or not all(_finite(box) for box in boxes):
            raise DeltaError(_unlike(family.frozen, scores.count(np.inf), size), name="history")
        return boxes, (
            f"learned from {n} retrainings ({len(shaping)} for the shape, {size} for the size): the "
            f"next lies inside with probability >= {_percent(coverage)}, on average over all such "
            "histories (one for which no set is found counts as inside), if it is exchangeable with "
            "them" + _still(family.frozen, scores.count(np.inf))
        )

    def _split(self, size: int, seed: int) -> tuple[list[Network], list[Network]]:
        """Return the networks for the shape, and ``size`` networks for the size.

        The split depends on the seed, but not on the order of the history.
        """
        rest = sorted(self.nets[self.first :], key=lambda net: _name(net, seed))
        drawn = [rest[i] for i in np.random.default_rng(seed).permutation(len(rest))]
        cut = len(drawn) - size
        return [*self.nets[: self.first], *drawn[:cut]], drawn[cut:]


def _too_short(n: int, coverage: Fraction) -> str:
    least = needed(coverage)
    text = (
        f"{n} network{'s are' if n > 1 else ' is'} too few for a coverage of {_percent(coverage)}, "
        f"which needs at least {least + SHAPE}, {least} for the size and {SHAPE} for the shape"
    )
    if n <= SHAPE:
        return f"{text}; and {SHAPE + 1} are needed for any coverage"
    left = n - SHAPE
    allowed = f"{math.floor(1000 * left / (left + 1)) / 1000:g}"
    return f"{text}. These allow coverage={allowed} at most"


def _unlike(frozen: list[str], outside: int, size: int) -> str:
    """Describe why no set covers enough of the networks that give the size."""
    if not outside:
        return (
            "no finite intervals cover enough of the networks, because some of their parameters are "
            "near the largest float. Scale the inputs, and train the networks again"
        )
    return (
        f"{_listed(frozen)} never moved in the networks that give the shape, but did in {outside} of "
        f"the {size} that give the size, as if some had been retrained in another way. Give networks "
        "that were retrained in one way, or more of them"
    )


def _still(frozen: list[str], outside: int) -> str:
    """Describe what is frozen, and how many networks moved it."""
    if not frozen:
        return ""
    text = f" and leaves {_listed(frozen)} as they are, which never moved"
    if outside:
        text = (
            f" and leaves {_listed(frozen)} as they are, which never moved in those for the shape but "
            f"did in {outside} of those for the size"
        )
    return text


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):g}%"


def _finite(box: LayerBox) -> bool:
    parts = (box.low.W, box.low.bias, box.high.W, box.high.bias)
    return all(bool(np.isfinite(part).all()) for part in parts)


def _name(net: Network, seed: int) -> bytes:
    sha = hashlib.sha256(str(seed).encode())
    for layer in net.layers:
        sha.update((layer.W + 0.0).tobytes())
        sha.update((layer.bias + 0.0).tobytes())
    return sha.digest()


def _moved(box: LayerBox, end: Layer, by: float) -> Layer:
    """Return one end of the intervals, moved if any parameter of the kind ever moved."""
    W = end.W + by if (box.high.W > box.low.W).any() else end.W
    if end.b is None:
        return Layer(W, None)
    return Layer(W, end.b + by if (box.high.bias > box.low.bias).any() else end.b)
