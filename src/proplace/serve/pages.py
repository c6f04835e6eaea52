"""The pages. Each POST redirects to an address, so that Back, refresh and bookmarks work."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from proplace import verify
from proplace.core.errors import InputError, LedgerError, ProplaceError
from proplace.core.text import visible
from proplace.explain.statement import stated
from proplace.report.letter import letter_of_promise
from proplace.serve import views
from proplace.serve.forms import FieldErrors, fields_of
from proplace.serve.workbench import GoneError, way_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastapi import FastAPI
    from starlette.requests import Request

    from proplace.serve.app import Access
    from proplace.serve.workbench import Answer, Case, Workbench

OPEN = frozenset(("/login", "/static/style.css", "/static/script.js", "/api/v1/health"))
"""Paths that need no login."""

_PREFIX = "is:"  # of the fields of a person, which may have any name
_WAIT = 1.5  # seconds that a page waits for its search
_PAGE = 50  # promises
_MOST_PEOPLE = 200  # people of an audit
_FILES = {"style.css": "text/css", "script.js": "text/javascript"}


class Visit(NamedTuple):
    """One request of a browser: the workbench, the fields of the form, and the request itself."""

    bench: Workbench
    form: Mapping[str, str]
    request: Request

    def number(self, name: str = "number") -> int:
        """Return a number from the address."""
        text = str(self.request.path_params[name])
        if not text.isdecimal() or not text.isascii() or len(text) > 18:
            raise GoneError("This page does not exist.")
        return int(text)


def add_to(app: FastAPI) -> None:
    """Add all pages to an application."""
    for path, method, handler in (
        ("/", "GET", home),
        ("/people", "POST", find),
        ("/people/{key}", "GET", person),
        ("/answers", "POST", search),
        ("/answers/{key}", "GET", answer),
        ("/answers/{key}/{number}", "GET", answer),
        ("/answers/{key}/{number}/promise", "POST", issue),
        ("/promises", "GET", promises),
        ("/promises/find", "POST", promises_of),
        ("/promises/{number}", "GET", promise),
        ("/promises/{number}/letter", "GET", letter),
        ("/promises/{number}/proof", "GET", proof),
        ("/promises/{number}/redeem", "POST", redeem),
        ("/promises/{number}/withdraw", "POST", withdraw),
        ("/audits", "GET", audits),
        ("/audits", "POST", upload),
        ("/audits/{number}", "GET", audit),
        ("/login", "GET", login),
        ("/login", "POST", login),
        ("/verify.html", "GET", checker),
        ("/static/{name}", "GET", static),
    ):
        app.add_route(path, _endpoint(handler), methods=[method])


def _endpoint(handler: Callable[[Visit], Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        form: dict[str, Any] = {}
        if request.method == "POST":
            kind = request.headers.get("content-type", "")
            if kind.startswith("multipart/form-data"):
                async with request.form(max_files=1, max_fields=10) as sent:
                    form = {
                        name: part if isinstance(part, str) else (part.filename, await part.read())
                        for name, part in sent.items()
                    }
            else:
                text = (await request.body()).decode("utf-8", "replace")
                form = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=2000))
        return await run_in_threadpool(handler, Visit(request.app.state.bench, form, request))

    endpoint.__name__ = handler.__name__
    return endpoint


# -- rendering -------------------------------------------------------------------------------------


@cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("proplace.serve"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["date"] = views.date
    return found


def _page(request: Request, template: str, status: int = 200, /, **facts: Any) -> HTMLResponse:
    access: Access = request.app.state.access
    bench: Workbench = request.app.state.bench
    facts = {"root": access.root, "bench": bench, **facts}
    return HTMLResponse(_templates().get_template(f"{template}.html.j2").render(facts), status)


def _to(visit: Visit, path: str) -> RedirectResponse:
    """Redirect the browser to another page of the workbench."""
    access: Access = visit.request.app.state.access
    return RedirectResponse(access.root + path, 303)


def error_page(
    request: Request, status: int, text: str, fields: Mapping[str, str] | None = None
) -> Response:
    """Return a page with the problem and a next step."""
    starting = status == 503
    return _page(request, "error", status, text=text, fields=fields or {}, starting=starting)


def login_page(request: Request, status: int = 200, error: str = "") -> Response:
    """Return the page with the field for the token."""
    return _page(request, "login", status, error=error, entered=False)


def login(visit: Visit) -> Response:
    """Accept the code of the link, once, or the token. Set a cookie in return.

    A page of the workbench then opens the next page, because browsers send a strict cookie only then.
    """
    access: Access = visit.request.app.state.access
    code, token = visit.request.query_params.get("code"), visit.form.get("token", "").strip()
    if code is None and visit.request.method == "GET":
        return login_page(visit.request)
    if not (access.takes_code(code or "") or access.takes_token(token)):
        text = "This link was used already, or belongs to an earlier start. Enter the token."
        return login_page(visit.request, 401, text if code else "This token is not valid.")
    response = _page(visit.request, "login", error="", entered=True)
    response.headers["set-cookie"] = access.cookie()
    return response


# -- people ----------------------------------------------------------------------------------------


def home(visit: Visit) -> Response:
    """Show the forms that find or enter a person."""
    if not visit.bench.opened.is_set():
        return _page(visit.request, "error", 503, text="", fields={}, starting=True)
    return _home(visit, {})


def _home(visit: Visit, values: Mapping[str, Any], status: int = 200, **facts: Any) -> Response:
    usual = {"errors": {}, "wanted": "", "name": "", "found": [], "total": 0}
    errors = facts.get("errors", {})
    fields = fields_of(visit.bench.schema, values, errors)
    return _page(visit.request, "home", status, fields=fields, **(usual | facts))


def find(visit: Visit) -> Response:
    """Look up a person, or read the values that were entered."""
    bench, form = visit.bench, visit.form
    wanted = form.get("wanted", "").strip()
    if "wanted" in form:
        known = bench.known(wanted)
        if known is None:
            found, total = bench.find(wanted)
            return _home(visit, {}, 200, wanted=wanted, found=found, total=total)
        return _to(visit, f"/people/{bench.case(known, wanted).key}")
    values = {k.removeprefix(_PREFIX): v for k, v in form.items() if k.startswith(_PREFIX)}
    name = form.get("name", "").strip()[:200]
    try:
        case = bench.case(values, name)
    except FieldErrors as error:
        return _home(visit, values, 422, errors=error.errors, name=name)
    return _to(visit, f"/people/{case.key}")


def person(visit: Visit) -> Response:
    """Show today's decision about a person, and the form that starts a search."""
    case = _case(visit)
    return _person(visit, case)


def _case(visit: Visit) -> Case:
    found = visit.bench.cases.get(str(visit.request.path_params["key"]))
    if found is None:
        raise GoneError("This person is no longer in memory. Look them up again.")
    return found


def _person(visit: Visit, case: Case, status: int = 200, error: str = "") -> Response:
    bench = visit.bench
    history = []
    if case.id and bench.ledger is not None:
        rows = bench.book.promises(case.id).reset_index().to_dict("records")
        history = rows[::-1][:_PAGE]
    return _page(
        visit.request,
        "person",
        status,
        case=case,
        rows=views.rows(bench.schema, case.given),
        history=history,
        outside=bench.outside(case),
        error=error,
    )


# -- answers ---------------------------------------------------------------------------------------


def search(visit: Visit) -> Response:
    """Start a search, or redirect to its known result."""
    bench, form = visit.bench, visit.form
    case = bench.cases.get(form.get("case", ""))
    if case is None:
        raise GoneError("This person is no longer in memory. Look them up again.")
    if case.accepted:
        return _to(visit, f"/people/{case.key}")
    kept = [k.removeprefix("keep:") for k in form if k.startswith("keep:")]
    most = form.get("max_changes", "")
    wishes = {
        "prefer": form.get("prefer", "sparse"),
        "immutable": kept,
        "max_changes": int(most) if most.isdecimal() and len(most) < 4 and int(most) else None,
    }
    try:
        found = bench.explain(case, bench.request(wishes))
    except InputError as error:
        return _person(visit, case, 422, str(error))
    return _to(visit, f"/answers/{found.key}")


def answer(visit: Visit) -> Response:
    """Show the result on one page. While the search runs, the page reloads itself."""
    found = visit.bench.answer(str(visit.request.path_params["key"]))
    way = visit.number() - 1 if "number" in visit.request.path_params else 0
    return _answer(visit, found, way)


def _answer(visit: Visit, found: Answer, way: int, status: int = 200, **facts: Any) -> Response:
    bench = visit.bench
    if not found.wait(_WAIT):
        return _page(visit.request, "waiting", answer=found, share=found.share(bench.seconds))
    shown = way_of(found, max(way, 0))
    wording = bench.project.wording
    documents = [each.to_dict(wording) for each in found.result.result()]
    document = documents[shown.rank]
    names = {claim["name"] for claim in document["claims"]}
    return _page(
        visit.request,
        "answer",
        status,
        answer=found,
        case=found.case,
        way=shown.rank,
        document=document,
        others=documents,
        headline=views.headline(document, wording),
        bars=views.bars(bench.schema, document, found.case.given, bench.ranges),
        more=views.more(bench.schema, found.case.given, bench.ranges, names),
        kept=[row for row in views.rows(bench.schema, found.case.given) if row.name not in names],
        facts=views.specialists(document, bench.facts()),
        form={"person": found.case.id, "expires": "", "existing": "refuse"} | facts.get("form", {}),
        errors={"person": "", "expires": ""} | facts.get("errors", {}),
        clash=facts.get("clash", ""),
    )


def issue(visit: Visit) -> Response:
    """Promise an alternative from memory. The same promise is issued once."""
    found = visit.bench.answer(str(visit.request.path_params["key"]))
    way, form = visit.number() - 1, visit.form
    expires = form.get("expires", "").strip() or None
    existing = form.get("existing", "refuse")
    try:
        number, _ = visit.bench.issue(found, way, form.get("person", ""), expires, existing)
    except FieldErrors as error:
        return _answer(visit, found, way, 422, form=dict(form), errors=error.errors)
    except LedgerError as error:
        if error.name != "existing":
            raise
        text = "This person has an open promise already."
        return _answer(visit, found, way, 409, form=dict(form), clash=text)
    return _to(visit, f"/promises/{number}")


# -- promises --------------------------------------------------------------------------------------


def promises(visit: Visit) -> Response:
    """List promises, the latest first, one page of the database at a time."""
    asked = visit.request.query_params
    before = asked.get("before", "")
    number = int(before) if before.isdecimal() and before.isascii() and len(before) < 19 else None
    return _promises(visit, "", asked.get("state") or None, number)


def promises_of(visit: Visit) -> Response:
    """Find promises by part of the person's id. A POST, because addresses contain no personal data."""
    return _promises(visit, visit.form.get("person", "").strip(), None, None)


def _promises(visit: Visit, person: str, state: str | None, before: int | None) -> Response:
    page = visit.bench.promises(person, state, before, _PAGE)
    rows = page.reset_index().to_dict("records")
    last = rows[-1]["id"] if len(rows) == _PAGE and not person else None
    return _page(
        visit.request, "promises", rows=rows, person=person, state=state, last=last, first=before
    )


def promise(visit: Visit) -> Response:
    """Show one promise: its content, its documents and its history."""
    return _promise(visit, visit.number())


def _promise(visit: Visit, number: int, status: int = 200, **facts: Any) -> Response:
    bench = visit.bench
    found, explanation = bench.promise(number), None
    bars: list[views.Bar] = []
    fields = []
    if found.explanation is not None:
        explanation = found.explanation.to_dict(found.wording)
        original = {str(k): v for k, v in dict(found.original).items()}  # type: ignore[arg-type]
        bars = views.bars(found.terms.model.schema, explanation, original, bench.ranges)
        values = facts.get("values") or {str(k): v for k, v in dict(found.answer).items()}  # type: ignore[arg-type]
        fields = fields_of(bench.schema, values, facts.get("errors"))
    return _page(
        visit.request,
        "promise",
        status,
        promise=found,
        document=explanation,
        headline="" if explanation is None else views.headline(explanation, found.wording),
        bars=bars,
        fields=fields,
        history=list(bench.book.entries(found.id)),
        outcome=facts.get("outcome", ""),
        error=facts.get("error", ""),
    )


def letter(visit: Visit) -> Response:
    """Return the letter of an open promise, to print."""
    found = visit.bench.promise(visit.number())
    with TemporaryDirectory(prefix="proplace-") as folder:
        path = Path(folder) / "letter.html"
        letter_of_promise(found, path, template=visit.bench.project.letter)
        text = path.read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
    return HTMLResponse(text, headers={"content-security-policy": policy})


def proof(visit: Visit) -> Response:
    """Return the certificate of a promise as a file."""
    found = visit.bench.promise(visit.number())
    document = None if found.explanation is None else stated(found.explanation, found.wording)
    if document is None:
        raise LedgerError(f"Promise {found.id} has no certificate, because it was erased.")
    headers = {"content-disposition": f'attachment; filename="promise-{found.id}.json"'}
    return Response(document.to_json(), media_type="application/json", headers=headers)


def redeem(visit: Visit) -> Response:
    """Compare a returning person with their promise."""
    number, form = visit.number(), visit.form
    values = {k.removeprefix(_PREFIX): v for k, v in form.items() if k.startswith(_PREFIX)}
    record = form.get("record") == "yes"
    try:
        found = visit.bench.redeem(number, values, record=record)
    except FieldErrors as error:
        return _promise(visit, number, 422, values=values, errors=error.errors)
    except ProplaceError as error:
        return _promise(visit, number, 409, values=values, error=str(error))
    note = "" if record else " Nothing was recorded."
    return _promise(visit, number, values=values, outcome=f"{found}{note}")


def withdraw(visit: Visit) -> Response:
    """Withdraw a promise for a reason."""
    number, reason = visit.number(), visit.form.get("reason", "").strip()
    try:
        if not reason:
            raise LedgerError("Give the reason. It stays in the ledger.")
        visit.bench.book.withdraw(number, reason[:1000])
    except LedgerError as error:
        return _promise(visit, number, 409, error=str(error))
    return _to(visit, f"/promises/{number}")


# -- audits ----------------------------------------------------------------------------------------


def audits(visit: Visit) -> Response:
    """Show the audits of the ledger, and a form that uploads a model."""
    return _audits(visit)


def _audits(visit: Visit, status: int = 200, error: str = "") -> Response:
    found = [(each, each.facts) for each in visit.bench.book.entries(kinds=["audited"])]
    return _page(visit.request, "audits", status, audits=found[::-1][:_PAGE], error=error)


def upload(visit: Visit) -> Response:
    """Audit an uploaded model."""
    file: Any = visit.form.get("file")
    if not isinstance(file, tuple) or not file[1]:
        return _audits(visit, 422, "Choose a model file that ends in .onnx or .npz.")
    try:
        found = visit.bench.audit(str(file[0]), file[1])
    except ProplaceError as error:
        return _audits(visit, 422, str(error))
    return _to(visit, f"/audits/{found['audit']}")


def audit(visit: Visit) -> Response:
    """Show one audit: the counts of its verdicts, and the people whose promises are broken."""
    number = visit.number()
    book = visit.bench.book
    rows = book.verdicts(number, ("broken", "undecided"), size=_MOST_PEOPLE).reset_index()
    entry = next(e for e in book.entries(kinds=["audited"]) if e.seq == number)
    counts = entry.facts["counts"]
    return _page(
        visit.request,
        "audit",
        entry=entry,
        facts=entry.facts,
        counts=counts,
        total=sum(counts.values()),
        rows=rows.to_dict("records"),
        bad=counts["broken"] + counts["undecided"],
    )


# -- files -----------------------------------------------------------------------------------------


def checker(_: Visit) -> Response:
    """Return the page that checks certificates without this package."""
    return HTMLResponse(
        verify.page(), headers={"content-security-policy": "frame-ancestors 'none'"}
    )


def static(visit: Visit) -> Response:
    """Return the style sheet or the script."""
    name = str(visit.request.path_params["name"])
    if name not in _FILES:
        raise GoneError("This page does not exist.")
    text = (resources.files("proplace.serve") / "static" / name).read_text(encoding="utf-8")
    headers = {"cache-control": "max-age=300"}
    return Response(text, media_type=f"{_FILES[name]}; charset=utf-8", headers=headers)
