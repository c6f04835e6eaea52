"""What can be asked of the service, as it is sent: checked before anything is done."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    model_validator,
)

from proplace.apps.serve.access import Refused

_LARGEST = 2**63  # of whole numbers
_LONGEST = 1000  # of texts
_MOST_FIELDS = 10_000

_SPACE = " \t\n\r"  # of JSON
_BEFORE = re.compile(rf'[{_SPACE}]*\{{[{_SPACE}]*"certificate"[{_SPACE}]*:[{_SPACE}]*')
_ALONE = 'send {"certificate": {...}} in UTF-8 with this one field, given once'


def _value(given: object) -> object:
    """What a cell may hold: one message in place of one for each kind of value."""
    if isinstance(given, str):
        good = len(given) <= _LONGEST
    elif isinstance(given, int):
        good = abs(given) < _LARGEST
    else:
        good = given is None or (isinstance(given, float) and math.isfinite(given))
    if not good:
        raise ValueError("must be a text, a finite number, true, false or null")
    return given


def _few(given: object) -> object:
    """Refuse what would have a message for each of its many fields."""
    if isinstance(given, dict | list) and len(given) > _MOST_FIELDS:
        raise ValueError(f"has more than {_MOST_FIELDS:,} fields")
    return given


def _without_spaces(text: str) -> str:
    if text != text.strip():
        raise ValueError("an id has no spaces at its ends")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200)]
PersonId = Annotated[Name, AfterValidator(_without_spaces)]
"""The user's own id of a person, as the page and files have it: without spaces at its ends."""
Value = Annotated[str | bool | int | float | None, BeforeValidator(_value)]
Person = Annotated[dict[Name, Value], BeforeValidator(_few)]
"""A person in original units, by feature name."""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Names = Annotated[list[Name], BeforeValidator(_few)]
Numbers = Annotated[dict[Name, float], BeforeValidator(_few)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    _few = model_validator(mode="before")(_few)


class People(_Strict):
    """Some people."""

    people: Annotated[list[Person], FailFast()] = Field(min_length=1)


class Options(_Strict):
    """What is asked of answers: see :class:`proplace.Proplace`.

    ``locked`` features stay as they are; the others are as there.
    """

    target: Value = None
    count: int = Field(default=1, ge=1, le=5)
    prefer: Literal["near", "few"] = "few"
    max_changes: int | None = Field(default=None, ge=1, le=_MOST_FIELDS)
    changeable: Names | None = None
    locked: Names = []
    tolerance: Numbers | None = None
    holds: bool = True
    effort: Numbers | None = None
    max_effort: float | None = Field(default=None, gt=0.0)
    region: Literal["hull", "box"] = "hull"


class Explain(People):
    """People for whom answers are wanted."""

    options: Options = Options()


class Certify(People):
    """People, or what they might become, of whom a verdict is wanted."""

    target: Value = None


class Check(_Strict):
    """A certificate to check against a model that is served."""

    certificate: dict[str, Any]


def certificate_in(body: bytes) -> bytes:
    """The certificate in a body that is a :class:`Check`, letter by letter.

    Read and written again it could become another one: of a field that is given twice, one is lost.
    """
    try:
        text = body.decode()
        start = _BEFORE.match(text)
        end = json.JSONDecoder().raw_decode(text, start.end())[1] if start else 0
    except (ValueError, RecursionError):
        raise Refused(422, _ALONE) from None
    if start is None or text[end:].strip(_SPACE) != "}":
        raise Refused(422, _ALONE)
    return text[start.end() : end].encode()


class Issue(_Strict):
    """An answer that is to be promised: the question again, and which answer of it.

    ``certificate`` is the SHA-256 of the certificate of the answer that was seen: what is promised is
    that answer and no other.
    """

    id: PersonId
    person: Person
    options: Options = Options()
    certificate: Digest
    expires: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    existing: Literal["refuse", "add", "renew"] = "refuse"


class Redeem(_Strict):
    """What a person is who comes back."""

    person: Person
    dry_run: bool = False


class Withdraw(_Strict):
    """Why a promise is taken back; no personal data."""

    reason: Name


class Erase(_Strict):
    """The id of a person of whom nothing is to be kept."""

    id: PersonId


class Decision(_Strict):
    """Whether an audited model goes into use, and why."""

    go: bool
    note: Annotated[str, Field(max_length=500)] = ""


class GoLive(_Strict):
    """Which model an audited one replaces, by its name; it need not be said of the only one."""

    model: Name | None = None


class Renew(_Strict):
    """New answers for broken promises: searched, or issued by the digests of those that were seen."""

    model: Name | None = None
    seen: Annotated[list[Digest], BeforeValidator(_few)] = []
