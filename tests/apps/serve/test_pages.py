"""The page without a browser: who sees what, what a form must bring, and what never acts."""

from __future__ import annotations

import csv
import html
import io
import re
import time
import zipfile
from concurrent.futures import Future
from importlib import resources
from types import SimpleNamespace

import pytest
import yaml

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from fastapi.testclient import TestClient

import small_lender as lender
from paged import EVIL, paged
from proplace.apps.serve import catalogue
from proplace.apps.serve.access import COOKIE, PERMISSIONS, Refused
from proplace.apps.serve.demo import demo_config
from proplace.apps.serve.models import engine_of
from proplace.apps.serve.pages import ledger as pages_ledger
from proplace.apps.serve.workers import Busy, Died, Late
from proplace.certification import checker

PAGES = {
    "/people/loans": "predict",
    "/promises": "promises",
    "/models": "models",
    "/ledger": "ledger",
    "/ledger/export": "ledger",
    "/promises/1": "promises",
    "/promises/1/letter": "promises",
    "/promises/1/certificate": "promises",
    "/promises/1/proof": "promises",
    "/models/audits/1": "audit",
    "/models/audits/1/page": "audit",
    "/models/jobs/x": "audit",
}
FORMS = {
    "/people/loans": "predict",
    "/people/loans/find": "people",
    "/answers/loans": "explain",
    "/answers/loans/try": "certify",
    "/answers/loans/promise": "issue",
    "/promises": "promises",
    "/promises/export": "promises",
    "/promises/1/withdraw": "withdraw",
    "/promises/1/redeem": "redeem",
    "/models": "audit",
    "/models/jobs/x/cancel": "audit",
    "/models/audits/1": "decide",
    "/models/audits/1/renew": "decide",
    "/models/audits/1/live": "live",
    "/ledger/verify": "ledger",
    "/logout": "models",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with paged(tmp_path_factory.mktemp("served")) as found:
        yield found


def visitor(server, role=None):
    """A client at the page, logged in with the key of a role; with the token of its forms."""
    client = TestClient(server.app, base_url="http://localhost", raise_server_exceptions=False)
    if role is not None:
        done = client.post("/login", data={"key": server.keys[role]}, follow_redirects=False)
        assert done.status_code == 303
        client.token = server.service.store.session(client.cookies[COOKIE]).csrf
    return client


def person(server, number, **changes):
    """The fields of a form that hold somebody."""
    known = server.service.engines["loans"].person(number) | changes
    return {f"is:{name}": str(value) for name, value in known.items()} | {"id": number}


def test_every_page_and_form_of_the_page_is_in_these_tables(server):
    routes = [r for r in walk(server.app.routes) if not r.path.startswith("/api/")]
    open_ = {"/", "/login", "/static/{name}", "/verify.html", "/people"}
    gets = {r.path for r in routes if "GET" in r.methods} - open_
    posts = {r.path for r in routes if "POST" in r.methods} - open_
    assert {generic(path) for path in PAGES} == gets
    assert {generic(path) for path in FORMS} == posts


def walk(routes):
    """All routes, also those of routers inside."""
    for route in routes:
        inner = getattr(route, "original_router", None) or getattr(route, "routes", None)
        if inner is not None and not hasattr(route, "methods"):
            yield from walk(inner.routes if hasattr(inner, "routes") else inner)
        elif hasattr(route, "methods") and hasattr(route, "dependant"):
            yield route


def generic(path):
    path = path.replace("/loans", "/{name}").replace("/x", "/{number}")
    return re.sub(r"/1(?=/|$)", "/{number}", path)


@pytest.mark.parametrize("path", [*PAGES, "/people"])
def test_a_stranger_is_sent_to_the_login(server, path):
    found = visitor(server).get(path, follow_redirects=False)
    back = "" if path == "/people" else f"?to={path}"
    assert (found.status_code, found.headers["location"]) == (303, f"/login{back}")


@pytest.mark.parametrize("path", FORMS)
def test_a_form_of_a_stranger_or_without_its_token_does_nothing(server, path):
    before = server.service.ledger.head
    found = visitor(server).post(path, data={"csrf": "x"}, follow_redirects=False)
    assert found.status_code == 303
    assert found.headers["location"] == "/login"
    admin, other = visitor(server, "admin"), visitor(server, "admin")
    for data in ({}, {"csrf": ""}, {"csrf": "x" * 43}, {"csrf": "é"}, {"csrf": other.token}):
        assert admin.post(path, data=data, follow_redirects=False).status_code == 403
    assert server.service.store.session(admin.cookies[COOKIE]) is not None
    assert server.service.ledger.head == before


@pytest.mark.parametrize("role", PERMISSIONS)
def test_each_role_sees_and_does_what_it_may(server, role):
    client = visitor(server, role)
    for path, permission in PAGES.items():
        status = client.get(path).status_code
        assert (status == 403) == (permission not in PERMISSIONS[role]), path
    for path, permission in FORMS.items():
        if permission in PERMISSIONS[role]:
            continue
        found = client.post(path, data={"csrf": client.token}, follow_redirects=False)
        assert found.status_code == 403, path
    text = client.get("/people/loans").text
    for name, permission in (("promises", "promises"), ("ledger", "ledger")):
        assert (f'href="/{name}"' in text) == (permission in PERMISSIONS[role])


def test_a_login_from_another_site_is_refused(server):
    client = visitor(server)
    data = {"key": server.keys["admin"]}
    found = client.post("/login", data=data, headers={"sec-fetch-site": "cross-site"})
    assert found.status_code == 403
    assert COOKIE not in client.cookies


def test_whoever_logs_in_comes_to_the_page_that_was_asked_for_and_to_no_other_site(server):
    key = server.keys["admin"]
    for to, place in (
        ("/promises", "/promises"),
        ("/models/audits/7", "/models/audits/7"),
        ("", "/people"),
        ("//evil.example", "/people"),
        ("/people//evil.example", "/people"),
        ("https://evil.example/people", "/people"),
        ("/people\r\nx: y", "/people"),
        ("/logout", "/people"),
    ):
        client = visitor(server)
        page = client.get("/login", params={"to": to}).text
        assert ('name="to"' in page) == (place == to), to
        done = client.post("/login", data={"key": key, "to": to}, follow_redirects=False)
        assert (done.status_code, done.headers["location"]) == (303, place), to


OURS = {"sec-fetch-site": "same-origin"}


def hidden(text):
    """The hidden fields of a page, by name."""
    pairs = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text)
    return {html.unescape(name): html.unescape(value) for name, value in pairs}


def test_what_was_entered_outlives_a_session(server):
    """It is shown on the login page, and sent only when whoever has logged in says so."""
    number = server.refused[0]
    sent = person(server, number, job=EVIL) | {"csrf": "gone", "note": "\"'><img src=x>"}
    client = visitor(server)
    page = client.post("/people/loans", data=sent, headers=OURS)
    assert page.status_code == 401
    assert "session has ended" in page.text
    assert "<img src=x" not in page.text
    kept = hidden(page.text)
    assert kept["to"] == "/people/loans"
    assert {n.removeprefix("held:"): v for n, v in kept.items() if n != "to"} == {
        name: value for name, value in sent.items() if name != "csrf"
    }
    wrong = client.post("/login", data=kept | {"key": "pp_x"}, headers=OURS)
    assert wrong.status_code == 401
    assert hidden(wrong.text) == kept
    done = client.post("/login", data=kept | {"key": server.keys["reader"]}, headers=OURS)
    assert done.status_code == 200
    assert 'action="/people/loans"' in done.text
    again = hidden(done.text)
    assert again["csrf"] == server.service.store.session(client.cookies[COOKIE]).csrf
    found = client.post("/people/loans", data=again, headers=OURS)
    assert "Today’s decision" in found.text


def test_forms_of_other_sites_are_not_kept(server):
    sent = person(server, server.refused[0])
    for headers in ({}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
        found = visitor(server).post(
            "/people/loans", data=sent, headers=headers, follow_redirects=False
        )
        assert found.status_code == 303
        kept = {f"held:{name}": value for name, value in sent.items()} | {"to": "/people/loans"}
        site = headers.get("sec-fetch-site")
        done = visitor(server).post(
            "/login", data=kept | {"key": server.keys["admin"]}, headers=headers
        )
        assert done.status_code == (200 if site is None else 403)
        assert server.refused[0] not in done.text
    large = sent | {"id": "x" * 70_000}
    found = visitor(server).post("/people/loans", data=large, headers=OURS, follow_redirects=False)
    assert found.status_code == 303


def test_a_form_from_before_the_login_can_be_sent_again(server):
    client = visitor(server, "caseworker")
    sent = person(server, server.refused[0]) | {"csrf": "from another session"}
    found = client.post("/people/loans", data=sent, headers=OURS)
    assert found.status_code == 403
    again = hidden(found.text.split("<main")[1])
    assert again == sent | {"csrf": client.token}
    foreign = client.post("/people/loans", data=sent, headers={"sec-fetch-site": "cross-site"})
    assert foreign.status_code == 403
    assert server.refused[0] not in foreign.text
    role = client.post("/ledger/verify", data={"csrf": client.token, "head": "x"}, headers=OURS)
    assert role.status_code == 403
    assert "As case worker you may not do this" in role.text
    assert "head" not in hidden(role.text)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (Busy("x"), 429, "too much to do"),
        (Late("x"), 504, "did not end in time"),
        (Died("x"), 503, "has ended before it had an answer"),
    ],
)
def test_a_search_that_gives_no_answer_keeps_what_was_asked(
    server, monkeypatch, error, status, told
):
    client = visitor(server, "caseworker")
    future = Future()
    future.set_exception(error)
    monkeypatch.setattr(type(server.service), "ask_explain", lambda *_, **__: future)
    monkeypatch.setattr(type(server.service), "ask_issue", lambda *_, **__: future)
    sent = person(server, server.refused[0]) | {"csrf": client.token, "asked": "1"}
    sent |= {"free:debt": "1", "count": "4", "tolerance:debt": "2.5", "max_effort": "7"}
    found = client.post("/answers/loans", data=sent)
    assert found.status_code == status
    assert told in found.text
    assert "Today the loan is refused." in found.text
    assert "<option selected>4</option>" in found.text
    for value in ("2.5", "7"):
        assert f'value="{value}"' in found.text
    assert float(hidden(found.text)["is:debt"]) == float(sent["is:debt"])
    issued = client.post(
        "/answers/loans/promise",
        data=sent | {"certificate": "0" * 64, "options": "{}", "expires": "2999-01-01"},
    )
    assert issued.status_code == 409
    assert told in issued.text


def test_too_many_requests_keep_what_was_entered(server, monkeypatch):
    client = visitor(server, "reader")

    def full(_):
        raise Refused(429, "too many requests; wait a little", after=3)

    monkeypatch.setattr(server.service.rate, "check", full)
    sent = person(server, server.refused[0]) | {"csrf": client.token}
    found = client.post("/people/loans", data=sent, headers=OURS)
    assert (found.status_code, found.headers["retry-after"]) == (429, "3")
    assert "Try again in 3 seconds." in found.text
    assert hidden(found.text)["is:debt"] == sent["is:debt"]


def test_wrong_keys_are_counted(tmp_path):
    with paged(tmp_path) as server:
        client = visitor(server)
        said = [client.post("/login", data={"key": f"pp_{n}"}).status_code for n in range(12)]
        assert said[:10] == [401] * 10
        assert said[10:] == [429] * 2


def test_pages_have_no_inline_script_or_style_and_no_foreign_address(server):
    client = visitor(server, "admin")
    texts = [client.get(path).text for path in ("/login", *PAGES)]
    sent = person(server, server.refused[0]) | {"csrf": client.token}
    texts.append(client.post("/answers/loans", data=sent).text)
    for text in texts:
        assert not re.search(r"<script(?![^>]* src=)[^>]*>", text.replace(EVIL, ""))
        assert not re.search(r"\s(style|on\w+)=", text)
        assert not re.search(r"(src|href|action)=\"(https?:)?//", text)


def test_no_address_holds_a_person(server):
    client = visitor(server, "caseworker")
    sent = person(server, server.refused[0]) | {"csrf": client.token}
    for path in ("/people/loans/find", "/people/loans", "/answers/loans", "/promises"):
        text = client.post(path, data=sent).text
        for address in re.findall(r"(?:href|action|formaction|src)=\"([^\"]*)\"", text):
            if not address.startswith("data:"):
                assert server.refused[0] not in address
                assert "?" not in address or address.startswith("/static/")


@pytest.mark.parametrize("field", ["id", "is:debt", "is:job", "is:income", "options", "expires"])
@pytest.mark.parametrize("path", [p for p in FORMS if p.startswith(("/people", "/answers"))])
def test_what_is_typed_in_comes_back_as_text(server, path, field):
    client = visitor(server, "admin")
    evil = "\"'><img src=x onerror=alert(1)>"
    sent = person(server, server.refused[0]) | {"csrf": client.token, field: evil}
    found = client.post(path, data=sent)
    assert found.status_code < 500
    assert "<img src=x" not in found.text


def test_other_texts_come_back_as_text(server):
    client = visitor(server, "admin")
    evil = "\"'><img src=x onerror=alert(1)>"
    issued = issue(server, client, server.refused[1], evil)
    for path, data in (
        ("/promises", {"person": evil, "state": evil, "number": evil}),
        ("/promises", {"person": evil}),
        ("/ledger/verify", {"head": evil}),
        (f"/promises/{issued}/withdraw", {"reason": f"a reason {evil[:5]}<img src=x>"}),
    ):
        found = client.post(path, data=data | {"csrf": client.token})
        assert found.status_code < 500
        assert "<img src=x" not in found.text
    for path in (f"/promises/{issued}", f"/promises/{issued}/letter", "/promises", "/ledger"):
        text = client.get(path).text
        assert "<img src=x" not in text
    assert "&lt;img src=x" in client.get(f"/promises/{issued}").text


def issue(server, client, number, called=None):
    """Issue the first answer of somebody; the number of the promise."""
    sent = person(server, number) | {"csrf": client.token}
    sent |= offered(client.post("/answers/loans", data=sent).text) | {"id": called or number}
    done = client.post("/answers/loans/promise", data=sent, follow_redirects=False)
    assert done.status_code == 303, done.text
    return int(done.headers["location"].rsplit("/", 1)[1])


def offered(text):
    """The fields that name the first answer of a page."""
    certificate = re.search(r'name="certificate" value="([0-9a-f]{64})"', text)[1]
    options = re.search(r'name="options" value="([^"]*)"', text)[1]
    return {"certificate": certificate, "options": html.unescape(options)}


def test_a_promise_is_what_was_seen_by_whoever_issued_it(server):
    client = visitor(server, "caseworker")
    number = issue(server, client, server.refused[2])
    ledger = server.service.ledger
    assert ledger.promise(number).person == server.refused[2]
    assert [e.facts["by"] for e in ledger.history(number)] == ["caseworker"]
    sent = person(server, server.refused[3]) | {"csrf": client.token, "certificate": "0" * 64}
    refused = client.post("/answers/loans/promise", data=sent | {"options": "{}"})
    assert refused.status_code != 200
    assert ledger.promises(server.refused[3]).empty


def test_a_letter_may_style_itself_and_nothing_else(server):
    client = visitor(server, "caseworker")
    number = issue(server, client, server.refused[4])
    policy = client.get(f"/promises/{number}/letter").headers["content-security-policy"]
    assert "script-src" not in policy
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in client.get("/promises").headers["content-security-policy"]


def test_an_erased_person_leaves_no_letter_and_no_certificate(server):
    client = visitor(server, "admin")
    number = issue(server, client, server.refused[5])
    server.service.ledger.erase(server.refused[5])
    page = client.get(f"/promises/{number}")
    assert page.status_code == 200
    assert server.refused[5] not in page.text
    row = re.search(rf"<tr>[^\n]*/promises/{number}\".*?</tr>", client.get("/promises").text, re.S)[
        0
    ]
    assert "erased" in row
    assert "nan" not in row.lower().replace("financ", "")
    assert "None" not in row
    for what in ("letter", "certificate", "proof"):
        assert client.get(f"/promises/{number}/{what}").status_code == 410


def test_the_exported_table_holds_no_formula(server):
    client = visitor(server, "caseworker")
    number = issue(server, client, server.refused[6], "=1+1")
    text = client.post("/promises/export", data={"csrf": client.token}).text
    rows = {row["promise"]: row for row in csv.DictReader(io.StringIO(text))}
    assert rows[str(number)]["person"] == "'=1+1"


@pytest.mark.parametrize("path", ["/nothing", "/promises/999", "/promises/x", "/promises/" + "9" * 30,
                                  "/people/nobody", "/models/audits/7", "/static/x"])  # fmt: skip
def test_what_is_not_there_is_said_on_a_page(server, path):
    found = visitor(server, "admin").get(path)
    assert found.status_code in (404, 422)
    assert found.headers["content-type"].startswith("text/html")
    assert "<h1>" in found.text


def test_a_form_that_asks_for_too_much_says_which_field(server):
    client = visitor(server, "reader")
    sent = person(server, server.refused[0]) | {"csrf": client.token, "asked": "1"}
    free = {f"free:{name}": "1" for name in ("debt", "income")}
    for field, value, told in (
        ("count", "99", "Number of answers"),
        ("max_effort", "-1", "Effort within reach"),
        ("tolerance:debt", "a lot", "Tolerance (debt): must be a number"),
        ("free:none", "1", "nothing is left that may change"),
    ):
        more = {} if field == "free:none" else free | {"effort:income": "3.25"}
        found = client.post("/answers/loans", data=sent | more | {field: value})
        assert found.status_code == 422, field
        assert told.lower() in found.text.lower(), field
        assert not more or 'value="3.25"' in found.text, field  # the rest stays as it was entered
        if field in ("max_effort", "tolerance:debt"):
            own = re.search(rf'<input[^>]* name="{field}"[^>]*>', found.text)[0]
            assert f'value="{value}"' in own
            assert 'aria-invalid="true"' in own


def test_a_refused_promise_keeps_what_was_entered(server):
    client = visitor(server, "caseworker")
    server.promise(server.refused[8])
    sent = person(server, server.refused[8]) | {"csrf": client.token}
    sent |= offered(client.post("/answers/loans", data=sent).text)
    typed = {"expires": "2998-07-06", "existing": "refuse"}
    found = client.post("/answers/loans/promise", data=sent | typed)
    assert found.status_code == 409
    assert found.text.count('value="2998-07-06"') == 1  # at the answer that it was entered for


def test_entries_of_the_ledger_are_found_by_kind_and_leafed_through(server, monkeypatch):
    monkeypatch.setattr(pages_ledger, "_LATEST", 3)
    monkeypatch.setattr(pages_ledger, "_WINDOW", 4)
    client = visitor(server, "auditor")
    server.promise(server.refused[9])
    for kind in ("", "issued", "document", "adopted"):
        kinds = [kind] if kind else None
        wanted = [e.seq for e in server.service.ledger.entries(kinds=kinds)][::-1]
        found, address = [], f"/ledger?kind={kind}"
        for _ in range(50):
            text = client.get(address).text
            found += map(int, re.findall(r'<th scope="row" class="number">(\d+)</th>', text))
            older = re.search(r'href="(/ledger\?kind=[a-z]*&amp;before=\d+)', text)
            if older is None:
                break
            address = html.unescape(older[1])
        assert found == wanted, kind
        assert ("There are no such entries" in text) == (not wanted)
    assert client.get("/ledger?kind=<b>&before=99999999").status_code == 200


# -- texts -----------------------------------------------------------------------------------------


def test_every_text_is_used_and_every_used_text_is_there():
    folder = resources.files("proplace.apps.serve")
    sources = [
        file.read_text(encoding="utf-8")
        for part in ("templates", "pages")
        for file in (folder / part).iterdir()
        if file.name.endswith((".j2", ".py"))
    ]
    whole = "\n".join(sources)
    keys = catalogue.catalogues()["en"].keys
    names = {re.sub(r"\.(one|more)$", "", key) for key in keys}
    words = set(re.findall(r"[\"']([a-z_]+(?:\.[a-z_0-9]+)+\.?)[\"'{]", whole))
    words |= set(re.findall(r"[\"']([a-z_]+\.)[\"'{]", whole))
    begun = tuple(word for word in words if word.endswith((".", "_")))  # the rest is computed
    groups = {name.split(".")[0] for name in names}
    files = (".csv", ".jsonl", ".j2", ".html")
    used = {w for w in words if w.split(".")[0] in groups and not w.endswith((*files, ".", "_"))}
    assert used - names - keys == set()
    unused = {name for name in names - used if not name.startswith(begun)}
    assert unused == {"language", "footer"}


def test_a_language_is_added_by_one_file_and_may_be_incomplete(tmp_path, monkeypatch):
    write_language(tmp_path, monkeypatch, {"people": {"title": "Personen"}})
    found = catalogue.catalogue_for("de-AT,de;q=0.9,en;q=0.8")
    assert found.language == "de"
    assert found("people.title") == "Personen"
    assert found("people.find") == "Find somebody"
    assert catalogue.catalogue_for("fr").language == "en"


def write_language(folder, monkeypatch, texts):
    """Put the file of another language beside the English one."""
    own = resources.files("proplace.apps.serve") / "texts" / "en.yaml"
    (folder / "texts").mkdir()
    (folder / "texts" / "en.yaml").write_bytes(own.read_bytes())
    (folder / "texts" / "de.yaml").write_text(yaml.safe_dump(texts, allow_unicode=True))
    monkeypatch.setattr(catalogue, "resources", SimpleNamespace(files=lambda _: folder))
    catalogue.catalogues.cache_clear()


def strange(texts):
    """The texts in letters of another script, with their blanks."""
    if isinstance(texts, dict):
        return {key: strange(value) for key, value in texts.items()}
    letters = {c: chr(0x0430 + n) for n, c in enumerate("abcdefghijklmnopqrstuvwxyz")}
    table = str.maketrans(letters | {c.upper(): x.upper() for c, x in letters.items()})
    return "".join(
        part if part.startswith("{") else part.translate(table)
        for part in re.split(r"(\{\w+\})", texts)
    )


def names():
    """Words for features, outcomes, files and formats: they are not of this service."""
    features = lender.SCHEMA.features
    said = [f"{f.title} {getattr(f, 'unit', '')} {getattr(f, 'labels', '')}" for f in features]
    others = (
        "Loans loans The the loan refused approved near npz lender admin SHA-256 MiB ONNX NPZ Keras "
        "PyTorch safetensors CSV JSON UTC Network pt pth keras onnx nobody year " + EVIL
    )
    return set(re.findall(WORD, " ".join([*said, others])))


WORD = r"[A-Za-z][A-Za-z0-9-]+"


def visible(text):
    """What a page says, to eyes and ears, but what is marked as English or as code."""
    text = re.sub(
        r"(?s)<(script|style|code|svg|select)\b.*?</\1>|<dd>[0-9a-f:]{64,}</dd>", " ", text
    )
    text = re.sub(r'(?s)<(\w+)[^>]* lang="en"[^>]*>.*?</\1>', " ", text)
    told = "aria-label|alt|title|data-(?:busy|gone|yes|no|unknown|failed|offline|crowded|ended)"
    spoken = re.findall(rf"""\s(?:{told})=(?:"([^"]*)"|'([^']*)')""", text)
    text = re.sub(r"(?s)<[^>]*>", "\n", text)
    lines = [*text.split("\n"), *map("".join, spoken)]
    return [html.unescape(line).strip() for line in lines if line.strip()]


@pytest.fixture
def other_language(tmp_path, monkeypatch):
    own = resources.files("proplace.apps.serve") / "texts" / "en.yaml"
    write_language(tmp_path, monkeypatch, strange(yaml.safe_load(own.read_text(encoding="utf-8"))))
    yield
    catalogue.catalogues.cache_clear()


def test_no_english_is_left_where_there_is_another_language(server, other_language):
    client = visitor(server, "admin")
    client.headers["accept-language"] = "de"
    number = server.refused[7]
    issued = issue(server, client, number)
    sent = person(server, number) | {"csrf": client.token}
    token = {"csrf": client.token}
    upload = {"model": ("near.npz", (server.folder / "near.npz").read_bytes())}
    job = client.post("/models", data=token, files=upload, follow_redirects=False)
    waiting = job.headers["location"]
    texts = {"job": client.get(waiting).text}
    for _ in range(600):
        audit = client.get(waiting)
        if "/audits/" in str(audit.url):
            break
        time.sleep(0.05)
    decided = {"go": "no", "note": "1"}
    for path in ("/login", "/people/loans", "/promises", f"/promises/{issued}", "/models", "/ledger",
                 audit.url.path, "/ledger?kind=adopted", "/nothing", "/promises/999"):  # fmt: skip
        texts[path] = client.get(path).text
    for path, data in (
        ("/people/loans/find", {"id": "k"}),
        ("/people/loans/find", {"id": number}),
        ("/people/loans/find", {"id": "nobody"}),
        ("/answers/loans", sent),
        ("/answers/loans", sent | {"asked": "1", "count": "99", "max_effort": "x"}),
        ("/answers/loans/try", sent),
        ("/promises", {"person": "nobody"}),
        ("/ledger/verify", {}),
        (audit.url.path, decided),
        ("/people/loans", {"csrf": "x"}),
    ):
        texts[path + str(sorted(data))] = client.post(path, data=token | data, headers=OURS).text
    ledger = server.service.ledger  # in which other tests have written, too
    typed = [*ledger.promises()["person"].dropna(), *(str(e.facts) for e in ledger.entries())]
    known = names() | set(server.refused) | set(re.findall(WORD, " ".join(typed)))
    left = []
    for path, text in texts.items():
        assert '<html lang="de">' in text, path
        for line in visible(text):
            words = set(re.findall(WORD, re.sub(r"\{\w+\}", "", line)))
            left += [(path, line)] if words - known else []
    assert left == []


# -- what a newcomer looks for -----------------------------------------------------------------------


def test_a_case_worker_gets_all_that_a_check_needs(server, tmp_path):
    """The files of the command that stands beside the zip; and it accepts them."""
    client = visitor(server, "caseworker")
    number = issue(server, client, server.refused[8])
    text = client.get(f"/promises/{number}").text
    assert f'href="/promises/{number}/proof"' in text
    assert "where the files of “Download certificate and model (zip)” are unpacked" in text
    command = html.unescape(re.search(r"<code>(proplace check [^<]*)</code>", text)[1])
    found = client.get(f"/promises/{number}/proof")
    with zipfile.ZipFile(io.BytesIO(found.content)) as archive:
        archive.extractall(tmp_path)
    files = [word for word in command.split() if word.endswith((".json", ".npz"))]
    assert len(files) >= 2
    assert set(files) <= {path.name for path in tmp_path.iterdir()}
    network = checker.read_npz(tmp_path / "model.npz")
    proof = (tmp_path / "certificate.json").read_bytes()
    assert checker.check(proof, network).accepted


def test_models_put_into_service_can_be_looked_for(server):
    text = visitor(server, "auditor").get("/ledger?kind=live").text
    assert '<option value="live" selected>model put into service</option>' in text


def test_every_kind_of_entry_that_has_a_name_can_be_looked_for():
    names = {key.split(".")[1] for key in catalogue.catalogues()["en"].keys if key[:6] == "kinds."}
    assert names == set(pages_ledger.KINDS)


def test_who_is_accepted_already_is_not_told_that_answers_are_lacking(server):
    client = visitor(server, "caseworker")
    people = server.service.engines["loans"].people
    accepted = next(k for k in (f"k{n}" for n in range(len(people))) if k not in server.refused)
    sent = person(server, accepted) | {"csrf": client.token}
    text = client.post("/answers/loans", data=sent).text
    assert "accepted today" in text
    assert "asked for" not in text


def test_a_hint_stands_under_the_field_of_the_id(server, monkeypatch):
    client = visitor(server, "caseworker")
    assert "find-hint" not in client.get("/people/loans").text
    config = server.service.config.model_copy(update={"hint": "such as <k1>"})
    monkeypatch.setattr(server.service, "config", config)
    text = client.get("/people/loans").text
    assert '<p class="hint" id="find-hint">such as &lt;k1&gt;</p>' in text
    assert 'aria-describedby="find-hint"' in text


def test_the_hint_of_the_demonstration_names_people_who_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = demo_config(host="127.0.0.1", port=0, workers=1, ledger=None)
    engine = engine_of("mortgages", config.models["mortgages"])
    ids = re.findall("[0-9]+", config.hint)
    assert len(ids) == 3
    assert not any(said["accepted"] for said in engine.predict([engine.person(n) for n in ids]))


def test_a_key_behind_the_address_is_taken_also_where_the_page_is_open_already():
    script = (resources.files("proplace.apps.serve") / "static" / "app.js").read_text("utf-8")
    assert 'addEventListener("hashchange", takeKey);' in script
