"""What would change it: answers side by side, what is asked of them, and values to try."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from fastapi.responses import Response  # noqa: TC002  (FastAPI reads it)
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from proplace.apps.serve.access import Refused
from proplace.apps.serve.pages.common import Visit, see_other, visit
from proplace.apps.serve.pages.fields import Field, fields_of, person_from
from proplace.apps.serve.pages.people import WRONG, decision_of, said_of_one
from proplace.apps.serve.questions import Issue, Options
from proplace.apps.serve.workers import Busy, Cancelled, Died, Late
from proplace.core.errors import LedgerError

if TYPE_CHECKING:
    from proplace.apps.serve.models import Engine

router = APIRouter(prefix="/answers")

Searching = Annotated[Visit, visit("explain")]
Issuing = Annotated[Visit, visit("issue")]
Trying = Annotated[Visit, visit("certify")]

DEFAULTS = Options(count=3)
LOST = {Busy: 429, Late: 504, Died: 503, Cancelled: 503}
"""Searches that gave no answer, through no fault of what was asked; they may be tried again."""


@router.post("/{name}")
async def answers(seen: Searching, name: str) -> Response:
    """Search answers for somebody."""
    return await _answered(seen, seen.engine(name))


@router.post("/{name}/promise")
async def promise(seen: Issuing, name: str) -> Response:
    """Issue an answer as a promise; what stands against it is said beside the answers."""
    engine = seen.engine(name)
    person = person_from(seen.form, engine.model.schema.features)
    try:
        asked = Issue(
            id=seen.given("id"),
            person=person,
            options=Options.model_validate_json(seen.given("options")),
            certificate=seen.given("certificate"),
            expires=seen.given("expires") or None,
            existing=seen.given("existing") or "refuse",  # type: ignore[arg-type]
        )
    except ValidationError as error:
        return await _answered(seen, engine, refused=_complaint(error, seen))
    try:
        future = await run_in_threadpool(seen.service.ask_issue, name, asked, seen.who)
        made = await asyncio.wrap_future(future)
    except (LedgerError, Refused, Busy, Late, Died, Cancelled) as error:
        reason = await run_in_threadpool(_refusal, seen, asked, error)
        return await _answered(seen, engine, refused=reason)
    return see_other(f"/promises/{made['promise']}")


def _refusal(seen: Visit, asked: Issue, error: Exception) -> str:
    """Why it was not issued; another open promise in the words of the form."""
    known = seen.service.ledger.promises(asked.id, "open").index.tolist()
    about_it = isinstance(error, LedgerError) and "open promise" in str(error)
    if asked.existing == "refuse" and known and about_it:
        numbers = ", ".join(map(str, known))
        return seen.text("issue.known", numbers=numbers, existing=seen.text("issue.existing"))
    return _said(error, seen)


def _said(error: Exception, seen: Visit) -> str:
    """What went wrong: a search that was lost in the words of the page, else as it is."""
    for kind, key in LOST.items():
        if isinstance(error, kind):
            return seen.text(f"error.reason_{key}")
    return said_of_one(error)


@router.post("/{name}/try")
def try_values(seen: Trying, name: str) -> Response:
    """What the model says of values that were tried: for browsers without a script."""
    engine = seen.engine(name)
    person = person_from(seen.form, engine.model.schema.features)
    problem, decision = "", None
    try:
        decision = decision_of(engine, person)
    except WRONG as error:
        problem = said_of_one(error)
    return seen.render(
        "try.html.j2",
        422 if problem else 200,
        engine=engine,
        fields=fields_of(engine.model.schema.features, person, seen.text),
        starts=[],
        decision=decision,
        problem=problem,
    )


async def _answered(seen: Visit, engine: Engine, *, refused: str = "") -> Response:
    features = engine.model.schema.features
    person = person_from(seen.form, features)
    fields = fields_of(features, person, seen.text)
    found: list[dict[str, Any]] = []
    decision, status = None, 200
    options, problem, wrong = options_from(seen, fields)
    try:
        decision = await run_in_threadpool(decision_of, engine, person)
        if not problem:
            future = await run_in_threadpool(
                seen.service.ask_explain, engine.name, [person], options, pictures=True
            )
            found = (await asyncio.wrap_future(future))[0]
    except WRONG as error:
        problem = said_of_one(error)
    except (Busy, Late, Died, Cancelled) as error:
        problem, status = _said(error, seen), LOST[type(error)]
    good = [one for one in found if one["counterfactual"] is not None]
    starts = [
        {"name": seen.text("try.answer", number=n + 1), "values": one["counterfactual"]}
        for n, one in enumerate(good)
    ]
    now = {"name": seen.text("try.person"), "values": {f.name: f.value for f in fields}}
    first = good[0]["counterfactual"] if good else person
    return seen.render(
        "answers.html.j2",
        409 if refused else 422 if problem and status == 200 else status,
        engine=engine,
        fields=fields,
        trying=fields_of(features, first, seen.text),
        id=seen.given("id"),
        decision=decision,
        options=options,
        sent=json.dumps(options.model_dump(warnings=False)),
        answers=found,
        good=good,
        rows=_side_by_side(fields, good),
        starts=[*starts, now],
        problem=problem,
        refused=refused,
        wrong=wrong,
        typed={name: seen.given(name) for name in ("certificate", "expires", "existing")},
    )


def _side_by_side(fields: list[Field], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What changes in any of the answers, with what each of them asks for."""
    words = [{one["feature"]: one for one in answer["words"]} for answer in answers]
    return [
        {"title": field.title, "today": field.shown, "goals": [w.get(field.name) for w in words]}
        for field in fields
        if any(field.name in w for w in words)
    ]


def options_from(seen: Visit, fields: list[Field]) -> tuple[Options, str, frozenset[str]]:
    """What is asked of the answers, what is wrong with it, and in which fields of the form.

    It comes from the form, as it was sent with an answer, or is the usual. What is wrong stays as it
    was entered, to be changed.
    """
    facts = DEFAULTS.model_dump()
    try:
        if seen.given("options"):
            return Options.model_validate_json(seen.given("options")), "", frozenset()
        facts |= _entered(seen, fields) if seen.given("asked") else {}
        return Options.model_validate(facts), "", frozenset()
    except ValidationError as error:
        wrong = frozenset(":".join(map(str, one["loc"])) for one in error.errors())
        return Options.model_construct(**facts), _complaint(error, seen), wrong


def _entered(seen: Visit, fields: list[Field]) -> dict[str, Any]:
    free = [f for f in fields if not f.immutable]
    tolerance = {f.name: value for f in free if (value := seen.given(f"tolerance:{f.name}"))}
    effort = {f.name: value for f in free if (value := seen.given(f"effort:{f.name}"))}
    return {
        "count": seen.given("count") or 1,
        "prefer": seen.given("prefer") or "few",
        "max_changes": seen.given("max_changes") or None,
        "locked": [f.name for f in free if not seen.given(f"free:{f.name}")],
        "tolerance": tolerance or None,
        "effort": effort or None,
        "max_effort": seen.given("max_effort") or None,
        "holds": bool(seen.given("holds")),
    }


def _complaint(error: ValidationError, seen: Visit) -> str:
    """Which field of the form is wrong, without repeating what was sent."""
    parts = []
    for one in error.errors():
        path = [str(step) for step in one["loc"]]
        key = f"options.{path[0]}" if path else "options.title"
        name = seen.text(key) if seen.text.has(key) else path[0]
        where = f"{name} ({path[1]})" if len(path) > 1 else name
        kind = f"options.wrong.{one['type']}"
        limits = {k: v for k, v in one.get("ctx", {}).items() if isinstance(v, (int, float))}
        what = (
            seen.text(kind, **limits) if seen.text.has(kind) else seen.text("options.wrong.other")
        )
        parts.append(f"{where}: {what}")
    return "; ".join(parts)
