"""The client: the calls of the library, answered by a service."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from proplace.certification import canonical, read_proof
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
        return list(self._http.ask("GET", "models"))

    def schema(self, model: str | None = None) -> dict[str, Any]:
        """Features and rules of a model, as a schema file has them."""
        return dict(self._http.ask("GET", f"models/{self._name(model)}/schema"))

    def predict(self, people: People, *, model: str | None = None) -> list[Prediction]:
        """Today's decision of each person."""
        name = self._name(model)
        rows, _ = self._sent(people, name)
        found = self._http.ask("POST", f"models/{name}/predict", json={"people": rows})
        return [Prediction(**facts) for facts in found]

    def certify(
        self, people: People, target: object = None, *, model: str | None = None
    ) -> list[Verdict]:
        """Say of each person whether every network of the set gives them the wanted class."""
        name = self._name(model)
        rows, _ = self._sent(people, name)
        asked = {"people": rows, "target": plain(target)}
        found = self._http.ask("POST", f"models/{name}/certify", json=asked)
        return [Verdict(**facts) for facts in found]

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
        found = self._http.ask(
            "POST", f"models/{name}/explain", once=True, json={"people": rows, "options": asked}
        )
        if "job" not in found:
            return question.answers(found["answers"])
        parts = self._waited(found["job"], progress)
        return question.answers([parts[str(number)] for number in range(len(rows))])

    def check(self, certificate: Proof, *, model: str | None = None) -> CheckResult:
        """Let the service check a certificate against a model, in exact arithmetic."""
        asked = {"certificate": certificate.facts}
        return CheckResult(
            **self._http.ask("POST", f"models/{self._name(model)}/check", json=asked)
        )

    # -- jobs ------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Your long questions, the latest first."""
        return [Job.of(facts) for facts in self._http.ask("GET", "jobs")]

    def cancel(self, job: str) -> None:
        """Give a job up."""
        self._http.ask("DELETE", f"jobs/{job}")

    def _waited(self, number: str, progress: Progress | None) -> dict[str, Any]:
        """The parts of a job, once it is done; it is given up where the waiting is interrupted."""
        pause = _SOON
        try:
            while True:
                job = Job.of(self._http.ask("GET", f"jobs/{number}"))
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
        return dict(self._http.ask("GET", f"jobs/{number}/answers")["answers"])

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
        return IssuedPromise(
            **self._http.ask("POST", f"models/{answer.model}/promises", once=True, json=asked)
        )

    def promises(self, person: object = None, state: str | None = None) -> pd.DataFrame:
        """Table of promises, of a person or in a state, by their number: the latest 1,000."""
        asked = {"person": None if person is None else str(person), "state": state}
        given = {name: value for name, value in asked.items() if value is not None}
        rows = self._http.ask("GET", "promises", params=given)
        columns = [
            "id", "person", "state", "issued", "expires", "target", "sentence", "model", "terms",
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=columns).set_index("id").sort_index()

    def promise(self, number: int) -> PromiseRecord:
        """One promise, with its certificate and its history."""
        facts = dict(self._http.ask("GET", f"promises/{int(number)}"))
        proof, history = facts.pop("certificate"), facts.pop("history")
        names = ("person", "state", "issued", "expires", "target")
        own = {name: facts.pop(name) for name in names}
        certificate = None if proof is None else read_proof(canonical(proof).encode())
        return PromiseRecord(
            id=facts.pop("promise"), **own, facts=facts, certificate=certificate, history=history
        )

    def redeem(
        self, promise: int, person: Mapping[str, Any] | pd.Series[Any], *, record: bool = True
    ) -> RedeemResult:
        """Look whether a person who comes back has what was promised, and write it down."""
        asked = {"person": one_person(person), "dry_run": not record}
        found = self._http.ask(
            "POST", f"promises/{int(promise)}/redeem", twice=not record, json=asked
        )
        return RedeemResult(found["verdict"], found["words"], tuple(found["missing"]))

    def withdraw(self, promise: int, reason: str) -> None:
        """Take a promise back; the reason stays in the ledger for good (no personal data in it)."""
        path = f"promises/{int(promise)}/withdraw"
        self._http.ask("POST", path, twice=False, json={"reason": reason})

    def erase(self, person: object) -> tuple[int, ...]:
        """Erase all that is known about a person; returns the numbers of their promises."""
        found = self._http.ask("POST", "people/erase", twice=False, json={"id": str(person)})
        return tuple(found["promises"])

    # -- audits and the ledger -------------------------------------------------------------------

    def audit(
        self,
        model: str | os.PathLike[str],
        *,
        replaces: str | None = None,
        progress: Progress | None = None,
    ) -> AuditResult:
        """Send a retrained model's file and audit it against all open promises.

        It is read as the model that it ``replaces``, which need not be said where one is served.
        """
        path = Path(model)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RequestError(f"{path}: cannot be read ({error.strerror})") from None
        upload: dict[str, Any] = {"files": {"model": (path.name, content)}}
        if replaces is not None:
            upload["data"] = {"replaces": replaces}
        found = self._http.ask("POST", "audits", once=True, **upload)
        (facts,) = self._waited(found["job"], progress).values()
        return AuditResult(
            facts["audit"], facts["counts"], facts["sentence"], facts["passes"],
            tuple(facts["broken"]), found["job"],
        )  # fmt: skip

    def audit_page(self, job: str) -> str:
        """The page of an audit, as HTML."""
        return self._http.send("GET", f"jobs/{job}/page").text

    def decide(self, audit: int, *, go: bool, note: str = "") -> int:
        """Write down whether an audited model goes into use; returns the number of the entry."""
        asked = {"go": go, "note": note}
        found = self._http.ask("POST", f"audits/{int(audit)}/decision", twice=False, json=asked)
        return int(found["entry"])

    def go_live(self, audit: int, *, model: str | None = None) -> dict[str, Any]:
        """Have the service serve an audited model from now on, after a go; returns what is served.

        Asked again, nothing more happens. ``model`` is the one that it replaces; it need not be said
        where one is served.
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
            Whose training rows and set of networks are used; it need not be said where one is served.
        """
        digests = [] if seen is None else list(seen.digests)
        asked = {"model": model, "seen": digests}
        found = self._http.ask("POST", f"audits/{int(audit)}/renewals", once=True, json=asked)
        (facts,) = self._waited(found["job"], None).values()
        return RenewalResult(
            facts["audit"], tuple(facts["digests"]), tuple(facts.get("rows", ())),
            facts.get("left", 0), tuple(facts.get("issued", ())),
        )  # fmt: skip

    def verify(self) -> VerifyResult:
        """Look whether everything in the ledger is as it was written."""
        facts = dict(self._http.ask("GET", "ledger"))
        return VerifyResult(**facts | {"problems": tuple(facts["problems"])})

    # -- names -----------------------------------------------------------------------------------

    def _name(self, model: str | None) -> str:
        """The model that is meant: given, set, or the only one; as a part of a path."""
        name = self._model if model is None else model
        if name is None:
            names = [facts["name"] for facts in self.models()]
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
                found = self.schema(name)["features"]
                self._features[name] = [feature["name"] for feature in found]
            features = self._features[name]
        rows, labels = sent(people, features)
        if not rows:
            raise RequestError("there is nobody to ask about: no rows")
        return rows, labels
