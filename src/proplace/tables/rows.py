"""Tables of any library as encoded rows: people and training rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import narwhals.stable.v2 as nw
import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.core.errors import DraftWarning, InputError, RowsSkippedWarning, SchemaError
from proplace.loaders.model import Model
from proplace.schema import Continuous, Schema
from proplace.schema.infer import code_notes, with_range
from proplace.schema.values import BadRow, left_out, numbers

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.schema.rules import AnyFeature

Table = pd.DataFrame | npt.ArrayLike
"""Any table that :func:`as_frame` reads, or plain rows of numbers."""
Positions = npt.NDArray[np.intp]
People = tuple["Array", dict[int, BadRow], pd.DataFrame | None]
"""Encoded rows, the problems of invalid rows, and the table if there is one."""


def as_frame(X: object) -> pd.DataFrame | None:
    """Return a table with named columns as a pandas DataFrame, or None for plain rows of numbers.

    A table is a frame of pandas, polars, pyarrow or another library that narwhals reads, a dictionary or
    a Series of one person, a dictionary of columns, or a list of dictionaries.

    Examples
    --------
    >>> as_frame({"age": 30, "job": "cook"})
       age   job
    0   30  cook
    >>> as_frame([[30.0, 1.0]]) is None
    True
    """
    if isinstance(X, pd.DataFrame):
        return X
    if isinstance(X, pd.Series):
        # A Series of numbered entries is a row without names.
        named = all(isinstance(name, str) for name in X.index)
        return X.to_frame().T.infer_objects() if named and len(X) else None
    if isinstance(X, Mapping):
        columns = all(
            isinstance(cells, (list, tuple, np.ndarray, pd.Series)) for cells in X.values()
        )
        return pd.DataFrame(dict(X) if columns and X else [dict(X)])
    if isinstance(X, Sequence) and not isinstance(X, str) and X and isinstance(X[0], Mapping):
        return pd.DataFrame([dict(cast("Mapping[str, Any]", row)) for row in X])
    frame = nw.from_native(cast("Any", X), pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, nw.DataFrame):
        return None
    # Column by column: polars itself would need pyarrow on the way to pandas.
    return pd.DataFrame({name: frame[name].to_list() for name in frame.columns})


def model_of(source: object, schema: Schema | None, X: Table | None = None) -> Model:
    """Return the model of a source, with the user's schema if there is one.

    Without a schema, numbers that are true or false in the rows become ``Binary``.
    """
    model = Model.of(source)
    if schema is not None:
        return model.with_schema(schema)
    frame = None if X is None else table_of(model, X)
    return model if frame is None else with_booleans(model, frame)


def table_of(model: Model, X: Table) -> pd.DataFrame | None:
    """Return a table with text as names of columns, or None for rows as the network takes them."""
    frame = as_frame(X)
    if frame is None:
        return model.table(X) if model.has_preprocessing else None
    if all(isinstance(name, str) for name in frame.columns):
        return frame
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def with_booleans(model: Model, frame: pd.DataFrame) -> Model:
    """Return a model whose numbers that are true or false in a table are ``Binary``.

    For models, true is 1 and false is 0, so that such columns are imported as numbers.
    """
    return model.with_binaries(
        {each.name for each in model.schema.features if _is_boolean(each, frame)}
    )


def with_steps(model: Model, frame: pd.DataFrame) -> Model:
    """Return a model whose numbers have the range and a readable step of their columns in a table.

    Then counterfactuals have values that people can read and follow. A model with a declared schema,
    or without preprocessing, is returned unchanged.
    """
    if model.declared or not model.has_preprocessing:
        return model
    features: list[AnyFeature] = []
    for feature in model.schema.features:
        if isinstance(feature, Continuous) and feature.name in frame.columns:
            cells = numbers(frame[feature.name])
            for note in code_notes(feature, cells):
                warnings.warn(note, DraftWarning, stacklevel=4)
            feature = with_range(feature, cells)  # noqa: PLW2901
        features.append(feature)
    return replace(model, schema=Schema(features, rules=model.schema.rules))


def _is_boolean(feature: AnyFeature, frame: pd.DataFrame) -> bool:
    """Test if a number of the model is true or false in a table, except for missing cells."""
    if not isinstance(feature, Continuous) or feature.name not in frame.columns:
        return False
    if (feature.lower, feature.upper) != (None, None):  # described as a number
        return False
    present = frame[feature.name].dropna().infer_objects()
    legal = feature.missing is None or feature.missing in (0, 1)
    return legal and len(present) > 0 and bool(pd.api.types.is_bool_dtype(present.dtype))


def training_rows(model: Model, X: Table, *, declared: bool) -> tuple[Model, Array, Positions]:
    """Return the model with the table's column names, the encoded training rows and their positions.

    Columns without names get those of the table, and drafted numbers a range and a step
    (:func:`with_steps`). ``declared`` is True if the user gave a schema. Then an array holds encoded
    rows, unless the model has preprocessing, and all of them must be legal. Invalid rows of a table are
    left out with a ``RowsSkippedWarning``.
    """
    table = table_of(model, X)
    if table is None:
        rows = model.network.rows(X)
        positions = np.arange(len(rows))
        if declared:
            _check_legal(model.schema, rows)
        model.check_rows(rows)
    else:
        if as_frame(X) is not None:
            model = _named(model, table)
        model = with_booleans(model, table)
        model = model if declared else with_steps(model, table)
        rows, positions = _usable_rows(model, table)
    if not len(rows):
        raise InputError("fit needs at least one training row", name="X")
    return model, rows, positions


def _check_legal(schema: Schema, rows: Array) -> None:
    """Raise SchemaError unless all rows are legal. Numbers with a step may be off the grid."""
    legal = schema.legal(schema.on_grids(rows)) & ~schema.outside(rows).any(axis=1)
    if legal.all():
        return
    bad = int(np.flatnonzero(~legal)[0])
    raise SchemaError(
        f"row {bad} of the array is not a legal encoded row of the schema. "
        "Pass a DataFrame in original units, or schema.encode(frame)",
        name="X",
        row=bad,
    )


def _usable_rows(model: Model, table: pd.DataFrame) -> tuple[Array, Positions]:
    """Encode the valid rows, and compare their classes with the original model."""
    rows, problems = model.schema.encode_valid(table)
    good = np.delete(np.arange(len(table)), list(problems))
    if problems:
        text = left_out(problems, len(table), "training table")
        warnings.warn(text, RowsSkippedWarning, stacklevel=4)
        table, rows = table.iloc[good], rows[good]
    model.check_agreement(table)
    return rows, good


def are_encoded(model: Model, X: Table) -> bool:
    """Return True if rows are an array as the network takes it, not a table in original units."""
    return not model.has_preprocessing and as_frame(X) is None


def check_agreement(model: Model, X: Table, *, what: str) -> None:
    """Raise unless the original model and the imported network agree on the rows of a table."""
    table = table_of(model, X)
    if table is None:
        table = model.table(X)
    bad = model.schema.problems(table)
    good = np.delete(np.arange(len(table)), list(bad))
    model.check_agreement(table.iloc[good], what=what)


def _named(model: Model, table: pd.DataFrame) -> Model:
    """Return a model with the names of the table's columns, unless the model has names."""
    names = list(table.columns)
    if model.has_column_names or set(model.schema.by_name) <= set(names):
        return model.with_names_of_table(names)
    return model.with_column_names(names)


def distinct(rows: Array) -> Array:
    """Return each row once, in the order of first appearance."""
    return rows[first_appearances(rows)]


def first_appearances(rows: Array) -> Positions:
    """Return the position of the first of equal rows, in their order."""
    return np.sort(np.unique(rows, axis=0, return_index=True)[1])


def read_people(model: Model, X: Table) -> People:
    """Encode people: rows, problems of invalid rows, and the table if there is one."""
    schema, table = model.schema, table_of(model, X)
    if table is not None:
        return *schema.encode_people(table), table
    rows = model.network.rows(X, finite=False)
    problems = {}
    for i in np.flatnonzero(~np.isfinite(rows).all(axis=1)):
        column = int(np.flatnonzero(~np.isfinite(rows[i]))[0])
        name = schema.columns[column].name
        problems[int(i)] = BadRow(int(i), name, f"{rows[i, column]} is not finite")
    for i in np.flatnonzero(~schema.legal_people(rows)):
        problems.setdefault(int(i), BadRow(int(i), None, "this is not a legal row of the schema"))
    return rows, problems, None
