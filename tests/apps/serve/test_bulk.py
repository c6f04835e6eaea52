"""Large bodies are read and answered elsewhere, and answered as small ones are."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi")

from proplace.apps.serve import bulk, service
from served import API, Inline, opened, wait

LENDER = f"{API}/models/lender"
MANY = [{"income": n % 100, "debt": n % 50} for n in range(2000)]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(service, "Workers", Inline)
    with opened(tmp_path_factory.mktemp("bulk"), limits={"people": 2000}) as found:
        yield found
    patch.undo()


@pytest.fixture
def client(served):
    return served.client("reader")


@pytest.fixture
def elsewhere(served, monkeypatch):
    """What was asked of the process for large bodies; nothing of it is read here."""
    asked, ask = [], served.service.ask_bulk

    def noted(what, name, body):
        asked.append((what, len(body)))
        return ask(what, name, body)

    monkeypatch.setattr(served.service, "ask_bulk", noted)
    for what in ("predict", "certify", "frame"):
        engine = served.service.engines["lender"]
        monkeypatch.setattr(engine, what, None)
    return asked


@pytest.mark.parametrize("what", ["predict", "certify"])
def test_answers_are_those_of_small_bodies(served, what, request):
    client = served.client("reader")
    path, more = f"{LENDER}/{what}", {} if what == "predict" else {"target": 0}
    some = [
        client.post(path, json={"people": MANY[n : n + 500], **more}) for n in range(0, 2000, 500)
    ]
    expected = [one for answer in some for one in answer.json()]
    asked = request.getfixturevalue("elsewhere")
    whole = client.post(path, json={"people": MANY, **more})
    assert [what for what, _ in asked] == [what]
    assert whole.headers["content-type"] == "application/json"
    assert whole.json() == expected
    assert len(whole.json()) == 2000


def test_a_large_job_is_a_job(client, served, elsewhere):
    asked = {"people": MANY, "options": {"locked": ["income"]}}
    started = client.post(f"{LENDER}/explain", json=asked)
    assert started.status_code == 202
    job = started.json()["job"]
    assert started.headers["location"] == f"{API}/jobs/{job}"
    question = served.service.store.question(job)
    assert question["people"] == MANY
    assert question["options"]["locked"] == ["income"]
    client.delete(f"{API}/jobs/{job}")
    assert [what for what, _ in elsewhere] == ["explain"]


def test_few_people_in_a_large_body_are_answered_at_once(client):
    text = json.dumps({"people": [{"income": 12, "debt": 24}]}) + " " * bulk.SMALL
    headers = {"content-type": "application/json"}
    answer = client.post(f"{LENDER}/explain", content=text, headers=headers)
    assert answer.status_code == 200
    assert len(answer.json()["answers"]) == 1


@pytest.mark.parametrize("what", ["predict", "certify", "explain"])
@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("{", 422, "body"),
        ("[" * 100_000, 422, "JSON"),
        ('{"people": []}', 422, "body.people"),
        ('{"people": [{"income": [], "debt": 1}]}', 422, "body.people.0.income"),
        ('{"people": [{"income": NaN, "debt": 1}]}', 422, "finite"),
        ('{"people": [{"income": 1, "debt": 1}], "more": 1}', 422, "body.more"),
        ('{"people": [{"income": 1, "zebra": 1}]}', 422, "no feature"),
        (json.dumps({"people": MANY + MANY[:1]}), 413, "2001 people"),
    ],
    ids=["half", "deep", "nobody", "a list", "NaN", "more", "no feature", "many"],
)
def test_what_is_wrong_is_told_as_of_small_bodies(client, what, text, status, said):
    headers = {"content-type": "application/json"}
    content = text + " " * bulk.SMALL
    answer = client.post(f"{LENDER}/{what}", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]
    assert len(answer.content) < 500


def test_large_bodies_need_a_model_a_key_and_a_kind(served, client):
    asked = {"people": MANY}
    assert client.post(f"{API}/models/nothing/predict", json=asked).status_code == 404
    assert served.client().post(f"{LENDER}/predict", json=asked).status_code == 401
    text = {"content-type": "text/plain"}
    answer = client.post(f"{LENDER}/predict", content=json.dumps(asked), headers=text)
    assert answer.status_code == 422


def test_answers_of_a_job_are_handed_on_as_they_are_kept(served, client):
    """Some at a time, in order, whatever a part holds."""
    store = served.service.store
    job = store.add_job("explain", "reader", "{}", 130)
    parts = {n: [[{"rank": n, "text": 'a "quote" ]}'}]] for n in range(0, 130, 2)}
    parts[7] = {"error": "died", "status": "worker_died"}
    for n, part in parts.items():
        store.add_part(job, n, part)
    store.set_state(job, "done")
    found = client.get(f"{API}/jobs/{job}/answers")
    assert found.headers["content-type"].startswith("application/json")
    facts = found.json()
    assert (facts["job"], facts["state"], facts["done"], facts["total"]) == (job, "done", 66, 130)
    assert facts["answers"] == {
        str(n): part[0] if isinstance(part, list) else part for n, part in sorted(parts.items())
    }
    empty = store.add_job("audit", "reader", "{}", 1)
    assert client.get(f"{API}/jobs/{empty}/answers").json()["answers"] == {}
    other = store.add_job("audit", "reader", "{}", 1)
    store.add_part(other, 0, [1, 2])
    assert client.get(f"{API}/jobs/{other}/answers").json()["answers"] == {"0": [1, 2]}
    assert wait(client, job)["done"] == 66
