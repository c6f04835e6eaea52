"""Going live: what may, what is served from then on, and what is served after a restart."""

from __future__ import annotations

import os
import threading

import pytest

pytest.importorskip("fastapi")

import proplace as pp
import small_promises as small
from proplace.apps.serve import live, models, service
from proplace.apps.serve.access import Caller
from proplace.apps.serve.service import Service
from proplace.certification import digest
from proplace.core.errors import LedgerError, OptionError
from served import API, PERSON, Inline, opened, settings, wait, write_files

LENDER = f"{API}/models/lender"
STRICT = pp.Network([(layer.W, layer.b - 0.25) for layer in small.NET.layers])  # breaks promises


@pytest.fixture
def inline(monkeypatch):
    """No processes: what is asked of a worker is answered here."""
    monkeypatch.setattr(service, "Workers", Inline)


def audit(client, path, **data):
    """Number of the audit of a file."""
    files = {"model": (path.name, path.read_bytes())}
    job = client.post(f"{API}/audits", files=files, data=data).json()["job"]
    assert wait(client, job)["state"] == "done"
    return client.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]["audit"]


def decide(client, number, go=True):
    assert client.post(f"{API}/audits/{number}/decision", json={"go": go}).status_code == 201


def put(client, number, **asked):
    return client.post(f"{API}/audits/{number}/live", json=asked)


def explained(client, person=PERSON):
    return client.post(f"{LENDER}/explain", json={"people": [person]}).json()["answers"][0][0]


def issued(client, who, person=PERSON):
    found = explained(client, person)["certificate_digest"]
    asked = {"id": who, "person": person, "certificate": found}
    return client.post(f"{LENDER}/promises", json=asked)


def network_of(answer):
    """The digest of the network of which an answer's certificate speaks."""
    return answer["certificate"]["network"]


@pytest.fixture(scope="module")
def gone(tmp_path_factory):
    """A lender whose retrained model went live, and what was said on the way."""
    with opened(tmp_path_factory.mktemp("live")) as found:
        admin = found.client("admin")
        found.before = explained(admin)
        found.first = issued(admin, "anna").json()["promise"]
        found.number = audit(admin, found.folder / "later.npz")
        found.refused = [put(admin, found.number)]
        decide(admin, found.number, go=False)
        found.refused.append(put(admin, found.number))
        found.at_first = admin.get(LENDER).json()
        decide(admin, found.number)
        found.answer = put(admin, found.number)
        yield found


def test_nothing_goes_live_without_a_go(gone):
    first, second = gone.refused
    assert (first.status_code, second.status_code) == (409, 409)
    assert "record a go first" in first.json()["error"]
    assert "no go" in second.json()["error"]
    assert gone.at_first["live"] is None
    assert gone.at_first["model"] == "lender.npz"


def test_answers_and_promises_are_of_the_new_model_from_then_on(gone):
    admin = gone.client("admin")
    assert gone.answer.status_code == 200, gone.answer.text
    facts = admin.get(LENDER).json()
    assert facts == gone.answer.json()
    assert (facts["live"]["audit"], facts["live"]["by"]) == (gone.number, "admin")
    assert facts["model"] == "later.npz"
    assert facts["file_digest"] == live.digest_of(gone.folder / "later.npz")
    old, new = digest(small.NET), digest(small.LATER)
    assert network_of(gone.before) == old
    answer = explained(admin)
    assert network_of(answer) == new
    margin = admin.post(f"{LENDER}/predict", json={"people": [PERSON]}).json()[0]["margin"]
    row = small.SCHEMA.encode(frame_of(PERSON))
    assert margin == pytest.approx(small.LATER.margin(row, 1)[0], rel=1e-12)
    number = issued(admin, "berta", {"income": 13, "debt": 24}).json()["promise"]
    ledger = gone.service.ledger
    assert digest(ledger.promise(number).terms.model.network) == new
    assert ledger.promise(number).terms.model.origin.name == "later.npz"
    assert digest(ledger.promise(gone.first).terms.model.network) == old


def frame_of(person):
    return small.TRAINING.iloc[:1].assign(**person)


def test_it_is_in_the_ledger_once_with_who_and_when(gone):
    admin = gone.client("admin")
    assert put(admin, gone.number).status_code == 200  # asked again, nothing happens
    (entry,) = gone.service.ledger.entries(kinds=("live",))
    facts = entry.facts
    assert (facts["audit"], facts["name"], facts["by"]) == (gone.number, "lender", "admin")
    kept = gone.service.ledger.audited_model(gone.number)
    assert kept.origin.digest == live.digest_of(gone.folder / "later.npz")
    assert digest(kept.network) == digest(small.LATER)
    assert admin.get(f"{API}/ledger").json()["good"] is True
    client, _ = gone.session("admin")
    page = client.get(f"/models/audits/{gone.number}").text
    assert "In service as lender" in page
    assert "Put it into service" not in page
    assert f"after audit {gone.number}" in client.get("/models").text
    letter = client.get(f"/promises/{gone.first}/letter")
    assert letter.status_code == 200


def test_what_cannot_go_live_says_what_to_do(gone):
    admin = gone.client("admin")
    assert put(admin, 10**6).status_code == 404
    assert put(admin, gone.number, model="nothing").status_code == 404
    for role in ("reader", "caseworker", "auditor"):
        assert put(gone.client(role), gone.number).status_code == 403
    other = gone.folder / "other.npz"
    pp.Network([([[1.0, 2.0, 3.0]], [0.0])]).save(other)
    number = audit(admin, other)
    gone.service.ledger.acting_as("admin").decide(number, go=False)
    with gone.service.ledger._database.write("admin") as writer:  # a go that nobody should record
        writer.append("decided", {"audit": number, "go": True, "note": ""})
    answer = put(admin, number)
    assert answer.status_code in (409, 422), answer.text
    assert admin.get(LENDER).json()["model"] == "later.npz"


def test_a_promise_made_since_the_audit_is_not_broken_unnoticed(tmp_path, inline):
    with opened(tmp_path) as found:
        admin = found.client("admin")
        STRICT.save(tmp_path / "strict.npz")
        number = audit(admin, tmp_path / "strict.npz")
        decide(admin, number)
        made = issued(admin, "anna").json()["promise"]
        answer = put(admin, number)
        assert answer.status_code == 409
        assert f"({made})" in answer.json()["error"]
        assert "audit the model again" in answer.json()["error"]
        assert network_of(explained(admin)) == digest(small.NET)
        again = audit(admin, tmp_path / "strict.npz")  # now the auditor sees what it breaks
        decide(admin, again)
        assert put(admin, again).status_code == 200


@pytest.mark.parametrize("what", ["gone", "changed", "breaks"])
def test_a_load_that_fails_leaves_the_old_one_in_service(tmp_path, inline, monkeypatch, what):
    with opened(tmp_path) as found:
        admin = found.client("admin")
        number = audit(admin, tmp_path / "later.npz")
        decide(admin, number)
        (file,) = (tmp_path / "serve.files" / "models").iterdir()
        if what == "gone":
            file.unlink()
        elif what == "changed":
            STRICT.save(file)
        else:
            monkeypatch.setattr(service, "engine_of", None)
        answer = put(admin, number)
        assert answer.status_code == (500 if what == "breaks" else 409)
        assert what == "breaks" or "upload it" in answer.json()["error"]
        assert admin.get(LENDER).json()["live"] is None
        assert network_of(explained(admin)) == digest(small.NET)
        assert list(found.service.ledger.entries(kinds=("live",))) == []
        assert found.service.store.lives() == found.service.store.unconfirmed_lives() == []


def test_a_job_ends_with_the_model_that_it_began_with(tmp_path, inline):
    """The model goes live between two people of a job."""
    with opened(tmp_path, limits={"at_once": 1}) as found:
        admin, workers = found.client("admin"), found.service.workers
        number = audit(admin, tmp_path / "later.npz")
        decide(admin, number)
        explain, begun, go_on = workers._functions["explain"], threading.Event(), threading.Event()

        def slow(*given):
            answer = explain(*given)
            begun.set()
            assert go_on.wait(30)
            return answer

        workers._functions["explain"] = slow
        workers._one = threading.RLock()
        people = [PERSON, {"income": 13, "debt": 24}]
        job = admin.post(f"{LENDER}/explain", json={"people": people}).json()["job"]
        assert begun.wait(30)
        workers._one = threading.Lock()  # another worker is free
        assert put(admin, number).status_code == 200
        go_on.set()
        assert wait(admin, job)["state"] == "done"
        answers = admin.get(f"{API}/jobs/{job}/answers").json()["answers"].values()
        assert {network_of(one[0]) for one in answers} == {digest(small.NET)}
        assert network_of(explained(admin)) == digest(small.LATER)


def test_of_several_models_one_is_replaced(tmp_path, inline):
    """The one of its audit; an upload is read as that one is, also where nothing was promised yet."""
    write_files(tmp_path)
    facts = settings(tmp_path)["models"]["lender"]
    with opened(tmp_path, models={"first": facts, "second": facts}) as found:
        admin = found.client("admin")
        number = audit(admin, tmp_path / "later.npz", replaces="second")
        decide(admin, number)
        assert put(admin, number, model="first").status_code == 409
        assert put(admin, number).status_code == 200
        served = {one["name"]: one["model"] for one in admin.get(f"{API}/models").json()}
        assert served == {"first": "lender.npz", "second": "later.npz"}
        assert put(admin, number, model="nothing").status_code == 404
        files = {"model": ("later.npz", (tmp_path / "later.npz").read_bytes())}
        unknown = admin.post(f"{API}/audits", files=files, data={"replaces": "nothing"})
        assert unknown.status_code == 404


# -- after a restart -------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path, inline):
    """A lender whose retrained model is live, and that was stopped."""
    with opened(tmp_path) as found:
        admin = found.client("admin")
        number = audit(admin, tmp_path / "later.npz")
        decide(admin, number)
        assert put(admin, number).status_code == 200
    return found.service.config, number


def served_by(config):
    """What a service that is started says, and the network that it serves."""
    found = Service.open(config)
    try:
        task = found.workers.ask(
            "explain", found.engines["lender"].source, [PERSON], {}, 5.0, seconds=30.0
        )
        ((answer,),) = task.future.result()
        assert network_of(answer) == digest(found.engines["lender"].model.network)
        return found.notes, network_of(answer)
    finally:
        found.close(grace=0.1)


def test_a_restart_serves_what_is_live_until_the_configuration_names_another(stopped):
    config, number = stopped
    for _ in range(2):
        (note,), network = served_by(config)
        assert network == digest(small.LATER)
        assert (
            note == f"lender: later.npz is served (audit {number}, live by admin), not lender.npz"
        )
    path = config.models["lender"].model
    was = path.read_bytes()
    STRICT.save(path)
    (note,), network = served_by(config)
    assert network == digest(STRICT)
    assert "live no longer" in note
    path.write_bytes(was)
    assert served_by(config) == ((), digest(small.NET))  # it does not come back by itself


@pytest.mark.parametrize("written", [True, False], ids=["after", "before"])
def test_a_stop_in_the_middle_is_settled_by_the_ledger(tmp_path, inline, monkeypatch, written):
    """The process dies after, or before, the entry of the ledger was written."""
    with opened(tmp_path) as found:
        admin = found.client("admin")
        number = audit(admin, tmp_path / "later.npz")
        decide(admin, number)
        dead = pytest.MonkeyPatch()
        ledger = type(found.service.ledger)
        put_in_service = ledger.put_in_service

        def dies(self, *given):
            if written:
                put_in_service(self, *given)
            raise SystemExit

        dead.setattr(ledger, "put_in_service", dies)
        dead.setattr(found.service.store, "drop_live", lambda _: None)
        with pytest.raises(SystemExit):
            found.service.go_live(number, None, _caller(found))
        dead.undo()
        assert len(found.service.store.unconfirmed_lives()) == 1
        config = found.service.config
    notes, network = served_by(config)
    assert network == digest(small.LATER if written else small.NET)
    assert len(notes) == written


def _caller(found):
    return Caller(found.service.store.key(found.keys["admin"]))


def test_a_kept_file_that_is_lost_is_told_at_the_start(tmp_path, inline):
    with opened(tmp_path) as found:
        admin = found.client("admin")
        number = audit(admin, tmp_path / "later.npz")
        decide(admin, number)
        put(admin, number)
    (file,) = (tmp_path / "serve.files" / "models").iterdir()
    file.write_bytes(b"something else")
    with pytest.raises(OptionError, match="put it back from a backup, or name the model"):
        Service.open(found.service.config)


def test_files_beyond_the_latest_are_deleted_but_those_in_service(tmp_path):
    for n in range(5):
        upload = tmp_path / f"m{n}.npz"
        upload.write_bytes(bytes([n]))
        live.keep(upload, tmp_path / "models")
    digests = [live.digest_of(tmp_path / f"m{n}.npz") for n in range(5)]
    for n, one in enumerate(digests):
        os.utime(tmp_path / "models" / f"{one}.npz", (n, n))
    live.forget(tmp_path / "models", 2, {digests[0]})
    left = {path.stem for path in (tmp_path / "models").iterdir()}
    assert left == {digests[0], *digests[3:]}
    assert live.kept(tmp_path / "models", digests[0]).read_bytes() == b"\0"
    assert live.kept(tmp_path / "models", None) is None


def test_a_model_is_served_as_it_was_audited():
    """Other weights, or the same behind another scaling of the table, are not what was audited."""
    model = pp.Model.of(small.NET).with_schema(small.SCHEMA)
    engine = models.Engine("lender", model, 0.01, small.TRAINING, 1, pp.Wording())
    live.check_same(engine, model)
    wider = pp.Schema(
        [pp.Continuous("income", 0, 200, step=1), pp.Continuous("debt", 0, 50, step=1)]
    )
    for other in (
        pp.Model.of(small.LATER).with_schema(small.SCHEMA),
        pp.Model.of(small.NET).with_schema(wider),
        pp.Model.of(small.NET),
    ):
        with pytest.raises(LedgerError, match="name the model that it is to replace"):
            live.check_same(engine, other)
