"""Required models: other networks that must accept a counterfactual."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from proplace.core.errors import InputError, OptionError, ProplaceError
from proplace.core.network import Network
from proplace.core.shifts import Shifts
from proplace.loaders.align import shifts_for, taking_rows_of, with_cutoff_of
from proplace.loaders.files import Origin
from proplace.loaders.model import Model
from proplace.schema import Binary, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification import Margin
    from proplace.core.guarantee import Member
    from proplace.core.shifts import Delta


def members_of(model: Model, shifts: Shifts, name: str, margin: Margin) -> list[Member]:
    """Return the members of a model: its shift set, and its own network if that lies outside."""
    member = model.member(shifts, name, margin)
    if member.contains_network:
        return [member]
    itself = model.member(Shifts.of(model.network, 0.0), name, margin)
    return [dataclasses.replace(member, name=f"the shift set of {name}"), itself]


def check_required(required: object) -> None:
    """Raise unless the value is a list of networks, or of pairs of a network and its delta."""
    if required is None:
        return
    if not isinstance(required, (list, tuple)):
        raise OptionError(
            f"required_models must be a list of networks, such as [net2, (net3, 0.01)], "
            f"not {_type(required)}",
            name="required_models",
            value=required,
        )
    for entry in required:
        source, _ = _parts(entry)
        if source is None or isinstance(source, (bool, int, float, list, tuple, dict, Shifts)):
            raise OptionError(
                f"required_models contains {_type(source)}, which is not a model. Give models, or pairs "
                "of a model and its delta: required_models=[net2, (net3, 0.01)]",
                name="required_models",
                value=source,
            )


def read_required(
    base: Model, required: Sequence[object] | None, schema: Schema | None
) -> list[tuple[str, Model, Shifts]]:
    """Read the required models, on the rows of the current model, with names and shift sets."""
    found: list[tuple[str, Model, Shifts]] = []
    for number, entry in enumerate(required or (), start=2):
        source, delta = _parts(entry)
        name = _name(source, number, {name for name, *_ in found})
        try:
            own, model = _read(base, source, schema)
            shifts = shifts_for(own, delta)
        except ProplaceError as error:
            raise type(error)(f"required_models, {name}: {error}", name=name) from None
        found.append((name, model, shifts.with_input_transform(model.network)))
    return found


def read_retrained(
    base: Model | None, retrained: Sequence[object], schema: Schema | None
) -> list[Network]:
    """Read retrained models as networks for the encoded rows of the current model."""
    found: list[Network] = []
    for number, source in enumerate(retrained):
        try:
            model = Model.of(source) if base is None else _read(base, source, schema)[1]
        except ProplaceError as error:
            raise type(error)(f"retrained[{number}]: {error}", name="retrained") from None
        found.append(model.network)
    return found


def _read(base: Model, source: object, schema: Schema | None) -> tuple[Model, Model]:
    """Read another model, and adapt it to the rows of the current model. Return both."""
    own = with_cutoff_of(base, Model.of(source))
    return own, taking_rows_of(base, described(base, source, own, schema))


def described(base: Model, source: object, own: Model, schema: Schema | None) -> Model:
    """Return the imported model, with the column descriptions of the current model."""
    return _bare(base, own, schema) if isinstance(source, Network) else _named(own, base, schema)


def _parts(entry: object) -> tuple[object, Delta]:
    """Split an entry into a model and its delta. The delta is 0 without one."""
    if isinstance(entry, tuple) and len(entry) == 2:
        return entry[0], entry[1]
    return entry, 0.0


def _name(source: object, number: int, taken: set[str]) -> str:
    """Return the name of a model's file, or its number. The current model is number 1."""
    name = ""
    if isinstance(source, (str, os.PathLike)):
        name = os.path.basename(os.fspath(source))
    elif isinstance(source, Model) and source.origin.digest is not None:
        name = source.origin.name
    if not name or name in taken:
        return f"{name} (network {number})" if name else f"network {number}"
    return name


def _bare(base: Model, own: Model, schema: Schema | None) -> Model:
    """Return the current model with another network, which takes its encoded rows."""
    net = own.network
    if net.inputs != base.network.inputs or net.classes != base.network.classes:
        raise InputError(
            f"the network takes {net.inputs} columns and has {net.classes} classes. The current model "
            f"encodes its table as {base.network.inputs} columns and has {base.network.classes} "
            "classes. Give the original model, which contains its columns, or a network for these rows."
        )
    if (
        base.has_preprocessing
        and schema
        and any(isinstance(feature, Binary) for feature in schema.features)
    ):
        raise InputError(
            "The schema may encode a column differently from the current model, and a network does not "
            "define its encoding. Give the original model instead."
        )
    return dataclasses.replace(
        base,
        network=net,
        threshold=own.threshold,
        _original=None,
        _probabilities=None,
        origin=Origin("Network"),
    )


def _named(own: Model, base: Model, schema: Schema | None) -> Model:
    """Return the other model with the column descriptions of the current model."""
    if own.has_preprocessing and not own.has_column_names and len(own.columns) == len(base.columns):
        own = own.with_column_names(base.columns)  # in the order of the table, not of the schema
    if schema is not None and (own.has_preprocessing or not base.has_preprocessing):
        if own.has_preprocessing and own.has_column_names:
            known = [feature for feature in schema.features if feature.name in own.schema.by_name]
            return own.with_schema(Schema(known).unscaled())
        return own.with_schema(schema.unscaled() if own.has_preprocessing else schema)
    if schema is None and own.has_preprocessing:  # the table determines which columns are booleans
        mine = base.schema.features
        return own.with_binaries({f.name for f in mine if f == Binary(f.name, (False, True))})
    return own


def _type(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__} ({value!r:.40})"
