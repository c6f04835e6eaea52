"""Odd levels, odd numbers, odd names of hosts: what is refused, and what is taken as it is."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from starlette.datastructures import FormData

import proplace as pp
import small_promises as small
from proplace.apps.serve import access, service
from proplace.apps.serve.access import RateLimit
from proplace.apps.serve.config import config_of
from proplace.apps.serve.models import Engines
from proplace.apps.serve.pages import promises
from proplace.apps.serve.pages.fields import fields_of, person_from
from proplace.core.errors import OptionError
from served import API, PERSON, Inline, opened, settings, wait, write_files


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("odd")) as found:
        yield found


# -- levels and numbers of a form --------------------------------------------------------------------

ODD = (
    pp.Categorical("job", [" cook", "cook", "cook ", "1", "1.0", " "]),
    pp.Ordinal("grade", [" low", " high"]),
    pp.Binary("own", ["no ", "no"]),
)


@pytest.mark.parametrize("feature", ODD, ids=lambda feature: feature.name)
def test_a_form_brings_back_the_level_that_was_chosen(feature):
    """Whatever spaces are around it: another level would have another decision."""
    for label in feature.labels:
        (field,) = fields_of([feature], {feature.name: label}, lambda key, **_: key)
        assert field.text in [choice.text for choice in field.choices]
        assert person_from(FormData({field.key: field.text}), [feature]) == {feature.name: label}


def test_spaces_around_a_level_that_has_none_are_forgiven():
    feature = pp.Categorical("job", ["cook", " clerk"])
    for sent, found in (("cook ", "cook"), ("clerk", "clerk"), (" clerk", " clerk")):
        assert person_from(FormData({"is:job": sent}), [feature]) == {"job": found}
    for blank in ("", " ", "\t"):
        assert person_from(FormData({"is:job": blank}), [feature]) == {}


# -- what may change, who can be looked up, and what the model itself says ---------------------------


def test_an_empty_list_of_what_may_change_frees_nothing(served):
    """Also where something is locked beside it: the others stay as they are."""
    for more in ({}, {"locked": ["debt"]}):
        asked = {"people": [PERSON], "options": {"changeable": [], **more}}
        answer = served.client("reader").post(f"{API}/models/lender/explain", json=asked)
        assert answer.status_code == 422
        assert "nothing is left that may change" in answer.text


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "rows 0 and 2 have the same 'customer' \\(a\\)"),
        (["a", "b", " b "], "rows 1 and 2 have the same"),
        (["a", "", "c"], "row 1 has no 'customer'"),
        (["a", "b", "  "], "row 2 has no 'customer'"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_everybody_who_can_be_looked_up_has_an_id_of_their_own(tmp_path, ids, message, kind):
    """Else somebody would be shown in the place of somebody else."""
    write_files(tmp_path)
    table = small.refused(3).assign(customer=ids)
    if kind == "csv":
        table.to_csv(tmp_path / "people.csv", index=False)
    else:
        table.replace({"customer": {"": None}}).to_parquet(tmp_path / "people.parquet", index=False)
    facts = settings(tmp_path)
    facts["models"]["lender"]["people"] = tmp_path / f"people.{kind}"
    with pytest.raises(OptionError, match=message):
        Engines(config_of(facts), {})


def test_ids_are_found_without_the_spaces_around_them(tmp_path):
    write_files(tmp_path)
    small.refused(2).assign(customer=[" a", "b"]).to_csv(tmp_path / "people.csv", index=False)
    engine = Engines(config_of(settings(tmp_path)), {}).first["lender"]
    assert [engine.person(number) is None for number in ("a", "b", " a")] == [False, False, True]


def test_a_verdict_has_the_decision_of_the_model_itself(served, monkeypatch):
    """Its own arithmetic decides at ties, in certify as in predict."""
    engine = served.service.engines["lender"]
    today = served.client("reader").post(f"{API}/models/lender/predict", json={"people": [PERSON]})
    other = 1 - today.json()[0]["label"]
    model = replace(engine.model, _original=lambda table: [other] * len(table))
    monkeypatch.setattr(engine, "model", model)
    for path in ("predict", "certify"):
        asked = {"people": [PERSON]}
        (found,) = served.client("reader").post(f"{API}/models/lender/{path}", json=asked).json()
        assert (found["label"], found["accepted"]) == (other, other == engine.target), path


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("12", 12.0),
        (" -1.5e1 ", -15.0),
        (".5", 0.5),
        ("+7.", 7.0),
        ("1_0", "1_0"),
        ("１２", "１２"),
        ("٣", "٣"),
        ("²", "²"),
        ("0x10", "0x10"),
        ("12,5", "12,5"),
        ("inf", "inf"),
        ("1e400", "1e400"),
        ("nan", "nan"),
    ],
)
def test_a_number_of_a_form_is_what_the_interface_takes_for_one(served, text, read):
    feature = pp.Continuous("income", 0, 100)
    assert person_from(FormData({"is:income": text}), [feature]) == {"income": read}
    if isinstance(read, str):
        sent, (client, csrf) = {"income": text, "debt": 24}, served.session("reader")
        said = served.client("reader").post(f"{API}/models/lender/predict", json={"people": [sent]})
        page = client.post(
            "/people/lender", data={"csrf": csrf, "is:income": text, "is:debt": "24"}
        )
        assert said.status_code == page.status_code == 422


# -- numbers in addresses ----------------------------------------------------------------------------

NUMBERED = [
    ("GET", "/promises/{}"),
    ("GET", "/promises/{}/letter"),
    ("GET", "/promises/{}/certificate"),
    ("GET", "/promises/{}/proof"),
    ("POST", "/promises/{}/withdraw"),
    ("POST", "/promises/{}/redeem"),
    ("GET", "/models/audits/{}"),
    ("POST", "/models/audits/{}"),
    ("POST", "/models/audits/{}/renew"),
    ("GET", "/models/audits/{}/page"),
]


@pytest.mark.parametrize(("method", "path"), NUMBERED)
def test_a_number_that_nothing_has_is_told_on_a_page(served, method, path):
    client, csrf = served.session("admin")
    sent = {"csrf": csrf, "reason": "x", "go": "yes", "model": "lender"}
    for number in ("9" * 20, "-" + "9" * 20, "-1", "0", "9" * 5000, "²", "٣", "1_0"):
        more = {"data": sent} if method == "POST" else {}
        found = client.request(method, path.format(number), **more)
        assert found.status_code in (404, 422), number[:25]
        assert "<h1>" in found.text


def test_a_promise_is_searched_by_plain_digits(served):
    client, csrf = served.session("admin")
    for number in ("²", "٣", "1" * 5000, "1_0", "-1"):
        found = client.post("/promises", data={"csrf": csrf, "number": number})
        assert (found.status_code, found.url.path) == (200, "/promises"), number[:25]
    found = client.post("/promises", data={"csrf": csrf, "number": "007"}, follow_redirects=False)
    assert found.headers["location"] == "/promises/7"


# -- a promise with an end, and one without ------------------------------------------------------------


def issued(served, client, sent, **more):
    """What comes of the form that issues the first answer of a page."""
    text = client.post("/answers/lender", data=sent).text
    named = re.search(r'name="certificate" value="([0-9a-f]{64})"', text)[1]
    options = html.unescape(re.search(r'name="options" value="([^"]*)"', text)[1])
    asked = {**sent, "certificate": named, "options": options, **more}
    return client.post("/answers/lender/promise", data=asked, follow_redirects=False)


def test_a_last_day_that_is_over_is_told_beside_an_open_promise(served):
    client, csrf = served.session("admin")
    sent = {"csrf": csrf, "is:income": "12", "is:debt": "24", "id": "ada"}
    assert issued(served, client, sent).status_code == 303
    late = issued(served, client, sent, expires="2020-01-31")
    assert late.status_code == 409
    assert "2020-01-31 is over" in late.text
    known = issued(served, client, sent, expires="2998-07-06")
    assert known.status_code == 409
    assert "has an open promise already" in known.text

    issued(served, client, sent | {"id": "bea"}, expires="2998-07-06")
    text = client.post("/promises/export", data={"csrf": csrf}).text
    ends = {row["person"]: row["expires"] for row in csv.DictReader(io.StringIO(text))}
    assert ends == {"ada": "", "bea": "2998-07-06"}


def test_no_cell_of_a_table_is_a_number_that_is_none():
    assert [promises._cell(value) for value in (None, math.nan, 0, "nan")] == ["", "", 0, "nan"]


# -- how often, and by which name --------------------------------------------------------------------


def test_logins_with_a_key_are_counted_as_its_requests(served, monkeypatch):
    monkeypatch.setattr(served.service, "rate", RateLimit(3))
    client, sent = served.client(), {"key": served.keys["reader"]}
    said = [client.post("/login", data=sent, follow_redirects=False).status_code for _ in range(4)]
    assert said == [303] * 3 + [429]
    other = client.post("/login", data={"key": served.keys["auditor"]}, follow_redirects=False)
    assert other.status_code == 303


def test_a_rate_remembers_so_many_callers_and_no_more(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(access, "_MOST_CALLERS", 20)
    limit = RateLimit(1)
    for n in range(50):
        limit.check(str(n))
        now[0] += 0.001
        assert len(limit._buckets) <= 20
    with pytest.raises(access.Refused):
        limit.check("49")
    limit.check("0")  # the longest known was forgotten
    now[0] += 30.0
    limit.check("new")
    now[0] += 31.0
    limit.check("last")  # those of a minute ago have a full bucket, and need not be known
    assert set(limit._buckets) == {"new", "last"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:", 200),
        ("[::1]:8765", 200),
        ("127.0.0.1:@evil.example", 421),
        ("localhost:evil.example", 421),
        ("localhost:1/../x", 421),
        ("localhost:١", 421),
        ("[::1]evil.example", 421),
        ("[::1]:x", 421),
        ("localhost:80:80", 421),
    ],
)
def test_behind_the_name_of_a_host_is_a_port_or_nothing(served, host, status):
    headers = {"host": host.encode()}
    assert served.client("reader").get(f"{API}/models", headers=headers).status_code == status


# -- who looks whom up, and whose session a login ends -----------------------------------------------


@pytest.mark.parametrize(
    ("role", "may"),
    [("reader", False), ("caseworker", True), ("auditor", False), ("admin", True)],
)
def test_people_are_looked_up_by_those_who_make_promises_to_them(served, role, may):
    client, csrf = served.session(role)
    page = client.get("/people/lender").text
    assert ("/people/lender/find" in page) == may
    assert ("Find somebody" in page) == may
    for number in ("c", "c1"):
        found = client.post("/people/lender/find", data={"csrf": csrf, "id": number})
        assert found.status_code == (200 if may else 403)
        assert ("c1" in found.text) == may


def test_a_login_tells_whose_session_it_ends_and_ends_it(served):
    client, _ = served.session("caseworker")
    before, store = client.cookies["proplace_session"], served.service.store
    assert "“caseworker” (case worker) is logged in" in client.get("/login").text
    sent = {"key": served.keys["reader"]}
    client.post("/login", data={"key": "pp_wrong"})
    assert store.session(before).key.name == "caseworker"
    client.post("/login", data=sent, follow_redirects=False)
    assert store.session(before) is None
    assert "is logged in" not in served.client().get("/login").text


# -- audits of one of several models -----------------------------------------------------------------

STRICT = pp.Network([(layer.W, layer.b - 0.25) for layer in small.NET.layers])  # breaks promises
WIDE = pp.Network([([[1.0, 0.0, 0.0]], [0.0])])  # takes a column that promises do not hold


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two models, with a promise of the first."""
    monkeypatch.setattr(service, "Workers", Inline)
    write_files(tmp_path)
    own = settings(tmp_path)["models"]["lender"]
    with opened(tmp_path, models={"loans": own, "cards": own}) as found:
        path, admin = f"{API}/models/loans", found.client("admin")
        answer = admin.post(f"{path}/explain", json={"people": [PERSON]}).json()["answers"][0][0]
        asked = {"id": "anna", "person": PERSON, "certificate": answer["certificate_digest"]}
        assert admin.post(f"{path}/promises", json=asked).status_code == 201
        yield found


def audited(served, name, network, **replaces):
    """The number of the audit of a file."""
    client, path = served.client("auditor"), served.folder / name
    network.save(path)
    files = {"model": (name, path.read_bytes())}
    job = client.post(f"{API}/audits", files=files, data=replaces).json()["job"]
    assert wait(client, job)["state"] == "done"
    return client.get(f"{API}/jobs/{job}/answers").json()["answers"]["0"]["audit"]


def test_an_audit_tells_its_file_and_the_model_that_it_is_to_replace(two):
    client, _ = two.session("auditor")
    wanted = {"loans": "loans-new.npz", "cards": "cards-new.npz"}
    numbers = {m: audited(two, f, STRICT, replaces=m) for m, f in wanted.items()}
    table = client.get("/models").text
    for model, number in numbers.items():
        row = re.search(rf'<tr><th[^>]*><a href="/models/audits/{number}">.*?</tr>', table, re.S)[0]
        cells = re.findall(r"<td>(?:<span[^>]*>[^<]*</span>)?([^<]*)</td>", row)
        assert cells[:2] == [wanted[model], model]
        page = client.get(f"/models/audits/{number}").text
        assert f"What {wanted[model]} makes of every open promise of “{model}”." in page
        assert f"<dt>To replace</dt> <dd>{model}</dd>" in page
    assert "No promise of “cards” is open" in client.get(f"/models/audits/{numbers['cards']}").text
    kept = client.get(
        f"/models/audits/{audited(two, 'same.npz', small.NET, replaces='loans')}"
    ).text
    assert "It keeps every open promise of “loans”." in kept
    assert "cannot be told stands" not in kept


def test_an_audit_says_where_the_reason_stands_if_something_cannot_be_told(two):
    number = audited(two, "wide.npz", WIDE, replaces="loans")
    client, _ = two.session("auditor")
    page = client.get(f"/models/audits/{number}").text
    assert f'stands in the file of the audit: <a href="/models/audits/{number}/page">' in page
    assert "takes 3 columns" in client.get(f"/models/audits/{number}/page").text
    for path in two.service.files.glob("audit-*.html"):
        path.unlink()
    assert "is not in the ledger" in client.get(f"/models/audits/{number}").text


def test_an_auditor_is_told_who_issues_renewals(two):
    number = audited(two, "strict.npz", STRICT, replaces="loans")
    client, csrf = two.session("auditor")
    started = client.post(f"/models/audits/{number}/renew", data={"csrf": csrf})
    job = str(started.url).rsplit("/", 1)[1]
    assert wait(two.client("auditor"), job)["state"] == "done"
    undecided = "once it is decided"
    text = client.get(f"/models/jobs/{job}").text
    assert undecided in text
    assert "an administrator" in text
    text = two.session("admin")[0].get(f"/models/jobs/{job}").text
    assert undecided in text
    assert "an administrator" not in text
    client.post(f"/models/audits/{number}", data={"csrf": csrf, "go": "yes"})
    text = client.get(f"/models/jobs/{job}").text
    assert undecided not in text
    assert "an administrator" in text
