"""Between a user's table and encoded rows: what every method does before and after its search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.errors import InputError, SchemaError
from proplace.schema import Schema

if TYPE_CHECKING:
    from proplace.explanations import Explanation, Setting
    from proplace.network import Array, Network

Table = pd.DataFrame | npt.ArrayLike
People = tuple["Array", dict[int, str], pd.DataFrame | None]
"""Encoded rows, what is wrong with bad ones, and the table itself if it was one."""


def check_schema(net: Network, schema: Schema | None) -> Schema | None:
    """Return the schema, or say that it does not fit the network."""
    if schema is not None:
        schema.check_settled()
    if schema is not None and schema.width != net.inputs:
        raise SchemaError(
            f"the schema encodes to {schema.width} columns but the network takes {net.inputs}"
        )
    return schema


def training_rows(net: Network, schema: Schema | None, X: Table) -> tuple[Schema, Array]:
    """Return the schema to work with, and the training rows as the network takes them.

    Without a schema every column is a free number, named as in the table.
    """
    if schema is None:
        names = [str(name) for name in X.columns] if isinstance(X, pd.DataFrame) else None
        schema = Schema.encoded(net.inputs, names=names)
        rows = net.rows(X.to_numpy() if isinstance(X, pd.DataFrame) else X)
    elif isinstance(X, pd.DataFrame):
        rows = schema.encode(X)
    else:
        rows = net.rows(X)
        legal = schema.legal(rows)
        if not legal.all():
            bad = int(np.flatnonzero(~legal)[0])
            raise SchemaError(
                f"row {bad} of the array is not a legal encoded row of the schema; "
                "pass a DataFrame in original units, or schema.encode(frame)"
            )
    if not len(rows):
        raise InputError("fit needs at least one training row")
    return schema, rows


def distinct(rows: Array) -> Array:
    """Return each row once, in the order of first appearance."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]


def read_people(net: Network, schema: Schema, X: Table, *, declared: bool) -> People:
    """Encoded rows, what is wrong with bad ones, and the table itself if it was one.

    ``declared`` says whether the user gave the schema; else any column labels will do.
    """
    if isinstance(X, pd.DataFrame):
        if not declared:  # such as the numbers 0, 1, ... of a plain table
            X = X.set_axis([str(name) for name in X.columns], axis=1)
        rows, problems = schema.encode_valid(X)
        return rows, problems, X
    try:
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"rows must be numbers: {error}") from None
    if rows.ndim == 1 and len(rows) == net.inputs:
        rows = rows[None]
    if rows.ndim != 2 or rows.shape[1] != net.inputs:
        raise InputError(
            f"rows must have shape (n, {net.inputs}) for this network, not {rows.shape}"
        )
    problems = {}
    for i in np.flatnonzero(~np.isfinite(rows).all(axis=1)):
        column = int(np.flatnonzero(~np.isfinite(rows[i]))[0])
        problems[int(i)] = f"row {i}, column {column} is {rows[i, column]}; it must be finite"
    for i in np.flatnonzero(~schema.legal(rows)):
        problems.setdefault(int(i), f"row {i} is not a legal encoded row of the schema")
    return rows, problems, None


def in_words(
    setting: Setting, done: list[list[Explanation]], people: pd.DataFrame | None, *, first: int = 0
) -> list[Explanation]:
    """Add labels, values in original units (all rows, from ``first``, at once) and the setting."""
    flat = [(i, explanation) for i, found in enumerate(done, first) for explanation in found]
    points = [("original", n, e.x) for n, (_, e) in enumerate(flat) if e.x is not None]
    points += [("answer", n, e.point) for n, (_, e) in enumerate(flat) if e.point is not None]
    decoded: dict[tuple[str, int], pd.Series[Any]] = {}
    if points:
        where = [flat[n][0] for _, n, _ in points]
        like = None if people is None else people.iloc[where]
        frame = setting.schema.decode(np.array([point for _, _, point in points]), like=like)
        if like is None:
            frame.index = pd.Index(where)
        decoded = {(what, n): frame.iloc[row] for row, (what, n, _) in enumerate(points)}
    return [
        replace(
            explanation,
            index=i if people is None else people.index[i],
            original=decoded.get(("original", n)),
            counterfactual=decoded.get(("answer", n)),
            setting=setting,
        )
        for n, (i, explanation) in enumerate(flat)
    ]
