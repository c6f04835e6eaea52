"""A retrained model beside the terms of promises: whether it lies in a promised set, and what it sees.

Three things can be told, each where the one before cannot:

1. Its network, in the coordinates of the promised model, lies in a promised set. Then nothing need be
   computed about any promise: all of them are proved.
2. Its network takes the rows of the promised model
   (:func:`proplace.loaders.coordinates.taking_rows_of`). Then what it says over a whole box of inputs
   can be bounded.
3. It can be asked about a table in original units, point by point.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proplace.core.errors import (
    DeltaError,
    InputError,
    NetworkError,
    ProplaceError,
    SchemaError,
    TargetError,
)
from proplace.core.shifts import outside
from proplace.core.text import listing
from proplace.explain.required_models import described
from proplace.loaders.coordinates import (
    in_coordinates_of,
    rounding_in_coordinates_of,
    taking_rows_of,
    with_classes_of,
)

if TYPE_CHECKING:
    from proplace.core.guarantee import Member
    from proplace.ledger.terms import Terms
    from proplace.loaders.model import Model
    from proplace.schema.values import Label

_ROUNDED = 2.0**-23  # relative: what rounding to float32 does


@dataclass(frozen=True, eq=False)
class Comparison:
    """A retrained model, seen from the terms of promises.

    Attributes
    ----------
    model
        The model, its columns described as those of the terms; it takes tables in original units.
    target
        Number of the promised class in it; None where it has no such class.
    on_rows
        The same model on the encoded rows of the terms; None where there is no way from these to its
        own.
    inside
        Member of the promised guarantee in which it lies; None if it lies in none.
    why
        Why something of this is not so, in words.
    """

    model: Model
    target: int | None
    on_rows: Model | None
    inside: Member | None = None
    why: str = ""

    @property
    def coarser(self) -> bool:
        """True if it is deployed in a coarser arithmetic than the one for which it lies inside."""
        if self.inside is None:
            return False
        used, proved = self.model.network.precision, self.inside.network.precision
        return (used, proved) == ("float32", "float64")

    @property
    def label(self) -> Label:
        """What the model itself calls the promised class."""
        assert self.target is not None  # noqa: S101  (whoever asks has looked)
        return self.model.classes[self.target]

    @classmethod
    def of(cls, source: object, model: Model, terms: Terms) -> Comparison:
        """Compare what was read of a source with the terms."""
        base, why = terms.model, ""
        try:
            model = described(base, source, model, base.schema)
        except SchemaError:
            pass  # it describes its columns otherwise, and may take these rows all the same
        except ProplaceError as error:
            why = str(error)
        try:
            model = with_classes_of(base, model)
            target = model.target(terms.label)
        except TargetError as error:
            labelled = f"the new model has the classes {listing(model.classes)}, none of which is "
            own = f"{labelled}{terms.label!r}, which was promised"
            return cls(model, None, None, None, own if model.labelled else str(error))
        on_rows = None
        if not why:
            try:
                # What counts is the promised class, which both know by its label.
                on_rows = taking_rows_of(base, dataclasses.replace(model, classes=base.classes))
            except (InputError, SchemaError) as error:
                why = str(error)
        if on_rows is None or model.classes != base.classes:
            return cls(model, target, on_rows, None, why)
        named = dataclasses.replace(model, classes=base.classes)
        for member in terms.guarantee.members:
            try:
                inside = _lies_in(member, base, named)
            except (InputError, NetworkError) as error:
                why = str(error)
                continue
            if inside:
                return cls(model, target, on_rows, member)
            why = why or _outside(member, base, named)
        return cls(model, target, on_rows, None, why)


def _outside(member: Member, base: Model, other: Model) -> str:
    """By how much a network that is of the right shape lies outside of a set, in words."""
    there = dataclasses.replace(base, network=member.network)
    other = other if other.has_column_names else other.with_column_names(base._columns)
    try:
        far = outside(member.shifts, in_coordinates_of(there, other))
    except (DeltaError, ValueError):
        return ""
    if not far:
        return "the new network lies outside of the promised set by less than the last digit"
    said = (
        f"{len(far)} parameters of the new network lie outside of the promised set, by at most "
        f"{far[0].beyond:.3g} ({far[0].name})"
    )
    rounded = far[0].beyond <= _ROUNDED * max(1.0, abs(far[0].value))
    return f"{said}: as rounding to float32 does" if rounded else said


def _lies_in(member: Member, base: Model, other: Model) -> bool:
    """Whether a model, as a network behind the input transform of a set, lies in the set for certain.

    Where nothing was fitted again this is exact. Else the parameters were computed, and all that they
    may be in real numbers must lie inside.
    """
    there = dataclasses.replace(base, network=member.network)
    other = other if other.has_column_names else other.with_column_names(base._columns)
    net = in_coordinates_of(there, other)
    if net is other.network:
        return member.shifts.contains(net)
    first, *rest = net.layers
    if member.network.input_transform.matrix is not None or first.b is None:
        return False  # what was solved for holds to rounding only, and no parameter can bear it
    W, b = rounding_in_coordinates_of(there, other)
    behind = [(layer.W, layer.b) for layer in rest]
    ends = [(first.W + sign * W, first.b + sign * b) for sign in (-1.0, 1.0)]
    return all(member.shifts.contains(net.with_layers([end, *behind])) for end in ends)
