"""What a stop in the middle, a race or an erasure must not leave behind."""

from __future__ import annotations

import json
import threading

import pytest

pytest.importorskip("fastapi")

import proplace as pp
import small_promises as small
from proplace.apps.serve import service
from proplace.promises.audit import Audit
from served import API, PERSON, Inline, opened, wait

LENDER = f"{API}/models/lender"
STRICT = pp.Network([(layer.W, layer.b - 0.25) for layer in small.NET.layers])  # breaks promises


@pytest.fixture(autouse=True)
def inline(monkeypatch):
    monkeypatch.setattr(service, "Workers", Inline)


def issue(client, who, headers=None, **more):
    answer = client.post(f"{LENDER}/explain", json={"people": [PERSON]}).json()["answers"][0][0]
    asked = {"id": who, "person": PERSON, "certificate": answer["certificate_digest"]}
    return client.post(f"{LENDER}/promises", json=asked | more, headers=headers)


def audit(client, folder):
    """The job of an audit, and its answer."""
    STRICT.save(folder / "strict.npz")
    files = {"model": ("strict.npz", (folder / "strict.npz").read_bytes())}
    job = client.post(f"{API}/audits", files=files).json()["job"]
    assert wait(client, job)["state"] == "done"
    return job, client.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]


def test_uploads_that_nobody_needs_are_deleted_at_the_start(tmp_path):
    with opened(tmp_path) as found:
        files, store = found.service.files, found.service.store
        for name in ("model-lost", "model-needed"):
            (files / name).mkdir()
            small.LATER.save(files / name / "m.npz")
        (files / "models").mkdir()
        (files / "models" / "abc.npz.part").write_bytes(b"half")
        question = {
            "file": "m.npz",
            "path": str(files / "model-needed" / "m.npz"),
            "replaces": "lender",
        }
        job = store.add_job("audit", "admin", json.dumps(question), 1)
        keys = found.keys
    with opened(tmp_path) as found:
        assert not (files / "model-lost").exists()
        assert not list((files / "models").glob("*.part"))
        found.keys = keys
        assert wait(found.client("admin"), job)["state"] == "done"  # its upload was still there


def test_a_job_that_is_given_up_before_it_begins_does_nothing(tmp_path, monkeypatch):
    with opened(tmp_path, limits={"at_once": 1}) as found:
        asked, start = [], found.service._start
        found.service.workers._functions["explain"] = lambda *given: asked.append(given) or [[]]

        def late(job):
            found.service.cancel_job(job.id)  # between its number and its thread
            start(job)

        monkeypatch.setattr(found.service, "_start", late)
        client = found.client("reader")
        job = client.post(f"{LENDER}/explain", json={"people": [PERSON] * 2}).json()["job"]
        assert wait(client, job)["state"] == "cancelled"
        while found.service._jobs:
            pass
        assert asked == []


def test_what_is_found_while_it_stops_is_kept(tmp_path):
    """The audit is in the ledger: it must not be done again after the restart."""
    with opened(tmp_path) as found:
        run, begun = found.service.workers._functions["audit"], threading.Event()

        def slow(*given):
            answer = run(*given)
            begun.set()
            assert found.service._stopping.wait(30)
            return answer

        found.service.workers._functions["audit"] = slow
        content = (tmp_path / "later.npz").read_bytes()
        client, keys = found.client("admin"), found.keys
        job = client.post(f"{API}/audits", files={"model": ("later.npz", content)}).json()["job"]
        assert begun.wait(30)
        found.service.close(grace=10.0)
    with opened(tmp_path) as found:
        found.keys = keys
        assert wait(found.client("admin"), job)["state"] == "done"
        assert len(list(found.service.ledger.entries(kinds=("audited",)))) == 1
        assert not list(found.service.files.glob("model-*"))


def test_nothing_of_an_erased_person_is_left_in_the_state(tmp_path):
    """A renewal names people; so may a refusal that is kept for those who ask again."""
    with opened(tmp_path) as found:
        admin = found.client("admin")
        assert issue(admin, "zebra-1").status_code == 201
        _, facts = audit(admin, tmp_path)
        job = admin.post(f"{API}/audits/{facts['audit']}/renewals", json={}).json()["job"]
        assert wait(admin, job)["state"] == "done"
        assert "zebra-1" in admin.get(f"{API}/jobs/{job}/answers").text
        headers = {"idempotency-key": "k"}
        refused = issue(admin, "zebra-1", headers, expires="2999-01-01")
        assert refused.status_code == 409
        assert "zebra-1" in refused.text
        admin.post(f"{API}/people/erase", json={"id": "zebra-1"})
        assert admin.get(f"{API}/jobs/{job}").status_code == 404
        kept = [
            path for path in tmp_path.rglob("*") if path.is_file() and "promises" not in path.name
        ]
        assert [path for path in kept if b"zebra-1" in path.read_bytes()] == []


def test_a_page_that_is_written_while_somebody_is_erased(tmp_path, monkeypatch):
    with opened(tmp_path) as found:
        admin = found.client("admin")
        issue(admin, "zebra-2")
        report = Audit.report

        def erased(self, path):
            written = report(self, path)
            content = written.read_bytes()
            admin.post(f"{API}/people/erase", json={"id": "zebra-2"})
            written.write_bytes(content)  # as if it had been written a moment later
            return written

        monkeypatch.setattr(Audit, "report", erased)
        job, _ = audit(admin, tmp_path)
        assert admin.get(f"{API}/jobs/{job}/page").status_code == 404
        assert not list(found.service.files.glob("audit-*.html"))
