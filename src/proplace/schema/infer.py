"""Draft features from the columns of a table, and notes about columns that need a decision."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd

from proplace.core.errors import SchemaError
from proplace.core.text import enumerated, listing, num, problem_list, short, whole
from proplace.schema.features import FINEST, Binary, Categorical, Continuous, Ordinal
from proplace.schema.values import is_number, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.schema.grid import Array, Bools
    from proplace.schema.rules import AnyFeature

Encoding = Literal["minmax", "standard", "model"]

_DECIMALS = (0, 1, 2)  # a number with more decimals is measured, not counted
_DIGITS = 6  # written of a value of the grid, at most
_MOST = 0.95  # of the different numbers are on the grid
_MEANS = 2  # others of ten or more numbers may be means that fill gaps, such as one for each class
_CHANCE = 1e-3  # largest probability that numbers are multiples of a step by accident
_SAMPLE = 1_000  # different numbers that are tested for a common step
_SINGLE = 2.0**-24  # relative: what rounding to float32 may change
_STEPS = 100  # in the range of a measured number, about


def infer_features(
    frame: pd.DataFrame, *, categorical_limit: int, scaling: Encoding
) -> list[AnyFeature]:
    """Draft one feature for each column. One error names all columns without a draft."""
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
    features: list[AnyFeature] = []
    problems: list[str] = []
    for j, name in enumerate(frame.columns):
        try:
            features.append(_feature(name, frame.iloc[:, j], categorical_limit, scaling))
        except SchemaError as error:
            problems.append(str(error))
    if problems:
        raise SchemaError(problem_list("no schema can be inferred", problems))
    return features


def _feature(name: Any, series: pd.Series[Any], limit: int, scaling: Encoding) -> AnyFeature:
    if not isinstance(name, str):
        raise SchemaError(
            f"column {short(name)}: names must be text. Rename the columns", name=name
        )
    present = series.dropna().infer_objects()
    if present.empty:
        raise SchemaError(
            f"column {short(name)}: every cell is missing. Drop the column", name=name
        )
    dtype, kind = present.dtype, _kind(present)
    if isinstance(dtype, pd.CategoricalDtype):
        labels = list(dtype.categories)
        if dtype.ordered and len(labels) > 1:
            return Ordinal(name, labels)
    elif pd.api.types.is_bool_dtype(dtype):
        _check_varies(name, present.unique().tolist())
        return Binary(name, (False, True))
    elif kind == "number":
        return _number(name, numbers(present), scaling)
    elif kind == "other":
        raise SchemaError(
            f"column {short(name)} holds {dtype} values. Turn them into numbers (for a date: days since "
            "a fixed day) or drop the column",
            name=name,
        )
    else:
        labels = sorted(present.unique().tolist(), key=lambda label: (str(label), repr(label)))
    _check_varies(name, labels)
    if len(labels) > limit:
        raise SchemaError(
            f"column {short(name)} has {len(labels)} different values, more than "
            f"categorical_limit={limit} (such as {listing(labels[:3])}). Drop it if it is a name "
            "or an identifier, else group its values or raise the limit",
            name=name,
        )
    return Binary(name, labels) if len(labels) == 2 else Categorical(name, labels)


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


def _number(name: str, column: Array, scaling: Encoding) -> Continuous | Binary:
    known = np.unique(column)
    if not np.isfinite(known).all():
        raise SchemaError(f"column {short(name)}: holds infinite values", name=name)
    _check_varies(name, [whole(value) for value in known.tolist()])
    if known.tolist() == [0.0, 1.0]:
        return Binary(name)
    low, high = float(known[0]), float(known[-1])
    lower, upper, step = readable_grid(column) or (low, high, None)
    found = Continuous(name, lower, upper, step=step, scaling="none", drafted=(lower, upper))
    if scaling == "standard":
        return replace(found, scaling=(float(np.mean(column)), float(np.std(column))))
    # of the table, not of the range around it
    default = (low, high - low) if scaling == "minmax" else None
    return replace(found, scaling=None, default_scaling=default)


def _check_varies(name: str, known: list[Any]) -> None:
    """Raise SchemaError if a column has fewer than two values."""
    if len(known) < 2:
        raise SchemaError(
            f"column {short(name)} is constant ({listing(known)}), so its range is unknown. Drop the "
            "column or write its feature by hand",
            name=name,
        )


# -- ranges and steps ------------------------------------------------------------------------------


def with_range(feature: Continuous, cells: Array) -> Continuous:
    """Return a number with the range and the readable step of the finite ``cells``.

    The range includes the imputed value, which has no influence on the step. A feature stays as it is
    if all cells are equal, or if the steps are too fine for its scaling.

    Examples
    --------
    >>> with_range(Continuous("age", scaling=(40.0, 12.0)), np.array([17.0, 33.0, 90.0, np.nan]))
    Continuous('age', 17, 90, step=1, scaling=(40.0, 12.0), drafted=(17.0, 90.0))
    """
    known = cells[np.isfinite(cells)]
    imputed = [] if feature.missing is None else [float(feature.missing)]
    if len(np.unique(known)) < 2:  # no other number to draft a step from
        known, imputed = np.append(known, imputed), []
    grid = readable_grid(known, imputed) if len(np.unique(known)) > 1 else None
    if grid is None or abs(feature.offset) > FINEST * grid[2]:
        return feature
    lower, upper, step = grid
    return replace(feature, lower=lower, upper=upper, step=step, drafted=(lower, upper))


def readable_grid(values: Array, also: Sequence[float] = ()) -> tuple[float, float, float] | None:
    """Return the ends and the step of a grid around some numbers, with values that are easy to read.

    If most numbers have at most two decimals, the step is the largest round number that they are
    multiples of: 1, 2, 2.5 or 5 times a power of ten, or 12. Otherwise it is a round number near a
    hundredth of the range without its tails. A value needs at most six digits, unless the range is tiny
    compared with its numbers. The ends are multiples of the step. The range includes the numbers in
    ``also``, which have no influence on the step. Returns None if scaling would merge neighbouring
    steps.

    Examples
    --------
    >>> readable_grid(np.array([17.0, 90.0])), readable_grid(np.array([12.25, 99.5]))
    ((17.0, 90.0, 1.0), (12.25, 99.5, 0.01))
    >>> readable_grid(np.array([1500.0, 2300.0, 7000.0])), readable_grid(np.array([24.0, 36.0, 60.0]))
    ((1500.0, 7000.0, 100.0), (24.0, 60.0, 12.0))
    >>> readable_grid(np.array([0.0137, 0.9213])), readable_grid(np.array([5.0, 12345678.0]))
    ((0.01, 0.93, 0.01), (0.0, 12345700.0, 100.0))
    """
    low, high = min([*also, float(values.min())]), max([*also, float(values.max())])
    step = _common_step(np.unique(values)) or _round_number(_spread(values) / _STEPS)
    finest = Decimal(repr(max(abs(low), abs(high)))).adjusted() + 1 - _DIGITS
    if 10 * Decimal(1).scaleb(finest) <= Decimal(high) - Decimal(
        low
    ):  # else one value would be left
        step = max(step, Decimal(1).scaleb(finest))
    if max(abs(low), abs(high)) > FINEST * float(step):
        return None
    lower, upper = (Decimal(repr(end)) / step for end in (low, high))
    ends = (
        lower.to_integral_value(ROUND_FLOOR) * step,
        upper.to_integral_value(ROUND_CEILING) * step,
    )
    return float(ends[0]), float(ends[1]), float(step)


def _common_step(known: Array) -> Decimal | None:
    """Return the largest round step that most of the different numbers are multiples of.

    Three numbers at least must be multiples, because any number is one of some step. None if most have
    more than two decimals.
    """
    decimals = next((n for n in _DECIMALS if _are_most(_have_decimals(known, n))), None)
    if decimals is None:
        return None
    unit = Decimal(1).scaleb(-decimals)
    known = known[_have_decimals(known, decimals)]
    sample = np.rint(known[:: len(known) // _SAMPLE + 1] * 10.0**decimals)
    largest = float(np.abs(sample).max())
    powers = range(int(math.log10(max(largest, 1.0))) + 1)
    factors = sorted({12, *(f * 10**n for n in powers for f in (2, 5, 10, 25))}, reverse=True)
    for factor in factors:
        multiples = sample % factor == 0.0
        count = np.count_nonzero(sample[multiples])
        if multiples.mean() >= _MOST and count >= 3 and factor ** -float(count) <= _CHANCE:
            return Decimal(factor) * unit
    return unit


def _have_decimals(known: Array, decimals: int) -> Bools:
    """Test which numbers have at most so many decimals, apart from the noise of float32."""
    noise = np.minimum(_SINGLE * np.abs(known), 1e-2 * 10.0**-decimals)
    near: Bools = np.abs(np.round(known, decimals) - known) <= noise
    return near


def _are_most(chosen: Bools) -> bool:
    """Return True if so many numbers are chosen that the others may be exceptions."""
    others = int(np.count_nonzero(~chosen))
    return others <= (1.0 - _MOST) * len(chosen) or (len(chosen) >= 10 and others <= _MEANS)


def _spread(values: Array) -> float:
    """Return the range of some numbers without their tails."""
    low, high = np.quantile(values, [0.05, 0.95])
    return float(high - low) or float(np.ptp(values))


def _round_number(size: float) -> Decimal:
    """Return the number 1, 2 or 5 times a power of ten that is nearest to a size, by ratio."""
    power = Decimal(repr(size)).adjusted()
    options = [Decimal(digit).scaleb(power) for digit in (1, 2, 5, 10)]
    return min(options, key=lambda option: abs(math.log(float(option) / size)))


# -- columns that need a decision ------------------------------------------------------------------

_AGES = {"age", "since", "tenure", "seniority"}
_UNITS = {"days", "weeks", "months", "years"}
_PLACES = {"at", "in", "with", "employed", "employment", "experience", "service"}
_TRAITS = {
    *("sex", "gender", "male", "female", "race", "ethnicity", "ethnic", "religion", "religious"),
    *("white", "black", "hispanic", "asian"),
    *("marital", "married", "nationality", "citizenship", "disability", "disabled", "pregnant"),
}
_ORIGINS = ({"national", "origin"}, {"native", "country"}, {"foreign", "worker"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z](?=[A-Z][a-z])|[A-Z]+")
_CODES = [-1.0, -7.0, -8.0, -9.0, *(s * (10.0**n - 1) for n in range(2, 10) for s in (-1, 1))]


def decision_notes(features: Sequence[AnyFeature]) -> list[str]:
    """Describe features that counterfactuals may change, although their names suggest otherwise.

    Examples
    --------
    >>> for note in decision_notes([Binary("sex"), Continuous("age", 18, 90)]):
    ...     print(note)
    Counterfactuals may change 'sex', but the name suggests a protected trait. Add it to immutable.
    Counterfactuals may lower 'age', but the name suggests an age. Add it to increasing or immutable.
    """
    free = [feature for feature in features if not feature.immutable]
    traits = [feature for feature in free if is_protected(feature)]
    ages = [
        feature
        for feature in free
        if grows_with_time(feature)
        and feature not in traits
        and getattr(feature, "direction", None) is None
    ]
    notes = []
    for found, verb, kind, option in (
        (traits, "change", "a protected trait", "immutable"),
        (ages, "lower", "an age", "increasing or immutable"),
    ):
        if found:
            names = enumerated(short(feature.name) for feature in found)
            name, it = ("names suggest", "them") if found[1:] else ("name suggests", "it")
            notes.append(
                f"Counterfactuals may {verb} {names}, but the {name} {kind}. Add {it} to {option}."
            )
    return notes


def grows_with_time(feature: AnyFeature) -> bool:
    """Test if the name of a number suggests an age or a time since an event."""
    return isinstance(feature, Continuous) and any(
        words & _AGES or (words & _UNITS and words & _PLACES) for words in _words(feature)
    )


def is_protected(feature: AnyFeature) -> bool:
    """Test if the name of a feature suggests a trait that laws protect, such as sex or religion."""
    return any(
        words & _TRAITS or any(origin <= words for origin in _ORIGINS) for words in _words(feature)
    )


def _words(feature: AnyFeature) -> list[set[str]]:
    """Return the words of the name and of the label, in lower case."""
    texts = (feature.name, feature.label or "")
    return [{word.lower() for word in _WORD.findall(text)} for text in texts]


def code_notes(feature: Continuous, cells: Array) -> list[str]:
    """Describe values such as -9 or 999 that stand apart from all other numbers of a column.

    Examples
    --------
    >>> print(*code_notes(Continuous("x"), np.array([3.0, 0.0, -9.0, 40.0, 17.0, -9.0])))
    'x' has the value -9 in 2 rows, apart from all others (0 to 40); if it is a code, give the range
    0 to 40 in a schema, or ranges={'x': (0, 40)}
    """
    coded = np.isin(cells, _CODES)
    others = np.unique(cells[~coded & np.isfinite(cells)])
    if not coded.any() or len(others) < 2:
        return []
    low, high = float(others[0]), float(others[-1])
    widest = float(np.diff(others).max())
    apart = [
        value
        for value in np.unique(cells[coded]).tolist()
        if min(np.abs(others - value)) > (min(1.0, widest) if value < 0.0 <= low else widest)
    ]
    if not apart:
        return []
    rows = int(np.isin(cells, apart).sum())
    name, ends = short(feature.name), f"{num(low)} to {num(high)}"
    return [
        f"{name} has the value{'s' if apart[1:] else ''} {enumerated(map(num, apart))} in {rows} "
        f"row{'s' if rows > 1 else ''}, apart from all others ({ends}); if "
        f"{'they are codes' if apart[1:] else 'it is a code'}, give the range {ends} in a schema, or "
        f"ranges={{{name}: ({num(low)}, {num(high)})}}"
    ]
