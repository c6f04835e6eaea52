r"""The encoded columns of a schema, and the grids of their legal values.

An original value :math:`v` has the encoded value :math:`e = (v - o) / s`. The legal values of a grid
have the indices :math:`n = 0, 1, \dots`. The encoded value at index :math:`n` is always computed as
:math:`(v_n - o) / s` from the same float :math:`v_n`, so every computation gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal, Protocol, cast, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SNAP = 1e-6  # relative to a step: nearer values are the same grid value
_TABLE = 4096  # grids up to this size are looked up, larger ones computed
_EXACT = 2**53  # floats represent whole numbers up to this exactly


class Codes(Protocol):
    """Legal encoded values by index, in increasing order."""

    @property
    def count(self) -> int:
        """Number of legal values."""

    def encoded(self, n: Integers) -> Array:
        """Return the encoded values at the indices ``n``."""

    def near(self, e: Array) -> Integers:
        """Find the index of the legal value nearest to ``e``, the upper one if two are equally near."""


class Grid(Codes, Protocol):
    """Legal values, encoded and original."""

    def values(self, n: Integers) -> Array:
        """Return the original values at the indices ``n``."""


@dataclass(frozen=True, eq=False)
class Table:
    """A grid as two sorted arrays, equally spaced or not."""

    original: Array
    code: Array
    middle: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "middle", _middle(self.code[:-1], self.code[1:]))

    @property
    def count(self) -> int:
        """Number of legal values."""
        return len(self.code)

    def values(self, n: Integers) -> Array:
        """Return the original values at the indices ``n``."""
        return self.original[n]

    def encoded(self, n: Integers) -> Array:
        """Return the encoded values at the indices ``n``."""
        return self.code[n]

    def near(self, e: Array) -> Integers:
        """Find the number of the legal value nearest to ``e``."""
        return np.searchsorted(self.middle, e, side="right")


@dataclass(frozen=True, eq=False)
class Lattice:
    """The values ``lower + n * step`` up to ``upper``, without the noise of binary fractions.

    If ``lower`` and ``step`` have few decimals, each value is a whole number divided by a power of ten.
    It is then the float nearest to its decimal: 0.3, never 0.30000000000000004. ``exact`` holds the
    whole numbers of ``lower`` and ``step``, and the power.
    """

    lower: float
    upper: float
    step: float
    offset: float
    scale: float
    count: int = field(init=False)
    digits: int = field(init=False)
    exact: tuple[int, int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        low, high, step = (Decimal(repr(v)) for v in (self.lower, self.upper, self.step))
        digits = max(_decimals(low), _decimals(step))
        first, by = int(low.scaleb(digits)), int(step.scaleb(digits))
        # An upper end from a sum, or a step such as 1/3, may differ from the grid in the last digit.
        count = int((high - low) / step + Decimal(repr(SNAP))) + 1
        small = digits <= 22 and max(abs(first), abs(first + by * count)) < _EXACT
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "digits", digits)
        object.__setattr__(self, "exact", (first, by, 10**digits) if small else None)

    def values(self, n: Integers) -> Array:
        """Return the original values at the indices ``n``."""
        if self.exact is None:
            return cast("Array", np.minimum(self.lower + n * self.step, self.upper))
        first, by, unit = self.exact
        return (first + n * by) / float(unit)

    def encoded(self, n: Integers) -> Array:
        """Return the encoded values at the indices ``n``."""
        return (self.values(n) - self.offset) / self.scale

    def number(self, v: Array) -> Integers:
        """Find the index of the legal value nearest to the original value ``v``."""
        n = np.rint((v - self.lower) / self.step)
        return np.clip(n, 0, self.count - 1).astype(np.int64)

    def continued(self, v: Array) -> Array:
        """Return the nearest value of the same grid, continued beyond its ends."""
        n = np.rint((v - self.lower) / self.step)
        if self.exact is None:
            return self.lower + n * self.step
        first, by, unit = self.exact
        return (first + n * by) / float(unit)

    def near(self, e: Array) -> Integers:
        """Find the index of the legal value nearest to the encoded value ``e``."""
        n = self.number(e * self.scale + self.offset)
        below, above = np.maximum(n - 1, 0), np.minimum(n + 1, self.count - 1)
        code = self.encoded(n)
        # The index was rounded in original units. Correct it at the midpoints in encoded units.
        down = (n > 0) & (e < _middle(self.encoded(below), code))
        up = (n < self.count - 1) & (e >= _middle(code, self.encoded(above)))
        return n - down + up

    def tabulated(self) -> Grid:
        """Return the same grid as a table if it is small."""
        if self.count > _TABLE:
            return self
        n = np.arange(self.count)
        return Table(self.values(n), self.encoded(n))


@dataclass(frozen=True, eq=False)
class WithValue:
    """The values of a grid and one more: the value of a person, on the grid or not.

    ``below`` is the number of grid values below that value. A small grid becomes one sorted array.
    """

    grid: Codes
    code: float
    below: int
    _table: Table | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.grid, Table):
            codes = np.insert(self.grid.code, self.below, self.code)
            object.__setattr__(self, "_table", Table(codes, codes))

    @property
    def count(self) -> int:
        """Number of legal values."""
        return self.grid.count + 1

    def encoded(self, n: Integers) -> Array:
        """Return the encoded values at the indices ``n``."""
        if self._table is not None:
            return self._table.encoded(n)
        return np.where(n == self.below, self.code, self.grid.encoded(self._number(n)))

    def near(self, e: Array) -> Integers:
        """Find the index of the legal value nearest to ``e``, the upper one if two are equally near."""
        if self._table is not None:
            return self._table.near(e)
        n = self.grid.near(e)
        n = n + (n >= self.below)
        for _ in range(2):  # the value may be nearer than one or both neighbours on the grid
            up, down = np.minimum(n + 1, self.count - 1), np.maximum(n - 1, 0)
            here = self.encoded(n)
            above = (up > n) & (e >= _middle(here, self.encoded(up)))
            under = (down < n) & (e < _middle(self.encoded(down), here))
            n = n + above - under
        return n

    def _number(self, n: Integers) -> Integers:
        """Return indices in the grid. The index of the added value is arbitrary and not used."""
        return np.minimum(n - (n > self.below), self.grid.count - 1)


def _decimals(number: Decimal) -> int:
    return max(0, -cast("int", number.normalize().as_tuple().exponent))


def _middle(a: Array, b: Array) -> Array:
    return a + (b - a) / 2.0


@dataclass(frozen=True)
class Column:
    """One encoded column: its name, the feature it belongs to, its range and its legal values.

    All values are in encoded units. ``floor``, ``ceil`` and ``nearest`` take one number or an
    array. Results stay inside the range: outside of it, they are the nearest end.

    Attributes
    ----------
    name
        Name of the column, such as ``age`` or ``job_Clerk``.
    feature
        Index of the feature in ``schema.features``.
    kind
        ``continuous`` (any value in the range), ``grid`` or ``binary`` (0 and 1).
    lower, upper
        Smallest and largest legal value, infinite for an unbounded feature.
    grid
        The legal values, or None for a continuous column.

    Examples
    --------
    >>> from proplace.schema import Continuous, Schema
    >>> age = Schema([Continuous("age", 20, 70, step=5)]).columns[0]
    >>> age.lower, age.upper, age.nearest(0.27), age.floor(0.29), age.ceil(0.21)
    (0.0, 1.0, 0.3, 0.2, 0.3)
    >>> age.beside(0.27)
    array([0.1, 0.2, 0.3, 0.4])
    """

    name: str
    feature: int
    kind: Literal["continuous", "grid", "binary"]
    lower: float
    upper: float
    grid: Codes | None = field(default=None, repr=False, compare=False)

    @property
    def size(self) -> int | None:
        """Number of legal values, or None for a continuous column."""
        return None if self.grid is None else self.grid.count

    def with_value(self, e: float) -> Column:
        """Return the column with a person's own value among the legal ones, if it is in the range."""
        inside = self.lower < e < self.upper
        if self.grid is None or not inside or self.legal(np.array([e]))[0]:
            return self
        low, _ = self.around(e)
        below = int(self.grid.near(np.asarray(low))) + 1
        return replace(self, grid=WithValue(self.grid, e, below))

    @overload
    def nearest(self, v: float) -> float: ...
    @overload
    def nearest(self, v: Array) -> Array: ...
    def nearest(self, v: float | Array) -> float | Array:
        """Return the legal value nearest to ``v``, the upper one of two equally near."""
        e = np.asarray(v, dtype=np.float64)
        if self.grid is None:
            return _like(v, self._clip(e))
        return _like(v, self.grid.encoded(self.grid.near(e)))

    @overload
    def floor(self, v: float) -> float: ...
    @overload
    def floor(self, v: Array) -> Array: ...
    def floor(self, v: float | Array) -> float | Array:
        """Return the largest legal value at or below ``v`` (up to a millionth of a step above it)."""
        e = np.asarray(v, dtype=np.float64)
        if self.grid is None:
            return _like(v, self._clip(e))
        n = self.grid.near(e)
        code, below = self.grid.encoded(n), self.grid.encoded(np.maximum(n - 1, 0))
        n = n - ((code > e + SNAP * (code - below)) & (n > 0))
        return _like(v, self.grid.encoded(n))

    @overload
    def ceil(self, v: float) -> float: ...
    @overload
    def ceil(self, v: Array) -> Array: ...
    def ceil(self, v: float | Array) -> float | Array:
        """Return the smallest legal value at or above ``v`` (up to a millionth of a step below it)."""
        e = np.asarray(v, dtype=np.float64)
        if self.grid is None:
            return _like(v, self._clip(e))
        last = self.grid.count - 1
        n = self.grid.near(e)
        code, above = self.grid.encoded(n), self.grid.encoded(np.minimum(n + 1, last))
        n = n + ((code < e - SNAP * (above - code)) & (n < last))
        return _like(v, self.grid.encoded(n))

    def around(self, v: float) -> tuple[float, float]:
        """Return the legal values just below and above ``v``, compared exactly.

        Both are equal below the range, from its upper end on, and for a continuous column.
        """
        e = np.asarray(v, dtype=np.float64)
        if self.grid is None:
            point = float(self._clip(e))
            return point, point
        n = int(self.grid.near(e))
        low = n - int(float(self.grid.encoded(np.asarray(n))) > v)
        ends = np.clip([low, low + 1], 0, self.grid.count - 1)
        below, above = self.grid.encoded(ends)
        return float(below), float(above)

    def beside(self, v: float) -> Array:
        """Return up to four legal values: both of :meth:`around`, and the next one on each side."""
        if self.grid is None:
            return np.array([v])
        below = int(self.grid.near(np.asarray(self.around(v)[0])))
        near = np.unique(np.clip(np.arange(below - 1, below + 3), 0, self.grid.count - 1))
        return self.grid.encoded(near)

    def legal(self, e: Array) -> Bools:
        """Test which values are legal, bit for bit on a grid."""
        inside = (e >= self.lower) & (e <= self.upper)
        if self.grid is None:
            return inside & np.isfinite(e)
        legal = np.zeros(e.shape, dtype=np.bool_)
        known = e[inside]
        legal[inside] = self.grid.encoded(self.grid.near(known)) == known
        return legal

    def _clip(self, e: Array) -> Array:
        # Not np.clip: a value inside keeps its bits, even -0.0.
        return np.where(e < self.lower, self.lower, np.where(e > self.upper, self.upper, e))


def _like(given: float | Array, result: Array) -> float | Array:
    return result if isinstance(given, np.ndarray) and given.ndim else float(result)
