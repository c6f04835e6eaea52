"""The page in a real browser: what people see of good, bad, missing and endless certificates."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import proplace as pp
from browser import CHROMIUM, DESKTOP, NO_BROWSER, PHONE
from proplace import verify
from support.clocks import PATIENCE
from support.problems import raised
from two_checkers import Case, accepted, changed_cases, true_cases

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_core_python", reason="axe-core is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)]

AXE = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
NET = pp.Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def shared(browser, tmp_path_factory):
    """One page from its file, and the messages on its console."""
    path = tmp_path_factory.mktemp("page") / "verify.html"
    verify.write_page(path)
    page, said = browser.new_page(viewport={"width": DESKTOP, "height": 800}), []
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page, path.as_uri(), said
    page.close()


@pytest.fixture
def opened(shared):
    """The open page. At the end, its console must be empty."""
    page, address, said = shared
    page.goto(address)
    yield page
    assert said == []


def choose(page, *files, shown="certificate"):
    page.set_input_files("#choose", [str(file) for file in files])
    page.locator("#status", has_text=shown).wait_for()
    return page.inner_text("#status")


def verdicts(page):
    """Return the verdict of each certificate: accepted, not-robust, rejected or missing."""
    return [card.get_attribute("class") for card in page.locator("#proofs article").all()]


def saved(case, folder, name="proof.json"):
    """The files of a case."""
    files = [folder / name]
    files[0].write_bytes(case.text)
    for n, thing in enumerate((*case.networks, *case.boxes)):
        files.append(folder / f"model-{n}.npz")
        thing.save(files[-1])
    return files


@pytest.fixture(scope="module")
def cases():
    found = {}
    for case in true_cases(np.random.default_rng(0)):
        facts = json.loads(case.text)
        found.setdefault((facts["format"], facts.get("verdict", ""), len(case.boxes)), case)
    return found


KINDS = [
    *itertools.product(["proplace-certificate-1"], ["robust", "not robust"], [0]),
    *itertools.product(["proplace-certificate-2"], ["robust", "not robust"], [1]),
    *itertools.product(["proplace-certificate-3"], ["robust", "not robust"], [0, 1]),
    ("proplace-bundle-1", "", 1),
    *itertools.product(["proplace-fixed-1"], [""], [0, 1]),
]


def test_page_reports_proved_claim(cases, opened, tmp_path):
    for n, kind in enumerate(KINDS):
        folder = tmp_path / str(n)
        folder.mkdir()
        case = cases[kind]
        choose(opened, *saved(case, folder))
        text = re.sub(r"\s+", " ", opened.inner_text("#proofs"))
        facts = json.loads(case.text)
        for part in facts.get("certificates", [facts]):
            assert part["network"] in text
            assert part.get("shifts", "") in text
            assert f"class {part['target']}" in text
            for x in part.get("input", []):
                assert repr(float(x)) in text
            if "margin" in part:
                assert repr(float(part["margin"])) in text
        assert verdicts(opened) == ["not-robust" if kind[1] == "not robust" else "accepted"]
        opened.click("#again")


def test_page_and_checker_agree(cases, opened, tmp_path):
    """Many changed certificates at once, each a file."""
    for kind in KINDS[::2]:
        case, folder = cases[kind], tmp_path / "-".join(map(str, kind))
        folder.mkdir()
        changed = [*changed_cases(case, np.random.default_rng(1), 60)]
        files = saved(case, folder)
        for n, one in enumerate(changed):
            files.append(folder / f"changed-{n:02}.json")
            files[-1].write_bytes(one.text)
        choose(opened, *files, shown=" certificates: ")
        heads = opened.locator("#proofs article h2").all_inner_texts()
        names = [re.search(r"\S+$", head)[0] for head in heads]
        known = [verdict in ("accepted", "not-robust") for verdict in verdicts(opened)]
        found = dict(zip(names, known, strict=True))
        assert found.pop("proof.json")
        assert found == {f"changed-{n:02}.json": accepted(one) for n, one in enumerate(changed)}
        opened.click("#again")


def test_page_checks_demanded_properties(opened, tmp_path):
    proof = pp.certify(NET, [[1.0, 0.0]], 0.05, certificates=True).certificates[0]
    facts = json.loads(proof.text)
    files = saved(Case("", proof.text.encode(), (NET,)), tmp_path)
    opened.click("#demands summary")
    opened.fill("#delta", "a lot")
    opened.set_input_files("#choose", [str(file) for file in files])
    assert opened.inner_text("#status")
    assert opened.evaluate("() => document.activeElement.id") == "delta"
    assert opened.get_attribute("#delta", "aria-invalid") == "true"
    assert opened.inner_text("#proofs") == ""
    margin = facts["margin"]
    for demand, verdict in (
        ({"delta": "0.05", "target": "1", "margin": repr(margin), "input": "1, 0"}, True),
        ({"network": facts["network"].upper(), "low": "1,-0", "high": "1.0,0e0"}, True),
        ({"delta": repr(math.nextafter(0.05, 1.0))}, False),
        ({"margin": repr(math.nextafter(margin, 9.0))}, False),
        ({"target": "0"}, False),
        ({"input": "1,0.1"}, False),
        ({"high": "1,0.1"}, False),
        ({"shifts": "0" * 64}, False),
        ({"network": "0" * 64}, False),
    ):
        for name in ("delta", "target", "margin", "input", "low", "high", "network", "shifts"):
            opened.fill(f"#{name}", demand.get(name, ""))
        opened.press("#network", "Enter")
        wanted = "accepted" if verdict else "rejected"
        opened.locator("#status", has_text=f"1 {wanted}").wait_for()
        assert verdicts(opened) == [wanted], demand
        assert opened.locator("#proofs .reason").count() == (not verdict), demand
        assert repr(margin) in opened.inner_text("#proofs")  # also if it is not enough
        assert opened.get_attribute("#delta", "aria-invalid") is None


def test_page_requests_missing_files(cases, opened, tmp_path):
    case, page = cases["proplace-certificate-2", "robust", 1], opened
    proof, network, box = saved(case, tmp_path)
    choose(page, proof)
    assert verdicts(page) == ["missing"]
    assert ".npz" in page.inner_text("#proofs")
    choose(page, network)
    facts = json.loads(case.text)
    assert facts["shifts"] in page.inner_text("#proofs")
    choose(page, box, shown="1 accepted")
    assert verdicts(page) == ["accepted"]
    assert facts["network"] in page.inner_text("#models")
    page.click("#again")
    assert page.inner_text("#status") == page.inner_text("#proofs") == ""
    choose(page, network)
    assert verdicts(page) == []


def test_unnamed_file_is_not_part_of_promise(opened, tmp_path):
    proof = pp.certify(NET, [[1.0, 0.0]], 0.05, certificates=True).certificates[0]
    files = saved(Case("", proof.text.encode(), (NET,)), tmp_path)
    other = tmp_path / "other.npz"
    pp.Network([([[1.0, 1.0]], None)]).save(other)
    page = opened
    choose(page, *files, other)
    assert verdicts(page) == ["rejected"]
    assert "other.npz" in page.inner_text("#proofs")
    copy = tmp_path / "copy.json"
    proof.save(copy)
    choose(page, copy, shown="2 ")
    assert verdicts(page) == ["accepted"] * 2
    assert proof.digest in page.inner_text("#proofs")
    assert page.inner_text("#proofs").count("other.npz") == 2


def test_names_of_files_are_only_text(opened, tmp_path):
    name = "<img src=x onerror=alert(1)>\u202e.json"
    (tmp_path / name).write_text("{}")
    (tmp_path / "<b>.npz").write_bytes(b"PK no zip")
    page = opened
    choose(page, tmp_path / name, tmp_path / "<b>.npz")
    assert verdicts(page) == ["missing"]
    assert "<img src=x onerror=alert(1)>\\u{202e}.json" in page.inner_text("#proofs")
    assert page.inner_text("#models strong") == "<b>.npz"
    assert page.locator("#models .problem").count() == 1
    assert page.locator("img, b").count() == 0


def endless():
    """A certificate whose check takes long, though not too long to be refused."""
    rng = np.random.default_rng(0)
    net = pp.Network([(rng.normal(size=(m, n)), None) for m, n in ((40, 20), (40, 40), (1, 40))])
    net = raised(net, 1, 1e9)
    facts = (
        pp.certify(net, rng.normal(size=(1, 20)), 0.001, certificates=True).certificates[0].facts
    )
    facts = {key: facts[key] for key in ("format", "network", "input", "delta")}
    facts |= {"target": 1, "margin": 0.0, "verdict": "robust", "tighten": False}
    facts |= {"lower": [[0.5] * 40], "upper": [[0.3] * 40]}

    def tree(k):
        return [{}] if k == 15 else [[1, k], *tree(k + 1), *tree(k + 1)]

    return Case("endless", json.dumps(facts | {"trees": [tree(0)]}).encode(), (net,))


def test_long_check_shows_how_far_it_is_and_can_be_cancelled(opened, tmp_path):
    page = opened
    page.set_input_files("#choose", [str(file) for file in saved(endless(), tmp_path)])
    page.locator("#doing", has_text=re.compile(r"step [1-9]\d* of 32768")).wait_for()
    assert 0.0 < float(page.get_attribute("#bar", "value")) < 1.0
    page.click("#cancel")
    assert verdicts(page) == []
    assert not page.is_visible("#running")
    assert page.evaluate("() => document.activeElement.id") == "choose"
    then = page.text_content("#doing")
    page.wait_for_timeout(500)  # of what goes on, something would be heard by now
    assert page.text_content("#doing") == then
    assert page.inner_text("#proofs") == ""


def test_page_fits_on_screens_and_axe_finds_nothing(cases, opened, tmp_path):
    """Light and dark, with proofs that were accepted and rejected, and with all that can be entered."""
    folder = tmp_path / "other"
    folder.mkdir()
    files = saved(cases["proplace-certificate-3", "robust", 1], tmp_path)
    choose(opened, *files, *saved(cases["proplace-certificate-1", "not robust", 0], folder, "b.json"),
           shown="2 certificates")  # fmt: skip
    opened.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    opened.evaluate(f"() => {{ {AXE} }}")
    for width, scheme in ((320, "light"), (PHONE, "dark"), (DESKTOP, "light"), (DESKTOP, "dark")):
        opened.set_viewport_size({"width": width, "height": 800})
        opened.emulate_media(color_scheme=scheme)
        assert opened.evaluate("() => document.documentElement.scrollWidth") <= width
        paper = opened.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(18, 22, 27)") == (scheme == "dark")
        found = opened.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        told = [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]]
        assert told == [], (width, scheme)
    opened.emulate_media(color_scheme="light")


def test_keyboard_and_screen_readers(cases, opened, tmp_path):
    page = opened
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "choose"
    assert page.evaluate("() => document.activeElement.labels[0].textContent").startswith("Choose")
    assert page.get_attribute("#status", "aria-live") == "polite"
    choose(page, *saved(cases["proplace-certificate-1", "robust", 0], tmp_path))
    reached = set()
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("() => document.activeElement.id || document.activeElement.tagName")
        )
    assert {"again", "SUMMARY", "DIV"} <= reached
    levels = page.evaluate("() => [...document.querySelectorAll('h1, h2, h3')].map(h => h.tagName)")
    assert levels[0] == "H1"
    assert set(levels[1:]) == {"H2"}


def test_page_has_no_network_access(browser, tmp_path):
    verify.write_page(tmp_path / "verify.html")
    page, answered = browser.new_page(), []
    page.set_default_timeout(5_000)
    page.on("response", lambda response: answered.append(response.url))
    page.goto((tmp_path / "verify.html").as_uri())
    page.route("**/*", lambda route: route.fulfill(body="here"))
    kinds = {
        "new Image().src = 'https://a.org'": "img-src",
        "fetch('https://a.org')": "connect-src",
    }
    for attempt, directive in kinds.items():
        refused = page.evaluate(
            "() => new Promise(done => { addEventListener('securitypolicyviolation', "
            f"e => done(e.effectiveDirective), {{once: true}}); {attempt}; setTimeout(done, 2000); }})"
        )
        assert refused == directive
    assert [url for url in answered if not url.startswith("file:")] == []
    page.close()
