"""Everything that the service does, without HTTP: what the interface and the page both call."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proplace.apps.serve.access import RateLimit, Refused
from proplace.apps.serve.models import Engine, engines_of
from proplace.apps.serve.questions import Options
from proplace.apps.serve.renewals import check_renewable, renewed
from proplace.apps.serve.store import InUse, Store
from proplace.apps.serve.workers import Busy, Cancelled, Died, Failed, Late, Workers
from proplace.certification import read_proof
from proplace.core.errors import ProplaceError
from proplace.core.limits import fewer_parameters
from proplace.loaders.model import Model
from proplace.promises.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from proplace.apps.serve.access import Caller
    from proplace.apps.serve.config import Config
    from proplace.apps.serve.questions import Issue, Person
    from proplace.apps.serve.store import Job
    from proplace.promises.issuing import Issued

_SUFFIXES = (".onnx", ".npz", ".keras", ".pt", ".pth", ".safetensors")
_AUDIT_SECONDS = 600.0
_TIDY_SECONDS = 300.0
_TRIES = 3  # of one part of a job whose process dies


def worker_functions(config: Config) -> dict[str, Callable[..., Any]]:
    """What a worker can be asked; called once in each process."""
    engines = engines_of(config)

    def explain(
        name: str,
        people: Sequence[Person],
        options: dict[str, Any],
        seconds: float,
        pictures: bool = False,
    ) -> Any:
        asked = Options.model_validate(options)
        return engines[name].explain(people, asked, seconds, pictures=pictures)

    def issue(name: str, asked: dict[str, Any], actor: str, seconds: float) -> Any:
        return _issued(engines[name], config, asked, actor, seconds)

    def audit(path: str, name: str, actor: str, page: str) -> Any:
        return _audited(config, path, name, actor, page)

    def check(name: str, certificate: bytes) -> Any:
        return _checked(engines[name], certificate)

    def renew(name: str, asked: dict[str, Any], actor: str, seconds: float) -> Any:
        return renewed(engines[name], config.ledger, asked, actor, seconds)

    return {
        "explain": explain,
        "issue": issue,
        "audit": audit,
        "check": check,
        "renew": renew,
    }


@dataclass(eq=False)
class Service:
    """The service, opened.

    Attributes
    ----------
    config, engines, store, ledger, workers
        What it is made of.
    files
        Folder of uploaded models and pages of audits.
    """

    config: Config
    engines: dict[str, Engine]
    store: Store
    ledger: Ledger
    workers: Workers
    files: Path
    rate: RateLimit = field(init=False)
    logins: RateLimit = field(init=False)
    _jobs: dict[str, threading.Event] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def open(cls, config: Config) -> Service:
        """Read the models, open the ledger, start the workers, and go on with unfinished jobs."""
        engines = engines_of(config)
        limits = config.limits
        store = Store(config.state)
        files = config.state.with_suffix(".files")
        files.mkdir(mode=0o700, exist_ok=True)
        make = partial(worker_functions, config)
        workers = Workers(make, limits.workers, limits.queue, limits.niceness, memory=limits.memory)
        service = cls(config, engines, store, Ledger(config.ledger), workers, files)
        threading.Thread(target=service._tidy, daemon=True).start()
        for job in store.unfinished():
            service._start(job)
        return service

    def __post_init__(self) -> None:
        self.rate = RateLimit(self.config.limits.requests)
        self.logins = RateLimit(10)

    def close(self, grace: float = 10.0) -> None:
        """Stop: jobs that run get a little time, then they wait for the next start."""
        self._stopping.set()
        until = time.monotonic() + grace
        while self._jobs and time.monotonic() < until:
            time.sleep(0.05)
        self.workers.stop()
        self.ledger.close()
        self.store.close()

    def engine(self, name: str) -> Engine:
        """A model by its name."""
        if name not in self.engines:
            raise Refused(404, f"there is no model called {name!r}")
        return self.engines[name]

    # -- questions that take a while -------------------------------------------------------------

    def ask_explain(
        self, name: str, people: Sequence[Person], options: Options, *, pictures: bool = False
    ) -> Future[Any]:
        """Search answers for a few people, with pictures for a page."""
        seconds = self.config.limits.seconds
        self.engine(name).frame(people)  # what is wrong is said at once
        facts = options.model_dump()
        whole = seconds * len(people)
        call = ("explain", name, people, facts, seconds, pictures)
        return self.workers.ask(*call, seconds=whole).future

    def ask_issue(self, name: str, asked: Issue, caller: Caller) -> Future[Any]:
        """Search an answer again and promise it, if it is the one that was seen."""
        self.engine(name).frame([asked.person])
        seconds = self.config.limits.seconds
        facts = asked.model_dump()
        return self.workers.ask(
            "issue", name, facts, caller.name, seconds, seconds=2 * seconds
        ).future

    def ask_check(self, name: str, certificate: bytes) -> Future[Any]:
        """Check a certificate against a model that is served, in exact arithmetic.

        It may take as long as a search, and is done in a worker.
        """
        name, seconds = self.engine(name).name, self.config.limits.seconds
        return self.workers.ask("check", name, certificate, seconds=seconds).future

    def erase(self, person: str, caller: Caller) -> tuple[int, ...]:
        """Erase a person from the ledger, and all pages of audits: they name people."""
        numbers = self.ledger.acting_as(caller.name).erase(person)
        for page in self.files.glob("audit-*.html"):
            page.unlink(missing_ok=True)
        return numbers

    # -- jobs ------------------------------------------------------------------------------------

    def add_explain_job(
        self, name: str, people: Sequence[Person], options: Options, caller: Caller
    ) -> str:
        """Search answers for many people, one after the other."""
        self.engine(name).frame(people)
        question = {"model": name, "people": list(people), "options": options.model_dump()}
        return self._added("explain", question, len(people), caller)

    def add_audit_job(self, file: str, content: bytes, caller: Caller) -> str:
        """Audit an uploaded model."""
        suffix = Path(file).suffix.lower()
        if suffix not in _SUFFIXES:
            raise Refused(415, f"a model file ends in {', '.join(_SUFFIXES)}; nothing is unpickled")
        self._check_jobs()
        stem = re.sub(r"[^\w.-]", "_", Path(file).stem, flags=re.ASCII)[:100]
        path = Path(tempfile.mkdtemp(prefix="model-", dir=self.files)) / f"{stem}{suffix}"
        path.write_bytes(content)
        return self._added("audit", {"file": path.name, "path": str(path)}, 1, caller)

    def add_renewal_job(self, name: str, audit: int, caller: Caller, seen: Sequence[str]) -> str:
        """Search new answers for the promises that an audit found broken, against the audited model.

        With the digests of certificates that were ``seen``, those answers are issued.
        """
        check_renewable(self.engine(name))
        self.ledger.audited_model(audit)
        question = {"model": name, "audit": audit, "seen": list(seen)}
        return self._added("renew", question, 1, caller)

    def cancel_job(self, job: str) -> None:
        """Give a job up."""
        self.store.set_state(job, "cancelled")
        if job in self._jobs:
            self._jobs[job].set()

    def _added(self, kind: str, question: dict[str, Any], total: int, caller: Caller) -> str:
        self._check_jobs()
        number = self.store.add_job(kind, caller.name, question, total)
        job = self.store.job(number)
        assert job is not None  # noqa: S101  (it was just added)
        self._start(job)
        return number

    def _check_jobs(self) -> None:
        if len(self._jobs) >= self.config.limits.jobs:
            raise Busy("too many jobs have not ended; ask again later")

    def _tidy(self) -> None:
        """Now and then, delete what is to be kept no longer."""
        while True:
            with contextlib.suppress(InUse):  # the next time
                for job in self.store.forget_jobs(self.config.limits.keep):
                    (self.files / f"audit-{job}.html").unlink(missing_ok=True)
            if self._stopping.wait(_TIDY_SECONDS):
                return

    def _start(self, job: Job) -> None:
        given_up = self._jobs[job.id] = threading.Event()
        threading.Thread(target=self._run, args=(job, given_up), daemon=True).start()

    def _run(self, job: Job, given_up: threading.Event) -> None:
        """Answer the parts of a job that have no answer yet."""
        try:
            self.store.set_state(job.id, "running")
            done = {number for number, _ in self.store.parts(job.id)}
            for number in range(job.total):
                if number in done:
                    continue
                answer = self._part(job, number, given_up)
                if given_up.is_set() or self._stopping.is_set():
                    return
                self.store.add_part(job.id, number, answer)
            self.store.set_state(job.id, "done")
        except ProplaceError as error:
            self._ended(job, given_up, str(error))
        except Exception as error:
            self._ended(job, given_up, f"the service failed ({type(error).__name__})")
        finally:
            if job.kind == "audit" and not self._stopping.is_set():
                shutil.rmtree(Path(job.question["path"]).parent, ignore_errors=True)
            self._jobs.pop(job.id, None)

    def _ended(self, job: Job, given_up: threading.Event, reason: str) -> None:
        """Note that a job failed, unless it was stopped on purpose."""
        if not (given_up.is_set() or self._stopping.is_set()):
            self.store.set_state(job.id, "failed", reason)

    def _part(self, job: Job, number: int, given_up: threading.Event) -> Any:
        question, seconds = job.question, self.config.limits.seconds
        for tried in range(1, _TRIES + 1):
            if job.kind == "audit":
                page = str(self.files / f"audit-{job.id}.html")
                call: tuple[Any, ...] = ("audit", question["path"], question["file"], job.by, page)
                seconds = _AUDIT_SECONDS
            elif job.kind == "renew":
                call = ("renew", question["model"], question, job.by, seconds)
                seconds = _AUDIT_SECONDS
            else:
                person = [question["people"][number]]
                call = ("explain", question["model"], person, question["options"], seconds)
            task = self.workers.ask(*call, seconds=seconds, wait=True)
            while not task.future.done():
                if given_up.wait(0.05) or self._stopping.is_set():
                    task.cancel()
                    return None
            try:
                return task.future.result()
            except (Died, Cancelled) as error:
                if tried == _TRIES and job.kind != "explain":
                    raise
                if tried == _TRIES:  # one person is lost, not the job
                    return {"error": str(error), "status": "worker_died"}
            except (Late, Failed) as error:
                if job.kind != "explain":
                    raise
                status = "not_found" if isinstance(error, Late) else "solver_error"
                return {"error": str(error), "status": status}
        return None


# -- in a worker -----------------------------------------------------------------------------------


def _issued(
    engine: Engine, config: Config, asked: dict[str, Any], actor: str, seconds: float
) -> dict[str, Any]:
    """Search again, compare with what was seen, and issue."""
    from proplace.explain.results import Explanations  # noqa: PLC0415

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
    with Ledger(config.ledger, actor=actor) as ledger:
        issued: Issued = ledger.issue(
            some,
            [asked["id"]],
            expires=asked["expires"],
            existing=asked["existing"],
            wording=engine.wording,
        )
    if not issued.ids:
        raise Refused(409, f"there is nothing to promise: {issued.skipped[0].reason}")
    return {"promise": issued.ids[0], "new": bool(issued.new)}


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


def _audited(config: Config, path: str, name: str, actor: str, page: str) -> dict[str, Any]:
    """Audit a model file, by the name that it was given, and write its page."""
    with Ledger(config.ledger, actor=actor) as ledger:
        try:
            with fewer_parameters(config.limits.parameters):
                model = Model.of(path)
            with contextlib.suppress(ProplaceError):  # then each promise says what is not known
                model = ledger.described(model)
            audit = ledger.audit(replace(model, origin=replace(model.origin, name=name)))
        except ProplaceError as error:  # where the file lies is nobody's business
            reason = str(error).replace(path, Path(path).name)
            raise Refused(422, reason) from None
        with contextlib.suppress(OSError):
            audit.report(page)
        return {
            "audit": audit.number,
            "counts": dict(audit.counts),
            "sentence": audit.sentence,
            "passes": audit.passes("broken"),
            "broken": list(audit.broken)[:1000],
        }


__all__ = ["Busy", "Service", "worker_functions"]
