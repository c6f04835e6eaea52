"""Keys, sessions and jobs of the service, in a SQLite file beside the ledger.

Keys and session tokens are random 256 bits, of which only the SHA-256 is kept. Jobs hold what was asked
and what was found, which is personal data, and are deleted some hours after they have ended.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from proplace.core.errors import OptionError
from proplace.core.optional import require

require("sqlalchemy", "serve", "the service")
import sqlalchemy as sa  # noqa: E402

_PATIENCE = 10.0  # seconds until a writer that waits for another gives up
_SESSIONS = 50  # logins of one key at a time
_LISTED = 1000  # jobs
InUse = sa.exc.OperationalError  # another process writes, and goes on writing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Role = Literal["reader", "caseworker", "auditor", "admin"]
ROLES: tuple[Role, ...] = ("reader", "caseworker", "auditor", "admin")
JobState = Literal["waiting", "running", "done", "failed", "cancelled"]

_SOME = 50  # answers that are read at once

_metadata = sa.MetaData()
_keys = sa.Table(
    "keys",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("revoked", sa.Float),
    sa.Column("used", sa.Float),
)
sa.Index("key_in_use", _keys.c.name, unique=True, sqlite_where=_keys.c.revoked.is_(None))
_sessions = sa.Table(
    "sessions",
    _metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("key", sa.Integer, sa.ForeignKey("keys.id"), nullable=False),
    sa.Column("csrf", sa.Text, nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
)
_jobs = sa.Table(
    "jobs",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
)
_parts = sa.Table(
    "parts",
    _metadata,
    sa.Column("job", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("answer", sa.Text, nullable=False),
)
_requests = sa.Table(
    "requests",
    _metadata,
    sa.Column("by", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),  # its SHA-256
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("content", sa.Text, nullable=False, default=""),
)
_live = sa.Table(
    "live",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("audit", sa.Integer, nullable=False),
    sa.Column("file", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("configured", sa.Text, nullable=False),  # digest of the file that it replaces
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("after", sa.Integer, nullable=False),  # entries of the ledger before it was begun
    sa.Column("entry", sa.Integer),  # of the ledger; none: not known to have happened
)


@dataclass(frozen=True)
class Key:
    """Somebody who may use the service."""

    id: int
    name: str
    role: Role


@dataclass(frozen=True)
class Session:
    """A login to the page."""

    key: Key
    csrf: str


@dataclass(frozen=True)
class KeptRequest:
    """A request that is to be done once.

    Attributes
    ----------
    digest
        Of what was asked.
    job
        The number that its job has, if it makes one.
    created
        When it came first.
    status, content
        Its outcome; without a status it has none yet.
    new
        Whether it came first just now.
    """

    digest: str
    job: str
    created: float
    status: int | None
    content: str
    new: bool


@dataclass(frozen=True)
class Job:
    """A long question."""

    id: str
    kind: str
    by: str
    state: JobState
    total: int
    done: int
    reason: str
    created: float
    ended: float | None
    _store: Store = field(repr=False, compare=False)

    @cached_property
    def question(self) -> dict[str, Any]:
        """What was asked; read when it is needed, since it may be large."""
        return self._store.question(self.id)


class Store:
    """The file, opened."""

    def __init__(self, path: Path) -> None:
        try:
            path.touch(mode=0o600)  # of its owner alone; its log of writes becomes the same
        except OSError as error:
            raise OptionError(f"{path}: cannot be written ({error.strerror})") from None
        self._engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": _PATIENCE}
        )
        self._used: dict[int, float] = {}
        sa.event.listen(self._engine, "connect", _set_up)
        try:
            _metadata.create_all(self._engine)
        except sa.exc.DatabaseError as error:
            raise OptionError(f"{path}: is no state file of the service ({error.orig})") from None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # -- keys ------------------------------------------------------------------------------------

    def add_key(self, name: str, role: str) -> str:
        """Make a key, and return it: it is shown this once."""
        if role not in ROLES:
            raise OptionError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
        if not name.strip() or len(name) > 100 or not name.isprintable():
            raise OptionError("a key needs a name of at most 100 printable characters: whose it is")
        secret = f"pp_{secrets.token_urlsafe(32)}"
        row = {"name": name, "role": role, "hash": _hash(secret), "created": time.time()}
        try:
            with self._engine.begin() as connection:
                connection.execute(_keys.insert(), row)
        except sa.exc.IntegrityError:
            raise OptionError(f"there is a key called {name!r} already; revoke it first, or choose "
                              "another name") from None  # fmt: skip
        return secret

    def revoke_key(self, name: str) -> None:
        """End a key and its sessions; its name can be given again."""
        with self._engine.begin() as connection:
            found = connection.execute(
                sa.select(_keys.c.id).where(_keys.c.name == name, _keys.c.revoked.is_(None))
            ).scalar()
            if found is None:
                raise OptionError(f"there is no key called {name!r}")
            connection.execute(_sessions.delete().where(_sessions.c.key == found))
            connection.execute(
                _keys.update().where(_keys.c.id == found).values(revoked=time.time())
            )

    def all_keys(self) -> list[dict[str, Any]]:
        """All keys, without secrets."""
        columns = (_keys.c.name, _keys.c.role, _keys.c.created, _keys.c.revoked, _keys.c.used)
        with self._engine.begin() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(*columns))]

    def key(self, secret: str) -> Key | None:
        """Whose key it is; None for any other text."""
        query = sa.select(_keys).where(_keys.c.hash == _hash(secret), _keys.c.revoked.is_(None))
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        self._used[row.id] = time.time()
        return Key(row.id, row.name, row.role)

    def note_used(self) -> None:
        """Write down when keys were used last: now and then, so that asking never waits for a writer."""
        used, self._used = self._used, {}
        with self._engine.begin() as connection:
            for number, when in used.items():
                connection.execute(_keys.update().where(_keys.c.id == number).values(used=when))

    # -- sessions --------------------------------------------------------------------------------

    def start_session(self, key: Key, hours: float) -> str:
        """Begin a session; returns the token for the cookie."""
        token, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        row = {"hash": _hash(token), "key": key.id, "csrf": csrf}
        with self._engine.begin() as connection:
            connection.execute(_sessions.delete().where(_sessions.c.expires < time.time()))
            connection.execute(_sessions.insert(), row | {"expires": time.time() + 3600.0 * hours})
            own = sa.select(_sessions.c.hash).where(_sessions.c.key == key.id)
            latest = own.order_by(_sessions.c.expires.desc()).limit(_SESSIONS)
            connection.execute(
                _sessions.delete().where(
                    _sessions.c.key == key.id, _sessions.c.hash.not_in(latest.scalar_subquery())
                )
            )
        return token

    def session(self, token: str) -> Session | None:
        """The session of a token."""
        query = (
            sa.select(_sessions.c.csrf, _keys.c.id, _keys.c.name, _keys.c.role)
            .join_from(_sessions, _keys, _sessions.c.key == _keys.c.id)
            .where(
                _sessions.c.hash == _hash(token),
                _sessions.c.expires >= time.time(),
                _keys.c.revoked.is_(None),
            )
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        return None if row is None else Session(Key(row.id, row.name, row.role), row.csrf)

    def end_session(self, token: str) -> None:
        """Forget a session."""
        with self._engine.begin() as connection:
            connection.execute(_sessions.delete().where(_sessions.c.hash == _hash(token)))

    # -- requests that are done once -------------------------------------------------------------

    def begin_request(self, by: str, key: str, digest: str) -> KeptRequest:
        """Note a request, unless one of the same key is known; return what is known."""
        row = {"by": by, "key": _hash(key), "digest": digest, "created": time.time()}
        same = sa.and_(_requests.c.by == by, _requests.c.key == _hash(key))
        with self._engine.begin() as connection:
            made = connection.execute(
                _requests.insert().prefix_with("OR IGNORE"), row | {"job": _job_number()}
            )
            found = connection.execute(sa.select(_requests).where(same)).one()
        facts = (found.digest, found.job, found.created, found.status, found.content)
        return KeptRequest(*facts, new=bool(made.rowcount))

    def end_request(self, by: str, key: str, status: int, content: str) -> None:
        """Keep the outcome of a request."""
        same = sa.and_(_requests.c.by == by, _requests.c.key == _hash(key))
        with self._engine.begin() as connection:
            connection.execute(
                _requests.update().where(same).values(status=status, content=content)
            )

    def drop_request(self, by: str, key: str) -> None:
        """Forget a request that did nothing."""
        same = sa.and_(_requests.c.by == by, _requests.c.key == _hash(key))
        with self._engine.begin() as connection:
            connection.execute(_requests.delete().where(same))

    # -- models in service -----------------------------------------------------------------------

    def begin_live(self, **facts: Any) -> int:
        """Note that a model is about to go live; it counts once it is confirmed."""
        with self._engine.begin() as connection:
            found = connection.execute(_live.insert().values(**facts))
            return int(found.inserted_primary_key[0])  # type: ignore[index]

    def confirm_live(self, number: int, entry: int) -> None:
        """Note the entry of the ledger that says so; what was live before is so no longer."""
        with self._engine.begin() as connection:
            connection.execute(_live.update().where(_live.c.id == number).values(entry=entry))
            name = sa.select(_live.c.model).where(_live.c.id == number).scalar_subquery()
            connection.execute(_live.delete().where(_live.c.id < number, _live.c.model == name))

    def drop_live(self, number: int) -> None:
        """Forget a model that did not go live."""
        with self._engine.begin() as connection:
            connection.execute(_live.delete().where(_live.c.id == number))

    def end_lives(self, name: str) -> None:
        """No model is live under a name."""
        with self._engine.begin() as connection:
            connection.execute(_live.delete().where(_live.c.model == name))

    def lives(self) -> list[dict[str, Any]]:
        """Models that are live, one for each name."""
        return self._lives(_live.c.entry.is_not(None))

    def unconfirmed_lives(self) -> list[dict[str, Any]]:
        """Models of which it is not known whether they went live."""
        return self._lives(_live.c.entry.is_(None))

    def _lives(self, condition: Any) -> list[dict[str, Any]]:
        query = sa.select(_live).where(condition).order_by(_live.c.id)
        with self._engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    # -- jobs ------------------------------------------------------------------------------------

    def add_job(
        self, kind: str, by: str, question: str, total: int, number: str | None = None
    ) -> str:
        """Write down a question that takes long (JSON), with a number that was chosen for it or any."""
        job = number or _job_number()
        row = {"id": job, "kind": kind, "by": by, "state": "waiting", "total": total, "reason": ""}
        with self._engine.begin() as connection:
            connection.execute(_jobs.insert(), row | {"question": question, "created": time.time()})
        return job

    def job(self, number: str) -> Job | None:
        """One job."""
        return next(iter(self._jobs(_jobs.c.id == number)), None)

    def jobs(self, by: str | None = None) -> list[Job]:
        """Jobs, the latest first, or those of somebody: at most a thousand."""
        return self._jobs(sa.true() if by is None else _jobs.c.by == by, _LISTED)

    def unfinished(self) -> list[Job]:
        """Jobs that were asked for and have not ended, the oldest first."""
        return self._jobs(_jobs.c.state.in_(("waiting", "running")))[::-1]

    def set_state(self, number: str, state: JobState, reason: str = "") -> bool:
        """Note what becomes of a job; False where it has ended already."""
        ended = time.time() if state in ("done", "failed", "cancelled") else None
        with self._engine.begin() as connection:
            changed = connection.execute(
                _jobs.update()
                .where(_jobs.c.id == number, _jobs.c.state.in_(("waiting", "running")))
                .values(state=state, reason=reason, ended=ended)
            )
            if ended is not None:  # who was asked about is needed no longer
                asked = sa.and_(_jobs.c.id == number, _jobs.c.kind == "explain")
                connection.execute(_jobs.update().where(asked).values(question="{}"))
        return bool(changed.rowcount)

    def add_part(self, number: str, part: int, answer: object) -> None:
        """Keep one answer of a job."""
        row = {"job": number, "number": part, "answer": json.dumps(answer)}
        with self._engine.begin() as connection:
            connection.execute(sa.insert(_parts).prefix_with("OR REPLACE"), row)

    def answered(self, number: str) -> set[int]:
        """Which parts of a job have an answer."""
        query = sa.select(_parts.c.number).where(_parts.c.job == number)
        with self._engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def parts_as_written(self, number: str) -> Iterator[list[tuple[int, str]]]:
        """The answers of a job so far, in order and as JSON, some at a time."""
        last, some = -1, [(0, "")]
        while some:
            query = (
                sa.select(_parts.c.number, _parts.c.answer)
                .where(_parts.c.job == number, _parts.c.number > last)
                .order_by(_parts.c.number)
                .limit(_SOME)
            )
            with self._engine.connect() as connection:
                some = [(part, answer) for part, answer in connection.execute(query)]
            if some:
                last = some[-1][0]
                yield some

    def question(self, number: str) -> dict[str, Any]:
        """What was asked; it may be large."""
        query = sa.select(_jobs.c.question).where(_jobs.c.id == number)
        with self._engine.connect() as connection:
            facts: dict[str, Any] = json.loads(connection.execute(query).scalar() or "{}")
        return facts

    def parts(self, number: str) -> Iterator[tuple[int, Any]]:
        """The answers of a job so far, in order."""
        query = sa.select(_parts.c.number, _parts.c.answer).where(_parts.c.job == number)
        with self._engine.connect() as connection:
            for part, answer in connection.execute(query.order_by(_parts.c.number)):
                yield part, json.loads(answer)

    def forget_jobs(self, hours: float) -> list[str]:
        """Delete jobs that ended so many hours ago, with all that is in them; returns their ids.

        Requests go when they are as old, and their jobs are gone.
        """
        until = time.time() - 3600.0 * hours
        over = sa.and_(_requests.c.created < until, _requests.c.job.not_in(sa.select(_jobs.c.id)))
        with self._engine.begin() as connection:
            deleted = _jobs.delete().where(_jobs.c.ended < until).returning(_jobs.c.id)
            gone = list(connection.execute(deleted).scalars())
            requests = connection.execute(_requests.delete().where(over)).rowcount
        if gone or requests:  # nothing of them stays in the log of writes
            self._write_through()
        return gone

    def forget_people(self) -> None:
        """Delete what names people by their ids: renewals that have ended, and refusals."""
        ended = _jobs.c.ended.is_not(None)
        with self._engine.begin() as connection:
            connection.execute(_jobs.delete().where(_jobs.c.kind == "renew", ended))
            connection.execute(_requests.delete().where(_requests.c.status >= 400))
        self._write_through()

    def _write_through(self) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def _jobs(self, condition: Any, most: int | None = None) -> list[Job]:
        done = (
            sa.select(sa.func.count())
            .where(_parts.c.job == _jobs.c.id)
            .scalar_subquery()
            .label("n")
        )
        columns = [column for column in _jobs.c if column.name != "question"]
        query = sa.select(*columns, done).where(condition).order_by(_jobs.c.created.desc())
        query = query.limit(most)
        with self._engine.connect() as connection:
            return [
                Job(
                    row.id, row.kind, row.by, row.state, row.total, row.n, row.reason, row.created,
                    row.ended, self,
                )
                for row in connection.execute(query)
            ]  # fmt: skip


def _job_number() -> str:
    return secrets.token_urlsafe(12)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _set_up(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON",
                   "secure_delete = ON"):  # fmt: skip
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
