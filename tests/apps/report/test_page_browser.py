"""The report in a real browser: nothing on the console, everything shown, no sideways scrolling."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from small_lender import LOAN

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

PHONE, DESKTOP = 390, 1280

# A page that shows another in a frame of some width and writes down what it sees. Windows of the
# browser cannot be as narrow as a phone; frames can.
HARNESS = """<!doctype html><title>harness</title>
<iframe src="{address}" style="width:{width}px;height:800px;border:0"></iframe>
<pre id="seen"></pre>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(d => d.open = true);
  const out = [...page.body.querySelectorAll("*")]
    .filter(e => e.getBoundingClientRect().right > root.clientWidth + 0.5)
    .filter(e => !e.parentElement.closest(".scroll"))  // which shows the rest of it
    .map(e => e.tagName + "." + e.className);
  const numbers = [...page.querySelectorAll("td, tbody th")].flatMap(cell => {{
    const texts = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) for (const hit of texts.currentNode.data.matchAll(/-?[0-9][0-9.,e]*/g)) {{
      const range = page.createRange();
      range.setStart(texts.currentNode, hit.index);
      range.setEnd(texts.currentNode, hit.index + hit[0].length);
      found.push({{text: hit[0], lines: new Set([...range.getClientRects()].map(r => r.top)).size}});
    }}
    return found;
  }});
  document.getElementById("seen").textContent = JSON.stringify({{
    title: page.title, width: root.clientWidth, scroll: root.scrollWidth, out,
    broken: [...page.images].filter(i => !(i.complete && i.naturalWidth > 0)).length,
    images: page.images.length, text: page.body.innerText,
    small: [...page.querySelectorAll("p, td, th, figcaption")]
      .filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
    wrapped: [...page.querySelectorAll("th.id:not(.long) a")]
      .filter(e => e.getClientRects().length > 1).length,
    names: page.querySelectorAll("th.id:not(.long) a").length,
    two_lines: [...page.querySelectorAll("td")].filter(e => {{
      const range = page.createRange();
      range.selectNodeContents(e);
      return new Set([...range.getClientRects()].map(r => r.top)).size > 1;
    }}).length,
    numbers: numbers.length, torn: numbers.filter(n => n.lines > 1).map(n => n.text),
  }});
}});
</script>"""


def chromium(folder, *arguments):
    """Run the browser once, without a window and with an empty profile."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--allow-file-access-from-files",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
            f"--user-data-dir={folder}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def seen(page, width, tmp_path):
    """What the browser makes of a page at some width, and its console."""
    harness = tmp_path / f"harness-{width}.html"
    harness.write_text(HARNESS.format(address=page.as_uri(), width=width), encoding="utf-8")
    dom, console = chromium(tmp_path / f"profile-{width}", "--dump-dom", harness.as_uri())
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.S)
    assert found, dom[-2000:]
    return json.loads(html.unescape(found[1])), console


@pytest.fixture
def page(folder):
    return folder / "report.html"


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_report_opens_cleanly(page, lender, width, tmp_path):
    view, console = seen(page, width, tmp_path)
    assert console == []
    assert view["title"] == "Loans <b>& more</b>"  # no name in the table could change it
    assert view["width"] == width
    assert view["scroll"] <= width, view["out"]
    assert view["out"] == []
    assert view["images"] >= 2 * sum(e.found for e in lender.result)
    assert view["broken"] == 0
    assert view["small"] == 0
    text = re.sub(r"\s+", " ", view["text"])
    for e in lender.result:
        assert e.words(LOAN).sentence in text
        assert e.certificate.digest in text
    assert "proplace check 'the proofs/answer-1.json' --model 'the proofs/model.npz'" in text


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_ids_stay_on_one_line(lender, width, tmp_path):
    people = lender.frame.loc[[e.index for e in lender.result[:3]]].copy()
    people.index = [f"customer-000{n}-2025" for n in range(2)] + ["long " * 30]
    path = tmp_path / "ids.html"
    lender.explainer.explain(people).report(path, LOAN, retrained=lender.retrained)
    view, console = seen(path, width, tmp_path)
    assert console == []
    assert view["names"] == 2
    assert view["wrapped"] == 0
    assert view["scroll"] <= width, view["out"]


@pytest.mark.parametrize("width", [320, PHONE, 600, DESKTOP])
def test_no_number_is_torn(width, tmp_path):
    """Long names leave little room beside them; a number is read as two when its digits are."""
    names = ["average_outstanding_balance_of_all_accounts", "utilisation of revolving credit lines"]
    rows = pd.DataFrame({name: np.linspace(-1, 1, 30) * 1e9 / 7 for name in names})
    features = [
        pp.Continuous(n, -2e8, 2e8, unit="roubles and kopecks", scaling=(0, 1e8)) for n in names
    ]
    features.append(pp.Categorical("word", ["w" * 80, "v" * 80]))
    rows["word"] = ["w" * 80, "v" * 80] * 15
    net = pp.Network([([[1.0, 0.5, 0.1, 0.0]], [-0.2])])
    explainer = pp.Proplace(net, 0.01, k=3, schema=pp.Schema(features)).fit(rows)
    explainer.explain(rows[:2]).report(tmp_path / "long.html", retrained=[net])
    view, console = seen(tmp_path / "long.html", width, tmp_path)
    assert console == []
    assert view["numbers"] > 20
    assert view["torn"] == []
    assert view["scroll"] <= width, view["out"]
    assert view["out"] == []


def test_tables_of_the_experiment_scroll_in_their_own_box(tmp_path):
    from proplace.apps.experiment import page as experiment

    facts = {"calibrated": False, "accuracy": 0.75, "inputs": 50, "fresh": 50, "found": 1.0}
    facts |= {"valid": 1.0, "seconds": 0.02, "error": "", "data": "heloc", "delta": 0.025}
    facts |= {"vr": 0.98, "vdelta": 1.0, "l1": 0.057, "lof": 1.04}
    seeds = pd.DataFrame([facts | {"method": "PROPLACE", "seed": seed} for seed in (0, 1)])
    pixel = dict.fromkeys(("l1-lof.png", "vr-delta.png"), b"")
    path = tmp_path / "index.html"
    path.write_text(experiment.page(seeds, pixel), encoding="utf-8")
    view, _ = seen(path, PHONE, tmp_path)
    assert "98.0 ± 0.0" in view["text"]
    assert view["scroll"] <= PHONE, view["out"]
    assert view["out"] == []
    assert view["two_lines"] == 0


def test_the_report_alone_says_nothing_on_the_console(page, tmp_path):
    dom, console = chromium(tmp_path / "profile", "--dump-dom", page.as_uri())
    assert console == []
    assert "What is promised" in dom


def test_this_test_would_see_an_error_and_a_page_too_wide(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><title>bad</title><img src='none.png'>"
        "<div style='width:900px'>wide</div><script>missing()</script>",
        encoding="utf-8",
    )
    view, console = seen(bad, PHONE, tmp_path)
    assert any("missing is not defined" in line for line in console)
    assert view["scroll"] > PHONE
    assert view["out"]
    assert view["broken"] == 1


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_paths_fit_on_screens(paths_page, width, tmp_path):
    view, console = seen(paths_page, width, tmp_path)
    assert console == []
    assert view["scroll"] <= width, view["out"]
    assert view["out"] == []
    assert view["torn"] == []
    text = re.sub(r"\s+", " ", view["text"])
    assert "beside each other" in text
