"""Everything that the service does, without HTTP: what the interface and the page both call."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proplace.apps.serve import live as going
from proplace.apps.serve.access import RateLimit, Refused
from proplace.apps.serve.bulk import bulk_functions, explain_question
from proplace.apps.serve.live import Live
from proplace.apps.serve.models import Engine, Engines, engine_of, set_around
from proplace.apps.serve.store import InUse, Store
from proplace.apps.serve.workers import Busy, Cancelled, Died, Failed, Late, Workers
from proplace.apps.serve.working import worker_functions
from proplace.core.errors import OptionError, ProplaceError
from proplace.promises.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from proplace.apps.serve.access import Caller
    from proplace.apps.serve.config import Config
    from proplace.apps.serve.questions import Issue, Options, Person
    from proplace.apps.serve.store import Job
    from proplace.promises.redeeming import Redemption

_SUFFIXES = (".onnx", ".npz", ".keras", ".pt", ".pth", ".safetensors")
_AUDIT_SECONDS = 600.0
_BULK_SECONDS = 120.0
_TIDY_SECONDS = 300.0
_LATER = 1.0  # seconds until the state is asked again
_TRIES = 3  # of one part of a job whose process dies


@dataclass(eq=False)
class Service:
    """The service, opened.

    Attributes
    ----------
    config, engines, store, ledger, workers
        What it is made of.
    files
        Folder of uploaded models and pages of audits.
    notes
        What is to be told at the start: models that are live.
    """

    config: Config
    engines: dict[str, Engine]
    store: Store
    ledger: Ledger
    workers: Workers
    files: Path
    notes: tuple[str, ...] = ()
    rate: RateLimit = field(init=False)
    logins: RateLimit = field(init=False)
    _jobs: dict[str, threading.Event] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _bulk: Workers | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _going: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, config: Config) -> Service:
        """Read the models, open the ledger, start the workers, and go on with unfinished jobs."""
        limits, store, ledger = config.limits, Store(config.state), Ledger(config.ledger)
        _check_purposes(config, ledger)
        lives, told = going.resumed(config, store, ledger)
        engines = Engines(config, lives).first
        files = config.state.with_suffix(".files")
        files.mkdir(mode=0o700, exist_ok=True)
        make = partial(worker_functions, config, lives)
        workers = Workers(make, limits.workers, limits.queue, limits.niceness, memory=limits.memory)
        service = cls(config, engines, store, ledger, workers, files, tuple(told))
        unfinished = store.unfinished()
        service._forget_uploads(unfinished)
        threading.Thread(target=service._tidy, daemon=True).start()
        for job in unfinished:
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
        if self._bulk is not None:
            self._bulk.stop()
        self.ledger.close()
        with contextlib.suppress(InUse):
            self.store.note_used()
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
        call = ("explain", self.engine(name).source, people, facts, seconds, pictures)
        return self.workers.ask(*call, seconds=whole).future

    def ask_issue(
        self, name: str, asked: Issue, caller: Caller, *, first: float | None = None
    ) -> Future[Any]:
        """Search an answer again and promise it, if it is the one that was seen.

        Where it was asked for before, at ``first``, a promise that was made since is it.
        """
        self.engine(name).frame([asked.person])
        seconds = self.config.limits.seconds
        facts = asked.model_dump()
        source = self.engine(name).source
        return self.workers.ask(
            "issue", source, facts | {"first": first}, caller.name, seconds, seconds=2 * seconds
        ).future

    def ask_bulk(self, what: str, name: str, body: bytes) -> Future[Any]:
        """Have a body about many people read and answered in a process that is there for these alone.

        It is started when it is asked for the first time.
        """
        source, limits = self.engine(name).source, self.config.limits
        with self._starting:
            if self._bulk is None:
                lives = {n: e.live for n, e in self.engines.items() if e.live is not None}
                make = partial(bulk_functions, self.config, lives)
                self._bulk = Workers(make, 1, limits.queue, memory=limits.memory)
        return self._bulk.ask(what, source, body, seconds=_BULK_SECONDS).future

    def ask_check(self, name: str, certificate: bytes) -> Future[Any]:
        """Check a certificate against a model that is served, in exact arithmetic.

        It may take as long as a search, and is done in a worker.
        """
        source, seconds = self.engine(name).source, self.config.limits.seconds
        return self.workers.ask("check", source, certificate, seconds=seconds).future

    def redeem(
        self, number: int, person: Person, caller: Caller, *, record: bool = True
    ) -> Redemption:
        """Look whether a person who comes back has what was promised; the model in service decides."""
        purpose = self.ledger.promise(number).terms.purpose
        model = next((e.model for e in self.engines.values() if e.purpose == purpose), None)
        ledger = self.ledger.acting_as(caller.name)
        return ledger.redeem(number, person, model, record=record)

    def erase(self, person: str, caller: Caller) -> tuple[int, ...]:
        """Erase a person from the ledger, and pages of audits and ended renewals: they name people."""
        numbers = self.ledger.acting_as(caller.name).erase(person)
        self.store.forget_people()
        for page in self.files.glob("audit-*.html"):
            page.unlink(missing_ok=True)
        return numbers

    # -- going live ------------------------------------------------------------------------------

    def go_live(self, audit: int, name: str | None, caller: Caller) -> Engine:
        """Serve an audited model from now on, in place of another; what fails leaves that in service.

        It is read in a worker first, and compared there with what was audited.
        """
        with self._going:
            engine = self.engine(self._named(audit, name))
            if engine.live is not None and engine.live.audit == audit:
                return engine
            going.check_decided(self.ledger, audit)
            origin = self.ledger.audited_model(audit).origin
            path = going.kept(going.models_folder(self.config), origin.digest)
            if path is None or origin.digest is None:
                raise Refused(
                    409, f"the file of audit {audit} is no longer kept; upload it and decide again"
                )
            now = time.time()
            live = Live(audit, origin.name, origin.digest, str(path), caller.name, now)
            self.workers.ask("load", engine.name, live, seconds=_AUDIT_SECONDS).future.result()
            new = engine_of(engine.name, self.config.models[engine.name], live)
            self._note_live(new, live)
            self.engines = {**self.engines, new.name: new}
            return new

    def _note_live(self, engine: Engine, live: Live) -> None:
        """Write it down, in the ledger and in the state."""
        row = self.store.begin_live(
            model=engine.name,
            audit=live.audit,
            file=live.file,
            digest=live.digest,
            configured=going.digest_of(self.config.models[engine.name].model),
            by=live.by,
            since=live.since,
            after=self.ledger.head.entries,
        )
        try:
            entry = self.ledger.acting_as(live.by).put_in_service(live.audit, engine.name)
        except BaseException:
            self.store.drop_live(row)
            raise
        self.store.confirm_live(row, entry.seq)

    def _only(self, name: str | None) -> str:
        """A name, or that of the only model that is served."""
        if name is None and len(self.engines) > 1:
            raise Refused(422, f"say which model it is to replace: {', '.join(self.engines)}")
        return next(iter(self.engines)) if name is None else name

    def _named(self, audit: int, name: str | None) -> str:
        """The served model whose promises were audited; a name that is given must be its own."""
        given = None if not name else self.engine(name).name
        purpose = self.ledger.audited_purpose(audit)
        found = next((n for n, e in self.engines.items() if e.purpose == purpose), None)
        if found is None or given not in (None, found):
            whose = "a model that is not served" if found is None else found
            raise Refused(409, f"audit {audit} is about the promises of {whose}")
        return found

    # -- jobs ------------------------------------------------------------------------------------

    def add_explain_job(
        self,
        name: str,
        people: Sequence[Person],
        options: Options,
        caller: Caller,
        *,
        number: str | None = None,
    ) -> str:
        """Search answers for many people, one after the other."""
        self.engine(name).frame(people)
        question = explain_question(self.engine(name).source, people, options)
        return self.add_job("explain", json.dumps(question), len(people), caller, number)

    def add_audit_job(
        self,
        file: str,
        content: bytes,
        caller: Caller,
        replaces: str | None = None,
        *,
        number: str | None = None,
    ) -> str:
        """Audit an uploaded model, read as the one that it is to replace where that is known."""
        replaces = self.engine(self._only(replaces or None)).name
        suffix = Path(file).suffix.lower()
        if suffix not in _SUFFIXES:
            raise Refused(415, f"a model file ends in {', '.join(_SUFFIXES)}; nothing is unpickled")
        self._check_jobs()
        stem = re.sub(r"[^\w.-]", "_", Path(file).stem, flags=re.ASCII)[:100]
        path = Path(tempfile.mkdtemp(prefix="model-", dir=self.files)) / f"{stem}{suffix}"
        path.write_bytes(content)
        question = {"file": path.name, "path": str(path), "replaces": replaces}
        return self.add_job("audit", json.dumps(question), 1, caller, number)

    def add_renewal_job(
        self,
        name: str | None,
        audit: int,
        caller: Caller,
        seen: Sequence[str],
        *,
        number: str | None = None,
    ) -> str:
        """Search new answers for the promises that an audit found broken, against the audited model.

        With the digests of certificates that were ``seen``, those answers are issued.
        """
        name = self._named(audit, name)
        if seen:
            caller.check("issue")
            going.check_decided(self.ledger, audit)
        set_around(self.engine(name), self.ledger.audited_model(audit).network)
        after = self.ledger.head.entries
        question = {"model": name, "audit": audit, "seen": list(seen), "after": after}
        return self.add_job("renew", json.dumps(question), 1, caller, number)

    def cancel_job(self, job: str) -> None:
        """Give a job up."""
        self.store.set_state(job, "cancelled")
        if job in self._jobs:
            self._jobs[job].set()

    def add_job(
        self, kind: str, question: str, total: int, caller: Caller, number: str | None
    ) -> str:
        """Begin a job of a question, which is JSON."""
        self._check_jobs()
        number = self.store.add_job(kind, caller.name, question, total, number)
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
            with contextlib.suppress(InUse, OSError):  # the next time
                self.store.note_used()
                self.store.forget_jobs(self.config.limits.keep)
                self._forget_files()
            if self._stopping.wait(_TIDY_SECONDS):
                return

    def _forget_files(self) -> None:
        """Delete pages of jobs that are gone, and files of audited models.

        Of those the latest are kept, those that are live, and those of jobs.
        """
        pages = [*self.files.glob("audit-*.html")]
        known = {f"audit-{job.id}.html" for job in self.store.jobs()}
        for page in pages:
            if page.name not in known:
                page.unlink(missing_ok=True)
        needed = {row["digest"] for row in self.store.lives()}
        questions = (job.question for job in self.store.unfinished())
        needed |= {live["digest"] for one in questions if (live := one.get("live"))}
        going.forget(going.models_folder(self.config), self.config.limits.uploads, needed)

    def _forget_uploads(self, unfinished: Sequence[Job]) -> None:
        """Delete uploads that a stop has left behind: no job needs them any more."""
        audits = [job.question["path"] for job in unfinished if job.kind == "audit"]
        needed = {Path(path).parent.name for path in audits}
        for folder in self.files.glob("model-*"):
            if folder.name not in needed:
                shutil.rmtree(folder, ignore_errors=True)
        for part in going.models_folder(self.config).glob("*.part"):
            part.unlink(missing_ok=True)

    def _start(self, job: Job) -> None:
        given_up = self._jobs[job.id] = threading.Event()
        threading.Thread(target=self._run, args=(job, given_up), daemon=True).start()

    def _run(self, job: Job, given_up: threading.Event) -> None:
        """Answer the parts of a job that have no answer yet; where the state is in use, wait."""
        try:
            while not given_up.is_set():
                try:
                    self._answer(job, given_up)
                    break
                except InUse:
                    if self._stopping.wait(_LATER):
                        break
        except ProplaceError as error:
            self._ended(job, given_up, str(error))
        except Exception as error:
            self._ended(job, given_up, f"the service failed ({type(error).__name__})")
        finally:
            if job.kind == "audit" and not self._stopping.is_set():
                shutil.rmtree(Path(job.question["path"]).parent, ignore_errors=True)
            self._jobs.pop(job.id, None)

    def _answer(self, job: Job, given_up: threading.Event) -> None:
        if not self.store.set_state(job.id, "running"):
            return  # it was given up meanwhile
        done = self.store.answered(job.id)
        for number in range(job.total):
            if number in done:
                continue
            answer = self._part(job, number, given_up)
            if given_up.is_set() or answer is None:
                return
            if job.kind == "audit":
                going.keep(Path(job.question["path"]), going.models_folder(self.config))
            self.store.add_part(job.id, number, answer)
        self.store.set_state(job.id, "done")

    def _ended(self, job: Job, given_up: threading.Event, reason: str) -> None:
        """Note that a job failed, unless it was stopped on purpose."""
        if not (given_up.is_set() or self._stopping.is_set()):
            self.store.set_state(job.id, "failed", reason)

    def _part(self, job: Job, number: int, given_up: threading.Event) -> Any:
        question, seconds = job.question, self.config.limits.seconds
        for tried in range(1, _TRIES + 1):
            if job.kind == "audit":
                page = str(self.files / f"audit-{job.id}.html")
                told = (question["path"], question["file"], question["replaces"])
                call: tuple[Any, ...] = ("audit", *told, job.by, page)
                seconds = _AUDIT_SECONDS
            elif job.kind == "renew":
                source = self.engine(question["model"]).source
                call = ("renew", source, question, job.by, seconds)
                seconds = _AUDIT_SECONDS
            else:  # all people of a job are asked of the same model
                person, live = [question["people"][number]], question["live"]
                source = (question["model"], None if live is None else Live(**live))
                call = ("explain", source, person, question["options"], seconds)
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


def _check_purposes(config: Config, ledger: Ledger) -> None:
    """Every open promise must be one of a model that is served, or audits would pass over it."""
    served = {one.purpose for one in config.models.values()}
    unknown = [
        purpose
        for purpose in sorted(ledger.purposes - served)
        if len(ledger.for_purpose(purpose).promises(state="open"))
    ]
    if unknown:
        raise OptionError(
            f"{ledger.name} holds open promises with the purpose {', '.join(map(repr, unknown))}, "
            f"which is that of no model ({', '.join(map(repr, sorted(served)))}); say in the "
            "configuration which model decides about them: models.NAME.purpose"
        )
