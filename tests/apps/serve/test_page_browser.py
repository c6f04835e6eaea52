"""The page in a real browser: each story from start to end, with a silent console and a silent axe."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from browser import CHROMIUM, NO_BROWSER

pytest.importorskip("fastapi")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_core_python", reason="axe-core is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)

from paged import EVIL, listening  # noqa: E402

AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
KEEP = os.environ.get("PROPLACE_SCREENSHOTS")  # a folder; else none are taken


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with listening(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visitor:
    """Somebody at the page."""

    def __init__(self, chromium, server, role, **more):
        self.server, self.said = server, []
        context = chromium.new_context(viewport=SIZES["desktop"], accept_downloads=True, **more)
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        if role is not None:
            self.page.goto(f"{server.address}/login#{server.keys[role]}")
            if more.get("java_script_enabled", True):
                self.page.wait_for_url("**/people/loans")
            else:
                self.page.fill("#key", server.keys[role])
                self.press("Log in")

    def hear(self, message):
        if message.type in ("error", "warning"):
            self.said.append(f"{message.type}: {message.text}")

    def press(self, text, nth=0):
        self.page.get_by_role("button", name=text).nth(nth).click()

    def find(self, number):
        self.page.goto(f"{self.server.address}/people")
        self.page.get_by_label("Id", exact=True).fill(number)
        self.press("Find")
        self.page.get_by_role("heading", name="Today’s decision").wait_for()

    def answer(self, number):
        self.find(number)
        self.press("What would change it")
        self.page.get_by_role("heading", name="Answer 1").wait_for()

    def issue(self, number):
        """Issue the first answer; its page, and the number of the promise."""
        self.answer(number)
        self.press("Issue the promise")
        self.page.wait_for_url("**/promises/*")
        return int(self.page.url.rsplit("/", 1)[1])

    def audit(self, file):
        self.page.goto(f"{self.server.address}/models")
        self.page.set_input_files("#model", self.server.folder / file)
        self.press("Audit it")
        self.page.wait_for_url("**/models/audits/*", timeout=30_000)

    def check(self, name):
        """No complaint of axe on any size, nothing wider than the window, nothing on the console."""
        for size, viewport in SIZES.items():
            self.page.set_viewport_size(viewport)
            self.page.evaluate(f"() => {{ {AXE} }}")
            found = self.page.evaluate("() => axe.run(document)")
            told = [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]]
            assert told == [], f"{name}, {size}"
            wide = self.page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= viewport["width"], f"{name}, {size}"
            if KEEP:
                self.page.screenshot(path=f"{KEEP}/serve-{name}-{size}.png", full_page=True)
        self.page.set_viewport_size(SIZES["desktop"])
        assert self.said == [], name


@pytest.fixture
def visitor(chromium, server):
    found = []

    def enter(role, **more):
        found.append(Visitor(chromium, server, role, **more))
        return found[-1]

    yield enter
    for one in found:
        one.page.context.close()


def test_login_takes_the_key_of_the_link_or_the_form_and_leaves_none_behind(visitor, server):
    one = visitor(None)
    one.page.goto(f"{server.address}/promises")
    assert one.page.url == f"{server.address}/login"
    one.check("login")
    one.page.fill("#key", "pp_wrong")
    one.press("Log in")
    assert "not known" in one.page.get_by_role("alert").inner_text()
    assert one.said.pop().startswith(
        "error: Failed to load resource"
    )  # 401, as the browser says it
    one.check("login-wrong")
    one.page.goto("about:blank")
    one.page.goto(f"{server.address}/login#{server.keys['reader']}")
    one.page.wait_for_url("**/people/loans")
    assert server.keys["reader"] not in one.page.content()
    (cookie,) = one.page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert server.keys["reader"] not in cookie["value"]
    one.press("Log out")
    one.page.goto(f"{server.address}/people")
    assert one.page.url == f"{server.address}/login"
    assert one.said == []


def test_people_are_found_or_entered_and_decided(visitor, server):
    one = visitor("reader")
    one.check("people")
    number = server.refused[0]
    one.find(number)
    assert "The loan is refused." in one.page.content()
    one.check("people-found")
    one.page.get_by_label("Id", exact=True).fill(number.upper())
    one.press("Find")
    one.page.get_by_role("button", name=number, exact=True).click()
    one.page.get_by_role("heading", name="Today’s decision").wait_for()
    fields = {"obligations": "5", "yearly income": "190000", "share": "0.5"}
    for label, value in fields.items():
        one.page.get_by_label(label, exact=True).fill(value)
    one.page.get_by_label("job").select_option(label=EVIL)
    one.press("Show today’s decision")
    assert "The loan is approved." in one.page.content()
    assert one.page.title() == "People · Loans"
    assert one.page.get_by_label("job").input_value() == EVIL
    one.page.get_by_label("obligations", exact=True).fill("a lot")
    one.press("Show today’s decision")
    alert = one.page.get_by_role("alert").inner_text()
    assert "debt" in alert
    assert "is not a number" in alert
    assert one.page.get_by_label("obligations", exact=True).input_value() == "a lot"
    assert one.said.pop().startswith("error: Failed to load resource")  # 422
    one.check("people-wrong")
    assert server.refused[0] not in one.page.url


def test_what_would_change_it_with_locks_and_live_values(visitor, server):
    one = visitor("caseworker")
    one.answer(server.refused[0])
    page = one.page
    assert page.locator("article figure img").count() >= 1
    assert page.evaluate("() => [...document.images].every(i => i.naturalWidth > 0)")
    one.check("answers")
    changed = page.locator("table.changes tbody th").first.inner_text()
    page.get_by_label(f"May change: {changed}").uncheck()
    page.get_by_label("Number of answers").select_option("2")
    page.get_by_label("Tolerance: obligations").fill("1")
    page.get_by_label("Effort: yearly income").fill("3")
    page.get_by_label("Changes at most").select_option("3")
    one.press("Search answers")
    page.wait_for_load_state()
    assert changed not in page.locator("table.changes tbody th").all_inner_texts()
    assert not page.get_by_label(f"May change: {changed}").is_checked()
    assert page.get_by_label("Tolerance: obligations").input_value() == "1.0"
    one.check("answers-asked")

    margin = page.locator("[data-live=margin]")
    page.wait_for_function("() => document.querySelector('[data-live=margin]').textContent !== '–'")
    assert page.locator("[data-live=decision]").inner_text() == "approved"
    assert page.locator("[data-live=proved]").inner_text() == "yes"
    before = margin.inner_text()
    slider = page.get_by_role("slider", name="yearly income")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function(
        "before => document.querySelector('[data-live=margin]').textContent !== before", arg=before
    )
    assert page.locator("#try-1").input_value() == "0"
    page.get_by_role("button", name="the person", exact=True).click()
    page.wait_for_function(
        "() => document.querySelector('[data-live=decision]').textContent === 'not approved'"
    )
    assert page.locator("[data-live=proved]").inner_text() == "no"
    page.locator("#try-1").fill("much")
    page.wait_for_function("() => document.querySelector('[data-live=problem]').textContent !== ''")
    assert "is not a number" in page.locator("[data-live=problem]").inner_text()
    assert one.said.pop().startswith("error: Failed to load resource")  # 422
    assert one.said == []


def test_a_promise_its_letter_its_certificate_and_what_becomes_of_it(visitor, server, tmp_path):
    one = visitor("admin")
    number = server.refused[1]
    promise = one.issue(number)
    page = one.page
    one.check("promise")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download the certificate", exact=True).click()
    certificate = tmp_path / "certificate.json"
    downloading.value.save_as(certificate)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download certificate and model").click()
    downloading.value.save_as(tmp_path / "proof.zip")
    with zipfile.ZipFile(tmp_path / "proof.zip") as archive:
        archive.extractall(tmp_path / "proof")
    from proplace import Network
    from proplace.certification import read_proof

    network = Network.load(tmp_path / "proof" / "model.npz")
    for path in (certificate, tmp_path / "proof" / "certificate.json"):
        assert read_proof(path.read_bytes()).check(network).accepted
    page.get_by_role("link", name="Open the letter").click()
    text = page.inner_text("body")
    assert f"Applicant {number}" in text
    assert f"promise {promise}" in text
    assert json.loads(certificate.read_text())["verdict"] == "robust"
    assert read_proof(certificate.read_bytes()).digest in text
    one.check("letter")

    # The same person again: refused, and said beside the answers.
    one.answer(number)
    page.get_by_label("Number of answers").select_option("1")
    page.get_by_label("Tolerance: obligations").fill("2")
    one.press("Search answers")
    page.wait_for_load_state()
    one.press("Issue the promise")
    assert "has an open promise" in page.get_by_role("alert").inner_text()
    assert one.said.pop().startswith("error: Failed to load resource")  # 409

    # The person comes back, as they were: not met; then with what was promised.
    page.goto(f"{server.address}/promises/{promise}")
    page.get_by_text("What is known of the person").click()
    one.press("Look only")
    page.get_by_role("status").first.wait_for()
    assert page.locator("h1 .tag").inner_text() == "open"
    one.check("promise-not-met")
    answer = server.service.ledger.promise(promise).answer
    for field in page.locator("[data-name]").all():
        value = answer[field.get_attribute("data-name")]
        plain = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        tag = field.evaluate("e => e.tagName")
        field.select_option(plain) if tag == "SELECT" else field.fill(plain)
    one.press("Look and write it down")
    assert page.locator("h1 .tag").inner_text() == "redeemed"

    second = one.issue(server.refused[2])
    page.get_by_label("Reason").fill("asked for in error")
    one.press("Withdraw the promise")
    assert page.locator("h1 .tag").inner_text() == "withdrawn"
    assert "asked for in error" in page.locator("table.entries").inner_text()
    assert page.url.endswith(f"/promises/{second}")
    page.goto(f"{server.address}/promises")
    page.get_by_label("Id of a person").fill(number)
    one.press("Search")
    assert page.locator("table.list tbody tr").count() == 1
    one.check("promises")


def test_a_retrained_model_is_audited_renewed_and_decided_on(visitor, server):
    one = visitor("admin")
    promise = one.issue(server.refused[3])
    page = one.page
    page.goto(f"{server.address}/models")
    one.check("models-before")
    one.audit("near.npz")
    assert "It keeps every open promise." in page.content()
    near = int(page.url.rsplit("/", 1)[1])
    page.get_by_label("Why").fill("within the promised set")
    one.press("Go: it goes into use")
    assert "within the promised set" in page.inner_text("#content")
    assert "admin" in page.locator("section.good").inner_text()

    one.audit("strict.npz")
    assert "It would break" in page.content()
    row = page.locator("table.list tbody tr", has_text=server.refused[3])
    assert "broken" in row.inner_text()
    one.check("audit")
    audit = page.url
    one.press("Search new answers")
    page.get_by_role("heading", name="New answers beside the old ones").wait_for(timeout=30_000)
    one.check("renewals")
    one.press("Issue")
    page.get_by_role("status").wait_for(timeout=30_000)
    assert server.service.ledger.promise(promise).state == "renewed"
    page.goto(audit)
    one.press("No go")
    assert "no go" in page.locator("section.bad").inner_text()
    page.get_by_role("link", name="The audit as one file to keep").click()
    assert "Broken promises" in page.inner_text("body")
    one.check("audit-file")
    page.goto(f"{server.address}/models")
    one.check("models")
    kinds = [
        (e.kind, e.facts.get("go"), e.facts["by"])
        for e in server.service.ledger.entries(kinds=("decided", "adopted"))
    ]
    assert kinds == [
        ("decided", True, "admin"),
        ("adopted", None, "admin"),
        ("decided", False, "admin"),
    ]
    assert near in [e.facts.get("audit") for e in server.service.ledger.entries(kinds=("decided",))]

    page.set_input_files(
        "#model", {"name": "m.pkl", "mimeType": "text/plain", "buffer": b"no model"}
    )
    one.press("Audit it")
    assert "nothing is unpickled" in page.get_by_role("alert").inner_text()
    one.said.clear()
    page.set_input_files(
        "#model", {"name": "../m.npz", "mimeType": "text/plain", "buffer": b"no model"}
    )
    one.press("Audit it")
    page.get_by_role("heading", name="It failed").wait_for(timeout=30_000)
    one.check("job-failed")


def test_the_ledger_is_searched_verified_and_exported(visitor, server, tmp_path):
    one = visitor("admin")
    promise = one.issue(server.refused[4])
    page = one.page
    page.goto(f"{server.address}/ledger")
    one.check("ledger")
    head = str(server.service.ledger.head)
    page.get_by_label("End of the chain that was kept elsewhere").fill(head)
    one.press("Verify")
    assert "Everything is as it was written" in page.get_by_role("status").inner_text()
    one.check("ledger-verified")
    entries, start = head.split(":")
    page.get_by_label("End of the chain that was kept elsewhere").fill(
        f"{entries}:{'0' if start[0] != '0' else '1'}{start[1:]}"
    )
    one.press("Verify")
    assert "Something is not as it was written" in page.get_by_role("status").inner_text()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Export all entries").click()
    downloading.value.save_as(tmp_path / "ledger.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, int(entries) + 1))
    assert server.refused[4] not in (tmp_path / "ledger.jsonl").read_text()
    page.get_by_label("Number of a promise").fill(str(promise))
    one.press("Search")
    assert page.url == f"{server.address}/promises/{promise}"
    page.goto(f"{server.address}/promises")
    with page.expect_download() as downloading:
        one.press("Export all as a table")
    downloading.value.save_as(tmp_path / "promises.csv")
    assert server.refused[4] in (tmp_path / "promises.csv").read_text()
    assert one.said == []


def test_without_a_script_everything_but_what_is_live_works(visitor, server):
    one = visitor("admin", java_script_enabled=False)
    page = one.page
    one.answer(server.refused[5])
    assert not page.get_by_role("slider").first.is_visible()
    one.press("Show the decision")
    assert "The loan is approved." in page.content()
    one.issue(server.refused[5])
    assert page.locator("h1 .tag").inner_text() == "open"
    assert not page.get_by_role("button", name="Print the letter").is_visible()
    page.goto(f"{server.address}/models")
    page.set_input_files("#model", server.folder / "near.npz")
    one.press("Audit it")
    page.wait_for_url("**/models/audits/*", timeout=30_000)


def test_the_keyboard_reaches_everything_and_dark_pages_have_contrast(visitor, server):
    one = visitor("caseworker", color_scheme="dark")
    page = one.page
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "find"
    page.keyboard.type(server.refused[6])
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Today’s decision").wait_for()
    one.check("dark-people")
    one.answer(server.refused[6])
    one.check("dark-answers")
    assert one.page.get_by_role("link", name="Ledger").count() == 0
