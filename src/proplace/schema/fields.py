"""Frozen dataclasses that convert and check their own fields; every mistake is a ``SchemaError``.

A converter takes a value and its place, such as ``"upper"`` or ``"categories 1"``. It returns the value
to store, or raises a ValueError whose arguments are sentences about the place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from proplace.core.errors import SchemaError
from proplace.core.text import did_you_mean, listing, problem_list, short, whole
from proplace.schema.values import Label, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

Convert = Callable[[Any, str], Any]
Converters = Mapping[str, Convert]


class Checked:
    """Base of features, rules and schemas: ``_CONVERT`` has a converter for every field."""

    _CONVERT: ClassVar[Converters] = {}

    def __new__(cls, *_: object, **given: object) -> Self:
        """Reject unknown keywords in words; pickles call this without arguments."""
        if problems := _unknown(cls, given):
            raise SchemaError(problem_list(_title(cls, given), problems), name=_called(given))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Convert every field, then compare the fields with each other."""
        problems: list[str] = []
        for field in fields_of(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            try:
                object.__setattr__(self, field.name, self._CONVERT[field.name](value, field.name))
            except ValueError as error:
                problems.extend(error.args)
        if not problems:
            try:
                self._check()
            except ValueError as error:
                problems.extend(error.args)
        if problems:
            raise SchemaError(
                problem_list(_title(type(self), vars(self)), problems), name=_called(vars(self))
            )

    def _check(self) -> None:
        """Raise ValueError if the fields do not fit each other."""

    def __repr__(self) -> str:
        """Show the values that differ from the defaults, positional fields without their names."""
        words, bare = [], True
        for field in fields_of(self):
            value = getattr(self, field.name)
            if not differs(value, field.default):
                bare = False  # after a gap a bare value would be read as another field
                continue
            text = repr(whole(value) if isinstance(value, float) else value)
            words.append(text if bare and not field.kw_only else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(words)})"


def fields_of(value: object) -> list[dataclasses.Field[Any]]:
    """List the fields in the order of a call: positional fields first."""
    return sorted(dataclasses.fields(cast("Any", value)), key=lambda field: field.kw_only is True)


def differs(value: Any, default: Any) -> bool:
    """Return True if a value is not the default: (False, True) differs from (0, 1)."""
    return repr(value) != repr(default)


def _title(cls: type, given: Mapping[str, Any]) -> str:
    name = _called(given)
    return cls.__name__ if name is None else f"{cls.__name__} {short(name)}"


def _called(given: Mapping[str, Any]) -> str | None:
    """Return the name of a feature, or of the feature that a rule is about."""
    name = given.get("name", given.get("feature"))
    return name if isinstance(name, str) else None


def _unknown(cls: type, given: Iterable[object]) -> list[str]:
    known = [field.name for field in fields_of(cls)]
    return [
        f"{short(key)} is not a known key{did_you_mean(key, known)}"
        for key in given
        if key not in known
    ]


# -- converters ------------------------------------------------------------------------------------


def text(value: Any, place: str) -> str:
    """Return text."""
    if not isinstance(value, str):
        raise ValueError(f"{place} must be text, not {short(value)}")
    return str(value)


def name(value: Any, place: str) -> str:
    """Return text that is not empty."""
    if not text(value, place):
        raise ValueError(f"{place} must have at least 1 character")
    return str(value)


_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def boolean(value: Any, place: str) -> bool:
    """Return true or false; words such as ``yes`` come from files written by hand."""
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if not isinstance(value, (int, np.bool_)) or value not in (0, 1):
        raise ValueError(f"{place} must be true or false, not {short(value)}")
    return bool(value)


def number(value: Any, place: str) -> float:
    """Return a finite float; text such as "1_000", true and false are not numbers."""
    if not is_number(value):
        raise ValueError(f"{place} must be a number, not {short(value)}")
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(f"{place} must be a number within 1e308, not {short(value)}") from None
    if not math.isfinite(found):
        raise ValueError(f"{place} must be a finite number, not {short(value)}")
    return found


def positive(value: Any, place: str) -> float:
    """Return a finite float above 0."""
    if not number(value, place) > 0.0:
        raise ValueError(f"{place} must be greater than 0, not {short(value)}")
    return float(value)


def not_negative(value: Any, place: str) -> float:
    """Return a finite float of at least 0."""
    if not number(value, place) >= 0.0:
        raise ValueError(f"{place} must be 0 or more, not {short(value)}")
    return float(value)


def choice(*words: str) -> Convert:
    """Return a converter that takes one of some words."""

    def convert(value: Any, place: str) -> str:
        if not isinstance(value, str) or value not in words:
            allowed = " or ".join(map(repr, words))
            raise ValueError(f"{place} must be {allowed}, not {short(value)}")
        return str(value)

    return convert


def scaling(value: Any, place: str) -> str | tuple[float, float]:
    """Return ``"minmax"``, ``"none"`` or a pair of offset and scale."""
    if isinstance(value, str) and value in ("minmax", "none"):
        return str(value)
    try:
        offset, scale = _items(value, place)
        return number(offset, place), positive(scale, place)
    except ValueError:
        raise ValueError(
            f"{place} must be 'minmax', 'none' or a pair (offset, scale) with scale > 0, "
            f"not {short(value)}"
        ) from None


def label(value: Any, place: str) -> Label:
    """Return a label as a plain Python value."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    try:
        found = number(value, place)
    except ValueError:
        raise ValueError(
            f"{place} must be text, a finite number, or true or false, not {short(value)}"
        ) from None
    return value if isinstance(value, int) else found


def labels(value: Any, place: str) -> tuple[Label, ...]:
    """Return labels: ``frame.job.unique()`` is a fine list."""
    return tuple(_each(enumerate(_items(value, place)), label, place))


def one_or_more(value: Any, place: str) -> Label | tuple[Label, ...]:
    """Return one label, or some."""
    many = hasattr(value, "__iter__") and not isinstance(value, (str, Mapping))
    try:
        return labels(value, place) if many else label(value, place)
    except ValueError:
        raise ValueError(
            f"{place} must be a category or a list of categories, not {short(value)}"
        ) from None


def by_name(convert: Convert) -> Convert:
    """Return a converter of a mapping from names of features, which is not empty."""

    def convert_all(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place} must map names of features, not be {short(value)}")
        if not value:
            raise ValueError(f"{place} must not be empty")
        found = _each(((short(key), value[key]) for key in value), convert, place)
        keys = [name(key, f"a feature of {place}") for key in value]
        return dict(zip(keys, found, strict=True))

    return convert_all


def parts(*classes: type[Any], empty: bool = False) -> Convert:
    """Return a converter of a list whose items are of these classes, or dictionaries of their fields."""
    kinds = {cls.kind: cls for cls in classes}

    def convert(value: Any, place: str) -> tuple[Any, ...]:
        items = _items(value, place)
        if not items and not empty:
            raise ValueError(f"{place} must not be empty")
        names = [item.get("name") if isinstance(item, Mapping) else None for item in items]
        places = [f"{i}" + (f" ({short(n)})" if n is not None else "") for i, n in enumerate(names)]
        pairs = zip(places, items, strict=True)
        return tuple(_each(pairs, lambda item, where: _part(item, where, kinds), place))

    return convert


def _part(item: Any, place: str, kinds: Mapping[str, type[Any]]) -> Any:
    if isinstance(item, tuple(kinds.values())):
        return item
    kind = item.get("kind") if isinstance(item, Mapping) else getattr(item, "kind", None)
    if not isinstance(item, (Mapping, Checked)):
        raise ValueError(f"{place}: {short(item)} is not a feature, rule or consequence")
    if kind is None:
        raise ValueError(f"{place}: 'kind' is missing")
    cls = kinds.get(kind) if isinstance(kind, str) else None
    if cls is None or not isinstance(item, Mapping):
        raise ValueError(
            f"{place}: kind {short(kind)} is unknown; known kinds are {listing(kinds)}"
        )
    given = {key: value for key, value in item.items() if key != "kind"}
    problems = _unknown(cls, given) + [
        f"{short(field.name)} is missing"
        for field in fields_of(cls)
        if field.default is dataclasses.MISSING and field.name not in given
    ]
    if problems:
        raise ValueError(*(f"{place}: {problem}" for problem in problems))
    try:
        return cls(**given)
    except SchemaError as error:
        problem = str(error).removeprefix(f"{_title(cls, given)}: ")
        raise ValueError(f"{place}: {problem}") from None


def _items(value: Any, place: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError(f"{place} must be a list, not {short(value)}")
    return list(value)


def _each(items: Iterable[tuple[object, Any]], convert: Convert, place: str) -> list[Any]:
    """Convert pairs of key and value; raise a ValueError with the problems of all of them."""
    found: list[Any] = []
    problems: list[str] = []
    for key, item in items:
        try:
            found.append(convert(item, f"{place} {key}"))
        except ValueError as error:
            problems.extend(error.args)
    if problems:
        raise ValueError(*problems)
    return found
