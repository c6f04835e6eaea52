"""The model in use, and what it says of one row of a table: the source itself where it is at hand.

A promise names columns of a table. A model that encodes its table itself, or whose columns were
described, reads them by their names. Anything else takes rows as the promise's own schema encodes them,
if it can be told that it does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from proplace.core.errors import InputError, LedgerError, ProplaceError, TargetError
from proplace.core.network import Network
from proplace.core.text import did_you_mean, listing, short
from proplace.loaders.coordinates import described_as, with_classes_of, with_cutoff_of
from proplace.loaders.model import Model
from proplace.schema.features import Continuous
from proplace.schema.values import filled, is_missing, numbers

if TYPE_CHECKING:
    from collections.abc import Collection

    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

_SAY = "say it with Model.of(model).with_schema(schema), or --schema FILE"


class Decision(NamedTuple):
    """What a model says of a row.

    Attributes
    ----------
    accepted
        Whether it gives the promised class.
    label
        The class that it gives, as the promise calls it.
    near
        Whether the row lies so near to a boundary that the model itself, which was not at hand, may say
        something else in its own precision.
    """

    accepted: bool
    label: Label
    near: bool


def reading(source: object, base: Model) -> Model:
    """Read a model as one that takes the table of ``base``, in original units."""
    model = with_cutoff_of(base, Model.of(source))
    if model.declared:
        return with_classes_of(base, model)
    same_width = model.network.inputs == base.schema.width
    if isinstance(source, Network) or not (model.has_preprocessing or base.has_preprocessing):
        if not same_width:
            raise InputError(
                f"the model takes {model.network.inputs} columns, the promises are about "
                f"{base.schema.width} encoded ones; {_SAY}, which describes its own columns",
                name="model",
            )
        known = set(model.schema.by_name) <= set(base.schema.by_name)
        if model.has_column_names and known and not _plain(base.schema):
            raise InputError(
                "the model names columns of the table and does nothing to them, and the promises were "
                "made of a network behind a schema that scales or encodes them: does it take them as "
                f"they are, or encoded? {_SAY}: with the schema of the promises if it takes encoded "
                "rows, else with scaling='none'",
                name="model",
            )
        twice = bool(base.network.input_transform)
        described = model.with_schema(base.schema, scaled_twice=twice)
        return with_classes_of(base, described)
    if not model.has_column_names:
        if not model.has_preprocessing:
            raise InputError(
                "the model does not say how it reads the table, which the model of the promises scales "
                "or encodes first; give it together with its preprocessing (a pipeline), describe its "
                "columns with Model.of(model).with_schema(schema) or --schema FILE, or give a bare "
                "Network (Model.of(model).network) that takes rows as that model encodes them",
                name="model",
            )
        model = model.with_column_names(base.columns)
    return with_classes_of(base, described_as(base, model))


def _plain(schema: Schema) -> bool:
    """Whether rows are the numbers of the table."""
    return all(
        isinstance(f, Continuous) and (f.offset, f.scale) == (0.0, 1.0) for f in schema.features
    )


# -- one row ---------------------------------------------------------------------------------------


def one_row(person: object, schemas: list[Schema]) -> pd.DataFrame:
    """One row of a table with all the columns that some schemas name."""
    features: dict[str, AnyFeature] = {}
    for schema in schemas:
        features |= schema.by_name
    cells = _by_feature(_cells(person), features)
    unknown = [name for name in cells if name not in features]
    missing = [name for name in features if name not in cells]
    if missing:
        hints = [f"{short(name)}{did_you_mean(name, list(cells))}" for name in missing]
        raise InputError(
            f"the row has no value for {', '.join(hints)}; give all of {listing(features)}",
            name=missing[0],
        )
    if unknown and isinstance(person, Mapping):  # a table may have other columns, such as ids
        raise InputError(
            f"no model looks at {listing(unknown)}; give values of {listing(features)} alone",
            name=str(unknown[0]),
            value=cells[unknown[0]],
        )
    row = {name: [np.nan if is_missing(cells[name]) else cells[name]] for name in features}
    return pd.DataFrame(row, dtype=object).infer_objects()


def _by_feature(cells: dict[Any, Any], features: Collection[str]) -> dict[Any, Any]:
    """Cells by the names of features, however the letters of their names are composed."""
    names = {_composed(name): name for name in features}
    found = {names.get(_composed(name), name): cell for name, cell in cells.items()}
    if len(found) < len(cells):
        raise InputError("the row has a value of the same name twice", name="person")
    return found


def _composed(name: Any) -> Any:
    return unicodedata.normalize("NFC", name) if isinstance(name, str) else name


def _cells(person: object) -> dict[Any, Any]:
    """The cells of a row, by name."""
    if isinstance(person, pd.DataFrame):
        if len(person) != 1:
            raise InputError(
                f"one person is a table of one row, not of {len(person)}", name="person"
            )
        person = person.iloc[0]
    if isinstance(person, pd.Series):
        return dict(person.items())
    if isinstance(person, Mapping):
        return dict(person)
    raise InputError(
        "a person is values by column name: a dictionary, a row of a table (table.loc[label]), or a "
        f"table of one row, not {type(person).__name__}",
        name="person",
    )


def encoded(schema: Schema, row: pd.DataFrame) -> Array:
    """Encode a row as the schema does; any finite number counts, however far out of its range."""
    found = np.empty(schema.width)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        cell = row[feature.name]
        if not isinstance(feature, Continuous):
            codes, ok = feature.read(cell)
        else:
            codes, ok = feature.read_people(cell)
            value = numbers(filled(cell, feature.missing))
            if not ok[0] and np.isfinite(value[0]):
                codes, ok = (value[:, None] - feature.offset) / feature.scale, np.array([True])
        if not ok[0]:
            raise InputError(
                f"column {short(feature.name)}: {feature.why(cell.iloc[0])}",
                name=feature.name,
                value=cell.iloc[0],
            )
        found[span] = codes[0]
    return found


def decide(model: Model, row: pd.DataFrame, label: Label) -> Decision:
    """Ask a model for the class of a row: the source itself, else the network that was read of it."""
    target = _number(model, label)
    codes = encoded(model.schema, row)
    try:
        said = model.predict_original(row[list(model.schema.by_name)])
    except ProplaceError:  # such as a number far out of a declared range, which the network takes
        said = None
    if said is not None:
        number = _number(model, said[0])
        return Decision(number == target, model.classes[number], near=False)
    number = int(model.network.predict(codes)[0])
    logits = np.sort(model.network.logits(codes)[0])
    gap = abs(logits[0]) if len(logits) == 1 else logits[-1] - logits[-2]
    near = bool(gap <= np.max(model.rounding(codes[None])))
    return Decision(number == target, model.classes[number], near)


def _number(model: Model, label: Label) -> int:
    """Number of a class by its label; true and 1 are the same, text is not a number."""
    for number, known in enumerate(model.classes):
        if isinstance(label, str) == isinstance(known, str) and known == label:
            return number
    raise TargetError(
        f"the model in use has the classes {listing(model.classes)}, and {short(label)} was promised; "
        "give a model of the same classes",
        name="model",
        value=label,
    )


def check_named(model: Model) -> Model:
    """A model that can be kept: its columns must have names."""
    if not model.has_column_names:
        raise LedgerError(
            "the columns of the model have no names, and there is no promise yet that says what they "
            f"are; {_SAY}",
            name="model",
        )
    return model
