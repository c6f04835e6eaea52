r"""The floats that a monotone map takes into an interval, exactly.

A reader turns a trained number :math:`w` into :math:`f(w)`, a few products and sums in float64. Each
operation is monotone, and so is its rounding. Hence

.. math::
    \{ w : l \le f(w) \le h \}

is an interval of the floats of any precision, and bisection over the floats in their order finds its
ends: no arithmetic of ours has an error there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Array

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
