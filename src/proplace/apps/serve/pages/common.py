"""What all pages have in common: who looks, in which language, and how a page is made."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from proplace.apps.report.templating import templates
from proplace.apps.serve.access import COOKIE, CSRF_FIELD, Caller, Refused
from proplace.apps.serve.catalogue import Catalogue, catalogue_for
from proplace.apps.serve.door import at_the_door

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pandas as pd

    from proplace.apps.serve.models import Engine
    from proplace.apps.serve.service import Service
    from proplace.schema.validation import Label

    Fields = Sequence[tuple[str, str]]

_FIELDS = 5_000  # of one form
_HELD = 65_536  # bytes of a form that is kept for whoever has to log in again
_WORTH_IT = (401, 429, 503, 504)  # what may be sent again as it is
DOCUMENT = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    )
}
"""Headers of a page that is one file and has its looks in it: a letter, an audit to keep."""


@dataclass(frozen=True)
class Visit:
    """A request for a page: from whom, in which language, with which form."""

    request: Request
    service: Service
    text: Catalogue
    caller: Caller | None = None
    form: FormData = field(default_factory=FormData)

    @property
    def who(self) -> Caller:
        """Who looks; every page but the login has somebody."""
        assert self.caller is not None  # noqa: S101
        return self.caller

    def given(self, name: str) -> str:
        """A field of the form, as text; empty where it is not there."""
        value = self.form.get(name)
        return value.strip() if isinstance(value, str) else ""

    def refusal(self, status: int, key: str, **values: object) -> Refused:
        """An error in the words of the catalogue."""
        self.request.state.said = self.text(key, **values)
        return Refused(status, self.request.state.said)

    def engine(self, name: str) -> Engine:
        """A model that is served."""
        if name not in self.service.engines:
            raise self.refusal(404, "error.no_model", name=name)
        return self.service.engine(name)

    def render(self, template: str, status: int = 200, **facts: Any) -> HTMLResponse:
        """Make a page."""
        caller = self.caller
        session = None if caller is None else caller.session
        text = _templates().get_template(template).render(
            t=self.text,
            caller=caller,
            may=(lambda _: False) if caller is None else caller.may,
            csrf="" if session is None else session.csrf,
            site=self.service.config.title,
            path=self.request.url.path,
            **facts,
        )  # fmt: skip
        return HTMLResponse(text, status_code=status)


@cache
def _templates() -> Any:
    from proplace.apps.serve.pages.fields import plain_text  # noqa: PLC0415
    from proplace.apps.serve.pages.static import address  # noqa: PLC0415  (it has routes of its own)

    environment = templates("the page", "proplace.apps.serve")
    environment.globals["static"] = address
    environment.globals["outcomes"] = outcomes
    environment.filters["moment"] = moment
    environment.filters["amount"] = amount
    environment.filters["plain"] = plain_text
    return environment


def moment(value: str | float | None) -> str:
    """A time as people read it: that of the ledger (text), or seconds since 1970; both in UTC."""
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        value = datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    return value[:16].replace("T", " ") + (" UTC" if len(value) > 10 else "")


def amount(value: float | None) -> str:
    """A number with a few digits."""
    return "–" if value is None or value != value else f"{value:.4g}"  # noqa: PLR0124


def outcomes(engine: Engine) -> list[tuple[Label, str]]:
    """What the decision is called in each class, by its label."""
    classes = engine.model.classes
    return [(label, engine.wording.outcome(n, classes)) for n, label in enumerate(classes)]


def records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Rows of a table with their index, None where a cell is missing."""
    plain = frame.reset_index().astype(object)
    return plain.where(plain.notna(), None).to_dict("records")


def see_other(address: str) -> RedirectResponse:
    """Go on to another page."""
    return RedirectResponse(address, status_code=303)


def stranger(request: Request) -> Visit:
    """A visit from anyone."""
    language = request.headers.get("accept-language", "")
    return Visit(request, request.app.state.service, catalogue_for(language))


def visit(permission: str) -> Any:
    """A visit from somebody whose role allows something, as FastAPI wants it."""
    return Depends(_checked(permission))


def _checked(permission: str) -> Callable[[Request], Awaitable[Visit]]:
    async def check(request: Request) -> Visit:
        plain = stranger(request)
        if request.method == "POST" and _small(request):
            request.state.form = await request.form(max_files=0, max_fields=_FIELDS)
        caller = request.state.caller = await at_the_door(_caller, plain)
        form = FormData()
        if request.method == "POST":
            form = await request.form(max_files=1, max_fields=_FIELDS)
            given = form.get(CSRF_FIELD)
            request.state.stale = True
            caller.check_csrf(given if isinstance(given, str) else None)
            request.state.stale = False
        if not caller.may(permission):
            role = plain.text(f"role.{caller.key.role}")
            raise plain.refusal(403, "error.role", role=role)
        return Visit(request, plain.service, plain.text, caller, form)

    return check


def _small(request: Request) -> bool:
    """Whether it is a form without files that may be read before it is known from whom."""
    length = request.headers.get("content-length", "")
    kind = request.headers.get("content-type", "")
    plain = kind.startswith("application/x-www-form-urlencoded")
    return plain and length.isdigit() and int(length) <= _HELD


def from_here(request: Request) -> bool:
    """Whether a page of this service sent it: the browser says so, and no page can make it lie."""
    return request.headers.get("sec-fetch-site") == "same-origin"


def held(request: Request) -> list[tuple[str, str]]:
    """What was entered into a form of ours that could not be answered, but for its token."""
    form = getattr(request.state, "form", None)
    if form is None or not from_here(request):
        return []
    fields = ((name, value) for name, value in form.multi_items() if isinstance(value, str))
    return [(name, value) for name, value in fields if name != CSRF_FIELD]


def _caller(plain: Visit) -> Caller:
    """Whose session it is: the page takes no keys, only a login."""
    session = plain.service.store.session(plain.request.cookies.get(COOKIE, ""))
    if session is None:
        raise plain.refusal(401, "error.login")
    caller = Caller(session.key, session)
    plain.service.rate.check(f"key {caller.key.id}")
    return caller


def login_page(
    seen: Visit, status: int = 200, *, why: str = "", to: str = "", held: Fields = ()
) -> HTMLResponse:
    """Ask for a key: ``why`` it is asked for again, where to go then, and what was entered there."""
    session = seen.service.store.session(seen.request.cookies.get(COOKIE, ""))
    running = None if session is None else session.key
    return seen.render("login.html.j2", status, why=why, to=to, held=held, running=running)


def error_page(request: Request, status: int, reason: str, after: int | None = None) -> Response:
    """What went wrong, as a page that keeps what was entered; who has to log in is taken there."""
    plain, fields = stranger(request), held(request)
    path = request.url.path
    if status == 401 and fields:
        return login_page(plain, 401, why="ended", to=path, held=fields)
    if status == 401:
        seen = request.method == "GET" and path not in ("/", "/people")
        return see_other(f"/login?to={quote(path)}" if seen else "/login")
    caller = getattr(request.state, "caller", None)
    stale = status == 403 and getattr(request.state, "stale", False)
    seen_by = Visit(request, plain.service, plain.text, caller)
    key = "stale" if stale else str(status)
    facts = {"title": _said(plain.text, "title", key) or plain.text("error.title")}
    said = getattr(request.state, "said", "") or _said(plain.text, "reason", key)
    facts["reason"] = said or f"{reason[:1].upper()}{reason[1:]}"
    again = fields if stale or status in _WORTH_IT else []
    page = seen_by.render("error.html.j2", status, **facts, held=again, after=after)
    if after is not None:
        page.headers["retry-after"] = str(after)
    return page


def _said(text: Catalogue, what: str, key: str) -> str:
    """What the catalogue says of a status, if anything."""
    name = f"error.{what}_{key}"
    return text(name) if text.has(name) else ""
