"""The client: the calls of the library, answered by a service."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pandas as pd

from proplace.client.answers import Question
from proplace.client.errors import RefusedError, RequestError, ServiceError
from proplace.client.http import Connection
from proplace.client.people import one_person, plain, sent
from proplace.client.records import (
    AuditResult,
    CheckResult,
    IssuedPromise,
    Job,
    Prediction,
    PromiseRecord,
    RedeemResult,
    RenewalResult,
    Verdict,
    VerifyResult,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from proplace.certification import Proof
    from proplace.client.answers import Answer, Answers
    from proplace.client.people import People

    Progress = Callable[[int, int], object]

_Read = TypeVar("_Read")
_SOON, _SELDOM = 0.05, 1.0  # seconds between two looks at a job: the first, and later


class Client:
    """A service that is asked as the library is (extra ``client``).

    Parameters
    ----------
    url
        Where it is: ``http://127.0.0.1:8765``, or ``https://...`` on another machine.
    key
        A key that ``proplace serve keys add`` has printed.
    model
        The model that is asked where a call does not name one; None: the only one that is served.
    patience
        Seconds for which a request is tried again, while the service is busy or away.
    timeout
        Seconds that one answer may take.
    insecure
        True: send the key to another machine without TLS.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8765", key)  # doctest: +SKIP
    >>> answers = client.explain(people, locked=["income"])  # doctest: +SKIP
    >>> print(answers[0])  # doctest: +SKIP
    >>> client.issue(answers[0], "anna", expires="2027-03-31")  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        model: str | None = None,
        patience: float = 60.0,
        timeout: float = 300.0,
        insecure: bool = False,
    ) -> None:
        self._http = Connection(url, key, patience=patience, timeout=timeout, insecure=insecure)
        self._model = model
        self._features: dict[str, list[str]] = {}

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- models ----------------------------------------------------------------------------------

    def models(self) -> list[dict[str, Any]]:
        """All models that are served, each in a few words."""
        return self._http.ask("GET", "models", _objects)

    def schema(self, model: str | None = None) -> dict[str, Any]:
        """Features and rules of a model, as a schema file has them."""
        return self._http.ask("GET", f"models/{self._name(model)}/schema", dict)

    def predict(self, people: People, *, model: str | None = None) -> list[Prediction]:
        """Today's decision of each person."""
        name = self._name(model)
        rows, _ = self._sent(people, name)
        return self._http.ask(
            "POST",
            f"models/{name}/predict",
            lambda found: [Prediction(**facts) for facts in found],
            json={"people": rows},
        )

    def certify(
        self, people: People, target: object = None, *, model: str | None = None
    ) -> list[Verdict]:
        """Say of each person whether every network of the set gives them the wanted class."""
        name = self._name(model)
        rows, _ = self._sent(people, name)
        asked = {"people": rows, "target": plain(target)}
        return self._http.ask(
            "POST",
            f"models/{name}/certify",
            lambda found: [Verdict(**facts) for facts in found],
            json=asked,
        )

    def explain(
        self,
        people: People,
        target: object = None,
        *,
        count: int = 1,
        model: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Answers:
        """Find answers; many people become a job, which is waited for.

        Parameters
        ----------
        people
            A table in original units, a mapping from features to values, or a list of these.
        target
            The wanted class, by its label; None: the one that the service is told.
        count
            How many answers for each person.
        model
            Name of the model.
        progress
            Called with the number of people who are done and that of all, while a job is waited for.
        options
            ``prefer``, ``max_changes``, ``changeable``, ``locked``, ``tolerance``, ``holds``,
            ``effort``, ``max_effort`` and ``region``: see :class:`proplace.Proplace`; features that are
            ``locked`` stay as they are.
        """
        name = self._name(model)
        rows, labels = self._sent(people, name)
        asked = {**options, "target": plain(target), "count": count}
        question = Question(name, rows, labels, asked)

        def at_once(found: Mapping[str, Any]) -> Answers | str:
            return str(found["job"]) if "job" in found else question.answers(found["answers"])

        def in_parts(parts: Mapping[str, Any]) -> Answers:
            return question.answers([parts[str(number)] for number in range(len(rows))])

        sent = {"people": rows, "options": asked}
        found = self._http.ask("POST", f"models/{name}/explain", at_once, once=True, json=sent)
        return self._waited(found, in_parts, progress) if isinstance(found, str) else found

    def check(self, certificate: Proof, *, model: str | None = None) -> CheckResult:
        """Let the service check a certificate against a model, in exact arithmetic."""
        asked = {"certificate": certificate.facts}
        path = f"models/{self._name(model)}/check"
        return self._http.ask("POST", path, lambda found: CheckResult(**found), json=asked)

    # -- jobs ------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Your long questions, the latest first."""
        return self._http.ask("GET", "jobs", lambda found: [Job.of(facts) for facts in found])

    def cancel(self, job: str) -> None:
        """Give a job up."""
        self._http.ask("DELETE", f"jobs/{job}")

    def _waited(
        self, number: str, read: Callable[[Any], _Read], progress: Progress | None
    ) -> _Read:
        """What is read of the parts of a job, once it is done; given up where that is interrupted."""
        pause = _SOON
        try:
            while True:
                job = self._http.ask("GET", f"jobs/{number}", Job.of)
                if progress is not None:
                    progress(job.done, job.total)
                if job.ended:
                    break
                time.sleep(pause)
                pause = min(_SELDOM, 1.5 * pause)
        except ServiceError:
            raise  # it goes on without us
        except BaseException:
            self.cancel(number)
            raise
        if job.state == "failed":
            raise RequestError(job.reason)
        if job.state == "cancelled":
            raise RefusedError(f"job {number} was cancelled")
        path = f"jobs/{number}/answers"
        return self._http.ask("GET", path, lambda found: read(found["answers"]))

    # -- promises --------------------------------------------------------------------------------

    def issue(
        self,
        answer: Answer,
        person: object,
        *,
        expires: datetime.date | str | None = None,
        existing: Literal["refuse", "add", "renew"] = "refuse",
    ) -> IssuedPromise:
        """Promise an answer to a person, by the user's own id of them.

        The service finds the answer again and promises it if it is this one, by its certificate. Where
        the connection breaks it is asked again, and does it once. A call that was interrupted may be
        repeated: what is in the ledger is not issued twice.
        """
        if answer.certificate is None:
            raise RefusedError(f"nothing can be promised: {answer}")
        day = expires.isoformat()[:10] if isinstance(expires, datetime.date) else expires
        asked = {
            "id": str(person), "person": dict(answer.person), "options": dict(answer.options),
            "certificate": answer.certificate.digest, "expires": day, "existing": existing,
        }  # fmt: skip
        path = f"models/{answer.model}/promises"
        return self._http.ask(
            "POST", path, lambda found: IssuedPromise(**found), once=True, json=asked
        )

    def promises(self, person: object = None, state: str | None = None) -> pd.DataFrame:
        """Table of promises, of a person or in a state, by their number: the latest 1,000."""
        asked = {"person": None if person is None else str(person), "state": state}
        given = {name: value for name, value in asked.items() if value is not None}
        columns = [
            "id", "person", "state", "issued", "expires", "target", "sentence", "model", "terms",
        ]  # fmt: skip

        def table(rows: Any) -> pd.DataFrame:
            return pd.DataFrame(_objects(rows), columns=columns).set_index("id").sort_index()

        return self._http.ask("GET", "promises", table, params=given)

    def promise(self, number: int) -> PromiseRecord:
        """One promise, with its certificate and its history."""
        return self._http.ask("GET", f"promises/{int(number)}", PromiseRecord.of)

    def redeem(
        self, promise: int, person: Mapping[str, Any] | pd.Series[Any], *, record: bool = True
    ) -> RedeemResult:
        """Look whether a person who comes back has what was promised, and write it down."""
        asked = {"person": one_person(person), "dry_run": not record}
        return self._http.ask(
            "POST",
            f"promises/{int(promise)}/redeem",
            lambda found: RedeemResult(**found | {"missing": tuple(found["missing"])}),
            twice=not record,
            json=asked,
        )

    def withdraw(self, promise: int, reason: str) -> None:
        """Take a promise back; the reason stays in the ledger for good (no personal data in it)."""
        path = f"promises/{int(promise)}/withdraw"
        self._http.ask("POST", path, twice=False, json={"reason": reason})

    def erase(self, person: object) -> tuple[int, ...]:
        """Erase all that is known about a person; returns the numbers of their promises."""
        return self._http.ask(
            "POST",
            "people/erase",
            lambda found: tuple(map(int, found["promises"])),
            twice=False,
            json={"id": str(person)},
        )

    # -- audits and the ledger -------------------------------------------------------------------

    def audit(
        self,
        model: str | os.PathLike[str],
        *,
        replaces: str | None = None,
        progress: Progress | None = None,
    ) -> AuditResult:
        """Send a retrained model's file and audit it against all open promises.

        It is read as the model that it ``replaces``: the client's, or the only one, if it is not said.
        """
        path = Path(model)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RequestError(f"{path}: cannot be read ({error.strerror})") from None
        upload: dict[str, Any] = {"files": {"model": (path.name, content)}}
        replaces = self._model if replaces is None else replaces
        if replaces is not None:
            upload["data"] = {"replaces": replaces}
        job = self._http.ask("POST", "audits", lambda found: found["job"], once=True, **upload)

        def result(parts: Mapping[str, Any]) -> AuditResult:
            (facts,) = parts.values()
            return AuditResult(
                facts["audit"], facts["counts"], facts["sentence"], facts["passes"],
                tuple(facts["broken"]), job,
            )  # fmt: skip

        return self._waited(job, result, progress)

    def audit_page(self, job: str) -> str:
        """The page of an audit, as HTML."""
        return self._http.send("GET", f"jobs/{job}/page").text

    def decide(self, audit: int, *, go: bool, note: str = "") -> int:
        """Write down whether an audited model goes into use; returns the number of the entry."""
        asked = {"go": go, "note": note}
        path = f"audits/{int(audit)}/decision"
        return self._http.ask(
            "POST", path, lambda found: int(found["entry"]), twice=False, json=asked
        )

    def go_live(self, audit: int, *, model: str | None = None) -> dict[str, Any]:
        """Have the service serve an audited model from now on, after a go; returns what is served.

        Asked again, nothing more happens. ``model`` is the one that it replaces; it need not be said.
        """
        path = f"audits/{int(audit)}/live"
        return dict(self._http.ask("POST", path, json={"model": model}))

    def renew(
        self, audit: int, seen: RenewalResult | None = None, *, model: str | None = None
    ) -> RenewalResult:
        """Search new answers for the promises that an audit found broken, or issue those that were seen.

        Parameters
        ----------
        audit
            Number of the audit.
        seen
            What a search has found, to be issued as it is; None: search, and issue nothing.
        model
            The model that was audited for; it need not be said.
        """
        digests = [] if seen is None else list(seen.digests)
        asked = {"model": model, "seen": digests}
        path = f"audits/{int(audit)}/renewals"
        job = self._http.ask("POST", path, lambda found: str(found["job"]), once=True, json=asked)

        def result(parts: Mapping[str, Any]) -> RenewalResult:
            (facts,) = parts.values()
            return RenewalResult(
                facts["audit"], tuple(facts["digests"]), tuple(facts.get("rows", ())),
                facts.get("left", 0), tuple(facts.get("issued", ())),
            )  # fmt: skip

        return self._waited(job, result, None)

    def verify(self) -> VerifyResult:
        """Look whether everything in the ledger is as it was written."""
        return self._http.ask(
            "GET",
            "ledger",
            lambda found: VerifyResult(**found | {"problems": tuple(found["problems"])}),
        )

    # -- names -----------------------------------------------------------------------------------

    def _name(self, model: str | None) -> str:
        """The model that is meant: given, set, or the only one; as a part of a path."""
        name = self._model if model is None else model
        if name is None:
            names = self._http.ask("GET", "models", lambda found: [one["name"] for one in found])
            if len(names) != 1:
                raise RequestError(f"several models are served; name one as model=: {names}")
            self._model = name = names[0]
        if "/" in name or name in ("", ".", ".."):
            raise RequestError(f"{name!r} is no name of a model")
        return name

    def _sent(self, people: People, name: str) -> tuple[list[dict[str, Any]], list[Any]]:
        features: list[str] = []
        if isinstance(people, pd.DataFrame):
            if name not in self._features:
                self._features[name] = self._http.ask(
                    "GET",
                    f"models/{name}/schema",
                    lambda found: [feature["name"] for feature in found["features"]],
                )
            features = self._features[name]
        rows, labels = sent(people, features)
        if not rows:
            raise RequestError("there is nobody to ask about: no rows")
        return rows, labels


def _objects(found: Any) -> list[dict[str, Any]]:
    """A list of objects, as they are."""
    return [dict(facts) for facts in found]
