"""Keys, sessions and jobs in their file."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest

pytest.importorskip("fastapi")

from proplace.apps.serve import service
from proplace.apps.serve import store as module
from proplace.apps.serve.store import ROLES, InUse, Store
from proplace.core.errors import OptionError
from served import API, PERSON, Inline, opened, wait


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "serve.db")
    yield found
    found.close()


def contents(folder):
    """All bytes of the file, and of its log of writes."""
    return b"".join(path.read_bytes() for path in folder.glob("serve.db*"))


def test_secrets_are_not_in_the_file(store, tmp_path):
    secret = store.add_key("ann", "admin")
    token = store.start_session(store.key(secret), 1.0)
    found = contents(tmp_path)
    assert b"ann" in found
    assert secret.encode() not in found
    assert secret[3:].encode() not in found
    assert token.encode() not in found


def test_a_key_is_known_by_all_of_its_letters(store):
    secret = store.add_key("ann", "reader")
    assert (store.key(secret).name, store.key(secret).role) == ("ann", "reader")
    for wrong in ("", " ", secret[:-1], secret + "x", secret.upper(), "pp_", "ann", "%", "é", "\0"):
        assert store.key(wrong) is None, wrong
    assert len({store.add_key(f"k{n}", "reader") for n in range(20)}) == 20
    assert len(secret) >= 43


def test_a_revoked_key_is_over_and_its_name_free(store):
    first = store.add_key("ann", "admin")
    token = store.start_session(store.key(first), 1.0)
    with pytest.raises(OptionError, match="a key called 'ann' already"):
        store.add_key("ann", "reader")
    store.revoke_key("ann")
    assert store.key(first) is None
    assert store.session(token) is None
    with pytest.raises(OptionError, match="no key called 'ann'"):
        store.revoke_key("ann")
    second = store.add_key("ann", "reader")
    assert store.key(first) is None
    assert store.key(second).role == "reader"
    assert store.session(token) is None
    store.revoke_key("ann")
    assert [(k["name"], k["revoked"] is None) for k in store.all_keys()] == [("ann", False)] * 2


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\nb", "\x1b[31mred", "a\0"])
def test_names_are_printable(store, name):
    with pytest.raises(OptionError, match="printable characters"):
        store.add_key(name, "reader")


def test_roles_are_of_the_list(store):
    for role in ("", "root", "Admin", "admin "):
        with pytest.raises(OptionError, match="role must be one of"):
            store.add_key("x", role)
    for role in ROLES:
        assert store.key(store.add_key(role, role)).role == role


def test_lists_of_keys_hold_no_secret(store):
    secret = store.add_key("ann", "reader")
    store.key(secret)
    store.note_used()
    (facts,) = store.all_keys()
    assert set(facts) == {"name", "role", "created", "revoked", "used"}
    assert facts["used"] == pytest.approx(time.time(), abs=60)


def test_sessions_end(store, monkeypatch):
    key = store.key(store.add_key("ann", "reader"))
    token, other = store.start_session(key, 2.0), store.start_session(key, 2.0)
    assert store.session(token).key == key
    assert store.session(token).csrf != store.session(other).csrf
    assert store.session("") is None
    assert store.session(store.session(token).csrf) is None
    store.end_session(token)
    assert store.session(token) is None
    assert store.session(other) is not None
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 7199.0)
    assert store.session(other) is not None
    monkeypatch.setattr(module.time, "time", lambda: now + 7201.0)
    assert store.session(other) is None
    store.start_session(key, 1.0)
    with sqlite3.connect(store._engine.url.database) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (1,)


def test_a_job_ends_once(store):
    job = store.add_job("explain", "ann", '{"people": [1]}', 2)
    assert [one.id for one in store.unfinished()] == [job]
    assert store.set_state(job, "running")
    store.add_part(job, 1, {"b": 2})
    store.add_part(job, 0, {"a": 1})
    store.add_part(job, 0, {"a": 3})
    assert dict(store.parts(job)) == {0: {"a": 3}, 1: {"b": 2}}
    assert store.job(job).done == 2
    assert store.set_state(job, "cancelled")
    assert not store.set_state(job, "done")
    assert not store.set_state(job, "running")
    found = store.job(job)
    assert (found.state, found.ended is not None) == ("cancelled", True)
    assert store.unfinished() == []
    assert store.job("nothing") is None


def test_jobs_of_somebody_the_latest_first(store):
    mine = [store.add_job("explain", "ann", "{}", 1) for _ in range(2)]
    store.add_job("audit", "bea", "{}", 1)
    assert [job.id for job in store.jobs("ann")] == mine[::-1]
    assert [job.id for job in store.unfinished()][:2] == mine
    assert len(store.jobs()) == 3


def test_old_jobs_are_forgotten_to_the_last_byte(store, tmp_path, monkeypatch):
    old = store.add_job("explain", "ann", '{"people": ["zebra-question"]}', 1)
    store.add_part(old, 0, "zebra-answer")
    store.set_state(old, "done")
    unfinished = store.add_job("explain", "ann", "{}", 1)
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 3599.0)
    assert store.forget_jobs(1.0) == []
    assert b"zebra" in contents(tmp_path)
    monkeypatch.setattr(module.time, "time", lambda: now + 3601.0)
    assert store.forget_jobs(1.0) == [old]
    assert store.job(old) is None
    assert list(store.parts(old)) == []
    assert b"zebra" not in contents(tmp_path)
    assert [job.id for job in store.jobs()] == [unfinished]


def test_a_job_outlives_the_process(tmp_path):
    first = Store(tmp_path / "serve.db")
    job = first.add_job("explain", "ann", '{"people": [1, 2]}', 2)
    first.set_state(job, "running")
    first.add_part(job, 0, "a")
    first.close()
    second = Store(tmp_path / "serve.db")
    (found,) = second.unfinished()
    assert (found.id, found.done, found.question) == (job, 1, {"people": [1, 2]})
    second.close()


def test_the_file_is_of_its_owner_alone(store, tmp_path):
    store.add_key("ann", "reader")
    for path in tmp_path.glob("serve.db*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_another_file_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no database, but long enough to look at " * 50)
    with pytest.raises(OptionError, match="is no state file"):
        Store(tmp_path / "notes.txt")
    with pytest.raises(OptionError, match="cannot be written"):
        Store(tmp_path / "nowhere" / "serve.db")


# -- while another program writes ------------------------------------------------------------------


def test_asking_does_not_wait_for_a_writer(tmp_path):
    """Keys and sessions are read, and when a key was used is written later."""
    store = Store(tmp_path / "serve.db")
    secret = store.add_key("ann", "reader")
    token = store.start_session(store.key(secret), 1.0)
    with contextlib.closing(sqlite3.connect(tmp_path / "serve.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.key(secret).name == "ann"
        assert store.session(token) is not None
        other.execute("ROLLBACK")
    assert store.all_keys()[0]["used"] is None
    store.note_used()
    assert store.all_keys()[0]["used"] is not None
    store.close()


def test_a_job_waits_while_the_state_is_in_use(tmp_path, monkeypatch):
    """It fails for no other reason than that somebody else was writing: it goes on afterwards."""
    monkeypatch.setattr(service, "Workers", Inline)
    monkeypatch.setattr(service, "_LATER", 0.01)
    failures = iter([True, True, False, True])
    plain = Store.add_part

    def add_part(store, *arguments):
        if next(failures, False):
            raise InUse("", {}, Exception("database is locked"))
        return plain(store, *arguments)

    monkeypatch.setattr(Store, "add_part", add_part)
    with opened(tmp_path, limits={"at_once": 1}) as found:
        client = found.client("reader")
        asked = {"people": [PERSON] * 3}
        job = client.post(f"{API}/models/lender/explain", json=asked).json()["job"]
        ended = wait(client, job)
        assert (ended["state"], ended["done"]) == ("done", 3)
        assert found.service.store.question(job) == {}  # who was asked about


def test_a_state_in_use_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "Workers", Inline)

    def in_use(*_):
        raise InUse("", {}, Exception("database is locked"))

    with opened(tmp_path) as found:
        monkeypatch.setattr(Store, "jobs", in_use)
        answer = found.client("reader").get(f"{API}/jobs")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_key_has_so_many_sessions(tmp_path, monkeypatch):
    monkeypatch.setattr("proplace.apps.serve.store._SESSIONS", 3)
    store = Store(tmp_path / "serve.db")
    keys = [store.key(store.add_key(name, "reader")) for name in ("ann", "bea")]
    other = store.start_session(keys[1], 1.0)
    tokens = [store.start_session(keys[0], 1.0 + n) for n in range(5)]
    assert [store.session(token) is not None for token in tokens] == [False] * 2 + [True] * 3
    assert store.session(other) is not None
    store.close()


@pytest.mark.parametrize("who", [" anna", "anna ", "anna\n"])
def test_ids_have_no_spaces_at_their_ends(tmp_path, monkeypatch, who):
    monkeypatch.setattr(service, "Workers", Inline)
    with opened(tmp_path) as found:
        admin = found.client("admin")
        assert admin.post(f"{API}/people/erase", json={"id": who}).status_code == 422
        asked = {"id": who, "person": PERSON, "certificate": "0" * 64}
        assert admin.post(f"{API}/models/lender/promises", json=asked).status_code == 422
