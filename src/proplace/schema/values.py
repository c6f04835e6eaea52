"""Single values: cells, invalid rows, numbers with their units, and fields of features and rules.

A unit is written in the plural ("years"). ``"child|children"`` gives both forms. Percentages and
currency signs stand at the number: ``"% of income"``, ``"$"``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pandas as pd

from proplace.core.errors import SchemaError
from proplace.core.text import did_you_mean, listing, problem_list, short, whole

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from proplace.schema.features import Continuous, Ordinal
    from proplace.schema.grid import Array, Integers

Label = str | int | float | bool
"""A category as tables write it: text, a whole or decimal number, or true and false."""

_FEW = 16  # cells that are read sooner one by one than with a table of the distinct ones


def to_python(value: Any) -> Any:
    """Return a number or text of NumPy as Python's own, any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def as_json(value: Any) -> Any:
    """Return a cell as JSON holds it: Python's own value, None if it is missing, otherwise text.

    Examples
    --------
    >>> import numpy as np
    >>> [as_json(cell) for cell in (np.int64(3), np.nan, np.str_("a"), True, np.inf, None)]
    [3, None, 'a', True, None, None]
    """
    value = to_python(value)
    if is_missing(value) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, (str, bool, int, float)) else str(value)


def is_missing(value: object) -> bool:
    """Test if a single cell is missing: None, NaN, NaT or NA."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(cast("Any", value)))


def is_number(value: object) -> bool:
    """Test if a single cell is a number. Text such as "1", true and false are not."""
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (Real, Decimal))


def filled(series: pd.Series[Any], value: Label | None) -> pd.Series[Any]:
    """Replace missing cells by ``value``. None leaves them missing."""
    gone = series.isna() if value is not None else None
    if gone is None or not gone.any():
        return series
    return series.astype(object).where(~gone, cast("Any", value))


def numbers(series: pd.Series[Any]) -> Array:
    """Read a column as floats: NaN where a cell is missing or is not a number."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "iuf":
        return series.to_numpy(dtype=np.float64)
    if _is_real(dtype):  # nullable, Arrow-backed and sparse numbers
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    if pd.api.types.is_object_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype):
        cells = [float(v) if is_number(v) else np.nan for v in series.tolist()]
        return np.array(cells, dtype=np.float64)
    return np.full(len(series), np.nan)


def _is_real(dtype: object) -> bool:
    checks = pd.api.types
    kind = cast("Any", dtype)
    return bool(
        checks.is_numeric_dtype(kind)
        and not checks.is_bool_dtype(kind)
        and not checks.is_complex_dtype(kind)
    )


def codes(series: pd.Series[Any], labels: Sequence[Label]) -> Integers:
    """Read a column of labels as their numbers in ``labels``, or -1 for another cell.

    Equal means equal in Python: a column of 0.0 and 1.0, or of false and true, holds the
    labels 0 and 1.
    """
    number = {label: n for n, label in enumerate(labels)}
    if len(series) <= _FEW:
        return _codes_one_by_one(series, number)
    try:
        found, distinct = pd.factorize(series, use_na_sentinel=True)
    except TypeError:  # unhashable cells such as lists
        return _codes_one_by_one(series, number)
    table = np.array([number.get(cast("Label", v), -1) for v in distinct] + [-1], dtype=np.int64)
    return table[found]  # a missing cell has number -1, the last entry


def _codes_one_by_one(series: pd.Series[Any], number: dict[Label, int]) -> Integers:
    cells = [number.get(v, -1) if _hashable(v) else -1 for v in series.tolist()]
    return np.array(cells, dtype=np.int64)


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def unknown_label(value: object, labels: Sequence[Label], word: str) -> str:
    """Return the reason why a cell is none of the labels."""
    if is_missing(value):
        return f"the cell is missing; allowed: {listing(labels)}"
    shown = to_python(value)
    return f"{short(shown)} is not {word}{did_you_mean(shown, labels)}; allowed: {listing(labels)}"


# -- invalid rows ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used. ``str`` gives its place and the reason.

    Attributes
    ----------
    row
        Position of the row in its table, from 0.
    column
        Name of the column with the first bad cell, or None if the whole row is invalid.
    text
        Problem of the cell or the row.
    index
        Label of the row in its table, or None if rows have positions only.

    Examples
    --------
    >>> bad = BadRow(2, "age", "200 is above the upper bound 90", "Ann")
    >>> print(bad)
    row 2 (index 'Ann'), column 'age': 200 is above the upper bound 90
    >>> bad.reason
    "column 'age': 200 is above the upper bound 90"
    """

    row: int
    column: str | None
    text: str
    index: Hashable = None

    @property
    def reason(self) -> str:
        """Reason without the position of the row."""
        return self.text if self.column is None else f"column {short(self.column)}: {self.text}"

    def __str__(self) -> str:
        label = to_python(self.index)
        known = label is None or label == self.row
        where = f"row {self.row}" if known else f"row {self.row} (index {short(label)})"
        return f"{where}{': ' if self.column is None else ', '}{self.reason}"


def left_out(problems: Mapping[int, BadRow], rows: int, table: str) -> str:
    """Count the rows of a training table that are left out, with the reason for the first.

    Raises a ``SchemaError`` if no row is left.

    Examples
    --------
    >>> left_out({1: BadRow(1, "age", "the cell is missing")}, 3, "train.csv")
    "train.csv: 1 of 3 rows are left out; the first: row 1, column 'age': the cell is missing"
    """
    first = problems[min(problems)]
    if len(problems) == rows:
        raise SchemaError(
            f"{table}: no row can be used; the first: {first}", name=first.column, row=first.row
        )
    return f"{table}: {len(problems)} of {rows} rows are left out; the first: {first}"


def refuse(problems: Mapping[int, BadRow]) -> None:
    """Raise a ``SchemaError`` about the first of some invalid rows."""
    if not problems:
        return
    rest = len(problems) - 1
    more = f"{rest} more row{' has' if rest == 1 else 's have'} problems"
    tail = f" ({more}. See Schema.problems)" if rest else ""
    first = problems[min(problems)]
    raise SchemaError(f"{first}{tail}", name=first.column, row=first.row)


# -- numbers with their units ----------------------------------------------------------------------


_BEFORE = ("$", "€", "£", "¥")
_AT = ("%", "‰", "°")
_DIGITS = 6  # that are written of a number at least
_SMALL, _LARGE = 1e-4, 1e15  # numbers between these are written without an exponent
_FINE = 8  # decimals beyond which a step is no longer written out


def amount(
    feature: Continuous | Ordinal, value: float, *, unit: bool = True, exact: bool = False
) -> str:
    """Write a number of a feature. Without ``unit``, only signs such as "$" and "%" stand at it.

    Examples
    --------
    >>> from proplace.schema import Continuous
    >>> debt = Continuous("debt", 0, 100, step=1, unit="% of income")
    >>> amount(debt, 31), amount(debt, 38, unit=False)
    ('31% of income', '38%')
    >>> amount(Continuous("age", 18, 90, step=1, unit="years"), 1)
    '1 year'
    >>> amount(Continuous("price", 0, 1e6, step=0.5, unit="$"), -12000)
    '-$12,000'
    """
    return _with_unit(feature, number(value, decimals(feature), exact=exact), value, unit=unit)


def _with_unit(feature: Continuous | Ordinal, text: str, value: float, *, unit: bool) -> str:
    word = unit_form(feature.unit or "", value)
    if word in _BEFORE:
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        return f"{sign}{word}{digits}"
    if word.startswith(_AT):
        return f"{text}{word if unit else word[0]}"
    return f"{text} {word}" if word and unit else text


def number(value: float, decimals: int | None = None, *, exact: bool = False) -> str:
    """Write a number as a person does, with separators from 10,000 on.

    ``decimals`` are written if no other digits follow. Else at least six digits are written, and "…"
    if more follow: nothing is rounded, so that what is written of a value is true of it. ``exact``
    writes all digits.

    Examples
    --------
    >>> number(1998.0), number(12000.0), number(0.5, 2), number(1 / 3), number(2.5e-7)
    ('1998', '12,000', '0.50', '0.333333…', '2.5e-07')
    >>> number(12000.0, 2), number(0.125, 2), number(48_211.734_82), number(2 / 3, exact=True)
    ('12,000', '0.125', '48,211.734…', '0.6666666666666666')
    """
    value = float(value) + 0.0  # no -0.0
    if not math.isfinite(value):
        return str(value)
    integral = value.is_integer() and abs(value) < _LARGE
    if integral or (decimals is not None and float(f"{value:.{decimals}f}") == value):
        text = f"{Decimal(repr(value)):,.{0 if integral else decimals}f}"
    else:
        digits = shown = Decimal(repr(value))
        if not exact and abs(value) < _LARGE:
            shown = digits.quantize(_last_place(digits), ROUND_DOWN)
        more = "" if shown == digits else "…"
        written = shown if more else digits
        plain = _SMALL <= abs(value) < _LARGE
        text = f"{written:,f}{more}" if plain else f"{float(written)!r}{more}"
    return text if abs(value) >= 10_000 else text.replace(",", "")


def _last_place(value: Decimal) -> Decimal:
    """Return the place of the last digit that is written: the sixth digit, but at least thousandths."""
    return Decimal(1).scaleb(min(value.adjusted() - _DIGITS + 1, -3))


def gap(feature: Continuous | Ordinal, size: float, decimals: int | None = None) -> str:
    """Write the change of a number of this feature.

    Examples
    --------
    >>> from proplace.schema import Continuous
    >>> gap(Continuous("debt", 0, 100, step=1, unit="% of income"), 7)
    '7 percentage points'
    >>> gap(Continuous("price", 0, 1e6, step=1, unit="$"), 2.5)
    '$2.5'
    """
    text = number(size, decimals, exact=True)
    if (feature.unit or "").startswith("%"):
        return f"{text} percentage {'point' if size == 1.0 else 'points'}"
    return _with_unit(feature, text, size, unit=True)


def decimals(feature: Continuous | Ordinal) -> int | None:
    """Return the decimals that write every legal value, or None without a step."""
    step, lower = getattr(feature, "step", None), getattr(feature, "lower", None)
    if step is None or lower is None:
        return None
    exponents = [
        -cast("int", Decimal(repr(float(v))).normalize().as_tuple().exponent) for v in (step, lower)
    ]
    most = max(0, *exponents)
    return most if most <= _FINE else None


def unit_form(unit: str, value: float) -> str:
    """Return the form of a unit that goes with a value."""
    one, bar, many = unit.partition("|")
    if bar:
        return one if abs(value) == 1.0 else many
    # One English word in the plural. "thousand dollars", "Celsius" and "gas" stay unchanged.
    regular = unit.isalpha() and unit.endswith("s") and not unit.endswith(("ss", "us", "as", "is"))
    return unit[:-1] if regular and abs(value) == 1.0 else unit


# -- fields of features, rules and schemas ---------------------------------------------------------

Convert = Callable[[Any, str], Any]
"""Takes a value and its place, such as ``"upper"``. Returns the value to store, or raises ValueError."""


class Checked:
    """Base of frozen dataclasses whose fields are converted and checked by ``_CONVERT``."""

    _CONVERT: ClassVar[Mapping[str, Convert]] = {}

    def __post_init__(self) -> None:
        """Convert every field, then compare the fields with each other."""
        problems: list[str] = []
        for field in fields_of(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            try:
                object.__setattr__(self, field.name, self._CONVERT[field.name](value, field.name))
            except ValueError as error:
                problems.extend(error.args)
        if not problems:
            problems.extend(self._problems())
        if problems:
            name = getattr(self, "name", getattr(self, "feature", None))
            title = type(self).__name__ + (f" {short(name)}" if name is not None else "")
            found = SchemaError(
                problem_list(title, problems), name=name if isinstance(name, str) else None
            )
            found.problems = tuple(problems)
            raise found

    def _problems(self) -> Iterable[str]:
        """Return a sentence about each pair of fields that do not fit each other."""
        return ()

    def __repr__(self) -> str:
        """Show the values that differ from the defaults, positional fields without their names."""
        words, bare = [], True
        for field in fields_of(self):
            value = getattr(self, field.name)
            if not differs(value, field.default):
                bare = False  # after a gap a bare value would be read as another field
                continue
            text = repr(whole(value) if isinstance(value, float) else value)
            words.append(text if bare and not field.kw_only else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(words)})"


def fields_of(value: object) -> list[dataclasses.Field[Any]]:
    """List the fields of a dataclass in the order of a call: positional fields first."""
    return sorted(dataclasses.fields(cast("Any", value)), key=lambda field: field.kw_only is True)


def differs(value: Any, default: Any) -> bool:
    """Return True if a value is not the default: (False, True) differs from (0, 1)."""
    return repr(value) != repr(default)


def text(value: Any, place: str) -> str:
    """Return text."""
    if not isinstance(value, str):
        raise ValueError(f"{place} must be text, not {short(value)}")
    return str(value)


def name(value: Any, place: str) -> str:
    """Return text that is not empty."""
    if not text(value, place):
        raise ValueError(f"{place} must have at least 1 character")
    return str(value)


def boolean(value: Any, place: str) -> bool:
    """Return true or false."""
    if not isinstance(value, (int, np.bool_)) or value not in (0, 1):
        raise ValueError(f"{place} must be true or false, not {short(value)}")
    return bool(value)


def finite(value: Any, place: str) -> float:
    """Return a finite float. Text such as "1_000", true and false are not numbers."""
    if not is_number(value):
        raise ValueError(f"{place} must be a number, not {short(value)}")
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(f"{place} must be a number within 1e308, not {short(value)}") from None
    if not math.isfinite(found):
        raise ValueError(f"{place} must be a finite number, not {short(value)}")
    return found


def positive(value: Any, place: str) -> float:
    """Return a finite float above 0."""
    if not finite(value, place) > 0.0:
        raise ValueError(f"{place} must be greater than 0, not {short(value)}")
    return float(value)


def not_negative(value: Any, place: str) -> float:
    """Return a finite float of at least 0."""
    if not finite(value, place) >= 0.0:
        raise ValueError(f"{place} must be 0 or more, not {short(value)}")
    return float(value)


def choice(*words: str) -> Convert:
    """Return a converter that takes one of some words."""

    def convert(value: Any, place: str) -> str:
        if not isinstance(value, str) or value not in words:
            allowed = " or ".join(map(repr, words))
            raise ValueError(f"{place} must be {allowed}, not {short(value)}")
        return str(value)

    return convert


def scaling(value: Any, place: str) -> str | tuple[float, float]:
    """Return ``"minmax"``, ``"none"`` or a pair of offset and scale."""
    if isinstance(value, str) and value in ("minmax", "none"):
        return str(value)
    return offset_and_scale(value, place, "'minmax', 'none' or ")


def offset_and_scale(value: Any, place: str, others: str = "") -> tuple[float, float]:
    """Return a pair of offset and scale."""
    try:
        offset, scale = items(value, place)
        return finite(offset, place), positive(scale, place)
    except ValueError:
        raise ValueError(
            f"{place} must be {others}a pair (offset, scale) with scale > 0, not {short(value)}"
        ) from None


def ends(value: Any, place: str) -> tuple[float | None, float | None]:
    """Return a pair of numbers, each of which may be None."""
    try:
        low, high = (None if end is None else finite(end, place) for end in items(value, place))
    except ValueError:
        raise ValueError(
            f"{place} must be a pair of a number or null for lower, and one for upper, "
            f"not {short(value)}"
        ) from None
    return low, high


def label(value: Any, place: str) -> Label:
    """Return a label as a plain Python value."""
    value = to_python(value)
    if isinstance(value, (bool, str)):
        return value if isinstance(value, bool) else str(value)
    try:
        found = finite(value, place)
    except ValueError:
        raise ValueError(
            f"{place} must be text, a finite number, or true or false, not {short(value)}"
        ) from None
    return value if isinstance(value, int) else found


def labels(value: Any, place: str) -> tuple[Label, ...]:
    """Return labels: ``frame.job.unique()`` is a fine list."""
    return tuple(each(enumerate(items(value, place)), label, place))


def one_or_more(value: Any, place: str) -> Label | tuple[Label, ...]:
    """Return one label, or some."""
    many = hasattr(value, "__iter__") and not isinstance(value, (str, Mapping))
    try:
        return labels(value, place) if many else label(value, place)
    except ValueError:
        raise ValueError(
            f"{place} must be a category or a list of categories, not {short(value)}"
        ) from None


def by_name(convert: Convert) -> Convert:
    """Return a converter of a mapping from names of features, which is not empty."""

    def convert_all(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place} must map names of features, not be {short(value)}")
        if not value:
            raise ValueError(f"{place} must not be empty")
        found = each(((short(key), value[key]) for key in value), convert, place)
        keys = [name(key, f"a feature of {place}") for key in value]
        return dict(zip(keys, found, strict=True))

    return convert_all


def parts(*classes: type[Any], word: str, empty: bool = False) -> Convert:
    """Return a converter of a list of objects of exactly these classes.

    Other code relies on the encoding of each class, so a subclass is rejected.
    """

    def convert(value: Any, place: str) -> tuple[Any, ...]:
        found = items(value, place)
        if not found and not empty:
            raise ValueError(f"{place} must not be empty")
        problems = [
            f"{place} {n}: {short(item)} is not a {word}"
            for n, item in enumerate(found)
            if type(item) not in classes
        ]
        if problems:
            raise ValueError(*problems)
        return tuple(found)

    return convert


def items(value: Any, place: str) -> list[Any]:
    """Return the items of a list, or of something like one."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError(f"{place} must be a list, not {short(value)}")
    return list(value)


def each(found: Iterable[tuple[object, Any]], convert: Convert, place: str) -> list[Any]:
    """Convert pairs of key and value, or raise a ValueError with the problems of all of them."""
    converted: list[Any] = []
    problems: list[str] = []
    for key, item in found:
        try:
            converted.append(convert(item, f"{place} {key}"))
        except ValueError as error:
            problems.extend(error.args)
    if problems:
        raise ValueError(*problems)
    return converted
