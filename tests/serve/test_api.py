"""The nine routes: what programs send and get, and bodies that nobody should send."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import proplace as pp
from served import API, PERSON
from support.lenders import NET, STRICT
from support.tiers import thorough

NEAR = pp.Network([(layer.W + 0.005, layer.b - 0.005) for layer in NET.layers])
ROUTES = {
    ("get", "/health"),
    ("get", "/model"),
    ("post", "/certify"),
    ("post", "/explain"),
    ("get", "/promises"),
    ("post", "/promises"),
    ("get", "/promises/{number}"),
    ("post", "/promises/{number}/redeem"),
    ("post", "/audits"),
}


@pytest.fixture
def explained(api):
    return api.post(f"{API}/explain", json={"person": PERSON}).json()


def issue(api, explained, person, **more):
    body = {"answer": explained["answer"], "person": person, "expires": "2999-12-31"} | more
    return api.post(f"{API}/promises", json=body)


def test_openapi_has_nine_routes_with_examples(api):
    found = api.get(f"{API}/openapi.json").json()
    paths = {(method, path.removeprefix(API)) for path, m in found["paths"].items() for method in m}
    assert paths == ROUTES
    for method, path in paths:
        assert found["paths"][API + path][method]["description"]
    bodies = found["components"]["schemas"]
    for name in ("CertifyBody", "ExplainBody", "IssueBody", "RedeemBody", "Verdict"):
        assert "examples" in json.dumps(bodies[name]), name


def test_health_needs_no_token_and_reports_nothing_of_model(served):
    found = served.client().get(f"{API}/health").json()
    assert found["ready"]
    assert set(found) == {"ready", "step", "version"}


def test_model_describes_its_features(api):
    found = api.get(f"{API}/model").json()
    assert [f["name"] for f in found["features"]] == ["income", "debt"]
    assert found["outcome"] == "approved"
    low, high = found["features"][0]["people"]
    assert 20 <= low < high <= 95


def test_explain_certify_issue_and_redeem_one_person(api, explained, book):
    assert not explained["accepted"]
    best = explained["alternatives"][0]
    changes = {claim["name"]: claim["to"] for claim in best["claims"]}
    verdict = api.post(
        f"{API}/certify", json={"answer": explained["answer"], "changes": changes}
    ).json()
    assert (verdict["possible"], verdict["accepted"], verdict["guaranteed"]) == (True, True, True)
    made = issue(api, explained, "ada")
    assert (made.status_code, made.json()["new"]) == (201, True)
    number = made.json()["promise"]
    assert issue(api, explained, "ada").json() == {"promise": number, "new": False}
    shown = api.get(f"{API}/promises/{number}").json()
    assert (shown["person"], shown["state"]) == ("ada", "open")
    assert shown["explanation"]["claims"] == best["claims"]
    early = api.post(f"{API}/promises/{number}/redeem", json={"person": PERSON}).json()
    assert early["verdict"] == "not_met"
    looked = {"person": PERSON | changes, "record": False}
    assert (
        api.post(f"{API}/promises/{number}/redeem", json=looked).json()["verdict"] == "met_exactly"
    )
    assert book.promise(number).state == "open"
    there = api.post(f"{API}/promises/{number}/redeem", json={"person": PERSON | changes}).json()
    assert there["verdict"] == "met_exactly"
    assert book.promise(number).state == "redeemed"
    assert book.verify().valid


def test_numbers_are_read_as_people_write_them(api):
    plain = api.post(f"{API}/certify", json={"person": PERSON}).json()
    assert (
        api.post(f"{API}/certify", json={"person": {"income": "12.0", "debt": " 24 "}}).json()
        == plain
    )


def test_second_promise_to_person_needs_existing_option(api, explained):
    first = issue(api, explained, "bea").json()["promise"]
    later = {"expires": "2998-01-01"}
    assert issue(api, explained, "bea", **later).status_code == 409
    second = issue(api, explained, "bea", existing="renew", **later).json()["promise"]
    states = {n: api.get(f"{API}/promises/{n}").json()["state"] for n in (first, second)}
    assert states == {first: "renewed", second: "open"}


def test_promises_are_paged(api, explained):
    for n in range(3):
        assert issue(api, explained, f"page {n}").status_code == 201
    first = api.get(f"{API}/promises", params={"person": "PAGE", "size": 2}).json()
    assert [row["person"] for row in first["promises"]] == ["page 2", "page 1"]
    second = api.get(
        f"{API}/promises", params={"person": "page", "size": 2, "before": first["next"]}
    ).json()
    assert [row["person"] for row in second["promises"]] == ["page 0"]
    assert second["next"] is None


@pytest.mark.parametrize("number", ["0", "-1", "9" * 20, "9" * 5000, "x", "²", "1.5"])
def test_missing_promise_is_error(api, number):
    assert api.get(f"{API}/promises/{number}").status_code in (404, 422)
    body = {"person": PERSON}
    assert api.post(f"{API}/promises/{number}/redeem", json=body).status_code in (404, 422)


HOSTILE = [
    {},
    {"person": None},
    {"person": []},
    {"person": {}},
    {"person": {"income": {}}},
    {"person": {"income": [1] * 1000, "debt": 1}},
    {"person": {"income": "9" * 100_000, "debt": 1}},
    {"person": {"income": True, "debt": None}},
    {"person": PERSON | {"x" * 5000: 1}},
    {"person": PERSON | {"\ud800": 1}},
    {"person": PERSON, "more": 1},
    {"person": PERSON, "answer": "0" * 24},
    {"answer": "../../etc/passwd"},
    {"answer": "x" * 100_000},
    {"person": PERSON, "changes": {"nobody": 1}},
    {"person": PERSON, "changes": {"income": "<script>"}},
]


@pytest.mark.parametrize("path", ["certify", "explain", "promises"])
@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_body_that_cannot_be_used_is_refused_in_sentence(api, path, body, book):
    head = book.head
    sent = json.dumps(body).encode("utf-8", "surrogatepass")
    found = api.post(f"{API}/{path}", content=sent, headers={"content-type": "application/json"})
    assert found.status_code in (404, 422) or (path == "explain" and "changes" not in body), body
    if found.status_code != 200:
        assert found.json()["error"]
        assert len(found.content) < 10_000
    assert book.head == head


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"{",
        b"[" * 50_000,
        b'{"person": NaN}',
        b"\xff\xfe",
        b'{"person": {"income": 1e999}}',
    ],
    ids=range(7),
)
def test_body_that_is_not_json_is_rejected(api, content):
    head = {"content-type": "application/json"}
    assert api.post(f"{API}/certify", content=content, headers=head).status_code in (400, 422)


@pytest.mark.parametrize(
    "wishes",
    [
        {"count": 0},
        {"count": 11},
        {"count": "x"},
        {"prefer": "cheap"},
        {"immutable": ["dept"]},
        {"immutable": "debt"},
        {"increasing": ["debt"], "decreasing": ["debt"]},
        {"ranges": {"debt": [5, 1]}},
        {"gap": 7},
        {"tolerance": {"debt": -1}},
        {"tolerance": {"nobody": 1}},
        {"max_changes": 0},
        {"nobody": 1},
    ],
    ids=str,
)
def test_unsupported_request_is_rejected(api, wishes):
    found = api.post(f"{API}/explain", json={"person": PERSON, "request": wishes})
    assert found.status_code == 422, found.text


@pytest.mark.parametrize(("net", "verdict"), thorough((STRICT, "broken"), (NEAR, "proved")))
def test_upload_is_audited_by_child_and_written_once(api, explained, book, tmp_path, net, verdict):
    issue(api, explained, f"upload {verdict}")
    net.save(tmp_path / "new.npz")
    content = (tmp_path / "new.npz").read_bytes()
    found = api.post(f"{API}/audits", files={"file": ("new.npz", content)})
    assert found.status_code == 201, found.text
    facts = found.json()
    frame = book.verdicts(facts["audit"])
    assert verdict in set(frame["verdict"]), facts
    assert facts["counts"][verdict] == (frame["verdict"] == verdict).sum()
    assert book.verify().valid


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.pkl", b"cos\nsystem\n(S'id'\ntR."),
        ("model.npz", b"not a zip"),
        ("model.npz", b""),
        ("../../model.onnx", b"\x08\x07" * 1000),
        ("model.onnx\x00.npz", b"PK\x03\x04"),
        ("x" * 5000 + ".npz", b"PK\x05\x06" + b"\x00" * 18),
    ],
    ids=range(6),
)
def test_upload_that_is_not_model_is_refused(api, book, name, content):
    head = book.head
    found = api.post(f"{API}/audits", files={"file": (name, content)})
    assert found.status_code in (400, 422), found.text
    assert "/tmp" not in found.text
    assert book.head == head


def test_sixteen_clients_at_once_get_their_own_answers_and_promises(served, book):
    """0 wrong, 0 lost: each promise is the one of its client."""
    before = len(book.promises())

    def client(n):
        program = served.program()
        person = {"income": n, "debt": 30 - n}
        found = program.post(f"{API}/explain", json={"person": person}).json()
        number = issue(program, found, f"client {n}").json()["promise"]
        shown = program.get(f"{API}/promises/{number}").json()
        assert shown["person"] == f"client {n}"
        froms = {claim["name"]: claim["from"] for claim in shown["explanation"]["claims"]}
        assert froms.items() <= person.items()
        return number

    with ThreadPoolExecutor(16) as pool:
        numbers = list(pool.map(client, range(16)))
    assert len(set(numbers)) == 16
    assert len(book.promises()) == before + 16
    assert book.verify().valid
