"""What all pages have in common: who looks, in which language, and how a page is made."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from proplace.apps.report.templating import templates
from proplace.apps.serve.access import COOKIE, CSRF_FIELD, Caller, Refused
from proplace.apps.serve.catalogue import Catalogue, catalogue_for
from proplace.apps.serve.door import at_the_door

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pandas as pd

    from proplace.apps.serve.service import Service

_FIELDS = 5_000  # of one form
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
    from proplace.apps.serve.pages.static import address  # noqa: PLC0415  (it has routes of its own)

    environment = templates("the page", "proplace.apps.serve")
    environment.globals["static"] = address
    environment.filters["moment"] = moment
    environment.filters["amount"] = amount
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
        caller = request.state.caller = await at_the_door(_caller, plain)
        form = FormData()
        if request.method == "POST":
            form = await request.form(max_files=1, max_fields=_FIELDS)
            given = form.get(CSRF_FIELD)
            caller.check_csrf(given if isinstance(given, str) else None)
        caller.check(permission)
        return Visit(request, plain.service, plain.text, caller, form)

    return check


def _caller(plain: Visit) -> Caller:
    """Whose session it is: the page takes no keys, only a login."""
    session = plain.service.store.session(plain.request.cookies.get(COOKIE, ""))
    if session is None:
        raise Refused(401, plain.text("error.login"))
    caller = Caller(session.key, session)
    plain.service.rate.check(f"key {caller.key.id}")
    return caller


def error_page(request: Request, status: int, reason: str, after: int | None = None) -> Response:
    """What went wrong, as a page; who has to log in is taken there."""
    if status == 401:
        return see_other("/login")
    plain = stranger(request)
    caller = getattr(request.state, "caller", None)
    key = f"error.title_{status}"
    seen = Visit(request, plain.service, plain.text, caller)
    title = plain.text(key if plain.text.has(key) else "error.title")
    page = seen.render("error.html.j2", status, title=title, reason=reason)
    if after is not None:
        page.headers["retry-after"] = str(after)
    return page
