"""What the service answers, for its description by OpenAPI."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from proplace.promises.redeeming import Missing  # noqa: TC001  (pydantic reads it)

Label = str | bool | int | float


class _Answer(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


class _Open(BaseModel):
    """Fields beside the ones named here are passed on."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Error(_Answer):
    """Why there is no answer."""

    error: str


class Live(_Answer):
    """An audited model that is served in place of the one of the configuration."""

    audit: int
    by: str
    since: float


class Model(_Answer):
    """A model that is served."""

    name: str
    model: str
    file_digest: str | None
    network: str
    classes: list[Label]
    target: Label
    delta: float | None
    shifts: str | None
    features: int
    training_rows: int
    live: Live | None


class Schema(_Answer):
    """Features and rules, as a schema file has them."""

    features: list[dict[str, Any]]
    rules: list[Any]


class Predicted(_Answer):
    """Today's decision of one person, and how clear it is."""

    label: Label
    accepted: bool
    margin: float


class Verdict(_Answer):
    """Whether every network of the set accepts one person; ``robust`` is null where it is not known."""

    label: Label
    accepted: bool
    robust: bool | None
    margin: float


class Answer(_Open):
    """One answer: what ``Explanation`` holds, its sentence and its certificate."""

    status: str
    reason: str
    sentence: str
    certificate_digest: str | None


class Answers(_Answer):
    """Answers of each person, in the order they were sent."""

    answers: list[list[Answer]]


class Started(_Answer):
    """The job that looks for the answers."""

    job: str


class Checked(_Answer):
    """Whether a certificate is accepted, and what it claims if so."""

    accepted: bool
    reason: str
    claim: str | None


class Job(_Answer):
    """How far a job is."""

    job: str
    kind: Literal["explain", "audit", "renew"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    done: int
    total: int
    reason: str
    created: float
    ended: float | None


class JobAnswers(Job):
    """What a job has found so far, by the number of the person."""

    answers: dict[int, Any]


class PromiseRow(_Open):
    """One promise of the table."""

    id: int
    person: str | None
    state: str


class Promise(_Open):
    """One promise with its certificate and its history."""

    promise: int
    person: str | None
    state: str
    issued: str
    expires: str | None
    certificate: dict[str, Any] | None
    history: list[dict[str, Any]]


class Issued(_Answer):
    """The number of a promise, and whether it was made now."""

    promise: int
    new: bool


class Redeemed(_Answer):
    """Whether a person who came back has what was promised, and what the model in service says."""

    verdict: str
    words: str
    missing: list[Missing]
    accepted: bool
    model: str


class Erased(_Answer):
    """The promises that were made to a person of whom nothing is kept now."""

    promises: list[int]


class Decided(_Answer):
    """The entry of the ledger that holds the decision."""

    entry: int


class Verified(_Answer):
    """Whether everything in the ledger is as it was written."""

    good: bool
    entries: int
    promises: int
    erased: int
    head: str
    problems: list[Any]


class Entry(_Answer):
    """An entry of the chain."""

    model_config = ConfigDict(extra="allow")

    seq: int
    time: str
    kind: str
    promise: int | None


class Health(_Answer):
    """How busy the service is."""

    status: Literal["ok"]
    waiting: int
    running: int
