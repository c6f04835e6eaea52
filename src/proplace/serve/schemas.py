"""Bodies of the HTTP interface, with examples for OpenAPI."""

# No postponed annotations: pydantic reads them.
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Cell = str | int | float | bool | None
_PERSON = {"housing": 21, "obligations": "49%", "loan": 90, "income": "73,000"}


class Body(BaseModel):
    """A body that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Wishes(Body):
    """The fields of a request. The workbench chooses those that are omitted."""

    count: int = Field(default=3, ge=1, le=10)
    prefer: Literal["nearest", "sparse"] = "sparse"
    max_changes: int | None = None
    immutable: list[str] = []
    increasing: list[str] = []
    decreasing: list[str] = []
    ranges: dict[str, tuple[float | None, float | None]] = {}
    tolerance: dict[str, Any] = {}
    typical: bool | None = None
    gap: float = 0.01


class CertifyBody(Body):
    """A person, or the person of an answer, with changed values."""

    person: dict[str, Cell] | None = Field(default=None, examples=[_PERSON])
    answer: str | None = Field(default=None, max_length=64, examples=["5b1f0c0de2a94d7f8a3e6c21"])
    changes: dict[str, Cell] = Field(default={}, examples=[{"loan": 52}])


class Verdict(Body):
    """A decision about changed values: possible by the rules, accepted today, and guaranteed."""

    possible: bool
    problems: list[str] = Field(examples=[["the loan amount may only decrease"]])
    accepted: bool
    outcome: str = Field(examples=["approved"])
    guaranteed: bool | None = Field(description="null if it was not decided in time")
    margin: float | None
    sentence: str = Field(examples=["Approved, and guaranteed."])


class ExplainBody(Body):
    """A person, and what the counterfactuals must satisfy."""

    person: dict[str, Cell] = Field(examples=[_PERSON])
    request: Wishes = Field(default=Wishes(), examples=[{"count": 2, "immutable": ["income"]}])


class Explained(Body):
    """The alternatives of a person, best first, and the address of the answer."""

    answer: str = Field(examples=["5b1f0c0de2a94d7f8a3e6c21"])
    accepted: bool
    alternatives: list[dict[str, Any]]


class IssueBody(Body):
    """One alternative of an answer, as a promise to a person."""

    answer: str = Field(max_length=64)
    way: int = Field(default=0, ge=0, examples=[0])
    person: str = Field(max_length=200, examples=["customer 1333"])
    expires: str | None = Field(default=None, examples=["2027-05-31"])
    existing: Literal["refuse", "add", "renew"] = "refuse"


class Issued(Body):
    """The number of a promise. ``new`` is false if the same promise existed already."""

    promise: int
    new: bool


class RedeemBody(Body):
    """A returning person."""

    person: dict[str, Cell] = Field(examples=[_PERSON])
    record: bool = True
