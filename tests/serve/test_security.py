"""Five sentences of docs/workbench.md about security, and what else nobody should be able to do."""

from __future__ import annotations

import logging
import re
import time

import pytest

from proplace.core.errors import ModelFileError
from proplace.serve import uploads
from proplace.serve.app import MOST_BODY, Access
from served import API, PERSON, Served
from support.lenders import NET

PAGES = ["/", "/promises", "/audits", "/verify.html", f"{API}/model", f"{API}/promises"]


# -- 1: who is let in ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_request_without_login_sees_nothing(served, path):
    found = served.client().get(path)
    assert found.status_code == 401
    assert "c1" not in found.text
    assert served.client(headers={"authorization": "Bearer x"}).get(path).status_code == 401
    assert served.client(headers={"authorization": "Bearer "}).get(path).status_code == 401
    assert served.client(cookies={"proplace": "x"}).get(path).status_code == 401


def test_link_is_good_once_and_gives_strict_cookie(tmp_path):
    served = Served(tmp_path)
    served.bench.start()
    code = served.access.code
    first = served.client()
    found = first.get("/login", params={"code": code})
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert code not in cookie
    assert served.access.token not in cookie
    assert first.get("/").status_code == 200
    again = served.client().get("/login", params={"code": code})
    assert again.status_code == 401
    assert "set-cookie" not in again.headers
    served.bench.close()


def test_token_logs_browser_in_and_code_is_not_token(served):
    page = served.client(headers={"sec-fetch-site": "same-origin"})
    assert page.post("/login", data={"token": "wrong"}).status_code == 401
    assert page.post("/login", data={"token": served.access.code}).status_code == 401
    assert page.post("/login", data={"token": served.access.token}).status_code == 200
    assert page.get("/").status_code == 200
    code = {"authorization": f"Bearer {served.access.code}"}
    assert served.client(headers=code).get(f"{API}/model").status_code == 401
    session = {"authorization": f"Bearer {served.access.session}"}
    assert served.client(headers=session).get(f"{API}/model").status_code == 401


# -- 2: hosts and origins --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "", "localhost.evil.example", "127.0.0.1.nip.io", "[::2]", "local host"],
)
def test_other_names_are_not_served(served, host):
    assert served.program().get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:9", "LOCALHOST"])
def test_names_of_this_machine_are_served(served, host):
    assert served.program().get("/", headers={"host": host}).status_code == 200


def test_names_that_were_allowed_are_served(tmp_path):
    served = Served(tmp_path, access=Access(hosts=frozenset({"bench.example"})))
    served.bench.start()
    assert served.program().get("/", headers={"host": "bench.example"}).status_code == 200
    assert served.program().get("/", headers={"host": "localhost"}).status_code == 421
    served.bench.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/people", "/audits", "/login", f"{API}/certify"])
def test_forms_of_other_pages_are_refused(served, headers, path):
    browser = served.client(cookies={"proplace": served.access.session})
    status = 401 if path.startswith(API) else 403  # a program must send its token
    assert browser.post(path, data={"wanted": "c1"}, headers=headers).status_code == status


def test_forms_of_older_browsers_are_taken_by_their_origin(served):
    browser = served.client(cookies={"proplace": served.access.session})
    head = {"origin": "http://localhost"}
    found = browser.post("/people", data={"wanted": "c1"}, headers=head, follow_redirects=False)
    assert found.status_code == 303


# -- 3: uploads and bodies -------------------------------------------------------------------------


def test_bodies_over_limit_are_refused_with_and_without_length(api):
    content = b" " * (MOST_BODY + 1)
    assert api.post(f"{API}/certify", content=content).status_code == 413

    def parts():
        for _ in range(MOST_BODY // 65_536 + 1):
            yield b" " * 65_536

    found = api.post(
        f"{API}/certify", content=parts(), headers={"content-type": "application/json"}
    )
    assert found.status_code == 413
    for length in ("-1", "1e3", "9" * 30, "²".encode()):
        assert api.post(f"{API}/certify", headers={"content-length": length}).status_code in (
            400,
            413,
        )


def test_upload_that_takes_too_long_is_ended(book, monkeypatch, tmp_path):
    NET.save(tmp_path / "m.npz")
    monkeypatch.setattr(uploads, "SECONDS", 0.05)
    start = time.monotonic()
    with pytest.raises(ModelFileError, match="longer than"):
        uploads.audit(book, book.name, "m.npz", (tmp_path / "m.npz").read_bytes())
    assert time.monotonic() - start < 10


def test_upload_that_needs_too_much_memory_is_ended(book, monkeypatch, tmp_path):
    NET.save(tmp_path / "m.npz")
    head = book.head
    monkeypatch.setattr(uploads, "MEMORY", 64 * 1024**2)
    with pytest.raises(ModelFileError, match="limits of memory"):
        uploads.audit(book, book.name, "m.npz", (tmp_path / "m.npz").read_bytes())
    assert book.head == head


# -- 4: addresses, logs and headers ----------------------------------------------------------------


def test_no_person_stands_in_addresses_or_logs(served, caplog):
    """From the lookup to the letter, with values and ids that stand out."""
    page = served.browser()
    addresses = []
    caplog.set_level(logging.DEBUG)
    values = {"is:income": "17", "is:debt": "43", "name": "Zacharias"}
    found = page.post("/people", data=values)
    addresses.append(found.url.path)
    case = found.url.path.rsplit("/", 1)[1]
    found = page.post("/answers", data={"case": case})
    addresses.append(found.url.path)
    found = page.post(f"{found.url.path}/1/promise", data={"person": "Zacharias"})
    addresses.append(found.url.path)
    assert found.status_code == 200
    page.get(f"{found.url.path}/letter")
    page.post("/promises/find", data={"person": "Zacharias"})
    page.post("/people", data=values | {"is:income": "Zacharias"})
    lines = [r.getMessage() for r in caplog.records if r.name == "proplace.serve"]
    lines = [re.sub(r" \d+ ms$", "", line) for line in lines]
    assert len(lines) >= 6
    for text in [*addresses, *lines]:
        assert "Zacharias" not in text
        assert not re.search(r"\b(17|43)\b", text), text


def test_internal_error_is_logged_by_place_only(served, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("Zacharias")

    monkeypatch.setattr(served.bench, "known", fail)
    caplog.set_level(logging.DEBUG)
    found = served.browser().post("/people", data={"wanted": "Zacharias"})
    assert found.status_code == 500
    assert "Zacharias" not in found.text + caplog.text
    assert "RuntimeError at" in caplog.text


@pytest.mark.parametrize(
    "path", ["/", "/login", "/promises", "/static/style.css", f"{API}/model", "/x"]
)
def test_every_response_has_headers_of_guard(page, path):
    head = page.get(path).headers
    assert "default-src 'none'" in head["content-security-policy"]
    assert "unsafe" not in head["content-security-policy"]
    assert head["x-content-type-options"] == "nosniff"
    assert head["referrer-policy"] == "same-origin"
    assert head["cache-control"] == ("max-age=300" if "static" in path else "no-store")


def test_text_of_people_is_escaped(served):
    page = served.browser()
    text = '<script>alert("x")</script>'
    found = page.post("/people", data={"is:income": text, "is:debt": "3", "name": text})
    assert found.status_code == 422
    assert "<script>alert" not in found.text
    assert "&lt;script&gt;" in found.text
    assert "<script>" not in page.post("/promises/find", data={"person": text}).text.replace(
        "<script src", ""
    )


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/app.py",
        "/promises/1/../..",
        "/people/..%2f",
    ],
)
def test_files_of_machine_are_out_of_reach(page, path):
    assert page.get(path).status_code in (200, 404)
    assert "import" not in page.get(path).text


# -- 5: behind a proxy -----------------------------------------------------------------------------


@pytest.mark.parametrize("stripped", [True, False])
def test_sub_path_behind_proxy_works(tmp_path, stripped):
    served = Served(tmp_path, access=Access(root="/bench"))
    served.bench.start()
    page = served.browser()
    before = "" if stripped else "/bench"
    text = page.get(f"{before}/").text
    links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', text))
    assert links
    assert all(link.startswith("/bench/") for link in links)
    found = page.post(f"{before}/people", data={"wanted": "c1"}, follow_redirects=False)
    assert found.headers["location"].startswith("/bench/people/")
    assert "Path=/bench/;" in served.access.cookie()
    assert page.post(f"{before}{API}/certify", json={"person": PERSON}).status_code == 200
    served.bench.close()
