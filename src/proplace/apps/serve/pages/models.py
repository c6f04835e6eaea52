"""Models: what is served, audits of retrained ones before they go live, and what was decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from proplace.apps.serve.access import Refused
from proplace.apps.serve.api import Number  # noqa: TC001  (FastAPI reads it)
from proplace.apps.serve.pages.common import DOCUMENT, Visit, records, see_other, visit
from proplace.apps.serve.pages.fields import shown_value
from proplace.core.errors import LedgerError, OptionError, ProplaceError

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.apps.serve.store import Job
    from proplace.promises.chain import Entry

router = APIRouter(prefix="/models")

Looking = Annotated[Visit, visit("models")]
Auditing = Annotated[Visit, visit("audit")]
Deciding = Annotated[Visit, visit("decide")]
GoingLive = Annotated[Visit, visit("live")]

VERDICTS = ("broken", "unknown", "holds", "proved")
"""The order in which an audit is to be read."""
_LATEST = 50  # audits that are listed
_SHOWN = 200  # promises of an audit that are listed


@router.get("")
def models(seen: Looking) -> Response:
    """What is served, and audits."""
    return _models(seen)


@router.post("")
async def upload(seen: Auditing) -> Response:
    """Audit a retrained model."""
    given, most = seen.form.get("model"), seen.service.config.limits.model_file
    if not isinstance(given, UploadFile) or not given.filename:
        return await run_in_threadpool(_models, seen, problem=seen.text("models.choose"))
    content = await given.read(most + 1)
    if len(content) > most:
        problem = seen.text("models.too_large", most=most // 2**20)
        return await run_in_threadpool(_models, seen, problem=problem, status=413)
    try:
        job = await run_in_threadpool(
            seen.service.add_audit_job, given.filename, content, seen.who, seen.given("replaces")
        )
    except Refused as error:
        known = {415: "models.kind", 429: "error.reason_429"}.get(error.status)
        problem = seen.text(known) if known else str(error)
        return await run_in_threadpool(_models, seen, problem=problem)
    return see_other(f"/models/jobs/{job}")


def _models(seen: Visit, *, problem: str = "", status: int = 422) -> Response:
    may = seen.who.may("audit")
    kinds = ("audited", "decided")
    entries = list(seen.service.ledger.entries(kinds=kinds)) if may else []
    audits = [one for one in entries if one.kind == "audited"][::-1][:_LATEST]
    return seen.render(
        "models.html.j2",
        status if problem else 200,
        models=[engine.facts() for engine in seen.service.engines.values()],
        audits=audits,
        files={one.seq: seen.service.ledger.audited_file(one.seq) for one in audits},
        replaced={one.seq: _replaced(seen, one) for one in audits},
        decisions=_decisions(entries),
        jobs=[job for job in _jobs(seen) if job.state in ("waiting", "running")] if may else [],
        most=seen.service.config.limits.model_file // 2**20,
        problem=problem,
    )


def _replaced(seen: Visit, audit: Entry) -> str:
    """The model that an audited one is to replace; where it is no longer served, what it decided."""
    purpose = str(audit.facts.get("purpose", ""))
    served = (name for name, engine in seen.service.engines.items() if engine.purpose == purpose)
    return next(served, purpose)


def _decisions(entries: list[Entry]) -> dict[int, dict[str, Any]]:
    """The last decision on each audit."""
    decided = (one for one in entries if one.kind == "decided")
    return {one.facts["audit"]: one.facts | {"time": one.time} for one in decided}


def _jobs(seen: Visit) -> list[Job]:
    by = None if seen.who.key.role == "admin" else seen.who.name
    return [job for job in seen.service.store.jobs(by) if job.kind in ("audit", "renew")]


# -- while it runs ---------------------------------------------------------------------------------


@router.get("/jobs/{number}")
def job(seen: Auditing, number: str) -> Response:
    """How far an audit is; when it is done, its page."""
    found = _job(seen, number)
    answer = next((part for _, part in seen.service.store.parts(number)), None)
    if found.state == "done" and isinstance(answer, dict) and found.kind == "audit":
        return see_other(f"/models/audits/{answer['audit']}")
    if found.state == "done" and isinstance(answer, dict) and "error" not in answer:
        by_name = seen.engine(found.question["model"]).model.schema.by_name
        return seen.render(
            "renewal.html.j2",
            job=found,
            answer=answer,
            decided=seen.service.ledger.decision(answer["audit"]),
            most=_SHOWN,
            title=lambda name: by_name[name].title if name in by_name else name,
            shown=lambda name, value: shown_value(by_name.get(name), value, seen.text),
        )
    reason = answer["error"] if isinstance(answer, dict) and "error" in answer else found.reason
    return seen.render("job.html.j2", job=found, reason=reason)


@router.post("/jobs/{number}/cancel")
def cancel(seen: Auditing, number: str) -> Response:
    """Give it up."""
    seen.service.cancel_job(_job(seen, number).id)
    return see_other(f"/models/jobs/{number}")


def _job(seen: Visit, number: str) -> Job:
    found = next((job for job in _jobs(seen) if job.id == number), None)
    if found is None:
        raise seen.refusal(404, "job.none")
    return found


# -- one audit -------------------------------------------------------------------------------------


@router.get("/audits/{number}")
def audit(seen: Auditing, number: Number) -> Response:
    """What a retrained model makes of every open promise."""
    return _audit(seen, number)


@router.post("/audits/{number}")
def decide(seen: Deciding, number: Number) -> Response:
    """Write down whether it goes into use."""
    how, note = seen.given("go"), seen.given("note")
    try:
        if how not in ("yes", "no") or len(note) > 500:
            raise LedgerError(seen.text("audit.say"))
        seen.service.ledger.acting_as(seen.who.name).decide(number, go=how == "yes", note=note)
    except LedgerError as error:
        return _audit(seen, number, problem=str(error))
    return see_other(f"/models/audits/{number}#decision")


@router.post("/audits/{number}/live")
def go_live(seen: GoingLive, number: Number) -> Response:
    """Serve it from now on."""
    try:
        seen.service.go_live(number, None, seen.who)
    except ProplaceError as error:
        return _audit(seen, number, problem=str(error))
    return see_other("/models")


@router.post("/audits/{number}/renew")
def renew(seen: Deciding, number: Number) -> Response:
    """Search new answers for those whose promises would be broken, or issue those that were seen."""
    digests = [str(value) for value in seen.form.getlist("seen")]
    try:
        job = seen.service.add_renewal_job(None, number, seen.who, digests)
    except (OptionError, LedgerError) as error:
        return _audit(seen, number, problem=str(error))
    return see_other(f"/models/jobs/{job}")


@router.get("/audits/{number}/page")
def audit_page(seen: Auditing, number: Number) -> Response:
    """The audit as one file, to keep and to hand on."""
    path = _kept(seen, number)
    if path is None:
        raise seen.refusal(404, "audit.no_page")
    return HTMLResponse(path.read_text(encoding="utf-8"), headers=DOCUMENT)


def _kept(seen: Visit, number: int) -> Path | None:
    """The file of an audit, while its job is kept."""
    for one in _jobs(seen):
        path = seen.service.files / f"audit-{one.id}.html"
        if one.kind == "audit" and path.is_file():
            answers = (part for _, part in seen.service.store.parts(one.id))
            if any(part.get("audit") == number for part in answers):
                return path
    return None


def _audit(seen: Visit, number: int, *, problem: str = "") -> Response:
    ledger = seen.service.ledger
    entry = next(ledger.entries(kinds=("audited",), after=number - 1), None)
    if entry is None or entry.seq != number:
        raise seen.refusal(404, "audit.none", number=number)
    frame = ledger.verdicts(number)
    rank = {verdict: n for n, verdict in enumerate(VERDICTS)}
    order = frame.assign(rank=frame["verdict"].map(rank)).sort_values(
        ["rank", "delta", "margin"], kind="stable"
    )
    rows = records(order[:_SHOWN])
    after = list(ledger.entries(kinds=("decided",), after=number))
    return seen.render(
        "audit.html.j2",
        409 if problem else 200,
        entry=entry,
        facts=entry.facts,
        counts={verdict: entry.facts["counts"][verdict] for verdict in VERDICTS},
        name=ledger.audited_file(number),
        replaced=_replaced(seen, entry),
        several=len(seen.service.engines) > 1,
        rows=rows,
        rest=len(frame) - len(rows),
        decisions=[one for one in after if one.facts["audit"] == number],
        kept=_kept(seen, number) is not None,
        live=[
            name
            for name, engine in seen.service.engines.items()
            if engine.live is not None and engine.live.audit == number
        ],
        problem=problem,
        note=seen.given("note"),
    )
