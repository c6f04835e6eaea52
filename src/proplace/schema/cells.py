"""Reading one table column: numbers and labels out of whatever dtype pandas holds them in."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from proplace.core.text import did_you_mean, listing, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.schema.grid import Array, Integers

Label = str | int | float | bool
"""A category as tables write it: text, a whole or decimal number, or true and false."""

_FEW = 16  # cells that are read sooner one by one than with a table of the distinct ones


def as_json(value: Any) -> Any:
    """A cell as JSON holds it: Python's own value, None where there is none, else as text.

    Examples
    --------
    >>> import numpy as np
    >>> [as_json(cell) for cell in (np.int64(3), np.nan, np.str_("a"), True, np.inf, None)]
    [3, None, 'a', True, None, None]
    """
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing(value) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, (str, bool, int, float)) else str(value)


def is_missing(value: object) -> bool:
    """Whether a single cell holds nothing: None, NaN, NaT or NA."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(cast("Any", value)))


def is_number(value: object) -> bool:
    """Whether a single cell is a number; text that looks like one, true and false are not."""
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (Real, Decimal))


def filled(series: pd.Series[Any], value: Label | None) -> pd.Series[Any]:
    """Put ``value`` in the place of missing cells; None leaves them as they are."""
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
    """Read a column of labels as their numbers in ``labels``: -1 where a cell is none of them.

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
    """Say why a cell is none of the labels."""
    if is_missing(value):
        return f"the cell is missing; allowed: {listing(labels)}"
    shown = value.item() if isinstance(value, np.generic) else value
    return f"{short(shown)} is not {word}{did_you_mean(shown, labels)}; allowed: {listing(labels)}"
