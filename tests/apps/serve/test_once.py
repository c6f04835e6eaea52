"""What makes something is done once, however often it is asked for with the same key."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest

pytest.importorskip("fastapi")

import proplace as pp
import small_promises as small
from proplace.apps.serve import service
from proplace.apps.serve.store import Store
from proplace.client import Client
from served import API, PERSON, Inline, listening, opened, wait

LENDER = f"{API}/models/lender"
OTHER = {"income": 13, "debt": 24}
STRICT = pp.Network([(layer.W, layer.b - 0.25) for layer in small.NET.layers])  # breaks promises


@pytest.fixture(scope="module", autouse=True)
def inline():
    patch = pytest.MonkeyPatch()
    patch.setattr(service, "Workers", Inline)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("once"), limits={"at_once": 1}) as found:
        STRICT.save(found.folder / "strict.npz")
        yield found


@pytest.fixture
def admin(served):
    return served.client("admin")


def asked_of(client, kind, folder, who="anna"):
    """A request of each kind that makes something: its path and what is sent."""
    if kind == "explain":
        return f"{LENDER}/explain", {"json": {"people": [PERSON, OTHER]}}
    if kind == "audit":
        content = (folder / "strict.npz").read_bytes()
        return f"{API}/audits", {"files": {"model": ("strict.npz", content)}}
    if kind == "renewal":
        job = client.post(
            asked_of(client, "audit", folder)[0], **asked_of(client, "audit", folder)[1]
        )
        wait(client, job.json()["job"])
        answers = client.get(f"{API}/jobs/{job.json()['job']}/answers").json()["answers"]
        return f"{API}/audits/{answers['0']['audit']}/renewals", {"json": {}}
    answer = client.post(f"{LENDER}/explain", json={"people": [PERSON]}).json()["answers"][0][0]
    promise = {"id": who, "person": PERSON, "certificate": answer["certificate_digest"]}
    return f"{LENDER}/promises", {"json": promise}


def made(found):
    """How many jobs and promises there are."""
    return len(found.service.store.jobs()), len(found.service.ledger.promises())


@pytest.mark.parametrize("kind", ["explain", "audit", "renewal", "promise"])
def test_the_same_again_has_the_first_outcome(served, admin, kind):
    path, sent = asked_of(admin, kind, served.folder)
    headers = {"idempotency-key": f"same {kind}"}
    before = made(served)
    first = admin.post(path, headers=headers, **sent)
    assert first.status_code == (201 if kind == "promise" else 202), first.text
    for _ in range(2):
        again = admin.post(path, headers=headers, **sent)
        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert again.headers.get("location") == first.headers.get("location")
    assert sum(made(served)) == sum(before) + 1
    other = served.client("caseworker" if kind in ("explain", "promise") else "auditor")
    theirs = other.post(path, headers=headers, **sent)  # keys are of those who use them
    assert theirs.json() != first.json()
    without = admin.post(path, **sent)
    assert without.json() != first.json()


@pytest.mark.parametrize("change", ["body", "path", "file"])
def test_the_same_key_for_something_else_is_refused(served, admin, change):
    kind = "audit" if change == "file" else "explain"
    path, sent = asked_of(admin, kind, served.folder)
    headers = {"idempotency-key": f"other {change}"}
    assert admin.post(path, headers=headers, **sent).status_code == 202
    if change == "body":
        sent = {"json": {"people": [OTHER, PERSON]}}
    elif change == "path":
        path, sent = asked_of(admin, "audit", served.folder)
    else:
        sent = {"files": {"model": ("strict.npz", (served.folder / "later.npz").read_bytes())}}
    before = made(served)
    answer = admin.post(path, headers=headers, **sent)
    assert answer.status_code == 422
    assert "use a new one" in answer.json()["error"]
    assert made(served) == before


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_keys_are_short_texts(served, admin, key):
    path, sent = asked_of(admin, "explain", served.folder)
    answer = admin.post(path, headers={"idempotency-key": key}, **sent)
    assert answer.status_code == 422
    assert "255" in answer.json()["error"]


def test_a_refusal_is_an_outcome_and_a_wrong_request_is_none(served, admin):
    path, sent = asked_of(admin, "promise", served.folder, who="berta")
    wrong = {"json": sent["json"] | {"certificate": "0" * 64}}
    headers = {"idempotency-key": "refused"}
    first = admin.post(path, headers=headers, **wrong)
    assert first.status_code == 409
    again = admin.post(path, headers=headers, **wrong)
    assert (again.status_code, again.json()) == (409, first.json())
    assert admin.post(path, headers=headers, **sent).status_code == 422
    headers = {"idempotency-key": "malformed"}
    assert admin.post(path, headers=headers, json={"id": 1}).status_code == 422
    assert admin.post(path, headers=headers, content=b"{").status_code == 422
    assert admin.post(path, headers=headers, **sent).status_code == 201


def test_a_refusal_stays_though_it_could_be_done_now(served, admin):
    path, sent = asked_of(admin, "promise", served.folder, who="dora")
    number = admin.post(path, **sent).json()["promise"]
    later = {"json": sent["json"] | {"expires": "2999-12-31"}}
    headers = {"idempotency-key": "another promise"}
    first = admin.post(path, headers=headers, **later)
    assert first.status_code == 409
    admin.post(f"{API}/promises/{number}/withdraw", json={"reason": "a mistake"})
    again = admin.post(path, headers=headers, **later)
    assert (again.status_code, again.json()) == (409, first.json())
    assert admin.post(path, headers={"idempotency-key": "a new one"}, **later).status_code == 201


def test_answers_at_once_are_not_kept(served, admin):
    """They make nothing, and are personal data."""
    headers = {"idempotency-key": "at once"}
    for person in (PERSON, OTHER):
        answer = admin.post(f"{LENDER}/explain", headers=headers, json={"people": [person]})
        assert answer.status_code == 200


def test_what_is_asked_at_the_same_time_is_done_once(served, admin):
    path, sent = asked_of(admin, "promise", served.folder, who="clara")
    issue, begun, go_on, calls = (
        served.service.workers._functions["issue"], threading.Event(), threading.Event(), []
    )  # fmt: skip

    def slow(*given):
        calls.append(1)
        begun.set()
        assert go_on.wait(30)
        return issue(*given)

    served.service.workers._functions["issue"] = slow
    answers = []

    def post():
        answer = served.client("admin").post(path, headers={"idempotency-key": "both"}, **sent)
        answers.append((answer.status_code, answer.json()))

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    other = admin.post(path, headers={"idempotency-key": "both"}, json={})
    assert other.status_code == 422  # something else, while it runs
    go_on.set()
    for thread in threads:
        thread.join(30)
    served.service.workers._functions["issue"] = issue
    assert len(calls) == 1
    assert len(answers) == 4
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 201


def test_too_busy_is_no_outcome(tmp_path):
    with opened(tmp_path, limits={"at_once": 1, "jobs": 1}) as found:
        client = found.client("admin")
        path, sent = asked_of(client, "explain", tmp_path)
        found.service._jobs["one"] = threading.Event()
        headers = {"idempotency-key": "busy"}
        assert client.post(path, headers=headers, **sent).status_code == 429
        del found.service._jobs["one"]
        assert client.post(path, headers=headers, **sent).status_code == 202


@pytest.mark.parametrize("kind", ["explain", "audit", "promise"])
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not noted"])
def test_a_restart_knows_what_was_done(tmp_path, monkeypatch, kind, noted):
    """Also where the service died between doing it and noting the outcome."""
    with opened(tmp_path, limits={"at_once": 1}) as found:
        STRICT.save(tmp_path / "strict.npz")
        keys, client = found.keys, found.client("admin")
        path, sent = asked_of(client, kind, tmp_path)
        with monkeypatch.context() as patch:
            if not noted:
                patch.setattr(Store, "end_request", lambda *_: None)
            first = client.post(path, headers={"idempotency-key": "k"}, **sent)
        assert first.status_code in (201, 202)
        before = made(found)
        if kind == "promise":  # it would not be found open
            number = first.json()["promise"]
            found.service.ledger.withdraw(number, "a mistake")
        else:
            wait(client, first.json()["job"])
    with opened(tmp_path, limits={"at_once": 1}) as found:
        found.keys = keys
        again = found.client("admin").post(path, headers={"idempotency-key": "k"}, **sent)
        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert made(found) == before


def test_keys_are_kept_as_long_as_jobs(tmp_path):
    store = Store(tmp_path / "serve.db")
    done, running = (store.begin_request("anna", f"key {n}", "digest") for n in range(2))
    store.end_request("anna", "key 0", 409, json.dumps({"error": "for Hedwig"}))
    store.add_job("explain", "anna", "{}", 1, running.job)
    store.forget_jobs(1.0)
    assert not store.begin_request("anna", "key 0", "other").new
    assert store.forget_jobs(-1.0) == []
    assert store.begin_request("anna", "key 0", "other").new
    assert not store.begin_request("anna", "key 1", "digest").new  # its job goes on
    store.set_state(running.job, "done")
    assert store.forget_jobs(-1.0) == [running.job]
    assert store.begin_request("anna", "key 1", "digest").new
    assert done.new
    store.close()
    assert b"Hedwig" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


# -- broken connections ------------------------------------------------------------------------------


class Dropping:
    """Stands between a client and a service, and drops the first answers to what makes something."""

    def __init__(self, port, drops):
        self._port, self._drops, self.dropped = port, drops, 0
        self._place = socket.create_server(("127.0.0.1", 0))
        self.port = self._place.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._pass, args=(self._place.accept()[0],), daemon=True
                ).start()

    def _pass(self, theirs):
        with theirs, socket.create_connection(("127.0.0.1", self._port)) as ours:
            ours.settimeout(20)
            theirs.settimeout(20)
            with contextlib.suppress(OSError):
                while request := self._message(theirs):
                    ours.sendall(request)
                    answer = self._message(ours)
                    if b"idempotency-key" in request.lower() and self.dropped < self._drops:
                        self.dropped += 1
                        return
                    theirs.sendall(answer)

    @staticmethod
    def _message(connection):
        """A request or an answer, whole."""
        came = b""
        while b"\r\n\r\n" not in came:
            part = connection.recv(65536)
            if not part:
                return b""
            came += part
        head, _, body = came.partition(b"\r\n\r\n")
        fields = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        while b"transfer-encoding" in fields and not came.endswith(b"\r\n0\r\n\r\n"):
            came += connection.recv(65536)
        left = int(fields.get(b"content-length", b"0")) - len(body)
        while left > 0:
            part = connection.recv(65536)
            came, left = came + part, left - len(part)
        return came

    def close(self):
        self._place.close()


@pytest.mark.parametrize("kind", ["explain", "audit", "renewal", "promise"])
def test_a_client_whose_answer_is_lost_asks_again_and_it_is_done_once(tmp_path, kind):
    with opened(tmp_path, limits={"at_once": 1}) as found, listening(found) as port:
        STRICT.save(tmp_path / "strict.npz")
        direct = Client(f"http://127.0.0.1:{port}", found.keys["admin"])
        answer = direct.explain([PERSON])[0]
        number = direct.audit(tmp_path / "strict.npz").number if kind == "renewal" else 0
        before, proxy = made(found), Dropping(port, drops=2)
        with direct, Client(f"http://127.0.0.1:{proxy.port}", found.keys["admin"]) as client:
            if kind == "explain":
                assert len(client.explain([PERSON, OTHER])) == 2
            elif kind == "audit":
                assert client.audit(tmp_path / "strict.npz").passes
            elif kind == "renewal":
                assert client.renew(number).digests == ()
            else:
                assert client.issue(answer, "anna").new is True
        proxy.close()
        assert proxy.dropped == 2
        assert sum(made(found)) == sum(before) + 1
