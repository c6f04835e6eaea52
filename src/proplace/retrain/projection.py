r"""Projection of trained parameters on a shift set, in their own precision.

Every folded parameter has an interval (:mod:`proplace.core.shifts`), and each trained weight is clipped
to the floats of its own type that fold into it (:func:`preimage`). Float32 weights are thus rounded
inwards. A weight that several layers share lies in all of their intervals.

With a batch norm between a ReLU and the layer, weights move the folded bias, :math:`b' = f(b + W t)`.
Then the weights are projected first, and the bias is clipped for these weights. A row without a bias is
moved along :math:`t` within its intervals, :math:`w(\lambda) = \mathrm{clip}(w + \lambda t)`, until
:math:`w(\lambda) \cdot t` lies in its interval. This is the Euclidean projection on the slab in the box.
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
from proplace.loaders.align import shifts_for
from proplace.loaders.cutoffs import Threshold
from proplace.loaders.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.core.layer_box import LayerBox
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Delta
    from proplace.loaders.layers import TrainedLayer


_PRECISIONS = ("float32", "float64")
_DIGITS = 8  # largest correction of a weight


class Parameters(Protocol):
    """The trained parameters of a model, by name. Weights have the shape (out, in)."""

    @property
    def layers(self) -> tuple[TrainedLayer, ...]:
        """Names of the parameters of each layer. Shared ones have one name."""

    def get(self, name: str) -> Floats:
        """Return the present values."""

    def set(self, name: str, values: Floats) -> None:
        """Write values, in the parameter's own precision."""


@dataclass(frozen=True, eq=False)
class CoupledBias:
    """A layer whose weights move its folded biases, with the ends of its b + W t."""

    layer: TrainedLayer
    low: Array
    high: Array


class Projection:
    """Clips the parameters of a model to a shift set.

    Attributes
    ----------
    ends
        Smallest and largest value of each parameter, in its own precision.
    coupled
        Layers whose biases depend on the projected weights.

    Raises DeltaError if no parameters of the model lie in the shift set.
    """

    def __init__(self, parameters: Parameters, shifts: Shifts) -> None:
        self.ends: dict[str, tuple[Floats, Floats]] = {}
        self.coupled: list[CoupledBias] = []
        for layer, box in zip(parameters.layers, shifts.layers, strict=True):
            self._take(parameters, layer, box)
        self._check_shared(parameters)
        self._check_ends()
        self._try(parameters, shifts)

    def __call__(self, parameters: Parameters) -> None:
        """Project parameters."""
        for name, ends in self.ends.items():
            parameters.set(name, np.clip(parameters.get(name), *ends))
        self.project_biases(parameters)

    def project_biases(self, parameters: Parameters) -> None:
        """Project the biases that depend on the projected weights."""
        for part in self.coupled:
            layer, W = part.layer, parameters.get(part.layer.weight)
            if layer.bias is None:
                parameters.set(layer.weight, _project_row(part, W, *self.ends[layer.weight]))
            else:
                parameters.set(layer.bias, _project_bias(part, W, parameters.get(layer.bias)))

    # -- inside ------------------------------------------------------------------------------

    def _take(self, parameters: Parameters, layer: TrainedLayer, box: LayerBox) -> None:
        """Set the intervals of the parameters of a layer."""
        sign_W, sign_b = layer.signs
        (W_low, W_high), (b_low, b_high) = _inner(box)
        W = _checked(layer.weight, parameters)
        ends = preimage(layer.weights, sign_W, W_low, W_high, W.dtype)
        if layer.carries:
            still = (W_low == W_high) & ((np.asarray(sign_W) != 0.0) | (layer.bias is not None))
            ends = _fix_weights(layer.rows(W), still, *ends)
        self._intersect(layer, layer.weight, W, ends)
        if layer.carries:
            ends = preimage(layer.biases, sign_b, b_low, b_high, np.float64)
            if (ends[0] > ends[1]).any():
                raise _no_bias_error()
            self.coupled.append(CoupledBias(layer, *ends))
        elif layer.bias is not None:
            b = _checked(layer.bias, parameters)
            ends = preimage(layer.biases, sign_b, b_low, b_high, b.dtype)
            self._intersect(layer, layer.bias, b, ends)

    def _intersect(
        self, layer: TrainedLayer, name: str, values: Floats, ends: tuple[Floats, Floats]
    ) -> None:
        """Intersect the interval of a parameter with those of its used rows."""
        if name not in self.ends:
            most = np.finfo(values.dtype).max
            self.ends[name] = np.full_like(values, -most), np.full_like(values, most)
        used = np.arange(len(values)) if layer.taken is None else layer.taken
        low, high = self.ends[name]
        np.maximum.at(low, used, ends[0])  # an output may be taken twice
        np.minimum.at(high, used, ends[1])

    def _check_shared(self, parameters: Parameters) -> None:
        for part in self.coupled:
            name = part.layer.weight if part.layer.bias is None else part.layer.bias
            if sum(name in (layer.weight, layer.bias) for layer in parameters.layers) > 1:
                raise DeltaError(
                    f"several layers share {name}, and one follows a batch norm whose shift joins "
                    "its bias. Give each of these layers its own parameter",
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
                    "common), so the model cannot lie in the shift set. Train it in float64, or make "
                    f"the set from models whose parameters are {kind} numbers",
                    name=name,
                )

    def _try(self, parameters: Parameters, shifts: Shifts) -> None:
        """Project a copy, and raise unless its network lies in the shift set."""
        trial = _Trial(parameters)
        self(trial)
        for layer, box in zip(trial.layers, shifts.layers, strict=True):
            W, b = folded(layer, trial)
            if not box.contains(Layer(W, None if box.low.b is None else b)):
                raise _no_bias_error()


def _no_bias_error() -> DeltaError:
    return DeltaError(
        "no parameters of this model lie in the shift set: its frozen batch norm leaves biases no value "
        "in their intervals. Give a shift set that was made with this batch norm (the same statistics, "
        "weights and biases)"
    )


def _fix_weights(W: Floats, still: Any, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Fix weights that the folded layer shows only in its biases, so that biases stay unchanged."""
    fixed = still & (low <= W) & (high >= W)
    return np.where(fixed, W, low), np.where(fixed, W, high)


def _checked(name: str, parameters: Parameters) -> Floats:
    """Return the values of a parameter, or raise if they are in half precision."""
    values = parameters.get(name)
    if values.dtype.name not in _PRECISIONS:
        raise DeltaError(
            f"{name} is in half precision, and only float32 and float64 can be projected. Train "
            "model.float(), with autocast around the computation alone",
            name=name,
        )
    return values


def folded(layer: TrainedLayer, parameters: Parameters) -> tuple[Array, Array]:
    """Return the folded weights and biases of a layer."""
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
    """Return the ends of the intervals of a layer, rounded inwards to floats."""
    if box.centre is None or box.radii is None:
        return (box.low.W, box.high.W), (box.low.bias, box.high.bias)
    (W, b), (weight, bias) = (box.centre.W, box.centre.bias), box.radii
    return (sum_up(W, -weight), sum_down(W, weight)), (sum_up(b, -bias), sum_down(b, bias))


def _slack(W: Array, t: Array, dtype: Any) -> Array:
    """Bound the rounding error of ``W t`` in each row."""
    result: Array = (len(t) + 2) * np.finfo(dtype).eps * (np.abs(W) @ np.abs(t))
    return result


def _project_bias(part: CoupledBias, W: Floats, b: Floats) -> Floats:
    """Clip biases for given weights, with space for the rounding error of ``W t`` if possible."""
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


def _project_row(part: CoupledBias, W: Floats, low: Floats, high: Floats) -> Floats:
    """Move rows along ``t`` within their intervals until their folded biases lie in theirs."""
    layer, result = part.layer, np.array(W)
    exact = W.astype(np.float64)
    t = np.zeros(W.shape[1]) if layer.shift is None else layer.shift
    places: Sequence[int] = range(len(W)) if layer.taken is None else layer.taken.tolist()
    sums, slack = layer.carried(exact), layer.rows(_slack(exact, t, W.dtype))
    for k, i in enumerate(places):
        inner = min(float(slack[k]), part.high[k] / 2.0 - part.low[k] / 2.0)
        goal = np.clip(sums[k], part.low[k] + inner, part.high[k] - inner)
        if not part.low[k] <= sums[k] <= part.high[k]:
            row = _along(exact[i], t, float(goal), low[i].astype(float), high[i].astype(float))
            result[i] = np.clip(row.astype(W.dtype), low[i], high[i])
            _nudge(part, result, k, i, (low[i], high[i]))
    return result


def _nudge(part: CoupledBias, W: Floats, k: int, i: int, ends: tuple[Floats, Floats]) -> None:
    """Move one weight of a row by a few last digits if the folded sum misses its interval.

    An interval may hold a single float, which no step along ``t`` reaches.
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
    """Return ``clip(w + lambda t)`` with the scalar product ``goal`` with t, by bisection."""
    far = (goal - float(w @ t)) / float(t @ t)  # correct if nothing is clipped

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


# -- the target of a projection --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BoxTarget:
    """A shift set, and the import of the network that must lie in it."""

    shifts: Shifts
    network: Callable[[], Network]
    threshold: Threshold | None = None

    @classmethod
    def of(cls, source: object, delta: Delta) -> BoxTarget:
        """Make the target from a shift set, a delta around the model as it is, or a ledger.

        A ledger gives the shift set in which every open promise is proved. The output bias of a shift
        set of models with a cut-off holds this cut-off.
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
        """Return the layers of a model with the cut-off after the last one."""
        if self.threshold is None:
            return layers
        offset = self.threshold.offset(self.shifts.layers[-1].low.W.shape[0])
        return (*layers[:-1], layers[-1].then(np.ones(len(offset)), -offset))

    def check(self) -> None:
        """Raise unless the imported network of the model lies in the shift set, exactly."""
        network = self.network()
        if self.shifts.contains(network):
            return
        Shifts.of(network, self.shifts)  # raises if it is of another kind
        far = outside(self.shifts, network)
        which = f": {far[0].name} is {far[0].value!r}" if far else " (by less than the last digit)"
        raise DeltaError(
            f"the model has left the shift set{which}. Its parameters were changed after the last "
            "projection. Project again, and leave them unchanged"
        )


def _fitting(network: Network, delta: Delta) -> Shifts:
    """Return a shift set that fits a network; a delta is taken around the network."""
    shifts = Shifts.of(network, delta)
    return delta if isinstance(delta, Shifts) else shifts


# -- floats of an interval -------------------------------------------------------------------------


Floats = npt.NDArray[Any]  # float32 or float64

_BITS: dict[str, Any] = {"float32": np.int32, "float64": np.int64}


def preimage(
    f: Callable[[Array], Array], sign: Array | float, low: Array, high: Array, dtype: Any
) -> tuple[Floats, Floats]:
    """Return the smallest and largest float of a type that ``f`` takes into [low, high].

    ``f`` acts element by element. It increases for a ``sign`` of 1, decreases for -1 and is constant for
    0. The smallest float of an empty interval is above the largest.

    Examples
    --------
    >>> low, high = preimage(lambda w: -2.0 * w, -1.0, np.array([0.2]), np.array([0.4]), np.float32)
    >>> bool(-2.0 * float(low[0]) <= 0.4 < -2.0 * float(np.nextafter(low[0], np.float32(-1.0))))
    True
    """
    signs = np.broadcast_to(sign, low.shape)
    s = np.where(signs < 0.0, -1.0, 1.0)

    def up(w: Array) -> Array:
        # for a constant f, 0 represents all floats, since the largest times 0 may be NaN
        return s * f(np.where(signs == 0.0, 0.0, w))

    ends = np.where(s < 0.0, -high, low), np.where(s < 0.0, -low, high)
    least = _least(up, ends[0], dtype)
    greatest = -_least(lambda w: -up(-w), -ends[1], dtype)
    return least, greatest


def _least(f: Callable[[Array], Array], bound: Array, dtype: Any) -> Floats:
    """Return the smallest float with ``f(w) >= bound`` for an increasing ``f``, or infinity."""
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
    """Return whole numbers in the order of floats."""
    bits = _BITS[values.dtype.name]
    raw = values.view(bits)
    keys: npt.NDArray[Any] = np.where(raw >= 0, raw, np.iinfo(bits).min - raw)
    return keys


def _floats(keys: npt.NDArray[Any], dtype: Any) -> Floats:
    """Return the floats of these whole numbers."""
    bits = _BITS[np.dtype(dtype).name]
    raw = np.where(keys >= 0, keys, np.iinfo(bits).min - keys).astype(bits)
    result: Floats = raw.view(dtype)
    return result
