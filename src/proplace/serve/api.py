"""The HTTP interface: nine routes, the same functions as the pages."""

# No postponed annotations: FastAPI reads them.
from typing import Any

from fastapi import APIRouter, Request, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from proplace import __version__
from proplace.core.errors import OptionError
from proplace.core.text import visible
from proplace.serve.schemas import (
    CertifyBody,
    ExplainBody,
    Explained,
    IssueBody,
    Issued,
    RedeemBody,
    Verdict,
)
from proplace.serve.workbench import BusyError, Workbench

API = "/api/v1"
MOST_PAGE = 500
_SEARCH_SECONDS = 60.0


def router() -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix=API)
    for path, method, handler, status in (
        ("/health", "GET", health, 200),
        ("/model", "GET", model, 200),
        ("/certify", "POST", certify, 200),
        ("/explain", "POST", explain, 200),
        ("/promises", "GET", promises, 200),
        ("/promises", "POST", issue, 201),
        ("/promises/{number}", "GET", promise, 200),
        ("/promises/{number}/redeem", "POST", redeem, 200),
        ("/audits", "POST", audit, 201),
    ):
        routes.add_api_route(path, handler, methods=[method], status_code=status)
    return routes


def error(status: int, text: str, fields: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as JSON."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    content: dict[str, Any] = {"error": visible(text)}
    if fields:
        content["fields"] = {visible(name): visible(each) for name, each in fields.items()}
    return JSONResponse(content, status_code=status, headers=headers)


def _bench(request: Request) -> Workbench:
    bench: Workbench = request.app.state.bench
    return bench


def health(request: Request) -> dict[str, Any]:
    """Return True under ``ready`` once the workbench is ready, and the current step before."""
    bench = _bench(request)
    return {
        "ready": bench.ready.is_set(),
        "step": "" if bench.ready.is_set() else bench.step,
        "version": __version__,
    }


def model(request: Request) -> dict[str, Any]:
    """Describe the model and its features."""
    return _bench(request).facts()


def certify(body: CertifyBody, request: Request) -> Verdict:
    """Decide about changed values, by the rules of the person before the change."""
    bench = _bench(request)
    if (body.person is None) == (body.answer is None):
        raise OptionError("Give either a person or the address of an answer.", name="person")
    if body.answer is not None:
        answer = bench.answer(body.answer)
        return Verdict(**bench.verdict(answer.case, body.changes, answer.request))
    return Verdict(**bench.verdict(bench.case(body.person or {}), body.changes))


def explain(body: ExplainBody, request: Request) -> Explained:
    """Search for counterfactuals of one person, and wait for them."""
    bench = _bench(request)
    case = bench.case(body.person)
    wishes = body.request.model_dump(exclude_unset=True)
    answer = bench.explain(case, bench.request(wishes))
    if not answer.wait(_SEARCH_SECONDS):
        raise BusyError("The search still runs. Send the same request again in a moment.")
    wording = bench.project.wording
    alternatives = [each.to_dict(wording) for each in answer.result.result()]
    return Explained(answer=answer.key, accepted=case.accepted, alternatives=alternatives)


def promises(
    request: Request,
    person: str = "",
    state: str | None = None,
    before: int | None = None,
    size: int = 50,
) -> dict[str, Any]:
    """List promises, the latest first, with the value of ``before`` for the next page as ``next``."""
    size = max(1, min(size, MOST_PAGE))
    page = _bench(request).promises(person, state, before, size)
    rows = page.reset_index().to_dict("records")
    return {"promises": rows, "next": rows[-1]["id"] if len(rows) == size else None}


def issue(body: IssueBody, request: Request) -> Issued:
    """Promise one alternative. The same promise to the same person is issued once."""
    bench = _bench(request)
    answer = bench.answer(body.answer)
    number, new = bench.issue(answer, body.way, body.person, body.expires, body.existing)
    return Issued(promise=number, new=new)


def promise(number: int, request: Request) -> dict[str, Any]:
    """Return one promise with its explanation."""
    return _bench(request).promise_facts(number)


def redeem(number: int, body: RedeemBody, request: Request) -> dict[str, Any]:
    """Compare a returning person with their promise, and record the outcome."""
    return _bench(request).redeem(number, body.person, record=body.record).to_dict()


async def audit(file: UploadFile, request: Request) -> dict[str, Any]:
    """Audit a retrained model, ``.onnx`` or ``.npz``, against all open promises."""
    bench = _bench(request)
    content = await file.read()
    found: dict[str, Any] = await run_in_threadpool(bench.audit, str(file.filename), content)
    return found
