"""Guessing features from the columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from proplace.core.errors import SchemaError
from proplace.core.text import short
from proplace.schema.cells import is_number, numbers
from proplace.schema.features import Binary, Categorical, Continuous, Ordinal
from proplace.schema.validation import did_you_mean, listing, problem_list, whole

if TYPE_CHECKING:
    from collections.abc import Collection

    from proplace.schema.features import Direction
    from proplace.schema.rules import AnyFeature

_DECIMALS = (0, 1, 2)  # with more decimals a number is measured, not counted


def infer_features(
    frame: pd.DataFrame,
    *,
    categorical_limit: int,
    immutable: Collection[str],
    increasing: Collection[str],
    decreasing: Collection[str],
    scaling: Literal["minmax", "standard"],
) -> list[AnyFeature]:
    """Guess one feature per column, or say for which columns that cannot be done."""
    if scaling not in ("minmax", "standard"):
        raise SchemaError(f"scaling must be 'minmax' or 'standard', not {short(scaling)}")
    if not isinstance(frame, pd.DataFrame):
        raise SchemaError(f"infer needs a pandas DataFrame, not {type(frame).__name__}")
    if frame.empty:
        raise SchemaError(f"infer needs rows and columns; the table has shape {frame.shape}")
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
                    scaling == "standard",
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
    standard: bool,
) -> AnyFeature:
    if not isinstance(name, str):
        raise SchemaError(f"column {short(name)}: names must be text; rename the columns")
    present = series.dropna().infer_objects()
    if present.empty:
        raise SchemaError(f"column {short(name)}: every cell is missing; drop the column")
    dtype = present.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        labels = list(dtype.categories)
        if dtype.ordered and len(labels) > 1:
            return Ordinal(name, labels, immutable=immutable, direction=direction)
    elif pd.api.types.is_bool_dtype(dtype):
        _not_constant(name, present.unique().tolist())
        return Binary(name, (False, True), immutable=immutable, direction=direction)
    elif _kind(present) == "number":
        return _number(name, numbers(present), immutable, direction, standard)
    elif _kind(present) == "other":
        raise SchemaError(
            f"column {short(name)} holds {dtype} values; turn them into numbers (for a date: days since "
            "a fixed day) or drop the column"
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
    name: str, column: Any, immutable: bool, direction: Direction | None, standard: bool
) -> Continuous | Binary:
    values = np.unique(column)
    if not np.isfinite(values).all():
        raise SchemaError(f"column {short(name)}: holds infinite values")
    _not_constant(name, [whole(value) for value in values.tolist()])
    if values.tolist() == [0.0, 1.0]:
        return Binary(name, immutable=immutable, direction=direction)
    low, high = float(values[0]), float(values[-1])
    step = next((10.0**-n for n in _DECIMALS if (np.round(values, n) == values).all()), None)
    if step is not None and max(abs(low), abs(high)) / step > 1e12:
        step = None
    return Continuous(
        name,
        low,
        high,
        step=step,
        scaling=(float(np.mean(column)), float(np.std(column))) if standard else None,
        immutable=immutable,
        direction=direction,
    )


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
            "or an identifier, else group its values or raise the limit"
        )
    if len(labels) == 2:
        return Binary(name, labels, immutable=immutable, direction=direction)
    if direction is not None:
        raise SchemaError(f"column {short(name)} has no order, so it cannot be {direction}")
    return Categorical(name, labels, immutable=immutable)


def _not_constant(name: str, values: list[Any]) -> None:
    if len(values) < 2:
        only = listing(values)
        raise SchemaError(
            f"column {short(name)} is constant ({only}), which says nothing about its range; drop the "
            "column or write its feature by hand"
        )
