"""Promises: search them, look at one, print its letter, take its certificate, and what becomes of it."""

from __future__ import annotations

import csv
import io
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from proplace.apps.report.of_promise import (
    CERTIFICATE,
    check_command,
    letter_of_promise,
    save_proof,
)
from proplace.apps.serve.api import Number  # noqa: TC001  (FastAPI reads it)
from proplace.apps.serve.pages.common import DOCUMENT, Visit, records, see_other, visit
from proplace.apps.serve.pages.fields import fields_of, person_from
from proplace.apps.serve.pages.people import WRONG, said_of_one
from proplace.apps.serve.pages.static import checker_page
from proplace.certification import digest as network_digest
from proplace.core.errors import LedgerError
from proplace.promises.promise import State

if TYPE_CHECKING:
    from proplace.promises.promise import Promise

router = APIRouter(prefix="/promises")

Looking = Annotated[Visit, visit("promises")]
Redeeming = Annotated[Visit, visit("redeem")]
Withdrawing = Annotated[Visit, visit("withdraw")]

STATES: tuple[str, ...] = get_args(State)
_SHOWN = 100  # promises of one list


@router.get("")
def latest(seen: Looking) -> Response:
    """The latest promises."""
    return _list(seen)


@router.post("")
def search(seen: Looking) -> Response:
    """Promises of somebody, in a state, or the one with a number."""
    number = seen.given("number")
    if re.fullmatch("[0-9]{1,15}", number):
        return see_other(f"/promises/{int(number)}")
    return _list(seen)


@router.post("/export")
def export(seen: Looking) -> Response:
    """All promises as a table."""
    file = io.StringIO()
    writer = csv.writer(file)
    for n, part in enumerate(seen.service.ledger.promises_in_parts()):
        if n == 0:
            writer.writerow(["promise", *part.columns])
        writer.writerows([number, *map(_cell, row)] for number, *row in part.itertuples())
    headers = {"content-disposition": 'attachment; filename="promises.csv"'}
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: Any) -> Any:
    """A cell that no program for tables takes for a formula; nothing where it is missing."""
    if value is None or value != value:  # noqa: PLR0124
        return ""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def _list(seen: Visit) -> Response:
    person, state = seen.given("person"), seen.given("state")
    if state not in STATES:
        state = ""
    frame = seen.service.ledger.promises(person or None, state or None)  # type: ignore[arg-type]
    rows = records(frame.iloc[::-1][:_SHOWN])
    return seen.render(
        "promises.html.j2",
        rows=rows,
        count=len(frame),
        rest=len(frame) - len(rows),
        person=person,
        state=state,
        states=STATES,
    )


# -- one promise -----------------------------------------------------------------------------------


@router.get("/{number}")
def one(seen: Looking, number: Number) -> Response:
    """One promise."""
    return _page(seen, _promise(seen, number))


@router.get("/{number}/letter")
def letter(seen: Looking, number: Number) -> Response:
    """The letter to the person: one page to print."""
    promise = _promise(seen, number)
    if promise.explanation is None:
        raise seen.refusal(410, "promise.erased")
    if promise.state != "open":
        raise seen.refusal(409, "promise.no_letter")
    reference = seen.text("promise.reference", number=number)
    text = letter_of_promise(promise, None, reference)
    return HTMLResponse(str(text), headers=DOCUMENT)


@router.get("/{number}/certificate")
def certificate(seen: Looking, number: Number) -> Response:
    """The proof, as a file."""
    proof = _promise(seen, number).certificate
    if proof is None:
        raise seen.refusal(410, "promise.erased")
    headers = {"content-disposition": f'attachment; filename="{CERTIFICATE}"'}
    return Response(proof.to_json(), media_type="application/json", headers=headers)


@router.get("/{number}/proof")
def proof(seen: Looking, number: Number) -> Response:
    """The certificate and the networks that it speaks of, which is all that a check needs."""
    promise = _promise(seen, number)
    if promise.certificate is None:
        raise seen.refusal(410, "promise.erased")
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        tempfile.TemporaryDirectory() as folder,
    ):
        save_proof(promise, Path(folder))
        for path in sorted(Path(folder).iterdir()):
            archive.write(path, path.name)
    headers = {"content-disposition": f'attachment; filename="promise-{number}.zip"'}
    return Response(file.getvalue(), media_type="application/zip", headers=headers)


@router.post("/{number}/withdraw")
def withdraw(seen: Withdrawing, number: Number) -> Response:
    """Take a promise back."""
    reason = seen.given("reason")
    try:
        if not 0 < len(reason) <= 200:
            raise LedgerError(seen.text("promise.reason_needed"))
        seen.service.ledger.acting_as(seen.who.name).withdraw(number, reason)
    except LedgerError as error:
        return _page(seen, _promise(seen, number), problem=said_of_one(error))
    return see_other(f"/promises/{number}")


@router.post("/{number}/redeem")
def redeem(seen: Redeeming, number: Number) -> Response:
    """The person comes back: look, or look and write it down."""
    promise = _promise(seen, number)
    person = person_from(seen.form, promise.terms.model.schema.features)
    try:
        found = seen.service.redeem(number, person, seen.who, record=bool(seen.given("record")))
    except (LedgerError, *WRONG) as error:
        return _page(seen, promise, problem=said_of_one(error), person=person)
    return _page(seen, _promise(seen, number), redemption=found, person=person)


def _promise(seen: Visit, number: int) -> Promise:
    try:
        return seen.service.ledger.promise(number)
    except LedgerError:
        raise seen.refusal(404, "promise.none", number=number) from None


def _page(
    seen: Visit,
    promise: Promise,
    *,
    problem: str = "",
    redemption: Any = None,
    person: dict[str, Any] | None = None,
) -> Response:
    e, proof = promise.explanation, promise.certificate
    words = None if e is None else e.words(promise.wording)
    features = promise.terms.model.schema.features
    known = person if person is not None else promise.facts.get("original") or {}
    return seen.render(
        "promise.html.j2",
        409 if problem else 200,
        promise=promise,
        words=words,
        command=check_command(promise),
        checker=checker_page() is not None,
        digest=None if proof is None else proof.digest,
        network=network_digest(promise.terms.model.network),
        fields=fields_of(features, known, seen.text),
        history=seen.service.ledger.history(promise.id),
        problem=problem,
        reason=seen.given("reason"),
        redemption=redemption,
    )
