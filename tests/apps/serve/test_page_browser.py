"""The page in a real browser: each story from start to end, with a silent console and a silent axe."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from browser import CHROMIUM, NO_BROWSER

pytest.importorskip("fastapi")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_core_python", reason="axe-core is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)

from paged import EVIL, listening  # noqa: E402
from proplace.apps.serve.access import COOKIE  # noqa: E402

AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


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
        if role is not None:
            token = {"name": COOKIE, "value": server.session(role), "url": server.address}
            context.add_cookies([token])
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def hear(self, message):
        if message.type in ("error", "warning"):
            self.said.append(f"{message.type}: {message.text}")

    def look(self, path):
        self.page.goto(f"{self.server.address}{path}")

    def press(self, text):
        """Press a button of a form, and wait for the page that follows."""
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=text).first.click()

    def find(self, number):
        self.look("/people/loans")
        self.page.get_by_label("Id", exact=True).fill(number)
        self.press("Find")
        assert self.page.get_by_role("heading", name="Today’s decision").is_visible()

    def answer(self, number):
        self.find(number)
        self.press("What would change it")
        assert self.page.get_by_role("heading", name="Answer 1").is_visible()

    def issue(self, number):
        """Issue the first answer; its page, and the number of the promise."""
        self.answer(number)
        self.press("Issue the promise")
        return int(self.page.url.rsplit("/promises/", 1)[1])

    def audit(self, file):
        self.look("/models")
        self.page.set_input_files("#model", self.server.folder / file)
        self.press("Audit it")
        self.page.wait_for_url("**/models/audits/*", timeout=30_000)

    def complained(self):
        """The browser has told of one answer that was an error; the page is to say more."""
        assert self.said.pop().startswith("error: Failed to load resource")

    def check(self, name):
        """No complaint of axe, light and dark, nothing wider than the window, a silent console."""
        self.page.evaluate(f"() => {{ {AXE} }}")
        for (size, viewport), scheme in zip(SIZES.items(), ("light", "dark"), strict=True):
            self.page.set_viewport_size(viewport)
            self.page.emulate_media(color_scheme=scheme)
            found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
            told = [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]]
            assert told == [], f"{name}, {size}, {scheme}"
            wide = self.page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= viewport["width"], f"{name}, {size}"
        self.page.set_viewport_size(SIZES["desktop"])
        self.page.emulate_media(color_scheme="light")
        assert self.said == [], name

    @property
    def focused(self):
        """What has the focus, in words."""
        return self.page.evaluate("() => document.activeElement.textContent")


@pytest.fixture
def visitor(chromium, server):
    found = []

    def enter(role, **more):
        found.append(Visitor(chromium, server, role, **more))
        return found[-1]

    yield enter
    for one in found:
        one.page.context.close()


def filled_in(page, key):
    """Wait for the key of a link in the form."""
    page.wait_for_function("key => document.getElementById('key').value === key", arg=key)


def test_login_takes_the_key_of_the_link_or_the_form_and_leaves_none_behind(visitor, server):
    one = visitor(None)
    one.look("/promises")
    assert one.page.url == f"{server.address}/login?to=/promises"
    one.page.fill("#key", "pp_wrong")
    one.press("Log in")
    assert "not known" in one.page.get_by_role("alert").inner_text()
    assert "not known" in one.focused
    one.complained()  # 401
    one.check("login-wrong")
    one.page.fill("#key", server.keys["caseworker"])
    one.press("Log in")
    assert one.page.url == f"{server.address}/promises"
    one.page.context.clear_cookies()
    one.page.goto("about:blank")
    one.look(f"/login#{server.keys['reader']}")
    filled_in(one.page, server.keys["reader"])
    assert not one.page.locator("#running").is_visible()
    one.press("Log in")
    assert one.page.url == f"{server.address}/people/loans"
    assert server.keys["reader"] not in one.page.content()
    (cookie,) = one.page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert server.keys["reader"] not in cookie["value"]

    # The link of somebody else, on another site: nothing happens before the button is pressed.
    link = f"{server.address}/login%23{server.keys['caseworker']}"
    one.page.goto(f"data:text/html,<a href='{link}'>news</a>")
    one.page.get_by_role("link").click()
    filled_in(one.page, server.keys["caseworker"])
    assert "“reader” (reader) is logged in" in one.page.locator("#running").inner_text()
    assert one.focused == "Log in"
    assert one.page.url == f"{server.address}/login"
    assert one.page.context.cookies() == [cookie]
    one.check("login-by-link")
    one.look("/people")
    assert "reader, reader" in one.page.locator("header").inner_text()
    one.press("Log out")
    one.look("/people")
    assert one.page.url == f"{server.address}/login"

    # The page of the login is open already, so the link loads nothing.
    one.page.evaluate(f"location.href = '/login#{server.keys['reader']}'")
    filled_in(one.page, server.keys["reader"])
    assert one.page.url == f"{server.address}/login"
    assert one.said == []


def test_people_are_found_or_entered_and_decided(visitor, server):
    """By keyboard; and what was entered is still there where it is wrong, or cannot be sent."""
    one, number = visitor("caseworker"), server.refused[0]
    one.look("/people")
    page = one.page
    page.keyboard.press("Tab")
    assert one.focused == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "find"
    page.keyboard.type(number.upper())
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.get_by_role("button", name=number, exact=True).click()
    page.get_by_role("heading", name="Today’s decision").wait_for()
    assert one.focused == "Today’s decision"
    assert "The loan is refused." in page.content()
    assert page.get_by_role("link", name="Ledger").count() == 0
    fields = {"obligations": "5", "yearly income": "190000", "share": "0.5"}
    for label, value in fields.items():
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_label("job").select_option(label=EVIL)
    one.press("Show today’s decision")
    assert "The loan is approved." in page.content()
    assert page.title() == "People · Loans"
    assert page.get_by_label("job").input_value() == EVIL

    obligations = page.get_by_label("obligations", exact=True)
    obligations.fill("a lot")
    page.route("**/health", lambda route: route.abort())
    page.get_by_role("button", name="Show today’s decision").first.click()
    page.get_by_role("alert").wait_for()
    assert "nothing was sent" in one.focused
    assert obligations.input_value() == "a lot"
    page.unroute("**/health")
    one.complained()
    one.press("Show today’s decision")
    alert = page.get_by_role("alert").inner_text()
    assert "debt" in alert
    assert "is not a number" in alert
    assert "is not a number" in one.focused
    assert obligations.input_value() == "a lot"
    one.complained()  # 422
    one.check("people-wrong")
    assert number not in page.url

    server.service.store.end_session(page.context.cookies()[0]["value"])
    obligations.fill("7")
    one.press("Show today’s decision")
    assert "What you entered is kept" in page.get_by_role("alert").inner_text()
    one.complained()  # 401
    page.fill("#key", server.keys["reader"])
    one.press("Log in")
    one.check("logged-in-again")
    one.press("Send it now")
    assert "The loan is approved." in page.content()
    assert obligations.input_value() == "7"


def live(page, name, text):
    """Wait until something live says a text."""
    told = "([n, t]) => document.querySelector(`[data-live=${n}]`).textContent.includes(t)"
    page.wait_for_function(told, arg=[name, text])


def test_what_would_change_it_with_locks_and_live_values(visitor, server):
    one = visitor("caseworker")
    one.answer(server.refused[0])
    page = one.page
    assert page.locator("article figure img").count() >= 1
    assert page.evaluate("() => [...document.images].every(i => i.naturalWidth > 0)")
    changed = page.locator("table.changes tbody th").first.inner_text()
    page.get_by_label(f"May change: {changed}").uncheck()
    page.get_by_label("Number of answers").select_option("2")
    page.get_by_label("Tolerance: obligations").fill("1")
    page.get_by_label("Effort: yearly income").fill("3")
    page.get_by_label("Changes at most").select_option("3")
    one.press("Search answers")
    assert changed not in page.locator("table.changes tbody th").all_inner_texts()
    assert not page.get_by_label(f"May change: {changed}").is_checked()
    assert page.get_by_label("Tolerance: obligations").input_value() == "1"

    live(page, "decision", "approved")
    page.locator(".live:not(.stale)").wait_for()
    assert page.locator("[data-live=proved]").inner_text() == "yes"
    live(page, "words", "Decision: approved")  # read aloud, once it rests
    one.check("answers")
    slider = page.get_by_role("slider", name="yearly income")
    slider.focus()
    page.keyboard.press("Home")
    live(page, "decision", "refused")
    assert page.locator("#try-1").input_value() == "0"
    assert slider.get_attribute("aria-valuetext") == "0 $"
    page.get_by_role("button", name="Answer 1", exact=True).click()
    live(page, "decision", "approved")
    page.get_by_role("button", name="the person", exact=True).click()
    live(page, "decision", "refused")
    assert page.locator("[data-live=proved]").inner_text() == "no"
    page.locator("#try-1").fill("much")
    live(page, "problem", "is not a number")
    one.complained()  # 422
    assert one.said == []


def test_live_values_ask_one_question_at_a_time_and_say_what_is_stale(visitor, server):
    one = visitor("caseworker")
    one.find(server.refused[0])
    page, asked = one.page, []

    def hold(route):  # nothing is answered, for now
        asked.append(route)

    page.route("**/certify", hold)
    one.press("What would change it")
    slider = page.get_by_role("slider", name="yearly income")
    page.locator(".live.stale[aria-busy=true]").wait_for()
    slider.evaluate(
        "s => { for (let n = 0; n < 8; n++) { s.stepUp(); s.dispatchEvent(new Event('input')); } }"
    )
    page.wait_for_timeout(400)  # the first is given up, and one more is asked
    assert len(asked) == 2
    bodies = [route.request.post_data_json["people"][0]["income"] for route in asked]
    assert str(int(bodies[-1])) == page.locator("#try-1").input_value()
    asked.pop().fulfill(
        status=429, headers={"retry-after": "1"}, json={"error": "too many requests"}
    )
    live(page, "problem", "asked again in 1 s")
    one.complained()
    page.unroute("**/certify")
    live(page, "decision", "approved")  # by itself
    page.locator(".live:not(.stale)").wait_for()
    assert page.locator("[data-live=problem]").inner_text() == ""
    page.route("**/certify", lambda route: route.abort())
    slider.focus()
    page.keyboard.press("Home")
    live(page, "problem", "does not answer")
    page.unroute("**/certify")
    one.said.clear()
    server.service.store.end_session(page.context.cookies()[0]["value"])
    live(page, "problem", "session has ended")
    one.press("Show the decision")
    page.fill("#key", server.keys["reader"])
    one.press("Log in")
    one.press("Send it now")
    assert page.locator("#try-1").input_value() == "0"
    live(page, "decision", "refused")


def test_a_promise_its_letter_its_certificate_and_what_becomes_of_it(visitor, server, tmp_path):
    one = visitor("admin")
    number = server.refused[1]
    promise = one.issue(number)
    page = one.page
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
    one.press("Issue the promise")
    assert "has an open promise" in page.get_by_role("alert").inner_text()
    assert "has an open promise" in one.focused
    one.complained()  # 409

    # The person comes back, as they were: not met; then with what was promised.
    one.look(f"/promises/{promise}")
    page.get_by_text("What is known of the person").click()
    one.press("Look only")
    assert page.get_by_role("status").first.is_visible()
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

    second = server.promise(server.refused[2])
    one.look(f"/promises/{second}")
    page.get_by_label("Reason").fill("asked for in error")
    one.press("Withdraw the promise")
    assert page.locator("h1 .tag").inner_text() == "withdrawn"
    assert "asked for in error" in page.locator("table.entries").inner_text()
    assert page.url.endswith(f"/promises/{second}")
    one.look("/promises")
    page.get_by_label("Id of a person").fill(number)
    one.press("Search")
    assert page.locator("table.list tbody tr").count() == 1
    one.check("promises")


def test_a_retrained_model_is_audited_renewed_and_decided_on(visitor, server):
    one = visitor("admin")
    promise = server.promise(server.refused[3])
    page = one.page
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
    renewals = page.url
    assert page.get_by_role("button", name="Issue").count() == 0
    page.locator("a[href$='#decision']").click()
    one.press("Go: it goes into use")
    page.goto(renewals)
    one.check("renewals")
    one.press("Issue")
    page.get_by_role("heading", name="promise issued").wait_for(timeout=30_000)
    assert server.service.ledger.promise(promise).state == "renewed"
    page.goto(audit)
    one.press("No go")
    assert "no go" in page.locator("section.bad").inner_text()
    page.get_by_role("link", name="The audit as one file to keep").click()
    assert "Broken promises" in page.inner_text("body")
    one.check("audit-file")
    one.look("/models")
    one.check("models")
    kinds = [
        (e.kind, e.facts.get("go"), e.facts["by"])
        for e in server.service.ledger.entries(kinds=("decided", "adopted"))
    ]
    assert kinds == [
        ("decided", True, "admin"),
        ("adopted", None, "admin"),
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
    one.complained()  # 422
    page.set_input_files(
        "#model", {"name": "../m.npz", "mimeType": "text/plain", "buffer": b"no model"}
    )
    one.press("Audit it")
    page.get_by_role("heading", name="It failed").wait_for(timeout=30_000)
    one.check("job-failed")


def test_the_ledger_is_searched_verified_and_exported(visitor, server, tmp_path):
    one = visitor("admin")
    promise = server.promise(server.refused[4])
    page = one.page
    one.look("/ledger")
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
    page.get_by_label("What happened").select_option(label="issued")
    one.press("Show")
    assert set(page.locator("table.entries td:nth-child(3)").all_inner_texts()) >= {
        f"issued Promise {promise}"
    }
    page.get_by_label("Number of a promise").fill(str(promise))
    one.press("Search")
    assert page.url == f"{server.address}/promises/{promise}"
    one.look("/promises")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Export all as a table").click()
    downloading.value.save_as(tmp_path / "promises.csv")
    assert server.refused[4] in (tmp_path / "promises.csv").read_text()
    assert one.said == []


def test_without_a_script_everything_but_what_is_live_works(visitor, server):
    one = visitor(None, java_script_enabled=False)
    page = one.page
    one.look("/people")
    page.fill("#key", server.keys["admin"])
    one.press("Log in")
    one.answer(server.refused[5])
    assert not page.get_by_role("slider").first.is_visible()
    one.press("Show the decision")
    assert "The loan is approved." in page.content()
    one.issue(server.refused[5])
    assert page.locator("h1 .tag").inner_text() == "open"
    assert not page.get_by_role("button", name="Print the letter").is_visible()
    one.look("/models")
    page.set_input_files("#model", server.folder / "near.npz")
    one.press("Audit it")
    page.wait_for_url("**/models/audits/*", timeout=30_000)
