"""Guessing features from the columns of a table."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd

from proplace.core.errors import SchemaError
from proplace.core.text import did_you_mean, listing, problem_list, short, whole
from proplace.schema.features import FINEST, Binary, Categorical, Continuous, Ordinal
from proplace.schema.values import is_number, numbers

if TYPE_CHECKING:
    from collections.abc import Collection

    from proplace.schema.features import Direction
    from proplace.schema.grid import Array
    from proplace.schema.rules import AnyFeature

Encoding = Literal["minmax", "standard", "model"]

_DECIMALS = (0, 1, 2)  # with more decimals a number is measured, not counted
_DIGITS = 6  # that a value of the grid is written with, at most
_MOST = 0.95  # of the different numbers have the resolution; others may be means that fill gaps
_SINGLE = 2.0**-24  # relative: what rounding to float32 may change
_STEPS = 100  # about so many steps in the range of a number that is measured


def infer_features(
    frame: pd.DataFrame,
    *,
    categorical_limit: int,
    immutable: Collection[str],
    increasing: Collection[str],
    decreasing: Collection[str],
    scaling: Encoding,
) -> list[AnyFeature]:
    """Guess one feature per column, or say for which columns that cannot be done."""
    if scaling not in get_args(Encoding):
        raise SchemaError(
            f"scaling must be 'minmax', 'standard' or 'model', not {short(scaling)}",
            name="scaling",
            value=scaling,
        )
    if not isinstance(frame, pd.DataFrame):
        raise SchemaError(
            f"infer needs a pandas DataFrame, not {type(frame).__name__}", name="frame"
        )
    if frame.empty:
        raise SchemaError(
            f"infer needs rows and columns; the table has shape {frame.shape}", name="frame"
        )
    options = {"immutable": immutable, "increasing": increasing, "decreasing": decreasing}
    problems = [
        f"{option} names {short(name)}, which is not a column{did_you_mean(name, frame.columns)}"
        for option, names in options.items()
        for name in names
        if name not in frame.columns
    ]
    problems += [
        f"{short(name)} is both increasing and decreasing"
        for name in set(increasing) & set(decreasing)
    ]
    features: list[AnyFeature] = []
    for j, name in enumerate(frame.columns):
        direction: Direction | None = (
            "increasing" if name in increasing else "decreasing" if name in decreasing else None
        )
        try:
            features.append(
                _feature(
                    name,
                    frame.iloc[:, j],
                    categorical_limit,
                    name in immutable,
                    direction,
                    scaling,
                )
            )
        except SchemaError as error:
            problems.append(str(error))
    if problems:
        raise SchemaError(problem_list("no schema can be inferred", problems))
    return features


def _feature(
    name: Any,
    series: pd.Series[Any],
    limit: int,
    immutable: bool,
    direction: Direction | None,
    scaling: Encoding,
) -> AnyFeature:
    if not isinstance(name, str):
        raise SchemaError(
            f"column {short(name)}: names must be text; rename the columns", name=name
        )
    present = series.dropna().infer_objects()
    if present.empty:
        raise SchemaError(
            f"column {short(name)}: every cell is missing; drop the column", name=name
        )
    dtype = present.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        labels = list(dtype.categories)
        if dtype.ordered and len(labels) > 1:
            return Ordinal(name, labels, immutable=immutable, direction=direction)
    elif pd.api.types.is_bool_dtype(dtype):
        _not_constant(name, present.unique().tolist())
        return Binary(name, (False, True), immutable=immutable, direction=direction)
    elif _kind(present) == "number":
        return _number(name, numbers(present), immutable, direction, scaling)
    elif _kind(present) == "other":
        raise SchemaError(
            f"column {short(name)} holds {dtype} values; turn them into numbers (for a date: days since "
            "a fixed day) or drop the column",
            name=name,
        )
    else:
        labels = sorted(present.unique().tolist(), key=lambda label: (str(label), repr(label)))
    return _labels(name, labels, limit, immutable, direction)


def _kind(present: pd.Series[Any]) -> Literal["number", "text", "other"]:
    dtype = present.dtype
    if pd.api.types.is_complex_dtype(dtype):
        return "other"
    if pd.api.types.is_numeric_dtype(dtype):
        return "number"
    if pd.api.types.is_object_dtype(dtype):
        cells = present.tolist()
        if all(is_number(cell) for cell in cells):
            return "number"
        known = all(is_number(cell) or isinstance(cell, (str, bool)) for cell in cells)
        return "text" if known else "other"
    return "text" if pd.api.types.is_string_dtype(dtype) else "other"


def _number(
    name: str, column: Array, immutable: bool, direction: Direction | None, scaling: Encoding
) -> Continuous | Binary:
    values = np.unique(column)
    if not np.isfinite(values).all():
        raise SchemaError(f"column {short(name)}: holds infinite values", name=name)
    _not_constant(name, [whole(value) for value in values.tolist()])
    if values.tolist() == [0.0, 1.0]:
        return Binary(name, immutable=immutable, direction=direction)
    low, high = float(values[0]), float(values[-1])
    grid = readable_grid(column)
    lower, upper, step = grid or (low, high, None)
    encoding: tuple[float, float] | None = None
    if scaling == "standard":
        encoding = float(np.mean(column)), float(np.std(column))
    elif scaling == "minmax" and (lower, upper) != (low, high):
        encoding = low, high - low  # of the table, not of the range around it
    return Continuous(
        name,
        lower,
        upper,
        step=step,
        scaling=encoding,
        immutable=immutable,
        direction=direction,
    )


def with_range(feature: Continuous, cells: Array) -> Continuous:
    """Return a number with the range and the readable step of some cells, missing ones apart.

    What a missing cell counts as is in the range. Cells that are all the same, or steps too fine for
    the feature's scaling, leave it without either.

    Examples
    --------
    >>> with_range(Continuous("age", scaling=(40.0, 12.0)), np.array([17.0, 33.0, 90.0, np.nan]))
    Continuous('age', 17, 90, step=1, scaling=(40.0, 12.0), drafted=True)
    """
    known = cells[np.isfinite(cells)]
    if feature.missing is not None:
        known = np.append(known, float(feature.missing))
    grid = readable_grid(known) if len(known) and np.ptp(known) > 0.0 else None
    if grid is None or abs(feature.offset) > FINEST * grid[2]:
        return feature
    lower, upper, step = grid
    return replace(feature, lower=lower, upper=upper, step=step, drafted=True)


def readable_grid(values: Array) -> tuple[float, float, float] | None:
    """Ends and step of a grid around some numbers whose values are easy to read and to say.

    The step is the resolution of the numbers themselves where most have at most two decimals, else a
    round number (1, 2 or 5 times a power of ten) near a hundredth of the range without its tails. It is
    not so fine that a value needs more than six digits, unless the range is tiny beside its numbers.
    The ends are multiples of it. None where steps could not be told apart after scaling.

    Examples
    --------
    >>> readable_grid(np.array([17.0, 90.0])), readable_grid(np.array([12.25, 99.5]))
    ((17.0, 90.0, 1.0), (12.25, 99.5, 0.01))
    >>> readable_grid(np.array([0.0137, 0.9213])), readable_grid(np.array([5.0, 12345678.0]))
    ((0.01, 0.93, 0.01), (0.0, 12345700.0, 100.0))
    """
    low, high = float(values.min()), float(values.max())
    known = np.unique(values)
    decimals = next((n for n in _DECIMALS if _have_decimals(known, n)), None)
    step = (
        _round_number(_spread(values) / _STEPS)
        if decimals is None
        else Decimal(1).scaleb(-decimals)
    )
    finest = Decimal(repr(max(abs(low), abs(high)))).adjusted() + 1 - _DIGITS
    if 10 * Decimal(1).scaleb(finest) <= Decimal(high) - Decimal(low):  # else no value were left
        step = max(step, Decimal(1).scaleb(finest))
    if max(abs(low), abs(high)) > FINEST * float(step):
        return None
    lower, upper = (Decimal(repr(end)) / step for end in (low, high))
    ends = (
        lower.to_integral_value(ROUND_FLOOR) * step,
        upper.to_integral_value(ROUND_CEILING) * step,
    )
    return float(ends[0]), float(ends[1]), float(step)


def _have_decimals(values: Array, decimals: int) -> bool:
    """Whether most numbers have at most so many decimals, but for the noise of float32."""
    noise = np.minimum(_SINGLE * np.abs(values), 1e-2 * 10.0**-decimals)
    near = np.abs(np.round(values, decimals) - values) <= noise
    return bool(near.mean() >= _MOST)


def _spread(values: Array) -> float:
    """The range of some numbers without their tails, which need not say how fine they are."""
    low, high = np.quantile(values, [0.05, 0.95])
    return float(high - low) or float(np.ptp(values))


def _round_number(size: float) -> Decimal:
    """The number 1, 2 or 5 times a power of ten that is nearest to a size, by ratio."""
    power = Decimal(repr(size)).adjusted()
    options = [Decimal(digit).scaleb(power) for digit in (1, 2, 5, 10)]
    return min(options, key=lambda option: abs(math.log(float(option) / size)))


def _labels(
    name: str,
    labels: list[Any],
    limit: int,
    immutable: bool,
    direction: Direction | None,
) -> Categorical | Binary:
    _not_constant(name, labels)
    if len(labels) > limit:
        raise SchemaError(
            f"column {short(name)} has {len(labels)} different values, more than "
            f"categorical_limit={limit} (such as {listing(labels[:3])}); drop it if it is a name "
            "or an identifier, else group its values or raise the limit",
            name=name,
        )
    if len(labels) == 2:
        return Binary(name, labels, immutable=immutable, direction=direction)
    if direction is not None:
        raise SchemaError(
            f"column {short(name)} has no order, so it cannot be {direction}", name=name
        )
    return Categorical(name, labels, immutable=immutable)


def _not_constant(name: str, values: list[Any]) -> None:
    if len(values) < 2:
        only = listing(values)
        raise SchemaError(
            f"column {short(name)} is constant ({only}), which says nothing about its range; drop the "
            "column or write its feature by hand",
            name=name,
        )
