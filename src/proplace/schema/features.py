"""The kinds of features: legal values, their encoding, and their changes.

A numeric feature has one encoded column :math:`e = (v - o) / s` with offset :math:`o` and scale
:math:`s`. A category has one 0/1 column per level.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import pandas as pd

from proplace.core.errors import SchemaError
from proplace.core.text import listing, num, short
from proplace.schema import values
from proplace.schema.grid import SNAP, Array, Bools, Column, Grid, Integers, Lattice, Table
from proplace.schema.values import (
    Label,
    codes,
    filled,
    is_missing,
    is_number,
    numbers,
    unknown_label,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Direction = Literal["increasing", "decreasing"]
Scaling = Literal["minmax", "none"] | tuple[float, float]
Ends = tuple[float | None, float | None]


FINEST = 1e12
"""Largest number of steps that stay distinct after scaling."""


@dataclass(frozen=True, repr=False)
class _Feature(values.Checked):
    _CONVERT: ClassVar[Mapping[str, values.Convert]] = {
        "name": values.name,
        "immutable": values.boolean,
        "drafted": values.ends,
        "label": values.text,
        "missing": values.label,
        "lower": values.finite,
        "upper": values.finite,
        "step": values.positive,
        "scaling": values.scaling,
        "default_scaling": values.offset_and_scale,
        "direction": values.choice("increasing", "decreasing"),
        "max_increase": values.not_negative,
        "max_decrease": values.not_negative,
        "unit": values.text,
        "levels": values.labels,
        "categories": values.labels,
        "values": values.labels,
        "encoding": values.choice("onehot", "dropfirst"),
    }

    name: str
    _: KW_ONLY
    immutable: bool = False
    label: str | None = None
    missing: Label | None = None

    @property
    def title(self) -> str:
        """Name of the feature in reports."""
        return self.label or self.name


@dataclass(frozen=True, repr=False)
class Continuous(_Feature):
    """A number, in counterfactuals on a grid if ``step`` is given. Whole numbers have ``step=1``.

    Parameters
    ----------
    name
        Name of the column in the table.
    lower, upper
        Range of legal values. Either may be left out if ``scaling`` does not need it. For a
        person whose own value lies outside, the range is widened to that value.
    step
        A counterfactual takes the values ``lower``, ``lower + step``, ... up to ``upper``, or keeps
        the person's own value. Training rows and people may lie anywhere between.
    scaling
        Encoding: ``"minmax"`` maps ``lower`` to 0 and ``upper`` to 1, ``"none"``
        keeps the value, a pair ``(offset, scale)`` gives ``(value - offset) / scale``
        (for a ``StandardScaler``, its mean and standard deviation). Default: the scaling of the
        model if it scales its own inputs, otherwise ``default_scaling``, otherwise ``"minmax"``.
    default_scaling
        A pair ``(offset, scale)`` for models that do not scale their own inputs. Drafts and restricted
        features have it, so that another range does not change the encoding.
    immutable
        The person's value cannot change.
    direction
        ``"increasing"`` if the value cannot fall, ``"decreasing"`` if it cannot rise.
    max_increase, max_decrease
        Largest rise and fall of the person's value.
    drafted
        The ends that were drafted from a table, None for an end that was not. While ``lower`` or
        ``upper`` equals its drafted end, it guides the search, but proves nothing about values beyond
        it. Any other end is declared.
    unit, label
        Words for reports.
    missing
        Value of a missing cell, if the model has an imputer. Without it, a row with a missing cell is
        invalid.

    Examples
    --------
    >>> Continuous("income", 0, 2e5, step=100, unit="dollars")
    Continuous('income', 0, 200000, step=100, unit='dollars')
    >>> Continuous("age", 90, 17)
    Traceback (most recent call last):
    proplace.core.errors.SchemaError: Continuous 'age': lower 90 must be below upper 17
    """

    lower: float | None = None
    upper: float | None = None
    _: KW_ONLY
    step: float | None = None
    scaling: Scaling | None = None
    default_scaling: tuple[float, float] | None = None
    direction: Direction | None = None
    max_increase: float | None = None
    max_decrease: float | None = None
    drafted: Ends | None = None
    unit: str | None = None
    kind: ClassVar[Literal["continuous"]] = "continuous"

    def _problems(self) -> Iterable[str]:
        low, high = self.lower, self.upper
        if low is not None and high is not None and not low < high:
            yield f"lower {num(low)} must be below upper {num(high)}"
        elif self.scaling == "minmax" and (low is None or high is None):
            yield (
                "scaling 'minmax' needs lower and upper. Give both, or scaling='none' or a pair "
                "(offset, scale)"
            )
        elif self.missing is not None and not is_number(self.missing):
            yield f"missing must be a number, not {self.missing!r}"
        elif self.step is None:
            return
        elif low is None or high is None:
            yield "step needs lower and upper: the grid starts at lower"
        elif max(abs(low), abs(high), abs(self.offset)) / self.step > FINEST:
            yield (
                f"step {num(self.step)} is too fine for values up to {num(max(-low, high))}. "
                "Leave the step out"
            )
        elif cast("Lattice", self._lattice).count < 2:
            yield (
                f"step {num(self.step)} is larger than the range {num(low)} to {num(high)}, "
                "which leaves one legal value"
            )

    @property
    def offset(self) -> float:
        """Original value that is encoded as 0."""
        if self._pair is not None:
            return self._pair[0]
        return cast("float", self.lower) if self._minmax else 0.0

    @property
    def scale(self) -> float:
        """Difference of two original values whose codes differ by 1."""
        if self._pair is not None:
            return self._pair[1]
        return cast("float", self.upper) - cast("float", self.lower) if self._minmax else 1.0

    @property
    def _pair(self) -> tuple[float, float] | None:
        """The given offset and scale."""
        if isinstance(self.scaling, tuple):
            return self.scaling
        return self.default_scaling if self.scaling is None else None

    @property
    def settled(self) -> bool:
        """True if the encoding is complete without a model."""
        return self.scaling is not None or self.default_scaling is not None or self._minmax

    @property
    def declared(self) -> Ends:
        """The declared ends of the range, None in place of an end that is drafted or unbounded."""
        low, high = self.drafted or (None, None)
        return (
            None if self.lower == low else self.lower,
            None if self.upper == high else self.upper,
        )

    @property
    def is_drafted(self) -> bool:
        """True if an end of the range was drafted from a table."""
        return self.declared != (self.lower, self.upper)

    def on_steps(self, low: float, high: float) -> tuple[float, float]:
        """Return the outermost legal values between two ends, if the steps went on beyond the range."""
        if self._lattice is None:
            return low, high
        step, ends = self._lattice.step, np.array([low, high])
        inwards, near = np.array([step, -step]), self._lattice.continued(ends)
        outside = (near - ends) * np.sign(inwards) < -SNAP * step
        first, last = self._lattice.continued(near + np.where(outside, inwards, 0.0)).tolist()
        return first, last

    def with_ends(self, low: float | None, high: float | None) -> Continuous:
        """Return the feature with other ends of its range, encoded as before."""
        pair = self.offset, self.scale
        if self.scaling is None:
            return replace(self, lower=low, upper=high, default_scaling=pair)
        scaling: Scaling = "none" if self.scaling == "none" else pair
        return replace(self, lower=low, upper=high, scaling=scaling)

    def widened(self, own: float) -> Continuous:
        """Return the feature with a range and a grid that include a person's own value."""
        low, high = self.lower, self.upper
        try:
            if high is not None and own > high:
                high = self.on_steps(own, own + (self.step or 0.0))[0]
            elif low is not None and own < low:
                low = self.on_steps(own - (self.step or 0.0), own)[1]
            else:
                return self
            found = self.with_ends(low, high)
        except SchemaError:  # too far away for the steps
            return replace(self, step=None).widened(own)
        if self.drafted is None:
            return found
        kept = zip((low, high), self.declared, strict=True)
        first, last = (end if known is None else None for end, known in kept)
        return replace(found, drafted=(first, last))

    @property
    def _minmax(self) -> bool:
        bounded = self.lower is not None and self.upper is not None
        return bounded and self.scaling in (None, "minmax")

    @property
    def whole(self) -> bool:
        """True if every legal value is a whole number."""
        return self._lattice is not None and self._lattice.digits == 0

    @cached_property
    def _lattice(self) -> Lattice | None:
        if self.step is None or self.lower is None or self.upper is None:
            return None
        return Lattice(self.lower, self.upper, self.step, self.offset, self.scale)

    @cached_property
    def _grid(self) -> Grid | None:
        return None if self._lattice is None else self._lattice.tabulated()

    @cached_property
    def _column(self) -> Column:
        return self.columns(0)[0]

    def columns(self, number: int) -> tuple[Column, ...]:
        """Return the encoded columns, for the feature with this number in its schema."""
        if self._grid is not None:
            return (_grid_column(self.name, number, "grid", self._grid),)
        low, high = self._bounds
        return (Column(self.name, number, "continuous", self._scaled(low), self._scaled(high)),)

    def read(self, series: pd.Series[Any], *, people: bool = False) -> tuple[Array, Bools]:
        """Encode a table column: a block of encoded columns, and the rows that could be read.

        People may have any finite number. Other rows must lie in the range.
        """
        v = numbers(filled(series, self.missing))
        low, high = self._bounds
        with np.errstate(invalid="ignore"):  # missing cells are NaN and fail every comparison
            inside = np.isfinite(v) & (v >= low - self._slack) & (v <= high + self._slack)
            ok = np.isfinite(v) if people else inside
            v = np.where(inside & (v < low), low, np.where(inside & (v > high), high, v))
            if self._lattice is not None:
                v = self._tidied(np.where(ok, v, low))
        return self._scaled(v)[:, None], ok

    def write_people(self, e: Array) -> Array:
        """Decode codes of people to numbers with these codes, in the range and on the grid or not."""
        v, _ = self._original(e, -np.inf, np.inf)
        if self._lattice is not None:
            legal = self._lattice.continued(v)
            v = np.where(self._scaled(legal) == e, legal, v)
        return v

    def _tidied(self, v: Array) -> Array:
        """Values of the grid, or of what it would be if it went on, without the noise of arithmetic."""
        lattice = cast("Lattice", self._lattice)
        legal = lattice.continued(v)
        return np.where(np.abs(v - legal) <= SNAP * lattice.step, legal, v)

    def why(self, value: object) -> str:
        """Return the reason why a cell cannot be read."""
        allowed = f"allowed: {self._allowed()}"
        if is_missing(value):
            return f"the cell is missing; {allowed}"
        if not is_number(value):
            return f"{self._no_number(value)}; {allowed}"
        v = float(cast("float", value))
        low, high = self._bounds
        if not np.isfinite(v):
            return f"{v} is not finite; {allowed}"
        if v < low:
            return f"{num(v)} is below the lower bound {num(low)}; {allowed}"
        if v > high:
            return f"{num(v)} is above the upper bound {num(high)}; {allowed}"
        return f"{num(v)} cannot be read; {allowed}"

    def _no_number(self, value: object) -> str:
        if not isinstance(value, (bool, np.bool_)):
            return f"{short(value)} is not a number"
        return (
            f"{bool(value)} is not a number: describe the feature as "
            f"Binary({short(self.name)}, [False, True])"
        )

    def write(self, block: Array) -> Array | np.ndarray[Any, Any]:
        """Decode a block of encoded columns to legal original values."""
        if self._grid is not None:
            values = self._grid.values(self._grid.near(block[:, 0]))
            return values.astype(np.int64) if self.whole else values
        e = self._column.nearest(block[:, 0])
        if self._plain:
            return e
        v, found = self._original(e, *self._bounds)
        if not found.all():
            # No original value has this code exactly: take one near it, then the value that its
            # own code is decoded to, so that reading the answer again gives the same bits.
            v[~found] = self._original(self._scaled(v[~found]), *self._bounds)[0]
        return v

    def canonical(self, block: Array) -> Array:
        """Encode what the block is decoded to: the legal values it stands for."""
        if self._grid is not None:
            return self._grid.encoded(self._grid.near(block))
        return cast("Array", self._scaled(self.write(block)))[:, None]

    def _original(self, e: Array, low: float, high: float) -> tuple[Array, Bools]:
        """Find a value between two ends whose code is exactly ``e``: the tidiest, else the first.

        Scaling is monotone but not one to one on floats, so several values may share a code.
        A value with at most 15 digits wins: that is what tables hold.
        """
        v = np.clip(e * self.scale + self.offset, low, high)
        tidy = np.clip(_tidy(v, max(abs(self.offset), 1e-300)), low, high)
        v = np.where(self._scaled(tidy) == e, tidy, v)
        found = self._scaled(v) == e
        if not found.all():
            first = self._first(e[~found], low, high)
            hit = self._scaled(first) == e[~found]
            v[~found] = np.where(hit, first, v[~found])
            found[~found] = hit
        return v, found

    def _first(self, e: Array, low: float, high: float) -> Array:
        """Bisect for the smallest value whose code is at least ``e``."""
        v = e * self.scale + self.offset
        reach = 1e-14 * (np.abs(v) + abs(self.offset))
        left, right = np.clip(v - reach, low, high), np.clip(v + reach, low, high)
        right = np.where(self._scaled(left) >= e, left, right)
        while True:
            middle = left + (right - left) / 2.0
            open_ = (middle > left) & (middle < right)
            if not open_.any():
                return right
            enough = self._scaled(middle) >= e
            right = np.where(open_ & enough, middle, right)
            left = np.where(open_ & ~enough, middle, left)

    @property
    def _bounds(self) -> tuple[float, float]:
        low = -np.inf if self.lower is None else self.lower
        return low, (np.inf if self.upper is None else self.upper)

    @property
    def _slack(self) -> float:
        """Tolerated excess over the range, for a sum such as 0.1 + 0.2."""
        return 1e-12 * max(abs(self.lower or 0.0), abs(self.upper or 0.0))

    def _scaled(self, v: Any) -> Any:
        if self._plain:
            return v
        return (v - self.offset) / self.scale + 0.0  # 0.0 and -0.0 have one code

    @property
    def _plain(self) -> bool:
        """True if codes equal the values, to the bit."""
        return self.offset == 0.0 and self.scale == 1.0

    def _allowed(self) -> str:
        low, high = self._bounds
        if np.isfinite(low) and np.isfinite(high):
            text = f"{num(low)} to {num(high)}"
        elif np.isfinite(low):
            text = f"numbers from {num(low)}"
        else:
            text = f"numbers up to {num(high)}" if np.isfinite(high) else "finite numbers"
        return text


@dataclass(frozen=True, repr=False)
class _Labelled(_Feature):
    """A feature whose values are labels. Row n of ``matrix`` encodes label n."""

    _FIELD: ClassVar[str]  # the field with the labels
    _WORD: ClassVar[str]

    def _problems(self) -> Iterable[str]:
        return _label_problems(self.labels, self._FIELD, self.missing)

    @property
    def labels(self) -> Sequence[Label]:
        """The labels in the order of their numbers."""
        return cast("Sequence[Label]", getattr(self, self._FIELD))

    @cached_property
    def matrix(self) -> Array:
        """The codes of all labels, a row for each."""
        return np.arange(float(len(self.labels)))[:, None]

    @cached_property
    def _table(self) -> Table:
        """The legal values of a single encoded column."""
        return Table(self.matrix[:, 0], self.matrix[:, 0])

    def _nearest(self, block: Array) -> Integers:
        """Return the number of the label nearest to each row."""
        return self._table.near(block[:, 0])

    def read(self, series: pd.Series[Any]) -> tuple[Array, Bools]:
        """Encode a table column: a block of encoded columns, and the rows that could be read."""
        n = codes(filled(series, self.missing), self.labels)
        return self.matrix[n], n >= 0

    def why(self, value: object) -> str:
        """Return the reason why a cell cannot be read."""
        return unknown_label(value, self.labels, self._WORD)

    @cached_property
    def _index(self) -> pd.Index[Any]:
        mixed = len({type(label) for label in self.labels}) > 1
        return pd.Index(list(self.labels), dtype=object if mixed else None)

    def write(self, block: Array) -> pd.Index[Any]:
        """Decode a block of encoded columns to labels."""
        return self._index.take(self._nearest(block))

    def canonical(self, block: Array) -> Array:
        """Encode the labels that the block is decoded to."""
        return self.matrix[self._nearest(block)]


@dataclass(frozen=True, repr=False)
class Ordinal(_Labelled):
    """Levels in a known order, encoded in one column.

    Parameters
    ----------
    name
        Name of the column in the table.
    levels
        The levels from lowest to highest, as they stand in the table.
    values
        A number for each level, strictly increasing. Without it a level counts as itself if all
        levels are numbers, else as its position 0, 1, 2, ...
    scaling
        ``"minmax"`` (lowest level 0, highest 1), ``"none"`` or a pair ``(offset, scale)``.
    immutable, direction, max_increase, max_decrease, unit, label, missing
        As for :class:`Continuous`, in the units of ``values``.

    Examples
    --------
    >>> grade = Ordinal("grade", ["A", "B", "C"], direction="increasing")
    >>> grade.numbers
    (0.0, 1.0, 2.0)
    """

    levels: Sequence[Label]
    _: KW_ONLY
    values: Sequence[Label] | None = None
    scaling: Scaling = "minmax"
    direction: Direction | None = None
    max_increase: float | None = None
    max_decrease: float | None = None
    unit: str | None = None
    kind: ClassVar[Literal["ordinal"]] = "ordinal"
    _FIELD: ClassVar[str] = "levels"
    _WORD: ClassVar[str] = "a level"

    def _problems(self) -> Iterable[str]:
        yield from super()._problems()
        if self.values is not None and len(self.values) != len(self.levels):
            yield (
                f"values must hold one number for each of {len(self.levels)} levels, "
                f"not {len(self.values)}"
            )
        elif self.values is not None and not all(is_number(v) for v in self.values):
            yield f"values must be numbers, not {listing(self.values)}"
        elif not all(a < b for a, b in pairwise(self.numbers)):
            word = "levels" if self.values is None else "values"
            yield f"{word} must be strictly increasing, not {listing(map(num, self.numbers))}"

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The number of each level."""
        given = self.levels if self.values is None else self.values
        if all(is_number(level) for level in given):
            return tuple(float(level) for level in given)
        return tuple(float(n) for n in range(len(given)))

    @property
    def offset(self) -> float:
        """The number that is encoded as 0."""
        if isinstance(self.scaling, tuple):
            return self.scaling[0]
        return self.numbers[0] if self.scaling == "minmax" else 0.0

    @property
    def scale(self) -> float:
        """The difference of two numbers whose codes differ by 1."""
        if isinstance(self.scaling, tuple):
            return self.scaling[1]
        return self.numbers[-1] - self.numbers[0] if self.scaling == "minmax" else 1.0

    @cached_property
    def matrix(self) -> Array:
        """The codes of all levels, a row for each."""
        return ((np.array(self.numbers) - self.offset) / self.scale)[:, None]

    def columns(self, number: int) -> tuple[Column, ...]:
        """Return the encoded columns, for the feature with this number in its schema."""
        return (_grid_column(self.name, number, "grid", self._table),)


@dataclass(frozen=True, repr=False)
class Categorical(_Labelled):
    """One of several categories without an order, encoded in 0/1 columns ``name_category``.

    Parameters
    ----------
    name
        Name of the column in the table.
    categories
        The categories as they stand in the table.
    encoding
        ``"onehot"`` has a column for each category. ``"dropfirst"`` has none for the first, which
        is then the row of zeros.
    immutable, label, missing
        As for :class:`Continuous`.

    Examples
    --------
    >>> job = Categorical("job", ["clerk", "cook"])
    >>> [column.name for column in job.columns(0)]
    ['job_clerk', 'job_cook']
    """

    categories: Sequence[Label]
    _: KW_ONLY
    encoding: Literal["onehot", "dropfirst"] = "onehot"
    kind: ClassVar[Literal["categorical"]] = "categorical"
    _FIELD: ClassVar[str] = "categories"
    _WORD: ClassVar[str] = "a category"

    @property
    def first(self) -> int:
        """Number of the first category that has a column."""
        return 1 if self.encoding == "dropfirst" else 0

    @cached_property
    def matrix(self) -> Array:
        """The codes of all categories, a row for each."""
        return np.eye(len(self.categories))[:, self.first :]

    def columns(self, number: int) -> tuple[Column, ...]:
        """Return the encoded columns, for the feature with this number in its schema."""
        return tuple(
            _grid_column(f"{self.name}_{category}", number, "binary", _ZERO_ONE)
            for category in self.categories[self.first :]
        )

    def _nearest(self, block: Array) -> Integers:
        """Return the number of the category with the largest column."""
        n = block.argmax(axis=1) + self.first
        return np.where(block.max(axis=1) >= 0.5, n, 0) if self.first else n


@dataclass(frozen=True, repr=False)
class Binary(_Labelled):
    """One of two values, encoded in one 0/1 column.

    Parameters
    ----------
    name
        Name of the column in the table.
    values
        The values of the table for 0 and for 1.
    direction
        ``"increasing"`` if only the first value may become the second, ``"decreasing"`` for the reverse.
    immutable, label, missing
        As for :class:`Continuous`.

    Examples
    --------
    >>> Binary("sex", ["Female", "Male"], immutable=True).columns(0)[0].name
    'sex_Male'
    >>> Binary("married").columns(0)[0].name
    'married'
    """

    values: Sequence[Label] = (0, 1)
    _: KW_ONLY
    direction: Direction | None = None
    kind: ClassVar[Literal["binary"]] = "binary"
    _FIELD: ClassVar[str] = "values"
    _WORD: ClassVar[str] = "one of the two values"

    offset = 0.0
    scale = 1.0

    def _problems(self) -> Iterable[str]:
        if len(self.values) > 2:
            yield f"values must be two, for 0 and for 1, not {listing(self.values)}"
        yield from super()._problems()

    def columns(self, number: int) -> tuple[Column, ...]:
        """Return the encoded columns, for the feature with this number in its schema."""
        # (0, 1) and (False, True) need no word. For text, the column names the value of 1.
        plain = tuple(self.values) == (0, 1)
        name = self.name if plain else f"{self.name}_{self.values[1]}"
        return (_grid_column(name, number, "binary", _ZERO_ONE),)


Feature = Continuous | Ordinal | Categorical | Binary
Numeric = Continuous | Ordinal | Binary

_TENS = np.array([float(10**n) for n in range(301)])  # exact up to 10**22
_ZERO_ONE = Table(np.array([0.0, 1.0]), np.array([0.0, 1.0]))


def _grid_column(name: str, number: int, kind: Literal["grid", "binary"], grid: Grid) -> Column:
    ends = grid.encoded(np.array([0, grid.count - 1]))
    return Column(name, number, kind, float(ends[0]), float(ends[1]), grid)


def _label_problems(labels: Sequence[Label], word: str, missing: Label | None) -> Iterable[str]:
    if len(labels) < 2:
        yield f"{word} must be at least two, not {short(list(labels))}"
    known: set[Label] = set()
    written: dict[str, Label] = {}
    for label in labels:
        if label in known:
            yield f"{word} must differ; {short(label)} occurs twice"
        elif str(label) in written:
            yield (
                f"{word} must differ; {short(written[str(label)])} and {short(label)} look the same in "
                "a table file"
            )
        known.add(label)
        written.setdefault(str(label), label)
    if missing is not None and missing not in known:
        yield f"missing must be one of the {word}, not {short(missing)}"


def _tidy(v: Array, least: float) -> Array:
    """Round to 15 significant digits, counted from the largest number that enters the value."""
    magnitude = np.maximum(np.abs(v), least)
    digits = 15 - np.ceil(np.log10(magnitude)).astype(np.int64)
    up, down = _TENS[np.clip(digits, 0, 22)], _TENS[np.clip(-digits, 0, 300)]
    return cast("Array", np.rint(v * up / down) / up * down + 0.0)  # + 0.0: no -0.0
