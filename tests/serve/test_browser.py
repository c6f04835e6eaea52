"""Stories in a real browser: with and without a script, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import re
import threading

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from browser import CHROMIUM, DESKTOP, NO_BROWSER, PHONE
from served import Served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)]


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(served):
    with served.listening() as found:
        yield found


class Window:
    """A browser window that is logged in, and the errors of its pages."""

    def __init__(self, chromium, served, address, **options):
        self.context = chromium.new_context(**options)
        cookie = {"name": "proplace", "value": served.access.session, "url": address}
        self.context.add_cookies([cookie | {"httpOnly": True, "sameSite": "Strict"}])
        self.page, self.address, self.errors = self.context.new_page(), address, []
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message):
        expected = "Failed to load resource"  # of a status that the test expects
        if message.type in ("error", "warning") and expected not in message.text:
            self.errors.append(message.text)

    def find(self, name):
        """Look a person up and search."""
        self.page.goto(self.address)
        self.page.fill("#wanted", name)
        self.page.keyboard.press("Enter")
        self.page.get_by_role("button", name="Search for changes").click()
        self.page.get_by_role("heading", level=1, name=re.compile("would get the loan")).wait_for()


@pytest.fixture
def open_window(chromium, served, address):
    opened = []

    def window(**options):
        opened.append(Window(chromium, served, address, **options))
        return opened[-1]

    yield window
    for each in opened:
        each.context.close()
        assert not each.errors


def test_case_worker_moves_values_and_promises_answer(open_window, book):
    """Seven actions from the id to the letter. Back and refresh repeat neither form nor search."""
    window = open_window()
    page = window.page
    window.find("c11")
    answer = page.url
    verdict = page.locator("#verdict")
    assert verdict.inner_text() == "Approved, and guaranteed."
    slider = page.locator("input[type=range]").first
    slider.focus()
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    expect(verdict).to_have_text("Refused.")
    page.get_by_role("button", name="Restore the values").click()
    expect(verdict).to_have_text("Approved, and guaranteed.")
    page.reload()
    assert page.url == answer
    assert page.locator("#who").input_value() == "c11"
    page.fill("#until", "2999-12-31")
    page.get_by_role("button", name="Issue the promise").dblclick()
    page.get_by_role("link", name="Letter").wait_for()
    assert len(book.promises("c11")) == 1
    page.go_back()
    assert page.url == answer
    page.go_forward()
    page.get_by_role("link", name="Letter").click()
    assert "promise" in page.inner_text("body")


def test_sliders_move_marks_and_announce_value(open_window):
    page = (window := open_window()).page
    window.find("c12")
    feature = page.locator(".feature", has=page.locator("input[type=range]")).first
    before = feature.locator("svg.you").get_attribute("x")
    feature.locator("input").focus()
    page.keyboard.press("Home")
    assert feature.locator("svg.you").get_attribute("x") == "0%" != before
    track, slider = (
        feature.locator("svg.bar").bounding_box(),
        feature.locator("input").bounding_box(),
    )
    assert abs(track["x"] - slider["x"]) <= 12
    assert abs(track["width"] - slider["width"]) <= 24
    assert feature.locator("output").inner_text() == feature.locator("input").input_value()


def test_pages_work_without_script_except_sliders(open_window, book):
    page = (window := open_window(java_script_enabled=False)).page
    window.find("c13")
    assert page.locator("svg.bar").count() >= 1
    assert not page.locator("#verdict").is_visible()
    assert not page.locator("input[type=range]").first.is_visible()
    page.fill("#until", "2020-01-31")
    page.get_by_role("button", name="Issue the promise").click()
    assert "future day" in page.locator("#e-until").inner_text()
    page.fill("#until", "2999-12-31")
    page.get_by_role("button", name="Issue the promise").click()
    page.get_by_role("link", name="Certificate", exact=True).wait_for()
    page.get_by_text("Redeem the promise").click()
    page.get_by_role("button", name="Compare only").click()
    assert "is met exactly" in page.inner_text("main")
    assert book.promises("c13")["state"].tolist() == ["open"]


def test_search_shows_its_progress_and_then_answer(open_window, served, monkeypatch):
    page = (window := open_window(java_script_enabled=False)).page
    end, search = threading.Event(), served.bench._explainer.explain

    def slow(*given, **options):
        assert end.wait(30)
        return search(*given, **options)

    monkeypatch.setattr(served.bench._explainer, "explain", slow)
    page.goto(window.address)
    page.fill("#wanted", "c21")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Search for changes").click()
    page.get_by_role("heading", name="Searching").wait_for()
    assert page.locator("progress").is_visible()
    end.set()
    page.get_by_role("heading", name=re.compile("would get the loan")).wait_for()


def test_keyboard_alone_is_enough(open_window):
    page = (window := open_window()).page
    page.goto(window.address)
    page.keyboard.press("Tab")  # from the field that has the focus to its button
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("c14")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Search for changes").wait_for()
    for _ in range(12):
        page.keyboard.press("Tab")
        if "Search for changes" in page.evaluate("document.activeElement.textContent"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=re.compile("would get the loan")).wait_for()


def paths(window):
    """An address of every page."""
    window.find("c15")
    answer = window.page.url
    window.page.fill("#until", "2999-12-31")
    window.page.get_by_role("button", name="Issue the promise").click()
    window.page.get_by_role("link", name="Letter").wait_for()
    promise = window.page.url
    window.page.goto(f"{window.address}/audits")
    rest = ("/", "/promises", "/audits", "/login", "/people/x")
    return [answer, promise, *(window.address + path for path in rest)]


def with_errors(page, address):
    """The form of a person with an error at every field."""
    page.goto(address)
    page.get_by_role("button", name="Show the decision").last.click()


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_finding_of_axe_and_no_sideways_scrolling(open_window, width, scheme):
    window = open_window(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page, found = window.page, []
    for path in [*paths(window), "errors"]:
        if path == "errors":
            with_errors(page, window.address)
        else:
            page.goto(path)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        result = Axe().run(page)
        found += [
            (path, each["id"], [node["html"][:120] for node in each["nodes"][:3]])
            for each in result["violations"]
        ]
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            found.append((path, "sideways", wide))
    assert not found


def test_printed_answer_takes_at_most_two_sheets(open_window, tmp_path):
    page = (window := open_window()).page
    window.find("c16")
    content = page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) <= 2


def test_link_of_start_logs_in_and_leaves_no_code_in_address(chromium, tmp_path):
    served = Served(tmp_path)
    served.bench.start()
    with served.listening() as address:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(f"{address}/login?code={served.access.code}")
        page.wait_for_url(f"{address}/")
        assert page.locator("#wanted").is_visible()
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        context.close()
    served.bench.close()
