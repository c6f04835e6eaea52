"""Between a user's table and encoded rows: what every method does before and after its search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.errors import InputError, SchemaError
from proplace.frames import as_frame
from proplace.model import Model
from proplace.schema.problems import BadRow

if TYPE_CHECKING:
    from proplace.explanations import Explanation, Setting
    from proplace.network import Array
    from proplace.schema import Schema

Table = pd.DataFrame | npt.ArrayLike
"""Any table that :func:`proplace.frames.as_frame` reads, or plain rows of numbers."""
People = tuple["Array", dict[int, BadRow], pd.DataFrame | None]
"""Encoded rows, what is wrong with bad ones, and the table itself if it was one."""


def model_of(source: object, schema: Schema | None) -> Model:
    """Return the model of a source, with the user's schema if there is one."""
    model = Model.of(source)
    return model if schema is None else model.with_schema(schema)


def training_rows(model: Model, X: Table, *, declared: bool) -> tuple[Model, Array]:
    """Return the model under the names of the table, and the training rows as the network takes them.

    Columns without names of their own get those of the table. ``declared`` says whether the user gave
    a schema: then an array holds encoded rows, unless the model encodes its table itself.
    """
    frame = as_frame(X)
    if frame is not None:
        model = _named(model, frame)
        frame = _text_names(frame)
        rows = model.schema.encode(frame)
        model.check_agreement(frame)
    elif declared and not model.preprocesses:
        rows = model.network.rows(X)
        legal = model.schema.legal(rows)
        if not legal.all():
            bad = int(np.flatnonzero(~legal)[0])
            raise SchemaError(
                f"row {bad} of the array is not a legal encoded row of the schema; "
                "pass a DataFrame in original units, or schema.encode(frame)"
            )
    elif model.preprocesses:
        table = model.table(X)
        rows = model.schema.encode(table)
        model.check_agreement(table)
    else:
        rows = model.network.rows(X)
    if not len(rows):
        raise InputError("fit needs at least one training row")
    return model, rows


def _named(model: Model, frame: pd.DataFrame) -> Model:
    """Return a model without names under those of a table, unless it has its own."""
    names = [str(name) for name in frame.columns]
    if model.named or set(model.schema.by_name) <= set(names):
        return model
    return model.renamed(names)


def _text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns are called by text: the numbers 0, 1, ... of a plain one, too."""
    if all(isinstance(name, str) for name in frame.columns):
        return frame
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def distinct(rows: Array) -> Array:
    """Return each row once, in the order of first appearance."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]


def read_people(model: Model, X: Table) -> People:
    """Encoded rows, what is wrong with bad ones, and the table itself if it was one."""
    schema, net = model.schema, model.network
    frame = as_frame(X)
    if frame is None and model.preprocesses:
        frame = model.table(X)
    if frame is not None:
        frame = _text_names(frame)
        rows, problems = schema.encode_people(frame)
        return rows, problems, frame
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
        name = schema.columns[column].name
        problems[int(i)] = BadRow(int(i), name, f"{rows[i, column]} is not finite")
    for i in np.flatnonzero(~schema.legal_people(rows)):
        problems.setdefault(int(i), BadRow(int(i), None, "this is no legal row of the schema"))
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
        own = np.array([flat[n][1].x for _, n, _ in points])
        rows = np.array([point for _, _, point in points])
        frame = setting.schema.decode(rows, like=like, own=own)
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


def refereed(
    model: Model, items: list[Explanation], people: pd.DataFrame, first: int
) -> list[Explanation]:
    """Run every answer through the source once more, where it is at hand.

    An answer that the source itself does not accept is withheld: it is no fault of the row.
    """
    found = [n for n, e in enumerate(items) if e.found and e.counterfactual is not None]
    if not found:
        return items
    places = _positions(items, first)
    table = people.iloc[[places[n] for n in found]].copy()
    for name in model.schema.by_name:  # what the model never looks at stays the person's own
        table[name] = [items[n].counterfactual[name] for n in found]  # type: ignore[index]
    said = model.original(table)
    if said is None:
        return items
    checked = list(items)
    for n, label in zip(found, said, strict=True):
        wanted = model.classes[items[n].target]
        if label != wanted:
            reason = (
                f"the model itself gives the answer {label!r} and not {wanted!r}, so it is withheld; "
                "the model was changed after it was read, or does more than its parts say"
            )
            checked[n] = replace(
                items[n],
                status="source_disagrees",
                reason=reason,
                counterfactual=None,
                point=None,
                certificate=None,
                distance=np.nan,
                margin=np.nan,
            )
    return checked


def _positions(items: list[Explanation], first: int) -> list[int]:
    """Position of each answer's person in the table; further answers of a person have ranks."""
    places, place = [], first - 1
    for e in items:
        place += e.rank == 0
        places.append(place)
    return places
