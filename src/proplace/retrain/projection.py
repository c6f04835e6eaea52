r"""The nearest trained parameters whose network lies in a box, in the parameters' own precision.

Every folded parameter has an interval (:mod:`proplace.core.shifts`), and each trained weight is clipped
to the floats of its own type that are folded into it (:mod:`proplace.retrain.ends`). Float32
weights are thus rounded inwards. A weight that several layers share lies in all of their intervals.

Where a batch norm stands between a ReLU and the layer, weights move the folded bias,
:math:`b' = f(b + W t)`. Then the weights go first, and the bias is clipped to its interval for the
weights that are there. A row without a bias is moved along :math:`t` within its intervals,
:math:`w(\lambda) = \mathrm{clip}(w + \lambda t)`, until :math:`w(\lambda) \cdot t` is right; this is the
Euclidean projection on the box and the slab.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from proplace.core.errors import DeltaError
from proplace.core.layer_box import sum_down, sum_up
from proplace.core.network import Layer
from proplace.core.shifts import Shifts, outside
from proplace.loaders.coordinates import shifts_for
from proplace.loaders.cutoffs import Threshold
from proplace.loaders.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.core.layer_box import LayerBox
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Delta
    from proplace.loaders.layers import TrainedLayer


_PRECISIONS = ("float32", "float64")
_DIGITS = 8  # by which a weight is nudged at most


class Parameters(Protocol):
    """The trained parameters of a model, by name; weights have the shape (out, in)."""

    @property
    def layers(self) -> tuple[TrainedLayer, ...]:
        """Names of the parameters of each layer of the network; shared ones have one name."""

    def get(self, name: str) -> Floats:
        """The present values."""

    def set(self, name: str, values: Floats) -> None:
        """Write values, in the parameter's own precision."""


@dataclass(frozen=True, eq=False)
class Carrying:
    """A layer whose weights move its folded biases, and the ends of its b + W t."""

    layer: TrainedLayer
    low: Array
    high: Array


class Projection:
    """Clips the parameters of a model to what a box allows.

    Attributes
    ----------
    ends
        Least and greatest value of each parameter, in its own precision.
    carrying
        Layers that need a second look, at the weights that are there.

    Raises DeltaError where no parameters of such a model lie in the box.
    """

    def __init__(self, parameters: Parameters, shifts: Shifts) -> None:
        self.ends: dict[str, tuple[Floats, Floats]] = {}
        self.carrying: list[Carrying] = []
        for layer, box in zip(parameters.layers, shifts.layers, strict=True):
            self._take(parameters, layer, box)
        self._check_shared(parameters)
        self._check_ends()
        self._try(parameters, shifts)

    def __call__(self, parameters: Parameters) -> None:
        """Project parameters."""
        for name, ends in self.ends.items():
            parameters.set(name, np.clip(parameters.get(name), *ends))
        self.carry(parameters)

    def carry(self, parameters: Parameters) -> None:
        """Project what depends on weights that are projected already."""
        for part in self.carrying:
            layer, W = part.layer, parameters.get(part.layer.weight)
            if layer.bias is None:
                parameters.set(layer.weight, _tilted(part, W, *self.ends[layer.weight]))
            else:
                parameters.set(layer.bias, _moved(part, W, parameters.get(layer.bias)))

    # -- inside ------------------------------------------------------------------------------

    def _take(self, parameters: Parameters, layer: TrainedLayer, box: LayerBox) -> None:
        """Note the intervals of a layer's parameters."""
        sign_W, sign_b = layer.signs
        (W_low, W_high), (b_low, b_high) = _inner(box)
        W = _checked(layer.weight, parameters)
        ends = preimage(layer.weights, sign_W, W_low, W_high, W.dtype)
        if layer.carries:
            still = (W_low == W_high) & ((np.asarray(sign_W) != 0.0) | (layer.bias is not None))
            ends = _pinned(layer.rows(W), still, *ends)
        self._meet(layer, layer.weight, W, ends)
        if layer.carries:
            ends = preimage(layer.biases, sign_b, b_low, b_high, np.float64)
            if (ends[0] > ends[1]).any():
                raise _behind_others()
            self.carrying.append(Carrying(layer, *ends))
        elif layer.bias is not None:
            b = _checked(layer.bias, parameters)
            ends = preimage(layer.biases, sign_b, b_low, b_high, b.dtype)
            self._meet(layer, layer.bias, b, ends)

    def _meet(
        self, layer: TrainedLayer, name: str, values: Floats, ends: tuple[Floats, Floats]
    ) -> None:
        """Intersect what is known of a parameter with the intervals of its used rows."""
        if name not in self.ends:
            most = np.finfo(values.dtype).max
            self.ends[name] = np.full_like(values, -most), np.full_like(values, most)
        used = np.arange(len(values)) if layer.taken is None else layer.taken
        low, high = self.ends[name]
        np.maximum.at(low, used, ends[0])  # an output may be taken twice
        np.minimum.at(high, used, ends[1])

    def _check_shared(self, parameters: Parameters) -> None:
        for part in self.carrying:
            name = part.layer.weight if part.layer.bias is None else part.layer.bias
            if sum(name in (layer.weight, layer.bias) for layer in parameters.layers) > 1:
                raise DeltaError(
                    f"{name} is shared by several layers, one of which stands behind a batch norm whose "
                    "shift joins its bias; give each of these layers a parameter of its own",
                    name=name,
                )

    def _check_ends(self) -> None:
        for name, (low, high) in self.ends.items():
            empty = np.argwhere(low > high)
            if len(empty):
                kind = low.dtype.name
                place = ", ".join(str(int(i)) for i in empty[0])
                raise DeltaError(
                    f"the intervals of {len(empty)} numbers of {name}, the first at [{place}], hold no "
                    f"{kind} number (they are too short, or layers that share it have no number in "
                    "common), so that the model cannot lie in the box. Train it in float64, or make the "
                    f"box of models whose parameters are {kind} numbers",
                    name=name,
                )

    def _try(self, parameters: Parameters, shifts: Shifts) -> None:
        """Project a copy, and see that its network lies in the box."""
        trial = _Trial(parameters)
        self(trial)
        for layer, box in zip(trial.layers, shifts.layers, strict=True):
            W, b = folded(layer, trial)
            if not box.contains(Layer(W, None if box.low.b is None else b)):
                raise _behind_others()


def _behind_others() -> DeltaError:
    return DeltaError(
        "no parameters of this model lie in the box: its batch norm, which stays as it is, leaves "
        "biases no value in their intervals. Give a box that was made behind this batch norm (the same "
        "statistics, weights and biases of it)"
    )


def _pinned(W: Floats, still: Any, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Ends with those weights fixed that do not show as weights, so that biases need not follow them."""
    fixed = still & (low <= W) & (high >= W)
    return np.where(fixed, W, low), np.where(fixed, W, high)


def _checked(name: str, parameters: Parameters) -> Floats:
    """Values of a parameter in a precision in which boxes are kept."""
    values = parameters.get(name)
    if values.dtype.name not in _PRECISIONS:
        raise DeltaError(
            f"{name} is in half precision; parameters are kept within a box in float32 or float64. "
            "Train model.float(), with autocast around the computation alone",
            name=name,
        )
    return values


def folded(layer: TrainedLayer, parameters: Parameters) -> tuple[Array, Array]:
    """Weights and biases as they are read of a model."""
    W = parameters.get(layer.weight).astype(np.float64)
    v = layer.carried(W)
    if layer.bias is not None:
        v = layer.rows(parameters.get(layer.bias).astype(np.float64)) + v
    return layer.weights(layer.rows(W)), layer.biases(v)


class _Trial:
    """A copy of the parameters of a model."""

    def __init__(self, parameters: Parameters) -> None:
        self.layers = parameters.layers
        names = {n for layer in self.layers for n in (layer.weight, layer.bias) if n is not None}
        self._values = {name: np.array(parameters.get(name)) for name in names}

    def get(self, name: str) -> Floats:
        return self._values[name]

    def set(self, name: str, values: Floats) -> None:
        self._values[name] = values


def _inner(box: LayerBox) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Ends of the intervals of a layer, rounded inwards where they are not floats."""
    if box.centre is None or box.radii is None:
        return (box.low.W, box.high.W), (box.low.bias, box.high.bias)
    (W, b), (weight, bias) = (box.centre.W, box.centre.bias), box.radii
    return (sum_up(W, -weight), sum_down(W, weight)), (sum_up(b, -bias), sum_down(b, bias))


def _slack(W: Array, t: Array, dtype: Any) -> Array:
    """What rounding can do to ``W t`` in each row, generously."""
    result: Array = (len(t) + 2) * np.finfo(dtype).eps * (np.abs(W) @ np.abs(t))
    return result


def _moved(part: Carrying, W: Floats, b: Floats) -> Floats:
    """Biases clipped to what weights leave them, with room for rounding of ``W t`` where there is."""
    layer, exact = part.layer, W.astype(np.float64)
    t = np.zeros(W.shape[1]) if layer.shift is None else layer.shift
    c, slack = layer.carried(exact), layer.rows(_slack(exact, t, np.float64))
    low, high = preimage(lambda v: v + c, 1.0, part.low, part.high, b.dtype)
    safe = (
        preimage(lambda v: v + (c - slack), 1.0, part.low, part.high, b.dtype)[0],
        preimage(lambda v: v + (c + slack), 1.0, part.low, part.high, b.dtype)[1],
    )
    wide = safe[0] <= safe[1]
    low, high = np.where(wide, safe[0], low), np.where(wide, safe[1], high)
    if layer.taken is None:
        return np.clip(b, low, high)
    result = np.array(b)
    result[layer.taken] = np.clip(b[layer.taken], low, high)
    return result


def _tilted(part: Carrying, W: Floats, low: Floats, high: Floats) -> Floats:
    """Rows moved along ``t`` within their intervals, until their folded biases are right."""
    layer, result = part.layer, np.array(W)
    exact = W.astype(np.float64)
    t = np.zeros(W.shape[1]) if layer.shift is None else layer.shift
    places: Sequence[int] = range(len(W)) if layer.taken is None else layer.taken.tolist()
    sums, slack = layer.carried(exact), layer.rows(_slack(exact, t, W.dtype))
    for k, i in enumerate(places):
        room = min(float(slack[k]), part.high[k] / 2.0 - part.low[k] / 2.0)
        goal = np.clip(sums[k], part.low[k] + room, part.high[k] - room)
        if not part.low[k] <= sums[k] <= part.high[k]:
            row = _along(exact[i], t, float(goal), low[i].astype(float), high[i].astype(float))
            result[i] = np.clip(row.astype(W.dtype), low[i], high[i])
            _nudge(part, result, k, i, (low[i], high[i]))
    return result


def _nudge(part: Carrying, W: Floats, k: int, i: int, ends: tuple[Floats, Floats]) -> None:
    """Move one weight of a row by a few last digits, if its sum as it is read misses its interval.

    An interval may hold a single float, which no step along ``t`` hits.
    """

    def missed() -> float:
        sum_ = part.layer.carried(W.astype(np.float64))[k]
        return float(min(sum_ - part.low[k], 0.0) + max(sum_ - part.high[k], 0.0))

    if not (gap := missed()) or part.layer.shift is None:
        return
    row = W[i].copy()
    for digits, j in itertools.product(range(1, _DIGITS + 1), np.flatnonzero(part.layer.shift)):
        towards = -np.sign(gap * part.layer.shift[j]) * np.inf
        value = row[j]
        for _ in range(digits):
            value = np.nextafter(value, W.dtype.type(towards))
        W[i] = row
        W[i, j] = np.clip(value, ends[0][j], ends[1][j])
        if not missed():
            return
    W[i] = row


def _along(w: Array, t: Array, goal: float, low: Array, high: Array) -> Array:
    """``clip(w + lambda t)`` with the scalar product ``goal`` with t, by bisection."""
    far = (goal - float(w @ t)) / float(t @ t)  # right if nothing is clipped

    def short(step: float) -> bool:
        return (goal - float(np.clip(w + step * t, low, high) @ t)) * far > 0.0

    for _ in range(200):
        if not short(far):
            break
        far *= 2.0
    near = 0.0
    for _ in range(100):
        middle = (near + far) / 2.0
        near, far = (middle, far) if short(middle) else (near, middle)
    return np.clip(w + far * t, low, high)


# -- the network that must lie in the box ----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reading:
    """A box, and how the network that must lie in it is read."""

    shifts: Shifts
    network: Callable[[], Network]
    threshold: Threshold | None = None

    @classmethod
    def of(cls, source: object, delta: Delta) -> Reading:
        """Read ``delta`` for a model.

        Numbers are taken around the model as it is; of a ledger, the set is taken in which every open
        promise is proved. A box of models with a cut-off is of networks whose output bias holds it.
        """
        if callable(getattr(delta, "promised_set", None)):
            delta = delta.promised_set(source)  # type: ignore[union-attr]
        threshold = Threshold.of_box(delta.encoding) if isinstance(delta, Shifts) else None

        def model() -> Model:
            found = Model.of(source)
            return found if threshold is None else found.with_threshold(threshold)

        shifts_for(model(), delta)
        return cls(_fitting(model().network, delta), lambda: model().network, threshold)

    def layers(self, layers: tuple[TrainedLayer, ...]) -> tuple[TrainedLayer, ...]:
        """Return the layers of a model with the cut-off behind the last one."""
        if self.threshold is None:
            return layers
        offset = self.threshold.offset(self.shifts.layers[-1].low.W.shape[0])
        return (*layers[:-1], layers[-1].then(np.ones(len(offset)), -offset))

    def check(self) -> None:
        """Raise unless the network that is read of the model now lies in the box, exactly."""
        network = self.network()
        if self.shifts.contains(network):
            return
        Shifts.of(network, self.shifts)  # says why, if it is of another kind
        far = outside(self.shifts, network)
        which = f": {far[0].name} is {far[0].value!r}" if far else " (by less than the last digit)"
        raise DeltaError(
            f"the model has left the box{which}; its parameters were changed after the last projection. "
            "Project once more, and do nothing to them behind it"
        )


def _fitting(network: Network, delta: Delta) -> Shifts:
    """Return the box itself, which must be of such networks; numbers are taken around the network."""
    shifts = Shifts.of(network, delta)
    return delta if isinstance(delta, Shifts) else shifts


# -- floats of an interval -------------------------------------------------------------------------


Floats = npt.NDArray[Any]  # float32 or float64

_BITS: dict[str, Any] = {"float32": np.int32, "float64": np.int64}


def preimage(
    f: Callable[[Array], Array], sign: Array | float, low: Array, high: Array, dtype: Any
) -> tuple[Floats, Floats]:
    """Least and greatest float of a type that ``f`` takes into [low, high].

    ``f`` acts element by element and is monotone, upwards where ``sign`` is 1 and downwards where it is
    -1; where it is 0 it is constant. An empty interval has its least above its greatest.

    Examples
    --------
    >>> low, high = preimage(lambda w: -2.0 * w, -1.0, np.array([0.2]), np.array([0.4]), np.float32)
    >>> bool(-2.0 * float(low[0]) <= 0.4 < -2.0 * float(np.nextafter(low[0], np.float32(-1.0))))
    True
    """
    signs = np.broadcast_to(sign, low.shape)
    s = np.where(signs < 0.0, -1.0, 1.0)

    def up(w: Array) -> Array:
        # 0 stands for all floats where f is constant: the largest, times 0, may be no number
        return s * f(np.where(signs == 0.0, 0.0, w))

    ends = np.where(s < 0.0, -high, low), np.where(s < 0.0, -low, high)
    least = _least(up, ends[0], dtype)
    greatest = -_least(lambda w: -up(-w), -ends[1], dtype)
    return least, greatest


def _least(f: Callable[[Array], Array], bound: Array, dtype: Any) -> Floats:
    """The least float of a type with ``f(w) >= bound``, ``f`` being monotone upwards; else infinity."""
    bits = _BITS[np.dtype(dtype).name]
    top = int(_keys(np.array([np.finfo(dtype).max], dtype=dtype))[0])
    above = np.full(bound.shape, top + 1, dtype=bits)  # the key of infinity
    below = np.full(bound.shape, -top - 1, dtype=bits)
    with np.errstate(over="ignore"):  # products of the largest floats
        for _ in range(np.iinfo(bits).bits):
            middle = (below >> 1) + (above >> 1) + (below & above & 1)
            inner = np.clip(middle, -top, top)
            enough = f(_floats(inner, dtype).astype(np.float64)) >= bound
            open_ = above - 1 > below
            above = np.where(open_ & enough, middle, above)
            below = np.where(open_ & ~enough, middle, below)
    found: Floats = np.where(above > top, np.inf, _floats(np.minimum(above, top), dtype))
    return found.astype(dtype)


def _keys(values: Floats) -> npt.NDArray[Any]:
    """Whole numbers in the order of floats."""
    bits = _BITS[values.dtype.name]
    raw = values.view(bits)
    keys: npt.NDArray[Any] = np.where(raw >= 0, raw, np.iinfo(bits).min - raw)
    return keys


def _floats(keys: npt.NDArray[Any], dtype: Any) -> Floats:
    """The floats of such numbers."""
    bits = _BITS[np.dtype(dtype).name]
    raw = np.where(keys >= 0, keys, np.iinfo(bits).min - keys).astype(bits)
    result: Floats = raw.view(dtype)
    return result
