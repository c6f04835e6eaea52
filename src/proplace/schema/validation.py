"""Frozen, validated values: pydantic dataclasses whose mistakes come out as one ``SchemaError``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, dataclass_transform

import numpy as np
import pydantic.dataclasses
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
)

from proplace.core.errors import SchemaError
from proplace.core.text import (
    PROBLEMS,
    VALUE,
    clipped,
    did_you_mean,
    problem_list,
    short,
    visible,
    whole,
)

if TYPE_CHECKING:
    from pydantic import ValidatorFunctionWrapHandler
    from pydantic_core import ErrorDetails

T = TypeVar("T")


def said(allowed: str) -> WrapValidator:
    """Replace what pydantic says about each branch of a union by one sentence."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise ValueError(f"must be {allowed}, not {short(value)}") from None

    return WrapValidator(check)


def _numeric(value: Any) -> Any:
    """Refuse what pydantic would turn into a number: text such as "1_000", true and false."""
    if isinstance(value, (str, bytes, bool, np.bool_)):
        raise ValueError(f"must be a number, not {short(value)}")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"must be a number within 1e308, not {short(value)}")
    return value.item() if isinstance(value, np.generic) else value


_LARGEST = 10**308
Number = Annotated[float, BeforeValidator(_numeric), Field(allow_inf_nan=False)]
CheckedLabel = Annotated[str | int | Number | bool, said("text, a finite number, or true or false")]


def _plain(value: Any) -> Any:
    """Turn NumPy and pandas values into plain ones: ``frame.job.unique()`` is a fine list."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        return value
    return [_plain(item) for item in value]


def _listed(value: Any) -> Any:
    if isinstance(value, (str, bytes, Mapping)):
        raise ValueError(f"must be a list, not {short(value)}")
    return _plain(value)


Labels = Annotated[Sequence[CheckedLabel], BeforeValidator(_listed), AfterValidator(tuple)]
OneOrMore = Annotated[
    CheckedLabel | Sequence[CheckedLabel],
    said("a category or a list of categories"),
    BeforeValidator(_plain),
    AfterValidator(lambda v: tuple(v) if isinstance(v, list) else v),
]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def model(cls: type[T]) -> type[T]:
    """Make a class a frozen pydantic dataclass that raises ``SchemaError``, in words."""
    decorate = pydantic.dataclasses.dataclass(
        frozen=True, repr=False, config=ConfigDict(extra="forbid")
    )
    built = cast("Any", decorate(cls))
    plain = built.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            plain(self, *args, **kwargs)
        except ValidationError as error:
            given = bind(cls, args, kwargs)
            known = [field.name for field in fields_of(cls)]
            raise SchemaError(sentence(_title(cls, given), error, given, known)) from None

    built.__init__ = init
    return cast("type[T]", built)


class Shown:
    """A short ``repr``: what differs from the defaults, positional fields without their names."""

    def __repr__(self) -> str:
        words, bare = [], True
        for field in fields_of(self):
            value = getattr(self, field.name)
            if field.name == "kind" or not differs(value, field.default):
                bare = False  # after a gap a bare value would be read as another field
                continue
            text = repr(whole(value) if isinstance(value, float) else value)
            words.append(text if bare and not field.kw_only else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(words)})"


def fields_of(value: object) -> list[dataclasses.Field[Any]]:
    """List the fields in the order of a call: positional ones first."""
    return sorted(dataclasses.fields(cast("Any", value)), key=lambda field: field.kw_only is True)


def differs(value: Any, default: Any) -> bool:
    """Whether a value is not the default: (False, True) is not (0, 1), though they are equal."""
    return repr(value) != repr(default)


def bind(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the positional arguments of a call, as far as it has names for them."""
    positional = [field.name for field in fields_of(cls) if not field.kw_only]
    return {**dict(zip(positional, args, strict=False)), **kwargs}


def _title(cls: type, given: Mapping[str, Any]) -> str:
    name = given.get("name")
    return f"{cls.__name__} {short(name)}" if isinstance(name, str) else cls.__name__


# -- words ---------------------------------------------------------------------------------------


def sentence(
    title: str, error: ValidationError, given: Mapping[str, Any], fields: Sequence[str]
) -> str:
    """Write what pydantic found as a list of sentences that name the place."""
    details = error.errors(include_url=False)[:PROBLEMS]
    problems = [_problem(detail, given, fields) for detail in details]
    return problem_list(title, problems, error.error_count())


def _problem(detail: ErrorDetails, given: Mapping[str, Any], fields: Sequence[str]) -> str:
    place, key, siblings = _place(detail["loc"], given)
    kind, value = detail["type"], detail["input"]
    known = str(detail.get("ctx", {}).get("expected_tags", ""))
    if kind == "value_error":
        text = str(detail["ctx"]["error"])
    elif kind in ("unexpected_keyword_argument", "extra_forbidden"):
        text = f"{short(key)} is not a known key{did_you_mean(key, siblings or fields)}"
        place = _parent(place, key)
    elif kind in ("missing", "missing_argument"):
        text = f"{short(key)} is missing"
        place = _parent(place, key)
    elif kind == "too_short":
        text = "must not be empty"
    elif kind == "model_attributes_type":
        text = f"{short(value)} is not a feature, rule or consequence"
    elif kind == "union_tag_invalid":
        tag = detail["ctx"]["tag"]
        text = f"kind {short(tag)} is unknown; known kinds are {known}"
    elif kind == "union_tag_not_found":
        text = "'kind' is missing"
    else:
        text = f"{detail['msg'][0].lower()}{detail['msg'][1:]}, not {short(value)}"
    return place + text


def _word(part: object) -> str:
    return visible(clipped(str(part), VALUE))


def _parent(place: str, key: object) -> str:
    outer = place.removesuffix(f"{_word(key)}: ").rstrip()
    return f"{outer}: " if outer else ""


def _place(
    loc: tuple[int | str, ...], given: Mapping[str, Any]
) -> tuple[str, object, tuple[str, ...]]:
    """Follow a pydantic location through what was given; names of items instead of numbers."""
    here: Any = given
    words: list[str] = []
    keys = list(given)
    if loc and isinstance(loc[0], int) and loc[0] < len(keys):  # a positional argument
        loc = (keys[loc[0]], *loc[1:])
    for step, part in enumerate(loc):
        if isinstance(here, Mapping) and part in here:
            here = here[part]
            words.append(_word(part))
        elif isinstance(part, int) and isinstance(here, Sequence) and not isinstance(here, str):
            here = here[part] if part < len(here) else None
            name = here.get("name") if isinstance(here, Mapping) else getattr(here, "name", None)
            words.append(f"{part}" if name is None else f"{part} ({short(name)})")
        elif step == len(loc) - 1 and part not in KINDS:
            words.append(_word(part))
    last = loc[-1] if loc else ""
    siblings = KINDS.get(next((p for p in reversed(loc[:-1]) if p in KINDS), ""), ())
    return (f"{' '.join(words)}: " if words else ""), last, tuple(siblings)


KINDS: dict[int | str, tuple[str, ...]] = {}
"""Keys of each kind of feature, rule and consequence, for messages; filled by their modules."""


def register(*classes: type) -> None:
    """Tell the messages which keys each kind has."""
    for cls in classes:
        fields = fields_of(cls)
        kind = next(field.default for field in fields if field.name == "kind")
        KINDS[str(kind)] = tuple(field.name for field in fields)
