"""People, as the library takes them, to people as they are sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from proplace.client.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Hashable

    Person = Mapping[str, Any] | pd.Series[Any]
    People = pd.DataFrame | Person | list[Person] | tuple[Person, ...]
    """A table in original units, one person as a mapping or a row of a table, or several of them."""


def sent(people: People, features: Sequence[str]) -> tuple[list[dict[str, Any]], list[Hashable]]:
    """People as JSON has them, and the label of each: of a table its index, else the number.

    As in the library, columns of a table that are no features are left out; a mapping must be right.
    """
    if isinstance(people, pd.DataFrame):
        names = [name for name in features if name in people.columns]
        if len(set(people.columns)) < len(people.columns):
            raise RequestError("two columns of the table have the same name")
        columns = {name: people[name].tolist() for name in names}
        rows = [
            {name: plain(cells[n], name) for name, cells in columns.items()}
            for n in range(len(people))
        ]
        return rows, list(people.index)
    if isinstance(people, (Mapping, pd.Series)):
        return [one_person(people)], [0]
    if not isinstance(people, (list, tuple)):
        raise RequestError(
            f"people must be a table, a mapping from features to values, or a list of these, not "
            f"{type(people).__name__}"
        )
    return [one_person(person) for person in people], list(range(len(people)))


def one_person(person: Person) -> dict[str, Any]:
    """One person as JSON has it."""
    if not isinstance(person, (Mapping, pd.Series)):
        raise RequestError(
            f"a person must be a mapping from features to values, not {type(person).__name__}"
        )
    return {str(name): plain(value, str(name)) for name, value in person.items()}


def plain(value: Any, name: str = "target") -> Any:
    """A cell as JSON has it: a missing one is null; an infinite number has no word there."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float):
        if math.isinf(value):
            raise RequestError(f"{name}: {value} is not finite")
        return None if math.isnan(value) else value
    if isinstance(value, (str, bool, int)):
        return value
    raise RequestError(f"{name}: a {type(value).__name__} cannot be sent; give a number or a text")
