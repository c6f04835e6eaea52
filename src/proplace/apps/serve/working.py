"""What workers do: searches, promises, audits, checks, and the reading of models that are to go live."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proplace.apps.serve import live as going
from proplace.apps.serve.access import Refused
from proplace.apps.serve.models import Engine, Engines, engine_of, reading
from proplace.apps.serve.questions import Options
from proplace.apps.serve.renewals import renewed
from proplace.certification import read_proof
from proplace.core.errors import ProplaceError
from proplace.core.limits import fewer_parameters
from proplace.loaders.model import Model
from proplace.promises.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from proplace.apps.serve.config import Config
    from proplace.apps.serve.live import Live
    from proplace.apps.serve.models import Source
    from proplace.apps.serve.questions import Person
    from proplace.promises.issuing import Issued


def worker_functions(config: Config, lives: Mapping[str, Live]) -> dict[str, Callable[..., Any]]:
    """What a worker can be asked; called once in each process.

    Each question says which model it is about: one that went live meanwhile is read then.
    """
    engines = Engines(config, lives)

    def explain(
        source: Source,
        people: Sequence[Person],
        options: dict[str, Any],
        seconds: float,
        pictures: bool = False,
    ) -> Any:
        asked = Options.model_validate(options)
        return engines.get(source).explain(people, asked, seconds, pictures=pictures)

    def issue(source: Source, asked: dict[str, Any], actor: str, seconds: float) -> Any:
        return _issued(engines.get(source), config, asked, actor, seconds)

    def audit(path: str, name: str, replaces: str, actor: str, page: str) -> Any:
        return _audited(config, Path(path), name, replaces, actor, page)

    def check(source: Source, certificate: bytes) -> Any:
        return _checked(engines.get(source), certificate)

    def renew(source: Source, asked: dict[str, Any], actor: str, seconds: float) -> Any:
        return renewed(engines.get(source), config.ledger, asked, actor, seconds)

    def load(name: str, live: Live) -> None:
        _loaded(engine_of(name, config.models[name], live), config, live)

    return {
        "explain": explain,
        "issue": issue,
        "audit": audit,
        "check": check,
        "renew": renew,
        "load": load,
    }


def _issued(
    engine: Engine, config: Config, asked: dict[str, Any], actor: str, seconds: float
) -> dict[str, Any]:
    """Search again, compare with what was seen, and issue."""
    from proplace.explain.results import Explanations  # noqa: PLC0415

    if (made := _made(config, asked)) is not None:
        return {"promise": made, "new": True}
    result = engine.explanations(
        [asked["person"]], Options.model_validate(asked["options"]), seconds
    )
    chosen = [
        e
        for e in result
        if e.certificate is not None and e.certificate.digest == asked["certificate"]
    ]
    if not chosen:
        raise Refused(
            409, "the answer that was seen is not found again; look at the answers of now"
        )
    some = Explanations(chosen[:1], provenance=result.provenance)
    with Ledger(config.ledger, actor=actor, purpose=engine.purpose) as ledger:
        issued: Issued = ledger.issue(
            some,
            [asked["id"]],
            expires=asked["expires"],
            existing=asked["existing"],
            wording=engine.wording,
            asked=asked["options"],
        )
    if not issued.ids:
        raise Refused(409, f"there is nothing to promise: {issued.skipped[0].reason}")
    return {"promise": issued.ids[0], "new": bool(issued.new)}


def _made(config: Config, asked: dict[str, Any]) -> int | None:
    """The promise of a request that came before and of which it is not known what became."""
    if asked["first"] is None:
        return None
    first = datetime.datetime.fromtimestamp(asked["first"] // 1.0, datetime.UTC)  # as the ledger
    with Ledger(config.ledger) as ledger:
        for number in ledger.promises(asked["id"]).index:
            promise = ledger.promise(int(number))
            proof, issued = promise.certificate, datetime.datetime.fromisoformat(promise.issued)
            same = proof is not None and proof.digest == asked["certificate"]
            if same and promise.expires == asked["expires"] and issued >= first:
                return promise.id
    return None


def _checked(engine: Engine, certificate: bytes) -> dict[str, Any]:
    """Check a certificate; what is none is not accepted."""
    from proplace.certification import Bundle  # noqa: PLC0415
    from proplace.certification.checker import Rejected  # noqa: PLC0415

    try:
        proof = read_proof(certificate)
    except (Rejected, ProplaceError) as error:
        return {"accepted": False, "reason": str(error), "claim": None}
    if isinstance(proof, Bundle):
        raise Refused(422, "a bundle speaks of several models; proplace check checks it")
    found = proof.check(
        engine.model.network, None if isinstance(engine.delta, float) else engine.delta
    )
    claim = proof.verdict if found.accepted else None
    return {"accepted": found.accepted, "reason": found.reason, "claim": claim}


def _audited(
    config: Config, path: Path, name: str, replaces: str, actor: str, page: str
) -> dict[str, Any]:
    """Audit a model file against the promises of the model that it is to replace; write its page."""
    purpose = config.models[replaces].purpose
    with Ledger(config.ledger, actor=actor, purpose=purpose) as ledger:
        try:
            with fewer_parameters(config.limits.parameters):
                model = _read(config, path, replaces, ledger)
            audit = ledger.audit(replace(model, origin=replace(model.origin, name=name)))
        except ProplaceError as error:  # where the file lies is nobody's business
            reason = str(error).replace(str(path), path.name)
            raise Refused(422, reason) from None
        with contextlib.suppress(OSError):
            audit.report(page)
        if any(ledger.entries(kinds=("erased",), after=audit.number or 0)):
            Path(page).unlink(missing_ok=True)  # somebody was erased while it was written
        return {
            "audit": audit.number,
            "counts": dict(audit.counts),
            "sentence": audit.sentence,
            "passes": audit.passes("broken"),
            "broken": list(audit.broken)[:1000],
        }


def _read(config: Config, path: Path, replaces: str, ledger: Ledger) -> Model:
    """Read a model as it would be served, or as one of the table of the promises, or as it is."""
    model = Model.of(path)
    with contextlib.suppress(ProplaceError):
        return ledger.described(reading(config.models[replaces], path))
    with contextlib.suppress(ProplaceError):  # then each promise says what is not known
        return ledger.described(model)
    return model


def _loaded(engine: Engine, config: Config, live: Live) -> None:
    """Raise where an audited model must not go live."""
    with Ledger(config.ledger, purpose=engine.purpose) as ledger:
        audited = ledger.audited_model(live.audit)
        going.check_same(engine, audited)
        going.check_since(ledger, live.audit, audited)
