"""Several models and one ledger: each has its own promises, audits, decisions and words."""

from __future__ import annotations

import pandas as pd
import pytest

pytest.importorskip("fastapi")

import proplace as pp
import small_promises as small
from proplace.apps.serve import service
from proplace.apps.serve.config import config_of
from proplace.apps.serve.models import Engines
from proplace.apps.serve.service import Service
from proplace.core.errors import OptionError
from served import API, PERSON, Inline, opened, settings, wait, write_files

STRICT = pp.Network([(layer.W, layer.b - 0.25) for layer in small.NET.layers])  # breaks promises
WIDE = pp.Schema([pp.Continuous("income", 0, 1000, step=1), pp.Continuous("debt", 0, 50, step=1)])
WORDS = {"subject": "the credit line", "outcomes": ["closed", "opened"], "person": "firm"}


def both(folder):
    """Settings of loans and of firms, by one file of a network with other columns of the same names."""
    write_files(folder)
    WIDE.write(folder / "wide.yaml")
    table = pd.DataFrame({"income": [200, 600, 800, 900, 950], "debt": [30, 10, 5, 20, 8]})
    table.to_csv(folder / "firms.csv", index=False)
    STRICT.save(folder / "strict.npz")
    loans = settings(folder)["models"]["lender"] | {
        "words": {"subject": "the loan", "outcomes": ["refused", "approved"], "person": "applicant"}
    }
    firms = loans | {
        "schema": folder / "wide.yaml", "train": folder / "firms.csv", "words": WORDS,
        "people": None, "ids": None,
    }  # fmt: skip
    return {"loans": loans, "firms": firms}


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Both of them served, with a promise of each."""
    monkeypatch.setattr(service, "Workers", Inline)
    with opened(tmp_path, models=both(tmp_path)) as found:
        admin = found.client("admin")
        found.numbers = {name: issued(admin, name, "anna") for name in ("loans", "firms")}
        yield found


def issued(client, model, who, person=PERSON):
    path = f"{API}/models/{model}"
    found = client.post(f"{path}/explain", json={"people": [person]}).json()["answers"][0][0]
    asked = {"id": who, "person": person, "certificate": found["certificate_digest"]}
    made = client.post(f"{path}/promises", json=asked)
    assert made.status_code == 201, made.text
    return made.json()["promise"]


def audited(client, path, **replaces):
    files = {"model": (path.name, path.read_bytes())}
    started = client.post(f"{API}/audits", files=files, data=replaces)
    if started.status_code != 202:
        return started
    job = started.json()["job"]
    assert wait(client, job)["state"] == "done"
    return client.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]


def redeemed(client, number):
    answer = client.get(f"{API}/promises/{number}").json()["answer"]
    asked = {"person": answer, "dry_run": True}
    return client.post(f"{API}/promises/{number}/redeem", json=asked).json()["verdict"]


def test_an_audit_is_about_one_of_them(two):
    admin = two.client("admin")
    refused = audited(admin, two.folder / "strict.npz")
    assert refused.status_code == 422
    assert "loans, firms" in refused.json()["error"]
    loans = audited(admin, two.folder / "strict.npz", replaces="loans")
    assert loans["broken"] == [two.numbers["loans"]]
    same = audited(admin, two.folder / "lender.npz", replaces="firms")
    assert (same["counts"]["proved"], same["broken"]) == (1, [])
    assert list(two.service.ledger.verdicts(same["audit"]).index) == [two.numbers["firms"]]
    go = {"go": True, "note": "a test"}
    assert admin.post(f"{API}/audits/{loans['audit']}/decision", json=go).status_code == 201
    assert redeemed(admin, two.numbers["loans"]) == "exact"  # it is not in service yet
    live = admin.post(f"{API}/audits/{loans['audit']}/live", json={})
    assert live.status_code == 200, live.text
    assert redeemed(admin, two.numbers["loans"]) == "broken"
    assert redeemed(admin, two.numbers["firms"]) == "exact"
    for what in ("renewals", "live"):
        asked = {"model": "firms"}
        wrong = admin.post(f"{API}/audits/{loans['audit']}/{what}", json=asked)
        assert (wrong.status_code, "promises of loans" in wrong.text) == (409, True)


def test_new_promises_need_a_go_and_a_role_that_makes_promises(two):
    admin, auditor = two.client("admin"), two.client("auditor")
    number = audited(auditor, two.folder / "strict.npz", replaces="loans")["audit"]
    path = f"{API}/audits/{number}"

    def renewed(client, **asked):
        started = client.post(f"{path}/renewals", json=asked)
        if started.status_code != 202:
            return started
        job = started.json()["job"]
        assert wait(client, job)["state"] == "done"
        return client.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]

    seen = renewed(auditor)["digests"]
    assert len(seen) == 1
    early = renewed(admin, seen=seen)
    assert (early.status_code, "record a go first" in early.text) == (409, True)
    auditor.post(f"{path}/decision", json={"go": True, "note": ""})
    assert renewed(auditor, seen=seen).status_code == 403
    (new,) = renewed(admin, seen=seen)["issued"]
    told = admin.get(f"{API}/promises/{new}").json()["sentence"]
    assert told.startswith("The loan would have been approved")
    states = [admin.get(f"{API}/promises/{n}").json()["state"] for n in two.numbers.values()]
    assert states == ["renewed", "open"]


def test_new_answers_are_asked_for_as_the_old_ones_were(two):
    """What was locked stays locked, and few changes stay few."""
    admin = two.client("admin")
    path = f"{API}/models/loans"
    for who, locked in (("a", ["income"]), ("b", ["debt"])):
        person, options = {"income": 55, "debt": 30}, {"locked": locked}
        said = {"people": [person], "options": options}
        found = admin.post(f"{path}/explain", json=said).json()["answers"][0][0]
        assert found["certificate_digest"], found
        made = {"id": who, "person": person, "options": options}
        made["certificate"] = found["certificate_digest"]
        assert admin.post(f"{path}/promises", json=made).status_code == 201
    number = audited(admin, two.folder / "strict.npz", replaces="loans")["audit"]
    job = admin.post(f"{API}/audits/{number}/renewals", json={}).json()["job"]
    assert wait(admin, job)["state"] == "done"
    rows = admin.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]["rows"]
    now = {w: {r["feature"]: r["now"] for r in rows if r["person"] == w} for w in ("a", "b")}
    assert set(now["a"]) == {"debt"}
    assert set(now["b"]) == {"income"}
    assert None not in (*now["a"].values(), *now["b"].values())


def test_what_is_missing_is_told_feature_by_feature(two):
    admin, number = two.client("admin"), two.numbers["loans"]
    asked = {"person": PERSON, "dry_run": True}
    found = admin.post(f"{API}/promises/{number}/redeem", json=asked).json()
    assert (found["verdict"], found["accepted"], found["model"]) == ("not met", False, "lender.npz")
    answer = admin.get(f"{API}/promises/{number}").json()["answer"]
    (missing,) = found["missing"]
    assert missing["feature"] == "income"
    assert missing["low"] == answer["income"] == PERSON["income"] + missing["short"]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (["1", "0"], r"in the order of the classes.*'0', '1'"),
        (["refused"], "1 words for 2 classes"),
        ({"2": "granted"}, "'2' is no class of the model"),
    ],
)
def test_words_beside_the_wrong_class_are_refused(tmp_path, outcomes, said):
    models = both(tmp_path)
    models["loans"]["words"] = {"outcomes": outcomes}
    with pytest.raises(OptionError, match=rf"models\.loans\.words\.outcomes: .*{said}"):
        Engines(config_of(settings(tmp_path, models=models)), {})
    models["loans"]["words"] = {"outcomes": {"1": "granted", "0": "refused"}}
    engine = Engines(config_of(settings(tmp_path, models=models)), {}).first["loans"]
    assert [engine.wording.outcome(n) for n in (0, 1)] == ["refused", "granted"]


def test_page_and_letter_say_what_was_said_when_it_was_promised(two):
    page, _ = two.session("admin")
    for name, said in (("loans", "loan would have been approved"), ("firms", "credit line would")):
        number = two.numbers[name]
        recorded = two.service.ledger.promise(number).sentence
        assert said in recorded
        for path in (f"/promises/{number}", f"/promises/{number}/letter"):
            assert said in page.get(path).text


def test_promises_that_no_model_decides_about_are_told_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "Workers", Inline)
    with opened(tmp_path) as found:
        issued(found.client("admin"), "lender", "anna")
    models = both(tmp_path)
    facts = settings(tmp_path, models=models)
    with pytest.raises(OptionError, match=r"purpose ''.*'firms', 'loans'.*models\.NAME\.purpose"):
        Service.open(config_of(facts))
    models["loans"]["purpose"] = ""
    with opened(tmp_path, models=models) as found:
        assert found.service.engines["loans"].purpose == ""
        assert found.service.engines["firms"].purpose == "firms"
    models["firms"]["purpose"] = ""
    with pytest.raises(OptionError, match="each model needs a purpose of its own"):
        config_of(settings(tmp_path, models=models))
