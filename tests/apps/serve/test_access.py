"""Who gets in, by which door, and what each role may do there."""

from __future__ import annotations

import itertools
import json

import pytest

pytest.importorskip("fastapi")

from proplace.apps.serve import access
from proplace.apps.serve.access import PERMISSIONS, Caller, RateLimit, Refused
from proplace.apps.serve.store import ROLES, Key, Session
from served import API, PERSON, opened

EVERYONE = set(ROLES)
CASES, AUDITS, ADMIN = {"caseworker", "admin"}, {"auditor", "admin"}, {"admin"}
DOORS = {
    ("get", "/models"): EVERYONE,
    ("get", "/models/{name}"): EVERYONE,
    ("get", "/models/{name}/schema"): EVERYONE,
    ("post", "/models/{name}/predict"): EVERYONE,
    ("post", "/models/{name}/certify"): EVERYONE,
    ("post", "/models/{name}/explain"): EVERYONE,
    ("post", "/models/{name}/check"): EVERYONE,
    ("get", "/jobs"): EVERYONE,
    ("get", "/jobs/{number}"): EVERYONE,
    ("get", "/jobs/{number}/answers"): EVERYONE,
    ("delete", "/jobs/{number}"): EVERYONE,
    ("get", "/jobs/{number}/page"): AUDITS,
    ("get", "/promises"): CASES | AUDITS,
    ("get", "/promises/{number}"): CASES | AUDITS,
    ("post", "/models/{name}/promises"): CASES,
    ("post", "/promises/{number}/redeem"): CASES,
    ("post", "/promises/{number}/withdraw"): CASES,
    ("post", "/people/erase"): ADMIN,
    ("post", "/audits"): AUDITS,
    ("post", "/audits/{number}/decision"): AUDITS,
    ("post", "/audits/{number}/renewals"): AUDITS,
    ("post", "/audits/{number}/live"): ADMIN,
    ("get", "/ledger"): AUDITS,
    ("get", "/ledger/entries"): AUDITS,
    ("get", "/metrics"): AUDITS,
}
OPEN = {("get", "/health")}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("access")) as found:
        yield found


def knock(client, door, **more):
    """Ask with a body that nobody can read: who may not ask must not hear about that."""
    method, path = door
    path = path.replace("{name}", "lender").replace("{number}", "7")
    headers = {"content-type": "application/json", **more.pop("headers", {})}
    return client.request(method, API + path, content=b"{", headers=headers, **more)


def test_every_door_is_known(served):
    found = served.client().get(f"{API}/openapi.json").json()["paths"]
    doors = {(m, path.removeprefix(API)) for path, item in found.items() for m in item}
    assert doors == set(DOORS) | OPEN


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
def test_nobody_gets_in_without_a_key(served, door):
    for headers in (
        {},
        {"authorization": "Bearer "},
        {"authorization": "Basic YTpi"},
        {"authorization": f"Basic {served.keys['admin']}"},
        {"cookie": "proplace_session=abc"},
        {"cookie": f"proplace_session={served.keys['admin']}"},
    ):
        served.service.logins = RateLimit(1000)
        answer = knock(served.client(), door, headers=headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("door", "role"), [*itertools.product(DOORS, ROLES)])
def test_each_role_opens_its_own_doors(served, door, role):
    answer = knock(served.client(role), door)
    assert (answer.status_code == 403) == (role not in DOORS[door]), answer.text
    assert answer.status_code not in (401, 500)
    if answer.status_code == 403:
        assert role in answer.json()["error"]


def test_health_is_open_and_says_nothing_about_anyone(served):
    answer = served.client().get(f"{API}/health")
    assert answer.status_code == 200
    assert set(answer.json()) == {"status", "waiting", "running"}


def test_permissions_are_of_this_list():
    known = set().union(*PERMISSIONS.values())
    assert PERMISSIONS["admin"] == known
    assert not PERMISSIONS["reader"] & {"promises", "issue", "audit", "ledger", "erase"}
    assert not PERMISSIONS["auditor"] & {"issue", "redeem", "withdraw", "erase"}


# -- sessions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
def test_a_session_changes_nothing_without_its_token(served, door):
    client, csrf = served.session("admin")
    _, foreign = served.session("admin")
    if door[0] == "get":
        assert knock(client, door).status_code not in (401, 403, 500)
        return
    for token in ({}, {"x-csrf-token": ""}, {"x-csrf-token": foreign}, {b"x-csrf-token": b"\xe9"}):
        assert knock(client, door, headers=token).status_code == 403, token
    assert knock(client, door, headers={"x-csrf-token": csrf}).status_code not in (401, 403, 500)


def test_a_session_is_over_when_it_ends_or_its_key_does(served):
    store = served.service.store
    served.keys["passing"] = store.add_key("passing", "reader")
    client, _ = served.session("passing")
    assert client.get(f"{API}/models").status_code == 200
    token = client.cookies["proplace_session"]
    store.end_session(token)
    assert client.get(f"{API}/models").status_code == 401
    client, _ = served.session("passing")
    by_key = served.client("passing")
    store.revoke_key("passing")
    assert client.get(f"{API}/models").status_code == 401
    assert by_key.get(f"{API}/models").status_code == 401


def test_a_session_expires(served):
    key = served.service.store.key(served.keys["reader"])
    client = served.client()
    client.cookies.set("proplace_session", served.service.store.start_session(key, -1e-9))
    assert client.get(f"{API}/models").status_code == 401


def test_a_key_needs_no_token_and_comes_before_a_cookie(served):
    client, _ = served.session("reader")
    headers = {"authorization": f"Bearer {served.keys['admin']}"}
    assert knock(client, ("post", "/people/erase"), headers=headers).status_code == 422


def test_csrf_is_asked_of_sessions_alone():
    key = Key(1, "a", "admin")
    Caller(key).check_csrf(None)
    inside = Caller(key, Session(key, "token"))
    inside.check_csrf("token")
    for wrong in (None, "", "toke", "token ", "é"):
        with pytest.raises(Refused, match="load the page again"):
            inside.check_csrf(wrong)


# -- jobs of others ----------------------------------------------------------------------------------


def test_jobs_are_seen_by_their_owner_and_by_admins(served):
    store = served.service.store
    job = store.add_job("explain", "caseworker", '{"model": "lender"}', 1)
    store.add_part(job, 0, [[{"secret": 1}]])
    store.set_state(job, "done")
    for role in ("reader", "auditor"):
        client = served.client(role)
        for path in ("", "/answers"):
            assert client.get(f"{API}/jobs/{job}{path}").status_code == 404
        assert client.delete(f"{API}/jobs/{job}").status_code == 404
        assert job not in client.get(f"{API}/jobs").text
    for role in ("caseworker", "admin"):
        client = served.client(role)
        assert client.get(f"{API}/jobs/{job}/answers").json()["answers"] == {"0": [{"secret": 1}]}
        assert job in client.get(f"{API}/jobs").text
    assert store.job(job).state == "done"


@pytest.mark.parametrize(
    "number",
    ["..%2f..%2fserve", "..%5cserve", "%2e%2e", "x" * 5000, "%00", "'%20OR%201=1--", "%ff"],
)
def test_no_path_leads_out_of_the_jobs(served, number):
    (served.folder / "serve.files" / "audit-..html").write_text("secret")
    for path in ("", "/answers", "/page"):
        answer = served.client("admin").get(f"{API}/jobs/{number}{path}")
        assert answer.status_code == 404
        assert "secret" not in answer.text


# -- how often ---------------------------------------------------------------------------------------


def test_keys_cannot_be_tried_for_long(served):
    served.service.logins = RateLimit(10)
    client = served.client()
    tries = [client.get(f"{API}/models", headers={"authorization": "Bearer x"}) for _ in range(12)]
    assert [one.status_code for one in tries] == [401] * 10 + [429] * 2
    assert 1 <= int(tries[-1].headers["retry-after"]) <= 60
    assert served.client("reader").get(f"{API}/models").status_code == 200


def test_callers_without_a_key_are_counted_by_address(served, monkeypatch):
    monkeypatch.setattr(served.service, "rate", RateLimit(3))
    tries = [served.client().get(f"{API}/models").status_code for _ in range(4)]
    assert tries == [401] * 3 + [429]


def test_each_key_has_its_own_minute(served, monkeypatch):
    monkeypatch.setattr(served.service, "rate", RateLimit(3))
    one, two = served.client("reader"), served.client("auditor")
    assert [one.get(f"{API}/models").status_code for _ in range(4)] == [200] * 3 + [429]
    assert two.get(f"{API}/models").status_code == 200


def test_a_rate_is_even(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: now[0])
    limit = RateLimit(60)
    for _ in range(60):
        limit.check("a")
    with pytest.raises(Refused) as refused:
        limit.check("a")
    assert refused.value.after == 1
    now[0] += 2.0
    for _ in range(2):
        limit.check("a")
    with pytest.raises(Refused, match="too many requests"):
        limit.check("a")
    now[0] += 3600.0
    for _ in range(60):
        limit.check("a")
    with pytest.raises(Refused):
        limit.check("a")


def test_a_rate_forgets_callers_and_never_a_debt(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: now[0])
    limit = RateLimit(1)
    for n in range(10_001):
        limit.check(str(n))
    limit.check("one more")
    with pytest.raises(Refused):
        limit.check("0")
    now[0] += 121.0
    limit.check("0")
    assert len(limit._buckets) == 1


# -- by which name, with which headers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8765", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8765", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example:localhost", 421),
        ("", 421),
        ("localhost@evil.example", 421),
    ],
)
def test_only_known_hosts_are_answered(served, host, status):
    answer = served.client("reader").get(f"{API}/models", headers={"host": host})
    assert answer.status_code == status
    assert "lender" in answer.text if status == 200 else "lender" not in answer.text


@pytest.mark.parametrize(
    ("path", "role", "status"),
    [
        ("/models", "reader", 200),
        ("/models", None, 401),
        ("/ledger", "reader", 403),
        ("/models/no", "reader", 404),
        ("/no", None, 404),
    ],
)
def test_every_answer_has_the_headers(served, path, role, status):
    answer = served.client(role).get(API + path)
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert len(answer.headers["x-request-id"]) == 16
    assert "access-control-allow-origin" not in answer.headers


def test_nothing_that_is_sent_becomes_a_header(served):
    sent = "x\r\nset-cookie: a=b"
    answers = [
        served.client("admin").get(f"{API}/promises", params={"person": sent}),
        served.client("admin").get(f"{API}/jobs/{sent!r}"),
        served.client("admin").post(f"{API}/audits", files={"model": (sent + ".npz", b"x")}),
    ]
    for answer in answers:
        assert "set-cookie" not in answer.headers
        assert "a=b" not in str(answer.headers)


def test_a_failure_of_ours_is_told_without_its_text(served, caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("Ada Lovelace earns 4711")

    monkeypatch.setattr(served.service.engines["lender"], "predict", fail)
    caplog.set_level("INFO", "proplace.serve")
    client = served.client("reader")
    answer = client.post(f"{API}/models/lender/predict", json={"people": [PERSON]})
    assert answer.status_code == 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Ada" not in answer.text
    assert "Ada" not in caplog.text
    lines = [json.loads(r.message) for r in caplog.records if r.name == "proplace.serve"]
    assert lines[0]["error"] == "RuntimeError"
    assert any("test_access.py" in place for place in lines[0]["at"])
    assert lines[0]["request"] == lines[1]["request"] == answer.headers["x-request-id"]
    assert lines[1]["status"] == 500


def test_methods_that_nobody_knows_are_one_number(served):
    for n in range(5):
        assert served.client().request(f"M{n}", f"{API}/models").status_code == 405
    text = served.client("admin").get(f"{API}/metrics").text
    assert 'method="other"' in text
    assert "M1" not in text
