"""The interface for programs: JSON over HTTP, described by OpenAPI."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Form, Header, Path, Query, Request, UploadFile
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from fastapi.routing import APIRoute
from fastapi.security import APIKeyCookie, HTTPBearer

from proplace.apps.serve import answers as a
from proplace.apps.serve import questions as q
from proplace.apps.serve.access import COOKIE, CSRF_HEADER, DOCUMENT_POLICY, Caller, Refused
from proplace.apps.serve.bulk import SMALL, check_count
from proplace.apps.serve.door import at_the_door
from proplace.apps.serve.once import HEADER
from proplace.promises.promise import State  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from proplace.apps.serve.once import Once
    from proplace.apps.serve.service import Service


class Route(APIRoute):
    """A route that knows who asks, and what their role allows, before it reads what they send."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI asks for it."""
        handler = super().get_route_handler()
        checks = [d.call for d in self.dependant.dependencies if isinstance(d.call, Allowed)]
        makes = any(one.alias == HEADER for one in self.dependant.header_params)

        async def answered(request: Request) -> Response:
            if self.name in _IN_BULK and await _is_large(request):
                return await _IN_BULK[self.name](request)
            return await handler(request)

        async def checked(request: Request) -> Response:
            for check in checks:
                await at_the_door(check.admit, request)
            if makes and HEADER in request.headers:
                once: Once = request.app.state.once
                return await once.answer(request, request.state.caller.name, answered)
            return await answered(request)

        return checked


_REFUSALS = {
    400: "The body cannot be read.",
    401: "No key, or one that is not known.",
    403: "The role does not allow it, or a session was used without its token.",
    404: "There is no such thing.",
    409: "The ledger refuses it.",
    413: "The request is too large.",
    422: "What was sent is wrong; the error says what.",
    429: "Too many requests or searches; Retry-After says when to ask again.",
    503: "The process of the search died; ask again.",
    504: "The search did not end in time.",
}
router = APIRouter(
    prefix="/api/v1",
    route_class=Route,
    responses={n: {"model": a.Error, "description": text} for n, text in _REFUSALS.items()},
)
open_router = APIRouter(prefix="/api/v1")
_bearer = HTTPBearer(auto_error=False, description="A key: proplace serve keys add")
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, description="A session of the page")


def _text(kind: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is no JSON; refusals are."""
    return {200: {"content": {kind: {"schema": {"type": "string"}}}}}


Number = Annotated[int, Path(ge=1, le=2**53)]
Key = Annotated[
    str | None,
    Header(
        alias=HEADER,
        description="Any text that is new for each request: sent again with the same, it is done once.",
    ),
]


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """Who asks; raises where nobody is known."""
    service = service_of(request)
    given = request.headers.get("authorization", "")
    if given.lower().startswith("bearer "):
        key = service.store.key(given[7:].strip())
        if key is None:
            service.logins.check(_address(request))
            raise Refused(401, "this key is not known; ask for one: proplace serve keys add")
        caller = Caller(key)
    else:
        session = service.store.session(request.cookies.get(COOKIE, ""))
        if session is None:
            service.rate.check(_address(request))
            raise Refused(401, "give a key (Authorization: Bearer ...), or log in")
        caller = Caller(session.key, session)
        if request.method not in ("GET", "HEAD"):
            caller.check_csrf(request.headers.get(CSRF_HEADER))
    service.rate.check(f"key {caller.key.id}")
    request.state.caller = caller
    return caller


def _job_number(request: Request) -> str | None:
    """The number that was chosen for the job of a request that is done once."""
    return getattr(request.state, "job", None)


def _started(job: str) -> Response:
    return JSONResponse({"job": job}, status_code=202, headers={"location": f"/api/v1/jobs/{job}"})


def _address(request: Request) -> str:
    return "address " + (request.client.host if request.client else "")


class Allowed:
    """A caller whose role allows something."""

    def __init__(self, permission: str) -> None:
        self.permission = permission

    def admit(self, request: Request) -> Caller:
        """Look who asks and what the role allows; raises where it does not."""
        caller = caller_of(request)
        caller.check(self.permission)
        return caller

    async def __call__(
        self,
        request: Request,
        _: Annotated[Any, Depends(_bearer)],
        __: Annotated[Any, Depends(_cookie)],
    ) -> Caller:
        """Who was admitted by :class:`Route`, or is now."""
        known: Caller | None = getattr(request.state, "caller", None)
        return await at_the_door(self.admit, request) if known is None else known


def who(permission: str) -> Any:
    """The same, as FastAPI wants it."""
    return Depends(Allowed(permission))


# -- models ----------------------------------------------------------------------------------------


@router.get("/models", response_model=list[a.Model])
def models(request: Request, _: Annotated[Caller, who("models")]) -> list[dict[str, Any]]:
    """All models that are served."""
    return [engine.facts() for engine in service_of(request).engines.values()]


@router.get("/models/{name}", response_model=a.Model)
def model(request: Request, name: str, _: Annotated[Caller, who("models")]) -> dict[str, Any]:
    """One model."""
    return service_of(request).engine(name).facts()


@router.get("/models/{name}/schema", response_model=a.Schema)
def schema(request: Request, name: str, _: Annotated[Caller, who("models")]) -> dict[str, Any]:
    """Features and rules of a model, as a schema file has them."""
    return service_of(request).engine(name).schema_facts()


@router.post("/models/{name}/predict", response_model=list[a.Predicted])
def predict(
    request: Request, name: str, asked: q.People, _: Annotated[Caller, who("predict")]
) -> list[dict[str, Any]]:
    """Today's decision of each person."""
    service = service_of(request)
    check_count(asked.people, service.config.limits.people)
    return service.engine(name).predict(asked.people)


@router.post("/models/{name}/certify", response_model=list[a.Verdict])
def certify(
    request: Request, name: str, asked: q.Certify, _: Annotated[Caller, who("certify")]
) -> list[dict[str, Any]]:
    """Whether every network of the set accepts each person, and by which margin."""
    service = service_of(request)
    check_count(asked.people, service.config.limits.people)
    return service.engine(name).certify(asked.people, asked.target)


@router.post(
    "/models/{name}/explain",
    responses={200: {"model": a.Answers}, 202: {"model": a.Started, "description": "A job"}},
)
async def explain(
    request: Request,
    name: str,
    asked: q.Explain,
    caller: Annotated[Caller, who("explain")],
    _: Key = None,
) -> Response:
    """Answers for some people: at once for a few (200), as a job for many (202)."""
    service = service_of(request)
    check_count(asked.people, service.config.limits.people)
    if len(asked.people) > service.config.limits.at_once:
        job = await asyncio.to_thread(
            service.add_explain_job,
            name,
            asked.people,
            asked.options,
            caller,
            number=_job_number(request),
        )
        return _started(job)
    future = await asyncio.to_thread(service.ask_explain, name, asked.people, asked.options)
    return JSONResponse({"answers": await asyncio.wrap_future(future)})


@router.post("/models/{name}/check", response_model=a.Checked)
async def check(
    request: Request, name: str, _asked: q.Check, _: Annotated[Caller, who("check")]
) -> dict[str, Any]:
    """Check a certificate against a model, in exact arithmetic; what is checked are the bytes sent."""
    certificate = q.certificate_in(await request.body())
    future = await asyncio.to_thread(service_of(request).ask_check, name, certificate)
    return dict(await asyncio.wrap_future(future))


# -- about many people -----------------------------------------------------------------------------


async def _is_large(request: Request) -> bool:
    """Whether a body takes long to read; anything but JSON is refused at once."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" and len(await request.body()) > SMALL


async def _in_bulk(request: Request, what: str) -> Any:
    """What the process for large bodies makes of one."""
    name, body = request.path_params["name"], await request.body()
    future = await asyncio.to_thread(service_of(request).ask_bulk, what, name, body)
    return await asyncio.wrap_future(future)


async def _large_answer(request: Request) -> Response:
    what = request.scope["route"].name
    return Response(await _in_bulk(request, what), media_type="application/json")


async def _large_explain(request: Request) -> Response:
    """A job, or answers of a few people of whom much was said."""
    service, caller = service_of(request), request.state.caller
    total, question = await _in_bulk(request, "explain")
    if total <= service.config.limits.at_once:
        asked = q.Explain.model_validate(await request.json())
        name = request.path_params["name"]
        future = await asyncio.to_thread(service.ask_explain, name, asked.people, asked.options)
        return JSONResponse({"answers": await asyncio.wrap_future(future)})
    job = await asyncio.to_thread(
        service.add_job, "explain", question, total, caller, _job_number(request)
    )
    return _started(job)


_IN_BULK: dict[str, Callable[[Request], Coroutine[Any, Any, Response]]] = {
    "predict": _large_answer,
    "certify": _large_answer,
    "explain": _large_explain,
}


# -- jobs ------------------------------------------------------------------------------------------


def _job(request: Request, number: str, caller: Caller) -> Any:
    job = service_of(request).store.job(number)
    if job is None or (job.by != caller.name and caller.key.role != "admin"):
        raise Refused(404, f"there is no job {number!r}")
    return job


def _job_facts(job: Any) -> dict[str, Any]:
    return {
        "job": job.id, "kind": job.kind, "state": job.state, "done": job.done, "total": job.total,
        "reason": job.reason, "created": job.created, "ended": job.ended,
    }  # fmt: skip


@router.get("/jobs", response_model=list[a.Job])
def jobs(request: Request, caller: Annotated[Caller, who("jobs")]) -> list[dict[str, Any]]:
    """Your jobs; an admin sees all."""
    by = None if caller.key.role == "admin" else caller.name
    return [_job_facts(job) for job in service_of(request).store.jobs(by)]


@router.get("/jobs/{number}", response_model=a.Job)
def job(request: Request, number: str, caller: Annotated[Caller, who("jobs")]) -> dict[str, Any]:
    """How far a job is."""
    return _job_facts(_job(request, number, caller))


@router.get(
    "/jobs/{number}/answers", response_class=Response, responses={200: {"model": a.JobAnswers}}
)
def job_answers(request: Request, number: str, caller: Annotated[Caller, who("jobs")]) -> Response:
    """What a job has found so far, by the number of the person."""
    found, store = _job(request, number, caller), service_of(request).store

    def text() -> Iterator[str]:
        yield json.dumps(_job_facts(found)).removesuffix("}") + ', "answers": {'
        between = ""
        for some in store.parts_as_written(number):
            lines = []
            for part, answer in some:
                whole = found.kind == "explain" and answer.startswith("[")  # of one person
                lines.append(f'{between}"{part}": {answer[1:-1] if whole else answer}')
                between = ", "
            yield "".join(lines)
        yield "}}"

    return StreamingResponse(text(), media_type="application/json")


@router.delete("/jobs/{number}", status_code=204)
def cancel(request: Request, number: str, caller: Annotated[Caller, who("jobs")]) -> None:
    """Give a job up."""
    _job(request, number, caller)
    service_of(request).cancel_job(number)


# -- promises --------------------------------------------------------------------------------------


@router.get("/promises", response_model=list[a.PromiseRow])
def promises(
    request: Request,
    _: Annotated[Caller, who("promises")],
    person: str | None = None,
    state: State | None = None,
) -> list[dict[str, Any]]:
    """Promises, of a person or in a state; at most the latest 1,000."""
    frame = service_of(request).ledger.promises(person, state)
    frame = frame.tail(1000)[::-1].reset_index()
    return json.loads(frame.to_json(orient="records"))  # type: ignore[no-any-return]


@router.get("/promises/{number}", response_model=a.Promise)
def promise(
    request: Request, number: Number, _: Annotated[Caller, who("promises")]
) -> dict[str, Any]:
    """One promise with its certificate and its history."""
    ledger = service_of(request).ledger
    found = ledger.promise(number)
    proof = found.certificate
    return {
        "promise": found.id, "person": found.person, "state": found.state, "issued": found.issued,
        "expires": found.expires, "target": found.target, **dict(found.facts),
        "certificate": None if proof is None else proof.facts,
        "history": [
            {"entry": e.seq, "time": e.time, "kind": e.kind, **e.facts} for e in ledger.history(number)
        ],
    }  # fmt: skip


@router.post("/models/{name}/promises", status_code=201, response_model=a.Issued)
async def issue(
    request: Request,
    name: str,
    asked: q.Issue,
    caller: Annotated[Caller, who("issue")],
    _: Key = None,
) -> dict[str, Any]:
    """Promise an answer that was seen."""
    first = getattr(request.state, "first", None)
    future = await asyncio.to_thread(
        service_of(request).ask_issue, name, asked, caller, first=first
    )
    return dict(await asyncio.wrap_future(future))


@router.post("/promises/{number}/redeem", response_model=a.Redeemed)
def redeem(
    request: Request, number: Number, asked: q.Redeem, caller: Annotated[Caller, who("redeem")]
) -> dict[str, Any]:
    """Look whether a person who comes back has what was promised."""
    found = service_of(request).redeem(number, asked.person, caller, record=not asked.dry_run)
    facts = found.to_dict()
    said = {name: facts[name] for name in ("verdict", "missing", "accepted", "model")}
    return said | {"words": str(found)}


@router.post("/promises/{number}/withdraw", status_code=204)
def withdraw(
    request: Request, number: Number, asked: q.Withdraw, caller: Annotated[Caller, who("withdraw")]
) -> None:
    """Take a promise back."""
    service_of(request).ledger.acting_as(caller.name).withdraw(number, asked.reason)


@router.post("/people/erase", response_model=a.Erased)
def erase(
    request: Request, asked: q.Erase, caller: Annotated[Caller, who("erase")]
) -> dict[str, Any]:
    """Erase all that the ledger knows about a person."""
    return {"promises": list(service_of(request).erase(asked.id, caller))}


# -- audits and the ledger -------------------------------------------------------------------------


@router.post("/audits", status_code=202, responses={202: {"model": a.Started}})
async def audit(
    request: Request,
    model: UploadFile,
    caller: Annotated[Caller, who("audit")],
    replaces: Annotated[str | None, Form()] = None,
    _: Key = None,
) -> Response:
    """Audit an uploaded model against all open promises, as a job.

    It is read as the model that it ``replaces`` is; that need not be said of the only one.
    """
    service = service_of(request)
    most = service.config.limits.model_file
    content = await model.read(most + 1)
    if len(content) > most:
        raise Refused(413, f"the model has more than {most:,} bytes")
    job = await asyncio.to_thread(
        service.add_audit_job,
        model.filename or "",
        content,
        caller,
        replaces,
        number=_job_number(request),
    )
    return _started(job)


@router.get("/jobs/{number}/page", response_class=Response, responses=_text("text/html"))
def audit_page(request: Request, number: str, caller: Annotated[Caller, who("audit")]) -> Response:
    """The page of an audit."""
    _job(request, number, caller)
    path = service_of(request).files / f"audit-{number}.html"
    if not path.is_file():
        raise Refused(404, "there is no page of this audit yet")
    headers = {"content-security-policy": DOCUMENT_POLICY}
    return HTMLResponse(path.read_text(encoding="utf-8"), headers=headers)


@router.post("/audits/{number}/decision", status_code=201, response_model=a.Decided)
def decide(
    request: Request, number: Number, asked: q.Decision, caller: Annotated[Caller, who("decide")]
) -> dict[str, Any]:
    """Write down whether an audited model goes into use."""
    ledger = service_of(request).ledger.acting_as(caller.name)
    return {"entry": ledger.decide(number, go=asked.go, note=asked.note).seq}


@router.post("/audits/{number}/renewals", status_code=202, responses={202: {"model": a.Started}})
async def renew(
    request: Request,
    number: Number,
    asked: q.Renew,
    caller: Annotated[Caller, who("decide")],
    _: Key = None,
) -> Response:
    """Search new answers for the promises that an audit found broken, or issue those seen, as a job."""
    job = await asyncio.to_thread(
        service_of(request).add_renewal_job,
        asked.model,
        number,
        caller,
        asked.seen,
        number=_job_number(request),
    )
    return _started(job)


@router.post("/audits/{number}/live", response_model=a.Model)
def go_live(
    request: Request, number: Number, asked: q.GoLive, caller: Annotated[Caller, who("live")]
) -> dict[str, Any]:
    """Serve an audited model from now on, after a go: answers and promises are of it."""
    return service_of(request).go_live(number, asked.model, caller).facts()


@router.get("/ledger", response_model=a.Verified)
def ledger(request: Request, _: Annotated[Caller, who("ledger")]) -> dict[str, Any]:
    """Look whether everything in the ledger is as it was written."""
    found = service_of(request).ledger.verify()
    return {
        "good": found.good, "entries": found.entries, "promises": found.promises,
        "erased": found.erased, "head": str(found.head), "problems": found.problems,
    }  # fmt: skip


@router.get("/ledger/entries", response_model=list[a.Entry])
def entries(
    request: Request,
    _: Annotated[Caller, who("ledger")],
    after: Annotated[int, Query(ge=0)] = 0,
    most: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[dict[str, Any]]:
    """Entries of the chain, which hold no personal data."""
    found = []
    for entry in service_of(request).ledger.entries():
        if entry.seq > after:
            found.append(entry._asdict())
        if len(found) >= most:
            break
    return found


# -- how it is -------------------------------------------------------------------------------------


@open_router.get("/health", response_model=a.Health)
def health(request: Request) -> dict[str, Any]:
    """Whether the service answers: open to everyone, and says nothing about anyone."""
    workers = service_of(request).workers
    return {"status": "ok", "waiting": workers.waiting, "running": workers.running}


@router.get("/metrics", response_class=Response, responses=_text("text/plain"))
def metrics(request: Request, _: Annotated[Caller, who("metrics")]) -> Response:
    """Numbers for Prometheus."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415

    content = generate_latest(request.app.state.metrics.registry)
    return PlainTextResponse(content, media_type=CONTENT_TYPE_LATEST)
