"""People: find or enter somebody, and see today's decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import Response  # noqa: TC002  (FastAPI reads it)

from proplace.apps.serve.models import matching
from proplace.apps.serve.pages.common import Visit, see_other, visit
from proplace.apps.serve.pages.fields import fields_of, named_in, person_from
from proplace.core.errors import InputError, OptionError, SchemaError

if TYPE_CHECKING:
    from proplace.apps.serve.models import Engine

router = APIRouter(prefix="/people")

Asking = Annotated[Visit, visit("predict")]
LookingUp = Annotated[Visit, visit("people")]
WRONG = (InputError, OptionError, SchemaError)
"""What is said beside the form, since it is to be changed there."""


@dataclass(frozen=True)
class Decision:
    """What the model says of a person.

    Attributes
    ----------
    outcome, accepted
        The decision in the words of the model, and whether it is the wanted one.
    margin
        How clear the decision of the model in use is for the wanted class; below 0 it is refused.
    robust, worst
        Whether every network of the set gives the wanted class (None: undecided), and the least margin.
    """

    outcome: str
    accepted: bool
    margin: float
    robust: bool | None
    worst: float


def decision_of(engine: Engine, person: dict[str, Any]) -> Decision:
    """Today's decision, and what the set of networks says."""
    said, proved = engine.predict([person])[0], engine.certify([person], None)[0]
    number = list(engine.model.classes).index(said["label"])
    outcome = engine.wording.outcome(number, engine.model.classes)
    return Decision(outcome, said["accepted"], said["margin"], proved["robust"], proved["margin"])


@router.get("")
def first(seen: Asking) -> Response:
    """Begin with the first model."""
    return see_other(f"/people/{quote(next(iter(seen.service.engines)), safe='')}")


@router.get("/{name}")
def empty(seen: Asking, name: str) -> Response:
    """Nobody yet."""
    return _page(seen, seen.engine(name), {})


@router.post("/{name}/find")
def find(seen: LookingUp, name: str) -> Response:
    """Find somebody by the id."""
    engine, number = seen.engine(name), seen.given("id")
    person = engine.person(number)
    if person is not None:
        return _page(seen, engine, person, number)
    found = matching(engine.people, number) if number else []
    return _page(seen, engine, {}, number, found=found, asked=True)


@router.post("/{name}")
def entered(seen: Asking, name: str) -> Response:
    """Look at somebody who was entered."""
    engine = seen.engine(name)
    person = person_from(seen.form, engine.model.schema.features)
    return _page(seen, engine, person, seen.given("id"))


def _page(
    seen: Visit,
    engine: Engine,
    person: dict[str, Any],
    number: str = "",
    *,
    found: list[str] | None = None,
    asked: bool = False,
) -> Response:
    problem, decision = "", None
    if person:
        try:
            decision = decision_of(engine, person)
        except WRONG as error:
            problem = said_of_one(error)
    fields = fields_of(engine.model.schema.features, person, seen.text)
    return seen.render(
        "people.html.j2",
        422 if problem else 200,
        engine=engine,
        models=list(seen.service.engines),
        fields=fields,
        wrong=named_in(problem, fields),
        id=number,
        decision=decision,
        problem=problem,
        found=found or [],
        asked=asked,
        hint=seen.service.config.hint,
    )


def said_of_one(error: Exception) -> str:
    """What is wrong, where there is but one person."""
    text = str(error).removeprefix("person 0: ")
    return f"{text[:1].upper()}{text[1:]}"
